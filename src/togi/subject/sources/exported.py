"""Subjects ``model.pt2``: a program written by ``torch.export.save``, with inputs made from its own placeholders."""

from __future__ import annotations

import json
import tempfile
import zipfile
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from togi.core.errors import SubjectError
from togi.subject.inputs import Inputs, Subject
from togi.subject.locator import Spec
from togi.subject.made_inputs import DYNAMIC_SIZE, made_tensor
from togi.subject.signature import Signature
from togi.torch_internals.accepted_archives import ArchiveReader
from togi.torch_internals.archive import ArchiveWriter
from togi.torch_internals.tensors import tree_unflatten

_ZIP_VERSION = 6
"""As torch.export writes it (torch/export/pt2_archive/_package.py)."""


def from_exported(locator: Spec, seed: int) -> Subject:
    """The program's module, one sample, and its dynamic dimensions as they were exported.

    Raises SubjectError when the file is not an exported program or cannot be loaded by this torch.
    """
    _check_kind(locator)
    try:
        program = _load(locator.path)
        module = program.module()
    except Exception as error:  # foreign code: versions of torch reject each other's files in many ways
        raise SubjectError(
            f"{locator.text} cannot be loaded by torch {torch.__version__} without unpickling: {error} "
            "If you trust the file, write a factory: return torch.export.load(FILE).module(), sample"
        ) from error
    sample, varying = _sample(program, torch.Generator().manual_seed(seed))
    return Subject(module, sample, dynamic=_dynamic(module, sample, varying))


def _check_kind(locator: Spec) -> None:
    if not zipfile.is_zipfile(locator.path):
        raise SubjectError(f"{locator.text} is not a .pt2 file: torch.export.save(program, FILE) writes one.")
    with zipfile.ZipFile(locator.path) as archive:
        names = archive.namelist()
    if any("/data/aotinductor/" in name for name in names):
        raise SubjectError(
            f"{locator.text} is an AOTInductor package: machine code, in which there is nothing left to optimize. "
            "Give the module, or the program it was compiled from."
        )


def _load(path: Path) -> Any:
    """An ExportedProgram, without unpickling: the strict reader of the artifacts gets a copy without the parts that a
    program does not need to run: example inputs (pickled), guards (Python source), metadata (source locations)."""
    from togi.torch_internals.archive import load_exported

    with tempfile.TemporaryDirectory(prefix="togi-") as folder:
        lean = Path(folder) / path.name
        _write_lean(path, lean)
        return load_exported(lean)


def _write_lean(path: Path, lean: Path) -> None:
    reader = ArchiveReader(str(path))
    writer = ArchiveWriter(str(lean))
    writer.set_min_version(_ZIP_VERSION)
    for name in reader.get_all_records():
        record = reader.get_record(name)
        if name.startswith(".data/") or name == "version":
            continue  # the writer adds its own
        if name.startswith("data/sample_inputs/"):
            record = b""
        elif name == "models/model.json":
            record = json.dumps(_without_traces(json.loads(record))).encode()
        writer.write_record(name, record, len(record))
    writer.write_end_of_file()


def _without_traces(value: Any) -> Any:
    if isinstance(value, list):
        return [_without_traces(item) for item in value]
    if isinstance(value, dict):
        empty: dict[str, Any] = {"metadata": {}, "guards_code": []}
        return {key: empty[key] if key in empty else _without_traces(item) for key, item in value.items()}
    return value


def _sample(program: Any, generator: torch.Generator) -> tuple[Inputs, dict[int, list[int]]]:
    """Inputs in the form of the exported call, and the dynamic dimensions of each tensor by its id."""
    ranges = program.range_constraints
    placeholders = {node.name: node.meta.get("val") for node in program.graph.nodes if node.op == "placeholder"}
    values: list[Any] = []
    varying: dict[int, list[int]] = {}
    for specification in program.graph_signature.input_specs:
        if specification.kind.name != "USER_INPUT":
            continue
        like = placeholders.get(specification.arg.name)
        if not isinstance(like, Tensor):
            values.append(getattr(specification.arg, "value", None) if like is None else _concrete(like, ranges))
            continue
        tensor = made_tensor(like.dtype, [_concrete(size, ranges) for size in like.shape], generator)
        varying[id(tensor)] = [dim for dim, size in enumerate(like.shape) if not isinstance(size, int)]
        values.append(tensor)
    args, kwargs = tree_unflatten(values, program.call_spec.in_spec)
    return Inputs(tuple(args), kwargs), varying


def _concrete(size: Any, ranges: Any) -> Any:
    """A size within the exported range: the default for dynamic dimensions where that is allowed."""
    if not isinstance(size, torch.SymInt):
        return size
    expression = size.node.expr
    chosen = {}
    for symbol in expression.free_symbols:
        allowed = ranges.get(symbol)
        low, high = (allowed.lower, allowed.upper) if allowed is not None else (2, DYNAMIC_SIZE)
        chosen[symbol] = int(max(low, min(DYNAMIC_SIZE, high)))  # high may be infinite
    return int(expression.subs(chosen))


def _dynamic(module: nn.Module, sample: Inputs, varying: dict[int, list[int]]) -> dict[str, list[int]] | None:
    """The dynamic dimensions by the flat input names that ``Signature`` uses."""
    dims_by_name = {name: varying[id(tensor)] for name, tensor in Signature.named_inputs(module, sample)}
    return {name: dims for name, dims in dims_by_name.items() if dims} or None
