"""``togi.bench`` of live objects, and assertions on what it measured."""

from __future__ import annotations

import copy
import itertools
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

import togi
from tests.artifact.artifact_maker import ArtifactMaker
from tests.render.made_up_intervals import intervals, shares
from togi.core.errors import SubjectError, TogiError, UndecidedError
from togi.core.records import REFERENCE_RECIPE, Interval, Noise, Outcome
from togi.decide.faster import Speed, inverse
from togi.decide.gate import Answer, exit_code
from togi.machine.describe import machine
from togi.study.assertions import check, faster, not_slower
from togi.study.comparison import Comparison
from togi.study.contestants import Contestant
from togi.study.live_bench import run_live_bench
from togi.study.slowdown import cases_of
from togi.study.yardstick import NAME
from togi.subject.inputs import Subject

X = torch.ones(4, 8)
QUIET = Noise(spread=0.01)
HERE = machine()


def quick(x: Tensor) -> Tensor:
    time.sleep(0.004)
    return x + 1


def slow(x: Tensor) -> Tensor:
    time.sleep(0.04)
    return x + 1


@pytest.mark.thorough
def test_two_functions_take_turns_and_the_first_is_what_the_assertions_speak_of() -> None:
    found = togi.bench(quick, slow, X)
    assert [contestant.name for contestant in found.contestants] == ["quick", "slow"]
    speed_x = found.speed_x()
    assert speed_x is not None
    assert 3 < speed_x.low <= speed_x.median <= speed_x.high
    assert found.contestants[1].speed is Speed.SLOWER
    assert found.verdict.startswith("quick is faster than slow beyond doubt: ")
    assert f"after {found.rounds} rounds in turns." in found.verdict
    found.assert_not_slower("3%")
    found.assert_faster("50%")
    other = togi.bench(slow, quick, inputs=X)
    assert "slow is slower than quick beyond doubt" in str(other)
    with pytest.raises(AssertionError) as failure:
        other.assert_not_slower("3%")
    said = str(failure.value)
    assert said.startswith("slow is slower than quick by more than 3.0 % beyond doubt: 0.")
    assert "Noise meanwhile: " in said
    assert not isinstance(failure.value, UndecidedError)
    with pytest.raises(AssertionError, match=r"slow is not faster than quick by more than 10 %: 0\."):
        other.assert_faster("10%")


@pytest.mark.thorough
def test_more_than_two_and_a_list_of_samples_and_functions_without_arguments() -> None:
    found = togi.bench(quick, slow, slow, [X, (X,)])
    assert [contestant.name for contestant in found.contestants] == ["quick", "slow", "slow (2)"]
    assert found.verdict.count("beyond doubt") == 2
    found.assert_not_slower("3%")
    none = togi.bench(lambda: time.sleep(0.004), lambda: time.sleep(0.03), ())
    assert [contestant.name for contestant in none.contestants] == ["<lambda>", "<lambda> (2)"]
    none.assert_not_slower("1%")


def test_live_objects_and_inputs_stay_as_they_are() -> None:
    norm, x = nn.BatchNorm1d(8).train(), X.clone()
    before = copy.deepcopy(norm.state_dict())
    torch.manual_seed(3)
    expected = torch.rand(1)
    torch.manual_seed(3)
    togi.bench(norm, lambda x: torch.rand_like(x.add_(1)), x, time_limit_s=0.5)
    assert torch.equal(torch.rand(1), expected)
    assert torch.equal(x, X)
    assert all(torch.equal(before[name], value) for name, value in norm.state_dict().items())


def test_gradients_are_off_unless_they_are_asked_for() -> None:
    linear = nn.Linear(8, 8)
    seen = []

    def step(x: Tensor) -> None:
        seen.append(torch.is_grad_enabled())
        linear(x).sum().backward()

    with pytest.raises(SubjectError, match=r"step does not run on the inputs: .*It uses autograd: give gradients=True"):
        togi.bench(step, quick, X)
    assert seen == [False]
    found = togi.bench(step, slow, X, gradients=True)
    assert seen[-1]
    found.assert_not_slower("1%")


def test_an_artifact_takes_turns_with_its_module(tmp_path: Path) -> None:
    net = nn.Sequential(nn.Linear(8, 8), nn.ReLU()).eval()
    ArtifactMaker.of(Subject(net, X), "net").make(tmp_path / "net.togi", REFERENCE_RECIPE)
    found = togi.bench(tmp_path / "net.togi", net, slow, X)
    assert [contestant.name for contestant in found.contestants] == ["net.togi", "Sequential", "slow"]
    speed_x = found.speed_x("slow")
    assert speed_x is not None
    assert speed_x.low > 1
    with pytest.raises(TogiError, match="net was not compared with the first, but Sequential, slow"):
        found.speed_x("net")


