"""What engines refuse, and that they say why."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.techniques.engine.engine_subjects import MACHINE, Counting, candidate_of, made
from togi.core.errors import Refused
from togi.graph.capture import GraphModule, capture
from togi.techniques import conformance
from togi.techniques.base import Applies, Refuses
from togi.techniques.engine.programs.onnxruntime import write_model
from togi.techniques.registry import all_techniques, compatible, technique

WITHOUT_STATE = ("aot_inductor", "ncnn", "onnxruntime", "openvino")


@pytest.mark.parametrize("id", WITHOUT_STATE)
def test_engines_without_state_refuse_modules_that_update_buffers(id: str) -> None:
    candidate = candidate_of(Counting(), torch.randn(1, 3), buffers_change=True)
    answer = technique(id).applies(candidate.facts)
    assert isinstance(answer, Refuses)
    assert "updates a buffer" in answer.reason


@pytest.mark.parametrize("id", ["eager", "torchscript"])
def test_engines_with_state_go_on_counting(id: str) -> None:
    candidate = candidate_of(Counting(), torch.randn(2, 3), buffers_change=True)
    engine = technique(id)
    assert engine.applies(candidate.facts) == Applies()
    program = engine.apply(candidate, engine.options(candidate.facts)[0]).program
    assert program is not None
    with torch.no_grad():
        first, second = (program(*candidate.samples[0].args) for _ in range(2))
    torch.testing.assert_close(second - first, torch.ones(2, 3))


def test_freezing_is_not_offered_where_buffers_change() -> None:
    facts = made("tied", buffers_change=True).facts
    assert not any(o["freezing"] for o in technique("torch_compile").options(facts))
    assert not any(o["freeze"] for o in technique("torchscript").options(facts))


@pytest.mark.parametrize("id", ["aot_inductor", "onnxruntime"])
def test_engines_that_export_repeat_why_it_cannot_be_exported(id: str) -> None:
    facts = made("tied", exportable=False, export_error="data-dependent branch at model.py:7").facts
    answer = technique(id).applies(facts)
    assert isinstance(answer, Refuses)
    assert "data-dependent branch at model.py:7" in answer.reason


def test_onnx_runtime_has_no_products_of_bfloat16_on_a_cpu() -> None:
    """Why it is not tried with ``bf16``: a version that has them is to be tried again."""
    from onnxruntime.capi import onnxruntime_pybind11_state as library

    takes: dict[str, set[str]] = {"MatMul": set(), "Gemm": set(), "Conv": set()}
    for kernel in library.get_all_opkernel_def():
        if kernel.provider == "CPUExecutionProvider" and kernel.op_name in takes:
            takes[kernel.op_name].update(*kernel.type_constraints.values())
    assert all("tensor(float)" in types for types in takes.values())
    assert not any("tensor(bfloat16)" in types for types in takes.values())


def test_attention_as_one_operator_is_offered_where_there_is_attention() -> None:
    engine = technique("onnxruntime")
    plain, attending = made("tied").facts, made("tied", functions={"scaled_dot_product_attention": 2}).facts
    assert not any("opset" in options for options in engine.options(plain))
    first, *others = engine.options(attending)
    assert "opset" not in first
    assert {"spinning": True, "opset": 23} in others


def test_idle_threads_of_a_part_leave_the_cores_to_the_program() -> None:
    engine, facts = technique("onnxruntime"), made("tied").facts
    whole = [options["spinning"] for options in engine.options(facts)]
    part = [options["spinning"] for options in engine.options(facts.model_copy(update={"part": True}))]
    called = [options["spinning"] for options in engine.options(facts.model_copy(update={"callers": 4}))]
    assert (whole, part, called) == ([True, "in_calls"], ["in_calls"], [True, False])
    program = engine.apply(made("tied"), {"spinning": "in_calls"}).program
    assert program.interface().settings == {
        "session.intra_op.allow_spinning": "1",
        "session.force_spinning_stop": "1",
    }


@pytest.mark.thorough
def test_attention_is_one_operator_from_opset_23_on(tmp_path) -> None:
    import onnx

    for opset, expected in ((None, 0), (23, 1)):
        write_model(made("encoder_dynamic"), tmp_path / "model.onnx", opset)
        operators = [node.op_type for node in onnx.load(tmp_path / "model.onnx").graph.node]
        assert operators.count("Attention") == expected


@pytest.mark.parametrize("id", ["torch_compile", "aot_inductor"])
def test_compilers_refuse_without_a_compiler_and_name_the_mend(id: str) -> None:
    facts = made("tied", machine=MACHINE.model_copy(update={"compiler": None})).facts
    answer = technique(id).applies(facts)
    assert isinstance(answer, Refuses)
    assert "apt-get install g++" in answer.reason


@pytest.mark.parametrize(
    ("id", "missing", "said"),
    [
        ("torch_compile", "c_compiler", "apt-get install gcc"),
        ("aot_inductor", "c_compiler", "apt-get install gcc"),
        ("aot_inductor", "compiler", "apt-get install g++"),
        ("aot_inductor", "cuda_headers", "set CUDA_HOME"),
        ("torch_compile", "compiler", ""),
        ("torch_compile", "cuda_headers", ""),
    ],
)
def test_on_a_gpu_compiling_engines_need_a_c_compiler_and_some_the_cuda_headers(
    id: str, missing: str, said: str
) -> None:
    here = MACHINE.model_copy(update={"compiler": "g++", "c_compiler": "gcc", "cuda_headers": "/cuda/include"})
    facts = made("tied", device="cuda", machine=here).facts
    assert technique(id).applies(facts) == Applies()
    answer = technique(id).applies(facts.model_copy(update={"machine": here.model_copy(update={missing: None})}))
    assert answer == Applies() if not said else isinstance(answer, Refuses) and said in answer.reason


@pytest.mark.parametrize("id", ["cuda_graph", "torch_tensorrt"])
def test_cuda_engines_refuse_a_cpu(id: str) -> None:
    assert isinstance(technique(id).applies(made("tied").facts), Refuses)
    assert technique(id).devices == {"cuda"}


def test_scripting_says_at_which_line_it_stopped() -> None:
    class Unscriptable(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + sum(n for n in (1, 2) if n > 1)

    candidate = candidate_of(Unscriptable(), torch.randn(3))
    with pytest.raises(Refused, match=r"test_engine_conditions\.py"):
        technique("torchscript").apply(candidate, {"how": "script", "freeze": True, "optimize": False})


def test_tracer_warnings_become_notes() -> None:
    class Branching(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + 1 if x.shape[0] > 2 else x - 1

    candidate = candidate_of(Branching(), torch.ones(3))
    traced = technique("torchscript").apply(candidate, {"how": "trace", "freeze": True, "optimize": False})
    assert any("Converting a tensor to a Python boolean" in note for note in traced.notes)


def test_one_recipe_has_one_engine_and_one_precision() -> None:
    known = all_techniques()
    assert not compatible([known["eager"], known["openvino"]])
    assert compatible([known["int8_openvino"], known["openvino"]])
    assert not compatible([known["int8_openvino"], known["onnxruntime"]])
    assert not compatible([known["bf16"], known["int8_openvino"], known["openvino"]])
    assert not compatible([known["bf16"], known["ncnn"]])


def test_planning_with_techniques_does_not_import_torch() -> None:
    code = (
        "import sys; from togi.techniques.registry import all_techniques; all_techniques();"
        "found = {'torch', 'onnxruntime', 'openvino', 'ncnn', 'nncf'} & set(sys.modules);"
        "sys.exit(repr(found) if found else 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("layout", ["channels_last", "channels_last_3d"])
def test_a_layout_is_not_set_before_an_engine_that_has_its_own(layout):
    known = all_techniques()
    for engine in ("ncnn", "openvino", "onnxruntime", "torch_tensorrt"):
        assert not compatible([known[layout], known[engine]])
    for engine in ("eager", "torch_compile", "aot_inductor"):
        assert compatible([known[layout], known[engine]])


@pytest.mark.parametrize(
    "id", [pytest.param(id, marks=pytest.mark.thorough if id == "aot_inductor" else ()) for id in WITHOUT_STATE]
)
def test_a_view_of_what_attention_made_is_a_view_in_every_engine(id: str) -> None:
    """The kernel that ran while it was captured lays its output out so that ``contiguous`` leaves no trace; an engine
    that takes attention apart lays it out otherwise."""

    class Attention(nn.Module):
        def __init__(self):
            super().__init__()
            self.bias = nn.Parameter(torch.randn(8, 8, 2))

        def forward(self, x):
            heads, bias = x.view(1, 8, 2, 16).transpose(1, 2), self.bias.permute(2, 0, 1).unsqueeze(0)
            attended = nn.functional.scaled_dot_product_attention(heads, heads, heads, attn_mask=bias)
            return attended.transpose(1, 2).contiguous().view(1, 8, 32)

    candidate, engine, x = candidate_of(Attention(), torch.randn(1, 8, 32)), technique(id), torch.randn(1, 8, 32)
    program = engine.apply(candidate, dict(engine.options(candidate.facts)[0])).program
    with torch.no_grad():
        torch.testing.assert_close(program(x), candidate.module(x), rtol=1e-4, atol=1e-5)


@pytest.mark.thorough
@pytest.mark.parametrize(
    "id",
    [pytest.param(id, marks=pytest.mark.thorough if id == "aot_inductor" else ()) for id in (*WITHOUT_STATE, "eager")],
)
def test_a_query_that_sees_no_key_is_answered_with_0_in_every_engine(id: str) -> None:
    """Left padding hides all keys from the positions before a short prompt."""

    class Attention(nn.Module):
        def forward(self, x, kept):
            length = x.shape[2]
            mask = torch.ones(length, length, dtype=torch.bool, device=x.device).tril() & kept[:, None, None, :]
            first = nn.functional.scaled_dot_product_attention(x, x, x, attn_mask=mask)
            return nn.functional.scaled_dot_product_attention(first, x, x, attn_mask=mask)

    def given(length: int) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.randn(3, 2, length, 8), torch.arange(length) >= torch.tensor([[0], [2], [length - 1]])

    samples = [given(6)] if id == "ncnn" else [given(6), given(9)]
    candidate, engine = candidate_of(Attention(), samples), technique(id)
    try:
        program = engine.apply(candidate, dict(engine.options(candidate.facts)[0])).program
    except Refused:
        assert id == "ncnn"
        return
    call = candidate.module if program is None else program
    for length in (6,) if id == "ncnn" else (6, 7, 12):
        x, kept = given(length)
        with torch.no_grad():
            found = call(x, kept)
            torch.testing.assert_close(found, candidate.module(x, kept), rtol=1e-4, atol=1e-5)
        assert not found[1, :, :2].any()


def test_what_the_onnx_exporter_cannot_translate_is_refused_with_the_cause(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise torch.onnx.OnnxExporterError("Failed to decompose. Next steps:") from ValueError("no such operator")

    monkeypatch.setattr("torch.onnx.export", fail)
    with pytest.raises(Refused, match=r"^the ONNX exporter cannot translate it: no such operator$"):
        technique("onnxruntime").apply(made("tied"), {"spinning": False})


def test_a_layer_that_an_engine_takes_apart_is_refused_where_lengths_vary():
    class Gated(nn.Module):
        def __init__(self, kind):
            super().__init__()
            self.layer = kind(4, 6, batch_first=True)

        def forward(self, x):
            return self.layer(x)[0]

    lengths = [torch.randn(1, 5, 4), torch.randn(1, 9, 4)]
    with pytest.raises(Refused, match="AOTInductor takes gru apart into steps"):
        technique("aot_inductor").apply(candidate_of(Gated(nn.GRU), lengths), {"freezing": True, "max_autotune": False})
    with pytest.raises(Refused, match="onnxscript takes rnn_tanh apart into steps"):
        technique("onnxruntime").apply(candidate_of(Gated(nn.RNN), lengths), {"spinning": False})


def test_a_trace_of_a_graph_follows_every_size():
    class Sizes(nn.Module):
        def forward(self, x):
            length = x.shape[1]
            places = torch.arange(length + 1)[None, 1:, None] + torch.arange(1, length + 1)[None, :, None]
            seen = torch.arange(length)[:, None] >= torch.arange(length)[None]
            y = (x + torch.full((2, length, 1), 0.5) + torch.zeros(length, 8)) * places
            mixed = seen.expand(2, length, length).float() @ torch.dropout(y, 0.1, train=False)
            return mixed.reshape(2 * length, 8), y.view(2, length * 8), y[:, : length - 1], y[..., 1:]

    start = candidate_of(Sizes(), [torch.randn(2, length, 8) for length in (5, 9)])
    captured = technique("drop_no_ops").apply(start, {})
    options = {"how": "trace", "freeze": True, "optimize": True}
    program, x = technique("torchscript").apply(captured, options).program, torch.randn(2, 7, 8)
    for wanted, found in zip(start.module(x), program(x), strict=True):
        assert torch.equal(wanted, found)


@pytest.mark.parametrize("id", ["onnxruntime", "openvino", "torchscript"])
def test_a_captured_recurrent_layer_keeps_its_varying_length(id):
    """What a rewrite hands to an engine is a graph already."""
    start = made("gated_dynamic")
    captured = start.with_(module=GraphModule(capture(start), start.signature))
    engine = technique(id)
    program = engine.apply(captured, dict(engine.options(captured.facts)[0])).program
    for length in (5, 9, 2):
        sample = torch.randn(length, 1, 4)
        torch.testing.assert_close(program(sample), start.module(sample))


class BranchesByValue(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x * 0 if x.abs().max() > 1e3 else x + 1


class Reads(nn.Module):
    def __init__(self, read: Callable[[Tensor], Any]) -> None:
        super().__init__()
        self.read = read

    def forward(self, x: Tensor) -> Tensor:
        return x + self.read(x)


class BranchesBySize(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x * 0 if x.shape[0] > 100 else x + 1


@pytest.mark.parametrize("id", ["torchscript", "openvino"])
@pytest.mark.parametrize(
    ("module", "samples", "reason"),
    [
        (BranchesByValue(), [torch.rand(4)], "what Python read"),
        (Reads(lambda x: int(x.argmax())), [torch.rand(4)], "what Python read"),
        (Reads(lambda x: x.max().item()), [torch.rand(4)], "what Python read"),
        (Reads(lambda x: sum(x.tolist())), [torch.rand(4)], "what Python read"),
        (Reads(lambda x: x.numpy().max().item()), [torch.rand(4)], "what Python read"),
        (BranchesBySize(), [torch.rand(4), torch.rand(6)], "one side of a branch"),
    ],
    ids=["branch by value", "int", "item", "tolist", "numpy", "branch by size"],
)
def test_a_trace_of_what_may_be_otherwise_is_refused_where_nothing_says_when(
    id: str, module: nn.Module, samples: list[Tensor], reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise Refused("torch.export cannot capture it")

    candidate = conformance.candidate_of(module, samples)
    facts = candidate.facts.model_copy(update={"exportable": False})
    monkeypatch.setattr(torch.export, "export", refuse)
    with pytest.raises(Refused, match=rf"a trace holds {reason}.*test_engine_conditions\.py:\d+"):
        technique(id).apply(candidate.with_(facts=facts), technique(id).options(facts)[0])


def test_a_branch_by_a_size_that_does_not_vary_is_traced() -> None:
    candidate = conformance.candidate_of(BranchesBySize(), [torch.rand(4)])
    facts = candidate.facts.model_copy(update={"exportable": False, "export_error": "torch.export cannot capture it"})
    options = {"how": "trace", "freeze": False, "optimize": False}
    program = technique("torchscript").apply(candidate.with_(facts=facts), options).program
    assert program is not None
    assert torch.equal(program(torch.ones(4)), torch.full((4,), 2.0))


def test_a_trace_of_a_captured_graph_leaves_its_assertions_out() -> None:
    candidate = made("neighbours_dynamic")
    graph = capture(candidate)
    assert graph.graph.find_nodes(op="call_function", target=torch.ops.aten._assert_scalar.default)
    rewritten = candidate.with_(module=GraphModule(graph, candidate.signature))
    program = technique("torchscript").apply(rewritten, {"how": "trace", "freeze": True, "optimize": False}).program
    assert program is not None
    for sample in candidate.samples:
        with torch.no_grad():
            torch.testing.assert_close(program(*sample.args), candidate.module(*sample.args))


@pytest.mark.parametrize("captured", [False, True])
def test_a_value_that_export_kept_open_is_in_no_engine_a_constant(captured: bool) -> None:
    candidate = candidate_of(Reads(lambda x: sum((x > 6).long().tolist())), torch.rand(4))
    if captured:
        candidate = candidate.with_(module=GraphModule(capture(candidate), candidate.signature))
    with pytest.raises(Refused, match="a trace holds what Python read"):
        technique("torchscript").apply(candidate, {"how": "trace", "freeze": True, "optimize": True})
    program = technique("openvino").apply(candidate, {}).program  # converts what was captured
    assert program is not None
    torch.testing.assert_close(program(torch.full((4,), 7.0)), torch.full((4,), 11.0))
