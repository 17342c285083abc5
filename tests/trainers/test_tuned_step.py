"""A tuned recipe in a training of another library's trainer: put on, taken off in every case, refused where it is of
another training."""

from __future__ import annotations

import gc
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import togi
from tests.trainers.small_recipes import Wraps, recorded
from togi.core.errors import ArtifactError, FitError, TogiError
from togi.trainers.tuned_step import TunedStep


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 36, 5))


def batch() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(4, 3, 8, 8, generator=generator), torch.randint(0, 5, (4,), generator=generator)


def loss_of(module: nn.Module, sample: Any) -> Tensor:
    pictures, labels = sample
    return nn.functional.cross_entropy(module(pictures), labels)


def adamw(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=1e-3)


def record(**choices: Any) -> togi.TrainingRecipe:
    return recorded(network(), batch(), adamw, step=loss_of, **(choices or {"channels_last": {}, "fused": {}}))


def is_on(module: nn.Module, optimizer: torch.optim.Optimizer) -> bool:
    fused = [bool(group["fused"]) for group in optimizer.param_groups]
    hooked, strided = bool(module._forward_pre_hooks), not next(module.parameters()).is_contiguous()
    assert {hooked, strided} == {fused[0]}, "all of it, or nothing"
    return fused[0]


def trained(module: nn.Module, optimizer: torch.optim.Optimizer, steps: int = 3) -> list[float]:
    losses = []
    for _ in range(steps):
        module.zero_grad()
        loss = loss_of(module, batch())
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        losses.append(loss.item())
    return losses


def test_a_recipe_goes_to_the_optimizer_inside_of_a_trainers_wrapper(capsys: pytest.CaptureFixture[str]) -> None:
    module, other = network(), network()
    own, others = adamw(module.parameters()), adamw(other.parameters())
    tuned = TunedStep(record())
    tuned.begin(module, Wraps(own), autocast=None)
    assert is_on(module, own)
    under_it = trained(module, Wraps(own))
    assert "autocast" not in capsys.readouterr().err
    tuned.end()
    tuned.end()
    assert not is_on(module, own)
    after = trained(module, own)
    assert [*under_it, *after] == pytest.approx(trained(other, others, 6), rel=1e-4)
    tuned.begin(module, own, autocast="bfloat16")
    said = capsys.readouterr().err
    assert "steps run with channels_last + fused" in said
    assert "under autocast bfloat16" in said
    tuned.end()


def test_another_model_or_optimizer_is_refused_with_what_to_do_and_nothing_is_changed() -> None:
    tuned, module = TunedStep(record()), network()
    momentum = torch.optim.SGD(module.parameters(), lr=0.1)
    with pytest.raises(ArtifactError, match=r"the optimizer is SGD and was AdamW.* run 'togi tune --train'"):
        tuned.begin(module, Wraps(momentum), autocast=None)
    other = nn.Sequential(nn.Linear(3, 3))
    with pytest.raises(ArtifactError, match=r"for another training step.* run 'togi tune --train'"):
        tuned.begin(other, adamw(other.parameters()), autocast=None)
    with pytest.raises(ArtifactError, match=r"'togi tune SUBJECT --train --out NAME\.togi' writes one"):
        TunedStep("nowhere.togi")
    assert not momentum.param_groups[0]["fused"]
    assert next(module.parameters()).is_contiguous()


def test_what_needs_the_loss_says_how_to_tune_for_a_trainer() -> None:
    module = network()
    needs = TunedStep(record(micro_batches={"parts": 2}))
    with pytest.raises(TogiError, match=r"a trainer computes it by itself. Tune again with train_step="):
        needs.begin(module, adamw(module.parameters()), autocast=None)


def test_what_this_process_cannot_do_is_an_error_that_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    module = network()
    for name in ("MALLOC_TRIM_THRESHOLD_", "GLIBC_TUNABLES"):
        monkeypatch.setenv(name, "1")
    with pytest.raises(TogiError, match=r"kept_memory.* cannot be applied to this training: malloc"):
        TunedStep(record(kept_memory={})).begin(module, adamw(module.parameters()), autocast=None)


