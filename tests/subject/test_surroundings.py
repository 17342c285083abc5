"""What a training step keeps outside of module and optimizer is found, read and put back."""

from __future__ import annotations

import functools
import random
from collections import deque
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel

from togi.subject.surroundings import Surroundings

COUNT = 0
BOX = {"steps": 0, "curve": [1.0]}


def of_globals(*_: Any) -> int:
    global COUNT
    COUNT += 1
    BOX["steps"] += 1  # type: ignore[operator]
    return COUNT


def in_a_closure() -> Callable[..., int]:
    count = 0

    def step(*_: Any) -> int:
        nonlocal count
        count += 1
        return count

    return step


def through_a_helper() -> Callable[..., int]:
    inner = in_a_closure()

    def step(*_: Any) -> int:
        return inner()

    return step


class Trainer:
    def __init__(self) -> None:
        self.count = 0
        self.mean = torch.zeros(())

    def step(self, *_: Any) -> int:
        self.count += 1
        self.mean = self.mean * 0.9 + self.count
        return int(self.mean * 100)

    def __call__(self, *_: Any) -> int:
        return self.step()


def of_a_namespace() -> Callable[..., int]:
    state = SimpleNamespace(count=0)

    def step(*_: Any) -> int:
        state.count += 1
        return state.count

    return step


def in_a_container() -> Callable[..., int]:
    kept = {"count": torch.zeros(1), "more": [in_a_closure()]}

    def step(*_: Any) -> int:
        kept["count"] += 1  # type: ignore[operator]
        return int(kept["count"]) + kept["more"][0]()  # type: ignore[index, operator, call-overload]

    return step


def of_a_generator(kind: str) -> Callable[..., int]:
    torchs, pythons = torch.Generator().manual_seed(3), random.Random(3)

    def step(*_: Any) -> int:
        drawn = torch.randint(1000, (), generator=torchs) if kind == "torch" else pythons.randrange(1000)
        return int(drawn)

    return step


def of_numpy(kind: str) -> Callable[..., int]:
    new, old, counts = np.random.default_rng(3), np.random.RandomState(3), np.zeros(2)

    def step(*_: Any) -> int:
        counts[1] += 1
        if kind == "array":
            return int(counts[1])
        return int(new.integers(1000) if kind == "new" else old.randint(1000))

    return step


def in_a_list_of_tensors() -> Callable[..., int]:
    losses: list[torch.Tensor] = []

    def step(*_: Any) -> int:
        losses.append(torch.tensor(float(len(losses)), requires_grad=True) * 2)
        return len(losses)

    return step


def in_a_new_list() -> Callable[..., int]:
    """Of NumPy's numbers, as who keeps the last ones."""
    last = [np.float32(1)]

    def step(*_: Any) -> int:
        nonlocal last
        last = [*last, np.float32(last[-1] * 2)][-3:]
        return int(sum(last))

    return step


def in_a_window() -> Callable[..., int]:
    window: deque[float] = deque([1.0], maxlen=3)

    def step(*_: Any) -> int:
        window.append(window[-1] * 2)
        return int(sum(window))

    return step


def of_a_partial() -> Callable[..., int]:
    def step(count: list[int], *_: Any) -> int:
        count[0] += 1
        return count[0]

    return functools.partial(step, [0])


def decorated() -> Callable[..., int]:
    return torch.autocast("cpu", torch.bfloat16)(in_a_closure())  # type: ignore[no-any-return]


STEPS: dict[str, Callable[[], Callable[..., int]]] = {
    "decorated": decorated,
    "globals": lambda: of_globals,
    "closure": in_a_closure,
    "helper": through_a_helper,
    "method": lambda: Trainer().step,
    "object": Trainer,
    "namespace": of_a_namespace,
    "container": in_a_container,
    "torch's generator": lambda: of_a_generator("torch"),
    "Python's generator": lambda: of_a_generator("python"),
    "NumPy's generator": lambda: of_numpy("new"),
    "NumPy's old generator": lambda: of_numpy("old"),
    "array": lambda: of_numpy("array"),
    "tensors": in_a_list_of_tensors,
    "new list": in_a_new_list,
    "window": in_a_window,
    "partial": of_a_partial,
}


