"""Values that lead to a jump are searched: engines that miss a step are found, however rare the step is."""

from __future__ import annotations

import pytest
import torch

from tests.verify.beyond_samples import Function, asked_original, reached
from togi.subject.domain import Domain
from togi.verify import original as module
from togi.verify.beyond import reach_of
from togi.verify.steering import candidates

X = torch.randn(4, 16, generator=torch.Generator().manual_seed(0))
IDS = torch.randint(0, 1000, (4, 16), generator=torch.Generator().manual_seed(0))
TIMES = 1.76e9 + 1e5 * torch.rand(4, 16, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
LESS = 1 - 2.0**-23


def divided_in_float32(ids):
    return (ids.double() / 7).to(torch.float32).floor().to(torch.int64)


MISSED = {
    "quotients that are whole": (lambda x: (10 / x).long(), lambda x: (10 * LESS / x).long(), X),
    "quotients of integers in floats": (
        lambda i: (10 / (i / 1000)).long(),
        lambda i: (10 * LESS / (i / 1000)).long(),
        IDS + 20,
    ),
    "one threshold": (lambda x: (x / 4 >= 0.8125).float(), lambda x: (x * (LESS / 4) >= 0.8125).float(), X),
    "a threshold deep inside": (
        lambda x: ((x * 8 - 3).abs() > 97).float().cumsum(-1),
        lambda x: ((x * 8 - 3).abs() * (2 - LESS) > 97).float().cumsum(-1),
        X,
    ),
    "halves": (lambda x: (x * 4).round(), lambda x: (x * 4 * (2 - LESS)).round(), X),
    "days of a timestamp": (
        lambda t: (t / 86400).floor(),
        lambda t: (t / 86400 * (1 - 2.0**-52)).floor(),
        TIMES,
    ),
    "a bucket's border": (
        lambda x: torch.bucketize(x / 3, torch.tensor([-1.0, 1.0])),
        lambda x: torch.bucketize(x / 3 * LESS, torch.tensor([-1.0, 1.0])),
        X,
    ),
    "one integer of a thousand": (lambda i: i == 777, lambda i: (i == 777) & (i != 777), IDS.clamp(max=776)),
}


@pytest.mark.parametrize("case", MISSED)
def test_an_engine_that_misses_a_step_is_found_or_bounded(case):
    original, program, sample = MISSED[case]
    reach, _ = reached(original, program, sample)
    assert reach.problems or reach.domains


@pytest.mark.parametrize("case", MISSED)
def test_the_original_itself_is_right_everywhere(case):
    original, _, sample = MISSED[case]
    reach, _ = reached(original, original, sample)
    assert (reach.problems, reach.domains) == ((), ())


def on_a_device(monkeypatch, original, *args):
    """``cuda`` is the CPU by another name."""
    for name in ("widened", "widened_inputs"):
        here = getattr(module, name)
        monkeypatch.setattr(module, name, lambda one, _device, here=here: here(one))
    asked, samples = asked_original(original, *args)
    asked.signature = asked.signature.model_copy(update={"device": "cuda"})
    return asked, samples


def test_on_a_device_the_steps_are_those_of_the_call_there(monkeypatch):
    """And not also those of the CPU, on which integers are tried before: float64 would not meet them."""
    original, program, sample = MISSED["quotients of integers in floats"]
    reach = reach_of(program, *on_a_device(monkeypatch, original, sample))
    assert reach.problems or reach.domains
    assert reach_of(original, *on_a_device(monkeypatch, original, sample)).problems == ()


def test_integers_that_the_cpu_cannot_try_are_not_asked_of_a_device(monkeypatch):
    """One out of range would end the process there. It is told, and nothing is called illegal."""
    seen = []

    def original(ids):
        seen.append(int(ids.max()))
        return ids * 2

    def only_on_a_device(_ids):
        raise RuntimeError("\"addmm_impl_cpu_\" not implemented for 'Half'")

    asked, samples = on_a_device(monkeypatch, original, IDS)
    asked._on_cpu = Function(only_on_a_device)
    reach = reach_of(lambda ids: ids * 2, asked, samples)
    assert set(seen) == {int(IDS.max())}
    assert (reach.domains, reach.problems) == ((), ())
    assert [note.split(":")[0] for note in reach.notes] == ["no values beyond the samples were asked for"]


@pytest.mark.parametrize("lost", [True, False])
def test_a_program_that_loses_the_device_is_not_right_where_it_raises(monkeypatch, lost):
    """Nothing that is asked after it would be answered, so that nothing would be wrong."""
    answers = [True]

    def program(x):
        if bool((x > 100).any()):
            answers[0] = not lost
            raise RuntimeError("CUDA error: device-side assert triggered")
        return x * 2

    def wait():
        if not answers[0]:
            raise RuntimeError("CUDA error: device-side assert triggered")

    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "synchronize", wait)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    asked, samples = asked_original(lambda x: x * 2, X)
    if not lost:
        assert reach_of(program, asked, samples).problems == ()
        return
    with pytest.raises(RuntimeError, match="device-side assert"):
        reach_of(program, asked, samples)


