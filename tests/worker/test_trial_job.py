"""What a trial's child does, in which order."""

from __future__ import annotations

import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from togi.core.judging import Judging
from togi.core.records import ErrorReport, ForcedCalls, Recipe
from togi.subject.inputs import Inputs
from togi.subject.validation import Validation
from togi.techniques import recipe
from togi.worker import checking
from togi.worker.checking import FirstCall, TrialCheck
from togi.worker.messages import Purpose, Rest, Rested, TryArtifact, TryRecipe
from togi.worker.trial import TrialJob


@pytest.mark.parametrize(("stateful", "expected"), [(False, ["called", "truth loaded"]), (True, ["truth loaded"])])
def test_the_first_call_comes_before_the_memory_of_verification(
    stateful: bool, expected: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """As where an artifact is used. What remembers its calls must not have been called when it is verified."""
    done: list[str] = []

    class Loaded(Exception):
        pass

    def load(_folder: Path) -> Any:
        done.append("truth loaded")
        raise Loaded

    monkeypatch.setattr(checking.Truth, "load", load)
    trial = SimpleNamespace(
        config=SimpleNamespace(device="cpu", seed=0),
        surveyed=SimpleNamespace(facts=SimpleNamespace(buffers_change=stateful), signature=None),
        folder=tmp_path,
    )
    samples, call = (Inputs((torch.ones(1),)),), lambda _: done.append("called")
    contender: Any = SimpleNamespace(trial=trial, samples=samples, call=call)
    check = TrialCheck(contender, exact=True)
    with pytest.raises(Loaded):
        check.verify(None, None)
    assert done == expected


def test_the_first_call_leaves_nothing_in_objects_that_verification_gives(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    class Batch:  # of a function, and so of no known form
        results: int = 0

    def loaded(_folder: Path) -> Any:
        raise LookupError

    def call(batch: Batch) -> None:
        batch.results += 1

    monkeypatch.setattr(checking.Truth, "load", loaded)
    surveyed = SimpleNamespace(facts=SimpleNamespace(buffers_change=False), signature=None)
    config = SimpleNamespace(device="cpu", seed=0)
    trial = SimpleNamespace(config=config, surveyed=surveyed, folder=tmp_path)
    contender: Any = SimpleNamespace(trial=trial, samples=(Inputs((Batch(),)),), call=call)
    with pytest.raises(LookupError):
        TrialCheck(contender, exact=True).verify(None, None)
    assert contender.samples[0].args[0].results == 0


def test_the_first_call_is_the_one_that_compiles(monkeypatch: pytest.MonkeyPatch) -> None:
    waited: list[float] = []
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: waited.append(time.perf_counter()))
    first = FirstCall(lambda _: time.sleep(0.02) if not waited else None, "cuda")
    first(1)
    first(2)
    assert first.ms is not None
    assert first.ms >= 20
    assert len(waited) == 1


@pytest.mark.parametrize("device", ["cuda", "cpu"])
def test_a_child_that_rests_empties_its_allocators_cache(monkeypatch: pytest.MonkeyPatch, device: str) -> None:
    done: list[object] = []
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: done.append("waited"))
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: done.append("emptied"))
    config: Any = SimpleNamespace(device=device, callers=1, folder="")
    channel: Any = SimpleNamespace(send=done.append)
    mark: Any = SimpleNamespace(goes_on=lambda: done.append("goes on"), stops=lambda: done.append("stops"))
    trial = TrialJob(TryRecipe(log="", recipe=Recipe()), config, None, channel)
    trial.contender = SimpleNamespace(mark=mark)  # type: ignore[assignment]
    trial.obey(Rest())
    assert done[0] == "goes on", "before it takes any memory"
    assert done.pop(-2) == "stops", "before it answers: the parent then lets others run"
    assert done[1:] == [*(["waited", "emptied"] if device == "cuda" else []), Rested()]


SAMPLES = [torch.full((1, 2), float(i)) for i in range(40)]
DATA = Validation(SAMPLES)


