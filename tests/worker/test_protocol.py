"""Frames between processes survive rubbish, halves and floods."""

from __future__ import annotations

import os
import socket
import time

import pytest

from togi.worker.deadline import Deadline
from togi.worker.launch import Child, TrialServer
from togi.worker.protocol import Channel, Closed, Job, Timeout, new_token


def pair() -> tuple[Channel, Channel, socket.socket]:
    ours, theirs = socket.socketpair()
    token = new_token()
    return Channel(ours, token), Channel(theirs, token), theirs


def test_a_message_arrives_as_it_was_sent() -> None:
    here, there, _ = pair()
    there.send({"phase": "build", "number": 1.5, "text": "a\nb"})
    assert here.receive(1) == {"phase": "build", "number": 1.5, "text": "a\nb"}


def test_rubbish_before_between_and_inside_lines_is_skipped() -> None:
    here, there, raw = pair()
    raw.sendall(b'{"ready": true}\nhalf a line')
    there.send({"one": 1})
    raw.sendall(b"\x00\xff\n\n" + b"x" * 100_000)
    there.send({"two": 2})
    assert here.receive(1) == {"one": 1}
    assert here.receive(1) == {"two": 2}
    assert here.rubbish_bytes > 100_000


def test_a_frame_with_foreign_bytes_in_it_is_rubbish() -> None:
    here, there, raw = pair()
    raw.sendall(here._prefix + b'{"one": rubbish}\n')
    there.send({"two": 2})
    assert here.receive(1) == {"two": 2}


def test_silence_times_out_and_an_end_is_told_apart() -> None:
    here, there, _ = pair()
    with pytest.raises(Timeout):
        here.receive(0.01)
    there.close()
    with pytest.raises(Closed):
        here.receive(1)


def test_what_arrived_while_the_parent_was_stopped_is_not_late() -> None:
    here, there, _ = pair()
    server = TrialServer.__new__(TrialServer)
    server.deadline = Deadline(time.monotonic() - 60.0)
    child = Child(server, os.getpid(), here, Job(kind="survey", log=""))
    there.send({"one": 1})
    assert child.receive(-60.0) == {"one": 1}
    with pytest.raises(Timeout):
        child.receive(-60.0)


def test_a_descriptor_travels_with_its_message() -> None:
    here, there, _ = pair()
    read, write = os.pipe()
    there.send({"job": 1}, (write,))
    message, fds = here.receive_with_fds(1)
    os.write(fds[0], b"through")
    assert message == {"job": 1}
    assert os.read(read, 7) == b"through"
