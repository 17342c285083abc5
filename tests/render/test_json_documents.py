from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.render.made_up_prices import made_up_prices
from tests.render.made_up_study import machine, made_up_study
from togi.artifact.export import Export
from togi.claims import ClaimVerdict, Measured, MeasuredClaim
from togi.claims.prove import every_id
from togi.cli.app import run
from togi.core.recipe import PartKey, ProgramRecipe
from togi.core.records import SCHEMA_VERSION, Outcome, Trial
from togi.render.json import comparison_json, dumps, price_list_json, study_json
from togi.study.comparison import Comparison
from togi.study.contestants import Contestant
from togi.techniques import recipe

COMMANDS = (Path(__file__).parents[2] / "docs" / "commands.md").read_text(encoding="utf-8")


def documented(heading: str, after: str = "") -> set[str]:
    """Fields in the first column of the first table below a heading of docs/commands.md (and below ``after``)."""
    section = COMMANDS.partition(f"### {heading}")[2].partition("\n### ")[0]
    section = section.partition(after)[2] if after else section
    table = re.search(r"^\|.*\n(?:\|.*\n)+", section, re.MULTILINE)
    assert table, f"there is no table below {heading} {after}"
    return {name for row in table[0].splitlines() for name in re.findall(r"`(\w+)`", row.split("|")[1])}


def test_document_has_the_documented_form() -> None:
    study = made_up_study()
    document = json.loads(dumps(study_json(study)))
    assert document["schema_version"] == SCHEMA_VERSION
    assert document["kind"] == "study"
    assert len(document["trials"]) == len(study.trials)
    assert set(document) == documented("A study")
    fields = documented("A study", "A trial:")
    assert all(set(trial) == fields for trial in document["trials"])
    assert {trial["outcome"] for trial in document["trials"]} == {o.value for o in Outcome} - {"out of memory"}
    assert document["machine"]["cpu_model"] == "Made-up CPU @ 2.50GHz"


def test_the_chosen_trial_is_the_last_of_its_recipe() -> None:
    document = study_json(made_up_study())
    chosen = [trial for trial in document["trials"] if trial["chosen"]]
    assert [trial["latency_ms"]["median"] for trial in chosen] == [13.3]
    assert chosen[0]["recipe"]["id"] == document["best"]
    assert chosen[0]["speedup_x"] == {"median": 3.142, "low": 3.142 * 0.98, "high": 3.142 * 1.02}


def test_the_parts_of_a_program_are_listed_as_a_choice() -> None:
    encoder = recipe(fold_batch_norm={}, openvino={}, no_grad={})
    program = ProgramRecipe.of({PartKey(path="encoder"): encoder, PartKey(path="model", form=1): recipe(ncnn={})})
    trial = Trial(recipe=program, outcome=Outcome.OK)
    document = study_json(made_up_study().model_copy(update={"trials": (trial,), "best": program}))
    (told,) = document["trials"]
    assert document["best"] == told["recipe"]["id"] == program.id
    assert told["recipe"]["label"] == program.label
    options = {"encoder": "fold_batch_norm+openvino", "model#1": "ncnn"}
    assert json.loads(json.dumps(told["recipe"]["choices"])) == [
        {"stage": "engine", "technique": "parts", "options": options},
        {"stage": "runtime", "technique": "no_grad", "options": {}},
    ]


def test_an_export_has_the_documented_fields() -> None:
    assert set(Export.model_fields) == documented("What was exported")


def test_a_price_list_has_the_documented_fields() -> None:
    document = json.loads(dumps(price_list_json(made_up_prices())))
    assert set(document) == documented("Prices")
    of_a_price = documented("Prices", "A price:")
    rows = [*document["prices"], document["all_in_8_bits"]]
    assert all(set(row) == of_a_price for row in rows)
    assert document["sensitive"] == "depthwise"


def test_no_number_that_json_does_not_know() -> None:
    study = made_up_study()
    error = study.trials[0].error
    assert error is not None
    odd = error.model_copy(update={"rmse": float("nan"), "units": float("inf"), "max_abs": -float("inf")})
    document = study_json(study.model_copy(update={"trials": (study.trials[0].model_copy(update={"error": odd}),)}))
    text = dumps(document)
    found = json.loads(text, parse_constant=lambda name: (_ for _ in ()).throw(AssertionError(name)))
    assert found["trials"][0]["error"]["rmse"] == "NaN"
    assert found["trials"][0]["error"]["units"] == "Infinity"
    assert found["trials"][0]["error"]["max_abs"] == "-Infinity"


def test_techniques_say_what_they_did_to_the_outputs() -> None:
    by_id = {effect["technique"]: effect for effect in study_json(made_up_study())["techniques"]}
    assert by_id["int8_openvino"]["units"] == 58_300
    assert by_id["int8_openvino"]["units_without"] == 1.9
    assert "no_grad" not in by_id


def test_a_comparison_has_the_documented_form() -> None:
    found = Comparison(contestants=(Contestant(name="a.togi"), Contestant(name="b.togi")), machine=machine())
    document = json.loads(dumps(comparison_json(found)))
    assert set(document) == documented("A comparison")
    fields = documented("A comparison", "A contestant:")
    assert all(set(contestant) == fields for contestant in document["contestants"])


def test_a_claim_has_the_documented_form(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["explain", "box-iou", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert set(document) == documented("Claims")
    assert set(document["claim"]) == {"id", "summary", "sections"}
    assert "{id, summary, sections}" in COMMANDS


def test_proofs_have_the_documented_form(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    row = Measured(name="plain", peak_bytes=1)
    proof = MeasuredClaim(
        claim="box-iou", verdict=ClaimVerdict.HOLDS, sentence="It holds.", setting="small", rows=(row,)
    )
    monkeypatch.setattr("togi.claims.prove.prove", lambda *_, **__: proof)
    assert run(["explain", "--prove-all", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert set(document) == documented("Proofs")
    assert len(document["proofs"]) == len(every_id())
    assert set(document["proofs"][0]) == documented("Proofs", "A proof:")
    assert "{name, peak_bytes, median_ms, speedup_x, note}" in COMMANDS
    assert set(document["proofs"][0]["rows"][0]) == {"name", "peak_bytes", "median_ms", "speedup_x", "note"}
    assert all(verdict.value in COMMANDS for verdict in ClaimVerdict)
