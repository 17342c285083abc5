import importlib
import importlib.util
from pathlib import Path

import pytest
import torch

from togi.subject.calibration import calibration_inputs

FILE = Path(__file__).parents[2] / "examples" / "photos.py"


@pytest.fixture(scope="module")
def photos():
    spec = importlib.util.spec_from_file_location("togi_test_photos", FILE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_labels_are_right(photos):
    found = photos.labels(photos.model())
    assert found["chelsea"][0][0] in ("tabby", "tiger cat", "Egyptian cat")
    assert found["coffee"][0][0] == "espresso"
    assert found["camera"][0][0] == "tripod"
    assert found["rocket"][0][0] == "missile"
    assert all(list_[0][1] > list_[1][1] > 0 for list_ in found.values())


def test_the_subject(photos):
    subject = photos.subject()
    assert [tuple(s.args[0].shape) for s in subject.inputs] == [(1, 3, 224, 224)] * 4
    values = torch.cat([s.args[0] for s in subject.inputs])
    assert -1 <= values.min() < 0 < values.max() <= 1
    assert len(calibration_inputs(subject)) == len(photos.FOR_CALIBRATION)


def test_main_compares_with_an_artifact(photos, capsys, monkeypatch):
    assert photos.main() == 0
    assert "espresso" in capsys.readouterr().out
    monkeypatch.setattr(photos.togi, "load", lambda _path: photos.model(), raising=False)
    assert photos.main("photos.togi") == 0
    assert "Every top label is the same." in capsys.readouterr().out
    monkeypatch.setattr(photos.togi, "load", lambda _path: lambda _: torch.eye(1000)[:1], raising=False)
    assert photos.main("photos.togi") == 1
    assert "Top labels differ: chelsea" in capsys.readouterr().out
