from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def own_cache(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """No test sees the user's cache, or another test's."""
    folder = tmp_path_factory.mktemp("cache")
    monkeypatch.setenv("TOGI_CACHE", str(folder))
    return folder
