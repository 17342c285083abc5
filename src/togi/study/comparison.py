"""The results of ``togi bench A B ...`` (contestants that took turns on the same inputs) and of ``togi verify``."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from pydantic import ValidationError

from togi.core.errors import SubjectError
from togi.core.quantities import bounds, percent, times
from togi.core.records import SCHEMA_VERSION, ErrorReport, Footprint, Interval, Machine, Noise, Outcome, Record
from togi.decide.faster import PROCESS_BIAS, Criterion, change


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
    """Of several callers: what one call takes beside the others (95 of 100 at most)."""
    samples_per_s: Interval | None = None
    """Where ``batch`` is known: by all callers together."""
    speedup_x: Interval | None = None
    """The first contestant's time over this one's, per round (of calls of the same batch size); above 1 is faster than
    the first."""
    error: ErrorReport | None = None
    """How far its outputs are from the first contestant's, where both were given the same inputs."""
    footprint: Footprint | None = None

    @property
    def label(self) -> str:
        """Unique in a comparison."""
        return self.name if self.batch is None else f"{self.name}, batch {self.batch}"

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
    """Sizes that cannot be told from it on this machine now."""
    verdict: str
    """That in a sentence."""


class Comparison(Record):
    """All contestants, the first being the one that the others are compared with."""

    schema_version: int = SCHEMA_VERSION
    contestants: tuple[Contestant, ...]
    verdict: str = ""
    """One sentence: which is faster, by how much, or that it cannot be told on this machine now."""
    machine: Machine
    noise: Noise = Noise()
    rounds: int = 0
    callers: int = 1
    """How many called at once."""
    batch_sizes: tuple[int, ...] = ()
    """Where throughput over batch sizes was asked for: each contestant is there once for each of them."""
    max_latency_s: float | None = None
    """What a call of the best size may take."""
    best: tuple[BestSize, ...] = ()
    """Of each contestant, where there are batch sizes."""
    notes: tuple[str, ...] = ()


class Verification(Record):
    """What a proof came to."""

    schema_version: int = SCHEMA_VERSION
    artifact: str
    subject: str
    """The locator of the original beside which it was verified and measured."""
    proven: bool
    """It is right, and as fast as it must be (``verdict`` says which of them it is not)."""
    outcome: Outcome
    """``ok`` where it is right, else how it failed."""
    verdict: str
    proven_speedup_x: Interval | None = None
    """What it was when the artifact was made."""
    comparison: Comparison
    """The original under ``no_grad``, then the artifact."""


def read_comparison(path: Path) -> Comparison:
    """What ``togi bench --json`` wrote. Raises SubjectError where the file holds something else."""
    try:
        document = json.loads(path.read_bytes())
        kind = document.pop("kind", None) if isinstance(document, dict) else None
        if kind != "comparison":
            raise SubjectError(f"{path} holds no comparison: write one with 'togi bench A B --json > {path}'")
        return Comparison.model_validate_json(json.dumps(document))
    except (ValueError, ValidationError) as error:
        raise SubjectError(
            f"{path} cannot be read as a comparison ({str(error).splitlines()[0]}): write it again with "
            f"'togi bench A B --json > {path}'"
        ) from None


def slowdowns(found: Comparison, share: float, before: Comparison | None = None) -> dict[str, str]:
    """Who is slower by more than ``share`` beyond doubt: by name, a sentence each.

    Than the first contestant; with ``before``, than in that earlier comparison: there too speed-ups over the first are
    compared, since the milliseconds of two runs are not.

    Raises SubjectError where ``before`` compared others, or did not measure one of them.
    """
    if before is not None and _names(found) != _names(before):
        raise SubjectError(
            f"the earlier comparison is of {', '.join(_names(before))}, and this one of {', '.join(_names(found))}: "
            "compare the same in the same order"
        )
    if before is not None and (unknown := [each.name for each in before.contestants[1:] if each.speedup_x is None]):
        raise SubjectError(
            f"the earlier comparison did not measure {unknown[0]}, so nothing can be slower than it was: make it again"
        )
    return dict(_slowdowns(found, share, before))


def _slowdowns(found: Comparison, share: float, before: Comparison | None) -> Iterator[tuple[str, str]]:
    earlier = {} if before is None else {contestant.name: contestant for contestant in before.contestants}
    # each of the two comparisons has processes of its own
    criterion = Criterion(margin=share, process_bias=PROCESS_BIAS * (1 if before is None else 2))
    for contestant in found.contestants[1:]:
        if contestant.speedup_x is None:
            continue
        was = earlier[contestant.name].speedup_x if earlier else None
        ratio = contestant.speedup_x if was is None else change(contestant.speedup_x, was)
        if criterion.slower(ratio):
            than = f"{found.contestants[0].name}" if before is None else "it was"
            yield (
                contestant.name,
                f"{contestant.name} is slower than {than} by more than {percent(share)} beyond doubt: "
                f"{times(ratio.median)} the speed ({bounds(ratio)})",
            )


def _names(comparison: Comparison) -> list[str]:
    return [contestant.name for contestant in comparison.contestants]
