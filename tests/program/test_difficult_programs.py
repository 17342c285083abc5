"""Programs that do what a recorder does not expect: each works, or says what stands in the way."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from togi.artifact.program import Switch, weights_hash
from togi.core.errors import SubjectError
from togi.program.cuts import find_cuts
from togi.program.parts import CutRequest, Cuts
from togi.subject.inputs import Inputs, Subject
from togi.subject.program import ProgramModule
from togi.worker.survey import survey


class Body(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(64, 64)

    def forward(self, x: Tensor) -> Tensor:
        for _ in range(100):
            x = torch.tanh(self.inner(x))
        return x


class Programs:
    def __init__(self, folder: Path) -> None:
        self.body, self.tree = Body().eval(), Tree().eval()
        self.kept: dict[str, nn.Module] = {}
        self.file = folder / "factor.txt"
        self.file.write_text("2.0", encoding="utf-8")

    def changes_its_modules(self, x: Tensor) -> list[float]:
        self.body = type(self.body)().eval() if self.body.inner.bias[0] > 2 else self.body
        found: list[float] = self.body(x).sum(1).tolist()
        return found

    def makes_and_keeps(self, x: Tensor) -> list[float]:
        if not self.kept:
            torch.manual_seed(0)
            self.kept["made"] = Body().eval()
        found: list[float] = self.kept["made"](x).sum(1).tolist()
        return found

    def makes_anew(self, x: Tensor) -> list[float]:
        torch.manual_seed(0)
        found: list[float] = Body().eval()(x).sum(1).tolist()
        return found

    def reads_a_file(self, x: Tensor) -> list[float]:
        factor = float(self.file.read_text(encoding="utf-8"))
        found: list[float] = self.body(x * factor).sum(1).tolist()
        return found

    def calls_no_module(self, x: Tensor) -> list[float]:
        if x.sum() > 1e9:
            self.body(x)
        found: list[float] = (x @ x.T).tanh().sum(1).tolist()
        return found

    def recurses(self, x: Tensor) -> list[float]:
        found: list[float] = self.tree(x, 3).sum(1).tolist()
        return found

    def trains(self, x: Tensor) -> list[float]:
        loss = self.body(x).square().mean()
        loss.backward()
        return [float(loss)]

    def wants_gradients_at_times(self, x: Tensor) -> list[float]:
        with torch.enable_grad():
            changed = x.clone().requires_grad_()
            (gradient,) = torch.autograd.grad(self.body(changed).sum(), changed)
        with torch.no_grad():
            found: list[float] = self.body(x + gradient).sum(1).tolist()
        return found


class Tree(nn.Module):
    """Calls itself."""

    def __init__(self) -> None:
        super().__init__()
        self.body = Body()

    def forward(self, x: Tensor, depth: int) -> Tensor:
        x = self.body(x)
        return self(x, depth - 1) if depth else x  # type: ignore[no-any-return]


@pytest.fixture
def programs(tmp_path: Path) -> Programs:
    torch.manual_seed(0)
    return Programs(tmp_path)


def cut(call: object, folder: Path) -> Cuts:
    return find_cuts(
        Subject(ProgramModule(call), Inputs((torch.randn(4, 64),))),  # type: ignore[arg-type]
        CutRequest(folder=str(folder)),
    )


def test_a_program_that_may_change_its_modules_and_reads_a_file(programs: Programs, tmp_path: Path) -> None:
    assert [part.path for part in cut(programs.changes_its_modules, tmp_path).parts] == ["body"]
    assert [part.path for part in cut(programs.reads_a_file, tmp_path).parts] == ["body"]


def test_a_module_that_the_first_call_made_is_a_part(programs: Programs, tmp_path: Path) -> None:
    cuts = cut(programs.makes_and_keeps, tmp_path)
    assert [part.path for part in cuts.parts] == ["made"]
    assert cuts.obstacles == ()


def test_a_module_that_each_run_makes_anew_is_an_obstacle(programs: Programs, tmp_path: Path) -> None:
    cuts = cut(programs.makes_anew, tmp_path)
    assert cuts.parts == ()
    (obstacle,) = cuts.obstacles
    assert obstacle.module == "Body"
    assert "make it once and keep it" in obstacle.reason


class Decides(nn.Module):
    """Cannot be captured: it goes on by value."""

    def __init__(self) -> None:
        super().__init__()
        self.body = Body()

    def forward(self, x: Tensor) -> Tensor:
        x = self.body(x)
        return x if float(x.sum()) > 1e9 else self.body(x)


def test_what_is_not_captured_can_be_compiled_where_it_stands(programs: Programs, tmp_path: Path) -> None:
    """The program itself where it is a module, else the modules that it calls first; none that is captured."""
    network = Decides().eval()
    left = find_cuts(Subject(network, Inputs((torch.randn(4, 64),))), CutRequest(folder=str(tmp_path))).uncaptured
    assert [(each.path, each.module, each.share, each.survey) for each in left] == [("", "Decides", 1.0, None)]
    (named,) = cut(lambda x: programs.body(network(x)).tolist(), tmp_path).uncaptured
    assert (named.path, named.module, named.calls) == ("network", "Decides", 1)
    assert named.weights == weights_hash(network)
    assert named.survey is not None
    assert [each.shape for each in named.survey.facts.inputs] == [(4, 64)]
    assert cut(programs.reads_a_file, tmp_path).uncaptured == ()
    scripted = torch.jit.script(Body().eval())
    assert (
        find_cuts(Subject(scripted, Inputs((torch.randn(4, 64),))), CutRequest(folder=str(tmp_path))).uncaptured == ()
    )


def test_samples_that_reach_no_module(programs: Programs, tmp_path: Path) -> None:
    cuts = cut(programs.calls_no_module, tmp_path)
    assert cuts.parts == ()
    (obstacle,) = cuts.obstacles
    assert "calls no module" in obstacle.reason
    assert "give samples that reach" in obstacle.reason


def test_a_module_that_calls_itself_is_one_part(programs: Programs, tmp_path: Path) -> None:
    cuts = cut(programs.recurses, tmp_path)
    assert {part.path for part in cuts.parts} <= {"tree", "tree.body"}
    assert cuts.parts
    assert sum(call.calls for call in cuts.tree.calls if call.path == "tree") == 4


def test_a_program_that_trains_inside_is_explained(programs: Programs) -> None:
    with pytest.raises(SubjectError, match="It trains inside, and togi runs it as inference does"):
        survey(Subject(ProgramModule(programs.trains), Inputs((torch.randn(4, 64),))))


def test_a_module_called_with_and_without_gradients(programs: Programs, tmp_path: Path) -> None:
    cuts = cut(programs.wants_gradients_at_times, tmp_path)
    assert {part.path for part in cuts.parts} == {"body"}


def test_two_threads_are_served_by_one_switch() -> None:
    """No engine: every call is the original's, and counted."""
    body = Body().eval()
    switch = Switch(body, "body", body.forward)
    expected, found = body(torch.ones(2, 64)), list[Tensor]()

    def work() -> None:
        for _ in range(50):
            found.append(switch(torch.ones(2, 64)))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert switch.original_calls == 200
    assert all(torch.equal(one, expected) for one in found)
