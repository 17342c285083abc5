from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from togi.machine.limits import available_bytes, processes_bytes, usable_bytes


def test_available_memory_is_read(tmp_path: Path) -> None:
    meminfo = tmp_path / "meminfo"
    meminfo.write_text("MemTotal: 100 kB\nMemAvailable:   42 kB\n", encoding="utf-8")
    assert available_bytes(meminfo) == 42 * 1024
    assert available_bytes(tmp_path / "absent") is None


@pytest.mark.parametrize("text", ["", "MemTotal: 100 kB\n", "MemAvailable:\n", "MemAvailable: much kB\n"])
def test_a_system_that_does_not_say(tmp_path: Path, text: str) -> None:
    (tmp_path / "meminfo").write_text(text, encoding="utf-8")
    assert available_bytes(tmp_path / "meminfo") is None


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_this_process_holds_less_than_it_may_use() -> None:
    assert 0 < processes_bytes(os.getpid()) < usable_bytes()
