import os
import resource
import statistics

import pytest
import torch

from togi.measure import keep_freed_memory


def _faults_per_call(keep: bool) -> tuple[bool, float]:
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            torch.set_num_threads(1)
            kept = keep_freed_memory() if keep else False
            for _ in range(10):
                torch.ones(8 * 2**20 // 4)
            counts = []
            for _ in range(10):
                before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
                torch.ones(8 * 2**20 // 4)
                counts.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
            faults = statistics.median(counts)  # a busy system takes pages away now and then
            os.write(write, f"{int(kept)} {faults}".encode())
        finally:
            os._exit(0)
    os.close(write)
    with os.fdopen(read, encoding="utf-8") as answers:
        kept_text, faults_text = answers.read().split()
    os.waitpid(pid, 0)
    return bool(int(kept_text)), float(faults_text)


def test_freed_memory_is_used_again_without_page_faults():
    kept, faults = _faults_per_call(keep=True)
    if not kept:
        pytest.skip("this C library has no mallopt, or the environment sets its thresholds")
    assert faults < 20, "an 8 MB tensor has 2048 pages"


def test_thresholds_of_the_environment_are_a_candidates_own_choice(monkeypatch):
    monkeypatch.setenv("MALLOC_TRIM_THRESHOLD_", "0")
    assert not keep_freed_memory()
