"""The tracker books every storage once, from birth to death, on real and on fake tensors."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from togi.footprint.storage_tracker import StorageTracker
from togi.torch_internals.modules import ModuleTracker

KIB = 1024


def test_births_deaths_and_peak() -> None:
    with StorageTracker() as tracker:
        first = torch.zeros(KIB // 4)
        second = first + 1
        del first
        third = second.view(2, -1).sum()
        del second
    assert [lifetime.bytes for lifetime in tracker.lifetimes] == [KIB, KIB, 4]
    assert [lifetime.died is None for lifetime in tracker.lifetimes] == [False, False, True]
    assert tracker.peak_bytes == 2 * KIB
    assert tracker.current_bytes == third.untyped_storage().nbytes() == 4


def test_what_was_entered_keeps_its_category_and_is_booked_once() -> None:
    linear = nn.Linear(8, 8)
    tracker = StorageTracker()
    tracker.add_existing(linear.parameters(), "parameter")
    tracker.add_existing([linear.weight.view(-1)], "input")
    with tracker:
        linear(torch.ones(1, 8))
    assert [lifetime.category for lifetime in tracker.lifetimes][:2] == ["parameter", "parameter"]
    assert sum(lifetime.category == "input" for lifetime in tracker.lifetimes) == 0


def test_lines_are_the_users() -> None:
    with StorageTracker(where=ModuleTracker().now) as tracker:
        kept = nn.functional.gelu(torch.ones(4))  # the line
    assert kept.numel() == 4
    assert all("test_storage_tracker.py" in lifetime.where.line for lifetime in tracker.lifetimes)


@pytest.mark.parametrize("layers", [1, 4])
def test_fake_run_books_the_same_as_a_real_one(layers: int) -> None:
    def run() -> int:
        module = nn.Sequential(*[nn.Sequential(nn.Linear(64, 64), nn.GELU()) for _ in range(layers)])
        tracker = StorageTracker()
        tracker.add_existing(module.parameters(), "parameter")
        with tracker:
            module(torch.ones(32, 64)).sum().backward()
            module.zero_grad()
        return tracker.peak_bytes

    with FakeTensorMode():
        fake = run()
    assert fake == run()


def test_a_storage_that_takes_the_place_of_a_dead_one_is_another() -> None:
    with StorageTracker() as tracker:
        for _ in range(50):
            torch.ones(KIB)
    assert len(tracker.lifetimes) == 50
    assert tracker.current_bytes == 0
    assert tracker.peak_bytes == 4 * KIB


def test_what_no_operation_made_need_not_count() -> None:
    there, later = torch.ones(KIB), torch.ones(8 * KIB)
    tracker = StorageTracker(counts_existing=False)
    tracker.add_existing([there], "input")
    with tracker:
        result = there + 1
        del there
        result = result + later.sum()
        del later
    assert len(tracker.lifetimes) == 5
    assert tracker.peak_bytes == 2 * 4 * KIB + 4
    assert tracker.current_bytes == result.nbytes == 4 * KIB


def test_a_resized_storage_is_buried_and_booked_again() -> None:
    with StorageTracker() as tracker:
        tensor = torch.ones(KIB // 4)
        tensor.resize_(KIB)
    assert tracker.current_bytes == 4 * KIB == tensor.untyped_storage().nbytes()


def test_backward_belongs_to_the_module_and_line_of_its_forward() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(16, 16), nn.Linear(16, 16)

        def forward(self, given: torch.Tensor) -> torch.Tensor:
            hidden = self.first(given).sigmoid()
            return self.second(hidden)

    model = Model()
    modules = ModuleTracker(model)
    tracker = StorageTracker(where=modules.now)
    tracker.add_existing(model.parameters(), "parameter")
    with modules.following(), tracker:
        model(torch.ones(4, 16)).sum().backward()
    backward = [lifetime for lifetime in tracker.lifetimes if lifetime.where.phase == "backward"]
    sigmoid = next(lifetime for lifetime in backward if "sigmoid_backward" in lifetime.op)
    assert sigmoid.where.module == ""
    assert {lifetime.where.module for lifetime in backward if "aten.mm" in lifetime.op} == {"first", "second"}
    assert "in forward" in sigmoid.where.line


def _sparse_embedding() -> torch.Tensor:
    table = nn.Embedding(50, 8, sparse=True)
    table(torch.tensor([1, 2, 2])).sum().backward()
    torch.optim.SparseAdam(table.parameters()).step()
    return table.weight.detach()


def _swapped() -> torch.Tensor:
    one, other = torch.ones(3), torch.zeros(3)
    torch.utils.swap_tensors(one, other)
    return one


def _jagged() -> torch.Tensor:
    nested = torch.nested.nested_tensor([torch.ones(2, 3), torch.ones(4, 3)], layout=torch.jagged)
    return (nn.functional.linear(nested, torch.ones(5, 3)) * 2).values()


OTHER_LAYOUTS = {
    "a sparse gradient": _sparse_embedding,
    "coo": lambda: torch.eye(9).to_sparse() @ torch.ones(9, 2),
    "csr": lambda: torch.eye(9).to_sparse_csr() @ torch.ones(9, 2),
    "bsr": lambda: torch.eye(9).to_sparse_bsr((3, 3)).to_dense() * 2,
    "mkldnn": lambda: torch.eye(9).to_mkldnn().to_dense() + 1,
    "jagged": _jagged,
    "nested": lambda: (torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]) * 2).to_padded_tensor(0.0),
    "quantized": lambda: torch.quantize_per_tensor(torch.ones(4), 0.5, 0, torch.qint8).dequantize(),
    "complex": lambda: (torch.ones(3, dtype=torch.complex64) * 1j).conj().imag,
    "masked": lambda: (torch.masked.masked_tensor(torch.ones(3), torch.tensor([True, False, True])) * 2).get_data(),
    "swapped": _swapped,
    "empty": lambda: torch.empty(0, 3) + 1,
    "meta": lambda: torch.ones(3, device="meta") + 1,
    "vmap of grad": lambda: torch.func.vmap(torch.func.grad(lambda x: (x * x).sum()))(torch.ones(3, 2)),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", OTHER_LAYOUTS)
def test_no_layout_raises_in_the_watched_code(name: str) -> None:
    run = OTHER_LAYOUTS[name]
    torch.manual_seed(0)
    expected = run()
    torch.manual_seed(0)
    with StorageTracker() as tracker:
        found = run()
    assert (found.shape, found.dtype, found.device) == (expected.shape, expected.dtype, expected.device)
    assert found.is_meta or torch.equal(found, expected)
    assert len(tracker.notes) == (name == "mkldnn"), tracker.notes


def test_a_sparse_tensor_counts_with_its_indices() -> None:
    indices, values = torch.tensor([[0, 1], [1, 0]]), torch.ones(2, KIB)
    with StorageTracker() as tracker:
        sparse = torch.sparse_coo_tensor(indices, values, (2, 2, KIB)) * 2
    assert tracker.current_bytes == sum(t.nbytes for t in (indices, values, sparse._indices(), sparse._values()))
    assert len(tracker.lifetimes_behind(sparse)) == 2
    kept = tracker.lifetimes_behind(sparse)
    del sparse
    assert all(lifetime.died is not None for lifetime in kept)


def test_a_memory_that_cannot_be_asked_is_named_and_nothing_raises() -> None:
    tracker = StorageTracker()
    tracker.add_existing([torch.eye(3).to_mkldnn()], "parameter")
    assert tracker.lifetimes == []
    assert tracker.notes == ("Not counted: tensors of torch._mkldnn (torch does not show the memory of this layout).",)
