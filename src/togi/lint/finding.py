"""What ``togi check`` reports."""

from __future__ import annotations

from togi.core.records import Record


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


class Edit(Record):
    """``text`` in place of a range (empty range: insertion). Columns as in ``Place``."""

    line: int
    column: int
    end_line: int
    end_column: int
    text: str


class Fix(Record):
    """A rewriting of the file that mends one finding."""

    title: str
    """Imperative: "Use torch.inference_mode()"."""
    edits: tuple[Edit, ...]
    safe: bool = True
    """``--fix`` applies safe ones: they cannot change what the program computes. Others take ``--unsafe-fixes``."""


class Cost(Record):
    """What a finding costs, and how that is known."""

    text: str
    """For people: "41 MiB moved per pass", "1.31 x slower (1.27 to 1.35)"."""
    measured: bool
    """Measured here; else predicted from figures of the device, or counted."""
    speedup_x: float | None = None
    """What mending would bring, where that is known."""
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
