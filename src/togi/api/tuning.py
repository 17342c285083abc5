"""The fastest way to run a model: find it, put it into an object of the user's, take it out again."""

from __future__ import annotations

import inspect
import shutil
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from togi.api.given import by_name_and_live
from togi.artifact.save import check_writable, publish
from togi.core.caches import default_journal, home
from togi.core.choices import AccuracyMeasure, Direction, Effort, Mode, Objective
from togi.core.errors import TogiError, UnknownNameError, nearest
from togi.core.needs_torch import need_torch
from togi.core.settings import Settings
from togi.journal import Journal
from togi.render.progress import as_asked
from togi.study.progress import Progress
from togi.study.result import StudyResult
from togi.techniques import all_techniques
from togi.worker.hand_over import handed_over

if TYPE_CHECKING:
    from togi.artifact.signing import Trusted
    from togi.subject.inputs import Dynamic
    from togi.subject.validation import Validation

AnyObject = TypeVar("AnyObject")
_LIVE_S, _LIVE_SHARE = 60.0, 1 / 3
"""Seconds, and share of the time limit, for asking a live module in this process."""


def tune(
    subject: Any,
    inputs: Any = None,
    *,
    train: bool = False,
    step: Any = None,
    optimizer: Any = None,
    train_step: Any = None,
    out: str | Path | None = None,
    force: bool = False,
    device: str = "cpu",
    objective: Objective | str = "latency",
    callers: int | None = None,
    effort: Effort | str = "normal",
    time_limit_s: float | str | None = None,
    trial_timeout_s: float | str = 300.0,
    trial_memory: int | str | None = None,
    max_memory: int | str | None = None,
    max_latency: float | str | None = None,
    max_first_call: float | str | None = None,
    max_error: float | str | None = None,
    max_drop: float | str | None = None,
    min_agreement: float | str | None = None,
    data: Validation | str | None = None,
    allow: str | Sequence[str] = (),
    only: str | Sequence[str] = (),
    without: str | Sequence[str] = (),
    metric: Callable[..., float] | AccuracyMeasure | str | None = None,
    better: Direction | str | None = None,
    calibration: Any = None,
    dynamic: Dynamic | None = None,
    mode: Mode | str | None = None,
    seed: int = 0,
    journal: str | Path | None = None,
    resume: bool = True,
    progress: Progress | bool | None = None,
) -> StudyResult:
    """Find the fastest faithful way to run a model on this machine, and prove it.

    Args:
        subject: a locator (``"timm:resnet50"``, ``"file.py:factory"``), a ``togi.Subject``, or a live ``nn.Module``.
        inputs: with a live module: one sample or a list of samples (tensor, tuple, dict or ``togi.Inputs``).
        step, optimizer, train_step: with a live module and ``train``: what its training step is, as of
            ``togi.Subject``.
        out: where to write the artifact, ``NAME.togi``; it must not exist unless ``force``.
        dynamic: as of ``togi.Subject``; so are ``metric``, ``data`` (its ``validation``) and ``calibration`` where they
            are not text. With ``data``, a ``metric`` is given the outputs for one group of samples, and the labels if
            there are any.
        mode: of a live module that is in training mode: ``eval`` calls ``eval()`` on the copy that is tuned, ``as-is``
            leaves each part in its mode. Needed only where these answer differently.
        journal: the file of studies; None: one for each user.
        resume: go on with the trials of an earlier, equal study instead of repeating them, and learn from the
            journal's other studies what to try first.
        progress: None writes a line for each event to standard error in a terminal and shows them in place in a
            notebook, True writes lines anywhere, False nowhere.

    Other Parameters:
        train: Tune the training step: the subject's step or train_step, with its optimizer, in place of its calls.
        objective: What is raced: a call (latency), a call with its copies to the device and back (end-to-end), requests
            per second (throughput), or the time from loading the files to the first answer (first-call).
        callers: With the objective throughput: how many call at once, in threads of one process. Default: one for each
            core, at least 2.
        effort: How much to try.
        time_limit_s: Stop after this long: 90s, 5m, 1h. Default: quick 30s and normal 5m after loading, thorough none.
        max_memory: Memory that the result may need, idle and peak of a call together: 2GiB, 500MB.
        max_latency: Time that a call of the result may take: 20ms. With several callers 95 of 100 calls.
        max_first_call: Time from loading the result's files to the first answer: 2s.
        max_error: Try approximate techniques (or only those that are allowed) up to this relative RMS error: 1e-2, 1%.
        max_drop: Try approximate techniques up to this drop of the metric.
        min_agreement: Try approximate techniques as long as this share of the validation data is proven to be answered
            as the original does: 99%.
        metric: What max_drop limits on the validation data: a measure, or a function of outputs and labels (own: the
            subject's). Default: agreement; without data the subject's own metric, on its samples.
        better: Which values of the metric function are better. Default: found by damaging copies of the model.
        data: Validation data: a function that returns samples, (samples, labels) or a togi.Validation.
        calibration: Calibration data: a function that returns samples or a DataLoader, or a folder of tensors or
            pictures.
        allow: Of the approximate techniques try only this: an id, the beginning of ids (int8), or 'approximate' for
            all. The id of an exact one (openvino) lets it err beyond rounding, within the bound. With
            'nan-differences', a number may stand where the original shows NaN.
        only: Try only this technique.
        without: Leave out this technique.
        trial_timeout_s: End a trial that is not ready to be measured after this long.
        trial_memory: End a trial that holds more memory. Default: 80% of what is free when it starts.
        device: Where the model runs.
        seed: Seed of everything that is random.

    Raises:
        TogiError: bad subject, unknown technique, unusable output; nothing was tried then.
        KeyboardInterrupt: finished trials are in the journal, the same call goes on with them.
    """
    given = locals()  # before anything else is a name here
    need_torch("tune")
    from togi.doctor.storage import cache_limit_bytes, trim_caches
    from togi.study.run import run_study

    named, extras = by_name_and_live(metric, data, calibration, judged=max_drop is not None)
    of_a_step = {"step": step, "optimizer": optimizer, "train_step": train_step}
    if not train and (named_parts := [name for name, value in of_a_step.items() if value is not None]):
        raise TogiError(
            f"{named_parts[0]} is part of a training step, and calls are tuned without one: give train=True, or leave "
            "it out"
        )
    settings = Settings.of({**given, **named}, techniques=all_techniques())
    if (data is not None or named["metric"] is not None) and not (settings.judging and settings.judging.on_data):
        raise TogiError(
            "validation data and a measure on them judge nothing without a budget: give min_agreement, such as 99%, or "
            "max_drop"
        )
    if settings.judging is not None:
        budget = "max_drop" if settings.min_agreement is None else "min_agreement"
        settings.judging.check(f"{budget}={getattr(settings, budget):g}")
    if out is not None:
        check_writable(Path(out), force)
    if isinstance(subject, str) and better is not None and settings.judging is None:
        raise TogiError(f"better={better} is the direction of a metric, and none judges: give max_drop")
    if not isinstance(subject, str):
        extras["better"] = better
    extras |= {"dynamic": dynamic, "mode": mode, **of_a_step}
    began, most_bytes = time.monotonic(), cache_limit_bytes()
    ask_s = _LIVE_S if settings.time_limit_s is None else min(_LIVE_S, _LIVE_SHARE * settings.time_limit_s)
    with (
        handed_over(
            subject,
            inputs,
            extras,
            ask=None if settings.train else (settings.device, seed, ask_s),
            judging=settings.judging,
            data=settings.data,
        ) as (ref, name),
        Journal.open(journal or default_journal()) as opened,
    ):
        record, artifact = run_study(
            ref,
            name,
            settings,
            journal=opened,
            keep=home() / "artifacts",
            resume=resume,
            progress=as_asked(progress, name),
            started=began,
        )
    trim_caches(most_bytes)
    if out is not None and artifact is not None:
        in_home, artifact = artifact, publish(artifact, Path(out).absolute(), force=force)
        shutil.rmtree(in_home, ignore_errors=True)  # once is enough
    return StudyResult(record, artifact)


