"""What the Triton kernels of togi.ops need on a device, without one: registers, spills and shared memory.

    python benchmarks/triton_boxes.py              # prints markdown, writes benchmarks/data/triton_boxes.json

Every kernel and variant is compiled for sm_80 and sm_90 as the launch code would (block sizes, warps, no fused
multiply-adds); then ptxas, which comes with Triton, tells what it made of it. Exits with 1 where anything is spilled.
Says nothing about speed.
"""

from __future__ import annotations

import datetime
import inspect
import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.backends.nvidia.compiler import get_ptxas
from triton.compiler import ASTSource

from togi.ops.kernels import triton_boxes as kernels

CAPABILITIES = (80, 90)
FORMAT_VERSION = 1
DATA = Path(__file__).with_name("data") / "triton_boxes.json"
_POINTERS = {
    "best": "float",
    "index": "*i64",
    "bound": "float",
    "bound_index": "*i64",
    "candidate_best": "float",
    "tied": "*i1",  # bool
    "out": "float",
}
_BOXES = ("queries", "candidates")


def main() -> int:
    found = [resources(capability, *variant) for capability in CAPABILITIES for variant in variants()]
    print("| device | kernel | boxes | variant | registers | spilled bytes | shared bytes |")
    print("| - | - | - | - | -: | -: | -: |")
    for f in found:
        told = ", ".join(f"{k}={v}" for k, v in f["variant"].items())
        cells = (f["device"], f["kernel"], f["boxes"], told, f["registers"], f["spilled_bytes"], f["shared_bytes"])
        print("| " + " | ".join(map(str, cells)) + " |")
    report = {
        "format_version": FORMAT_VERSION,
        "date": datetime.date.today().isoformat(),
        "torch": torch.__version__,
        "triton": triton.__version__,
        "ptxas": {f"sm_{c}": _ptxas_of(c).version for c in CAPABILITIES},
        "proven_on_a_device": False,
        "kernels": found,
    }
    DATA.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    return int(any(f["spilled_bytes"] for f in found))


def variants() -> Iterator[tuple[Any, str, dict[str, Any]]]:
    """(kernel, dtype of the boxes, constants)."""
    for boxes in ("fp32", "fp16", "bf16", "fp64"):
        for bounded in (False, True):
            yield kernels.best_kernel, boxes, {"FORMAT": 0, "ZERO": False, "BOUNDED": bounded}
        yield kernels.tied_kernel, boxes, {"FORMAT": 0, "ZERO": False}
        for kind in kernels.KINDS.values():
            yield kernels.matrix_kernel, boxes, {"KIND": kind, "FORMAT": 0, "ZERO": False}
    yield kernels.best_kernel, "fp32", {"FORMAT": 2, "ZERO": True, "BOUNDED": False}
    yield kernels.matrix_kernel, "fp32", {"KIND": 3, "FORMAT": 2, "ZERO": False}


def resources(capability: int, kernel: Any, boxes: str, constants: dict[str, Any]) -> dict[str, Any]:
    compiled = compile_for(capability, kernel, boxes, constants)
    told = ptxas(compiled.asm["ptx"], capability)
    spilled = sum(int(b) for b in re.findall(r"(\d+) bytes spill", told))
    registers = re.search(r"Used (\d+) registers", told)
    if registers is None:
        raise RuntimeError(f"ptxas said nothing of registers: {told}")
    return {
        "device": f"sm_{capability}",
        "kernel": kernel.__name__,
        "boxes": boxes,
        "variant": constants,
        "registers": int(registers[1]),
        "spilled_bytes": spilled,
        "shared_bytes": compiled.metadata.shared,
    }


def compile_for(capability: int, kernel: Any, boxes: str, constants: dict[str, Any]) -> Any:
    """As the launch code would specialise it: strides that are 1 become constants there, here they stay arguments."""
    single = kernels.MATRIX_BLOCK if kernel is kernels.matrix_kernel else kernels.BEST_BLOCK
    rows, columns = kernels.block(single, torch.float64 if boxes == "fp64" else torch.float32)
    dtype = "fp64" if boxes == "fp64" else "fp32"
    given = {**constants, "DTYPE": getattr(tl, "float64" if boxes == "fp64" else "float32")}
    given |= {"BLOCK_N": rows, "BLOCK_M": columns}
    signature = {}
    for name in kernel.arg_names:
        kind = "constexpr" if name in given else f"*{boxes}" if name in _BOXES else _POINTERS.get(name, "i32")
        signature[name] = f"*{dtype}" if kind == "float" else kind
    source = ASTSource(kernel, signature, constexprs=given)
    options = {"num_warps": kernels.WARPS, "enable_fp_fusion": False}
    return triton.compile(source, target=GPUTarget("cuda", capability, 32), options=options)


def _ptxas_of(capability: int) -> Any:
    """Triton 3.5 (torch 2.9) has one ptxas for all devices, later ones ask for which."""
    return get_ptxas(capability) if inspect.signature(get_ptxas).parameters else get_ptxas()


def ptxas(ptx: str, capability: int) -> str:
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder, "kernel.ptx")
        source.write_text(ptx, encoding="utf-8")
        target = re.search(r"\.target (sm_\w+)", ptx)
        if target is None:
            raise RuntimeError("the PTX names no target")
        # The options of Triton's own call, so that the figures are those of what it would load.
        options = ["-v", "--fmad=false", "--regAllocOptLevel=2", f"-arch={target[1]}"]
        command = [_ptxas_of(capability).path, *options, str(source), "-o", str(Path(folder, "kernel.cubin"))]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    return done.stderr


if __name__ == "__main__":
    sys.exit(main())
