"""Validation data: samples apart from those that are timed, with labels where there are any, and their groups."""

from __future__ import annotations

import functools
import hashlib
import math
from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any

from togi.core.errors import SubjectError
from togi.core.quantities import a_type
from togi.subject.inputs import Inputs
from togi.subject.leaves import is_array

_RETURNS = (
    "Validation data are a list of samples, (samples, labels), or togi.Validation(samples, labels=None, groups=None), "
    "with a label (a number or a tensor) for each sample"
)
_LEAST = 2
"""One half of them chooses, the other confirms."""


@dataclass(frozen=True)
class Validation:
    """Samples by which accuracy is judged.

    Args:
        samples: a list, each as a sample of the subject. The rows of a sample (its first dimension) count by
            themselves.
        labels: for each sample the right answer to each of its rows; None: only agreement with the original can be
            judged.
        groups: for each sample what it is taken from (a picture, a voice). Samples of one group are not independent:
            they count as one. None: all are independent.
    """

    samples: Any
    labels: Sequence[Any] | None = None
    groups: Sequence[Hashable] | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.samples, (list, tuple)) or len(self.samples) < _LEAST:
            raise SubjectError(
                f"validation samples are {a_type(self.samples)}: give a list of {_LEAST} or more, since one half of "
                "them chooses and the other confirms"
            )
        for name in ("labels", "groups"):
            if (given := getattr(self, name)) is not None:
                object.__setattr__(self, name, _for_each(given, name, len(self.samples)))
        if self.groups is not None and len(set(self._known_groups())) < _LEAST:
            raise SubjectError(
                "all validation samples are of one group, and groups are not divided: one half of them chooses and the "
                "other confirms. Give samples of several groups"
            )

    @property
    def inputs(self) -> tuple[Inputs, ...]:
        return tuple(Inputs.of(sample) for sample in self.samples)

    @functools.cached_property
    def identity(self) -> str:
        """The sha256 of samples, labels and groups: a study does not go on with what other data judged, and an artifact
        keeps it."""
        labels = () if self.labels is None else map(_label, self.labels)
        groups = () if self.groups is None else map(str, self._known_groups())
        return _joined([*self._hashes, *labels, *groups])

    @functools.cached_property
    def _hashes(self) -> list[str]:
        return hashes_of(self.inputs)

    @functools.cached_property
    def _row_hashes(self) -> list[list[str]]:
        pieces = map(_rows_of, self.inputs)
        return [[own] if len(rows) == 1 else hashes_of(rows) for own, rows in zip(self._hashes, pieces, strict=True)]

    @property
    def group_of(self) -> list[Hashable]:
        """The group of each sample, by itself where there are none."""
        return list(range(len(self.samples))) if self.groups is None else self._known_groups()

    def _known_groups(self) -> list[Hashable]:
        """Raises SubjectError for what no group can be known by."""
        assert self.groups is not None
        return [_group(given, number) for number, given in enumerate(self.groups, start=1)]


def hash_once(validation: Validation) -> None:
    """For all processes that are forked from this one: there may be gigabytes of samples."""
    validation.identity  # noqa: B018  a cached property, as the next
    validation._row_hashes  # noqa: B018


def known_by(validation: Validation, i: int, rows: int) -> list[str]:
    """By what each of so many rows of sample ``i`` is known again: copies are known by the same."""
    found = validation._row_hashes[i]
    return found if len(found) == rows else [f"{validation._hashes[i]} {row}" for row in range(rows)]


def kept_together(validation: Validation) -> Sequence[Hashable]:
    """Of each sample what halves of the data may not share: its group. Where there are none, that of a sample and its
    copies, by which what chose a recipe would confirm it."""
    return validation._hashes if validation.groups is None else validation.group_of


def _for_each(given: Any, name: str, count: int) -> Sequence[Any]:
    """In the order of the samples: what is asked by index may have an order of its own (a column of a table). Raises
    SubjectError where there is not one for each sample."""
    import torch

    in_order = isinstance(given, (list, tuple, str, torch.Tensor)) or is_array(given)
    if isinstance(given, (Mapping, Set)) or not (in_order or isinstance(given, Iterable)):
        raise SubjectError(f"{name} are {a_type(given)}: give a list with one for each validation sample")
    listed: Sequence[Any] = given if in_order else list(given)
    if len(listed) != count:
        raise SubjectError(f"there are {len(listed)} {name} for {count} validation samples: give one for each")
    return listed


def _group(given: Any, number: int) -> Hashable:
    """By its value: a tensor is equal to itself alone, and so would be a group by itself. ``number``: of the sample."""
    value = given.tolist() if hasattr(given, "tolist") else given  # of torch, and of numpy
    value = tuple(value) if isinstance(value, list) else value
    try:
        hash(value)
    except TypeError:
        value = math.nan
    if isinstance(value, float) and math.isnan(value):
        raise SubjectError(
            f"the group of validation sample {number} is {given!r}, by which nothing can be known again: give a number "
            "or a text"
        )
    known: Hashable = value
    return known


