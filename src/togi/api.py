"""The public functions, and the one place that wires the parts."""

from __future__ import annotations

import inspect
import shutil
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, overload

from togi.artifact.save import check_writable, publish
from togi.core.caches import default_journal, home
from togi.core.choices import AccuracyMeasure, Direction, Effort, Mode, Objective
from togi.core.device import parse_device
from togi.core.errors import SubjectError, TogiError, UnknownNameError, nearest
from togi.core.needs_torch import need_torch
from togi.core.other_python import parse_pythons
from togi.core.quantities import parse_counts, parse_drop, parse_duration, parse_share, parse_size, parse_whole
from togi.core.records import Study
from togi.core.settings import Settings, parse_function
from togi.journal import Journal
from togi.render.display import show_results
from togi.render.progress import as_asked, as_lines
from togi.study.progress import Progress
from togi.study.result import StudyResult
from togi.techniques import all_techniques
from togi.worker.hand_over import handed_over

if TYPE_CHECKING:
    from torch import nn

    from togi.artifact.export import Export
    from togi.artifact.optimized import OptimizedModule
    from togi.artifact.signing import Trusted
    from togi.footprint.account.record import Account
    from togi.footprint.account.watched import Watched
    from togi.footprint.fit.result import FitResult
    from togi.footprint.prediction.record import Prediction
    from togi.footprint.snapshot.record import SnapshotAccount
    from togi.lint.finding import CheckResult
    from togi.study.comparison import Agreement, Comparison, Verification
    from togi.subject.inputs import Dynamic
    from togi.subject.validation import Validation

show_results()

PathOrName = str | Path
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
    out: PathOrName | None = None,
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
    metric: Callable[[list[Any]], float] | AccuracyMeasure | str | None = None,
    better: Direction | str | None = None,
    calibration: Any = None,
    dynamic: Dynamic | None = None,
    mode: Mode | str | None = None,
    seed: int = 0,
    journal: PathOrName | None = None,
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
        better, calibration, dynamic: as of ``togi.Subject``; so are ``metric`` and ``data`` (its ``validation``) where
            they are not text.
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
        max_drop: The same up to this drop of the subject's metric.
        min_agreement: Try approximate techniques as long as this share of the validation data is proven to be answered
            as the original does: 99%.
        metric: What --max-drop limits on the validation data. Default: agreement; without data the subject's own
            metric, on its samples.
        data: Validation data: a function that returns samples, (samples, labels) or a togi.Validation.
        allow: Of the approximate techniques try only this: an id, the beginning of ids (int8), or 'approximate' for
            all. The id of an exact one (openvino) lets it err beyond rounding, within the bound. With 'nan-
            differences', a number may stand where the original shows NaN.
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

    own, validation = (None if isinstance(value, str) else value for value in (metric, data))
    named = {name: value if isinstance(value, str) else None for name, value in (("metric", metric), ("data", data))}
    if validation is not None and metric is None and max_drop is not None:
        named["metric"] = AccuracyMeasure.AGREEMENT
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
    if out is not None:
        check_writable(Path(out), force)
    extras = {"metric": own, "better": better, "validation": validation, "calibration": calibration}
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
    using: PathOrName | None = None,
    out: PathOrName | None = None,
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
        inputs: as for ``tune``. A text, a list of texts or a picture is the argument of one call.
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
        ArtifactError: ``using`` is of an object with other weights, or cannot be loaded here.
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


def load(
    path: PathOrName,
    *,
    device: str | None = None,
    native: bool = True,
    trusted: Trusted | None = None,
    keep_memory: bool = True,
) -> OptimizedModule:
    """Load an artifact (``NAME.togi``); nothing in it is unpickled. See ``togi.artifact.load.load``.

    Args:
        device: what it is to run on, which has to be the device that it was tuned for. None: that one.
        native: the files of ``aot_inductor`` (machine code), ``torchscript`` and ``ncnn`` are programs, which may do
            whatever this process may. False takes an engine of its chain whose files are data.
        trusted: files of public keys, one of which has to have signed it (``togi sign``). None: it need not be signed.
        keep_memory: malloc keeps what this process frees for its next call, as where the artifact was proven; the
            process then does not shrink after a peak. False leaves malloc alone.

    Raises:
        ArtifactError: it is not signed by a trusted key, damaged, changed, unsafe, or nothing of it can run here.
    """
    need_torch("load")
    from togi.artifact.load import load as load_artifact

    return load_artifact(path, device=device, native=native, trusted=trusted, keep_memory=keep_memory)


