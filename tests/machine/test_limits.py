from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from togi.machine import limits
from togi.machine.limits import available_bytes, oom_kills, processes_bytes, usable_bytes

VERSION_2 = {
    "g/memory.max": "900\n",
    "g/memory.current": "700\n",
    "g/memory.stat": "anon 600\ninactive_file 30\nactive_file 20\n",
}
VERSION_1 = {
    "memory/g/memory.limit_in_bytes": "900\n",
    "memory/g/memory.usage_in_bytes": "700\n",
    "memory/g/memory.stat": "inactive_file 1\ntotal_inactive_file 30\ntotal_active_file 20\n",
    "memory/memory.limit_in_bytes": f"{2**63 - 4096}\n",
    "memory/memory.usage_in_bytes": "5000\n",
}


@pytest.mark.parametrize(
    ("membership", "files", "available"),
    [
        ("", {}, 42 * 1024),
        ("0::/g\n", VERSION_2, 250),
        ("4:memory:/g\n0::/\n", VERSION_1, 250),
        ("0::/g\n", {**VERSION_2, "g/memory.current": "2000\n"}, 0),
        ("0::/g\n", {**VERSION_2, "g/memory.max": f"{10**9}\n"}, 42 * 1024),
        ("0::/g\n", {**VERSION_2, "g/memory.max": "max\n", "memory.max": "800\n", "memory.current": "700\n"}, 100),
    ],
    ids=["no container", "version 2", "version 1", "beyond its limit", "a wide limit", "the limit of a level above"],
)
def test_available_memory_is_what_machine_and_container_leave(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, membership: str, files: Mapping[str, str], available: int
) -> None:
    meminfo = tmp_path / "meminfo"
    meminfo.write_text("MemTotal: 100 kB\nMemAvailable:   42 kB\n", encoding="utf-8")
    (tmp_path / "self").write_text(membership, encoding="utf-8")
    for name, text in files.items():
        (tmp_path / "root" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "root" / name).write_text(text, encoding="utf-8")
    monkeypatch.setattr(limits, "ROOT", tmp_path / "root")
    monkeypatch.setattr(limits, "MEMBERSHIP", tmp_path / "self")
    assert available_bytes(meminfo) == available
    assert available_bytes(tmp_path / "absent") is None


@pytest.mark.parametrize("text", ["", "MemTotal: 100 kB\n", "MemAvailable:\n", "MemAvailable: much kB\n"])
def test_a_system_that_does_not_say(tmp_path: Path, text: str) -> None:
    (tmp_path / "meminfo").write_text(text, encoding="utf-8")
    assert available_bytes(tmp_path / "meminfo") is None


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_this_process_holds_less_than_it_may_use() -> None:
    assert 0 < processes_bytes(os.getpid()) < usable_bytes()


def test_kills_for_lack_of_memory_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "VMSTAT", tmp_path / "vmstat")
    assert oom_kills() == 0
    (tmp_path / "vmstat").write_text("pgfault 7\noom_kill 3\n", encoding="utf-8")
    assert oom_kills() == 3
