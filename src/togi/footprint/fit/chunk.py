"""One entry of a plan for inference: a module that is called with slices, one after the other. No torch is needed."""

from __future__ import annotations

from togi.core.records import Record

CUT, ONE, ANY = "cut", "1", "any"


class Chunk(Record):
    """A module whose calls are cut along one dimension, because its slices were shown to be independent."""

    module: str
    """Its name, as in ``named_modules()``; empty for the outermost."""
    inputs: dict[str, tuple[str, ...]]
    """Every tensor that it is called with, dimension by dimension: ``cut``; ``1``, where the size was 1 and must be 1
    again, as nothing was shown for others; ``any`` size. A tensor without a ``cut`` goes to every slice whole."""
    outputs: tuple[int, ...]
    """The dimension along which each tensor that it returns is put together."""
    size: int
    """How much of the dimension at a time; what is left over comes last."""
    constants: dict[str, str] = {}
    """What it is called with besides tensors; with other values it runs whole."""
    training: bool = False
    """A part of it was in training mode when slices were shown to be independent."""
    parts: int = 1
    """Into how many the planned call was cut."""

    @property
    def label(self) -> str:
        return self.module or "(whole module)"

    @property
    def where(self) -> str:
        """``dimension 1 of hidden_states``: what is cut."""
        cut = {name: shape.index(CUT) for name, shape in self.inputs.items() if CUT in shape}
        dimensions = sorted(set(cut.values()))
        of = next(iter(cut)) if len(cut) == 1 else "its inputs"
        return f"dimension {' and '.join(map(str, dimensions))} of {of}"
