"""A function whose calls replay CUDA graphs: padded to a bucket, proven equal, in eager where that is as well.

Left out: sizes that vary in two ways at once, gradients of gradients.
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
from togi.graphs import runs
from togi.graphs.buckets import choose_buckets, padding
from togi.graphs.form import SharedTensors, same_values, shape_at, shapes_of, size_of, with_tensors, without_tensors
from togi.graphs.gradient import ReplayedCall, Replays, gradients_of, plus_and_minus, same_weights
from togi.graphs.held import Held, weights_of
from togi.graphs.lease import Lease
from togi.graphs.pool import GraphError, Pool, Run
from togi.graphs.proof import in_float64, prove
from togi.graphs.recording import why_not_captured
from togi.subject.inputs import Inputs, samples_of
from togi.torch_internals.autograd import version_of
from togi.torch_internals.cuda_graphs import replays_by_itself
from togi.torch_internals.tensors import tree_flatten

_MOST_CAPTURES = 3
"""Captures of one bucket: functions that drop each other's graphs over and over run in eager after that."""
_REPLAYED = "replayed"
_BACKWARD = 1
"""Place of the graph that goes back, among those of a bucket."""


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
    gradients: bool = False,
) -> CapturedFunction:
    """Replay CUDA graphs for calls of ``fn`` of many sizes (tokens of a sequence, rows of a batch).

    The sizes to capture are chosen from the histogram ``sizes`` so that padding is least for the memory given. They are
    captured at once, the largest first, into one pool, with inputs and outputs in buffers that all share. Each is
    proven: padded inputs give, on the real part, what ``fn`` gives, within its own rounding error. Where a graph is not
    faster than eager beyond doubt, eager it is.

    A call that no graph serves (larger, of another kind, under another autocast, after its weights have moved) runs
    ``fn`` as it is; ``calls`` counts them by reason, and each reason warns once.

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
        gradients: capture gradients too, of what the samples and the weights require: a second graph for each size,
            which repeats the forward pass and goes back. Padding is proven to be harmless to them as well, and graphs
            are raced for both passes together. Capture while no backward pass is pending. Without it, a call that
            records gradients runs in eager.

    Returns:
        A callable like ``fn``. Outputs and gradients are the caller's own, contiguous.

    Raises:
        GraphError: no CUDA device; a capture fails (with the line that waits for the device); it was compiled with CUDA
            graphs of its own; padding changes results; not even the smallest size fits into the memory; gradients of
            what draws random numbers or changes what it holds, since the forward pass is repeated.
        BudgetError: ``memory`` is no size.
        SubjectError: a sample is none.
    """
    if replays_by_itself(fn):
        raise GraphError(
            "it was compiled with mode='reduce-overhead' (or another that replays CUDA graphs of its own), and a graph "
            "cannot be captured in another: compile it with mode='default' or 'max-autotune-no-cudagraphs'"
        )
    if limit < 1:
        raise GraphError(f"limit={limit} allows no graph: give at least 1, or call the function as it is")
    pool = memory if isinstance(memory, Pool) else Pool(memory)
    return CapturedFunction(fn, samples_of(inputs), _histogram(sizes), pool, pad, limit, gradients)


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
        gradients: bool,
    ) -> None:
        functools.update_wrapper(self, fn, updated=())
        self.calls: Counter[str] = Counter()
        """How many calls were ``replayed``, and how many ran in eager, by reason."""
        self._fn, self._sizes, self._pool, self._limit = fn, dict(sizes), pool, limit
        self._notes: list[str] = []
        self._eager: list[int] = []
        self._captures: Counter[int] = Counter()
        self._owner = object()
        self._lease: Lease | None = None
        self._gradients = gradients
        self._buckets: tuple[int, ...] = ()
        self._buffer_bytes = 0
        self._needed = 0
        """Bytes that the latest capture took, with the buffers."""
        self._learn_the_form(samples, pad)
        self._device = pool.device(self._sample_tensors[0])
        self._notes += [self._device.note] if self._device.note else []
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
        return self._answer(args, kwargs)

    def lend(self, *args: Any, **kwargs: Any) -> Lease:
        """As a call, but the results are the graph's own memory, without a copy: ``with fast.lend(x) as out``.

        They are valid until the block ends; whatever touches them, or a view of them, after that gets a RuntimeError.
        Within the block other calls run in eager. Read them on the stream of the call. What was not replayed, or
        records gradients, is the caller's own, as ever.
        """
        return Lease(functools.partial(self._answer, args, kwargs))

    def _answer(self, args: Sequence[Any], kwargs: Mapping[str, Any], lease: Lease | None = None) -> Any:
        if torch.compiler.is_compiling() or self._device.capturing():
            return self._fn(*args, **kwargs)  # a part of what somebody else compiles or captures
        leaves, form = tree_flatten((args, kwargs))
        found = self._size_of(leaves, form)
        if isinstance(found, int):
            with self._pool.lock, self._device.current():
                bucket = self._bucket_for(found)
                if isinstance(bucket, int):
                    self.calls[_REPLAYED] += 1
                    tensors = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
                    return self._replayed(tensors, found, bucket, lease)
                found = bucket
        self._say(found)
        return self._fn(*args, **kwargs)

    # --- the form of a call

    def _learn_the_form(self, samples: Sequence[Inputs], pad: float | Sequence[float]) -> None:
        flat = [tree_flatten((sample.args, dict(sample.kwargs))) for sample in samples]
        self._form, self._others = flat[0][1], without_tensors(flat[0][0])
        rows = [[leaf for leaf in leaves if isinstance(leaf, Tensor)] for leaves, _ in flat]
        kinds = [[(t.dtype, t.device, t.dim()) for t in row] for row in rows]
        if any(form != self._form for _, form in flat) or not all(
            same_values(self._others, without_tensors(leaves)) for leaves, _ in flat
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
        self._wanted = [self._gradients and tensor.requires_grad for tensor in self._sample_tensors]
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
            others.append(without_tensors(leaves))
            forms.append(form)
            if n == few:
                self._differentiable = [tensor.requires_grad for tensor in rows[0]]
                self._weights = weights_of(rows[0], sample.tensors())
                self._held = Held(self._fn, self._weights)
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
        if self._gradients:
            self._learn_the_gradients(few)

    def _learn_the_gradients(self, n: int) -> None:
        """Of the wanted inputs, then of the weights. The forward pass must be one that can be repeated."""
        if not any(self._differentiable):
            raise GraphError("gradients=True, and nothing that it returns depends on what requires gradients")
        sample, before, drawn = self._sample(n), self._held.versions(), self._device.random_state()
        self._fn(*sample.args, **sample.kwargs)
        if self._held.versions() != before:
            raise GraphError(
                "gradients=True, and it changes its buffers: backward, which repeats it, would do so again"
            )
        if not torch.equal(self._device.random_state(), drawn):
            raise GraphError(
                "gradients=True, and it draws random numbers: backward, which repeats it, would draw others"
            )
        pairs = zip(self._inputs.shapes, self._sample_tensors, self._wanted, strict=True)
        wanted = [(shape, tensor) for shape, tensor, wants in pairs if wants]
        self._found = SharedTensors(
            [*(shape for shape, _ in wanted), *(tuple(weight.shape) for weight in self._weights)],
            [*(tensor for _, tensor in wanted), *self._weights],
        )
        self._trained = self._held.trained()

    def _sample(self, n: int) -> Inputs:
        """The largest sample, cut to size ``n`` or repeated up to it."""
        tensors = []
        for tensor, shape, wanted in zip(self._sample_tensors, self._inputs.shapes, self._wanted, strict=True):
            for dim, extent in enumerate(shape):
                if extent is None:
                    tensor = tensor.index_select(dim, torch.arange(n, device=tensor.device) % tensor.shape[dim])
            tensors.append(tensor.detach().clone().requires_grad_(wanted))
        args, kwargs = with_tensors(self._others, tensors, self._form)
        return Inputs(tuple(args), kwargs)

    def _size_of(self, leaves: Sequence[Any], form: Any) -> int | str:
        """Of a call that a graph could serve; else why none could."""
        tensors = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
        if form != self._form or not same_values(self._others, without_tensors(leaves)):
            return "other arguments than the samples'"
        alike = zip(tensors, self._sample_tensors, strict=True)
        if any((t.dtype, t.device, t.dim()) != (s.dtype, s.device, s.dim()) for t, s in alike):
            return "inputs of another device, dtype or rank than the samples'"
        if self._records(tensors):
            if not self._gradients:
                return "gradients are recorded (call it under torch.no_grad, or capture it with gradients=True)"
            if [t.requires_grad for t in tensors] != self._wanted or self._held.trained() != self._trained:
                return "gradients of other tensors are recorded than at the capture"
        if self._modes_now() != self._modes:
            return "another autocast or training mode than at the capture"
        n = size_of(tensors, self._inputs.shapes)
        return n or "other shapes than the samples', or empty"

    def _records(self, tensors: Sequence[Tensor]) -> bool:
        return torch.is_grad_enabled() and (any(self._differentiable) or any(t.requires_grad for t in tensors))

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
            took = pool.record(again, self._runs, self._inputs.views(largest))
        except torch.OutOfMemoryError:
            return 0
        pool.drop(again)
        return max(0, pool.memory_bytes - pool.held_bytes) // took if took > 0 else self._limit

    def _allocate(self, largest: int) -> None:
        self._buffer_bytes = self._inputs.allocate(largest) + self._results.allocate(largest)
        if self._gradients:
            self._buffer_bytes += self._found.allocate(largest)
        self._pool.buffer_bytes += self._buffer_bytes
        for tensor, pad in zip(self._inputs.views(largest), self._pads, strict=True):
            tensor.fill_(pad)  # indices among them must be valid ones in a capture

    @property
    def _runs(self) -> list[Run]:
        """What is captured for each bucket. Without a reference to this object: a pool holds them."""
        call = functools.partial(_called, self._fn, self._form, self._others)
        forward = functools.partial(runs.forward, call, self._results)
        if not self._gradients:
            return [forward]
        memory = (self._inputs, self._results, self._found)
        of_these = (self._weights, self._wanted, self._differentiable)
        return [forward, functools.partial(runs.gradients, call, *of_these, memory)]

    def _record(self, bucket: int) -> bool:
        """Captured, and within the memory; what other functions need for longest gives way."""
        key, pool = (self._owner, bucket), self._pool
        self._captures[bucket] += 1
        before = pool.held_bytes
        try:
            pool.record(key, self._runs, self._inputs.views(bucket))
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
        plain, wide = self._fn, in_float64(self._fn, str(self._device.place))
        compared: dict[str, tuple[Callable[..., Any], Callable[..., Any], Callable[..., Any]]]
        lower = 0
        for bucket in self._buckets:
            inside = [n for n in self._sizes if lower < n <= bucket]
            padded = functools.partial(self._padded, bucket)
            usual = max(inside, key=lambda n: self._sizes[n])
            compared = {"result": (padded, plain, wide)}
            if self._gradients:
                compared["gradient"] = (self._gradient(padded), self._gradient(plain), self._gradient(wide))
            for n in {min(inside), usual}:
                where = f"at size {n} padded to {bucket} with {self._pads}"
                for what, (graph, eager, exact) in compared.items():
                    prove(graph, eager, exact, self._sample(n), where, what=what)
            if not self._device.faster(graph, eager, self._sample(usual)):
                self._eager.append(bucket)
                self._pool.drop((self._owner, bucket))
            lower = bucket

    def _gradient(self, fn: Callable[..., Any]) -> Callable[..., Sequence[Tensor]]:
        """Of the plain function, of a copy of it, or of a padded call."""

        def run(*args: Any, **kwargs: Any) -> Sequence[Tensor]:
            weights = same_weights(self._fn, self._weights, fn)
            return gradients_of(fn, weights, self._wanted, plus_and_minus)(*args, **kwargs)

        return run

    def _padded(self, bucket: int, *args: Any, **kwargs: Any) -> Any:
        tensors = [leaf for leaf in tree_flatten((args, kwargs))[0] if isinstance(leaf, Tensor)]
        n = size_of(tensors, self._inputs.shapes)
        assert n is not None
        return self._replayed(tensors, n, bucket)

    # --- a call

    def _bucket_for(self, n: int) -> int | str:
        """The bucket whose graph serves size ``n``; else why none does."""
        if reason := self._in_the_way():
            return reason
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

    def _in_the_way(self) -> str:
        """Why no graph may be replayed now; empty where one may."""
        if self._lease is not None and self._lease.lasts:
            return "its results are lent until the block of lend() ends"
        if moved := self._held.moved():
            return f"{moved} is not where it was at the capture: capture it again after .to() or assigning weights"
        return ""

    def _replayed(self, tensors: Sequence[Tensor], n: int, bucket: int, lease: Lease | None = None) -> Any:
        run = functools.partial(self._forward, n=n, bucket=bucket)
        if self._records(tensors):
            replays = Replays(
                forward=lambda inputs: _copied(run(inputs)),
                backward=functools.partial(self._backward, n=n, bucket=bucket),
                differentiable=self._differentiable,
                wanted=self._wanted,
            )
            made = ReplayedCall.apply(replays, *tensors, *self._weights)
        elif lease is not None:
            self._lease, made = lease, lease.take(run(tensors))
        else:
            made = _copied(run(tensors))
        return with_tensors(self._result_leaves, made, self._result_form)

    def _forward(self, inputs: Sequence[Tensor], n: int, bucket: int) -> list[Tensor]:
        """The results, in the memory that the next call overwrites."""
        self._device.turn()
        with torch.inference_mode(False), torch.no_grad():
            self._inputs.write(inputs, n, bucket, self._pads)
            self._pool.replay((self._owner, bucket))
        return self._results.read(n, bucket)

    def _backward(self, inputs: Sequence[Tensor], ahead: Sequence[Tensor | None], n: int, bucket: int) -> list[Tensor]:
        """Gradients for those of the results: of the wanted inputs, and of the weights."""
        with self._pool.lock, self._device.current():
            gone = (self._owner, bucket) not in self._pool and "a graph was dropped for others' before its backward"
            reason = self._in_the_way() or gone
            if not reason:
                self._device.turn()
                self._inputs.write(inputs, n, bucket, self._pads)
                self._results.write(ahead, n, bucket, [0.0] * len(ahead))
                self._pool.replay((self._owner, bucket), _BACKWARD)
                return _copied(self._found.read(n, bucket))
        self._say(reason)
        cast, kind = self._modes[0], self._sample_tensors[0].device.type
        with torch.autocast(kind, dtype=cast or None, enabled=bool(cast)):
            args, kwargs = with_tensors(self._others, inputs, self._form)
            run = gradients_of(
                self._fn, self._weights, self._wanted, lambda _: [tensor for tensor in ahead if tensor is not None]
            )
            return list(run(*args, **kwargs))

    def _say(self, reason: str) -> None:
        with self._pool.lock:
            self.calls[reason] += 1
            first = self.calls[reason] == 1
        if first:
            name = getattr(self._fn, "__name__", type(self._fn).__name__)
            warnings.warn(f"{name} ran in eager: {reason}", GraphWarning, stacklevel=4)


def _copied(tensors: Iterable[Tensor]) -> list[Tensor]:
    return [tensor.clone(memory_format=torch.contiguous_format) for tensor in tensors]


def _called(fn: Callable[..., Any], form: Any, leaves: Sequence[Any], *tensors: Tensor) -> Any:
    args, kwargs = with_tensors(leaves, tensors, form)
    return fn(*args, **kwargs)
