"""The fingerprint by which a study knows its subject again."""

from __future__ import annotations

import resource
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from togi.core.settings import Settings
from togi.machine.describe import machine
from togi.measure import callers_on, mark_memory
from togi.search import Search
from togi.subject.inputs import Inputs, Subject, apart
from togi.subject.program import ProgramModule
from togi.worker.measuring import Measuring
from togi.worker.pool import WorkerPool
from togi.worker.protocol import SubjectRef
from togi.worker.supervise import Limits
from togi.worker.survey import survey

pytestmark = pytest.mark.starts_servers  # what is known again must not depend on how a process hashes

FILE = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = 2.0
        self.linear = nn.Linear(4, 4)

    def forward(self, x):
        return self.scale * self.linear(x)

def model():
    torch.manual_seed(0)
    return Net().eval(), torch.zeros(1, 4)

def loss(module, sample):
    return module(sample).sum()

def optimizer(parameters):
    return torch.optim.SGD(parameters, lr=0.1)

def step():
    import togi
    return togi.Subject(*model(), step=loss, optimizer=optimizer)
"""
CHANGES = {
    "forward": ("self.scale * self.linear(x)", "self.scale + self.linear(x)"),
    "an attribute": ("self.scale = 2.0", "self.scale = 3.0"),
}
OF_A_STEP = {"the loss": ("(sample).sum()", "(sample).mean()"), "the optimizer": ("lr=0.1", "lr=0.2")}


def fingerprint(folder: Path, text: str, name: str, *, train: bool = False) -> str:
    folder.mkdir(exist_ok=True)
    file = folder / "models.py"
    file.write_text(text, encoding="utf-8")
    subject = SubjectRef.here("locator", f"{file}:{name}")
    with WorkerPool(subject, machine(), device="cpu", seed=0, train=train) as pool:
        return pool.survey(Limits(), lambda _: None)[1]


MANY_FILES = """
import os, resource

soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 1200), hard))
HELD = [os.open(os.devnull, os.O_RDONLY) for _ in range(1050)]
"""


@pytest.mark.skipif(0 <= resource.getrlimit(resource.RLIMIT_NOFILE)[1] < 1200, reason="no process has that many here")
def test_a_subject_may_hold_more_than_a_thousand_files(tmp_path: Path) -> None:
    """Those that its server opens then have numbers beyond 1023; so do those of the process that captures it."""
    file = tmp_path / "models.py"
    file.write_text(f"{MANY_FILES}{FILE}", encoding="utf-8")
    with WorkerPool(SubjectRef.here("locator", f"{file}:model"), machine(), device="cpu", seed=0) as pool:
        surveyed = pool.survey(Limits(), lambda _: None)[0]
        assert pool.capture(surveyed, Limits(), lambda _: None).facts.exportable


class Scaled(nn.Module):
    def __init__(self, scale: float) -> None:
        super().__init__()
        self.scale = scale

    def forward(self, x: Tensor) -> Tensor:
        return self.scale * x


def test_a_survey_knows_code_and_settings() -> None:
    codes = [survey(Subject(Scaled(scale), torch.ones(2))).code for scale in (1.0, 1.0, 2.0)]
    assert codes[0] == codes[1] != codes[2]


@pytest.mark.thorough
@pytest.mark.parametrize(("name", "changes"), [("model", CHANGES), ("step", OF_A_STEP)])
def test_a_study_does_not_go_on_after_an_edit_of_what_is_computed(
    tmp_path: Path, name: str, changes: dict[str, tuple[str, str]]
) -> None:
    def of(text: str) -> str:
        return fingerprint(tmp_path, text, name, train=name == "step")

    unchanged = of(FILE)
    found = {what: of(FILE.replace(*change)) for what, change in changes.items()}
    assert len({unchanged, *found.values()}) == 1 + len(changes), found
    assert of(FILE.replace("def loss", "# a comment\ndef loss")) == unchanged


@pytest.mark.thorough
def test_a_study_does_not_go_on_with_other_inputs_that_decide(tmp_path: Path) -> None:
    def of(sample: str) -> str:
        return fingerprint(tmp_path, FILE.replace("torch.zeros(1, 4)", sample), "model")

    floats = "torch.zeros(1, 4)"
    assert of(floats) == of("torch.ones(1, 4)"), "the values of floats decide nothing"
    texts = FILE.replace("def forward(self, x):", "def forward(self, x, text):")

    def with_text(text: str) -> str:
        return fingerprint(tmp_path, texts.replace(floats, f"({floats}, {text!r})"), "model")

    assert with_text("ab") == with_text("ab") != with_text("ab" * 2500)


@pytest.mark.parametrize(("turned_off", "known"), [("in both", True), ("in the first", False), ("in none", False)])
def test_a_program_that_turns_autograd_off_is_tried_once(turned_off: str, known: bool) -> None:
    """As it is called today it is the reference, and its own trial would take seconds to say so."""
    first, second = nn.Linear(4, 4), nn.Linear(4, 4)

    def program(x: Tensor) -> Tensor:
        with nullcontext() if turned_off == "in none" else torch.no_grad():
            x = first(x)
        with torch.no_grad() if turned_off == "in both" else nullcontext():
            return second(x).detach()

    facts = survey(Subject(ProgramModule(program), Inputs((torch.zeros(1, 4),)))).facts
    assert facts.autograd_off is known
    assert [recipe.is_reference for recipe in Search(facts, Settings()).space.originals] == [True, False][: 2 - known]
    assert any("autograd off" in note for note in facts.notes) is known
    assert torch.is_grad_enabled()


def test_a_survey_knows_that_calls_write_into_their_inputs() -> None:
    class Writes(nn.Module):
        def forward(self, x: Tensor, kept: list[Tensor]) -> Tensor:
            kept.append(x)
            return x + 1

    class Adds(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.add_(1)

    assert survey(Subject(Adds(), torch.ones(2))).inputs_change
    assert survey(Subject(Writes(), Inputs((torch.ones(2), [])))).inputs_change
    assert not survey(Subject(Scaled(2.0), torch.ones(2))).inputs_change


@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize(
    "ask",
    [lambda of: of.turn(3), lambda of: of.warm(0.01), lambda of: of.footprint()],
    ids=["time", "warm-up", "memory"],
)
def test_calls_that_write_into_their_inputs_are_measured_on_new_ones(
    ask: Callable[[Measuring], object], count: int
) -> None:
    seen: list[tuple[float, int]] = []

    def writes(x: Tensor, kept: list[Tensor]) -> None:
        seen.append((float(x), len(kept)))
        x.add_(1)
        kept.append(x)

    contender: Any = SimpleNamespace(
        call=writes, given_as=None, mark=mark_memory(), held_bytes=0, allocates_with_torch=True
    )
    callers = None if count == 1 else callers_on(count, "cpu")
    for inputs_change in (True, False):
        seen.clear()
        samples = (Inputs((torch.zeros(()), [])),)
        ask(Measuring(contender, samples, "cpu", callers, inputs_change=inputs_change))
        assert (set(seen) == {(0.0, 0)}) is inputs_change
        assert (float(samples[0].args[0]) == 0.0) is inputs_change, (
            "or the next measurement works on what this one left"
        )
    if callers is not None:
        callers.close()


class Noted:
    """What only its own class can make: it holds a set."""

    def __init__(self) -> None:
        self.met: set[int] = set()

    def add(self, number: int) -> None:
        self.met.add(number)

    def __len__(self) -> int:
        return len(self.met)


class ByNumber(dict[int, int]):
    def add(self, number: int) -> None:
        self[number] = number


KEPT: dict[str, Callable[[], Any]] = {"an object": Noted, "a set": set, "keys that are numbers": ByNumber}


@pytest.mark.parametrize("kind", KEPT)
def test_a_survey_knows_that_calls_write_into_objects(kind: str) -> None:
    class Notes(nn.Module):
        def forward(self, x: Tensor, kept: Any) -> Tensor:
            kept.add(len(kept))
            return x + 1

    class Reads(nn.Module):
        def forward(self, x: Tensor, kept: Any) -> Tensor:
            return x + len(kept)

    kept = KEPT[kind]()
    assert survey(Subject(Notes(), Inputs((torch.ones(2), kept)))).inputs_change
    assert len(kept) == 0
    assert not survey(Subject(Reads(), Inputs((torch.ones(2), kept)))).inputs_change


@pytest.mark.parametrize("kind", KEPT)
def test_objects_that_calls_write_into_are_new_for_each(kind: str) -> None:
    seen: list[int] = []

    def notes(kept: Any) -> None:
        seen.append(len(kept))
        kept.add(len(kept))

    contender: Any = SimpleNamespace(call=notes, given_as=None)
    kept = KEPT[kind]()
    Measuring(contender, (Inputs((kept,)),), "cpu", inputs_change=True).turn(3)
    assert set(seen) == {0}
    assert len(kept) == 0


def test_what_a_call_overwrites_may_share_no_memory_with_another_input() -> None:
    class Adds(nn.Module):
        def forward(self, x: Tensor, total: Tensor, y: Tensor) -> Tensor:
            total += x
            return total * y

    found = survey(Subject(Adds(), [Inputs((torch.ones(3), torch.zeros(3), torch.ones(3)))]), captured=False).signature
    assert found.written == (1,)
    memory = torch.arange(12.0)
    found.checked((memory[:3], memory[3:6], memory[1:4][:3].clone()), {})
    found.checked((memory[:3], memory[3:6], memory[:3]), {})
    for x, total, y in ((0, 2, 6), (6, 2, 4), (2, 2, 6)):
        with pytest.raises(ValueError, match=r"total and [xy] share memory.*Give a copy of one"):
            found.checked((memory[x : x + 3], memory[total : total + 3], memory[y : y + 3]), {})
    only_read = survey(Subject(nn.Bilinear(3, 3, 2), [Inputs((torch.ones(2, 3), torch.ones(2, 3)))]), captured=False)
    assert only_read.signature.written == ()


def test_what_cannot_be_copied_is_shared() -> None:
    drawn, model = (number for number in range(3)), nn.Sequential(nn.Linear(2, 2))
    copied = apart(Inputs(({1: drawn}, model, print), {"x": torch.ones(2)}))
    assert copied.args[0][1] is drawn
    assert copied.args[1:] == (model, print)
    assert copied.kwargs["x"] is not None
    noted = Noted()
    first, again = apart(Inputs((noted, noted))).args
    assert first is again is not noted


def test_what_goes_on_from_its_last_answer_has_one_caller() -> None:
    """Several would be given one answer, whoever asked for it."""
    given: list[Any] = []
    contender: Any = SimpleNamespace(call=given.append, given_as=lambda _args, _kwargs: (("last",), {}))
    for callers in (None, callers_on(2, "cpu")):
        given.clear()
        Measuring(contender, (Inputs((torch.zeros(()),)),), "cpu", callers).turn(2)
        assert ({"last"} == {each if isinstance(each, str) else "" for each in given}) is (callers is None)
        if callers is not None:
            callers.close()
