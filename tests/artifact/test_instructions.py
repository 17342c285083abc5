"""An 8-bit file that was proven where sums of products are exact is not trusted where they saturate."""

from __future__ import annotations

import dataclasses
import json
import warnings
from pathlib import Path

import pytest
import torch
from torch import nn

from tests.artifact.artifact_maker import ArtifactMaker
from togi.artifact.load import FallbackWarning, load, load_manifest
from togi.artifact.manifest import Manifest, read_manifest
from togi.artifact.proven_here import artifact_lacks, remember
from togi.core.errors import ArtifactError
from togi.core.records import Recipe
from togi.machine import describe
from togi.subject.inputs import Subject
from togi.techniques import recipe

VNNI, SATURATING = ("avx2", "avx512_vnni"), ("avx2", "avx512f")
ONNX = recipe(onnxruntime={"spinning": False}, int8_onnxruntime={"how": "dynamic"}, no_grad={})
OPENVINO = recipe(openvino={}, int8_openvino={"preset": "performance"}, no_grad={})


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TOGI_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("ONEDNN_MAX_CPU_ISA", raising=False)
    return tmp_path / "home"


@pytest.fixture(scope="module")
def artifacts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """By engine, and one of ONNX Runtime that was written where products saturate."""
    folder = tmp_path_factory.mktemp("int8")
    made = {"onnxruntime": (ONNX, VNNI), "openvino": (OPENVINO, VNNI), "seven bits": (ONNX, SATURATING)}
    for name, (chosen, cpu_flags) in made.items():
        _make(folder / f"{name}.togi", chosen, cpu_flags)
    return {name: folder / f"{name}.togi" for name in made}


def _make(out: Path, chosen: Recipe, cpu_flags: tuple[str, ...]) -> Manifest:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 8)).eval()
    maker = ArtifactMaker.of(Subject(module, torch.randn(4, 32)), "Net")
    machine = maker.facts.machine.model_copy(update={"cpu_flags": cpu_flags, "onednn_limit": ""})
    return dataclasses.replace(maker, facts=maker.facts.model_copy(update={"machine": machine})).make(out, chosen)


def engine_on(artifact: Path, cpu_flags: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(describe, "cpu_flags", lambda: cpu_flags)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FallbackWarning)
        return load(artifact).engine


@pytest.mark.parametrize("engine", ["onnxruntime", "openvino"])
def test_float32_serves_where_sums_saturate(
    engine: str, artifacts: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert engine_on(artifacts[engine], VNNI, monkeypatch) == engine
    monkeypatch.setattr(describe, "cpu_flags", lambda: SATURATING)
    with pytest.warns(FallbackWarning, match=r"may answer wrongly here.*VNNI.*togi verify.*using eager instead"):
        loaded = load(artifacts[engine])
    assert loaded.engine == "eager"
    assert any("VNNI" in warning for warning in loaded.warnings)


def test_the_switch_of_the_library_counts_as_the_processor(
    artifacts: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """oneDNN computes for OpenVINO, and not for ONNX Runtime."""
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", "AVX2")
    assert engine_on(artifacts["openvino"], VNNI, monkeypatch) == "eager"
    assert engine_on(artifacts["onnxruntime"], VNNI, monkeypatch) == "onnxruntime"


def test_weights_of_seven_bits_serve_everywhere(artifacts: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    for cpu_flags in (VNNI, SATURATING):
        assert engine_on(artifacts["seven bits"], cpu_flags, monkeypatch) == "onnxruntime"


def test_what_verify_proved_here_serves_here(artifacts: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    artifact, other = artifacts["onnxruntime"], artifacts["openvino"]
    manifest = read_manifest(artifact)
    remember(manifest, proven=True)
    assert engine_on(artifact, SATURATING, monkeypatch) == "onnxruntime"
    assert engine_on(other, SATURATING, monkeypatch) == "eager", "each artifact is proven by itself"
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", "AVX2")
    assert engine_on(artifact, SATURATING, monkeypatch) == "eager", "and for the instructions at hand"
    monkeypatch.delenv("ONEDNN_MAX_CPU_ISA")
    remember(manifest, proven=False)
    assert engine_on(artifact, SATURATING, monkeypatch) == "eager"


def test_nobody_elses_word_is_taken(artifacts: dict[str, Path], home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    remember(read_manifest(artifacts["onnxruntime"]), proven=True)
    (home / "proven").chmod(0o777)
    assert engine_on(artifacts["onnxruntime"], SATURATING, monkeypatch) == "eager"


def test_who_verifies_gets_the_engine_that_was_chosen(
    artifacts: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(describe, "cpu_flags", lambda: SATURATING)
    artifact = artifacts["onnxruntime"]
    manifest = read_manifest(artifact)
    assert "VNNI" in artifact_lacks(artifact, manifest)
    assert load_manifest(artifact, manifest, unproven=True).engine == "onnxruntime"


def test_without_a_fallback_it_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = _make(tmp_path / "int8.togi", ONNX, VNNI)
    alone = made.model_copy(update={"chain": made.chain[:1]})
    monkeypatch.setattr(describe, "cpu_flags", lambda: SATURATING)
    with pytest.raises(ArtifactError, match=r"no engine of .* runs on this machine: onnxruntime may answer wrongly"):
        load_manifest(tmp_path / "int8.togi", alone)


def test_an_artifact_says_what_it_needs(artifacts: dict[str, Path]) -> None:
    chain = json.loads((artifacts["openvino"] / "manifest.json").read_text(encoding="utf-8"))["chain"]
    assert [(link["engine"], link["instructions"]) for link in chain] == [("openvino", ["onednn_int8"]), ("eager", [])]
