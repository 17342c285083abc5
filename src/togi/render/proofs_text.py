"""Proofs of claims as text: each verdict with the figures behind it."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from togi.claims import ClaimVerdict, Measured, MeasuredClaim, Proofs
from togi.core.quantities import bounds, milliseconds, size, times
from togi.render.terminal import clean, stack, table

_STYLES = {
    ClaimVerdict.HOLDS: "bold green",
    ClaimVerdict.HOLDS_IN_PART: "bold yellow",
    ClaimVerdict.REFUTED: "bold red",
    ClaimVerdict.UNTESTED: "bold yellow",
}


def proofs_text(proofs: Proofs) -> RenderableType:
    """All of them; where there are several, how many came to each verdict."""
    return stack(*map(proof_text, proofs.proofs), Text(_tally(proofs), "bold") if len(proofs.proofs) > 1 else None)


def proof_text(proof: MeasuredClaim) -> RenderableType:
    """The verdict on a claim, with the figures behind it."""
    verdict = Text(proof.claim, style="bold cyan").append(f"  {proof.verdict.value}", style=_STYLES[proof.verdict])
    said = Group(verdict, Text(clean(proof.sentence)), *([Text(clean(proof.fix), "cyan")] if proof.fix else []))
    return stack(said, _measured(proof) if proof.rows else None)


def _tally(proofs: Proofs) -> str:
    """``12 hold, 3 do not hold``."""
    said = {
        ClaimVerdict.HOLDS: "hold",
        ClaimVerdict.HOLDS_IN_PART: "hold in part",
        ClaimVerdict.REFUTED: "do not hold",
        ClaimVerdict.UNTESTED: "cannot be tested here",
    }
    return ", ".join(f"{number} {said[verdict]}" for verdict, number in proofs.counts.items() if number)


def _measured(proof: MeasuredClaim) -> Table:
    """Columns of what was measured at all."""
    cells = {"peak": _peak, "median": _median, "speed-up": _speedup}
    used = {heading: cell for heading, cell in cells.items() if any(cell(row) for row in proof.rows)}
    grid = table(clean(proof.setting), *used)
    for row in proof.rows:
        name = Text(clean(row.name))
        if row.note:
            name.append(f"\n{clean(row.note)}", style="yellow")
        grid.add_row(name, *(cell(row) or "-" for cell in used.values()))
    return grid


def figures(row: Measured) -> str:
    """All that was measured of it, in a line."""
    peak = f"{_peak(row)} at the peak" if row.peak_bytes is not None else ""
    return ", ".join(filter(None, (_median(row), _speedup(row), peak, row.note))) or "not measured"


def _peak(row: Measured) -> str:
    return "" if row.peak_bytes is None else size(row.peak_bytes)


def _median(row: Measured) -> str:
    return "" if row.median_ms is None else milliseconds(row.median_ms)


def _speedup(row: Measured) -> str:
    return "" if row.speedup_x is None else f"{times(row.speedup_x.median)} ({bounds(row.speedup_x)})"
