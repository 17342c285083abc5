"""For all tests."""

from __future__ import annotations

import os
import sys

import pytest
import torch

_ALL_THREADS = torch.get_num_threads()
_SIDE_BY_SIDE = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1")) > 1 and "OMP_NUM_THREADS" not in os.environ


@pytest.fixture(autouse=True)
def own_import_path(monkeypatch: pytest.MonkeyPatch) -> None:
    """Loading a factory puts its folder first in ``sys.path``: not for the next test, which may start processes."""
    monkeypatch.setattr(sys, "path", list(sys.path))


@pytest.fixture(autouse=True)
def one_thread_side_by_side(request: pytest.FixtureRequest) -> None:
    """Tests that run side by side compute on one thread each, except where threads are tested (``threads`` marks them):
    two pools on the same cores wait for each other and take twice as long. Processes that a test starts have all."""
    if _SIDE_BY_SIDE:
        torch.set_num_threads(_ALL_THREADS if request.node.get_closest_marker("threads") else 1)
