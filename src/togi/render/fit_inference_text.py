"""A plan that makes an inference pass fit (``togi fit --inference``) as text for a terminal."""

from __future__ import annotations

from collections.abc import Sequence

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from togi.core.quantities import milliseconds, plural, seconds, size, times
from togi.footprint.fit.chunk import Chunk
from togi.footprint.fit.record import FitResult
from togi.render.terminal import clean


def fit_inference_text(result: FitResult, *, out: str | None = None, limit: int = 12) -> RenderableType:
    """The verdict with its proof, what is cut, the front of peak against time, and how to apply the plan."""
    parts: list[RenderableType] = [_verdict(result), Text(f"  {_proof(result)}"), Text(f"  {_effort(result)}")]
    if result.plan.chunks:
        parts += [Text(), _chunks(result.plan.chunks, limit)]
    if len(result.front) > 1:
        parts += [Text(), _front(result)]
    if result.plan.chunks and result.fits:
        parts += [Text(), _next(out)]
    if result.notes:
        parts += [Text(), *(Text(f"- {clean(note)}") for note in result.notes)]
    return Group(*parts)


def _verdict(result: FitResult) -> Text:
    peak, budget, before = (size(result.chosen.peak_bytes), size(result.budget_bytes), size(result.plain.peak_bytes))
    if not result.fits:
        text = Text(f"Does not fit {budget}: ", style="bold red")
        return text.append(
            f"the least that was found is {peak} (unmodified: {before}){_cost(result)}. "
            f"{size(result.static_bytes)} of it no plan lowers: parameters, inputs and outputs. A smaller batch "
            "(--batch) or a narrower dtype (--dtype bf16) does."
        )
    if not result.plan.chunks:
        return Text(f"Fits as it is: {peak} of {budget}", style="bold green")
    text = Text(f"Fits {budget}: ", style="bold green")
    return text.append(f"peak {peak} instead of {before}{_cost(result)}")


def _cost(result: FitResult) -> str:
    before, after = result.plain.step_ms, result.chosen.step_ms
    if not before or not after or not result.plan.chunks:
        return ""
    return f", a pass takes {milliseconds(after)} instead of {milliseconds(before)} ({times(after / before)})"


def _proof(result: FitResult) -> str:
    outputs = plural(result.proof.outputs, "output")
    if result.proof.exact:
        return f"{outputs} equal to the bit"
    return (
        f"{outputs} equal up to rounding: at most {result.proof.units:.2g} times the unmodified model's own error "
        "against float64"
    )


def _effort(result: FitResult) -> str:
    return f"{plural(result.plans_tried, 'plan')} simulated, the best measured, in {seconds(result.planning_s)}"


def _chunks(chunks: Sequence[Chunk], limit: int) -> Table:
    table = _table("module", "cut along", "at a time", "parts")
    for names, one in _alike(chunks)[:limit]:
        more = f" and {len(names) - 1} more like it" if len(names) > 1 else ""
        table.add_row(clean(one.label + more), clean(one.where), str(one.size), str(one.parts))
    if rest := _alike(chunks)[limit:]:
        table.add_row(f"and {sum(len(names) for names, _ in rest)} more", "", "", "", style="dim")
    return table


def _alike(chunks: Sequence[Chunk]) -> list[tuple[list[str], Chunk]]:
    """The modules that are cut in the same way, with the first of them."""
    groups: dict[str, tuple[list[str], Chunk]] = {}
    for one in chunks:
        key = one.model_copy(update={"module": one.module.rpartition(".")[2] if "." in one.module else ""})
        groups.setdefault(repr(key), ([], one))[0].append(one.module)
    return list(groups.values())


def _front(result: FitResult) -> Table:
    table = _table("peak", "pass", "modules cut", "")
    for point in sorted({*result.front}, key=lambda point: -point.peak_bytes):
        time = milliseconds(point.step_ms) if point.step_ms is not None else "not run"
        fits = "fits" if point.peak_bytes <= result.budget_bytes else ""
        table.add_row(size(point.peak_bytes), time, str(point.treatments), fits)
    return table


def _next(out: str | None) -> Text:
    if out is None:
        return Text("--out plan.json keeps the plan; togi.fit(..., train=False).plan.apply(model) applies it", "dim")
    return Text(f"togi.Plan.load({out!r}).apply(model)      # plan.remove() undoes it", "dim")


def _table(*headings: str) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, header_style="bold")
    for at, heading in enumerate(headings):
        table.add_column(heading, justify="left" if at == 0 or heading == "cut along" else "right")
    return table
