"""A tie that falls the other way is told from a fault: by the calls that the original makes, in plain eager's units.

A model of two equally good tokens writes a text; its engine is the model itself with something added to one of them.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from togi.artifact.installed import Installed
from togi.artifact.manifest import PartEntry
from togi.artifact.switch import Switch
from togi.core.recipe import PartKey
from togi.core.records import Decisions, ErrorReport, ForcedCalls, Outcome
from togi.decide.faithful import accept
from togi.subject.effects import Effects
from togi.subject.inputs import Inputs, Subject
from togi.subject.program import ProgramModule
from togi.subject.pure import Pure
from togi.subject.signature import Signature
from togi.subject.stored_inputs import write_inputs
from togi.subject.structure import Structure
from togi.verify.reference import make_truth
from togi.verify.truth import Truth, TruthFacts
from togi.verify.verdict import verify
from togi.worker.forced import divergence, forced_calls, needed, with_forced_calls
from togi.worker.job import part_of
from togi.worker.protocol import PartRef
from togi.worker.survey import survey

STEPS = 6
FREE = ErrorReport(faithful=False, units=1e6, rmse=0.5, max_abs=1.0, problems=("output differs",))
"""Of the program with its parts, left to its own decisions."""
TRUTH = Truth(facts=TruthFacts(samples=1, answers=(), schedule=(), precision="float64"), truth=[], eager=[])
"""Of a program whose decisions rounding does not change."""
Noise = Callable[[], float]


class Store:
    def __init__(self, states: Tensor, seen: Tensor) -> None:
        self.states, self.seen = states, seen


class Step(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(7, 16)
        self.out = nn.Linear(16, 7, bias=False)
        with torch.no_grad():
            self.out.weight[3] = self.out.weight[5] = 3 * self.out.weight.abs().max()  # as good as each other

    def forward(self, token: Tensor, store: Store) -> Tensor:
        store.states = torch.cat([store.states, self.tokens(token).abs()])
        store.seen = store.seen + 1
        return self.out(store.states.mean(0, keepdim=True))  # type: ignore[no-any-return]


class Writer:
    def __init__(self) -> None:
        torch.manual_seed(0)
        self.step = Step().eval()
        self.given: list[Inputs] = []
        """What the step was called with."""

    def write(self, token: Tensor) -> Tensor:
        store, text = Store(torch.zeros(0, 16), torch.zeros(1)), [token]
        for _ in range(STEPS):
            self.given.append(Inputs((text[-1], store)).clone())
            text.append(self.step(text[-1], store).argmax(1))
        return torch.cat(text)

    def scores(self, token: Tensor) -> Tensor:
        return self.step(token, Store(torch.zeros(0, 16), torch.zeros(1)))  # type: ignore[no-any-return]

    def listed(self, token: Tensor) -> list[list[float]]:
        found: list[list[float]] = self.scores(token).tolist()
        return found


class Engine:
    """The part with something added to the score of token 5."""

    in_place = runs_original = False
    keeps = None

    def __init__(self, pure: Pure, calls: list[Inputs], noise: Noise) -> None:
        found = survey(Subject(pure, calls))
        self.pure, self.noise, self.signature = pure, noise, found.signature
        self.entry = PartEntry(key=PartKey(path="step"), module="Step", effects=pure.effects, weights="")
        self.manifest = SimpleNamespace(facts=found.facts)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        scores, new = self.pure(*args, **kwargs)
        more = torch.zeros_like(scores)
        more[0, 5] = self.noise() * scores[0, 5].abs()
        return scores + more, new

    def of(self, _original: Any) -> Engine:
        return self

    def call_with(self, _tensors: list[Tensor], args: Any, kwargs: Any) -> Any:
        return self(*args, **kwargs)


def always(noise: float) -> Noise:
    return lambda: noise


class Case:
    """A writer with an engine in it, beside an original with the calls that it makes."""

    def __init__(self, noise: Noise, call: str = "write") -> None:
        original = Writer()
        with torch.no_grad():
            original.write(torch.tensor([1]))
            self.calls = original.given[1:]
            self.effects = Effects.of(original.step, self.calls[0].clone())
        self.pure = Pure(original.step, self.effects)
        self.engine = Engine(self.pure, self.calls, noise)
        self.live = live = Writer()
        program = ProgramModule(getattr(live, call))
        switch = Switch(live.step, "step", live.step.forward)
        switch.serve_with(self.engine)
        self.installed = Installed(program, [switch])

    def divergence(self) -> str:
        return divergence(self.installed, [Inputs((torch.tensor([1]),))], 0)

    def forced(self, part: nn.Module | None = None) -> ForcedCalls | None:
        return forced_calls(Subject(part or self.pure, self.calls), "step", self.engine, 0, "cpu")  # type: ignore[arg-type]

    def stored_in(self, folder: Path) -> PartRef:
        """Its calls, as a pool keeps them."""
        write_inputs(folder / "calls", self.calls)
        return PartRef(key=PartKey(path="step"), effects=self.effects, inputs=str(folder / "calls"), folder=str(folder))

    def with_forced_calls(self, report: ErrorReport, truth: Truth, original: nn.Module, *parts: PartRef) -> ErrorReport:
        subject = Subject(original, Inputs((torch.tensor([1]),)))
        return with_forced_calls(
            report,
            truth,
            self.installed,
            subject.inputs,
            parts,
            lambda part: part_of(subject, part, "cpu"),
            seed=0,
            device="cpu",
        )

    def outcome(self) -> tuple[Outcome, str]:
        forced = self.forced()
        assert forced is not None
        return accept(FREE.model_copy(update={"divergence": self.divergence(), "forced": (forced,)}), exact=True)


def test_a_tie_that_rounding_decides_is_accepted_and_said() -> None:
    case = Case(always(1e-7))
    assert "differs in" in case.divergence()
    assert "first at [" in case.divergence()
    forced = case.forced()
    assert forced is not None
    assert forced.faithful
    assert forced.calls == STEPS - 1
    outcome, reason = case.outcome()
    assert outcome is Outcome.OK
    assert reason.startswith("a tie fell the other way (output differs in")


@pytest.mark.parametrize("copyable", [True, False])
@pytest.mark.parametrize(("noise", "faithful"), [(1e-7, True), (1e-3, False)])
def test_a_trial_of_a_program_reads_the_calls_of_its_parts(
    noise: float, faithful: bool, copyable: bool, tmp_path: Path
) -> None:
    """A program that cannot be copied has the engine in it, which must not be compared with itself."""
    case = Case(always(noise))
    if not copyable:
        case.live.lock = threading.Lock()  # type: ignore[attr-defined]
    program = ProgramModule(Writer().write) if copyable else case.installed.program
    report = case.with_forced_calls(FREE, TRUTH, program, case.stored_in(tmp_path))
    assert report.divergence == case.divergence()
    (forced,) = report.forced
    assert (forced.calls, forced.faithful) == (STEPS - 1, faithful)
    assert accept(report, exact=True)[0] is (Outcome.OK if faithful else Outcome.WRONG)


def test_without_the_calls_of_every_part_nothing_is_concluded() -> None:
    case = Case(always(1e-7))
    assert case.with_forced_calls(FREE, TRUTH, ProgramModule(Writer().write)) == FREE


def test_a_part_of_which_no_call_could_be_kept() -> None:
    case = Case(always(1e-7))
    case.calls = []
    assert case.forced() is None


def test_a_fault_that_decides_otherwise_is_refused() -> None:
    case = Case(always(1e-3))
    assert case.divergence()
    forced = case.forced()
    assert forced is not None
    assert not forced.faithful
    assert case.outcome()[0] is Outcome.WRONG


def test_a_program_that_decides_differently_from_call_to_call_has_no_tie() -> None:
    turns: Iterator[float] = itertools.cycle([0.0] * STEPS + [1e-7] * STEPS)
    next(turns)  # each call begins elsewhere
    case = Case(lambda: next(turns))
    assert case.divergence() == ""
    assert case.outcome()[0] is Outcome.WRONG


@pytest.mark.parametrize("call", ["scores", "listed"])
def test_numbers_that_differ_are_no_decision(call: str) -> None:
    assert Case(always(1e-3), call).divergence() == ""


def test_the_originals_serve_nothing_else_while_they_are_asked() -> None:
    case = Case(always(1e-7))
    served = case.installed.switches[0]
    case.divergence()
    assert served.engine_calls == 2 * (STEPS - 1)
    assert "states is empty" in served.last_reason  # the first step begins with nothing, as no sample of it does
    assert vars(served.module)["forward"] is served


def test_changes_that_are_written_back_wrongly_are_found() -> None:
    case = Case(always(0.0))
    assert case.forced() is not None
    (change,) = case.effects.changes
    after = Structure.from_json(change.after.to_json().replace("states", "x").replace("seen", "states"))
    after = Structure.from_json(after.to_json().replace('"x"', '"seen"'))
    swapped = change.model_copy(update={"after": after})
    faulty = Pure(case.pure.module, Effects(changes=(swapped,)))
    forced = case.forced(faulty)
    assert forced is not None
    assert not forced.faithful
    assert "not written back" in forced.problem


@pytest.mark.parametrize("noise", [0.0, 1e-7])
def test_what_the_engine_does_not_serve_is_not_counted(noise: float) -> None:
    case = Case(always(noise))
    case.calls = [Inputs((one.args[0].double(), one.args[1])) for one in case.calls]
    assert case.forced() is None


class Boxes(nn.Module):
    """Numbers in the order of scores that are equal but for ``shift``."""

    def __init__(self, shift: float) -> None:
        super().__init__()
        order = torch.randperm(10, generator=torch.Generator().manual_seed(0))
        self.weights = nn.Parameter(torch.linspace(1.0, 1.0 + shift, 10)[order])

    def forward(self, x: Tensor) -> Tensor:
        scores = x * self.weights / 3
        return 100.0 * torch.arange(1, 11).to(x.dtype)[scores.argsort(stable=True)]


def of_scores(shift: float) -> tuple[ErrorReport, Truth]:
    """Of an answer that errs by a hundredth."""
    boxes = Boxes(shift).eval()
    samples = [Inputs((torch.tensor([value]),)) for value in (1.1, 1.3, 1.7)]
    with torch.no_grad():
        signature = Signature.of(boxes, samples, [boxes(*sample.args) for sample in samples])
        truth = make_truth(boxes, samples, signature, seed=0, samples=len(samples))
        return verify(lambda x: boxes(x) * 1.01, truth, samples, signature, seed=0), truth


def test_where_rounding_orders_the_results_a_fault_may_hide_in_them() -> None:
    report, truth = of_scores(1e-8)
    assert report.faithful, "the unit is as large as another order makes it"
    assert needed(report, truth)
    report, truth = of_scores(1.0)
    assert not report.faithful
    exact = report.model_copy(update={"faithful": True})
    assert not needed(exact, truth)
    assert needed(exact.model_copy(update={"decisions": Decisions(agree=1, total=2, sample=1)}), truth)


@pytest.mark.parametrize(("noise", "expected"), [(1e-7, Outcome.OK), (1e-3, Outcome.WRONG)])
def test_a_fault_that_hides_in_such_results_is_refused(noise: float, expected: Outcome, tmp_path: Path) -> None:
    case = Case(always(noise), "scores")
    _, truth = of_scores(1e-8)
    hidden = ErrorReport(faithful=True, units=1.0, rmse=0.5, max_abs=1.0)
    report = case.with_forced_calls(hidden, truth, ProgramModule(Writer().scores), case.stored_in(tmp_path))
    assert len(report.forced) == 1
    assert accept(report, exact=True)[0] is expected
    assert accept(report, exact=False, max_error=1.0)[0] is Outcome.OK
