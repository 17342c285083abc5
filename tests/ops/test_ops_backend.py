"""The compiled kernel: its cache under every misfortune, the fall-back without a compiler, and torch's own checks."""

from __future__ import annotations

import multiprocessing
import os
import re
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import torch

from tests.ops.box_makers import random_boxes, same
from togi import ops
from togi.ops import operators
from togi.ops.kernels import library, native

MATCH = (
    "import torch; from togi import ops; b = torch.tensor([[0., 0., 2., 2.], [1., 1., 3., 3.]]); "
    "print(ops.backend().name, ops.backend().reason, ops.box_iou(b, b).sum().item())"
)


def counting_compiler(folder: Path) -> Path:
    """A compiler that leaves a mark for every run."""
    script = folder / "counting-c++"
    script.write_text(f'#!/bin/sh\nmktemp {folder}/run.XXXXXX >/dev/null\nexec g++ -O0 "$@" -O0\n', encoding="utf-8")
    script.chmod(0o755)
    return script


@pytest.mark.thorough
def test_processes_that_come_at_once_compile_once(tmp_path):
    environment = {"XDG_CACHE_HOME": str(tmp_path / "cache"), "CXX": str(counting_compiler(tmp_path))}
    command = [sys.executable, "-c", MATCH]
    runs = [
        subprocess.Popen(command, env={**os.environ, **environment}, stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    answers = {process.communicate()[0] for process in runs}
    assert len(answers) == 1
    assert answers.pop().startswith("native")
    assert len(list(tmp_path.glob("run.*"))) == 1
    kept = list((tmp_path / "cache" / "togi" / "kernels").iterdir())
    assert sorted(p.suffix for p in kept) == [".lock", ".so"]


@pytest.mark.parametrize(
    ("compiler", "reason"),
    [("/nowhere/c++", "no C++ compiler found"), ("/bin/false", "exited with 1")],
)
def test_without_a_working_compiler_torch_answers_and_says_why(tmp_path, monkeypatch, compiler, reason):
    anchors, boxes = random_boxes(500, 1), random_boxes(30, 2)
    expected = ops.match_boxes(anchors, boxes)
    monkeypatch.setattr(native, "BOXES", library.KernelLibrary(native.BOXES.source))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("CXX", compiler)
    assert ops.backend().name == "tiled"
    assert reason in ops.backend().reason
    assert same(ops.match_boxes(anchors, boxes).box, expected.box)
    monkeypatch.setenv("TOGI_OPS_BACKEND", "native")
    with pytest.raises(ops.BackendError, match=f"TOGI_OPS_BACKEND=native is not available: .*{re.escape(reason)}"):
        ops.match_boxes(anchors, boxes)


def test_a_cache_that_others_can_write_is_not_trusted(tmp_path, monkeypatch):
    folder = tmp_path / "togi" / "kernels"
    folder.mkdir(parents=True)
    folder.chmod(0o777)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(library, "FLAGS", tuple("-O0" if flag == "-O3" else flag for flag in library.FLAGS))
    assert native.BOXES.load() is not None
    assert list(folder.iterdir()) == []


def test_what_decides_the_library_is_in_its_name(monkeypatch, tmp_path):
    compiler, source = library.find_compiler(), native.BOXES.source
    names = {library.KernelLibrary(source).key(compiler), library.KernelLibrary(source, flags=("-DY",)).key(compiler)}
    monkeypatch.setattr(library, "FLAGS", (*library.FLAGS, "-DX"))
    names.add(library.KernelLibrary(source).key(compiler))
    changed = tmp_path / "boxes.cpp"
    changed.write_text(source.read_text(encoding="utf-8") + "\n", encoding="utf-8")
    names.add(library.KernelLibrary(changed).key(compiler))
    monkeypatch.setattr(library, "processor", lambda: "another")
    names.add(library.KernelLibrary(changed).key(compiler))
    assert len(names) == 5


def test_an_unknown_backend_is_refused(monkeypatch):
    monkeypatch.setenv("TOGI_OPS_BACKEND", "nativ")
    with pytest.raises(ops.BackendError, match="did you mean 'native'"):
        ops.backend()


def test_other_devices_are_answered_in_tiles():
    assert ops.backend("mps").name == "tiled"
    assert "not on mps" in ops.backend("mps").reason


@pytest.mark.parametrize(
    ("available", "capability", "found"),
    [(False, (9, 0), "tiled"), (True, (7, 5), "tiled"), (True, (8, 0), "triton"), (True, (12, 0), "triton")],
)
def test_cuda_devices_get_triton_kernels_from_capability_8_on(monkeypatch, available, capability, found):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: available)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _device: capability)
    assert ops.backend("cuda").name == found
    monkeypatch.setenv("TOGI_OPS_BACKEND", "triton")
    if found == "tiled":
        with pytest.raises(ops.BackendError, match=r"no CUDA device|capability 7\.5, and the Triton kernels need 8\.0"):
            ops.backend("cuda")
    with pytest.raises(ops.BackendError, match="not on cpu"):
        ops.backend("cpu")


def test_tiles_can_be_asked_for(monkeypatch):
    monkeypatch.setenv("TOGI_OPS_BACKEND", "tiled")
    assert ops.backend() == ops.Backend(name="tiled", reason="TOGI_OPS_BACKEND=tiled")


def _match_in_child(queue) -> None:
    queue.put(ops.match_boxes(random_boxes(5000, 1), random_boxes(300, 2), per_box=True).anchor.tolist())


def test_it_works_after_a_fork_and_from_several_threads():
    anchors, boxes = random_boxes(5000, 1), random_boxes(300, 2)
    expected = ops.match_boxes(anchors, boxes, per_box=True)
    found: list[torch.Tensor] = []
    threads = [
        threading.Thread(target=lambda: found.append(ops.match_boxes(anchors, boxes, per_box=True).anchor))
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    child = context.Process(target=_match_in_child, args=(queue,))
    child.start()
    assert queue.get(timeout=60) == expected.anchor.tolist()
    child.join(60)
    for thread in threads:
        thread.join(60)
    assert len(found) == 4
    assert all(same(anchor, expected.anchor) for anchor in found)


def test_torchs_own_checks_of_the_operators():
    a, b = random_boxes(6, 1), random_boxes(5, 2)
    leaf = a.clone().requires_grad_()
    batch = a.expand(2, 6, 4), b.expand(2, 5, 4)
    for first, second in ((a, b), (leaf, b), batch):
        torch.library.opcheck(operators.box_matrix, (first, second, "giou", "xyxy", "nan", True))
    for first, second in ((a, b), batch):
        torch.library.opcheck(operators.match, (first, second, "xyxy", "nan", True, True, True))
        torch.library.opcheck(operators.match, (first, second, "xywh", "zero", False, False, False))
        torch.library.opcheck(operators.topk, (first, second, 3, "xyxy", "nan", True))
    upstream = torch.rand(6, 5)
    torch.library.opcheck(operators.box_matrix_gradient, (upstream, a, b, "ciou", "xyxy", "nan"))
