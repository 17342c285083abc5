"""Runs a subject once under watch, after a warm-up."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from typing import Any, Literal

import torch
from torch import nn

from togi.core.errors import SubjectError
from togi.core.user_code import user_place
from togi.lint.trace.debug_mode import agreement, confirmed, debug_mode_events
from togi.lint.trace.record import Trace
from togi.lint.trace.recorder import Recorder
from togi.lint.trace.watching import mark_subject, watching
from togi.subject.inputs import Inputs, Subject
from togi.subject.prepare import Prepared, prepare

Pass = Callable[[], Any]


def trace_subject(subject: Subject, *, device: str = "cpu") -> Trace:
    """Watch one forward pass over the samples, or one training step where the subject has one.

    On ``cpu`` the run is simulated for CUDA; if the subject fails under that, it is watched without the appearance, and
    the trace says so. On ``cuda`` PyTorch's own debug mode watches.

    Raises SubjectError: it fails without the simulation too.
    """
    prepared = prepare(subject, device=device, train=subject.step is not None)
    run = _pass_of(subject, prepared)
    if device.startswith("cuda"):
        return _on_gpu(subject, prepared, run)
    try:
        return _watched(subject, prepared, run, mode="simulated")
    except Exception as failure:  # the subject's code, on a device that is not quite one
        reason = f"Under simulated CUDA it failed: {user_place(failure)}"
    try:
        trace = _watched(subject, prepared, run, mode="watched")
    except Exception as failure:  # the subject's code
        raise SubjectError(
            f"the subject fails when it is run: {user_place(failure)}\n{traceback.format_exc(limit=-3).strip()}\n"
            f"{reason}.\nNothing can be said of its run; 'togi check' on its source needs none."
        ) from failure
    note = f"{reason}. So it was watched as it runs on the CPU: code that asks for the device took its CPU branches."
    return trace.model_copy(update={"notes": (*trace.notes, note)})


def _pass_of(subject: Subject, prepared: Prepared) -> Pass:
    """One step, or one pass over the samples. A training step runs the module in the mode it was handed over in."""
    if subject.step is None:
        return lambda: [_forward(prepared.module, sample) for sample in prepared.samples]
    step, module = subject.step, prepared.module
    module.train(prepared.training)
    given = [_as_given(sample) for sample in prepared.samples]
    return lambda: [step(module, sample) for sample in given]


def _forward(module: nn.Module, sample: Inputs) -> Any:
    with torch.no_grad():
        return module(*sample.args, **sample.kwargs)


def _as_given(sample: Inputs) -> Any:
    """A sample in the form in which a step expects it: a tensor, a tuple, a dict."""
    if sample.kwargs:
        return dict(sample.kwargs) if not sample.args else sample
    return sample.args[0] if len(sample.args) == 1 else sample.args


def _watched(subject: Subject, prepared: Prepared, run: Pass, *, mode: Literal["simulated", "watched"]) -> Trace:
    recorder = Recorder({id(module): name for name, module in prepared.module.named_modules()})
    mark_subject(prepared.module, prepared.samples)
    with watching(recorder, simulated=mode == "simulated"):
        run()
        recorder.armed = True
        run()
        recorder.armed = False
    return Trace(
        mode=mode,
        step=subject.step is not None,
        samples=len(prepared.samples),
        events=recorder.events,
        notes=prepared.notes,
    )


def _on_gpu(subject: Subject, prepared: Prepared, run: Pass) -> Trace:
    """Once under PyTorch's debug mode, once under the watch: what both say is told by line."""
    run()
    names = {id(module): name for name, module in prepared.module.named_modules()}
    with debug_mode_events(names) as reported:
        run()
    recorder = Recorder(names)
    with watching(recorder, simulated=False):
        recorder.armed = True
        run()
        recorder.armed = False
    torch.cuda.synchronize()
    return Trace(
        mode="cuda",
        step=subject.step is not None,
        samples=len(prepared.samples),
        events=confirmed(recorder.events, reported),
        notes=(*prepared.notes, agreement(recorder.events, reported)),
    )
