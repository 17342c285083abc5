"""Ways to bring the compiled kernel of togi.ops to a machine: what the first use, later processes and a call cost.

    python benchmarks/kernel_builds.py             # prints a table; every way in a fresh cache of its own

The same source, by g++ and ctypes (what togi.ops does) and by torch.utils.cpp_extension; and Inductor, which writes its
own.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile

PREAMBLE = """
import time, statistics, torch, torchvision.ops as tv
generator = torch.Generator().manual_seed(0)
def boxes(count):
    corner = torch.rand(count, 2, generator=generator) * 800
    return torch.cat([corner, corner + torch.rand(count, 2, generator=generator) * 199 + 1], 1)
few, many, some = boxes(5), boxes(242991), boxes(500)
def median_ms(call, *given):
    times = []
    for _ in range(15):
        start = time.perf_counter(); call(*given); times.append(time.perf_counter() - start)
    return statistics.median(times) * 1e3
"""
MEASURE = """
start = time.perf_counter(); call(few, few); first = time.perf_counter() - start
call(many, some)
print(f"{first:.2f} | {median_ms(call, few, few):.3f} | {median_ms(call, many, some):.1f}")
"""
CTYPES = """
import ctypes
from togi.ops.kernels import native
def call(a, b):
    out = torch.empty(len(a)), torch.empty(len(a), dtype=torch.int64), torch.empty(0), torch.empty(0), torch.empty(0)
    native.match(a, b, "xyxy", "nan", out)
    return out
"""
EXTENSION = r"""
from togi.ops.kernels import library, native
import torch.utils.cpp_extension as extension
source = "#include <torch/extension.h>\n" + native.BOXES.source.read_text()
source += '''
std::vector<torch::Tensor> match(torch::Tensor a, torch::Tensor b) {
  auto best = torch::empty({a.size(0)}), index = torch::empty({a.size(0)}, torch::kInt64);
  View va{a.data_ptr(), a.size(0), a.stride(0), a.stride(1), 0, 0};
  View vb{b.data_ptr(), b.size(0), b.stride(0), b.stride(1), 0, 0};
  togi_match(&va, &vb, 0, best.data_ptr(), index.data_ptr<int64_t>(), nullptr, nullptr, nullptr, at::get_num_threads());
  return {best, index};
}
'''
flags = [flag for flag in (*library.FLAGS, *native.BOXES.flags) if flag not in ("-shared", "-fPIC", "-std=c++17")]
start = time.perf_counter()
module = extension.load_inline("boxes", source, functions=["match"], extra_cflags=flags)
built = time.perf_counter() - start
call = module.match
"""
INDUCTOR = """
call = torch.compile(lambda a, b: tv.box_iou(a, b).max(1))
"""
AFTER_EXTENSION = MEASURE.replace("first = time.perf_counter() - start", "first = time.perf_counter() - start + built")


def main() -> None:
    ways = {
        "g++ and ctypes": CTYPES + MEASURE,
        "cpp_extension": EXTENSION + AFTER_EXTENSION,
        "Inductor": INDUCTOR + MEASURE,
    }
    print("| way | process | first call s | 5 x 5 ms | 242,991 x 500 ms |\n|---|---|---|---|---|")
    for name, program in ways.items():
        with tempfile.TemporaryDirectory() as folder:
            for process in ("first", "later"):
                print(f"| {name} | {process} | {run(program, folder)} |", flush=True)


def run(program: str, folder: str) -> str:
    caches = {f"{name}": folder for name in ("XDG_CACHE_HOME", "TORCH_EXTENSIONS_DIR", "TORCHINDUCTOR_CACHE_DIR")}
    command = [sys.executable, "-c", PREAMBLE + program]
    done = subprocess.run(command, env={**os.environ, **caches}, capture_output=True, text=True, check=False)
    return done.stdout.strip().splitlines()[-1] if done.returncode == 0 else f"failed: {done.stderr.strip()[-300:]}"


if __name__ == "__main__":
    main()
