"""The messages between the parent, the trial server and the trial children: framed lines of JSON, no pickle.

A child's channel may be written to by hostile or careless code in the same process. Every frame therefore starts on a
line of its own with a token that only this study knows; whatever else arrives is counted as rubbish and skipped.
"""

from __future__ import annotations

import json
import os
import secrets
import select
import socket
import struct
import sys
import time
import traceback
from pathlib import Path
from typing import Any, Literal

from pydantic import Field
from typing_extensions import Self

from togi.core.errors import SubjectError, TogiError, error_class
from togi.core.recipe import AnyRecipe, PartKey
from togi.core.records import Facts, Machine, Record, Request, Scalar
from togi.core.user_code import user_traceback
from togi.subject.batch import Batch
from togi.subject.effects import Effects
from togi.subject.signature import Signature

Message = dict[str, Any]
CHANNEL_FD = 3
"""Where a server finds its socket."""
_DRAIN_S = 1.0
"""So long is taken what has arrived by the time a wait is over: whoever floods the channel does not prolong it."""
_LONGEST_RUBBISH = 1 << 20
"""Bytes without an end of line that are kept, unless they begin a frame."""
_SURVEY_FILE = "survey.json"


class SubjectRef(Record):
    """Where children find the subject."""

    kind: Literal["locator", "live", "artifact", "nothing"]
    spec: str = ""
    """A locator; the path of a live subject's file, alone in a private folder; the folder of an artifact."""
    path: tuple[str, ...] = ()
    """``sys.path`` of the parent."""
    cwd: str = "."

    @classmethod
    def here(cls, kind: Literal["locator", "live", "artifact", "nothing"], spec: str = "") -> SubjectRef:
        """With this process's import path and working folder."""
        return cls(kind=kind, spec=spec, path=tuple(sys.path), cwd=os.getcwd())

    @property
    def answer(self) -> Path:
        """Next to a live subject: what it answers where it lives."""
        return Path(self.spec).with_name("answer")


class ServerConfig(Request):
    """What a trial server is started with."""

    token: str
    subject: SubjectRef
    folder: str
    """The run's private folder: truth, logs."""
    device: str
    seed: int
    threads: int
    machine: Machine
    callers: int = 1
    """How many call at once while something is verified and measured."""
    from_host: bool = False
    """A measured call has its inputs and results in host memory."""
    nan_differences: bool = False
    """What the original shows as NaN may be a number."""


class PartRef(Record):
    """A part of the subject, which children of the same server work on as a subject of its own."""

    key: PartKey
    effects: Effects
    inputs: str
    """File of recorded calls (``togi.subject.stored_inputs``)."""
    folder: str
    """The part's own place for survey, truth and logs."""


class Job(Record):
    """What one child does after it has started."""

    kind: Literal["survey", "capture", "rewrites", "truth", "trial", "artifact", "call"]
    log: str
    """File that takes what the child prints."""
    threads: int | None = None
    """For torch; None: those of the server's config."""
    part: PartRef | None = None
    recipe: AnyRecipe | None = None
    artifact: str | None = None
    identity: str = ""
    """Of the artifact's manifest, as the parent checked it (``Manifest.identity``); empty: it is the run's own."""
    native: bool = True
    """The artifact's engines may be programs (``Engine.native``)."""
    function: str | None = None
    """``module:name`` of what a call calls with the subject and ``request``."""
    request: Message = Field(default_factory=dict)
    proven_on: tuple[PartRef, ...] = ()
    """Of an artifact of parts: the calls that the original makes of each."""
    check: bool = True
    """Verify against the truth of the run's folder (off for ``bench``, which compares speed alone)."""
    batch: Batch | None = None
    """What is timed are the samples with so many rows; None: as they are. What is verified are always these."""


