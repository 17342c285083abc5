"""The account: exact against the profiler, complete to the byte, and right about who owns what."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import togi
from tests.footprint.small_models import Attention, Convolutions, Recurrent
from togi.core.errors import TogiError
from togi.footprint.account.make import account_from
from togi.footprint.account.record import Account, Category
from togi.footprint.account.watch import AccountWatch
from togi.footprint.account.watched import account_of
from togi.footprint.step import make_step
from togi.measure.memory import torch_allocator_peak_bytes
from togi.subject.inputs import Subject

MIB = 2**20


MODELS: dict[str, Callable[[], tuple[nn.Module, Tensor]]] = {
    "convolutions": lambda: (Convolutions(), torch.randn(4, 3, 32, 32)),
    "attention": lambda: (Attention(), torch.randn(2, 48, 32)),
    "recurrent": lambda: (Recurrent(), torch.randn(4, 20, 16)),
}


@pytest.mark.parametrize("optimizer", ["none", "momentum", "adamw"])
@pytest.mark.parametrize("name", MODELS)
def test_training_peak_is_the_allocators_to_the_byte(name: str, optimizer: str) -> None:
    module, given = MODELS[name]()
    step = make_step(Subject(module, given), train=True, optimizer=optimizer)
    account = account_of(step)
    assert sum(holding.bytes for holding in account.holdings) == account.peak_bytes
    peak = torch_allocator_peak_bytes(step.run)
    assert peak is not None
    assert account.peak_bytes - account.baseline_bytes == peak


@pytest.mark.parametrize("name", MODELS)
def test_inference_peak_is_the_allocators_to_the_byte(name: str) -> None:
    module, given = MODELS[name]()
    step = make_step(Subject(module, given), train=False)
    account = account_of(step)
    peak = torch_allocator_peak_bytes(step.run)
    assert peak is not None
    assert (
        account.peak_bytes - account.baseline_bytes
        == peak
        == sum(account.by_category().values()) - (account.baseline_bytes)
    )
    assert not account.kept
    assert Category.ACTIVATION not in account.by_category()


def _train(module: nn.Module, given: Tensor, optimizer: str = "none") -> Account:
    return account_of(make_step(Subject(module, given), train=True, optimizer=optimizer))


def test_the_time_of_a_step_on_a_device_ends_when_the_device_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: time.sleep(0.05))
    step = make_step(Subject(nn.Linear(2, 2), (torch.ones(1, 2),)), train=False)
    assert account_of(step).plain_ms >= 50


def test_what_libraries_hold_before_the_run_is_in_the_account(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stand-in for torch's allocator on a GPU that holds cuBLAS's 32 MiB and two tensors, in multiples of 512."""
    monkeypatch.setattr("torch.cuda.synchronize", lambda: None)
    monkeypatch.setattr("torch.cuda.memory_allocated", lambda: (32 << 20) + 2 * 512)
    watch = AccountWatch(device="cuda")
    watch.tracker.add_existing([torch.ones(3), torch.ones(128)], Category.INPUT, "")
    watch.count_unowned()
    assert watch.unowned_bytes == 32 << 20
    plain = account_from(watched(AccountWatch()))
    held = watched(AccountWatch())
    held.unowned_bytes = 32 << 20
    account = account_from(held)
    assert account.peak_bytes - plain.peak_bytes == account.baseline_bytes - plain.baseline_bytes == 32 << 20
    workspace = next(holding for holding in account.holdings if holding.op == "(libraries, before the run)")
    assert (workspace.category, workspace.bytes) == (Category.WORKSPACE, 32 << 20)
    assert sum(of[0] for of in account.timeline.bytes.values()) >= 32 << 20


def watched(watch: AccountWatch) -> AccountWatch:
    with watch:
        torch.ones(1000) * 2
    return watch


def test_adam_keeps_two_values_for_each_parameter() -> None:
    module = nn.Linear(256, 256)
    account = _train(module, torch.randn(2, 256), "adam")
    state = account.by_category()[Category.OPTIMIZER]
    weights = account.by_category()[Category.PARAMETER]
    assert weights == (256 * 256 + 256) * 4
    assert state == 2 * weights + 2 * 4  # and a step counter for each parameter


def test_what_is_kept_is_counted_once_with_everyone_who_keeps_it() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.Linear(64, 64)

        def forward(self, given: Tensor) -> Tensor:
            hidden = self.first(given)
            return hidden.exp() * hidden

    account = _train(Twice(), torch.randn(128, 64))
    hidden = [kept for kept in account.kept if kept.op == "aten.addmm.default"]
    assert [kept.bytes for kept in hidden] == [128 * 64 * 4]
    assert hidden[0].kept_by == ("MulBackward0.other",)
    exponential = [kept for kept in account.kept if kept.op == "aten.exp.default"]
    assert exponential[0].kept_by == ("ExpBackward0.result", "MulBackward0.self")
    assert "first" in {kept.module for kept in account.kept}


