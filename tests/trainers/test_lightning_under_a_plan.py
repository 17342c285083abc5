"""Lightning trains a module under a plan or a tuned recipe as it does without, and its callbacks see to that."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import togi
from tests.trainers.small_recipes import recorded
from togi.core.errors import ArtifactError, FitError
from togi.footprint.fit.plan import Plan
from togi.footprint.fit.policies import SavePolicy
from togi.subject.inputs import as_given
from togi.trainers.memory_budget import MemoryBudget

pl = pytest.importorskip("lightning.pytorch", reason="Lightning is not installed")


class Net(pl.LightningModule):
    """A classifier with batch statistics and dropout, as tutorials write it."""

    def __init__(self) -> None:
        super().__init__()
        blocks = [
            part for _ in range(4) for part in (nn.Linear(64, 64), nn.BatchNorm1d(64), nn.SiLU(), nn.Dropout(0.1))
        ]
        self.body, self.head = nn.Sequential(*blocks), nn.Linear(64, 3)
        self.losses: list[float] = []

    def forward(self, pixels: Tensor) -> Tensor:
        return self.head(self.body(pixels))

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        pixels, labels = batch
        loss = nn.functional.cross_entropy(self(pixels), labels)
        self.log("loss", loss)
        if self._trainer is not None:
            self.losses.append(loss.item())
        return loss

    def configure_optimizers(self) -> Any:
        return torch.optim.AdamW(self.parameters(), lr=1e-3)


POLICIES = tuple(
    SavePolicy(value=f"aten.{name}#{number}", module="")
    for name in ("addmm.default", "silu.default", "native_batch_norm.default")
    for number in range(4)
)


def _data() -> DataLoader[Any]:
    generator = torch.Generator().manual_seed(0)
    pixels, labels = torch.randn(512, 64, generator=generator), torch.randint(0, 3, (512,), generator=generator)
    return DataLoader(TensorDataset(pixels, labels), batch_size=64, shuffle=True)


def _trained(folder: Path, *callbacks: Any, plan: Plan | None = None, net: Callable[[], Net] = Net, **how: Any) -> Net:
    pl.seed_everything(1, verbose=False)
    module = net()
    if plan is not None:
        plan.apply(module)
    trainer = pl.Trainer(
        max_steps=6,
        accelerator="cpu",
        devices=1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        callbacks=list(callbacks),
        default_root_dir=folder,
        **how,
    )
    trainer.fit(module, _data())
    return module


def _same(one: Net, other: Net) -> None:
    assert one.losses == other.losses
    assert len(one.losses) == 6
    for name, value in one.state_dict().items():
        assert torch.equal(value, other.state_dict()[name]), name


def test_a_module_under_a_plan_is_trained_as_without(tmp_path: Path) -> None:
    plan = Plan(policies=POLICIES)
    planned = _trained(tmp_path, plan=plan)
    assert "forward" in vars(planned)
    _same(_trained(tmp_path), planned)


def test_the_callback_plans_applies_and_says_what_it_cost(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from togi.trainers.lightning import LightningMemoryBudget

    plain = _trained(tmp_path)
    callback = LightningMemoryBudget("440KiB", plan=tmp_path / "plan.json", time_limit="20s")
    planned = _trained(tmp_path, callback)
    _same(plain, planned)
    assert "forward" not in vars(planned)
    found = callback.budget.result
    assert found is not None
    assert found.fits
    assert found.plan.policies
    assert found.plain.peak_bytes > found.budget_bytes
    said = capsys.readouterr().err
    assert "equal to the bit" in said
    assert "6 steps under the plan took" in said
    read = LightningMemoryBudget("440KiB", plan=tmp_path / "plan.json")
    _same(plain, _trained(tmp_path, read))
    with pytest.raises(FitError, match="made with autocast off, and this training runs with autocast bfloat16"):
        _trained(tmp_path, read, precision="bf16-mixed")


def test_what_does_not_fit_is_said_in_words_of_lightning(tmp_path: Path) -> None:
    from togi.trainers.lightning import LightningMemoryBudget

    with pytest.raises(FitError, match="accumulate_grad_batches"):
        _trained(tmp_path, LightningMemoryBudget("1KiB", time_limit="20s"))


@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed", "bf16-true", "64-true"])
def test_the_step_that_is_planned_is_the_trainers(
    precision: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from togi.trainers.lightning import LightningMemoryBudget

    seen: list[Any] = []

    class Watched(Net):
        def forward(self, pixels: Tensor) -> Tensor:
            answer = super().forward(pixels)
            seen.append((pixels.dtype, answer.dtype, torch.get_default_dtype(), torch.is_autocast_cache_enabled()))
            return answer

        def log(self, *_: Any, **__: Any) -> None:
            """Not while the training begins."""

    def begin(_: MemoryBudget, module: nn.Module, batch: Any, step: Any, **__: Any) -> None:
        step(module, as_given(batch()))

    monkeypatch.setattr(MemoryBudget, "begin", begin)
    _trained(tmp_path, LightningMemoryBudget("1GiB"), net=Watched, precision=precision)
    planned, *trained = seen
    assert len(trained) == 6
    assert set(trained) == {planned}


@pytest.mark.parametrize(
    ("precision", "memory"),
    [("bf16-mixed", "380KiB"), pytest.param("bf16-true", "230KiB", marks=pytest.mark.thorough)],
)
def test_a_plan_holds_in_the_precision_of_the_trainer(precision: str, memory: str, tmp_path: Path) -> None:
    from togi.trainers.lightning import LightningMemoryBudget

    callback = LightningMemoryBudget(memory, plan=tmp_path / "plan.json", time_limit="20s")
    planned = _trained(tmp_path, callback, precision=precision)
    _same(_trained(tmp_path, precision=precision), planned)
    found = callback.budget.result
    assert found is not None
    assert found.plan.policies
    assert found.plain.peak_bytes > found.budget_bytes
    assert Plan.load(tmp_path / "plan.json").autocast == ("bfloat16" if precision == "bf16-mixed" else "off")


def test_a_precision_that_is_not_known_is_named(tmp_path: Path) -> None:
    from lightning.pytorch.plugins.precision import MixedPrecision

    from togi.trainers.lightning import LightningMemoryBudget

    class OwnPrecision(MixedPrecision):
        """May save other tensors."""

    with pytest.raises(FitError, match="precision plugin OwnPrecision"):
        _trained(tmp_path, LightningMemoryBudget("1GiB"), plugins=[OwnPrecision("bf16-mixed", "cpu")])


def adamw(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=1e-3)


def loss_of(module: nn.Module, batch: Any) -> Tensor:
    pixels, labels = batch
    return nn.functional.cross_entropy(module(pixels), labels)


EXACT: dict[str, Any] = {"recompute": {"keep": 0.5}, "kept_memory": {}}


def _recorded(module: Net, **choices: Any) -> togi.TrainingRecipe:
    plan = Plan(policies=POLICIES) if "recompute" in choices else None
    return recorded(module, next(iter(_data())), adamw, step=loss_of, plan=plan, **choices)


class Watched(pl.Callback):
    """What is on the module and on its optimizer in each step."""

    def __init__(self) -> None:
        self.seen: list[tuple[bool, bool]] = []

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        (optimizer,) = trainer.optimizers
        self.seen.append(("forward" in vars(pl_module), bool(optimizer.param_groups[0]["fused"])))


@pytest.mark.parametrize("choices", [EXACT, {"fused": {}, "threads": {"count": 1}}], ids=["exact", "up to rounding"])
def test_the_curve_with_a_tuned_recipe_is_the_trainers_own(choices: dict[str, Any], tmp_path: Path) -> None:
    from togi.trainers.lightning import LightningTunedStep

    plain, watched, threads = _trained(tmp_path), Watched(), torch.get_num_threads()
    tuned = _trained(tmp_path, LightningTunedStep(_recorded(Net(), **choices)), watched)
    assert watched.seen == [("recompute" in choices, "fused" in choices)] * 6
    if choices is EXACT:
        _same(plain, tuned)
    assert tuned.losses == pytest.approx(plain.losses, rel=1e-4)
    assert "forward" not in vars(tuned)
    assert torch.get_num_threads() == threads


class Interrupted(Net):
    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        if self._trainer is not None and len(self.losses) == 2:
            raise ValueError("a broken file")
        return super().training_step(batch, batch_idx)


def test_a_recipe_is_off_after_an_exception(tmp_path: Path) -> None:
    from togi.trainers.lightning import LightningTunedStep

    made: list[Interrupted] = []
    watched = Watched()

    def net() -> Interrupted:
        made.append(Interrupted())
        return made[0]

    with pytest.raises(ValueError, match="a broken file"):
        _trained(tmp_path, LightningTunedStep(_recorded(Interrupted(), **EXACT)), watched, net=net)
    assert watched.seen == [(True, False)] * 3
    assert "forward" not in vars(made[0])


def test_a_recipe_of_another_training_is_refused(tmp_path: Path) -> None:
    from togi.trainers.lightning import LightningTunedStep

    class WithMomentum(Net):
        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=1e-3, momentum=0.9)

    class WithTwo(Net):
        def configure_optimizers(self) -> Any:
            return [torch.optim.SGD(part.parameters(), lr=1e-3) for part in (self.body, self.head)]

        def training_step(self, batch: Any, batch_idx: int) -> None:
            """With several optimizers a loop is the user's own."""

    WithTwo.automatic_optimization = False
    recipe = _recorded(WithMomentum(), fused={})
    with pytest.raises(ArtifactError, match=r"the optimizer is SGD and was AdamW.* run 'togi tune --train'"):
        _trained(tmp_path, LightningTunedStep(recipe), net=WithMomentum)
    with pytest.raises(ArtifactError, match=r"it is Net.* and was WithMomentum"):
        _trained(tmp_path, LightningTunedStep(recipe))
    with pytest.raises(FitError, match="2 optimizers: a recipe is for a step with one"):
        _trained(tmp_path, LightningTunedStep(recipe), net=WithTwo)
