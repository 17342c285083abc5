"""Exported programs in files that are safe to load.

``torch.export.load`` unpickles, evaluates strings and resolves any name below ``torch`` when a file tells it to. So
``save_exported`` writes the plain form only (raw weights, no example inputs, no source locations), and
``load_exported`` reads a file only after ``accepted_archives`` found it to be of that form. Anything else is refused.

The layout is that of ``torch.export.save`` since torch 2.9 (torch/export/pt2_archive, torch/_export/serde/schema.py).

Behind it: torch._C.PyTorchFileWriter (torch 2.9 to 2.15). When it goes: ``zipfile`` writes archives, with an alignment
of 64 bytes. torch.export.pt2_archive._package._load_state_dict, for torch before 2.11 alone: with those it goes.
"""

from __future__ import annotations

import copy
import json
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import torch
from torch import nn

from togi.core.errors import ArtifactError
from togi.torch_internals.accepted_archives import check_archive

if TYPE_CHECKING:
    from torch import Tensor
    from torch.export import ExportedProgram


ArchiveWriter = torch._C.PyTorchFileWriter
"""torch's own writer: ``set_min_version``, ``write_record(name, data, size)``, ``write_end_of_file()``."""

_KEPT_META = ("val", "tensor_meta")


def save_exported(program: ExportedProgram, path: Path) -> None:
    """Write ``program`` with its weights to ``path`` (``*.pt2``), and check that it would be loaded again.

    Raises ArtifactError when it holds something that has no safe form: a custom class, a tensor subclass.
    """
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
    check_archive(path)
    try:
        with _parameters_as_stored():
            return torch.export.load(path)
    except Exception as error:  # torch raises anything from KeyError to RuntimeError on a damaged or newer file
        raise ArtifactError(f"{path.name} cannot be read by torch {torch.__version__}: {error}") from error


@contextmanager
def _parameters_as_stored() -> Iterator[None]:
    """Inside, parameters are read as they were stored. Before torch 2.11 the reader makes each of them one that
    requires gradients, and fails where it holds integers."""
    if torch.__version__ >= "2.11":
        yield
        return
    from torch.export.pt2_archive import _package

    read = _package._load_state_dict

    def read_as_stored(reader: Any, model_name: str) -> Any:
        """Weights are read as buffers, of which parameters are made; no state, so that threads may meet here."""
        buffers = _WeightsAsBuffers(reader)
        weights: Any = read(buffers, model_name)  # type: ignore[arg-type]
        for name, requires_grad in buffers.parameters.items():
            weights[name] = nn.Parameter(weights[name], requires_grad=requires_grad)
        return weights

    with patch.object(_package, "_load_state_dict", read_as_stored):
        yield


class _WeightsAsBuffers:
    """A reader of an archive that says of no weight that it is a parameter, and remembers which one was."""

    def __init__(self, reader: Any) -> None:
        self._reader = reader
        self.parameters: dict[str, bool] = {}
        """Names, and whether they require gradients."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._reader, name)

    def read_string(self, name: str) -> str:
        payload = json.loads(self._reader.read_string(name))
        for weight, meta in payload["config"].items():
            if meta["is_param"] and not meta["use_pickle"]:
                self.parameters[weight] = meta["tensor_meta"]["requires_grad"]
                meta["is_param"] = False
        return json.dumps(payload)


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
    if isinstance(tensor, nn.Parameter):
        return nn.Parameter(tensor.detach(), requires_grad=False)
    return tensor.detach()
