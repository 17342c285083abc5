"""The Trainer of transformers trains a model under a plan or a tuned recipe as it does without, and its callbacks see
to that."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import togi
from tests.trainers.small_recipes import recorded
from togi.core.errors import ArtifactError, FitError
from togi.footprint.fit.plan import Plan
from togi.footprint.fit.policies import SavePolicy

pytest.importorskip("transformers", reason="transformers is not installed")
pytest.importorskip("accelerate", reason="accelerate, which the Trainer needs, is not installed")

ROWS, TOKENS, WORDS = 32, 24, 50


def language_model() -> nn.Module:
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    return GPT2LMHeadModel(GPT2Config(n_layer=2, n_head=2, n_embd=32, vocab_size=WORDS, n_positions=TOKENS))


class Classifier(nn.Module):
    """A model of the user's own, whose forward takes what it names and nothing else."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.table, self.drop, self.head = nn.Embedding(WORDS, 32), nn.Dropout(0.1), nn.Linear(32, WORDS)

    def forward(self, input_ids: Tensor, labels: Tensor | None = None) -> dict[str, Tensor]:
        logits = self.head(self.drop(self.table(input_ids).sigmoid()).tanh())
        outputs = {"logits": logits}
        if labels is not None:
            outputs["loss"] = nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten())
        return outputs


MODELS = {"GPT-2": language_model, "own": Classifier}
POLICIES = tuple(
    SavePolicy(value=f"aten.{name}#{number}", module="")
    for name in (
        "addmm.default", "tanh.default", "sigmoid.default", "native_layer_norm.default", "native_dropout.default"
    )
    for number in range(4)
)  # fmt: skip


def _rows() -> list[dict[str, Any]]:
    """With a column that no forward knows, which a Trainer drops."""
    generator = torch.Generator().manual_seed(2)
    tokens = torch.randint(0, WORDS, (ROWS, TOKENS), generator=generator).tolist()
    return [{"input_ids": row, "labels": row, "source": 7} for row in tokens]


def _trained(
    folder: Path, model: nn.Module, *callbacks: Any, accumulated: int = 1, **how: Any
) -> tuple[list[Any], nn.Module]:
    from transformers import Trainer, TrainingArguments

    args = TrainingArguments(
        output_dir=str(folder),
        per_device_train_batch_size=4,
        gradient_accumulation_steps=accumulated,
        max_steps=4,
        logging_steps=1,
        save_strategy="no",
        report_to=[],
        use_cpu=True,
        seed=1,
        disable_tqdm=True,
        **how,
    )
    trainer = Trainer(model=model, args=args, train_dataset=_rows(), callbacks=list(callbacks))
    trainer.train()
    curve = [(entry["loss"], entry["grad_norm"]) for entry in trainer.state.log_history if "loss" in entry]
    assert len(curve) == 4
    return curve, model


@pytest.mark.parametrize("accumulated", [1, 2])
@pytest.mark.parametrize("name", MODELS)
def test_a_model_under_a_plan_is_trained_as_without(name: str, accumulated: int, tmp_path: Path) -> None:
    curve, plain = _trained(tmp_path, MODELS[name](), accumulated=accumulated)
    plan = Plan(policies=POLICIES)
    planned_curve, planned = _trained(tmp_path, plan.apply(MODELS[name]()), accumulated=accumulated)
    assert planned_curve == curve
    for key, value in plain.state_dict().items():
        assert torch.equal(value, planned.state_dict()[key]), key


def test_the_callback_plans_applies_and_says_what_it_cost(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from togi.trainers.transformers import TrainerMemoryBudget

    curve, _ = _trained(tmp_path, language_model())
    callback = TrainerMemoryBudget("800KiB", plan=tmp_path / "plan.json", time_limit="30s")
    planned_curve, planned = _trained(tmp_path, language_model(), callback)
    assert planned_curve == curve
    assert "forward" not in vars(planned)
    found = callback.budget.result
    assert found is not None
    assert found.fits
    assert found.plan.policies
    assert found.proof.exact
    said = capsys.readouterr().err
    assert "equal to the bit" in said
    assert "4 steps under the plan took" in said


def test_what_does_not_fit_is_said_in_words_of_the_trainer(tmp_path: Path) -> None:
    from togi.trainers.transformers import TrainerMemoryBudget

    with pytest.raises(FitError, match="per_device_train_batch_size"):
        _trained(tmp_path, language_model(), TrainerMemoryBudget("1KiB", time_limit="30s"))


def adamw(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=1e-3)


def loss_of(model: nn.Module, batch: Any) -> Tensor:
    return model(**batch)["loss"]


EXACT: dict[str, Any] = {"recompute": {"keep": 0.5}, "kept_memory": {}}


def _recorded(model: nn.Module, **choices: Any) -> togi.TrainingRecipe:
    tokens = torch.tensor([row["input_ids"] for row in _rows()[:4]])
    plan = Plan(policies=POLICIES) if "recompute" in choices else None
    return recorded(model, {"input_ids": tokens, "labels": tokens}, adamw, step=loss_of, plan=plan, **choices)


@pytest.mark.parametrize("accumulated", [1, 2])
@pytest.mark.parametrize("choices", [EXACT, {"fused": {}}], ids=["exact", "up to rounding"])
@pytest.mark.parametrize("name", MODELS)
def test_the_curve_with_a_tuned_recipe_is_the_trainers_own(
    name: str, choices: dict[str, Any], accumulated: int, tmp_path: Path
) -> None:
    from transformers import TrainerCallback

    from togi.trainers.transformers import TrainerTunedStep

    seen: list[tuple[bool, bool]] = []

    class Watched(TrainerCallback):
        def on_step_begin(self, *_: Any, model: Any, optimizer: Any, **__: Any) -> None:
            seen.append(("forward" in vars(model), bool(optimizer.param_groups[0]["fused"])))

    options: dict[str, Any] = {"accumulated": accumulated, "optim": "adamw_torch"}
    curve, plain = _trained(tmp_path, MODELS[name](), **options)
    callback = TrainerTunedStep(_recorded(MODELS[name](), **choices))
    tuned_curve, tuned = _trained(tmp_path, MODELS[name](), callback, Watched(), **options)
    assert seen == [("recompute" in choices, "fused" in choices)] * 4
    assert "forward" not in vars(tuned)
    if choices is EXACT:
        assert tuned_curve == curve
        for key, value in plain.state_dict().items():
            assert torch.equal(value, tuned.state_dict()[key]), key
    for one, two in zip(tuned_curve, curve, strict=True):
        assert one == pytest.approx(two, rel=1e-3)


def test_a_recipe_is_off_after_an_exception_and_another_optimizer_is_refused(tmp_path: Path) -> None:
    from transformers import TrainerCallback

    from togi.trainers.transformers import TrainerTunedStep

    class Breaks(TrainerCallback):
        def on_step_end(self, *_: Any, model: Any, **__: Any) -> None:
            assert "forward" in vars(model)
            raise ValueError("a full disk")

    model, tuned = Classifier(), TrainerTunedStep(_recorded(Classifier(), **EXACT))
    with pytest.raises(ValueError, match="a full disk"), tuned:
        _trained(tmp_path, model, tuned, Breaks())
    assert "forward" not in vars(model)
    with pytest.raises(ArtifactError, match=r"the optimizer is SGD and was AdamW.* run 'togi tune --train'"):
        _trained(tmp_path, model, tuned, optim="sgd")
