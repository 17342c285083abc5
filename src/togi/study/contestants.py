"""Those that a comparison compares, and what was measured of each."""

from __future__ import annotations

from togi.core.records import ErrorReport, Footprint, Interval, Outcome, Record
from togi.decide.faster import BETWEEN_PROCESSES, WITHIN_PROCESS, Speed, inverse


class Contestant(Record):
    """One subject or artifact of a comparison."""

    name: str
    batch: int | None = None
    """How many samples each of its calls had; None: those that it was given."""
    outcome: Outcome = Outcome.OK
    reason: str = ""
    """Why it could not be compared, or what is worth knowing of it."""
    latency_ms: Interval | None = None
    """Of one call; of several callers, between two answers."""
    call_ms: float | None = None
    """Of several callers: what one call takes next to the others (95 of 100 at most)."""
    samples_per_s: Interval | None = None
    """Where ``batch`` is known: by all callers together."""
    speedup_x: Interval | None = None
    """The first contestant's time over this one's, per round (of calls of the same batch size); above 1 is faster than
    the first."""
    error: ErrorReport | None = None
    """How far its outputs are from the first contestant's, where both were given the same inputs."""
    footprint: Footprint | None = None
    phases_ms: dict[str, float] = {}
    """Of a training step, by phase (``togi.core.records.PHASES``): the median of a few passes that all take in turns
    after the race. Empty: it is of calls."""
    own_process: bool = True
    """It ran in a process of its own, which may differ from others for as long as it lives. False: a live object."""

    @property
    def label(self) -> str:
        """Unique in a comparison."""
        return self.name if self.batch is None else f"{self.name}, batch {self.batch}"

    @property
    def speed(self) -> Speed | None:
        """What ``speedup_x`` allows to say; None where it was not compared."""
        criterion = BETWEEN_PROCESSES if self.own_process else WITHIN_PROCESS
        return None if self.speedup_x is None else criterion.speed(self.speedup_x)

    @property
    def firsts_speed_x(self) -> Interval | None:
        """How many times as fast as this one the first contestant is. None: not measured."""
        return None if self.speedup_x is None else inverse(self.speedup_x)

    @property
    def waited_ms(self) -> float | None:
        """How long a caller waits for an answer."""
        if self.call_ms is not None or self.latency_ms is None:
            return self.call_ms
        return self.latency_ms.median


class BestSize(Record):
    """The batch size at which one contestant answers the most samples a second within the limit."""

    name: str
    batch: int | None = None
    """Of several that are as fast the smallest, which answers soonest. None: no size was measured within the limit."""
    same: tuple[int, ...] = ()
    """Sizes that are as fast."""
    unclear: tuple[int, ...] = ()
    """Sizes that cannot be distinguished from it on this machine now."""
    verdict: str
    """That in a sentence."""
