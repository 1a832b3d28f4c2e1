"""Request traces: Mooncake's JSONL and Azure's CSV as they are published, and offered load."""

from __future__ import annotations

import csv
import json
from dataclasses import dataclass, replace
from datetime import datetime
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

BLOCK_TOKENS = 512
"""Of a trace's prefix block (Mooncake's)."""
_CALLS_MAX = 5_000_000


class TraceError(ValueError):
    """The file is no trace; says where."""


@dataclass(frozen=True, slots=True)
class Call:
    """One request of a trace. Tokens; `at_s` from the trace's start; `blocks` name its prompt's 512-token blocks."""

    at_s: float
    prompt: int
    output: int
    blocks: tuple[int, ...] = ()
    tenant: str = ""
    priority_class: int = 1
    session: str = ""


def read(path: Path) -> list[Call]:
    """A trace in order of arrival; the format is told by the content.

    Raises:
        TraceError: names the line and the field.
        OSError: it can't be read.
    """
    with path.open(encoding="utf-8-sig", newline="") as lines:
        first = lines.readline()
        lines.seek(0)
        if not first.strip():
            raise TraceError(f"{path}: the first line is empty")
        calls = mooncake(lines) if first.lstrip().startswith("{") else azure(lines)
    if not calls:
        raise TraceError(f"{path}: no requests")
    return sorted(calls, key=lambda call: call.at_s)


def mooncake(lines: Iterable[str]) -> list[Call]:
    """JSON lines of `timestamp` (ms), `input_length`, `output_length`, `hash_ids`; optional `tenant`, `class`."""
    calls = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        _bounded(number)
        try:
            row = json.loads(line)
            blocks = tuple(int(each) for each in row["hash_ids"])
            call = Call(
                at_s=float(row["timestamp"]) / 1e3,
                prompt=_tokens(row["input_length"]),
                output=_tokens(row["output_length"]),
                blocks=blocks[: -(-int(row["input_length"]) // BLOCK_TOKENS)],
                tenant=str(row.get("tenant", "")),
                priority_class=int(row.get("class", 1)),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise TraceError(f"line {number}: {type(error).__name__}: {error}") from error
        calls.append(call)
    return calls


def azure(lines: Iterable[str]) -> list[Call]:
    """CSV with TIMESTAMP, ContextTokens, GeneratedTokens."""
    rows = csv.DictReader(lines)
    calls, start = [], None
    for number, row in enumerate(rows, 2):
        _bounded(number)
        try:
            # Seven digits of a second are one more than Python reads.
            at = datetime.fromisoformat(row["TIMESTAMP"].strip()[:26]).timestamp()
            start = at if start is None else start
            call = Call(at - start, _tokens(row["ContextTokens"]), _tokens(row["GeneratedTokens"]))
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise TraceError(f"line {number}: {type(error).__name__}: {error}") from error
        calls.append(call)
    return calls


def natural_load(calls: Sequence[Call], workers: int, prefill_tokens_per_s: float) -> float:
    """Prefill work of the trace over what the workers can do in its time, without any cache hit."""
    seconds = max(calls[-1].at_s - calls[0].at_s, 1e-9)
    return sum(call.prompt for call in calls) / (prefill_tokens_per_s * workers * seconds)


def at_load(calls: Sequence[Call], load: float, workers: int, prefill_tokens_per_s: float) -> list[Call]:
    """The same requests, their arrival times stretched so that they offer `load`."""
    factor = natural_load(calls, workers, prefill_tokens_per_s) / load
    start = calls[0].at_s
    return [replace(call, at_s=(call.at_s - start) * factor) for call in calls]


def _tokens(value: object) -> int:
    tokens = int(str(value))
    if not 0 <= tokens <= 10_000_000:
        raise ValueError(f"{tokens} is no count of tokens")
    return max(1, tokens)


def _bounded(number: int) -> None:
    if number > _CALLS_MAX:
        raise TraceError(f"more than {_CALLS_MAX} requests")
