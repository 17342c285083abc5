"""The result of ``togi fit``: the plan with its figures, the proof, and the plans besides it."""

from __future__ import annotations

from togi.core.quantities import size
from togi.core.records import Interval, Record
from togi.footprint.fit.plan import PLAN_VERSION, Plan


class Point(Record):
    """One plan on the way from fast to small."""

    peak_bytes: int
    """Parameters, gradients and optimizer state included."""
    recompute_ms: float
    """Estimated: what the plan adds to a step. In training the operations that run a second time."""
    changes: int
    """How many results (training) or modules (inference) are not left as they are."""
    step_ms: float | None = None
    """Measured, where it was timed."""
    measured: bool = False
    parts: int = 0
    """Inference: how many more module calls a pass takes than the unmodified one, for the modules that are cut."""


class StepProof(Record):
    """The planned step against the unmodified one, from equal weights, inputs and random state."""

    exact: bool
    """Equal to the bit. Training: loss, every gradient, every buffer and the random state afterwards; inference: every
    output."""
    within_noise: bool = False
    """Training: it differs by no more than runs of the unmodified step, which sums in another order each time, do."""
    gradients: int = 0
    """Training: how many were compared."""
    differences: tuple[str, ...] = ()
    """What differs, by how much."""
    worst_relative: float = 0.0
    """Training: the largest difference of a gradient, relative to that gradient's root mean square."""
    outputs: int = 0
    """Inference: how many tensors were compared, which are then all there is."""
    units: float = 0.0
    """Inference: the largest error of an output against float64, in multiples of the unmodified module's own."""


class FitResult(Record):
    """The plan, and what is known of it. ``print`` says it in a line."""

    schema_version: int = PLAN_VERSION
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
    speedup_x: Interval | None = None
    """The unmodified step's time over the planned one's, in rounds of turns; None where there is no plan, or it was not
    timed."""
    proof: StepProof
    static_bytes: int
    """Parameters, buffers, inputs and optimizer state; in training also one gradient for each parameter, in inference
    also the outputs."""
    floor_bytes: int
    """What no plan lowers: in training what the program itself holds at its worst moment with nothing kept for the
    backward pass, in inference ``static_bytes``."""
    plans_tried: int = 0
    planning_s: float = 0.0
    notes: tuple[str, ...] = ()

    def __str__(self) -> str:
        budget, peak, plain = size(self.budget_bytes), size(self.chosen.peak_bytes), size(self.plain.peak_bytes)
        if not self.fits:
            return f"does not fit {budget}: the least that was found is {peak} (unmodified: {plain})"
        if not self.chosen.changes and self.plan.micro_batches == 1:
            return f"fits {budget} as it is: peak {peak}"
        rounding = not self.train or self.proof.within_noise
        proof = "equal to the bit" if self.proof.exact else "equal up to rounding" if rounding else "approximate"
        return f"fits {budget}: peak {peak} instead of {plain}, {proof}; {self.plan}"
