from __future__ import annotations

import copy
import json
import math

import pytest
import torch
from torch import nn

from tests.small_modules import ComputesWith, Counts
from togi.core.errors import SubjectError, TogiError
from togi.decide.metric import MetricFacts
from togi.subject.inputs import Inputs
from togi.subject.signature import Signature
from togi.verify.derived_inputs import variants
from togi.verify.float64 import float64_arithmetic
from togi.verify.reference import make_truth
from togi.verify.truth import Truth


def truth_of(module, *samples, seed=0, **options):
    module = module.eval()
    inputs = [Inputs.of(s) for s in samples]
    with torch.no_grad():
        torch.manual_seed(seed)
        outputs = [module(*i.args, **i.kwargs) for i in inputs]
    signature = Signature.of(module, inputs, outputs)
    found = variants(inputs, signature, seed)
    return make_truth(module, found, signature, seed=seed, samples=len(inputs), **options)


class Of(ComputesWith):
    def __init__(self, function):
        super().__init__(function, linear=nn.Linear(4, 4))


X = torch.randn(3, 4, generator=torch.Generator().manual_seed(5))


def test_float64_and_eagers_own_error():
    module = nn.Sequential(nn.Linear(4, 64), nn.Tanh(), nn.Linear(64, 64))
    truth = truth_of(module, X)
    leaf = truth.facts.answers[0].leaves[0]
    assert truth.facts.precision == "float64"
    assert truth.truth[0][0].dtype is torch.float64
    assert 1e-9 < leaf.eager_rmse < 1e-6
    assert leaf.unit.rms > 0
    assert next(module.parameters()).dtype is torch.float32


@pytest.mark.parametrize(
    "function",
    [
        lambda m, x: m.linear(x) @ torch.eye(4),
        lambda m, x: m.linear(x.float()),
        lambda m, x: m.linear(x.to(torch.float32)) * torch.ones(4, dtype=torch.float32),
        lambda m, x: m.linear(x) @ CONSTANT,
    ],
    ids=["new tensor", "float()", "to(float32)", "plain constant"],
)
def test_constants_and_casts_to_float32_still_run_in_float64(function):
    truth = truth_of(Of(function), X)
    assert truth.facts.precision == "float64"
    assert truth.facts.fallback == ""
    assert truth.facts.answers[0].leaves[0].eager_rmse > 1e-9


CONSTANT = torch.randn(4, 4, generator=torch.Generator().manual_seed(6))


def insists(module, x):
    if x.dtype is not torch.float32:
        raise TypeError("float32 only")
    return module.linear(x)


def test_falls_back_to_eager_and_says_so():
    truth = truth_of(Of(insists), X)
    assert truth.facts.precision == "eager"
    assert "float32 only" in truth.facts.fallback
    assert any("float32 only" in note for note in truth.notes)
    assert truth.facts.answers[0].leaves[0].unit.rms > 1e-9


def test_a_branch_on_the_dtype_is_not_believed():
    truth = truth_of(Of(lambda m, x: m.linear(x) * (1 if x.dtype is torch.float32 else 2)), X)
    assert truth.facts.precision == "eager"
    assert "something else" in truth.facts.fallback


def test_too_large_for_float64_falls_back(monkeypatch):
    monkeypatch.setattr("togi.verify.float64.free_bytes", lambda _: 10)
    assert "MiB" in truth_of(nn.Linear(4, 4), X).facts.fallback


def test_random_and_repeatable():
    dropout = Of(lambda m, x: torch.dropout(m.linear(x), 0.5, True))
    truth = truth_of(dropout, X)
    assert truth.facts.random
    assert truth.facts.repeatable
    assert truth.facts.precision == "eager"
    assert not truth_of(nn.Linear(4, 4), X).facts.random


def test_unrepeatable_is_reported():
    entropy = iter(range(1000))
    truth = truth_of(Of(lambda m, x: m.linear(x) + next(entropy)), X)
    assert not truth.facts.repeatable
    assert "not repeatable" in truth.facts.unrepeatable
    assert truth.facts.unrepeatable in truth.notes


def test_what_differs_from_run_to_run_by_rounding_alone_is_repeatable():
    count = iter(range(1000))
    truth = truth_of(Of(lambda m, x: m.linear(x) * (1 + 3e-7 * (next(count) % 7))), X)
    assert truth.facts.repeatable
    assert "the original is not repeatable to the bit, but within rounding" in truth.notes


def test_a_state_gives_a_sequence_and_is_put_back():
    module = Counts()
    truth = truth_of(module, X)
    before = float(module.calls)
    assert truth.facts.stateful
    assert [float((t[0] / s).median()) for t, s in zip(truth.eager[:1], [X], strict=True)] == [1.0 + before]
    assert len(truth.facts.schedule) == len(set(truth.facts.schedule)) == len(truth.kept) + 1
    assert float(module.calls) == before


def test_derived_inputs_that_raise_are_left_out_with_a_note():
    known = X.clone()

    def picky(module, x):
        if not torch.equal(x.float(), known):
            raise ValueError("unknown picture")
        return module.linear(x)

    truth = truth_of(Of(picky), X)
    assert truth.kept == (0,)
    assert any("unknown picture" in note for note in truth.notes)


def test_derived_inputs_that_are_not_finite_are_left_out():
    positive = torch.arange(31.0, -1.0, -1.0).reshape(1, 32)
    truth = truth_of(Of(lambda _, x: x[:, :31].log()), positive)
    assert 0 in truth.kept
    assert any("not finite" in note for note in truth.notes)


def test_a_sample_that_raises_is_the_users_fault():
    module = nn.Linear(4, 4)
    signature = Signature.of(module, [Inputs((X,))], [X])
    with pytest.raises(SubjectError, match="sample 1"):
        make_truth(module, [Inputs((torch.ones(3, 5),))], signature, seed=0)


