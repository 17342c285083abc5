"""What is raced: not always the time of a call. Costs are planted by sleeping, so that no machine's quiet matters."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import togi
from togi.artifact.installed import Installed
from togi.artifact.manifest import Saved, read_manifest
from togi.artifact.switch import Switch
from togi.core.choices import Objective
from togi.core.errors import SubjectError, TogiError
from togi.core.recipe import PartKey
from togi.core.records import REFERENCE_RECIPE, Outcome, Recipe, measured
from togi.core.settings import Settings
from togi.decide.budget import Budget
from togi.journal import Journal
from togi.machine.describe import machine
from togi.study.open_study import OpenStudy
from togi.study.progress import Progress
from togi.study.tuned_subject import TunedSubject
from togi.study.verification import verify_artifact
from togi.subject.effects import Effects
from togi.subject.inputs import Inputs, Subject
from togi.subject.nested import tensors_in
from togi.techniques.build import first_candidate
from togi.torch_internals.script import assigned_inside
from togi.torch_internals.tensors import FakeTensorMode
from togi.verify.derived_inputs import variants
from togi.verify.reference import make_truth
from togi.worker.checking import TrialCheck
from togi.worker.contender import Contender
from togi.worker.job import TRUTH_FOLDER
from togi.worker.messages import TryArtifact, TryRecipe
from togi.worker.pool import WorkerPool
from togi.worker.protocol import AskedAtOnce, PartRef, SubjectRef
from togi.worker.supervise import Limits
from togi.worker.survey import survey
from togi.worker.trial import TrialJob

ONE_AT_A_TIME = """
import threading, time, torch

LOCK = threading.Lock()

class OneAtATime(torch.nn.Linear):
    def forward(self, x):
        with LOCK:
            time.sleep(0.04)
        return super().forward(x)

class Dice(torch.nn.Linear):
    def forward(self, x):
        return torch.nn.functional.dropout(super().forward(x))

def one_at_a_time():
    torch.manual_seed(0)
    return OneAtATime(8, 8), torch.randn(2, 8)

class Branches(torch.nn.Linear):
    def forward(self, x):
        return x if x.sum() > 1e9 else super().forward(x)

def plain():
    torch.manual_seed(0)
    return torch.nn.Linear(8, 8), torch.randn(2, 8)

def branches():
    return Branches(8, 8), torch.randn(2, 8)

class MixesUp(torch.nn.Linear):
    def forward(self, x):
        self.x = x
        time.sleep(0.002)
        return super().forward(self.x)

def mixes_up():
    torch.manual_seed(0)
    return MixesUp(8, 8), torch.randn(2, 8)

def dice():
    return Dice(8, 8), torch.randn(2, 8)
"""
"""Traced, it neither waits nor sleeps."""


pytestmark = pytest.mark.usefixtures("brief_studies")


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOGI_HOME", str(tmp_path / "home"))


@pytest.fixture
def subjects(tmp_path: Path) -> str:
    path = tmp_path / "subjects.py"
    path.write_text(ONE_AT_A_TIME, encoding="utf-8")
    return str(path)


@pytest.mark.thorough
def test_throughput_is_what_several_callers_are_answered_and_a_call_beside_them_can_be_limited(subjects: str) -> None:
    study = togi.tune(
        f"{subjects}:one_at_a_time",
        objective="throughput",
        callers=3,
        max_latency="80ms",
        only=["torchscript"],
        effort="quick",
        time_limit_s=200,
    ).record
    assert study.facts.callers == 3
    reference = study.trial(REFERENCE_RECIPE)
    assert reference is not None
    assert reference.timing is not None
    assert reference.timing.latency_ms.median >= 40, "one answer after the other"
    assert reference.timing.waited_ms >= 80, "and each caller waits for those of the others"
    assert study.best is not None
    chosen = study.trial(study.best)
    assert chosen is not None
    assert chosen.timing is not None
    assert chosen.timing.speedup_x.median > 2
    assert "with 3 callers at once" in study.verdict
    original, best = measured([reference, chosen])
    assert Budget.of(study.settings).exceeded(original).startswith("a call takes")
    assert Budget.of(study.settings).fits(best)
    assert "--objective throughput --callers 3" in study.command
    assert "--max-latency 0.08" in study.command


@pytest.mark.thorough
def test_a_turn_of_the_first_call_is_a_start_from_files(subjects: str, tmp_path: Path) -> None:
    settings, limits = Settings(objective="first-call"), Limits()
    ref = SubjectRef.here("locator", f"{subjects}:plain")
    with (
        WorkerPool(ref, machine(), device="cpu", seed=0) as pool,
        Journal.open(tmp_path / "journal.sqlite") as journal,
    ):
        survey, fingerprint = pool.survey(limits, lambda _: None)
        subject = TunedSubject(pool, "plain", survey.facts, survey.signature, settings)
        study = OpenStudy.open(subject, fingerprint, journal, Progress(), started=time.monotonic(), resume=False)
        subject.make_truth(lambda _: None)
        reference = study.processes.reference()
        assert reference.files is not None
        assert read_manifest(reference.files).objective is Objective.FIRST_CALL
        turn = reference.turn(50)
        assert turn.passes == 1
        assert turn.call_ms is not None
        assert turn.call_ms < turn.times_ms[0] <= turn.wall_s * 1e3, "a call is a part of the start"
        timing = study.stopwatch.time(reference, reference, 0.0)
        assert timing.start_ms == timing.latency_ms.median
        assert timing.waited_ms == turn.call_ms
        study.processes.close()
        assert not reference.files.exists()


@pytest.mark.thorough
def test_what_has_no_file_form_has_no_first_call(subjects: str) -> None:
    with pytest.raises(SubjectError, match=r"has no file form: torch\.export cannot capture it"):
        togi.tune(f"{subjects}:branches", objective="first-call", effort="quick", time_limit_s=60)


@pytest.mark.thorough
def test_an_original_that_mixes_up_its_callers_is_said_to(subjects: str) -> None:
    study = togi.tune(
        f"{subjects}:mixes_up",
        objective="throughput",
        callers=3,
        only=["inference_mode"],
        effort="quick",
        time_limit_s=200,
    ).record
    assert (
        "The original itself is not right for several callers: output is another when 3 call at once" in study.verdict
    )
    assert {trial.outcome for trial in study.trials if trial.recipe.find("inference_mode")} == {Outcome.WRONG}


class _MixesUp(torch.nn.Linear):
    """Right for one caller, whoever it is."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.x = x
        time.sleep(0.002)
        return super().forward(self.x)


