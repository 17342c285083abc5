"""The Triton kernels: against the CPU's through Triton's interpreter, compiled without a device, and on one where
there is one.

The interpreter is chosen when the kernels are imported, so it runs in a process of its own (triton_cases.py).
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.ops.box_makers import grid_boxes, random_boxes, same
from togi import ops

ROOT = Path(__file__).parents[2]
needs_triton = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed")


@needs_triton
@pytest.mark.thorough
def test_interpreted_kernels_agree_with_the_native_kernel():
    environment = {**os.environ, "TRITON_INTERPRET": "1"}
    command = [sys.executable, "-W", "ignore", "-m", "tests.ops.triton_cases"]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=250, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines()[-1] == "all agree"


@needs_triton
@pytest.mark.parametrize("capability", [80, 90])
def test_compiled_kernels_spill_nothing(capability, tmp_path, monkeypatch):
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))  # Triton needs a folder to write to, and its own lies at home
    from benchmarks import triton_boxes as benchmark

    kernels = benchmark.kernels
    for kernel, constants in (
        (kernels.best_kernel, {"FORMAT": 0, "ZERO": False, "BOUNDED": False}),
        (kernels.best_kernel, {"FORMAT": 0, "ZERO": False, "BOUNDED": True}),
        (kernels.tied_kernel, {"FORMAT": 0, "ZERO": False}),
        (kernels.matrix_kernel, {"KIND": 1, "FORMAT": 0, "ZERO": False}),
    ):
        counts = {parameter.name for parameter in kernel.params if parameter.do_not_specialize}
        assert counts == {"n", "m", "per_slice"} & set(kernel.arg_names) - (
            {"m"} if "out" in kernel.arg_names else set()
        )
        found = benchmark.resources(capability, kernel, "fp32", constants)
        assert found["spilled_bytes"] == 0
        assert 16 < found["registers"] <= 255


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device: the kernels are not proven on one")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16])
def test_a_device_decides_as_the_cpu(dtype):
    assert ops.backend("cuda").name == "triton"
    for anchors, boxes in ((random_boxes(70_000, 1), random_boxes(300, 2)), (grid_boxes(60), grid_boxes(9) + 3)):
        a, b = anchors.to(dtype), boxes.to(dtype)
        options = {"thresholds": (0.3, 0.7), "low_quality": True}
        expected, found = ops.match_boxes(a, b, **options), ops.match_boxes(a.cuda(), b.cuda(), **options)
        assert all(same(x, y.cpu()) for x, y in zip(expected, found, strict=True))
        expected, found = ops.topk_iou(a, b, 9), ops.topk_iou(a.cuda(), b.cuda(), 9)
        assert all(same(x, y.cpu()) for x, y in zip(expected, found, strict=True))
        for measure in (ops.box_intersection, ops.box_iou, ops.box_giou, ops.box_diou):
            assert same(measure(a[:5000], b), measure(a[:5000].cuda(), b.cuda()).cpu())
        scores = torch.rand(4000)
        assert torch.equal(ops.nms(a[:4000], scores, 0.5), ops.nms(a[:4000].cuda(), scores.cuda(), 0.5).cpu())
