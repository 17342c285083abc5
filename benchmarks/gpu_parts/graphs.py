"""``togi.graphs`` on 1,000 requests of a text's own lengths; on the CPU with the recorder, which has no speed."""

from __future__ import annotations

import contextlib
import copy
import random
import time
import warnings
from collections import Counter
from collections.abc import Iterator
from pydoc_data.topics import topics
from typing import Any

import torch
from benchmarks.gpu_parts.row import MIB, Row, attempt
from torch import Tensor, nn

from togi import graphs
from togi.core.proven import MarkedPart
from togi.graphs.buckets import choose_buckets, padding
from togi.measure import take_turn
from togi.subject.inputs import Inputs
from togi.techniques.engine.programs.cuda_graph import CudaGraphs

REQUESTS = 1000
SHARE_OF_SPEED, SHARE_OF_MEMORY = 0.9, 0.25
"""Of an exact graph for each size, which is what a graph for each size takes."""


def text_lengths(count: int) -> list[int]:
    """Words of paragraphs of Python's own documentation, drawn at random."""
    paragraphs = [part.split() for text in topics.values() for part in text.split("\n\n") if part.strip()]
    return random.Random(0).choices([len(words) for words in paragraphs], k=count)


class Tagger(nn.Module):
    """Reads a sequence of tokens; padding is masked."""

    def __init__(self, width: int, layers: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(1000, width)
        self.projections = nn.ModuleList(nn.Linear(width, 3 * width) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 16)

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        hidden, seen = self.embedding(ids), mask.bool()[None, None]
        for project in self.projections:
            query, key, value = project(hidden).unflatten(-1, (3, 4, -1)).permute(1, 2, 0, 3)
            attended = nn.functional.scaled_dot_product_attention(query, key, value, attn_mask=seen)
            hidden = self.norm(hidden + attended.transpose(0, 1).flatten(1))
        return self.head(hidden)


def rows(device: str) -> Iterator[Row]:
    """``togi.graphs`` on 1,000 requests of a text's own lengths; on the CPU with the recorder, which has no speed."""
    lengths = text_lengths(REQUESTS)
    some, served_well = lengths[:20], "equal to eager, all but those above replayed, within the memory"
    share = f"at least {SHARE_OF_SPEED:.0%} of the speed at {SHARE_OF_MEMORY:.0%} of the memory"
    parts = (MarkedPart.GRAPHS,)
    for name, bound, check, given in (
        ("the choice of 32 buckets", "under 1 s", chosen_buckets, (lengths,)),
        ("1,000 requests", served_well, served, (lengths, device)),
        ("a budget below the largest size", "smaller sizes replayed, within the memory", within_less, (some, device)),
        ("gradients of 20 requests", "accumulated as in eager, none overwritten", trained, (some, device)),
        ("20 results that are lent", "equal to eager, and an error after their block", lent, (some, device)),
        ("against an exact graph per size", share, against_exact, (lengths, device)),
    ):
        marks = {"speed_of" if check is against_exact else "proves": parts}
        yield attempt(name, bound, check, *given, **marks)
    after = "eager's answer and a warning; later sizes are recorded, and what torch keeps for captures works on"
    yield attempt("a capture that fails", after, failed, device, proves=("cuda_graph",))


def chosen_buckets(lengths: list[int]) -> tuple[bool, str]:
    calls = Counter(lengths)
    began = time.monotonic()
    buckets = choose_buckets(calls, 32)
    seconds = time.monotonic() - began
    real = sum(lengths)
    figure = f"{padding(calls, buckets) / real:.1%} padding for {len(calls)} sizes in {seconds:.3f} s"
    return seconds < 1, figure


def request(n: int, device: str) -> tuple[Tensor, Tensor]:
    ids = torch.arange(n, device=device) * 7 % 1000
    return ids, torch.ones(n, device=device)


def capture_tagger(
    lengths: list[int], device: str, memory: int | str = "2GiB", **options: Any
) -> tuple[Tagger, graphs.CapturedFunction]:
    torch.manual_seed(0)
    model = Tagger(*((256, 6) if device == "cuda" else (32, 2))).to(device).eval()
    pool = graphs.Pool(memory, graphs.Recorder() if device == "cpu" else None)
    samples = [request(n, device) for n in (4, max(lengths))]
    return model, graphs.capture(model, samples, sizes=lengths, memory=pool, **options)


@torch.no_grad()
def served(lengths: list[int], device: str) -> tuple[bool, str]:
    model, captured = capture_tagger(lengths, device, limit=16)
    wrong = 0
    for n in lengths:
        given = request(n, device)
        wrong += not torch.allclose(captured(*given), model(*given), rtol=1e-3, atol=1e-4)
    plan = captured.plan()
    unserved = sum(captured.calls.values()) - captured.calls["replayed"]
    figure = f"{wrong} wrong, {unserved} in eager ({len(plan.eager)} buckets), {str(plan).splitlines()[0]}"
    slow = sum(reason.startswith("a graph was not faster") and n for reason, n in captured.calls.items())
    return not wrong and unserved == slow and plan.held_bytes <= plan.memory_bytes, figure


@torch.no_grad()
def within_less(lengths: list[int], device: str) -> tuple[bool, str]:
    """The largest size is captured, does not fit, and is dropped: torch refuses the pool of a graph that is gone."""
    most = max(lengths)
    small, large = (capture_tagger([n], device, limit=1)[1].plan().held_bytes for n in (most, 16 * most))
    model, captured = capture_tagger([*lengths, 16 * most], device, memory=(small + large) // 2, limit=1)
    plan, given = captured.plan(), request(min(lengths), device)
    equal = torch.allclose(captured(*given), model(*given), rtol=1e-3, atol=1e-4)
    fits = plan.buckets[-1] < 16 * most and plan.held_bytes <= plan.memory_bytes
    return equal and fits, f"{'equal' if equal else 'wrong'}, {str(plan).splitlines()[0]}"


def trained(lengths: list[int], device: str) -> tuple[bool, str]:
    """The first gradient of the first weight is kept and compared at the end: a later replay must not write there."""
    model, captured = capture_tagger(lengths, device, limit=4, gradients=True)
    plain = copy.deepcopy(model)
    kept = []
    for call, owner in ((captured, model), (plain, plain)):
        for n in lengths:
            call(*request(n, device)).square().mean().backward()
            if not kept:
                gradient = owner.head.weight.grad
                kept = [gradient, gradient.clone()]
                owner.head.weight.grad = gradient.clone()
    pairs = zip(model.parameters(), plain.parameters(), strict=True)
    wrong = sum(not torch.allclose(a.grad, b.grad, rtol=1e-3, atol=1e-5) for a, b in pairs)
    overwritten = not torch.equal(*kept)
    return not (wrong or overwritten), f"{wrong} wrong, {captured.calls['replayed']} of {len(lengths)} replayed"


@torch.no_grad()
def lent(lengths: list[int], device: str) -> tuple[bool, str]:
    model, captured = capture_tagger(lengths, device, limit=4)
    wrong = silent = 0
    for n in lengths:
        given = request(n, device)
        before = captured.calls["replayed"]
        with captured.lend(*given) as found:
            wrong += not torch.allclose(found, model(*given), rtol=1e-3, atol=1e-4)
        with contextlib.suppress(RuntimeError):
            found.sum()
            silent += captured.calls["replayed"] > before
    return not (wrong or silent), f"{wrong} wrong, {silent} in silence, {captured.calls['replayed']} lent"


@torch.no_grad()
def failed(device: str) -> tuple[bool | None, str]:
    """One size waits for the device where no warm-up sees it, so that its capture is broken when it ends."""
    if device == "cpu":
        return None, "there is nothing to capture on a CPU"

    def flat(x: Tensor) -> list[Tensor]:
        if len(x) == 3:
            torch.cuda.synchronize()
        return [x @ x.T]

    def right(n: int) -> bool:
        x = torch.arange(4.0 * n, device=device).view(n, 4)
        return torch.equal(runs(x)[0], x @ x.T)

    runs = CudaGraphs(flat, limit=8)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        answers = {n: right(n) for n in (2, 3, 5, 3, 2)}
    said = [str(one.message) for one in told if "run without a CUDA graph" in str(one.message)]
    torch.cuda.empty_cache()
    drawn = torch.rand(1000, device=device)
    recorded = sum(recording is not None for recording in runs.recordings.values())
    whole = all(answers.values()) and len(said) == 1 and recorded == 2
    figure = f"{sum(answers.values())} of {len(answers)} sizes right, {recorded} recorded; {'; '.join(said)}"
    return whole and len(drawn.unique()) > 100, figure


@torch.no_grad()
def against_exact(lengths: list[int], device: str) -> tuple[bool | None, str]:
    if device == "cpu":
        return None, "a recorder has no speed and no memory"
    capture_tagger(lengths, device, limit=16)  # kernels that CUDA loads when they are first used count for nobody
    model, buckets = capture_tagger(lengths, device, limit=16)
    exact = CudaGraphs(lambda *given: [model(*given)], limit=REQUESTS)
    torch.cuda.empty_cache()
    free = torch.cuda.mem_get_info()[0]
    for n in sorted(set(lengths), reverse=True):
        exact.recording(request(n, device))
    torch.cuda.empty_cache()
    exact_bytes = free - torch.cuda.mem_get_info()[0]
    inputs = [Inputs(request(n, device)) for n in lengths[:200]]
    buckets_ms, exact_ms = (take_turn(call, inputs, 5, device=device).pass_ms for call in (buckets, exact))
    plan = buckets.plan()
    speed, memory_share = exact_ms / buckets_ms, plan.held_bytes / max(1, exact_bytes)
    padded = f"{len(plan.buckets)} graphs, {plan.padding:.0%} padding"
    took = f"{padded}: {buckets_ms:.3f} ms, {plan.held_bytes / MIB:.1f} MiB"
    beside = f"{len(set(lengths))} exact ones: {exact_ms:.3f} ms, {exact_bytes / MIB:.1f} MiB"
    return (
        speed >= SHARE_OF_SPEED and memory_share <= SHARE_OF_MEMORY,
        f"{speed:.0%} of the speed, {memory_share:.0%} of the memory ({took}; {beside})",
    )
