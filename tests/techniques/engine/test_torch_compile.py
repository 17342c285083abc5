"""What is compiled later has the settings too; a trial with CUDA graphs says which there are not, and why."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.techniques.engine.engine_subjects import made
from togi.core.errors import Refused
from togi.core.records import Facts
from togi.subject.inputs import Inputs
from togi.subject.signature import Signature
from togi.techniques.engine.programs.compiled import CompiledCall, FreshOutputs, graph_notes
from togi.techniques.registry import technique
from togi.torch_internals.compiler import reset_dynamo
from togi.torch_internals.cuda_graphs import GraphReport, NotRecorded


@pytest.fixture
def process_as_it_was() -> Iterator[None]:
    threads, dtype, precision = torch.get_num_threads(), torch.get_default_dtype(), torch.get_float32_matmul_precision()
    yield
    torch.set_num_threads(threads)
    torch.set_default_dtype(dtype)
    torch.set_float32_matmul_precision(precision)
    torch.use_deterministic_algorithms(False)


def in_inference_mode() -> torch.Tensor:
    with torch.inference_mode():
        return torch.ones(3)


ONE = torch.ones(3)
LATER: dict[str, Callable[[], tuple[torch.Tensor, torch.Tensor] | None]] = {
    "threads": lambda: torch.set_num_threads(torch.get_num_threads() + 1),
    "default dtype": lambda: torch.set_default_dtype(torch.float64),
    "deterministic": lambda: torch.use_deterministic_algorithms(True),
    "precision": lambda: torch.set_float32_matmul_precision("medium"),
    "parameter": lambda: (torch.nn.Parameter(torch.ones(3)), torch.ones(3)),
    "gradient": lambda: (torch.ones(3).requires_grad_(), torch.ones(3)),
    "inference": lambda: (in_inference_mode(), torch.ones(3)),
    "twice the same": lambda: (ONE, ONE),
}


@pytest.mark.usefixtures("process_as_it_was")
@pytest.mark.parametrize("later", LATER)
def test_what_is_compiled_anew_for_other_than_sizes_is_compiled_with_the_settings(later: str) -> None:
    """Without, it would be right and slower for good."""
    from torch._inductor import config

    frozen: list[bool] = []

    def backend(graph: Any, _: Any) -> Any:
        frozen.append(config.freezing)
        return graph.forward

    def added(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return x + y * 2

    reset_dynamo()
    given = (torch.ones(3), torch.ones(3))
    signature = Signature.of(torch.nn.Identity(), [Inputs(given)], [given[0]])
    call = CompiledCall(torch.compile(added, backend=backend), signature, {"freezing": True}, exportable=True)
    with torch.no_grad():
        call(*given)
        call(*(LATER[later]() or given))
    assert frozen == [True, True]


def test_a_state_of_the_process_is_known_by_itself_though_another_thread_notes_one_meanwhile() -> None:
    """Else calls in the other's state would pass for compiled, and be compiled without the settings."""

    class Shared(list[Callable[[], bool]]):
        def append(self, state: Callable[[], bool]) -> None:
            super().append(state)
            super().append(lambda: False)

    signature = Signature.of(torch.nn.Identity(), [Inputs((ONE,))], [ONE])
    call = CompiledCall(torch.nn.Identity(), signature, {}, exportable=True)
    call._states = Shared()
    assert call._state() == call._state() == 0


@pytest.mark.parametrize("form", [torch.Tensor.to_sparse, torch.Tensor.to_sparse_csr])
@pytest.mark.filterwarnings("ignore:Sparse .* tensor support is in beta")
def test_a_sparse_input_is_told_apart_without_strides(form: Callable[[torch.Tensor], torch.Tensor]) -> None:
    given = form(torch.eye(3))
    signature = Signature.of(torch.nn.Identity(), [Inputs((given,))], [given])
    call = CompiledCall(torch.nn.Identity(), signature, {}, exportable=True)
    assert call(given) is given
    assert call._key((given,), {}) == call._key((given.clone(),), {}) != call._key((given.to_dense(),), {})


def test_without_a_device_the_note_says_that_nothing_is_recorded() -> None:
    candidate = made("strided_input")
    program = technique("torch_compile").apply(candidate, {"mode": "reduce-overhead", "freezing": False}).program
    assert program is not None
    with torch.no_grad():
        program(*candidate.samples[0].args)
    (note,) = program.notes()
    assert note.startswith("CUDA graphs: 0 parts of the compiled code to be recorded; skipped or cut: ")
    assert "torch gives no reason" in note or "non gpu ops, " in note, "torch 2.9 gives a reason, later ones none"


def test_modes_without_cuda_graphs_have_no_note() -> None:
    candidate = made("strided_input")
    program = technique("torch_compile").apply(candidate, {"mode": "default", "freezing": False}).program
    assert program is not None
    assert program.notes() == ()


