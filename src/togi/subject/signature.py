"""Flattens calls to tensors and rebuilds outputs from tensors, by a description that is JSON.

Engines with a file form (ONNX, OpenVINO, exported programs) know flat tensors only. A ``Signature`` records the
structure around them, so that what togi hands back is called like the original and returns what the original returns.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pydantic import model_validator

from togi.core.errors import SubjectError
from togi.core.records import Record, TensorFacts
from togi.subject.admitted_calls import AdmittedCalls, Keeps
from togi.subject.common_structure import in_common, in_common_or_carried, in_common_or_given, merged
from togi.subject.conditions import at_least, condition, in_words, sizes_in
from togi.subject.domain import Domain
from togi.subject.inputs import Dynamic, Inputs
from togi.subject.leaves import dtype_of
from togi.subject.refused_calls import number_apart, other_structure
from togi.subject.sample_facts import (
    STRIDED,
    Common,
    Followed,
    Relation,
    arguments_of_all,
    check_dynamic,
    flat,
    layout_of,
    none_by_default,
    parameters_of,
    positional_names,
    relations_between,
    sizes_followed,
    tensor_facts,
    values_of,
)
from togi.subject.structure import Structure

if TYPE_CHECKING:
    from torch import Tensor, nn


def _common_of(module: nn.Module) -> Common:
    """What its calls may differ in."""
    from togi.subject.program import ProgramModule
    from togi.subject.pure import Pure

    if isinstance(module, Pure) and module.effects.carried is not None:
        return in_common_or_carried(module.effects.carried)
    return in_common_or_given if isinstance(module, ProgramModule) else in_common


def _followed(
    module: nn.Module,
    samples: Sequence[Inputs],
    arguments: Sequence[Structure],
    flat_inputs: Sequence[Sequence[tuple[str, Tensor]]],
) -> tuple[Followed, ...]:
    """Raises SubjectError where numbers shall follow sizes, and one follows none."""
    from togi.subject.pure import Pure

    if not isinstance(module, Pure) or not module.effects.follows:
        return ()
    followed = sizes_followed(samples, arguments, [[tensor for _, tensor in own] for own in flat_inputs])
    if followed is None:
        raise SubjectError("a number in its calls follows no size of their tensors")
    return followed


def _written(module: nn.Module, signature: Signature) -> list[int]:
    """The flat inputs that calls of the module of which this is the pure form overwrite."""
    from togi.subject.pure import Pure

    changes = module.effects.changes if isinstance(module, Pure) else ()
    return sorted(signature.positions_of(change.argument)[at] for change in changes for at in change.written)


class Signature(Record):
    """Inputs and outputs of a module, for all its samples."""

    parameters: tuple[str, ...]
    """Names of ``forward``'s parameters that can be given by position."""
    none_by_default: tuple[str, ...] = ()
    """Parameters that are None where they are not given."""
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
    layouts: tuple[str, ...] = ()
    """Of every flat input; empty: all of them are strided, and none is nested."""
    relations: tuple[Relation, ...] = ()
    """What a call must keep: engines do not check that a mask is as long as its cache, and read beyond."""
    conditions: tuple[str, ...] = ()
    """What else: the sizes for which a captured graph holds, such as ``size(0, 1) <= 100`` where the forward pass
    branches (``togi.subject.conditions``). Beyond them the original may compute something else."""
    domains: tuple[Domain, ...] = ()
    """Values of every flat input for which the program was proven; empty: all that the original takes."""
    follows: tuple[Followed, ...] = ()
    """The size that each carried number of a call follows. Empty: these numbers decide nothing."""
    contiguous: bool = False
    """Its inputs have to be contiguous: the captured graph reads memory by strides, as it lay in the samples."""
    written: tuple[int, ...] = ()
    """Flat inputs that a call overwrites. They may share no memory with others."""

    @model_validator(mode="after")
    def _complete(self) -> Signature:
        if len(self.arguments) != len(self.names) or not 0 <= self.positional <= len(self.names):
            raise ValueError(
                f"{len(self.arguments)} structures and {self.positional} positions for {len(self.names)} arguments"
            )
        inputs, outputs = sum(a.tensor_count for a in self.arguments), self.outputs.tensor_count
        if (inputs, outputs) != (len(self.inputs_facts), len(self.outputs_facts)):
            raise ValueError(f"{inputs} tensors in the arguments and {outputs} in the outputs, and facts of others")
        if len(self.devices) != inputs:
            raise ValueError(f"{len(self.devices)} devices for {inputs} inputs")
        if self.layouts and len(self.layouts) != inputs:
            raise ValueError(f"{len(self.layouts)} layouts for {inputs} inputs")
        dims = [len(facts.shape) for facts in self.inputs_facts]
        if not all(0 <= i < len(dims) and 0 <= dim < dims[i] for r in self.relations for i, dim in (r.one, r.other)):
            raise ValueError("a relation between sizes that the inputs do not have")
        for text in self.conditions:
            condition(text)
            if not all(0 <= i < len(dims) and 0 <= dim < dims[i] for i, dim in sizes_in(text)):
                raise ValueError("a condition on sizes that the inputs do not have")
        if self.domains and len(self.domains) != len(dims):
            raise ValueError(f"{len(self.domains)} domains for {len(dims)} inputs")
        if self.follows and len(self.follows) != sum(kind == "carried" for kind in self._items):
            raise ValueError(
                f"{len(self.follows)} sizes that numbers follow, and {self._items.count('carried')} numbers"
            )
        if not all(0 <= at < len(dims) for at in self.written):
            raise ValueError("a call that overwrites an input that it does not have")
        if not all(0 <= each.input < len(dims) and 0 <= each.dim < dims[each.input] for each in self.follows):
            raise ValueError("a number that follows a size that the inputs do not have")
        return self

    @classmethod
    def of(
        cls, module: nn.Module, samples: Sequence[Inputs], outputs: Sequence[Any], dynamic: Dynamic | None = None
    ) -> Signature:
        """Make it from samples and the module's own outputs on them.

        Raises SubjectError when samples differ in structure or in a constant. A program's may
        differ in all but tensors: its Python takes that as it comes.
        """
        parameters = parameters_of(module)
        first = samples[0]
        positional = len(first.args)
        names = (*positional_names(parameters, positional), *sorted(first.kwargs))
        arguments = arguments_of_all(samples, _common_of(module))
        output = in_common(outputs) or functools.reduce(merged, (Structure.of(value) for value in outputs))
        flat_inputs = [flat(zip(names, arguments, values_of(s), strict=True)) for s in samples]
        flat_outputs = [flat([("output", output, o)]) for o in outputs]
        device = next((t.device.type for _, t in flat_inputs[0]), "cpu")
        check_dynamic(dynamic or {}, flat_inputs[0])
        facts = tensor_facts(flat_inputs, dynamic or {})
        layouts = tuple(layout_of(tensor) for _, tensor in flat_inputs[0])
        made = cls(
            parameters=parameters,
            none_by_default=none_by_default(module),
            positional=positional,
            names=names,
            arguments=arguments,
            outputs=output,
            inputs_facts=facts,
            outputs_facts=tensor_facts(flat_outputs, {}),
            device=device,
            devices=tuple(tensor.device.type for _, tensor in flat_inputs[0]),
            layouts=layouts if set(layouts) - {STRIDED} else (),
            relations=relations_between(flat_inputs, facts, dynamic or {}),
            follows=_followed(module, samples, arguments, flat_inputs),
        )
        return made.writing(_written(module, made))

    @property
    def opaque(self) -> str | None:
        """The reason why outputs cannot be rebuilt from tensors, or None."""
        opaque_types = [part.type for part in self.outputs.parts() if part.is_opaque]
        return f"the output holds a {opaque_types[0]}, which has no tensor form" if opaque_types else None

    def resolve(self) -> None:
        """That this process has what outputs are made of, before the first call asks for it.

        Raises ArtifactError: a class that is not imported here, or that no file may name; a dtype that torch lacks.
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
        names = (*positional_names(parameters_of(module), len(sample.args)), *sorted(sample.kwargs))
        values = values_of(sample)
        return flat(zip(names, map(Structure.of, values), values, strict=True))

    def flatten_inputs(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Tensor]:
        """The tensors of a call in signature order.

        Raises TypeError when the call has another form than the samples had, with the form that is accepted.
        """
        tensors: list[Tensor] = []
        numbers: list[int] = []
        for name, structure, value in zip(self.names, self.arguments, self._bind(args, kwargs), strict=True):
            if not structure.read(value, tensors):
                raise other_structure(self, name, structure, value)
            if self.follows and structure.carries:
                numbers += structure.carried_numbers(value)
        for number, followed in zip(numbers, self.follows, strict=False):
            if followed.number(tensors) != number:
                raise number_apart(self, followed, number)
        return tensors

    def checked(self, args: Sequence[Any], kwargs: Mapping[str, Any], keeps: Keeps | None = None) -> list[Tensor]:
        """The tensors of a call in signature order. Raises as ``flatten_inputs`` and ``check`` do."""
        tensors = self.flatten_inputs(args, kwargs)
        self.check(tensors, keeps)
        return tensors

    def of_argument(self, tensors: list[Tensor], key: str | int) -> list[Tensor]:
        """The flat tensors of one argument of a call, by its keyword or position."""
        return tensors[self._places[key]]

    def positions_of(self, key: str | int) -> range:
        """Which of the flat inputs are those of an argument, by its keyword or position."""
        return range(len(self.inputs_facts))[self._places[key]]

    @functools.cached_property
    def _places(self) -> dict[str | int, slice]:
        counts = [structure.tensor_count for structure in self.arguments]
        ends = list(itertools.accumulate(counts))
        keys: list[str | int] = [*range(self.positional), *self.names[self.positional :]]
        return {key: slice(end - count, end) for key, count, end in zip(keys, counts, ends, strict=True)}

    def check(self, tensors: Sequence[Any], keeps: Keeps | None = None) -> None:
        """That flat inputs have the dtypes, devices, sizes and values that were proven.

        Args:
            keeps: of the program that is called, which of its own answers it is given again unchanged. Their values
                are not looked at, since they would have to be fetched.

        Raises TypeError or ValueError naming the input, what it is, what is accepted, and the fix.
        """
        self._admitted.check(tensors, keeps)

    def under(self, conditions: Iterable[str]) -> Signature:
        """The same under these conditions."""
        return Signature(**(dict(self) | {"conditions": tuple(conditions)}))

    def of_contiguous(self) -> Signature:
        """The same for contiguous inputs alone."""
        return Signature(**(dict(self) | {"contiguous": True}))

    def writing(self, inputs: Sequence[int]) -> Signature:
        """The same for calls that overwrite these flat inputs."""
        return Signature(**(dict(self) | {"written": tuple(inputs)})) if inputs else self

    def within(self, domains: Sequence[Domain]) -> Signature:
        """The same for these values alone."""
        return Signature(**(dict(self) | {"domains": tuple(domains)}))

    def unmet(self, given: Inputs) -> list[str]:
        """The conditions that a call does not meet, as ``conditions_in_words``."""
        if not self.conditions and not self.restricted:
            return []
        tensors = self.flatten_inputs(given.args, given.kwargs)
        outside = [
            f"{self.inputs_facts[i].name} {refusal}"
            for i, domain in self.restricted
            if (refusal := domain.refusal(tensors[i]))
        ]
        return [*self.in_words(text for text, holds in self._admitted.conditions if not holds(tensors)), *outside]

    def conditions_in_words(self) -> list[str]:
        """Of sizes, the shortest first, then of values. That nothing may be empty goes without saying."""
        unsaid = {at_least(1, *place) for place in self.dynamic_dims}
        return [*self.in_words(text for text in self.conditions if text not in unsaid), *self.domains_in_words()]

    def domains_in_words(self) -> list[str]:
        """The conditions on values alone."""
        return [words for i, domain in self.restricted for words in domain.words(self.inputs_facts[i].name)]

    def in_words(self, conditions: Iterable[str]) -> list[str]:
        """Conditions on sizes with the names of the inputs, the shortest first."""
        names = [facts.name for facts in self.inputs_facts]
        return sorted((in_words(text, names) for text in conditions), key=len)

    @property
    def restricted(self) -> list[tuple[int, Domain]]:
        """The inputs of which not every value is taken, by position."""
        return [(i, domain) for i, domain in enumerate(self.domains) if not domain.everything]

    @functools.cached_property
    def _admitted(self) -> AdmittedCalls:
        """What is looked up once: programs call their parts in every step."""
        return AdmittedCalls(self)

    def related(self, place: tuple[int, int]) -> list[tuple[int, int]]:
        """The other sizes that vary with this one: flat input and dimension."""
        leads = {relation.one: relation.other for relation in self.relations}
        lead = leads.get(place, place)
        return [
            related
            for related in (lead, *(follower for follower, its_lead in leads.items() if its_lead == lead))
            if related != place
        ]

    def build_inputs(self, tensors: Sequence[Tensor]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """``(args, kwargs)`` as the samples call it."""
        if self.follows:
            given, numbers = iter(tensors), iter([each.number(tensors) for each in self.follows])
            items = (next(given if kind == "tensor" else numbers) for kind in self._items)
            values = [structure.build(items) for structure in self.arguments]
        else:
            remaining = iter(tensors)
            values = [structure.settled.build(remaining) for structure in self.arguments]
        return tuple(values[: self.positional]), dict(
            zip(self.names[self.positional :], values[self.positional :], strict=True)
        )

    @functools.cached_property
    def _items(self) -> list[str]:
        """The kinds of what arguments are built of, in order: tensors, and numbers that are carried."""
        leaves = (leaf for structure in self.arguments for leaf in structure.leaves())
        return [leaf.kind for leaf in leaves if leaf.kind in ("tensor", "carried")]

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

    @functools.cached_property
    def _given_none(self) -> frozenset[str]:
        """Arguments that the samples give as None."""
        none = Structure(kind="constant")
        return frozenset(name for name, given in zip(self.names, self.arguments, strict=True) if given == none)

    def _bind(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Any]:
        names, as_set = self._keywords
        if len(args) == self.positional and kwargs.keys() == as_set:  # called as the samples are
            return [*args, *[kwargs[name] for name in names]]
        by_name = dict(zip(positional_names(self.parameters, len(args)), args, strict=True)) | dict(kwargs)
        if len(by_name) == len(args) + len(kwargs):
            missing = {name for name in self.names if name not in by_name}
            left_out = {name for name in self.none_by_default if by_name.get(name) is None}
            if missing <= left_out & self._given_none and by_name.keys() <= {*self.names, *left_out}:
                return [by_name.get(name) for name in self.names]
        raise TypeError(
            f"called with ({', '.join(by_name)}), but it was tuned for calls of the form ({', '.join(self.names)}). "
            "Tune it again with samples of the form you need."
        )
