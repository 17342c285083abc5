"""within keeps to the budget, gives the same results, and refuses to split what must not be split."""

from __future__ import annotations

import functools
import random
import warnings
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import togi
from togi.core.errors import BudgetError, TogiError
from togi.footprint.guard.within import Guarded
from togi.measure.memory import torch_allocator_peak_bytes
from togi.subject.program import reachable_modules

KIB = 1024


def hungry(rows: Tensor) -> Tensor:
    """(rows, 8) -> (rows,): takes 4 KiB a row on the way."""
    return (rows[:, :, None] * torch.ones(128)).exp().sum((1, 2))


def test_what_fits_runs_once() -> None:
    guarded = togi.within("1GiB")(hungry)
    given = torch.randn(64, 8)
    assert torch.equal(guarded(given), hungry(given))
    assert guarded.report.parts == 1
    assert guarded.report.predicted_bytes == torch_allocator_peak_bytes(lambda: hungry(given))


def test_what_does_not_fit_is_split_and_keeps_to_the_budget() -> None:
    guarded = togi.within(128 * KIB)(hungry)
    data = torch.randn(256, 8)
    torch.testing.assert_close(guarded(data), hungry(data))
    assert guarded.report.parts > 4
    assert guarded.report.predicted_part_bytes <= 128 * KIB < guarded.report.predicted_bytes
    measured = torch_allocator_peak_bytes(lambda: guarded(data))
    assert measured is not None
    assert measured <= 128 * KIB


class Shift:
    def __init__(self, by: Tensor) -> None:
        self.by = by


def test_rows_of_tensors_inside_an_object_are_split_too() -> None:
    def shifted(rows: Tensor, shift: Shift) -> Tensor:
        return hungry(rows + shift.by)

    guarded = togi.within(128 * KIB)(shifted)
    data, shift = torch.randn(256, 8), Shift(torch.randn(256, 8))
    torch.testing.assert_close(guarded(data, shift), shifted(data, shift))
    assert guarded.report.parts > 4


@given(rows=st.integers(2, 70), budget=st.integers(20, 400))
@settings(max_examples=15, deadline=None)
def test_any_number_of_rows(rows: int, budget: int) -> None:
    data = torch.randn(rows, 8)
    torch.testing.assert_close(togi.within(budget * KIB)(hungry)(data), hungry(data))


def test_what_kernels_take_on_the_way_counts() -> None:
    """A whole encoder layer is one kernel in eval mode: what it returns is a twelfth of what it takes."""
    module, budget = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True).eval(), 1 << 20
    data = torch.randn(16, 96, 32)
    guarded = togi.within(budget)(module)
    with torch.no_grad():
        torch.testing.assert_close(guarded(data), module(data))
        measured = torch_allocator_peak_bytes(lambda: guarded(data))
        assert guarded.report.parts > 1
        assert guarded.report.predicted_part_bytes <= budget < guarded.report.predicted_bytes
    assert measured is not None
    assert measured <= budget


def test_a_function_that_does_nothing() -> None:
    data = torch.randn(4, 8)
    assert togi.within("1KiB")(lambda rows: rows)(data) is data


def test_structure_of_results_is_kept() -> None:
    @togi.within(64 * KIB)
    def both(*, rows: Tensor) -> dict[str, Any]:
        """Its text."""
        return {"sum": hungry(rows), "pair": (rows * 2, rows > 0)}

    data = torch.randn(100, 8)
    found = both(rows=data)
    assert list(found) == ["sum", "pair"]
    assert torch.equal(found["pair"][0], data * 2)
    assert torch.equal(found["pair"][1], data > 0)
    assert both.__name__ == "both"
    assert both.report.parts > 1


def test_what_is_not_a_tensor_is_kept_as_the_first_part_returned_it() -> None:
    guarded = togi.within(128 * KIB)(lambda rows: (None, hungry(rows), "rows"))
    data = torch.randn(256, 8)
    nothing, found, text = guarded(data)
    assert (nothing, text) == (None, "rows")
    torch.testing.assert_close(found, hungry(data))
    assert guarded.report.parts > 4


