"""From a step to its prediction."""

from __future__ import annotations

import gc
import sys
import time
from collections.abc import Iterable
from contextlib import AbstractContextManager, ExitStack
from typing import Any

from torch import Tensor
from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException, FakeTensorMode
from torch.utils._pytree import tree_leaves

from togi.core.errors import SubjectError
from togi.core.quantities import first_line
from togi.footprint.account.record import Category, Moment
from togi.footprint.ledger import Piece
from togi.footprint.prediction.compiled import CompiledRecording, compilation_notes, compiled, where_in
from togi.footprint.prediction.cpu import highest
from togi.footprint.prediction.fake_step import fake_step
from togi.footprint.prediction.probe import Probe, sizes_by_running
from togi.footprint.prediction.record import Prediction
from togi.footprint.prediction.recording import Call, Mend, Recording, as_they_are
from togi.footprint.step import Step
from togi.footprint.whereabouts import FORWARD, Whereabouts

_PROBE_LIMIT_BYTES = 4 << 30


def predict_cpu(step: Step, *, batch: int | None = None, compile: bool = False, subject: str = "") -> Prediction:
    """The peak of torch's CPU allocator in a step after the first, to the byte where kernels could be asked.

    Args:
        step: as ``make_step`` makes it. It is consumed: its module's tensors are replaced by fake ones.
        batch: rows of the inputs, which may be more than this machine could hold.
        compile: the module is compiled by ``torch.compile``; loss and optimizer are not.

    Raises:
        SubjectError: the run depends on values, which fake tensors do not have; it cannot be compiled.
    """
    started = time.perf_counter()
    notes = [*step.notes]
    recording = record(step, batch=batch, mend_results=_mended_on_cpu, compile=compile, notes=notes)
    height = highest(recording, Probe(limit_bytes=_PROBE_LIMIT_BYTES))
    if height.unmeasured:
        names = ", ".join(sorted({str(call.func) for call in height.unmeasured}))
        notes.append(f"Kernels near the peak that could not be run alone to see their workspace: {names}.")
    return Prediction(
        subject=subject,
        device="cpu",
        train=step.train,
        compiled=compile,
        peak_bytes=height.peak_bytes,
        low_bytes=height.peak_bytes,
        high_bytes=height.high_bytes,
        reserved_bytes=height.peak_bytes,
        reserved_low_bytes=height.peak_bytes,
        reserved_high_bytes=height.high_bytes,
        baseline_bytes=baseline_bytes(recording),
        peak=moment_of(height.call, recording),
        by_category=by_category(recording, height.call, height.peak_bytes),
        seconds=time.perf_counter() - started,
        notes=tuple(notes),
    )


def record(
    step: Step,
    *,
    batch: int | None = None,
    mend_results: Mend = as_they_are,
    around: AbstractContextManager[Any] | None = None,
    foreach: bool | None = None,
    first: bool = False,
    compile: bool = False,
    notes: list[str] | None = None,
) -> Recording:
    """The step run on fake tensors: once to make the optimizer's state, then written down.

    Args:
        around: a context manager that replaces what another device does differently.
        first: the first run is written down too, before the other.
        compile: by ``torch.compile``, with kernels that do nothing; ``notes`` is told where that made several graphs.
    """
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    try:
        fake = fake_step(step, mode, batch=batch, foreach=foreach)
        whereabouts = Whereabouts(fake.module)
        with ExitStack() as stack:
            recording = _recording(whereabouts, mend_results, compile)
            if compile:
                stack.enter_context(compiled(fake.module))
            stack.enter_context(mode)
            if around is not None:
                stack.enter_context(around)
            if first:
                _enter(recording, fake)
                with whereabouts.following(), recording:
                    fake.run()
                gc.collect()
                _second_begins(recording, fake)
            else:
                fake.run()
                gc.collect()
                _enter(recording, fake)
            _run_recorded(fake, recording, whereabouts, stack)
            if not recording.calls:
                raise SubjectError(
                    "it runs no operation of torch, so it needs no memory beyond its inputs and there is nothing to "
                    "predict. Is it the module that was meant?"
                )
            if compile and notes is not None:
                notes += compilation_notes()
    except (DataDependentOutputException, DynamicOutputShapeException) as error:
        raise SubjectError(
            f"the run depends on values ({first_line(error)}), which a run without values cannot know: no prediction "
            "is possible. Without --predict the model is run and accounted for."
        ) from error
    return recording