def check_same_data(answered: str, validation: Validation) -> None:
    """Raises SubjectError where what is known of the original's answers is of other data. ``answered``: the identity of
    those."""
    if answered != validation.identity:
        raise SubjectError(
            "the validation data are not those that the original answered: the function that returns them draws or "
            "orders them anew in each process. Give it a seed, and sort what has no order of its own, such as a set"
        )


def as_validation(returned: Any, name: str) -> Validation:
    """Check what a function returned. Raises SubjectError, with what is accepted."""
    if isinstance(returned, Validation):
        return returned
    if isinstance(returned, list):
        return Validation(returned)
    if isinstance(returned, tuple) and len(returned) == 2 and isinstance(returned[0], list):
        return Validation(*returned)
    raise SubjectError(f"{name} returned {a_type(returned)}. {_RETURNS}")


def hash_of(samples: Sequence[Inputs]) -> str:
    """The sha256 of all samples, in their order."""
    return _joined(hashes_of(samples))


def deciding_hash(samples: Sequence[Inputs], *, integers: bool = True) -> str:
    """The sha256 of what calls hold besides floating-point numbers: texts, numbers, and the values of integers and
    booleans, by which a module chooses what it computes. Empty where they hold nothing else. Floats are known by their
    sizes, since many a script draws its example input anew. ``integers``: those in tensors and arrays count."""
    import torch

    from togi.subject.compared import tensor_of
    from togi.subject.identity import value_hash
    from togi.subject.nested import folded

    decides: list[Any] = []

    def leaf(part: Any) -> Any:
        tensor = part if isinstance(part, torch.Tensor) else tensor_of(part)
        if tensor is not None and (not integers or tensor.is_floating_point() or tensor.is_complex()):
            return str(tensor.dtype), tuple(tensor.shape)
        decides.extend(() if part is None else (part,))
        return part

    calls = [
        folded(given, leaf, lambda _, items, children: (items.kind, items.keys, children))
        for each in samples
        for given in (each.args, dict(sorted(each.kwargs.items())))
    ]
    return value_hash(calls) if decides else ""


def hashes_of(samples: Sequence[Inputs]) -> list[str]:
    """Of each call: equal where the same sample is given for two purposes, on whatever device."""
    from togi.subject.identity import value_hash

    return [value_hash(sample.args, sorted(sample.kwargs.items())) for sample in samples]


def _label(label: Any) -> str:
    """By its content: printed, a large tensor or array is cut short."""
    from togi.subject.identity import value_hash

    return value_hash(label)


def _joined(parts: Iterable[str]) -> str:
    return hashlib.sha256(" ".join(parts).encode()).hexdigest()


def shared(
    validation: Sequence[Inputs], timed: Sequence[Inputs], calibration: Sequence[Inputs], *, by_rows: bool = False
) -> list[str]:
    """Sentences on samples that serve two purposes, and on copies. ``calibration``: other samples than the timed.
    ``by_rows``: the rows of a sample are such samples."""
    noun = "rows" if by_rows and any(len(_rows_of(sample)) > 1 for sample in validation) else "samples"
    known = Counter(_hashes(validation, by_rows))
    notes = []
    for purpose, samples in (("timed", timed), ("calibrated on", calibration)):
        if count := sum(known[each] for each in set(_hashes(samples, by_rows))):
            notes.append(
                f"{count} of the validation {noun} {'is' if count == 1 else 'are'} also {purpose}: what is judged by "
                "them looks better than it is"
            )
    if copies := sum(known.values()) - len(known):
        notes.append(
            f"{copies} of the validation {noun} {'is a copy' if copies == 1 else 'are copies'} of others: copies prove "
            "nothing more, so that a budget has to be proven with and without them, unless groups are named"
        )
    return notes


def _hashes(samples: Sequence[Inputs], by_rows: bool) -> list[str]:
    return hashes_of([row for sample in samples for row in _rows_of(sample)] if by_rows else samples)


def _rows_of(sample: Inputs) -> list[Inputs]:
    """Its rows, if all of its tensors have as many; else it is one."""
    import torch

    tensors = sample.tensors()
    plain = all(tensor.layout is torch.strided and not tensor.is_nested and tensor.dim() for tensor in tensors)
    if not plain or len({len(tensor) for tensor in tensors}) != 1:
        return [sample]
    return [sample.map(lambda tensor, i=i: tensor[i : i + 1]) for i in range(len(tensors[0]))]  # type: ignore[misc]