@pytest.mark.parametrize(
    ("job", "confirmation", "by_all"),
    [
        (TryRecipe(log="", recipe=Recipe()), False, False),
        (TryArtifact(log="", recipe=Recipe(), folder=""), False, False),
        (TryArtifact(log="", recipe=Recipe(), folder="", check=Purpose.PROOF), True, False),
        (TryArtifact(log="", recipe=Recipe(), folder="", check=Purpose.PROOF, accepted_on=DATA.identity), True, False),
        (TryArtifact(log="", recipe=Recipe(), folder="", check=Purpose.PROOF, accepted_on="others"), True, True),
    ],
    ids=["a recipe", "a program on trial", "a proof", "verified on the same data", "verified on other data"],
)
def test_what_a_check_is_for_says_which_data_judge(
    job: Any, confirmation: bool, by_all: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    config: Any = SimpleNamespace(
        device="cpu", callers=1, folder="", judging=Judging(measure="agreement", max_drop=0.1), needs_data=True
    )
    trial = TrialJob(job, config, SimpleNamespace(validation=DATA), SimpleNamespace(send=print))  # type: ignore[arg-type]
    monkeypatch.setattr(trial, "data_for", lambda _recipe: DATA)
    asked: list[tuple[bool, bool]] = []

    def judged(report: Any, _data: Any, judging: Judging, *, confirmation: bool) -> Any:
        asked.append((confirmation, judging.by_all))
        return report

    trial.check = SimpleNamespace(judged=judged)  # type: ignore[assignment]
    report = ErrorReport(faithful=False, units=90, rmse=1e-3, max_abs=1e-2)
    assert trial._judged(report) is report
    assert asked == [(confirmation, by_all)]


RIGHT_PART, WRONG_PART = (ForcedCalls(path="head", calls=2, units=units, faithful=units < 8) for units in (1, 4000))


@pytest.mark.parametrize(
    ("found", "judged"),
    [
        ({}, False),
        ({"forced": (RIGHT_PART,)}, False),
        ({"forced": (RIGHT_PART, WRONG_PART)}, True),
        ({"unproven": "plain eager itself is off by 45 %"}, True),
        ({"unproven": "plain eager itself is off by 45 %", "forced": (RIGHT_PART,)}, False),
        ({"problems": ("it shares memory",)}, False),
    ],
)
def test_what_is_right_only_as_far_as_the_original_decides_by_roundings_is_judged(
    found: dict[str, Any], judged: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    config: Any = SimpleNamespace(
        device="cpu", callers=1, folder="", judging=Judging(measure="agreement", max_drop=0.1)
    )
    trial = TrialJob(TryRecipe(log="", recipe=Recipe()), config, SimpleNamespace(), SimpleNamespace(send=print))  # type: ignore[arg-type]
    monkeypatch.setattr(trial, "data_for", lambda _recipe: DATA)
    asked: list[ErrorReport] = []
    trial.check = SimpleNamespace(judged=lambda report, *_, **__: asked.append(report) or report)  # type: ignore[assignment]
    trial._judged(ErrorReport(faithful=True, units=1, rmse=1e-7, max_abs=1e-7, **found))
    assert bool(asked) is judged


@pytest.mark.parametrize(("named", "judged"), [((), False), (("openvino",), True), (("onnxruntime",), False)])
def test_an_exact_technique_that_may_err_is_judged_too(named: tuple[str, ...], judged: bool) -> None:
    """Else a study that is told --allow openvino would call it wrong, whatever the data say of it."""
    judging = Judging(measure="agreement", max_drop=0.1, named=named)  # type: ignore[arg-type]
    config: Any = SimpleNamespace(device="cpu", callers=1, folder="", judging=judging)
    exact, lowered = recipe(openvino={}, no_grad={}), recipe(openvino={}, bf16_openvino={}, no_grad={})
    channel: Any = SimpleNamespace(send=print)
    trial = TrialJob(TryRecipe(log="", recipe=exact), config, SimpleNamespace(validation=DATA), channel)
    assert trial.data_for(exact) == (DATA if judged else None)
    assert trial.data_for(lowered) is DATA
