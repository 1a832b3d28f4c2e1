"""Word lists, written as paragraphs."""

from __future__ import annotations


def words(text: str) -> tuple[str, ...]:
    """The phrases of `text`, which are parted by bars; line ends count as spaces."""
    return tuple(" ".join(phrase.split()) for phrase in text.split("|"))
