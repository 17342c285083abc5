"""Programs that run torch's own operators, and their file form: ``model.pt2``, an exported program."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from togi.core.errors import ArtifactError, NotSaveable, Refused
from togi.graph.candidate import Candidate, FlatProgram, ModuleProgram
from togi.graph.capture import export
from togi.subject.signature import Signature
from togi.techniques.base import Options
from togi.torch_internals.archive import load_exported, save_exported

FILE = "model.pt2"


class ExportableProgram(ModuleProgram):
    """Runs the candidate's live module, or ``call`` made of it; stores the module as an exported program."""

    def __init__(
        self, candidate: Candidate, call: Callable[..., Any] | None = None, options: Options | None = None
    ) -> None:
        super().__init__(call or candidate.module)
        self.candidate = candidate
        self.options = options or {}

    def save(self, folder: Path) -> dict[str, Any]:
        store_module(self.candidate, folder)
        return {"file": FILE, "options": self.options}


class FlatExportableProgram(FlatProgram):
    """Runs a flat callable that was made of the candidate; stores the candidate's module as an exported program."""

    def __init__(self, candidate: Candidate, call: Callable[..., Sequence[Tensor]]) -> None:
        super().__init__(candidate.signature)
        self.candidate = candidate
        self.call = call

    def run(self, inputs: list[Tensor]) -> Sequence[Tensor]:
        self.signature.check(inputs)
        return self.call(*inputs)

    def save(self, folder: Path) -> dict[str, Any]:
        store_module(self.candidate, folder)
        return {"file": FILE}


class LoadedModule(FlatProgram):
    """Runs the flat graph of a stored exported program, or ``call`` made of it."""

    def __init__(self, call: Callable[..., Sequence[Tensor]], signature: Signature) -> None:
        super().__init__(signature)
        self.call = call

    def run(self, inputs: list[Tensor]) -> Sequence[Tensor]:
        self.signature.check(inputs)
        return self.call(*inputs)

    def save(self, folder: Path) -> dict[str, Any]:
        raise NotSaveable("it was loaded from an artifact: copy that artifact instead")


def store_module(candidate: Candidate, folder: Path) -> None:
    """Export the candidate's module into ``folder``. Raises NotSaveable where it cannot be captured."""
    try:
        save_exported(export(candidate), folder / FILE)
    except (Refused, ArtifactError) as error:
        raise NotSaveable(str(error)) from error


def load_module(folder: Path) -> Callable[..., Sequence[Tensor]]:
    """The flat module (tensors in, tuple of tensors out) that ``store_module`` wrote.

    Raises ArtifactError where the file is damaged or unsafe.
    """
    program = load_exported(folder / FILE)
    # The graph's own guards say the same as ``Signature.check``, which also names the fix.
    quiet = {"check_guards": False} if "check_guards" in inspect.signature(program.module).parameters else {}
    module = program.module(**quiet)
    for node in module.graph.nodes:
        # Exporting writes a reshape of contiguous samples as a view, which fails on inputs of other strides.
        if node.target is torch.ops.aten.view.default:
            node.target = torch.ops.aten.reshape.default
    module.recompile()
    return module
