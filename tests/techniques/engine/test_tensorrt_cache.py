"""Built engines are found again by the model that they were built of, whole, and by nobody else's leave."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from togi.techniques.engine.programs import tensorrt_cache
from togi.techniques.engine.programs.tensorrt_cache import kept_engines

NAME = "TRTKernel_graph_main_graph_9156289995721013131_0_0_sm90.engine"
"""Of any model of one structure: so ONNX Runtime names them."""


def model(folder: Path, weights: bytes, beside: bytes = b"") -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "model.onnx").write_bytes(b"the same graph" + weights)
    if beside:
        (folder / "model.onnx.data").write_bytes(beside)
    return folder / "model.onnx"


def load(file: Path, home: Path, built_as: str = "H100") -> str:
    """As the provider does it: reads the engine that is there, or builds one of this model."""
    with kept_engines(file, built_as, home) as settings:
        assert (settings["trt_engine_cache_enable"], settings["trt_timing_cache_enable"]) == ("1", "1")
        engine = Path(settings["trt_engine_cache_path"]) / NAME
        timings = Path(settings["trt_timing_cache_path"]) / "TensorrtExecutionProvider_cache_sm90.timing"
        told = f"{'known' if timings.exists() else 'new'} kernels"
        timings.write_text("timings", encoding="utf-8")
        if engine.exists():
            return f"read {engine.read_text(encoding='utf-8')}"
        inside = sorted(path.read_bytes().decode() for path in file.parent.iterdir())
        engine.write_text(" ".join(inside), encoding="utf-8")
        return f"built with {told}"


def test_an_engine_is_read_by_the_model_that_it_was_built_of_alone(tmp_path: Path) -> None:
    home, one = tmp_path / "home", model(tmp_path / "one", b" A")
    assert load(one, home) == "built with new kernels"
    assert load(model(tmp_path / "again", b" A"), home) == "read the same graph A", "in another process, by its bytes"
    assert load(model(tmp_path / "two", b" B"), home) == "built with known kernels", "the same structure"
    assert load(model(tmp_path / "three", b" A", b"weights"), home) == "built with known kernels"
    assert load(model(tmp_path / "four", b" A", b"others!"), home) == "built with known kernels"
    assert load(one, home, built_as="H200") == "built with known kernels"
    assert load(model(tmp_path / "two", b" B"), home) == "read the same graph B"


def test_what_was_not_finished_is_not_kept(tmp_path: Path) -> None:
    file, home = model(tmp_path / "one", b" A"), tmp_path / "home"

    def write_half(file: Path) -> None:
        file.write_text("half of", encoding="utf-8")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), kept_engines(file, "H100", home) as settings:
        write_half(Path(settings["trt_engine_cache_path"]) / NAME)
    left = home / "tensorrt" / ".building-of-a-process-that-was-killed"
    left.mkdir()
    os.utime(left, (0, 0))
    assert load(file, home) == "built with new kernels"
    assert not [path for path in (home / "tensorrt").iterdir() if path.name.startswith(".")]


def test_an_engine_that_cannot_be_read_is_built_again(tmp_path: Path) -> None:
    file, home = model(tmp_path / "one", b" A"), tmp_path / "home"
    load(file, home)
    with pytest.raises(RuntimeError, match="deserialize"), kept_engines(file, "H100", home):
        raise RuntimeError("TensorRT EP could not deserialize engine from cache")
    assert load(file, home) == "built with known kernels"


def test_nothing_is_believed_that_others_may_write(tmp_path: Path) -> None:
    file, home = model(tmp_path / "one", b" A"), tmp_path / "home"
    load(file, home)
    (home / "tensorrt").chmod(0o777)
    with kept_engines(file, "H100", home) as settings:
        assert settings == {}
    (home / "tensorrt").chmod(0o700)
    (folder,) = (path for path in (home / "tensorrt").iterdir() if path.name != "timings")
    folder.chmod(0o777)
    with kept_engines(file, "H100", home) as settings:
        assert settings == {}


def test_the_models_of_long_ago_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home, files = tmp_path / "home", [model(tmp_path / str(n), f" {n}".encode()) for n in range(3)]
    monkeypatch.setattr(tensorrt_cache, "_MOST_BYTES", 2 * len("the same graph 0"))

    def later(number: int) -> str:
        for folder in (home / "tensorrt").glob("*"):
            before = folder.stat().st_mtime
            os.utime(folder, (before - 100, before - 100))
        return load(files[number], home)[:4]

    assert [later(number) for number in (0, 1, 0)] == ["buil", "buil", "read"]
    assert later(2) == "buil"
    assert [later(number) for number in (0, 2, 1)] == ["read", "read", "buil"], "1 was the oldest"
