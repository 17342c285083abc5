import pytest

from togi.measure import Turn, noise_of, usable


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


def test_no_turns_is_said():
    assert noise_of([]).warnings == ("there is no finished turn to judge",)
