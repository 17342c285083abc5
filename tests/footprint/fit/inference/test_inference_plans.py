"""A pass under a budget: within it by measurement, equal by proof; what cannot be cut is explained and left whole."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.small_modules import Counts
from togi.core.errors import FitError
from togi.footprint.fit.inference.divisions import divisions_of, why_dependent_in_full
from togi.footprint.fit.inference.planner import InferencePlanner, fit_inference
from togi.footprint.fit.inference.simulate import simulation_of, sites_of
from togi.footprint.fit.policies import Chunk
from togi.footprint.fit.proof import Outputs, faithful, outputs_of
from togi.footprint.step import Step, mean_of_outputs
from togi.subject.inputs import Inputs

WIDTH = 32


@pytest.fixture(autouse=True)
def one_thread_and_one_turn(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Small kernels on several threads wait for each other on a busy machine. Exact times are not the point here."""
    monkeypatch.setattr(InferencePlanner, "rounds", 1)
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


class Block(nn.Module):
    """A transformer's, with the names that models use."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.attention = nn.MultiheadAttention(WIDTH, 2, batch_first=True)
        self.feed_forward = nn.Sequential(nn.Linear(WIDTH, 8 * WIDTH), nn.GELU(), nn.Linear(8 * WIDTH, WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        h = self.norm1(x)
        x = x + self.attention(h, h, h, need_weights=False)[0]
        return x + self.feed_forward(self.norm2(x))


def _step(module: nn.Module, *args: Any, train_mode: bool = False, **kwargs: Any) -> Step:
    torch.manual_seed(0)
    return Step(
        module=module.train(train_mode),
        sample=Inputs(args, kwargs),
        train=False,
        loss=mean_of_outputs,
    )


def _share(planner: InferencePlanner, percent: int) -> int:
    whole = planner.plan(1 << 40, timed=False)
    return whole.static_bytes + (whole.plain.peak_bytes - whole.static_bytes) * percent // 100


def _data(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(1))


def test_a_batch_is_cut_and_the_plan_keeps_its_budget_on_the_live_module() -> None:
    step = _step(nn.Sequential(Block(), Block()), _data(8, 64, WIDTH))
    weights = {name: value.clone() for name, value in step.module.state_dict().items()}
    planner = InferencePlanner(step)
    plain = planner.plan(1 << 40)
    assert plain.fits
    assert not plain.plan.chunks
    assert plain.proof.exact
    found = planner.plan(_share(planner, 40))
    assert found.fits
    assert not found.train
    assert faithful(found.proof)
    assert found.chosen.measured
    assert found.chosen.peak_bytes <= found.budget_bytes
    whole = step.module(*step.sample.args).detach()
    found.plan.apply(step.module)
    assert planner.run()[0] == found.plan.peak_bytes
    with torch.no_grad():
        torch.testing.assert_close(step.module(*step.sample.args), whole)
        other = _data(3, 40, WIDTH)
        planned = step.module(other)
    found.plan.remove()
    torch.testing.assert_close(planned, step.module(other).detach())
    assert all(torch.equal(value, weights[name]) for name, value in step.module.state_dict().items())


def test_without_time_the_batch_is_halved() -> None:
    planner = InferencePlanner(_step(nn.Sequential(Block(), Block()), _data(8, 64, WIDTH)))
    aim = _share(planner, 60)
    draft = planner._search.cheapest(aim, frozenset(), deadline=0.0)
    assert draft is not None
    assert [kind for kind, _, _ in draft.cuts] == [planner._search._kind_of[""]]
    assert planner._search.peak(draft).bytes <= aim
    assert not planner._search.ended_early
    assert planner._search.cheapest(1000, frozenset(), deadline=0.0) is None
    assert planner._search.ended_early


def test_a_single_row_is_cut_along_its_sequence_also_in_queries_of_attention() -> None:
    planner = InferencePlanner(_step(nn.Sequential(Block(), Block()), _data(1, 256, WIDTH)))
    found = planner.plan(_share(planner, 50))
    assert found.fits
    cut = {entry.module.rpartition(".")[2]: entry for entry in found.plan.chunks}
    assert cut.keys() == {"attention", "feed_forward"}
    assert cut["attention"].inputs["query"] == ("1", "cut", "any")
    assert cut["attention"].inputs["key"] == ("1", "any", "any")
    assert faithful(found.proof)


def test_pixels_of_pointwise_convolutions() -> None:
    head = nn.Sequential(nn.Conv2d(4, 64, 1), nn.GELU(), nn.Conv2d(64, 4, 1))
    module = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), head)
    planner = InferencePlanner(_step(module, _data(1, 3, 64, 64)))
    found = planner.plan(_share(planner, 40))
    assert found.fits
    assert [entry.module for entry in found.plan.chunks] == ["1"]
    assert "cut" in found.plan.chunks[0].inputs["input"][2:]


def test_a_budget_that_cannot_be_met_says_the_least_and_its_cost() -> None:
    planner = InferencePlanner(_step(nn.Sequential(Block(), Block()), _data(4, 32, WIDTH)))
    found = planner.plan(found_static := planner.plan(1 << 40).static_bytes // 2, time_limit_s=4)
    assert not found.fits
    assert found.chosen.peak_bytes > found_static
    assert found.chosen.peak_bytes < found.plain.peak_bytes
    assert found.chosen.step_ms is not None
    assert found.static_bytes <= found.chosen.peak_bytes
    assert faithful(found.proof)


def test_a_dimension_of_two_does_not_hide_a_longer_one() -> None:
    module = nn.Sequential(nn.Linear(16, 512), nn.GELU(), nn.Linear(512, 16))
    planner = InferencePlanner(_step(module, _data(2, 64, 16)))
    found = planner.plan(_share(planner, 20))
    assert found.fits
    assert found.plan.chunks[0].inputs["input"] == ("any", "cut", "any")


class Dependent(nn.Module):
    """Rows look at each other, in one way or another."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how, self.norm = how, nn.BatchNorm1d(WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        h = (x[:, None, :] * torch.ones(64, 1)).exp().sum(1)
        if self.how == "batch norm":
            return self.norm(h)
        if self.how == "attention":
            return (h @ h.T).softmax(-1) @ h
        if self.how == "maximum":
            return torch.where(h >= h.amax(0), h, -h)
        if self.how == "neighbour":
            return h + h.roll(1, 0)
        if self.how == "far neighbour":
            return h + h.roll(4, 0)
        if self.how == "position":
            return h + torch.arange(len(h))[:, None]
        if self.how == "scalar":
            return h.sum()
        return h + torch.rand_like(h)


