"""Claims are pages with a measurement behind them; the measurement decides, not the page."""

from __future__ import annotations

import inspect
import time

import pytest

from togi.claims import HEADINGS, ClaimVerdict, Measured, all_claims, box_iou, keep_freed_memory
from togi.claims import disable_saved_tensors_hooks as hooks
from togi.claims.contest import contest, row
from togi.claims.prove import prove
from togi.core.errors import UnknownNameError

MIB = 2**20


@pytest.mark.parametrize("id", list(all_claims()))
def test_page_has_every_heading_in_order(id: str) -> None:
    page = inspect.getdoc(type(all_claims()[id])) or ""
    places = [page.find(f"\n{heading}:") for heading in HEADINGS]
    assert -1 not in places
    assert places == sorted(places)


@pytest.mark.parametrize("id", list(all_claims()))
def test_id_is_the_name_of_its_file(id: str) -> None:
    assert type(all_claims()[id]).__module__ == f"togi.claims.{id.replace('-', '_')}"


@pytest.mark.thorough
def test_hooks_claim_is_refuted_by_what_is_measured_here() -> None:
    proof = prove("disable-saved-tensors-hooks")
    plain, disabled = (row(proof.rows, name) for name in (hooks.PLAIN, hooks.DISABLED))
    if disabled.peak_bytes is None:  # a machine on which the plain way alone takes the time there is
        assert proof.verdict is ClaimVerdict.UNTESTED
        return
    assert proof.verdict is ClaimVerdict.REFUTED
    assert disabled.peak_bytes == pytest.approx(plain.peak_bytes, rel=0.02)
    forbidden = row(proof.rows, hooks.CHECKPOINTED_DISABLED)
    assert "disabled" in forbidden.note or "not measured" in forbidden.note


def test_the_figures_decide_the_verdict() -> None:
    plain, forbidden = Measured(name="p", peak_bytes=100 * MIB), Measured(name="f", note="RuntimeError")
    cheaper, same = Measured(name="d", peak_bytes=60 * MIB), Measured(name="d", peak_bytes=100 * MIB)
    broken = Measured(name="d", note="RuntimeError: no memory")
    assert hooks.judge(plain, cheaper, forbidden)["verdict"] is ClaimVerdict.HOLDS
    assert hooks.judge(plain, same, forbidden)["verdict"] is ClaimVerdict.REFUTED
    assert hooks.judge(plain, broken, forbidden)["verdict"] is ClaimVerdict.UNTESTED


def test_what_there_was_no_time_for_is_not_called_forbidden() -> None:
    plain = Measured(name="p", peak_bytes=100 * MIB)
    late = Measured(name="f", note="not measured: the 20 s for it were over")
    forbidden = Measured(name="f", note="RuntimeError: saved-tensor hooks are disabled")
    assert "forbids" not in hooks.judge(plain, plain, late)["sentence"]
    assert "forbids" in hooks.judge(plain, plain, forbidden)["sentence"]


def test_scripting_is_judged_by_its_peak_next_to_the_result_alone() -> None:
    def rows(eager: int, scripted: int) -> list[Measured]:
        peaks = {box_iou.EAGER: eager, box_iou.SCRIPTED: scripted, box_iou.MATCH_EAGER: 1, box_iou.MATCH_OURS: 1}
        return [Measured(name=name, peak_bytes=peak * MIB, median_ms=1.0) for name, peak in peaks.items()]

    assert box_iou.judge(rows(700, 101), 100 * MIB)[0] is ClaimVerdict.HOLDS
    assert box_iou.judge(rows(700, 400), 100 * MIB)[0] is ClaimVerdict.HOLDS_IN_PART
    assert box_iou.judge(rows(700, 700), 100 * MIB)[0] is ClaimVerdict.REFUTED
    broken = [Measured(name=box_iou.EAGER, peak_bytes=1), Measured(name=box_iou.SCRIPTED, note="RuntimeError: gone")]
    verdict, sentence = box_iou.judge(broken, MIB)
    assert verdict is ClaimVerdict.UNTESTED
    assert "RuntimeError: gone" in sentence


def test_contest_reports_what_a_way_raised_and_measures_the_others() -> None:
    import torch

    def fails() -> None:
        raise RuntimeError("not allowed")

    rows = contest({"big": lambda: torch.ones(64 * MIB // 4), "fails": fails}, rounds=3)
    big = row(rows, "big").peak_bytes
    assert big is not None
    assert 63 * MIB <= big <= 68 * MIB
    assert row(rows, "fails").note == "RuntimeError: not allowed"
    assert row(rows, "fails").peak_bytes is None


def test_contest_says_what_it_had_no_time_for() -> None:
    rows = contest({"first": lambda: time.sleep(0.02), "late": lambda: None}, budget_s=0.01)
    assert row(rows, "first").median_ms is not None
    assert (row(rows, "late").median_ms, row(rows, "late").note) == (None, "not measured: the 0.01 s for it were over")


def test_unknown_claim_names_those_there_are() -> None:
    with pytest.raises(UnknownNameError, match="disable-saved-tensors-hooks"):
        prove("disable-saved-hooks")


@pytest.mark.parametrize(
    ("left_alone", "keeping", "notes", "verdict"),
    [
        ([6.0, 5.0, 6.0], [3.0, 3.0, 3.1], {}, ClaimVerdict.HOLDS),
        ([6.0, 3.0, 6.0], [3.0, 3.0, 3.1], {}, ClaimVerdict.HOLDS_IN_PART),
        ([3.1, 3.0, 3.1], [3.0, 3.0, 3.1], {}, ClaimVerdict.REFUTED),
        ([3.1, 3.0, 9.0], [3.0, 3.0, 3.1], {}, ClaimVerdict.UNTESTED),
        ([3.1], [], {"keeping": "RuntimeError: another C library"}, ClaimVerdict.UNTESTED),
    ],
)
def test_a_claim_holds_in_part_where_some_processes_are_fast_by_themselves(
    left_alone: list[float], keeping: list[float], notes: dict[str, str], verdict: ClaimVerdict
) -> None:
    assert keep_freed_memory.judge(left_alone, keeping, notes)["verdict"] is verdict


def test_a_process_that_is_told_to_keep_does_or_says_why_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keep_freed_memory, "_SECONDS", 0.0)
    monkeypatch.setattr("togi.measure.keep_freed_memory", lambda: False)
    assert keep_freed_memory.pass_ms(keep=False) > 0
    with pytest.raises(RuntimeError, match="another C library"):
        keep_freed_memory.pass_ms(keep=True)
