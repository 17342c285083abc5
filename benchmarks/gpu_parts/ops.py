"""``togi.ops`` decides as on the CPU, near what its arithmetic takes; ``togi.lean`` keeps its budget and its answer."""

from __future__ import annotations

import os
import statistics
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from benchmarks.gpu_parts.row import MIB, Row, attempt
from torch import Tensor, nn

from togi import ops
from togi.core.proven import MarkedPart
from togi.measure import take_turn
from togi.ops.backend import VARIABLE
from togi.subject.inputs import Inputs
from togi.tiling.peak import peak_bytes

SLOWER_X = 2.0
PAIRS = (1_000_000, 500)
"""Anchors and boxes, so many that launches do not count."""
TURNS = 9
LEVELS = (15_000, 4_000, 1_000)
"""So many anchors has each level of a pyramid."""
SLICED = 255 * 4096 + 1
"""Candidates for few queries, so that Triton's kernel divides them into slices, of which the last holds one."""
LOSS_SIZES = {"cpu": (256, 64, 2_000), "cuda": (4_096, 1_024, 50_257)}
"""Rows, width and words."""
BLOCKS = {"cpu": ("256KiB", "1MiB"), "cuda": ("32MiB", "128MiB", "512MiB")}
"""What a block of logits may take: the first where the answer and the memory are asked for."""


def rows(device: str) -> Iterator[Row]:
    """``togi.ops`` decides as on the CPU, near what its arithmetic takes; ``togi.lean`` keeps its budget."""
    generator = torch.Generator().manual_seed(0)
    corners = torch.rand(20_000, 2, generator=generator) * 900
    anchors = torch.cat([corners, corners + 20 + torch.rand(20_000, 2, generator=generator) * 100], 1)
    boxes, scores = anchors[::101].clone() + 3, torch.rand(4000, generator=generator)
    many = made_boxes(SLICED, "cpu")
    calls: dict[str, Callable[[str], Any]] = {
        "match_boxes": lambda on: ops.match_boxes(anchors.to(on), boxes.to(on), thresholds=(0.3, 0.7)),
        "box_giou": lambda on: ops.box_giou(anchors[:4000].to(on), boxes.to(on)),
        "topk_iou": lambda on: ops.topk_iou(boxes[:8].to(on), many.to(on), 4),
        "nms": lambda on: ops.nms(anchors[:4000].to(on), scores.to(on), 0.5),
    }
    scores_of, labels = torch.rand(len(anchors), 10, generator=generator), torch.arange(len(boxes)) % 10
    aligned = anchors + torch.rand(len(anchors), 1, generator=generator) * 9, scores_of, anchors, boxes, labels
    assigned: dict[str, Callable[[str], Any]] = {  # without the metric, whose powers the CPU rounds as it does
        "assign_atss": lambda on: ops.assign_atss(anchors.to(on), boxes.to(on), LEVELS)[:2],
        "assign_task_aligned": lambda on: ops.assign_task_aligned(*(t.to(on) for t in aligned))[:2],
    }
    kernels = MarkedPart.TRITON_OPS if device == "cuda" else MarkedPart.NATIVE_OPS
    for name, call in calls.items():
        yield attempt(
            f"ops.{name}", "equal to the plain kernels of the CPU", same_decision, call, device, proves=(kernels,)
        )
    for name, call in {**calls, **assigned}.items():
        yield attempt(
            f"ops.{name} in plain torch",
            "equal to the same on the CPU",
            same_decision,
            call,
            device,
            "tiled",
            proves=(MarkedPart.OPS,),
        )
    sizes = LOSS_SIZES[device]
    name = "linear_cross_entropy of {:,} x {:,} x {:,}".format(*sizes)
    exact = "loss and gradients as near to float64 as plain torch's, twice at most; half of the logits' memory"
    for dtype in (torch.float32, torch.bfloat16):
        told = str(dtype).removeprefix("torch.")
        yield attempt(f"{name}, {told}", exact, loss_of, sizes, dtype, device, proves=(MarkedPart.OPS,))
    yield attempt("linear_cross_entropy, time", "figures", loss_times, sizes, device, speed_of=(MarkedPart.OPS,))
    bound = f"at most {SLOWER_X:g} x reading the boxes and doing the arithmetic"
    yield attempt("match_boxes, time", bound, beside_its_arithmetic, device, speed_of=(kernels,))
    yield attempt("lean", "the budget of 16 MiB, the same values", leaned, device, proves=(MarkedPart.LEAN,))


def same_decision(call: Callable[[str], Any], device: str, backend: str = "auto") -> tuple[bool, str]:
    with asking_for(backend):
        name, found = ops.backend(device).name, flat(call(device))
    with asking_for("tiled"):
        expected = flat(call("cpu"))
    equal = all(torch.equal(a.cpu(), b) for a, b in zip(found, expected, strict=True))
    where = "plain torch" if backend == "auto" else "plain torch on the CPU"
    return equal, f"{name} against {where}: {'equal' if equal else 'different'}"


@contextmanager
def asking_for(backend: str) -> Iterator[None]:
    before = os.environ.get(VARIABLE)
    os.environ[VARIABLE] = backend
    try:
        yield
    finally:
        os.environ.pop(VARIABLE)
        os.environ.update({} if before is None else {VARIABLE: before})


