"""``togi.ops`` decides as on the CPU; ``togi.lean`` keeps its budget and its answer."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any

import torch
from benchmarks.gpu_parts.row import MIB, Row, attempt
from torch import Tensor

from togi import ops
from togi.ops.backend import VARIABLE
from togi.ops.kernels import native, triton_boxes
from togi.tiling.lean import PROVEN as LEAN


def rows(device: str) -> Iterator[Row]:
    """``togi.ops`` decides as on the CPU; ``togi.lean`` keeps its budget and its answer."""
    generator = torch.Generator().manual_seed(0)
    corners = torch.rand(20_000, 2, generator=generator) * 900
    anchors = torch.cat([corners, corners + 20 + torch.rand(20_000, 2, generator=generator) * 100], 1)
    boxes, scores = anchors[::101].clone() + 3, torch.rand(4000, generator=generator)
    calls: dict[str, Callable[[str], Any]] = {
        "match_boxes": lambda on: ops.match_boxes(anchors.to(on), boxes.to(on), thresholds=(0.3, 0.7)),
        "box_giou": lambda on: ops.box_giou(anchors[:4000].to(on), boxes.to(on)),
        "nms": lambda on: ops.nms(anchors[:4000].to(on), scores.to(on), 0.5),
    }
    kernels = (triton_boxes if device == "cuda" else native).PROVEN.part
    for name, call in calls.items():
        yield attempt(
            f"ops.{name}", "equal to the plain kernels of the CPU", same_decision, call, device, proves=(kernels,)
        )
    yield attempt("lean", "the budget of 16 MiB, the same values", leaned, device, proves=(LEAN.part,))


def same_decision(call: Callable[[str], Any], device: str) -> tuple[bool, str]:
    backend = ops.backend(device).name
    found = flat(call(device))
    before = os.environ.get(VARIABLE)
    os.environ[VARIABLE] = "tiled"
    try:
        expected = flat(call("cpu"))
    finally:
        os.environ.pop(VARIABLE)
        os.environ.update({} if before is None else {VARIABLE: before})
    equal = all(torch.equal(a.cpu(), b) for a, b in zip(found, expected, strict=True))
    return equal, f"{backend} against plain torch: {'equal' if equal else 'different'}"


def flat(result: Any) -> list[Tensor]:
    return [one for one in result if one is not None] if isinstance(result, tuple) else [result]


def leaned(device: str) -> tuple[bool, str]:
    from togi import lean
    from togi.tiling.peak import peak_bytes

    def nearest(a: Tensor, b: Tensor) -> Tensor:
        return (a[:, None] - b[None]).abs().sum(-1).amin(1)

    a, b = torch.randn(4096, 8, device=device), torch.randn(4096, 8, device=device)
    streamed = lean(nearest, memory="16MiB")
    found = streamed(a, b)
    peak = peak_bytes(lambda: streamed(a, b), device)
    close = torch.allclose(found, nearest(a, b), rtol=1e-5, atol=1e-5)
    return close and peak <= 16 * MIB, f"{peak / MIB:.1f} MiB, {'equal' if close else 'different'}"
