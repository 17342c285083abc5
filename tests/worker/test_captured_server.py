"""A subject is captured once a study: trials that want the captured graph are forked from the process that holds it."""

from __future__ import annotations

import os
import runpy
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from togi.artifact.save import write_manifest
from togi.core.recipe import PartKey
from togi.core.records import Facts, Outcome, Recipe, Trial
from togi.graph import capture
from togi.graph.candidate import Candidate
from togi.graph.capture import export, keep, kept
from togi.machine.describe import machine
from togi.subject.effects import Effects
from togi.subject.inputs import Inputs, Subject
from togi.subject.stored_inputs import write_inputs
from togi.techniques import recipe, technique
from togi.techniques.build import first_candidate
from togi.worker.messages import Purpose
from togi.worker.pool import WorkerPool
from togi.worker.protocol import SubjectRef
from togi.worker.supervise import Limits, TrialEnded
from togi.worker.survey import survey

MODEL = """
import os, pathlib, signal, torch

CAPTURES = pathlib.Path(__file__).with_name("captures")

class Inner(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(8, 8)

    def forward(self, x):
        if torch.compiler.is_exporting():
            with CAPTURES.open("a") as file:
                file.write(f"{os.getpid()} ")
            WHEN_CAPTURED
        return self.linear(x).relu()

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = Inner()

    def forward(self, x):
        return self.inner(x + 1)

def subject():
    torch.manual_seed(0)
    return Model(), torch.ones(2, 8)
"""
QUIET = Limits(), lambda _: None


def pool_of(folder: Path, when_captured: str = "pass") -> WorkerPool:
    file = folder / "model.py"
    file.write_text(MODEL.replace("WHEN_CAPTURED", when_captured), encoding="utf-8")
    return WorkerPool(SubjectRef.here("locator", f"{file}:subject"), machine(), device="cpu", seed=0)


def ready(pool: WorkerPool) -> Facts:
    survey, _ = pool.survey(*QUIET)
    return pool.make_truth(pool.capture(survey, *QUIET).facts, *QUIET)


def captured(facts: Facts) -> Recipe:
    return recipe(onnxruntime=technique("onnxruntime").options(facts)[0], no_grad={})


def captures(folder: Path) -> list[str]:
    return (folder / "captures").read_text(encoding="utf-8").split()


@pytest.mark.thorough
def test_every_trial_is_given_what_was_captured_once(tmp_path: Path) -> None:
    with pool_of(tmp_path) as pool:
        facts = ready(pool)
        assert facts.exportable
        assert "drop_no_ops" in " ".join(facts.idle_rewrites)
        for _ in range(2):
            with pool.start(captured(facts), facts, *QUIET) as trial:
                assert trial.error is not None
                assert trial.error.faithful
        (holder,) = set(captures(tmp_path))
        assert len(captures(tmp_path)) == 1
        assert pool.export_s == 0.0
    assert not Path(f"/proc/{holder}").exists()


BRANCHES = """
import torch

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(8, 8)

    def forward(self, x):
        y = self.linear(x)
        return y * 2 if x.shape[0] > 100 else y

def subject():
    torch.manual_seed(0)
    return Model(), [torch.randn(60, 8), torch.randn(90, 8)]
"""


@pytest.mark.thorough
def test_it_is_proven_for_the_sizes_that_were_captured(tmp_path: Path) -> None:
    """One of the sizes derived for the proof, 112, is on the other side of the branch."""
    (tmp_path / "branches.py").write_text(BRANCHES, encoding="utf-8")
    subject = SubjectRef.here("locator", f"{tmp_path / 'branches.py'}:subject")
    with WorkerPool(subject, machine(), device="cpu", seed=0) as pool:
        survey = pool.capture(pool.survey(*QUIET)[0], *QUIET)
        facts = pool.make_truth(survey.facts, *QUIET)
        with pool.start(captured(facts), facts, *QUIET) as trial:
            assert trial.error is not None
            assert trial.error.faithful
    assert survey.signature.conditions_in_words() == ["x.shape[0] <= 100"]
    assert "It is proven where x.shape[0] <= 100: for other sizes" in " ".join(facts.notes)


@pytest.mark.thorough
def test_a_sample_beyond_what_it_is_proven_for_is_refused_by_itself(tmp_path: Path) -> None:
    """The artifact was made of two samples of at most 100 rows, and is asked for 200: it answers for itself."""
    (tmp_path / "branches.py").write_text(BRANCHES, encoding="utf-8")
    large = BRANCHES.replace("torch.randn(60, 8), torch.randn(90, 8)", "torch.randn(60, 8), torch.randn(200, 8)")
    (tmp_path / "large.py").write_text(large, encoding="utf-8")
    artifact, (first, second) = (
        tmp_path / "branches.togi",
        [SubjectRef.here("locator", f"{tmp_path / name}:subject") for name in ("branches.py", "large.py")],
    )
    with WorkerPool(first, machine(), device="cpu", seed=0) as pool:
        survey = pool.capture(pool.survey(*QUIET)[0], *QUIET)
        facts = pool.make_truth(survey.facts, *QUIET)
        with pool.start(captured(facts), facts, *QUIET) as trial:
            artifact.mkdir()
            saved, proof = trial.save(artifact), Trial(recipe=captured(facts), outcome=Outcome.OK)
        write_manifest(
            artifact,
            subject="branches",
            recipe=proof.recipe,
            signature=survey.signature,
            facts=facts,
            proof=proof,
            chain=saved.links,
            environment={},
        )
    with WorkerPool(second, machine(), device="cpu", seed=0) as pool:
        facts = pool.make_truth(pool.survey(*QUIET)[0].facts, *QUIET)
        with pytest.raises(TrialEnded, match=r"x\.shape\[0\] is 200, but what was proven holds where"):
            pool.start_artifact(artifact, captured(facts), facts, Limits(), check=Purpose.PROOF)


