"""An estimate of a call, on fake tensors: what it takes, and whether it writes to tensors that outlive it."""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence
from itertools import zip_longest
from typing import Any, NamedTuple

from torch import Tensor

from togi.core.errors import BudgetError
from togi.core.quantities import a_type, first_line
from togi.footprint.dry_run import dry_run_of
from togi.footprint.kept import Kept, fakes_in, is_number
from togi.footprint.prediction.cpu import AllocationProbe, highest_peak
from togi.footprint.prediction.fake_run import RunRecorder
from togi.footprint.storage_tracker import StorageLifetime
from togi.subject.batch import sliced_rows
from togi.subject.behaviour import kept_generators
from togi.subject.inputs import Inputs
from togi.subject.leaves import holds_nothing
from togi.torch_internals.operators import bound_arguments, written_arguments
from togi.torch_internals.tensors import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensor,
    FakeTensorMode,
    tensors_of,
    tree_leaves,
    tree_map_only,
)


class Estimate(NamedTuple):
    """The findings of a run on fake tensors."""

    peak_bytes: int
    result_bytes: int
    """Of its tensors, each by itself: one that is a view, or is there twice, is put together from parts too."""
    written: str
    """An operation that writes to a tensor from outside of the call; empty where there is none."""
    tracked: bool
    """The result takes part in autograd."""
    opaque: str
    """Something in the result that cannot be put together from parts (``a Size``); empty where there is nothing."""
    changed: str
    """Something in a list, dict or object among the arguments that the call changes; empty where there is nothing."""


