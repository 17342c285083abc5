"""The page of a machine: what techniques and advice claim, and what was measured of it here."""

from __future__ import annotations

from togi.claims import ClaimVerdict, Measured, MeasuredClaim, Proofs
from togi.core.quantities import bounds, times
from togi.decide.faster import BETWEEN_PROCESSES
from togi.render.html.axis import Axis, ticks
from togi.render.html.charts import Bar, Bars, whisker
from togi.render.html.document import document
from togi.render.proofs_text import figures

_BADGES = {
    ClaimVerdict.HOLDS: "ok",
    ClaimVerdict.HOLDS_IN_PART: "missing",
    ClaimVerdict.REFUTED: "failed",
    ClaimVerdict.UNTESTED: "unstable",
}
"""The classes of the report that colour a verdict."""
_MARKS = {ClaimVerdict.HOLDS: "chosen", ClaimVerdict.REFUTED: "reference"}


def proofs_html(proofs: Proofs) -> str:
    """The same bytes for the same proofs."""
    return document(
        "proofs.html",
        title="what holds here",
        proofs=proofs,
        machine=proofs.machine,
        speedups=speedups(proofs),
        band_x=BETWEEN_PROCESSES.band_x,
        badges=_BADGES,
        figures=figures,
    )


def speedups(proofs: Proofs) -> Bars | None:
    """Every technique that took turns with the same recipe without it, the fastest first; a line stands at 1."""
    measured = [(proof, row) for proof in proofs.proofs for row in proof.rows if row.speedup_x is not None]
    if not measured:
        return None
    measured.sort(key=lambda pair: -_median(pair[1]))
    axis = Axis([1.0, *(_median(row) for _, row in measured)])
    return Bars(
        lines=[_bar(proof, row, axis) for proof, row in measured],
        ticks=ticks(axis, "x"),
        one=axis.place(1.0),
        caption="speed over the same recipe without it; bars are 95 % confidence intervals; green: the claim holds",
    )


def _bar(proof: MeasuredClaim, row: Measured, axis: Axis) -> Bar:
    assert row.speedup_x is not None
    return Bar(
        name=proof.claim,
        detail=proof.verdict.value,
        hint=f"{row.name}\n{proof.setting}\n{figures(row)}",
        trial="",
        whisker=whisker(axis, row.speedup_x.low, row.speedup_x.high),
        marks=[(_MARKS.get(proof.verdict, "without"), axis.place(row.speedup_x.median))],
        value=times(row.speedup_x.median),
        small=bounds(row.speedup_x),
    )


def _median(row: Measured) -> float:
    assert row.speedup_x is not None
    return row.speedup_x.median
