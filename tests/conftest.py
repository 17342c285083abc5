"""For all tests."""

from __future__ import annotations

import sys

import pytest


@pytest.fixture(autouse=True)
def own_import_path(monkeypatch: pytest.MonkeyPatch) -> None:
    """Loading a factory puts its folder first in ``sys.path``: not for the next test, which may start processes."""
    monkeypatch.setattr(sys, "path", list(sys.path))
