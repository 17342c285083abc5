"""What must hold on a machine with CUDA devices, shown without one: which device children see, when a fork is safe."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Mapping
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import cloudpickle
import pytest
import torch
from torch import nn

from togi.core.errors import ArtifactError, SubjectError
from togi.lint.trace.placement import CUDA, place
from togi.lint.trace.recorder import EventRecorder
from togi.lint.trace.watching import watching
from togi.machine import nvml
from togi.machine.describe import machine
from togi.machine.nvml import Gpu
from togi.measure.memory import is_out_of_memory
from togi.study import bench
from togi.subject.inputs import Inputs
from togi.subject.prepare import Prepared
from togi.subject.signature import Signature
from togi.techniques import technique
from togi.worker import devices, forking, pool, server, survey
from togi.worker.deadline import Deadline
from togi.worker.devices import one_device
from togi.worker.forking import counting_devices_in_forks, fork_safe
from togi.worker.hand_over import dump
from togi.worker.launch import TrialServer
from togi.worker.messages import Loaded
from togi.worker.pool import WorkerPool
from togi.worker.protocol import SubjectRef
from togi.worker.supervise import Limits

pytestmark = pytest.mark.starts_servers


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
        def __init__(self, config: Any, environment: Mapping[str, str], _deadline: Deadline) -> None:
            assert config.device == "cuda"
            started.append(dict(environment))

        def start(self) -> None: ...

        def ask_to_end(self) -> None: ...

        def end(self) -> None: ...

    monkeypatch.setattr(pool, "TrialServer", Server)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    with WorkerPool(SubjectRef.here("nothing"), machine(), device="cuda:1", seed=0) as run:
        run.server({"MALLOC_ARENA_MAX": "1"})
    assert started == [{"CUDA_VISIBLE_DEVICES": "1"}, {"MALLOC_ARENA_MAX": "1", "CUDA_VISIBLE_DEVICES": "1"}]


@pytest.mark.parametrize(
    ("device", "mode", "refused"),
    [
        ("cuda", "exclusive process", True),
        ("cuda:1", "prohibited", True),
        ("cuda", "default", False),
        ("cuda", None, False),  # a driver that does not tell
        ("cpu", "exclusive process", False),
    ],
)
def test_a_device_for_one_process_is_refused_before_anything_runs_there(
    monkeypatch: pytest.MonkeyPatch, device: str, mode: str | None, refused: bool
) -> None:
    asked: list[str] = []
    monkeypatch.setattr(devices.nvml, "read_gpu", lambda name: asked.append(name) or Gpu(compute_mode=mode))
    monkeypatch.setattr(pool.RunningTrial, "begin", _no_process)
    monkeypatch.setattr(WorkerPool, "server", lambda *_: None)
    run = WorkerPool(SubjectRef.here("nothing"), machine(), device=device, seed=0)
    said = "several processes on it.* sudo nvidia-smi --compute-mode=DEFAULT"
    with run, pytest.raises(SubjectError if refused else _Started, match=said if refused else None):
        run.survey(Limits(), lambda _: None)
    assert asked == ([device] if device != "cpu" else [])


class _Started(Exception):
    """A process of the study."""


def _no_process(*_: object) -> None:
    raise _Started


def test_a_first_time_is_that_of_the_device_whatever_holds_the_module(monkeypatch: pytest.MonkeyPatch) -> None:
    """A module without parameters computes there as well, and its calls return once they are queued."""
    queued: list[float] = []
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: time.sleep(sum(queued)) or queued.clear())

    class Formula(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            queued.append(0.02)
            return x

    samples = (Inputs((torch.ones(2),)), Inputs((torch.zeros(2),)))
    ready = Prepared(module=(formula := Formula()), original=formula, samples=samples, calibration=(), training=False)
    assert 40 <= survey.fastest_pass_ms(ready, "cuda") < 1000
    assert survey.fastest_pass_ms(ready, "cpu") < 40


@pytest.mark.parametrize("lost", [False, True])
def test_a_fork_is_unsafe_where_a_child_could_not_use_cuda(monkeypatch: pytest.MonkeyPatch, lost: bool) -> None:
    monkeypatch.setattr(forking, "thread_count", lambda: 1)
    monkeypatch.setattr(forking, "in_bad_fork", lambda: lost)
    assert fork_safe("cuda") is not lost
    assert fork_safe("cpu")


def test_a_fork_is_unsafe_beside_threads() -> None:
    waiting = threading.Event()
    thread = threading.Thread(target=waiting.wait)
    thread.start()
    try:
        assert not fork_safe("cpu")
    finally:
        waiting.set()
        thread.join()


@pytest.mark.thorough
@pytest.mark.parametrize(
    "loading",
    [
        "DEVICE = 'cuda' if torch.cuda.is_available() else 'cpu'",
        "import threading, tqdm\nlist(tqdm.tqdm(range(3)))\nassert threading.active_count() == 2",
        "torch.ones(512, 512) @ torch.ones(512, 512)",
    ],
    ids=["asks for cuda", "shows progress", "computes"],
)
def test_a_subject_is_forked_whatever_it_did_while_it_was_loaded(tmp_path: Path, loading: str) -> None:
    """``is_available`` asks NVML in a server, so that no CUDA is started there; tqdm leaves a thread that watches slow
    bars, and a parallel operator leaves its threads."""
    (tmp_path / "model.py").write_text(
        f"import torch\n{loading}\ndef subject():\n    return torch.nn.Linear(2, 2), torch.ones(1, 2)\n",
        encoding="utf-8",
    )
    ref = SubjectRef.here("locator", f"{tmp_path}/model.py:subject")
    with WorkerPool(ref, machine(), device="cpu", seed=0) as run:
        assert isinstance(run.server({}), TrialServer)
        assert run.server({}).fork_safe


def test_counting_devices_leaves_no_thread_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    """NVML keeps one from the first time on that it is asked."""

    def asks_nvml() -> int:
        threading.Thread(target=time.sleep, args=(5.0,), daemon=True).start()
        return len(os.environ["CUDA_VISIBLE_DEVICES"].split(","))

    monkeypatch.setattr(torch.cuda, "_device_count_nvml", asks_nvml)
    before = threading.active_count()
    with counting_devices_in_forks():
        for visible, count in (("0", 1), ("0,1,2", 3)):
            monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
            assert torch.cuda._device_count_nvml() == count
    assert threading.active_count() == before
    assert torch.cuda._device_count_nvml is asks_nvml


def test_devices_that_data_and_a_metric_ask_for_are_counted_in_forks_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """Their files may call ``torch.cuda.is_available()``, after which nothing could be forked."""
    by_torch, found = torch.cuda._device_count_nvml, list[bool]()

    def noted(subject: Any, _config: Any) -> Any:
        found.append(torch.cuda._device_count_nvml is by_torch)
        return subject

    monkeypatch.setattr(server, "load_subject", lambda _ref: object())
    for name in ("with_calibration_of", "with_metric", "with_validation"):
        monkeypatch.setattr(server, name, noted)
    config: Any = SimpleNamespace(subject=None, calibration="a folder", needs_metric=True, needs_data=True)
    server.subject_with_data(config)
    assert found == [False] * 3


@pytest.mark.parametrize("count", [lambda: -1, lambda: 1 // 0, lambda: os.kill(os.getpid(), signal.SIGKILL)])
def test_devices_that_cannot_be_counted_are_left_to_torch(
    monkeypatch: pytest.MonkeyPatch, count: Callable[[], int]
) -> None:
    monkeypatch.setattr(torch.cuda, "_device_count_nvml", count)
    with counting_devices_in_forks():
        assert torch.cuda._device_count_nvml() == -1


@pytest.mark.thorough
def test_a_server_forks_whatever_number_of_threads_torch_would_use(monkeypatch: pytest.MonkeyPatch) -> None:
    """Asking torch for another number than it began with starts threads."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    here = machine().model_copy(update={"threads": min(2, os.cpu_count() or 1)})
    with WorkerPool(SubjectRef.here("nothing"), here, device="cpu", seed=0) as run:
        assert isinstance(run.server({}), TrialServer)
        assert run.server({}).fork_safe