def test_a_write_to_what_is_given_as_out_is_refused() -> None:
    total = torch.zeros(())

    def counted(rows: Tensor) -> Tensor:
        torch.add(total, 1.0, out=total)
        return hungry(rows)

    with pytest.raises(BudgetError, match="outlives the call"):
        togi.within(128 * KIB)(counted)(torch.randn(256, 8))
    assert total == 0


def test_an_out_that_the_call_made_is_its_own() -> None:
    def own(rows: Tensor) -> Tensor:
        return hungry(torch.mul(rows, 2.0, out=torch.empty_like(rows)))

    data = torch.randn(256, 8)
    torch.testing.assert_close(togi.within(128 * KIB)(own)(data), hungry(data * 2.0))


def normalized(rows: Tensor) -> Tensor:
    return hungry(rows) / rows.mean()


def sorted_rows(rows: Tensor) -> Tensor:
    return hungry(rows.sort(0).values)


def summed(rows: Tensor) -> Tensor:
    return hungry(rows).sum()


def per_batch_size(rows: Tensor) -> Tensor:
    return hungry(rows) / len(rows)


def weighted(rows: Tensor, weight: Tensor) -> Tensor:
    return hungry(rows) * weight


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (normalized, "aten.mean works across the rows at .*rows.mean()"),
        (sorted_rows, "aten.sort works across the rows"),
        (summed, "aten.sum works across the rows"),
        (per_batch_size, "aten.div computes with the number of rows"),
        (lambda rows: hungry(rows.roll(4, 0)), "aten.roll works across the rows"),
        (lambda rows: hungry(rows.view(-1, 8, 8).flip(1).reshape(-1, 8)), "aten.view merges rows"),
        (lambda rows: hungry(rows) * (rows.argmax(1).cumsum(0) < 9), "aten.cumsum works across the rows"),
        (lambda rows: hungry(rows) * (hungry(rows) >= hungry(rows).topk(60).values[-1]), "aten.topk works across"),
        (lambda rows: hungry(rows) if len(rows) > 40 else hungry(rows) + 1, "branches by their number"),
        (lambda rows: (hungry(rows), len(rows)), "returns a number that changes"),
        (lambda rows: hungry(rows.view(32, 2, 8).flatten(0, 1)), "do not run"),
        (nn.Sequential(nn.BatchNorm1d(8), nn.Linear(8, 4096)), "outlives the call"),
    ],
)
def test_what_must_not_be_split_is_refused(function: Any, said: str) -> None:
    with pytest.raises(BudgetError, match=said), torch.no_grad():
        togi.within(8 * KIB)(function)(torch.randn(64, 8))


def test_state_is_as_it_was_after_a_refusal() -> None:
    norm = nn.BatchNorm1d(8)
    before = {name: value.clone() for name, value in norm.state_dict().items()}
    with pytest.raises(BudgetError), torch.no_grad():
        togi.within(1)(norm)(torch.randn(64, 8))
    assert all(torch.equal(value, before[name]) for name, value in norm.state_dict().items())


def test_training_is_refused() -> None:
    with pytest.raises(BudgetError, match=r"togi\.fit"):
        togi.within(KIB)(nn.Linear(8, 512))(torch.randn(64, 8))


def test_a_row_too_large_says_the_least() -> None:
    with pytest.raises(BudgetError, match="even one row at a time would take"):
        togi.within(KIB)(hungry)(torch.randn(64, 8))


def test_inputs_without_a_batch() -> None:
    with pytest.raises(BudgetError, match="share no dimension 0"):
        togi.within(KIB)(weighted)(torch.randn(64, 8), torch.ones(1))


@pytest.mark.parametrize("message", ["DefaultCPUAllocator: can't allocate memory: you tried", "CUDA out of memory."])
def test_out_of_memory_is_split_on_the_same_device(message: str) -> None:
    sizes = []

    def refuses(rows: Tensor) -> Tensor:
        if type(rows) is Tensor:
            sizes.append(len(rows))
            if len(rows) > 10:
                raise torch.OutOfMemoryError(message) if "CUDA" in message else RuntimeError(message)
        return rows * 2

    guarded: Guarded = togi.within("1GiB")(refuses)
    data = torch.randn(33, 4)
    assert torch.equal(guarded(data), data * 2)
    assert guarded.report.out_of_memory == 2
    assert guarded.report.rows_per_part == 9
    assert guarded.report.parts == 4


