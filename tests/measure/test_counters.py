import os
import time
from pathlib import Path

import pytest

from togi.measure.counters import frequency_mhz, read_counters

TICK = os.sysconf("SC_CLK_TCK")


def _system(root: Path, files: dict[str, str]) -> tuple[Path, Path]:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return root / "proc", root / "sys"


def test_reads_what_the_kernel_writes(tmp_path):
    files = {
        "proc/stat": f"cpu  {TICK} {TICK} {TICK} {4 * TICK} {TICK} 0 {TICK} {2 * TICK} 0 0\ncpu0 1 1\n",
        "proc/self/task/11/schedstat": "5 1000 3\n",
        "proc/self/task/12/schedstat": "5 500 3\n",
        "proc/self/cgroup": "0::/slice/box\n",
        "sys/fs/cgroup/slice/box/cpu.stat": "usage_usec 9\nthrottled_usec 2000000\n",
    }
    found = read_counters(*_system(tmp_path, files))
    assert (found.busy_s, found.machine_s, found.stolen_s) == (4.0, 11.0, 2.0)
    assert found.waiting_ns == {"11": 1000, "12": 500}
    assert found.throttled_s == pytest.approx(2.0)


def test_quota_of_a_version_1_control_group(tmp_path):
    files = {
        "proc/self/cgroup": "7:memory:/x\n4:cpu,cpuacct:/box\n0::/\n",
        "sys/fs/cgroup/cpu/box/cpu.stat": "nr_periods 1\nthrottled_time 3000000000\n",
    }
    assert read_counters(*_system(tmp_path, files)).throttled_s == pytest.approx(3.0)


def test_what_a_system_does_not_offer_is_nothing(tmp_path):
    found = read_counters(*_system(tmp_path, {}))
    assert (found.busy_s, found.stolen_s, found.throttled_s, found.waiting_ns) == (0.0, 0.0, 0.0, {})
    assert frequency_mhz(tmp_path / "sys") is None


def test_clock_is_the_mean_over_our_cores(tmp_path):
    cores = sorted(os.sched_getaffinity(0))[:8]
    files = {f"sys/devices/system/cpu/cpu{c}/cpufreq/scaling_cur_freq": "2500000\n" for c in cores}
    assert frequency_mhz(_system(tmp_path, files)[1]) == 2500.0


def test_own_processor_time_is_seen_on_this_system():
    before, until = read_counters(), time.process_time() + 0.05
    while time.process_time() < until:
        pass
    after = read_counters()
    assert after.cpu_s - before.cpu_s >= 0.05
    assert after.waiting_s_since(before) >= 0.0
    assert after.machine_s > before.machine_s
