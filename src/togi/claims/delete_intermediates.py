"""The claim that deleting a name by hand frees memory."""

from __future__ import annotations

from typing import ClassVar

from togi.claims.claim import Claim, ClaimVerdict, MeasuredClaim
from togi.core.quantities import size

_ANCHORS, _BOXES = 60_000, 500
_NOTICEABLE = 0.05

KEPT = "intersection with every name kept"
DELETED = "the same with del lt, rb"


class DeleteIntermediates(Claim):
    """Deleting intermediates explicitly is said to lower the peak.

    What is claimed: ``del`` on large intermediate tensors reduces the memory that a function needs.

    What is measured: the pairwise intersection of boxes in eager mode, and the same with one line ``del lt, rb`` after
    their last use; under ``no_grad``, since autograd would keep them anyway.

    What is known: true where a Python name keeps a large tensor alive past its last use. A local name lives until the
    function returns, so every later allocation stands on top of it. Nothing is gained for tensors that autograd keeps,
    or whose name is bound again.

    Source: CPython's reference counting; torchvision #7959 (the IoU of torchvision needs nine times its result).
    """

    id: ClassVar[str] = "delete-intermediates"

    def prove(self) -> MeasuredClaim:
        import torch

        from togi.claims.contest import contest, row
        from togi.claims.formulas.boxes import intersection, intersection_freed, made_boxes

        generator = torch.Generator().manual_seed(0)
        anchors, boxes = made_boxes(_ANCHORS, generator), made_boxes(_BOXES, generator)
        ways = {KEPT: lambda: intersection(anchors, boxes), DELETED: lambda: intersection_freed(anchors, boxes)}
        with torch.no_grad():
            rows = contest(ways)
        kept_bytes, deleted = row(rows, KEPT).peak_bytes, row(rows, DELETED).peak_bytes
        setting = f"{_ANCHORS:,} x {_BOXES} boxes, float32 ({size(_ANCHORS * _BOXES * 4)} for one value per pair)"
        if kept_bytes is None or deleted is None:
            note = row(rows, KEPT).note or row(rows, DELETED).note
            return MeasuredClaim(
                claim=self.id, verdict=ClaimVerdict.UNTESTED, sentence=note, setting=setting, rows=rows
            )
        holds = deleted < (1 - _NOTICEABLE) * kept_bytes
        sentence = f"The peak is {size(kept_bytes)} with the names kept and {size(deleted)} with them deleted."
        verdict = ClaimVerdict.HOLDS if holds else ClaimVerdict.REFUTED
        return MeasuredClaim(claim=self.id, verdict=verdict, sentence=sentence, setting=setting, rows=rows)
