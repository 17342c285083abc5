"""Kinds of values that engines compute otherwise than torch, each with a small model that shows it.

``answers`` forces every model through one engine and asks for values beyond its sample, as a study does where it saves.
``togi doctor --engines`` prints what it found; ``python -m togi.techniques.kinds ENGINE`` is its process, since a
backend may crash. A new kind is one row here.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from togi.core.quantities import first_line
from togi.core.records import Record
from togi.graph.candidate import Candidate
from togi.machine.describe import machine
from togi.subject.inputs import Inputs
from togi.techniques.base import Applies, Technique
from togi.techniques.conformance import candidate_of
from togi.techniques.registry import technique
from togi.verify.beyond import reach_of
from togi.verify.derived_inputs import variants
from togi.verify.original import Original
from togi.verify.reference import make_truth
from togi.verify.verdict import verify

_SEED = 0


@dataclass(frozen=True)
class CallKind:
    """``sample`` shows nothing of it, ``later`` does."""

    name: str
    """What differs, in a few words."""
    forward: Callable[..., Tensor]
    sample: tuple[Tensor, ...]
    later: tuple[Tensor, ...]


class KindResult(Record):
    """The answer of one engine to one kind."""

    kind: str
    end: str
    """``right``; ``bounded``: calls with such values are refused; ``refused``: the engine is not used for such a
    model; ``wrong``: it answers calls otherwise than the original."""
    how: str = ""


def kinds() -> list[CallKind]:
    drawn = torch.Generator().manual_seed(_SEED)
    x = torch.randn(4, 16, generator=drawn)
    ids = torch.randint(0, 1000, (4, 16), generator=drawn)
    table = torch.randn(13, 4, generator=drawn)
    pixels = torch.randint(100, 150, (4, 16), dtype=torch.uint8, generator=drawn)
    shown = torch.ones(4, 4, dtype=torch.bool)
    times = 1.76e9 + 1e5 * torch.rand(4, 16, dtype=torch.float64, generator=drawn)
    large, some_nan = ids * (1 << 33) + 5, x.where(x < 1, torch.nan)
    quotients = 10 / torch.arange(1.0, 65.0).reshape(4, 16)
    multiples = 7 * (ids + (1 << 22)) - ids % 2
    return [
        CallKind("integers beyond 32 bits", lambda i: table[i.remainder(13)].sum(1), (ids,), (large,)),
        CallKind("products of integers", lambda i: table[(i * 2654435761).remainder(13)].sum(1), (ids,), (large,)),
        CallKind("negative remainders", lambda i: i.remainder(13).float(), (ids,), (ids - 500,)),
        CallKind("negative divisions", lambda i: i.div(7, rounding_mode="floor").float(), (ids,), (ids - 500,)),
        CallKind("quotients of large integers", lambda i: i.div(7, rounding_mode="floor") & 255, (ids,), (multiples,)),
        CallKind("shifts of negative integers", lambda i: (i >> 3).float(), (ids,), (ids - 500,)),
        CallKind("negative indices", lambda i: table[i % 13 - (i < 0) * 13].sum(1), (ids,), (ids - 500,)),
        CallKind("float64", lambda t: t + F.softplus(t - t.floor()), (times,), (times + 1,)),
        CallKind("large floats as integers", lambda v: (v * 10).long(), (x,), (x * 1e9,)),
        CallKind("exact quotients as integers", lambda v: (10 / v).long(), (x,), (quotients,)),
        CallKind("equal sides of a comparison", lambda v: (v / 3 * 10 >= 10).float(), (x,), (3 * x.round(),)),
        CallKind("wrap-around of uint8", lambda p: (p - 60).float() / 255, (pixels,), (pixels - 90,)),
        CallKind("NaN in relu", lambda v: torch.relu(v).sum(1), (x,), (some_nan,)),
        CallKind("NaN in the largest", lambda v: v.amax(1), (x,), (some_nan,)),
        CallKind("NaN in clamp", lambda v: v.clamp(-1, 1).sum(1), (x,), (some_nan,)),
        CallKind("NaN in pooling", lambda v: F.max_pool1d(v[None], 2)[0], (x,), (some_nan,)),
        CallKind("NaN in comparisons", lambda v: torch.where(v > 0, v, v * 2), (x,), (some_nan,)),
        CallKind("NaN in sorting", lambda v: v.sort(1).values, (x,), (some_nan,)),
        CallKind("NaN in argmax", lambda v: v.argmax(1), (x,), (some_nan,)),
        CallKind("infinity", lambda v: v.softmax(1), (x,), (x.where(x < 1, torch.inf),)),
        CallKind("equal values in argmax", lambda v: v.argmax(1), (x,), (x.round(),)),
        CallKind("equal values in top-k", lambda v: v.topk(3, 1).indices, (x,), (x.round(),)),
        CallKind("equal values in sorting", lambda v: v.argsort(dim=1, stable=True), (x,), (x.round(),)),
        CallKind("halves", torch.round, (x,), (x.round() + 0.5,)),
        CallKind(
            "a variance of zero", lambda v: F.batch_norm(v, None, None, training=True), (x,), (torch.ones(4, 16),)
        ),
        CallKind("a mask that comes later", _attention, (x, shown), (x, shown.tril())),
        CallKind("a mask that hides all", _attention, (x, shown.tril()), (x, shown.tril(-1))),
        CallKind("nothing is found", _found, (x,), (-x.abs(),)),
        CallKind("a mean of nothing", lambda v: v[v > 0.5].mean(), (x,), (-x.abs(),)),
        CallKind("a deviation of nothing", lambda v: v[v > 0.5].std(), (x,), (-x.abs(),)),
        CallKind("any of nothing", lambda v: (v[v > 0.5] > 0.6).any().float(), (x,), (-x.abs(),)),
    ]


def _attention(x: Tensor, mask: Tensor) -> Tensor:
    return (x @ x.T).masked_fill(~mask, -torch.inf).softmax(-1) @ x


def _found(x: Tensor) -> Tensor:
    chosen = x[x > 0.5]
    return x - 1.0 if chosen.numel() == 0 else x * chosen.mean()


class _Model(nn.Module):
    def __init__(self, forward: Callable[..., Tensor]) -> None:
        super().__init__()
        self.function = forward

    def forward(self, *inputs: Tensor) -> Tensor:
        return self.function(*inputs)


def answers(engine: str) -> Iterator[KindResult]:
    """One for each kind, with the first options of the engine. Kinds in which it crashes end the process."""
    here = machine()
    for kind in kinds():
        candidate = candidate_of(_Model(kind.forward), [kind.sample])
        facts = candidate.facts.model_copy(update={"machine": here})
        yield answer(technique(engine), kind, candidate.with_(facts=facts))


def answer(engine: Technique, kind: CallKind, start: Candidate) -> KindResult:
    decision = engine.applies(start.facts)
    if not isinstance(decision, Applies):
        return KindResult(kind=kind.name, end="refused", how=decision.reason)
    options = dict(engine.options(start.facts)[0])
    try:
        call = engine.apply(engine.configure(start, options), options).runnable()
    except Exception as error:  # Refused, or foreign code: a backend that fails
        return KindResult(kind=kind.name, end="refused", how=first_line(error))
    if problem := _wrong_on_the_sample(call, start):
        return KindResult(kind=kind.name, end="refused", how=f"verification: {problem}")
    reach = reach_of(call, Original(start.module, start.signature, _SEED), start.samples)
    if reach.problems:
        return KindResult(kind=kind.name, end="refused", how=f"verification: {reach.problems[0]}")
    signature = start.signature.within(reach.domains)
    if signature.unmet(Inputs(kind.later)):
        return KindResult(kind=kind.name, end="bounded", how=" and ".join(signature.domains_in_words()))
    return _compared(call, kind)


def _wrong_on_the_sample(call: Callable[..., Any], start: Candidate) -> str:
    inputs = variants(start.samples, start.signature, _SEED)
    truth = make_truth(start.module, inputs, start.signature, seed=_SEED, samples=len(start.samples))
    report = verify(call, truth, inputs, start.signature, seed=_SEED)
    if report.faithful:
        return ""
    return report.problems[0] if report.problems else f"{report.units:,.0f} x plain eager's own error"


def _compared(call: Callable[..., Any], kind: CallKind) -> KindResult:
    with torch.no_grad():
        expected = kind.forward(*kind.later)
        try:
            output = call(*kind.later)
        except Exception as error:  # foreign code: an engine that refuses answers nothing wrong
            return KindResult(kind=kind.name, end="refused", how=first_line(error))
    same = torch.allclose(output.double(), expected.double(), rtol=1e-3, atol=1e-3, equal_nan=True)
    return KindResult(kind=kind.name, end="right" if same else "wrong")


def main(arguments: Sequence[str]) -> None:
    for kind_answer in answers(*arguments):
        print(json.dumps(kind_answer.model_dump()), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
