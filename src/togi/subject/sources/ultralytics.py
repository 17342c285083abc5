"""Subjects ``ultralytics:FILE.pt``: ``predict`` of a model of ultralytics on a picture, with what it does around it.

Its files are pickles of whole models, which only the installed package can read: with the permit for that alone.
"""

from __future__ import annotations

import functools
import os
from typing import Any

from togi.subject.inputs import Inputs, Subject
from togi.subject.locator import Spec
from togi.subject.program import ProgramModule
from togi.subject.sources.media import picture

_FOUND = ("boxes", "masks", "keypoints", "probs", "obb")
_SIZE = (480, 640)
"""Height and width of a camera's picture; the model resizes it."""
_ALONE = {"YOLO_OFFLINE": "true", "YOLO_AUTOINSTALL": "false", "YOLO_VERBOSE": "false"}
"""It would look for updates, install packages that a file asks for, and print."""


def from_ultralytics(locator: Spec, seed: int) -> Subject:
    """Options: ``size`` of the picture in pixels.

    Raises SubjectError where ultralytics cannot load it.
    """
    for name, value in _ALONE.items():
        os.environ.setdefault(name, value)
    side = locator.integer("size")
    height, width = (side, side) if side else _SIZE
    sizes = {"imgsz": side} if side else {}
    # Of this name, its modules have the names that they have from the user's own model.predict, where an artifact goes.
    model = functools.partial(_loaded(locator).predict, device="cpu", verbose=False, save=False, **sizes)

    def predict(image: Any) -> list[dict[str, Any]]:
        """The tensors of what was found: the objects that hold them say nothing that could be compared."""
        return [_tensors(result) for result in model(image)]

    return Subject(ProgramModule(predict), Inputs((picture(height, width, seed),)))


def _tensors(result: Any) -> dict[str, Any]:
    found = {name: getattr(result, name, None) for name in _FOUND}
    return {name: value.data for name, value in found.items() if value is not None}


def _loaded(locator: Spec) -> Any:
    import ultralytics

    try:
        return ultralytics.YOLO(str(locator.path.absolute()))
    except Exception as error:  # foreign code
        raise locator.failed("ultralytics cannot load it", error) from error
