"""Programs that run torch's own operators, and their file form: ``model.pt2``, an exported program."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from togi.core.errors import ArtifactError, NotSaveable, Refused
from togi.graph.candidate import Candidate, FlatProgram, Program
from togi.graph.capture import export
from togi.graph.recurrent import SEALED, sealed
from togi.graph.settled import retarget
from togi.subject.signature import Signature
from togi.techniques.base import Options
from togi.techniques.engine.programs.stored import LOADED
from togi.torch_internals.archive import load_exported, save_exported

FILE = "model.pt2"


class ExportableProgram(Program):
    """Runs the candidate's live module, or ``call`` made of it; stores the module as an exported program."""

    stores_export = True

    def __init__(
        self,
        candidate: Candidate,
        call: Callable[..., Any] | None = None,
        options: Options | None = None,
        notes: Callable[[], Sequence[str]] = tuple,
    ) -> None:
        self.call = call or candidate.module
        self.candidate = candidate
        self.options = options or {}
        self._notes = notes

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.call(*args, **kwargs)

    def notes(self) -> Sequence[str]:
        return self._notes()

    def save(self, folder: Path) -> dict[str, Any]:
        return store_module(self.candidate, folder, self.options)


class FlatExportableProgram(FlatProgram):
    """Runs a flat callable. One made of a candidate stores the candidate's module as an exported program; one made of a
    stored module cannot be saved again."""

    stores_export = True

    def __init__(
        self,
        call: Callable[..., Sequence[Tensor]],
        signature: Signature,
        candidate: Candidate | None = None,
        options: Options | None = None,
    ) -> None:
        super().__init__(signature)
        self.call = call
        self.candidate = candidate
        self.options = options or {}

    def run(self, inputs: list[Tensor]) -> Sequence[Tensor]:
        return self.call(*inputs)

    def save(self, folder: Path) -> dict[str, Any]:
        if self.candidate is None:
            raise NotSaveable(LOADED)
        return store_module(self.candidate, folder, self.options)


def store_module(candidate: Candidate, folder: Path, options: Options) -> dict[str, Any]:
    """Export the candidate's module into ``folder``; returns what the manifest says of it.

    Raises NotSaveable where it cannot be captured.
    """
    try:
        save_exported(export(candidate), folder / FILE)
    except (Refused, ArtifactError) as error:
        raise NotSaveable(str(error)) from error
    return {"file": FILE, "options": options}


def load_module(folder: Path, *, whole_layers: bool = False) -> Callable[..., Sequence[Tensor]]:
    """The flat module (tensors in, tuple of tensors out) that ``store_module`` wrote.

    Args:
        whole_layers: recurrent layers are operators that no compiler takes apart.

    Raises ArtifactError where the file is damaged or unsafe.
    """
    import togi.ops.recurrence  # noqa: F401 - it registers an operator that files may call

    program = load_exported(folder / FILE)
    # The graph's own guards say the same as ``Signature.check``, which also names the fix.
    quiet = {"check_guards": False} if "check_guards" in inspect.signature(program.module).parameters else {}
    module = program.module(**quiet)
    # Exporting writes a reshape of contiguous samples as a view, which fails on inputs of other strides.
    retarget(module, {torch.ops.aten.view.default: torch.ops.aten.reshape.default})
    if whole_layers:
        sealed(module, SEALED)
    return module
