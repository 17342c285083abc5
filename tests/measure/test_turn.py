import contextlib
import gc
import threading
import time

import pytest

from togi.core.callers import Callers
from togi.machine.nvml import Gpu
from togi.measure import Turn, call_ms_of, choose_passes, noise_of, take_turn, wait_for, warm
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
    assert (turn.cpu_s, turn.machine_s, turn.stolen_s, turn.throttled_s) == (2, 16, 1, 0.5)
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


class Device:
    """Calls return at once; the device works them off, and its time passes when it is waited for."""

    def __init__(self, clock, work_ms):
        self.clock, self.work_ms, self.queued_ns, self.waits = clock, work_ms, 0, []

    def call(self, x):
        self.clock.ns += 1_000
        self.queued_ns += int(self.work_ms * 1e6)

    def synchronize(self):
        self.waits.append(self.queued_ns)
        self.clock.ns += self.queued_ns
        self.queued_ns = 0


@pytest.fixture
def device(monkeypatch):
    def make(work_ms):
        found = Device(FakeClock(), work_ms)
        monkeypatch.setattr("torch.cuda.synchronize", found.synchronize)
        return found

    return make


@pytest.mark.parametrize(("work_ms", "passes"), [(0.02, 3000), (0.9, 67), (0.95, 63), (5.0, 12)])
def test_a_call_on_a_device_is_waited_for_whether_it_is_short_or_long(device, work_ms, passes):
    cuda = device(work_ms)
    turn = take_turn(cuda.call, SAMPLES, passes, clock=cuda.clock, device="cuda")
    assert turn.times_ms == pytest.approx([work_ms + 0.001] * len(turn.times_ms))
    assert max(cuda.waits) <= int(work_ms * 1e6), "never two calls in the queue"


def test_a_device_is_kept_busy_until_its_clock_has_risen(device):
    cuda = device(1.0)
    warmup = warm(cuda.call, SAMPLES[:1], clock=cuda.clock, device="cuda")
    assert warmup.steady
    assert 0.5 <= warmup.wall_s < 0.6
    slow = device(200.0)
    assert warm(slow.call, SAMPLES[:1], clock=slow.clock, device="cuda", limit_s=0.1).passes == 1


@pytest.mark.parametrize("step_ms", [20, 70])
@pytest.mark.parametrize("callers", [None, 3])
def test_the_energy_of_a_call_is_counted_between_steps_of_the_devices_counter(device, step_ms, callers):
    """At 300 W, a call of 1.001 ms takes 0.3 J; the counter is up to ``step_ms`` behind."""
    cuda = device(1.0)

    def counter():
        return cuda.clock.ns // (step_ms * 10**6) * step_ms * 300.0

    together = None if callers is None else OneAfterTheOther(callers)
    warmup = warm(cuda.call, SAMPLES, clock=cuda.clock, device="cuda", callers=together, read_energy=counter)
    assert warmup.energy_mj == pytest.approx(300.3, rel=0.05)


def test_asking_for_the_energy_of_short_calls_is_not_most_of_it(device):
    """A call takes 0.021 ms, a question 0.1 ms."""
    cuda = device(0.02)

    def counter():
        cuda.clock.ns += 100_000
        return cuda.clock.ns // (20 * 10**6) * 20 * 300.0

    warmup = warm(cuda.call, SAMPLES[:1], clock=cuda.clock, device="cuda", read_energy=counter)
    assert warmup.energy_mj == pytest.approx(0.021 * 300, rel=0.1)


class OneAfterTheOther:
    """Callers whose requests take the clock's time, which is not one of threads."""

    def __init__(self, count):
        self.count = count

    def after(self):
        wait_for("cuda")()

    def answer(self, request, count):
        for number in range(count):
            request(number)


@pytest.mark.parametrize("read", [lambda: None, lambda: 5.0, iter([1.0, 2.0, 3.0, *[None] * 1000]).__next__])
def test_energy_is_not_told_where_the_counter_does_not_tell(device, read):
    cuda = device(1.0)
    assert warm(cuda.call, SAMPLES, clock=cuda.clock, device="cuda", read_energy=read).energy_mj is None
    assert warm(_model(FakeClock(), [1.0])[0], SAMPLES, limit_s=0.0).energy_mj is None


def test_what_nvml_says_is_part_of_a_turn_and_of_its_noise(device):
    gpu = Gpu(clock_mhz=1500.0, slowed_by=("heat",), busy=(1, 2), own_pid=1)
    cuda = device(1.0)
    turn = take_turn(cuda.call, SAMPLES, 4, clock=cuda.clock, device="cuda", gpu_state=lambda **_: gpu)
    assert (turn.frequency_mhz, turn.gpu_slowed_by, turn.gpu_neighbours) == (1500.0, ("heat",), ("process 2",))
    calm = turn.model_copy(update={"gpu_slowed_by": (), "gpu_neighbours": ()})
    warned = noise_of([turn, calm]).warnings
    assert "the GPU lowered its clock (heat)" in warned
    assert "other processes computed on the GPU (process 2)" in warned
    assert not any("GPU" in text for text in noise_of([turn, *[calm] * 10]).warnings)


@pytest.mark.gpu
def test_a_call_on_a_gpu_is_waited_for():
    import torch

    if not torch.cuda.is_available():
        pytest.skip("no CUDA device here")
    x = torch.randn(4096, 4096, device="cuda")
    turn = take_turn(torch.mm, [Inputs((x, x))], 3, device="cuda")
    assert all(time_ms > 0.1 for time_ms in turn.times_ms), "without synchronisation a launch takes microseconds"


def sleeping(seconds, lock):
    calls = []

    def call(x):
        calls.append(x)
        with lock:
            time.sleep(seconds)

    return call, calls


def test_callers_at_once_share_the_time_that_they_take():
    call, calls = sleeping(0.05, contextlib.nullcontext())
    turn = take_turn(call, SAMPLES, 1, callers=Callers(4))
    assert sorted(calls) == [1] * 4 + [2] * 4, "every caller, every sample"
    assert all(12.5 <= time_ms < 50 for time_ms in turn.times_ms), "four answers in the time of one"
    assert turn.call_ms >= 50, "which each of them waits for"


def test_callers_that_are_answered_one_after_the_other_wait_for_each_other():
    call, calls = sleeping(0.02, threading.Lock())
    turn = take_turn(call, SAMPLES[:1], 5, callers=Callers(3))
    assert len(calls) == (2 + 5) * 3
    assert all(time_ms >= 20 for time_ms in turn.times_ms)
    assert turn.call_ms >= 35, "a call waits for those that came before"
    assert turn.waiting_s == 0, "for a core: that is what is measured"


def test_callers_are_warmed_up_together_after_a_first_call_alone():
    call, calls = sleeping(0.02, contextlib.nullcontext())
    warmup = warm(call, SAMPLES[:1], callers=Callers(3), limit_s=0.0)
    assert len(calls) == 1 + 3
    assert 20 <= warmup.pass_ms < 60


def test_what_a_call_takes_among_others_is_that_of_the_turns_in_the_middle():
    def turn(call_ms):
        return Turn(times_ms=(1.0,), passes=1, wall_s=1, call_ms=call_ms)

    assert call_ms_of([turn(5.0), turn(90.0), turn(7.0)]) == 7.0
    assert call_ms_of([turn(None)]) is None
