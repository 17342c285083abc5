"""Comparisons as gates: who is slower than it may be, now and next to an earlier comparison."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from togi.core.errors import SubjectError
from togi.core.records import Interval, Noise
from togi.decide.gate import Answer
from togi.machine.describe import machine
from togi.render.json import comparison_json, dumps
from togi.study.comparison import Comparison, read_comparison, with_doubt
from togi.study.contestants import Contestant
from togi.study.slowdown import cases_of


def comparison(*speedups_x: Interval | None, names: str = "abcdef") -> Comparison:
    """``a`` and those that are compared with it."""
    times = Interval(median=1, low=1, high=1)
    found = [Contestant(name=names[0], latency_ms=times)]
    found += [
        Contestant(name=name, latency_ms=times, speedup_x=speedup_x)
        for name, speedup_x in zip(names[1:], speedups_x, strict=False)
    ]
    return Comparison(contestants=tuple(found), machine=machine())


def near(median: float, share: float = 0.02) -> Interval:
    return Interval(median=median, low=median * (1 - share), high=median * (1 + share))


def answers(found: Comparison, share: float, before: Comparison | None = None) -> str:
    """The first letter of each answer: passed, failed, undecided, error."""
    return "".join(case.answer[0] for case in cases_of(found, share, before))


def test_slower_than_the_first_by_more_than_the_share_and_what_processes_differ_by() -> None:
    found = comparison(near(0.8), near(0.95), near(1.5), near(0.8, share=0.3))
    said = [case.said for case in cases_of(found, 0.05)]
    assert said[1] == "b is slower than a by more than 5.0 % beyond doubt: 0.800x the speed (0.784-0.816)"
    assert said[3] == "d is not slower than a by more than 5.0 %: 1.50x the speed (1.47-1.53)"
    assert said[4].startswith(
        "The figures do not show whether e is slower than a by more than 5.0 %: 0.800x the speed (0.5"
    )
    assert answers(found, 0.05) == "pfppu"
    assert answers(found, 0.25) == "ppppu"


def test_what_is_slower_beyond_doubt_stays_slower_for_every_share_that_forgives_less() -> None:
    seen = comparison(Interval(median=0.447, low=0.380, high=0.597))  # 2.24 times the time
    assert [answers(seen, share) for share in (0, 0.05, 0.5, 0.64, 0.65, 1.7)] == ["pf"] * 4 + ["pu", "pp"]


def test_steps_are_not_held_to_what_calls_took() -> None:
    calls = comparison(near(1.0))
    with pytest.raises(SubjectError, match="is of calls, and this one of training steps"):
        cases_of(calls.model_copy(update={"train": True}), 0.05, calls)


def test_orders_of_magnitude_need_no_interval() -> None:
    endless = Interval(median=1 / 20_000, low=0, high=float("inf"))
    (_, case) = cases_of(comparison(endless), 0.5)
    assert case.answer is Answer.FAILED
    assert "too few rounds for an interval" in case.said
    assert answers(comparison(Interval(median=0.2, low=0, high=float("inf"))), 0.5) == "pu"


def test_slower_than_it_was_though_still_faster_than_the_first() -> None:
    found = cases_of(comparison(near(1.5), near(2)), 0.05, before=comparison(near(2), near(2)))
    assert [case.answer for case in found] == [Answer.PASSED, Answer.FAILED, Answer.PASSED]
    assert found[1].said.startswith("b is slower than it was by more than 5.0 % beyond doubt: 0.750x the speed")
    before = comparison(near(2))
    assert answers(comparison(near(1.8)), 0.05, before=before) == "pu"  # each comparison may be off by 3 %


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"callers": 4}, "is of calls, and this one of calls by 4 at once"),
        ({"device": "cuda"}, "is of calls on cpu, and this one of calls on cuda"),
    ],
)
def test_calls_of_another_kind_are_not_held_to_what_these_took(changed: dict[str, Any], said: str) -> None:
    before = comparison(near(1.0)).model_copy(update={"device": "cpu"})
    now = before.model_copy(update=changed)
    with pytest.raises(SubjectError, match=said):
        cases_of(now, 0.05, before)
    assert answers(now, 0.05, before.model_copy(update={**changed, "device": None})) == "pp", "an older file"


def test_calls_of_one_batch_size_are_not_held_to_those_of_another() -> None:
    now = comparison(near(1.0))
    sizes = tuple(each.model_copy(update={"batch": 8}) for each in now.contestants)
    with pytest.raises(SubjectError, match=r"is of a, batch 8, b, batch 8, and this one of a, b"):
        cases_of(now, 0.05, now.model_copy(update={"contestants": sizes}))


def test_an_earlier_comparison_of_another_machine_is_named_in_every_form_of_the_answer() -> None:
    before, now = comparison(near(1.0)), comparison(near(0.7))
    there = {"cpu_model": "another", "python": "3.9.1"}
    before = before.model_copy(update={"machine": before.machine.model_copy(update=there)})
    (_, case) = cases_of(now, 0.05, before)
    assert case.answer is Answer.FAILED
    assert ". The earlier comparison was made under other conditions: cpu_model: " in case.said
    assert case.said.endswith("'3.9' there")


def test_on_a_disturbed_machine_nothing_is_decided_but_what_is_slower_by_orders_of_magnitude() -> None:
    noise = Noise(spread=1.64)
    now = comparison(near(0.5), near(2.0), near(1 / 500), near(500.0)).model_copy(update={"noise": noise})
    assert answers(now, 0.05) == "puufu"
    assert "too disturbed to tell (times vary by 164%): it looks as if b is slower" in cases_of(now, 0.05)[1].said
    quiet = now.model_copy(update={"noise": Noise()})
    with pytest.raises(SubjectError, match=r"too disturbed to compare with \(times vary by 164%\): make it again"):
        cases_of(quiet, 0.05, before=now)


def test_what_a_gate_forgives_is_said_where_the_figures_need_it() -> None:
    """ "Not slower by more than 5 %" next to 0.94x the speed would be two answers."""
    spared = "more than 5.0 % and the 3.0 % that measurements may differ by: "
    _, within, forgiven, unsure = cases_of(comparison(near(0.98), near(0.94, 0.005), near(0.93, 0.01)), 0.05)
    assert [case.answer for case in (within, forgiven, unsure)] == [Answer.PASSED, Answer.PASSED, Answer.UNDECIDED]
    assert "more than 5.0 %: 0.980x" in within.said
    assert f"c is not slower than a by {spared}0.940x the speed (0.935-0.945)" in forgiven.said
    assert f"do not show whether d is slower than a by {spared}0.930x" in unsure.said
    (_, least) = cases_of(comparison(near(0.97, 0.005)), 0.0)
    assert "not slower than a by more than 0 % and the 4.0 % that measurements may differ by: 0.970x" in least.said
    assert "not slower than a by more than 12.5 %: 1.00x" in cases_of(comparison(near(1.0)), 0.125)[1].said


@pytest.mark.parametrize("names", ["ac", "ba", "abc"])
def test_another_comparison_is_refused(names: str) -> None:
    before = comparison(*[near(1)] * (len(names) - 1), names=names)
    with pytest.raises(SubjectError, match="compare the same in the same order"):
        cases_of(comparison(near(1)), 0.05, before=before)


def test_an_earlier_comparison_that_measured_nothing_is_refused() -> None:
    with pytest.raises(SubjectError, match="did not measure b"):
        cases_of(comparison(near(1)), 0.05, before=comparison(None))
    for median in (0.0, float("nan"), float("inf")):
        with pytest.raises(SubjectError, match="did not measure b"):
            cases_of(comparison(near(1)), 0.05, before=comparison(Interval(median=median, low=0, high=1)))


def test_what_bench_wrote_is_read_again(tmp_path: Path) -> None:
    made, path = comparison(Interval(median=1, low=0, high=float("inf"))), tmp_path / "base.json"
    path.write_text(dumps(comparison_json(made)), encoding="utf-8")
    assert read_comparison(path) == made


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"kind": "study"}', '{"kind": "comparison"}', "\x00"])
def test_another_file_is_refused_with_the_command_that_writes_one(tmp_path: Path, text: str) -> None:
    (tmp_path / "base.json").write_text(text, encoding="utf-8")
    with pytest.raises(SubjectError, match="togi bench A B --json > "):
        read_comparison(tmp_path / "base.json")


def test_a_verdict_says_where_no_gate_trusts_its_figures() -> None:
    """Else it calls one the fastest beyond doubt, and the gate next to it is undecided."""
    found = comparison(near(0.5)).model_copy(update={"verdict": "a is the fastest beyond doubt after 30 rounds."})
    noisy = found.model_copy(update={"noise": Noise(stolen=0.5)})
    said = "The machine was too disturbed to trust that (the hypervisor took 50% of the machine's time)."
    assert with_doubt(noisy).verdict == f"{found.verdict} {said}"
    assert with_doubt(found) == found
