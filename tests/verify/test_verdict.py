"""Hostile candidates: each must be found out, for the right reason; harmless ones must pass."""

from __future__ import annotations

import collections
import contextlib
import copy
import itertools
import math
import random
import threading
import time
from collections import defaultdict
from dataclasses import dataclass
from datetime import date, datetime

import numpy as np
import pytest
import torch
from torch import nn

from tests.small_modules import Computes, Counts
from togi.core.callers import Callers
from togi.core.records import Outcome
from togi.decide.faithful import accept
from togi.graph.candidate import FlatModule
from togi.subject.behaviour import SavedBuffers
from togi.subject.inputs import Inputs
from togi.subject.signature import Signature
from togi.verify.derived_inputs import variants
from togi.verify.observe import overlaps
from togi.verify.reference import make_truth
from togi.verify.verdict import verify, wrong_at_once

Pair = collections.namedtuple("Pair", ["a", "b"])
X = torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(1))


class Net(nn.Module):
    def __init__(self, form=lambda y: y):
        super().__init__()
        torch.manual_seed(0)
        self.convolution = nn.Conv2d(3, 8, 3, padding=1)
        self.form = form

    def forward(self, x):
        return self.form(torch.relu(self.convolution(x)))


def known(module, *samples, metric=None):
    """The truth, the inputs and the signature."""
    module = module.eval()
    inputs = [Inputs.of(s) for s in samples or (X,)]
    with torch.no_grad():
        outputs = [copy.deepcopy(module)(*i.clone().args, **i.kwargs) for i in inputs]
        signature = Signature.of(module, inputs, outputs)
        found = variants(inputs, signature, 0)
        truth = make_truth(module, found, signature, seed=0, samples=len(inputs), metric=metric)
    return truth, found, signature


def verdict(module, call, *samples, **options):
    original = known(module, *samples, metric=options.get("metric"))
    with torch.no_grad():
        return verify(call, *original, seed=0, **options)


net = Net().eval()


def check(call, problem, module=net, *samples, **options):
    report = verdict(module, call, *samples, **options)
    assert not report.faithful
    assert any(problem in text for text in report.problems), report.problems
    return report


def test_the_original_is_faithful():
    report = verdict(net, net)
    assert report.faithful
    assert report.problems == ()
    assert 0 < report.units < 2
    assert report.rmse < 1e-6


def test_channels_last_inside_is_faithful_and_outside_is_wrong():
    other = copy.deepcopy(net).to(memory_format=torch.channels_last)
    last = torch.channels_last
    assert verdict(net, lambda x: other(x.contiguous(memory_format=last)).contiguous()).faithful
    check(lambda x: other(x.contiguous(memory_format=last)), "not contiguous")


def test_contiguous_where_the_original_is_not_is_a_note():
    report = verdict(Net(lambda y: y.transpose(1, 2)), lambda x: net(x).transpose(1, 2).contiguous())
    assert report.faithful
    assert any("strides" in note for note in report.notes)


def test_bfloat16_is_approximate_not_wrong():
    other = copy.deepcopy(net).bfloat16()
    report = verdict(net, lambda x: other(x.bfloat16()).float())
    assert not report.faithful
    assert report.problems == ()
    assert report.units > 1000
    assert 1e-4 < report.rmse < 1e-1


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_one_element_that_is_not_finite(bad):
    def call(x):
        y = net(x)
        y.view(-1)[7] = bad
        return y

    report = check(call, "not finite")
    assert report.units == math.inf


def test_an_output_of_nothing_but_nan_is_wrong():
    assert check(lambda x: net(x) * math.nan, "not finite").rmse == math.inf


def test_a_nan_of_the_original_must_be_there():
    broken = Net(lambda y: y / (y * 0))
    assert verdict(broken, broken).faithful
    check(lambda x: torch.zeros_like(net(x)), "not finite", broken)


@pytest.mark.parametrize(
    "change",
    [
        lambda y: y.roll(1, -1),
        lambda y: y.transpose(-1, -2).contiguous(),
        lambda y: y.flip(1),
        lambda y: y * (1 + 1e-4),
        lambda y: y + 1e-4 * y.square().mean().sqrt(),
        lambda y: torch.zeros_like(y),
    ],
    ids=["rolled", "transposed", "flipped", "scaled", "shifted", "zeros"],
)
def test_changed_numbers_are_wrong(change):
    report = verdict(net, lambda x: change(net(x)))
    assert not report.faithful
    assert report.units > 8


