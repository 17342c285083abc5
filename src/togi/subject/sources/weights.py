"""Weights from a local file into a module, without pickle: safetensors only."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from togi.core.errors import SubjectError

if TYPE_CHECKING:
    from torch import nn


def load_weights(module: nn.Module, path: str) -> None:
    """Fill ``module`` in place. Raises SubjectError when the file is missing, of another kind, or does not fit."""
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
