"""What is known of the modules that a script called: times, calls to tune them on, and why some are left alone."""

from __future__ import annotations

import gc
import os
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from togi.script import watched as watched_module
from togi.script import watching
from togi.script.conditions import TRAINED
from togi.script.watching import ScriptWatcher

PLAIN_CALL = nn.Module.__call__


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5), nn.Linear(4, 4))

    def forward(self, x: Tensor, scale: float = 1.0) -> Tensor:
        return self.layers(x) * scale  # type: ignore[no-any-return]


@pytest.fixture
def watcher() -> Iterator[ScriptWatcher]:
    made = ScriptWatcher()
    yield made
    made.stop()


def net() -> Net:
    torch.manual_seed(0)
    return Net().eval()


X = torch.ones(2, 4)


def only(watcher: ScriptWatcher) -> tuple[Any, Any]:
    watcher.stop()
    (found,) = watcher.records(1.0)
    return found


def test_calls_are_counted_and_one_of_each_size_is_kept_as_it_was(watcher: ScriptWatcher) -> None:
    model, x = net(), X.clone()
    with torch.no_grad():
        for size in (1, 2, 1, 2, 2):
            model(x[:size])
        x.zero_()
    found, record = only(watcher)
    assert (record.module, record.calls, record.reason) == ("Net", 5, "")
    assert record.called_with == "float32 1x4 (2 kinds)"
    assert [tuple(sample.args[0].shape) for sample in found.samples()] == [(1, 4), (2, 4)]
    assert all(bool((sample.args[0] == 1).all()) for sample in found.samples())
    assert found.live is model


def test_calls_of_another_form_are_counted_but_not_mixed_with_the_most_frequent(watcher: ScriptWatcher) -> None:
    model = net()
    with torch.no_grad():
        model(X, scale=2.0)
        for _ in range(2000):  # take longer than the first call, even if that waits for a core
            model(X)
    found, record = only(watcher)
    assert record.calls == 2001
    assert [dict(sample.kwargs) for sample in found.samples()] == [{}]


def test_what_is_kept_does_not_grow_with_the_calls(watcher: ScriptWatcher, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watched_module, "_MOST_KINDS", 8)
    model = net()
    with torch.no_grad():
        for size in range(1, 200):
            model(torch.ones(size, 4))
    found, record = only(watcher)
    assert record.calls == 199
    assert len(found.tallies) == 8
    assert len(found.samples()) <= 4


def test_of_many_short_calls_some_are_looked_at_and_all_are_counted(
    watcher: ScriptWatcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watched_module, "_ALL_OF", 100)
    monkeypatch.setattr(watched_module, "_SHORT_S", 60.0)  # whatever the machine does
    model = net()
    with torch.no_grad():
        for number in range(2000):
            model(X[: 1 + number % 2])
    found, record = only(watcher)
    looked_at = [tally.calls for tally in found.tallies.values()]
    assert record.calls == 2000
    assert len(looked_at) == 2
    assert 150 < sum(looked_at) < 400
    assert min(looked_at) > 60  # both kinds, though they take turns
    assert record.seconds > sum(tally.seconds for tally in found.tallies.values())
    assert found.live is model


def test_each_of_many_longer_calls_is_looked_at(watcher: ScriptWatcher, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watched_module, "_ALL_OF", 10)
    monkeypatch.setattr(watched_module, "_SHORT_S", 0.0)
    model = net()
    with torch.no_grad():
        for _ in range(200):
            model(X)
    found, record = only(watcher)
    assert (record.calls, [tally.calls for tally in found.tallies.values()]) == (200, [200])


def test_large_inputs_are_not_kept(watcher: ScriptWatcher, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watched_module, "_INPUTS_BYTES", 64)
    with torch.no_grad():
        net()(torch.ones(100, 4))
    assert "are larger than" in only(watcher)[1].reason


def test_a_model_that_a_function_dropped_is_there_after_the_script(watcher: ScriptWatcher) -> None:
    def main() -> None:
        with torch.no_grad():
            net()(X)

    main()
    gc.collect()
    found, record = only(watcher)
    assert not record.reason
    assert isinstance(found.live, Net)


