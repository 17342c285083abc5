"""Planning in this process: a child takes seconds to import torch, and is not the point of these tests."""

from __future__ import annotations

import pytest

from tests.cli.conftest import PoolOfThisProcess
from togi.worker import call


@pytest.fixture(autouse=True)
def _in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(call, "WorkerPool", PoolOfThisProcess)
