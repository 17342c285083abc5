"""Flattens calls to tensors and rebuilds outputs from tensors, by a description that is JSON.

Engines with a file form (ONNX, OpenVINO, exported programs) know flat tensors only. A ``Signature`` records the
structure around them, so that what togi hands back is called like the original and returns what the original returns.
"""

from __future__ import annotations

import functools
import inspect
import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import attrgetter
from typing import TYPE_CHECKING, Any, final

from pydantic import model_validator

from togi.core.errors import SubjectError, nearest
from togi.core.quantities import a_type
from togi.core.records import Record, TensorFacts
from togi.subject.common_structure import in_common, merged
from togi.subject.conditions import Holds, at_least, condition, in_words, sizes_in
from togi.subject.domain import Domain
from togi.subject.inputs import Dynamic, Inputs
from togi.subject.structure import Structure, dtype_of

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

_SIZES_REMEMBERED = 1000


@final
class Relation(Record):
    """Two dynamic sizes that were seen to vary together: equal, or a constant apart, in every sample."""

    one: tuple[int, int]
    """Flat input and dimension."""
    other: tuple[int, int]
    more: int
    """By how much ``one`` is larger."""


@final
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
    devices: tuple[str, ...]
    """Of every flat input."""
    relations: tuple[Relation, ...] = ()
    """What a call must keep: engines do not check that a mask is as long as its cache, and read beyond."""
    conditions: tuple[str, ...] = ()
    """What else: the sizes for which a captured graph holds, such as ``size(0, 1) <= 100`` where the forward pass
    branches (``togi.subject.conditions``). Beyond them the original may compute something else."""
    domains: tuple[Domain, ...] = ()
    """Values of every flat input for which the program was proven; empty: all that the original takes."""

    @model_validator(mode="after")
    def _complete(self) -> Signature:
        if len(self.arguments) != len(self.names) or not 0 <= self.positional <= len(self.names):
            raise ValueError(
                f"{len(self.arguments)} structures and {self.positional} positions for {len(self.names)} arguments"
            )
        inputs, outputs = sum(map(_tensors, self.arguments)), _tensors(self.outputs)
        if (inputs, outputs) != (len(self.inputs_facts), len(self.outputs_facts)):
            raise ValueError(f"{inputs} tensors in the arguments and {outputs} in the outputs, and facts of others")
        if len(self.devices) != inputs:
            raise ValueError(f"{len(self.devices)} devices for {inputs} inputs")
        dims = [len(facts.shape) for facts in self.inputs_facts]
        if not all(0 <= i < len(dims) and 0 <= dim < dims[i] for r in self.relations for i, dim in (r.one, r.other)):
            raise ValueError("a relation between sizes that the inputs do not have")
        for text in self.conditions:
            condition(text)
            if not all(0 <= i < len(dims) and 0 <= dim < dims[i] for i, dim in sizes_in(text)):
                raise ValueError("a condition on sizes that the inputs do not have")
        if self.domains and len(self.domains) != len(dims):
            raise ValueError(f"{len(self.domains)} domains for {len(dims)} inputs")
        return self

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
        arguments = _arguments(samples)
        output = in_common(outputs) or functools.reduce(merged, (Structure.of(value) for value in outputs))
        flat_inputs = [_flat(zip(names, arguments, _values(s), strict=True)) for s in samples]
        flat_outputs = [_flat([("output", output, o)]) for o in outputs]
        device = next((t.device.type for _, t in flat_inputs[0]), "cpu")
        _check_dynamic(dynamic or {}, flat_inputs[0])
        facts = _facts(flat_inputs, dynamic or {})
        return cls(
            parameters=parameters,
            positional=positional,
            names=names,
            arguments=arguments,
            outputs=output,
            inputs_facts=facts,
            outputs_facts=_facts(flat_outputs, {}),
            device=device,
            devices=tuple(tensor.device.type for _, tensor in flat_inputs[0]),
            relations=_relations(flat_inputs, facts, dynamic or {}),
        )

    @property
    def opaque(self) -> str | None:
        """Why outputs cannot be rebuilt from tensors, or None."""
        found = [part.type for part in self.outputs.parts() if part.is_opaque]
        return f"the output holds a {found[0]}, which has no tensor form" if found else None

    def resolve(self) -> None:
        """That this process has what outputs are made of, before the first call asks for it.

        Raises ArtifactError: a class is not imported here, or is not one that a file may name (``subject.classes``); a
        dtype that torch does not have.
        """
        for facts in (*self.inputs_facts, *self.outputs_facts):
            dtype_of(facts.dtype)
        if self.opaque is None:
            self.outputs.resolve()

    @property
    def dynamic(self) -> bool:
        return bool(self.dynamic_dims)

    @property
    def dynamic_dims(self) -> list[tuple[int, int]]:
        """``(flat input, dimension)`` of every dynamic dimension."""
        return [
            (i, dim)
            for i, facts in enumerate(self.inputs_facts)
            for dim, size in enumerate(facts.shape)
            if size is None
        ]

    @staticmethod
    def named_inputs(module: nn.Module, sample: Inputs) -> list[tuple[str, Tensor]]:
        """Every tensor of a sample under the name it has in ``inputs_facts`` and in ``dynamic``."""
        names = (*_positional_names(_parameters(module), len(sample.args)), *sorted(sample.kwargs))
        values = _values(sample)
        return _flat(zip(names, map(Structure.of, values), values, strict=True))

    def flatten_inputs(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Tensor]:
        """The tensors of a call in signature order.

        Raises TypeError when the call has another form than the samples had, with the form that is accepted.
        """
        tensors: list[Tensor] = []
        for name, structure, value in zip(self.names, self.arguments, self._bind(args, kwargs), strict=True):
            if not structure.read(value, tensors):
                difference = _difference(name, structure, value)
                raise TypeError(f"{difference}. It was tuned for calls of the form ({', '.join(self.names)}).")
        return tensors

    def checked(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Tensor]:
        """The tensors of a call in signature order. Raises as ``flatten_inputs`` and ``check`` do."""
        tensors = self.flatten_inputs(args, kwargs)
        self.check(tensors)
        return tensors

    def of_argument(self, tensors: list[Tensor], key: str | int) -> list[Tensor]:
        """Of the flat tensors of a call those of one argument, by its keyword or position."""
        return tensors[self._places[key]]

    @functools.cached_property
    def _places(self) -> dict[str | int, slice]:
        counts = [sum(leaf.kind == "tensor" for leaf in structure.leaves()) for structure in self.arguments]
        ends = list(itertools.accumulate(counts))
        keys: list[str | int] = [*range(self.positional), *self.names[self.positional :]]
        return {key: slice(end - count, end) for key, count, end in zip(keys, counts, ends, strict=True)}

    def check(self, tensors: Sequence[Any]) -> None:
        """That flat inputs have the dtypes, devices and sizes that were proven.

        Raises TypeError or ValueError naming the input, what it is, what is accepted, and the fix.
        """
        import torch

        shapes = []
        for position, (tensor, (dtype, is_there, dims, fixed)) in enumerate(zip(tensors, self._accepted, strict=False)):
            if not (
                isinstance(tensor, torch.Tensor) and tensor.dtype is dtype and is_there(tensor) and tensor.dim() == dims
            ):
                raise self._refusal(position, tensor)
            sizes = tensor.shape
            shapes.append(sizes)
            for dim, size in fixed:
                if sizes[dim] != size:
                    raise self._refusal(position, tensor)
        for one, dim, other, along, more, relation in self._related:
            if shapes[one][dim] - shapes[other][along] != more:
                raise self._apart(relation, tensors)
        if self.conditions:
            self._check_conditions(tensors, tuple([shapes[i][dim] for i, dim in self._conditioned]))
        if self._restricted:
            self._check_values(tensors)

    def _check_values(self, tensors: Sequence[Any]) -> None:
        from togi.torch_internals.deferred import Deferred

        for position, domain in self._restricted:
            # what an engine keeps from its own last answer is not fetched to be looked at
            if type(tensors[position]) is not Deferred and (outside := domain.refusal(tensors[position])):
                raise self._outside(position, outside)

    def _check_conditions(self, tensors: Sequence[Any], sizes: tuple[int, ...]) -> None:
        if sizes in self._met:
            return
        for text, holds in self._holding:
            if not holds(tensors):
                raise self._beyond(text, tensors)
        if len(self._met) < _SIZES_REMEMBERED:
            self._met.add(sizes)

    def under(self, conditions: Iterable[str]) -> Signature:
        """The same under these conditions."""
        return Signature(**(dict(self) | {"conditions": tuple(conditions)}))

    def within(self, domains: Sequence[Domain]) -> Signature:
        """The same for these values alone."""
        return Signature(**(dict(self) | {"domains": tuple(domains)}))

    def unmet(self, given: Inputs) -> list[str]:
        """What a call of this form does not meet, as ``conditions_in_words``."""
        if not self.conditions and not self._restricted:
            return []
        tensors = self.flatten_inputs(given.args, given.kwargs)
        outside = [
            f"{self.inputs_facts[i].name} {refusal}"
            for i, domain in self._restricted
            if (refusal := domain.refusal(tensors[i]))
        ]
        return [*self._in_words(text for text, holds in self._holding if not holds(tensors)), *outside]

    def conditions_in_words(self) -> list[str]:
        """With the names of the inputs: of sizes, the shortest first, then of values. That nothing may be empty goes
        without saying."""
        unsaid = {at_least(1, *place) for place in self.dynamic_dims}
        return [*self._in_words(text for text in self.conditions if text not in unsaid), *self.domains_in_words()]

    def domains_in_words(self) -> list[str]:
        """The conditions on values alone."""
        return [words for i, domain in self._restricted for words in domain.words(self.inputs_facts[i].name)]

    def _in_words(self, conditions: Iterable[str]) -> list[str]:
        names = [facts.name for facts in self.inputs_facts]
        return sorted((in_words(text, names) for text in conditions), key=len)

    @functools.cached_property
    def _related(self) -> list[tuple[int, int, int, int, int, Relation]]:
        return [(*relation.one, *relation.other, relation.more, relation) for relation in self.relations]

    @functools.cached_property
    def _restricted(self) -> list[tuple[int, Domain]]:
        """By position, the inputs of which not every value is taken."""
        return [(i, domain) for i, domain in enumerate(self.domains) if not domain.everything]

    @functools.cached_property
    def _conditioned(self) -> list[tuple[int, int]]:
        """The sizes that conditions speak of."""
        return list(dict.fromkeys(size for text in self.conditions for size in sizes_in(text)))

    @functools.cached_property
    def _met(self) -> set[tuple[int, ...]]:
        """Sizes of calls that met the conditions."""
        return set()

    @functools.cached_property
    def _holding(self) -> list[tuple[str, Holds]]:
        return [(text, condition(text)) for text in self.conditions]

    @functools.cached_property
    def _accepted(self) -> list[tuple[torch.dtype | None, Callable[[Tensor], bool], int, list[tuple[int, int]]]]:
        """By input: its dtype, whether it is on its device, its number of dimensions, and those of one size alone.
        Looked up once: programs call their parts in every step."""
        import torch

        return [
            (
                getattr(torch, facts.dtype, None),
                _on(device),
                len(facts.shape),
                [(dim, size) for dim, size in enumerate(facts.shape) if size is not None],
            )
            for facts, device in zip(self.inputs_facts, self.devices, strict=True)
        ]

    def _refusal(self, position: int, tensor: Any) -> TypeError | ValueError:
        """Why this is not the input that was proven."""
        import torch

        facts = self.inputs_facts[position]
        device = self.devices[position]
        if not isinstance(tensor, torch.Tensor):
            return TypeError(f"{facts.name} is {a_type(tensor)}, expected a {facts.dtype} tensor")
        if str(tensor.dtype).removeprefix("torch.") != facts.dtype:
            return TypeError(f"{facts.name} is {tensor.dtype}, but was tuned and proven for torch.{facts.dtype}")
        if tensor.device.type != device:
            return ValueError(
                f"{facts.name} is on {tensor.device}, but was tuned and proven on {device}: move it there with "
                f".to('{device}')"
            )
        shape = ", ".join("any" if size is None else str(size) for size in facts.shape)
        return ValueError(
            f"{facts.name} has shape {tuple(tensor.shape)}, but was tuned and proven for ({shape}). "
            "To vary a size, tune with samples of several sizes or with dynamic={name: dims}."
        )

    def related(self, place: tuple[int, int]) -> list[tuple[int, int]]:
        """The other sizes that vary with this one: flat input and dimension."""
        leads = {relation.one: relation.other for relation in self.relations}
        lead = leads.get(place, place)
        return [each for each in (lead, *(one for one, other in leads.items() if other == lead)) if each != place]

    def _apart(self, relation: Relation, tensors: Sequence[Tensor]) -> ValueError:
        """Why these two do not belong together."""
        (one, dim), (other, along) = relation.one, relation.other
        apart = (
            f"{abs(relation.more)} {'more' if relation.more > 0 else 'less'} than" if relation.more else "the same as"
        )
        return ValueError(
            f"{self.inputs_facts[one].name} has {tensors[one].shape[dim]} in dimension {dim}, where "
            f"{self.inputs_facts[other].name} has {tensors[other].shape[along]} in dimension {along}, but it had "
            f"{apart} that in every sample that it was tuned and proven with. To vary both by themselves, tune with "
            "samples in which they do."
        )

    def _beyond(self, text: str, tensors: Sequence[Tensor]) -> ValueError:
        """What is captured does not hold for these sizes."""
        sizes = list(dict.fromkeys(sizes_in(text)))
        i, dim = sizes[0]
        if text == at_least(1, i, dim):
            return ValueError(
                f"{self.inputs_facts[i].name} is empty (dimension {dim}), as it was in no sample that was tuned and "
                "proven with. Call the original for that, or tune with a sample that is empty too."
            )
        found = " and ".join(f"{self.inputs_facts[i].name}.shape[{dim}] is {tensors[i].shape[dim]}" for i, dim in sizes)
        (words,) = self._in_words([text])
        return ValueError(
            f"{found}, but what was proven holds where {words}: for other sizes the original computes "
            "something else. Call the original for those, or tune it for them as a subject of its own."
        )

    def _outside(self, position: int, why: str) -> ValueError:
        """Why these values may be answered otherwise than by the original."""
        return ValueError(
            f"{self.inputs_facts[position].name} {why}: beyond that the engine may answer otherwise than the original. "
            "Call the original for such values, or tune with a sample that holds them."
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

    @functools.cached_property
    def _keywords(self) -> tuple[tuple[str, ...], frozenset[str]]:
        """That the samples give, in order and as a set."""
        names = self.names[self.positional :]
        return names, frozenset(names)

    def _bind(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Any]:
        names, as_set = self._keywords
        if len(args) == self.positional and kwargs.keys() == as_set:  # called as the samples are
            return [*args, *[kwargs[name] for name in names]]
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


def _tensors(structure: Structure) -> int:
    return sum(leaf.kind == "tensor" for leaf in structure.leaves())


def _on(device: str) -> Callable[[Tensor], bool]:
    """Whether a tensor is on a device of this kind."""
    if device in ("cpu", "cuda"):
        return attrgetter(f"is_{device}")  # a quarter of the time that its ``device.type`` takes
    return lambda tensor: tensor.device.type == device


def _parameters(module: nn.Module) -> tuple[str, ...]:
    try:
        parameters = inspect.signature(module.forward).parameters.values()
    except (TypeError, ValueError):
        schema = getattr(module.forward, "schema", None)  # TorchScript methods have one instead of a signature
        return tuple(argument.name for argument in schema.arguments[1:] if not argument.kwarg_only) if schema else ()
    return tuple(p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD))


