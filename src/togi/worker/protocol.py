"""Records that the processes of a study share: where the subject is, what a server starts with, what a survey found.

``togi.worker.messages`` has the messages that carry them. No torch.
"""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Literal, TypeVar

from typing_extensions import Self

from togi.core.errors import SubjectError, TogiError, error_class
from togi.core.judging import Judging
from togi.core.recipe import PartKey
from togi.core.records import Facts, Machine, Record, Request, Scalar
from togi.core.user_code import user_traceback
from togi.subject.effects import Effects
from togi.subject.signature import Signature

_SURVEY_FILE = "survey.json"
_CONDITIONS_TOLD = 3

AnyRecord = TypeVar("AnyRecord", bound=Record)


def changed(record: AnyRecord, **fields: object) -> AnyRecord:
    """A copy with other values for these fields, validated; ``model_copy`` takes whatever it is given."""
    return type(record)(**{**{name: getattr(record, name) for name in type(record).model_fields}, **fields})


COUNTED = "TOGI_COUNTED"
"""The environment variable that names those which told a server's torch its number of threads, and which the user had
not set: an artifact that finds them takes them for the user's word."""


class SubjectRef(Record):
    """The place where children find the subject."""

    kind: Literal["locator", "live", "artifact", "nothing"]
    spec: str = ""
    """A locator; the path of a live subject's file, alone in a private folder; the folder of an artifact."""
    path: tuple[str, ...] = ()
    """``sys.path`` of the parent."""
    cwd: str = "."

    @classmethod
    def here(cls, kind: Literal["locator", "live", "artifact", "nothing"], spec: str = "") -> SubjectRef:
        """Refer to it with this process's import path and working folder."""
        return cls(kind=kind, spec=spec, path=tuple(sys.path), cwd=os.getcwd())

    @classmethod
    def elsewhere(cls, spec: str) -> SubjectRef:
        """Refer to a locator with this working folder, and without the packages of this process."""
        return cls(kind="locator", spec=spec, path=(os.getcwd(),), cwd=os.getcwd())

    @property
    def answer(self) -> Path:
        """Next to a live subject: what it answers where it lives."""
        return Path(self.spec).with_name("answer")


class ServerConfig(Request):
    """The first message to a trial server: what it serves, and how."""

    token: str
    subject: SubjectRef
    folder: str
    """The run's private folder: truth, logs."""
    device: str
    seed: int
    threads: int
    machine: Machine
    callers: int = 1
    """How many call at once while something is verified and measured."""
    from_host: bool = False
    """A measured call has its inputs and results in host memory."""
    nan_differences: bool = False
    """What the original shows as NaN may be a number."""
    interpreter: str = ""
    """The Python that the server runs in. Empty: that of its parent."""
    judging: Judging | None = None
    """By what approximate results are judged besides their error: a subject without it is refused when it is loaded."""
    data: str = ""
    """Locator of the validation data; empty: those of the subject."""
    calibration: str = ""
    """Locator or folder of the calibration data; empty: those of the subject."""
    calibrates: bool = False
    """What is tried may be calibrated: notes say what the calibration data are like."""
    train: bool = False
    """What is surveyed, proven and tried is the subject's training step."""

    @property
    def needs_metric(self) -> bool:
        """The user's function judges."""
        return self.judging is not None and self.judging.by_own_metric

    @property
    def metric_on_data(self) -> bool:
        """It judges answers to the validation data, and none to the samples."""
        return self.needs_metric and self.needs_data

    @property
    def needs_data(self) -> bool:
        return self.judging is not None and self.judging.on_data


class PartRef(Record):
    """A part of the subject, which children of the same server work on as a subject of its own."""

    key: PartKey
    effects: Effects
    inputs: str
    """File of recorded calls (``togi.subject.stored_inputs``)."""
    others: str = ""
    """File of more calls that the program makes of it, which are not among the samples; empty: there is none."""
    folder: str
    """The part's own place for survey, truth and logs."""


