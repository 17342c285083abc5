"""The noise of a measurement, in numbers and sentences: spread, waiting, stolen time, neighbours, throttling; on a CUDA
device its own clocks and neighbours, where NVML tells.

It judges turns that have been taken. What to do about it (measure longer, call the trial unstable) is the caller's.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from togi.core.records import Noise
from togi.measure.turn import Turn

WARN_SPREAD = 0.10
WARN_WAITING = 0.10
WARN_STOLEN = 0.02
WARN_NEIGHBOURS = 0.25
WARN_THROTTLED = 0.01
WARN_FREQUENCY = 0.90
"""Clock of the slowest quarter of the turns, relative to the fastest turn's."""

WARN_SLOWED = 0.10
"""Share of the turns in which the device ran below its clock, or was shared."""

UNUSABLE_SPREAD = 1.0
UNUSABLE_STOLEN = 0.25


def noise_of(turns: Sequence[Turn]) -> Noise:
    """The noise of one candidate's turns; of no turns at all: a ``Noise`` that warns of just that."""
    if not turns:
        return Noise(warnings=("there is no finished turn to judge",))
    wall_s = sum(turn.wall_s for turn in turns)
    noise = Noise(
        spread=_spread([time for turn in turns for time in turn.times_ms]),
        waiting=_share(sum(t.waiting_s for t in turns), sum(t.waiting_s + t.cpu_s for t in turns)),
        stolen=_share(sum(t.stolen_s for t in turns), sum(t.machine_s for t in turns)),
        neighbours=max(0.0, sum(t.neighbours_s for t in turns)) / wall_s if wall_s > 0 else 0.0,
    )
    throttled = _share(sum(t.throttled_s for t in turns), wall_s)
    clocks = [t.frequency_mhz for t in turns if t.frequency_mhz]
    return noise.model_copy(update={"warnings": (*_warnings(noise), *_throttling(throttled, clocks), *_gpu(turns))})


def usable(noise: Noise) -> bool:
    """Whether anything may be concluded from it: half of the times within their median, and the machine mostly ours.

    Lenient on purpose: decisions rest on paired ratios, whose interval grows with the noise. This says where even that
    would only waste time.
    """
    return noise.spread <= UNUSABLE_SPREAD and noise.stolen <= UNUSABLE_STOLEN


def why_unusable(noise: Noise) -> str:
    """What there is too much of, in words."""
    if noise.stolen > UNUSABLE_STOLEN and noise.spread <= UNUSABLE_SPREAD:
        return f"the hypervisor took {noise.stolen:.0%} of the machine's time"
    return f"times vary by {noise.spread:.0%}"


def undisturbed(noise: Noise) -> bool:
    """Whether nobody else had the processor: where it was slower all the same, its own clock is."""
    shared = noise.waiting > WARN_WAITING or noise.stolen > WARN_STOLEN or noise.neighbours > WARN_NEIGHBOURS
    return not shared


def _warnings(noise: Noise) -> list[str]:
    sentences = []
    if noise.spread > WARN_SPREAD:
        sentences.append(f"times vary by {noise.spread:.0%} (interquartile range over median)")
    if noise.waiting > WARN_WAITING:
        sentences.append(f"threads waited for a core {noise.waiting:.0%} of the time in which they could have run")
    if noise.stolen > WARN_STOLEN:
        sentences.append(f"the hypervisor took {noise.stolen:.0%} of the machine's time")
    if noise.neighbours > WARN_NEIGHBOURS:
        sentences.append(f"other processes kept {noise.neighbours:.1f} cores busy")
    return sentences


def _throttling(throttled: float, clocks: Sequence[float]) -> list[str]:
    sentences = []
    if throttled > WARN_THROTTLED:
        sentences.append(f"the control group's CPU quota stopped it {throttled:.0%} of the time")
    if len(clocks) >= 4:
        slow = sorted(clocks)[(len(clocks) - 1) // 4]
        if slow < WARN_FREQUENCY * max(clocks):
            sentences.append(f"the clock fell from {max(clocks):.0f} to {slow:.0f} MHz (heat, power limit or governor)")
    return sentences


def _gpu(turns: Sequence[Turn]) -> list[str]:
    """What more than one turn in ten says of the device: single ones meet a power limit that does not matter."""

    def often(texts: list[str]) -> list[str]:
        return [text for text in dict.fromkeys(texts) if texts.count(text) > WARN_SLOWED * len(turns)]

    slowed = often([reason for turn in turns for reason in turn.gpu_slowed_by])
    others = often([name for turn in turns for name in turn.gpu_neighbours])
    return [
        *([f"the GPU lowered its clock ({', '.join(slowed)})"] if slowed else []),
        *([f"other processes computed on the GPU ({', '.join(others)})"] if others else []),
    ]


def _spread(times: Sequence[float]) -> float:
    if len(times) < 4:
        return 0.0
    low, middle, high = statistics.quantiles(times, n=4)
    return (high - low) / middle if middle > 0 else 0.0


def _share(part: float, whole: float) -> float:
    return min(1.0, max(0.0, part / whole)) if whole > 0 else 0.0