def test_always_out_of_memory_ends() -> None:
    def refuses(rows: Tensor) -> Tensor:
        if type(rows) is Tensor:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return rows * 2

    with pytest.raises(BudgetError, match="out of memory with one row at a time"):
        togi.within("1GiB")(refuses)(torch.randn(8, 4))


def test_errors_other_than_out_of_memory_pass_through() -> None:
    def breaks(_: Tensor) -> Tensor:
        raise RuntimeError("no such thing")

    with pytest.raises(RuntimeError, match="no such thing"):
        togi.within("1GiB")(breaks)(torch.randn(8, 4))


@pytest.mark.parametrize("budget", ["8GiBB", "much", "0"])
def test_a_budget_that_is_not_a_size_is_refused(budget: str) -> None:
    with pytest.raises(TogiError):
        togi.within(budget)


def test_rows_that_are_seldom_dependent_are_never_split() -> None:
    """No two rows of ordinary values show it: only the loudest of many has an effect."""

    def floored(rows: Tensor) -> Tensor:
        return hungry(torch.maximum(rows, rows.max() - 100))

    with pytest.raises(BudgetError, match=r"aten\.max works across the rows"):
        togi.within(64 * KIB)(floored)(torch.randn(64, 8))


def test_parts_are_proven_at_the_size_that_they_have() -> None:
    """The last part of 33 rows has 6 where the others have 9."""

    def placed(rows: Tensor, odd: int) -> Tensor:
        return hungry(rows) + (1 if rows.shape[0] == odd else 0)

    data, guarded = torch.randn(33, 8), togi.within(80 * KIB)(placed)
    torch.testing.assert_close(guarded(data, 5), hungry(data))
    assert (guarded.report.rows_per_part, guarded.report.parts) == (9, 4)
    with pytest.raises(BudgetError, match=r"aten\.add computes with the number of rows"):
        guarded(data, 6)


WEIGHT = torch.randn(1_000_000)


@pytest.mark.parametrize(
    "function", [lambda rows: hungry(rows) + WEIGHT.sum(), lambda rows: WEIGHT.sum() + hungry(rows)]
)
def test_what_was_there_before_does_not_count_whenever_it_is_read(function: Any) -> None:
    data, guarded = torch.randn(256, 8), togi.within(128 * KIB)(function)
    torch.testing.assert_close(guarded(data), function(data))
    assert guarded.report.parts > 4
    measured = torch_allocator_peak_bytes(lambda: function(data))
    assert guarded.report.predicted_bytes == measured
    measured = torch_allocator_peak_bytes(lambda: guarded(data))
    assert measured is not None
    assert measured <= 128 * KIB


def wide(rows: Tensor) -> Tensor:
    """(rows, 8) -> (rows, 8, 128): 4 KiB a row, and as much on the way."""
    return (rows[:, :, None] * torch.ones(128)).exp()


@pytest.mark.parametrize(
    "function",
    [
        wide,
        lambda rows: (rows, hungry(rows[:, :8])),
        lambda rows: (rows[:, ::2], rows.view(-1, 1, 1024), hungry(rows[:, :8])),
        lambda rows: [hungry(rows[:, :8])[:, None].expand(-1, 512)] * 2,
    ],
    ids=["results", "input", "views of the input", "one twice"],
)
def test_all_that_is_put_together_from_parts_keeps_to_the_budget(function: Any) -> None:
    data = torch.randn(128, 8) if function is wide else torch.randn(128, 1024)
    guarded = togi.within(900 * KIB)(function)
    torch.testing.assert_close(guarded(data), function(data))
    measured = torch_allocator_peak_bytes(lambda: guarded(data))
    assert measured is not None
    assert measured <= guarded.report.predicted_part_bytes <= 900 * KIB
    with pytest.raises(BudgetError, match="even one row at a time would take"):
        togi.within(500 * KIB)(function)(data)


def test_a_small_view_of_a_large_result_is_put_together_small() -> None:
    data, guarded = torch.randn(256, 8), togi.within(128 * KIB)(lambda rows: wide(rows)[:, :, 0])
    assert torch.equal(guarded(data), wide(data)[:, :, 0])
    assert guarded.report.predicted_part_bytes <= 128 * KIB