def compare(
    a: Any,
    b: Any,
    inputs: Any,
    *,
    max_error: float | str | None = None,
    derived: bool = True,
    seed: int = 0,
    native: bool = True,
) -> Agreement:
    """Do two live objects compute the same, up to rounding? ``a`` is the original: it, computed in float64, decides.

    Both are asked here, in this process. They stay as they are: modules of ``a`` are copied, buffers of ``b`` put back.

    Args:
        a, b: modules, functions, and artifacts, loaded or their folders. Next to an artifact the other is the original.
        inputs: one sample or a list of samples (tensor, tuple, dict or ``togi.Inputs``).
        max_error: what is not the same may differ by this relative RMS error (``"1%"``). None: rounding alone.
        derived: compare on inputs made from the samples, too: other values, and other sizes where the samples vary.
        native: of artifacts, as for ``load``.

    Returns:
        A record that is true where they are the same. ``str()`` gives the verdict, ``units`` the error of the worst
        output in multiples of the original's own.

    Raises:
        SubjectError: one of them cannot be called, ``a`` does not run on the inputs, or samples differ in form.
        ArtifactError: an artifact cannot be loaded here.
    """
    need_torch("compare")
    from togi.study.agreement import compare_live

    allowed = None if max_error is None else parse_share(max_error, "max_error")
    seed = parse_whole(seed, "seed")
    return compare_live(a, b, inputs, max_error=allowed, derived=derived, seed=seed, native=native)


def bench(
    *subjects: Any,
    inputs: Any = None,
    device: str | None = None,
    callers: int = 1,
    batch_sizes: str | Sequence[int] | None = None,
    max_latency: float | str | None = None,
    different_inputs: bool = False,
    gradients: bool = False,
    python: str | Sequence[PathOrName] | None = None,
    seed: int = 0,
    time_limit_s: float | str | None = None,
    progress: Progress | bool | None = None,
    native: bool = True,
) -> Comparison:
    """Are they really different? Subjects taking turns; every speed-up relates to the first.

    ``bench("a.py:f", "b.togi")`` loads locators and artifacts in processes of their own. ``bench(new, old, inputs)``
    calls modules, functions and artifacts in this process. ``assert_not_slower`` and ``assert_faster`` of the result
    speak of the first.

    Args:
        inputs: of live objects, also as the last positional argument: one sample or a list of samples (tensor, tuple,
            dict or ``togi.Inputs``); ``()`` for functions without arguments.
        gradients: of live objects: leave autograd on. False runs them under ``no_grad``, as subjects always are.
        device: None is the one that the artifacts were tuned for, else the CPU. As ``callers``, ``batch_sizes``,
            ``max_latency`` and ``different_inputs`` not for live objects.
        callers: how many call at once, in threads of one process; milliseconds are then those between two answers.
        batch_sizes: as ``[1, 2, 4]`` or ``"1,2,4"``: each is called with so many samples at once, made of its own by
            repeating them, and ``best`` says at which size it answers the most samples a second. The batch is what the
            subject's ``dynamic`` calls so (``{"x": {1: "batch"}}``), else dimension 0 of the inputs in which it varies,
            else of all of them.
        max_latency: seconds that a call of the best size may take, or ``"20ms"``; with several callers 95 of 100.
        native: of artifacts, as for ``load``.
        different_inputs: compare subjects whose inputs differ in number, dtypes or sizes, too.
        python: interpreters of environments, ``"old/bin/python,new/bin/python"``: each subject takes part in each. All
            need torch and this version of togi.
        time_limit_s: of the race. None: 60 seconds; of live objects 10, and the rounds that an interval needs.

    Raises TogiError when there is nothing to compare, when a subject cannot be loaded or does not run, when subjects
    take different inputs, or when it is not clear which dimension is the batch.
    """
    need_torch("bench")
    limit_s = None if time_limit_s is None else parse_duration(time_limit_s, "time_limit_s")
    if inputs is not None or not all(isinstance(subject, str | Path) for subject in subjects):
        processes: dict[str, Any] = {
            "device": device,
            "python": python,
            "batch_sizes": batch_sizes,
            "max_latency": max_latency,
        }
        processes |= {"callers": None if callers == 1 else callers, "different_inputs": different_inputs or None}
        return _bench_live(subjects, inputs, processes, seed=seed, limit_s=limit_s, gradients=gradients, native=native)
    from togi.study.bench import run_bench
    from togi.subject.locator import check_locator

    sizes = () if batch_sizes is None else parse_counts(batch_sizes, "batch_sizes")
    if max_latency is not None and not sizes:
        raise TogiError("max_latency limits a call of the best batch size: give several batch sizes too, such as 1,2,4")
    pythons = () if python is None else parse_pythons(python, "python")
    if len(subjects) * max(1, len(sizes), len(pythons)) < 2:
        raise SubjectError(
            "there is nothing to compare: give at least two subjects, such as a.py:f and b.togi, several batch sizes, "
            "such as 1,2,4, or the Pythons of two environments"
        )
    if type(callers) is not int or callers < 1:
        raise TogiError(f"callers={callers!r} is not a number of callers: give 1, or as many as call at once")
    for subject in subjects:
        check_locator(str(subject))
    specs = [str(subject) for subject in subjects]
    return run_bench(
        specs,
        device=None if device is None else parse_device(device),
        callers=callers,
        batch_sizes=sizes,
        max_latency_s=None if max_latency is None else parse_duration(max_latency, "max_latency"),
        different_inputs=different_inputs,
        pythons=pythons,
        seed=seed,
        time_limit_s=limit_s,
        progress=as_asked(progress, " / ".join(specs)),
        native=native,
    )


