"""Known delays come out as they are, short or long; equal things as equal, and a planted 5 % is found."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from functools import cache, partial
from importlib.util import find_spec
from typing import Any

import torch
from benchmarks.gpu_parts.row import Row, attempt

from togi.core.proven import MarkedPart
from togi.decide.faster import Criterion
from togi.measure import choose_passes, race, take_turn, warm
from togi.subject.inputs import Inputs

DELAYS_MS = (0.05, 0.5, 0.9, 1.0, 5.0)
PLANTED = 0.05
WARMING_S = 0.6
CLOCK = time.perf_counter_ns
"""Of the calls on the CPU and of what times them; the suite replaces it, so that it does not depend on the machine."""


MakeCall = Callable[[float], tuple[Callable[[Any], None], float]]


def busy_call(device: str) -> MakeCall:
    """``busy_call(device)(ms)`` is a call that keeps the device busy for about so long, and for how long: on the CPU by
    the clock; on CUDA by products, timed by events while the queue is full, which is not how the timer takes time."""
    if device == "cpu":

        def spinning(ms: float) -> tuple[Callable[[Any], None], float]:
            def call(_: Any) -> None:
                ends = CLOCK() + int(ms * 1e6)
                while CLOCK() < ends:
                    pass

            return call, ms

        return spinning
    a = torch.randn(512, 512, device=device)
    out = torch.empty_like(a)

    def products(count: int) -> None:
        for _ in range(count):
            torch.mm(a, a, out=out)

    def one_ms() -> float:
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        start.record()
        products(2000)
        end.record()
        torch.cuda.synchronize()
        return float(start.elapsed_time(end)) / 2000

    each_ms = steady(one_ms)

    def working(ms: float) -> tuple[Callable[[Any], None], float]:
        count = max(1, round(ms / each_ms))
        return lambda _: products(count), count * each_ms

    return working


def steady(one_ms: Callable[[], float], clock: Callable[[], float] = time.monotonic) -> float:
    """What it says twice in a row, to 1 %, once the device was busy for as long as the timer keeps it busy before it
    counts: clocks rise for a while, and what was timed before they have is too long. After ten seconds the last."""
    began, last = clock(), one_ms()
    while True:
        now = one_ms()
        taken_s = clock() - began
        if (taken_s >= WARMING_S and abs(now - last) <= 0.01 * last) or taken_s >= 10:
            return now
        last = now


class Here:
    """A runner of this process."""

    def __init__(self, name: str, call: Callable[..., Any], device: str) -> None:
        self.name, self.call, self.device = name, call, device

    def turn(self, passes: int) -> Any:
        return take_turn(self.call, SAMPLES, passes, device=self.device, clock=CLOCK)


SAMPLES = [Inputs((0,))]


def rows(device: str) -> Iterator[Row]:
    """Known delays come out as they are, short or long; equal things as equal, and a planted 5 % is found."""
    make = cache(partial(busy_call, device))
    within = "within 10 % and 0.03 ms, the cost of launching and waiting"
    for wanted_ms in DELAYS_MS:
        name = f"a call of about {wanted_ms:g} ms"
        yield attempt(name, within, known_delay, make, wanted_ms, device, proves=(MarkedPart.TURN,))
    yield attempt(
        "a call of 1 ms, by do_bench", "togi's time within 10 % and 0.03 ms of it", beside_do_bench, make, device
    )
    yield attempt(
        "the same against itself",
        "neither is called faster",
        raced,
        make,
        0.0,
        device,
        proves=(MarkedPart.TURN,),
    )
    yield attempt("5 % planted", "found", raced, make, PLANTED, device, proves=(MarkedPart.TURN,))


def known_delay(make: Callable[[], MakeCall], wanted_ms: float, device: str) -> tuple[bool, str]:
    call, known_ms = make()(wanted_ms)
    found_ms = measured_ms(call, device)
    return abs(found_ms - known_ms) <= 0.1 * known_ms + 0.03, f"{found_ms:.4g} ms, made {known_ms:.4g} ms"


def measured_ms(call: Callable[[Any], None], device: str) -> float:
    warmed = warm(call, SAMPLES, device=device, clock=CLOCK)
    return take_turn(call, SAMPLES, choose_passes(warmed.pass_ms), device=device, clock=CLOCK).pass_ms


def beside_do_bench(make: Callable[[], MakeCall], device: str) -> tuple[bool | None, str]:
    """Triton's timer takes the device's time, between events, with a cold cache; togi's is what the host waits."""
    if device == "cpu" or not find_spec("triton"):
        return None, "do_bench times a device by its events" if device == "cpu" else "triton is not installed"
    from triton.testing import do_bench

    call, known_ms = make()(1.0)
    theirs_ms = float(do_bench(lambda: call(None), return_mode="median"))
    ours_ms = measured_ms(call, device)
    figure = f"{ours_ms:.4g} ms, do_bench {theirs_ms:.4g} ms"
    return abs(ours_ms - theirs_ms) <= 0.1 * known_ms + 0.03, figure


def raced(make: Callable[[], MakeCall], planted: float, device: str) -> tuple[bool, str]:
    (plain, plain_ms), (slower, slower_ms) = make()(2.0), make()(2.0 * (1 + planted))
    criterion = Criterion(process_bias=0.0)
    result = race(
        [Here("plain", plain, device)],
        Here("slower", slower, device),
        budget_s=8.0,
        seed=0,
        criterion=criterion,
        clock=lambda: CLOCK() * 1e-9,
    )
    found = result.entry("plain").speedup_x
    assert found is not None
    figure = f"{found.median:.3f} x ({found.low:.3f} to {found.high:.3f}), made {slower_ms / plain_ms:.3f} x"
    return criterion.faster(found) is bool(planted), figure