class Caching(nn.Module):
    """Keeps something of every call, and all that it was given."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)
        self.mask: Tensor | None = None
        self.seen: list[Tensor] = []

    def forward(self, rows: Tensor) -> Tensor:
        self.mask = torch.ones_like(rows)
        self.seen.append(rows)
        return hungry(self.linear(rows) * self.mask)

    def run(self, rows: Tensor) -> Tensor:
        return self(rows)


CACHING = Caching()


def through_a_global(rows: Tensor) -> Tensor:
    return CACHING(rows)


WAYS = pytest.mark.parametrize(
    "form",
    [
        lambda model: model,
        lambda model: model.run,
        lambda model: functools.partial(Caching.run, model),
        lambda model: lambda rows: model(rows),
        lambda _: through_a_global,
        lambda model: torch.no_grad()(model.run),
    ],
    ids=["module", "method", "partial", "closure", "global", "decorated"],
)


@WAYS
def test_what_a_module_keeps_of_a_call_is_a_real_tensor(form: Any) -> None:
    CACHING.mask, CACHING.seen = None, []
    model = form(Caching())
    (module,) = reachable_modules(model).values()
    data = torch.randn(64, 8)
    guarded = togi.within("1GiB")(model)
    with torch.no_grad():
        for _ in range(2):
            found = guarded(data)
        assert {type(kept) for kept in (module.mask, *module.seen)} == {Tensor}
        assert len(module.seen) == 2
        torch.testing.assert_close(found, model(data))


@WAYS
def test_what_keeps_rows_of_a_call_is_not_split(form: Any) -> None:
    """Parts would leave the rows of the last one."""
    CACHING.mask, CACHING.seen = None, []
    model = form(Caching())
    (module,) = reachable_modules(model).values()
    with pytest.raises(BudgetError, match="keeps something of its rows"), torch.no_grad():
        togi.within("64KiB")(model)(torch.randn(64, 8))
    assert (module.mask, module.seen) == (None, [])


class Decay(nn.Module):
    """Each call is answered otherwise than the one before."""

    step, past = 0, torch.ones(8)

    def __init__(self, keeps: str) -> None:
        super().__init__()
        self.keeps, self.log = keeps, [torch.ones(1)]

    def forward(self, rows: Tensor) -> Tensor:
        if self.keeps == "step":
            self.step += 1
        elif self.keeps == "past":
            self.past = self.past * 0.5
        elif self.keeps == "size":
            self.size = rows.shape[0]
        else:
            self.log.append(torch.ones(1))
        return hungry(rows * self.past) * 0.5**self.step


@pytest.mark.parametrize(
    ("keeps", "said"),
    [
        ("step", "each call changes step"),
        ("past", "each call changes past"),
        ("log", "each call changes log"),
        ("size", r"keeps the number of its rows \(size\)"),
    ],
)
def test_what_counts_its_calls_is_not_split(keeps: str, said: str) -> None:
    module, data = Decay(keeps), torch.randn(64, 8)
    with pytest.raises(BudgetError, match=said):
        togi.within("64KiB")(module)(data)
    torch.testing.assert_close(togi.within("1GiB")(module)(data), Decay(keeps)(data))


def test_what_changes_its_arguments_is_not_split() -> None:
    """Parts are given lists of their own, and the caller's would stay as they are."""

    def listed(rows: Tensor, into: list[Tensor]) -> Tensor:
        into.append(rows)
        return hungry(rows)

    def noted(rows: Tensor, shift: Shift) -> Tensor:
        shift.by = rows
        return hungry(rows)

    into: list[Tensor] = []
    data, shift = torch.randn(64, 8), Shift(torch.ones(64, 8))
    for function, argument, name in ((listed, into, "a list"), (noted, shift, "by")):
        with pytest.raises(BudgetError, match=rf"changes what it is given \({name}\)"):
            togi.within("64KiB")(function)(data, argument)
    assert not into
    assert shift.by.sum() == 512
    togi.within("1GiB")(listed)(data, into)
    togi.within("1GiB")(noted)(data, shift)
    assert into[0] is data
    assert shift.by is data