class Survey(Record):
    """All that the parent and the trials need to know of a subject; no tensor in it."""

    facts: Facts
    signature: Signature
    calls: tuple[tuple[tuple[int, ...], ...], ...] = ()
    """Of each sample, the shapes of its flat inputs."""
    calibration: str = ""
    """Hash of the inputs that recipes are calibrated on, where some may be tried."""
    code: str = ""
    """Hash of the module's code and settings, as they were before its first call."""
    inputs_change: bool = False
    """Calls leave other values in their arguments, so each is measured on a copy."""
    varying: tuple[str, ...] = ()
    """Names of plain attributes that its calls change (``togi.artifact.settings``)."""

    def write(self, folder: Path) -> None:
        """Write it to where the trials of the subject read it."""
        (folder / _SURVEY_FILE).write_text(self.model_dump_json(), encoding="utf-8")

    @classmethod
    def read(cls, folder: Path) -> Self:
        return cls.model_validate_json((folder / _SURVEY_FILE).read_text(encoding="utf-8"))

    def when_captured(self, conditions: Iterable[str], idle_rewrites: Mapping[str, str]) -> Self:
        """The survey of what ``torch.export`` captured, under conditions on its sizes. ``idle_rewrites``: as in
        ``Facts``."""
        signature, notes = self.signature.under(conditions), self.facts.notes
        if in_words := signature.conditions_in_words():
            notes = (*notes, _proven_where(in_words))
        facts = changed(self.facts, exportable=True, idle_rewrites=dict(idle_rewrites), notes=notes)
        return changed(self, facts=facts, signature=signature)

    def not_captured(self, reason: str) -> Self:
        facts = changed(self.facts, exportable=False, export_error=reason)
        return changed(self, facts=facts, signature=self.signature.under(()))


def _proven_where(conditions: list[str]) -> str:
    first, more = conditions[:_CONDITIONS_TOLD], len(conditions) - _CONDITIONS_TOLD
    joined = " and ".join([*first, *([f"{more} more"] if more > 0 else [])])
    return f"It is proven where {joined}: for other sizes it computes something else, so what is tuned refuses them."


class AskedAtOnce(Record):
    """The result of asking with several callers at once."""

    problems: tuple[str, ...] = ()
    """What is wrong, where the original would have been right."""
    note: str = ""
    """What else should be known of it."""


class Raised(Record):
    """An exception as it crosses from a child to its parent."""

    kinds: tuple[str, ...]
    """Its class and the bases of that up to ``TogiError``, by name; empty for an error of foreign code."""
    message: str
    exit_code: int = SubjectError.exit_code
    fields: dict[str, Scalar] = {}
    """What it carries besides its message."""
    shown: str = ""
    """Of foreign code: the user's frames and the message."""
    traceback: str = ""

    @classmethod
    def of(cls, error: BaseException) -> Self:
        trace = "".join(traceback.format_exception(error))
        if not isinstance(error, TogiError):
            return cls(kinds=(), message=str(error), shown=user_traceback(error), traceback=trace)
        kinds = [kind.__name__ for kind in type(error).__mro__ if issubclass(kind, TogiError)]
        fields = {name: value for name, value in vars(error).items() if isinstance(value, Scalar)}
        return cls(kinds=tuple(kinds), message=str(error), exit_code=error.exit_code, fields=fields, traceback=trace)

    def error(self, purpose: str) -> TogiError:
        """The exception to raise here: of the same class, else of the nearest base that is known in this process."""
        if self.kinds:
            kind = error_class(self.kinds)
            error = kind.__new__(kind, self.message)  # its own __init__ may want more than the message
            vars(error).update(self.fields)
            if error.exit_code != self.exit_code:
                error.exit_code = self.exit_code
        else:
            error = SubjectError(f"the subject could not be {purpose}. It raised:\n{self.shown}")
        error.child_traceback = self.traceback
        return error