def test_one_wrong_element_in_a_quarter_of_a_million():
    wide = nn.Conv2d(1, 16, 1).eval()

    def call(x):
        y = wide(x)
        y.view(-1)[123_456] *= 1.001
        return y

    x = torch.randn(1, 1, 128, 128, generator=torch.Generator().manual_seed(2))
    assert verdict(wide, wide, x).faithful
    report = verdict(wide, call, x)
    assert not report.faithful
    assert report.rmse < 1e-5


def test_wrong_border_pixels_are_wrong():
    other = copy.deepcopy(net)
    other.convolution = nn.Conv2d(3, 8, 3, padding=1, padding_mode="replicate")
    other.convolution.load_state_dict(net.convolution.state_dict())
    assert not verdict(net, other).faithful


def test_a_stale_output_is_wrong():
    before = []

    def call(x):
        before.append(net(x))
        return before[-2] if len(before) > 1 else before[0]

    check(call, "stale")


def test_an_output_cached_by_identity_is_wrong():
    cache = {}

    def call(x):
        if x.data_ptr() not in cache:
            cache[x.data_ptr()] = (x, net(x))
        return cache[x.data_ptr()][1].clone()

    check(call, "replaced in place")


def test_an_output_cached_by_identity_is_wrong_next_to_a_number_of_numpy():
    cache = {}

    def scaled(given):
        return net(given[0]) * float(given[1])

    def cached(given):
        return cache.setdefault(given[0].data_ptr(), (given, scaled(given)))[1].clone()

    check(cached, "replaced in place", Computes(scaled), ((X, np.float32(2)),))


@pytest.mark.parametrize("first", [(), (X,)])
def test_a_random_generator_that_a_call_has_drawn_from_is_no_cached_output(first):
    def call(given):
        *x, generator = given
        noise = torch.rand(2, 3, 8, 8, generator=generator)
        return net(noise + sum(x))

    samples = [((*first, torch.Generator().manual_seed(seed)),) for seed in (0, 1)]
    report = verdict(Computes(call), call, *samples)
    assert report.faithful, report.problems
    cache = {}

    def cached(given):
        return cache.setdefault(tuple(map(id, given[:-1])), (given, call(given)))[1].clone()

    assert not verdict(Computes(call), cached, *samples).faithful


@pytest.mark.parametrize("buffers", [1, 2, 3])
def test_outputs_overwritten_by_a_later_call(buffers):
    ring = [torch.empty(2, 8, 8, 8) for _ in range(buffers)]
    calls = iter(range(10_000))

    def call(x):
        return ring[next(calls) % buffers].copy_(net(x))

    report = check(call, "shares memory")
    if buffers < 3:  # of four calls the last is the first again: it overwrites the first result with itself
        assert any("overwritten" in problem for problem in report.problems)


def test_a_returned_constant_is_allowed_when_the_original_does():
    class Table(nn.Module):
        def __init__(self):
            super().__init__()
            self.table = nn.Parameter(torch.randn(4))

        def forward(self, x):
            return x * 2, self.table

    table = Table()
    assert verdict(table, table).faithful
    check(lambda x: (x * 2, KEPT), "shares memory", Net(lambda y: (y[:, :3] * 0 + 0, torch.ones(4))))


KEPT = torch.ones(4)


def test_modified_inputs():
    def call(x):
        y = net(x)
        x.zero_()
        return y

    check(call, "is modified")


def test_inputs_the_original_modifies_must_be_modified_alike():
    class Adds(nn.Module):
        def forward(self, x):
            x.add_(1)
            return x * 2

    assert verdict(Adds(), Adds()).faithful
    check(lambda x: (x + 1) * 2, "left as it is", Adds())
    assert not verdict(Adds(), lambda x: x.add_(1.1).mul(2)).faithful


def test_what_calls_put_into_lists_is_put_there_by_all():
    class Grows(nn.Module):
        def forward(self, x, kept):
            kept.append(x * 2)
            return x + 1

    for before in ([], [X]):
        given = Inputs((X, before))
        assert verdict(Grows(), Grows(), given).faithful
        check(lambda x, _: x + 1, "the input kept is left as it is", Grows(), given)
        flat = FlatModule(Grows(), known(Grows(), given)[2])  # as it is exported: with containers of its own

        def served(x, kept, flat=flat):
            return flat(x, *kept)[0]

        check(served, "the input kept is left as it is", Grows(), given)


def test_aliased_input():
    class Copies(nn.Module):
        def forward(self, x):
            return x.clone()

    check(lambda x: x, "shares memory with the input", Copies())
    report = verdict(nn.Identity(), lambda x: x.clone())
    assert report.faithful
    assert any("copy" in note for note in report.notes)


def test_outputs_aliasing_each_other():
    twice = Net(lambda y: (y, y.clone()))
    check(lambda x: (net(x),) * 2, "share memory", twice)


