"""Comments that silence findings.

``# togi: ignore[rule, rule]`` speaks for the statement (or the head of a compound statement) it stands in, over all its
lines; alone on a line it speaks for the statement below. ``# togi: ignore-file[rule]`` speaks for the file, and without
names it silences all of it. Comments are found by Python's tokenizer: a string that looks like one is none.
"""

from __future__ import annotations

import io
import re
import tokenize
from collections.abc import Iterator

from togi.lint.names import canonical
from togi.lint.result import Ignore

MARK = "togi:"
_COMMENT = re.compile(r"#\s*togi:\s*ignore(?P<file>-file)?\s*(?:\[(?P<rules>[^\]]*)\])?", re.IGNORECASE)
_NO_CODE = (tokenize.COMMENT, tokenize.NL, tokenize.INDENT, tokenize.DEDENT, tokenize.ENCODING)


def ignores(text: str) -> tuple[Ignore, ...]:
    """The ignore comments of Python source that can be parsed."""
    if MARK not in text.lower():
        return ()
    return tuple(_found(text))


def _found(text: str) -> Iterator[Ignore]:
    waiting: list[tuple[re.Match[str], int]] = []
    first = 0
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT and (match := _COMMENT.search(token.string)):
            waiting.append((match, token.start[0]))
        elif token.type in (tokenize.NEWLINE, tokenize.ENDMARKER):
            last = token.start[0]
            yield from (_ignore(match, line, first or line, max(last, line)) for match, line in waiting)
            waiting, first = [], 0
        elif token.type not in _NO_CODE and not first:
            first = token.start[0]


def _ignore(match: re.Match[str], line: int, first: int, last: int) -> Ignore:
    names = (canonical(name) for name in (match["rules"] or "").split(","))
    rules = tuple(dict.fromkeys(name for name in names if name))
    return Ignore(rules=rules, line=line, first=min(first, line), last=last, whole_file=match["file"] is not None)
