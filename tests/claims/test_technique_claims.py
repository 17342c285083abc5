"""What techniques claim is measured on a small model, or it is said why it cannot be."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from togi.claims import ClaimVerdict
from togi.claims import technique as technique_claims
from togi.claims.experiments import EXPERIMENTS, Experiment
from togi.claims.prove import prove
from togi.claims.technique import judge
from togi.cli.app import run
from togi.core.errors import TogiError
from togi.core.records import ErrorReport, Footprint, Interval, Timing
from togi.machine.describe import machine
from togi.techniques import all_remedies, technique
from togi.techniques.base import Applies, Package

MIB = 2**20
EXPERIMENT = Experiment(model="convolutions", about="a model")
FAITHFUL = ErrorReport(faithful=True, units=1.2, rmse=1e-7, max_abs=1e-6)
FAR = ErrorReport(faithful=False, units=9_000.0, rmse=4e-3, max_abs=2e-2)
BUILT_IN = [id for id, one in all_remedies().items() if type(one).__module__.startswith("togi.")]


def timing(low: float, high: float) -> Timing:
    speedup = Interval(median=min(1.1, high) if low < 1.1 else (low + high) / 2, low=low, high=high)
    return Timing(latency_ms=Interval(median=1, low=1, high=1), speedup_x=speedup, rounds_ms=((2.0, 1.0),))


def test_every_built_in_technique_has_a_test_of_its_claim() -> None:
    of_calls = {id for id in BUILT_IN if all_remedies()[id].infers}
    assert set(EXPERIMENTS) == of_calls


def test_a_claim_about_a_training_step_is_measured_on_one() -> None:
    proof = prove("kept_memory")
    assert proof.verdict is ClaimVerdict.UNTESTED
    assert "togi tune --train" in proof.sentence


@pytest.mark.parametrize(
    "id",
    [
        id
        for id in BUILT_IN
        if all_remedies()[id].stage in ("rewrite", "layout") or id in ("attention_backend", "flush_denormal")
    ],
)
def test_the_model_holds_what_the_technique_works_on(id: str) -> None:
    from togi.claims.formulas import models
    from togi.techniques.conformance import candidate_of

    found = technique(id)
    candidate = candidate_of(*_made(getattr(models, EXPERIMENTS[id].model)))
    there = candidate.facts.machine.model_copy(update={"compiler": "g++"})
    candidate = candidate.with_(facts=candidate.facts.model_copy(update={"machine": there}))
    assert found.applies(candidate.facts) == Applies()
    any_model = technique_claims._ANY_MODEL.model_copy(update={"machine": there})
    assert found.applies(any_model) == Applies(), "it would be said to be untestable on this machine"
    options = dict(found.options(candidate.facts)[0])
    found.apply(found.configure(candidate, options), options)  # raises Refused where there is nothing to do


def test_a_processor_without_the_instructions_is_told_before_anything_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    here = machine("cpu").model_copy(update={"cpu_flags": (), "allocators": {}})
    monkeypatch.setattr("togi.claims.technique.machine", lambda _: here)
    monkeypatch.setattr("togi.claims.technique.WorkerPool", None)
    for id, reason in {"bf16": "no bfloat16 instructions", "allocator": "no faster allocator"}.items():
        proof = prove(id)
        assert proof.verdict is ClaimVerdict.UNTESTED
        assert reason in proof.sentence


def _made(factory: Any) -> tuple[Any, list[Any]]:
    module, sample = factory()
    return module.eval(), [sample]


def test_without_a_gpu_a_cuda_technique_cannot_be_tested(capsys: pytest.CaptureFixture[str]) -> None:
    if machine("cuda").gpu is not None:
        pytest.skip("there is a GPU here")
    assert run(["explain", "tf32", "--prove", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    (proof,) = document["proofs"]
    assert (document["kind"], proof["claim"], proof["verdict"]) == ("proofs", "tf32", "cannot be tested here")
    assert "it needs a CUDA device" in proof["sentence"]
    assert run(["explain", "cuda-graph", "--prove"]) == 0
    assert "cannot be tested here" in capsys.readouterr().out


def test_a_missing_package_is_named_with_the_command_that_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Package, "missing", lambda package: f"{package.distribution} is not installed")
    proof = prove("int8_onnxruntime")
    assert proof.verdict is ClaimVerdict.UNTESTED
    assert (proof.sentence, proof.fix) == ("onnxruntime is not installed.", "pip install 'togi[onnx]'")


@pytest.fixture
def no_hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    """How long a proof may take is the machine's; it measures no longer than its least rounds need."""
    monkeypatch.setattr(technique_claims, "LONGEST_S", 120.0)
    monkeypatch.setattr(technique_claims, "_BUDGET_S", 0.5)


@pytest.mark.thorough
@pytest.mark.usefixtures("no_hurry")
@pytest.mark.parametrize(
    "id",
    [
        "flush_denormal",
        *(pytest.param(id, marks=pytest.mark.thorough) for id in ("no_grad", "fold-batch-norm")),
    ],
)
def test_a_claim_is_measured_next_to_the_same_without_the_technique(id: str) -> None:
    """The figures are the machine's; that both took turns, and that the verdict follows from the interval, is ours."""
    proof = prove(id)
    without, with_ = proof.rows
    name = id.replace("-", "_")
    assert name not in without.name
    assert name in with_.name
    assert without.median_ms is not None
    assert with_.median_ms is not None
    assert with_.speedup_x is not None
    unclear = "do not decide" in proof.sentence
    assert unclear or proof.verdict is not ClaimVerdict.UNTESTED
    assert not unclear or proof.verdict in (ClaimVerdict.UNTESTED, ClaimVerdict.HOLDS_IN_PART), "speed alone is unclear"
    assert "wrong" not in proof.sentence
    if id == "no_grad":
        assert without.peak_bytes is not None
        assert with_.peak_bytes is not None