@pytest.mark.parametrize("name", STEPS)
def test_a_step_goes_on_from_where_it_was(name: str) -> None:
    step = STEPS[name]()
    step()
    surroundings = Surroundings(step, None)
    values = surroundings.read()
    runs = []
    for _ in range(3):
        runs.append([step(), step()])
        surroundings.write(values)
    assert runs[0] == runs[1] == runs[2]
    assert runs[0][0] != runs[0][1], "it has a state"


def test_scalers_schedules_and_averages_are_read_by_their_own_state() -> None:
    module = nn.Linear(2, 2)
    average, scaler = AveragedModel(module), torch.amp.GradScaler("cpu", init_scale=8.0)
    optimizer: Any = torch.optim.SGD(module.parameters(), lr=1.0)
    optimizer.schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1)

    def step(module: nn.Module, optimizer: Any, _: Any) -> None:
        average.update_parameters(module)
        optimizer.step()
        optimizer.schedule.step()
        scaler.scale(torch.ones(1))
        scaler.load_state_dict(scaler.state_dict() | {"scale": 2.0})

    surroundings = Surroundings(step, optimizer)
    values = surroundings.read()
    step(module, optimizer, None)
    assert (int(average.n_averaged), scaler.get_scale(), optimizer.schedule.last_epoch) == (1, 2.0, 1)
    assert float(surroundings.tensors()["scaler.scale"]) == 2.0
    assert torch.equal(surroundings.tensors()["average.module.weight"], module.weight)
    surroundings.write(values)
    assert (int(average.n_averaged), scaler.get_scale(), optimizer.schedule.last_epoch) == (0, 8.0, 0)


def test_modules_are_widened_for_a_while() -> None:
    average = AveragedModel(nn.BatchNorm1d(2))

    def step(module: nn.Module, *_: Any) -> None:
        average.update_parameters(module)

    surroundings = Surroundings(step, None)
    values = surroundings.read()
    with surroundings.widened():
        surroundings.write(values)
        step(nn.BatchNorm1d(2).double())
        assert surroundings.tensors()["average.module.weight"].dtype is torch.float64
        assert surroundings.tensors()["average.module.num_batches_tracked"].dtype is torch.int64
    dtypes = {name: tensor.dtype for name, tensor in surroundings.tensors().items()}
    assert dtypes == {f"average.{name}": tensor.dtype for name, tensor in values["average"].items()}


def test_what_belongs_to_libraries_and_data_is_left_alone() -> None:
    data = [torch.zeros(10_000), torch.zeros(10_000)]

    def step(module: nn.Module, _: Any, sample: int) -> Any:
        return nn.functional.cross_entropy(module(data[sample]), data[sample])

    assert Surroundings(step, None).read() == {}


def test_tensors_in_containers_are_written_where_they_are() -> None:
    average = torch.zeros(2)
    kept: dict[str, Any] = {"averages": [average], "more": {}}

    def step(*_: Any) -> None:
        average.add_(1)
        kept["more"] = {"loss": torch.ones(())}

    surroundings = Surroundings(step, None)
    values = surroundings.read()
    step()
    assert set(surroundings.tensors()) >= {"kept.averages.0", "kept.more.loss"}
    surroundings.write(values)
    assert kept == {"averages": [average], "more": {}}
    assert kept["averages"][0] is average
    assert not average.any()


def test_modules_that_a_loss_names_are_read_alone() -> None:
    """A teacher is data, and takes the memory of one."""
    teacher, state = nn.Linear(2, 2), {"calls": 0}
    other = torch.optim.SGD(teacher.parameters(), lr=0.1)

    def loss(module: nn.Module, _: Any) -> Any:
        state["calls"] += 1
        return module, teacher, other

    assert Surroundings(None, None, loss).read() == {"step.state": {"calls": 0}}
    assert Surroundings(None, None, loss).optimizers == []