def optimize(
    obj: AnyObject,
    inputs: Any = None,
    *,
    using: str | Path | None = None,
    out: str | Path | None = None,
    force: bool = False,
    native: bool = True,
    trusted: Trusted | None = None,
    progress: Progress | bool | None = None,
    **options: Any,
) -> AnyObject:
    """Make an object of yours faster from the inside, and return it: same type, same methods, same answers.

    ``togi.tune`` finds what is faster, and proves it. It then stands for the ``forward`` of modules inside the object.
    Calls beyond what was proven, calls whose gradients are wanted, tracing and compiling, and copies of the object run
    the original. ``togi.restore`` takes it out.

    Args:
        obj: a module in ``eval`` mode, a pipeline, a bound method (``model.generate``), a function, or a
            ``SentenceTransformer``, whose ``encode`` is tuned where ``inputs`` are texts.
        inputs: as for ``tune``. A text, a list of texts or a picture is the argument of one call. Of more than 32 texts
            seven are taken, some short, some of middle length, and a long one.
        using: nothing is tuned: the artifact that was saved here is put in, or the one in this folder of a saved model.
        out: where to write the artifact, ``NAME.togi``, or the folder of a saved model. Nothing is written where
            nothing was faster.
        force: replace what is at ``out``.
        native, trusted: of ``using``, as for ``load``: its files may be programs.
        progress: as for ``tune``.
        options: all others of ``tune``. ``device`` is where the object is, if it is not given.

    Warns UserWarning where nothing was faster: the object then runs as it is.

    Raises:
        SubjectError: nothing can be put into such an object, it is in training mode, or is optimized already.
        ArtifactError: ``using`` is of an object with other weights or other code, or cannot be loaded here. Or the
            object was changed since its file was imported, so that the copy that was tuned computes otherwise.
        TogiError: as ``tune``.
    """
    need_torch("optimize")
    from togi.study.drop_in import artifact_at, device_of, put_into, put_saved_into, tuned_object

    if using is not None:
        if inputs is not None or out is not None or options:
            raise TogiError(
                "using=... puts in what was tuned earlier, so nothing is tuned: leave the other options out"
            )
        put_saved_into(obj, artifact_at(using), native=native, trusted=trusted)
        return obj
    _check_options_of_tune(options)
    if out is not None:
        check_writable(out := artifact_at(out), force)
    program, samples = tuned_object(obj, inputs)
    options.setdefault("device", device_of(program))
    result = tune(program, samples, progress=progress, **options)
    if result.best.recipe.is_reference:
        warnings.warn(f"togi put nothing into the object. {result.record.verdict}", stacklevel=2)
        return obj
    artifact = result.best.save(out, force=force) if out is not None else result.best.folder()
    put_into(program, artifact, samples)
    return obj


def restore(obj: AnyObject) -> AnyObject:
    """Take out what ``togi.optimize`` or ``Best.apply`` put into an object, which then runs as it did; returns it.

    Raises TogiError where the weights of originals were freed (``keep_originals=False``), and SubjectError for an
    object from which no module can be found.
    """
    need_torch("restore")
    from togi.study.drop_in import restore as take_out

    take_out(obj)
    return obj


def _check_options_of_tune(options: Mapping[str, Any]) -> None:
    """Raises UnknownNameError before anything is loaded."""
    known = set(inspect.signature(tune).parameters) - {"subject", "inputs", "out", "force", "progress"}
    for name in options:
        if name not in known:
            raise UnknownNameError(
                f"togi.optimize has no option '{name}'{nearest(name, known) or '.'} It takes those of togi.tune"
            )
