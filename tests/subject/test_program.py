"""Programs as modules: what they reach, by which names; copies; what reaches no module."""

from __future__ import annotations

import copy
import functools
import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from togi.core.errors import SubjectError
from togi.study.drop_in import tuned_object
from togi.subject.inputs import Inputs, Subject
from togi.subject.inventory import class_name
from togi.subject.program import FunctionModule, ProgramModule, as_module, find_module, reachable_modules
from togi.worker.survey import survey

encoder = nn.Linear(3, 3)


class Generator(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(3, 3)

    def generate(self, x: Tensor, steps: int = 2) -> Tensor:
        for _ in range(steps):
            x = self.inner(x)
        return x


class Pipeline:
    def __init__(self) -> None:
        self.unet = nn.Linear(3, 3)
        self.stages = {"vae": nn.Linear(3, 3), "names": ["a"]}
        self.tied = self.unet

    def __call__(self, x: Tensor) -> Tensor:
        return self.stages["vae"](self.unet(x))  # type: ignore[operator]


def run(x: Tensor) -> Tensor:
    return helper(encoder(x))


def helper(x: Tensor) -> Tensor:
    return decoder(x)


decoder = nn.Linear(3, 3)


def test_modules_are_found_by_name_wherever_they_are() -> None:
    hidden = nn.Linear(3, 3)
    generator, pipeline = Generator(), Pipeline()
    assert reachable_modules(generator.generate) == {"model": generator}
    assert reachable_modules(pipeline) == {"unet": pipeline.unet, "vae": pipeline.stages["vae"]}
    assert reachable_modules(run) == {"encoder": encoder, "decoder": decoder}
    assert reachable_modules(lambda x: hidden(x)) == {"hidden": hidden}
    assert reachable_modules(functools.partial(generator.generate, steps=3)) == {"model": generator}


def test_names_are_those_of_who_wrote_it() -> None:
    generator = Generator()
    assert ProgramModule(generator.generate).name == "Generator.generate"
    assert ProgramModule(functools.partial(generator.generate, steps=1)).name == "Generator.generate"
    assert ProgramModule(functools.partial(encoder)).name == "Linear"
    assert [class_name(FunctionModule(call)) for call in (torch.relu, functools.partial(math.pow, 2))] == [
        "relu",
        "pow",
    ]


def test_it_is_called_like_the_program() -> None:
    generator = Generator()
    module = ProgramModule(generator.generate)
    x = torch.ones(1, 3)
    assert torch.equal(module(x, steps=3), generator.generate(x, steps=3))
    assert module.name == "Generator.generate"
    assert {name for name, _ in module.named_parameters()} == {"model.inner.weight", "model.inner.bias"}


def closure() -> Any:
    hidden = nn.Linear(3, 3)

    @torch.no_grad()
    def call(x: Tensor) -> Tensor:
        return helper(hidden(x))

    return call


@pytest.mark.parametrize(
    "make",
    [lambda: Generator().generate, Pipeline, lambda: run, closure],
    ids=["method", "pipeline", "function", "decorated closure"],
)
def test_a_copy_runs_on_its_own_modules(make: Any) -> None:
    module = ProgramModule(make())
    copied = copy.deepcopy(module)
    x = torch.ones(1, 3)
    before = module(x)
    with torch.no_grad():
        for parameter in copied.parameters():
            parameter.zero_()
    assert torch.equal(module(x), before)
    assert not torch.equal(copied(x), before)


def test_what_reaches_no_module_is_reported() -> None:
    with pytest.raises(SubjectError, match="no torch module can be found from <lambda>"):
        as_module(lambda x: x)
    assert as_module(3) == 3
    assert as_module(nn.Linear) is nn.Linear
    assert as_module(encoder) is encoder


class Predictor:
    def __init__(self, network: nn.Module) -> None:
        self.network = network


class MakesItsNetwork(nn.Module):
    """As ultralytics' models do: the first call makes a network and keeps it in an object that is no module."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(3, 3)
        self.predictor: Predictor | None = None

    def predict(self, x: Tensor) -> Tensor:
        if self.predictor is None:
            self.predictor = Predictor(nn.Sequential(copy.deepcopy(self.inner), nn.Tanh()))
        return self.predictor.network(x)  # type: ignore[no-any-return]


def test_a_module_created_by_the_first_call_is_found_after_it() -> None:
    program, sample = ProgramModule(MakesItsNetwork().predict), Inputs((torch.randn(2, 3),))
    with pytest.raises(AttributeError):
        program.get_submodule("network")
    found = find_module(program, "network", sample)
    assert isinstance(found, nn.Sequential)
    assert find_module(program, "network", sample) is found
    assert find_module(program, "model.inner", sample) is program.get_submodule("model").inner


class Predicts(MakesItsNetwork):
    """It has no ``forward``, and a call of it predicts."""

    def __call__(self, x: Tensor) -> Tensor:
        return self.predict(x)


@pytest.mark.filterwarnings("ignore:.*torch.jit.*:FutureWarning", "ignore:.*torch.jit.*:DeprecationWarning")
def test_a_module_without_a_forward_is_the_program_that_its_call_is() -> None:
    model, x = Predicts(), torch.randn(2, 3)
    program = as_module(model)
    assert isinstance(program, ProgramModule)
    assert program.name == "Predicts.__call__"
    assert torch.equal(program(x), model(x))
    tuned, _ = tuned_object(Predicts(), x)
    assert isinstance(tuned, ProgramModule)
    assert tuned.in_parts
    scripted, fx = torch.jit.script(nn.Linear(3, 3)), torch.fx.symbolic_trace(nn.Linear(3, 3))
    for other in (nn.Linear(3, 3), torch.compile(nn.Linear(3, 3)), scripted, fx, program):
        assert as_module(other) is other


def test_a_generator_in_the_inputs_draws_the_same_in_each_call() -> None:
    model = nn.Linear(4, 4).eval()

    def drawn(generator: torch.Generator) -> Tensor:
        return model(torch.randn(2, 4, generator=generator))

    asked = Inputs((), {"generator": torch.Generator().manual_seed(3)})
    facts = survey(Subject(ProgramModule(drawn), asked)).facts
    assert facts.repeatable
    assert not facts.random
    first, second = (drawn(**asked.clone().kwargs) for _ in range(2))
    assert torch.equal(first, second)