def test_a_step_to_which_only_two_inputs_lead_together_is_found():
    def original(a, b):
        return (a / b).floor()

    reach, _ = reached(original, lambda a, b: (a / b * LESS).floor(), X, X.flip(0) + 0.01)
    assert reach.problems
    reach, _ = reached(original, original, X, X.flip(0) + 0.01)
    assert reach == type(reach)(())


def test_divisions_of_large_integers_are_bounded_where_floats_end():
    reach, signature = reached(lambda i: i.div(7, rounding_mode="floor"), divided_in_float32, IDS)
    assert reach.problems == ()
    assert reach.domains[0].high <= 7 * 2**24
    signature.check([IDS])


def test_roundings_of_what_is_computed_are_not_a_missed_step():
    """Weights that are no simple numbers lead to no step exactly: which side is taken is chance."""
    weight = torch.rand(16, generator=torch.Generator().manual_seed(1)) + 0.3
    reach, _ = reached(lambda x: (x * weight).floor(), lambda x: (x * (weight * LESS)).floor() + 0.0, X * 1.1)
    assert reach.problems == ()


def test_models_without_a_jump_are_looked_at_once():
    calls = []

    def smooth(x):
        calls.append(x)
        return x.relu() * 2

    reached(smooth, lambda x: x.relu() * 2, X)
    without = len(calls)
    calls.clear()

    def jumping(x):
        calls.append(x)
        return x.floor() * 2

    reached(jumping, lambda x: x.floor() * 2, X)
    assert len(calls) > without + 64


class TestCandidates:
    @pytest.mark.parametrize(
        "dtype", [torch.float32, torch.float64, torch.int64, torch.int32, torch.uint8, torch.float16]
    )
    @pytest.mark.parametrize(("low", "high"), [(0, 200), (3, 3), (1, 40_000), (-120, 7)])
    def test_they_lie_in_the_range_and_are_of_the_dtype(self, dtype, low, high):
        if dtype is torch.uint8 and (low < 0 or high > 255):
            pytest.skip("no such values")
        found = candidates(dtype, low, high, [7, 0.1], torch.Generator().manual_seed(0))
        assert found.dtype is dtype
        assert len(found) > 0
        assert Domain(low=low, high=high).refusal(found) == ""

    def test_all_integers_of_a_small_range_are_there(self):
        found = candidates(torch.int64, -5, 600, [], torch.Generator().manual_seed(0))
        assert sorted(found.tolist()) == list(range(-5, 601))

    def test_multiples_of_the_models_numbers_are_there_with_their_neighbours(self):
        found = candidates(torch.int64, 0, 1 << 62, [503], torch.Generator().manual_seed(0))
        beyond = found[found > 1 << 33]
        for rest in (0, 1, 502):
            assert int((beyond % 503 == rest).sum()) > 20

    def test_the_largest_integers_stay_integers(self):
        found = candidates(torch.int64, -(2**63), 2**63 - 1, [3], torch.Generator().manual_seed(0))
        assert int(found.max()) >= 1 << 60
        assert int(found.min()) <= -(1 << 60)
