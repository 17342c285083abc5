"""Locators, the names of subjects: their forms, their options, and the checks that need no torch.

A locator is one of ::

    path/file.py:factory          a function that takes no argument
    package.module:factory
    timm:resnet50                 also torchvision:..., transformers:...
    hf:ORG/NAME                   a model of the Hugging Face Hub in the cache of this machine
    sentence-transformers:FOLDER  also ORG/NAME
    diffusers:FOLDER              also ORG/NAME
    ultralytics:FILE.pt           pickled: with the permit for that
    model.ckpt?class=FILE.py:Net  a checkpoint of Lightning
    model.pt2                     written by torch.export.save
    model.ts, model.pt, model.pth TorchScript
    photos.togi                   an artifact

Options follow a question mark, as in an address: ``timm:resnet50?batch=8&size=160``. ``FORMS`` lists them by form.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal
from urllib.parse import parse_qsl

from togi.core.errors import SubjectError, UnknownNameError, nearest
from togi.core.permits import Permit, permitted
from togi.core.quantities import first_line
from togi.subject import catalogue, hub
from togi.subject.model_folders import PIPELINE
from togi.subject.own_code import check_own_code
from togi.subject.sources.python_file import check_factory, check_package

Form = Literal[
    "file",
    "package",
    "timm",
    "torchvision",
    "transformers",
    "hf",
    "sentence-transformers",
    "diffusers",
    "ultralytics",
    "lightning",
    "exported",
    "torchscript",
    "artifact",
]

FORMS: dict[Form, tuple[str, ...]] = {
    "file": ("mode",),
    "package": ("mode",),
    "timm": ("batch", "size", "weights", "pretrained", "classes"),
    "torchvision": ("batch", "size", "weights", "classes"),
    "transformers": ("task", "batch", "length", "size", "*"),
    "hf": ("revision", "task", "batch", "length", "size", "*"),
    "sentence-transformers": ("revision",),
    "diffusers": ("revision", "steps", "size"),
    "ultralytics": ("size",),
    "lightning": ("class", "inputs", "mode"),
    "exported": (),
    "torchscript": ("inputs", "mode"),
    "artifact": (),
}
"""Options of each form; ``*``: any other one is a value of the model's configuration (``?num_hidden_layers=4``)."""

WITH_METRIC: frozenset[Form] = frozenset({"file", "package"})
"""Forms of subjects that may bring a metric; whether one does is known once it is loaded."""

_SUFFIXES: dict[str, Form] = {
    ".pt2": "exported",
    ".ckpt": "lightning",
    ".ts": "torchscript",
    ".pt": "torchscript",
    ".pth": "torchscript",
    ".togi": "artifact",
}
_ZOOS = tuple(form for form in FORMS if form not in ("file", "package", *_SUFFIXES.values()))
_EXPECTED = (
    "A subject is named file.py:factory, package.module:factory, timm:NAME, torchvision:NAME, "
    "transformers:NAME-or-folder, hf:ORG/NAME, sentence-transformers:NAME-or-folder, diffusers:NAME-or-folder, "
    "ultralytics:FILE.pt, model.ckpt?class=FILE.py:CLASS, model.pt2, a TorchScript file, or an artifact.togi."
)


@dataclass(frozen=True, kw_only=True)
class Spec:
    """A parsed locator. ``target`` is a path, a module or a model's name; ``factory`` is empty except for factories."""

    text: str
    form: Form
    target: str
    factory: str = ""
    options: dict[str, str] = field(default_factory=dict)

    @property
    def path(self) -> Path:
        return Path(self.target).expanduser()

    def integer(self, option: str) -> int | None:
        """A positive integer option, or None when it was not given."""
        text = self.options.get(option)
        if text is None:
            return None
        if not text.isascii() or not text.isdigit() or int(text) == 0:
            raise SubjectError(f"{self.text}: {option}={text} is not a positive integer.")
        return int(text)

    def failed(self, what: str, error: Exception) -> SubjectError:
        """The error of a library that makes what is named: ``what`` says which, and that it cannot."""
        return SubjectError(
            f"{self.text}: {what}: {type(error).__name__}: {first_line(error)}. If code of yours can, write a function "
            "that returns it with a sample, and give file.py:function"
        )


def parse(text: str) -> Spec:
    """Take a locator apart. Raises SubjectError when it has no known form, UnknownNameError for an unknown option."""
    base, _, query = text.partition("?")
    options = dict(parse_qsl(query, keep_blank_values=True))
    form, target, factory = _form(text, base)
    known = FORMS[form]
    for name in options:
        if name not in known and "*" not in known:
            accepted = f"It takes {', '.join(known)}." if known else "It takes none: put the choice into the factory."
            raise UnknownNameError(f"{text}: there is no option '{name}'{nearest(name, known) or '.'} {accepted}")
    return Spec(text=text, form=form, target=target, factory=factory, options=options)


def check_locator(text: str) -> Spec:
    """The parsed locator, once all that can be known without importing torch or the user's code is known to be right.

    Raises SubjectError (no such file or package, wrong kind of file, no right to read it) or UnknownNameError with the
    nearest known name.
    """
    locator = parse(text)
    with readable(text):
        return _checked(locator)


@contextmanager
def readable(text: str) -> Iterator[None]:
    """Raises SubjectError in place of an OSError: what a subject names cannot be read."""
    try:
        yield
    except OSError as error:
        what = error.filename or "a file of it"
        raise SubjectError(
            f"{text}: {what} cannot be read ({error.strerror or error}). Give your user the right to read it and the "
            "folders above it (chmod u+rX), or copy it to a place of yours"
        ) from error


