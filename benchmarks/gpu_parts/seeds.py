"""The advice that togi grew from, where it is about a GPU: each piece measured as it was given.

Peaks are ``torch.cuda.max_memory_allocated`` above what was there, times the median of turns, in which the ways under
comparison follow each other. ``.item()`` and what else waits is asked by the parts ``check`` and ``tests``.
"""

from __future__ import annotations

import contextlib
import statistics
import warnings
from collections.abc import Callable, Iterator, Mapping
from importlib.util import find_spec
from typing import Any

import torch
from benchmarks.gpu_models import resnet50_batch64, small_resnet50_batch64
from benchmarks.gpu_parts.check import by_measured, by_sheet
from benchmarks.gpu_parts.row import MIB, Row, attempt
from torch import Tensor, nn

import togi
from togi import ops
from togi.claims.box_iou import ANCHORS, BOXES
from togi.claims.formulas.boxes import best_box, intersection, made_boxes
from togi.claims.formulas.layers import TransformerBlock
from togi.measure import take_turn
from togi.subject.inputs import Inputs
from togi.tiling.peak import peak_bytes

ADVICE_MIB = 460.0
"""What scripting the intersection of 242,991 anchors with 500 boxes was said to save."""
ANCHOR_COUNTS = {"cpu": 20_000, "cuda": ANCHORS}
ROUNDS = 7
SIZES = {"cpu": (4, 8), "cuda": (64, 128, 256, 512, 1024, 2048)}
"""Tokens of the tree of graphs."""
SLOWER_X = 2.0
_PAIR_BYTES = {"the matrix": 4, "the best box": 0}
"""Of the result, for a pair of boxes."""
_PAIR_INSTRUCTIONS = {"the matrix": 9, "the best box": 13}
"""Two minima, two maxima, two differences, two clamps and a product; then a sum, a difference, a quotient and a
comparison."""
Way = Callable[[], Any]


def rows(device: str) -> Iterator[Row]:
    """Figures, and whether what was advised holds; a row fails where togi's own answer is wrong or takes more."""
    name = f"IoU of {ANCHOR_COUNTS[device]:,} x {BOXES}"
    yield attempt(f"{name}, the matrix", "togi.ops takes no more than its result", iou_matrix, device)
    yield attempt(f"{name}, the best box", "togi.ops and togi.lean take no matrix", iou_best, device)
    yield attempt(f"{name}, time", f"at most {SLOWER_X:g} x its bytes and arithmetic", iou_times, device)
    yield attempt("CUDA graphs of a tree of sizes", "one pool takes less than separate pools", graph_pools, device)
    yield attempt("channels_last and cuDNN's autotuner, 16 bit, batch 64", "the same answer", in_16_bit, device)
    yield attempt("INT8 and FP8 by torchao", "faster than 16 bit, error at most 10 %", low_precision, device)
    yield attempt("FP16 and INT8 by TensorRT", "it is installed", tensorrt)


def compared(ways: Mapping[str, Way], device: str) -> tuple[dict[str, float], dict[str, float], dict[str, str]]:
    """Peak in MiB and median time in ms of each way, in turns; what those that cannot run here raised."""
    peaks, errors = {}, {}
    with torch.no_grad():
        for name, way in ways.items():
            try:
                way(), way()  # compilers, and the profile by which TorchScript fuses
                peaks[name] = peak_bytes(way, device) / MIB
            except Exception as error:  # foreign code: compilers
                errors[name] = f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"
        turns = [
            {
                name: take_turn(lambda _, way=ways[name]: way(), [Inputs((0,))], 3, device=device).pass_ms
                for name in peaks
            }
            for _ in range(ROUNDS)
        ]
    return peaks, {name: statistics.median(turn[name] for turn in turns) for name in peaks}, errors


def told(peaks: Mapping[str, float], times: Mapping[str, float], errors: Mapping[str, str]) -> str:
    found = [f"{name} {peaks[name]:,.0f} MiB, {times[name]:.2f} ms" for name in peaks]
    return "; ".join([*found, *(f"{name}: {why}" for name, why in errors.items())])


def _scripted(function: Callable[..., Any]) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it is deprecated, and is what the advice asks for
        return torch.jit.script(function)