def beside_its_arithmetic(device: str) -> tuple[bool | None, str]:
    """Turns of both; the arithmetic alone, compiled, is one kernel that keeps a number an anchor."""
    if device == "cpu":
        return None, "benchmarks/boxes.py measures it on a CPU"
    anchors, boxes = (made_boxes(count, device) for count in PAIRS)
    given, alone = [Inputs((anchors, boxes))], torch.compile(best_iou, fullgraph=True)
    calls = (lambda *each: ops.match_boxes(*each, thresholds=(0.3, 0.7)), alone)
    turns = [[take_turn(call, given, 5, device=device).pass_ms for call in calls] for _ in range(TURNS)]
    ratio, ms = (statistics.median(values) for values in ([a / b for a, b in turns], [a for a, _ in turns]))
    return ratio <= SLOWER_X, f"{ratio:.2f} x, {ms:.2f} ms for {PAIRS[0]:,} anchors and {PAIRS[1]} boxes"


def made_boxes(count: int, device: str) -> Tensor:
    generator = torch.Generator().manual_seed(count)
    corners, sides = (torch.rand(count, 2, generator=generator) for _ in range(2))
    return torch.cat([corners * 900, corners * 900 + 20 + sides * 80], 1).to(device)


def best_iou(anchors: Tensor, boxes: Tensor) -> Tensor:
    """Of each anchor, and nothing else."""
    a, b = anchors[:, None], boxes[None]
    sides = (torch.minimum(a[..., 2:], b[..., 2:]) - torch.maximum(a[..., :2], b[..., :2])).clamp(min=0)
    areas = [(each[..., 2] - each[..., 0]) * (each[..., 3] - each[..., 1]) for each in (a, b)]
    shared = sides[..., 0] * sides[..., 1]
    return (shared / (areas[0] + areas[1] - shared)).amax(1)


def flat(result: Any) -> list[Tensor]:
    return [one for one in result if one is not None] if isinstance(result, tuple) else [result]


def loss_of(sizes: tuple[int, int, int], dtype: torch.dtype, device: str) -> tuple[bool, str]:
    """Loss and gradients of hidden and weight by both ways, and their errors relative to float64; peaks in MiB."""
    ways = {"plain": plain_loss, "togi.ops": partial(ops.linear_cross_entropy, memory=BLOCKS[device][0])}
    exact = trained(
        plain_loss, *(t.double() if t.is_floating_point() else t for t in loss_inputs(sizes, dtype, device))
    )
    errors, peaks = {}, {}
    for name, way in ways.items():
        given = loss_inputs(sizes, dtype, device)
        peaks[name] = peak_bytes(lambda way=way, given=given: trained(way, *given), device) / MIB
        found = trained(way, *given)
        errors[name] = [float((a.double() - b).norm() / b.norm()) for a, b in zip(found, exact, strict=True)]
    floor = torch.finfo(dtype).eps
    near = all(own <= 2 * other + floor for own, other in zip(errors["togi.ops"], errors["plain"], strict=True))
    logits = sizes[0] * sizes[2] * dtype.itemsize / MIB
    told = [f"{name} {peaks[name]:,.0f} MiB, errors {' '.join(f'{e:.1e}' for e in errors[name])}" for name in ways]
    saved = peaks["plain"] - peaks["togi.ops"]
    return near and saved >= logits / 2, f"logits {logits:,.0f} MiB; {'; '.join(told)}"


def loss_times(sizes: tuple[int, int, int], device: str) -> tuple[bool, str]:
    """Of a step in bfloat16, in turns with the plain one."""
    given = loss_inputs(sizes, torch.bfloat16, device)
    blocks = {memory: partial(ops.linear_cross_entropy, memory=memory) for memory in BLOCKS[device]}
    ways = {"plain": plain_loss, **blocks}
    sample = [Inputs((0,))]
    turns = [
        {
            name: take_turn(lambda _, way=way: trained(way, *given), sample, 3, device=device).pass_ms
            for name, way in ways.items()
        }
        for _ in range(TURNS)
    ]
    times = {name: statistics.median(turn[name] for turn in turns) for name in ways}
    return True, "; ".join(f"{name} {ms:.2f} ms ({ms / times['plain']:.2f} x)" for name, ms in times.items())


def plain_loss(hidden: Tensor, weight: Tensor, target: Tensor) -> Tensor:
    return nn.functional.cross_entropy(nn.functional.linear(hidden, weight), target)


def loss_inputs(sizes: tuple[int, int, int], dtype: torch.dtype, device: str) -> tuple[Tensor, Tensor, Tensor]:
    """As in a language model: some rows are ignored."""
    rows, width, words = sizes
    generator = torch.Generator().manual_seed(0)
    hidden, weight = (torch.randn(count, width, generator=generator) for count in (rows, words))
    target = torch.randint(words, (rows,), generator=generator)
    target[::7] = -100
    return hidden.to(device, dtype), (weight / width**0.5).to(device, dtype), target.to(device)


def trained(
    way: Callable[..., Tensor], hidden: Tensor, weight: Tensor, target: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """The loss, and the gradients of hidden and weight."""
    hidden, weight = (t.detach().requires_grad_() for t in (hidden, weight))
    loss = way(hidden, weight, target)
    return (loss.detach(), *torch.autograd.grad(loss, (hidden, weight)))


def leaned(device: str) -> tuple[bool, str]:
    from togi import lean

    def nearest(a: Tensor, b: Tensor) -> Tensor:
        return (a[:, None] - b[None]).abs().sum(-1).amin(1)

    a, b = torch.randn(4096, 8, device=device), torch.randn(4096, 8, device=device)
    streamed = lean(nearest, memory="16MiB")
    found = streamed(a, b)
    peak = peak_bytes(lambda: streamed(a, b), device)
    close = torch.allclose(found, nearest(a, b), rtol=1e-5, atol=1e-5)
    return close and peak <= 16 * MIB, f"{peak / MIB:.1f} MiB, {'equal' if close else 'different'}"
