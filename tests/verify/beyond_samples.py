"""Asks a program for values that no sample shows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn

from togi.subject.inputs import Inputs, Subject
from togi.subject.prepare import prepare
from togi.subject.signature import Signature
from togi.verify.beyond import Reach, reach_of
from togi.verify.original import Original


class Function(nn.Module):
    """A function as a module."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.forward = function


def asked_original(function: Callable[..., Any], *args: Any) -> tuple[Original, Sequence[Inputs]]:
    """A function as an original that answers, and its only sample, ``args``."""
    ready = prepare(Subject(Function(function), Inputs(args)))
    with torch.no_grad():
        outputs = [ready.module(*sample.args) for sample in ready.samples]
    return Original(ready.module, Signature.of(ready.module, ready.samples, outputs), seed=0), ready.samples


def reached(
    original: Callable[..., Any], program: Callable[..., Any], *args: Any, **options: Any
) -> tuple[Reach, Signature]:
    """For which values ``program`` answers as ``original``, whose only sample is ``args``."""
    asked, samples = asked_original(original, *args)
    reach = reach_of(program, asked, samples, **options)
    return reach, asked.signature.within(reach.domains)