def _boxes(device: str) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    return made_boxes(ANCHOR_COUNTS[device], generator).to(device), made_boxes(BOXES, generator).to(device)


def iou_matrix(device: str) -> tuple[bool, str]:
    a, b = _boxes(device)
    scripted, compiled = _scripted(intersection), torch.compile(intersection, dynamic=False)
    ways: dict[str, Way] = {
        "eager": lambda: intersection(a, b),
        "scripted": lambda: scripted(a, b),
        "compiled": lambda: compiled(a, b),
        "togi.ops": lambda: ops.box_intersection(a, b),
    }
    peaks, times, errors = compared(ways, device)
    result = len(a) * len(b) * 4 / MIB
    equal = torch.equal(ops.box_intersection(a, b), intersection(a, b))
    saved = f"scripting saves {peaks['eager'] - peaks.get('scripted', peaks['eager']):,.0f} MiB (said: {ADVICE_MIB:g})"
    figure = f"result {result:,.0f} MiB; {told(peaks, times, errors)}; {saved}"
    return equal and peaks["togi.ops"] <= result * 1.02 + 1, figure + ("" if equal else "; another answer")


def iou_best(device: str) -> tuple[bool, str]:
    a, b = _boxes(device)
    compiled = torch.compile(best_box, dynamic=False)
    lean = togi.lean(best_box, memory="32MiB")
    ways: dict[str, Way] = {
        "eager": lambda: best_box(a, b),
        "compiled": lambda: compiled(a, b),
        "togi.ops": lambda: ops.match_boxes(a, b),
        "togi.lean": lambda: lean(a, b),
    }
    peaks, times, errors = compared(ways, device)
    expected = best_box(a, b)[0]
    wrong = [name for name, way in ways.items() if name in peaks and not torch.allclose(_best(way()), expected)]
    small = peaks["togi.ops"] <= 16 and peaks.get("togi.lean", 0) <= 32
    return small and not wrong, told(peaks, times, errors) + "".join(f"; {name} is wrong" for name in wrong)


def iou_times(device: str) -> tuple[bool | None, str]:
    """``togi.ops`` next to what a device needs for the bytes and for the arithmetic, the longer of both. Ordinary cores
    reach a data sheet's rate with a multiplication and an addition in one instruction: half of it with others."""
    figures = by_sheet(device) or by_measured(device)
    a, b = _boxes(device)
    ways: dict[str, Way] = {
        "the matrix": lambda: ops.box_intersection(a, b),
        "the best box": lambda: ops.match_boxes(a, b),
    }
    _, times, errors = compared(ways, device)
    pairs, told, within = len(a) * len(b), [], not errors
    for name, ms in times.items():
        moved = a.nbytes + b.nbytes + pairs * _PAIR_BYTES[name]
        bytes_s = moved / figures.bandwidth(moved)
        computing_s = pairs * _PAIR_INSTRUCTIONS[name] / (figures.peak("float32") / 2)
        least_ms = 1e3 * max(bytes_s, computing_s)
        within = within and ms <= SLOWER_X * least_ms
        what = "bytes" if bytes_s > computing_s else "arithmetic"
        told.append(f"{name} {ms:.3f} ms, {ms / least_ms:.2f} x its {what}")
    figure = "; ".join([*told, *errors.values(), f"by {figures.name}"])
    return (None if device == "cpu" else within), figure


def _best(found: Any) -> Tensor:
    best: Tensor = found.iou if hasattr(found, "iou") else found[0]
    return best


def graph_pools(device: str) -> tuple[bool | None, str]:
    """Bytes reserved for a graph of each size: by torch's trees, by one pool for all, and by a pool for each."""
    if device == "cpu":
        return None, "there are no graphs to replay on a CPU"
    torch.manual_seed(0)
    model = nn.Sequential(*(TransformerBlock(1024, heads=16) for _ in range(2))).to(device).half().eval()
    inputs = [torch.randn(4, tokens, 1024, device=device, dtype=torch.half) for tokens in sorted(SIZES[device])[::-1]]
    found = {
        "one pool": _reserved(lambda: _recorded(model, inputs, torch.cuda.graph_pool_handle())),
        "separate pools": _reserved(lambda: _recorded(model, inputs, None)),
        "CUDAGraph Trees": _reserved(lambda: _trees(model, inputs)),
    }
    figure = ", ".join(f"{name} {mib:,.0f} MiB" for name, mib in found.items())
    return found["one pool"] < found["separate pools"], f"{len(inputs)} sizes, {figure}"


