"""The simulation: what it answers, what it leaves behind, and what happens where it cannot hold."""

from __future__ import annotations

import linecache
import threading
import warnings

import pytest
import torch
from torch import nn

import togi
from tests.small_modules import Computes
from togi.core.errors import SubjectError
from togi.lint.trace import check as trace_check
from togi.lint.trace.check import MESSAGE, agreement, confirmed, debug_mode_events, trace_subject
from togi.lint.trace.patches import Patches
from togi.lint.trace.placement import CUDA, device_of, is_pinned, on_cuda, pin, place
from togi.lint.trace.recorder import EventRecorder
from togi.lint.trace.watching import watching


def traced(function, sample=None):
    torch.manual_seed(0)
    return trace_subject(togi.Subject(Computes(function).eval(), torch.randn(6, 4) if sample is None else sample))


def kinds(trace):
    return [event.kind for event in trace.events]


def test_a_tensor_and_all_that_comes_from_it_say_cuda():
    def look(x):
        parts = (x, x.T, x.detach(), x.data, x + 1, torch.cat([x, x]), x.sum(), x[0], x.clone())
        assert all(t.is_cuda and t.device == torch.device("cuda", 0) and not t.is_cpu for t in parts)
        assert x.get_device() == 0
        assert torch.zeros(3).device.type == "cpu"
        assert torch.zeros(3, device="cuda").device == x.device == torch.zeros_like(x).device
        assert torch.ones(3, device=x.device).cpu().device.type == "cpu"
        assert torch.cuda.is_available()
        return x

    assert traced(look).mode == "simulated"


def test_gradients_lie_where_their_parameters_do():
    def step(module, x):
        module(x).sum().backward()
        assert all(p.grad is not None and p.grad.is_cuda for p in module.parameters())
        return x.sum()

    assert trace_subject(togi.Subject(nn.Linear(4, 4), torch.randn(2, 4), step=step)).mode == "simulated"


def test_nothing_is_left_behind_even_after_a_failure():
    device, thread_start = torch.Tensor.__dict__.get("device"), threading.Thread._bootstrap_inner

    def fail():
        with watching(EventRecorder(), simulated=True):
            raise RuntimeError("boo")

    with pytest.raises(RuntimeError, match="boo"):
        fail()
    assert torch.Tensor.__dict__.get("device") is device
    assert threading.Thread._bootstrap_inner is thread_start
    assert torch.ones(2).device.type == "cpu"
    assert not torch._C._only_lift_cpu_tensors()
    assert isinstance(torch.Generator(), torch._C.Generator)
    assert torch.cuda.Event.__module__.startswith("torch")


def test_patches_put_back_what_was_there_and_remove_what_was_not():
    class Parent:
        inherited = 1

    class Child(Parent):
        own = 2

    patches = Patches()
    patches.set(Child, "inherited", 10)
    patches.set(Child, "own", 20)
    with patches:
        assert (Child.inherited, Child.own) == (10, 20)
    assert (Child.inherited, Child.own) == (1, 2)
    assert "inherited" not in vars(Child)


def test_marks_belong_to_memory():
    tensor = torch.zeros(4)
    assert not on_cuda(tensor)
    place(tensor, CUDA)
    assert on_cuda(tensor[1:].view(3, 1))
    assert device_of(tensor.clone()).type == "cpu"
    assert is_pinned(pin(torch.zeros(2))[0])
    sparse = place(torch.eye(3).to_sparse(), CUDA)
    assert on_cuda(sparse)


def test_what_fails_only_under_simulation_is_watched_without_it_which_is_reported():
    def no_kernel(x):
        if x.is_cuda:
            raise RuntimeError("no kernel image is available")
        return x * x.sum().item()

    trace = traced(no_kernel)
    assert trace.mode == "watched"
    assert "no kernel image" in trace.notes[-1]
    assert kinds(trace) == ["wait"]


def test_what_fails_always_is_an_error_that_names_the_line():
    def fails(x):
        raise ValueError(f"never works on {x.shape}")

    with pytest.raises(SubjectError, match=r"(?s)never works.*Under simulated CUDA"):
        traced(fails)


def test_a_tensor_left_on_the_cpu_is_reported():
    table = torch.arange(4.0)
    events = traced(lambda x: x + table).of("mixed-devices")
    assert [event.op for event in events] == ["Tensor.add"]
    assert "fails there" in events[0].why


def test_numpy_of_a_device_tensor_is_reported():
    assert kinds(traced(lambda x: x.numpy().sum())) == ["mixed-devices"]


def test_promotion_is_reported_where_it_starts():
    def promotes(x):
        wide = x + torch.ones(4, dtype=torch.float64, device=x.device)
        return wide * 2 + wide

    (event,) = traced(promotes).of("promotion")
    assert (event.detail, event.bytes) == ("float32 -> float64", 6 * 4 * 4)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x * 2.5 + torch.tensor(2.0, dtype=torch.float64),
        lambda x: x.double() * 2,
        lambda x: x + torch.ones(4, dtype=torch.int64, device=x.device),
    ],
)
def test_what_does_not_promote_is_not_reported(function):
    assert not traced(function).of("promotion")


