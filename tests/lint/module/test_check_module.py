"""Module rules on a subject: the answer, bad input, modules that cannot be captured, and what measuring says."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from togi.core.errors import SubjectError, UnknownNameError
from togi.core.records import Interval
from togi.lint.calls import EXAMINE, ModuleRequest
from togi.lint.finding import Cost, Finding
from togi.lint.module import measured_fix
from togi.lint.module.check import check_module
from togi.lint.module.measured_fix import MeasuredFix, with_measured_costs
from togi.subject.inputs import Subject
from togi.worker.protocol import SubjectRef

IMAGE = torch.randn(1, 3, 16, 16)
SUBJECT = """
import torch
from torch import nn
def subject():
    return nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8)), torch.zeros(1, 3, 16, 16)
"""


def norms() -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU())


def rules(module: nn.Module, sample: Any, **order: Any) -> set[str]:
    report = check_module(Subject(module, sample), ModuleRequest(**{"device": "A100", **order}))
    return {finding.rule for finding in report.findings}


def notes(module: nn.Module, sample: Any, **order: Any) -> str:
    return " ".join(check_module(Subject(module, sample), ModuleRequest(**{"device": "A100", **order})).notes)


@pytest.mark.thorough
def test_a_subject_is_examined_in_a_child_process(tmp_path: Path) -> None:
    (tmp_path / "folded_subject.py").write_text(SUBJECT, encoding="utf-8")
    ref = SubjectRef.here("locator", f"{tmp_path / 'folded_subject.py'}:subject")
    answer = EXAMINE(ref, ModuleRequest(device="A100"))
    found = {finding.rule for finding in answer.findings}
    assert found == {"bias-before-norm", "conv-batchnorm-unfolded", "training-mode"}
    (table,) = answer.tables
    assert all(len(row) == len(table.columns) for row in table.rows)


def test_only_the_selected_rules_run() -> None:
    assert rules(norms().eval(), IMAGE, rules=["bias-before-norm", "scalar-from-tensor"]) == {"bias-before-norm"}
    assert rules(norms().eval(), IMAGE, rules=[]) == set()


def test_the_users_module_stays_as_it_was() -> None:
    module = norms().train()
    before = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    rules(module, IMAGE)
    assert module.training
    assert all(torch.equal(before[name], tensor) for name, tensor in module.state_dict().items())
    assert not any(part._forward_hooks or part._forward_pre_hooks for part in module.modules())
    assert not torch.nn.modules.module._global_forward_pre_hooks


@pytest.mark.parametrize(
    ("order", "said"),
    [({"device": "A10O"}, "did you mean 'A1"), ({"device": "A100", "dtype": "float17"}, "float17")],
)
def test_unknown_names(order: dict[str, str], said: str) -> None:
    with pytest.raises(UnknownNameError, match=said):
        check_module(Subject(norms(), IMAGE), ModuleRequest(**order))


def test_modules_without_values_are_refused_clearly() -> None:
    with pytest.raises(SubjectError, match="meta device"):
        rules(nn.Linear(3, 3, device="meta"), torch.zeros(1, 3))
    with pytest.raises(SubjectError, match="lazy parameter"):
        rules(nn.LazyLinear(3), torch.zeros(1, 3))
    with pytest.raises(SubjectError, match="does not run on sample 1"):
        rules(nn.Linear(3, 3), torch.zeros(1, 4))


class Branching(nn.Module):
    """Python control flow on values: torch.export gives up, eager does not."""

    def __init__(self) -> None:
        super().__init__()
        self.body = norms()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.body(x) if x.sum().item() > -1e9 else x


def test_what_cannot_be_captured_is_still_watched() -> None:
    assert {"bias-before-norm", "conv-batchnorm-unfolded"} <= rules(Branching().eval(), IMAGE)
    assert "could not be captured" in notes(Branching().eval(), IMAGE)
    assert "could not be captured" not in notes(Branching().eval(), IMAGE, rules=["bias-before-norm"])


class Options(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = norms()

    def forward(self, x: dict[str, Any], scale: float, mode: str = "a") -> dict[str, Any]:
        return {"y": [self.body(x["image"]) * scale, None, mode]}


def test_inputs_and_outputs_that_are_not_tensors() -> None:
    sample = ({"image": IMAGE, "none": None}, 2.0)
    assert "conv-batchnorm-unfolded" in rules(Options().eval(), sample)


class Recursive(nn.Module):
    """The same block at several names and several times in a pass."""

    def __init__(self) -> None:
        super().__init__()
        block = nn.Sequential(nn.Conv2d(3, 3, 3, padding=1), nn.BatchNorm2d(3))
        self.one, self.other = block, block

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.other(self.one(self.one(x)))


def test_shared_blocks_count_once() -> None:
    (finding,) = check_module(
        Subject(Recursive().eval(), IMAGE), ModuleRequest(device="A100", rules=("conv-batchnorm-unfolded",))
    ).findings
    assert finding.count == 1


@pytest.mark.parametrize(
    ("module", "sample"),
    [
        (nn.Identity(), torch.zeros(0, 3)),
        (nn.Linear(3, 3), torch.zeros(0, 3)),
        (nn.Linear(3, 3), torch.full((2, 3), float("nan"))),
        (nn.Embedding(5, 3), torch.zeros(2, dtype=torch.long)),
        (nn.LSTM(3, 4), torch.zeros(2, 1, 3)),
        (torch.jit.trace(norms().eval(), IMAGE), IMAGE),
        (torch.compile(norms().eval()), IMAGE),
        (nn.Linear(3, 3).to(torch.complex64), torch.zeros(1, 3, dtype=torch.complex64)),
        (torch.ao.nn.quantized.dynamic.Linear(3, 3), torch.zeros(1, 3)),
    ],
    ids=["nothing", "empty", "nan", "embedding", "lstm", "scripted", "compiled", "complex", "quantized"],
)
def test_unusual_modules_are_checked_without_an_error(module: nn.Module, sample: torch.Tensor) -> None:
    answer = check_module(Subject(module, sample), ModuleRequest(device="A100"))
    json.dumps(answer.model_dump(mode="json"), allow_nan=False)


class Closed(nn.Module):
    """Refuses to run under a mode of torch, as some extensions do."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        from torch.utils._python_dispatch import _get_current_dispatch_mode

        if _get_current_dispatch_mode() is not None:
            raise RuntimeError("not under a mode")
        return x * 2


