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


FAILING = r"""
#include <cstdlib>

#include "boxes.cpp"

static std::atomic<long> left{-1};  // allocations until one fails

void* operator new(std::size_t size) {
  void* memory = left >= 0 && left-- == 0 ? nullptr : std::malloc(size);
  if (!memory) throw std::bad_alloc();
  return memory;
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }

std::vector<float> values(4096 * 512);
std::vector<int64_t> indices(4096);

// Every box is the same, so every IoU is 1.
template <class Call>
bool is_right(Call call, long wanted) {
  for (long count = 0;; ++count) {
    std::fill(values.begin(), values.end(), -1.f);
    left = count;
    const int32_t status = call();
    const bool is_last = left >= 0;
    left = -1;
    const bool is_filled = std::count(values.begin(), values.begin() + wanted, 1.f) == wanted;
    if (status != NO_MEMORY && !(status == DONE && is_filled)) return false;
    if (is_last) return !status && count > 4;  // those for the threads are among them
  }
}

int main() {
  std::vector<float> data;
  for (int at = 0; at < 4096; ++at) data.insert(data.end(), {0.f, 0.f, 2.f, 2.f});
  const View anchors{data.data(), 4096, 4, 1, FLOAT32, XYXY}, boxes{data.data(), 512, 4, 1, FLOAT32, XYXY};
  float* to = values.data();
  int64_t* at = indices.data();
  void* none = nullptr;
  const auto match = [&] { return togi_match(&anchors, &boxes, 0, to, at, none, nullptr, nullptr, 4); };
  const auto topk = [&] { return togi_topk(&anchors, &boxes, 0, 1, to, at, 4); };
  const auto matrix = [&] { return togi_matrix(&anchors, &boxes, IOU, 0, to, 4); };
  return is_right(match, 4096) && is_right(topk, 4096) && is_right(matrix, 4096 * 512) ? 0 : 1;
}
"""


@pytest.mark.thorough
def test_whichever_allocation_fails_it_answers_or_says_so(tmp_path):
    source, program = tmp_path / "failing.cpp", tmp_path / "failing"
    source.write_text(FAILING, encoding="utf-8")
    flags = ("-O1", "-std=c++17", "-pthread", f"-I{native.BOXES.source.parent}")
    subprocess.run([library.find_compiler(), *flags, source, "-o", program], check=True, capture_output=True)
    assert subprocess.run([program], timeout=60, check=False).returncode == 0


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
