"""The allocator's setting is given to a process before it starts, beside the user's own."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from togi.core.errors import Refused
from togi.core.records import Facts
from togi.techniques import Applies, Refuses, conformance, recipe
from togi.techniques.runtime.expandable_segments import NEWER, SETTING, VARIABLE, ExpandableSegments
from togi.worker.pool import environment_of

TECHNIQUE = ExpandableSegments()


@pytest.fixture(autouse=True)
def unset(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    monkeypatch.delenv(NEWER, raising=False)


def candidate():
    return conformance.candidate_of(nn.Linear(2, 2), [torch.ones(1, 2)])


def under(os: str) -> Facts:
    facts = candidate().facts
    return facts.model_copy(update={"device": "cuda", "machine": facts.machine.model_copy(update={"os": os})})


def test_the_processes_of_its_recipes_are_started_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = recipe(expandable_segments={}, no_grad={})
    assert environment_of(chosen, under("Linux 6.1")) == {VARIABLE: "expandable_segments:True"}
    monkeypatch.setenv(VARIABLE, "max_split_size_mb:128")
    assert environment_of(chosen, under("Linux 6.1")) == {VARIABLE: "max_split_size_mb:128,expandable_segments:True"}
    assert environment_of(recipe(no_grad={}), under("Linux 6.1")) == {}


def test_what_the_user_set_under_either_name_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(NEWER, "max_split_size_mb:128")
    assert TECHNIQUE.environment(under("Linux 6.1"), {}) == {NEWER: f"max_split_size_mb:128,{SETTING}"}, (
        "torch reads the newer name where the older one is not set, and would not where it is"
    )
    monkeypatch.setenv(VARIABLE, "backend:native,")
    both = {VARIABLE: f"backend:native,{SETTING}", NEWER: f"max_split_size_mb:128,{SETTING}"}
    assert TECHNIQUE.environment(under("Linux 6.1"), {}) == both
    monkeypatch.setenv(VARIABLE, both[VARIABLE])
    with pytest.raises(Refused, match="not started with"):
        TECHNIQUE.apply(candidate(), {})
    monkeypatch.setenv(NEWER, both[NEWER])
    assert TECHNIQUE.apply(candidate(), {}).notes
    monkeypatch.setenv(NEWER, "expandable_segments:False")
    monkeypatch.delenv(VARIABLE)
    decision = TECHNIQUE.applies(under("Linux 6.1"))
    assert isinstance(decision, Refuses)
    assert f"{NEWER}=expandable_segments:False" in decision.reason


def test_where_it_would_change_nothing_it_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    assert isinstance(TECHNIQUE.applies(under("Linux 6.1")), Applies)
    assert isinstance(TECHNIQUE.applies(under("Windows 11")), Refuses)
    monkeypatch.setenv(VARIABLE, "expandable_segments:False")
    decision = TECHNIQUE.applies(under("Linux 6.1"))
    assert isinstance(decision, Refuses)
    assert "expandable_segments:False" in decision.reason


def test_a_process_without_it_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(Refused, match="not started with"):
        TECHNIQUE.apply(candidate(), {})
    monkeypatch.setenv(VARIABLE, f"max_split_size_mb:128,{SETTING}")
    assert TECHNIQUE.apply(candidate(), {}).notes[-1] == f"needs {VARIABLE}={SETTING}"


def test_conformance() -> None:
    conformance.check(TECHNIQUE, [candidate])
