"""no_hidden_hooks names who installs hooks, and lets everything else through."""

from __future__ import annotations

import pytest
import torch
from torch.autograd.graph import save_on_cpu, saved_tensors_hooks
from torch.utils.checkpoint import checkpoint

import togi
from togi.footprint.guard.hidden_hooks import HiddenHooksError


def gelu_twice(given: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.gelu(torch.nn.functional.gelu(given))


def test_code_without_hooks_runs() -> None:
    given = torch.randn(4, requires_grad=True)
    with togi.no_hidden_hooks("gradients are compared"):
        gelu_twice(given).sum().backward()
    assert given.grad is not None


def test_who_installed_is_named() -> None:
    given = torch.randn(4, requires_grad=True)
    with (
        pytest.raises(
            HiddenHooksError, match=r"gradients are compared.*test_hidden_hooks\.py:\d+ in test_who"
        ) as caught,
        togi.no_hidden_hooks("gradients are compared"),
        save_on_cpu(),
    ):
        gelu_twice(given)
    assert isinstance(caught.value.__cause__, RuntimeError)


def test_checkpointing_is_named() -> None:
    given = torch.randn(4, requires_grad=True)
    with (
        pytest.raises(
            HiddenHooksError, match=r"in test_checkpointing_is_named installs some \(torch\.utils\.checkpoint"
        ),
        togi.no_hidden_hooks("memory is compared"),
    ):
        checkpoint(gelu_twice, given, use_reentrant=False)


def test_hooks_that_were_there_before() -> None:
    block = togi.no_hidden_hooks("nothing hidden")
    with (
        saved_tensors_hooks(lambda t: t, lambda t: t),
        pytest.raises(HiddenHooksError, match="already when the block was entered"),
    ):
        block.__enter__()


def test_as_decorator_and_other_errors_pass() -> None:
    @togi.no_hidden_hooks("not here")
    def breaks() -> None:
        raise RuntimeError("something else")

    with pytest.raises(RuntimeError, match="something else"):
        breaks()
