"""Validation data: samples apart from those that are timed, with labels where there are any, and their groups."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from togi.core.errors import SubjectError
from togi.core.quantities import a_type
from togi.subject.inputs import Inputs

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
        for name, given in (("labels", self.labels), ("groups", self.groups)):
            if given is not None and len(given) != len(self.samples):
                raise SubjectError(
                    f"there are {len(given)} {name} for {len(self.samples)} validation samples: give one for each"
                )

    @property
    def inputs(self) -> tuple[Inputs, ...]:
        return tuple(Inputs.of(sample) for sample in self.samples)

    @functools.cached_property
    def identity(self) -> str:
        """The sha256 of samples, labels and groups: a study does not go on with what other data judged, and an artifact
        keeps it."""
        return _joined([*hashes_of(self.inputs), *map(_label, self.labels or ()), *map(str, self.groups or ())])

    @property
    def group_of(self) -> list[Hashable]:
        """The group of each sample, by itself where there are none."""
        return list(range(len(self.samples))) if self.groups is None else list(self.groups)


def as_validation(returned: Any, name: str) -> Validation:
    """Check what a function returned. Raises SubjectError, with what is accepted."""
    if isinstance(returned, Validation):
        return returned
    if isinstance(returned, list):
        return Validation(returned)
    if isinstance(returned, tuple) and len(returned) == 2 and isinstance(returned[0], list):
        return Validation(returned[0], list(returned[1]))
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


def shared(validation: Sequence[Inputs], timed: Sequence[Inputs], calibration: Sequence[Inputs]) -> list[str]:
    """Sentences on samples that serve two purposes. ``calibration``: other samples than the timed."""
    known = set(hashes_of(validation))
    notes = []
    for purpose, samples in (("timed", timed), ("calibrated on", calibration)):
        if count := len(known & set(hashes_of(samples))):
            notes.append(
                f"{count} of the validation samples {'is' if count == 1 else 'are'} also {purpose}: what is judged by "
                "them looks better than it is"
            )
    return notes
