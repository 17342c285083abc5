"""Programs that do what a recorder does not expect: each works, or says what stands in the way."""

from __future__ import annotations

import copy
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from togi.artifact.installed import Installed, install
from togi.artifact.manifest import PartEntry
from togi.artifact.settings import changed_setting
from togi.artifact.switch import Switch
from togi.artifact.weights import weights_hash
from togi.core.errors import SubjectError
from togi.core.recipe import PartKey
from togi.program.calls import record_inputs
from togi.program.cuts import find_cuts
from togi.program.parts import CutRequest, Cuts
from togi.subject.effects import Effects
from togi.subject.inputs import Inputs, Subject
from togi.subject.program import ProgramModule
from togi.subject.signature import Signature
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

    def spawns_a_process(self, x: Tensor) -> list[float]:
        told = subprocess.run([sys.executable, "-c", "print(2.5)"], capture_output=True, text=True, check=True)
        found: list[float] = self.body(x * float(told.stdout)).sum(1).tolist()
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

    def casts(self, x: Tensor) -> list[float]:
        with torch.autocast("cpu", torch.bfloat16):
            found: list[float] = self.body(x).sum(1).tolist()
        return found

    def casts_at_times(self, x: Tensor) -> list[float]:
        found: list[float] = self.body(x).sum(1).tolist()
        return found + self.casts(x)

    def calls_in_threads(self, x: Tensor) -> list[float]:
        with ThreadPoolExecutor(2, initializer=torch.set_grad_enabled, initargs=(False,)) as threads:
            first, second = threads.map(self.body, (x, -x))
        found: list[float] = (first + self.body(second)).sum(1).tolist()
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
    assert [part.key.path for part in cut(programs.changes_its_modules, tmp_path).parts] == ["body"]
    assert [part.key.path for part in cut(programs.reads_a_file, tmp_path).parts] == ["body"]


def test_a_module_that_the_first_call_made_is_a_part(programs: Programs, tmp_path: Path) -> None:
    cuts = cut(programs.makes_and_keeps, tmp_path)
    assert [part.key.path for part in cuts.parts] == ["made"]
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