ARTIFACT = TryArtifact(log="", recipe=Recipe(), folder="")


class _Loaded(Contender):
    """Whatever its files may be."""

    def __init__(self, trial: TrialJob, call: Callable[..., Any], samples: tuple[Inputs, ...]) -> None:
        super().__init__(trial)
        self.call, self.samples = call, samples

    def save(self, folder: Path, check: TrialCheck, ask_s: float) -> Saved:
        raise NotImplementedError


def _alone(net: torch.nn.Module) -> Callable[[torch.Tensor], torch.Tensor]:
    busy = threading.Lock()

    def call(x: torch.Tensor) -> torch.Tensor:
        if not busy.acquire(blocking=False):
            raise RuntimeError("one call at a time")
        try:
            time.sleep(0.002)
            return net(x)  # type: ignore[no-any-return]
        finally:
            busy.release()

    return call


@pytest.mark.parametrize(
    ("original", "engine", "asked"),
    [
        (
            torch.nn.Linear,
            lambda net: net,
            AskedAtOnce(problems=("output is another when 2 call at once (it cannot serve threads)",)),
        ),
        (
            _MixesUp,
            lambda net: net,
            AskedAtOnce(note="the original itself gives wrong answers when several call at once"),
        ),
        (torch.nn.Linear, _alone, AskedAtOnce(note="it fails when 2 call at once: one call at a time")),
        (torch.nn.Linear, lambda net: torch.nn.Linear.forward.__get__(net), AskedAtOnce()),
    ],
    ids=["mixes up its callers", "as the original does", "fails", "right"],
)
def test_what_was_raced_for_one_caller_is_asked_by_two(
    original: type[torch.nn.Linear], engine: Callable[[torch.nn.Module], Any], asked: AskedAtOnce, tmp_path: Path
) -> None:
    torch.manual_seed(0)
    net, tuned = original(8, 8), _MixesUp(8, 8)
    tuned.load_state_dict(net.state_dict())
    subject = Subject(net, Inputs.of(torch.randn(2, 8)))
    found = survey(subject)
    found.write(tmp_path)
    start = first_candidate(subject, found.facts, found.signature)
    inputs = variants(start.samples, found.signature, 0)
    truth = make_truth(start.module, inputs, found.signature, seed=0, device="cpu", samples=1)
    (tmp_path / TRUTH_FOLDER).mkdir()
    truth.save(tmp_path / TRUTH_FOLDER)
    config: Any = SimpleNamespace(seed=0, device="cpu", folder=str(tmp_path), callers=1)
    worker = TrialJob(ARTIFACT, config, subject, SimpleNamespace())  # type: ignore[arg-type]
    worker.contender = _Loaded(worker, torch.no_grad()(engine(tuned)), start.samples)
    assert worker.check.verify(None, None).faithful
    assert worker.check.asked_at_once(2) == asked