@pytest.mark.parametrize(
    "how",
    [
        *("batch norm", "maximum", "far neighbour", "position", "scalar", "random"),
        *(pytest.param(how, marks=pytest.mark.thorough) for how in ("attention", "neighbour")),
    ],
)
def test_what_depends_on_other_rows_is_never_cut_along_them(how: str) -> None:
    step = _step(Dependent(how), _data(8, WIDTH), train_mode=how == "batch norm")
    whole, _ = outputs_of(step, 0)
    step.module.norm.reset_running_stats()  # type: ignore[operator]
    before = {name: value.clone() for name, value in step.module.state_dict().items()}
    found = fit_inference(step, 40_000)
    assert all(entry.inputs["x"][0] != "cut" for entry in found.plan.chunks)
    if how in ("maximum", "neighbour", "far neighbour", "position"):  # each feature is by itself, and may be cut
        assert found.fits
        assert [entry.inputs["x"] for entry in found.plan.chunks] == [("any", "cut")]
    else:
        assert not found.fits
        assert found.notes
    assert all(torch.equal(value, before[name]) for name, value in step.module.state_dict().items())
    found.plan.apply(step.module)
    planned, _ = outputs_of(step, 0)
    torch.testing.assert_close(planned, whole)


class Faint(nn.Module):
    """The mean over the rows counts so little that no ordinary value shows it."""

    def forward(self, x: Tensor) -> Tensor:
        return x * 2 + 1e-12 * x.mean(0)


def test_a_dependence_below_rounding_is_found() -> None:
    step = _step(Faint(), _data(8, 16))
    entry = Chunk(module="", inputs={"x": ("cut", "any")}, outputs=(0,), size=2)
    assert "aten.mean works across the rows" in why_dependent_in_full(step, [entry], 0)[""]
    sites = sites_of(simulation_of(step))
    assert all(way.entry.inputs["x"][0] != "cut" for way in divisions_of(step, list(sites.values()))[""].ways)


class Writes(nn.Module):
    def __init__(self, how: str) -> None:
        super().__init__()
        self.how, self.calls = how, 0
        self.register_buffer("seen", torch.zeros(1))

    def forward(self, x: Tensor) -> Any:
        if self.how == "buffer":
            self.seen += 1
        if self.how == "attribute":
            self.calls += 1
        if self.how == "input":
            return x.add_(0).sin() + x.cos()
        if self.how == "itself":
            return x
        if self.how == "object":
            return Answer(x * 2)
        return x.sin() + x.cos()


class Answer:
    def __init__(self, value: Tensor) -> None:
        self.value = value


@pytest.mark.parametrize(
    ("how", "reason"),
    [
        ("buffer", "the buffer seen"),
        ("attribute", "the attribute calls"),
        ("input", "its input x"),
        ("object", "returns a Answer"),
        ("itself", "that it was given"),
    ],
)
def test_what_does_more_than_return_is_left_whole(how: str, reason: str) -> None:
    step = _step(nn.Sequential(Writes(how)), _data(8, 64))
    sites = sites_of(simulation_of(step))
    problem = sites["0"].problem or "; ".join(divisions_of(step, [sites["0"]])["0"].problems)
    assert reason in problem
    if not sites["0"].problem:
        assert not divisions_of(step, [sites["0"]])["0"].ways


