"""Caches whose window is full: they hold as much as before, and count on. Parts serve these calls, too."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from togi.artifact.installed import Installed, install
from togi.core.choices import Mode
from togi.graph.capture import capture
from togi.program.cuts import find_cuts
from togi.program.parts import CutRequest, Cuts, Part
from togi.subject.carried import carried_from
from togi.subject.inputs import Inputs, Subject
from togi.subject.program import ProgramModule
from togi.subject.pure import pure
from togi.subject.signature import Signature
from togi.subject.stored_inputs import read_inputs
from togi.techniques.build import first_candidate

WINDOW, BEGUN = 9, 2


class Window:
    """Keeps the last of what it was given, and counts all of it."""

    def __init__(self, count: int = 0, kept: int | None = None) -> None:
        self.keys = torch.ones(1, min(count, WINDOW - 1) if kept is None else kept, 8)
        self.size = WINDOW
        self.count = count


class Attends(nn.Module):
    def __init__(self, weigh: Callable[[Tensor, int], Tensor] = lambda x, _: x) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.inner = nn.Linear(8, 8)
        self.weigh = weigh

    def forward(self, x: Tensor, cache: Window) -> Tensor:
        cache.count += x.shape[1]
        keys = torch.cat([cache.keys, self.inner(x)], 1)
        cache.keys = keys[:, -cache.size + 1 :]
        for _ in range(20):
            x = torch.tanh(self.inner(x))
        return self.weigh(torch.softmax(x @ keys.transpose(1, 2), -1) @ keys, cache.count)


class Generates:
    def __init__(self, layer: nn.Module, steps: int = 20) -> None:
        self.layer, self.steps = layer.eval(), steps

    def __call__(self, x: Tensor) -> tuple[Tensor, int]:
        cache, found = Window(BEGUN), [x]
        for _ in range(self.steps):
            found.append(self.layer(found[-1], cache))
        return torch.cat(found, 1), cache.count


class Engine:
    """The captured graph of a part."""

    in_place = runs_original = False
    keeps = None

    def __init__(self, part: Part, module: nn.Module, folder: Path) -> None:
        self.entry, self.signature = part.entry(part.key.path), part.survey.signature
        calls = read_inputs(folder / part.inputs)
        alone = Subject(pure(copy.deepcopy(module), part.effects), calls, mode=Mode.AS_IS)
        self.graph = capture(first_candidate(alone, part.survey.facts, self.signature))

    def of(self, _original: object) -> Engine:
        return self

    def call_with(self, tensors: list[Tensor], _args: object, _kwargs: object) -> Any:
        return self.signature.build_outputs(self.graph(*tensors))


def cut(program: Generates, folder: Path) -> Cuts:
    return find_cuts(Subject(ProgramModule(program), Inputs((torch.ones(1, 1, 8),))), CutRequest(folder=str(folder)))


def put_in(program: Generates, cuts: Cuts, folder: Path) -> Installed:
    parts: list[Any] = [Engine(part, program.layer, folder) for part in cuts.parts if part.key.path == "layer"]
    return install(parts, program, keep_originals=True)


def numbers_of(part: Part) -> list[Any]:
    """Bounds of the numbers that are carried."""
    leaves = (leaf for argument in part.survey.signature.arguments for leaf in argument.leaves())
    return [leaf.keys[0] for leaf in leaves if leaf.kind == "carried"]


def assert_serves_sixty_steps(program: Generates, cuts: Cuts, folder: Path) -> None:
    """Nearly all of them, far beyond the window, and as the program does by itself."""
    program.steps = 60
    x = torch.full((1, 1, 8), 0.5)
    expected, count = program(x)
    with put_in(program, cuts, folder) as installed:
        found, counted = program(x)
        served, original = installed.counts["layer"]
    torch.testing.assert_close(found, expected)
    assert count == counted == BEGUN + 60
    assert served > 54, installed.switches[0].last_reason
    assert served + original == 60


@torch.no_grad()
def test_parts_serve_a_window_that_fills_and_one_that_is_full(tmp_path: Path) -> None:
    program = Generates(Attends())
    cuts = cut(program, tmp_path)
    parts = [part for part in cuts.parts if part.key.path == "layer"]
    assert len(parts) == 2
    assert sorted(map(numbers_of, parts)) == [[], [0]]
    assert sum(part.share for part in parts) <= 1.0
    assert max(parts, key=lambda part: part.share).calls > program.steps / 2
    assert_serves_sixty_steps(program, cuts, tmp_path)


@torch.no_grad()
def test_from_where_a_number_decides_the_original_serves(tmp_path: Path) -> None:
    program = Generates(Attends(lambda x, count: x * 2 if count < 12 else x))
    cuts = cut(program, tmp_path)
    assert [numbers_of(part) for part in cuts.parts if numbers_of(part)] == [[11]]
    x = torch.full((1, 1, 8), 0.5)
    expected, _ = program(x)
    with put_in(program, cuts, tmp_path) as installed:
        found, _ = program(x)
    torch.testing.assert_close(found, expected)
    assert installed.counts["layer"][0] >= 8


@pytest.mark.parametrize(
    "weigh",
    [
        lambda x, count: x + 0.1 * count,
        lambda x, count: x if count < 1000 else -x,
        lambda x, count: (x, count),
    ],
)
def test_a_number_that_decides_something_is_not_carried(weigh: Callable[[Tensor, int], Any]) -> None:
    calls = [Inputs((torch.randn(1, 1, 8), Window(count))) for count in (17, 18, 19)]
    assert carried_from(Attends(weigh), calls) is None
    assert carried_from(Attends(), calls) == -17


def test_calls_that_differ_otherwise_are_not_alike() -> None:
    narrow, wide = Window(17), Window(18)
    wide.size = 5
    calls = [Inputs((torch.randn(1, 1, 8), cache)) for cache in (narrow, wide)]
    assert carried_from(Attends(), calls) is None
    assert carried_from(Attends(), [Inputs((torch.randn(1, 1, 8), Window(n))) for n in (1, 2)]) is None


def test_a_number_is_bound_from_below_and_survives_a_file() -> None:
    calls = [Inputs((torch.randn(1, 1, 8), Window(count))) for count in (17, 19)]
    from togi.subject.effects import Effects

    layer = Attends().eval()
    with torch.no_grad():
        effects = Effects.of(layer, *(call.clone() for call in calls), carried=-5)
        alone = pure(layer, effects)
        made = Signature.of(alone, calls, [alone(*call.clone().args) for call in calls])
    effects, signature = Effects.from_json(effects.to_json()), Signature.from_json(made.to_json())
    x, cache = torch.randn(1, 1, 8), Window(40)
    tensors = signature.checked((x, cache), {})
    with torch.no_grad():
        args, kwargs = signature.build_inputs(tensors)
        result = pure(layer, effects)(*args, **kwargs)
        effects.finish(result, (x, cache), {})
    assert cache.count == 41
    assert tuple(cache.keys.shape) == (1, WINDOW - 1, 8)
    with pytest.raises(TypeError, match="a number from 12 on"):
        signature.checked((x, Window(11, kept=WINDOW - 1)), {})


class AttendsUnderMask(Attends):
    """Looks up in a mask of all that went through which keys count, as decoders do: there its number decides."""

    def forward(self, x: Tensor, cache: Window, mask: Tensor) -> Tensor:  # type: ignore[override]
        begin = max(cache.count - cache.size + 1, 0)
        cache.count += x.shape[1]
        keys = torch.cat([cache.keys, self.inner(x)], 1)
        cache.keys = keys[:, -cache.size + 1 :]
        counts = mask[:, torch.arange(keys.shape[1]) + begin]
        scores = (x @ keys.transpose(1, 2)).masked_fill(~counts.unsqueeze(1), -1e4)
        return torch.softmax(scores, -1) @ keys


class GeneratesUnderMask(Generates):
    padding = 4

    def __call__(self, x: Tensor) -> tuple[Tensor, int]:
        cache, found = Window(BEGUN), [x]
        for _ in range(self.steps):
            mask = torch.arange(cache.count + 1).unsqueeze(0) >= self.padding
            found.append(self.layer(found[-1], cache, mask))
        return torch.cat(found, 1), cache.count


@torch.no_grad()
def test_a_number_that_decides_follows_the_size_of_a_mask(tmp_path: Path) -> None:
    program = GeneratesUnderMask(AttendsUnderMask())
    cuts = cut(program, tmp_path)
    full = next(part for part in cuts.parts if part.key.path == "layer" and part.effects.follows)
    assert [(followed.dim, followed.more) for followed in full.survey.signature.follows] == [(1, -1)]
    program.padding = 20
    assert_serves_sixty_steps(program, cuts, tmp_path)


@torch.no_grad()
def test_a_number_that_is_another_than_the_size_is_refused(tmp_path: Path) -> None:
    cuts = cut(GeneratesUnderMask(AttendsUnderMask()), tmp_path)
    full = next(part for part in cuts.parts if part.effects.follows)
    signature = Signature.from_json(full.survey.signature.to_json())
    x = torch.randn(1, 1, 8)
    signature.checked((x, Window(40), torch.ones(1, 41, dtype=torch.bool)), {})
    args, _ = signature.build_inputs(signature.flatten_inputs((x, Window(40), torch.ones(1, 41, dtype=torch.bool)), {}))
    assert args[1].count == 40
    with pytest.raises(
        TypeError, match=r"a number in its arguments is 39, where it was 1 less than the size of args_2 in"
    ):
        signature.checked((x, Window(39), torch.ones(1, 41, dtype=torch.bool)), {})
