"""What engines compute otherwise than torch is found beyond the samples, kind by kind and engine by engine."""

from __future__ import annotations

import pytest
import torch

from togi.techniques.kinds import answers, kinds

ENDS = {"right", "bounded", "refused"}


@pytest.mark.parametrize("engine", ["openvino", "onnxruntime", "torchscript"])
def test_no_kind_is_answered_wrongly_in_silence(engine: str) -> None:
    found = list(answers(engine))
    assert [row.kind for row in found] == [kind.name for kind in kinds()]
    assert {row.kind: row.how for row in found if row.end not in ENDS} == {}


@pytest.mark.thorough
@pytest.mark.parametrize("engine", ["torch_compile", "aot_inductor"])
def test_no_kind_is_answered_wrongly_in_silence_by_compiled_code(engine: str) -> None:
    assert {row.kind: row.how for row in answers(engine) if row.end not in ENDS} == {}


@pytest.mark.parametrize("kind", kinds(), ids=lambda kind: kind.name)
def test_the_sample_of_a_kind_does_not_show_it(kind) -> None:
    """Else verification would find it, and nothing beyond the samples would be asked."""
    assert all(torch.isfinite(tensor).all() for tensor in kind.sample if tensor.is_floating_point())
    assert any(not torch.equal(one, other) for one, other in zip(kind.sample, kind.later, strict=True))
