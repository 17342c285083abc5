"""What a program answers for values that no sample shows: planted faults of engines are kept out or found."""

from __future__ import annotations

import functools
import itertools
import math

import pytest
import torch
from torch import Tensor, nn

from tests.verify.beyond_samples import Function, asked_original, reached
from togi.subject.domain import Domain
from togi.subject.inputs import Inputs, Subject
from togi.subject.prepare import prepare
from togi.subject.signature import Signature
from togi.verify.beyond import reach_of
from togi.verify.float64 import nudged
from togi.verify.original import Original
from togi.verify.units import error_in_units

WEIGHT = torch.linspace(-1, 1, 13).reshape(13, 1)


def hashed(ids):
    return WEIGHT[ids.remainder(13)].sum(-2)


def wrapped_ids(ids):
    return hashed(ids.to(torch.int32).to(torch.int64))


def remainder_of_c(ids):
    return WEIGHT[ids.fmod(13).abs()].sum(-2)


def saturated(frame):
    return (frame.int() - 50).clamp(0, 255).float() / 255


def masked_mean(x, mask):
    return (x * mask[..., None]).sum(1) / mask.sum(1, keepdim=True)


def numbers_for_nan(x):
    return torch.relu(x.nan_to_num(0.0)).sum(-1)


def cast_in_32_bits(x):
    return (x * 10).clamp(-(2.0**31), 2.0**31 - 128).to(torch.int64)


def last_of_equals(x):
    return x.shape[-1] - 1 - x.flip(-1).argmax(-1)


def distance(x):
    return (x[0] - x[1]).square().sum().sqrt()


def distance_of_parted_rows(x):
    return distance(x * torch.tensor([[1.0], [1 + 2**-23]]))


def spread(x):
    return (x - x.mean()) / (x.var() + 1e-12).sqrt()


def noisy_spread(x):
    return spread(x * (1 + 1e-7 * torch.arange(x.numel()).reshape(x.shape)))


def first_row(x):
    return (x / x.abs().amax(-1, keepdim=True).clamp(min=1e-6))[0]