def test_what_cannot_be_watched_is_reported() -> None:
    answer = check_module(Subject(Closed(), IMAGE), ModuleRequest(device="A100"))
    assert answer.tables == ()
    assert "not under a mode" in " ".join(answer.notes)


def tried(median: float, low: float, high: float, technique: str = "fold_batch_norm") -> MeasuredFix:
    return MeasuredFix(technique=technique, speedup_x=Interval(median=median, low=low, high=high))


def test_a_speedup_is_claimed_only_beyond_noise() -> None:
    assert "1.30x as fast" in tried(1.3, 1.2, 1.4).sentence
    for attempt in (tried(1.3, 0.9, 1.6), tried(1.02, 1.01, 1.03), tried(1.3, 0.0, float("inf"))):
        assert "no difference beyond noise" in attempt.sentence
        assert _claimed(attempt) is None
    assert _claimed(tried(1.3, 1.2, 1.4)) == 1.3


def _claimed(attempt: MeasuredFix) -> float | None:
    (finding,) = with_measured_costs([_finding()], {attempt.technique: attempt})
    return finding.cost.speedup_x


def _finding(rule: str = "conv-batchnorm-unfolded") -> Finding:
    return Finding(rule=rule, message="", remedy="", cost=Cost(text="1 MiB", measured=False))


def test_padding_that_surely_does_not_help_is_not_reported() -> None:
    finding = _finding("channels-off-multiple")

    def remaining(attempt: MeasuredFix) -> int:
        return len(list(with_measured_costs([finding], {"pad_channels": attempt})))

    assert remaining(tried(0.8, 0.7, 0.9, "pad_channels")) == 0
    assert remaining(tried(1.0, 0.7, 1.5, "pad_channels")) == 1
    assert remaining(MeasuredFix(technique="pad_channels", why_not="there is no graph")) == 1