def _reserved(make: Callable[[], Any]) -> float:
    """In MiB, while what was made lives."""
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    before = torch.cuda.memory_reserved()
    kept = make()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    more = (torch.cuda.memory_reserved() - before) / MIB
    del kept
    return more


@torch.no_grad()
def _recorded(model: nn.Module, inputs: list[Tensor], pool: Any) -> list[Any]:
    kept: list[Any] = []
    stream = torch.cuda.Stream()
    for x in inputs:
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            model(x)
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=pool, stream=stream):
            out = model(x)
        kept.append((graph, out if pool is None else None))
    return kept


@torch.no_grad()
def _trees(model: nn.Module, inputs: list[Tensor]) -> Any:
    compiled = torch.compile(model, mode="reduce-overhead", dynamic=False)
    for _ in range(3):
        for x in inputs:
            torch.compiler.cudagraph_mark_step_begin()
            compiled(x)
    return compiled


def in_16_bit(device: str) -> tuple[bool, str]:
    """ResNet-50 in bfloat16 on 64 images: as it is, in another layout, with cuDNN's autotuner, with both."""
    module, x = (resnet50_batch64 if device == "cuda" else small_resnet50_batch64)()
    plain, x = module.to(device).bfloat16(), x.to(device).bfloat16()
    with torch.no_grad():
        expected = plain(x).float()
        times, far = {}, {}
        for layout in (torch.contiguous_format, torch.channels_last):
            model, given = plain.to(memory_format=layout), x.contiguous(memory_format=layout)
            for tuned in (False, True):
                name = ("channels_last" if layout is torch.channels_last else "as it is") + (", tuned" if tuned else "")
                with torch.backends.cudnn.flags(enabled=True, benchmark=tuned):
                    found = model(given).float()
                    model(given)
                    turns = [take_turn(model, [Inputs((given,))], 3, device=device).pass_ms for _ in range(ROUNDS)]
                times[name] = statistics.median(turns)
                far[name] = float((found - expected).norm() / expected.norm())
    figure = "; ".join(f"{name} {ms:.2f} ms ({times['as it is'] / ms:.2f} x)" for name, ms in times.items())
    return max(far.values()) <= 0.05, figure


def low_precision(device: str) -> tuple[bool | None, str]:
    if find_spec("torchao") is None:
        return None, "torchao is not installed"
    if device == "cpu":
        return None, "asked of a GPU"
    from torchao import quantization

    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(4096, 16_384), nn.GELU(), nn.Linear(16_384, 4096)).to(device).bfloat16()
    x = torch.randn(8192, 4096, device=device, dtype=torch.bfloat16)
    with torch.no_grad():
        expected = module(x).float()
        ways: dict[str, Way] = {"bfloat16": _compiled_call(module, x)}
        for name in ("Int8DynamicActivationInt8WeightConfig", "Float8DynamicActivationFloat8WeightConfig"):
            with contextlib.suppress(AttributeError):  # the names of another release
                quantized = nn.Sequential(nn.Linear(4096, 16_384), nn.GELU(), nn.Linear(16_384, 4096))
                quantized.load_state_dict(module.state_dict())
                quantized = quantized.to(device).bfloat16()
                quantization.quantize_(quantized, getattr(quantization, name)())
                ways[name] = _compiled_call(quantized, x)
        peaks, times, errors = compared(ways, device)
        far = {name: float((ways[name]().float() - expected).norm() / expected.norm()) for name in peaks}
    right = bool(len(peaks) > 1) and max(far.values()) <= 0.1 and min(times, key=lambda each: times[each]) != "bfloat16"
    return right, told(peaks, times, errors)


def _compiled_call(module: nn.Module, x: Tensor) -> Way:
    compiled = torch.compile(module)
    return lambda: compiled(x)


def tensorrt() -> tuple[bool | None, str]:
    """The engines' own rows measure it where it is."""
    there = [name for name in ("torch_tensorrt", "tensorrt") if find_spec(name)]
    return None, f"{', '.join(there)} is installed: see the rows of engines" if there else "TensorRT is not installed"