def _positional_names(parameters: Sequence[str], count: int) -> tuple[str, ...]:
    """Names of the first ``count`` positional arguments; ``*args`` beyond the named ones are ``args_3``..."""
    return tuple(parameters[i] if i < len(parameters) else f"args_{i}" for i in range(count))


def _values(sample: Inputs) -> list[Any]:
    return [*sample.args, *(sample.kwargs[name] for name in sorted(sample.kwargs))]


def _arguments(samples: Sequence[Inputs]) -> tuple[Structure, ...]:
    """The structure of each argument. Raises SubjectError where the samples have none in common."""
    found = arguments_in_common(samples)
    if found is None:
        number = next(n for n in range(2, len(samples) + 1) if arguments_in_common(samples[:n]) is None)
        raise SubjectError(
            f"sample {number} is called differently from sample 1 (other arguments, nesting or constants). "
            "All samples must be calls of one form; tune each form as a subject of its own."
        )
    return found


def arguments_in_common(samples: Sequence[Inputs]) -> tuple[Structure, ...] | None:
    """The structure of each argument: first the positional ones, then the keywords, sorted. None where calls have none
    in common."""
    if len({(len(sample.args), tuple(sorted(sample.kwargs))) for sample in samples}) > 1:
        return None
    found = [in_common(values) for values in zip(*map(_values, samples), strict=True)]
    known = tuple(structure for structure in found if structure is not None)
    return known if len(known) == len(found) else None


