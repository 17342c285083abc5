"""How a call is flattened to tensors and how outputs are rebuilt, as JSON.

Engines with a file form (ONNX, OpenVINO, exported programs) know flat tensors only. A ``Signature`` records the structure
around them, so that what togi hands back is called like the original and returns what the original returns.

Structures known: tensors, None, bool, int, float, str, tuple, namedtuple, list, dict, mappings with a class of their own
(transformers' ModelOutput) and dataclasses. Anything else in an output is ``opaque``: it can be run live but not stored.
"""

from __future__ import annotations

import dataclasses
import importlib
import inspect
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from togi.errors import ArtifactError, SubjectError
from togi.records import Record, Scalar, TensorFacts
from togi.subject.inputs import Dynamic, Inputs

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

Kind = Literal["tensor", "constant", "tuple", "namedtuple", "list", "dict", "mapping", "dataclass", "opaque"]


class Structure(Record):
    """A nested structure with numbered tensors as leaves (their order is the order of traversal)."""

    kind: Kind
    children: tuple[Structure, ...] = ()
    keys: tuple[Scalar, ...] = ()
    type: str = ""
    """``module:qualified name`` of a namedtuple, mapping or dataclass; of the value where it is opaque."""
    value: Scalar = None

    @classmethod
    def of(cls, value: Any) -> Structure:
        import torch

        if isinstance(value, torch.Tensor):
            return _TENSOR
        if value is None or isinstance(value, bool | int | float | str):
            return cls(kind="constant", value=value)
        items = _items(value)
        if items is None:
            return cls(kind="opaque", type=_name(type(value)))
        kind, keys, children = items
        named = kind in ("namedtuple", "mapping", "dataclass")
        return cls(
            kind=kind,
            keys=keys,
            children=tuple(cls.of(child) for child in children),
            type=_name(type(value)) if named else "",
        )

    def walk(self, value: Any, path: str = "") -> Iterator[tuple[str, Structure, Any]]:
        """``(path, structure, value)`` of every leaf of a value of this structure.

        Raises ValueError naming the path where the value has another structure.
        """
        if self.kind in ("tensor", "constant", "opaque"):
            yield path, self, value
            return
        items = _items(value)
        if items is None or items[0] != self.kind or items[1] != self.keys or len(items[2]) != len(self.children):
            raise ValueError(f"{path or 'the value'} is {_describe(value)}, expected {self.describe()}")
        for key, child, item in zip(_labels(self), self.children, items[2], strict=True):
            yield from child.walk(item, f"{path}{key}")

    def build(self, tensors: Iterator[Tensor]) -> Any:
        """The value again, taking tensors in order of traversal."""
        if self.kind == "tensor":
            return next(tensors)
        if self.kind == "constant":
            return self.value
        if self.kind == "opaque":
            raise ValueError(f"a {self.type} cannot be rebuilt from tensors")
        children = [child.build(tensors) for child in self.children]
        if self.kind == "tuple":
            return tuple(children)
        if self.kind == "list":
            return children
        fields = dict(zip(self.keys, children, strict=True))
        return fields if self.kind == "dict" else _class(self.type)(**fields)

    def leaves(self) -> Iterator[Structure]:
        if not self.children:
            if self.kind in ("tensor", "constant", "opaque"):
                yield self
            return
        for child in self.children:
            yield from child.leaves()

    def describe(self) -> str:
        if self.kind in ("tuple", "list", "dict"):
            inner = [str(k) for k in self.keys] if self.keys else [c.describe() for c in self.children]
            return f"a {self.kind} of {len(self.children)} ({', '.join(inner)})"
        return f"the constant {self.value!r}" if self.kind == "constant" else f"a {self.type or self.kind}"


_TENSOR = Structure(kind="tensor")


