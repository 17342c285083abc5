"""Weights of a model of timm or torchvision: made up, or from a local file without pickle (safetensors). And how the
pickles of other libraries are read."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from togi.core.errors import SubjectError
from togi.subject.locator import Spec
from togi.subject.made_inputs import vary_constants

if TYPE_CHECKING:
    from torch import nn


_RULES = {False: "TORCH_FORCE_WEIGHTS_ONLY_LOAD", True: "TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD"}
"""Variables of torch, which overrule what a library asks of ``torch.load``."""


@contextmanager
def unpickling(*, trusted: bool) -> Iterator[None]:
    """Meanwhile torch reads files as weights and plain values; ``trusted``: as whatever they hold."""
    before = {name: os.environ.pop(name, None) for name in _RULES.values()}
    os.environ[_RULES[trusted]] = "1"
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value


def give_weights(module: nn.Module, locator: Spec, seed: int) -> None:
    """Fill ``module`` in place: from the file that the option ``weights`` names, else from ``seed``.

    Raises SubjectError when the file is missing, of another kind, or does not fit.
    """
    path = locator.options.get("weights")
    if path is None:
        vary_constants(module, seed)
        return
    import safetensors
    import safetensors.torch

    file = Path(path).expanduser()
    if file.suffix != ".safetensors":
        raise SubjectError(
            f"weights={path}: only .safetensors files are loaded here, because togi does not unpickle. "
            "Convert it once: safetensors.torch.save_file(torch.load(FILE, weights_only=True), 'weights.safetensors')"
        )
    if not file.is_file():
        raise SubjectError(f"weights={path}: there is no such file (looked from {Path.cwd()}).")
    try:
        module.load_state_dict(safetensors.torch.load_file(file))
    except (RuntimeError, OSError, safetensors.SafetensorError) as error:
        raise SubjectError(f"weights={path} do not fit {type(module).__name__}: {error}") from error