def test_layout_copies_are_counted_in_bytes():
    image = torch.randn(2, 8, 4, 4).to(memory_format=torch.channels_last)
    (event,) = traced(lambda x: x.contiguous() + 1, image).of("layout")
    assert "channels_last" in event.why
    assert event.bytes == 2 * image.numel() * 4


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x.contiguous(),
        lambda x: x.reshape(-1),
        lambda x: x.clone(),
        lambda x: x.T @ x,
        lambda x: x.to(memory_format=torch.contiguous_format),
    ],
)
def test_what_does_not_copy_is_not_reported(function):
    assert not traced(function).of("layout")


def test_counts_are_of_one_step():
    def loops(x):
        for row in x:
            row.sum().item()
        return x

    (event,) = traced(loops).events
    assert event.count == 6


def test_the_layer_and_the_chain_are_reported():
    class Inner(nn.Module):
        def forward(self, x):
            return self.scale(x)

        def scale(self, x):
            return x * x.max().item()

    class Outer(nn.Module):
        def __init__(self):
            super().__init__()
            self.block = nn.Sequential(nn.ReLU(), Inner())

        def forward(self, x):
            return self.block(x)

    (event,) = trace_subject(togi.Subject(Outer(), torch.randn(2))).events
    assert event.layer == "block.1"
    assert [frame.function for frame in event.stack[:3]] == ["scale", "forward", "forward"]
    assert event.stack[0].code == "return x * x.max().item()"


def test_pinned_memory_of_a_loader_does_not_make_the_host_wait():
    def loads(x):
        data = torch.utils.data.TensorDataset(torch.randn(6, 4))
        loader = torch.utils.data.DataLoader(data, batch_size=3, pin_memory=True)
        return sum(batch.to(x.device, non_blocking=True).sum() for (batch,) in loader)

    assert not [event for event in traced(loads).events if event.waits]


def test_two_threads_at_once_are_both_seen():
    def threads(x):
        def work():
            for _ in range(20):
                x.sum().item()

        workers = [threading.Thread(target=work) for _ in range(4)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        return x

    assert sum(event.count for event in traced(threads).events) == 80


class FakeDebugMode:
    """``torch.cuda.set_sync_debug_mode`` without a GPU."""

    def __init__(self):
        self.mode = 0
        self.history = []

    def set(self, mode):
        self.mode = mode
        self.history.append(mode)


@pytest.fixture
def fake_mode(monkeypatch):
    fake = FakeDebugMode()
    monkeypatch.setattr(trace_check.torch.cuda, "set_sync_debug_mode", fake.set)
    monkeypatch.setattr(trace_check.torch.cuda, "get_sync_debug_mode", lambda: fake.mode)
    return fake


def test_warnings_of_the_debug_mode_become_events_at_their_lines(fake_mode):
    with debug_mode_events() as events:
        for _ in range(3):
            warnings.warn(MESSAGE, UserWarning, stacklevel=1)
    (event,) = events
    assert event.count == 3
    assert "warnings.warn(MESSAGE" in event.stack[0].code
    assert fake_mode.history == ["warn", 0]


def test_the_debug_mode_is_put_back_after_a_failure_and_other_warnings_pass(fake_mode):
    show_before = warnings.showwarning

    def fail():
        with debug_mode_events():
            warnings.warn("something else", stacklevel=1)
            raise RuntimeError("boo")

    with pytest.warns(UserWarning, match="something else"), pytest.raises(RuntimeError):
        fail()
    assert fake_mode.history[-1] == 0
    assert warnings.showwarning is show_before


def test_the_two_ways_of_watching_are_compared_by_line():
    watched = traced(lambda x: (x.sum().item(), x.tolist())).events
    assert {event.op for event in watched} == {"Tensor.item", "Tensor.tolist"}
    events = confirmed(watched, watched[:1])
    assert all(event.seen_by_debug_mode for event in events)
    assert not any(event.seen_by_debug_mode for event in confirmed(watched, []))
    assert "at 1 lines, the watch at 1; 1 are the same" in agreement(watched, watched[:1])


def test_a_kernel_that_only_the_gpu_has_in_this_dtype_is_computed_in_another():
    def counts(x):
        counts = torch.histc(x.int(), bins=4, min=0, max=3)
        assert counts.dtype == torch.int32
        assert counts.cpu().tolist() == [1, 2, 0, 1]
        return counts

    assert traced(counts, torch.tensor([0.0, 1.0, 1.0, 3.0])).mode == "simulated"


def test_a_device_branch_does_not_count_as_a_mixture_without_the_simulation():
    def cpu_only(x):
        if x.is_cuda:
            raise RuntimeError("no kernel")
        return x + torch.arange(4.0, device=x.device)

    trace = traced(cpu_only)
    assert (trace.mode, trace.events) == ("watched", ())


def test_columns_count_characters():
    def reads(x):
        größe, änderung = x.sum(), 0.0
        änderung = "äöü" and größe.item()
        return x * änderung

    (event,) = traced(reads).events
    frame = event.stack[0]
    line = linecache.getline(frame.path, frame.line)
    assert line[frame.column - 1 : frame.end_column - 1] == "größe.item()"