def test_one_that_raises_in_its_turn_is_an_error_and_no_speed() -> None:
    calls = []

    def breaks(x: Tensor) -> Tensor:
        calls.append(x)
        if len(calls) > 80:
            raise ValueError("enough")
        return quick(x)

    found = togi.bench(quick, breaks, X)
    assert found.contestants[1].outcome is Outcome.FAILED
    assert "breaks failed in its turn (ValueError: enough)" in found.verdict
    with pytest.raises(AssertionError, match=r"It was not measured: breaks ended early .*enough"):
        found.assert_not_slower("3%")


@pytest.mark.thorough
def test_the_yardstick_is_measured_until_it_is_sharp() -> None:
    found = run_live_bench([slow], X, yardstick=True)
    assert [contestant.name for contestant in found.contestants] == ["slow", NAME]
    speed_x = found.speed_x()
    assert speed_x is not None
    assert speed_x.has_ends


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: togi.bench(quick, X), "there is nothing to compare"),
        (lambda: togi.bench(quick, slow), r"live objects need inputs to run on: bench\(new, old, inputs\)"),
        (lambda: togi.bench(quick, "a.py:f", X), "'a.py:f' is not the folder of an artifact"),
        (lambda: togi.bench(quick, 3, X), "a subject is an int"),
        (lambda: togi.bench(quick, slow, X, batch_sizes=[1, 2]), "batch_sizes is for locators and artifacts"),
        (lambda: togi.bench(quick, slow, X, callers=2), "callers is for locators"),
        (lambda: togi.bench(quick, slow, X, time_limit_s="soon"), "time_limit_s='soon'"),
        (lambda: togi.bench(quick, nn.Linear(3, 3), X), "Linear does not run on the inputs: .*RuntimeError"),
        (lambda: compared(Interval(median=1, low=1, high=1)).assert_not_slower("much"), "share='much' is not a number"),
        (lambda: compared(Interval(median=1, low=1, high=1)).assert_faster("300%"), "share='300%' is out of range"),
    ],
)
def test_bad_input_is_one_sentence(call: Callable[[], Any], said: str) -> None:
    with pytest.raises(TogiError, match=said):
        call()


def compared(*speedups_x: Interval, own_process: bool = False, noise: Noise = QUIET) -> Comparison:
    """``new``, and others over it: the speed of ``new`` over each is the inverse."""
    one = Interval(median=1, low=1, high=1)
    others = [
        Contestant(name=name, latency_ms=one, speedup_x=speedup_x, own_process=own_process)
        for name, speedup_x in zip(("old", "older"), speedups_x, strict=False)
    ]
    return Comparison(contestants=(Contestant(name="new", latency_ms=one), *others), machine=HERE, noise=noise)


def over(median: float, share: float) -> Interval:
    """Of ``old``, where the first is ``median`` times as fast as it."""
    return inverse(Interval(median=median, low=median * (1 - share), high=median * (1 + share)))


def test_what_failed_says_the_speed_its_interval_the_noise_and_what_would_hold() -> None:
    noise = Noise(spread=0.3, warnings=("times vary by 30%", "other processes kept 1.2 cores busy"))
    with pytest.raises(AssertionError) as failure:
        compared(over(0.9, 0.01), noise=noise).assert_not_slower("3%")
    assert str(failure.value) == (
        "new is slower than old by more than 3.0 % beyond doubt: 0.900x the speed (0.891-0.909). If that is meant, "
        'assert_not_slower("13%") holds with these figures. Noise meanwhile: times vary by 30%; other processes kept '
        "1.2 cores busy."
    )
    compared(over(0.9, 0.01)).assert_not_slower("13%")
    with pytest.raises(AssertionError, match=r'assert_faster\("6%"\) holds with these figures.*none to speak of'):
        compared(over(1.07, 0.005)).assert_faster("10%")
    compared(over(1.07, 0.005)).assert_faster("6%")


def test_undecided_is_an_answer_of_its_own() -> None:
    for assertion in ("assert_not_slower", "assert_faster"):
        with pytest.raises(UndecidedError, match=r"figures do not show whether new is .*time_limit_s=60"):
            getattr(compared(over(1.0, 0.2)), assertion)("3%")
    assert issubclass(UndecidedError, AssertionError)
    with pytest.raises(AssertionError) as failure:  # what failed is said, whatever else is undecided
        compared(over(1.0, 0.2), over(0.5, 0.01)).assert_not_slower("3%")
    assert "older" in str(failure.value)
    assert "figures do not show" not in str(failure.value)


