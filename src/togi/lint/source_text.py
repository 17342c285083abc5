"""The bytes of a Python file as text and back, with encoding, byte order mark and line ends preserved (PEP 263)."""

from __future__ import annotations

import ast
import codecs
import io
import tokenize
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass


class UndecodableError(Exception):
    """The bytes are not Python source; the message says why and what to do."""


@dataclass(frozen=True)
class Decoded:
    """``text`` has ``\\n`` at the end of every line, as Python's own parser sees it."""

    text: str
    encoding: str
    """``utf-8-sig`` where a byte order mark stands at the start."""


def decode(data: bytes) -> Decoded:
    """Raises UndecodableError."""
    exact = decode_exactly(data)
    return Decoded(unify_line_ends(exact.text), exact.encoding)


def decode_exactly(data: bytes) -> Decoded:
    """Decodes and keeps the line ends of the file. Raises UndecodableError."""
    if data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        raise UndecodableError("is UTF-16, which Python cannot read either: save it as UTF-8")
    if b"\0" in data:
        raise UndecodableError(f"holds a null byte at offset {data.index(0)}: it is not Python source")
    encoding = _encoding(data)
    try:
        return Decoded(data.decode(encoding), encoding)
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise UndecodableError(
            f"is not {encoding} (byte 0x{data[error.start]:02x} in line {line}): save it as UTF-8, or declare its "
            "encoding in the first line, as in '# -*- coding: latin-1 -*-'"
        ) from None
    except (LookupError, ValueError) as error:  # codecs that are not for text (hex), or that fail in their own way
        raise UndecodableError(f"declares an encoding that cannot be used: {error}") from None


def _encoding(data: bytes) -> str:
    try:
        return tokenize.detect_encoding(io.BytesIO(data).readline)[0]
    except SyntaxError as error:
        raise UndecodableError(f"declares an encoding that cannot be used: {error.msg}") from None


def encode(text: str) -> bytes:
    """The bytes of source that a person is writing, in the encoding that it declares. What that lacks is replaced,
    character by character, so that columns stay."""
    try:
        return text.encode(_encoding(text.encode("utf-8", "replace")), "replace")
    except (UndecodableError, LookupError):
        return text.encode("utf-8", "replace")


def unify_line_ends(text: str) -> str:
    """``\\r\\n`` and ``\\r`` as ``\\n``: line numbers are those of Python's parser."""
    return text.replace("\r\n", "\n").replace("\r", "\n") if "\r" in text else text


@contextmanager
def parser_warnings_hidden() -> Iterator[None]:
    """Invalid escapes and the like are warned of on standard error otherwise, for every file that is read."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def syntax_error(code: str) -> SyntaxError | None:
    """Why ``code`` (with ``\\n`` line ends) cannot be parsed, or None when it can."""
    try:
        with parser_warnings_hidden():
            ast.parse(code)
    except SyntaxError as error:
        return error
    except (ValueError, RecursionError, MemoryError) as error:
        return SyntaxError(f"{type(error).__name__}: {error}")
    return None