class Several(list[torch.Tensor]):
    """Keeps more than its items."""

    def __init__(self, items, scores=None):
        super().__init__(items)
        self.scores = scores


@dataclass
class Answer:
    logits: torch.Tensor
    extra: object = None


@pytest.mark.parametrize(
    ("original", "candidate", "problem"),
    [
        (lambda y: (y, y * 2), lambda y: (y * 2, y), ""),
        (lambda y: (y, y * 2), lambda y: [y, y * 2], "output is a list"),
        (lambda y: (y, y * 2), lambda y: (y, y * 2, y * 3), "3 items"),
        (lambda y: (y, None), lambda y: (y, y * 2), "output[1] is a tensor"),
        (lambda y: (y, None), lambda y: (y,), "1 items"),
        (lambda y: {"a": y, "b": y * 2}, lambda y: {"b": y * 2, "a": y}, "another order"),
        (lambda y: {"a": y}, lambda y: {"b": y}, "keys"),
        (lambda y: Pair(y, y * 2), lambda y: (y, y * 2), "is a tuple"),
        (lambda y: Answer(y), lambda y: {"logits": y, "extra": None}, "is a dict"),
        (lambda y: y.topk(2), lambda y: tuple(y.topk(2)), "the original returns a torch.return_types:topk of 2"),
        (lambda y: y.topk(2), lambda y: y.sort(), "output is a torch.return_types:sort of 2"),
        (lambda y: [y.shape, y], lambda y: [tuple(y.shape), y], "the original returns a torch:Size of 4"),
        (lambda y: defaultdict(list, y=y), lambda y: defaultdict(None, y=y), "keeps None, the original's"),
        (lambda y: Several([y]), lambda y: [y], "Several of 1"),
        (lambda y: (y, y.dtype), lambda y: (y, torch.float64), "is 'float64', the original returns 'float32'"),
        (lambda y: (y, 3), lambda y: (y, 4), "is 4"),
        (lambda y: (y, 1), lambda y: (y, True), "is True"),
        (lambda y: y, lambda y: y.double(), "dtype float64"),
        (lambda y: y, lambda y: y.half(), "dtype float16"),
        (lambda y: y, lambda y: y[:1], "shape"),
        (lambda y: y, lambda y: y.unsqueeze(0), "shape"),
        (lambda y: y.argmax(1), lambda y: y.argmax(1).int(), "dtype int32"),
        (lambda y: y.argmax(1), lambda y: y.argmax(1).float(), "dtype float32"),
        (lambda y: y, lambda y: y.to_sparse(), "layout"),
        (lambda y: y, lambda _: "text", "is the constant 'text'"),
    ],
)
def test_structure_and_form(original, candidate, problem):
    report = verdict(Net(original), lambda x: candidate(net(x)))
    assert not report.faithful
    if problem:
        assert any(problem in text for text in report.problems), report.problems
    else:
        assert report.units > 8
    assert verdict(Net(original), Net(original)).faithful


def test_what_a_list_keeps_next_to_its_items_is_compared():
    module = Net(lambda y: Several([y], y.sum(1)))
    assert verdict(module, module).faithful
    report = verdict(module, lambda x: Several([net(x)], net(x).sum(1) * 1.01))
    assert not report.faithful
    assert report.units > 8


def test_wrong_labels():
    labels = Net(lambda y: y.argmax(1))

    def one_wrong(x):
        y = labels(x).clone()
        y[0, 0, 0] += 1
        return y

    assert verdict(labels, labels).units == 0
    assert not verdict(labels, one_wrong).faithful


def test_sentinels_do_not_hide_errors():
    masked = Net(lambda y: y.masked_fill(y == 0, -1e9))
    assert verdict(masked, masked).faithful
    assert not verdict(masked, lambda x: (y := masked(x)).where(y < -1e8, y * 1.001)).faithful
    check(lambda x: net(x), "not finite", masked)


def test_specialised_to_the_size_of_the_sample():
    pool = Net(lambda y: y.mean((2, 3)) * y.shape[2])
    samples = (X, torch.randn(2, 3, 12, 12, generator=torch.Generator().manual_seed(3)))
    assert verdict(pool, pool, *samples).faithful
    assert not verdict(pool, lambda x: net(x).mean((2, 3)) * 8, *samples).faithful


def test_a_branch_that_was_traced_away():
    branch = Net(lambda y: y * 2 if y.mean() > 0.3 else y)
    bright = X.abs() * 4
    with torch.no_grad():
        assert net(bright).mean() > 0.3
        traced = torch.jit.trace(branch, bright, check_trace=False)
    assert not verdict(branch, traced, bright, bright * 0.01).faithful