@pytest.mark.parametrize("callback_is_kept", [True, False])
def test_a_recipe_that_an_interrupted_training_left_gives_way(callback_is_kept: bool) -> None:
    """A notebook makes a new trainer, with a new callback, for the same model."""
    module = network()
    own, later = adamw(module.parameters()), adamw(module.parameters())
    kept = [interrupted := TunedStep(record())]
    interrupted.begin(module, own, autocast=None)
    del interrupted
    if not callback_is_kept:
        kept.clear()
        gc.collect()
        assert not is_on(module, own)
    again = TunedStep(record())
    again.begin(module, later, autocast=None)
    assert is_on(module, later)
    assert not own.param_groups[0]["fused"]
    for one in kept:
        one.end()
    assert is_on(module, later), "it is another's now"
    again.end()
    assert not is_on(module, later)


def test_an_own_loop_has_its_recipe_in_a_trainer_too() -> None:
    """Its body is what the trainer does, so nothing in it is asked for the loss."""

    def body(module: nn.Module, optimizer: torch.optim.Optimizer, sample: Any) -> Tensor:
        optimizer.zero_grad()
        loss = loss_of(module, sample)
        loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(module.parameters(), 1.0)
        optimizer.step()
        return loss.detach()

    module = network()
    own = adamw(module.parameters())
    tuned = TunedStep(recorded(network(), batch(), adamw, train_step=body, bf16={"how": "autocast"}, fused={}))
    tuned.begin(module, own, autocast=None)
    assert "forward" in vars(module)
    assert body(module, own, batch()).dtype is torch.float32
    tuned.end()
    assert "forward" not in vars(module)


def transformers_callback(found: togi.TrainingRecipe | str | Path) -> Any:
    pytest.importorskip("transformers", reason="transformers is not installed")
    from togi.trainers.transformers import TrainerTunedStep

    return TrainerTunedStep(found)


def arguments(**given: Any) -> SimpleNamespace:
    usual = {"world_size": 1, "n_gpu": 0, "bf16": False, "fp16": False}
    return SimpleNamespace(**(usual | given), parallel_mode=SimpleNamespace(value="distributed"))


def test_the_callback_of_transformers_puts_it_on_and_takes_it_off(tmp_path: Path) -> None:
    module = network()
    own = adamw(module.parameters())
    record().save(tmp_path / "step.json")
    callback = transformers_callback(tmp_path / "step.json")
    callback.on_train_begin(arguments(), None, None, model=module, optimizer=Wraps(own), lr_scheduler=None)
    assert is_on(module, own)
    callback.on_train_end(arguments(), None, None, model=module)
    assert not is_on(module, own)


def test_after_an_exception_that_no_callback_hears_of_it_is_off() -> None:
    module = network()
    own = adamw(module.parameters())
    callback = transformers_callback(record())

    def train() -> None:
        with callback:
            callback.on_train_begin(arguments(), None, None, model=module, optimizer=own)
            assert is_on(module, own)
            raise ValueError("no such row")

    with pytest.raises(ValueError, match="no such row"):
        train()
    assert not is_on(module, own)


def test_several_devices_are_refused() -> None:
    callback, module = transformers_callback(record()), network()
    with pytest.raises(FitError, match="proven on one device, and this Trainer runs on 2"):
        callback.on_train_begin(arguments(world_size=2), None, None, model=module, optimizer=adamw(module.parameters()))


def test_an_allocator_that_is_missing_is_named() -> None:
    module = network()
    with pytest.raises(TogiError, match=r"allocator.* cannot be applied .*(not installed|LD_PRELOAD)"):
        TunedStep(record(allocator={"name": "tcmalloc"})).begin(module, adamw(module.parameters()), autocast=None)
