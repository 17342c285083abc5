"""A function whose calls replay CUDA graphs: padded to a bucket, proven equal, in eager where that is as well.

Left out: gradients (a call that needs them runs in eager), sizes that vary in two ways at once, and handing out the
graph's own outputs (they are copied, so that the next call cannot overwrite them).
"""

from __future__ import annotations

import functools
import warnings
import weakref
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, final

import torch
from torch import Tensor

from togi.core.quantities import first_line, plural, size
from togi.graphs.buckets import choose_buckets, padding
from togi.graphs.form import SharedTensors, real_part, same_values, shape_at, shapes_of, size_of, tensors_in
from togi.graphs.pool import GraphError, Pool
from togi.graphs.proof import in_float64, prove
from togi.graphs.recording import why_not_captured
from togi.subject.inputs import Inputs, samples_of
from togi.torch_internals.autograd import version_of
from togi.torch_internals.tensors import tree_flatten, tree_unflatten

_MOST_CAPTURES = 3
"""Captures of one bucket: functions that drop each other's graphs over and over run in eager after that."""
_REPLAYED = "replayed"


class GraphWarning(UserWarning):
    """Calls run in eager although they were to replay a graph."""


@final
@dataclass(frozen=True, kw_only=True)
class GraphPlan:
    """What was captured, and why not more. Sizes are those of the histogram; bytes were measured at the captures."""

    buckets: tuple[int, ...]
    """Sizes that have a graph, ascending."""
    eager: tuple[int, ...]
    """Buckets without one, since it was not faster than eager: their calls run as they are."""
    padding: float
    """Computed for nothing by the histogram's calls that a bucket holds, as a share of what they need."""
    above: int
    """Calls of the histogram that are above the largest bucket."""
    held_bytes: int
    """Of the whole pool: graphs, working memory, buffers."""
    memory_bytes: int
    notes: tuple[str, ...]
    """What the memory, or the device, did not allow."""

    def __str__(self) -> str:
        lines = [
            f"{plural(len(self.buckets), 'graph')} for sizes up to {', '.join(map(str, self.buckets)) or '-'}; "
            f"padding {self.padding:.1%}; {size(self.held_bytes)} of {size(self.memory_bytes)}"
        ]
        lines += [f"not faster than eager: {', '.join(map(str, self.eager))}"] if self.eager else []
        lines += [f"above the largest bucket: {plural(self.above, 'call')}"] if self.above else []
        return "\n".join([*lines, *self.notes])


def capture(
    fn: Callable[..., Any],
    inputs: Any,
    *,
    sizes: Mapping[int, int] | Iterable[int],
    memory: str | int | Pool = "2GiB",
    pad: float | Sequence[float] = 0,
    limit: int = 32,
) -> CapturedFunction:
    """Replay CUDA graphs for calls of ``fn`` of many sizes (tokens of a sequence, rows of a batch).

    The sizes to capture are chosen from the histogram ``sizes`` so that padding is least for the memory given. They are
    captured at once, the largest first, into one pool, with inputs and outputs in buffers that all share. Each is
    proven: padded inputs give, on the real part, what ``fn`` gives, within its own rounding error. Where a graph is not
    faster than eager beyond doubt, eager it is.

    A call that no graph serves (larger, of another kind, needing gradients, under another autocast) runs ``fn`` as it
    is; ``calls`` counts them by reason, and each reason warns once.

    Args:
        fn: a module, a compiled one, or a function of tensors in any structure that returns tensors in any structure.
            What it holds (weights) must stay where it is; values may change in place. It must not write to its inputs
            nor keep what it computes: only what it returns is copied out.
        inputs: at least two samples of different sizes, as a list (``togi.Inputs``, tuples, dicts, tensors). Dimensions
            that differ between them are the size: the same number in each.
        sizes: the sizes of real calls (``{size: how often}``, or one number a call).
        memory: budget for everything held: ``"2GiB"``, bytes, or a ``Pool`` that several functions share.
        pad: the value of padding, for all tensors or one for each tensor of a sample in order. Zero masks out.
        limit: most graphs.

    Returns:
        A callable like ``fn``. Outputs are the caller's own, contiguous.

    Raises:
        GraphError: no CUDA device; a capture fails (with the line that waits for the device); padding changes results;
            not even the smallest size fits into the memory.
        BudgetError: ``memory`` is no size.
        SubjectError: a sample is none.
    """
    if limit < 1:
        raise GraphError(f"limit={limit} allows no graph: give at least 1, or call the function as it is")
    pool = memory if isinstance(memory, Pool) else Pool(memory)
    return CapturedFunction(fn, samples_of(inputs), _histogram(sizes), pool, pad, limit)