def test_what_hooks_packed_is_left_alone() -> None:
    packed, unpacked = [], []

    def pack(saved: Tensor) -> Tensor:
        packed.append(saved.shape)
        return saved

    def unpack(saved: Tensor) -> Tensor:
        unpacked.append(saved.shape)
        return saved

    class Packing(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.Linear(64, 64)

        def forward(self, given: Tensor) -> Tensor:
            hidden = self.first(given)
            with torch.autograd.graph.saved_tensors_hooks(pack, unpack):
                hidden = hidden.exp()
            return hidden.sin()

    account = _train(Packing(), torch.randn(128, 64))
    assert unpacked == packed
    kept_by = {place for kept in account.kept for place in kept.kept_by}
    assert "SinBackward0.self" in kept_by
    assert "ExpBackward0.result" not in kept_by


def test_a_name_that_outlives_its_use_is_found_with_what_its_deletion_brings() -> None:
    class Wasteful(nn.Module):
        def forward(self, given: Tensor) -> Tensor:
            wide = given[:, None] + given[None]
            half = wide * 0.5
            shifted = half + 1.0
            return shifted.sum()

    step = make_step(Subject(Wasteful(), torch.randn(512)), train=False)
    account = account_of(step)
    held = {held.name: held for held in account.held_names}
    assert set(held) == {"wide"}
    assert held["wide"].bytes == MIB
    assert held["wide"].saved_bytes == MIB

    class Fixed(nn.Module):
        def forward(self, given: Tensor) -> Tensor:
            wide = given[:, None] + given[None]
            half = wide * 0.5
            del wide
            shifted = half + 1.0
            return shifted.sum()

    fixed = account_of(make_step(Subject(Fixed(), torch.randn(512)), train=False))
    assert account.peak_bytes - fixed.peak_bytes == MIB
    assert not fixed.held_names


def test_gradients_belong_to_the_module_whose_parameter_they_are_of() -> None:
    module = nn.Sequential(nn.Linear(512, 512, bias=False), nn.Linear(512, 512, bias=False))
    account = _train(module, torch.randn(1, 512))
    gradients = {holding.module: holding.bytes for holding in account.holdings if holding.category == "gradient"}
    assert gradients == {"0": MIB, "1": MIB}


def test_a_network_of_one_kernel_reports_its_workspace() -> None:
    account = account_of(make_step(Subject(nn.Conv2d(8, 8, 3), torch.randn(1, 8, 64, 64)), train=False))
    assert account.peak.op == "aten.convolution.default"
    made = [holding for holding in account.holdings if holding.category in (Category.WORKSPACE, Category.OUTPUT)]
    # Which of its copies in layouts of its own the kernel holds at once, and whether beside the plain output, depends
    # on the processor's instructions.
    assert sum(holding.bytes for holding in made) >= 8 * 62 * 62 * 4
    assert {holding.op for holding in made if holding.category is Category.WORKSPACE} == {"aten::mkldnn_convolution"}
    assert sum(account.by_category().values()) == account.peak_bytes


def test_timeline_reaches_the_peak_and_is_complete_at_every_point() -> None:
    module, given = MODELS["convolutions"]()
    account = _train(module, given, "momentum")
    totals = [sum(point) for point in zip(*account.timeline.bytes.values(), strict=True)]
    assert max(totals) == account.peak_bytes
    assert len(totals) == len(account.timeline.ms)
    assert list(account.timeline.ms) == sorted(account.timeline.ms)
    at_peak = {c: series[totals.index(max(totals))] for c, series in account.timeline.bytes.items()}
    assert {c: b for c, b in at_peak.items() if b} == account.by_category()


def test_what_was_there_before_watched_code_is_not_an_allocation_of_it() -> None:
    given = torch.randn(1024, 256)

    def watched(rows: Tensor) -> Tensor:
        half = rows[:512]
        return half.exp().sum()

    with togi.memory() as watch:
        watched(given)
    account = watch.account
    scratch = account.by_category().get(Category.WORKSPACE, 0)  # the sum's own
    assert scratch < 64
    assert account.peak_bytes == 512 * 256 * 4 + 4 + scratch
    assert account.baseline_bytes == 0
    assert not account.held_names


def test_account_is_read_after_the_block() -> None:
    watch = togi.memory()
    with pytest.raises(TogiError, match="after the end of the with block"):
        _ = watch.account
    with pytest.raises(ValueError, match="of the user"), watch:
        raise ValueError("of the user")
    with pytest.raises(TogiError, match="must not raise"):
        _ = watch.account


class OwnWork(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(64, 64)
        self.scale = nn.Parameter(torch.ones(64))

    def forward(self, given: Tensor) -> Tensor:
        return self.layer(given).sigmoid() * self.scale


def test_what_the_outermost_module_does_itself_is_under_its_class_name() -> None:
    account = account_of(make_step(Subject(OwnWork(), torch.ones(512, 64)), train=True))
    modules = {holding.op: holding.module for holding in account.holdings if holding.op}
    assert modules["aten.sigmoid.default"] == "OwnWork"
    parameters = {holding.module for holding in account.holdings if holding.category is Category.PARAMETER}
    assert parameters == {"layer", "OwnWork"}


@pytest.mark.thorough
def test_it_is_its_tables_in_print_and_in_a_notebook() -> None:
    account = togi.memory(OwnWork(), torch.ones(512, 64), train=True)
    assert str(account).startswith("Peak ")
    assert "activation" in str(account)
    page = account._repr_html_()
    assert page is not None
    assert "memory alive, MiB" in page
    assert "aten.sigmoid.default" in page


@pytest.mark.thorough
def test_watching_writes_nothing_to_the_terminal() -> None:
    code = "import torch, togi\nwith togi.memory() as seen: torch.ones(1000)\nassert seen.account.peak_bytes == 4000"
    quiet = {name: value for name, value in os.environ.items() if name != "KINETO_LOG_LEVEL"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=quiet)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
