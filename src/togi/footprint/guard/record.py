"""What the guard did."""

from __future__ import annotations

from togi.core.records import Record


class WithinReport(Record):
    """One call of a guarded function."""

    budget_bytes: int
    rows: int | None = None
    """Size of dimension 0 of the inputs; None where they share none."""
    rows_per_part: int | None = None
    parts: int = 1
    """How many times the function was called for the result."""
    predicted_bytes: int | None = None
    """Of one call with all rows, above what was there; None where it could not be predicted."""
    predicted_part_bytes: int | None = None
    """Of the way it was run, the results of all parts included."""
    out_of_memory: int = 0
    """How many attempts the device refused."""
    notes: tuple[str, ...] = ()
