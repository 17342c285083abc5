"""Trace rules read records: what they report of an event, and that all arrive from the child."""

from __future__ import annotations

import textwrap

import pytest
import torch

import togi
from togi.core.errors import SubjectError
from togi.lint.calls import WATCH, TraceRequest
from togi.lint.rule import TraceRule, all_rules
from togi.lint.rules.trace.copy_between_devices import CopyBetweenDevices
from togi.lint.rules.trace.layout_copy import LEAST_BYTES, LayoutCopy
from togi.lint.rules.trace.no_cuda_graph import NoCudaGraph
from togi.lint.rules.trace.recompilation import Recompilation
from togi.lint.rules.trace.synchronization import Synchronization
from togi.lint.trace.check import check_run
from togi.lint.trace.record import Frame, StepEvent, Trace
from togi.worker.protocol import SubjectRef

TRACE_RULES = [rule for rule in all_rules().values() if isinstance(rule, TraceRule)]
FRAME = Frame(path="model.py", line=7, function="forward", code="x.item()", column=5, end_line=7, end_column=13)
OUTER = Frame(path="train.py", line=3, function="main")
WAIT = StepEvent(kind="wait", op="Tensor.item", why="its value is read by the host", stack=(FRAME, OUTER), waits=True)


def trace_of(*events: StepEvent, **fields: object) -> Trace:
    return Trace(mode="simulated", events=events, **fields)


@pytest.mark.parametrize("rule", TRACE_RULES, ids=lambda rule: rule.id)
def test_an_empty_run_gives_nothing(rule: TraceRule) -> None:
    assert list(rule.check(trace_of())) == []


def test_events_of_one_line_are_one_finding() -> None:
    listed = WAIT.model_copy(update={"op": "Tensor.tolist", "count": 3})
    (finding,) = Synchronization().check(trace_of(WAIT, listed, step=True))
    assert finding.count == 4
    assert finding.place is not None
    assert (finding.place.line, finding.place.column, finding.place.end_column) == (7, 5, 13)
    assert "Tensor.item, once" in finding.evidence
    assert "train.py:3 in main" in finding.evidence
    assert finding.cost is not None
    assert "4 synchronisations per step, counted" in finding.cost.text


def test_what_the_debug_mode_misses_is_said() -> None:
    (finding,) = Synchronization().check(trace_of(WAIT.model_copy(update={"seen_by_debug_mode": False})))
    assert "does not report it" in finding.evidence


def test_a_wait_without_a_line_is_still_reported() -> None:
    (finding,) = Synchronization().check(trace_of(WAIT.model_copy(update={"stack": ()})))
    assert finding.place is None


def test_small_layout_copies_are_left_alone() -> None:
    event = StepEvent(kind="layout", op="Tensor.contiguous", why="channels_last memory is copied", stack=(FRAME,))
    small, large = (event.model_copy(update={"bytes": size}) for size in (LEAST_BYTES - 1, LEAST_BYTES))
    assert not list(LayoutCopy().check(trace_of(small)))
    assert len(list(LayoutCopy().check(trace_of(large)))) == 1
    assert not list(LayoutCopy().check(trace_of(large.model_copy(update={"backward": True}))))


def test_asynchronous_copies_are_left_alone() -> None:
    event = StepEvent(kind="copy", op="Tensor.to", why="values are copied to the GPU, asynchronously", stack=(FRAME,))
    assert not list(CopyBetweenDevices().check(trace_of(event)))


@pytest.mark.parametrize(
    ("why", "remedy"),
    [
        ("tensor 'x' size mismatch at index 0. expected 3, actual 5", "dynamic=True"),
        ("factor == 1", "as a tensor"),
        ("tensor 'x' dtype mismatch. expected Float, actual Half", "one dtype"),
        ("___check_type_id(n, 1), type=<class 'int'>", "one type"),
    ],
)
def test_remedies_follow_the_guard(why: str, remedy: str) -> None:
    (finding,) = Recompilation().check(trace_of(StepEvent(kind="recompilation", op="", why=why, stack=(FRAME,))))
    assert remedy in finding.remedy