def test_what_cannot_be_put_together_from_parts_is_refused() -> None:
    """The object of the first part would be returned, with its rows alone."""
    with pytest.raises(BudgetError, match="returns a Shift, which cannot be put together"):
        togi.within("64KiB")(lambda rows: (hungry(rows), Shift(rows)))(torch.randn(64, 8))


TABLES: dict[str, Tensor] = {}


class Table:
    """Notes how many it has next to what it keeps."""

    size, table = 0, torch.ones(0)

    def first(self, count: int) -> Tensor:
        if count > self.size:
            self.size, self.table = count, torch.arange(count, dtype=torch.float32)
        return self.table[:count]


def _of_a_global(rows: Tensor) -> Tensor:
    if "positions" not in TABLES:
        TABLES["positions"] = torch.arange(8.0)
    return hungry(rows + TABLES["positions"])


def _of_a_variable() -> Any:
    table = None

    def positioned(rows: Tensor) -> Tensor:
        nonlocal table
        table = torch.arange(8.0) if table is None else table
        return hungry(rows + table)

    return positioned


def _of_an_object() -> Any:
    table = Table()
    return lambda rows: hungry(rows + table.first(rows.shape[1]))


@pytest.mark.parametrize("budget", ["64KiB", "1GiB"])
@pytest.mark.parametrize("make", [lambda: _of_a_global, _of_a_variable, _of_an_object])
def test_caches_outside_of_modules_hold_real_tensors(make: Any, budget: str) -> None:
    TABLES.clear()
    function, data = make(), torch.randn(64, 8)
    guarded = togi.within(budget)(function)
    for _ in range(2):
        assert type(guarded(data)) is Tensor
    assert guarded.report.parts > 1 or budget == "1GiB"
    torch.testing.assert_close(guarded(data), hungry(data + torch.arange(8.0)))
    assert not TABLES or type(TABLES["positions"]) is Tensor


def test_weights_that_autocast_keeps_have_values() -> None:
    """Autocast keeps what it makes of a weight until its block ends."""
    module, data = nn.Linear(8, 8), torch.randn(64, 8)
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(togi.within("1GiB")(module)(data), module(data))
        guarded = togi.within("96KiB")(lambda rows: hungry(module(rows)))
        torch.testing.assert_close(guarded(data), hungry(module(data)))
        assert guarded.report.parts > 1


def test_a_method_is_guarded_too() -> None:
    class Doubled(nn.Module):
        """Its text."""

        def __init__(self, by: float) -> None:
            super().__init__()
            self.by, self.seen = by, 0

        @togi.within("1GiB")
        def forward(self, rows: Tensor) -> Tensor:
            self.seen += 1
            return rows * self.by

    module = Doubled(2.0)
    assert torch.equal(module(torch.ones(4, 8)), torch.full((4, 8), 2.0))
    assert torch.equal(Doubled(3.0)(torch.ones(2, 8)), torch.full((2, 8), 3.0))
    assert module.seen == 1
    assert Doubled.forward.report.rows == 2


@pytest.mark.parametrize(
    "function",
    [
        lambda rows: torch.from_numpy(rows.numpy() * 2),
        lambda rows: rows * int(rows[0, 0] + 1),
        nn.Sequential(nn.LazyLinear(8), nn.ReLU()),
    ],
    ids=["NumPy", "values", "lazy"],
)
def test_what_cannot_be_predicted_runs_as_it_is_with_one_warning(function: Any) -> None:
    guarded, data = togi.within("1MiB")(function), torch.ones(64, 8)
    with pytest.warns(RuntimeWarning, match=r"does not keep to 1\.00 MiB"), torch.no_grad():
        found = guarded(data)
    assert "could not be predicted" in guarded.report.notes[0]
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("error", RuntimeWarning)
        assert torch.equal(found, guarded(data))


