"""Locks between processes: who waits, and for how long."""

from __future__ import annotations

import fcntl
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from togi.artifact.save import written_whole
from togi.core import locks
from togi.core.errors import ArtifactError
from togi.core.locks import locked


@pytest.fixture
def held(tmp_path: Path) -> Iterator[int]:
    """As by ``flock . togi tune ...``: the folder is locked by who waits for this command."""
    descriptor = os.open(tmp_path, os.O_RDONLY)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    yield descriptor
    os.close(descriptor)


@pytest.mark.usefixtures("held")
def test_a_lock_that_is_never_given_up_is_not_waited_for_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(TimeoutError, match="another process has held a lock on "), locked(tmp_path, limit_s=0.01):
        raise AssertionError("it is held")
    monkeypatch.setattr(locks, "_lock", lambda descriptor, path, _: _lock(descriptor, path, 0.01))
    with (
        pytest.raises(ArtifactError, match=r"x\.togi could not be written: another process has held a lock on "),
        written_whole(tmp_path / "x.togi") as folder,
    ):
        folder.mkdir()
    assert not [*tmp_path.iterdir()]


_lock = locks._lock


def test_a_lock_that_is_given_up_is_taken(tmp_path: Path, held: int) -> None:
    later = threading.Timer(0.05, fcntl.flock, (held, fcntl.LOCK_UN))
    later.start()
    with locked(tmp_path, limit_s=20.0):
        pass
    later.join()