@pytest.mark.thorough
def test_a_study_goes_on_where_the_process_that_captured_is_killed(tmp_path: Path) -> None:
    with pool_of(tmp_path) as pool:
        facts = ready(pool)
        os.kill(int(captures(tmp_path)[0]), signal.SIGKILL)
        for _ in range(2):
            with pool.start(captured(facts), facts, *QUIET) as trial:
                assert trial.error is not None
                assert trial.error.faithful
        assert len(set(captures(tmp_path))) == 3


@pytest.mark.thorough
def test_a_trial_ends_with_the_process_that_captured(tmp_path: Path) -> None:
    with pool_of(tmp_path) as pool:
        facts = ready(pool)
        finalist = pool.start(captured(facts), facts, *QUIET)
        os.kill(int(captures(tmp_path)[0]), signal.SIGKILL)
        with pool.start(captured(facts), facts, *QUIET) as trial:
            assert trial.error is not None
        with pytest.raises(TrialEnded, match="SIGKILL"):
            finalist.warm()


@pytest.mark.thorough
def test_a_crash_while_rewrites_are_looked_through_leaves_them_to_their_trials(tmp_path: Path) -> None:
    def kill(phase: str) -> None:
        if phase == "rewrites":
            os.kill(int(captures(tmp_path)[0]), signal.SIGKILL)

    with pool_of(tmp_path) as pool:
        found, _ = pool.survey(*QUIET)
        facts = pool.make_truth(pool.capture(found, Limits(), kill).facts, *QUIET)
        assert facts.exportable
        assert not facts.idle_rewrites
        with pool.start(captured(facts), facts, *QUIET) as trial:
            assert trial.error is not None
            assert trial.error.faithful


@pytest.mark.thorough
def test_a_part_is_captured_once_too(tmp_path: Path) -> None:
    with pool_of(tmp_path) as pool:
        module, x = runpy.run_path(str(tmp_path / "model.py"))["subject"]()
        given = Inputs((x + 1,), {})
        found = survey(Subject(module.inner, [given]), captured=False)
        effects = Effects.of(module.inner, given)
        write_inputs(pool.folder / "inputs", [given])
        part = pool.part(PartKey(path="inner"), effects, pool.folder / "inputs", found)
        facts = part.make_truth(part.capture(found, *QUIET).facts, *QUIET)
        for _ in range(2):
            with part.start(captured(facts), facts, *QUIET) as trial:
                assert trial.error is not None
                assert trial.error.faithful
        (holder,) = captures(tmp_path)
        assert Path(f"/proc/{holder}").exists()
        part.close()
        assert not Path(f"/proc/{holder}").exists()
        assert ready(pool).exportable


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("when_captured", "reason"),
    [("os.kill(os.getpid(), signal.SIGSEGV)", "was killed by SIGSEGV"), ("raise KeyError('odd')", "'odd', at")],
)
def test_what_cannot_be_captured_is_tuned_without(tmp_path: Path, when_captured: str, reason: str) -> None:
    with pool_of(tmp_path, when_captured) as pool:
        facts = ready(pool)
        assert not facts.exportable
        assert facts.export_error is not None
        assert reason in facts.export_error
        with pool.start(recipe(no_grad={}), facts, *QUIET) as trial:
            assert trial.error is not None
            assert trial.error.faithful


@pytest.mark.thorough
def test_a_subject_that_starts_threads_is_captured_in_each_trial(tmp_path: Path) -> None:
    """A process with threads cannot fork: what it captured ends with it."""
    start = "import threading, time; threading.Thread(target=time.sleep, args=(60,), daemon=True).start()"
    with pool_of(tmp_path, start) as pool:
        facts = ready(pool)
        assert facts.exportable
        assert facts.idle_rewrites
        with pool.start(captured(facts), facts, *QUIET) as trial:
            assert trial.error is not None
            assert trial.error.faithful
        assert len(set(captures(tmp_path))) == 2
        assert pool.export_s > 0.0, "each that saves will take that"


class Scaled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.rand(4))

    def forward(self, x: Tensor) -> Tensor:
        return (x * self.weight).exp()


@pytest.fixture
def candidate() -> Iterator[Candidate]:
    subject = Subject(Scaled(), [Inputs((torch.rand(3, 4),), {})])
    found = survey(subject)
    yield first_candidate(subject, found.facts, found.signature)
    capture._kept.clear()


def test_each_gets_a_copy_that_shares_the_weights(candidate: Candidate) -> None:
    assert keep(candidate) is kept()
    one, other = export(candidate), export(candidate)
    for node in list(one.graph.nodes):
        if node.target is torch.ops.aten.exp.default:
            node.target = torch.ops.aten.log.default
    one.graph_module.recompile()
    (sample,) = candidate.samples
    assert torch.equal(other.module()(*sample.args)[0], candidate.module(*sample.args))
    assert [t.data_ptr() for t in one.state_dict.values()] == [t.data_ptr() for t in candidate.module.parameters()]


def test_another_of_the_same_class_is_captured_anew(candidate: Candidate) -> None:
    keep(candidate)
    changed = candidate.with_(module=candidate.copy())
    (weight,) = changed.module.parameters()
    with torch.no_grad():
        weight.fill_(2.0)
    (sample,) = candidate.samples
    assert torch.equal(export(changed).module()(*sample.args)[0], changed.module(*sample.args))