def _flat(entries: Iterable[tuple[str, Structure, Any]]) -> list[tuple[str, torch.Tensor]]:
    return [
        (path, item)
        for name, structure, value in entries
        for path, leaf, item in structure.walk(value, name)
        if leaf.kind == "tensor"
    ]


def _difference(name: str, structure: Structure, value: Any) -> str:
    """Where a value has another structure or another constant."""
    try:
        for path, leaf, item in structure.walk(value, name):
            if leaf.kind != "tensor" and not leaf.admits(item):
                return f"{path} is {item!r}, expected {leaf.describe()}"
            if leaf.kind == "tensor" and not hasattr(item, "shape"):
                return f"{path} is {a_type(item)}, expected a tensor"
    except ValueError as error:
        return str(error)
    return f"{name} differs"


def _facts(samples: Sequence[list[tuple[str, torch.Tensor]]], dynamic: Dynamic) -> tuple[TensorFacts, ...]:
    facts = []
    for entries in zip(*samples, strict=True):
        name, first = entries[0]
        tensors = [tensor for _, tensor in entries]
        if any(tensor.dim() != first.dim() or tensor.dtype != first.dtype for tensor in tensors):
            raise SubjectError(
                f"{name} differs between samples in dtype or number of dimensions: tune each form as its own subject"
            )
        declared = {dim % first.dim() for dim in dynamic.get(name, ())}
        shape = tuple(
            None if dim in declared or any(t.shape[dim] != size for t in tensors) else int(size)
            for dim, size in enumerate(first.shape)
        )
        facts.append(TensorFacts(name=name, dtype=str(first.dtype).removeprefix("torch."), shape=shape))
    return tuple(facts)