def test_on_a_machine_that_is_mostly_not_ours_nothing_is_decided() -> None:
    """Threads that wait for each other next to busy processes: 40 times slower, and only while these are there."""
    noise = Noise(spread=1.64, warnings=("threads waited for a core 80% of the time",))
    for median in (0.02, 50.0):
        with pytest.raises(
            UndecidedError, match=r"too disturbed to tell \(times vary by 164%\): it looks as if new is"
        ):
            compared(over(median, 0.1), noise=noise).assert_not_slower("3%")
        with pytest.raises(UndecidedError, match="threads waited"):
            compared(over(median, 0.1), noise=noise).assert_faster("3%")


@pytest.mark.thorough
def test_the_verdict_does_not_trust_what_no_assertion_decides() -> None:
    takes_s = itertools.cycle([0.001, 0.03])  # as if somebody else had the machine every other time
    found = togi.bench(lambda: time.sleep(next(takes_s)), lambda: time.sleep(0.2), (), time_limit_s=5)
    with pytest.raises(UndecidedError, match="too disturbed to tell"):
        found.assert_not_slower("3%")
    assert "The machine was too disturbed to trust that (times vary by " in found.verdict


def test_processes_of_their_own_forgive_what_processes_differ_by() -> None:
    within, between = (compared(over(0.95, 0.001), own_process=own) for own in (False, True))
    between.assert_not_slower("3%")
    with pytest.raises(AssertionError):
        within.assert_not_slower("3%")


@given(intervals(), shares, st.booleans(), st.sampled_from([not_slower, faster]))
def test_what_is_said_to_hold_does(found: Interval, share: float, own: bool, assertion: Callable[..., Any]) -> None:
    comparison = compared(found, own_process=own)
    about = (comparison.contestants, QUIET, "")
    (case,) = assertion(about[0], share, *about[1:])
    if (advised := re.search(r'\("(\d+)%"\) holds', case.said)) is not None:
        assert case.answer is Answer.FAILED
        assert assertion(about[0], int(advised[1]) / 100, *about[1:])[0].answer is Answer.PASSED


def test_between_processes_it_is_said_what_holds_between_processes() -> None:
    found = compared(over(1.07, 0.005), own_process=True)
    with pytest.raises(AssertionError, match=r'assert_faster\("3%"\) holds with these figures'):
        found.assert_faster("10%")
    found.assert_faster("3%")


@given(intervals(), shares)
def test_the_assertions_are_the_gate_seen_from_the_first(found: Interval, share: float) -> None:
    """Of the same interval an assertion says what ``--fail-if-slower`` says of the one that is asserted."""
    comparison = compared(inverse(found))
    speed_x = comparison.speed_x()
    assert speed_x is not None
    (case,) = not_slower(comparison.contestants, share, comparison.noise, comparison.verdict)
    assert case.answer is cases_of(compared(speed_x), share)[1].answer
    (also,) = faster(comparison.contestants, share, comparison.noise, comparison.verdict)
    assert (case.answer, also.answer) != (Answer.FAILED, Answer.PASSED)
    try:
        check([case], comparison.noise)
        held = True
    except UndecidedError:
        assert case.answer is Answer.UNDECIDED
        held = False
    except AssertionError:
        assert case.answer is Answer.FAILED
        held = False
    assert held is (exit_code([case]) == 0)


def test_calls_that_write_into_their_inputs_get_new_ones() -> None:
    """Else the tenth call works on what nine have left there: nothing."""
    seen: list[float] = []

    def subtracts(x: Tensor, kept: list[Tensor]) -> Tensor:
        seen.append(float(x.amax()))
        seen.append(float(len(kept)))
        kept.append(x)
        return x.sub_(1.0).relu()

    given = togi.Inputs((torch.ones(4), []))
    togi.bench(subtracts, lambda x, _: (x - 1.0).relu(), given, time_limit_s=0.3)
    assert set(seen[0::2]) == {1.0}
    assert set(seen[1::2]) == {0.0}
    assert given.args[1] == []


def test_only_calls_that_write_into_their_inputs_get_new_ones() -> None:
    seen = set()

    def looks(x: Tensor) -> Tensor:
        seen.add(x.data_ptr())
        return x + 1

    togi.bench(looks, quick, X, time_limit_s=0.3)
    assert len(seen) <= 2, "one for the question whether it writes, one for all calls"