def test_inside_of_transforms_and_compilers_it_runs_as_it_is() -> None:
    guarded, data = togi.within("1KiB")(lambda rows: (rows * rows).sum(-1)), torch.randn(64, 8)
    torch.testing.assert_close(torch.func.vmap(guarded)(data), guarded.function(data))
    gradient = torch.func.grad(lambda rows: guarded(rows).sum())(data)
    assert torch.equal(gradient, 2 * data)
    assert guarded.report.notes
    traced = torch.jit.trace(lambda rows: guarded(rows), data)
    assert torch.equal(traced(data), guarded.function(data))
    compiled = torch.compile(lambda rows: guarded(rows) + 1, backend="eager")
    torch.testing.assert_close(compiled(data), guarded.function(data) + 1)


def test_predicting_moves_no_generator() -> None:
    import numpy as np

    guarded = togi.within("1GiB")(lambda rows: rows * random.random() + float(np.random.rand()))
    data = torch.ones(4, 8)
    expected, found = [], []
    for call, answers in ((guarded.function, expected), (guarded, found)):
        random.seed(0)
        np.random.seed(0)
        answers += [call(data), call(data)]
    assert all(map(torch.equal, expected, found))


def test_what_a_module_keeps_for_its_next_call_serves_it() -> None:
    class Positions(nn.Module):
        table: Tensor | None = None

        def forward(self, rows: Tensor) -> Tensor:
            if self.table is None or len(self.table) < rows.shape[1]:
                self.table = torch.arange(rows.shape[1], dtype=rows.dtype)
            return hungry(rows + self.table)

    module, data = Positions(), torch.randn(64, 8)
    for budget in ("1GiB", "64KiB", "1GiB"):
        torch.testing.assert_close(togi.within(budget)(module)(data), Positions()(data))
    assert type(module.table) is Tensor


def test_what_a_module_holds_besides_its_parameters_takes_no_memory_twice() -> None:
    module = Caching()
    module.seen = [torch.ones(1 << 20)]
    module.state = SimpleNamespace(kept=torch.ones(1 << 20), lock=nn.Identity())
    module.later = (torch.ones(2, requires_grad=True) * 2,)  # with a graph
    guarded = togi.within("1GiB")(module)
    with torch.no_grad():
        guarded(data := torch.randn(8, 8))
        measured = torch_allocator_peak_bytes(lambda: guarded(data))
    assert measured is not None
    assert measured < 1 << 20


@functools.lru_cache
def doubled(count: int) -> Tensor:
    return torch.ones(count) * 2


def test_a_tensor_without_values_that_stays_is_reported() -> None:
    """Nobody can look into such a cache: it is emptied if it was empty."""
    doubled.cache_clear()
    guarded, data = togi.within("64KiB")(lambda rows: hungry(rows * doubled(8))), torch.randn(64, 8)
    torch.testing.assert_close(guarded(data), hungry(data * 2))
    assert guarded.report.parts > 1
    assert type(doubled(8)) is Tensor
    doubled.cache_clear()
    doubled(3)
    with pytest.raises(BudgetError, match=r"a result of aten\.mul\.Tensor stays where the function keeps it"):
        guarded(data)
    doubled.cache_clear()

    class Slots:
        __slots__ = ("seen",)

    slots = Slots()
    with pytest.raises(BudgetError, match="its input stays"):
        togi.within("1GiB")(lambda rows: (setattr(slots, "seen", rows), rows.sum(1))[1])(data)


def test_predicting_draws_no_random_numbers() -> None:
    """The kernels near the peak run alone."""
    own = torch.Generator().manual_seed(1)
    drawing = {
        "default": lambda rows: rows + torch.rand_like(rows),
        "own": lambda rows: rows + torch.empty_like(rows).uniform_(generator=own),
    }
    data = torch.randn(64, 8)
    for draw in drawing.values():
        torch.manual_seed(0)
        own.manual_seed(1)
        expected = draw(data)
        torch.manual_seed(0)
        own.manual_seed(1)
        assert torch.equal(togi.within("1GiB")(draw)(data), expected)


def test_what_autocast_leaves_alone_is_predicted_as_it_is() -> None:
    weight = torch.randn(512, 512)

    def product(rows: Tensor) -> Tensor:
        with torch.autocast("cpu", enabled=False):
            return rows @ weight

    data, guarded = torch.randn(64, 512), togi.within("1GiB")(product)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(guarded(data), product(data))
        assert guarded.report.predicted_bytes == torch_allocator_peak_bytes(lambda: product(data))
