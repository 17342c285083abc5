"""Answers of a live module in its own process, next to those of its copy in a trial's.

A copy does not hold all that decides an answer: functions that were patched, switches of libraries, what a constructor
wrote down for every module of its class stay behind. Whatever is proven is proven against the copy.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from typing_extensions import Self

from togi.core.errors import SubjectError
from togi.subject.behaviour import kept_generators, seed_all
from togi.subject.inputs import Subject
from togi.subject.inventory import class_name
from togi.subject.leaves import constant_of
from togi.subject.nested import tensors_in
from togi.subject.plain_tensors import plain
from togi.subject.prepare import copy_to_ask, named_tensors
from togi.subject.program import ProgramModule
from togi.subject.structure import Structure
from togi.torch_internals.modules import forward_hook_counts
from togi.verify.output_structure import unlike
from togi.verify.repeatability import apart

_ROUNDING = 1e-3
"""Relative root-mean-square difference that other threads may make in a deep network."""


@dataclass(frozen=True, kw_only=True)
class LiveAnswer:
    """The answer to the first sample. Tensors are dense and on the CPU."""

    structure: Structure
    tensors: Sequence[Tensor]

    @classmethod
    def of(cls, subject: Subject, *, device: str, seed: int) -> Self | None:
        """Ask it, or rather a copy that shares its parameters and nothing that a call changes. None for a program or
        hooks, which may leave something behind in the user's process at each call; where it is on another device; and
        where it cannot be copied or run: the survey says what is wrong then."""
        leaves_traces = any(any(forward_hook_counts(part)) for part in subject.module.modules())
        elsewhere = any(tensor.device.type != torch.device(device).type for _, tensor in named_tensors(subject.module))
        if isinstance(subject.module, ProgramModule) or leaves_traces or elsewhere:
            return None
        with contextlib.suppress(Exception), kept_generators(), torch.no_grad():  # foreign code
            module, sample = copy_to_ask(subject), subject.inputs[0].clone()
            seed_all(seed)
            output = module(*sample.args, **sample.kwargs)
            return cls(structure=Structure.of(output), tensors=[plain(tensor).clone() for tensor in tensors_in(output)])
        return None

    def compared(self, output: Any, module: nn.Module) -> str:
        """Say what to know of the copy's ``output`` that holds other numbers; nothing where it does not.

        Raises SubjectError where it is another kind of answer.
        """
        name = class_name(module)
        here = Structure.of(output)
        if different := unlike(_kinds(self.structure), _kinds(here), "its output"):
            raise SubjectError(
                f"a copy of this {name} in a process of its own does not answer as the live one does: {different}. "
                "Something outside of the module decides the answer (a patched function, a switch of a library) and "
                "stays behind, so another model would be tuned. Put the code that builds it into a file and give "
                "'file.py:factory'"
            )
        tensors = [plain(tensor) for tensor in tensors_in(output)]
        off = max(map(apart, tensors, self.tensors), default=0.0) if len(tensors) == len(self.tensors) else float("inf")
        if not off > _ROUNDING:
            return ""
        return (
            f"A copy of this {name} in a process of its own answers the first sample otherwise than the live one (by "
            f"{off:.1g} of its root mean square), and everything is proven against the copy. Where a patched function "
            "or a switch of a library decides the answer, set it in a file and give 'file.py:factory'."
        )


def _kinds(structure: Structure) -> Structure:
    """Leave out what may hang on a rounding: the values of constants, and how many items a list has."""
    if structure.kind == "constant":
        constant = constant_of(structure.kind, structure.type, structure.value)
        return Structure(kind="constant", value=type(constant).__name__)
    children = structure.children[:1] if structure.kind == "list" else structure.children
    return structure.model_copy(update={"children": tuple(map(_kinds, children))})