def test_modules_that_live_for_one_call_are_dropped(watcher: ScriptWatcher) -> None:
    with torch.no_grad():
        for _ in range(200):
            nn.Softmax(dim=1)(X)
        model = net()
        model(X)
    watcher.stop()
    names = [record.module for _, record in watcher.records(1.0)]
    assert names.count("Net") == 1
    assert len(names) <= 2
    report = watcher.report("x.py", 1.0, watcher.records(1.0))
    assert sum(record.calls for record in report.modules) == 201


def test_no_more_weights_are_held_than_a_share_of_the_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(watching, "available_bytes", lambda: 4 * 200)
    watcher = ScriptWatcher()
    try:
        with torch.no_grad():
            for _ in range(5):
                net()(X)  # 160 bytes of weights each
    finally:
        watcher.stop()
    gc.collect()
    assert sum(found.reference() is not None for found in watcher.watched()) == 1


def test_the_first_is_kept_only_if_as_much_again_stays_free(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watching, "available_bytes", lambda: 159)
    watcher = ScriptWatcher()
    with torch.no_grad():
        for _ in range(3):
            net()(X)
    gc.collect()
    watcher.stop()
    records = [record for _, record in watcher.records(1.0)]
    assert all(found.reference() is None for found in watcher.watched())
    assert sum(record.calls for record in records) == 3
    assert all("not enough memory" in record.reason for record in records)


def test_weights_count_against_the_memory_of_their_own_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """``meta`` stands for a GPU."""
    free = {"cpu": 10.0**9, "meta": 4.0 * 200}
    monkeypatch.setattr(watching, "_free_bytes", lambda device: free[device.type])
    watcher = ScriptWatcher()
    with torch.no_grad():
        for _ in range(3):
            net()(X)
            net().to("meta")(X.to("meta"))
    gc.collect()
    watcher.stop()
    held = [found.live for found in watcher.watched() if found.reference() is not None]
    assert sorted(next(model.parameters()).device.type for model in held) == ["cpu", "cpu", "cpu", "meta"]


def test_a_report_holds_no_module_and_still_knows_it() -> None:
    watcher = ScriptWatcher(holds=False)
    dropped: list[weakref.ref[nn.Module]] = []

    def main(use: Callable[[Net], None]) -> None:
        model = net()
        model.register_buffer("table", torch.ones(3))
        dropped.extend((weakref.ref(model), weakref.ref(model.table)))
        use(model)

    def calls(model: Net) -> None:
        with torch.no_grad():
            for _ in range(3):
                model(X)

    main(calls)
    main(steps)
    kept = net().eval()
    calls(kept)
    gc.collect()
    assert [each() for each in dropped] == [None] * 4
    watcher.stop()
    records = [record for _, record in watcher.records(1.0)]
    assert [(record.calls, record.called_with) for record in records] == [(3, "float32 2x4")] * 3
    assert sorted(record.reason for record in records if record.reason != watching._SMALL) in (
        ["", "", TRAINED],
        ["", TRAINED],
        [TRAINED],
    )


def steps(model: nn.Module, optimizer: Any = None) -> None:
    optimizer = optimizer or torch.optim.SGD(model.parameters(), 0.1)
    for _ in range(3):
        optimizer.zero_grad()
        model(X).sum().backward()
        optimizer.step()


def trained(model: Net) -> None:
    steps(model.train())
    with torch.no_grad():
        model.eval()(X)


def given_gradients(model: Net) -> None:
    model(X).sum().backward()


def in_training_mode(model: Net) -> None:
    with torch.no_grad():
        model.train()(X)


def partly_in_training_mode(model: Net) -> None:
    with torch.no_grad():
        model.layers[1].train()
        model(X)


def with_gradients_of_inputs(model: Net) -> None:
    model(X.clone().requires_grad_())


def under_autocast(model: Net) -> None:
    with torch.no_grad(), torch.autocast("cpu"):
        model(X)


def with_an_inner_hook(model: Net) -> None:
    model.layers[0].register_forward_hook(lambda *_: None)
    with torch.no_grad():
        model(X)


def with_another_forward(model: Net) -> None:
    forward = model.layers[0].forward
    model.layers[0].forward = lambda x: forward(x) + 1  # type: ignore[method-assign]
    with torch.no_grad():
        model(X)


