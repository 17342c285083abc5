"""What loading an artifact gives: a tuned model, or the tuned parts of a program."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from typing_extensions import Self

from togi.artifact.installed import Installed, install
from togi.artifact.manifest import Link, Manifest, PartEntry
from togi.core.errors import TogiError
from togi.core.recipe import PARTS, Recipe
from togi.core.records import Trial
from togi.graph.candidate import Candidate, FlatProgram, in_contexts
from togi.subject.signature import Signature
from togi.torch_internals.deferred import Deferred


class OptimizedModule(nn.Module):
    """A tuned model: the original's call signature and output structure, on the engine that was proven fastest.

    It runs inference only. Sizes and dtypes beyond those that were proven are refused with a clear error. Under
    ``torch.autocast`` it computes as it was proven, too.
    """

    def __init__(
        self, call: Callable[..., Any], manifest: Manifest, link: Link | None, warnings: Sequence[str] = ()
    ) -> None:
        """``link``: the engine of the chain that runs here; None for a program."""
        super().__init__()
        self._call = call
        self.manifest = manifest
        self._signature = manifest.signature if link is None else link.takes(manifest.signature)
        self.engine = PARTS if link is None else link.engine
        """The engine that runs here: the chosen one, or a fallback."""
        self.warnings = tuple(warnings)
        """What differs here from where it was proven: engines that could not be loaded, another machine."""
        self.training = False

    @property
    def signature(self) -> Signature:
        return self._signature

    @property
    def recipe(self) -> Recipe:
        return self.manifest.recipe

    @property
    def proof(self) -> Trial:
        """The measurement and verification that the artifact carries."""
        return self.manifest.proof

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        device = self.manifest.facts.device
        if not torch.is_autocast_enabled(device):
            return self._call(*args, **kwargs)
        with torch.autocast(device, enabled=False):  # torch's own engines would cast, others would not
            return self._call(*args, **kwargs)

    def into(self, program: Any, *, keep_originals: bool = True) -> Installed:
        """For the parts of a program (``OptimizedProgram.into``). Raises TogiError for a whole model."""
        raise TogiError("this artifact stands for the whole model: call it as the model is called")

    def train(self, mode: bool = True) -> Self:
        """Inference only: ``train()`` raises, ``eval()`` changes nothing."""
        if mode:
            raise RuntimeError("a tuned model runs inference only: train the original, then tune it again")
        return self

    def extra_repr(self) -> str:
        return f"{self.recipe.label}, engine={self.engine}"


class OptimizedPart(OptimizedModule):
    """A tuned part of a program, which a ``Switch`` calls in place of the original."""

    def __init__(
        self, loaded: Candidate, manifest: Manifest, link: Link, warnings: Sequence[str], entry: PartEntry
    ) -> None:
        """``loaded``: the engine with what surrounds each call."""
        super().__init__(loaded.runnable(), manifest, link, warnings)
        self.entry = entry
        self._loaded = loaded
        self._with_tensors: Callable[[list[Tensor]], Any] | None = None
        self._keeps_state = False
        if isinstance(loaded.program, FlatProgram) and loaded.around is None:
            self._with_tensors = in_contexts(loaded.program.call_with, loaded.contexts)
            self._keeps_state = loaded.program.keeps_state

    @property
    def in_place(self) -> bool:
        """It is made of the live module for which it stands (``of``)."""
        return self._loaded.program is not None and self._loaded.program.in_place

    @property
    def runs_original(self) -> bool:
        """It is the original in settings of its own: right for any call, whatever became of the module."""
        return self.in_place and self.engine == "eager"

    def of(self, original: Callable[..., Any]) -> Self:
        """To stand for ``original``, the ``forward`` of a live module."""
        program, around = self._loaded.program, self._loaded.around
        if program is None or not program.in_place:
            return self
        placed, call = copy.copy(self), in_contexts(program.of(original), self._loaded.contexts)
        placed._call = call if around is None else around(call)
        return placed

    def call_with(self, tensors: list[Tensor], args: Any, kwargs: Any) -> Any:
        """A call whose ``tensors`` are what ``signature.checked`` made of its arguments."""
        if not self._keeps_state and any(type(tensor) is Deferred for tensor in tensors):
            # another part keeps them: compiled code reads memory, and does not ask
            tensors = [tensor.plain() if isinstance(tensor, Deferred) else tensor for tensor in tensors]
            args, kwargs = self.signature.build_inputs(tensors)
        return self._call(*args, **kwargs) if self._with_tensors is None else self._with_tensors(tensors)


class OptimizedProgram(OptimizedModule):
    """The tuned parts of a program. They run inside the program: ``togi.load(path).into(program)``."""

    def __init__(self, manifest: Manifest, parts: Sequence[OptimizedPart]) -> None:
        super().__init__(self._alone, manifest, None, [warning for part in parts for warning in part.warnings])
        self.parts = tuple(parts)

    def into(self, program: Any, *, keep_originals: bool = True) -> Installed:
        """Put the parts into the live program, whose own calls then use them; ``.remove()`` of what is returned takes
        them out.

        Args:
            program: the module, bound method, pipeline or function that was tuned, with the same weights.
            keep_originals: False frees the weights that the parts replace. Calls outside of what was proven, which the
                original serves otherwise, then raise.

        Raises:
            ArtifactError: it is another program, or its weights differ.
        """
        return install(self.parts, program, keep_originals=keep_originals)

    @staticmethod
    def _alone(*_: Any, **__: Any) -> Any:
        raise TogiError(
            "this artifact holds parts of a program, and the rest of it is your Python code: put them into the program "
            "with togi.load(path).into(program), then call the program"
        )
