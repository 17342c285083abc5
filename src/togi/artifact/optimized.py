"""The module that loading an artifact gives: called like the original."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn

from togi.artifact.manifest import Link, Manifest
from togi.core.records import Recipe, Trial
from togi.subject.signature import Signature


class OptimizedModule(nn.Module):
    """A tuned model: the original's call signature and output structure, on the engine that was proven fastest.

    It runs inference only. Sizes and dtypes beyond those that were proven are refused with a clear error.
    """

    def __init__(self, call: Callable[..., Any], manifest: Manifest, link: Link, warnings: tuple[str, ...]) -> None:
        super().__init__()
        self._call = call
        self.manifest = manifest
        self.engine = link.engine
        """The engine that runs here: the chosen one, or a fallback."""
        self.warnings = warnings
        """What differs here from where it was proven: engines that could not be loaded, another machine."""
        self.training = False

    @property
    def signature(self) -> Signature:
        return self.manifest.signature

    @property
    def recipe(self) -> Recipe:
        return self.manifest.recipe

    @property
    def proof(self) -> Trial:
        """The measurement and verification that the artifact carries."""
        return self.manifest.proof

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self._call(*args, **kwargs)

    def train(self, mode: bool = True) -> OptimizedModule:
        """Inference only: ``train()`` raises, ``eval()`` changes nothing."""
        if mode:
            raise RuntimeError("a tuned model runs inference only: train the original, then tune it again")
        return self

    def extra_repr(self) -> str:
        return f"{self.recipe.label}, engine={self.engine}"
