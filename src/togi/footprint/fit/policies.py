"""The entries of a plan: what autograd saves of a training step, and which module calls of an inference pass are cut.

No torch is needed to read them.
"""

from __future__ import annotations

from togi.core.backports import StrEnum
from togi.core.records import Record

CUT, ONE, ANY = "cut", "1", "any"


class Action(StrEnum):
    """The treatment of one result of the forward pass."""

    RECOMPUTE = "recompute"
    """Not kept; recomputed when the backward pass asks for it. Exact to the bit."""
    KEEP = "keep"
    """Kept, although autograd does not ask for it, because others are recomputed from it. Exact."""
    BITS = "bits"
    """A mask is kept as one bit for each element. Exact."""
    NARROW = "narrow"
    """float32 is kept as bfloat16. Approximate: gradients change a little."""


class SavePolicy(Record):
    """The treatment of one result of the forward pass of a training step."""

    value: str
    """Operator and number of its call: ``aten.convolution.default#2`` is what the third convolution of a forward pass
    returned, ``aten.native_batch_norm.default#0.1`` the second result of the first batch norm, and ``.w0`` at the end
    what an operation wrote into its argument 0."""
    module: str
    """The module that computed it, as in ``named_modules()``; empty for the outermost."""
    action: Action = Action.RECOMPUTE
    bytes: int = 0
    recompute_ms: float = 0.0
    """Measured: the operation that makes it."""


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
