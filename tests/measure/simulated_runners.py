"""A machine that exists only as arithmetic: its clock moves when a fake runner runs. For the tests of this folder."""

from __future__ import annotations

import math
import random
from collections.abc import Callable

from togi.measure import Turn

Noise = Callable[[float], float]
"""Seconds since the start -> factor (at least 1, usually) on every time taken then."""


class SimulatedMachine:
    """Seconds pass only while a runner runs."""

    def __init__(self, noise: Noise = lambda _: 1.0) -> None:
        self.now_s = 0.0
        self.noise = noise

    def clock(self) -> float:
        return self.now_s


class SimulatedRunner:
    """Takes ``ms`` per pass times the machine's noise."""

    def __init__(self, name: str, machine: SimulatedMachine, ms: float = 10.0, raises_at: int | None = None) -> None:
        self.name = name
        self.machine = machine
        self.ms = ms
        self.raises_at = raises_at
        self.turns = 0

    def turn(self, passes: int) -> Turn:
        self.turns += 1
        if self.turns == self.raises_at:
            raise RuntimeError(f"{self.name} broke in turn {self.turns}")
        times, began = [], self.machine.now_s
        for _ in range(passes):
            took_ms = self.ms * self.machine.noise(self.machine.now_s)
            self.machine.now_s += took_ms / 1e3
            times.append(took_ms)
        return Turn(times_ms=tuple(times), passes=passes, wall_s=self.machine.now_s - began)


def gaussian(rng: random.Random, spread: float) -> Noise:
    return lambda _: math.exp(rng.gauss(0.0, spread))


def heavy_tailed(rng: random.Random, spread: float) -> Noise:
    """Pareto tails: now and then a pass takes many times as long."""
    return lambda _: math.exp(abs(rng.gauss(0.0, spread))) * (rng.paretovariate(1.1) if rng.random() < 0.2 else 1.0)


def drifting(rng: random.Random, spread: float) -> Noise:
    """The clock falls by a third over ten seconds, with a ripple on top."""
    return lambda now: (1.0 + 0.5 * min(1.0, now / 10)) * (1 + 0.1 * math.sin(now)) * math.exp(rng.gauss(0.0, spread))


def autocorrelated(rng: random.Random, spread: float, stay: float = 0.995) -> Noise:
    """A slow regime, 3 times as slow, that comes and goes and lasts for many passes."""
    state = {"slow": False}

    def factor(_: float) -> float:
        if rng.random() > stay:
            state["slow"] = not state["slow"]
        return (3.0 if state["slow"] else 1.0) * math.exp(rng.gauss(0.0, spread))

    return factor


NOISES = {"gaussian": gaussian, "heavy-tailed": heavy_tailed, "drifting": drifting, "autocorrelated": autocorrelated}
