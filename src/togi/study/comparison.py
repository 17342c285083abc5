"""The result of ``togi bench A B ...``: contestants that took turns on the same inputs, compared with the first."""

from __future__ import annotations

from togi.core.records import SCHEMA_VERSION, ErrorReport, Footprint, Interval, Machine, Noise, Outcome, Record


class Contestant(Record):
    """One subject or artifact of a comparison."""

    name: str
    outcome: Outcome = Outcome.OK
    reason: str = ""
    """Why it could not be compared, or what is worth knowing of it."""
    latency_ms: Interval | None = None
    speedup_x: Interval | None = None
    """The first contestant's time over this one's, per round; above 1 is faster than the first."""
    error: ErrorReport | None = None
    """How far its outputs are from the first contestant's, where both were given the same inputs."""
    footprint: Footprint | None = None


class Comparison(Record):
    """All contestants, the first being the one that the others are compared with."""

    schema_version: int = SCHEMA_VERSION
    contestants: tuple[Contestant, ...]
    verdict: str = ""
    """One sentence: which is faster, by how much, or that it cannot be told on this machine now."""
    machine: Machine
    noise: Noise = Noise()
    rounds: int = 0
    notes: tuple[str, ...] = ()