class DecidesInTorchScript(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x if bool(x.sum() > 1e9) else torch.relu(x)


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
    scripted = torch.jit.script(DecidesInTorchScript().eval())
    for call, at in ((scripted, ""), (ProgramModule(lambda x: scripted(x).tolist()), "scripted")):
        cuts = find_cuts(Subject(call, Inputs((torch.randn(4, 64),))), CutRequest(folder=str(tmp_path)))
        assert [(each.path, each.compiles) for each in cuts.uncaptured] == [(at, False)]


class Block(nn.Module):
    """Not captured either."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = Body()

    def forward(self, x: Tensor, again: bool = False) -> Tensor:
        x = self.inner(self.inner(x))
        return x if float(x.sum()) < 1e9 else -x


class Stack(nn.Module):
    """The first of its blocks is called in two ways."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        first, second = self.blocks
        return second(first(first(x, True)))  # type: ignore[no-any-return]


def test_blocks_that_repeat_can_be_compiled_where_they_stand(tmp_path: Path) -> None:
    """In each form of their calls; not what they are made of."""
    network = Stack().eval()
    cuts = find_cuts(Subject(network, Inputs((torch.randn(4, 64),))), CutRequest(folder=str(tmp_path)))
    assert [(each.path, each.module) for each in cuts.uncaptured] == [("", "Stack")]
    (blocks,) = cuts.repeated
    assert {each.module for each in blocks} == {"Block"}
    assert Counter(each.path for each in blocks) == {"blocks.0": 2, "blocks.1": 1}
    assert 0.0 < sum(each.share for each in blocks) <= 1.0
    for each in blocks:
        assert each.weights == weights_hash(network.get_submodule(each.path))
        assert each.survey is not None
        assert [tensor.shape for tensor in each.survey.facts.inputs] == [(4, 64)]


def test_samples_that_reach_no_module(programs: Programs, tmp_path: Path) -> None:
    cuts = cut(programs.calls_no_module, tmp_path)
    assert cuts.parts == ()
    (obstacle,) = cuts.obstacles
    assert "calls no module" in obstacle.reason
    assert "give samples that reach" in obstacle.reason


@pytest.mark.thorough
def test_a_module_that_calls_itself_is_one_part(programs: Programs, tmp_path: Path) -> None:
    cuts = cut(programs.recurses, tmp_path)
    assert {part.key.path for part in cuts.parts} <= {"tree", "tree.body"}
    assert cuts.parts
    assert sum(call.calls for call in cuts.tree.calls if call.path == "tree") == 4


def test_a_program_that_trains_inside_is_explained(programs: Programs) -> None:
    with pytest.raises(SubjectError, match="It trains inside, and togi runs it as inference does"):
        survey(Subject(ProgramModule(programs.trains), Inputs((torch.randn(4, 64),))))


def test_a_module_called_with_and_without_gradients(programs: Programs, tmp_path: Path) -> None:
    cuts = cut(programs.wants_gradients_at_times, tmp_path)
    assert {part.key.path for part in cuts.parts} == {"body"}


def test_a_module_called_under_autocast_is_an_obstacle(programs: Programs, tmp_path: Path) -> None:
    cuts = cut(programs.casts, tmp_path)
    assert cuts.parts == ()
    (obstacle,) = cuts.obstacles
    assert obstacle.path == "body"
    assert "calls it under torch.autocast (bfloat16 on cpu)" in obstacle.reason


@torch.no_grad()
def test_calls_under_autocast_are_a_form_of_their_own(programs: Programs) -> None:
    program = ProgramModule(programs.casts_at_times)
    given = [Inputs((torch.randn(4, 64),))]
    (found,) = record_inputs(program, given, {"body": programs.body}, {"body": 2}, 1 << 20).values()
    assert list(found.autocast.values()) == ["", "bfloat16 on cpu"]
    assert [found.calls[form] for form in found.autocast] == [1, 1]
    assert [len(found.proof[form]) for form in found.autocast] == [1, 1]


def test_calls_in_other_threads_are_the_programs_own(programs: Programs, tmp_path: Path) -> None:
    cuts = cut(programs.calls_in_threads, tmp_path)
    assert [(part.key.path, part.calls) for part in cuts.parts] == [("body", 3)]
    assert cuts.obstacles == ()
    tree = cuts.tree
    assert [(tree.calls[place].path, tree.calls[place].calls) for place in tree.children(0)] == [("body", 3)]
    assert 0 < sum(map(tree.share, tree.children(0))) <= 1, "two calls at once take no more than the time that passes"


class Engine:
    """Of one size: the module itself, with 1 added, by which its answers are known."""

    in_place = runs_original = False
    keeps = None

    def __init__(self, module: nn.Module, path: str, *tensors: Tensor) -> None:
        kind, weights = type(module).__name__, weights_hash(module)
        self.entry = PartEntry(key=PartKey(path=path), module=kind, effects=Effects(), weights=weights)
        samples = [Inputs((tensor,)) for tensor in tensors]
        self.module = copy.deepcopy(module)
        self.signature = Signature.of(module, samples, [module(tensor) for tensor in tensors])

    def of(self, _original: object) -> Engine:
        return self

    def call_with(self, tensors: list[Tensor], _args: object, _kwargs: object) -> Tensor:
        return self.module(*tensors) + 1.0  # type: ignore[no-any-return]


@torch.no_grad()
def put_in(program: Callable[..., object], path: str, module: nn.Module, *forms: Tensor) -> Installed:
    parts = [Engine(module, path, form) for form in forms]
    return install(parts, program, keep_originals=True)


@torch.no_grad()
def sums(module: nn.Module, x: Tensor) -> list[float]:
    found: list[float] = module(x).sum(1).tolist()
    return found


@torch.no_grad()
def test_a_module_that_the_program_puts_in_place_of_a_part_answers_for_itself(programs: Programs) -> None:
    x, before = torch.randn(4, 64), programs.body
    installed = put_in(programs.changes_its_modules, "body", before, x)
    assert programs.changes_its_modules(x) == pytest.approx([each + 64 for each in sums(copy_of(before), x)])
    before.inner.bias[0] = 3.0
    found = programs.changes_its_modules(x)
    assert programs.body is not before
    assert found == sums(programs.body, x), "by its own weights"
    assert installed.counts == {"body": (1, 0)}, "no engine was asked, and the part that is gone was not either"
    installed.remove()
    assert "forward" not in vars(before) | vars(programs.body)


def copy_of(module: nn.Module) -> nn.Module:
    """Without what stands for its ``forward``."""
    copied = Body().eval()
    copied.load_state_dict(module.state_dict())
    return copied


@torch.no_grad()
def test_what_a_program_reads_is_read_in_each_call(programs: Programs) -> None:
    x = torch.randn(4, 64)
    installed = put_in(programs.reads_a_file, "body", programs.body, x)
    expected = {factor: [each + 64 for each in sums(copy_of(programs.body), x * factor)] for factor in (2.0, 0.5)}
    for factor in (2.0, 0.5):
        programs.file.write_text(str(factor), encoding="utf-8")
        assert programs.reads_a_file(x) == pytest.approx(expected[factor])
    assert installed.counts == {"body": (2, 0)}


@torch.no_grad()
def test_a_program_that_spawns_a_process(programs: Programs, tmp_path: Path) -> None:
    x = torch.randn(4, 64)
    cuts = cut(programs.spawns_a_process, tmp_path)
    assert [(call.path, call.calls) for call in cuts.tree.calls][:2] == [("", 1), ("body", 1)]
    expected = [each + 64 for each in sums(copy_of(programs.body), x * 2.5)]
    installed = put_in(programs.spawns_a_process, "body", programs.body, x)
    assert programs.spawns_a_process(x) == pytest.approx(expected)
    assert installed.counts == {"body": (1, 0)}


@torch.no_grad()
def test_a_module_that_calls_itself_is_served_on_every_level(programs: Programs) -> None:
    x = torch.randn(4, 64)
    plain = copy_of(programs.tree.body)
    installed = put_in(programs.recurses, "tree.body", programs.tree.body, x)
    found = programs.recurses(x)
    for _ in range(4):
        x = plain(x) + 1.0
    assert found == pytest.approx(x.sum(1).tolist())
    assert installed.counts == {"tree.body": (4, 0)}


def test_calls_that_want_gradients_run_the_original_and_the_others_its_engine(programs: Programs) -> None:
    x = torch.randn(4, 64)
    plain = copy_of(programs.body)
    changed = x.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(plain(changed).sum(), changed)
    installed = put_in(programs.wants_gradients_at_times, "body", programs.body, x)
    with pytest.warns(UserWarning, match="inputs want gradients"):
        found = programs.wants_gradients_at_times(x)
    assert found == pytest.approx([each + 64 for each in sums(plain, x + gradient)])
    assert installed.counts == {"body": (1, 1)}
    assert installed.switches[0].last_reason == "gradients are wanted"


@torch.no_grad()
def test_calls_in_other_threads_are_served(programs: Programs) -> None:
    x = torch.randn(4, 64)
    plain = copy_of(programs.body)
    expected = plain(x) + 1.0 + plain(plain(-x) + 1.0) + 1.0
    installed = put_in(programs.calls_in_threads, "body", programs.body, x)
    assert programs.calls_in_threads(x) == pytest.approx(expected.sum(1).tolist())
    assert installed.counts == {"body": (3, 0)}


@torch.no_grad()
def test_two_threads_are_served_by_one_switch(programs: Programs, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two forms that trade places with every call, and calls that only the original serves: each is answered with its
    own input's result, and counted."""
    forms = [torch.randn(rows, 64) for rows in (1, 2)]
    beyond = torch.randn(3, 64)
    monkeypatch.setattr(programs.body, "forward", lambda x: torch.tanh(programs.body.inner(x)))
    switch = Switch(programs.body, "body", programs.body.forward)
    for form in forms:
        switch.serve_with(Engine(programs.body, "body", form))
    wrong: list[str] = []

    def work(number: int) -> None:
        with torch.no_grad():
            for step in range(100):
                x = (*forms, beyond)[(number + step) % 3] + number
                expected = torch.tanh(programs.body.inner(x)) + (1.0 if len(x) < 3 else 0.0)
                if not torch.equal(switch(x), expected):
                    wrong.append(f"thread {number}, call {step}")

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        threads = [threading.Thread(target=work, args=(number,)) for number in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(before)
    assert wrong == []
    assert (switch.engine_calls, switch.original_calls) == (200, 100)
    assert len(switch.forms) == 2, "none was lost"


class Cached(nn.Module):
    """Writes its own place of a cache that all are given, and counts what calls change in a list."""

    def __init__(self, place: int) -> None:
        super().__init__()
        self.body, self.place, self.calls = Body(), place, [0]

    def forward(self, x: Tensor, cache: list[Tensor]) -> Tensor:
        self.calls[0] += 1
        cache[self.place] = self.body(x)
        return cache[self.place]


class CachedStack(nn.Module):
    def __init__(self, *places: int) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(map(Cached, places))

    def forward(self, x: Tensor) -> Tensor:
        cache = [torch.zeros_like(x), torch.zeros_like(x)]
        for block in self.blocks:
            x = block(x, cache)
            x = x / max(1.0, x.tolist()[0][0])  # decided by Python: it cannot be captured whole
        return x


@pytest.mark.parametrize(("places", "copies"), [((0, 1), [1, 1]), ((1, 1), [2]), ((0, 1, 0), [1, 2])])
def test_blocks_that_are_alike_and_change_something_else_are_parts_of_their_own(
    places: tuple[int, ...], copies: list[int], tmp_path: Path
) -> None:
    network = CachedStack(*places).eval()
    cuts = find_cuts(Subject(network, Inputs((torch.randn(4, 64),))), CutRequest(folder=str(tmp_path)))
    parts = [part for part in cuts.parts if part.module == "Cached"]
    assert sorted(len(part.copies) for part in parts) == copies
    for part in parts:
        for path in part.copies:
            block: Any = network.get_submodule(path)
            (change,) = part.effects.changes
            assert change.kept.index(None) == block.place
            settings = part.entry(path).settings
            assert changed_setting(settings, block) == "", "what its calls count is none"
            block.calls[0], block.place = 7, 1 - block.place
            assert changed_setting(settings, block) == "the setting 'place'"
