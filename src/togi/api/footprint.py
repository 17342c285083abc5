"""Memory: account for it, predict it, and make a run fit."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

from togi.core.device import parse_device
from togi.core.errors import TogiError
from togi.core.needs_torch import need_torch
from togi.core.quantities import parse_duration, parse_size
from togi.render.progress import as_lines
from togi.study.progress import Progress
from togi.worker.hand_over import handed_over

if TYPE_CHECKING:
    from torch import nn

    from togi.footprint.account.record import Account
    from togi.footprint.account.watched import Watched
    from togi.footprint.fit.result import FitResult
    from togi.footprint.prediction.record import Prediction
    from togi.footprint.snapshot.record import SnapshotAccount


@overload
def memory(subject: None = None, inputs: None = None, *, module: nn.Module | None = None) -> Watched: ...


@overload
def memory(subject: str | Path) -> Account | SnapshotAccount: ...


@overload
def memory(
    subject: Any,
    inputs: Any = None,
    *,
    train: bool = False,
    optimizer: str = "none",
    batch: int | None = None,
    dtype: str | None = None,
    device: str = "cpu",
    seed: int = 0,
) -> Account: ...


def memory(
    subject: Any = None,
    inputs: Any = None,
    *,
    module: nn.Module | None = None,
    train: bool = False,
    optimizer: str = "none",
    batch: int | None = None,
    dtype: str | None = None,
    device: str = "cpu",
    seed: int = 0,
) -> Account | SnapshotAccount | Watched:
    """Account for the memory of a run, to the byte.

    With a subject: runs it in a process of its own and returns the account. Without one: a context manager round any
    code, ``with togi.memory() as watched: ...``, whose ``watched.account`` is read afterwards; ``module`` gives
    modules their names and counts their parameters. With a CUDA memory snapshot (``"x.pickle"``): reads it, whatever
    its size and without running anything in it, and returns its account.

    Args:
        subject, inputs: as for ``tune``.
        train: a training step (the subject's ``step``, else the mean of the outputs) instead of inference.
        optimizer: with ``train``: ``sgd``, ``momentum``, ``adam`` or ``adamw`` in place of the subject's own, if it has
            one (``none``: that).
        batch: replaces the batch size of the first sample.
        dtype: ``bf16``, ``fp16`` or ``fp32``: casts module and inputs.

    Raises:
        TogiError: bad subject or option; the run failed (with what it raised); an incomplete snapshot.
    """
    if subject is None:
        need_torch("memory")
        from togi.footprint.account.watched import Watched

        return Watched(module, device=parse_device(device))
    from togi.footprint.snapshot import is_snapshot, snapshot_account

    if isinstance(subject, str | Path) and is_snapshot(str(subject)):
        given = {"inputs": inputs, "module": module, "train": train, "batch": batch, "dtype": dtype}
        given |= {"optimizer": optimizer != "none", "device": device != "cpu"}
        if names := [name for name, value in given.items() if value is not None and value is not False]:
            raise TogiError(
                f"{subject} is a CUDA memory snapshot, which is read and not run: {', '.join(names)} would have no "
                "effect. Leave it out"
            )
        return snapshot_account(subject)
    need_torch("memory")
    from togi.footprint.requests import StepRequest
    from togi.worker.footprint_calls import ACCOUNT

    request = StepRequest(train=train, optimizer=optimizer, batch=batch, dtype=dtype, device=device)
    with handed_over(subject, inputs, {}) as (ref, name):
        return ACCOUNT(ref, request, device=device, seed=seed).model_copy(update={"subject": name})


def fit(
    subject: Any,
    inputs: Any = None,
    *,
    memory: int | str,
    train: bool = True,
    step: Any = None,
    optimizer: Any = "none",
    batch: int | None = None,
    dtype: str | None = None,
    allow_approximate: bool = False,
    time_limit_s: float | str | None = None,
    device: str = "cpu",
    seed: int = 0,
    progress: Progress | bool | None = None,
) -> FitResult:
    """Make a training step fit: a plan of what is recomputed, searched, measured and proven in a process of its own.

    With ``train=False`` an inference pass: which modules run in slices, along dimensions that are independent.

    ``result.plan.apply(module)`` puts it on a live module, ``result.plan.remove()`` takes it away.

    Args:
        subject, inputs: as for ``tune``.
        memory: the whole peak of a step: parameters, gradients, optimizer state, activations. Bytes, or ``"8GiB"``.
        train: a training step, else one inference pass; then ``step``, ``optimizer`` and ``allow_approximate`` have no
            part in it.
        step: with a live module: ``step(module, sample) -> loss``; without one the loss is the mean of the outputs.
        optimizer: with a live module, ``optimizer(parameters) -> torch.optim.Optimizer``; or ``sgd``, ``momentum``,
            ``adam`` or ``adamw`` in place of the subject's own (``none``: that). Its state counts.
        batch, dtype: as for ``memory``.
        allow_approximate: also keep activations in bfloat16, which changes gradients a little.
        time_limit_s: for planning, from the first run of the step on. Nothing is begun that would not end in time; what
            was proven until then is the answer. None: a minute, or 40 runs of the step where that is longer.
        progress: as for ``tune``: None writes a line for each phase to standard error where someone watches.

    Returns:
        The plan and its figures. ``fits`` is false where nothing reaches ``memory``; the plan is the lowest found then.

    Raises:
        TogiError: bad subject or option, gradients that differ between equal runs, a step that cannot be repeated, a
            time limit too short for any plan.
    """
    need_torch("fit")
    from togi.footprint.requests import FitRequest
    from togi.worker.footprint_calls import FIT

    made_by = optimizer if callable(optimizer) else None
    if not train and (step is not None or allow_approximate or optimizer != "none"):
        raise TogiError(
            "step, optimizer and allow_approximate have no part in inference: leave them out, or plan a training step"
        )
    request = FitRequest(
        train=train,
        optimizer="none" if made_by else optimizer,
        batch=batch,
        dtype=dtype,
        device=device,
        budget_bytes=parse_size(memory, "memory"),
        allow_approximate=allow_approximate,
        time_limit_s=None if time_limit_s is None else parse_duration(time_limit_s, "time_limit_s"),
        seed=seed,
    )
    with handed_over(subject, inputs, {"step": step, "optimizer": made_by}) as (ref, name):
        shown = as_lines(progress, name)
        result = FIT(ref, request, device=device, seed=seed, on_phase=shown.message, on_wait=shown.message)
    plan = result.plan.model_copy(update={"subject": name})
    return result.model_copy(update={"subject": name, "plan": plan})


def predict_memory(
    subject: Any,
    inputs: Any = None,
    *,
    train: bool = False,
    optimizer: str = "none",
    batch: int | None = None,
    dtype: str | None = None,
    device: str = "cpu",
    memory: int | str | None = None,
    compile: bool = False,
    seed: int = 0,
) -> Prediction:
    """Predict the memory that a run would need, without running it and without the device.

    Args:
        subject, inputs, train, optimizer, batch, dtype: as for ``memory``; ``batch`` may be more than fits here.
        device: ``cpu``, exact but for what depends on values, or ``cuda``, with a range.
        memory: bytes, or ``"8GiB"``; also finds the largest batch that fits.
        compile: as ``torch.compile`` with its defaults would run the module; on the CPU only.

    Raises:
        TogiError: bad subject or option; the run depends on values; it failed on tensors without values, or cannot be
            compiled.
    """
    need_torch("predicting memory")
    from togi.footprint.requests import PredictRequest
    from togi.worker.footprint_calls import PREDICT

    request = PredictRequest(
        train=train,
        optimizer=optimizer,
        batch=batch,
        dtype=dtype,
        device=device,
        memory_bytes=None if memory is None else parse_size(memory, "memory"),
        compile=compile,
    )
    with handed_over(subject, inputs, {}) as (ref, name):
        return PREDICT(ref, request, seed=seed).model_copy(update={"subject": name})