class _Remembers(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.last = torch.zeros(2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.last = self.last + x
        return self.last


def test_torchscript_that_assigns_in_a_call_is_not_asked_by_two_which_would_end_the_process() -> None:
    inside = torch.nn.Sequential(torch.jit.script(_Remembers().eval()))
    subject = Subject(inside, Inputs.of(torch.ones(2)))
    with pytest.raises(SubjectError, match="assigns last in each call: several callers at once"):
        survey(subject, callers=2)
    config: Any = SimpleNamespace(seed=0, device="cpu", folder="", callers=1)
    worker = TrialJob(ARTIFACT, config, subject, SimpleNamespace())  # type: ignore[arg-type]
    asked = TrialCheck(_Loaded(worker, inside, ()), exact=True).asked_at_once(2)
    assert "one caller at a time" in asked.note
    assert "assigns last" in asked.note


def test_it_is_known_also_where_a_tuned_part_stands_in_its_forward() -> None:
    inside = torch.nn.Sequential(torch.jit.script(_Remembers().eval()))
    switch = Switch(inside[0], "0", inside[0].forward)
    with Installed(inside, [switch]):
        assert vars(inside[0])["forward"] is switch
        assert assigned_inside(inside) == ["last"]


@pytest.mark.thorough
def test_end_to_end_is_a_call_with_its_copies(subjects: str, tmp_path: Path) -> None:
    result = togi.tune(
        f"{subjects}:one_at_a_time",
        objective="end-to-end",
        only=["torchscript"],
        effort="quick",
        time_limit_s=200,
        out=tmp_path / "fast.togi",
    )
    study = result.record
    assert "as the original with the copies to the device and back" in study.verdict
    assert "On the CPU nothing is copied, so end-to-end is the same as latency." in study.verdict
    assert "--objective end-to-end" in study.command
    assert read_manifest(tmp_path / "fast.togi").objective is Objective.END_TO_END
    again = {"seed": 0, "time_limit_s": 60, "max_error": None, "max_drop": None, "trusted": None}
    found = verify_artifact(tmp_path / "fast.togi", study.subject, progress=Progress(), **again)
    assert found.proven, found.verdict


@pytest.mark.skipif(torch.__version__ < "2.11", reason="fake CUDA tensors ask for the driver")
@pytest.mark.parametrize("part", [False, True])
def test_what_is_measured_end_to_end_begins_and_ends_on_the_host(part: bool) -> None:
    called: list[str] = []

    def call(x: torch.Tensor, *, scale: torch.Tensor) -> dict[str, list[torch.Tensor]]:
        called.append(f"{x.device.type} {scale.device.type}")
        return {"y": [x * scale]}

    config: Any = SimpleNamespace(from_host=True, device="cuda", callers=1, folder="")
    layer = PartRef(key=PartKey(path="layer"), effects=Effects(), inputs="", folder="") if part else None
    worker = TrialJob(TryRecipe(log="", recipe=Recipe(), part=layer), config, None, SimpleNamespace())  # type: ignore[arg-type]
    worker.surveyed = SimpleNamespace(inputs_change=False)  # type: ignore[assignment]
    with FakeTensorMode():
        inputs = Inputs((torch.ones(2, device="cuda"),), {"scale": torch.ones(2, device="cuda")})
        worker.contender = SimpleNamespace(call=call, samples=(inputs,), given_as=None)  # type: ignore[assignment]
        measured, samples = worker.measuring.call, worker.measuring.samples
        given = [tensor.device.type for tensor in samples[0].tensors()]
        found = [tensor.device.type for tensor in tensors_in(measured(*samples[0].args, **samples[0].kwargs))]
    assert called == ["cuda cuda"]
    assert given == (["cuda", "cuda"] if part else ["cpu", "cpu"]), "parts of a program are called from within"
    assert found == (["cuda"] if part else ["cpu"])


@pytest.mark.thorough
def test_what_draws_random_numbers_has_no_throughput_that_could_be_proven(subjects: str) -> None:
    with pytest.raises(SubjectError, match="depends on their order"):
        togi.tune(f"{subjects}:dice", objective="throughput", effort="quick", time_limit_s=60)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"objective": "troughput"}, "did you mean 'throughput'"),
        ({"callers": 2}, "--objective throughput"),
        ({"objective": "throughput", "callers": 1}, "callers=1"),
        ({"max_latency": "0s"}, "max_latency='0s' is too short"),
    ],
)
def test_an_objective_that_is_none_is_refused_before_any_work(given: dict[str, object], words: str) -> None:
    with pytest.raises(TogiError) as error:
        togi.tune("nowhere.py:subject", **given)  # type: ignore[arg-type]
    assert words.lower() in str(error.value).lower()
