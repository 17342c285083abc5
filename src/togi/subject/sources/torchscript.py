"""Subjects ``model.ts``, ``model.pt``, ``model.pth``: TorchScript files (``torch.jit.save``).

A TorchScript file is a program: it may run ``__setstate__`` while it is loaded, and read and write files. It is loaded
because a person named it, as a ``file.py:factory`` is; togi never loads one that it only found.

Inputs are like those that ``torch.jit.trace`` noted in the file, else the sizes in the graph, else the option
``inputs``: ``model.ts?inputs=1x3x224x224,1x77:int64``. A pickled module or state dict has the same suffixes and is
refused: reading it would run code of the file.
"""

from __future__ import annotations

import io
import math
import pickle
import pickletools
import warnings
import zipfile
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from togi.core.errors import SubjectError
from togi.subject.inputs import Inputs, Subject
from togi.subject.locator import Spec
from togi.subject.made_inputs import made_tensor


def from_torchscript(locator: Spec, seed: int) -> Subject:
    """Raises SubjectError when the file is not TorchScript, cannot be loaded, or its inputs are not known."""
    _check_kind(locator)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # that TorchScript is deprecated is not news to its owner
            module = torch.jit.load(str(locator.path), map_location="cpu")  # type: ignore[no-untyped-call]
    except Exception as error:  # foreign code: the archive may need operators that are not registered here
        raise SubjectError(f"{locator.text} cannot be loaded: {type(error).__name__}: {error}") from error
    generator = torch.Generator().manual_seed(seed)
    if "inputs" in locator.options:
        sample: Inputs | None = asked_inputs(locator, generator)
    else:
        sample = _traced(locator, generator) or _from_graph(module, generator)
    if sample is None:
        arguments = [argument.name for argument in module.forward.schema.arguments[1:]]
        raise SubjectError(
            f"{locator.text}: the sizes of its inputs ({', '.join(arguments)}) are not in the file. Give them as an "
            f"option, '{locator.target}?inputs=1x3x224x224' (several with commas, ':int64' for another dtype), or "
            "write a factory that returns (torch.jit.load(...), sample)."
        )
    return Subject(module, sample)


def asked_inputs(locator: Spec, generator: torch.Generator) -> Inputs:
    """Make the inputs that the option ``inputs`` describes. Raises SubjectError."""
    texts = locator.options["inputs"].split(",")
    return Inputs(tuple(_asked_tensor(locator, text, generator) for text in texts))


def _check_kind(locator: Spec) -> None:
    if not zipfile.is_zipfile(locator.path):
        raise SubjectError(
            _pickled(locator)
            if _starts_as_pickle(locator)
            else f"{locator.text} is not a TorchScript file: torch.jit.save(module, FILE) writes one."
        )
    with zipfile.ZipFile(locator.path) as archive:
        names = archive.namelist()
    if any(name.endswith("/models/model.json") or name.endswith("serialized_exported_program.json") for name in names):
        raise SubjectError(f"{locator.text} is an exported program: rename it to end in .pt2.")
    if not any("/code/" in name for name in names):
        raise SubjectError(_pickled(locator))


def _starts_as_pickle(locator: Spec) -> bool:
    with locator.path.open("rb") as file:
        return file.read(1) == b"\x80"


def _pickled(locator: Spec) -> str:
    return (
        f"{locator.text} is a pickle of torch.save (weights or a whole module), not TorchScript. togi does not "
        "unpickle, because reading such a file can run code in it. Write a factory that builds the module and loads "
        f"the weights: module.load_state_dict(torch.load('{locator.target}', weights_only=True)); return module, "
        f"sample. A model of ultralytics is named 'ultralytics:{locator.target}'"
    )


def _asked_tensor(locator: Spec, text: str, generator: torch.Generator) -> torch.Tensor:
    """Make the input that ``1x77:int64`` describes: sizes and dtype."""
    sizes, _, name = text.partition(":")
    dtype = getattr(torch, name or "float32", None)
    parts = sizes.split("x") if sizes else []
    if not isinstance(dtype, torch.dtype) or not all(part.isascii() and part.isdigit() for part in parts):
        raise SubjectError(
            f"{locator.text}: '{text}' describes no input. Write sizes joined by x, as in 1x3x224x224 or 1x77:int64."
        )
    return _made(dtype, [int(part) for part in parts], generator)


