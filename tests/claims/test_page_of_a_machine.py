"""``togi explain --prove-all``: everything is measured one by one, and what fails does not lose the rest."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.made_up_machine import machine
from togi.claims import ClaimVerdict, Measured, MeasuredClaim, Proofs, all_claims
from togi.claims.prove import attempt, every_id
from togi.cli.app import run
from togi.core.records import Interval
from togi.render.html import proofs_html
from togi.techniques import all_remedies, technique

HOSTILE = "<script>alert(1)</script>"
MACHINE = machine()


def fake_proof(id: str, **_: Any) -> MeasuredClaim:
    """Instead of a measurement."""
    if id == "bf16":
        raise RuntimeError("its driver is gone")
    faster = Measured(name=f"{id} + no_grad", median_ms=1.0, speedup_x=Interval(median=2.0, low=1.9, high=2.1))
    return MeasuredClaim(claim=id, verdict=ClaimVerdict.HOLDS, sentence="Faster.", setting="a model", rows=(faster,))


def proofs(name: str = "channels_last") -> Proofs:
    found = (
        fake_proof(name),
        MeasuredClaim(
            claim="tf32", verdict=ClaimVerdict.UNTESTED, sentence=f"No {name}.", setting="", fix=f"pip install {name}"
        ),
    )
    return Proofs(started="2026-11-22T08:00:00+00:00", device="cpu", machine=MACHINE, proofs=found)


def test_everything_is_measured_and_one_that_fails_says_so(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("togi.claims.prove.prove", fake_proof)
    page = tmp_path / "machine.html"
    assert run(["explain", "--prove-all", "--json", "--report", str(page)]) == 0
    document = json.loads(capsys.readouterr().out)
    found = {proof["claim"]: proof for proof in document["proofs"]}
    assert list(found) == list(every_id()) == [*all_remedies(), *all_claims()]
    assert document["machine"]["cpu_model"]
    assert re.match(r"\d{4}-\d\d-\d\dT", document["started"])
    assert found["bf16"]["verdict"] == "cannot be tested here"
    assert "its driver is gone" in found["bf16"]["sentence"]
    assert "in fake_proof" in found["bf16"]["traceback"]
    assert {proof["verdict"] for id, proof in found.items() if id != "bf16"} == {"holds"}
    assert all(f"<b>{id}</b>" in page.read_text(encoding="utf-8") for id in found)


def test_what_was_measured_before_an_interruption_is_on_the_page(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def interrupted(id: str, **_: Any) -> MeasuredClaim:
        if id == every_id()[2]:
            raise KeyboardInterrupt
        return fake_proof(id)

    monkeypatch.setattr("togi.claims.prove.prove", interrupted)
    page = tmp_path / "machine.html"
    assert run(["explain", "--prove-all", "--report", str(page)]) == 130
    text = page.read_text(encoding="utf-8")
    assert [id for id in every_id() if f"<b>{id}</b>" in text] == list(every_id()[:2])


def test_a_technique_of_others_that_raises_is_a_proof_with_its_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(_: object) -> None:
        raise KeyError("sm_count")

    monkeypatch.setattr(type(technique("inference_mode")), "applies", lambda _, facts: broken(facts))
    proof = attempt("inference_mode")
    assert proof.verdict is ClaimVerdict.UNTESTED
    assert "KeyError" in proof.sentence
    assert "in broken" in proof.traceback


def test_the_page_is_the_same_for_the_same_proofs_and_loads_nothing() -> None:
    page = proofs_html(proofs())
    assert page == proofs_html(proofs())
    assert not re.search(r"@import|url\(|https?://", page)
    assert "Made-up CPU, 2 threads" in page
    assert page.count('class="whisker"') == 1


def test_hostile_names_are_escaped_on_the_page() -> None:
    page = proofs_html(proofs(HOSTILE))
    assert HOSTILE not in page
    assert page.count("<script>") == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--prove"], "--prove-all"),
        (["no_grad", "--prove-all"], "give no ID"),
        (["--prove-all", "--on", "timm:resnet18"], "give no ID, --prove or --on"),
    ],
)
def test_wrong_usage_says_what_to_give(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["explain", *arguments]) == 2
    assert message in " ".join(capsys.readouterr().err.replace("│", " ").split())


def test_settings_of_a_proof_alone_are_said_to_have_no_effect(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["explain", "no_grad", "--on", "timm:resnet18"]) == 0
    assert "--on has no effect" in capsys.readouterr().err
