"""Subjects from a user's factory: a function that takes no argument and returns the module with its inputs."""

from __future__ import annotations

import dataclasses
import importlib
import importlib.util
import inspect
import linecache
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from torch import nn

from togi.core.errors import SubjectError, UnknownNameError, nearest
from togi.core.quantities import a_type
from togi.core.user_code import user_place
from togi.subject.calibration import with_calibration
from togi.subject.classes import name_of_file
from togi.subject.inputs import Subject, samples_of_step
from togi.subject.locator import Spec
from togi.subject.program import as_module
from togi.subject.validation import Validation, as_validation

_RETURNS = (
    "A factory returns (module, sample), (module, [sample, ...]) or togi.Subject(module, samples). "
    "A sample is a tensor, a tuple of positional arguments, a dict of keyword arguments, or togi.Inputs(args, kwargs)."
)

_INSTALLED_AS = {
    "PIL": "pillow",
    "cv2": "opencv-python-headless",
    "skimage": "scikit-image",
    "sklearn": "scikit-learn",
    "yaml": "pyyaml",
}
"""Packages of models that are imported under another name than they are installed."""


def from_factory(locator: Spec) -> Subject:
    """Import the file or module, call the factory, check what it returns.

    Raises SubjectError with the user's own file, line and message when their code raises.
    """
    factory = named_in(locator)
    _check_callable(locator, factory)
    return as_subject(_guarded(locator, "raised", factory), locator.text)


def named_in(locator: Spec) -> Any:
    """What a file or module calls so, a function or a class. Raises SubjectError as ``from_factory``."""
    return _find(locator, _guarded(locator, "cannot be imported", lambda: _import(locator)))


def validation_from(locator: Spec) -> Validation:
    """Import the file or module, call the function, check what it returns. Raises SubjectError as ``from_factory``."""
    function = named_in(locator)
    return as_validation(_guarded(locator, "raised", function), locator.text)


def calibration_from(locator: Spec) -> Any:
    """Import the file or module, and call the function. Raises SubjectError as ``from_factory``."""
    module = _guarded(locator, "cannot be imported", lambda: _import(locator))
    return _guarded(locator, "raised", _find(locator, module))


def metric_from(locator: Spec) -> Callable[..., float]:
    """Import the file or module, and find the function, which is not called. Raises SubjectError as ``from_factory``,
    and for what is not a function."""
    module = _guarded(locator, "cannot be imported", lambda: _import(locator))
    function: Callable[..., float] = _find(locator, module)
    if not callable(function):
        raise SubjectError(
            f"{locator.text}: {locator.factory} is {_describe(function)}, not a function. A metric is given the "
            "outputs, and the labels where there are any, and returns a number"
        )
    return function


def as_subject(returned: Any, name: str) -> Subject:
    """Check what a factory returned, and make it a Subject. Raises SubjectError saying what it is and what is
    accepted."""
    if isinstance(returned, Subject):
        subject = returned
    elif isinstance(returned, tuple) and len(returned) == 2:
        subject = Subject(*returned)
    else:
        raise SubjectError(f"{name} returned {_describe(returned)}. {_RETURNS}")
    subject = dataclasses.replace(subject, module=_guarded_program(subject.module, name))
    if not isinstance(subject.module, nn.Module):
        raise SubjectError(f"{name} gave {_describe(subject.module)} as the module. {_not_a_module(subject.module)}")
    try:
        samples_of_step(subject)  # here, so that the message names the factory
        return with_calibration(subject)
    except SubjectError as error:
        raise SubjectError(f"{name}: {error}") from None


def _guarded_program(value: Any, name: str) -> Any:
    try:
        return as_module(value)
    except SubjectError as error:
        raise SubjectError(f"{name}: {error}") from None


def _import(locator: Spec) -> ModuleType:
    if locator.form == "package":
        _search_first(str(Path.cwd()))
        importlib.invalidate_caches()
        return importlib.import_module(locator.target)
    path = locator.path.resolve()
    package = _package_of(path)
    if package is not None:
        root, name = package
        _search_first(str(root))
        return importlib.import_module(name)
    _search_first(str(path.parent))
    return _import_file(path)


