"""A plan that makes a training step or an inference pass fit (``togi fit``) as text for a terminal."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from togi.core.quantities import milliseconds, percent, plural, seconds, size
from togi.core.records import Interval
from togi.decide.faster import MARGIN, WITHIN_PROCESS, Speed
from togi.footprint.fit.policies import Action, Chunk, SavePolicy
from togi.footprint.fit.result import FitResult
from togi.render.terminal import bullets, clean, stack, table

_ACTIONS = {
    Action.RECOMPUTE: "recomputed:",
    Action.KEEP: "kept besides:",
    Action.BITS: "kept as bits:",
    Action.NARROW: "kept in bfloat16:",
}
_KINDS = 3


def fit_text(result: FitResult, *, out: str | None = None, limit: int = 12) -> RenderableType:
    """The verdict with its proof, what the plan changes, the front of peak against time, and how to apply the plan."""
    plan = result.plan
    changes = bool(plan.policies or plan.chunks or plan.micro_batches > 1)
    return stack(
        Group(_verdict(result, changes), *(Text(f"  {line}") for line in _proof(result))),
        _policies(plan.policies, limit) if plan.policies else None,
        _chunks(plan.chunks, limit) if plan.chunks else None,
        _front(result) if len(result.front) > 1 else None,
        Text("\n".join(_next(result, out)), "dim") if changes and result.fits else None,
        bullets(result.notes),
    )


def _verdict(result: FitResult, changes: bool) -> Text:
    peak, budget, before = (size(result.chosen.peak_bytes), size(result.budget_bytes), size(result.plain.peak_bytes))
    if not result.fits:
        text = Text(f"Does not fit {budget}: ", style="bold red")
        floor = "the program holds with nothing kept for the backward pass" if result.train else "its tensors take"
        other = "another optimizer " if result.train else ""
        text.append(
            f"the least that was found is {peak} (unmodified: {before}){_cost(result, changes)}. "
            f"No plan goes below {size(result.floor_bytes)}, which {floor}: parameters and inputs included. A smaller "
            f"batch (--batch), {other}or a narrower dtype (--dtype bf16) does."
        )
        return text
    if not changes:
        return Text(f"Fits as it is: {peak} of {budget}", style="bold green")
    parts = f" in {result.plan.micro_batches} micro-batches" if result.plan.micro_batches > 1 else ""
    text = Text(f"Fits {budget}: ", style="bold green")
    return text.append(f"peak {peak} instead of {before}{parts}{_cost(result, changes)}")


def _cost(result: FitResult, changes: bool) -> str:
    before, after = result.plain.step_ms, result.chosen.step_ms
    if not before or not after or not changes:
        return ""
    what = "step" if result.train else "pass"
    longer = f" ({_longer(result.speedup_x)})" if result.speedup_x is not None else ""
    return f", a {what} takes {milliseconds(after)} instead of {milliseconds(before)}{longer}"


def _longer(speedup_x: Interval) -> str:
    """In words, as far as it is proven: a ratio such as ``1.32x`` means faster wherever togi prints one."""
    if not speedup_x.has_ends or speedup_x.low <= 0:
        return "too few rounds to tell how much longer"
    least, most = 1 / speedup_x.high - 1, 1 / speedup_x.low - 1
    match WITHIN_PROCESS.speed(speedup_x):
        case Speed.SLOWER:
            return f"{percent(1 / speedup_x.median - 1)} longer: {percent(least)} to {percent(most)}"
        case Speed.FASTER:
            return f"{percent(1 - 1 / speedup_x.median)} shorter: {percent(-most)} to {percent(-least)}"
        case Speed.SAME:
            return f"no longer by more than {percent(MARGIN)}"
        case _:
            return f"cannot tell whether that is longer: {_signed(least)} to {_signed(most)}"


def _signed(share: float) -> str:
    return f"{'-' if share < 0 else '+'}{percent(abs(share))}"


def _proof(result: FitResult) -> Iterator[str]:
    proof = result.proof
    if not result.train:
        equal = f"{plural(proof.outputs, 'output')} equal "
        rounding = f"up to rounding: at most {proof.units:.2g} times the unmodified model's own error against float64"
        yield equal + ("to the bit" if proof.exact else rounding)
    elif proof.exact:
        yield f"loss and {plural(proof.gradients, 'gradient')} equal the unmodified model's to the bit"
    elif proof.within_noise:
        yield (
            f"loss and {plural(proof.gradients, 'gradient')} equal the unmodified model's up to the rounding by which "
            f"its own runs differ: at most {proof.worst_relative:.1e} of a gradient's root mean square"
        )
    else:
        worst = f"by up to {proof.worst_relative:.1e} of their root mean square"
        yield f"approximate: gradients differ {worst} ({'; '.join(map(clean, proof.differences[:2]))})"
    tried = "forecast, the chosen one measured" if result.train else "simulated, the best measured"
    yield f"{plural(result.plans_tried, 'plan')} {tried}, in {seconds(result.planning_s)}"


def _policies(policies: Sequence[SavePolicy], limit: int) -> Table:
    """List them by module; modules are put together by their names until they are few enough to read."""
    groups = _together(policies, limit)
    grid = table("module", "saved tensors", "bytes", "repeats", left=("saved tensors",), wide=False)
    for name, group in sorted(groups.items(), key=lambda item: -sum(policy.bytes for policy in item[1])):
        cost = sum(policy.recompute_ms for policy in group)
        grid.add_row(clean(name or "(outermost)"), _what(group), size(sum(t.bytes for t in group)), milliseconds(cost))
    return grid


def _together(policies: Sequence[SavePolicy], limit: int) -> dict[str, list[SavePolicy]]:
    depth = max((policy.module.count(".") + 1 for policy in policies), default=1)
    while True:
        groups: dict[str, list[SavePolicy]] = {}
        for one in policies:
            groups.setdefault(".".join(one.module.split(".")[:depth]), []).append(one)
        if len(groups) <= limit or depth == 1:
            return groups
        depth -= 1


def _what(group: Sequence[SavePolicy]) -> str:
    parts = []
    for action, words in _ACTIONS.items():
        kinds = Counter(_operator(policy.value) for policy in group if policy.action is action)
        if kinds:
            named = [f"{count} {kind}" for kind, count in kinds.most_common(_KINDS)]
            others = kinds.total() - sum(count for _, count in kinds.most_common(_KINDS))
            parts.append(f"{words} {', '.join(named)}{f' and {others} more' if others else ''}")
    return "; ".join(parts)


def _operator(value: str) -> str:
    """``native_batch_norm`` of ``aten.native_batch_norm.default#3``."""
    return clean(value.partition("#")[0].partition(".")[2].partition(".")[0])