class Collecting(nn.Module):
    def forward(self, x: Tensor, into: list[Tensor]) -> Tensor:
        into.append(x.cos())
        return x.sin()


class Collects(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.part = Collecting()

    def forward(self, x: Tensor) -> Tensor:
        into: list[Tensor] = []
        return self.part(x, into) + into[0]


def test_what_puts_something_into_a_list_that_it_is_given_is_left_whole() -> None:
    """Slices are given lists of their own."""
    step = _step(Collects(), _data(8, 64))
    found = divisions_of(step, [sites_of(simulation_of(step))["part"]])["part"]
    assert not found.ways
    assert "a call changes its arguments" in found.problems[0]


class Twice(nn.Module):
    """One part, called with a tensor and, elsewhere, in another way."""

    def __init__(self, alike: bool) -> None:
        super().__init__()
        self.alike, self.part = alike, nn.MultiheadAttention(WIDTH, 2, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        once = self.part(x, x, x, need_weights=False)[0]
        return self.part(once, x, x, need_weights=not self.alike)[0]


@pytest.mark.parametrize("alike", [True, False])
def test_a_part_that_is_called_twice(alike: bool) -> None:
    step = _step(Twice(alike), _data(2, 128, WIDTH))
    sites = sites_of(simulation_of(step))
    assert len(sites["part"].calls) == 2
    assert bool(sites["part"].problem) is not alike
    planner = InferencePlanner(step)
    found = planner.plan(_share(planner, 50))
    assert found.fits is alike
    assert faithful(found.proof)


class ByValue(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.wide = nn.Sequential(nn.Linear(WIDTH, 32 * WIDTH), nn.GELU(), nn.Linear(32 * WIDTH, WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        return self.wide(x) if float(x.sum()) == float(x.sum()) else x


def test_a_model_that_reads_values_is_planned_on_real_runs() -> None:
    planner = InferencePlanner(_step(ByValue(), _data(4, 32, WIDTH)))
    found = planner.plan(_share(planner, 50))
    assert any("fake" in note for note in found.notes)
    assert found.fits
    assert faithful(found.proof)


def test_two_passes_that_differ_are_refused() -> None:
    with pytest.raises(FitError, match="two passes"):
        fit_inference(_step(Counts(in_buffer=False), _data(4, 8)), 100)


@pytest.mark.parametrize(
    "data", [torch.full((8, 16), torch.nan), torch.full((8, 16), torch.inf), torch.zeros(8, 0), torch.ones(1, 16)]
)
def test_odd_values_and_sizes(data: Tensor) -> None:
    module = nn.Sequential(nn.Linear(data.shape[1], 256), nn.GELU(), nn.Linear(256, 4)) if data.numel() else nn.ReLU()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = fit_inference(_step(module, data), 24_000)
    assert found.proof.exact or faithful(found.proof)


def test_integers_and_keyword_arguments() -> None:
    class Embedded(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table, self.head = (
                nn.Embedding(50, 16),
                nn.Sequential(nn.Linear(16, 512), nn.GELU(), nn.Linear(512, 2)),
            )

        def forward(self, *, ids: Tensor, mask: Tensor | None = None) -> dict[str, Tensor]:
            h = self.table(ids)
            return {"scores": self.head(h if mask is None else h * mask[..., None])}

    ids = torch.randint(0, 50, (6, 20), generator=torch.Generator().manual_seed(0))
    planner = InferencePlanner(_step(Embedded(), ids=ids, mask=torch.ones(6, 20)))
    found = planner.plan(_share(planner, 50))
    assert found.fits
    assert faithful(found.proof)


def test_a_wrong_result_is_not_a_plan() -> None:
    step = _step(nn.Sequential(nn.Linear(16, 16)), _data(512, 16))
    outputs, form = outputs_of(step, 0)
    reference = Outputs(step, outputs, form, 0)
    assert reference.compare([outputs[0].clone()], form).exact
    nearly = reference.compare([outputs[0] * (1 + 1e-7)], form)
    assert not nearly.exact
    assert faithful(nearly)
    for wrong in (outputs[0] * 1.001, outputs[0].roll(1, 0), outputs[0].index_fill(0, torch.tensor(0), torch.nan)):
        assert not faithful(reference.compare([wrong], form))
    assert not faithful(reference.compare([outputs[0][:1]], form))
    assert not faithful(reference.compare([], form))


def test_simulated_and_measured_peaks_agree() -> None:
    step = _step(nn.Sequential(Block(), Block()), _data(4, 64, WIDTH))
    simulated = simulation_of(step).peak(()).bytes
    assert simulated == pytest.approx(InferencePlanner(step).unmodified.peak_bytes, rel=0.02)