def _histogram(sizes: Mapping[int, int] | Iterable[int]) -> dict[int, int]:
    counts = Counter(dict(sizes)) if isinstance(sizes, Mapping) else Counter(sizes)
    wrong = [
        (key, n) for key, n in counts.items() if not (isinstance(key, int) and isinstance(n, int) and key > 0 <= n)
    ]
    if wrong or not any(counts.values()):
        what = f"{wrong[0][0]!r} occurs {wrong[0][1]!r} times" if wrong else "there are none"
        raise GraphError(f"sizes: {what}; give the sizes of real calls as whole numbers above zero, or {{size: calls}}")
    return {key: n for key, n in counts.items() if n}


@final
class CapturedFunction:
    """What ``togi.graphs.capture`` returns. May be called from several threads and streams; calls take turns."""

    def __init__(
        self,
        fn: Callable[..., Any],
        samples: Sequence[Inputs],
        sizes: Mapping[int, int],
        pool: Pool,
        pad: float | Sequence[float],
        limit: int,
    ) -> None:
        functools.update_wrapper(self, fn, updated=())
        self.calls: Counter[str] = Counter()
        """How many calls were ``replayed``, and how many ran in eager, by reason."""
        self._fn, self._sizes, self._pool, self._limit = fn, dict(sizes), pool, limit
        self._notes: list[str] = []
        self._eager: list[int] = []
        self._captures: Counter[int] = Counter()
        self._owner = object()
        self._buckets: tuple[int, ...] = ()
        self._buffer_bytes = 0
        self._needed = 0
        """Bytes that the latest capture took, with the buffers."""
        self._learn_the_form(samples, pad)
        self._device = pool.device(self._sample_tensors[0])
        self._modes = self._modes_now()
        with pool.lock, self._device.current(), torch.inference_mode(False), torch.no_grad():
            try:
                self._learn_the_results()
                self._capture_all()
                self._keep_what_is_right_and_faster()
            except BaseException:
                pool.drop_all(self._owner, self._buffer_bytes)
                raise
        weakref.finalize(self, pool.left.append, (self._owner, self._buffer_bytes)).atexit = False

    def plan(self) -> GraphPlan:
        """What is captured now; ``print`` it."""
        inside = {n: times for n, times in self._sizes.items() if self._buckets and n <= self._buckets[-1]}
        real = sum(n * times for n, times in inside.items())
        return GraphPlan(
            buckets=tuple(b for b in self._buckets if (self._owner, b) in self._pool),
            eager=tuple(self._eager),
            padding=padding(inside, self._buckets) / real if real else 0.0,
            above=sum(self._sizes.values()) - sum(inside.values()),
            held_bytes=self._pool.held_bytes,
            memory_bytes=self._pool.memory_bytes,
            notes=tuple(self._notes),
        )

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling() or self._device.capturing():
            return self._fn(*args, **kwargs)  # a part of what somebody else compiles or captures
        leaves, form = tree_flatten((args, kwargs))
        found = self._size_of(leaves, form)
        if isinstance(found, int):
            with self._pool.lock, self._device.current():
                bucket = self._bucket_for(found)
                if isinstance(bucket, int):
                    self.calls[_REPLAYED] += 1
                    return self._replayed([leaf for leaf in leaves if isinstance(leaf, Tensor)], found, bucket)
                found = bucket
        self._say(found)
        return self._fn(*args, **kwargs)

    # --- the form of a call

    def _learn_the_form(self, samples: Sequence[Inputs], pad: float | Sequence[float]) -> None:
        flat = [tree_flatten((sample.args, dict(sample.kwargs))) for sample in samples]
        self._form, self._others = flat[0][1], _without_tensors(flat[0][0])
        rows = [[leaf for leaf in leaves if isinstance(leaf, Tensor)] for leaves, _ in flat]
        kinds = [[(t.dtype, t.device, t.dim()) for t in row] for row in rows]
        if any(form != self._form for _, form in flat) or not all(
            same_values(self._others, _without_tensors(leaves)) for leaves, _ in flat
        ):
            raise GraphError("the samples differ in more than their sizes: give calls of one kind")
        if any(kind != kinds[0] for kind in kinds) or not rows[0]:
            raise GraphError("the samples differ in dtypes, devices or numbers of tensors (or hold none)")
        found = [size_of(row, shapes_of(rows)) for row in rows]
        if len(set(found)) < 2 or None in found:
            raise GraphError(
                "which dimensions are the size cannot be seen from the samples: give at least two whose sizes differ, "
                f"with the same number in every dimension that differs (found {found})"
            )
        largest = max(range(len(rows)), key=lambda at: found[at] or 0)
        self._sample_tensors = rows[largest]
        self._inputs = SharedTensors(shapes_of(rows), self._sample_tensors)
        self._pads = list(pad) if isinstance(pad, Sequence) else [pad] * len(rows[0])
        if len(self._pads) != len(rows[0]):
            raise GraphError(f"pad has {len(self._pads)} values, and a sample {plural(len(rows[0]), 'tensor')}")
        if len({t.device for t in rows[0]}) > 1:
            raise GraphError(
                f"the tensors of a sample are on several devices: {sorted({str(t.device) for t in rows[0]})}"
            )

    def _learn_the_results(self) -> None:
        few, many = min(self._sizes), max(*self._sizes, min(self._sizes) + 1)
        rows, others, forms = [], [], []
        for n in (few, many):
            sample = self._sample(n)
            before = [version_of(tensor) for tensor in sample.tensors()]
            with torch.set_grad_enabled(n == few):
                leaves, form = tree_flatten(self._fn(*sample.args, **sample.kwargs))
            if [version_of(tensor) for tensor in sample.tensors()] != before:
                raise GraphError("it writes to its inputs, which would not reach the caller's: return what it computes")
            rows.append([leaf for leaf in leaves if isinstance(leaf, Tensor)])
            others.append(_without_tensors(leaves))
            forms.append(form)
        self._differentiable = any(tensor.requires_grad for tensor in rows[0])
        self._result_leaves, self._result_form = others[0], forms[0]
        kinds = [[(t.dtype, t.dim()) for t in row] for row in rows]
        if forms[0] != forms[1] or not same_values(*others) or kinds[0] != kinds[1] or not rows[0]:
            raise GraphError("what it returns depends on the size in more than the shapes of tensors (or is no tensor)")
        shapes = shapes_of(rows)
        if [tuple(t.shape) for t in rows[1]] != [shape_at(shape, many) for shape in shapes]:
            raise GraphError(
                f"it returns {[tuple(t.shape) for t in rows[1]]} for size {many}: a dimension that varies must be the "
                "size itself, or which part of a padded result is real cannot be told"
            )
        self._results = SharedTensors(shapes, [t.detach() for t in rows[1]])

    def _sample(self, n: int) -> Inputs:
        """The largest sample, cut to size ``n`` or repeated up to it."""
        tensors = []
        for tensor, shape in zip(self._sample_tensors, self._inputs.shapes, strict=True):
            for dim, extent in enumerate(shape):
                if extent is None:
                    tensor = tensor.index_select(dim, torch.arange(n, device=tensor.device) % tensor.shape[dim])
            tensors.append(tensor.detach().clone())
        args, kwargs = _with_tensors(self._others, tensors, self._form)
        return Inputs(tuple(args), kwargs)

    def _size_of(self, leaves: Sequence[Any], form: Any) -> int | str:
        """Of a call that a graph could serve; else why none could."""
        tensors = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
        if form != self._form or not same_values(self._others, _without_tensors(leaves)):
            return "other arguments than the samples'"
        alike = zip(tensors, self._sample_tensors, strict=True)
        if any((t.dtype, t.device, t.dim()) != (s.dtype, s.device, s.dim()) for t, s in alike):
            return "inputs of another device, dtype or rank than the samples'"
        if torch.is_grad_enabled() and (self._differentiable or any(t.requires_grad for t in tensors)):
            return "gradients are recorded (call it under torch.no_grad)"
        if self._modes_now() != self._modes:
            return "another autocast or training mode than at the capture"
        n = size_of(tensors, self._inputs.shapes)
        return n or "other shapes than the samples', or empty"

    def _modes_now(self) -> tuple[Any, ...]:
        kind = self._sample_tensors[0].device.type
        cast = torch.is_autocast_enabled(kind) and torch.get_autocast_dtype(kind)
        return cast, getattr(self._fn, "training", None)

    # --- capturing

    def _capture_all(self) -> None:
        """The largest size first, which sizes the pool; once more, to measure what a further graph takes; then as many
        as that leaves room for, and buckets for them."""
        sizes = sorted(self._sizes)
        if not self._fits(sizes[-1]):
            most = bisect_left(sizes, True, key=lambda n: not self._fits(n))  # what is needed grows with the size
            self._notes.append(f"sizes above {sizes[most - 1] if most else 0} do not fit into the memory")
            sizes = sizes[:most]
            if not sizes or not self._fits(sizes[-1]):
                raise GraphError(
                    f"no graph fits: that of the smallest size, {min(self._sizes)}, is refused at memory="
                    f"{size(self._pool.memory_bytes)} (latest capture: {size(self._needed)}); give more, or call the "
                    "function as it is"
                )
        calls = {n: self._sizes[n] for n in sizes}
        self._buckets = choose_buckets(calls, min(self._limit, 1 + self._room_for_more(sizes[-1])))
        for at, bucket in reversed(list(enumerate(self._buckets[:-1]))):
            if not self._record(bucket):
                self._notes.append(f"no room for {plural(at + 1, 'more graph')}: smaller sizes are padded more")
                self._buckets = self._buckets[at + 1 :]
                break
        self._captures.clear()

    def _fits(self, largest: int) -> bool:
        """A graph of this size alone, which is held if so."""
        self._pool.drop_all(self._owner, self._buffer_bytes)
        self._buffer_bytes = 0
        try:
            self._allocate(largest)
        except torch.OutOfMemoryError:
            return False
        return self._record(largest)

    def _room_for_more(self, largest: int) -> int:
        """How many graphs more: what one takes is measured by a second one of the largest size."""
        pool, again = self._pool, (self._owner, 0)
        try:
            took = pool.record(again, self._run, self._inputs.views(largest))
        except torch.OutOfMemoryError:
            return 0
        pool.drop(again)
        return max(0, pool.memory_bytes - pool.held_bytes) // took if took > 0 else self._limit

    def _allocate(self, largest: int) -> None:
        self._buffer_bytes = self._inputs.allocate(largest) + self._results.allocate(largest)
        self._pool.buffer_bytes += self._buffer_bytes
        for tensor, pad in zip(self._inputs.views(largest), self._pads, strict=True):
            tensor.fill_(pad)  # indices among them must be valid ones in a capture

    @property
    def _run(self) -> Callable[..., Sequence[Tensor]]:
        return functools.partial(_into_buffers, self._fn, self._form, self._others, self._results)

    def _record(self, bucket: int) -> bool:
        """Captured, and within the memory; what other functions need for longest gives way."""
        key, pool = (self._owner, bucket), self._pool
        self._captures[bucket] += 1
        before = pool.held_bytes
        try:
            pool.record(key, self._run, self._inputs.views(bucket))
        except torch.OutOfMemoryError:
            return False
        except Exception as error:  # foreign code: whatever waits for the device, or a library of its own
            raise GraphError(
                f"{why_not_captured(error)}. A CUDA graph cannot wait for the device: move that out of the function"
            ) from error
        self._needed = pool.held_bytes - before + self._buffer_bytes
        if self._needed <= pool.memory_bytes and pool.make_room(self._owner):
            return True
        pool.drop(key)
        return False

    # --- proof

    def _keep_what_is_right_and_faster(self) -> None:
        wide = in_float64(self._fn, str(self._device.place))
        lower = 0
        for bucket in self._buckets:
            inside = [n for n in self._sizes if lower < n <= bucket]
            padded = functools.partial(self._padded, bucket)
            usual = max(inside, key=lambda n: self._sizes[n])
            for n in {min(inside), usual}:
                prove(padded, self._fn, wide, self._sample(n), f"at size {n} padded to {bucket} with {self._pads}")
            if not self._device.faster(padded, self._fn, self._sample(usual)):
                self._eager.append(bucket)
                self._pool.drop((self._owner, bucket))
            lower = bucket

    def _padded(self, bucket: int, *args: Any, **kwargs: Any) -> Any:
        tensors = [leaf for leaf in tree_flatten((args, kwargs))[0] if isinstance(leaf, Tensor)]
        n = size_of(tensors, self._inputs.shapes)
        assert n is not None
        return self._replayed(tensors, n, bucket)

    # --- a call

    def _bucket_for(self, n: int) -> int | str:
        """The bucket whose graph serves size ``n``; else why none does."""
        at = bisect_left(self._buckets, n)
        if at == len(self._buckets):
            return f"sizes above the largest bucket ({self._buckets[-1]})"
        if self._buckets[at] in self._eager:
            return "a graph was not faster than eager"
        held = [bucket for bucket in self._buckets[at:] if (self._owner, bucket) in self._pool]
        if held:
            return held[0]
        bucket = self._buckets[at]
        if self._captures[bucket] >= _MOST_CAPTURES:
            return "its graph was dropped for others' again and again: give the pool more memory"
        with torch.inference_mode(False), torch.no_grad():
            try:
                return bucket if self._record(bucket) else "its graph was dropped for others', and has no room"
            except GraphError as error:
                self._captures[bucket] = _MOST_CAPTURES
                return f"its graph was dropped for others', and cannot be captured again: {first_line(error)}"

    def _replayed(self, tensors: Sequence[Tensor], n: int, bucket: int) -> Any:
        self._device.turn()
        with torch.inference_mode(False), torch.no_grad():
            rows = zip(self._inputs.views(bucket), tensors, self._inputs.shapes, self._pads, strict=True)
            for mine, given, shape, pad in rows:
                for dim, extent in enumerate(shape):
                    if extent is None and n < bucket:
                        mine.narrow(dim, n, bucket - n).fill_(pad)
                real_part(mine, shape, n).copy_(given)
            self._pool.replay((self._owner, bucket))
        results = zip(self._results.views(bucket), self._results.shapes, strict=True)
        made = [real_part(t, shape, n).clone(memory_format=torch.contiguous_format) for t, shape in results]
        return _with_tensors(self._result_leaves, made, self._result_form)

    def _say(self, reason: str) -> None:
        with self._pool.lock:
            self.calls[reason] += 1
            first = self.calls[reason] == 1
        if first:
            name = getattr(self._fn, "__name__", type(self._fn).__name__)
            warnings.warn(f"{name} ran in eager: {reason}", GraphWarning, stacklevel=3)


