"""``togi verify``: an artifact is proven again, or it is said why it is not."""

from __future__ import annotations

import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.study.made_artifacts import made_artifact
from tests.subject.made_strange import STRANGE, strange_folder
from togi import api
from togi.artifact.manifest import read_manifest
from togi.artifact.save import write_manifest
from togi.core.choices import AccuracyMeasure, Direction, Objective
from togi.core.errors import ArtifactError, SubjectError, TogiError
from togi.core.judging import Judging
from togi.core.permits import Permit, permitting
from togi.core.records import ErrorReport, Interval, Noise, Outcome, Trial
from togi.decide.gate import Answer
from togi.machine.describe import machine
from togi.study import verification
from togi.study.bench import run_bench
from togi.study.comparison import Comparison
from togi.study.contestants import Contestant
from togi.techniques import recipe
from togi.worker.pool import WorkerPool
from togi.worker.protocol import SubjectRef
from togi.worker.supervise import Limits

MODELS = """
import torch

def make(seed):
    torch.manual_seed(seed)
    return torch.nn.Linear(64, 64), torch.ones(4, 64)

def original():
    return make(0)

def other():
    return make(1)

def validation(seed=2):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(4, 64, generator=generator) for _ in range(32)]

def other_validation():
    return validation(3)

def labelled():
    model, samples = original()[0], validation()
    return samples, [model(sample).detach() for sample in samples]

def broken():
    return torch.nn.Linear(64, 64), torch.ones(4, 3)
"""


