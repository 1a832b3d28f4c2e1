"""Fields that take more than one type of value, or more rules than bounds."""

from __future__ import annotations

from typing import Any

from services.gateway.openai.problems import problem

TOKEN_ID_END = 2**32


def stop_list(value: Any) -> Any:
    """One string is a list of one."""
    if not isinstance(value, str | list):
        raise problem("must be a string or a list of strings")
    return [value] if isinstance(value, str) else value


def _token_ids(value: list[Any], at: tuple[int, ...] = ()) -> list[int]:
    if not value:
        raise problem("must have at least one token id", at=at)
    for index, token in enumerate(value):
        if type(token) is not int or not 0 <= token < TOKEN_ID_END:
            raise problem("must be a token id, an integer from 0", at=(*at, index))
    return value


def prompt(value: Any) -> str | list[int]:
    """One prompt: a string, token ids, or a list of one of those."""
    if isinstance(value, list) and value and isinstance(value[0], str | list):
        if len(value) > 1:
            raise problem(
                f"holds {len(value)} prompts, and one prompt per request is supported; send one request for each",
                kind="unsupported",
            )
        value = value[0]
        if isinstance(value, list):
            return _token_ids(value, at=(0,))
    if isinstance(value, list):
        return _token_ids(value)
    if not isinstance(value, str):
        raise problem("must be a string or a list of token ids")
    if not value:
        raise problem("must not be empty")
    return value


def logit_bias(value: Any) -> dict[int, float]:
    """Token id -> bias, -100 to 100."""
    if not isinstance(value, dict):
        raise problem("must be an object of token id -> bias")
    if len(value) > 1024:
        raise problem(f"must have at most 1024 entries, not {len(value)}")
    out = {}
    for token, bias in value.items():
        if not (token.isascii() and token.isdigit() and int(token[:11]) < TOKEN_ID_END and len(token) < 11):
            raise problem(f'has the key "{token[:20]}", which is not a token id')
        if isinstance(bias, bool) or not isinstance(bias, int | float) or not -100 <= bias <= 100:
            raise problem("must be a number from -100 to 100", at=(token,))
        out[int(token)] = float(bias)
    return out


def top_k(value: int) -> int:
    """0 for all tokens."""
    if value < -1:
        raise problem("must be -1 or 0 (all tokens), or at least 1")
    return max(value, 0)


def metadata(value: Any) -> dict[str, str]:
    """As OpenAI bounds it."""
    if not isinstance(value, dict):
        raise problem("must be an object of strings")
    if len(value) > 16:
        raise problem(f"must have at most 16 entries, not {len(value)}")
    for key, text in value.items():
        if len(key) > 64:
            raise problem(f'has the key "{key[:20]}…", which is over 64 characters')
        if not isinstance(text, str) or len(text) > 512:
            raise problem("must be a string of at most 512 characters", at=(key,))
    return value


def store(value: bool) -> bool:
    """False only."""
    if value:
        raise problem("true is not supported: answers are not stored; leave it out", kind="unsupported")
    return value
