"""The line between two processes of a study: records as framed lines of JSON, no pickle.

A child's channel may be written to by hostile or careless code in the same process. Every frame therefore starts on a
line of its own with a token that only this study knows; whatever else arrives is counted as rubbish and skipped. After
the token a frame names the class of the record that it holds, and a receiver takes the classes of its ``Vocabulary``.
"""

from __future__ import annotations

import json
import secrets
import select
import socket
import struct
import time
from typing import Any, Generic, TypeVar, get_args

from pydantic import ValidationError

from togi.core.records import Record

CHANNEL_FD = 3
"""Where a server finds its socket."""
_DRAIN_S = 1.0
"""So long is taken what has arrived by the time a wait is over: whoever floods the channel does not prolong it."""
_LONGEST_RUBBISH = 1 << 20
"""Bytes without an end of line that are kept, unless they begin a frame."""

AnyRecord = TypeVar("AnyRecord", bound=Record)
M = TypeVar("M", bound=Record)


class Closed(Exception):
    """The channel was closed, on either side."""


class Timeout(Exception):
    """Nothing arrived in time."""


class Unreadable(Exception):
    """A frame of this study that the receiver cannot read. Text: which, and what is wrong with it."""


def encoded(record: Record) -> str:
    """One line of ASCII. Python's own JSON, because texts of foreign code may hold lone surrogates."""
    return json.dumps(record.model_dump(mode="json"))


def decoded(kind: type[AnyRecord], text: str | bytes) -> AnyRecord:
    """The record that was ``encoded``. Raises ValueError."""
    return kind.model_validate(json.loads(text))


class Vocabulary(Generic[M]):
    """The messages that a receiver takes: ``TO_SERVER: Vocabulary[ToServer] = Vocabulary(ToServer)``."""

    def __init__(self, messages: Any) -> None:
        """``messages``: a class of records, or a union of them."""
        self.kinds: tuple[type[M], ...] = get_args(messages) or (messages,)
        self._by_name = {kind.__name__: kind for kind in self.kinds}

    def read(self, frame: bytes) -> M | None:
        """None: it is not JSON, because foreign bytes were written into it."""
        name_bytes, _, text = frame.partition(b" ")
        try:
            fields = json.loads(text)
        except ValueError:
            return None
        name = name_bytes.decode(errors="replace")
        kind = self._by_name.get(name)
        if kind is None:
            raise Unreadable(f"a message {name!r} that is not known here")
        try:
            return kind.model_validate(fields)
        except ValidationError as error:
            first = error.errors()[0]
            where = "".join(f"{name}: " for name in first["loc"])
            raise Unreadable(f"a message {kind.__name__} that cannot be read: {where}{first['msg']}") from None


class Channel:
    """Frames over a socket. ``rubbish_bytes`` counts what was not a frame of this study."""

    def __init__(self, sock: socket.socket, token: str, send_timeout_s: int | None = None) -> None:
        """``send_timeout_s``: who reads nothing for so long, while the socket is full, counts as gone."""
        self.sock = sock
        if send_timeout_s is not None:  # not ``settimeout``, whose poll takes a socket that is half full for full
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", send_timeout_s, 0))
        self.rubbish_bytes = 0
        self._prefix = token.encode() + b" "
        self._buffer = b""

    def fileno(self) -> int:
        return self.sock.fileno()

    def send(self, message: Record, fds: tuple[int, ...] = ()) -> None:
        self._must_be_open()
        frame = b"\n" + self._prefix + f"{type(message).__name__} {encoded(message)}\n".encode()
        try:
            if fds:
                sent = socket.send_fds(self.sock, [frame], list(fds))
                frame = frame[sent:]
            if frame:
                self.sock.sendall(frame)
        except (BrokenPipeError, ConnectionResetError, BlockingIOError) as error:
            raise Closed from error

    def receive(self, vocabulary: Vocabulary[M], timeout_s: float | None = None) -> M:
        """The next message. Raises Timeout, Closed, or Unreadable."""
        return self.receive_with_fds(vocabulary, timeout_s)[0]

    def receive_with_fds(self, vocabulary: Vocabulary[M], timeout_s: float | None = None) -> tuple[M, list[int]]:
        self._must_be_open()
        deadline = None if timeout_s is None else time.monotonic() + max(0.0, timeout_s)
        fds: list[int] = []
        arrives = select.poll()  # ``select.select`` takes no descriptor beyond 1023
        arrives.register(self.sock, select.POLLIN)
        while (message := self._next_message(vocabulary)) is None:
            left_s = None if deadline is None else deadline - time.monotonic()
            if left_s is not None and left_s < -_DRAIN_S:
                raise Timeout
            if not arrives.poll(None if left_s is None else 1000 * max(0.0, left_s)):
                raise Timeout
            try:
                data, received, _, _ = socket.recv_fds(self.sock, 1 << 16, 4)
            except ConnectionResetError as error:
                raise Closed from error
            fds += received
            if not data:
                raise Closed
            self._buffer += data
        return message, fds

    def close(self) -> None:
        self.sock.close()

    def _must_be_open(self) -> None:
        if self.sock.fileno() == -1:
            raise Closed

    def _next_message(self, vocabulary: Vocabulary[M]) -> M | None:
        while b"\n" in self._buffer:
            line, self._buffer = self._buffer.split(b"\n", 1)
            if line.startswith(self._prefix):
                message = vocabulary.read(line[len(self._prefix) :])
                if message is not None:
                    return message
            self.rubbish_bytes += len(line)
        if len(self._buffer) > _LONGEST_RUBBISH and not self._buffer.startswith(self._prefix):
            self.rubbish_bytes += len(self._buffer)
            self._buffer = b""
        return None


def new_token() -> str:
    return secrets.token_hex(16)
