"""Frames between processes survive rubbish, halves and floods, and hold records that their receiver knows."""

from __future__ import annotations

import math
import os
import resource
import socket
import time
from types import SimpleNamespace
from typing import Any

import pytest

from togi.core.records import Ending, Footprint, Outcome, Recipe
from togi.measure.turn import Turn
from togi.worker.channel import Channel, Closed, Timeout, Unreadable, Vocabulary, new_token
from togi.worker.child_process import Child
from togi.worker.deadline import Deadline
from togi.worker.messages import (
    FROM_CHILD,
    FROM_SERVER,
    TO_SERVER,
    Built,
    Entered,
    Exited,
    Fork,
    Quit,
    Save,
    Started,
    SurveySubject,
    TryArtifact,
    TryRecipe,
)

ONE, TWO = Exited(pid=1, status=0), Exited(pid=2, status=0)
TOKEN = new_token()


def pair() -> tuple[Channel, Channel, socket.socket]:
    ours, theirs = socket.socketpair()
    return Channel(ours, TOKEN), Channel(theirs, TOKEN), theirs


@pytest.mark.parametrize(
    "message",
    [
        Entered(phase="build"),
        Built(build_s=1.5, notes=("a\nb", "\udc80 is half a character")),
        Turn(times_ms=(1.0, math.inf), passes=2, wall_s=0.1),
        Ending(outcome=Outcome.FAILED, reason="no such thing", stage="build"),
        Footprint(idle_bytes=1, peak_bytes=2),
    ],
    ids=lambda message: type(message).__name__,
)
def test_a_message_arrives_as_it_was_sent(message: Any) -> None:
    here, there, _ = pair()
    there.send(message)
    assert here.receive(FROM_CHILD, 1) == message


@pytest.mark.parametrize(
    "job",
    [
        SurveySubject(log="1"),
        TryRecipe(log="2", recipe=Recipe(), check=None),
        TryArtifact(log="3", recipe=Recipe(), folder="a"),
    ],
)
def test_a_job_arrives_as_one_of_its_kind(job: Any) -> None:
    here, there, _ = pair()
    there.send(Fork(job=job))
    message = here.receive(TO_SERVER, 1)
    assert isinstance(message, Fork)
    assert message.job == job
    assert type(message.job) is type(job)


def test_rubbish_before_between_and_inside_lines_is_skipped() -> None:
    here, there, raw = pair()
    raw.sendall(b'{"ready": true}\nhalf a line')
    there.send(ONE)
    raw.sendall(b"\x00\xff\n\n" + b"x" * 100_000)
    there.send(TWO)
    assert here.receive(FROM_SERVER, 1) == ONE
    assert here.receive(FROM_SERVER, 1) == TWO
    assert here.rubbish_bytes > 100_000


def test_a_frame_with_foreign_bytes_in_it_is_rubbish() -> None:
    here, there, raw = pair()
    raw.sendall(f'{TOKEN} Exited {{"pid": rubbish}}\n'.encode())
    there.send(TWO)
    assert here.receive(FROM_SERVER, 1) == TWO


@pytest.mark.parametrize(
    ("frame", "words"),
    [
        ('Exited {"pid": 1}', r"a message Exited that cannot be read: status: Field required"),
        ('Exited {"pid": 1, "status": 0, "more": 0}', r"a message Exited that cannot be read: more"),
        ('Save {"folder": "", "ask_s": 1.0}', r"a message 'Save' that is not known here"),
        ("Exited []", r"a message Exited that cannot be read"),
    ],
)
def test_a_frame_of_the_study_that_cannot_be_read_is_an_error(frame: str, words: str) -> None:
    here, there, raw = pair()
    raw.sendall(f"{TOKEN} {frame}\n".encode())
    there.send(TWO)
    with pytest.raises(Unreadable, match=words):
        here.receive(FROM_SERVER, 1)
    assert here.receive(FROM_SERVER, 1) == TWO, "the next one can be read"


def test_a_vocabulary_may_be_of_one_class() -> None:
    here, there, _ = pair()
    there.send(Save(folder="a", ask_s=1.0))
    assert here.receive(Vocabulary[Save](Save), 1) == Save(folder="a", ask_s=1.0)


def test_silence_times_out_and_an_end_is_told_apart() -> None:
    here, there, _ = pair()
    with pytest.raises(Timeout):
        here.receive(FROM_SERVER, 0.01)
    there.close()
    with pytest.raises(Closed):
        here.receive(FROM_SERVER, 1)


def test_what_arrived_while_the_parent_was_stopped_is_not_late() -> None:
    here, there, _ = pair()
    server: Any = SimpleNamespace(deadline=Deadline(time.monotonic() - 60.0))
    child = Child(server, os.getpid(), here, SurveySubject(log=""))
    there.send(Entered(phase="survey"))
    assert child.receive(-60.0) == Entered(phase="survey")
    with pytest.raises(Timeout):
        child.receive(-60.0)


def test_a_descriptor_travels_with_its_message() -> None:
    here, there, _ = pair()
    read, write = os.pipe()
    there.send(Quit(), (write,))
    message, fds = here.receive_with_fds(TO_SERVER, 1)
    os.write(fds[0], b"through")
    assert message == Quit()
    assert os.read(read, 7) == b"through"


def test_a_server_names_its_child() -> None:
    here, there, _ = pair()
    there.send(Started(pid=7, shared_bytes=1 << 20))
    assert here.receive(FROM_SERVER, 1) == Started(pid=7, shared_bytes=1 << 20)


def test_a_process_may_hold_more_than_a_thousand_files() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 1200 if hard == resource.RLIM_INFINITY else min(1200, hard)
    if wanted < 1100:
        pytest.skip("a process may not have that many here")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, wanted), hard))
    many = [os.open(os.devnull, os.O_RDONLY) for _ in range(1050)]
    try:
        here, there, raw = pair()
        assert here.fileno() > 1023
        with pytest.raises(Timeout):
            here.receive(FROM_SERVER, 0.01)
        there.send(ONE)
        assert here.receive(FROM_SERVER) == ONE
        raw.close()
        with pytest.raises(Closed):
            here.receive(FROM_SERVER, 1)
        here.close()
    finally:
        for descriptor in many:
            os.close(descriptor)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