def test_an_unrepeatable_candidate():
    flips = iter(range(10_000))
    check(lambda x: net(x) * (1 + 1e-3 * next(flips)), "second run")


def test_an_unrepeatable_original_makes_every_candidate_ineligible():
    entropy = iter(range(10_000))
    check(net, "not repeatable", Net(lambda y: y + next(entropy)))


def test_randomness_follows_the_seed():
    random = Net(lambda y: torch.dropout(y, 0.5, True))
    assert verdict(random, random).faithful
    assert not verdict(random, net).faithful


def test_a_state_must_follow_the_same_sequence():
    module = Counts()
    assert verdict(module, copy.deepcopy(module)).faithful
    assert not verdict(module, lambda x: x * 1.0).faithful
    used = copy.deepcopy(module)
    state = SavedBuffers(used)
    used(X)
    assert not verdict(module, copy.deepcopy(used)).faithful
    state.restore()
    assert verdict(module, used).faithful


def test_tensors_inside_opaque_outputs_are_compared():
    class Cache:
        def __init__(self, keys):
            self.keys = keys

    cached = Net(lambda y: (y, Cache(y + 1)))
    assert verdict(cached, cached).faithful
    assert not verdict(cached, lambda x: (net(x), Cache(net(x) + 1.01))).faithful


def test_notes_on_autograd():
    learns = Net().train(False)

    def inference(x):
        with torch.inference_mode():
            return learns(x)

    notes = verdict(learns, inference).notes
    assert any("inference tensor" in note for note in notes)
    assert any("require gradients" in note for note in notes)


def test_float64_and_bfloat16_originals_pass_themselves():
    for dtype in (torch.float64, torch.bfloat16):
        module = Net().to(dtype)
        assert verdict(module, module, X.to(dtype)).faithful
    exact = Net().double()
    assert not verdict(exact, lambda x: exact(x.float().double()), X.double()).faithful


def test_empty_outputs_and_scalars():
    both = Net(lambda y: (y[:, :0], y.sum(), torch.zeros(0)))
    assert verdict(both, both).faithful


def test_the_metric_is_computed_from_the_candidates_outputs():
    report = verdict(net, lambda x: net(x) * 2, metric=lambda outputs: float(outputs[0].mean()))
    assert report.metric == pytest.approx(2 * report.metric_original)


def test_what_a_candidate_raises_goes_to_the_caller():
    def call(_):
        raise RuntimeError("engine")

    with pytest.raises(RuntimeError, match="engine"):
        verdict(net, call)


class OneAtATime(nn.Module):
    """Keeps its input for a moment where another call finds it: right for one caller, whoever it is."""

    def __init__(self, lock=None):
        super().__init__()
        self.net, self.lock, self.x = net, lock or contextlib.nullcontext(), None

    def forward(self, x):
        with self.lock:
            self.x = x
            time.sleep(0.002)
            return self.net(self.x)


def test_what_mixes_up_callers_is_wrong_for_several_and_right_for_one():
    with torch.no_grad():
        assert verdict(net, OneAtATime()).faithful
        report = verdict(net, OneAtATime(), callers=Callers(4))
        assert not report.faithful
        assert report.problems == ("output is another when 4 call at once (it cannot serve threads)",)
        assert verdict(net, OneAtATime(threading.Lock()), callers=Callers(4)).faithful


def at_once(call, count=2, module=net):
    """What is wrong where so many call what is right for one."""
    original = known(module)
    with torch.no_grad():
        report = verify(call, *original, seed=0)
        assert report.faithful, report.problems
        return wrong_at_once(call, *original, report, seed=0, callers=Callers(count))


def test_what_was_raced_for_one_caller_is_asked_by_several_as_well():
    assert at_once(OneAtATime()) == ("output is another when 2 call at once (it cannot serve threads)",)
    assert at_once(OneAtATime(threading.Lock())) == ()
    assert at_once(net, 3) == ()


def test_each_of_several_callers_asks_a_slow_one_once(monkeypatch):
    calls = []

    def slow(x):
        calls.append(threading.current_thread().name)
        if calls[-1].startswith("caller"):
            time.sleep(0.4)  # longer than all of it may take
        return net(x)

    assert at_once(slow) == ()
    assert len([name for name in calls if name.startswith("caller")]) == 2
    calls.clear()
    monkeypatch.setattr("togi.verify.verdict._CALLED_AT_ONCE_S", 10.0)
    monkeypatch.setattr("togi.verify.verdict._MOST_CALLED_AT_ONCE", 2)
    assert at_once(slow) == ()
    assert len([name for name in calls if name.startswith("caller")]) >= 2 + 4


