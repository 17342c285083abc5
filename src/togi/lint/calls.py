"""The calls of ``togi check SUBJECT``, which run in the subject's own process: their requests and answers."""

from __future__ import annotations

from togi.core.record import Record
from togi.lint.finding import Finding, Table
from togi.worker.call import ChildCall


class ModuleRequest(Record):
    """Rules that look at a module."""

    device: str = "cpu"
    """``cpu``, ``cuda`` or a GPU's name (``A100``): what times are predicted for."""
    dtype: str | None = None
    """Predict as if floating-point tensors were of this dtype."""
    rules: tuple[str, ...] | None = None
    """Ids of the rules to run; None: those that are on by default."""
    seed: int = 0
    measure: bool = False
    """Try the techniques that fix what was found, and say what they bring."""
    measure_s: float = 4.0
    """How long the race of one technique may take."""


class TraceRequest(Record):
    """Rules that read the record of one watched run."""

    device: str = "cpu"
    """``cuda`` watches on a real GPU; anything else is simulated for CUDA on the CPU."""
    train: bool = False
    """A training step was asked for: one is watched wherever the subject has one; without it this only adds a note."""
    rules: tuple[str, ...] | None = None
    """Ids of the rules to run; None: those that are on by default."""


class SubjectReport(Record):
    """Findings, tables and notes of the rules that looked at a subject."""

    findings: tuple[Finding, ...]
    tables: tuple[Table, ...] = ()
    notes: tuple[str, ...] = ()


EXAMINE = ChildCall(
    function="togi.lint.module.check:check_module", request=ModuleRequest, answer=SubjectReport, purpose="examined"
)
WATCH = ChildCall(
    function="togi.lint.trace.check:check_run", request=TraceRequest, answer=SubjectReport, purpose="watched"
)