def _bench_live(
    subjects: Sequence[Any],
    inputs: Any,
    processes: Mapping[str, Any],
    *,
    seed: int,
    limit_s: float | None,
    gradients: bool,
    native: bool,
) -> Comparison:
    """``processes``: options that only processes of their own have; None: not given."""
    from togi.study.live import with_inputs
    from togi.study.live_bench import run_live_bench

    if options := [name for name, value in processes.items() if value is not None]:
        raise TogiError(
            f"{options[0]} is for locators and artifacts in processes of their own, and live objects run in this one: "
            "leave it out, or put what builds them into a file and give 'file.py:factory'"
        )
    subjects, inputs = with_inputs(subjects, inputs)
    seed = parse_whole(seed, "seed")
    return run_live_bench(subjects, inputs, seed=seed, time_limit_s=limit_s, gradients=gradients, native=native)


def verify(
    artifact: PathOrName,
    *,
    subject: str | None = None,
    max_error: float | str | None = None,
    max_drop: float | str | None = None,
    data: str | None = None,
    trusted: Trusted | None = None,
    time_limit_s: float | str | None = None,
    seed: int = 0,
    progress: Progress | bool | None = None,
    native: bool = True,
) -> Verification:
    """Prove an artifact again on this machine: loaded in a fresh process, verified, measured next to the original.

    Args:
        subject: the locator of the original with its inputs; an artifact holds neither. None: what it was made of, if
            that is a model of a library, or ``trusted`` is given: no program is run because an artifact names it.
        max_error, max_drop: bounds on an approximate artifact, as for ``tune``; None: those that it was made with.
        data: ``FILE:function`` of the validation data of an artifact that was judged on some.
        trusted, native: as for ``load``.
        time_limit_s: for measuring; None: 60. All of it, with loading and verification, ends after five times as long,
            and two minutes at least.

    Raises:
        ArtifactError: it is not signed by a trusted key, damaged, changed or of another schema.
        SubjectError: the original cannot be loaded or run here.
    """
    need_torch("verify")
    from togi.study.verification import verify_artifact

    return verify_artifact(
        Path(artifact),
        subject,
        seed=seed,
        time_limit_s=None if time_limit_s is None else parse_duration(time_limit_s, "time_limit_s"),
        max_error=None if max_error is None else parse_share(max_error, "max_error"),
        max_drop=None if max_drop is None else parse_drop(max_drop, "max_drop"),
        data=None if data is None else parse_function(data, "data"),
        trusted=trusted,
        progress=as_asked(progress, str(artifact)),
        native=native,
    )


def sign(artifact: PathOrName, *, key: PathOrName, password: str | None = None) -> str:
    """Sign an artifact, for ``togi.load(path, trusted=...)``. Returns the public key. See ``togi.artifact.save.sign``.

    Args:
        key: file of a private Ed25519 key (PEM, as OpenSSL writes it).
        password: of that file, where it is encrypted.

    Raises TogiError when the key cannot be used, or when the artifact is damaged.
    """
    from togi.artifact.save import sign as sign_artifact

    return sign_artifact(Path(artifact), key, password)