_TENSOR = object()
"""Stands for a tensor among the leaves of a call."""


def _without_tensors(leaves: Sequence[Any]) -> list[Any]:
    return [_TENSOR if isinstance(leaf, Tensor) else leaf for leaf in leaves]


def _with_tensors(leaves: Sequence[Any], tensors: Iterable[Tensor], form: Any) -> Any:
    """The structure again, of what ``_without_tensors`` left and of tensors in order."""
    given = iter(tensors)
    return tree_unflatten([next(given) if leaf is _TENSOR else leaf for leaf in leaves], form)


def _into_buffers(
    fn: Callable[..., Any], form: Any, leaves: Sequence[Any], results: SharedTensors, *tensors: Tensor
) -> tuple[Tensor, ...]:
    """What is captured: results go to buffers, so that nothing in the pool outlives a replay."""
    args, kwargs = _with_tensors(leaves, tensors, form)
    # Weights that autocast keeps in 16 bits go when its block ends: the graph must make them, and not leave its own.
    torch.clear_autocast_cache()
    made = tensors_in(fn(*args, **kwargs))
    torch.clear_autocast_cache()
    n = size_of(made, results.shapes)
    for buffer, tensor in zip(results.views(n or 0), made, strict=True):
        buffer.copy_(tensor)
    return ()
