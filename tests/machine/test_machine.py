import subprocess
import sys
from pathlib import Path

import pytest

from togi.machine import describe, limits
from togi.machine.describe import differences, installed_allocators, machine


def test_describes_this_machine_without_importing_torch():
    code = (
        "import sys; from togi.machine.describe import machine\n"
        "print(machine().to_json()); assert 'torch' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    found = type(machine()).from_json(done.stdout)
    assert found.cpu_cores >= 1
    assert found.threads >= 1
    assert found.memory_bytes > 2**28
    assert found.cpu_model
    import torch

    assert found.versions["torch"] == torch.__version__


def test_two_calls_agree():
    assert machine() == machine()
    assert machine().differences(machine()) == []


def test_versions_that_differ_are_named_one_by_one():
    here = machine().model_copy(update={"versions": {"torch": "2.15", "onnx": "1.20", "openvino": "2026.1"}})
    there = here.model_copy(update={"versions": {"torch": "2.14", "onnx": "1.20"}})
    assert here.differences(there) == [
        "openvino: '2026.1' here, 'not installed' there",
        "torch: '2.15' here, '2.14' there",
    ]


def test_differences_are_those_of_the_device_that_is_asked_for(monkeypatch):
    monkeypatch.setattr(describe, "_output", lambda *_: ROWS)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    there = machine("cuda").model_copy(update={"gpu": "Another", "cpu_cores": 77, "compiler": "/there/g++"})
    (cores,) = differences(there, "cpu")
    assert cores == f"cpu_cores: {machine().cpu_cores} here, 77 there"
    assert [each.partition(":")[0] for each in differences(there, "cuda")] == ["cpu_cores", "gpu"]
    monkeypatch.setattr(describe, "_output", lambda *_: "")
    assert any(each.startswith("gpu: None here") for each in differences(there, "cuda"))


def test_processors_of_one_name_differ_where_products_of_8_bits_saturate():
    """A cloud calls each of its generations "AMD EPYC": trials of the one say nothing of the other."""
    here = made_up("AMD EPYC", ("avx2", "avx512f", "avx512_vnni"))
    assert here.differences(made_up("AMD EPYC", ("avx2", "avx512f", "avx512_vnni", "sha_ni"))) == []
    assert here.differences(made_up("AMD EPYC", ("avx2",))) == ["int8_sums: 'exact' here, 'saturating' there"]


def made_up(cpu_model, cpu_flags):
    return machine().model_copy(update={"cpu_model": cpu_model, "cpu_flags": cpu_flags, "onednn_limit": ""})


def test_omp_num_threads_sets_threads(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "7,2")
    assert machine().threads == 7
    monkeypatch.setenv("OMP_NUM_THREADS", "nonsense")
    assert machine().threads >= 1


def test_no_proc_no_tools_still_answers(monkeypatch):
    """As on a system where nothing can be read."""
    monkeypatch.setattr(describe, "read_text", lambda _: "")
    monkeypatch.setattr(describe, "_output", lambda *_: "")
    monkeypatch.setattr(describe.shutil, "which", lambda _: None)
    found = machine()
    assert found.cpu_flags == ()
    assert found.compiler is None
    assert found.gpu is None
    assert found.cpu_model


def test_cudas_headers_are_where_torch_looks_for_them(monkeypatch, tmp_path):
    monkeypatch.delenv("CUDA_PATH", raising=False)
    include = tmp_path / "include"
    include.mkdir()
    monkeypatch.setenv("CUDA_HOME", str(tmp_path))
    assert describe._cuda_headers() is None, "a folder without them does not count"
    for name in ("cuda.h", "cuda_runtime.h"):
        (include / name).touch()
    assert describe._cuda_headers() == str(include)
    monkeypatch.delenv("CUDA_HOME")
    monkeypatch.setattr(describe.shutil, "which", lambda name: str(tmp_path / "bin" / name))
    assert describe._cuda_headers() == str(include)


ROWS = "NVIDIA A100, 81920, 550.54\nNVIDIA GH200 480GB, [N/A], 570.10"


@pytest.mark.parametrize(
    ("device", "expected"),
    [
        ("cpu", ("NVIDIA A100", 81920 * 2**20, "550.54")),
        ("cuda", ("NVIDIA A100", 81920 * 2**20, "550.54")),
        ("cuda:1", ("NVIDIA GH200 480GB", None, "570.10")),
    ],
)
def test_gpu_is_read_from_the_drivers_tool(monkeypatch, device, expected):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(describe, "_output", lambda *command: ROWS if command[0] == "nvidia-smi" else "")
    found = machine(device)
    assert (found.gpu, found.gpu_memory_bytes, found.gpu_driver) == expected


def test_hidden_gpus_are_not_described(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setattr(describe, "_output", lambda *_: ROWS)
    assert machine().gpu is None


def test_hyperthreads_of_one_core_count_once(monkeypatch):
    blocks = "\n\n".join(f"processor : {i}\nphysical id : 0\ncore id : {i // 2}\nmodel name : X" for i in range(4))
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(describe, "read_text", lambda path: blocks if path == Path("/proc/cpuinfo") else "")
    monkeypatch.setattr(describe, "_affinity", lambda: frozenset(range(4)))
    monkeypatch.setattr(limits, "cpu_quota", lambda: None)
    found = machine()
    assert (found.cpu_cores, found.threads) == (4, 2)


@pytest.mark.parametrize(("asked", "limit"), [("avx2", "AVX2"), ("ALL", ""), ("", "")])
def test_limit_of_onednn(monkeypatch, asked, limit):
    monkeypatch.delenv("DNNL_MAX_CPU_ISA", raising=False)
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", asked)
    assert machine().onednn_limit == limit


def test_arm_processor_without_a_model_name(monkeypatch):
    text = "processor : 0\nFeatures : fp asimd\nCPU implementer : 0x41\nCPU part : 0xd0c"
    monkeypatch.setattr(describe, "read_text", lambda path: text if path == Path("/proc/cpuinfo") else "")
    found = machine()
    assert "0xd0c" in found.cpu_model
    assert found.cpu_flags == ("asimd", "fp")


@pytest.fixture
def groups(tmp_path, monkeypatch):
    """A function that lays out a control-group tree: (membership, {path: content})."""

    def lay_out(membership, files):
        (tmp_path / "self").write_text(membership, encoding="utf-8")
        for name, content in files.items():
            path = tmp_path / "root" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(content, encoding="utf-8")
        monkeypatch.setattr(limits, "ROOT", tmp_path / "root")
        monkeypatch.setattr(limits, "MEMBERSHIP", tmp_path / "self")

    return lay_out


def test_version_2_takes_the_lowest_limit_of_all_levels(groups):
    groups(
        "0::/a/b\n",
        {
            "a/b/cpu.max": "max 100000\n",
            "a/cpu.max": "150000 100000\n",
            "a/b/memory.max": "max\n",
            "a/memory.max": "2000\n",
        },
    )
    assert limits.cpu_quota() == 1.5
    assert limits.memory_limit_bytes() == 2000


def test_limits_of_cgroup_version_1_are_read(groups):
    files = {
        "cpu,cpuacct/x/cpu.cfs_quota_us": "50000\n",
        "cpu,cpuacct/x/cpu.cfs_period_us": "100000\n",
        "cpu,cpuacct/cpu.cfs_quota_us": "-1\n",
        "cpu,cpuacct/cpu.cfs_period_us": "100000\n",
        "memory/x/memory.limit_in_bytes": "1000\n",
        "memory/memory.limit_in_bytes": f"{2**63 - 4096}\n",
    }
    groups("4:memory:/x\n1:cpu,cpuacct:/x\n0::/\n", files)
    assert limits.cpu_quota() == 0.5
    assert limits.memory_limit_bytes() == 1000


def test_membership_of_the_host_falls_back_to_the_mounts_root(groups):
    groups("4:memory:/docker/abc\n", {"memory/memory.limit_in_bytes": "3000\n"})
    assert limits.memory_limit_bytes() == 3000


def test_groups_without_a_limit_have_none(groups):
    groups("0::/\n", {"cpu.max": "max 100000\n", "memory.max": "max\n"})
    assert limits.cpu_quota() is None
    assert limits.memory_limit_bytes() is None


def test_a_quota_and_a_memory_limit_cut_what_is_reported(monkeypatch):
    monkeypatch.setattr(limits, "cpu_quota", lambda: 0.5)
    monkeypatch.setattr(limits, "memory_limit_bytes", lambda: 2**20)
    found = machine()
    assert (found.cpu_cores, found.memory_bytes) == (1, 2**20)


def test_allocators_are_found_without_their_development_package(tmp_path, monkeypatch):
    library = tmp_path / "libjemalloc.so.2"
    library.touch()
    monkeypatch.setattr(describe.sys, "platform", "linux")
    monkeypatch.setattr(describe, "_LIBRARY_FOLDERS", (str(tmp_path),))
    monkeypatch.setattr(describe.ctypes.util, "find_library", lambda _: None)
    monkeypatch.delenv("LD_LIBRARY_PATH", raising=False)
    assert installed_allocators() == {"jemalloc": str(library)}
