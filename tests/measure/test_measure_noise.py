import pytest

from togi.core.records import Noise
from togi.measure import Turn, noise_of, usable, why_unusable


def _turns(count: int = 20, times=(10.0, 10.1, 10.2, 10.3), **changes) -> list[Turn]:
    quiet = {"times_ms": times, "passes": 4, "wall_s": 0.04, "cpu_s": 0.08, "machine_s": 0.08}
    return [Turn(**(quiet | changes)) for _ in range(count)]


def test_a_quiet_machine_has_nothing_to_say():
    noise = noise_of(_turns())
    assert noise.warnings == ()
    assert noise.spread < 0.05
    assert usable(noise)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"times": (10.0, 10.0, 14.0, 15.0)}, "times vary by"),
        ({"waiting_s": 0.08}, "waited for a core 50%"),
        ({"stolen_s": 0.008}, "hypervisor took 10%"),
        ({"neighbours_s": 0.04}, "kept 1.0 cores busy"),
        ({"throttled_s": 0.02}, "quota stopped it 50%"),
    ],
)
def test_every_disturbance_has_its_sentence(changes, said):
    noise = noise_of(_turns(**changes))
    assert [warning for warning in noise.warnings if said in warning]
    assert len(noise.warnings) == 1


def test_a_falling_clock_is_named():
    turns = _turns(8, frequency_mhz=3000.0) + _turns(8, frequency_mhz=2000.0)
    assert noise_of(turns).warnings == ("the clock fell from 3000 to 2000 MHz (heat, power limit or governor)",)


def test_ticks_that_overshoot_in_single_turns_cancel_out():
    turns = [turn.model_copy(update={"neighbours_s": sign * 0.01}) for turn in _turns() for sign in (1, -1)]
    assert noise_of(turns).neighbours == 0.0


def test_chaos_and_a_stolen_machine_are_not_usable():
    assert not usable(noise_of(_turns(times=(10.0, 11.0, 60.0, 100.0))))
    assert not usable(noise_of(_turns(stolen_s=0.04)))


def test_what_makes_it_unusable_is_named():
    assert why_unusable(noise_of(_turns(stolen_s=0.04))) == "the hypervisor took 50% of the machine's time"
    assert "times vary by" in why_unusable(noise_of(_turns(times=(10.0, 11.0, 60.0, 100.0), stolen_s=0.04)))


def test_no_turns_is_reported():
    assert noise_of([]).warnings == ("there is no finished turn to judge",)


@pytest.mark.parametrize(
    ("at", "above"),
    [
        ({"waiting_s": 0.1, "cpu_s": 0.9}, {"waiting_s": 0.11, "cpu_s": 0.89}),
        ({"stolen_s": 0.02, "machine_s": 1.0}, {"stolen_s": 0.021, "machine_s": 1.0}),
        ({"neighbours_s": 0.25, "wall_s": 1.0}, {"neighbours_s": 0.26, "wall_s": 1.0}),
        ({"throttled_s": 0.01, "wall_s": 1.0}, {"throttled_s": 0.011, "wall_s": 1.0}),
    ],
)
def test_a_warning_comes_above_its_limit(at, above):
    assert noise_of(_turns(1, **at)).warnings == ()
    assert len(noise_of(_turns(1, **above)).warnings) == 1


def test_spread_is_the_interquartile_range_over_the_median():
    assert noise_of(_turns(1, times=(9.0, 10.0, 11.0))).spread == 0.0  # too few to say
    assert noise_of(_turns(1, times=(8.0, 9.0, 10.0, 11.0, 12.0))).spread == pytest.approx(0.3)
    assert noise_of(_turns(1, times=(9.0, 9.5, 10.0, 10.5, 10.5))).warnings == (
        "times vary by 12% (interquartile range over median)",
    )
    assert noise_of(_turns(1, times=(0.0, 0.0, 0.0, 0.0))).spread == 0.0


def test_shares_are_of_what_was_available():
    """Of 1.2 s of wall time, in which the machine's two cores had 2.4 s, over two turns of different length."""
    one = {"times": (1.0,), "wall_s": 0.4, "cpu_s": 0.3, "machine_s": 0.8, "neighbours_s": 0.5}
    two = {"times": (1.0,), "wall_s": 0.8, "cpu_s": 0.5, "machine_s": 1.6, "neighbours_s": 0.1}
    turns = [_turns(1, waiting_s=0.1, stolen_s=0.6, **each)[0] for each in (one, two)]
    noise = noise_of(turns)
    assert (noise.waiting, noise.stolen, noise.neighbours) == pytest.approx((0.2, 0.5, 0.5))


def test_where_no_time_was_counted_nothing_is_a_share_of_it():
    noise = noise_of([Turn(times_ms=(1.0,), passes=1, wall_s=0.0, neighbours_s=1.0, stolen_s=1.0, waiting_s=0.0)])
    assert (noise.waiting, noise.stolen, noise.neighbours) == (0.0, 0.0, 0.0)
    assert noise.warnings == ()
    noise = noise_of(_turns(1, stolen_s=5.0, waiting_s=-1.0, machine_s=1.0))
    assert (noise.waiting, noise.stolen) == (0.0, 1.0)


@pytest.mark.parametrize(("fallen", "said"), [(900.0, False), (899.0, True)])
def test_the_clock_of_the_slowest_quarter_counts(fallen, said):
    turns = _turns(3, frequency_mhz=1000.0) + _turns(2, frequency_mhz=fallen)
    assert bool(noise_of(turns).warnings) is said
    one = _turns(7, frequency_mhz=1000.0) + _turns(1, frequency_mhz=100.0)
    assert noise_of(one).warnings == ()
    assert (
        noise_of(_turns(1, frequency_mhz=1000.0) + _turns(2, frequency_mhz=100.0)).warnings == ()
    )  # three say nothing
    assert noise_of(_turns(2, frequency_mhz=1000.0) + _turns(2, frequency_mhz=100.0)).warnings
    assert noise_of(_turns(4, frequency_mhz=1000.0) + _turns(9, frequency_mhz=None)).warnings == ()


def test_the_limits_of_what_is_usable():
    assert usable(Noise(spread=1.0, stolen=0.25))
    assert not usable(Noise(spread=1.01, stolen=0.0))
    assert not usable(Noise(spread=0.0, stolen=0.26))