class _Writes:
    """Sees what is written from outside, and lets no operation reach a real tensor: small ones would change."""

    def __init__(self, mode: FakeTensorMode, recorder: RunRecorder) -> None:
        self.written = ""
        """The last operation that wrote to a tensor from outside of the call."""
        self._mode, self._recorder = mode, recorder
        self._fakes: dict[int, tuple[Tensor, Tensor]] = {}

    def look(self, operator: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> tuple[Sequence[Any], dict[str, Any]]:
        args, kwargs = tree_map_only(Tensor, self._fake, (args, kwargs))
        given = bound_arguments(operator, args, kwargs)  # ``out`` is given by name
        for name in written_arguments(operator):
            if any(self._is_outside(leaf) for leaf in tree_leaves(given.get(name))):
                self.written = str(operator)
        return args, kwargs

    def _fake(self, tensor: Tensor) -> Tensor:
        if isinstance(tensor, FakeTensor):
            return tensor
        return self._fakes.setdefault(id(tensor), (self._mode.from_tensor(tensor), tensor))[0]

    def _is_outside(self, leaf: Any) -> bool:
        if not isinstance(leaf, Tensor):
            return False
        lifetime = self._recorder.lifetime_of(leaf)
        return lifetime is None or not lifetime.op


def estimate(function: Callable[..., Any], sample: Inputs, rows: int | None, probe: AllocationProbe) -> Estimate | str:
    """Estimate a call with the first ``rows`` rows, None for all; in a sentence why not, where that is not possible.

    What the function reaches besides its arguments (parameters) was there before and does not count. On the CPU the
    kernels that could set the peak are run alone, by ``probe``, for what they take on the way; on another device their
    own memory is not known before.

    Raises:
        BudgetError: a tensor of the run, which has no values, stays where the function keeps it.
    """
    recorder = RunRecorder(counts_existing=False)
    found = _tried(function, sample, rows, recorder)
    if isinstance(found, str):  # a log may keep the error, and with it the tensors
        return found
    _check_nothing_is_left(recorder)
    on_cpu = all(tensor.device.type == "cpu" for tensor in sample.tensors())
    peak = highest_peak(recorder, probe).peak_bytes if recorder.calls and on_cpu else recorder.peak_bytes
    return found._replace(peak_bytes=peak)


def _tried(function: Callable[..., Any], sample: Inputs, rows: int | None, recorder: RunRecorder) -> Estimate | str:
    try:
        with kept_generators(), dry_run_of(function) as dry:
            return _run(dry.program, sample, rows, recorder, _without_values())
    except (DataDependentOutputException, DynamicOutputShapeException):
        return "It depends on values, so it could not be predicted."
    except Exception as error:  # foreign code: it leaves torch, or raises, as the call itself will
        return f"It could not be predicted ({type(error).__name__}: {first_line(error)})."


def _without_values() -> FakeTensorMode:
    return FakeTensorMode(allow_non_fake_inputs=True)


def _run(
    program: Callable[..., Any], sample: Inputs, rows: int | None, recorder: RunRecorder, mode: FakeTensorMode
) -> Estimate:
    """The run, and all of the estimate but its peak."""
    given = sample.map(mode.from_tensor)
    writes = _Writes(mode, recorder)
    recorder.replace_arguments = writes.look
    with mode:
        part = sliced_rows(given, slice(rows))
    arguments = Kept((part.args, dict(part.kwargs)))
    try:
        with mode:
            recorder.add_existing(part.tensors(), "input")
            with recorder:
                leaves = tree_leaves(program(*part.args, **part.kwargs))
        changed = next((change.name or "a list" for change in arguments.changes()), "")
    finally:
        recorder.replace_arguments = None
        arguments.put_back()  # those that are no containers are the caller's own
    results = tensors_of(leaves)
    result_bytes = sum(tensor.numel() * tensor.element_size() for tensor in results)
    opaque = next((a_type(leaf) for leaf in leaves if not holds_nothing(leaf)), "")
    tracked = any(tensor.requires_grad for tensor in results)
    return Estimate(0, result_bytes, writes.written, tracked, opaque, changed)


def why_not_in_turn(function: Callable[..., Any], sample: Inputs, part: int) -> str:
    """The reason why calls with ``part`` rows in turn do not leave what one call with all rows leaves, or are answered
    otherwise than the first of them; empty where nothing was seen.

    What a call keeps for the next ones, as a table of positions, it must keep once: the second call adds nothing, and
    changes no number, and no tensor that it reads.
    """
    try:
        (whole,) = _changes(function, sample, (None,))
        first, second = _changes(function, sample, (part, part))
    except Exception as error:  # foreign code: it may insist on its sizes, or on the state of the first call
        return f"{part} of its rows do not run twice ({type(error).__name__}: {first_line(error)})"
    if second.repeated:
        return f"each call changes {second.repeated}, which parts would do several times"
    kept = next((one for one, other in zip_longest(first.numbers, whole.numbers) if one != other), None)
    return f"a call keeps the number of its rows ({kept[0]})" if kept else ""


class _Changes(NamedTuple):
    """The changes of one call in what the function reaches."""

    numbers: list[tuple[str, Any]]
    """Numbers and texts that are kept now, by name."""
    repeated: str
    """An entry that is new or gone, or another number, or a tensor in place of one that the call has read. Empty where
    there is none."""


def _changes(function: Callable[..., Any], sample: Inputs, calls: Sequence[int | None]) -> list[_Changes]:
    """Of calls with so many rows in turn."""
    found = []
    mode = _without_values()
    with dry_run_of(function) as dry:
        for rows in calls:
            before, recorder = Kept(dry.program), RunRecorder(counts_existing=False)
            _run(dry.program, sample, rows, recorder, mode)
            changes = list(before.changes())
            numbers = [(name, now[0]) for name, _, now in changes if now and is_number(now[0])]
            repeated = (
                name
                for name, old, now in changes
                if not (old and now) or is_number(now[0]) or any(map(recorder.lifetimes_behind, fakes_in(old)))
            )
            found.append(_Changes(numbers, next(repeated, "")))
    return found


def _check_nothing_is_left(recorder: RunRecorder) -> None:
    if not _left(recorder):
        return
    gc.collect()
    if left := _left(recorder):
        what = f"a result of {left[0].op}" if left[0].op else "its input"
        raise BudgetError(
            f"the call was tried on tensors without values, and {what} stays where the function keeps it, in no "
            "module, object, list or dict that togi finds. Clear it there: it has no values. Let a module keep it, or "
            "fill a cache in a call without togi.within first."
        )


def _left(recorder: RunRecorder) -> list[StorageLifetime]:
    """What the run was given or made, and still lives."""
    return [each for each in recorder.lifetimes if each.died is None and (each.op or each.category)]
