"""The inputs that a training step gives to its module, which cannot take ``(inputs, targets)`` apart itself."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from torch import nn

from togi.subject.behaviour import seed_all
from togi.subject.inputs import Inputs, Subject, as_given, samples_of_step


class _FirstCallSeen(BaseException):
    """Ends a step at its first call of the module; no ``except Exception`` of the step stops it."""

    def __init__(self, given: Inputs) -> None:
        self.given = given


def as_its_step_calls(subject: Subject, seed: int) -> Subject:
    """The subject with the inputs that its training step calls its module with.

    As it is where it has no step, and where the step fails or does not call the module itself. Nothing of the module
    runs: the step ends where it calls it.
    """
    if subject.step is None:
        return subject
    seed_all(seed)
    first_calls = [_first_call(subject.step, subject.module, sample) for sample in samples_of_step(subject)]
    inputs = [call for call in first_calls if call is not None]
    return replace(subject, samples=inputs) if len(inputs) == len(first_calls) else subject


def _first_call(step: Callable[..., Any], module: nn.Module, sample: Inputs) -> Inputs | None:
    def called(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        raise _FirstCallSeen(Inputs(args, kwargs).clone())

    hook = module.register_forward_pre_hook(called, with_kwargs=True, prepend=True)
    try:
        step(module, as_given(sample.clone()))
    except _FirstCallSeen as call:
        return call.given
    except Exception:  # the subject's code; what it raises is told when the module is called with the sample
        return None
    finally:
        hook.remove()
    return None