IDS = torch.randint(0, 1000, (2, 64), generator=torch.Generator().manual_seed(0))
FRAME = torch.randint(60, 200, (1, 3, 8, 8), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
X = torch.randn(2, 40, generator=torch.Generator().manual_seed(0))
ROWS = torch.randn(2, 9, 4, generator=torch.Generator().manual_seed(0))
SHOWN = torch.ones(2, 9, dtype=torch.bool)

FAULTS = {
    "integers of 64 bits as 32": (hashed, wrapped_ids, [IDS], [IDS + 2**33 + 1]),
    "the sign of a remainder": (hashed, remainder_of_c, [IDS], [IDS - 500]),
    "saturation for wrap-around": (lambda f: (f - 50).float() / 255, saturated, [FRAME], [FRAME - 60]),
    "a number for NaN": (lambda x: torch.relu(x).sum(-1), numbers_for_nan, [X], [X.where(X < 2, torch.nan)]),
    "large floats as integers": (lambda x: (x * 10).to(torch.int64), cast_in_32_bits, [X], [X * 1e9]),
    "halves away from zero": (torch.round, lambda x: (x.abs() + 0.5).floor() * x.sign(), [X], [X.round() + 0.5]),
    "another of equal values": (lambda x: x.argmax(-1), last_of_equals, [X], [X.round()]),
    "a distance of equal rows": (distance, distance_of_parted_rows, [X], [X[:1].expand(2, -1) + 1e3]),
    "a variance of zero": (spread, noisy_spread, [X], [torch.zeros_like(X)]),
    "a mask that was not shown": (masked_mean, lambda x, _: x.mean(1), [ROWS, SHOWN], [ROWS, SHOWN.tril()]),
    "a row that hides all": (
        masked_mean,
        lambda x, mask: (x * mask[..., None]).sum(1) / mask.sum(1, keepdim=True).clamp(min=1),
        [ROWS, SHOWN.tril()],
        [ROWS, SHOWN & torch.tensor([[True], [False]])],
    ),
    "NaN for a number": (
        lambda x: x.relu(),
        lambda x: x.relu() + x.sum() / x.abs().max() * 0,
        [X],
        [torch.zeros_like(X)],
    ),
    "a division by zero": (lambda x: 1 / x, lambda x: 1 / x.where(x != 0, 1), [X], [torch.zeros_like(X)]),
    "a root of negative numbers": (torch.sqrt, lambda x: x.abs().sqrt(), [X.abs()], [X]),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_beyond_the_samples_is_refused_or_found(fault):
    original, program, sample, later = FAULTS[fault]
    reach, signature = reached(original, program, *sample)
    if reach.problems:
        return
    with pytest.raises(ValueError, match="proven"):
        signature.check(later)
    signature.check(sample)


@pytest.mark.parametrize("fault", FAULTS)
def test_what_is_right_takes_what_the_original_takes(fault):
    original, _, sample, later = FAULTS[fault]
    reach, signature = reached(original, original, *sample)
    assert reach.domains == ()
    assert reach.problems == ()
    signature.check(later)


def test_values_on_which_the_original_raises_need_no_answer():
    table = torch.randn(1000, 4)
    reach, _ = reached(lambda ids: table[ids], lambda ids: table[ids % 1000], IDS)
    assert reach.domains == ()  # a thousand and more raises


def test_a_fault_that_was_found_is_kept_where_time_runs_out_before_the_next_question():
    now_s = 0.0

    def clamped(x):
        nonlocal now_s
        now_s = 100.0 if x.max() > 100.0 else now_s
        return x.clamp(max=100.0)

    reach, signature = reached(lambda x: x, clamped, X.abs(), limit_s=1.0, clock=lambda: now_s)
    assert reach.domains[0].high == float(X.abs().max())
    with pytest.raises(ValueError, match="proven"):
        signature.check([X.abs() * 1000])


TABLE = torch.randn(8, 4, generator=torch.Generator().manual_seed(0))


def with_categories(relu):
    return lambda x: TABLE[x[:, 0].long()].sum(-1) + relu(x[:, 1:]).sum(-1)


def rows_with_categories(rows):
    generator = torch.Generator().manual_seed(0)
    categories = torch.randint(0, 8, (rows, 1), generator=generator).float()
    return torch.cat([categories, torch.randn(rows, 29, generator=generator)], 1)


@pytest.mark.parametrize("rows", [1, 40, 200])
@pytest.mark.parametrize("number", [torch.nan, torch.inf, 1e7])
def test_a_column_that_the_original_checks_hides_no_fault_in_the_others(rows, number):
    x = rows_with_categories(rows)

    def other(x):
        return torch.relu(x.clamp(max=1e6).nan_to_num(0.0, posinf=0.0))

    _, signature = reached(with_categories(torch.relu), with_categories(other), x)
    signature.check([x])
    assert reached(with_categories(torch.relu), with_categories(torch.relu), x)[0].domains == ()
    x[-1, 5] = number
    with pytest.raises(ValueError, match="proven"):
        signature.check([x])


def test_one_column_of_integers_hides_no_fault_in_the_others():
    ids = torch.cat([torch.randint(0, 8, (40, 1)), torch.randint(0, 100, (40, 9))], 1)

    def other(x):
        return TABLE[x[:, 0]].sum(-1) + x[:, 1:].to(torch.int32).sum(-1)

    reach, _ = reached(lambda x: TABLE[x[:, 0]].sum(-1) + x[:, 1:].sum(-1), other, ids)
    assert reach.domains[0].high <= 2**31


def test_few_raises_end_the_questions_where_all_that_is_not_shown_raises():
    calls = []

    def original(ids):
        calls.append(ids)
        return TABLE[ids].sum(-1)

    reach, _ = reached(original, original, torch.arange(8).reshape(1, 8))
    assert reach.domains == ()
    assert sum(bool((ids > 7).any()) for ids in calls) < 50


def test_nan_is_asked_where_the_original_raises_on_every_larger_number():
    def checked(x):
        if bool((x.abs() > 5).any()):
            raise ValueError("out of range")
        return torch.relu(x).sum(-1)

    reach, signature = reached(checked, numbers_for_nan, X)
    assert reach.domains
    with pytest.raises(ValueError, match="NaN"):
        signature.check([X.where(X < 2, torch.nan)])


def test_an_input_that_is_empty_in_one_sample_is_asked_for_by_another():
    ready = prepare(Subject(Function(lambda x: torch.relu(x).sum(-1)), [Inputs((X[:0],)), Inputs((X,))]))
    outputs = [ready.module(*sample.args) for sample in ready.samples]
    asked = Original(ready.module, Signature.of(ready.module, ready.samples, outputs), seed=0)
    reach = reach_of(numbers_for_nan, asked, ready.samples)
    assert reach.domains[0].refusal(X * torch.nan)
    assert not reach.domains[0].refusal(X)


@pytest.mark.parametrize(
    "x", [torch.view_as_complex(X.reshape(2, 20, 2)), X.where(X < 2, torch.nan), IDS.to(torch.uint16)]
)
def test_what_is_not_varied_is_told(x):
    reach, _ = reached(torch.clone, torch.clone, x)
    assert reach.domains == ()
    assert str(x.dtype) in reach.notes[0]


def test_integers_are_bounded_where_the_program_goes_wrong():
    reach, signature = reached(hashed, lambda ids: hashed(ids.clamp(max=2**31)), IDS)
    assert 1000 <= reach.domains[0].high <= 2**31
    assert signature.domains_in_words() == [f"ids holds values up to {reach.domains[0].high:,}"]


def test_only_the_input_that_is_answered_wrongly_is_bounded():
    def original(a, b):
        return torch.relu(a).sum() + b.sum()

    reach, _ = reached(original, lambda a, b: numbers_for_nan(a).sum() + b.sum(), X, X.clone())
    assert reach.domains[0].high is not None
    assert reach.domains[1].everything


def test_rounding_is_not_a_fault_however_large_the_values():
    weight = torch.randn(40, 30, generator=torch.Generator().manual_seed(1))
    reach, _ = reached(lambda x: torch.relu(x @ weight), lambda x: torch.relu((weight.T @ x.T).T.contiguous()), X)
    assert reach.problems == ()
    assert not reach.domains or reach.domains[0].high >= 1e9


def test_rounding_is_not_a_fault_where_equal_values_stay_equal():
    """Far from zero, the roundings of what is given are large next to its differences."""

    def differences(x):
        return x - x[:, :1]

    reach, _ = reached(differences, lambda x: differences(x * (1 + 1e-7 * (torch.arange(40) % 2))), X)
    assert reach.problems == ()


class InEightBits:
    """Two layers, and what they are in 8 bits whose ranges are those of other data of the same kind."""

    def __init__(self, seed: int) -> None:
        draw = functools.partial(torch.randn, generator=torch.Generator().manual_seed(seed))
        self.first, self.second = draw(256, 1024) / 16, draw(1024, 256) / 32
        self.sample, data = draw(8, 256), draw(240, 256)
        hidden = torch.relu(data @ self.first)
        self.ranges = [(float(of.min()), float(of.max())) for of in (data, hidden)]

    def original(self, x):
        return torch.relu(x @ self.first) @ self.second

    def program(self, x):
        inputs, hidden = self.ranges
        return _in_steps(torch.relu(_in_steps(x, *inputs) @ self.first), *hidden) @ self.second

    def reach(self, program):
        x, first, second = (tensor.double() for tensor in (self.sample, self.first, self.second))
        truth = torch.relu(x @ first) @ second
        units = error_in_units(self.program(self.sample), truth, self.original(self.sample))
        return reached(self.original, program, self.sample, exact=False, max_units=2 * units)[0]


def _in_steps(x, low, high):
    step = (high - low) / 255
    return ((x.clamp(low, high) - low) / step).round() * step + low


@pytest.mark.parametrize("seed", range(5))
def test_what_is_rounded_for_values_of_one_size_is_not_asked_for_larger_ones_as_equal_values(seed):
    in_eight_bits = InEightBits(seed)
    assert in_eight_bits.reach(in_eight_bits.program).problems == ()

    def wrong_among_equals(x):
        ordered = x.sort(-1).values
        return in_eight_bits.program(x) + 10 * ((ordered[:, 1:] == ordered[:, :-1]).sum() > 1000)

    assert any("equal values" in problem for problem in in_eight_bits.reach(wrong_among_equals).problems)


def test_more_nan_than_the_original_shows_is_allowed_in_a_row_where_it_shows_some():
    reach, _ = reached(lambda x: x * 2, lambda x: x * 2 + x.sum(-1, keepdim=True) * 0, X)
    assert reach.domains == ()
    reach, _ = reached(lambda x: x.sum(0), lambda x: x.sum(0).where(x.isfinite().all(), torch.nan), X)
    assert reach.domains == (), "these are no rows of what was given"


def only_nan(x):
    """For all rows, where one holds a number that is none."""
    return (x * 2).where(x.isfinite().all(), torch.nan)


def other_infinity(x):
    return (x * 2).where(~x.isposinf(), -torch.inf)


@pytest.mark.parametrize("program", [only_nan, other_infinity, lambda x: x * 2 + x.sum() * 0])
def test_neither_nan_in_other_rows_nor_the_other_infinity_is_right(program):
    reach, signature = reached(lambda x: x * 2, program, X)
    assert not reach.domains[0].everything
    with pytest.raises(ValueError, match="proven"):
        signature.check([X.index_fill(1, torch.tensor(3), torch.inf)])


def test_nan_in_one_row_of_a_batch_must_leave_the_others():
    m = torch.nn.Linear(4, 4).eval()
    x = torch.randn(8, 4, generator=torch.Generator().manual_seed(0))

    def all_of_it(x):
        return m(x) if x.isfinite().all() else torch.full((len(x), 4), torch.nan)

    with torch.no_grad():
        assert not reached(lambda x: m(x), all_of_it, x)[0].domains[0].everything
        assert reached(lambda x: m(x), lambda x: torch.cat([m(row[None]) for row in x]), x)[0].domains == ()


def test_nan_may_be_left_out_of_the_question():
    reach, _ = reached(lambda x: torch.relu(x).sum(-1), numbers_for_nan, X, nan=False)
    assert reach.domains == ()


def test_a_program_that_raises_answers_nothing_wrong():
    def refuses(ids):
        if int(ids.max()) > 2000:
            raise ValueError("too large")
        return hashed(ids)

    reach, _ = reached(hashed, refuses, IDS)
    assert reach.domains == ()


def test_what_is_not_asked_in_time_is_not_taken_which_is_reported():
    clock = itertools.chain([0.0], itertools.repeat(2.0))
    reach, _ = reached(lambda x: x * 2, lambda x: x * 2, X, limit_s=1.0, clock=lambda: next(clock))
    assert reach.domains[0].high == pytest.approx(1e3 * float(X.abs().max()))
    assert "no time was left" in reach.notes[0]


def test_an_original_that_takes_minutes_is_asked_nothing_which_is_reported():
    """The smallest and largest value of a sample would refuse every other call that comes."""
    clock = itertools.chain([0.0], itertools.repeat(100.0))
    reach, _ = reached(lambda x: x * 2, lambda x: x * 2, X, limit_s=1.0, clock=lambda: next(clock))
    assert reach.domains == ()
    assert reach.notes == ("no time was left to ask for values of x beyond the samples",)


@pytest.mark.parametrize("shape", [(4, 5), (40, 30)])
def test_infinity_is_kept_out_where_the_original_takes_no_negative_numbers(shape):
    def original(x):
        if bool((x < 0).any()):
            raise ValueError("a probability is not below 0")
        return torch.relu(x)

    x = torch.rand(shape, generator=torch.Generator().manual_seed(0))
    _, signature = reached(original, lambda x: torch.relu(x.nan_to_num(nan=torch.nan, posinf=0.0)), x)
    signature.check([x])
    with pytest.raises(ValueError, match="proven"):
        signature.check([x.index_fill(0, torch.tensor(1), torch.inf)])


def test_the_same_questions_are_asked_again():
    first, _ = reached(hashed, wrapped_ids, IDS)
    second, _ = reached(hashed, wrapped_ids, IDS)
    assert first == second


class TestDomain:
    def test_bounds_hold_no_nan(self):
        domain = Domain(low=-1.0, high=1.0)
        assert domain.refusal(torch.tensor([0.5, -1.0, 1.0])) == ""
        assert "NaN" in domain.refusal(torch.tensor([0.5, math.nan]))
        assert "1.5" in domain.refusal(torch.tensor([0.5, 1.5]))
        assert "inf" in domain.refusal(torch.tensor([0.5, math.inf]))

    def test_integers_are_compared_exactly(self):
        domain = Domain(high=2**62)
        assert domain.refusal(torch.tensor([2**62])) == ""
        assert domain.refusal(torch.tensor([2**62 + 1]))

    def test_rows_of_a_mask(self):
        mask = torch.tensor([[True, False], [False, False]])
        assert Domain(empty_rows=False).refusal(mask)
        assert Domain(full_rows=False).refusal(mask) == ""
        assert Domain(full_rows=False).refusal(~mask)

    def test_an_empty_tensor_lies_inside(self):
        assert Domain(low=0, high=1, constant=False, empty_rows=False).refusal(torch.zeros(0, 3)) == ""

    def test_one_number_is_not_a_constant_tensor(self):
        assert Domain(constant=False).refusal(torch.tensor(3.0)) == ""
        assert Domain(constant=False).refusal(torch.zeros(4))

    def test_what_holds_nothing_is_refused(self):
        with pytest.raises(ValueError, match="holds nothing"):
            Domain(low=2, high=1)

    def test_it_comes_back_from_json(self):
        for domain in (Domain(low=-(2**63), high=2**62), Domain(low=-1.5, high=math.inf), Domain(constant=False)):
            assert Domain.model_validate_json(domain.to_json()) == domain


def test_an_original_is_called_once_for_what_two_programs_are_asked() -> None:
    calls: list[int] = []

    def original(x):
        calls.append(1)
        return x.relu().sum(-1)

    asked, samples = asked_original(original, torch.linspace(-1, 1, 24).reshape(4, 6))
    called = [len(calls)]
    for _ in range(2):
        assert reach_of(lambda x: x.relu().sum(-1), asked, samples).domains == ()
        called.append(len(calls))
    assert called[1] - called[0] > 10
    assert called[2] - called[1] == 1  # watched for jumps


def test_an_answer_that_a_later_call_writes_into_is_kept_as_it_was() -> None:
    buffer = torch.zeros(4)

    def original(x):
        return buffer.copy_(x)

    asked, _ = asked_original(original, torch.ones(4))
    for _ in range(2):
        for value in (1.0, 2.0):
            ((_, leaf),) = asked.answer(Inputs((torch.full((4,), value),))).leaves
            assert leaf.tolist() == [value] * 4


def test_an_answer_too_large_to_be_kept_leaves_room_for_small_ones() -> None:
    calls: list[int] = []

    def original(x):
        calls.append(1)
        return x.new_zeros(32 << 20) if bool(x.max() > 1) else x * 2

    known, _ = asked_original(original, torch.ones(4))
    calls.clear()
    for value in (2.0, 1.0, 1.0, 2.0):
        known.answer(Inputs((torch.full((4,), value),)))
    assert len(calls) == 3, "the small one was kept"


@pytest.mark.parametrize(("darker_by", "low"), [(8, 52), (60, 60)])
def test_other_calls_that_are_answered_rightly_show_values_too(darker_by, low):
    """The program is right from 50 on."""
    frame = FRAME.clone()
    frame[0, 0, 0, 0] = 60
    asked, samples = asked_original(lambda f: (f - 50).float() / 255, frame)
    reach = reach_of(saturated, asked, samples, others=[Inputs((frame - darker_by,))])
    assert reach.problems == ()
    assert [domain.low for domain in reach.domains] == [low]


@pytest.mark.parametrize("seed", range(5))
def test_what_is_rounded_takes_values_a_little_beyond_those_shown(seed):
    """The next call holds some, and noise of that size is nothing that a calibration sees."""
    in_eight_bits = InEightBits(seed)
    largest = float(in_eight_bits.sample.abs().max())

    def wrapped(x):
        return in_eight_bits.program(x.where(x.abs() <= largest, x - 2 * largest * x.sign()))

    highs = [in_eight_bits.reach(program).domains[0].high for program in (in_eight_bits.program, wrapped)]
    assert highs[0] > 1.2 * largest
    assert highs[1] <= 1.001 * largest


def test_where_much_larger_floats_are_wrong_a_little_larger_ones_are_asked():
    """A state that an engine has handed on is by a rounding beyond all that the original's calls showed."""
    x = torch.linspace(-1, 1, 40)
    reach, _ = reached(lambda x: x * 2, lambda x: x.clamp(-3, 3) * 2, x)
    (domain,) = reach.domains
    assert (domain.low, domain.high) == (-1.25, 1.25)
    assert reach.problems == ()


def test_what_roundings_of_inputs_lead_to_is_no_other_branch():
    """The values are meant as they are, and there are no weights: nothing would move by which float64 is told from
    another function."""
    x = torch.linspace(-1, 1, 40)
    reach, _ = reached(lambda x: torch.sin(x * (1e4 / 3)), lambda x: torch.sin(x.double() * (1e4 / 3)).float(), x)
    assert reach.problems == ()


class HoldsAside(nn.Module):
    """As wrappers of several engines do: its model is in a list, so it has no parameters of its own."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.models = [model]

    def forward(self, x: Tensor) -> Tensor:
        return self.models[0](x)


def test_weights_that_a_module_does_not_hold_as_its_own_are_moved_by_roundings_too():
    module = HoldsAside(nn.Linear(4, 4))
    before = module.models[0].weight.detach().clone()
    moved = nudged(module, seed=0)
    difference = (moved.models[0].weight - before).abs()
    assert 0 < difference.max() < 1e-6
    assert torch.equal(module.models[0].weight, before)


def of_states(original, program, *, limit_s=10.0):
    """What is found of three states of one form, and how often the program was asked."""
    asked: list[int] = []

    def counted(*states: Tensor) -> Tensor:
        asked.append(1)
        return program(*states)

    states = [torch.linspace(-1, 1, 2048).roll(number) for number in range(3)]
    reach, _ = reached(original, counted, *states, limit_s=limit_s, clock=lambda: 0.0 if limit_s else 1.0)
    return reach, len(asked)


def test_inputs_of_one_form_are_asked_together_where_time_is_short():
    def together(a, b, c):
        return a + 2 * b + 3 * c

    in_short, asked_in_short = of_states(together, together, limit_s=0.0)
    reach, asked = of_states(together, together)
    assert in_short.problems == reach.problems == ()
    assert asked > 2 * asked_in_short


def test_of_inputs_that_are_wrong_together_the_one_that_is_wrong_is_bounded():
    reach, _ = of_states(lambda a, b, c: a + 2 * b + 3 * c, lambda a, b, c: a + 2 * b.clamp(-50, 50) + 3 * c)
    assert reach.problems == ()
    assert [domain.bounded for domain in reach.domains] == [False, True, False]


def test_what_one_input_hides_of_another_is_found_alone():
    """Together they are large, and c decides; alone a is what counts."""
    reach, _ = of_states(
        lambda a, b, c: torch.where(c.abs() > 5, c + b, a),
        lambda a, b, c: torch.where(c.abs() > 5, c + b, a.clamp(-9, 9)),
    )
    assert [domain.bounded for domain in reach.domains] == [True, False, False]


def test_a_call_that_the_program_refuses_shows_no_values():
    """The program is right from 50 on, and raises on frames that hold 255."""

    def refuses(frame):
        if bool((frame == 255).any()):
            raise ValueError("too bright")
        return saturated(frame)

    frame, other = FRAME.clone(), FRAME.clone()
    frame[0, 0, 0, 0] = 60
    other[0, 0, 0, :2] = torch.tensor([255, 40], dtype=torch.uint8)
    asked, samples = asked_original(lambda f: (f - 50).float() / 255, frame)
    reach = reach_of(refuses, asked, samples, others=[Inputs((other,))])
    assert [domain.low for domain in reach.domains] == [60]


@pytest.mark.parametrize("exact", [True, False])
def test_a_call_that_is_answered_wrongly_is_a_fault_where_no_bound_keeps_it_out(exact):
    """Of what is approximate the measure of the whole program judges it."""
    x = torch.linspace(-1, 1, 40)
    other = x.clone()
    other[3] = 0.3
    asked, samples = asked_original(lambda x: x * 2, x)
    reach = reach_of(lambda x: x.where(x != 0.3, 0.5) * 2, asked, samples, others=[Inputs((other,))], exact=exact)
    assert bool(reach.problems) is exact


def test_answers_to_calls_of_other_sizes_are_told_apart() -> None:
    known, _ = asked_original(lambda x: x * 2, torch.zeros(2, 3))
    shapes = [known.answer(Inputs((torch.zeros(size),))).leaves[0][1].shape for size in ((2, 3), (3, 2))]
    assert shapes == [(2, 3), (3, 2)]


@pytest.mark.parametrize(("dtype", "largest"), [(torch.float16, 255.0), (torch.bfloat16, 255.0), (torch.float32, 1e37)])
def test_what_is_asked_stays_within_the_type(dtype, largest):
    """A thousand times as large as the picture's values is no number of 16 bits."""
    x = torch.linspace(0, largest, 24).reshape(4, 6).to(dtype)
    reach, signature = reached(lambda x: x.clamp(max=1), lambda x: x.clamp(max=1), x)
    assert reach.problems == ()
    signature.check([x])
