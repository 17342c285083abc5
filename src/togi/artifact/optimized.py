"""What loading an artifact gives: a tuned model, or the tuned parts of a program."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn
from typing_extensions import Self

from togi.artifact.autocast import call_without_autocast
from togi.artifact.installed import Installed, install
from togi.artifact.manifest import Link, Manifest
from togi.artifact.part_engine import PartEngine
from togi.core.errors import TogiError
from togi.core.recipe import PARTS, Recipe
from togi.core.records import Trial
from togi.subject.nested import tensors_in
from togi.subject.signature import Signature
from togi.torch_internals.autograd import is_forward_mode, is_transformed
from togi.torch_internals.script import is_recorded

_RECORDED = (
    "a tuned model was called while its calls are recorded (torch.jit.trace, torch.export) or made with fake tensors, "
    "where its engine's answer would become a constant: give the original model to what records"
)
_TRANSFORMED = (
    "a tuned model was called under torch.func (vmap, grad, jvp) or forward-mode differentiation. It runs inference "
    "only, and the derivative would be lost in its engine: call the original model there"
)
_GRADIENTS = (
    "a tuned model was called with gradients switched on and inputs that require them. It runs inference only, so none "
    "will reach them: call the original where they are needed, and this one under torch.no_grad() where they are not"
)
_FORKED = (
    "it was loaded before this process was forked, and the threads of its engine ({}) did not come along: it would "
    "wait for them for ever. Load it in the process that calls it"
)


class OptimizedModule(nn.Module):
    """A tuned model: the original's call signature and output structure, on the engine that was proven fastest.

    It runs inference only. Sizes and dtypes beyond those that were proven are refused with a clear error. So is what
    records its calls (``torch.jit.trace``, ``torch.export``, fake tensors) or transforms them (``torch.func``,
    forward-mode differentiation), and a call in a process that was forked since it was loaded, where its engine lacks
    its threads. Under ``torch.autocast`` it computes as it was proven, too. That no gradients reach its inputs it warns
    of once.
    """

    def __init__(
        self,
        call: Callable[..., Any],
        manifest: Manifest,
        link: Link | None,
        warnings: Sequence[str] = (),
        *,
        forks: bool = True,
    ) -> None:
        """``link``: the engine of the chain that runs here; None for a program. ``forks``: it also runs in a process
        that is forked from this one."""
        super().__init__()
        self._call = call
        self._process = None if forks else os.getpid()
        self.manifest = manifest
        self._signature = manifest.signature if link is None else link.takes(manifest.signature)
        self.engine = PARTS if link is None else link.engine
        """The engine that runs here: the chosen one, or a fallback."""
        self.warnings = tuple(warnings)
        """What differs here from where it was proven: engines that could not be loaded, another machine."""
        self._told = False
        """That no gradients reach its inputs."""
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
        if not torch.compiler.is_dynamo_compiling():  # what Dynamo cannot follow it leaves as it is
            if is_recorded():
                raise TogiError(_RECORDED)
            if is_transformed() or is_forward_mode():
                raise TogiError(_TRANSFORMED)
            if not self._told and torch.is_grad_enabled() and _want_gradients(args, kwargs):
                self._told = True
                warnings.warn(_GRADIENTS, stacklevel=4)
        if self._process is not None and self._process != os.getpid():
            raise TogiError(_FORKED.format(self.engine))
        return call_without_autocast(self.manifest.facts.device, self._call, args, kwargs)

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


def _want_gradients(args: Any, kwargs: Any) -> bool:
    return any(tensor.requires_grad for tensor in tensors_in((args, kwargs)))


class OptimizedProgram(OptimizedModule):
    """The tuned parts of a program. They run inside the program: ``togi.load(path).into(program)``."""

    def __init__(self, manifest: Manifest, parts: Sequence[PartEngine]) -> None:
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
