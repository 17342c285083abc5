"""What ``togi.compare`` and ``togi.bench`` are given in this process: modules, functions, and artifacts."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import nn
from torch.export import ExportedProgram

from togi.artifact.load import load
from togi.artifact.optimized import OptimizedModule, OptimizedProgram
from togi.core.choices import Mode
from togi.core.errors import SubjectError
from togi.core.quantities import a_type
from togi.study.bench import distinct
from togi.study.bench_pools import is_artifact
from togi.subject.inputs import Inputs, Subject
from togi.subject.inventory import class_name
from togi.subject.prepare import copy_to_ask
from togi.subject.program import FunctionModule, ProgramModule, as_module
from togi.torch_internals.modules import compiled_original, uncompiled


@dataclass(frozen=True)
class LiveObject:
    """Something that is called here, and stays as it is."""

    name: str
    """For people; unique among those that are compared."""
    call: Callable[..., Any]

    @property
    def artifact(self) -> OptimizedModule | None:
        return self.call if isinstance(self.call, OptimizedModule) else None

    @functools.cached_property
    def module(self) -> nn.Module:
        """It as a module: what its calls may change (``kept_buffers``), what it computes on, and what can be copied."""
        return self.call if isinstance(self.call, nn.Module) else _module(uncompiled(self.call))

    @property
    def device(self) -> str:
        """Where its parameters are: ``cpu`` or ``cuda``."""
        tensors = (*self.module.parameters(), *self.module.buffers())
        return "cuda" if any(tensor.is_cuda for tensor in tensors) else "cpu"

    def copy_for(self, samples: Sequence[Inputs]) -> nn.Module:
        """A copy without ``torch.compile`` around it, whose calls change nothing here. It shares the parameters and
        keeps each mode. Itself where it cannot be copied."""
        try:
            return copy_to_ask(Subject(self.module, list(samples), mode=Mode.AS_IS))
        except Exception:  # foreign code: modules define how they are copied
            return self.module


def live_objects(subjects: Sequence[Any], *, native: bool = True) -> list[LiveObject]:
    """What the subjects are called as, and how people know them. Folders of artifacts are loaded.

    Args:
        native: as for ``togi.load``.

    Raises:
        SubjectError: one cannot be called, or is a locator, which other processes load.
        ArtifactError: a folder cannot be loaded here.
    """
    calls = [_call(subject, native) for subject in subjects]
    names = distinct([_name(subject, call) for subject, call in zip(subjects, calls, strict=True)])
    return [LiveObject(name, call) for name, call in zip(names, calls, strict=True)]


def with_inputs(subjects: Sequence[Any], inputs: Any) -> tuple[Sequence[Any], Any]:
    """The inputs as the last of the subjects, which nothing that can be compared looks like; or ``inputs``.

    Raises SubjectError where there are none.
    """
    if inputs is not None:
        return subjects, inputs
    last = subjects[-1]
    if isinstance(last, str | Path | Subject | ExportedProgram) or callable(last):
        raise SubjectError(
            "live objects need inputs to run on: bench(new, old, inputs) with one sample or a list of samples, and () "
            "for functions without arguments"
        )
    return subjects[:-1], last


def _call(subject: Any, native: bool) -> Callable[..., Any]:
    if isinstance(subject, str | Path):
        subject = _loaded(str(subject), native)
    if isinstance(subject, ExportedProgram):
        subject = subject.module()
    if isinstance(subject, OptimizedProgram):
        raise SubjectError(
            "this artifact holds parts of a program, which run inside the program: put them into a copy of it, "
            "installed = togi.load(path).into(copy.deepcopy(program)), and give installed.program"
        )
    if isinstance(subject, Subject):
        raise SubjectError("a togi.Subject brings its own samples: give its .module here, and its .samples as inputs")
    if isinstance(subject, type) or not callable(subject):
        raise SubjectError(
            f"a subject is {a_type(subject)}: give an nn.Module, a function, a loaded artifact or its folder "
            "(NAME.togi), and then the inputs. Or give locators such as 'file.py:factory' alone, without inputs"
        )
    found: Callable[..., Any] = subject
    return found


def _loaded(spec: str, native: bool) -> OptimizedModule:
    if not is_artifact(spec):
        raise SubjectError(
            f"'{spec}' is not the folder of an artifact (NAME.togi). Next to inputs, give modules and functions of "
            "this process; locators are compared with each other: togi.bench('a.py:f', 'b.py:f')"
        )
    return load(spec, native=native)


def _module(call: Callable[..., Any]) -> nn.Module:
    try:
        module: nn.Module = as_module(call)
    except SubjectError:  # it reaches no module
        return FunctionModule(call)
    return module


def _name(subject: Any, call: Any) -> str:
    if isinstance(subject, str | Path):
        return Path(subject).name
    if isinstance(call, OptimizedModule):
        return call.recipe.label
    if isinstance(call, nn.Module):
        return class_name(call if (inner := compiled_original(call)) is None else inner)
    module = _module(call)
    return module.name if isinstance(module, ProgramModule) else class_name(module)


def device_of(objects: Sequence[LiveObject], samples: Sequence[Inputs]) -> str:
    """Where they compute."""
    if any(tensor.is_cuda for sample in samples for tensor in sample.tensors()):
        return "cuda"
    return next((device for found in objects if (device := found.device) != "cpu"), "cpu")
