"""Text that others wrote, fit for a terminal and for the log of a build.

Names of files, messages of models, journals and artifacts may hold anything: sequences that move the cursor, hide lines
or answer for the user, letters that reverse what follows, and lines that the runner of a build obeys. All that togi
prints passes ``printable``: ``cli/output`` and ``render/terminal`` are the only places that print.
"""

from __future__ import annotations

import os
import re
import unicodedata
from typing import IO

_STEERING = frozenset(["Cc", "Cf", "Cs", "Zl", "Zp"])
"""Categories of Unicode: control and format characters (C0, C1, bidi), surrogates, separators of lines."""
_GITHUB = re.compile(r"^([ \t]*)::(?=[A-Za-z-]+(?: [^\n]*)?::)", re.MULTILINE)
_OTHERS = re.compile(r"##(?=\[|vso\[|teamcity\[)")
"""Commands of GitHub (its older form, anywhere in a line), Azure Pipelines and TeamCity."""


def printable(text: str, *, keep: str = "\n\t") -> str:
    """``text`` with U+FFFD for each character that steers and is not in ``keep``, and a space inside of commands."""
    if not text.isprintable():
        text = "".join(_shown(char) if char not in keep else char for char in text)
    if "::" in text:
        text = _GITHUB.sub(r"\1: :", text)
    return _OTHERS.sub("# #", text) if "##" in text else text


def one_line(text: str) -> str:
    return " ".join(printable(text).replace("\t", " ").split("\n"))


def encodable(text: str, stream: IO[str]) -> str:
    """``text`` with a question mark for each character that the stream's encoding cannot say."""
    if text.isascii():
        return text
    encoding = getattr(stream, "encoding", None) or "utf-8"
    return text.encode(encoding, errors="replace").decode(encoding)


def to_nobody(stream: IO[str]) -> None:
    """Whatever is written to it from now on goes nowhere, also what Python itself writes of it when it ends: its reader
    has closed the pipe."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, stream.fileno())
    os.close(nowhere)


def escaped(document: str) -> str:
    """A JSON document in ASCII, without the one character that steers and that JSON leaves, and without commands."""
    return _OTHERS.sub(r"\\u0023#", document.replace("\x7f", "\\u007f"))


def _shown(char: str) -> str:
    return "\N{REPLACEMENT CHARACTER}" if unicodedata.category(char) in _STEERING else char
