"""Small records for journal tests, and the program that the kill and concurrency tests start."""

from __future__ import annotations

import sys
import time
from typing import Any

from togi.core.records import Choice, Facts, Interval, Machine, Outcome, Recipe, Stage, Study, Timing, Trial
from togi.journal import Journal

KEY = "key-of-a-command"


def machine(**changes: Any) -> Machine:
    fields: dict[str, Any] = {
        "cpu_model": "cpu",
        "cpu_cores": 2,
        "memory_bytes": 2**34,
        "threads": 2,
        "os": "linux",
        "python": "3.11",
        "versions": {"torch": "2.15"},
    }
    return Machine(**{**fields, **changes})


def facts(**changes: Any) -> Facts:
    return Facts(**{"machine": machine(), "module_class": "Net", **changes})


def header(**changes: Any) -> Study:
    return Study(**{"id": "", "subject": "net.py:make", "facts": facts(), "settings": {"seed": 0}, **changes})


def recipe(number: int) -> Recipe:
    return Recipe(choices=(Choice(stage=Stage.RUNTIME, technique="threads", options={"count": number}),))


def trial(number: int, rounds: int = 20) -> Trial:
    timing = Timing(
        latency_ms=Interval(median=1.0 + number, low=0.9 + number, high=1.1 + number),
        speedup_x=Interval(median=1.5, low=1.4, high=1.6),
        rounds_ms=tuple((1.0 + i / 3, 2.0 + i / 7) for i in range(rounds)),
    )
    return Trial(recipe=recipe(number), outcome=Outcome.OK, timing=timing, cost_s=0.5)


def write_forever(path: str) -> None:
    """Appends trials and says after each, on stdout, that it is recorded."""
    log = Journal.open(path).study(KEY, header())
    for number in range(len(log.trials()), 100_000):
        log.append(trial(number))
        print(number, flush=True)


def share_work(path: str, recipes: str) -> None:
    """Claims and does recipes 0..n, like a tune command that runs beside others on one study."""
    log = Journal.open(path).study(KEY, header())
    for number in range(int(recipes)):
        if log.claim(recipe(number)):
            time.sleep(0.002)
            log.append(trial(number))
            print(number, flush=True)


def claim_and_wait(path: str) -> None:
    log = Journal.open(path).study(KEY, header())
    print(log.claim(recipe(1)), flush=True)
    time.sleep(60)


if __name__ == "__main__":
    {"write": write_forever, "share": share_work, "claim": claim_and_wait}[sys.argv[1]](*sys.argv[2:])
