"""The observers, the module tracker and the other public faces of private torch APIs do what their docstrings say.

Run it under every torch version that is to be supported: where a private API has changed, it fails here first.
"""

from __future__ import annotations

import functools
import subprocess
import sys
import threading
from collections import namedtuple
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from tests.small_modules import Counts
from togi.torch_internals import accepted_archives, archive, autograd, compiler, cuda, modules, profiler, tensors
from togi.torch_internals.compiled_headers import compiled_headers_folder
from togi.torch_internals.modes import DispatchObserver, FunctionObserver, without_modes, without_torch_function
from togi.torch_internals.modules import BACKWARD, FORWARD, OPTIMIZER, ModuleTracker
from togi.torch_internals.operators import (
    bound_arguments,
    can_decompose,
    core_decompositions,
    decompositions_of,
    is_composite,
    is_python_operator,
    python_kernel,
    schema_of,
    written_arguments,
)
from togi.torch_internals.tensors import FakeTensorMode

aten = torch.ops.aten
Pair = namedtuple("Pair", "first second")


class Operators(DispatchObserver):
    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def operation(self, operator: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        self.names.append(str(operator))
        return operator(*args, **kwargs)


class Functions(FunctionObserver):
    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def function(self, function: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        self.names.append(function.__name__)
        return function(*args, **kwargs)


def test_a_dispatch_observer_sees_operators_and_a_function_observer_sees_calls() -> None:
    x, weight = torch.randn(2, 3), torch.randn(4, 3)
    with Operators() as operators, Functions() as functions:
        result = nn.functional.linear(x, weight)
    assert functions.names == ["linear"]
    assert "aten.mm.default" in operators.names
    assert torch.equal(result, nn.functional.linear(x, weight))


def test_observers_can_be_left_out_for_a_while() -> None:
    with Operators() as operators, Functions() as functions:
        with without_modes():
            torch.ones(2).add(1)
        assert operators.names == []
        functions.names.clear()
        with without_torch_function():
            torch.ones(2).add(1)
    assert functions.names == []
    assert "aten.add.Tensor" in operators.names


@dataclass
class Held:
    tensor: Tensor


def test_tensors_of_a_nested_value_in_order() -> None:
    a, b, c = (torch.tensor(float(n)) for n in range(3))
    nested = [a, {"x": Pair(b, "text"), "y": (None, c)}, 3]
    assert [int(t) for t in tensors.tensors_of(nested)] == [0, 1, 2]
    assert [int(t) for t in tensors.operands(nested)] == [0, 1, 2]
    assert tensors.tensors_of((a, a)) == [a, a]
    assert tensors.tensors_of(Held(a)) == []  # torch flattens classes that were registered only
    leaves, structure = tensors.tree_flatten(nested)
    assert tensors.tree_unflatten(leaves, structure)[1]["x"].second == "text"


def test_what_schemas_say() -> None:
    assert schema_of(aten.add.Tensor).name == "aten::add"
    assert written_arguments(aten.add_.Tensor) == {"self"}
    assert written_arguments(aten.add.Tensor) == set()
    bound = bound_arguments(aten.add.Tensor, (1, 2), {})
    assert bound == {"self": 1, "other": 2, "alpha": 1}
    assert list(bound_arguments(aten.add.Tensor, (1,), {"other": 2, "alpha": 3}).values()) == [1, 2, 3]


def test_composite_operators_can_be_taken_apart() -> None:
    assert is_composite(aten.linear.default) or can_decompose(aten.linear.default)
    assert is_composite(aten.reshape.default)
    assert can_decompose(aten.reshape.default)
    assert not can_decompose(aten.mm.default)
    assert not can_decompose("no operator")
    assert aten.silu.default in {**core_decompositions(), **decompositions_of([aten.silu])}


def test_the_python_function_behind_a_custom_operator() -> None:
    @torch.library.custom_op("togi_tests::doubled", mutates_args=())
    def doubled(x: Tensor) -> Tensor:
        return 2 * x

    operator = torch.ops.togi_tests.doubled.default
    assert is_python_operator(operator)
    assert not is_python_operator(aten.mm.default)
    assert python_kernel(operator, "cpu")(torch.tensor(2.0)) == 4
    del doubled


def test_nodes_versions_and_hooks_of_autograd() -> None:
    x = torch.ones(2, requires_grad=True)
    before = autograd.next_sequence_number()
    y = (x * 2).sum()
    assert autograd.next_sequence_number() == before + 2
    assert autograd.sequence_number(y.grad_fn) == before + 1
    seen: list[Any] = []
    x.register_hook(lambda _: seen.append((autograd.current_node(), autograd.in_backward())))
    y.backward()
    assert seen[0][1]
    assert autograd.current_node() is None
    assert not autograd.in_backward()
    version = autograd.version_of(z := torch.zeros(2))
    z.add_(1)
    assert autograd.version_of(z) == version + 1
    assert autograd.saved_tensor_hooks_allowed()
    assert autograd.top_saved_tensor_hooks() is None
    with torch.autograd.graph.saved_tensors_hooks(pack := lambda t: t, lambda t: t):
        hooks = autograd.top_saved_tensor_hooks()
        assert hooks is not None
        assert hooks[0] is pack
    with torch.autograd.graph.disable_saved_tensors_hooks("not here"):
        assert not autograd.saved_tensor_hooks_allowed()
    with torch.enable_grad(), autograd.below_autograd():
        assert not (x * 2).requires_grad
    with torch.autocast("cpu", torch.bfloat16), autograd.below_autocast():
        assert (torch.ones(2, 2) @ torch.ones(2, 2)).dtype is torch.float32


def test_transforms_are_noticed() -> None:
    seen = []

    def look(x: Tensor) -> Tensor:
        seen.append((autograd.is_transformed(), autograd.is_wrapped_by_transform(x), autograd.is_forward_mode()))
        return x * 2

    look(torch.ones(2))
    torch.func.vmap(look)(torch.ones(2, 2))
    with torch.autograd.forward_ad.dual_level():
        look(torch.ones(2))
    assert seen == [(False, False, False), (True, True, False), (False, False, True)]


def test_tensors_that_share_memory_have_one_storage_key() -> None:
    x, key = torch.zeros(4), tensors.storage_key
    assert key(x.untyped_storage()) == key(x[1:].untyped_storage()) != key(x.clone().untyped_storage())
    with FakeTensorMode() as mode:
        fake = mode.from_tensor(x)
        assert key(fake.untyped_storage()) == key(fake.view(2, 2).untyped_storage())


def test_saved_values_behind_hooks() -> None:
    class Telling(DispatchObserver):
        def operation(self, operator: Any, args: Any, kwargs: dict[str, Any]) -> Any:
            hooks.operation_runs()
            return operator(*args, **kwargs)

    x = torch.ones(2, requires_grad=True)
    hooks = autograd.SavedValueHooks()
    with Telling():
        plain = x.exp()
        with torch.autograd.graph.saved_tensors_hooks(lambda t: t, lambda t: t):
            packed = plain * plain
            several = torch.cat([packed, packed]).prod()
        last = packed.exp()
    assert not hooks.has(plain.grad_fn, plain.grad_fn._raw_saved_result)
    assert hooks.has(packed.grad_fn, packed.grad_fn._raw_saved_self)
    assert hooks.has(several.grad_fn, several.grad_fn._raw_saved_self)
    assert not hooks.has(last.grad_fn, last.grad_fn._raw_saved_result)


def test_hooks_and_own_tensors_of_a_module() -> None:
    module = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    assert modules.forward_hook_counts(module) == (0, 0)
    module.register_forward_hook(lambda *_: None)
    module.register_forward_pre_hook(lambda *_: None)
    assert modules.forward_hook_counts(module) == (1, 1)
    assert list(modules.own_parameters(module[0])) == ["weight", "bias"]
    assert "running_mean" in modules.own_buffers(module[1])
    assert isinstance(module[1], modules.BatchNorm)
    modules.convert_tensors(module, Tensor.double)
    assert module[0].weight.dtype == torch.float64
    assert modules.compiled_original(torch.compile(module)) is module
    assert modules.compiled_original(module) is None


class Outer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(2, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(self.inner(nn.ReLU()(x)))


@pytest.mark.parametrize(("name_outsiders", "outsider"), [(True, "ReLU"), (False, "outer")])
def test_the_module_tracker_names_what_runs(name_outsiders: bool, outsider: str) -> None:
    module, outputs = Outer(), []
    tracker = ModuleTracker(module, root="outer", on_output=outputs.append, name_outsiders=name_outsiders)
    seen: list[tuple[str, tuple[str, ...], str]] = []

    class Watching(DispatchObserver):
        def operation(self, operator: Any, args: Any, kwargs: dict[str, Any]) -> Any:
            seen.append((tracker.innermost, tracker.running, tracker.now().phase))
            return operator(*args, **kwargs)

    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    x = torch.ones(1, 2)
    with tracker.following(), Watching():
        module(x).sum().backward()
        optimizer.step()
    assert seen[0] == (outsider, ("outer",), FORWARD)
    assert ("inner", ("outer", "inner"), FORWARD) in seen
    assert {phase for _, _, phase in seen} == {FORWARD, BACKWARD, OPTIMIZER}
    assert tracker.runs == {"outer": 1, "inner": 2}
    assert tracker.running == ()
    assert len(outputs) == 1


def test_what_dynamo_did_can_be_read_and_forgotten() -> None:
    def broken(x: Tensor) -> Tensor:
        x = x + 1
        torch._dynamo.graph_break()
        return x - 1

    compiler.reset_dynamo()
    torch.compile(broken, backend="eager")(torch.ones(2))
    found = compiler.compilations()
    assert found.graphs >= 2
    assert len(found.breaks) >= 1
    assert sum(found.counted_breaks.values()) >= 1
    assert found.metrics
    compiler.reset_dynamo()
    assert compiler.compilations() == compiler.Compilations(graphs=0, breaks=(), counted_breaks={}, metrics=())


def test_checking_every_guard_recompiles_a_module_that_counts_its_calls() -> None:
    compiler.reset_dynamo()
    compiled = torch.compile(Counts(in_buffer=False), backend="eager")
    with compiler.checking_every_guard():
        assert [int(compiled(torch.ones(()))) for _ in range(3)] == [1, 2, 3]
    compiler.reset_dynamo()


def test_inductor_settings_hold_inside_only() -> None:
    import torch._inductor.config as config

    before = config.freezing
    with compiler.inductor_settings({"freezing": not before}):
        assert config.freezing is not before
    assert config.freezing is before
    assert compiler.inductor_options("max-autotune", None)["max_autotune"]
    assert compiler.cpp_compiler_missing() in (True, False)
    assert issubclass(compiler.compile_error(), Exception)


def test_threads_that_change_inductors_settings_leave_them_as_they_were() -> None:
    import torch._inductor.config as config

    before = config.freezing
    inside, leave = threading.Event(), threading.Event()

    def first() -> None:
        with compiler.inductor_settings({"freezing": not before}):
            inside.set()
            leave.wait(timeout=30)

    def second() -> None:
        inside.wait(timeout=30)
        threading.Timer(0.05, leave.set).start()  # while this one waits, or else is inside too
        with compiler.inductor_settings({"freezing": not before}):
            leave.wait(timeout=30)
            threads[0].join(timeout=30)

    threads = [threading.Thread(target=run) for run in (first, second)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    assert config.freezing == before


def test_torchscript_and_dynamo_see_the_original_of_a_stand_in() -> None:
    def original(x: Tensor) -> Tensor:
        return x + 1

    @functools.wraps(original)
    def stand_in(*args: Any) -> Any:
        return original(*args)

    compiler.mark_script_original(stand_in, original)
    assert torch.jit.script(stand_in)(torch.tensor(1.0)) == 2


def test_a_graph_with_symbolic_sizes() -> None:
    with FakeTensorMode(allow_non_fake_inputs=True, shape_env=ShapeEnv()) as mode:
        fake = mode.from_tensor(torch.ones(3))
        graph = compiler.trace_symbolically(lambda x: x.exp() + x.exp(), [fake], {}).graph
    calls = [node.target for node in graph.nodes if node.op == "call_function"]
    assert calls.count(aten.exp.default) == 2


def test_marks_and_memory_events_of_the_profiler() -> None:
    assert not profiler.profiler_is_on()
    assert not profiler.profiler_records()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as found:
        assert profiler.profiler_records()
        with profiler.FastMark("togi mark"):
            torch.ones(1000)
    assert "togi mark" in {event.key for event in found.key_averages()}
    assert profiler.EventType.Allocation
    assert profiler.DeviceType.CPU


def test_a_cuda_device_can_be_named_where_there_is_none() -> None:
    before = torch._C._only_lift_cpu_tensors()
    with cuda.cuda_can_be_named():
        assert torch._C._only_lift_cpu_tensors()
    assert torch._C._only_lift_cpu_tensors() == before
    assert cuda.real_cuda_devices() >= 0
    assert cuda.grouping()([[torch.ones(1)]], False)


def test_archives_are_written_and_read(tmp_path: Path) -> None:
    writer = archive.ArchiveWriter(str(tmp_path / "one.zip"))
    writer.write_record("text", b"words", 5)
    writer.write_end_of_file()
    assert accepted_archives.ArchiveReader(str(tmp_path / "one.zip")).get_record("text") == b"words"


def test_a_child_forked_after_parallel_operators_ended_can_compute() -> None:
    code = """
import os
import torch
from togi.torch_internals.openmp import end_openmp_threads

def threads():
    return len(os.listdir("/proc/self/task"))

def computed():
    return torch.nn.functional.conv2d(image, kernel).relu() @ image[0, 0]

torch.set_num_threads(2)
before = threads()
image, kernel = torch.arange(3.0 * 64 * 64).sin().view(1, 3, 64, 64), torch.ones(300, 3, 3, 1)
expected = computed()
assert threads() > before
end_openmp_threads()
assert threads() == before
pid = os.fork()
if pid == 0:
    os._exit(0 if torch.equal(computed(), expected) else 1)
assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
assert torch.equal(computed(), expected)
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)


def test_headers_that_inductor_compiles_beforehand_are_where_they_are_looked_for() -> None:
    from torch._inductor import codecache

    expected = compiled_headers_folder(Path("anywhere"))
    assert Path(codecache._HEADER_DIR).parts[-2:] == expected.parts[-2:]