class Draws(nn.Module):
    def forward(self, x):
        return x + torch.rand_like(x)


def test_nobody_asks_at_once_what_answers_by_the_order_of_calls():
    module, original = Draws(), known(Draws())
    with torch.no_grad():
        report = verify(module, *original, seed=0)
        assert wrong_at_once(OneAtATime(), *original, report, seed=0, callers=Callers(2)) == ()


def test_callers_may_come_with_inputs_of_several_sizes():
    with torch.no_grad():
        assert verdict(net, net, X, X[:1], callers=Callers(3)).faithful
        report = verdict(net, OneAtATime(), X, X[:1], callers=Callers(3))
    assert any("another form when 3 call at once" in text for text in report.problems), report.problems


def test_what_raises_next_to_other_callers_raises():
    busy = threading.Lock()

    def alone(x):
        if not busy.acquire(blocking=False):
            raise RuntimeError("one call at a time")
        try:
            time.sleep(0.002)
            return net(x)
        finally:
            busy.release()

    with torch.no_grad(), pytest.raises(RuntimeError, match="one call at a time"):
        verdict(net, alone, callers=Callers(4))


class Finds(nn.Module):
    """Returns what is above a threshold."""

    def forward(self, x):
        return x[x > self.least]

    least = 0.0


def test_other_sizes_are_told_from_other_numbers():
    more = Finds()
    more.least = -0.5
    assert verdict(Finds(), more).other_sizes
    assert not verdict(Finds(), lambda x: Finds()(x) * 1.01).other_sizes
    assert not verdict(Finds(), Finds()).other_sizes
    assert not verdict(Finds(), lambda x: Finds()(x)[None]).other_sizes, "this is another form"


def test_an_engine_of_fixed_sizes_is_no_other_decision():
    def fixed(x):
        return torch.zeros(2, 3, 8, 8) + (x if x.shape == X.shape else 0)

    report = verdict(nn.Identity(), fixed, X, torch.randn(4, 3, 8, 8))
    assert not report.faithful
    assert not report.other_sizes