def export(
    artifact: PathOrName, *, to: str, out: PathOrName, trusted: Trusted | None = None, native: bool = True
) -> Export:
    """Write what a server loads without togi into the new folder ``out``. See ``togi.artifact.export.export``.

    Args:
        to: ``triton`` (a model repository), ``openvino``, ``onnx`` or ``pt2``.
        trusted, native: as for ``load``: what is exported is opened here.

    Raises:
        TogiError: there is no such form, the artifact has no engine for it, or ``out`` is there.
    """
    need_torch("export")
    from togi.artifact.export import export as export_artifact

    return export_artifact(artifact, to, Path(out), trusted, native=native)


@overload
def memory(subject: None = None, inputs: None = None, *, module: nn.Module | None = None) -> Watched: ...


@overload
def memory(subject: PathOrName) -> Account | SnapshotAccount: ...


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
    from togi.footprint.calls import ACCOUNT, StepRequest

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
    from togi.footprint.calls import FIT, FitRequest

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
    from togi.footprint.calls import PREDICT, PredictRequest

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


def repro(study: Study, recipe: str, out: PathOrName, *, progress: Progress | None = None) -> Path:
    """Write a folder that repeats one trial of ``study`` without togi: script, model, inputs, expected outputs.

    Args:
        recipe: its id, the first digits of it, or its label.

    Raises TogiError: no such trial, a live subject, or a recipe that has no script form (with the reason).
    """
    need_torch("repro")
    from togi.study.repro import write_repro

    return write_repro(study, recipe, Path(out), progress or Progress())


def read_study(study: str | None = None, journal: PathOrName | None = None) -> Study:
    """A study of the journal by id (or the first digits of it); the newest without one.

    Raises JournalError when there is none such.
    """
    with Journal.open(journal or default_journal(), create=False, read_only=True) as opened:
        return opened.read(study)


def check(
    *subjects: Any,
    inputs: Any = None,
    select: Sequence[str] | None = None,
    ignore: Sequence[str] = (),
    exclude: Sequence[str] = (),
    device: str = "cpu",
    dtype: str | None = None,
    measure: bool = False,
    train: bool = False,
    seed: int = 0,
    cache: bool = True,
) -> CheckResult:
    """Find pitfalls of performance and memory. Without ``subjects``, in the source below the working folder.

    Args:
        subjects: files and folders (source rules), locators such as ``"timm:resnet50"`` or ``"file.py:factory"``
            (module rules; of a file also its source and one watched run), a ``togi.Subject``, or a live ``nn.Module``.
        inputs: with a live module: one sample or a list of samples (tensor, tuple, dict or ``togi.Inputs``).
        select, ignore: rules or kinds of rules; what pyproject.toml selects is replaced, what it ignores is added to.
        exclude: patterns of files and folders to leave out, relative to the working folder.
        device: of a subject: where it runs, or the name of a GPU for which its costs are predicted.
        dtype: of a subject: predict costs as if floating-point tensors were of this dtype.
        measure: of a subject: try the techniques that remove what was found, and say what they bring.

    Returns:
        The findings. It is true when there are any; ``problems`` says what could not be checked.

    Raises:
        TogiError: a path or subject that does not exist, an unknown rule, a pyproject.toml that cannot be used.
    """
    from togi.lint.check_paths import check_paths
    from togi.lint.settings import overrides
    from togi.lint.targets import paths_and_subjects

    selection = overrides(select, ignore, exclude)
    paths, names = paths_and_subjects([str(s) for s in subjects if isinstance(s, str | Path)] if subjects else ["."])
    live = [subject for subject in subjects if not isinstance(subject, str | Path)]
    if inputs is not None and len(live) != 1:
        raise SubjectError(f"inputs=... belong to one live module, and {len(live)} were given")
    if not names and not live:
        return check_paths(paths, selection, cache=cache)
    need_torch("checking a subject")
    from togi.lint.check_subject import SubjectOptions, check_reference, check_subjects

    options = SubjectOptions(device=device, dtype=dtype, measure=measure, train=train, seed=seed)
    result = check_subjects(check_paths(paths, selection, cache=cache), names, selection, options, cache=cache)
    for subject in live:
        with handed_over(subject, inputs, {}) as (ref, name):
            result = result.joined(check_reference(ref, name, ("module", "trace"), selection, options))
    return result
