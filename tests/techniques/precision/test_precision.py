"""Lowered precision: near the original, not equal to it, with the original's types outside; saved and loaded again."""

from __future__ import annotations

import math
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import onnx
import openvino
import pytest
import torch
from onnx import numpy_helper
from onnxruntime import InferenceSession
from onnxruntime import SessionOptions as InferenceOptions

from tests.techniques.precision.precision_subjects import mixed
from togi.core.errors import Refused
from togi.graph.candidate import Candidate
from togi.machine import describe
from togi.techniques.base import Applies, Engine, Options, Refuses
from togi.techniques.conformance import candidate_of
from togi.techniques.engine.programs import onnxruntime
from togi.techniques.registry import technique

VNNI = ("avx2", "avx512_vnni")
LOWERED: list[tuple[str, Options, str, float]] = [
    ("bf16", {"how": "cast"}, "eager", 0.05),
    ("bf16", {"how": "autocast"}, "eager", 0.05),
    ("fp16", {"how": "cast"}, "eager", 0.01),
    ("fp16", {"how": "autocast"}, "eager", 0.01),
    ("bf16", {"how": "cast"}, "openvino", 0.05),
    ("int8_openvino", {"preset": "mixed"}, "openvino", 0.2),
    ("int8_openvino", {"how": "dynamic"}, "openvino", 0.05),
    ("int8_openvino", {"how": "weights"}, "openvino", 0.05),
    ("int8_onnxruntime", {"how": "static"}, "onnxruntime", 0.2),
    ("int8_openvino", {"preset": "performance", "fast_bias_correction": False}, "openvino", 0.2),
    ("int8_onnxruntime", {"how": "products"}, "onnxruntime", 0.2),
    ("int8_onnxruntime", {"how": "static", "ranges": "percentile"}, "onnxruntime", 0.2),
    ("int8_onnxruntime", {"how": "dynamic"}, "onnxruntime", 0.2),
]


def relative_error(candidate: Candidate, call: Any) -> float:
    """Worst sample's root-mean-square error of the scores; checks structure and types on the way."""
    worst = 0.0
    with torch.no_grad():
        for sample in candidate.samples:
            expected, found = candidate.module(**sample.kwargs), call(**sample.kwargs)
            assert list(found) == list(expected)
            assert all(found[key].dtype == expected[key].dtype for key in expected)
            assert all(found[key].shape == expected[key].shape for key in expected)
            error = (found["scores"] - expected["scores"]).square().mean().sqrt()
            worst = max(worst, float(error / expected["scores"].square().mean().sqrt()))
    return worst


@pytest.mark.thorough
@pytest.mark.parametrize(("id", "options", "engine_id", "bound"), LOWERED)
def test_lowered_precision_is_near_and_survives_saving(
    id: str, options: Options, engine_id: str, bound: float, tmp_path: Path
) -> None:
    candidate = mixed()
    engine = technique(engine_id)
    assert isinstance(engine, Engine)
    lowered = technique(id).apply(candidate, options)
    built = engine.apply(lowered, engine.options(candidate.facts)[0])
    assert built.program is not None
    error = relative_error(candidate, built.program)
    assert 1e-6 < error < bound, "as exact as float32, or far off"
    loaded = engine.load(tmp_path, built.program.save(tmp_path), candidate.signature, None)
    assert relative_error(candidate, loaded) == pytest.approx(error, rel=0.05)
    assert {p.dtype for p in candidate.module.parameters()} == {torch.float32}


def test_bf16_openvino_is_asked_for_in_the_stored_model(tmp_path: Path) -> None:
    answer = technique("bf16_openvino").applies(mixed().facts)
    if isinstance(answer, Refuses):
        pytest.skip(answer.reason)
    candidate = technique("bf16_openvino").apply(mixed(), {})
    program = technique("openvino").apply(candidate, {}).program
    assert program is not None
    assert "bfloat16" in str(program.compiled.get_property("INFERENCE_PRECISION_HINT"))
    engine = technique("openvino")
    assert isinstance(engine, Engine)
    loaded = engine.load(tmp_path, program.save(tmp_path), candidate.signature, None)
    assert "bfloat16" in str(loaded.compiled.get_property("INFERENCE_PRECISION_HINT"))
    assert relative_error(candidate, loaded) < 0.05