def drawn(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def rows(x, *parts):
    return torch.cat([part(x) for part in parts], -1)


WEIGHT = drawn(16, 84, seed=3) / 4


def detector(x, scores=torch.sigmoid):
    """84 columns, as many anchors as there are rows: boxes in pixels, and scores."""
    y = x @ WEIGHT
    return torch.cat([(y[:, :4] + 4) * 200, scores(y[:, 4:])], -1).t()[None]


def off(error):
    return lambda y: y.sigmoid() + error


MAGNITUDES = {
    # the original, what is right, what is wrong, the input
    "scores beside boxes": (
        lambda x: rows(x, lambda x: x * 1900, torch.sigmoid),
        lambda x: rows(x, lambda x: x * 1900, lambda x: 1 / (1 + (-x).exp())),
        lambda x: rows(x, lambda x: x * 1900, off(3e-3)),
        torch.rand(1000, 1, generator=torch.Generator().manual_seed(0)),
    ),
    "scores beside boxes, few rows": (
        lambda x: rows(x, lambda x: x[:, :4] * 1900, torch.sigmoid),
        lambda x: rows(x, lambda x: x[:, :4] * 1900, lambda x: 1 / (1 + (-x).exp())),
        lambda x: rows(x, lambda x: x[:, :4] * 1900, off(3e-3)),
        torch.rand(8, 6, generator=torch.Generator().manual_seed(0)),
    ),
    "84 columns": (
        detector,
        lambda x: detector(x, lambda y: 1 / (1 + (-y).exp())),
        lambda x: detector(x, off(3e-3)),
        drawn(400, 16),
    ),
    "one score of 84 columns": (
        detector,
        lambda x: detector(x, lambda y: 1 / (1 + (-y).exp())),
        lambda x: detector(x, lambda y: y.sigmoid().index_add(1, torch.tensor([7]), torch.full((len(y), 1), 0.003))),
        drawn(400, 16),
    ),
    "logits beside masks": (
        lambda x: (x @ WEIGHT).masked_fill(x[:, :1] > 0.5, -1e9),
        lambda x: (WEIGHT.t() @ x.t()).t().contiguous().masked_fill(x[:, :1] > 0.5, -1e9),
        lambda x: (x @ WEIGHT + 1e-3).masked_fill(x[:, :1] > 0.5, -1e9),
        drawn(64, 16),
    ),
    "logits beside two kinds of masks": (
        lambda x: (x @ WEIGHT).masked_fill(x[:, :1] > 0.5, -1e4).masked_fill(x[:, :1] > 1, -2e9),
        lambda x: (
            (WEIGHT.t() @ x.t()).t().contiguous().masked_fill(x[:, :1] > 0.5, -1e4).masked_fill(x[:, :1] > 1, -2e9)
        ),
        lambda x: (x @ WEIGHT + 1e-3).masked_fill(x[:, :1] > 0.5, -1e4).masked_fill(x[:, :1] > 1, -2e9),
        drawn(64, 16),
    ),
    "floats beside labels": (
        lambda x: rows(x, lambda x: (x @ WEIGHT).argmax(-1, keepdim=True).float(), lambda x: x[:, :1].sigmoid() / 10),
        lambda x: rows(
            x, lambda x: (x @ WEIGHT).argmax(-1, keepdim=True).float(), lambda x: 0.1 / (1 + (-x[:, :1]).exp())
        ),
        lambda x: rows(
            x, lambda x: (x @ WEIGHT).argmax(-1, keepdim=True).float(), lambda x: x[:, :1].sigmoid() / 10 + 1e-4
        ),
        drawn(100, 16),
    ),
    "a price among ones": (
        lambda x: x * 1.0,
        lambda x: x / 1.0,
        lambda x: torch.where(x > 1e4, x * 1.0008, x * 1.0),
        torch.ones(2000).index_fill(0, torch.tensor(7), 5e4),
    ),
    "prices among ones": (
        lambda x: x.exp(),
        lambda x: (x / 2).exp() ** 2,
        lambda x: torch.where(x > 9, x.exp() * 1.0008, x.exp()),
        torch.zeros(40, 50).index_fill(1, torch.tensor(7), 12.0) + drawn(40, 50) / 10,
    ),
    "ones among prices": (
        lambda x: x.exp(),
        lambda x: (x / 2).exp() ** 2,
        lambda x: torch.where(x < 9, x.exp() * 1.001, x.exp()),
        torch.zeros(2000).index_fill(0, torch.arange(0, 2000, 97), 12.0) + drawn(2000) / 10,
    ),
}


@pytest.mark.parametrize("case", MAGNITUDES)
def test_quantities_of_other_magnitudes_are_judged_by_themselves(case):
    original, right, wrong, x = MAGNITUDES[case]
    module = Computes(original)
    for call in (original, right):
        report = verdict(module, call, x)
        assert report.faithful, (report.units, report.problems)
    report = verdict(module, wrong, x)
    assert not report.faithful, report.units


def test_one_error_is_told_relative_to_all_columns_of_its_kind():
    """What may be approximate is measured as a whole: a score of nothing that is off by half is no wrong output."""
    original, _, _, x = MAGNITUDES["84 columns"]
    report = verdict(Computes(original), lambda x: original(x) * 1.001, x)
    assert report.rmse == pytest.approx(1e-3, rel=1e-2)


def rounded(x, factor=1000, dtype=torch.int32):
    """Integers that rounding decides in many places."""
    return ((x.bfloat16() @ WEIGHT.bfloat16()).float() * factor).round().to(dtype)


def picture_of(y):
    return (y.sigmoid() * 255).round().to(torch.uint8)


def picture(x):
    """Few ties."""
    return picture_of(x @ WEIGHT)


def black_block(y):
    y = y.clone()
    y[:20, :20] = 0
    return y


INTEGERS = {
    "integers of 16 bits": (rounded, lambda x: ((x @ WEIGHT) * 1000).round().to(torch.int32), torch.zeros_like),
    "integers of 16 bits, shifted": (rounded, rounded, lambda y: y + 100),
    "integers of 16 bits, rolled": (rounded, rounded, lambda y: y.roll(1, 0)),
    "a black block": (
        picture,
        lambda x: picture_of((WEIGHT.t() @ x.t()).t().contiguous()),
        black_block,
    ),
    "labels of 16 bits": (
        lambda x: (x.bfloat16() @ WEIGHT.bfloat16()).argmax(-1),
        lambda x: (x @ WEIGHT.bfloat16().float()).argmax(-1),
        torch.zeros_like,
    ),
    "a mask of 16 bits": (
        lambda x: (x.bfloat16() @ WEIGHT.bfloat16()) > 0,
        lambda x: (x.bfloat16().float() @ WEIGHT.bfloat16().float()) > 0,
        torch.zeros_like,
    ),
}


@pytest.mark.parametrize("case", INTEGERS)
def test_ties_of_the_original_are_no_licence(case):
    original, right, wrong = INTEGERS[case]
    x, module = drawn(512, 16), Computes(original)
    for call in (original, right):
        report = verdict(module, call, x)
        assert report.faithful, report.units
    assert not verdict(module, lambda x: wrong(original(x)), x).faithful


def chaos(x):
    for _ in range(80):
        x = 3.9 * x * (1 - x)
    return x


def test_where_the_original_itself_is_far_off_nothing_is_shown():
    x = torch.rand(1000, generator=torch.Generator().manual_seed(0))
    module = Computes(chaos)
    for call in (chaos, lambda x: torch.full_like(x, 0.5), lambda x: chaos(x * (1 + 1e-6))):
        report = verdict(module, call, x)
        same = call is chaos
        assert bool(report.unproven) is not same
        assert accept(report, exact=True)[0] is (Outcome.OK if same else Outcome.WRONG)
        assert accept(report, exact=False, max_error=0.01)[0] is (Outcome.OK if same else Outcome.WRONG)
    assert "plain eager itself is off by" in report.unproven


def test_a_number_that_is_zero_in_exact_arithmetic_is_proven_by_what_eager_has_there():
    x = drawn(8, 64)
    zero = Computes(lambda x: (x - x.mean(-1, keepdim=True)).sum(-1))
    report = verdict(zero, lambda x: ((x - x.mean(-1, keepdim=True)).flip(-1)).sum(-1), x)
    assert report.faithful
    assert not report.unproven
    assert not verdict(zero, lambda x: x[:, 0] * 1e-3, x).faithful


BFLOAT16 = {
    "a factor": lambda y: y * 1.02,
    "a lost factor of one in hundred": lambda y: y * 0.99,
    "a shift": lambda y: y + 0.02 * y.float().square().mean().sqrt(),
}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("fault", BFLOAT16)
def test_what_all_numbers_share_is_no_rounding_in_16_bits(fault, dtype):
    x = drawn(64, 16)
    layers = (
        nn.Sequential(nn.Linear(16, 64), nn.GELU(), nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 64)).eval().to(dtype)
    )
    wide = copy.deepcopy(layers).float()

    def right(x):
        return wide(x.float()).to(dtype)

    def by_rows(x):
        return torch.cat([layers(row[None]) for row in x])

    for call in (layers, right, by_rows):
        report = verdict(layers, call, x.to(dtype))
        assert report.faithful, report.units
    assert not verdict(layers, lambda x: BFLOAT16[fault](wide(x.float())).to(dtype), x.to(dtype)).faithful
    twice = Computes(lambda x: x.to(dtype) * 2)
    assert verdict(twice, lambda x: (x * 2).to(dtype), x).faithful
    assert not verdict(twice, lambda x: BFLOAT16[fault](x * 2).to(dtype), x).faithful