class Signature(Record):
    """Inputs and outputs of a module, for all its samples."""

    parameters: tuple[str, ...]
    """Names of ``forward``'s parameters that can be given by position."""
    positional: int
    """How many arguments the samples give by position."""
    names: tuple[str, ...]
    """All arguments the samples give, by name: first the positional ones, then the keywords, sorted."""
    arguments: tuple[Structure, ...]
    """The structure of each of ``names``."""
    outputs: Structure
    inputs_facts: tuple[TensorFacts, ...]
    """Every flat input tensor; None in a shape is a dynamic dimension."""
    outputs_facts: tuple[TensorFacts, ...]
    device: str = "cpu"

    @classmethod
    def of(
        cls, module: nn.Module, samples: Sequence[Inputs], outputs: Sequence[Any], dynamic: Dynamic | None = None
    ) -> Signature:
        """From samples and the module's own outputs on them.

        Raises SubjectError when samples differ in structure or in a constant.
        """
        parameters = _parameters(module)
        first = samples[0]
        positional = len(first.args)
        names = (*_positional_names(parameters, positional), *sorted(first.kwargs))
        arguments = tuple(Structure.of(value) for value in _values(first))
        for number, sample in enumerate(samples[1:], start=2):
            if tuple(Structure.of(value) for value in _values(sample)) != arguments or sorted(sample.kwargs) != sorted(
                first.kwargs
            ):
                raise SubjectError(
                    f"sample {number} is called differently from sample 1 (other arguments, nesting or constants). "
                    "All samples must be calls of one form; tune each form as a subject of its own."
                )
        output = Structure.of(outputs[0])
        flat_inputs = [_flat(zip(names, arguments, _values(s), strict=True)) for s in samples]
        flat_outputs = [_flat([("output", output, o)]) for o in outputs]
        device = next((t.device.type for _, t in flat_inputs[0]), "cpu")
        return cls(
            parameters=parameters,
            positional=positional,
            names=names,
            arguments=arguments,
            outputs=output,
            inputs_facts=_facts(flat_inputs, dynamic or {}),
            outputs_facts=_facts(flat_outputs, {}),
            device=device,
        )

    @property
    def opaque(self) -> str | None:
        """Why outputs cannot be rebuilt from tensors, or None."""
        found = [leaf.type for leaf in self.outputs.leaves() if leaf.kind == "opaque"]
        return f"the output holds a {found[0]}, which has no tensor form" if found else None

    @property
    def dynamic(self) -> bool:
        return any(None in facts.shape for facts in self.inputs_facts)

    def flatten_inputs(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Tensor]:
        """The tensors of a call in signature order.

        Raises TypeError when the call has another form than the samples had, with the form that is accepted.
        """
        tensors: list[Tensor] = []
        for name, structure, value in zip(self.names, self.arguments, self._bind(args, kwargs), strict=True):
            if structure is _TENSOR or structure.kind == "tensor":
                tensors.append(value)
                continue
            try:
                for path, leaf, item in structure.walk(value, name):
                    if leaf.kind == "tensor":
                        tensors.append(item)
                    elif item != leaf.value:
                        raise ValueError(f"{path} is {item!r}, expected the constant {leaf.value!r}")
            except ValueError as error:
                raise TypeError(f"{error}. It was tuned for calls of the form ({', '.join(self.names)}).") from None
        return tensors

    def check(self, tensors: Sequence[Any]) -> None:
        """That flat inputs have the dtypes, devices and sizes that were proven.

        Raises TypeError or ValueError naming the input, what it is, what is accepted, and the mend.
        """
        import torch

        for facts, tensor in zip(self.inputs_facts, tensors, strict=True):
            if not isinstance(tensor, torch.Tensor):
                raise TypeError(f"{facts.name} is a {type(tensor).__name__}, expected a {facts.dtype} tensor")
            if str(tensor.dtype).removeprefix("torch.") != facts.dtype:
                raise TypeError(f"{facts.name} is {tensor.dtype}, but was tuned and proven for torch.{facts.dtype}")
            fits = len(facts.shape) == tensor.dim() and all(
                want is None or want == got for want, got in zip(facts.shape, tensor.shape, strict=True)
            )
            if not fits:
                shape = ", ".join("any" if size is None else str(size) for size in facts.shape)
                raise ValueError(
                    f"{facts.name} has shape {tuple(tensor.shape)}, but was tuned and proven for ({shape}). "
                    "To vary a size, tune with samples of several sizes or with dynamic={name: dims}."
                )

    def build_inputs(self, tensors: Sequence[Tensor]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """``(args, kwargs)`` as the samples call it."""
        rest = iter(tensors)
        values = [structure.build(rest) for structure in self.arguments]
        return tuple(values[: self.positional]), dict(
            zip(self.names[self.positional :], values[self.positional :], strict=True)
        )

    def flatten_outputs(self, output: Any) -> list[Tensor]:
        """The tensors of an output, in order. Raises ValueError when it has another structure."""
        if self.outputs.kind == "tensor":
            return [output]
        return [item for _, leaf, item in self.outputs.walk(output, "output") if leaf.kind == "tensor"]

    def build_outputs(self, tensors: Sequence[Tensor]) -> Any:
        return self.outputs.build(iter(tensors))

    def _bind(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Any]:
        given = dict(zip(_positional_names(self.parameters, len(args)), args, strict=True)) | dict(kwargs)
        if len(given) == len(args) + len(kwargs):
            missing = [name for name in self.names if name not in given]
            extra = [name for name in given if name not in self.names and given[name] is not None]
            if not missing and not extra:
                return [given[name] for name in self.names]
        raise TypeError(
            f"called with ({', '.join(given)}), but it was tuned for calls of the form ({', '.join(self.names)}). "
            "Tune it again with samples of the form you need."
        )


def _parameters(module: nn.Module) -> tuple[str, ...]:
    try:
        parameters = inspect.signature(module.forward).parameters.values()
    except (TypeError, ValueError):
        return ()
    return tuple(p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD))


