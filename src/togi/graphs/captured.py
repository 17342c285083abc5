"""A function whose calls replay CUDA graphs: padded to a bucket, proven equal, in eager where that is as well.

Left out: sizes that vary in two ways at once, gradients of gradients.
"""

from __future__ import annotations

import functools
import threading
import warnings
import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from togi.graphs.buckets import padding
from togi.graphs.calls import ServedCalls
from togi.graphs.captures import Captures
from togi.graphs.form import size_of
from togi.graphs.gradient import ReplayedCall, Replays, gradients_of, plus_and_minus, same_weights
from togi.graphs.lease import Lease
from togi.graphs.plan import GraphPlan
from togi.graphs.pool import GraphError, Pool
from togi.graphs.proof import WaysToCall, in_float64, prove
from togi.subject.inputs import Inputs, samples_of
from togi.torch_internals.cuda_graphs import replays_by_itself
from togi.torch_internals.tensors import tree_flatten

Replay = Callable[..., None]
"""Takes a bucket, and the place of a graph among its own."""
_REPLAYED = "replayed"
_BACKWARD = 1
"""Place of the graph that goes back, among those of a bucket."""
_UNUSED = (
    "its backward, since the loss does not use all results, and the graph goes back from all of them: capture a "
    "function that returns only what the loss uses"
)
_PATIENCE_S = 1.0
"""Of a backward pass whose pool another thread has: it runs in eager then."""


class GraphWarning(UserWarning):
    """Calls run in eager although they were to replay a graph."""


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
            graphs of its own; padding changes results; not even the smallest size fits into the memory. Or it wants
            gradients of what draws random numbers or changes what it holds, since the forward pass is repeated.
        BudgetError: ``memory`` is not a size.
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
        problem = f"{wrong[0][0]!r} occurs {wrong[0][1]!r} times" if wrong else "there are none"
        raise GraphError(
            f"sizes: {problem}; give the sizes of real calls as whole numbers above zero, or {{size: calls}}"
        )
    return {key: n for key, n in counts.items() if n}


