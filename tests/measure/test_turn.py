import gc

import pytest

from togi.measure import Turn, choose_passes, take_turn, warm
from togi.measure.counters import Counters
from togi.subject.inputs import Inputs

SAMPLES = [Inputs((1,)), Inputs((), {"x": 2})]


class FakeClock:
    """Nanoseconds that pass only when a call takes them."""

    def __init__(self) -> None:
        self.ns = 0

    def __call__(self) -> int:
        return self.ns


def _model(clock: FakeClock, costs_ms):
    """Each call takes the next of ``costs_ms``, the last one for ever after."""
    costs, calls = list(costs_ms), []

    def call(x):
        calls.append(x)
        clock.ns += int((costs.pop(0) if len(costs) > 1 else costs[0]) * 1e6)

    return call, calls


def _counters(*readings):
    rest = iter(readings)
    return lambda: next(rest)


def _reading(k: float) -> Counters:
    waiting = {"1": int(k * 1e9), "2": int(k * 2e9)} if k > 1 else {"1": int(k * 1e9)}
    return Counters(
        cpu_s=k,
        waiting_ns=waiting,
        involuntary=int(k),
        busy_s=3 * k,
        machine_s=8 * k,
        stolen_s=k / 2,
        throttled_s=k / 4,
    )


def test_times_are_per_sample_and_every_pass_takes_all_samples():
    clock = FakeClock()
    call, calls = _model(clock, [4.0])
    turn = take_turn(call, SAMPLES, 3, clock=clock)
    assert turn.times_ms == (4.0, 4.0, 4.0)
    assert turn.wall_s == pytest.approx(0.024)
    assert calls == [1, 2] * 5, "two untimed passes first, as caches are cold"


def test_a_single_long_pass_is_not_run_twice():
    clock = FakeClock()
    call, calls = _model(clock, [100.0])
    assert take_turn(call, SAMPLES, 1, clock=clock).passes == 1
    assert calls == [1, 2]


def test_untimed_passes_are_not_counted():
    clock = FakeClock()
    call, _ = _model(clock, [900.0, 900.0, 5.0])
    assert take_turn(call, SAMPLES[:1], 4, clock=clock).times_ms == (5.0,) * 4


def test_short_passes_are_timed_several_at_once_and_none_is_lost():
    clock = FakeClock()
    call, calls = _model(clock, [0.01])
    turn = take_turn(call, SAMPLES[:1], 1000, clock=clock)
    assert len(turn.times_ms) == 64
    assert len(calls) == 1002
    assert turn.times_ms == pytest.approx((0.01,) * 64)


def test_counters_are_differences_and_new_threads_count_in_full():
    clock = FakeClock()
    call, _ = _model(clock, [10.0])
    turn = take_turn(call, SAMPLES, 1, clock=clock, counters=_counters(_reading(1), _reading(3)))
    assert (turn.cpu_s, turn.involuntary, turn.machine_s, turn.stolen_s, turn.throttled_s) == (2, 2, 16, 1, 0.5)
    assert turn.waiting_s == pytest.approx(2 + 6)
    assert turn.neighbours_s == pytest.approx(6 - 2)


def test_the_number_of_a_turn_is_its_lower_quartile():
    assert Turn(times_ms=(9.0, 1.0, 2.0, 3.0, 80.0), passes=5, wall_s=1).pass_ms == 2.0
    assert Turn(times_ms=(9.0, 8.0), passes=2, wall_s=1).pass_ms == 8.0
    assert Turn(times_ms=(9.0,), passes=1, wall_s=1).pass_ms == 9.0


def test_garbage_collection_pauses_and_comes_back_also_after_an_error():
    clock, seen = FakeClock(), []

    def call(*_, **__):
        seen.append(gc.isenabled())
        clock.ns += 1
        if len(seen) > 1:
            raise RuntimeError("broken model")

    with pytest.raises(RuntimeError, match="broken model"):
        take_turn(call, SAMPLES, 1, clock=clock)
    assert seen == [False, False]
    assert gc.isenabled()


def test_a_turn_survives_json():
    clock = FakeClock()
    turn = take_turn(_model(clock, [4.0])[0], SAMPLES, 3, clock=clock)
    assert Turn.from_json(turn.to_json()) == turn


def test_warm_up_goes_on_while_times_fall():
    clock = FakeClock()
    call, calls = _model(clock, [500.0, 100.0, 50.0, 40.0, 20.0, 10.0])
    warmup = warm(call, SAMPLES[:1], clock=clock)
    assert (warmup.first_call_ms, warmup.pass_ms, warmup.steady) == (500.0, 10.0, True)
    assert warmup.passes == 5 + 5
    assert len(calls) == 1 + warmup.passes


def test_warm_up_is_bounded_in_time():
    clock = FakeClock()
    call, _ = _model(clock, [1000.0 * 0.9**k for k in range(200)])
    warmup = warm(call, SAMPLES[:1], limit_s=3.0, clock=clock)
    assert not warmup.steady
    assert 4.0 <= warmup.wall_s < 5.0  # 1 s of it is the first call


def test_warm_up_runs_every_sample_once_even_beyond_its_limit():
    clock = FakeClock()
    call, calls = _model(clock, [60_000.0])
    warmup = warm(call, SAMPLES, limit_s=1.0, clock=clock)
    assert calls == [1, 1, 2]
    assert (warmup.passes, warmup.steady) == (1, False)


@pytest.mark.parametrize(("pass_ms", "passes"), [(10.0, 6), (59.0, 1), (500.0, 1), (0.5, 120), (0.0, 600_000)])
def test_passes_make_a_turn_of_sixty_milliseconds(pass_ms, passes):
    assert choose_passes(pass_ms) == passes


@pytest.mark.gpu
def test_device_time_is_taken_between_events():
    import torch

    if not torch.cuda.is_available():
        pytest.skip("no CUDA device here")
    x = torch.randn(4096, 4096, device="cuda")
    turn = take_turn(torch.mm, [Inputs((x, x))], 3, device="cuda")
    assert all(time_ms > 0.1 for time_ms in turn.times_ms), "without synchronisation a launch takes microseconds"