def test_reasons_are_counted_and_have_the_users_line() -> None:
    torch_line = f'File "{Path(torch.__file__).parent}/nn/modules/module.py", line 9, in _call_impl\n    x\n'
    stack = f'File "/home/a/model.py", line 12, in forward\n    cache.add_(1)\n{torch_line}'
    mutated = NotRecorded("mutated inputs (1 instances)", stack)
    report = GraphReport(parts=3, skips=2, reasons=[mutated, NotRecorded("cpu ops"), mutated])
    assert graph_notes(report) == [
        "CUDA graphs: 3 parts of the compiled code to be recorded; skipped or cut: mutated inputs (1 instances), "
        "/home/a/model.py:12 (`cache.add_(1)`) (2 times); cpu ops."
    ]


@pytest.mark.parametrize("parts", [1, 3])
def test_where_all_is_recorded_there_is_no_note(parts: int) -> None:
    assert graph_notes(GraphReport(parts=parts)) == []


def on_cuda(callers: int, version: str) -> Facts:
    facts = made("strided_input").facts
    machine = facts.machine.model_copy(update={"versions": {"torch": version}})
    return facts.model_copy(update={"device": "cuda", "callers": callers, "machine": machine})


@pytest.mark.parametrize(
    ("callers", "version", "graphs"),
    [
        (1, "2.11.0+cu130", True),
        (4, "2.11.0+cu130", False),
        (4, "2.13.1", False),
        (4, "2.14.1+cu130", True),
        (4, "2.14.0a0+git1", True),
    ],
)
def test_graphs_that_threads_share_are_not_offered_to_several_callers(callers: int, version: str, graphs: bool) -> None:
    facts = on_cuda(callers, version)
    modes = {options["mode"] for options in technique("torch_compile").options(facts)}
    assert modes == (
        {"reduce-overhead", "max-autotune", "default"} if graphs else {"max-autotune-no-cudagraphs", "default"}
    )
    if not graphs:
        with pytest.raises(Refused, match="several callers"):
            technique("torch_compile").apply(
                made("strided_input").with_(facts=facts), {"mode": "max-autotune", "freezing": False}
            )


@pytest.mark.parametrize("descent", [True, False])
def test_coordinate_descent_is_one_more_setting_of_reduce_overhead(
    monkeypatch: pytest.MonkeyPatch, descent: bool
) -> None:
    offered = technique("torch_compile").options(on_cuda(1, "2.15.0"))
    assert {options["mode"] for options in offered if options.get("coordinate_descent")} == {"reduce-overhead"}
    given: list[dict[str, object]] = []
    monkeypatch.setattr(torch, "compile", lambda function, **settings: given.append(settings["options"]) or function)
    options = {"mode": "reduce-overhead", "freezing": False, **({"coordinate_descent": True} if descent else {})}
    technique("torch_compile").apply(made("strided_input"), options)
    assert given[0].get("coordinate_descent_tuning", False) is descent
    assert given[0]["triton.cudagraphs"]
    assert ("coordinate_descent" in str(technique("torch_compile").repro(options, None))) is descent


@pytest.fixture
def trees(monkeypatch: pytest.MonkeyPatch) -> Any:
    """As they are before torch 2.14, whichever is installed."""
    from torch._inductor import cudagraph_trees

    monkeypatch.delattr(cudagraph_trees, "_initialize_tls", raising=False)
    return cudagraph_trees


def in_a_thread(run: Callable[[], object]) -> None:
    """Raises what it raises."""
    with ThreadPoolExecutor(1) as pool:
        pool.submit(run).result()


def test_a_thread_that_has_no_graph_trees_gets_them(trees: Any) -> None:
    """Torch's ``get_obj`` fails without."""
    seen: list[bool] = []
    before = trees.local.tree_manager_containers

    def call(x: torch.Tensor) -> tuple[torch.Tensor]:
        containers = trees.get_obj(trees.local, "tree_manager_containers")
        seen.append(containers is not before)
        with trees.get_obj(trees.local, "tree_manager_locks")[0]:
            pass
        return (x + 1,)

    fresh = FreshOutputs(call)
    for _ in range(2):
        in_a_thread(lambda: fresh(torch.ones(1)))
    assert seen == [True] * 2
    assert trees.local.tree_manager_containers is before, "that of the first one stays"


@pytest.mark.usefixtures("trees")
def test_threads_take_turns_for_graphs_that_they_share() -> None:
    inside, most = [0], [0]

    def call(x: torch.Tensor) -> tuple[torch.Tensor]:
        inside[0] += 1
        most[0] = max(most[0], inside[0])
        time.sleep(0.002)
        inside[0] -= 1
        return (x,)

    functions = [FreshOutputs(call) for _ in range(2)]
    with ThreadPoolExecutor(4) as pool:
        for made in [pool.submit(functions[n % 2], torch.ones(1)) for n in range(16)]:
            made.result()
    assert most == [1], "also those of several functions: they share memory"
