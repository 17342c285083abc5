"""Findings, and the result of a check: frozen records that are cached and printed as JSON."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

from pydantic_core import PydanticSerializationError
from typing_extensions import Self

from togi.core.record import Record, Scalar


class Place(Record):
    """A range of a source file. Lines and columns count from 1, columns in characters; the end is exclusive."""

    path: str
    """As the user would type it: relative to the working folder where it lies below it, with forward slashes."""
    line: int
    column: int = 1
    end_line: int | None = None
    end_column: int | None = None
    cell: int | None = None
    """Of a notebook: the code cell, counted from 1 over all cells; ``line`` counts inside it."""


def shown(path: str) -> str:
    """A path as the user would type it, which is how findings name files."""
    full = Path(path)
    if full.is_absolute() and full.is_relative_to(Path.cwd()):
        full = full.relative_to(Path.cwd())
    return str(full).replace(os.sep, "/")


class Edit(Record):
    """``text`` in place of a range (empty range: insertion). Columns as in ``Place``."""

    line: int
    column: int
    end_line: int
    end_column: int
    text: str


class Fix(Record):
    """A rewrite of the file that removes one finding."""

    title: str
    """Imperative: "Use torch.inference_mode()"."""
    edits: tuple[Edit, ...]
    safe: bool = True
    """``--fix`` applies safe ones: they cannot change what the program computes. Others take ``--unsafe-fixes``."""


class Cost(Record):
    """The cost of a finding, and how that is known."""

    text: str
    """For people: "41 MiB moved per pass", "1.31 x slower (1.27 to 1.35)"."""
    measured: bool
    """Measured here; else predicted from figures of the device, or counted."""
    speedup_x: float | None = None
    """What the remedy would bring, where that is known."""
    seconds: float | None = None
    bytes: int | None = None


class Finding(Record):
    """A rule that was broken, with evidence and remedy."""

    rule: str
    message: str
    """One sentence: what is done here, and why it costs."""
    remedy: str
    """What to write instead, concretely for this place."""
    place: Place | None = None
    """None where only a module is known, not the source that made it."""
    layer: str = ""
    """Qualified name of the module concerned (``layer1.0.conv2``), for module and trace rules."""
    evidence: str = ""
    """What was seen: the chain of inference, counts, sizes, the call stack's lines."""
    count: int = 1
    """How often per step (trace rules), or in how many layers."""
    cost: Cost | None = None
    fix: Fix | None = None
    suppressed: str = ""
    """Why it does not count: ``ignore comment``, ``per-file-ignores``; empty when it does."""


class _Remark(Record):
    path: str
    message: str
    """What happened, and what to do."""
    line: int | None = None
    cell: int | None = None


class Problem(_Remark):
    """Something could not be checked. The rest was; the exit code says 2."""


class Note(_Remark):
    """Worth knowing, without influence on the exit code: an ignore comment that ignores nothing, say."""


class Ignore(Record):
    """A comment ``# togi: ignore[...]`` and the lines for which it speaks."""

    rules: tuple[str, ...]
    """Empty: all rules."""
    line: int
    """Of the comment."""
    first: int
    last: int
    """The lines of its statement, inclusive."""
    cell: int | None = None
    whole_file: bool = False


class FileReport(Record):
    """All that is known of one file before any selection: what the cache keeps.

    Every rule has run, so that another selection needs no new run.
    """

    findings: tuple[Finding, ...] = ()
    ignores: tuple[Ignore, ...] = ()
    problems: tuple[Problem, ...] = ()
    notes: tuple[Note, ...] = ()

    def kept(self) -> str:
        """The report as JSON. A name that is not text comes as lone surrogates, which only Python's own JSON knows."""
        try:
            return self.model_dump_json(exclude_defaults=True)
        except PydanticSerializationError:
            return json.dumps(self.model_dump(mode="json", exclude_defaults=True))

    @classmethod
    def from_kept(cls, text: str) -> Self:
        try:
            return cls.model_validate_json(text)
        except ValueError:
            return cls.model_validate(json.loads(text))


class Table(Record):
    """A table that module and trace rules print besides their findings."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Scalar, ...], ...]


class CheckResult(Record):
    """The result of ``togi check``. Findings go by path, cell, line and column; those without a place come last."""

    findings: tuple[Finding, ...] = ()
    suppressed: tuple[Finding, ...] = ()
    """Silenced by a comment or by ``per-file-ignores``; ``suppressed`` of each says which."""
    problems: tuple[Problem, ...] = ()
    notes: tuple[Note, ...] = ()
    tables: tuple[Table, ...] = ()
    files: int = 0
    """Files looked at, also those that have nothing to do with PyTorch."""
    cached: int = 0
    """Files whose findings were known from an earlier run."""
    fixed: int = 0
    """Findings that ``--fix`` removed."""
    ignores_added: int = 0
    """Ignore comments that ``--add-ignores`` wrote, or to which it added rules."""

    def __iter__(self) -> Iterator[Finding]:  # type: ignore[override]
        return iter(self.findings)

    def __len__(self) -> int:
        return len(self.findings)

    def __bool__(self) -> bool:
        """Whether anything was found."""
        return bool(self.findings)

    def joined(self, other: CheckResult) -> CheckResult:
        """Both results as one."""
        sums = {name: getattr(self, name) + getattr(other, name) for name in type(self).model_fields}
        return CheckResult(
            **sums
            | {
                "findings": in_order(self.findings + other.findings),
                "suppressed": in_order(self.suppressed + other.suppressed),
            }
        )

    @property
    def exit_code(self) -> int:
        """2 when something could not be checked, else 1 when something was found, else 0."""
        return 2 if self.problems else 1 if self.findings else 0


def in_order(findings: tuple[Finding, ...] | list[Finding]) -> tuple[Finding, ...]:
    """Sorts by path, cell, line, column, rule; those without a place last, by layer."""
    return tuple(sorted(findings, key=_key))


def _key(finding: Finding) -> tuple[bool, str, int, int, int, str, str]:
    place = finding.place
    if place is None:
        return True, "", 0, 0, 0, finding.rule, finding.layer
    return False, place.path, place.cell or 0, place.line, place.column, finding.rule, finding.layer
