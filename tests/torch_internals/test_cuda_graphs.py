"""What Inductor tells of CUDA graphs, told by its own functions: no device is needed for what they say."""

from __future__ import annotations

import logging
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch._inductor.config
import torch._inductor.cudagraph_trees  # loggers are set up when their modules are loaded
import torch._inductor.cudagraph_utils as utils
import torch._inductor.scheduler
from torch import Tensor, fx

from togi.torch_internals.cuda_graphs import GraphReport, NotRecorded, graphs_reported

TRACE = '  File "/home/a/model.py", line 12, in forward\n    cache.add_(1)'


def placeholder() -> Any:
    """An input that is written at the line of TRACE."""
    graph = fx.Graph()
    cache = graph.placeholder("cache")
    written = graph.call_function(torch.ops.aten.copy_.default, (cache, cache))
    written.meta["stack_trace"] = TRACE
    return cache


def reported(*told: Any) -> GraphReport:
    report = GraphReport()
    with graphs_reported(report):
        for tell in told:
            tell()
    return report


def test_a_mutated_input_is_reported_with_its_line() -> None:
    message = utils.get_mutation_stack_trace([utils.to_placeholder_info(placeholder())], [0])
    report = reported(lambda: utils.log_cudagraph_skip_and_bump_counter(message))
    assert report.reasons == [NotRecorded("mutated inputs (1 instances)", TRACE.lstrip())]
    assert report.skips == 1


def test_a_reason_that_passes_two_functions_is_told_once() -> None:
    node = fx.Graph().placeholder("weights")
    with torch._inductor.config.patch(graph_partition=False):
        message = utils.check_multiple_devices_or_any_cpu_nodes({torch.device("cpu"): node})
    assert message is not None
    other = f"disabling cudagraphs due to incompatible op a Found from {TRACE}\n"
    report = reported(
        lambda: utils.log_cudagraph_skip_and_bump_counter(f"skipping cudagraphs due to {message}"),
        lambda: utils.log_cudagraph_skip_and_bump_counter(other),
    )
    assert [one.reason for one in report.reasons] == ["cpu device (weights)", "incompatible op a"]
    assert report.reasons[1].stack.startswith('File "/home/a/model.py"')


def test_the_number_of_sizes_is_reported() -> None:
    sizes: dict[Any, Any] = {(n,): None for n in range(60)}
    (reason,) = reported(lambda: utils.maybe_warning_due_to_dynamic_shape(sizes, (61,))).reasons
    assert reason == NotRecorded("one graph is recorded for each of 61 distinct sizes")


def test_what_cuts_a_graph_into_parts_is_reported_with_its_line() -> None:
    origin = fx.Graph().placeholder("cumsum")
    origin.meta["stack_trace"] = TRACE
    node: Any = SimpleNamespace(node=SimpleNamespace(get_origin_node=lambda: origin), get_name=lambda: "buf0")

    def tell() -> None:
        if torch.__version__ >= "2.11":
            scheduler: Any = SimpleNamespace(should_partition=lambda _: "cpu ops")
            torch._inductor.scheduler.Scheduler._log_non_cudagraphable_node(scheduler, node)
        else:
            with torch._inductor.config.patch({"triton.cudagraphs": True}):
                torch._inductor.utils.maybe_log_cudagraph_partition("cpu ops", node=node)

    (reason,) = reported(tell).reasons
    assert reason.reason == "cpu ops"
    assert [line.strip() for line in reason.stack.splitlines()] == [line.strip() for line in TRACE.splitlines()]


def test_parts_are_counted_and_everything_is_put_back(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch._inductor.compile_fx as compile_fx

    monkeypatch.setattr(compile_fx, "cudagraphify", lambda model, **_: model)
    original, log = compile_fx.cudagraphify, logging.getLogger("torch._inductor.scheduler.__cudagraphs")
    before = log.level, log.propagate, list(log.handlers)
    report = GraphReport()
    with graphs_reported(report):
        assert compile_fx.cudagraphify(len, device_index=0) is len
    assert (report.parts, report.skips, report.reasons) == (1, 0, [])
    assert compile_fx.cudagraphify is original
    assert (log.level, log.propagate, log.handlers) == before


def test_on_a_cpu_everything_is_skipped() -> None:
    report = GraphReport()

    def twice(x: Tensor) -> Tensor:
        return x * 2

    with graphs_reported(report):
        torch.compile(twice, options={"triton.cudagraphs": True, "compile_threads": 1})(torch.ones(3))
    assert report.parts == 0
    assert report.skips >= 1
    assert {one.reason for one in report.reasons} <= {"non gpu ops"}, "torch 2.9 gives a reason, later ones none"


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_on_a_gpu_a_mutated_input_is_reported_at_the_first_call() -> None:
    def written(x: Tensor, cache: Tensor) -> Tensor:
        cache.add_(1)
        return x + cache

    report = GraphReport()
    with graphs_reported(report):
        torch.compile(written, mode="reduce-overhead")(torch.ones(4, device="cuda"), torch.zeros(4, device="cuda"))
    (reason,) = report.reasons
    assert (report.parts, report.skips, reason.reason) == (1, 1, "mutated inputs (1 instances)")
    assert "cache.add_(1)" in reason.stack
