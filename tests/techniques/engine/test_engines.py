"""Every engine does what the original does, before and after it was saved, on every module of the family."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.small_modules import Computes
from tests.techniques.engine.engine_subjects import FAMILY, candidate_of, made
from togi.artifact.manifest import FILE_KINDS
from togi.core.errors import Refused
from togi.graph.candidate import Candidate, Program
from togi.subject.inputs import Inputs
from togi.techniques.base import Applies, Engine, Options
from togi.techniques.registry import technique

CHEAP: list[tuple[str, Options]] = [
    ("eager", {}),
    ("torchscript", {"how": "trace", "freeze": True, "optimize": True}),
    ("torchscript", {"how": "trace", "freeze": False, "optimize": False}),
    ("onnxruntime", {"spinning": False}),
    ("openvino", {}),
]
CASES = [
    *((id, options, name) for id, options in CHEAP for name in FAMILY if (id, name) != ("openvino", "nested_double")),
    ("ncnn", {}, "dense"),
    ("onnxruntime", {"spinning": False, "opset": 23}, "encoder_dynamic"),
    ("torch_compile", {"mode": "default", "freezing": True}, "strided_input"),
    ("torch_compile", {"mode": "default", "freezing": True}, "neighbours_dynamic"),
    ("aot_inductor", {"freezing": True, "max_autotune": False}, "strided_input"),
]
"""Compilers take seconds a module: one case each."""
LONG: list[tuple[str, Options, str]] = [
    ("aot_inductor", {"freezing": True, "max_autotune": False}, "channels_last_dynamic"),
    ("aot_inductor", {"freezing": True, "max_autotune": False}, "recurrent_dynamic"),
]


def test_openvino_refuses_float64_which_it_computes_in_float32() -> None:
    with pytest.raises(Refused, match="OpenVINO computes in float32"):
        technique("openvino").apply(made("nested_double"), {})


@pytest.mark.parametrize("engine", ["onnxruntime", "openvino"])
def test_a_sort_that_keeps_the_order_of_equals_does_so_in_other_libraries(engine: str) -> None:
    def order(x: Tensor) -> tuple[Tensor, Tensor]:
        return x.argsort(dim=0, stable=True), x.sort(dim=1, stable=True, descending=True)[1]

    x = torch.randint(0, 3, (40, 50), generator=torch.Generator().manual_seed(0)).float()
    options = {"spinning": False} if engine == "onnxruntime" else {}
    program = technique(engine).apply(candidate_of(Computes(order), x), options).program
    assert program is not None
    for found, expected in zip(program(x), order(x), strict=True):
        assert torch.equal(found, expected)


def _case(id: str, options: Options, name: str) -> Any:
    marks = [pytest.mark.thorough] if (id, options, name) in LONG else []
    return pytest.param(id, options, name, marks=marks, id=f"{id}-{name}-{'-'.join(map(str, options.values()))}")


@pytest.mark.thorough
@pytest.mark.parametrize(("id", "options", "name"), [_case(*one) for one in (*CASES, *LONG)])
def test_engine_equals_original_and_survives_saving(id: str, options: Options, name: str, tmp_path: Path) -> None:
    engine = technique(id)
    assert isinstance(engine, Engine)
    candidate = made(name)
    assert engine.applies(candidate.facts) == Applies()
    before = {key: tensor.clone() for key, tensor in candidate.module.state_dict().items()}

    built = engine.apply(candidate, options).program
    assert built is not None
    assert_like_original(built, candidate)

    meta = built.save(tmp_path)
    del built
    assert {path.suffix for path in tmp_path.rglob("*") if path.is_file()} <= FILE_KINDS, "its artifacts are refused"
    moved = tmp_path.rename(tmp_path.with_name(tmp_path.name + "_moved"))
    loaded = engine.load(moved, meta, type(candidate.signature).from_json(candidate.signature.to_json()), None)
    assert_like_original(loaded, candidate)
    assert_checks_inputs(loaded, candidate)
    assert all(torch.equal(before[key], tensor) for key, tensor in candidate.module.state_dict().items())


def assert_like_original(program: Program, candidate: Candidate) -> None:
    with torch.no_grad():
        for sample in candidate.samples:
            expected = candidate.module(*sample.args, **sample.kwargs)
            given = sample.clone()
            found = program(*given.args, **given.kwargs)
            assert type(found) is type(expected)
            assert_same(candidate, found, expected)
            assert_unchanged(candidate, given, sample)

            kept = [tensor.clone() for tensor in candidate.signature.flatten_outputs(found)]
            other = sample.map(lambda t: t + 1 if t.is_floating_point() else t.clone())
            program(*other.args, **other.kwargs)
            for now, then in zip(candidate.signature.flatten_outputs(found), kept, strict=True):
                assert torch.equal(now, then), "a later call overwrote these outputs"

            strided = sample.map(as_strided_copy)
            assert_same(candidate, program(*strided.args, **strided.kwargs), expected)


def assert_same(candidate: Candidate, found: Any, expected: Any) -> None:
    pairs = zip(candidate.signature.flatten_outputs(found), candidate.signature.flatten_outputs(expected), strict=True)
    for got, wanted in pairs:
        assert got.dtype == wanted.dtype
        assert got.shape == wanted.shape
        torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-5)


def assert_unchanged(candidate: Candidate, given: Inputs, sample: Inputs) -> None:
    flat = candidate.signature.flatten_inputs
    for now, then in zip(flat(given.args, given.kwargs), flat(sample.args, sample.kwargs), strict=True):
        assert torch.equal(now, then), "an input was modified"


def as_strided_copy(tensor: Tensor) -> Tensor:
    """The same values with other strides: every second element of a larger tensor."""
    if tensor.dim() == 0:
        return tensor.clone()
    return torch.stack([tensor, tensor], dim=-1)[..., 0]


def assert_checks_inputs(loaded: Program, candidate: Candidate) -> None:
    """A wrong number of dimensions is told in the signature's words, not in the backend's."""
    wrong = candidate.samples[0].map(lambda t: t.unsqueeze(0))
    with pytest.raises(ValueError, match="was tuned and proven for"):
        loaded(*wrong.args, **wrong.kwargs)
