"""What the callbacks of all trainers share: the batch that is planned, and that taking it changes no training."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, IterableDataset

from tests.trainers.small_recipes import Wraps
from togi.core.errors import FitError
from togi.footprint.fit.forward import forward_of
from togi.footprint.fit.plan import Plan
from togi.footprint.fit.policies import Chunk, SavePolicy
from togi.subject.architecture import architecture_of
from togi.subject.optimizers import unwrapped
from togi.trainers.memory_budget import MemoryBudget, largest_batch, optimizer_name


class Sentences(Dataset[Tensor]):
    """Of all lengths, with noise from three generators."""

    def __init__(self, lengths: list[int]) -> None:
        self.lengths = lengths
        self.asked: list[int] = []

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, at: int) -> Tensor:
        self.asked.append(at)
        return torch.full((self.lengths[at],), random.random() + np.random.rand()) + torch.rand(1)


class Stream(IterableDataset[Tensor]):
    def __iter__(self) -> Iterator[Tensor]:
        return (torch.rand(3) for _ in range(100))


class SizedStream(Stream):
    def __len__(self) -> int:
        return 100


def padded(rows: list[Tensor]) -> Tensor:
    return nn.utils.rnn.pad_sequence(rows, batch_first=True)


def test_the_largest_of_the_first_batches_is_planned() -> None:
    loader = DataLoader(Sentences([2, 3, 4, 3, 9, 2, 1, 1]), batch_size=2, shuffle=True, collate_fn=padded)
    assert largest_batch(loader).shape == (2, 9)
    assert largest_batch(DataLoader(Sentences([5]), batch_size=2, collate_fn=padded)).shape == (1, 5)


def test_a_last_batch_that_is_not_full_is_not_taken_for_one() -> None:
    loader = DataLoader(Sentences([2, 2, 50]), batch_size=2, collate_fn=padded)
    assert largest_batch(loader).shape == (2, 2)


def test_a_stream_and_a_sampler_of_batches_have_batches_too() -> None:
    for stream in (Stream(), SizedStream()):
        assert largest_batch(DataLoader(stream, batch_size=4)).shape == (4, 3)
    batches = torch.utils.data.BatchSampler(torch.utils.data.SequentialSampler(range(6)), 3, drop_last=False)
    assert largest_batch(DataLoader(Sentences([2] * 6), batch_sampler=batches)).shape == (3, 2)


def test_taking_a_batch_draws_nothing_and_does_not_move_the_loader() -> None:
    def order(looked_at: bool) -> list[Any]:
        torch.manual_seed(3)
        random.seed(3)
        np.random.seed(3)
        loader = DataLoader(Sentences([3] * 12), batch_size=2, shuffle=True, collate_fn=padded)
        if looked_at:
            largest_batch(loader)
            loader.dataset.asked.clear()
        batches = [batch.tolist() for batch in loader]
        return [loader.dataset.asked, batches]

    assert order(looked_at=True) == order(looked_at=False)


def test_what_is_no_loader_is_explained() -> None:
    with pytest.raises(FitError, match="give sample="):
        largest_batch([1, 2, 3])


def test_the_state_that_counts_is_that_of_the_optimizer() -> None:
    parameters = [nn.Parameter(torch.ones(2))]
    assert optimizer_name(torch.optim.AdamW(parameters, fused=True), "") == "adamw"
    assert optimizer_name(torch.optim.SGD(parameters, momentum=0.9), "") == "momentum"
    assert optimizer_name(torch.optim.SGD(parameters), "") == "sgd"
    assert optimizer_name(SimpleNamespace(optimizer=torch.optim.Adam(parameters)), "") == "adam"
    with pytest.raises(FitError, match=r"Adagrad .* is not known\. Take another"):
        optimizer_name(torch.optim.Adagrad(parameters), "Take another.")
    for kind in (torch.optim.Adam, torch.optim.AdamW):
        with pytest.raises(FitError, match=f"{kind.__name__} with amsgrad .* is not known"):
            optimizer_name(kind(parameters, amsgrad=True), "")


class Slow(torch.optim.Optimizer):
    """As Lookahead: it computes something of its own from what another does."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        super().__init__(optimizer.param_groups, {})
        self.optimizer = optimizer


