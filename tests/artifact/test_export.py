"""What is exported is run without togi, and gives what ``togi.load`` gives."""

from __future__ import annotations

import importlib.util
import json
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.artifact.small_artifacts import make
from togi.api import export
from togi.artifact import triton
from togi.artifact.export import ENGINES, EXPORT, Export
from togi.artifact.load import load
from togi.artifact.manifest import MANIFEST, Link, document_hash, read_manifest
from togi.cli.app import run
from togi.core.errors import ArtifactError, OutputExistsError, UnknownNameError
from togi.core.records import Choice, Interface, Port, Stage
from togi.techniques import recipe
from togi.techniques.engine.programs import openvino

X, SCALE = torch.arange(56.0).reshape(7, 8) / 28 - 1, torch.linspace(0.5, 2, 28).reshape(7, 4)

Arrays = list[Any]


def feeds(exported: Export) -> dict[str | int, Any]:
    given = {"scale": SCALE, "x": X}
    return {port.name or i: given[port.path] for i, port in enumerate(exported.inputs)}


def run_onnx(path: Path, exported: Export) -> Arrays:
    import onnxruntime

    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    named = {name: tensor.numpy() for name, tensor in feeds(exported).items()}
    return list(session.run([port.name for port in exported.outputs], named))


def run_openvino(path: Path, exported: Export) -> Arrays:
    import openvino

    compiled = openvino.compile_model(str(path), "CPU", dict(exported.settings))
    found = compiled({name: tensor.numpy() for name, tensor in feeds(exported).items()})
    return [found[port.name] for port in exported.outputs]


def run_package(path: Path, exported: Export) -> Arrays:
    return list(torch._inductor.aoti_load_package(str(path))(*feeds(exported).values()))


def run_program(path: Path, exported: Export) -> Arrays:
    with torch.no_grad():
        return list(torch.export.load(path).module()(*feeds(exported).values()))


OPENED = {"onnxruntime": run_onnx, "openvino": run_openvino, "aot_inductor": run_package, "eager": run_program}


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("engine", "to"),
    [("onnxruntime", "onnx"), ("openvino", "openvino"), ("aot_inductor", "pt2"), ("eager", "pt2")],
)
def test_what_is_exported_gives_what_load_gives(
    engine: str, to: str, artifact_of: Callable[[str], Path], tmp_path: Path
) -> None:
    exported = export(artifact_of(engine), to=to, out=tmp_path / "out")
    expected = load(artifact_of(engine))(X, SCALE)
    outputs = OPENED[engine](tmp_path / "out" / exported.file, exported)
    assert [port.path for port in exported.outputs] == ["output['y']", "output['norm']"]
    assert exported.inputs[0].shape == (None, 4)  # arguments by name are in the order of their names
    assert {port.dtype for port in (*exported.inputs, *exported.outputs)} == {"float32"}
    for found, wanted in zip(outputs, expected.values(), strict=True):
        torch.testing.assert_close(torch.as_tensor(found), wanted)
    document = Export.from_json((tmp_path / "out" / EXPORT).read_text(encoding="utf-8"))
    assert document == exported
    assert document.proof == load(artifact_of(engine)).proof


