"""The engine of one part of a program, loaded: for calls of the form that was proven."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor
from typing_extensions import Self

from togi.artifact.autocast import call_without_autocast
from togi.artifact.links import EAGER
from togi.artifact.manifest import Link, Manifest, PartEntry
from togi.graph.candidate import Candidate, FlatProgram, in_contexts
from togi.torch_internals.deferred import Deferred


class PartEngine:
    """Called like the module for which it stands; a ``Switch`` calls it with what it checked already."""

    def __init__(
        self, loaded: Candidate, manifest: Manifest, link: Link, warnings: Sequence[str], entry: PartEntry
    ) -> None:
        """``loaded``: the engine with what surrounds each call. ``warnings``: as ``OptimizedModule.warnings``."""
        self.entry, self.manifest, self.warnings = entry, manifest, warnings
        self.signature = link.takes(manifest.signature)
        self._call: Callable[..., Any] = loaded.runnable()
        program = loaded.program
        self.in_place = program is not None and program.in_place
        """It is made of the live module for which it stands (``of``)."""
        self.runs_original = self.in_place and link.engine == EAGER
        """It is the original in settings of its own: right for any call, whatever became of the module."""
        self._loaded = loaded
        self._with_tensors: Callable[[list[Tensor]], Any] | None = None
        self._keeps_state = False
        self.keeps = program.keeps if isinstance(program, FlatProgram) else None
        """Which of its inputs are its own last answers."""
        if isinstance(program, FlatProgram) and loaded.around is None:
            self._with_tensors = in_contexts(program.call_with, loaded.contexts)
            self._keeps_state = program.keeps_state

    def of(self, original: Callable[..., Any]) -> Self:
        """To stand for ``original``, the ``forward`` of a live module."""
        program, around = self._loaded.program, self._loaded.around
        if program is None or not program.in_place:
            return self
        placed, call = copy.copy(self), in_contexts(program.of(original), self._loaded.contexts)
        placed._call = call if around is None else around(call)
        return placed

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self.runs_original:  # under torch.autocast it answers as the original does there
            return self._call(*args, **kwargs)
        return call_without_autocast(self.manifest.facts.device, self._call, args, kwargs)

    def call_with(self, tensors: list[Tensor], args: Any, kwargs: Any) -> Any:
        """A call whose ``tensors`` are what ``signature.checked`` made of its arguments."""
        if not self._keeps_state and any(type(tensor) is Deferred for tensor in tensors):
            # another part keeps them: compiled code reads memory, and does not ask
            tensors = [tensor.plain() if isinstance(tensor, Deferred) else tensor for tensor in tensors]
            args, kwargs = self.signature.build_inputs(tensors)
        return self._call(*args, **kwargs) if self._with_tensors is None else self._with_tensors(tensors)