@pytest.mark.thorough(60)
@pytest.mark.timeout(700)  # where the machine is busy, all that it may take
@pytest.mark.usefixtures("no_hurry")
def test_the_parts_of_a_program_are_found_tuned_and_measured_together() -> None:
    proof = prove("parts")
    if not proof.rows:  # beside a busy neighbour no part is faster beyond doubt
        assert "body: " in proof.sentence
        return
    without, with_ = proof.rows
    assert without.name == "no_grad"
    # where the machine is busy, the whole may be faster compiled where it stands
    assert with_.name.startswith(("parts(body=", "parts(program="))
    assert "wrong" not in proof.sentence


@pytest.fixture
def subject(tmp_path: Path) -> str:
    file = tmp_path / "subject.py"
    file.write_text(
        "import time, torch\n"
        "class Slow(torch.nn.Linear):\n"
        "    def forward(self, x):\n"
        "        time.sleep(2)\n"
        "        return super().forward(x)\n"
        "def linear():\n"
        "    return torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU()), torch.randn(4, 64)\n"
        "def slow():\n"
        "    return Slow(4, 4), torch.randn(1, 4)\n",
        encoding="utf-8",
    )
    return f"{file}:linear"


@pytest.mark.thorough
def test_on_a_subject_both_take_turns_there(subject: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(technique_claims, "_BUDGET_S", 0.5)
    proof = prove("inference_mode", on=subject)
    without, with_ = proof.rows
    assert (proof.setting, without.name, with_.name) == (subject, "no_grad", "inference_mode")
    assert with_.speedup_x is not None
    assert subject in proof.sentence


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("id", "reason"),
    [
        ("fold_batch_norm", "no batch norm"),
        pytest.param("parts", "it can be captured whole", marks=pytest.mark.thorough),
    ],
)
def test_a_subject_that_it_does_not_apply_to_is_not_measured(id: str, reason: str, subject: str) -> None:
    proof = prove(id, on=subject)
    assert (proof.verdict, proof.setting, proof.rows) == (ClaimVerdict.UNTESTED, subject, ())
    assert reason in proof.sentence


@pytest.mark.thorough
def test_a_subject_that_takes_longer_than_a_proof_may_is_for_tune(
    subject: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(technique_claims, "LONGEST_S", 1.0)
    slow = subject.replace("linear", "slow")
    proof = prove("inference_mode", on=slow)
    assert proof.verdict is ClaimVerdict.UNTESTED
    assert "more than a minute" in proof.sentence
    assert proof.fix == f"togi tune {slow} --only inference_mode"


def test_a_claim_has_no_other_subject() -> None:
    with pytest.raises(TogiError, match="code of its own"):
        prove("box-iou", on="timm:resnet18")


@pytest.mark.parametrize(
    ("low", "high", "verdict"),
    [
        (1.2, 1.3, ClaimVerdict.HOLDS),
        (0.99, 1.01, ClaimVerdict.REFUTED),
        (0.7, 0.8, ClaimVerdict.REFUTED),
        (0.9, 1.3, ClaimVerdict.UNTESTED),
        (0.0, float("inf"), ClaimVerdict.UNTESTED),
    ],
)
def test_the_interval_decides(low: float, high: float, verdict: ClaimVerdict) -> None:
    found, sentence = judge(technique("channels_last"), EXPERIMENT, FAITHFUL, timing(low, high))
    assert found is verdict
    assert "inf" not in sentence
    assert "a model" in sentence


def test_a_wrong_output_refutes_an_exact_technique_and_not_an_approximate_one() -> None:
    fast = timing(1.4, 1.5)
    assert judge(technique("channels_last"), EXPERIMENT, FAR, fast)[0] is ClaimVerdict.REFUTED
    verdict, sentence = judge(technique("bf16"), EXPERIMENT, FAR, fast)
    assert verdict is ClaimVerdict.HOLDS
    assert "approximate: relative error 4.0e-03" in sentence


def test_a_claim_about_memory_too_holds_in_part_where_one_of_the_two_holds() -> None:
    less = (Footprint(idle_bytes=0, peak_bytes=9 * MIB), Footprint(idle_bytes=0, peak_bytes=3 * MIB))
    no_grad = technique("no_grad")
    assert judge(no_grad, EXPERIMENT, FAITHFUL, timing(1.2, 1.3), less)[0] is ClaimVerdict.HOLDS
    assert judge(no_grad, EXPERIMENT, FAITHFUL, timing(0.99, 1.01), less)[0] is ClaimVerdict.HOLDS_IN_PART
    assert judge(no_grad, EXPERIMENT, FAITHFUL, timing(1.2, 1.3), less[::-1])[0] is ClaimVerdict.HOLDS_IN_PART
    assert judge(no_grad, EXPERIMENT, FAITHFUL, timing(0.99, 1.01), less[::-1])[0] is ClaimVerdict.REFUTED
    assert judge(no_grad, EXPERIMENT, FAITHFUL, timing(0.9, 1.4), less)[0] is ClaimVerdict.HOLDS_IN_PART
    assert judge(no_grad, EXPERIMENT, FAITHFUL, timing(0.9, 1.4), less[::-1])[0] is ClaimVerdict.UNTESTED


def test_a_name_that_is_neither_a_claim_nor_a_technique_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["explain", "channels-first", "--prove"]) == 2
    assert "did you mean 'channels_last'" in capsys.readouterr().err
