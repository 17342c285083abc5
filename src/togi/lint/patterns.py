"""Globs as people write them in ``exclude``, ``per-file-ignores`` and .gitignore.

``*`` and ``?`` stay within a name, ``**`` crosses folders, ``[...]`` is a set. A pattern without a slash meets the name
at any depth; one with a slash is relative to the folder in which it was written (gitignore(5)).
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable
from pathlib import Path

_TOKEN = re.compile(
    r"(?P<any>/\*\*/|^\*\*/|/\*\*$|\*\*)|(?P<star>\*)|(?P<one>\?)|(?P<set>\[!?\]?[^\]/]*\])|\\(?P<quoted>.)"
)
_ANY = {"/**/": "/(?:.*/)?", "**/": "(?:.*/)?", "/**": "/.*", "**": ".*"}


@functools.cache
def compiled(pattern: str) -> re.Pattern[str]:
    """A regular expression for whole relative paths with forward slashes."""
    anchored = "/" in pattern.rstrip("/")
    body = _translate(pattern.strip("/"))
    return re.compile(body if anchored else f"(?:.*/)?{body}", re.DOTALL)


def matches(path: Path, folder: Path, patterns: Iterable[str]) -> bool:
    """Whether ``path``, or a folder above it up to ``folder``, meets one of ``patterns`` written in ``folder``."""
    try:
        parts = path.relative_to(folder).parts
    except ValueError:
        parts = path.parts[1:]
    wholes = ["/".join(parts[:count]) for count in range(1, len(parts) + 1)]
    return any(compiled(pattern).fullmatch(whole) for pattern in patterns for whole in wholes)


def _translate(pattern: str) -> str:
    found, position = "", 0
    for token in _TOKEN.finditer(pattern):
        found += re.escape(pattern[position : token.start()]) + _one(token)
        position = token.end()
    return found + re.escape(pattern[position:])


def _one(token: re.Match[str]) -> str:
    match token.lastgroup:
        case "any":
            return _ANY[token[0]]
        case "star":
            return "[^/]*"
        case "one":
            return "[^/]"
        case "set":
            inside = token[0][1:-1].replace("\\", "\\\\").replace("[", "\\[")
            return (
                f"[{'^' + inside[1:] if inside.startswith('!') else inside}]"
                if inside.strip("!")
                else re.escape(token[0])
            )
        case _:
            return re.escape(token["quoted"])
