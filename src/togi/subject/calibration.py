"""Calibration data: what people have of them, as calls in the form of the samples.

A list of samples, a ``DataLoader`` or any other iterable of what a ``Dataset`` returns, or a folder of tensors or
pictures. Labels that come with the inputs are left out, and batches are cut to the size of the samples' own, since
engines are built for that one.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from togi.core.errors import SubjectError
from togi.core.quantities import a_type
from togi.subject.calibration_folder import files_in, read_file
from togi.subject.calibration_loader import has_known_places, spread, spread_loader
from togi.subject.inputs import Inputs, Subject
from togi.subject.leaves import is_array

MOST = 300
"""Calibration inputs. More do not change ranges, and take time."""
_ACCEPTED = (
    "Give a list of samples, a DataLoader or another iterable of samples (labels after the inputs are left out), or a "
    "folder of tensors or pictures"
)


def calibration_of(given: Any, samples: Sequence[Inputs]) -> tuple[Inputs, ...]:
    """Calls to calibrate on, at most ``MOST``, in the form of the ``samples``. Raises SubjectError for what holds none.

    An iterator is used up: ``with_calibration`` keeps what it gave.
    """
    wanted = _rows(samples[0])
    items, count = _items(given, samples[0], wanted)
    of_each = math.ceil(MOST * wanted / count) if wanted and count else None
    calls = _batches((in_form(item, samples[0]) for item in items), samples, of_each)
    taken = tuple(itertools.islice(calls, MOST) if of_each is None else spread(list(calls), MOST))
    if not taken:
        raise SubjectError(_none(given, samples[0]))
    return taken


def _items(given: Any, form: Inputs, rows: int | None) -> tuple[Iterable[Any], int | None]:
    """Items from all places, and how many, where they may hold more ``rows`` than are needed."""
    enough = max(MOST, rows or 0)  # for one call at least, where each is a row
    if isinstance(given, (str, Path)):
        files = spread(files_in(Path(given)), enough)
        return (read_file(file, form) for file in files), len(files)
    if _is_sample(given):
        return [given], 1
    if has_known_places(given):
        return spread_loader(given, MOST, rows, lambda item: _rows(_as_batch(in_form(item, form), form)) == 1)
    if _has_places(given):
        items = spread(given, enough)
        return items, len(items)
    return _few(given), None


class FirstInputs(list[Inputs]):
    """The first calibration inputs of an iterable that held more."""


def are_first(given: Any, taken: Sequence[Inputs]) -> bool:
    """Whether what was taken is only the beginning of the calibration data ``given``."""
    by_place = isinstance(given, (str, Path)) or _is_sample(given) or has_known_places(given) or _has_places(given)
    return isinstance(given, FirstInputs) or (not by_place and len(taken) == MOST)


def calibration_inputs(subject: Subject) -> tuple[Inputs, ...]:
    """What 8-bit recipes are calibrated on: the samples, unless the subject has calibration data."""
    return subject.inputs if subject.calibration is None else calibration_of(subject.calibration, subject.inputs)


def with_calibration(subject: Subject, given: Any = None) -> Subject:
    """The subject with calibration data that can be read as often as one likes, and sent to another process; ``given``:
    others than its own. Raises SubjectError as ``calibration_of``."""
    if given is not None:
        subject = dataclasses.replace(subject, calibration=given)
    if subject.calibration is None:
        return subject
    taken = calibration_inputs(subject)
    kept = FirstInputs(taken) if are_first(subject.calibration, taken) else list(taken)
    return dataclasses.replace(subject, calibration=kept)


def in_form(item: Any, form: Inputs) -> Inputs:
    """What a data set returned as a call like ``form``. Raises SubjectError where it lacks an input."""
    if isinstance(item, Inputs):
        return item
    if isinstance(item, Mapping) and form.kwargs:
        if missing := [name for name in form.kwargs if name not in item]:
            raise SubjectError(
                f"a calibration item has {', '.join(map(str, item))} and lacks {missing[0]!r}, which the samples have: "
                "return that, too"
            )
        return Inputs((), {name: item[name] for name in form.kwargs})
    if isinstance(item, (list, tuple)) and form.args and not form.kwargs:
        if len(item) < len(form.args):
            raise SubjectError(
                f"a calibration item holds {len(item)} inputs, and a sample {len(form.args)}: return all inputs of a "
                "call (labels may follow)"
            )
        return Inputs(tuple(item[: len(form.args)]))
    return Inputs.of(tuple(item) if isinstance(item, list) else item)


def _has_places(given: Any) -> bool:
    """A list, or a ``Dataset`` that is asked by index."""
    return hasattr(given, "__len__") and hasattr(given, "__getitem__")


def _few(given: Any) -> Iterator[Any]:
    """The first items of an iterable. Raises SubjectError for what is none."""
    try:
        iterator = iter(given)
    except TypeError:
        raise SubjectError(f"the calibration data are {a_type(given)}, which holds no samples. {_ACCEPTED}") from None
    return itertools.islice(iterator, MOST)


def _is_sample(given: Any) -> bool:
    """One sample by itself. A list never is: it could mean several samples or one list argument."""
    import torch

    return isinstance(given, (Inputs, torch.Tensor, tuple, Mapping)) or is_array(given)


def _none(given: Any, form: Inputs) -> str:
    if isinstance(given, list) and not given:
        return "the list of samples is empty: togi needs at least one calibration input, or calibration=None"
    rows = _rows(form)
    fill = "" if rows is None else f", or too few rows for a batch of {rows} as the samples have"
    return f"the calibration data hold no sample{fill}. {_ACCEPTED}"


def _batches(calls: Iterable[Inputs], samples: Sequence[Inputs], of_each: int | None) -> Iterator[Inputs]:
    """As they are where they have as many rows as a sample; else their rows, as many at a time as the first has.
    ``of_each``: at most so many rows, from all places of a call; None: all."""
    import torch

    known, wanted = {_rows(sample) for sample in samples}, _rows(samples[0])
    waiting: list[Inputs] = []
    for call in (_as_batch(call, samples[0]) for call in calls):
        count = _rows(call)
        if wanted is None or count is None or count in known or not _same_rows(call, samples[0]):
            yield call
            continue
        for row in spread(range(count), of_each or count):
            waiting.append(call.map(lambda tensor, row=row: tensor[row : row + 1]))  # type: ignore[misc]
        while len(waiting) >= wanted:
            pieces, waiting = waiting[:wanted], waiting[wanted:]
            columns = iter([torch.cat(column) for column in zip(*(p.tensors() for p in pieces), strict=True)])
            yield pieces[0].map(lambda _, columns=columns: next(columns))  # type: ignore[misc]


def _as_batch(call: Inputs, form: Inputs) -> Inputs:
    """An item of a data set is a row without the batch's dimension."""
    shapes, of_form = _shapes(call), _shapes(form)
    if _rows(form) is not None and shapes and shapes == [shape[1:] for shape in of_form]:
        return call.map(lambda tensor: tensor[None])
    return call


def _rows(call: Inputs) -> int | None:
    """The first size of all of its tensors; None where they have no common one."""
    sizes = {shape[0] if shape else None for shape in _shapes(call)}
    return sizes.pop() if len(sizes) == 1 else None


def _same_rows(call: Inputs, form: Inputs) -> bool:
    return [shape[1:] for shape in _shapes(call)] == [shape[1:] for shape in _shapes(form)]


def _shapes(call: Inputs) -> list[tuple[int, ...]]:
    """Of its tensors; none of them where one is nested, and so has no sizes."""
    tensors = call.tensors()
    return [] if any(tensor.is_nested for tensor in tensors) else [tuple(tensor.shape) for tensor in tensors]