def _positional_names(parameters: Sequence[str], count: int) -> tuple[str, ...]:
    """Names of the first ``count`` positional arguments; ``*args`` beyond the named ones are ``args_3``..."""
    return tuple(parameters[i] if i < len(parameters) else f"args_{i}" for i in range(count))


def _values(sample: Inputs) -> list[Any]:
    return [*sample.args, *(sample.kwargs[name] for name in sorted(sample.kwargs))]


def _flat(entries: Iterable[tuple[str, Structure, Any]]) -> list[tuple[str, torch.Tensor]]:
    return [
        (path, item)
        for name, structure, value in entries
        for path, leaf, item in structure.walk(value, name)
        if leaf.kind == "tensor"
    ]


def _facts(samples: Sequence[list[tuple[str, torch.Tensor]]], dynamic: Dynamic) -> tuple[TensorFacts, ...]:
    facts = []
    for entries in zip(*samples, strict=True):
        name, first = entries[0]
        tensors = [tensor for _, tensor in entries]
        if any(tensor.dim() != first.dim() or tensor.dtype != first.dtype for tensor in tensors):
            raise SubjectError(
                f"{name} differs between samples in dtype or number of dimensions: tune each form as its own subject"
            )
        declared = set(dynamic.get(name, ()))
        shape = tuple(
            None if dim in declared or any(t.shape[dim] != size for t in tensors) else int(size)
            for dim, size in enumerate(first.shape)
        )
        facts.append(TensorFacts(name=name, dtype=str(first.dtype).removeprefix("torch."), shape=shape))
    return tuple(facts)


def _items(value: Any) -> tuple[Kind, tuple[Scalar, ...], list[Any]] | None:
    """``(kind, keys, children)`` of a container, or None when it is not a known one."""
    if isinstance(value, tuple):
        return ("namedtuple", tuple(value._fields), list(value)) if hasattr(value, "_fields") else ("tuple", (), list(value))
    if isinstance(value, list):
        return "list", (), value
    if isinstance(value, Mapping):
        keys = tuple(value)
        plain = type(value) is dict
        if not all(isinstance(key, str if not plain else str | int | float | bool) for key in keys):
            return None
        return ("dict" if plain else "mapping"), keys, [value[key] for key in keys]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = [field.name for field in dataclasses.fields(value) if field.init]
        return "dataclass", tuple(fields), [getattr(value, field) for field in fields]
    return None


def _labels(structure: Structure) -> list[str]:
    if structure.kind in ("tuple", "list"):
        return [f"[{i}]" for i in range(len(structure.children))]
    if structure.kind in ("dict", "mapping"):
        return [f"[{key!r}]" for key in structure.keys]
    return [f".{key}" for key in structure.keys]


def _describe(value: Any) -> str:
    items = _items(value)
    return f"a {type(value).__name__}" + (f" of {len(items[2])}" if items else "")


def _name(cls: type) -> str:
    return f"{cls.__module__}:{cls.__qualname__}"


def _class(name: str) -> type:
    """The class of a namedtuple, mapping or dataclass, imported by name; nothing else is ever returned."""
    module_name, _, qualified = name.partition(":")
    try:
        found: Any = importlib.import_module(module_name)
        for part in qualified.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError) as error:
        raise ArtifactError(
            f"the outputs are a {name}, which cannot be imported here ({error}). Install the package that defines it."
        ) from error
    known = isinstance(found, type) and (
        dataclasses.is_dataclass(found) or issubclass(found, Mapping) or hasattr(found, "_fields")
    )
    if not known:
        raise ArtifactError(f"{name} is not a dataclass, mapping or namedtuple: it is not built from a file")
    return found  # type: ignore[no-any-return]
