"""Small tokenizers of every kind, made on the spot."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors, trainers

TEXTS = (
    "The valve opens and water runs down the penstock to the turbine.",
    "naïve café, Zürich, 你好世界, こんにちは, привет мир, 👩‍👩‍👧 🌍🚀, ﷽",
    '{"name": "weather", "arguments": {"city": "Köln"}}\n\n    indented',
)
NANO = Path(__file__).parents[4] / "models" / "nano" / "tokenizer.json"


def token_id(tokenizer: Tokenizer, token: str) -> int:
    """Its id; the token must be there."""
    number = tokenizer.token_to_id(token)
    assert number is not None
    return number


@cache
def byte_level() -> Tokenizer:
    """GPT-2's kind; its added tokens include ones outside the byte alphabet and one that looks like a byte."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=320, special_tokens=["<|bos|>", "<|end|>"], initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(TEXTS, trainer)
    tokenizer.add_tokens([AddedToken(text, special=False) for text in ("<tool_call>", "two words", "世", "é")])
    return tokenizer


@cache
def byte_level_in_sequence() -> Tokenizer:
    """The same inside a Sequence, as some converted tokenizers have it."""
    tokenizer = Tokenizer.from_str(byte_level().to_str())
    tokenizer.decoder = decoders.Sequence([decoders.ByteLevel(), decoders.Fuse()])
    return tokenizer


@cache
def byte_level_then_replace() -> Tokenizer:
    """A byte-level decoder followed by another step: no table can stand for it."""
    tokenizer = Tokenizer.from_str(byte_level().to_str())
    tokenizer.decoder = decoders.Sequence([decoders.ByteLevel(), decoders.Replace("q", "Q")])
    return tokenizer


def _sentencepiece() -> dict[str, int]:
    tokens = [
        "<unk>",
        "<s>",
        "</s>",
        *(f"<0x{byte:02X}>" for byte in range(256)),
        "▁",
        "▁▁",
        "▁the",
        "▁valve",
        "s",
        "é",
    ]
    tokens += ["你", "▁a", "a", "\n", ".", "\ufffd", ""]
    return {token: number for number, token in enumerate(tokens)}


@cache
def llama() -> Tokenizer:
    """Llama 2's kind: ByteFallback, Fuse, and a leading space stripped off the whole text."""
    tokenizer = Tokenizer(models.BPE(vocab=_sentencepiece(), merges=[], byte_fallback=True, unk_token="<unk>"))
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    tokenizer.add_special_tokens(["<unk>", "<s>", "</s>"])
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    return tokenizer


@cache
def metaspace() -> Tokenizer:
    """T5's kind."""
    tokenizer = Tokenizer(models.BPE(vocab=_sentencepiece(), merges=[], unk_token="<unk>"))
    tokenizer.decoder = decoders.Metaspace()
    tokenizer.add_special_tokens(["<unk>", "<s>", "</s>"])
    return tokenizer


@cache
def wordpiece() -> Tokenizer:
    """BERT's kind."""
    words = ["[UNK]", "the", "valve", "##s", "##é", "你", ".", "don", "'", "t", "a", "##b"]
    tokenizer = Tokenizer(models.WordPiece({word: number for number, word in enumerate(words)}, unk_token="[UNK]"))
    tokenizer.decoder = decoders.WordPiece()
    tokenizer.add_special_tokens(["[UNK]"])
    return tokenizer


@cache
def nano() -> Tokenizer:
    """The bundled model's."""
    return Tokenizer.from_file(str(NANO))


MADE = [byte_level, byte_level_in_sequence, byte_level_then_replace, llama, metaspace, wordpiece]
ALL = [*MADE, nano] if NANO.exists() else MADE