def runs_in(options: Options, folder: Path) -> dict[str, set[str]]:
    """The types in which OpenVINO runs each kind of layer, of the model that was saved and loaded again."""
    candidate = mixed()
    loaded = saved_and_loaded(candidate, options, folder)
    assert 1e-6 < relative_error(candidate, loaded) < 0.2
    return types_of_layers(loaded)


def saved_and_loaded(candidate: Candidate, options: Options, folder: Path) -> Any:
    engine = technique("openvino")
    assert isinstance(engine, Engine)
    program = engine.apply(technique("int8_openvino").apply(candidate, options), {}).program
    assert program is not None
    folder.mkdir()
    return engine.load(folder, program.save(folder), candidate.signature, None)


def types_of_layers(loaded: Any) -> dict[str, set[str]]:
    kinds: dict[str, set[str]] = {}
    for layer in loaded.compiled.get_runtime_model().get_ordered_ops():
        about = layer.get_rt_info()
        kind, precision = (about[key].astype(str) for key in ("layerType", "runtimePrecision"))
        kinds.setdefault(kind, set()).add(precision)
    return kinds


@pytest.mark.thorough
@pytest.mark.parametrize("options", [{"preset": "performance"}, {"how": "dynamic"}], ids=["static", "dynamic"])
def test_what_is_not_quantized_runs_in_bf16_where_asked(options: Options, tmp_path: Path) -> None:
    """The sum behind the embedding; where weights alone are compressed, the convolution too."""
    bf16: Options = {**options, "rest": "bf16"}
    if bf16 not in technique("int8_openvino").options(mixed().facts):
        pytest.skip("this CPU has no bfloat16 instructions")
    alone, lowered = runs_in(options, tmp_path / "alone"), runs_in(bf16, tmp_path / "lowered")
    assert not any("bf16" in types for types in alone.values())
    assert "bf16" in lowered["Subgraph"]
    static = "preset" in options
    quantized = "Convolution" if static else "FullyConnected"
    assert alone[quantized] == lowered[quantized] == {"u8" if static else "i8"}
    if not static:
        assert (alone["Convolution"], lowered["Convolution"]) == ({"f32"}, {"bf16"})


def test_bf16_for_the_rest_is_not_offered_and_refused_where_the_cpu_lacks_it() -> None:
    int8, int4 = technique("int8_openvino"), technique("int4_openvino")
    for machine in ({"cpu_flags": VNNI}, {"cpu_flags": (*VNNI, "avx512_bf16"), "onednn_limit": "AVX512_CORE"}):
        candidate = mixed(**{"onednn_limit": "", **machine})
        for lowered, options in ((int8, {"preset": "performance"}), (int4, {})):
            assert not any("rest" in offered for offered in lowered.options(candidate.facts))
            with pytest.raises(Refused, match="bfloat16 instructions"):
                lowered.apply(candidate, {**options, "rest": "bf16"})
    with_bf16 = int8.options(mixed(cpu_flags=(*VNNI, "avx512_bf16"), onednn_limit="").facts)
    assert {"preset": "performance", "rest": "bf16"} in with_bf16
    assert list(int4.options(mixed(cpu_flags=(*VNNI, "avx512_bf16"), onednn_limit="").facts)) == [{"rest": "bf16"}]
    standing = [options for options in with_bf16 if not int8.mends(mixed().facts, options)]
    assert len(standing) <= 6, "the search must not drown in them"


def test_compressed_weights_are_offered_where_products_are_most_of_it() -> None:
    def offered(functions: dict[str, int], cpu_flags: tuple[str, ...] = VNNI) -> list[object]:
        facts = mixed(cpu_flags=cpu_flags, onednn_limit="").facts.model_copy(update={"functions": functions})
        int8 = technique("int8_openvino")
        standing = [options for options in int8.options(facts) if not int8.mends(facts, options)]
        return [options.get("how", "static") for options in standing]

    assert offered({"conv2d": 53, "linear": 1}) == ["static"] * 3
    assert offered({"conv2d": 1, "linear": 48}) == ["dynamic", "static", "weights", "static"]
    assert offered({"linear": 48}, cpu_flags=("avx2",)) == ["static", "weights", "static"]
    both_twice = ["dynamic", "static", "dynamic", "static", "weights", "static"]
    assert offered({"linear": 48}, cpu_flags=(*VNNI, "avx512_bf16")) == both_twice


