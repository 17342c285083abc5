"""Text of findings made fit for its place. Messages quote source, and source may hold anything."""

from __future__ import annotations


def sentence(text: str) -> str:
    """With a full stop, so that another sentence may follow."""
    return text if text.endswith((".", "!", "?", ":")) else f"{text}."


def printable(text: str) -> str:
    """Control characters could rewrite a terminal's screen: they are replaced. Line breaks stay."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() or char == "\n" else "\N{REPLACEMENT CHARACTER}" for char in text)


def one_line(text: str) -> str:
    return " ".join(printable(text).split("\n"))