class CapturedFunction:
    """The function that ``togi.graphs.capture`` returns. May be called from several threads and streams; calls take
    turns."""

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
        self._fn, self._sizes, self._pool = fn, dict(sizes), pool
        self._lease: Lease | None = None
        self._counting = threading.Lock()
        self._made = False
        self._served = ServedCalls(fn, samples, pad, gradients=gradients)
        self._captures = Captures(self._served, pool, self._sizes, limit)
        self._device = pool.device(self._served.tensors[0])
        self._captures.notes += [self._device.note] if self._device.note else []
        with pool.lock, self._device.current(), torch.inference_mode(False), torch.no_grad():
            try:
                few = min(self._sizes)
                self._served.learn_results(few, max(*self._sizes, few + 1), self._device)
                self._captures.capture()
                self._keep_what_is_right_and_faster()
            except BaseException:
                self._captures.drop_all()
                raise
        self._made = True
        to_release = (self._captures.owner, self._captures.buffer_bytes)
        weakref.finalize(self, pool.left.append, to_release).atexit = False

    def plan(self) -> GraphPlan:
        """Summarise what is captured now; ``print`` it."""
        captures = self._captures
        buckets = captures.buckets
        inside = {n: times for n, times in self._sizes.items() if buckets and n <= buckets[-1]}
        real = sum(n * times for n, times in inside.items())
        return GraphPlan(
            buckets=tuple(bucket for bucket in buckets if bucket in captures),
            eager=tuple(captures.eager),
            padding=padding(inside, buckets) / real if real else 0.0,
            above=sum(self._sizes.values()) - sum(inside.values()),
            held_bytes=self._pool.held_bytes,
            memory_bytes=self._pool.memory_bytes,
            notes=tuple(captures.notes),
        )

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._answer(args, kwargs)

    def lend(self, *args: Any, **kwargs: Any) -> Lease:
        """Call it, with results in the graph's own memory, without a copy: ``with fast.lend(x) as out``.

        They are valid until the block ends; whatever touches them, or a view of them, after that gets a RuntimeError.
        Within the block other calls run in eager. Read them on the stream of the call. What was not replayed, or
        records gradients, is the caller's own, as ever.
        """
        return Lease(functools.partial(self._answer, args, kwargs))

    def _answer(self, args: Sequence[Any], kwargs: Mapping[str, Any], lease: Lease | None = None) -> Any:
        if torch.compiler.is_compiling() or self._device.capturing():
            return self._fn(*args, **kwargs)  # a part of what somebody else compiles or captures
        leaves, form = self._served.flat(args, kwargs)
        size_or_reason = self._served.size_of(leaves, form)
        if isinstance(size_or_reason, int):
            with self._pool.lock, self._device.current():
                bucket = self._in_the_way() or self._captures.bucket_for(size_or_reason)
                if isinstance(bucket, int):
                    self.calls[_REPLAYED] += 1
                    tensors = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
                    return self._replayed(tensors, size_or_reason, bucket, lease)
                size_or_reason = bucket
        self._say(size_or_reason)
        return self._fn(*args, **kwargs)

    # --- proof

    def _keep_what_is_right_and_faster(self) -> None:
        served, captures = self._served, self._captures
        wide = in_float64(self._fn, str(self._device.place))
        lower = 0
        for bucket in captures.buckets:
            inside = [n for n in self._sizes if lower < n <= bucket]
            graph = functools.partial(self._padded, bucket, captures.replay)
            unrecorded = functools.partial(self._padded, bucket, captures.run)
            usual = max(inside, key=lambda n: self._sizes[n])
            compared = {"result": WaysToCall(graph=graph, unrecorded=unrecorded, plain=self._fn, wide=wide)}
            if served.gradients:
                compared["gradient"] = WaysToCall(
                    graph=self._gradient(graph),
                    unrecorded=self._gradient(unrecorded),
                    plain=self._gradient(self._fn),
                    wide=self._gradient(wide, of=wide),
                )
            for n in {min(inside), usual}:
                where = f"at size {n} padded to {bucket} with {served.pads}"
                for what, each in compared.items():
                    prove(each, served.sample(n), where, what=what)
            if not self._device.faster(each.graph, each.plain, served.sample(usual)):
                captures.leave_to_eager(bucket)
            lower = bucket

    def _gradient(
        self, fn: Callable[..., Any], *, of: Callable[..., Any] | None = None
    ) -> Callable[..., Sequence[Tensor]]:
        """Make the gradients of the plain function or of a padded call; those of a copy are ``of`` its own weights."""

        def run(*args: Any, **kwargs: Any) -> Sequence[Tensor]:
            weights = same_weights(self._fn, self._served.weights, of or self._fn)
            return gradients_of(fn, weights, self._served.wanted, plus_and_minus, zeros=True)(*args, **kwargs)

        return run

    def _padded(self, bucket: int, replay: Replay, *args: Any, **kwargs: Any) -> Any:
        tensors = [leaf for leaf in tree_flatten((args, kwargs))[0] if isinstance(leaf, Tensor)]
        n = size_of(tensors, self._served.inputs.shapes)
        assert n is not None
        return self._replayed(tensors, n, bucket, replay=replay)

    # --- a call

    def _in_the_way(self) -> str:
        """Why no graph may be replayed now; empty where one may."""
        if self._lease is not None and self._lease.lasts:
            return "its results are lent until the block of lend() ends"
        if moved := self._served.held.moved():
            return f"{moved} is not where it was at the capture: capture it again after .to() or assigning weights"
        return ""

    def _replayed(
        self,
        tensors: Sequence[Tensor],
        n: int,
        bucket: int,
        lease: Lease | None = None,
        replay: Replay | None = None,
    ) -> Any:
        """``replay``: what is done in place of replaying the graph."""
        served, replay = self._served, replay or self._captures.replay
        run = functools.partial(self._forward, n=n, bucket=bucket, replay=replay)
        if served.record_gradients(tensors):
            replays = Replays(
                forward=lambda inputs: _copied(run(inputs)),
                backward=functools.partial(self._backward, n=n, bucket=bucket, replay=replay),
                differentiable=served.differentiable,
                wanted=served.wanted,
            )
            results = ReplayedCall.apply(replays, *tensors, *served.weights)
        elif lease is not None:
            self._lease, results = lease, lease.take(run(tensors))
        else:
            results = _copied(run(tensors))
        return served.returned(results)

    def _forward(self, inputs: Sequence[Tensor], n: int, bucket: int, replay: Replay) -> list[Tensor]:
        """The results, in the memory that the next call overwrites."""
        self._device.turn()
        with torch.inference_mode(False), torch.no_grad():
            self._served.inputs.write(inputs, n, bucket, self._served.pads)
            replay(bucket)
        return self._served.results.read(n, bucket)

    def _backward(
        self, inputs: Sequence[Tensor], ahead: Sequence[Tensor | None], n: int, bucket: int, replay: Replay
    ) -> Sequence[Tensor | None]:
        """Gradients for those of the results: of the wanted inputs, and of the weights."""
        served = self._served
        given = [tensor for tensor, differs in zip(ahead, served.differentiable, strict=True) if differs]
        unused = any(tensor is None for tensor in given) and _UNUSED
        with self._turn_of_backward() as busy, self._device.current():
            gone = bucket not in self._captures and "a graph was dropped for others' before its backward"
            reason = unused or busy or self._in_the_way() or gone
            if not reason:
                self._device.turn()
                served.inputs.write(inputs, n, bucket, served.pads)
                served.results.write(ahead, n, bucket, [0.0] * len(ahead))
                replay(bucket, _BACKWARD)
                return _copied(served.found.read(n, bucket))
        self._say(reason)
        with served.autocast():
            args, kwargs = served.arguments(inputs)
            run = gradients_of(self._fn, served.weights, served.wanted, lambda _: given, zeros=False)
            return run(*args, **kwargs)

    @contextmanager
    def _turn_of_backward(self) -> Iterator[str]:
        """The pool is this thread's in the block; else why not.

        Autograd runs all backward passes of a GPU on one thread. So who has the lock may be waiting for that very
        thread: the maker of this function, who compares its gradients, or a capture of another function's.
        """
        if not self._made:
            yield ""
        elif self._pool.lock.acquire(timeout=_PATIENCE_S):
            try:
                yield ""
            finally:
                self._pool.lock.release()
        else:
            yield "another thread had the pool when its backward came"

    def _say(self, reason: str) -> None:
        with self._counting:
            self.calls[reason] += 1
            first = self.calls[reason] == 1
        if first:
            name = getattr(self._fn, "__name__", type(self._fn).__name__)
            warnings.warn(f"{name} ran in eager: {reason}", GraphWarning, stacklevel=4)


def _copied(tensors: Iterable[Tensor]) -> list[Tensor]:
    return [tensor.clone(memory_format=torch.contiguous_format) for tensor in tensors]
