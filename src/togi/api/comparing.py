"""Whether two are the same, which is faster, and whether an artifact still is what it was."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from togi.core.device import parse_device
from togi.core.errors import SubjectError, TogiError
from togi.core.needs_torch import need_torch
from togi.core.other_python import parse_pythons
from togi.core.quantities import parse_counts, parse_drop, parse_duration, parse_share, parse_whole
from togi.core.settings import parse_function
from togi.render.progress import as_asked
from togi.study.progress import Progress

if TYPE_CHECKING:
    from togi.artifact.signing import Trusted
    from togi.study.comparison import Agreement, Comparison, Verification


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
    python: str | Sequence[str | Path] | None = None,
    train: bool = False,
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
        train: race the training steps of subjects, each as it is, and records of ``tune(..., train=True)``, each
            applied to the step of the first subject and verified against it. ``phases_ms`` of each contestant holds
            the milliseconds of forward, loss, backward and optimizer. On the CPU alone.
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
        processes |= {"train": train or None}
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
    if train:
        _check_steps(device=device, callers=callers, sizes=sizes)
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
        train=train,
    )


def _check_steps(*, device: str | None, callers: int, sizes: Sequence[int]) -> None:
    """Raises TogiError for what means nothing where training steps race."""
    if callers > 1 or sizes:
        raise TogiError(
            f"{'callers' if callers > 1 else 'batch_sizes'} is of calls, and training steps race: leave it out. A step "
            "has one caller, and another batch is another training"
        )
    if device is not None and parse_device(device) != "cpu":
        raise TogiError(f"training steps race on the CPU so far, and device={device} was given: leave it out")


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
    artifact: str | Path,
    *,
    subject: str | None = None,
    max_error: float | str | None = None,
    max_drop: float | str | None = None,
    data: str | None = None,
    metric: str | None = None,
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
        metric: ``FILE:function`` of the metric of one that was judged by such a function.
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
        metric=None if metric is None else parse_function(metric, "metric"),
        trusted=trusted,
        progress=as_asked(progress, str(artifact)),
        native=native,
    )
