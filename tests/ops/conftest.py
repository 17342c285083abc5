from __future__ import annotations

import pytest


@pytest.fixture(params=["native", "tiled"])
def each_backend(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOGI_OPS_BACKEND", request.param)