def test_what_differs_by_much_and_shares_no_error_is_wrong_where_the_original_is_inexact():
    x = drawn(64, 16)
    layers = [part for _ in range(6) for part in (nn.Linear(16, 16), nn.GELU(), nn.LayerNorm(16))]
    wide = nn.Sequential(*layers, nn.Linear(16, 84)).eval()
    narrow = copy.deepcopy(wide).bfloat16()
    wide.load_state_dict(narrow.state_dict())
    for call in (narrow, lambda x: wide(x.float()).bfloat16(), lambda x: torch.cat([narrow(row[None]) for row in x])):
        assert verdict(narrow, call, x.bfloat16()).faithful

    def noisy(x):
        y = wide(x.float())
        return (y + 0.17 * y.std() * (1000 * y).sin()).bfloat16()

    assert not verdict(narrow, noisy, x.bfloat16()).faithful


def test_a_few_other_decisions_are_told_from_a_fault():
    class Codes(nn.Module):
        def forward(self, x):
            return x.flatten(1).argsort(dim=1), x

    def swapped(x):
        codes, same = Codes()(x)
        codes[:, :2] = codes[:, :2].flip(1)
        return codes, same

    report = verdict(Codes(), swapped)
    assert report.other_decisions
    assert not report.faithful
    assert not verdict(Codes(), lambda x: (Codes()(x)[0].flip(1), x)).other_decisions
    assert not verdict(Codes(), Codes()).other_decisions


def test_what_is_left_of_one_is_proven_though_it_has_no_digits():
    x = torch.rand(64, generator=torch.Generator().manual_seed(0)) + 15.5

    def both(p):
        return torch.stack([1 - p, p], -1)

    module = Computes(lambda x: both(x.sigmoid()))

    def rounded_otherwise(x):
        p = x.sigmoid()
        p[::2] -= 2**-24
        return both(p)

    report = verdict(module, rounded_otherwise, x)
    assert report.faithful, report.units
    assert not report.unproven
    assert not verdict(module, lambda x: both(x.sigmoid() * (1 - 1e-5)), x).faithful
    sums = Computes(lambda x: torch.stack([chaos(x - 15.5), x], -1))
    assert verdict(sums, lambda x: torch.stack([chaos((x - 15.5) * (1 + 1e-6)), x], -1), x).unproven


