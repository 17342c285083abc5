"""The claim that a process is faster when malloc keeps what it frees."""

from __future__ import annotations

import statistics
import subprocess
import time
from collections.abc import Sequence
from typing import Any, ClassVar

from togi.claims.claim import Claim, ClaimVerdict, Measured, MeasuredClaim
from togi.core.interpreter import python
from togi.core.quantities import last_line
from togi.decide.faster import BETWEEN_PROCESSES

_ATOMS, _BONDS, _WIDTH = 800, 3_200, 256
_PROCESSES = 3
_SECONDS = 1.5

LEFT_ALONE = "malloc left alone"
KEEPING = "malloc keeps what is freed"


class KeepFreedMemory(Claim):
    """A process is said to be faster when malloc keeps freed memory for its next call.

    What is claimed: glibc gives large blocks, and the top of its heap, back to the system when they are freed. The next
    call gets them as empty pages, one fault for every 4 KiB. Telling malloc to keep them (``mallopt``, or the variables
    ``MALLOC_TRIM_THRESHOLD_`` and ``MALLOC_MMAP_THRESHOLD_``) saves that.

    What is measured: messages along the bonds of a graph, as graph attention computes them (intermediates of 3 MB, each
    used once), in processes that leave malloc alone and in processes that keep, in turns.

    What is known: a process that leaves malloc alone settles in one of two states by the order of its first
    allocations, so some gain nothing. A graph network called as a whole became 1.8 and 2.3 times as fast, MobileNetV3
    in eager mode 1.3 times, networks of large matrix products not measurably. Engines that plan their own memory gain
    nothing. A process that keeps does not shrink after a peak. All of togi's measurements keep, and ``togi.load`` does
    (``keep_memory=False`` does not), so that what was proven is what runs.

    Source: mallopt(3); https://docs.pytorch.org/tutorials/recipes/recipes/tuning_guide.html (on jemalloc and tcmalloc,
    which keep it by themselves).
    """

    id: ClassVar[str] = "keep-freed-memory"

    def prove(self) -> MeasuredClaim:
        times: dict[str, list[float]] = {LEFT_ALONE: [], KEEPING: []}
        notes: dict[str, str] = {}
        for _ in range(_PROCESSES):
            for name, times_ms in times.items():
                code = f"from {__name__} import pass_ms; print(pass_ms(keep={name == KEEPING}))"
                done = subprocess.run(python(code), capture_output=True, text=True)
                if done.returncode:
                    notes[name] = last_line(done.stderr) or "it failed"
                else:
                    times_ms.append(float(done.stdout.split()[-1]))
        rows = tuple(
            Measured(name=name, median_ms=statistics.median(times_ms) if times_ms else None, note=notes.get(name, ""))
            for name, times_ms in times.items()
        )
        setting = (
            f"{_ATOMS:,} atoms, {_BONDS:,} bonds, {_WIDTH} float32 values each; {_PROCESSES} processes of each kind"
        )
        return MeasuredClaim(
            claim=self.id, setting=setting, rows=rows, **judge(times[LEFT_ALONE], times[KEEPING], notes)
        )


def judge(left_alone: Sequence[float], keeping: Sequence[float], notes: dict[str, str]) -> dict[str, Any]:
    """Verdict and sentence from the times of each kind of process, in ms."""
    if notes or not left_alone or not keeping:
        return {"verdict": ClaimVerdict.UNTESTED, "sentence": f"It did not run here: {'; '.join(notes.values())}."}
    gain_x = statistics.median(left_alone) / statistics.median(keeping)
    sentence = (
        f"{statistics.median(left_alone):.2f} ms where malloc is left alone ({_spread(left_alone)}), "
        f"{statistics.median(keeping):.2f} ms where it keeps ({_spread(keeping)}): {gain_x:.2f} x."
    )
    if gain_x > BETWEEN_PROCESSES.band_x:
        apart = min(left_alone) > BETWEEN_PROCESSES.band_x * max(keeping)
        verdict = ClaimVerdict.HOLDS if apart else ClaimVerdict.HOLDS_IN_PART
    elif max(left_alone) <= BETWEEN_PROCESSES.band_x * min(keeping):
        verdict = ClaimVerdict.REFUTED
    else:
        verdict = ClaimVerdict.UNTESTED
        sentence += " The processes overlap, so the figures do not decide. Repeat it when the machine is quiet."
    return {"verdict": verdict, "sentence": sentence}


def _spread(times_ms: Sequence[float]) -> str:
    return f"{min(times_ms):.2f} to {max(times_ms):.2f}"


def pass_ms(*, keep: bool) -> float:
    """The median time of a pass in this process, which should be a fresh one. Raises RuntimeError if malloc has
    no such setting."""
    import torch

    from togi.measure import keep_freed_memory

    if keep and not keep_freed_memory():
        raise RuntimeError("malloc's thresholds cannot be set here: another C library, or variables that set them")
    generator = torch.Generator().manual_seed(0)
    atoms = torch.randn(_ATOMS, _WIDTH, generator=generator)
    ends = torch.randint(0, _ATOMS, (2, _BONDS), generator=generator)
    times_ms: list[float] = []
    with torch.no_grad():
        until = time.monotonic() + _SECONDS
        while time.monotonic() < until or len(times_ms) < 10:
            started = time.perf_counter()
            messages = torch.nn.functional.leaky_relu(atoms[ends[0]] + atoms[ends[1]], 0.2)
            weights = messages.sum(dim=1, keepdim=True).sigmoid()
            torch.zeros_like(atoms).index_add_(0, ends[1], atoms[ends[0]] * weights)
            times_ms.append((time.perf_counter() - started) * 1e3)
    return statistics.median(times_ms[len(times_ms) // 3 :])
