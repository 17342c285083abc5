"""Exported programs in files that are safe to load.

``torch.export.load`` unpickles, evaluates strings and resolves any name below ``torch`` when a file tells it to. So
``save_exported`` writes the plain form only (raw weights, no example inputs, no source locations), and
``load_exported`` reads a file only after every member and every string in it was found to be of that form. Anything
else is refused.

The layout is that of ``torch.export.save`` since torch 2.9 (torch/export/pt2_archive, torch/_export/serde/schema.py).
"""

from __future__ import annotations

import copy
import warnings
from pathlib import Path
from typing import TYPE_CHECKING

from togi.core.errors import ArtifactError
from togi.torch_internals.archive_rules import check_archive

if TYPE_CHECKING:
    from torch import Tensor
    from torch.export import ExportedProgram

_KEPT_META = ("val", "tensor_meta")


def save_exported(program: ExportedProgram, path: Path) -> None:
    """Write ``program`` with its weights to ``path`` (``*.pt2``), and check that it would be loaded again.

    Raises ArtifactError when it holds something that has no safe form: a custom class, a tensor subclass.
    """
    import torch

    try:
        with warnings.catch_warnings():
            # "No complete tensor found in the group": of weights that are views; torch stores the whole storage.
            warnings.simplefilter("ignore")
            torch.export.save(without_traces(program), path)
    except OSError:
        raise
    except Exception as error:  # torch's serialisers raise many types
        raise ArtifactError(f"torch cannot store the exported program: {error}") from error
    check_archive(path)


def load_exported(path: Path) -> ExportedProgram:
    """The program in ``path``. Raises ArtifactError when the file is damaged, or not of the plain form."""
    import torch

    check_archive(path)
    try:
        return torch.export.load(path)
    except Exception as error:  # torch raises anything from KeyError to RuntimeError on a damaged or newer file
        raise ArtifactError(f"{path.name} cannot be read by torch {torch.__version__}: {error}") from error


def without_traces(program: ExportedProgram) -> ExportedProgram:
    """The same program without example inputs, source locations, guards and gradients; weights are shared, not copied.

    The graph is shared as well: ``program`` loses its source locations.
    """
    lean = copy.copy(program)
    for module in lean.graph_module.modules():
        for node in getattr(getattr(module, "graph", None), "nodes", ()):
            node.meta = {key: node.meta[key] for key in _KEPT_META if key in node.meta}
    lean._example_inputs = None
    lean._state_dict = {name: _without_gradient(tensor) for name, tensor in program.state_dict.items()}
    lean._module_call_graph = program.module_call_graph[:1]
    # Guards are Python source. What they ask of the inputs is asked by ``Signature.check``.
    lean._guards_code = []
    return lean


def _without_gradient(tensor: Tensor) -> Tensor:
    from torch import nn

    if isinstance(tensor, nn.Parameter):
        return nn.Parameter(tensor.detach(), requires_grad=False)
    return tensor.detach()
