from __future__ import annotations

import json

from made_up_study import made_up_study

from togi.core.records import SCHEMA_VERSION, Outcome
from togi.render.json import dumps, study_json

TRIAL_FIELDS = {
    "recipe", "outcome", "reason", "verdict", "latency_ms", "speedup_x", "idle_bytes", "peak_bytes", "total_bytes",
    "allocator_peak_bytes", "error", "chosen", "finalist", "pareto_front", "mend", "stage", "first_call_ms", "build_s",
    "rounds_ms", "noise", "cost_s", "phases_s", "notes", "traceback", "output",
}  # fmt: skip


def test_document_has_the_documented_form() -> None:
    study = made_up_study()
    document = json.loads(dumps(study_json(study)))
    assert document["schema_version"] == SCHEMA_VERSION
    assert document["kind"] == "study"
    assert len(document["trials"]) == len(study.trials)
    assert all(set(trial) == TRIAL_FIELDS for trial in document["trials"])
    assert {trial["outcome"] for trial in document["trials"]} == {o.value for o in Outcome} - {"out of memory"}
    assert document["machine"]["cpu_model"] == "Made-up CPU @ 2.50GHz"


def test_the_chosen_trial_is_the_last_of_its_recipe() -> None:
    document = study_json(made_up_study())
    chosen = [trial for trial in document["trials"] if trial["chosen"]]
    assert [trial["latency_ms"]["median"] for trial in chosen] == [13.3]
    assert chosen[0]["recipe"]["id"] == document["best"]
    assert chosen[0]["speedup_x"] == {"median": 3.142, "low": 3.142 * 0.98, "high": 3.142 * 1.02}


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