@pytest.mark.thorough
def test_activations_stay_in_float_where_weights_alone_are_compressed(tmp_path: Path) -> None:
    """It is written into the model, so that the loaded one computes as it was proven, whatever the default is."""
    for how, group in (("weights", 0), ("dynamic", 32)):
        loaded = saved_and_loaded(mixed(), {"how": how}, tmp_path / how)
        assert loaded.compiled.get_property("DYNAMIC_QUANTIZATION_GROUP_SIZE") == group
        told = loaded.interface().settings.get("DYNAMIC_QUANTIZATION_GROUP_SIZE")
        assert told == (0 if how == "weights" else None), "what a server must set, since it is not the default"


def on_this_machine(module: torch.nn.Module, sample: torch.Tensor) -> Candidate:
    candidate = candidate_of(module, [sample])
    return replace(candidate, facts=candidate.facts.model_copy(update={"machine": mixed().facts.machine}))


@pytest.mark.thorough
def test_depthwise_convolutions_are_kept_where_asked(tmp_path: Path) -> None:
    """They hold the largest part of the error: of EfficientNet-Lite0 0.22 became 0.11."""
    torch.manual_seed(0)
    depthwise = torch.nn.Conv2d(16, 16, 3, groups=16)
    layers = [torch.nn.Conv2d(3, 16, 3), torch.nn.ReLU(), depthwise, torch.nn.ReLU(), torch.nn.Conv2d(16, 8, 1)]
    candidate = on_this_machine(torch.nn.Sequential(*layers).eval(), torch.randn(2, 3, 16, 16))
    int8 = technique("int8_openvino")
    kept = next(options for options in int8.options(candidate.facts) if "keep" in options)
    alone = {name: value for name, value in kept.items() if name != "keep"}
    assert alone in int8.options(candidate.facts)
    types = [types_of_layers(saved_and_loaded(candidate, each, tmp_path / str(len(each)))) for each in (alone, kept)]
    in_float = "bf16" if "rest" in kept else "f32"
    assert types[0]["Convolution"] <= {"u8", "i8"}
    assert in_float in types[1]["Convolution"]
    assert types[1]["Convolution"] & {"u8", "i8"}, "the others are quantized"
    with pytest.raises(Refused, match="no operator is of the kind depthwise"):
        saved_and_loaded(mixed(), {"preset": "performance", "keep": "depthwise"}, tmp_path / "refused")


@pytest.mark.thorough
def test_openvino_stores_large_weights_in_four_bits_where_asked(tmp_path: Path) -> None:
    """All but the last, and one whose groups would be too small."""
    torch.manual_seed(0)
    sizes = ((256, 256), (256, 24), (24, 256), (256, 8))
    layers = [torch.nn.Sequential(torch.nn.Linear(*size), torch.nn.ReLU()) for size in sizes]
    candidate = on_this_machine(torch.nn.Sequential(*layers).eval(), torch.randn(2, 256))
    program = technique("openvino").apply(technique("int4_openvino").apply(candidate, {}), {}).program
    assert program is not None
    program.save(tmp_path)
    model = openvino.Core().read_model(next(tmp_path.glob("*.xml")))
    constants = [node for node in model.get_ops() if node.get_type_name() == "Constant"]
    stored = {c.get_element_type().get_type_name(): [] for c in constants}
    for constant in constants:
        stored[constant.get_element_type().get_type_name()].append(math.prod(constant.shape))
    assert set(stored["i4"]) == {256 * 256, 256 * 24}
    assert {24 * 256, 256 * 8} <= {*stored.get("i8", ()), *stored.get("u8", ())}
    with torch.no_grad():
        found, right = program(candidate.samples[0].args[0]), candidate.module(candidate.samples[0].args[0])
    assert 1e-3 < float((found - right).norm() / right.norm()) < 0.4


@pytest.mark.parametrize("id", ["int4_openvino", "int4_onnxruntime"])
def test_four_bits_are_for_large_models_of_products_where_vnni_is(id: str) -> None:
    def answer(functions: dict[str, int], parameters: int, cpu_flags: tuple[str, ...] = VNNI) -> Applies | Refuses:
        facts = mixed(cpu_flags=cpu_flags, onednn_limit="").facts
        return technique(id).applies(facts.model_copy(update={"functions": functions, "parameters": parameters}))

    assert answer({"linear": 48}, 135_000_000) == Applies()
    for refused, said in (
        (answer({"linear": 48}, 22_000_000), "22 million parameters"),
        (answer({"linear": 1, "conv2d": 50}, 135_000_000), "fewer matrix products"),
        (answer({"linear": 48}, 135_000_000, ("avx2", "avx512f")), "VNNI"),
    ):
        assert isinstance(refused, Refuses)
        assert said in refused.reason