def _chunks(chunks: Sequence[Chunk], limit: int) -> Table:
    grid = table("module", "cut along", "at a time", "parts", left=("cut along",), wide=False)
    for names, chunk in _alike(chunks)[:limit]:
        more = f" and {len(names) - 1} more like it" if len(names) > 1 else ""
        grid.add_row(clean(chunk.label + more), clean(chunk.where), str(chunk.size), str(chunk.parts))
    if others := _alike(chunks)[limit:]:
        grid.add_row(f"and {sum(len(names) for names, _ in others)} more", "", "", "", style="dim")
    return grid


def _alike(chunks: Sequence[Chunk]) -> list[tuple[list[str], Chunk]]:
    """The modules that are cut in the same way, with the first of them."""
    groups: dict[str, tuple[list[str], Chunk]] = {}
    for chunk in chunks:
        key = chunk.model_copy(update={"module": chunk.module.rpartition(".")[2] if "." in chunk.module else ""})
        groups.setdefault(repr(key), ([], chunk))[0].append(chunk.module)
    return list(groups.values())


def _front(result: FitResult) -> Table:
    headings = ("peak", "repeats", "results", "") if result.train else ("peak", "pass", "modules cut", "")
    grid = table(*headings, wide=False)
    for point in sorted({*result.front}, key=lambda point: -point.peak_bytes):
        fits = "fits" if point.peak_bytes <= result.budget_bytes else ""
        cost_ms = point.recompute_ms if result.train else point.step_ms
        cost = milliseconds(cost_ms) if cost_ms is not None else "not run"
        grid.add_row(size(point.peak_bytes), cost, str(point.changes), fits)
    return grid


def _next(result: FitResult, out: str | None) -> Iterator[str]:
    if out is None:
        call = "togi.fit(...)" if result.train else "togi.fit(..., train=False)"
        yield f"--out plan.json keeps the plan; {call}.plan.apply(model) does the same from Python"
        return
    yield f"togi.Plan.load({out!r}).apply(model)      # plan.remove() undoes it"
    if result.plan.micro_batches > 1:
        yield "plan.backward(model, sample, step)      # in place of loss.backward(): runs the parts"