class Branches(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.large, self.small = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(3, 8, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.large(x) + self.small(x)


@pytest.fixture
def hasty_figures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What this machine can do is measured now, once over: it is not the point here."""
    monkeypatch.setenv("TOGI_CACHE", str(tmp_path))
    monkeypatch.setattr("togi.lint.roofline.this_machine._ROUNDS", 1)


@pytest.mark.usefixtures("hasty_figures")
def test_measuring_tries_the_technique() -> None:
    order = ModuleRequest(measure=True, measure_s=0.5, rules=("mergeable-branches",))
    answer = check_module(Subject(Branches().eval(), IMAGE), order)
    (finding,) = answer.findings
    assert finding.cost is not None
    assert finding.cost.measured
    assert "merge_branches" in finding.cost.text
    costs, attempts = answer.tables
    assert {row[0] for row in costs.rows} == {"large", "small", "(module)", "all"}
    assert attempts.rows[0][0] == "merge_branches"


def test_nothing_is_measured_for_a_device_that_is_not_here() -> None:
    assert "Nothing was measured" in notes(norms().eval(), IMAGE, measure=True)


@pytest.mark.usefixtures("hasty_figures")
def test_a_fix_that_is_not_faithful_is_not_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    """Off by half a per mille: too little to see, too much for rounding."""
    original = measured_fix.technique("merge_branches")

    class Wrong(nn.Module):
        def __init__(self, inner: nn.Module) -> None:
            super().__init__()
            self.inner = inner

        def forward(self, *args: Any, **kwargs: Any) -> Any:
            return torch.utils._pytree.tree_map(lambda t: t * 1.0005, self.inner(*args, **kwargs))

    class Technique:
        def apply(self, candidate: Any, options: Any) -> Any:
            merged = original.apply(candidate, options)
            return merged.with_(module=Wrong(merged.module))

    monkeypatch.setattr(measured_fix, "technique", lambda _: Technique())
    request = ModuleRequest(measure=True, measure_s=0.5, rules=("mergeable-branches",))
    answer = check_module(Subject(Branches().eval(), IMAGE), request)
    _, attempts = answer.tables
    assert "times as far from the truth" in str(attempts.rows[0])
    (finding,) = answer.findings
    assert finding.cost is not None
    assert not finding.cost.measured


@pytest.mark.parametrize(
    "step",
    [
        lambda module, batch: nn.functional.cross_entropy(module(batch[0]).flatten(1), batch[1]),
        lambda module, batch: module(input=batch[0]).mean(),
    ],
    ids=["unpacked", "by name"],
)
def test_a_module_gets_what_its_training_step_gives_it(step: Any) -> None:
    module = norms().eval()
    subject = Subject(module, (IMAGE, torch.tensor([1])), step=step)
    report = check_module(subject, ModuleRequest(device="A100", rules=("bias-before-norm",)))
    assert [finding.rule for finding in report.findings] == ["bias-before-norm"]
    assert not module._forward_pre_hooks


def test_a_step_that_never_calls_its_module_leaves_the_samples_as_they_are() -> None:
    def step(module: nn.Module, _: Any) -> torch.Tensor:
        return next(module.parameters()).sum()

    report = check_module(Subject(norms(), IMAGE, step=step), ModuleRequest(device="A100", rules=("bias-before-norm",)))
    assert [finding.rule for finding in report.findings] == ["bias-before-norm"]


def test_what_a_module_cannot_be_called_with_is_reported_where_the_step_fails() -> None:
    def step(*_: Any) -> torch.Tensor:
        raise ValueError("no such batch")

    with pytest.raises(SubjectError, match="does not run on sample 1"):
        check_module(Subject(norms(), (IMAGE, IMAGE), step=step), ModuleRequest(device="A100"))
