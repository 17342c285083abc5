"""What engines compute otherwise than torch is found beyond the samples, kind by kind and engine by engine."""

from __future__ import annotations

import pytest
import torch

from togi.techniques.kinds import answers, kinds
from togi.verify.jumps import JumpObserver

ENDS = {"right", "bounded", "refused"}


@pytest.mark.thorough
@pytest.mark.parametrize("engine", ["openvino", "onnxruntime", "torchscript"])
def test_no_kind_is_answered_wrongly_in_silence(engine: str) -> None:
    found = list(answers(engine))
    assert [row.kind for row in found] == [kind.name for kind in kinds()]
    assert {row.kind: row.how for row in found if row.end not in ENDS} == {}


@pytest.mark.thorough
@pytest.mark.timeout(900)  # some hundred compilations, next to others
@pytest.mark.parametrize("engine", ["torch_compile", "aot_inductor"])
def test_no_kind_is_answered_wrongly_in_silence_by_compiled_code(engine: str) -> None:
    assert {row.kind: row.how for row in answers(engine) if row.end not in ENDS} == {}


@pytest.mark.parametrize("kind", kinds(), ids=lambda kind: kind.name)
def test_the_sample_of_a_kind_does_not_show_it(kind) -> None:
    """Else verification would find it, and nothing beyond the samples would be asked."""
    assert all(torch.isfinite(tensor).all() for tensor in kind.sample if tensor.is_floating_point())
    assert any(not torch.equal(one, other) for one, other in zip(kind.sample, kind.later, strict=True))


ABOUT_STEPS = {
    "quotients of large integers",
    "exact quotients as integers",
    "equal sides of a comparison",
    "halves",
    "negative divisions",
    "negative remainders",
}


@pytest.mark.parametrize("kind", [kind for kind in kinds() if kind.name in ABOUT_STEPS], ids=lambda kind: kind.name)
def test_kinds_about_steps_hold_an_operator_that_jumps_and_values_on_its_step(kind) -> None:
    """So that a model which holds such an operator is asked for such values, whatever the table of an engine says."""
    with JumpObserver() as watch:
        kind.forward(*kind.later)
    assert any(bool(jump.at.any()) for jump in watch.jumps)


def test_the_kinds_about_steps_are_there() -> None:
    assert {kind.name for kind in kinds()} >= ABOUT_STEPS
