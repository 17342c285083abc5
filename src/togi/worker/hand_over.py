"""Hands a subject over to child processes: a locator by its name, a live module as a file that they read."""

from __future__ import annotations

import copyreg
import dataclasses
import functools
import shutil
import tempfile
import threading
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from togi.core.errors import SubjectError
from togi.core.interrupt import interrupted_after
from togi.core.judging import Judging
from togi.core.quantities import a_type
from togi.worker.protocol import SubjectRef

_LOCKS: dict[type, Any] = {type(threading.Lock()): threading.Lock, type(threading.RLock()): threading.RLock}
"""What makes each kind. In another process nobody holds a lock."""


def no_metric(subject: str) -> SubjectError:
    """Raised before anything is run, by whoever knows first: --max-drop allows nothing without a metric."""
    return SubjectError(
        f"--max-drop limits the drop of a metric, and {subject} has none, so nothing approximate could be accepted. "
        "Return togi.Subject(module, samples, metric=...) from a factory, give --metric FILE:function with --data, or "
        "--max-error, which limits the relative RMS error"
    )


def no_data(subject: str) -> SubjectError:
    """As ``no_metric``, of what is judged on validation data."""
    return SubjectError(
        f"approximate results are to be judged on validation data, and {subject} has none: give --data FILE:function, "
        "which returns samples, (samples, labels) or a togi.Validation"
    )


def _check_judged(name: str, judging: Judging | None, *, metric: Any, validation: Any) -> None:
    """Raises SubjectError where there is nothing by which approximate results could be judged."""
    if judging is None:
        return
    if judging.on_data and validation is None:
        raise no_data(name)
    if judging.by_own_metric and not judging.metric and metric is None:
        raise no_metric(name)


@contextmanager
def handed_over(
    subject: Any,
    inputs: Any,
    extras: dict[str, Any],
    *,
    ask: tuple[str, int, float] | None = None,
    judging: Judging | None = None,
    data: str | None = None,
) -> Iterator[tuple[SubjectRef, str]]:
    """Yield where children find the subject, and its name for people. A live one rests in a private file meanwhile.

    Args:
        extras: what else a live subject has: its metric, calibration data, dynamic sizes, mode or step.
        ask: a device, a seed and a number of seconds. What the live module answers there rests next to it, if it
            answers in that time.

    Raises SubjectError where it is not a subject, is not complete, or cannot be sent to another process.
    """
    if isinstance(subject, str):
        if inputs is not None or any(value is not None for value in extras.values()):
            raise SubjectError(
                f"'{subject}' names a factory, which brings its own inputs, metric and calibration: "
                "return them from it in a togi.Subject instead of passing them separately"
            )
        from togi.subject.locator import WITH_METRIC, check_locator

        locator = check_locator(subject)
        if locator.form not in WITH_METRIC:
            _check_judged(subject, judging, metric=None, validation=data)
        yield SubjectRef.here("locator", locator.text), locator.text
        return
    folder = Path(tempfile.mkdtemp(prefix="togi-live-"))
    try:
        path = folder / "subject"
        live = _live(subject, inputs, extras)
        _check_judged(type(live.module).__name__, judging, metric=live.metric, validation=data or live.validation)
        dump(live, path)
        ref = SubjectRef.here("live", str(path))
        if ask is not None:
            _ask_live(live, ref.answer, *ask)
        yield ref, _name(live.module)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _name(module: Any) -> str:
    """``ResNet``, or of a program ``SentenceTransformer.encode``."""
    from togi.subject.program import ProgramModule

    return module.name if isinstance(module, ProgramModule) else type(module).__name__


def _ask_live(live: Any, answer: Path, device: str, seed: int, limit_s: float) -> None:
    """Write what a live subject answers here. It may hang, which a child then finds out with more patience."""
    from togi.verify.live import LiveAnswer

    own_answer = None
    with suppress(TimeoutError), interrupted_after(limit_s):
        own_answer = LiveAnswer.of(live, device=device, seed=seed)
    dump(own_answer, answer)


def _live(subject: Any, inputs: Any, extras: dict[str, Any]) -> Any:
    from torch import nn

    from togi.subject.calibration import with_calibration
    from togi.subject.inputs import Subject
    from togi.subject.program import as_module

    if isinstance(subject, Subject):
        given = {name: value for name, value in extras.items() if value is not None}
        return with_calibration(dataclasses.replace(subject, module=as_module(subject.module), **given))
    subject = as_module(subject)
    if not isinstance(subject, nn.Module):
        raise SubjectError(
            f"the subject is {a_type(subject)}: give an nn.Module, what can be called and runs modules "
            "(model.generate, a pipeline, a function), a togi.Subject, or a locator such as 'timm:resnet50' or "
            "'file.py:factory'"
        )
    if inputs is None:
        raise SubjectError("a live module needs inputs=...: one sample or a list of samples to run it with")
    return with_calibration(Subject(subject, inputs, **extras))


def dump(subject: Any, path: Path) -> None:
    """Raises SubjectError where it holds something that cannot be sent to another process."""
    try:
        with path.open("wb") as file:
            _on_cpu_pickler()(file).dump(subject)
    except Exception as error:  # foreign code: whatever the module holds
        raise SubjectError(
            f"the module cannot be sent to the trial processes ({type(error).__name__}: {error}). Put the code that "
            "builds it into a file and give 'file.py:factory'"
        ) from error


def copy_locks() -> None:
    """From now on a copy of what holds locks gets its own, in this process. For processes of togi's alone: in the
    user's own, pickling goes on to refuse them."""
    for kind, made_by in _LOCKS.items():
        copyreg.pickle(kind, functools.partial(_made_anew, made_by))


def _made_anew(made_by: Callable[[], Any], _: Any) -> tuple[Callable[[], Any], tuple[()]]:
    return made_by, ()


def _code_of_its_file(arguments: tuple[Any, ...], path: str) -> types.CodeType:
    return types.CodeType(*arguments).replace(co_filename=path)


def _on_cpu_pickler() -> type[Any]:
    """A pickler that sends tensors of a device as tensors of the CPU: one of a device would start CUDA in the process
    that loads it, which could then fork no trials, and every trial would hold the weights twice. Code keeps the name
    of its file, by which it is known as the user's own and shown to him: cloudpickle drops it from 3.1.3 on."""
    import cloudpickle
    import torch

    from togi.torch_internals.modules import parametrized_as_pickled

    class OnCpuPickler(cloudpickle.Pickler):  # type: ignore[misc]
        def reducer_override(self, value: Any) -> Any:
            if type(value) is torch.Tensor and value.device.type not in ("cpu", "meta"):
                return value.cpu().__reduce_ex__(2)  # type: ignore[no-untyped-call]
            if type(value) in _LOCKS:
                return _LOCKS[type(value)], ()
            if isinstance(value, types.CodeType):
                return _code_of_its_file, (self.dispatch_table[types.CodeType](value)[1], value.co_filename)
            if isinstance(value, torch.nn.Module) and (parametrized := parametrized_as_pickled(value)) is not None:
                return parametrized
            return super().reducer_override(value)

    return OnCpuPickler