def _traced(locator: Spec, generator: torch.Generator) -> Inputs | None:
    """Inputs like those that ``torch.jit.trace`` noted in the file: it keeps their form, sizes and dtypes."""
    with zipfile.ZipFile(locator.path) as archive:
        notes = [entry for entry in archive.infolist() if entry.filename.endswith("/traced_inputs.pkl")]
        text = archive.read(notes[0]) if notes and notes[0].file_size <= MAX_NOTE_BYTES else b""
    if not text or not _remembers_little(text):
        return None
    try:
        stored = _TensorForms(text, generator).load()
    except SubjectError:
        raise
    except Exception:  # whatever a damaged pickle raises
        return None  # another version of torch may note it in another form: the graph is asked then
    inputs = stored.get("forward") if isinstance(stored, dict) else None
    return Inputs(tuple(inputs)) if isinstance(inputs, list | tuple) and inputs else None


MAX_NOTE_BYTES = 1 << 20
MAX_ELEMENTS = 1 << 31
"""Of one input that a file asks for: more is a mistake, or meant to fill the memory."""


def _remembers_little(text: bytes) -> bool:
    """Nine bytes can have a pickle's memo made of gigabytes. False as well where it is not a pickle."""
    try:
        return all(
            "PUT" not in code.name or int(argument or 0) <= len(text) for code, argument, _ in pickletools.genops(text)
        )
    except Exception:  # whatever a damaged pickle raises
        return False


def _made(dtype: torch.dtype, sizes: Sequence[int], generator: torch.Generator) -> torch.Tensor:
    """Raises SubjectError for more elements than an input has."""
    if math.prod(sizes) > MAX_ELEMENTS or len(sizes) > 64 or any(size < 0 for size in sizes):
        raise SubjectError(
            f"an input of the sizes {tuple(sizes)[:8]} is asked for, which nobody can hold: give 'inputs'"
        )
    return made_tensor(dtype, list(sizes), generator)


class _TensorForms(pickle.Unpickler):
    """Reads tensors' forms and plain containers. Every name in the file stands for one of the few functions below, so
    that nothing can be called that is not written here."""

    def __init__(self, text: bytes, generator: torch.Generator) -> None:
        super().__init__(io.BytesIO(text))
        self.generator = generator

    def find_class(self, module: str, name: str) -> Any:
        dtype = _STORAGES.get(name) if module == "torch" else None
        if dtype is not None:
            return dtype
        functions = {
            "torch._utils._rebuild_tensor_v2": self._tensor,
            "torch.jit._pickle.restore_type_tag": lambda value, _type: value,
            "torch.jit._pickle.build_intlist": list,
            "torch.jit._pickle.build_doublelist": list,
            "torch.jit._pickle.build_boollist": list,
            "torch.jit._pickle.build_tensorlist": list,
            "collections.OrderedDict": dict,
        }
        if f"{module}.{name}" not in functions:
            raise pickle.UnpicklingError(f"{module}.{name} is not a part of a tensor's form")
        return functions[f"{module}.{name}"]

    def persistent_load(self, pid: Any) -> torch.dtype:
        """A storage: ``("storage", FloatStorage, key, device, size)``, of which only the dtype counts."""
        if isinstance(pid, tuple) and len(pid) > 1 and isinstance(pid[1], torch.dtype):
            return pid[1]
        raise pickle.UnpicklingError("an unknown kind of storage")

    def _tensor(self, dtype: torch.dtype, _offset: int, size: tuple[int, ...], *_rest: Any) -> torch.Tensor:
        return _made(dtype, size, self.generator)


_STORAGES = {
    "FloatStorage": torch.float32,
    "DoubleStorage": torch.float64,
    "HalfStorage": torch.float16,
    "BFloat16Storage": torch.bfloat16,
    "LongStorage": torch.int64,
    "IntStorage": torch.int32,
    "ShortStorage": torch.int16,
    "CharStorage": torch.int8,
    "ByteStorage": torch.uint8,
    "BoolStorage": torch.bool,
}


def _from_graph(module: nn.Module, generator: torch.Generator) -> Inputs | None:
    """Inputs from complete tensor types in the graph, where a file has them."""
    graph: Any = module.graph
    tensors = []
    for value in list(graph.inputs())[1:]:
        kind = value.type()
        sizes = kind.sizes() if kind.kind() == "TensorType" else None
        if sizes is None or any(size is None for size in sizes):
            return None
        tensors.append(_made(kind.dtype() or torch.float32, sizes, generator))
    return Inputs(tuple(tensors)) if tensors else None