@pytest.fixture(scope="session")
def schema() -> Any:
    """Triton's own protobuf of a configuration, loaded by path: its package wants gRPC, which this does not need."""
    found = importlib.util.find_spec("tritonclient")
    if found is None or not found.submodule_search_locations:
        pytest.skip("tritonclient is not installed: pip install 'togi[test]'")
    pytest.importorskip("google.protobuf.text_format")
    path = Path(found.submodule_search_locations[0]) / "grpc" / "model_config_pb2.py"
    spec = importlib.util.spec_from_file_location("model_config_pb2", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def configured(schema: Any, folder: Path) -> Any:
    from google.protobuf import text_format

    return text_format.Parse((folder / "config.pbtxt").read_text(encoding="utf-8"), schema.ModelConfig())


@pytest.mark.parametrize("engine", ENGINES["triton"])
def test_a_repository_follows_the_schema_of_the_server(
    engine: str, artifact_of: Callable[[str], Path], schema: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(openvino, "default_precision", lambda: "f32")
    exported = export(artifact_of(engine), to="triton", out=tmp_path / "models")
    folder = tmp_path / "models" / "net"
    found = configured(schema, folder)
    assert found.name == "net"  # the server wants the folder's name
    assert (found.backend, found.platform) == {
        "onnxruntime": ("onnxruntime", ""),
        "openvino": ("openvino", ""),
        "aot_inductor": ("pytorch", "torch_aoti"),
    }[engine]
    names = ["INPUT__0", "INPUT__1"] if engine == "aot_inductor" else ["input_0", "input_1"]
    assert [(each.name, list(each.dims)) for each in found.input] == [(names[0], [-1, 4]), (names[1], [-1, 8])]
    assert [list(each.dims) for each in found.output] == [[-1, 4], [-1]]
    assert {each.data_type for each in (*found.input, *found.output)} == {schema.TYPE_FP32}
    assert found.max_batch_size == 0
    assert [(group.kind, group.count) for group in found.instance_group] == [(schema.ModelInstanceGroup.KIND_CPU, 1)]
    (warm,) = found.model_warmup
    assert {name: list(each.dims) for name, each in warm.inputs.items()} == {names[0]: [2, 4], names[1]: [2, 8]}
    assert all(each.zero_data and each.data_type == schema.TYPE_FP32 for each in warm.inputs.values())
    outputs = OPENED[engine](folder / exported.file, exported)
    torch.testing.assert_close(torch.as_tensor(outputs[0]), load(artifact_of(engine))(X, SCALE)["y"])
    assert (folder / EXPORT).is_file()


def test_threads_and_precision_are_what_was_proven(
    schema: Any, tmp_path: Path, artifact_of: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    artifact_of("openvino")  # or skip
    monkeypatch.setattr(openvino, "default_precision", lambda: "f32")
    make(tmp_path / "net.togi", recipe(bf16_openvino={}, openvino={}, no_grad={}, threads={"count": 1}))
    exported = export(tmp_path / "net.togi", to="triton", out=tmp_path / "models")
    found = configured(schema, tmp_path / "models" / "net")
    in_bf16 = exported.settings["INFERENCE_PRECISION_HINT"] == "bf16"  # where the CPU has it
    assert {key: each.string_value for key, each in found.parameters.items()} == {
        "PERFORMANCE_HINT": "LATENCY",
        "INFERENCE_NUM_THREADS": "1",
        **({"HINT_BF16": "YES"} if in_bf16 else {}),
    }


def test_triton_would_quantize_activations_that_were_proven_in_float(
    tmp_path: Path, artifact_of: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    artifact_of("openvino")  # or skip
    pytest.importorskip("nncf")
    monkeypatch.setattr(openvino, "default_precision", lambda: "f32")
    for how in ("weights", "dynamic"):
        make(tmp_path / f"{how}.togi", recipe(int8_openvino={"how": how}, openvino={}, no_grad={}))
    with pytest.raises(ArtifactError, match="DYNAMIC_QUANTIZATION_GROUP_SIZE"):
        export(tmp_path / "weights.togi", to="triton", out=tmp_path / "models")
    export(tmp_path / "dynamic.togi", to="triton", out=tmp_path / "models")


@pytest.mark.parametrize(("dtype", "shape"), [("float32", ()), ("complex64", (3,)), ("float8_e5m2", (3,))])
def test_tensors_that_the_server_does_not_take(
    dtype: str, shape: tuple[int, ...], artifact_of: Callable[[str], Path]
) -> None:
    manifest = read_manifest(artifact_of("eager"))
    found = Interface(inputs=(), outputs=(Port(name="output_0", path="output", dtype=dtype, shape=shape),))
    with pytest.raises(ArtifactError, match=r"output (has no dimension|is of .*), which Triton does not take"):
        triton.served(found, "net", manifest, manifest.chain[0], None)


def test_a_model_of_a_gpu_is_exported_for_one(schema: Any, artifact_of: Callable[[str], Path]) -> None:
    from google.protobuf import text_format

    manifest = read_manifest(artifact_of("eager"))
    facts = manifest.facts.model_copy(update={"device": "cuda"})
    tf32 = Choice(stage=Stage.PRECISION, technique="tf32")
    link = Link(engine="onnxruntime", folder="onnxruntime", meta={}, threads=3, runtime=(tf32,))
    port = Port(name='in "quotes"', path="x", dtype="bfloat16", shape=(None, 3))
    given = Interface(inputs=(port,), outputs=(port,), settings={"use_tf32": "1"})
    made = triton.served(given, "net", manifest.model_copy(update={"facts": facts}), link, None)
    found = text_format.Parse(made.config, schema.ModelConfig())
    assert found.input[0].name == 'in "quotes"'
    assert found.output[0].data_type == schema.TYPE_BF16
    assert found.instance_group[0].kind == schema.ModelInstanceGroup.KIND_GPU
    (accelerator,) = found.optimization.execution_accelerators.gpu_execution_accelerator
    assert (accelerator.name, dict(accelerator.parameters)) == ("cuda", {"use_tf32": "1"})
    assert found.parameters["intra_op_thread_count"].string_value == "3"
    assert not found.model_warmup  # nothing to try sizes on
    assert "no warm-up" in made.notes[0]


def test_where_the_server_would_compute_in_another_precision(
    artifact_of: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(openvino, "default_precision", lambda: "bf16")
    with pytest.raises(ArtifactError, match=r"proven in f32, .* would compute in bf16.*--only onnxruntime"):
        export(artifact_of("openvino"), to="triton", out=tmp_path / "models")
    assert not list(tmp_path.iterdir())


def edited(artifact: Path, folder: Path, change: Callable[[dict[str, Any]], None]) -> Path:
    shutil.copytree(artifact, folder)
    document = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
    change(document)
    (folder / MANIFEST).write_text(json.dumps(document | {"sha256": document_hash(document)}), encoding="utf-8")
    return folder


def test_a_fallback_is_exported_with_the_word_that_its_speed_is_not_proven(
    artifact_of: Callable[[str], Path], tmp_path: Path
) -> None:
    exported = export(artifact_of("onnxruntime"), to="pt2", out=tmp_path / "out")
    assert exported.engine == "eager"
    assert "the proof is of onnxruntime; this is its fallback eager" in exported.notes[0]


def test_an_engine_without_the_asked_form_is_refused(artifact_of: Callable[[str], Path], tmp_path: Path) -> None:
    out = tmp_path / "out"
    eager = artifact_of("eager")
    with pytest.raises(ArtifactError, match=r"takes onnxruntime: it holds eager\. .*--only onnxruntime.*--to pt2"):
        export(eager, to="onnx", out=out)
    with pytest.raises(UnknownNameError, match="no form 'tritn'; did you mean 'triton'"):
        export(eager, to="tritn", out=out)

    def in_parts(document: dict[str, Any]) -> None:
        document["parts"] = [{"key": {"path": "body"}, "module": "Body", "effects": {}, "weights": ""}]

    with pytest.raises(ArtifactError, match=r"parts of a program.*togi\.load\(path\)\.into"):
        export(edited(eager, tmp_path / "parts.togi", in_parts), to="pt2", out=out)

    def flushing(document: dict[str, Any]) -> None:
        document["chain"][0]["runtime"] += [{"stage": "runtime", "technique": "flush_denormal", "options": {}}]

    flushed = edited(artifact_of("onnxruntime"), tmp_path / "flushed.togi", flushing)
    with pytest.raises(
        ArtifactError, match=r"flush_denormal, for which Triton has no setting: .*--without flush_denorm"
    ):
        export(flushed, to="triton", out=out)
    assert [choice.technique for choice in export(flushed, to="onnx", out=out).runtime] == ["no_grad", "flush_denormal"]
    with pytest.raises(OutputExistsError, match="exists already"):
        export(eager, to="pt2", out=out)


def test_a_damaged_artifact_is_not_exported(artifact_of: Callable[[str], Path], tmp_path: Path) -> None:
    damaged = Path(shutil.copytree(artifact_of("eager"), tmp_path / "net.togi"))
    (damaged / "eager" / "model.pt2").write_bytes(b"PK")
    with pytest.raises(ArtifactError, match="it was cut or changed"):
        export(damaged, to="pt2", out=tmp_path / "out")


def test_the_export_command_writes_the_form_that_is_asked_for(
    artifact_of: Callable[[str], Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["export", str(artifact_of("eager")), "--to", "pt2", "--out"]
    assert run([*command, str(tmp_path / "a")]) == 0
    assert "input  1 = x: float32 (any, 8)" in capsys.readouterr().out
    assert run([*command, str(tmp_path / "b"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == json.loads((tmp_path / "b" / EXPORT).read_text(encoding="utf-8"))
    assert run([*command, str(tmp_path / "b")]) == 2
    assert "exists already" in capsys.readouterr().err


CPP = Path(__file__).parents[2] / "examples" / "cpp"


@pytest.mark.thorough(40)
def test_the_package_runs_from_cpp(artifact_of: Callable[[str], Path], tmp_path: Path) -> None:
    if shutil.which("cmake") is None:
        pytest.skip("there is no cmake")
    exported = export(artifact_of("aot_inductor"), to="pt2", out=tmp_path / "out")
    build = ["cmake", "-S", str(CPP), "-B", str(tmp_path / "build"), f"-DTORCH={Path(torch.__file__).parent}"]
    subprocess.run(build, check=True, capture_output=True)
    subprocess.run(["cmake", "--build", str(tmp_path / "build")], check=True, capture_output=True)
    described = []
    for name, tensor in feeds(exported).items():
        tensor.numpy().tofile(tmp_path / f"{name}.bin")
        described.append(f"float32:{'x'.join(map(str, tensor.shape))}:{tmp_path / f'{name}.bin'}")
    program = [str(tmp_path / "build" / "run_pt2"), str(tmp_path / "out" / exported.file), str(tmp_path)]
    done = subprocess.run([*program, *described], check=True, capture_output=True, text=True)
    assert done.stdout.split() == ["float32:7x4", "float32:7"]
    expected = load(artifact_of("aot_inductor"))(X, SCALE)
    for i, wanted in enumerate(expected.values()):
        found = torch.from_numpy(np.fromfile(tmp_path / f"output_{i}.bin", dtype=np.float32)).reshape(wanted.shape)
        torch.testing.assert_close(found, wanted, rtol=0, atol=0)
    wrong = subprocess.run([*program, "float32:7x9:" + described[0].rpartition(":")[2]], capture_output=True, text=True)
    assert wrong.returncode == 1
    assert "does not hold 252 bytes" in wrong.stderr


def test_no_name_of_the_manifest_decides_where_something_is_written(
    artifact_of: Callable[[str], Path], tmp_path: Path
) -> None:
    artifact = Path(shutil.copytree(artifact_of("onnxruntime"), tmp_path / "net.togi"))
    document = json.loads((artifact / MANIFEST).read_text(encoding="utf-8"))
    document["chain"][0]["meta"]["file"] = "../../profile/ipython_config.json"
    document["sha256"] = document_hash(document)
    (artifact / MANIFEST).write_text(json.dumps(document), encoding="utf-8")
    (tmp_path / "deep").mkdir()
    exported = export(artifact, to="onnx", out=tmp_path / "deep" / "out")
    assert exported.file == "model.onnx"
    assert sorted(path.name for path in (tmp_path / "deep").rglob("*")) == ["export.json", "model.onnx", "out"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["deep", "net.togi"]


@pytest.mark.parametrize("name", ["...togi", "-x.togi", "a\nb.togi", ".togi"])
def test_a_name_that_no_model_can_have_in_a_repository(
    name: str, artifact_of: Callable[[str], Path], tmp_path: Path
) -> None:
    artifact = Path(shutil.copytree(artifact_of("onnxruntime"), tmp_path / "in" / name))
    with pytest.raises(ArtifactError, match="cannot be the name of a model"):
        export(artifact, to="triton", out=tmp_path / "out")
    assert [path.name for path in tmp_path.iterdir()] == ["in"]


def test_without_programs_only_files_of_data_are_exported(artifact_of: Callable[[str], Path], tmp_path: Path) -> None:
    artifact = Path(shutil.copytree(artifact_of("aot_inductor"), tmp_path / "net.togi"))
    assert export(artifact, to="pt2", out=tmp_path / "out", native=False).engine == "eager"


def test_links_that_wait_are_not_written_through(artifact_of: Callable[[str], Path], tmp_path: Path) -> None:
    victim, place = tmp_path / "victim", tmp_path / "place"
    victim.mkdir()
    place.mkdir()
    for what in ("partial", "replaced", "probe"):
        (place / f".out.{what}").symlink_to(victim)
    export(artifact_of("onnxruntime"), to="triton", out=place / "out")
    assert not list(victim.iterdir())
    assert (place / "out").is_dir()
    assert not (place / "out").is_symlink()
