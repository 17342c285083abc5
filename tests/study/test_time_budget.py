"""How the time of a study is divided, by a clock that the test moves."""

from __future__ import annotations

import math
from typing import Any

import pytest

from tests.study.stand_ins import Clock
from togi.core.settings import Settings
from togi.study.pace import USUAL
from togi.study.time_budget import GRACE_S, TimeBudget, share_of_trial_s


def budget(clock: Clock | None = None, loading_s: float = 9.0, pass_ms: float = 13.0, **settings: Any) -> TimeBudget:
    """Of a study whose subject is loaded now."""
    clock = clock or Clock()
    started = clock()
    clock.now_s += loading_s
    return TimeBudget(Settings(**settings), pass_ms=pass_ms, started=started, loaded=clock(), clock=clock)


@pytest.mark.parametrize(
    ("settings", "limit_s"),
    [
        ({"effort": "quick"}, 9.0 + 30.0),
        ({"effort": "normal"}, 9.0 + 300.0),
        ({"effort": "thorough"}, None),
        ({"effort": "quick", "time_limit_s": 20.0}, 20.0),
        ({"effort": "quick", "time_limit_s": 300.0}, 300.0),
        ({"effort": "thorough", "time_limit_s": "8h"}, 8 * 3600.0),
    ],
)
def test_a_given_limit_is_of_the_whole_and_an_efforts_own_begins_after_loading(
    settings: dict[str, Any], limit_s: float | None
) -> None:
    assert budget(**settings).limit_s == limit_s


def test_a_slow_subject_makes_an_efforts_own_limit_longer_and_no_other() -> None:
    """Thirty passes of 2 s are its truth, reference and proof: half a minute would leave nothing to try anything in."""
    assert budget(pass_ms=2000.0, effort="quick").limit_s == 9.0 + 180.0
    assert budget(pass_ms=2000.0, effort="quick", time_limit_s=40.0).limit_s == 40.0


@pytest.mark.parametrize(("given_s", "limit_s"), [(None, 9.0 + 5 * 16.0), (40.0, 40.0)])
def test_a_reference_that_takes_long_makes_an_efforts_own_limit_longer(given_s: float | None, limit_s: float) -> None:
    studied = budget(effort="quick", time_limit_s=given_s)
    longer = (
        "trying the original took 16 s, so the study may take 1:29 in place of 39 s; --time-limit sets another limit"
    )
    assert studied.lengthen(16.0) == (longer if given_s is None else "")
    assert studied.limit_s == limit_s
    assert studied.lengthen(16.0) == "", "it is said once"


def test_what_is_left_goes_down_to_the_limit_and_below() -> None:
    clock = Clock()
    studied = budget(clock, time_limit_s=60.0)
    assert (studied.elapsed_s, studied.left_s) == (9.0, 51.0)
    clock.now_s += 60.0
    assert (studied.elapsed_s, studied.left_s) == (69.0, -9.0)
    assert studied.ends_at == studied.started + 60.0 + GRACE_S


def test_without_a_limit_there_is_no_end() -> None:
    studied = budget(effort="thorough")
    assert studied.left_s == studied.ends_at == studied.explore_s() == math.inf


@pytest.mark.parametrize("phases_s", [{}, {"measure": 62.0}], ids=["failed", "measured beside others"])
def test_the_reference_tells_how_long_a_proof_takes(phases_s: dict[str, float]) -> None:
    studied = budget(effort="thorough")
    studied.know_reference({"start": 1.0, "build": 2.0, **phases_s})
    assert studied.proof_s == USUAL.proof_s + 2 * 3.0 + 2.0


def test_trials_on_one_half_of_the_validation_data_tell_how_long_the_other_takes() -> None:
    studied = budget(effort="thorough")
    without_s = studied.proof_s
    for phases_s in ({"build": 9.0, "validate": 1.0}, {"validate": 7.0}, {"validate": 0.1}, {"verify": 50.0}):
        studied.know_validation(phases_s)
    assert studied.proof_s == without_s + 7.0


def test_where_each_process_exports_anew_a_proof_takes_longer() -> None:
    """What is saved and what it falls back on are exported."""
    alone, exporting = (TimeBudget(Settings(), export_s=export_s, started=0.0) for export_s in (0.0, 3.0))
    assert exporting.proof_s == alone.proof_s + 2 * 3.0


def test_parts_were_asked_each_by_itself_and_fall_back_on_the_original() -> None:
    """The proof of a program loads and verifies one artifact, and asks nothing more."""
    settings, now = Settings(time_limit_s=100.0), Clock(0.0)
    whole = TimeBudget(settings, started=0.0, clock=now)
    in_parts = TimeBudget(settings, in_parts=True, started=0.0, clock=now)
    for studied in (whole, in_parts):
        studied.know_reference({"start": 1.0, "build": 2.0, "verify": 1.0, "warm": 2.0})
    assert in_parts.proof_s == USUAL.proof_s + 6.0 + 1.0
    assert whole.proof_s == pytest.approx(USUAL.proof_s + 2 * 6.0 + 1.0 + 8.0)
    assert in_parts.explore_s() == 100.0 - in_parts.proof_s - 15.0
    assert in_parts.explore_s(race=False) == 100.0 - in_parts.proof_s
    assert in_parts.ask_s == 0.0