def test_what_wraps_an_optimizer_is_looked_through_and_what_computes_is_not() -> None:
    adam = torch.optim.Adam([nn.Parameter(torch.ones(2))])
    for wrapped in (adam, Wraps(adam), Wraps(Wraps(adam)), SimpleNamespace(optimizer=adam)):
        assert unwrapped(wrapped) is adam
    slow = Slow(adam)
    assert unwrapped(slow) is slow
    assert unwrapped(Wraps(slow)) is slow
    assert unwrapped(None) is None
    with pytest.raises(FitError, match=r"Slow .* is not known"):
        optimizer_name(Wraps(slow), "")


def test_a_plan_from_a_file_is_used_and_taken_away(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    module = nn.Sequential(nn.Linear(8, 8), nn.Tanh())
    policies = (SavePolicy(value="aten.addmm.default#0", module="0"),)
    Plan(policies=policies, architecture=architecture_of(module)).save(tmp_path / "plan.json")
    budget = MemoryBudget("1GiB", tmp_path / "plan.json", None)

    def no_batch() -> Any:
        raise AssertionError("nothing is planned")

    def no_optimizer() -> str:
        raise FitError("its state is not known")

    def begin(budget: MemoryBudget, autocast: str | None = None) -> None:
        options: dict[str, Any] = {"autocast": autocast, "accumulates": False, "remedy": ""}
        budget.begin(module, no_batch, lambda *_: torch.ones(()), optimizer=no_optimizer, **options)

    begin(budget)
    assert forward_of(module) is not None
    for _ in range(3):
        budget.step_begins()
        budget.step_ends()
    budget.end()
    budget.end()
    assert "forward" not in vars(module)
    said = capsys.readouterr().err
    assert "plan.json" in said
    assert said.count("3 steps under the plan took") == 1
    Plan.load(tmp_path / "plan.json").model_copy(update={"autocast": "bfloat16"}).save(tmp_path / "plan.json")
    with pytest.raises(FitError, match="made with autocast bfloat16, and this training runs with autocast off"):
        begin(MemoryBudget("1GiB", tmp_path / "plan.json", None))
    assert "forward" not in vars(module)
    begin(budget := MemoryBudget("1GiB", tmp_path / "plan.json", None), "bfloat16")
    budget.end()


def test_a_plan_that_an_interrupted_training_left_gives_way(tmp_path: Path) -> None:
    """A notebook makes a new trainer, with a new callback, for the same module."""
    module = nn.Sequential(nn.Linear(8, 8), nn.Tanh())
    policies = (SavePolicy(value="aten.addmm.default#0", module="0"),)
    Plan(policies=policies, architecture=architecture_of(module)).save(tmp_path / "plan.json")

    def begun() -> MemoryBudget:
        budget = MemoryBudget("1GiB", tmp_path / "plan.json", None)
        budget.begin(
            module,
            lambda: None,
            lambda *_: torch.ones(()),
            optimizer=lambda: "sgd",
            autocast=None,
            accumulates=False,
            remedy="",
        )
        return budget

    interrupted, again = begun(), begun()
    interrupted.end()
    assert forward_of(module) is not None, "it is another's now"
    again.end()
    assert "forward" not in vars(module)


def test_the_callback_of_transformers_tells_its_autocast(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("transformers", reason="transformers is not installed")
    from togi.trainers.transformers import TrainerMemoryBudget

    Plan(autocast="bfloat16").save(tmp_path / "plan.json")
    callback = TrainerMemoryBudget("1GiB", plan=tmp_path / "plan.json")
    args = SimpleNamespace(world_size=1, n_gpu=0, bf16=True, fp16=False, gradient_accumulation_steps=1)
    args.label_smoothing_factor, args.torch_compile = 0.0, False
    callback.on_train_begin(args, None, None, model=nn.Linear(2, 2))
    callback.budget.end()
    assert "the loss that the model returns" not in capsys.readouterr().err
    args.label_smoothing_factor, args.torch_compile = 0.1, True
    callback.on_train_begin(args, None, None, model=nn.Linear(2, 2))
    callback.budget.end()
    said = capsys.readouterr().err
    assert "the plan is for the loss that the model returns" in said
    assert "torch_compile has no effect" in said
    args.bf16 = False
    with pytest.raises(FitError, match="runs with autocast off"):
        callback.on_train_begin(args, None, None, model=nn.Linear(2, 2))


def test_on_a_device_a_step_takes_what_the_device_takes_and_none_waits_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The host comes back from a step once it is queued."""
    done: list[str] = []
    clock = iter([10.0, 17.0, 20.0, 29.0])

    class Event:
        def __init__(self, *, enable_timing: bool) -> None:
            assert enable_timing
            done.append("made")

        def record(self, stream: str) -> None:
            assert stream == "stream of cuda:0"
            self.ms = next(clock)

        def synchronize(self) -> None:
            done.append("waited")

        def elapsed_time(self, ended: Any) -> float:
            return float(ended.ms - self.ms)

    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: f"stream of {device}")
    module = nn.Sequential(nn.Linear(8, 8), nn.Tanh())
    Plan(policies=(SavePolicy(value="aten.addmm.default#0", module="0"),)).save(tmp_path / "plan.json")
    budget = MemoryBudget("1GiB", tmp_path / "plan.json", None)
    begun(budget, module)
    parameter = SimpleNamespace(device=torch.device("cuda:0"))
    monkeypatch.setattr(module, "parameters", lambda: iter([parameter]))
    for _ in range(2):
        budget.step_begins()
        budget.step_ends()
    assert done == ["made"] * 4
    assert budget.step_ms == 8.0
    budget.end()
    assert "2 steps under the plan took 8.00 ms in the median" in capsys.readouterr().err


def test_taking_a_batch_begins_no_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where there is a device, forking torch's generators by itself does."""

    def begun(*_: Any) -> Any:
        raise AssertionError("CUDA was begun")

    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_rng_state", begun)
    assert largest_batch(DataLoader(Sentences([3]), batch_size=1)).shape == (1, 3)


@pytest.mark.parametrize(
    ("made", "said"),
    [
        ({"peak_bytes": 10 << 30}, r"takes 10\.0 GiB, and this training may take 1\.00 GiB"),
        ({"micro_batches": 4}, "batches 4 times as small"),
        ({"chunks": (Chunk(module="0", inputs={"0": ("cut",)}, outputs=(0,), size=2),)}, "slices an inference pass"),
    ],
)
def test_a_plan_for_something_else_is_refused(made: dict[str, Any], said: str, tmp_path: Path) -> None:
    Plan(**made).save(tmp_path / "plan.json")
    with pytest.raises(FitError, match=said):
        begun(MemoryBudget("1GiB", tmp_path / "plan.json", None), nn.Linear(2, 2))


def test_after_an_interrupted_training_the_next_begins(tmp_path: Path) -> None:
    """A trainer that raises may tell nobody that it ends."""
    module = nn.Sequential(nn.Linear(8, 8), nn.Tanh())
    Plan(policies=(SavePolicy(value="aten.addmm.default#0", module="0"),)).save(tmp_path / "plan.json")
    budget = MemoryBudget("1GiB", tmp_path / "plan.json", None)
    begun(budget, module)
    budget.step_begins()
    budget.step_ends()
    begun(budget, module)
    assert forward_of(module) is not None
    assert not budget._times
    budget.end()
    assert "forward" not in vars(module)


def begun(budget: MemoryBudget, module: nn.Module) -> None:
    """A training whose plan is in a file."""
    options: dict[str, Any] = {"autocast": None, "accumulates": False, "remedy": ""}
    budget.begin(module, lambda: None, lambda *_: torch.ones(()), optimizer=lambda: "sgd", **options)
