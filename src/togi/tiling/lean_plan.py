"""The plan of a function under ``togi.lean``: what was decided, with its figures."""

from __future__ import annotations

from togi.core.quantities import size
from togi.core.records import Record


class LeanPlan(Record):
    """One plan. Bytes count what a call allocates, its result included."""

    strategy: str
    """``streamed``: in tiles. ``whole``: the function as it is, since it fits. ``as it is``: it cannot be streamed."""
    reason: str = ""
    """Why it is not streamed."""
    budget_bytes: int
    result_bytes: int | None = None
    peak_before_bytes: int | None = None
    """Of the plain function: modelled from its graph, so at least this."""
    peak_after_bytes: int | None = None
    peak_after_measured: bool = False
    loops: tuple[str, ...] = ()
    proof: str = ""
    shapes: tuple[tuple[int, ...], ...] = ()
    """Of the tensors that these figures are for."""

    def __str__(self) -> str:
        given = ", ".join(" x ".join(map(str, shape)) or "scalar" for shape in self.shapes)
        lines = [f"strategy     {self.strategy}" + (f": {self.reason}" if self.reason else "")]
        lines += [f"given        {given}"] if given else []
        lines.append(f"budget       {size(self.budget_bytes)}")
        if self.result_bytes is not None:
            lines.append(f"result       {size(self.result_bytes)}")
        if self.peak_before_bytes is not None:
            lines.append(f"peak before  {size(self.peak_before_bytes)} or more (the plain function, modelled)")
        if self.peak_after_bytes is not None:
            how = "measured" if self.peak_after_measured else "modelled"
            lines.append(f"peak after   {size(self.peak_after_bytes)} ({how}, result included)")
        lines += [f"loop {i}       {loop}" for i, loop in enumerate(self.loops, start=1)]
        lines += [f"proof        {self.proof}"] if self.proof else []
        return "\n".join(lines)

    __repr__ = __str__
