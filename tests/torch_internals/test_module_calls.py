"""The outermost calls of modules are seen, in all threads, for a fixed amount of work; torch does not notice."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.script.run_scripts import environment
from togi.torch_internals.module_calls import watch_outermost_calls


class Outer(nn.Module):
    def __init__(self, inner: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(*(nn.Linear(4, 4) for _ in range(inner)))

    def forward(self, x: Tensor) -> Tensor:
        if x.sum().isnan():
            raise ValueError("not a number")
        return self.layers(x)  # type: ignore[no-any-return]


@pytest.fixture
def seen() -> Iterator[list[nn.Module]]:
    calls: list[nn.Module] = []

    def instead(module: nn.Module, args: Any, kwargs: Any, run: Callable[..., Any]) -> Any:
        calls.append(module)
        return run(module, *args, **kwargs)

    before = nn.Module.__call__
    undo = watch_outermost_calls(instead)
    yield calls
    undo()
    assert nn.Module.__call__ is before


X = torch.ones(2, 4)


def test_a_call_that_no_module_makes_is_seen_once(seen: list[nn.Module]) -> None:
    model = Outer(2)
    expected = model.layers[1](model.layers[0](X))
    assert torch.equal(model(x=X), expected)
    assert seen == [model.layers[0], model.layers[1], model]


def test_the_next_call_is_seen_after_one_that_raised(seen: list[nn.Module]) -> None:
    model = Outer(1)
    with pytest.raises(ValueError, match="not a number"):
        model(X * float("nan"))
    model(X)
    assert seen == [model, model]


def test_each_thread_has_its_own_outermost_call(seen: list[nn.Module]) -> None:
    inner = Outer(1)

    class InThread(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            thread = threading.Thread(target=inner, args=(x,))
            thread.start()
            thread.join()
            return x

    outer = InThread()
    outer(X)
    assert seen == [outer, inner]


def test_scripted_traced_and_parallel_modules_are_seen(seen: list[nn.Module]) -> None:
    scripted, parallel = torch.jit.script(nn.Sequential(nn.Linear(4, 4))), nn.DataParallel(nn.Linear(4, 4))
    seen.clear()
    scripted(X)
    parallel(X)
    assert seen == [scripted, parallel]


COUNTED = """
import sys
from collections import Counter
from pathlib import Path
import torch
from tests.torch_internals.test_module_calls import Outer, X
from togi.torch_internals.module_calls import watch_outermost_calls

def work_of(call):
    entered = Counter()

    def profile(frame, event, _):
        if event == "call":
            entered[Path(frame.f_code.co_filename).stem + "." + frame.f_code.co_name] += 1

    sys.setprofile(profile)
    try:
        call()
    finally:
        sys.setprofile(None)
    return entered

model = Outer(10)
plain = work_of(lambda: model(X))
undo = watch_outermost_calls(lambda module, args, kwargs, run: run(module, *args, **kwargs))
watched = work_of(lambda: model(X))
undo()
more = watched - plain
print(more.pop("__init__.is_dynamo_compiling"), more.pop("module._wrapped_call_impl"), sum(more.values()))
"""


def test_an_inner_call_costs_no_more_functions_of_python_than_one_of_torch(tmp_path: Path) -> None:
    """Counted in a process that compiled nothing: after torch.compile a profiled call may never end."""
    counted = subprocess.run(
        [sys.executable, "-c", COUNTED],
        cwd=Path(__file__).parents[2],
        env=environment(tmp_path),
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    modules = 12  # the model, its layers, and the container of these
    # the original, of the outermost; and what was given to be called instead
    assert counted.stdout.split() == [str(modules), "1", "1"]


COMPILED = """
import sys
import torch
from torch import nn
from togi.torch_internals.module_calls import watch_outermost_calls

early, watched = sys.argv[1] == "early", sys.argv[2] == "watched"
if early:
    import torch._dynamo
seen = []
if watched:
    undo = watch_outermost_calls(lambda module, args, kwargs, run: seen.append(module) or run(module, *args, **kwargs))

class Block(nn.Module):
    def __init__(self, hooked):
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
        if hooked:
            self.inner.register_forward_hook(lambda module, args, output: output * 2)

    def forward(self, x):
        return self.inner(x) + 1

graphs = []
def backend(graph, inputs):
    graphs.append(graph)
    return graph.forward

for hooked in (False, True):
    torch.compiler.reset()  # it does not look for hooks that came later
    models = [Block(hooked).eval() for _ in range(3)]
    compiled = [torch.compile(model, backend=backend, fullgraph=True) for model in models]
    x = torch.ones(2, 4)
    with torch.no_grad():
        for model, fast in zip(models, compiled):
            seen.clear()
            for _ in range(3):
                assert torch.equal(fast(x), model.forward(x))
            assert not watched or [module for module in seen if module in (fast, model)] == [fast] * 3, seen
        inside = Block(hooked).eval()
        inside.compile(backend=backend, fullgraph=True)
        for _ in range(2):
            inside(x)
        assert not watched or inside in seen
print(len(graphs))
"""


@pytest.mark.thorough
@pytest.mark.parametrize("imported", ["early", "late"])
def test_compiled_modules_are_seen_and_compiled_as_ever(imported: str, tmp_path: Path) -> None:
    """In a process of its own, as a script: Dynamo may be imported before or after; ``fullgraph`` would raise."""
    graphs = []
    for watched in ("watched", "alone"):
        command = [sys.executable, "-c", COMPILED, imported, watched]
        done = subprocess.run(command, capture_output=True, text=True, timeout=200, env=environment(tmp_path))
        assert done.returncode == 0, done.stderr
        graphs.append(int(done.stdout))
    assert graphs[0] == graphs[1] > 0
