"""What must hold on a machine with CUDA devices, shown without one: which device children see, when a fork is safe."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from togi.core.errors import ArtifactError, SubjectError
from togi.machine.describe import machine
from togi.measure.memory import is_out_of_memory
from togi.study import bench
from togi.subject.inputs import Inputs
from togi.subject.signature import Signature
from togi.techniques import technique
from togi.torch_internals import cuda
from togi.worker import pool, server
from togi.worker.launch import TrialServer
from togi.worker.pool import WorkerPool, one_device
from togi.worker.protocol import SubjectRef


@pytest.mark.parametrize(
    ("device", "visible", "name", "environment"),
    [
        ("cpu", "", "cpu", {}),
        ("cuda", "", "cuda", {}),
        ("cuda:0", "", "cuda", {"CUDA_VISIBLE_DEVICES": "0"}),
        ("cuda:1", "", "cuda", {"CUDA_VISIBLE_DEVICES": "1"}),
        ("cuda:1", "2,3", "cuda", {"CUDA_VISIBLE_DEVICES": "3"}),
        ("cuda:0", "GPU-8932f937", "cuda", {"CUDA_VISIBLE_DEVICES": "GPU-8932f937"}),
    ],
)
def test_children_see_one_device_which_is_then_called_cuda(
    monkeypatch: pytest.MonkeyPatch, device: str, visible: str, name: str, environment: Mapping[str, str]
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert one_device(device) == (name, environment)


def test_a_device_that_the_environment_hides(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,3")
    with pytest.raises(SubjectError, match="CUDA_VISIBLE_DEVICES=2,3 shows 2 devices"):
        one_device("cuda:2")


def test_every_server_of_a_run_sees_that_device(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[dict[str, str]] = []

    class Server:
        def __init__(self, config: Any, environment: Mapping[str, str]) -> None:
            assert config.device == "cuda"
            started.append(dict(environment))

        def start(self) -> None: ...

        def close(self) -> None: ...

    monkeypatch.setattr(pool, "TrialServer", Server)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    with WorkerPool(SubjectRef.here("nothing"), machine(), device="cuda:1", seed=0) as run:
        run.server({"MALLOC_ARENA_MAX": "1"})
    assert started == [{"CUDA_VISIBLE_DEVICES": "1"}, {"MALLOC_ARENA_MAX": "1", "CUDA_VISIBLE_DEVICES": "1"}]


@pytest.mark.parametrize("lost", [False, True])
def test_a_fork_is_unsafe_where_a_child_could_not_use_cuda(monkeypatch: pytest.MonkeyPatch, lost: bool) -> None:
    monkeypatch.setattr(server, "_thread_count", lambda: 1)
    monkeypatch.setattr(cuda, "in_bad_fork", lambda: lost)
    assert server._fork_safe("cuda") is not lost
    assert server._fork_safe("cpu")


def test_a_fork_is_unsafe_beside_threads() -> None:
    waiting = threading.Event()
    thread = threading.Thread(target=waiting.wait)
    thread.start()
    try:
        assert not server._fork_safe("cpu")
    finally:
        waiting.set()
        thread.join()


def test_a_subject_that_asks_for_cuda_is_still_forked(tmp_path: Path) -> None:
    """``is_available`` asks NVML in a server, so that no CUDA is started there."""
    (tmp_path / "asks.py").write_text(
        "import torch\nDEVICE = 'cuda' if torch.cuda.is_available() else 'cpu'\n"
        "def subject():\n    return torch.nn.Linear(2, 2), torch.ones(1, 2)\n",
        encoding="utf-8",
    )
    ref = SubjectRef.here("locator", f"{tmp_path}/asks.py:subject")
    with WorkerPool(ref, machine(), device="cpu", seed=0) as run:
        assert isinstance(run.server({}), TrialServer)
        assert run.server({}).fork_safe


class Manifest:
    def __init__(self, device: str) -> None:
        self.facts = self
        self.device = device


def test_artifacts_are_compared_where_they_were_tuned(monkeypatch: pytest.MonkeyPatch) -> None:
    devices = {"a.togi": "cuda", "b.togi": "cuda", "c.togi": "cpu"}
    monkeypatch.setattr(bench, "read_manifest", lambda path: Manifest(devices[path.name]))
    assert bench._device(["a.togi", "b.togi"], None) == "cuda"
    assert bench._device(["model.py:f", "c.togi"], None) == "cpu"
    assert bench._device(["model.py:f", "model.py:g"], None) == "cpu"
    assert bench._device(["a.togi"], "cuda:1") == "cuda:1"
    for specs, device in ((["a.togi", "c.togi"], None), (["a.togi", "b.togi"], "cpu")):
        with pytest.raises(ArtifactError, match="compare what was tuned for one device"):
            bench._device(specs, device)


@pytest.mark.parametrize(
    "message",
    [
        "CUDA error: out of memory",
        "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
        "cuDNN error: CUDNN_STATUS_ALLOC_FAILED",
        "Failed to allocate memory for requested buffer of size 1048576",
    ],
)
def test_memory_that_a_library_refuses_is_out_of_memory(message: str) -> None:
    assert is_out_of_memory(RuntimeError(message))
    assert not is_out_of_memory(RuntimeError("CUDNN_STATUS_NOT_SUPPORTED"))


def test_a_distribution_for_another_device_holds_the_same_package(monkeypatch: pytest.MonkeyPatch) -> None:
    installed = {"onnxruntime-gpu": "1.22.0"}

    def version(name: str) -> str:
        if name not in installed:
            raise PackageNotFoundError(name)
        return installed[name]

    monkeypatch.setattr("importlib.metadata.version", version)
    (package,) = [one for one in technique("onnxruntime").packages if one.distribution == "onnxruntime"]
    assert package.missing() is None
    installed["onnxruntime-gpu"] = "1.2"
    assert "older than" in str(package.missing())
    installed.clear()
    assert package.missing() == "onnxruntime is not installed"


def test_inputs_on_another_device_than_the_proven_one_are_refused() -> None:
    """An engine binds their addresses: on a device these are another's memory. ``meta`` stands for the other device."""
    sample = Inputs((torch.ones(2, 3),), {"scale": torch.ones(3)})
    signature = Signature.of(nn.Bilinear(3, 3, 1), [sample], [torch.ones(1)])
    signature.check([torch.ones(2, 3), torch.ones(3)])
    with pytest.raises(ValueError, match=r"scale is on meta, but was tuned and proven on cpu: .*\.to\('cpu'\)"):
        signature.check([torch.ones(2, 3), torch.ones(3, device="meta")])
    before = Signature.from_json(signature.to_json().replace('"devices":["cpu","cpu"]', '"devices":[]'))
    before.check([torch.ones(2, 3), torch.ones(3, device="meta")])