def test_what_is_saved_is_asked_less_where_little_time_is_left() -> None:
    """Its start takes 3 s and verifying it 2 s, what it falls back on the same."""
    needed_s = USUAL.proof_s + 2 * (3.0 + 2.0) + 2.0

    def asked_s(left_s: float) -> float:
        studied = budget(loading_s=0.0, time_limit_s=1000.0 + left_s)
        studied.know_reference({"start": 3.0, "verify": 2.0})
        studied.started = studied.loaded = studied.started - 1000.0
        return studied.ask_s

    assert [asked_s(needed_s + more_s) for more_s in (100.0, 5.0, -5.0)] == [10.0, 5.0, 2.0]


@pytest.mark.parametrize(
    ("verify_s", "limit_s", "ask_s"),
    [
        (0.01, None, 2.0),
        (1.0, None, 8.0),
        (60.0, None, 10.0),
        (60.0, 600.0, 10.0),
        (60.0, 100.0, 8.0),
        (60.0, 1.0, 2.0),
    ],
)
def test_values_beyond_the_samples_are_asked_for_longer_where_the_original_is_slow_and_the_limit_long(
    verify_s: float, limit_s: float | None, ask_s: float
) -> None:
    studied = budget(effort="thorough", time_limit_s=limit_s, loading_s=0.0)
    studied.know_reference({"verify": verify_s})
    assert studied.proof_s == pytest.approx(USUAL.proof_s + 3 * verify_s + ask_s)


def test_what_loading_took_gives_no_time_to_ask() -> None:
    for loading_s in (0.0, 60.0):
        studied = budget(effort="quick", loading_s=loading_s)
        studied.know_reference({"verify": 1.0})
        assert studied.ask_s == pytest.approx(0.08 * 30.0)


def test_exploring_leaves_time_for_race_and_proof() -> None:
    """A seventh of a minute is 9 s, of which 2 s go to values beyond the samples."""
    studied = budget(loading_s=0.0, time_limit_s=60.0)
    assert studied.explore_s(race=False) == 60.0 - studied.proof_s
    assert studied.explore_s() == pytest.approx(60.0 - studied.proof_s - 7.0)
    assert budget(loading_s=0.0, time_limit_s=20.0).explore_s() == pytest.approx(20.0 - studied.proof_s - 4.0)


@pytest.mark.parametrize(
    ("left_s", "expected_s", "share_s"),
    [(20.0, 1.0, 10.0), (20.0, 5.0, 15.0), (20.0, 30.0, 20.0), (math.inf, 1.0, math.inf), (20.0, math.inf, 20.0)],
)
def test_a_trial_that_hangs_leaves_something_to_others(left_s: float, expected_s: float, share_s: float) -> None:
    assert share_of_trial_s(left_s, expected_s) == share_s


@pytest.mark.parametrize(
    ("left_s", "expected_s", "share_s"),
    [(60.0, 5.0, 10.0), (60.0, 15.0, 20.0), (60.0, math.inf, 20.0), (math.inf, 5.0, math.inf)],
)
def test_a_trial_gives_way_to_what_should_take_much_less(left_s: float, expected_s: float, share_s: float) -> None:
    assert share_of_trial_s(left_s, expected_s, modest=True) == share_s


def test_what_is_compiled_again_when_it_is_loaded_leaves_less_for_trials() -> None:
    studied = budget(loading_s=0.0, time_limit_s=100.0)
    studied.know_reference({"start": 1.0, "build": 1.0, "verify": 1.0, "measure": 20.0})
    before_s = studied.proof_s
    studied.know_best({"start": 1.0, "build": 2.0, "verify": 15.0, "measure": 30.0})
    assert studied.proof_s == before_s + 15.0
    assert studied.least_proof_s({"build": 20.0}) == 20.0 + 2.0, "with the least that it is asked for"
    studied.know_best({})  # another is the best now, whose files hold what was compiled
    assert studied.proof_s == before_s
    assert studied.least_proof_s({}) == 3.0 + 2.0, "as long as the original"


def test_a_race_of_programs_of_parts_is_given_what_it_needs() -> None:
    """And no more than any other race."""
    studied = budget(loading_s=0.0, time_limit_s=300.0)
    without_s = studied.explore_s(race=False)
    for needed_s, reserved_s in ((200.0, 45.0 - 2.0), (12.0, 12.0 - 2.0), (1.0, USUAL.least_race_s)):
        studied.know_race(needed_s)
        assert studied.explore_s() == pytest.approx(without_s - reserved_s)