class Survey(Record):
    """All that the parent and the trials need to know of a subject; no tensor in it."""

    facts: Facts
    signature: Signature
    calls: tuple[tuple[tuple[int, ...], ...], ...] = ()
    """Of each sample, the shapes of its flat inputs."""

    def write(self, folder: Path) -> None:
        """Where the trials of the subject read it."""
        (folder / _SURVEY_FILE).write_text(self.model_dump_json(), encoding="utf-8")

    @classmethod
    def read(cls, folder: Path) -> Self:
        return cls.model_validate_json((folder / _SURVEY_FILE).read_text(encoding="utf-8"))


class AskedAtOnce(Record):
    """What several callers at once were given."""

    problems: tuple[str, ...] = ()
    """What is wrong, where the original would have been right."""
    note: str = ""
    """What else should be known of it."""


class Raised(Record):
    """An exception as it crosses from a child to its parent."""

    kinds: tuple[str, ...]
    """Its class and the bases of that up to ``TogiError``, by name; empty for an error of foreign code."""
    message: str
    exit_code: int = SubjectError.exit_code
    fields: dict[str, Scalar] = {}
    """What it carries besides its message."""
    shown: str = ""
    """Of foreign code: the user's frames and the message."""
    traceback: str = ""

    @classmethod
    def of(cls, error: BaseException) -> Self:
        trace = "".join(traceback.format_exception(error))
        if not isinstance(error, TogiError):
            return cls(kinds=(), message=str(error), shown=user_traceback(error), traceback=trace)
        kinds = [kind.__name__ for kind in type(error).__mro__ if issubclass(kind, TogiError)]
        fields = {name: value for name, value in vars(error).items() if isinstance(value, Scalar)}
        return cls(kinds=tuple(kinds), message=str(error), exit_code=error.exit_code, fields=fields, traceback=trace)

    def error(self, purpose: str) -> TogiError:
        """The exception to raise here: of the same class, else of the nearest base that is known in this process."""
        if self.kinds:
            kind = error_class(self.kinds)
            error = kind.__new__(kind, self.message)  # its own __init__ may want more than the message
            vars(error).update(self.fields)
            if error.exit_code != self.exit_code:
                error.exit_code = self.exit_code
        else:
            error = SubjectError(f"the subject could not be {purpose}. It raised:\n{self.shown}")
        error.child_traceback = self.traceback
        return error


class Closed(Exception):
    """The channel was closed, on either side."""


class Timeout(Exception):
    """Nothing arrived in time."""


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

    def send(self, message: Message, fds: tuple[int, ...] = ()) -> None:
        self._must_be_open()
        frame = b"\n" + self._prefix + json.dumps(message).encode() + b"\n"
        try:
            if fds:
                sent = socket.send_fds(self.sock, [frame], list(fds))
                frame = frame[sent:]
            if frame:
                self.sock.sendall(frame)
        except (BrokenPipeError, ConnectionResetError, BlockingIOError) as error:
            raise Closed from error

    def receive(self, timeout_s: float | None = None) -> Message:
        """The next frame. Raises Timeout or Closed."""
        return self.receive_with_fds(timeout_s)[0]

    def receive_with_fds(self, timeout_s: float | None = None) -> tuple[Message, list[int]]:
        self._must_be_open()
        deadline = None if timeout_s is None else time.monotonic() + max(0.0, timeout_s)
        fds: list[int] = []
        while (message := self._next_frame()) is None:
            left = None if deadline is None else deadline - time.monotonic()
            if left is not None and left < -_DRAIN_S:
                raise Timeout
            if not select.select([self.sock], [], [], None if left is None else max(0.0, left))[0]:
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

    def _next_frame(self) -> Message | None:
        while b"\n" in self._buffer:
            line, self._buffer = self._buffer.split(b"\n", 1)
            if line.startswith(self._prefix):
                try:
                    return dict(json.loads(line[len(self._prefix) :]))
                except ValueError:
                    pass  # a frame that foreign bytes were written into: rubbish like the rest
            self.rubbish_bytes += len(line)
        if len(self._buffer) > _LONGEST_RUBBISH and not self._buffer.startswith(self._prefix):
            self.rubbish_bytes += len(self._buffer)
            self._buffer = b""
        return None


def new_token() -> str:
    return secrets.token_hex(16)