@pytest.mark.thorough
def test_what_tells_torch_its_threads_is_not_taken_for_the_users_word(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An artifact that finds OMP_NUM_THREADS does not fit its threads to the cores."""
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    (tmp_path / "model.py").write_text(
        "import os, torch\nassert 'OMP_NUM_THREADS' not in os.environ\n"
        "def subject():\n    return torch.nn.Linear(2, 2), torch.ones(1, 2)\n",
        encoding="utf-8",
    )
    with WorkerPool(SubjectRef.here("locator", f"{tmp_path}/model.py:subject"), machine(), device="cpu", seed=0) as run:
        assert isinstance(run.server({}), TrialServer)


@pytest.mark.thorough
def test_processes_of_a_study_are_told_from_strangers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that compute on the same GPU, and take turns there."""
    started: list[str | None] = []
    here, popen = machine(), subprocess.Popen

    def noting(*args: Any, env: Mapping[str, str], **kwargs: Any) -> Any:
        started.append(env.get(nvml.PARENT))
        return popen(*args, env=env, **kwargs)

    monkeypatch.setattr(subprocess, "Popen", noting)
    monkeypatch.setattr(Deadline, "receive", lambda *_: Loaded(fork_safe=True))
    for _ in range(2):  # as a comparison has them: a pool for each contestant
        with WorkerPool(SubjectRef.here("nothing"), here, device="cpu", seed=0):
            pass
    assert started == [str(os.getpid())] * 2


class Manifest:
    def __init__(self, device: str) -> None:
        self.facts = self
        self.device = device


def test_artifacts_are_compared_where_they_were_tuned(monkeypatch: pytest.MonkeyPatch) -> None:
    devices = {"a.togi": "cuda", "b.togi": "cuda", "c.togi": "cpu"}
    monkeypatch.setattr(bench, "read_manifest", lambda path: Manifest(devices[path.name]))
    assert bench.device_of(["a.togi", "b.togi"], None) == "cuda"
    assert bench.device_of(["model.py:f", "c.togi"], None) == "cpu"
    assert bench.device_of(["model.py:f", "model.py:g"], None) == "cpu"
    assert bench.device_of(["a.togi"], "cuda:1") == "cuda:1"
    for specs, device in ((["a.togi", "c.togi"], None), (["a.togi", "b.togi"], "cpu")):
        with pytest.raises(ArtifactError, match="compare what was tuned for one device"):
            bench.device_of(specs, device)


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
    with pytest.raises(ValueError, match="0 devices for 2 inputs"):
        Signature.from_json(signature.to_json().replace('"devices":["cpu","cpu"]', '"devices":[]'))


def test_a_live_subject_of_a_device_is_sent_as_one_of_the_cpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Loading it must start no CUDA in the server, and tied weights stay tied."""
    module = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    module[1].weight = module[0].weight
    moved: list[torch.Tensor] = []
    with watching(EventRecorder(), simulated=True), monkeypatch.context() as patch:
        for tensor in (*module.parameters(), *(parameter.data for parameter in module.parameters())):
            place(tensor, CUDA)
        assert next(module.parameters()).data.device.type == "cuda"
        cpu = torch.Tensor.cpu
        patch.setattr(torch.Tensor, "cpu", lambda tensor: moved.append(tensor) or cpu(tensor))
        dump(module, tmp_path / "subject.pickle")
    assert len(moved) == 3, "a weight and two biases"
    with (tmp_path / "subject.pickle").open("rb") as file:
        loaded = cloudpickle.load(file)
    assert loaded[1].weight is loaded[0].weight
    assert torch.equal(loaded[0].weight, module[0].weight)


def test_an_input_that_torch_wants_on_the_cpu_is_explained(monkeypatch: pytest.MonkeyPatch) -> None:
    class Packs(nn.Module):
        def forward(self, x: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
            raise RuntimeError("'lengths' argument should be a 1D CPU int64 tensor, but got 1D cuda:0 Long tensor")

    sample = Inputs((torch.ones(1, 2), torch.ones(1)))
    with pytest.raises(SubjectError) as told:
        survey.first_call(Packs(), sample, 1, 0)
    assert "lengths.cpu()" not in str(told.value)
    monkeypatch.setattr(Inputs, "tensors", lambda _: [SimpleNamespace(is_cuda=True)])
    with pytest.raises(SubjectError, match=r"All inputs were moved to the device.*lengths\.cpu\(\)"):
        survey.first_call(Packs(), sample, 1, 0)