EXAMPLE = """
    import torch
    from torch import nn

    class Everything(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = nn.Conv2d(3, 32, 3)
            self.table = torch.ones(32, 1, 1)
            self.calls = 0

        def forward(self, x):
            self.calls += 1
            y = self.conv(x)
            y = y.permute(0, 2, 3, 1).contiguous().permute(0, 3, 1, 2)
            y = y + self.table
            y = y * torch.ones(1, dtype=torch.float64, device=x.device)
            if y.sum() > 0:
                y = y * self.calls
            return y[y > 0]

    def subject():
        torch.manual_seed(0)
        return Everything().eval(), [torch.randn(1, 3, 66, 66), torch.randn(1, 3, 68, 66)]
"""
EXPECTED = {
    "synchronization": {"if y.sum() > 0:", "return y[y > 0]"},
    "data-dependent-op": {"return y[y > 0]"},
    "copy-between-devices": {"y = y + self.table"},
    "dtype-promotion": {"y = y * torch.ones(1, dtype=torch.float64, device=x.device)"},
    "layout-copy": {"y = y.permute(0, 2, 3, 1).contiguous().permute(0, 3, 1, 2)"},
    "graph-break": {"if y.sum() > 0:", "return y[y > 0]"},
}


@pytest.mark.thorough
def test_every_rule_finds_its_line_in_a_child(tmp_path) -> None:
    file = tmp_path / "everything.py"
    file.write_text(textwrap.dedent(EXAMPLE), encoding="utf-8")
    ref = SubjectRef.here("locator", f"{file}:subject")
    answer = WATCH(ref, TraceRequest(device="cpu", train=False))
    lines = file.read_text(encoding="utf-8").splitlines()
    lines_by_rule: dict[str, set[str]] = {}
    for finding in answer.findings:
        assert finding.place is not None
        lines_by_rule.setdefault(finding.rule, set()).add(lines[finding.place.line - 1].strip())
    assert lines_by_rule.pop("recompilation")
    assert lines_by_rule == EXPECTED
    assert answer.tables[0].rows
    assert "simulated for CUDA" in answer.notes[0]


def test_only_the_rules_that_are_asked_for_run() -> None:
    subject = togi.Subject(torch.nn.ReLU(), torch.ones(2))
    assert check_run(subject, TraceRequest(rules=())).findings == ()
    with pytest.raises(SubjectError):
        check_run(togi.Subject(torch.nn.Linear(3, 3), torch.ones(2)), TraceRequest(rules=("synchronization",)))


@pytest.mark.parametrize(
    ("why", "words"),
    [
        ("mutated input", "an input is changed in place"),
        ("CPU operation", "torch.cumsum runs on the CPU"),
        ("copy between devices", "torch.cumsum copies between CPU and GPU"),
        ("several GPUs", "torch.cumsum is on another GPU"),
        ("unsupported operation", "cannot hold torch.cumsum"),
        ("stale output", "an earlier call returned is read here, and a CUDA graph has overwritten it"),
        ("moved input", "a weight or buffer that is read here was replaced"),
        ("sizes", "recorded anew for each size: 3 in these samples"),
    ],
)
def test_each_cause_without_a_cuda_graph_has_its_words_and_place(why: str, words: str) -> None:
    event = StepEvent(kind="cuda-graph", op="torch.cumsum", why=why, stack=(FRAME,), count=3, detail="Sizes: 1; 2; 3.")
    (finding,) = NoCudaGraph().check(trace_of(event))
    assert words in finding.message
    assert finding.place is not None
    assert finding.place.line == 7
    assert finding.remedy
    assert "Sizes: 1; 2; 3." in finding.evidence


def test_a_copy_that_waits_is_left_to_synchronization() -> None:
    copies = StepEvent(kind="cuda-graph", op="torch._to_copy", why="copy between devices", stack=(FRAME,))
    cut = copies.model_copy(update={"why": "CPU operation"})
    findings = list(NoCudaGraph().check(trace_of(WAIT, copies, cut)))
    assert [finding.message for finding in findings] == ["The CUDA graph is cut here: torch._to_copy runs on the CPU."]