def _checked(locator: Spec) -> Spec:
    if "task" in locator.options:
        catalogue.check_task(locator.options["task"])
    match locator.form:
        case "file":
            check_factory(_existing(locator), locator.factory, locator.text)
        case "package":
            check_package(locator.target, locator.factory, locator.text, zoos=_ZOOS)
        case "timm" | "torchvision" | "transformers":
            catalogue.check_installed(locator.form)
            catalogue.check_name(locator.form, locator.target)
            if locator.form == "transformers" and locator.path.exists():
                check_own_code(locator.text, locator.form, locator.path, reads="task" in locator.options)
        case "hf":
            catalogue.check_installed("transformers")
            return hub.pinned(locator)
        case "sentence-transformers":
            catalogue.check_installed("sentence_transformers")
            return _of_folder(locator) if locator.path.is_dir() else hub.pinned(locator)
        case "diffusers":
            catalogue.check_installed("diffusers")
            return _of_folder(_with_index(locator)) if locator.path.is_dir() else hub.pinned(locator)
        case "ultralytics":
            catalogue.check_installed("ultralytics")
            _check_unpickled(locator, _existing(locator))
        case "lightning":
            _existing(locator)
            _checked(class_of(locator))
        case "exported" | "torchscript" | "artifact":
            _existing(locator)
    return locator


def class_of(locator: Spec) -> Spec:
    """Where the class of a checkpoint is. Raises SubjectError where the locator does not say it."""
    text = locator.options.get("class")
    if not text:
        raise SubjectError(
            f"{locator.text}: a checkpoint holds weights, and its class says what they are of. Name the class: "
            f"'{locator.target}?class=FILE.py:CLASS'"
        )
    named = parse(text)
    if named.form not in ("file", "package"):
        raise SubjectError(f"{locator.text}: class={text} is not a class: give FILE.py:CLASS or package.module:CLASS")
    return named


def _of_folder(locator: Spec) -> Spec:
    check_own_code(locator.text, locator.form, locator.path)
    return locator


def _with_index(locator: Spec) -> Spec:
    if not (locator.path / PIPELINE).is_file():
        raise SubjectError(
            f"{locator.text}: {locator.path} holds no {PIPELINE}, so it is not a pipeline of diffusers: "
            "pipe.save_pretrained(DIR) writes one"
        )
    return locator


def _check_unpickled(locator: Spec, path: Path) -> None:
    if not permitted(Permit.PICKLE):
        raise SubjectError(
            f"{locator.text}: ultralytics keeps its models as pickles, and reading one runs whatever code is in it. If "
            f"you trust who made {path}, add {Permit.PICKLE.how}"
        )


def _form(text: str, base: str) -> tuple[Form, str, str]:
    """``(form, target, factory)``."""
    prefix, colon, rest = base.partition(":")
    for zoo in _ZOOS:
        if prefix == zoo and colon:
            if not rest:
                raise SubjectError(f"{text}: the model's name is missing, as in '{zoo}:{catalogue.EXAMPLES[zoo]}'.")
            return zoo, rest, ""
    if form := _SUFFIXES.get(Path(base).suffix.lower()):
        return form, base, ""
    target, colon, factory = base.rpartition(":")
    if not colon:
        raise SubjectError(_no_factory(text, base))
    if not target or not factory.isidentifier():
        near = nearest(prefix.lower().replace("_", "-"), _ZOOS)
        raise SubjectError(
            f"'{text}' names no subject: '{factory}' is not a name of a function{near or '.'} {_EXPECTED}"
        )
    is_file = target.endswith(".py") or "/" in target or "\\" in target
    return ("file" if is_file else "package"), target, factory


def _no_factory(text: str, base: str) -> str:
    """The message for a name without a colon and without a known suffix."""
    path = Path(base).expanduser()
    if path.suffix == ".py":
        return f"{text}: which function? Name it as '{base}:factory'."
    if path.is_dir() and (path / "manifest.json").exists():
        return f"{text} looks like an artifact, but its name does not end in .togi: rename the folder."
    if path.is_dir() and (path / PIPELINE).exists():
        return f"{text} looks like a pipeline of diffusers: name it as 'diffusers:{base}'."
    if path.is_dir() and (path / "modules.json").exists():
        return f"{text} looks like a model of sentence-transformers: name it as 'sentence-transformers:{base}'."
    if path.is_dir() and (path / "config.json").exists():
        return f"{text} looks like a transformers model: name it as 'transformers:{base}'."
    if path.suffix == ".onnx":
        return f"{text}: an ONNX model is not a PyTorch module. togi starts from the module that was exported."
    if path.suffix == ".safetensors":
        return f"{text} holds weights without a model. Write a factory that builds the module and loads them."
    for zoo in ("timm", "torchvision"):
        if base in catalogue.names(zoo):
            return f"'{text}' names no subject; did you mean '{zoo}:{base}'?"
    return f"'{text}' names no subject. {_EXPECTED}"


def _existing(locator: Spec) -> Path:
    """The file. Raises SubjectError with the nearest name in its folder when it is not there."""
    path = locator.path
    wants_folder = locator.form == "artifact"
    if path.is_dir() if wants_folder else path.is_file():
        return path
    if path.exists():
        actual, wanted = ("a file", "a folder") if wants_folder else ("a folder", "a file")
        raise SubjectError(f"{locator.text}: {path} is {actual}; a subject of this form ({locator.form}) is {wanted}.")
    if not path.parent.is_dir():
        raise SubjectError(f"{locator.text}: there is no folder {path.parent} (looked from {Path.cwd()}).")
    near = nearest(path.name, (entry.name for entry in path.parent.iterdir()))
    raise SubjectError(f"{locator.text}: there is no file {path}{near} (looked from {Path.cwd()})")
