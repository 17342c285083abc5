"""torchvision's detection models without their IoU matrix: ``patch("torchvision", matcher=True)``.

All of them compute the matrix of boxes x anchors and hand it to a Matcher, which reduces it. While patched, the matrix
that they get is a tensor that has a shape but no values yet; the Matcher sees that and calls ``match_boxes`` on the
boxes behind it. Whatever else is done to it (a subclass of a model may look at it) computes the values first.

Sources: torchvision.models.detection._utils (Matcher, SSDMatcher), torchvision issue #7959; PyTorch documentation,
extending torch: wrapper subclasses.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from togi.ops.drop_in import answers, stand_in
from togi.ops.matching import BoxMatches, match_boxes
from togi.torch_internals.modes import no_torch_function, wrapper_subclass
from togi.torch_internals.tensors import tree_map_only

_DETECTION = "torchvision.models.detection"
_MODULES = ("rpn", "roi_heads", "retinanet", "ssd")


class PendingIoU(Tensor):
    """The IoU matrix [N, M] of ``boxes1`` and ``boxes2``, computed by ``iou`` when somebody looks."""

    boxes1: Tensor
    boxes2: Tensor
    known: Tensor | None
    iou: Callable[[Tensor, Tensor], Tensor]
    __torch_function__ = no_torch_function  # type: ignore[assignment]

    @staticmethod
    def __new__(cls, boxes1: Tensor, boxes2: Tensor, iou: Callable[[Tensor, Tensor], Tensor]) -> PendingIoU:
        shape = (len(boxes1), len(boxes2))
        pending: PendingIoU = wrapper_subclass(cls, shape, dtype=boxes1.dtype, device=boxes1.device)
        pending.boxes1, pending.boxes2, pending.iou, pending.known = boxes1, boxes2, iou, None
        return pending

    @classmethod
    def __torch_dispatch__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        return function(*_computed(args), **_computed(kwargs or {}))

    def computed(self) -> Tensor:
        """Once, and kept: an operation may have written into it."""
        if self.known is None:
            self.known = self.iou(self.boxes1, self.boxes2)
        return self.known

    def __repr__(self) -> str:  # type: ignore[override]
        return f"PendingIoU({tuple(self.shape)})"


def _computed(tree: Any) -> Any:
    return tree_map_only(PendingIoU, PendingIoU.computed, tree)


def originals(is_active: Callable[[], bool]) -> Iterator[tuple[Any, Callable[[], Any]]]:
    """The originals that are replaced in ``holders`` and in models, and how the replacements are made.

    To be asked for when ``box_iou`` itself is replaced already, so that values that are looked at come from there.
    """
    boxes = importlib.import_module("torchvision.ops.boxes")
    matchers = importlib.import_module(f"{_DETECTION}._utils")
    iou = boxes.box_iou
    pending_iou = stand_in(iou, functools.partial(_pending, iou), is_active)
    yield iou, lambda: pending_iou
    yield boxes, lambda: _BoxOps(boxes, pending_iou)
    yield matchers.Matcher.__call__, lambda: _taking_pending(matchers.Matcher.__call__, _match, is_active)
    yield matchers.SSDMatcher.__call__, lambda: _taking_pending(matchers.SSDMatcher.__call__, _match_ssd, is_active)


def holders() -> Iterator[Any]:
    """The modules and classes in which the originals are replaced."""
    for name in _MODULES:
        yield importlib.import_module(f"{_DETECTION}.{name}")
    matchers = importlib.import_module(f"{_DETECTION}._utils")
    yield matchers.Matcher
    yield matchers.SSDMatcher


class _BoxOps(ModuleType):
    """torchvision.ops.boxes as the detection modules see it: with another ``box_iou``. A module, for TorchScript."""

    def __init__(self, boxes: ModuleType, box_iou: Callable[..., Any]) -> None:
        super().__init__(boxes.__name__, boxes.__doc__)
        self._boxes = boxes
        self.box_iou = box_iou

    def __getattr__(self, name: str) -> Any:
        return getattr(vars(self)["_boxes"], name)


def _pending(iou: Callable[..., Tensor], boxes1: Tensor, boxes2: Tensor, fmt: str = "xyxy") -> Tensor | None:
    if not answers(boxes1, boxes2) or fmt != "xyxy" or boxes1.dim() + boxes2.dim() != 4:
        return None
    if torch.is_grad_enabled() and (boxes1.requires_grad or boxes2.requires_grad):
        return None
    return PendingIoU(boxes1, boxes2, iou)


def _taking_pending(
    original: Callable[..., Tensor], match: Callable[[Any, PendingIoU], Tensor], is_active: Callable[[], bool]
) -> Callable[..., Tensor]:
    @functools.wraps(original)
    def call(self: Any, match_quality_matrix: Tensor) -> Tensor:
        matrix = match_quality_matrix
        if type(matrix) is not PendingIoU:
            return original(self, matrix)
        # Empty: the original has an error for it. Computed: somebody has looked, and may have changed it. A subclass
        # may have its own way with low-quality matches.
        if matrix.numel() == 0 or matrix.known is not None or _is_changed(self) or not is_active():
            return original(self, matrix.computed())
        return match(self, matrix)

    return call


def _is_changed(matcher: Any) -> bool:
    base = importlib.import_module(f"{_DETECTION}._utils").Matcher
    changed: bool = type(matcher).set_low_quality_matches_ is not base.set_low_quality_matches_
    return changed


def _match(matcher: Any, matrix: PendingIoU, per_box: bool = False) -> Tensor:
    return _matches(matcher, matrix, per_box).matched_box()


def _matches(matcher: Any, matrix: PendingIoU, per_box: bool) -> BoxMatches:
    return match_boxes(
        matrix.boxes2,
        matrix.boxes1,
        thresholds=(matcher.low_threshold, matcher.high_threshold),
        low_quality=matcher.allow_low_quality_matches,
        per_box=per_box,
        check=False,
    )


def _match_ssd(matcher: Any, matrix: PendingIoU) -> Tensor:
    """SSD: the best anchor of every box is matched to it, the last box first served where two share one."""
    best = _matches(matcher, matrix, per_box=True)
    matches = best.matched_box()
    assert best.anchor is not None  # asked for
    matches[best.anchor] = torch.arange(len(best.anchor), device=matches.device)
    return matches
