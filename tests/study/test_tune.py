"""``togi.tune`` from end to end on small models: live modules, resuming, interruption, subjects that do not behave."""

from __future__ import annotations

import functools
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import togi
import togi.techniques
from togi import api
from togi.core.errors import JournalError, OutputExistsError, SubjectError, TogiError, UnknownNameError
from togi.core.records import Outcome, Recipe, Trial
from togi.study.pace import Pace
from togi.study.progress import Progress
from togi.study.run import run_study


@dataclass
class Answer:
    """A dataclass output."""

    scores: Tensor
    pooled: Tensor | None


class Tagger(nn.Module):
    """Integer inputs, a keyword argument, a dataclass out, sizes that vary."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(50, 16)
        self.out = nn.Linear(16, 5)

    def forward(self, ids: Tensor, *, mask: Tensor) -> Answer:
        hidden = self.embedding(ids) * mask.unsqueeze(-1)
        return Answer(self.out(hidden), hidden.mean(1))


class Recorded(Progress):
    def __init__(self) -> None:
        self.ended: list[Trial] = []

    def trial_ended(self, trial: Trial) -> None:
        self.ended.append(trial)


pytestmark = pytest.mark.usefixtures("brief_studies")


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TOGI_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def sample(length: int) -> togi.Inputs:
    generator = torch.Generator().manual_seed(length)
    ids = torch.randint(0, 50, (2, length), generator=generator)
    return togi.Inputs((ids,), {"mask": torch.ones(2, length)})


@pytest.mark.thorough
def test_a_live_module_with_everything_unusual(tmp_path: Path) -> None:
    torch.manual_seed(0)
    module = Tagger()
    before = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    study = togi.tune(
        module, inputs=[sample(7), sample(12)], only=["onnxruntime", "torchscript"], effort="quick", time_limit_s=200
    )
    assert module.training
    assert all(torch.equal(before[name], tensor) for name, tensor in module.state_dict().items())
    fast = study.best.load()
    given = sample(9)
    expected = module.eval()(*given.args, **given.kwargs)
    found = fast(given.args[0], mask=given.kwargs["mask"])
    assert isinstance(found, Answer)
    torch.testing.assert_close(found.scores, expected.scores, rtol=1e-4, atol=1e-5)
    out = study.best.save(tmp_path / "tagger.togi")
    assert togi.load(out).recipe == study.best.recipe
    assert study.record.facts.dynamic


def test_the_same_call_goes_on_where_it_stopped(home: Path, tmp_path: Path) -> None:
    torch.manual_seed(0)
    module, x = nn.Sequential(nn.Linear(8, 8), nn.ReLU()), torch.randn(2, 8)
    first, second = Recorded(), Recorded()
    one = togi.tune(module, inputs=x, only=["torchscript"], effort="quick", time_limit_s=200, progress=first)
    out = tmp_path / "out.togi"
    two = togi.tune(module, inputs=x, only=["torchscript"], effort="quick", time_limit_s=200, progress=second, out=out)
    assert one.record.id == two.record.id
    assert two.best.artifact == out
    assert two.best.load().recipe == two.best.recipe
    assert not list((home / "artifacts").glob(f"*{two.best.recipe.id}*")), "it is kept once"
    assert {t.recipe for t in first.ended} >= {Recipe(), togi.techniques.recipe(no_grad={})}
    settled = {t.recipe for t in first.ended if t.outcome is not Outcome.UNSTABLE}  # a busy machine disturbs some
    assert not {t.recipe for t in second.ended} & settled


class Slow(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        time.sleep(0.5)
        return x + 1.0


@pytest.fixture
def loading_may_take_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy machine takes longer to load torch."""
    monkeypatch.setattr("togi.study.run.run_study", functools.partial(run_study, pace=Pace(least_limit_s=120.0)))


@pytest.mark.thorough
@pytest.mark.usefixtures("loading_may_take_long")
def test_a_time_limit_that_is_too_short_for_anything_says_what_is_needed() -> None:
    study = togi.tune(Slow(), inputs=torch.ones(3), only=["torchscript"], time_limit_s=1)
    assert not [trial for trial in study.trials if trial.outcome is not Outcome.REFUSED]
    assert study.best.recipe.is_reference
    assert study.best.trial.timing is None
    assert study.artifact is None
    assert study.record.verdict.startswith("Nothing could be tried: ")
    assert "about 15 s more before anything else is tried" in study.record.verdict
    assert "--time-limit" in study.record.verdict


@pytest.mark.thorough
@pytest.mark.usefixtures("loading_may_take_long")
def test_where_nothing_could_be_tried_nothing_is_known_to_keep_a_limit() -> None:
    study = togi.tune(Slow(), inputs=torch.ones(3), only=["torchscript"], time_limit_s=1, max_memory="1TiB")
    assert study.record.best is None
    assert "about 15 s more before anything else is tried" in study.record.verdict
    with pytest.raises(TogiError, match="chose nothing"):
        _ = study.best


