"""One pattern as people write it in .gitignore (gitignore(5)), and what it matches.

Matching takes no more steps than the length of the pattern times that of the path. Each run of literals between two
stars is found at the first place where it fits, which is enough, since the star before it takes any text. Regular
expressions, into which others translate such patterns, try all places of all stars.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass

_CLASSES = {
    "alnum": r"^\W_",
    "alpha": r"^\W\d_",
    "blank": r" \t",
    "digit": "0-9",
    "lower": "a-z",
    "punct": r"!-/:-@\[-`{-~",
    "space": r"\s",
    "upper": "A-Z",
    "xdigit": "0-9A-Fa-f",
}


@dataclass(frozen=True)
class Glob:
    """Compared with a path relative to the folder in which it was written."""

    includes: bool
    """False where ``!`` takes a file back."""
    folders_only: bool
    runs: tuple[tuple[_Name, ...], ...]
    """The names between two ``**``, each of which takes any number of folders."""

    def matches(self, path: str, is_folder: bool) -> bool:
        """Whether it matches ``path`` itself, not merely a folder above it."""
        if self.folders_only and not is_folder:
            return False
        names = _octets(path).split("/")
        if len(self.runs) == 1:
            return len(names) == len(self.runs[0]) and _fits(self.runs[0], names, 0)
        first, *middle, last = self.runs
        place, end = len(first), len(names) - len(last)
        if place > end or not _fits(first, names, 0) or not _fits(last, names, end):
            return False
        for run in middle:
            start = next((at for at in range(place, end - len(run) + 1) if _fits(run, names, at)), None)
            if start is None:
                return False
            place = start + len(run)
        return True


def _fits(run: Sequence[_Name], names: Sequence[str], at: int) -> bool:
    return all(pattern.matches(name) for pattern, name in zip(run, names[at : at + len(run)], strict=True))


@dataclass(frozen=True)
class _Name:
    """One part of a path: the literals before, between and after its stars. Each matches text of one length."""

    literals: tuple[re.Pattern[str], ...]
    last: int
    """Length of what the last of them matches."""

    def matches(self, name: str) -> bool:
        if len(self.literals) == 1:
            return self.literals[0].fullmatch(name) is not None
        match = self.literals[0].match(name)
        for literal in self.literals[1:-1]:
            match = match and literal.search(name, match.end())
        end = len(name) - self.last
        return match is not None and match.end() <= end and self.literals[-1].fullmatch(name, end) is not None


def glob(line: str) -> Glob | None:
    """Reads a line of a .gitignore; None for a blank one and a comment. Raises ValueError for what is not a pattern."""
    text = _octets(_without_end(line))
    if not text or text.startswith("#"):
        return None
    includes, text = not text.startswith("!"), text.removeprefix("!")
    folders_only, text = text.endswith("/"), text.removesuffix("/")
    text = re.sub(r"\\(.)", lambda escape: "/" if escape[1] == "/" else escape[0], text)  # an escaped slash is one
    if not text.removeprefix("/"):
        raise ValueError("it matches nothing")
    if "/" not in text:  # a name at any depth, be it one of stars alone
        return Glob(includes, folders_only, ((), (_name(text),)))
    parts = text.removeprefix("/").split("/")
    runs: list[list[_Name]] = [[]]
    for part in parts:
        if len(part) > 1 and not part.strip("*"):
            runs.append([])
        else:
            runs[-1].append(_name(part))
    if not runs[-1]:
        runs[-1].append(_name("*"))  # all that is below, and not the folder itself
    return Glob(includes, folders_only, tuple(tuple(run) for run in runs))


def _octets(text: str) -> str:
    """A character for each byte, which is what git compares."""
    return text if text.isascii() else os.fsencode(text).decode("latin-1")


def _without_end(line: str) -> str:
    """Removes spaces at the end, of which a backslash keeps one."""
    text = line.rstrip(" ")
    keeps_space = len(text) < len(line) and (len(text) - len(text.rstrip("\\"))) % 2
    return f"{text} " if keeps_space else text


def _name(text: str) -> _Name:
    literals: list[list[str]] = [[]]
    place = 0
    while place < len(text):
        if text[place] == "*":
            literals.append([])
            place += 1
        else:
            expression, place = _character(text, place)
            literals[-1].append(expression)
    return _Name(tuple(re.compile("".join(literal), re.DOTALL | re.ASCII) for literal in literals), len(literals[-1]))


def _character(text: str, place: int) -> tuple[str, int]:
    """A regular expression for one character, and where the next begins."""
    match text[place]:
        case "?":
            return ".", place + 1
        case "[":
            return _set(text, place + 1)
        case "\\":
            return re.escape(_at(text, place + 1)), place + 2
        case character:
            return re.escape(character), place + 1


def _set(text: str, place: int) -> tuple[str, int]:
    """``[abc]``, ``[!a-z]``, ``[[:digit:]]``; ``place`` is behind the bracket."""
    negated = _at(text, place) in "!^"
    place += negated
    first, members = place, []
    while _at(text, place) != "]" or place == first:
        if text.startswith("[:", place) and (end := text.find(":]", place)) > 0:
            members.append(f"[{_CLASSES[name]}]" if (name := text[place + 2 : end]) in _CLASSES else "(?!)")
            place = end + 2
            continue
        low, place = _member(text, place)
        high = low
        if _at(text, place) == "-" and _at(text, place + 1) != "]":
            high, place = _member(text, place + 1)
        if low > high:
            raise ValueError(f"bad character range {low}-{high}")
        members.append(f"[{re.escape(low)}-{re.escape(high)}]")
    any_member = "|".join(members)
    return (f"(?:(?!{any_member}).)" if negated else f"(?:{any_member})"), place + 1


def _member(text: str, place: int) -> tuple[str, int]:
    escaped = text[place] == "\\"
    return _at(text, place + escaped), place + escaped + 1


def _at(text: str, place: int) -> str:
    if place >= len(text):
        raise ValueError("a bracket or a backslash is not closed")
    return text[place]