def compiled(model: Net) -> None:
    with torch.no_grad():
        torch.compile(model, backend="eager")(X)


def counting(model: Net) -> None:
    model.register_buffer("count", torch.zeros(()))
    with torch.no_grad():
        for _ in range(3):
            model(X)
            model.count += 1


def counting_in_an_attribute(model: Any) -> None:
    with torch.no_grad():
        for number in range(3):
            model.number = number
            model(X)


@pytest.mark.parametrize(
    ("use", "said"),
    [
        (trained, "it is trained"),
        (given_gradients, "it is trained"),
        (in_training_mode, "call .eval()"),
        (partly_in_training_mode, "call .eval()"),
        (with_gradients_of_inputs, "inputs require gradients"),
        (under_autocast, "bfloat16 on cpu"),
        (with_an_inner_hook, "'layers.0' of it has forward hooks"),
        (with_another_forward, "the forward of 'layers.0' of it was replaced"),
        (compiled, "is compiled by the script"),
        (counting, "it keeps 'count' from call to call"),
        (counting_in_an_attribute, "plain attributes change"),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_what_an_artifact_could_not_stand_for_is_left_alone(
    use: Callable[[Net], None], said: str, watcher: ScriptWatcher
) -> None:
    use(net())
    assert said in only(watcher)[1].reason


def test_what_a_module_makes_in_its_first_call_and_keeps_is_no_state(watcher: ScriptWatcher) -> None:
    class Lazy(Net):
        mask: Tensor | None = None

        def forward(self, x: Tensor, scale: float = 1.0) -> Tensor:
            if self.mask is None:
                self.mask = torch.ones(4)
            return super().forward(x, scale) * self.mask

    model = Lazy().eval()
    with torch.no_grad():
        for _ in range(3):
            model(X)
    assert only(watcher)[1].reason == ""


def test_gradients_that_nobody_uses_are_a_note(watcher: ScriptWatcher) -> None:
    model = net()
    for _ in range(3):
        model(X)
    _, record = only(watcher)
    assert record.reason == ""
    assert "torch.no_grad()" in watcher.report("x.py", 1.0, watcher.records(1.0)).notes[0]


def test_what_takes_little_of_the_time_is_not_tuned(watcher: ScriptWatcher) -> None:
    large, small = nn.Linear(768, 768).eval(), net()
    with torch.no_grad():
        small(X)
        for _ in range(60):
            large(torch.ones(256, 768))
    watcher.stop()
    records = [record for _, record in watcher.records(1.0)]
    assert [record.module for record in records] == ["Linear", "Net"]
    assert [record.reason for record in records] == ["", watching._SMALL]


def test_modules_in_threads_are_counted(watcher: ScriptWatcher) -> None:
    model = net()

    def call() -> None:
        with torch.no_grad():
            for _ in range(50):
                model(X)

    threads = [threading.Thread(target=call) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert only(watcher)[1].calls == 200


def test_a_traced_call_is_no_call(watcher: ScriptWatcher) -> None:
    model = net().requires_grad_(False)
    traced = torch.jit.trace(model, (X,), check_trace=False)
    with torch.no_grad():
        traced(X)
    watcher.stop()
    assert [record.calls for _, record in watcher.records(1.0)] == [1]


def test_an_object_that_cannot_be_looked_at_runs_all_the_same(watcher: ScriptWatcher) -> None:
    class Odd(Net):
        def named_modules(self, *_: Any, **__: Any) -> Any:
            raise RuntimeError("not now")

    model = Odd().eval()
    with torch.no_grad():
        for _ in range(3):
            assert model(X).shape == (2, 4)
    watcher.stop()
    report = watcher.report("x.py", 1.0, watcher.records(1.0))
    assert report.notes == ("Odd could not be watched: not now",)
    assert sum(record.calls for record in report.modules) == 3


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_forked_process_is_not_watched(watcher: ScriptWatcher) -> None:
    model = net()
    child = os.fork()
    if child == 0:  # no parallel region here: torch's threads did not come along
        with torch.no_grad():
            model(X)
        os._exit(0 if not watcher.watched() and nn.Module.__call__ is PLAIN_CALL else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    with torch.no_grad():
        model(X)
    assert only(watcher)[1].calls == 1