def _relations(
    samples: Sequence[list[tuple[str, torch.Tensor]]], facts: Sequence[TensorFacts], dynamic: Dynamic
) -> tuple[Relation, ...]:
    """Each size that differs between the samples, with the first of another input that it is a constant apart from.
    Pictures of two squares need not be squares, and what is declared dynamic is so by itself."""
    relations: list[Relation] = []
    leads: dict[tuple[int, int], list[int]] = {}
    for i, dim in ((i, dim) for i, each in enumerate(facts) for dim, size in enumerate(each.shape) if size is None):
        sizes = [sample[i][1].shape[dim] for sample in samples]
        if len(set(sizes)) == 1 or facts[i].name in dynamic:
            continue
        apart = {
            lead: found.pop()
            for lead, known in leads.items()
            if lead[0] != i and len(found := {size - other for size, other in zip(sizes, known, strict=True)}) == 1
        }
        if len(apart) == 1:  # of several, as both sides of squares are, nobody knows which it belongs to
            ((lead, more),) = apart.items()
            relations.append(Relation(one=(i, dim), other=lead, more=more))
        else:
            leads[i, dim] = sizes
    return tuple(relations)


def _check_dynamic(dynamic: Dynamic, inputs: Sequence[tuple[str, torch.Tensor]]) -> None:
    """A misspelt input name or a dimension that is not there would silently leave a size fixed."""
    shapes = {name: tuple(tensor.shape) for name, tensor in inputs}
    for name, dims in dynamic.items():
        if name not in shapes:
            raise SubjectError(
                f"dynamic names the input '{name}'{nearest(name, shapes) or '.'} The inputs: {', '.join(shapes)}."
            )
        wrong = [dim for dim in dims if not -len(shapes[name]) <= dim < len(shapes[name])]
        if wrong:
            raise SubjectError(f"dynamic names dimension {wrong[0]} of '{name}', whose shape is {shapes[name]}.")
