"""The server of examples/server.py answers as the artifact does, refuses what was not proven, and counts."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from tests.artifact.artifact_maker import ArtifactMaker
from togi.subject.inputs import Subject
from togi.techniques import recipe

testclient = pytest.importorskip("fastapi.testclient", reason="fastapi or httpx is not installed")
SERVER = Path(__file__).parents[2] / "examples" / "server.py"


@pytest.fixture
def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 2)).eval()


@pytest.fixture
def app(model: nn.Module, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    samples = [torch.randn(count, 4) for count in (3, 5)]
    ArtifactMaker.of(Subject(model, samples), "Net").make(tmp_path / "net.togi", recipe(eager={}, no_grad={}))
    monkeypatch.setenv("ARTIFACT", str(tmp_path / "net.togi"))
    monkeypatch.delenv("TRUSTED", raising=False)
    return runpy.run_path(str(SERVER))["app"]


def test_it_answers_as_the_model_does(app: Any, model: nn.Module) -> None:
    rows = torch.randn(7, 4)
    with testclient.TestClient(app) as client:
        answer = client.post("/predict", json=rows.tolist())
    assert answer.status_code == 200
    torch.testing.assert_close(torch.tensor(answer.json()), model(rows).detach())


def test_what_was_not_proven_is_refused_with_the_reason_and_counted(app: Any) -> None:
    with testclient.TestClient(app) as client:
        refused = client.post("/predict", json=[[1.0, 2.0]])
        ragged = client.post("/predict", json=[[1.0], [2.0, 3.0]])
        client.post("/predict", json=[[0.5] * 4] * 2)
        metrics = client.get("/metrics").text
        health = client.get("/health")
    assert (refused.status_code, ragged.status_code) == (422, 422)
    assert "shape" in refused.json()["detail"]
    assert 'togi_requests_total{result="answered"} 1' in metrics
    assert 'togi_requests_total{result="refused"} 2' in metrics
    assert float(metrics.split("togi_predict_seconds_total ")[1]) > 0
    assert (health.status_code, health.json()["engine"]) == (200, "eager")


def test_an_artifact_that_nobody_trusted_has_signed_is_not_served(
    app: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRUSTED", str(tmp_path / "absent.pub"))
    with pytest.raises(Exception, match=r"absent\.pub"), testclient.TestClient(app):
        pass