@pytest.mark.thorough
def test_a_subject_that_starts_threads_is_tuned_in_fresh_processes(tmp_path: Path) -> None:
    (tmp_path / "threaded.py").write_text(
        "import threading, time, torch\n"
        "threading.Thread(target=time.sleep, args=(1000,), daemon=True).start()\n"
        "def subject():\n"
        "    torch.manual_seed(0)\n"
        "    return torch.nn.Linear(8, 8), torch.randn(4, 8)\n",
        encoding="utf-8",
    )
    study = togi.tune(f"{tmp_path}/threaded.py:subject", only=["inference_mode"], effort="quick", time_limit_s=200)
    measured = [t for t in study.trials if t.timing is not None]
    assert len(measured) >= 2
    assert study.best.artifact is not None


class Dice(nn.Module):
    """Random at inference, beyond any seed."""

    def forward(self, x: Tensor) -> Tensor:
        return x + int.from_bytes(os.urandom(2), "little")


def test_what_cannot_be_verified_is_never_chosen() -> None:
    study = togi.tune(Dice(), inputs=torch.randn(3), only=["torchscript"], effort="quick", time_limit_s=30)
    assert study.best.recipe == togi.techniques.recipe(no_grad={})
    assert all(t.outcome is not Outcome.OK for t in study.trials if "torchscript" in t.recipe.techniques)


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda: togi.tune("timm:resnet5O"), UnknownNameError, "did you mean 'resnet50'"),
        (lambda: togi.tune("nowhere.py:subject"), SubjectError, "nowhere.py"),
        (lambda: togi.tune(nn.Linear(2, 2)), SubjectError, "inputs="),
        (lambda: togi.tune(lambda x: x, inputs=torch.ones(2)), SubjectError, "no torch module can be found"),
        (lambda: togi.tune(3, inputs=torch.ones(2)), SubjectError, "nn.Module"),
        (lambda: togi.tune(nn.Linear(2, 2), inputs=[]), SubjectError, "empty"),
        (lambda: togi.tune(nn.Linear(2, 2), inputs=torch.ones(3, 5)), SubjectError, r"\(3, 5\)"),
        (
            lambda: togi.tune(nn.Linear(2, 2), inputs=torch.ones(2), only=["torchscrip"]),
            UnknownNameError,
            "torchscript",
        ),
        (lambda: togi.tune(nn.Linear(2, 2), inputs=torch.ones(2), allow=["bf16"]), TogiError, "--max-error"),
    ],
)
def test_bad_input_is_said_clearly(call: object, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        call()  # type: ignore[operator]


def test_an_existing_output_is_refused_before_any_work(tmp_path: Path) -> None:
    (tmp_path / "out.togi").mkdir()
    started = time.monotonic()
    with pytest.raises(OutputExistsError):
        togi.tune(nn.Linear(2, 2), inputs=torch.ones(2), out=tmp_path / "out.togi")
    assert time.monotonic() - started < 5


def test_a_damaged_journal_is_kept_and_said(home: Path) -> None:
    home.mkdir()
    (home / "journal.sqlite").write_bytes(b"this is not a database" * 100)
    with pytest.raises(JournalError):
        togi.tune(nn.Linear(2, 2), inputs=torch.ones(2))
    assert (home / "journal.sqlite").read_bytes().startswith(b"this is not")


@pytest.mark.thorough
def test_an_interrupt_keeps_what_was_learned_and_leaves_no_process(tmp_path: Path, home: Path) -> None:
    (tmp_path / "tiny.py").write_text(
        "import torch\ndef subject():\n    return torch.nn.Linear(64, 64), torch.randn(8, 64)\n", encoding="utf-8"
    )
    command = [sys.executable, "-m", "togi", "tune", f"{tmp_path}/tiny.py:subject", "--time-limit", "120s"]
    process = subprocess.Popen(
        command,
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # a job in the background ignores it
    )
    assert process.stderr is not None
    said = []
    for line in process.stderr:
        said.append(line)
        if " 2. " in line:
            process.send_signal(signal.SIGINT)
            break
    rest = process.stderr.read()
    assert process.wait(30) == 130, "".join(said) + rest
    assert "same command" in rest
    kept = api.read_study(journal=home / "journal.sqlite")
    assert len([t for t in kept.trials if t.timing is not None]) >= 2
    listing = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True).stdout
    assert str(tmp_path) not in listing


class Listener(Progress):
    def __init__(self) -> None:
        self.said: list[str] = []

    def message(self, text: str) -> None:
        self.said.append(text)


def test_a_busy_machine_is_reported_before_the_subject_is_loaded(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("togi.study.run.crowded", lambda _machine: "little can be proven now")
    listener, file = Listener(), tmp_path / "broken.py"
    file.write_text("def f():\n    raise ValueError('no model')\n", encoding="utf-8")
    with pytest.raises(SubjectError):
        togi.tune(f"{file}:f", journal=tmp_path / "j.sqlite", progress=listener)
    assert listener.said[:2] == [f"loading {file}:f", "little can be proven now"]


def test_a_limit_of_the_caches_that_is_no_size_is_refused_before_anything_is_run(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("TOGI_CACHE_LIMIT", "much")
    with pytest.raises(TogiError, match="TOGI_CACHE_LIMIT='much' is not a size"):
        togi.tune(f"{tmp_path / 'm.py'}:f", journal=tmp_path / "j.sqlite")
    assert not (tmp_path / "j.sqlite").exists()