def _import_file(path: Path) -> ModuleType:
    """Import a file under a name of its own.

    It is registered before it runs, because dataclasses and pickling look their module up while it runs.
    """
    name = name_of_file(path)
    specification = importlib.util.spec_from_file_location(name, path)
    assert specification is not None
    assert specification.loader is not None
    linecache.checkcache(str(path))
    module = importlib.util.module_from_spec(specification)
    sys.modules[name] = module
    try:
        specification.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def _package_of(path: Path) -> tuple[Path, str] | None:
    """``(folder to search, dotted name)`` of a file inside a package, whose relative imports then work."""
    parts = [path.stem]
    folder = path.parent
    while (folder / "__init__.py").exists():
        parts.insert(0, folder.name)
        folder = folder.parent
    return (folder, ".".join(parts)) if len(parts) > 1 and all(part.isidentifier() for part in parts) else None


def _search_first(folder: str) -> None:
    if folder not in sys.path:
        sys.path.insert(0, folder)


def _find(locator: Spec, module: ModuleType) -> Any:
    try:
        return getattr(module, locator.factory)
    except AttributeError:
        names = [name for name in vars(module) if not name.startswith("_")]
        near = nearest(locator.factory, names)
        raise UnknownNameError(f"{locator.text}: {locator.target} has no '{locator.factory}'{near or '.'}") from None


def _check_callable(locator: Spec, factory: Any) -> None:
    if isinstance(factory, type) and issubclass(factory, nn.Module):
        raise SubjectError(
            f"{locator.text}: {locator.factory} is a module's class, and its inputs are not known. "
            f"Write a function: def subject(): return {locator.factory}(...), sample"
        )
    if not callable(factory):
        raise SubjectError(f"{locator.text}: {locator.factory} is {_describe(factory)}, not a function. {_RETURNS}")
    try:
        parameters = inspect.signature(factory).parameters.values()
    except (TypeError, ValueError):
        return  # some built-in callables have no signature; calling it will tell
    required = [p.name for p in parameters if p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    if required:
        raise SubjectError(
            f"{locator.text}: a factory is called without arguments, but {locator.factory} requires "
            f"{', '.join(required)}. Give them defaults, or write a function around it."
        )


def _guarded(locator: Spec, verb: str, call: Callable[[], Any]) -> Any:
    """Run foreign code; what it raises becomes one message with the place in the user's own code."""
    try:
        return call()
    except SubjectError:
        raise
    except (Exception, SystemExit) as error:
        missing = _missing_package(error)
        raise SubjectError(f"{locator.text} {verb}: {user_place(error)}{missing}") from error


def _missing_package(error: BaseException) -> str:
    if not isinstance(error, ModuleNotFoundError) or not error.name:
        return ""
    package = error.name.partition(".")[0]
    return f". If {error.name!r} is a package, install it here (pip install {_INSTALLED_AS.get(package, package)})"


def _describe(value: Any) -> str:
    if value is None:
        return "None"
    if isinstance(value, nn.Module):
        return f"a module ({type(value).__name__}) without inputs"
    if isinstance(value, tuple | list):
        kinds = ", ".join(type(item).__name__ for item in value[:5])
        return f"{a_type(value)} of {len(value)} ({kinds})"
    if inspect.isfunction(value) or inspect.ismethod(value):
        return f"the function {value.__name__}"
    kind = type(value)
    return a_type(value) if kind.__module__ == "builtins" else f"a {kind.__module__}.{kind.__qualname__}"


def _not_a_module(value: Any) -> str:
    kind = type(value).__name__
    if isinstance(value, type) and issubclass(value, nn.Module):
        return f"That is the class: return {value.__name__}(...), an instance."
    if kind == "ExportedProgram":
        return "Return its module: program.module()."
    return _RETURNS