def test_behaviour_is_recorded():
    def behave(module, x):
        x.add_(1)
        return {"view": x[0], "new": module.linear(x), "ints": x.argmax(-1), "n": 3, "none": None}

    truth = truth_of(Of(behave), X)
    answer = truth.facts.answers[0]
    assert answer.changed == ("x",)
    assert answer.shares_inputs == (("output['view']", "x"),)
    assert [leaf.name for leaf in answer.leaves][-1] == "x after the call"
    assert {leaf.name: leaf.requires_grad for leaf in answer.leaves}["output['new']"] is True


def every_dtype(module, x):
    y = module.linear(x)
    return (
        y,
        y.to(torch.complex64) * 1j,
        y.bfloat16(),
        y.half(),
        y.to(torch.float8_e4m3fn),
        y > 0,
        y.long(),
        y.t(),
        y.sum(),
        y[:0],
        y / 0,
        -1e9 + y,
        2,
        None,
        "text",
        math.nan,
    )


def test_save_and_load_give_the_same_truth(tmp_path):
    truth = truth_of(Of(every_dtype), X)
    truth.save(tmp_path)
    loaded = Truth.load(tmp_path)
    assert loaded.facts == truth.facts
    assert {p.name for p in tmp_path.iterdir()} == {"truth.json", "truth.safetensors"}
    for kind in ("truth", "eager"):
        for one, two in zip(getattr(truth, kind), getattr(loaded, kind), strict=True):
            for a, b in zip(one, two, strict=True):
                assert (a.dtype, a.shape) == (b.dtype, b.shape)
                assert torch.equal(a.double().nan_to_num(), b.double().nan_to_num())


@pytest.mark.parametrize("damage", ["json", "tensors", "missing", "dtype"])
def test_a_damaged_truth_is_refused(tmp_path, damage):
    truth_of(nn.Linear(4, 4), X).save(tmp_path)
    if damage == "json":
        (tmp_path / "truth.json").write_text("{", encoding="utf-8")
    elif damage == "tensors":
        (tmp_path / "truth.safetensors").write_bytes(b"\xff" * 100)
    elif damage == "missing":
        (tmp_path / "truth.safetensors").unlink()
    else:
        document = json.loads((tmp_path / "truth.json").read_text(encoding="utf-8"))
        document["dtypes"] = dict.fromkeys(document["dtypes"], "load")
        (tmp_path / "truth.json").write_text(json.dumps(document), encoding="utf-8")
    with pytest.raises(TogiError, match="cannot be read"):
        Truth.load(tmp_path)


def test_the_metric_of_the_original_is_kept():
    truth = truth_of(nn.Linear(4, 4), X, X * 2, metric=lambda outputs: float(len(outputs)))
    assert truth.facts.metric == MetricFacts(value=2.0)


TABLE = 1000 + torch.randn(64, 256, generator=torch.Generator().manual_seed(2))
STEPS = torch.linspace(0.1, 1, 4)


class Holds(nn.Module):
    """A table in a plain attribute, which no conversion of the module reaches, and a view into which calls write."""

    def __init__(self):
        super().__init__()
        self.table = TABLE[:4, :4].clone()
        self.kept = torch.zeros(4)

    def forward(self, x):
        self.kept[1:].copy_(x[0, 1:])
        return (self.table * self.table).sum(-1) + self.kept


def variance(rows):
    return rows.square().mean(-1) - rows.mean(-1).square()


@pytest.mark.parametrize(
    ("module", "sample", "expected"),
    [
        (Of(lambda _, i: variance(TABLE[i])), torch.arange(8), variance(TABLE[:8].double())),
        (Of(lambda _, i: STEPS.sqrt().cumsum(0)[i]), torch.arange(4), STEPS.double().sqrt().cumsum(0)),
        (Of(lambda _, i: torch.stack([STEPS, STEPS]).exp()[:, i]), torch.arange(4), STEPS.double().exp().expand(2, 4)),
        (Holds(), torch.ones(3, 4), TABLE[:4, :4].double().square().sum(-1) + torch.tensor([0.0, 1.0, 1.0, 1.0])),
    ],
    ids=["cancels", "a chain", "a list", "an attribute"],
)
def test_what_is_computed_of_tables_alone_is_float64(module, sample, expected):
    truth = truth_of(module, sample)
    assert truth.facts.precision == "float64", truth.notes
    assert truth.facts.answers[0].leaves[0].eager_rmse > 0
    assert (truth.truth[0][0] - expected).abs().max() < 1e-9


def test_an_answer_that_stays_narrow_is_said():
    truth = truth_of(Of(lambda _, x: torch.from_numpy(x.numpy().astype("float32"))), X)
    assert any("output is float32 where float64 is asked for" in note for note in truth.notes)
    table = truth_of(Of(lambda m, x: (m.linear(x), TABLE[0])), X)
    assert not any("where float64 is asked for" in note for note in table.notes)
    assert table.facts.precision == "float64"


class Norms(nn.Sequential):
    """Buffers that are all different, as batch normalisation has them."""

    def __init__(self):
        super().__init__(*(nn.BatchNorm1d(4) for _ in range(100)))
        for number, norm in enumerate(self):
            norm.running_mean.fill_(number)
            norm.running_var.fill_(100.0 + number)


def test_a_copy_that_is_made_in_float64_holds_each_buffer_in_its_place():
    norms = Norms()
    with float64_arithmetic():
        copied = copy.deepcopy(norms)
    for name, buffer in norms.named_buffers():
        assert torch.equal(copied.get_buffer(name), buffer), name