def artifact_of(folder: Path, subject: str, was: Interval | None, callers: int = 1, **given: Any) -> Path:
    """Made without a study; ``was``: the speed-up that its proof claims."""
    locator = f"{folder / 'models.py'}:original"
    return made_artifact(folder / "model.togi", locator, subject=subject, was=was, callers=callers, **given)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "models.py").write_text(MODELS, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def interval(low: float, median: float, high: float) -> Interval:
    return Interval(median=median, low=low, high=high)


@pytest.mark.thorough
def test_it_is_verified_beside_its_original_with_as_many_callers_as_it_was_tuned_for(
    folder: Path,
) -> None:
    found = api.verify(
        artifact_of(folder, "models.py:original", None, callers=3), subject="models.py:original", time_limit_s=1
    )
    assert found.subject == "models.py:original"
    assert found.outcome is Outcome.OK
    artifact = found.comparison.contestants[1]
    assert artifact.error is not None
    assert artifact.error.faithful
    assert artifact.speedup_x is not None
    assert found.proven == ("and not slower" in found.verdict)
    assert found.comparison.callers == 3
    assert all(contestant.call_ms is not None for contestant in found.comparison.contestants)


def test_what_was_chosen_by_its_first_call_need_not_be_fast(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = artifact_of(folder, "models.py:original", FASTER, objective=Objective.FIRST_CALL)
    found, verdict = verified(out, monkeypatch, {"speedup_x": SLOWER, "error": RIGHT})
    assert found is Answer.PASSED
    assert "measured by 'togi tune' alone" in verdict
    assert verified(out, monkeypatch, {"speedup_x": FASTER, "error": ROUGH})[0] is Answer.FAILED


@pytest.mark.thorough
def test_another_original_shows_that_it_is_wrong(folder: Path) -> None:
    found = api.verify(artifact_of(folder, "models.py:original", None), subject="models.py:other", time_limit_s=1)
    assert not found.proven
    assert found.outcome is Outcome.WRONG
    assert "not right here" in found.verdict


@pytest.mark.thorough
def test_an_original_that_does_not_run_is_an_error(folder: Path) -> None:
    out = artifact_of(folder, "models.py:original", None)
    with pytest.raises(SubjectError, match=r"models\.py:broken cannot be run, so nothing can be compared.*\(4, 3\)"):
        api.verify(out, subject="models.py:broken", time_limit_s=1)


def test_a_live_module_is_asked_for(folder: Path) -> None:
    with pytest.raises(SubjectError, match=r"was made of 'Linear'.*neither the original nor its inputs.*--subject"):
        api.verify(artifact_of(folder, "Linear", None))


def test_an_artifact_that_was_judged_on_data_asks_for_them(folder: Path) -> None:
    judging = Judging(measure=AccuracyMeasure.AGREEMENT, max_drop=0.01)
    exact = read_manifest(artifact_of(folder, "models.py:original", None)).model_copy(update={"judging": judging})
    lowered = exact.model_copy(update={"recipe": recipe(bf16={"how": "cast"}, no_grad={})})
    with pytest.raises(SubjectError, match=r"accepted for its agreement on validation data.*--data FILE:function"):
        verification._judging(folder, lowered, None, None)
    assert verification._judging(folder, lowered, None, "data.py:f") == judging
    stricter = verification._judging(folder, lowered, 0.001, "data.py:f")
    assert stricter == judging.model_copy(update={"max_drop": 0.001})
    with pytest.raises(TogiError, match="max_drop=1 lets every answer be lost"):
        verification._judging(folder, lowered, 1.0, "data.py:f")
    assert verification._judging(folder, exact, None, None) is None, "what is exact is not judged"
    named = exact.model_copy(update={"proof": exact.proof.model_copy(update={"error": ROUGH})})
    assert verification._judging(folder, named, None, "data.py:f") == judging, "what was allowed to err is"


def test_a_metric_that_an_artifact_names_is_a_program_and_asked_for(folder: Path) -> None:
    own = Judging(measure=AccuracyMeasure.OWN, metric="m.py:score", max_drop=0.01)
    exact = read_manifest(artifact_of(folder, "models.py:original", None)).model_copy(update={"judging": own})
    lowered = exact.model_copy(update={"recipe": recipe(bf16={"how": "cast"}, no_grad={})})
    with pytest.raises(SubjectError, match=r"what m\.py:score says.*no program is run.*--metric m\.py:score"):
        verification._judging(folder, lowered, None, "data.py:f")
    mine = verification._judging(folder, lowered, None, "data.py:f", "mine.py:score")
    assert mine == own.model_copy(update={"metric": "mine.py:score"})
    by_agreement = Judging(measure=AccuracyMeasure.AGREEMENT, max_drop=0.01)
    for other, said in ((by_agreement, "accepted for agreement"), (Judging(max_drop=0.1), "its subject's metric")):
        with pytest.raises(SubjectError, match=said):
            verification._judging(
                folder, lowered.model_copy(update={"judging": other}), None, "data.py:f", "mine.py:score"
            )


@pytest.mark.thorough
def test_an_artifact_is_proven_again_by_its_metric_and_another_one_is_told(folder: Path) -> None:
    text = "def score(outputs, labels):\n    return float((outputs[0] - labels[0]).abs().mean() < {})\n"
    (folder / "metric.py").write_text(text.format(0.1), encoding="utf-8")
    own = Judging(measure=AccuracyMeasure.OWN, metric="metric.py:score", max_drop=0.5, better=Direction.HIGHER)
    out = judged_artifact(folder, own, "labelled")
    kept = read_manifest(out).proof.error
    assert kept is not None
    assert kept.accuracy is not None
    assert kept.accuracy.metric is not None
    assert (kept.accuracy.metric.name, kept.accuracy.metric.original) == ("metric.py:score", 1.0)

    def verdict() -> str:
        found = api.verify(
            out, subject="models.py:original", data="models.py:labelled", metric="metric.py:score", time_limit_s=1
        )
        assert found.outcome is Outcome.OK
        assert found.comparison.contestants[1].error is not None
        assert found.comparison.contestants[1].error.accuracy is not None
        return found.verdict

    assert "code" not in verdict()
    (folder / "metric.py").write_text(text.format(0.2), encoding="utf-8")
    assert "The metric's code is not that by which it was accepted" in verdict()


BY_RMS = Judging(measure=AccuracyMeasure.RMS, max_drop=0.5)


def judged_artifact(folder: Path, judging: Judging = BY_RMS, data: str = "validation") -> Path:
    """Of a recipe that is judged on a function of ``models.py``, made without a study."""
    lowered = recipe(onnxruntime={"spinning": False}, int8_onnxruntime={"how": "dynamic"}, no_grad={})
    here, out = SubjectRef.here("locator", "models.py:original"), folder / "judged.togi"
    with WorkerPool(here, machine(), device="cpu", seed=0, judging=judging, data=f"models.py:{data}") as pool:
        limits = (Limits(), lambda _: None)
        known, _ = pool.survey(*limits)
        facts = pool.make_truth(known.facts, *limits)
        with pool.start(lowered, facts, *limits) as running:
            saved = running.save(out, 1.0)
            proof = Trial(recipe=lowered, outcome=Outcome.OK, error=running.error)
    about = {"recipe": lowered, "signature": known.signature.within(saved.domains), "facts": facts, "proof": proof}
    write_manifest(
        out,
        subject="models.py:original",
        chain=saved.links,
        judging=judging,
        calibration=saved.calibration,
        **about,  # type: ignore[arg-type]
    )
    return out


@pytest.mark.thorough
def test_other_data_than_it_was_accepted_on_are_told(folder: Path) -> None:
    out = judged_artifact(folder)
    kept = read_manifest(out)
    assert kept.proof.error is not None
    assert kept.proof.error.accuracy is not None
    assert len(kept.calibration) == len(kept.proof.error.accuracy.data) == 64

    judged_by: list[int] = []

    def verdict(data: str) -> str:
        found = api.verify(out, subject="models.py:original", data=f"models.py:{data}", time_limit_s=1)
        error = found.comparison.contestants[1].error
        assert error is not None
        assert error.accuracy is not None
        judged_by.append(error.accuracy.drop.planned)
        return found.verdict

    assert "is right" in (same := verdict("validation"))
    assert "another test" not in same
    other = verdict("other_validation")
    assert "is right" in other
    assert f"not those that it was accepted on (sha256 {kept.proof.error.accuracy.data[:12]} then, " in other
    assert f"Then: {kept.proof.error.accuracy.drop.seen} samples prove a drop of at most " in other
    assert judged_by == [64, 128], "all of other data prove it, since none of them chose it"


def test_a_damaged_artifact_is_an_error(folder: Path) -> None:
    out = artifact_of(folder, "models.py:original", None)
    file = next(path for path in out.rglob("*") if path.is_file() and path.suffix == ".pt2")
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(ArtifactError, match="it was cut or changed"):
        api.verify(out)


@pytest.mark.parametrize("subject", ["models.py:original", "models:original", "models.ts", "models.togi", "this:f"])
def test_no_program_is_run_because_an_artifact_names_it(folder: Path, subject: str) -> None:
    (folder / "models.py").write_text(MODELS.replace("import torch", "import torch, evil"), encoding="utf-8")
    (folder / "evil.py").write_text("open('sprung', 'w').close()", encoding="utf-8")
    (folder / "good.py").write_text(MODELS, encoding="utf-8")
    out = made_artifact(folder / "model.togi", f"{folder / 'good.py'}:original", subject=subject)
    with pytest.raises(SubjectError, match=r"no program is run because an artifact names it.*--subject"):
        api.verify(out)
    assert not (folder / "sprung").exists()


@pytest.mark.thorough
def test_what_was_changed_after_the_check_is_not_loaded(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = artifact_of(folder, "models.py:original", None)
    other = made_artifact(folder / "other.togi", f"{folder / 'models.py'}:other", subject="models.py:original")

    def changed(*given: Any, **options: Any) -> Comparison:
        shutil.rmtree(out)
        other.rename(out)
        return run_bench(*given, **options)

    monkeypatch.setattr(verification, "run_bench", changed)
    found = api.verify(out, subject="models.py:original", time_limit_s=1)
    assert not found.proven
    assert "was changed after it was checked" in found.verdict


def test_no_library_that_an_artifact_names_is_preloaded(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Seen(Exception):
        pass

    def server(_: object, environment: dict[str, str]) -> None:
        assert "canary" not in str(environment)
        raise Seen

    hostile = {name: f"/tmp/canary_{name}.so" for name in ("tcmalloc", "jemalloc", "mimalloc")}
    facts = read_manifest(artifact_of(folder, "models.py:original", None)).facts
    facts = facts.model_copy(update={"machine": facts.machine.model_copy(update={"allocators": hostile})})
    monkeypatch.setattr(WorkerPool, "server", server)
    pool = WorkerPool(SubjectRef(kind="nothing"), machine("cpu"), device="cpu", seed=0)
    try:
        for name in hostile:
            with pytest.raises(Seen):
                pool.start_artifact(folder, recipe(allocator={"name": name}), facts, Limits(), check=None)
    finally:
        pool.close()


def test_programs_are_left_out_where_they_are_not_wanted(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[bool] = []
    monkeypatch.setattr(verification, "run_bench", lambda *_, native, **__: asked.append(native) or 1 / 0)
    for native in (True, False):
        with pytest.raises(ZeroDivisionError):
            api.verify(artifact_of(folder, "timm:resnet18", None), native=native)
        shutil.rmtree(folder / "model.togi")
    assert asked == [True, False]


FASTER, SAME, WIDE = interval(1.9, 2, 2.1), interval(0.99, 1, 1.01), interval(0.9, 1.1, 1.3)
SLOWER = interval(0.4, 0.5, 0.6)
HALF, ENDLESS = interval(0.49, 0.5, 0.51), interval(0, 2, float("inf"))
RIGHT = ErrorReport(faithful=True, units=1, rmse=1e-7, max_abs=1e-6)
ROUGH = ErrorReport(faithful=False, units=90, rmse=1e-3, max_abs=1e-2)


def judged(
    folder: Path, monkeypatch: pytest.MonkeyPatch, was: Interval | None, contestant: dict[str, Any], **bounds: float
) -> tuple[Answer, str]:
    """What is said where the measurement came out like this."""
    return verified(artifact_of(folder, "models.py:original", was), monkeypatch, contestant, **bounds)


def verified(
    out: Path, monkeypatch: pytest.MonkeyPatch, contestant: dict[str, Any], **bounds: Any
) -> tuple[Answer, str]:
    first = Contestant(name="models.py:original", latency_ms=interval(1, 1, 1))
    second = Contestant(name=str(out), latency_ms=interval(1, 1, 1), **contestant)
    made = Comparison(contestants=(first, second), machine=machine())
    monkeypatch.setattr(verification, "run_bench", lambda *_, **__: made)
    found = api.verify(out, subject="models.py:original", **bounds)
    assert read_manifest(out).max_error is None
    return found.answer, found.verdict


@pytest.mark.parametrize(
    ("was", "now", "answer", "said"),
    [
        (FASTER, FASTER, Answer.PASSED, "faster: 2.00x the speed of the original (1.90-2.10), 2.00x when it was made"),
        (FASTER, SAME, Answer.FAILED, "no longer faster"),
        (FASTER, SLOWER, Answer.FAILED, "no longer faster"),
        (FASTER, WIDE, Answer.UNDECIDED, "do not show whether it is faster"),
        (FASTER, None, Answer.UNDECIDED, "could not be measured in the time"),
        (FASTER, ENDLESS, Answer.UNDECIDED, "do not show whether it is faster"),
        (SAME, WIDE, Answer.UNDECIDED, "do not show whether it is slower than the original"),
        (SAME, SLOWER, Answer.FAILED, "but slower than the original"),
        (None, SAME, Answer.PASSED, "and not slower than the original: 1.00x"),
        (None, interval(0.965, 0.97, 0.975), Answer.PASSED, "slower than the original by more than the 4.0 % that"),
        (SLOWER, SLOWER, Answer.UNDECIDED, "do not show whether it is slower than it was"),
        (HALF, HALF, Answer.PASSED, "and not slower than it was"),
        (HALF, interval(0.1, 0.11, 0.12), Answer.FAILED, "but slower than it was"),
    ],
)
def test_what_was_faster_must_be_faster(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    was: Interval | None,
    now: Interval | None,
    answer: Answer,
    said: str,
) -> None:
    found, verdict = judged(folder, monkeypatch, was, {"speedup_x": now, "error": RIGHT})
    assert found is answer
    assert said in verdict
    assert verdict.startswith({"passed": "Proven", "failed": "Not proven", "undecided": "Undecided"}[answer])


@pytest.mark.parametrize(
    ("noise", "said"),
    [
        (Noise(spread=1.64), "(times vary by 164%)"),
        (Noise(stolen=0.4), "(the hypervisor took 40% of the machine's time)"),
    ],
)
@pytest.mark.parametrize("now", [FASTER, SAME, SLOWER])
def test_on_a_machine_that_is_mostly_not_ours_no_speed_is_judged(now: Interval, noise: Noise, said: str) -> None:
    answer, verdict = verification._fast(now, FASTER, noise)
    assert answer is Answer.UNDECIDED
    assert f"it is right, but the machine was too disturbed to judge its speed {said}" in verdict
    assert "Tune again" not in verdict


def test_being_fast_does_not_make_it_right(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    proven, verdict = judged(folder, monkeypatch, FASTER, {"speedup_x": FASTER, "error": ROUGH})
    assert proven is Answer.FAILED
    assert "beyond what rounding explains" in verdict


@pytest.mark.parametrize(("error", "held"), [(None, True), (RIGHT, True), (ROUGH, False)])
def test_an_exact_recipe_that_was_accepted_within_a_bound_is_held_to_that_bound(
    error: ErrorReport | None, held: bool
) -> None:
    made: Any = SimpleNamespace(recipe=recipe(no_grad={}), proof=SimpleNamespace(error=error))
    assert verification._held_to_rounding(made) is held


def test_data_that_judged_nothing_are_told(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever names them for whatever was chosen would take them for what proved it."""
    right = {"speedup_x": FASTER, "error": RIGHT}
    out = artifact_of(folder, "models.py:original", FASTER)
    assert "judged nothing" not in verified(out, monkeypatch, right)[1]
    found, verdict = verified(out, monkeypatch, right, data="models.py:validation")
    assert found is Answer.PASSED
    assert verdict.endswith(". The validation data judged nothing: it is exact, and may differ by rounding alone.")
    exact = read_manifest(out)
    lowered = exact.model_copy(update={"recipe": recipe(bf16={"how": "cast"}, no_grad={})})
    for judging, why in ((None, "for its error on the samples"), (Judging(max_drop=0.1), "for its subject's metric")):
        assert why in verification._not_asked(lowered, judging, "data.py:f", None)
    by_data = Judging(measure=AccuracyMeasure.AGREEMENT, max_drop=0.01)
    assert verification._not_asked(lowered, by_data, "data.py:f", None) == ""


def test_what_cannot_run_is_not_proven(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    failed = {"outcome": Outcome.CRASHED, "reason": "its process was killed by SIGSEGV in build"}
    proven, verdict = judged(folder, monkeypatch, FASTER, failed)
    assert proven is Answer.FAILED
    assert "crashed: its process was killed by SIGSEGV" in verdict


@pytest.mark.parametrize(
    "named", ["hf:someone/model", "diffusers:someone/model", "ultralytics:m.pt", "a.ckpt?class=n.py:N"]
)
def test_a_permit_is_not_for_what_an_artifact_names(named: str) -> None:
    """Else whoever wrote an artifact would choose the code that the permit is used for."""
    manifest: Any = SimpleNamespace(subject=named)
    with permitting(Permit), pytest.raises(SubjectError, match="no program is run because an artifact"):
        verification._original(Path("x.togi"), manifest, signed=False)


@pytest.mark.parametrize("what", ["a module", "a component"])
def test_code_in_a_folder_that_an_artifact_names_is_not_run(tmp_path: Path, what: str) -> None:
    """The folder may be one of the artifact."""
    entry, changed = STRANGE[what]
    form = "diffusers" if entry == "model_index.json" else "sentence-transformers"
    manifest: Any = SimpleNamespace(subject=f"{form}:{strange_folder(tmp_path / 'm', entry, changed)}")
    with pytest.raises(SubjectError, match=r"cannot be loaded here.*code of its own.*Give what it is to be compared"):
        verification._original(Path("x.togi"), manifest, signed=False)
