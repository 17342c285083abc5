"""What ``togi fit`` found."""

from __future__ import annotations

from togi.core.records import SCHEMA_VERSION, Record
from togi.footprint.fit.plan import Plan


class Point(Record):
    """One plan on the way from fast to small."""

    peak_bytes: int
    """Simulated unless ``measured``; parameters, gradients and optimizer state included."""
    recompute_ms: float
    """Estimated: the operations that run a second time."""
    treatments: int
    step_ms: float | None = None
    """Measured, where it was run."""
    measured: bool = False
    parts: int = 0
    """Inference: how many more module calls a pass takes than the unmodified one, for the modules that are cut."""


class Proof(Record):
    """The planned step against the unmodified one, from equal weights, inputs and random state."""

    exact: bool
    """Loss, every gradient, every buffer and the random state afterwards are equal to the bit."""
    gradients: int
    """How many were compared."""
    differences: tuple[str, ...] = ()
    """What differs, by how much."""
    worst_relative: float = 0.0
    """The largest difference of a gradient, relative to that gradient's root mean square."""
    outputs: int = 0
    """Inference: how many tensors were compared, which are then all there is."""
    units: float = 0.0
    """Inference: the largest error of an output against float64, in multiples of the unmodified module's own."""


class FitResult(Record):
    """The plan, and what is known of it."""

    schema_version: int = SCHEMA_VERSION
    kind: str = "fit"
    subject: str = ""
    device: str = "cpu"
    train: bool = True
    """A training step; else one inference pass."""
    budget_bytes: int
    fits: bool
    """The measured peak is within the budget."""
    plan: Plan
    """Where nothing fits: the one with the lowest peak that was found."""
    plain: Point
    chosen: Point
    front: tuple[Point, ...] = ()
    proof: Proof
    static_bytes: int
    """Parameters, buffers, inputs, optimizer state, and one gradient for each parameter: no plan lowers these."""
    plans_tried: int = 0
    planning_s: float = 0.0
    notes: tuple[str, ...] = ()
