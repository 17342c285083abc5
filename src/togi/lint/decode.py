"""The bytes of a Python file as text and back, with encoding, byte order mark and line ends preserved (PEP 263)."""

from __future__ import annotations

import codecs
import io
import tokenize
from dataclasses import dataclass


class UndecodableError(Exception):
    """The bytes are no Python source; the message says why and what to do."""


@dataclass(frozen=True)
class Decoded:
    """``text`` has ``\\n`` at the end of every line, as Python's own parser sees it."""

    text: str
    encoding: str
    """``utf-8-sig`` where a byte order mark stands at the start."""


def decode(data: bytes) -> Decoded:
    """Raises UndecodableError."""
    return Decoded(unified(decode_exactly(data).text), encoding_of(data))


def decode_exactly(data: bytes) -> Decoded:
    """With the line ends of the file. Raises UndecodableError."""
    if data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        raise UndecodableError("is UTF-16, which Python cannot read either: save it as UTF-8")
    if b"\0" in data:
        raise UndecodableError(f"holds a null byte at offset {data.index(0)}: it is no Python source")
    encoding = encoding_of(data)
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


def encoding_of(data: bytes) -> str:
    """As PEP 263 says. Raises UndecodableError for a declared encoding that does not exist."""
    try:
        return tokenize.detect_encoding(io.BytesIO(data).readline)[0]
    except SyntaxError as error:
        raise UndecodableError(f"declares an encoding that cannot be used: {error.msg}") from None


def unified(text: str) -> str:
    """``\\r\\n`` and ``\\r`` as ``\\n``: line numbers are those of Python's parser."""
    return text.replace("\r\n", "\n").replace("\r", "\n") if "\r" in text else text