def _recording(whereabouts: Whereabouts, mend_results: Mend, compile: bool) -> Recording:
    if not compile:
        return Recording(where=whereabouts.now, mend_results=mend_results)
    return CompiledRecording(where=lambda: where_in(whereabouts.now, sys._getframe(1)), mend_results=mend_results)


def _second_begins(recording: Recording, step: Step) -> None:
    """The peak that is explained is the second run's: the optimizer has its state."""
    recording.peak_bytes, recording.peak_at = recording.current_bytes, recording.operations
    for tensor in _tensors(list(step.optimizer.state.values())) if step.optimizer is not None else ():
        if piece := recording.piece_of(tensor):
            piece.category = Category.OPTIMIZER


def _run_recorded(step: Step, recording: Recording, whereabouts: Whereabouts, stack: ExitStack) -> None:
    recording.backward_at = None
    for parameter in step.module.parameters():
        if parameter.requires_grad:
            handle = parameter.register_post_accumulate_grad_hook(  # type: ignore[no-untyped-call]
                lambda p: _categorise([p.grad] if p.grad is not None else [], recording)
            )
            stack.callback(handle.remove)
    # module hooks would be compiled with the module
    stack.enter_context(whereabouts.following(modules=not isinstance(recording, CompiledRecording)))
    with recording:
        step.run()


def _categorise(gradients: Iterable[Tensor], recording: Recording) -> None:
    for gradient in gradients:
        if piece := recording.piece_of(gradient):
            piece.category = Category.GRADIENT


def _enter(recording: Recording, step: Step) -> None:
    recording.enter(step.module.parameters(), Category.PARAMETER)
    recording.enter(step.module.buffers(), Category.BUFFER)
    recording.enter(_tensors((step.sample.args, dict(step.sample.kwargs))), Category.INPUT)
    if step.optimizer is not None:
        recording.enter(_tensors(list(step.optimizer.state.values())), Category.OPTIMIZER)


def baseline_bytes(recording: Recording) -> int:
    """Parameters, buffers, inputs and the optimizer's state."""
    before = (Category.PARAMETER, Category.BUFFER, Category.INPUT, Category.OPTIMIZER)
    return sum(piece.bytes for piece in recording.pieces if piece.category in before)


def moment_of(call: Call, recording: Recording) -> Moment:
    share = call.number / max(1, recording.operations)
    where = call.where
    return Moment(op=str(call.func), module=where.module, line=where.line, phase=where.phase, share_of_run=share)


def by_category(recording: Recording, call: Call, peak_bytes: int) -> dict[Category, int]:
    """What was alive during ``call``; the rest of the peak is the kernel's workspace."""
    found: dict[Category, int] = {}
    for piece in recording.pieces:
        if piece.bytes and _alive_during(piece, call):
            category = category_of(piece, recording)
            found[category] = found.get(category, 0) + piece.bytes
    found[Category.WORKSPACE] = peak_bytes - sum(found.values())
    return dict(sorted(((c, n) for c, n in found.items() if n), key=lambda item: -item[1]))


def category_of(piece: Piece, recording: Recording) -> Category:
    if piece.category:
        return Category(piece.category)
    start = recording.backward_at
    if start is not None and piece.where.phase == FORWARD and piece.born <= start and piece.alive_at(start + 1):
        return Category.ACTIVATION
    return Category.TEMPORARY


def _alive_during(piece: Piece, call: Call) -> bool:
    if piece.born == call.number:
        return bool(piece.op) or call.number == 0
    return piece.alive_at(call.number)


def _mended_on_cpu(func: Any, args: Any, kwargs: Any, results: Any) -> Any:
    if "mkldnn_rnn_layer.default" in str(func):
        return sizes_by_running(func, args, kwargs, results)
    return results


def _tensors(values: object) -> Iterable[Tensor]:
    return (leaf for leaf in tree_leaves(values) if isinstance(leaf, Tensor))
