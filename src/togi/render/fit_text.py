"""A plan that makes a training step fit (``togi fit``) as text for a terminal."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from togi.core.quantities import milliseconds, plural, seconds, size, times
from togi.footprint.fit.plan import Action, Treatment
from togi.footprint.fit.record import FitResult, Point
from togi.render.fit_inference_text import fit_inference_text
from togi.render.terminal import clean

_ACTIONS = {
    Action.RECOMPUTE: "recomputed:",
    Action.KEEP: "kept besides:",
    Action.BITS: "kept as bits:",
    Action.NARROW: "kept in bfloat16:",
}
_KINDS = 3


def fit_text(result: FitResult, *, out: str | None = None, limit: int = 12) -> RenderableType:
    """The verdict with its proof, the treatments, the front of peak against time, and how to apply the plan."""
    if not result.train:
        return fit_inference_text(result, out=out, limit=limit)
    parts: list[RenderableType] = [_verdict(result), Text(f"  {_proof(result)}"), Text(f"  {_effort(result)}")]
    if result.plan.treatments:
        parts += [Text(), _treatments(result.plan.treatments, limit)]
    if len(result.front) > 1:
        parts += [Text(), _front(result)]
    if (result.plan.treatments or result.plan.micro_batches > 1) and result.fits:
        parts += [Text(), _next(out, result.plan.micro_batches)]
    return Group(*parts, *((Text(), *(Text(f"- {clean(note)}") for note in result.notes)) if result.notes else ()))


def _verdict(result: FitResult) -> Text:
    peak, budget = size(result.chosen.peak_bytes), size(result.budget_bytes)
    before = size(result.plain.peak_bytes)
    if not result.fits:
        text = Text(f"Does not fit {budget}: ", style="bold red")
        text.append(f"the least that was found is {peak} (unmodified: {before}){_cost(result)}. ")
        return text.append(
            f"{size(result.static_bytes)} of it no plan lowers: parameters, gradients, inputs, optimizer state. "
            "A smaller batch (--batch), another optimizer or a narrower dtype (--dtype bf16) does."
        )
    if not result.plan.treatments and result.plan.micro_batches == 1:
        return Text(f"Fits as it is: {peak} of {budget}", style="bold green")
    text = Text(f"Fits {budget}: ", style="bold green")
    parts = f" in {result.plan.micro_batches} micro-batches" if result.plan.micro_batches > 1 else ""
    return text.append(f"peak {peak} instead of {before}{parts}{_cost(result)}")


def _cost(result: FitResult) -> str:
    before, after = result.plain.step_ms, result.chosen.step_ms
    if not before or not after:
        return ""
    return f", a step takes {milliseconds(after)} instead of {milliseconds(before)} ({times(after / before)})"


def _proof(result: FitResult) -> str:
    proof = result.proof
    if proof.exact:
        return f"loss and {plural(proof.gradients, 'gradient')} equal the unmodified model's to the bit"
    return (
        f"approximate: gradients differ by up to {proof.worst_relative:.1e} of their root mean square "
        f"({'; '.join(clean(one) for one in proof.differences[:2])})"
    )


def _effort(result: FitResult) -> str:
    return f"{plural(result.plans_tried, 'plan')} forecast, the chosen one measured, in {seconds(result.planning_s)}"


def _treatments(treatments: Sequence[Treatment], limit: int) -> Table:
    """By module; modules are put together by their names until they are few enough to read."""
    groups = _together(treatments, limit)
    table = _table("module", "treatment", "bytes", "repeats")
    for name, group in sorted(groups.items(), key=lambda item: -sum(one.bytes for one in item[1])):
        cost = sum(one.recompute_ms for one in group)
        table.add_row(clean(name or "(outermost)"), _what(group), size(sum(t.bytes for t in group)), milliseconds(cost))
    return table


def _together(treatments: Sequence[Treatment], limit: int) -> dict[str, list[Treatment]]:
    depth = max((one.module.count(".") + 1 for one in treatments), default=1)
    while True:
        groups: dict[str, list[Treatment]] = {}
        for one in treatments:
            groups.setdefault(".".join(one.module.split(".")[:depth]), []).append(one)
        if len(groups) <= limit or depth == 1:
            return groups
        depth -= 1


def _what(group: Sequence[Treatment]) -> str:
    said = []
    for action, words in _ACTIONS.items():
        kinds = Counter(_operator(one.value) for one in group if one.action is action)
        if kinds:
            named = [f"{count} {kind}" for kind, count in kinds.most_common(_KINDS)]
            others = kinds.total() - sum(count for _, count in kinds.most_common(_KINDS))
            said.append(f"{words} {', '.join(named)}{f' and {others} more' if others else ''}")
    return "; ".join(said)


def _operator(value: str) -> str:
    """``native_batch_norm`` of ``aten.native_batch_norm.default#3``."""
    return clean(value.partition("#")[0].partition(".")[2].partition(".")[0])


def _front(result: FitResult) -> Table:
    table = _table("peak", "repeats", "results", "")
    points: Iterable[Point] = sorted({*result.front}, key=lambda point: -point.peak_bytes)
    for point in points:
        fits = "fits" if point.peak_bytes <= result.budget_bytes else ""
        table.add_row(size(point.peak_bytes), milliseconds(point.recompute_ms), str(point.treatments), fits)
    return table


def _next(out: str | None, micro_batches: int) -> Text:
    if out is None:
        return Text("--out plan.json keeps the plan; togi.fit(...).plan.apply(model) does the same from Python", "dim")
    text = f"togi.Plan.load({out!r}).apply(model)      # plan.remove() undoes it"
    if micro_batches > 1:
        text += "\nplan.backward(model, sample, step)      # in place of loss.backward(): runs the parts"
    return Text(text, "dim")


def _table(*headings: str) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, header_style="bold")
    for at, heading in enumerate(headings):
        table.add_column(heading, justify="left" if at == 0 or heading == "treatment" else "right")
    return table