class Scores(nn.Module):
    """Remembers in a buffer, and answers with an object that a function has defined."""

    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.zeros(4))
        self.calls = 0

    def forward(self, x):
        self.calls += 1
        self.mean = 0.5 * self.mean + x.mean(0)

        class Found:
            pass

        found = Found()
        vars(found).update(boxes=x - self.mean, score=float(self.mean.norm()), number=self.calls)
        return found


def test_floats_in_objects_are_compared_where_answers_follow_the_calls_before():
    x = drawn(8, 4)
    assert verdict(Scores(), copy.deepcopy(Scores()), x).faithful
    wrong = Scores()

    def other_score(x):
        found = wrong(x)
        found.score *= 1.01
        return found

    report = verdict(Scores(), other_score, x)
    assert not report.faithful
    assert [leaf.name for leaf in report.leaves if leaf.units > leaf.limit_units] == ["output.score.number"]
    assert any("output.number is another one in each call" in note for note in known(Scores(), x)[0].notes)


def test_a_date_of_each_call_is_left_out_and_said():
    module = Computes(lambda x: {"y": x * 2, "at": datetime.now()})
    assert verdict(module, lambda x: {"y": x + x, "at": datetime.now()}).faithful
    assert not verdict(module, lambda x: {"y": x * 2.01, "at": datetime.now()}).faithful
    (note,) = (note for note in known(module, X)[0].notes if "is another one in each call" in note)
    assert note.startswith("output['at']")
    check(lambda x: {"y": x * 2, "at": 1.0}, "output['at']", module)
    fixed = Computes(lambda x: (x * 2, date(2026, 1, 1)))
    check(lambda x: (x * 2, date(2026, 1, 2)), "datetime.date(2026, 1, 2)", fixed)


def test_what_shares_memory_in_a_part_that_is_left_out_is_left_out_too():
    numbers = itertools.count()

    class Kept:
        def __init__(self, x):
            self.cache = {f"call {next(numbers)}": x}
            self.y = x * 2

    report = verdict(Computes(Kept), Kept)
    assert report.faithful, report.problems


def test_where_nothing_that_comes_back_can_be_compared_nothing_is_proven():
    numbers = itertools.count()

    class Found:
        def __init__(self, x):
            vars(self).update({f"call {next(numbers)}": x})

    for original in (Found, lambda x: (y for y in x), lambda x: [Found(x), print]):
        check(original, "nothing that the original returns can be compared", Computes(original))
    assert verdict(Computes(lambda x: (y for y in x)), lambda x: (y for y in x), metric=len).faithful
    assert verdict(Computes(lambda _: None), lambda _: None).faithful
    assert verdict(Computes(lambda x: (print, x + 1)), lambda x: (print, 1 + x)).faithful


def test_of_many_parts_that_are_not_compared_a_few_are_named():
    class Found:
        def __init__(self, x):
            self.y, self.took, self.how = x * 2, time.perf_counter(), print

    many = Computes(lambda x: [Found(x) for _ in range(20)])
    notes = known(many, X)[0].notes
    assert sum("is another one in each call" in note for note in notes) == 5
    assert "the same holds for 15 more parts of what it returns or is given" in notes
    report = verdict(many, many)
    assert report.faithful
    assert [note for note in report.notes if "builtins:builtin" in note] == [
        "output[0].how (and 19 like it), a builtins:builtin_function_or_method, is not compared"
    ]


@pytest.mark.parametrize("seed", range(5))
def test_memory_that_is_shared_is_found_among_many(seed):
    places, base = random.Random(seed), torch.zeros(200)

    def drawn_views(name):
        starts = [places.randrange(190) for _ in range(30)]
        views = [base[start : start + places.randrange(10)] for start in starts]
        return [(f"{name}{i}", view) for i, view in enumerate([*views, torch.ones(3), torch.ones(2, device="meta")])]

    one, other = drawn_views("a"), drawn_views("b")
    meet = frozenset(
        (a, b)
        for a, x in one
        for b, y in other
        if x.numel() and y.numel() and {*range(*extent(x))} & {*range(*extent(y))}
    )
    assert overlaps(one, other) == meet
    assert overlaps(one, one) >= {(a, a) for a, x in one if x.numel() and not x.is_meta}


def extent(tensor):
    return (tensor.data_ptr(), tensor.data_ptr() + 4 * tensor.numel()) if tensor.device.type == "cpu" else (0, 0)
