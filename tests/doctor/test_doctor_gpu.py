"""The examination of a GPU, by answers as one gives them."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from tests.made_up_machine import machine
from togi.doctor import Check, Level, gpu
from togi.doctor.packages import Packages
from togi.doctor.updates import updates
from togi.machine.nvml import Gpu, GpuProcess

GIB = 2**30
WELL = Gpu(
    name="NVIDIA H200",
    driver="580.65.06",
    cuda="13.0",
    compute_mode="default",
    clock_mhz=345,
    clock_most_mhz=1980,
    power_w=76.4,
    power_limit_w=700,
    temperature_c=31,
    free_bytes=140 * GIB,
    total_bytes=141 * GIB,
)


@dataclass(frozen=True)
class MadeUpPackages(Packages):
    versions: Mapping[str, str] = field(default_factory=dict)
    asked: Mapping[str, Sequence[str]] = field(default_factory=dict)

    def version(self, distribution: str) -> str | None:
        return self.versions.get(distribution)

    def requires(self, distribution: str) -> Sequence[str] | None:
        return self.asked.get(distribution) if distribution in self.versions else None


def checks(state: Gpu) -> dict[str, Check]:
    return {check.name: check for check in gpu.state_of(state, built="13.2")}


def test_a_gpu_is_needed_only_when_asked_for() -> None:
    assert gpu.check_gpu(machine(), "cpu", Packages())[0].level is Level.OK
    assert gpu.check_gpu(machine(), "cuda:0", Packages())[0].level is Level.MISSING
    some = machine(gpu="Some GPU", gpu_driver="1.2", gpu_memory_bytes=2**30)
    found = gpu.check_gpu(some, "cuda", Packages())
    assert found[0].found == "Some GPU, 1.00 GiB, driver 1.2"


def test_a_gpu_in_a_good_state_has_no_warning() -> None:
    found = checks(WELL)
    assert found["CUDA"].found == "driver 580.65.06 serves CUDA 13.0; torch was built for 13.2"
    assert found["clocks"].found == "345 MHz of 1980, 76 W of 700, 31 °C"
    assert found["memory"].found == "140 GiB of 141 GiB free"
    assert set(found) == {"CUDA", "compute mode", "clocks", "memory", "other processes"}
    assert {check.level for check in found.values()} == {Level.OK}


@pytest.mark.parametrize(
    ("name", "state", "level", "said"),
    [
        (
            "CUDA",
            {"cuda": "12.8"},
            Level.MISSING,
            "update the driver to 580 or newer, or install a torch for CUDA 12.8",
        ),
        ("compute mode", {"compute_mode": "exclusive process"}, Level.MISSING, "--compute-mode=DEFAULT"),
        ("clocks", {"slowed_by": ("heat", "the power limit")}, Level.WARNING, "heat, the power limit"),
        ("memory", {"free_bytes": 10 * GIB}, Level.WARNING, "out of memory"),
        (
            "other processes",
            {"processes": (GpuProcess(pid=9, name="trainer", bytes=2 * GIB),), "busy": (9,)},
            Level.WARNING,
            "trainer 9 (2.00 GiB)",
        ),
    ],
)
def test_what_is_wrong_is_reported_with_its_mend(name: str, state: dict[str, Any], level: Level, said: str) -> None:
    check = checks(replace(WELL, **state))[name]
    assert check.level is level
    assert said in f"{check.found} {check.why} {check.fix}"


def test_a_device_that_tells_nothing_is_unknown_not_wrong() -> None:
    assert {check.level for check in checks(Gpu()).values()} == {Level.OK}


def test_without_nvml_the_extra_is_named() -> None:
    found = gpu.without_nvml("the package is not installed: pip install 'togi[gpu]'")
    assert (found.level, found.found, found.fix) == (
        Level.OPTIONAL,
        "the package is not installed",
        "pip install 'togi[gpu]'",
    )


def test_libraries_are_those_that_torch_was_built_for() -> None:
    asked = ("triton==9999.0; platform_system == 'Linux'", "nvidia-cudnn-cu13==9.26.0", "nvidia-cudnn-cu99==1", "sympy")
    installed = {"triton": "3.9.0", "nvidia-cudnn-cu13": "9.26.0", "torch": "2.15.0+cu132", "torch-tensorrt": "2.11.0"}
    asked_by = {"torch": asked, "torch-tensorrt": ("torch<2.12,>=2.11",)}
    found = {check.name: check for check in gpu.libraries(MadeUpPackages(versions=installed, asked=asked_by))}
    assert set(found) == {"triton", "nvidia-cudnn-cu13", "nvidia-cudnn-cu99", "torch-tensorrt"}
    assert found["nvidia-cudnn-cu13"].level is Level.OK
    assert found["triton"].level is found["nvidia-cudnn-cu99"].level is found["torch-tensorrt"].level is Level.WARNING
    assert found["triton"].why == "this torch was built for triton==9999.0"
    assert found["triton"].fix == "pip install 'triton==9999.0'"
    assert found["torch-tensorrt"].why == "it was built for torch <2.12,>=2.11, and this is 2.15.0+cu132"


@pytest.mark.parametrize(
    ("installed", "brings", "fix"),
    [
        ({"torch": "2.9.1"}, {"newer torch": ["2.11", "2.14"]}, "2.14 or newer"),
        ({"torch": "2.13.0+cu130"}, {"newer torch": ["2.14"]}, "2.14 or newer"),
        ({"torch": "2.14.0+cu130"}, {}, ""),
        ({"torch": "2.15.0+cu132", "onnxruntime-gpu": "1.26.0", "nvidia-cudnn-cu13": "9.15.0.57"}, {}, ""),
        ({"onnxruntime-gpu": "1.20.1"}, {"newer ONNX Runtime": ["1.21", "1.26"]}, "'onnxruntime-gpu>=1.26'"),
        ({"onnxruntime-gpu": "1.25.0"}, {"newer ONNX Runtime": ["1.26"]}, "'onnxruntime-gpu>=1.26'"),
        ({"nvidia-cudnn-cu12": "9.10.2.21"}, {"newer cuDNN": ["9.15"]}, "'nvidia-cudnn-cu12>=9.15'"),
        ({"onnxruntime": "1.20.1"}, {}, ""),
        ({}, {}, ""),
    ],
)
def test_what_an_update_brings(installed: dict[str, str], brings: dict[str, list[str]], fix: str) -> None:
    found = list(updates(MadeUpPackages(versions=installed)))
    assert all(check.level is Level.OPTIONAL and fix in check.fix for check in found)
    assert {check.name: [told.partition(":")[0] for told in check.why.split("; ")] for check in found} == brings


@pytest.mark.parametrize(
    ("installed", "said"),
    [
        ({}, None),
        ({"torch-tensorrt": "2.11.0", "tensorrt": "10.15.1.29"}, ""),
        ({"torch-tensorrt": "2.11.0", "tensorrt": "10.9.0.34"}, "torch-tensorrt was built for TensorRT <10.16,>=10.15"),
        ({"onnxruntime-gpu": "1.22.0", "tensorrt-cu12": "10.9.0.34"}, ""),
        ({"onnxruntime-gpu": "1.22.0", "tensorrt": "11.0.0"}, "onnxruntime-gpu 1.22.0 was built for TensorRT ~=10.9"),
        ({"onnxruntime-gpu": "1.31.0", "tensorrt": "11.0.0"}, ""),
    ],
)
def test_tensorrt_is_what_its_users_were_built_for(installed: dict[str, str], said: str | None) -> None:
    asked = {"torch-tensorrt": ("torch<2.12,>=2.11", "tensorrt<10.16,>=10.15; platform_system == 'Linux'")}
    found = list(gpu.tensorrt(MadeUpPackages(versions=installed, asked=asked)))
    assert len(found) == (said is not None)
    for check in found:
        assert check.why == said
        assert check.level is (Level.WARNING if said else Level.OK)
        assert bool(check.fix) is (said != "" and "torch-tensorrt" in installed)


def test_missing_headers_are_found_where_pip_puts_them(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("sys.path", [str(tmp_path)])
    assert gpu._headers(machine(cuda_headers="/usr/local/cuda/include")).level is Level.OK
    assert gpu._headers(machine()).found == "none"
    headers = tmp_path / "nvidia" / "cu13" / "include"
    headers.mkdir(parents=True)
    for name in ("cuda.h", "cuda_runtime.h"):
        (headers / name).touch()
    assert gpu._headers(machine()).fix == f"export CUDA_HOME={headers.parent}"


@pytest.mark.skipif(shutil.which("gcc") is None, reason="gcc is not installed")
def test_the_compiler_of_triton_is_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    assert gpu._c_compiler(machine()).level is Level.MISSING
    gcc = f"{shutil.which('gcc')}: gcc (Debian) 12"
    assert gpu._c_compiler(machine(c_compiler=gcc)).level is Level.OK
    monkeypatch.setattr(gpu, "C_PROBE", "#include <no_such_header.h>\n")
    assert gpu._c_compiler(machine(c_compiler=gcc)).level is Level.MISSING
