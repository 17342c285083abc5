"""The claim that scripting the pairwise intersection of boxes avoids its intermediates."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar

from togi.claims.claim import Claim, ClaimVerdict, Measured, MeasuredClaim
from togi.core.quantities import size, times

if TYPE_CHECKING:
    from torch import Tensor

    from togi.claims.contest import Way

ANCHORS, BOXES = 242_991, 500
"""The size of the advice."""

EAGER = "intersection, eager"
SCRIPTED = "intersection, torch.jit.script"
COMPILED = "intersection, torch.compile"
OURS = "intersection, togi.ops.box_intersection"
MATCH_EAGER = "best box per anchor, eager"
MATCH_COMPILED = "best box per anchor, torch.compile"
MATCH_OURS = "best box per anchor, togi.ops.match_boxes"
_ALONE = 1.05
"""Up to here in multiples of the result, there are no intermediates."""


class BoxIou(Claim):
    """``torch.jit.script`` is said to free pairwise box IoU of its intermediates, "about 460 MB".

    What is claimed: scripting the intersection of 242,991 anchors with 500 boxes fuses it, so that its intermediate
    tensors are not made.

    What is measured: that intersection in eager mode, scripted, compiled, and by ``togi.ops.box_intersection``; and
    what it is wanted for, the best box of every anchor, eager, compiled, and by ``togi.ops.match_boxes``. How far the
    process grows (the result included) and the median of rounds in turns.

    What is known: 463 MiB is the N x M result alone, which nothing can avoid as long as the matrix is asked for.
    Scripting frees some intermediates early and fuses none on the CPU; ``torch.compile`` makes none. Who wants the best
    box for each anchor needs no matrix at all.

    Source: torchvision #7959, detectron2 #3750.
    """

    id: ClassVar[str] = "box-iou"

    def prove(self) -> MeasuredClaim:
        import torch

        from togi.claims.contest import contest
        from togi.claims.formulas.boxes import made_boxes

        generator = torch.Generator().manual_seed(0)
        with torch.no_grad():
            anchors, boxes = made_boxes(ANCHORS, generator), made_boxes(BOXES, generator)
            rows = contest(_ways(anchors, boxes), rounds=5)
        result = ANCHORS * BOXES * 4
        verdict, sentence = judge(rows, result)
        setting = f"{ANCHORS:,} x {BOXES} boxes, float32 (result of the intersection: {size(result)})"
        return MeasuredClaim(claim=self.id, verdict=verdict, sentence=sentence, setting=setting, rows=rows)


def judge(rows: Sequence[Measured], result_bytes: int) -> tuple[ClaimVerdict, str]:
    """The verdict on scripting, with what the others bring."""
    peak = {row.name: row.peak_bytes for row in rows if row.peak_bytes is not None}
    if EAGER not in peak or SCRIPTED not in peak:
        notes = "; ".join(f"{row.name}: {row.note}" for row in rows if row.note)
        return ClaimVerdict.UNTESTED, f"It did not run here: {notes}."
    eager, scripted = peak[EAGER], peak[SCRIPTED]
    figures = f"eager needs {size(eager)}, scripted {size(scripted)}, and the result alone is {size(result_bytes)}"
    others = _others({row.name: row for row in rows})
    if scripted <= _ALONE * result_bytes:
        return ClaimVerdict.HOLDS, f"Scripting leaves no intermediates: {figures}.{others}"
    if scripted < eager / _ALONE:
        return ClaimVerdict.HOLDS_IN_PART, f"Scripting frees some intermediates, not all: {figures}.{others}"
    return ClaimVerdict.REFUTED, f"Scripting saves nothing: {figures}.{others}"


def _others(row: dict[str, Measured]) -> str:
    slow, fast = row[MATCH_EAGER], row[MATCH_OURS]
    if slow.median_ms is None or fast.median_ms is None or fast.peak_bytes is None:
        return ""
    gained = times(slow.median_ms / fast.median_ms)
    return f" The best box of every anchor needs {size(fast.peak_bytes)} with match_boxes, {gained} as fast as eager."


def _ways(anchors: Tensor, boxes: Tensor) -> dict[str, Way]:
    import torch

    from togi import ops
    from togi.claims.formulas.boxes import best_box, intersection

    compiled, matching = torch.compile(intersection, dynamic=False), torch.compile(best_box, dynamic=False)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it is deprecated, and is what the advice asks for
        scripted = torch.jit.script(intersection)
    return {  # those that the verdict rests on first, those that are compiled for seconds last
        EAGER: lambda: intersection(anchors, boxes),
        SCRIPTED: lambda: scripted(anchors, boxes),
        MATCH_OURS: lambda: ops.match_boxes(anchors, boxes),
        OURS: lambda: ops.box_intersection(anchors, boxes),
        MATCH_EAGER: lambda: best_box(anchors, boxes),
        COMPILED: lambda: compiled(anchors, boxes),
        MATCH_COMPILED: lambda: matching(anchors, boxes),
    }