def test_a_module_without_weights_to_compress_is_refused() -> None:
    class Products(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x @ x.transpose(-1, -2)

    candidate = technique("int8_openvino").apply(candidate_of(Products(), [torch.randn(2, 8, 8)]), {"how": "dynamic"})
    with pytest.raises(Refused, match="no weight was compressed"):
        technique("openvino").apply(candidate, {})


def test_openvino_stays_in_float32_unless_asked() -> None:
    candidate = mixed()
    program = technique("openvino").apply(candidate, {}).program
    assert "float32" in str(program.compiled.get_property("INFERENCE_PRECISION_HINT"))
    assert relative_error(candidate, program) < 1e-5


@pytest.mark.parametrize("id", ["bf16", "bf16_openvino", "fp16"])
def test_half_precision_follows_the_processor(id: str) -> None:
    assert isinstance(technique(id).applies(mixed(cpu_flags=("avx2",)).facts), Refuses)
    both = ("avx512_bf16", "avx512_fp16")
    assert technique(id).applies(mixed(cpu_flags=both, onednn_limit="").facts) == Applies()


@pytest.mark.parametrize(
    ("limit", "refusing"),
    [
        ("AVX2", {"bf16", "bf16_openvino", "fp16"}),
        ("AVX512_CORE_BF16", {"fp16"}),
        ("AVX512_CORE_FP16", set()),
        ("AVX512_CORE_AMX", set()),
    ],
)
def test_half_precision_follows_the_limit_of_onednn(limit: str, refusing: set[str]) -> None:
    facts = mixed(cpu_flags=("avx512_bf16", "avx512_fp16"), onednn_limit=limit).facts
    answers = {id: technique(id).applies(facts) for id in ("bf16", "bf16_openvino", "fp16")}
    refused = {id: answer.reason for id, answer in answers.items() if isinstance(answer, Refuses)}
    assert set(refused) == refusing
    assert all(limit in reason for reason in refused.values())


@pytest.mark.parametrize("id", ["int8_openvino", "int8_onnxruntime"])
def test_int8_refuses_where_nothing_would_be_quantized(id: str) -> None:
    facts = mixed().facts.model_copy(update={"modules": {"ReLU": 1}, "functions": {"relu": 1}})
    answer = technique(id).applies(facts)
    assert isinstance(answer, Refuses)
    assert "nothing would be quantized" in answer.reason


@pytest.mark.parametrize("id", ["bf16", "fp16"])
def test_nothing_to_lower_in_double_precision(id: str) -> None:
    facts = mixed(cpu_flags=("avx512_bf16", "avx512_fp16")).facts
    double = facts.model_copy(
        update={"parameter_dtypes": ("float64",), "inputs": tuple(i for i in facts.inputs if i.dtype != "float32")}
    )
    assert isinstance(technique(id).applies(double), Refuses)


@pytest.mark.parametrize("id", ["bf16", "fp16", "bf16_openvino", "int8_openvino", "int8_onnxruntime", "int4_openvino"])
def test_lower_precision_is_declared_approximate(id: str) -> None:
    assert technique(id).exact is False


def written(id: str, options: Options, engine_id: str, folder: Path, **machine: Any) -> Path:
    """The files that the engine writes of the lowered model on such a machine."""
    candidate, engine = mixed(**machine), technique(engine_id)
    assert isinstance(engine, Engine)
    lowered = technique(id).apply(candidate, options)
    program = engine.apply(lowered, engine.options(candidate.facts)[0]).program
    assert program is not None
    folder.mkdir()
    program.save(folder)
    return folder


def test_dynamic_quantization_leaves_convolutions_alone(tmp_path: Path) -> None:
    """With one scale for all of a picture an EfficientNet agreed with itself on 55 of 100."""
    folder = written("int8_onnxruntime", {"how": "dynamic"}, "onnxruntime", tmp_path / "files")
    kinds = {node.op_type for node in onnx.load(folder / "model.onnx").graph.node}
    assert {"Conv", "MatMulInteger"} <= kinds
    assert "ConvInteger" not in kinds


class Linears(torch.nn.Module):
    """A large one and a small one, of rows and of rows of rows: ONNX has different operators for these."""

    def __init__(self) -> None:
        super().__init__()
        self.large, self.small = torch.nn.Linear(256, 256), torch.nn.Linear(256, 8)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        hidden = self.large(x).relu()
        return self.small(hidden), self.large(hidden.mean(1))


def in_blocks(
    module: torch.nn.Module, sample: torch.Tensor, folder: Path, id: str = "int8_onnxruntime"
) -> tuple[Candidate, Any, list[str]]:
    """The candidate, its program in blocks, saved and loaded, and the kinds of products in its file."""
    candidate, engine = candidate_of(module, [sample]), technique("onnxruntime")
    machine = candidate.facts.machine.model_copy(update={"cpu_flags": VNNI})
    candidate = replace(candidate, facts=candidate.facts.model_copy(update={"machine": machine}))
    assert isinstance(engine, Engine)
    lowered = technique(id).apply(candidate, {"how": "blocks"} if id == "int8_onnxruntime" else {})
    program = engine.apply(lowered, {"spinning": False}).program
    assert program is not None
    loaded = engine.load(folder, program.save(folder), candidate.signature, None)
    kinds = [node.op_type for node in onnx.load(folder / "model.onnx").graph.node]
    return candidate, loaded, [kind for kind in kinds if kind.startswith(("MatMul", "Gemm"))]


def test_large_products_alone_have_weights_in_blocks(tmp_path: Path) -> None:
    torch.manual_seed(0)
    sample = torch.randn(2, 5, 256)
    candidate, loaded, kinds = in_blocks(Linears().eval(), sample, tmp_path)
    assert sorted(kinds) == ["MatMul", "MatMulNBits", "MatMulNBits"]
    with torch.no_grad():
        for found, expected in zip(loaded(sample), candidate.module(sample), strict=True):
            error = float((found - expected).norm() / expected.norm())
            assert 1e-4 < error < 0.05


def test_weights_of_four_bits_err_more_than_of_eight_and_are_as_large_as_half(tmp_path: Path) -> None:
    torch.manual_seed(0)
    sample, errors, sizes = torch.randn(2, 5, 256), [], []
    for id in ("int8_onnxruntime", "int4_onnxruntime"):
        (tmp_path / id).mkdir()
        candidate, loaded, kinds = in_blocks(Linears().eval(), sample, tmp_path / id, id)
        assert sorted(kinds) == ["MatMul", "MatMulNBits", "MatMulNBits"]
        sizes.append((tmp_path / id / "model.onnx").stat().st_size)
        with torch.no_grad():
            pairs = list(zip(loaded(sample), candidate.module(sample), strict=True))
        errors.append(max(float((found - right).norm() / right.norm()) for found, right in pairs))
    assert 4 * errors[0] < errors[1] < 0.3
    assert sizes[1] < 0.6 * sizes[0]


def test_small_products_are_not_worth_blocks(tmp_path: Path) -> None:
    with pytest.raises(Refused, match="65,536 or more numbers"):
        in_blocks(torch.nn.Linear(255, 256).eval(), torch.randn(2, 255), tmp_path)


def test_blocks_are_offered_where_products_are_most_of_it_and_vnni_is() -> None:
    def offered(functions: dict[str, int], cpu_flags: tuple[str, ...] = VNNI) -> bool:
        facts = mixed(cpu_flags=cpu_flags, onednn_limit="").facts.model_copy(update={"functions": functions})
        return {"how": "blocks"} in technique("int8_onnxruntime").options(facts)

    assert offered({"linear": 8})
    assert not offered({"linear": 1, "conv2d": 50})
    assert not offered({"linear": 8}, cpu_flags=("avx2", "avx512f"))
    with pytest.raises(Refused, match="VNNI"):
        technique("int8_onnxruntime").apply(mixed(cpu_flags=("avx2",)), {"how": "blocks"})


@pytest.mark.thorough
def test_quantizing_in_blocks_leaves_the_log_of_the_process_alone(tmp_path: Path) -> None:
    """The library adds a handler to the root logger where there is none, and logs every product."""
    program = (
        "import logging, sys, torch\n"
        "from pathlib import Path\n"
        "sys.modules['openvino_telemetry'] = None\n"  # this file imports openvino by itself
        "from tests.techniques.precision.test_precision import Linears, in_blocks\n"
        f"in_blocks(Linears().eval(), torch.randn(2, 5, 256), Path({str(tmp_path)!r}))\n"
        "assert not logging.root.handlers and logging.root.level == logging.WARNING\n"
        "assert not logging.root.manager.disable\n"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    assert "start to quantize" not in ended.stderr


def test_products_are_exact_where_they_would_saturate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """ONNX Runtime is asked for it there alone: elsewhere its kernels are exact, and would be given up."""
    folder = written("int8_onnxruntime", {"how": "static"}, "onnxruntime", tmp_path / "files", cpu_flags=VNNI)

    key = "session.x64quantprecision"

    def asked(cpu_flags: tuple[str, ...]) -> tuple[str, float]:
        monkeypatch.setattr(describe, "cpu_flags", lambda: cpu_flags)
        loaded = onnxruntime.load(folder, {"options": {"spinning": False}}, mixed().signature, None)
        try:
            entry = loaded.session.get_session_options().get_session_config_entry(key)
        except RuntimeError:  # it was not set
            entry = ""
        return entry, relative_error(mixed(), loaded)

    (there, exact), (here, _) = asked(("avx2", "avx512f")), asked(VNNI)
    assert (there, here) == ("1", "")
    assert exact < 0.2


def as_it_runs(candidate: Candidate, how: str, folder: Path) -> tuple[onnx.ModelProto, onnx.ModelProto]:
    """The quantized file, and what ONNX Runtime makes of it."""
    lowered = technique("int8_onnxruntime").apply(candidate, {"how": how})
    program = technique("onnxruntime").apply(lowered, {"spinning": False}).program
    assert program is not None
    program.save(folder)
    options = InferenceOptions()
    options.optimized_model_filepath, options.log_severity_level = str(folder / "optimized.onnx"), 3
    InferenceSession(str(folder / "model.onnx"), options, providers=["CPUExecutionProvider"])
    return onnx.load(folder / "model.onnx"), onnx.load(folder / "optimized.onnx")


def makers(model: onnx.ModelProto) -> dict[str, str]:
    """The kind of operator that makes each value."""
    return {output: node.op_type for node in model.graph.node for output in node.output}


class Followed(torch.nn.Module):
    """A product with weights, and each of many operators after it."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(16, 16, bias=False)
        self.layers = torch.nn.ModuleList(
            [
                torch.nn.LayerNorm(16),
                torch.nn.InstanceNorm2d(4, affine=True),
                torch.nn.BatchNorm2d(4),
                torch.nn.ConvTranspose2d(4, 4, 2, 2),
                torch.nn.Conv2d(4, 4, 3),
                torch.nn.Sigmoid(),
                torch.nn.ReLU(),
                torch.nn.LeakyReLU(),
                torch.nn.Softmax(-1),
                torch.nn.AvgPool2d(2),
                torch.nn.MaxPool2d(2),
                torch.nn.AdaptiveAvgPool2d(1),
                torch.nn.Upsample(scale_factor=2.0),
                torch.nn.ZeroPad2d(1),
                torch.nn.Flatten(),
            ]
        )

    def forward(self, x: torch.Tensor) -> list[torch.Tensor]:
        y = self.linear(x)
        found = [layer(y) for layer in self.layers]
        found += [y.topk(3).values, y.cumsum(-1), y + y.flip(-1), y * 0.5, (y @ y.mT).softmax(-1) @ y]
        found += [torch.cat([y[:, :2].mT, y[:, 2:]], 1), torch.where(torch.eye(16) > 0, y, -1.0)]
        return [*found, y[..., torch.tensor([3, 1])].reshape(2, -1).unsqueeze(1), y.argmax(-1)]


@pytest.mark.parametrize("how", ["static", "products"])
def test_onnx_runtime_quantizes_what_it_computes_in_eight_bits_alone(how: str, tmp_path: Path) -> None:
    """Else it would compute in floating point, and convert the result back."""
    torch.manual_seed(0)
    candidate = candidate_of(Followed().eval(), [torch.randn(2, 4, 16, 16) for _ in range(4)])
    file, running = as_it_runs(candidate, how, tmp_path)
    assert "DequantizeLinear" in makers(file).values()
    kinds = makers(running)
    assert {"LayerNormalization", "ConvTranspose", "TopK", "Pad", "QLinearConv"} <= set(kinds.values())
    quantized = [node.input[0] for node in running.graph.node if node.op_type == "QuantizeLinear"]
    converted = {kinds.get(name, "input") for name in quantized}
    assert "input" in converted
    assert converted <= {"input", "DequantizeLinear"}, "the second is what becomes of relu: a range from 0 on"


def test_products_alone_leave_normalisations_and_attention_in_floating_point(tmp_path: Path) -> None:
    """No layer of a transformer's normalisations reads what was rounded to 8 bits."""
    torch.manual_seed(0)
    layer = torch.nn.TransformerEncoderLayer(32, 2, 64, dropout=0.0, batch_first=True)
    encoder = torch.nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).eval()
    samples = [torch.randn(1, 8, 32) for _ in range(8)]
    candidate = candidate_of(encoder, samples)
    errors = {}
    for how in ("static", "products"):
        (tmp_path / how).mkdir()
        file, running = as_it_runs(candidate, how, tmp_path / how)
        read = [makers(file).get(name) for node in file.graph.node if "Norm" in node.op_type for name in node.input]
        assert len(read) >= 12
        assert ("DequantizeLinear" in read) is (how == "static"), "there sums have 8 bits, and what reads them"
        session = InferenceSession(str(tmp_path / how / "model.onnx"), providers=["CPUExecutionProvider"])
        with torch.no_grad():
            pairs = [(session.run(None, {"input_0": x.numpy()})[0], encoder(x)) for x in samples]
        errors[how] = sum(float((torch.from_numpy(found) - right).norm()) for found, right in pairs)
    assert errors["products"] < 0.5 * errors["static"]
    assert not {"QLinearAdd", "QLinearSoftmax", "QLinearMatMul"} & set(makers(running).values())


@pytest.mark.parametrize("id", ["int8_onnxruntime", "int8_openvino"])
def test_answers_depend_on_exact_sums_where_weights_have_eight_bits(id: str) -> None:
    with_vnni, without = (mixed(cpu_flags=flags, onednn_limit="").facts.machine for flags in (VNNI, ("avx2",)))
    assert technique(id).instructions(with_vnni)
    assert technique(id).instructions(without) == ()
    assert technique("bf16").instructions(with_vnni) == ()


@pytest.mark.thorough
def test_openvino_gets_half_of_the_range_where_sums_saturate(tmp_path: Path) -> None:
    """In all layers: by itself NNCF protects the first alone."""

    def largest(name: str, **machine: Any) -> list[int]:
        folder = written("int8_openvino", {"preset": "performance"}, "openvino", tmp_path / name, **machine)
        model = openvino.Core().read_model(next(folder.glob("*.xml")))
        constants = [node for node in model.get_ops() if node.get_type_name() == "Constant"]
        weights = [c.get_data() for c in constants if c.get_element_type() == openvino.Type.i8]
        products = [weight for weight in weights if weight.ndim > 1 and weight.shape != (10, 16)]  # not the embedding
        assert len(products) == 3
        return [int(abs(weight.astype(int)).max()) for weight in products]

    assert max(largest("vnni", cpu_flags=VNNI, onednn_limit="")) > 64
    assert max(largest("saturating", cpu_flags=("avx2", "avx512f"), onednn_limit="")) <= 64
    assert max(largest("limited", cpu_flags=VNNI, onednn_limit="AVX2")) <= 64


@pytest.mark.parametrize("how", ["static", "products", "dynamic"])
def test_weights_have_seven_bits_where_products_of_eight_saturate(how: str, tmp_path: Path) -> None:
    def largest(cpu_flags: tuple[str, ...]) -> int:
        candidate = mixed(cpu_flags=cpu_flags)
        engine = technique("onnxruntime")
        lowered = technique("int8_onnxruntime").apply(candidate, {"how": how})
        folder = tmp_path / "_".join(cpu_flags)
        folder.mkdir()
        program = engine.apply(lowered, engine.options(candidate.facts)[0]).program
        assert program is not None
        program.save(folder)
        model = onnx.load(next(folder.glob("*.onnx")))
        weights = [numpy_helper.to_array(w) for w in model.graph.initializer if w.data_type == onnx.TensorProto.INT8]
        return max(abs(w.astype(int)).max() for w in weights if w.ndim > 1)

    assert largest(("avx2", "avx512f")) <= 64
    assert largest(("avx2", "avx512_vnni")) == 127
