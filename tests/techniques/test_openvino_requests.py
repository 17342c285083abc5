"""Which memory OpenVINO's results lie in, and how many requests a caller needs that keeps them."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from togi.techniques import conformance, technique
from togi.techniques.engine.programs import openvino as programs


@pytest.mark.parametrize(("width", "most"), [(8, 1), (8192, 12)], ids=["small", "large"])
def test_a_caller_that_keeps_small_results_needs_no_request_for_each(
    width: int, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stream that is answered chunk by chunk, whose answers are put together at the end."""
    pytest.importorskip("openvino")
    torch.manual_seed(0)
    layer, made = nn.Linear(8, width).eval(), list[programs.LendingRequest]()

    real = programs.LendingRequest

    def counted(compiled: object) -> programs.LendingRequest:
        made.append(real(compiled))
        return made[-1]

    engine, candidate = technique("openvino"), conformance.candidate_of(layer, [torch.randn(1, 8)])
    call = engine.apply(candidate, {}).runnable()
    monkeypatch.setattr(programs, "LendingRequest", counted)
    given = torch.randn(12, 1, 8)
    with torch.no_grad():
        kept = [call(chunk) for chunk in given]
        for answer, chunk in zip(kept, given, strict=True):
            torch.testing.assert_close(answer, layer(chunk), rtol=1e-4, atol=1e-5)
    assert len(made) <= most
    assert len(made) > 2 or width == 8, "large results are lent, each by the request that made it"
