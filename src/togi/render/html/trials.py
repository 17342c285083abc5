"""The table of all recipes, sortable, each with its details."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from togi.core.quantities import bounds, milliseconds, percent, plural, relative, seconds, significant, size, times
from togi.core.records import ErrorReport, Outcome, Timing, Trial
from togi.render.html.markup import Child, Markup, copyable, definitions, element, join, preformatted
from togi.render.html.pareto import kind
from togi.render.html.sparkline import rounds_line
from togi.render.rows import Row, counts

COLUMNS = {
    "recipe": "recipe",
    "outcome": "outcome",
    "latency": "latency",
    "speedup": "speed-up",
    "error": "error",
    "memory": "memory",
    "cost": "trial took",
}


def trials_table(found: Sequence[Row]) -> Markup:
    """One ``<tbody>`` a recipe, so that sorting moves its details with it."""
    heads = (
        element(
            "th",
            {"scope": "col", "aria-sort": "none", "class": None if name in ("recipe", "outcome") else "number"},
            element("button", {"type": "button", "data-sort": name}, title),
        )
        for name, title in COLUMNS.items()
    )
    head = element("thead", None, element("tr", None, *heads))
    bodies = (_body(row, number) for number, row in enumerate(found))
    return join(_filters(found), element("table", {"id": "trials"}, head, *bodies))


def _filters(found: Sequence[Row]) -> Markup:
    buttons = (
        element(
            "button",
            {"type": "button", "aria-pressed": "true", "data-outcome": outcome.value},
            element("i", {"class": f"dot {_slug(outcome)}"}),
            f"{outcome.value} ",
            element("b", None, str(count)),
        )
        for outcome, count in counts(found).items()
    )
    return element("div", {"class": "filters", "role": "group", "aria-label": "Show outcomes"}, *buttons)


def _body(row: Row, number: int) -> Markup:
    trial = row.trial
    keys = {f"data-{name}": value for name, value in _keys(row).items()}
    name = element(
        "button",
        {"type": "button", "class": "open", "aria-expanded": "false", "aria-controls": f"details-{number}"},
        trial.recipe.label,
    )
    cells = _cells(row)
    main = element(
        "tr",
        {"class": "trial"},
        element("th", {"scope": "row", "data-label": "recipe"}, name, _why(row)),
        *(
            element("td", {"data-label": COLUMNS[column], "class": None if column == "outcome" else "number"}, cell)
            for column, cell in cells.items()
        ),
    )
    details = element("td", {"colspan": str(len(COLUMNS))}, *_details(row))
    attributes = {"id": f"trial-{trial.recipe.id}", "class": kind(row), "data-outcome": trial.outcome.value, **keys}
    return element("tbody", attributes, main, element("tr", {"class": "details", "id": f"details-{number}"}, details))


def _why(row: Row) -> Markup | None:
    """Under the name where numbers do not speak for themselves."""
    return element("small", {"class": "why"}, row.explanation) if row.trial.reason or not row.trial.eligible else None


def _keys(row: Row) -> dict[str, str | None]:
    """What sorting compares; None stands last in either direction."""
    timing, footprint, error = row.trial.timing, row.trial.footprint, row.trial.error
    return {
        "recipe": row.trial.recipe.label,
        "kind": str(list(Outcome).index(row.trial.outcome)),
        "latency": repr(timing.latency_ms.median) if timing else None,
        "speedup": repr(row.speedup_x.median) if row.speedup_x else "1" if row.reference else None,
        "error": repr(error.units) if error else None,
        "memory": str(footprint.total_bytes) if footprint else None,
        "cost": repr(row.trial.cost_s),
    }


def _cells(row: Row) -> dict[str, Child]:
    timing, footprint, error = row.trial.timing, row.trial.footprint, row.trial.error
    speedup = row.speedup_x
    badge = element("span", {"class": f"badge {_slug(row.trial.outcome)} {kind(row)}"}, row.verdict)
    return {
        "outcome": badge,
        "latency": _pair(milliseconds(timing.latency_ms.median), bounds(timing.latency_ms)) if timing else None,
        "speedup": _pair(times(speedup.median), bounds(speedup)) if speedup else "1" if row.reference else None,
        "error": _pair(f"{significant(error.units, 2)} x", relative(error.rmse)) if error else None,
        "memory": _pair(size(footprint.total_bytes), f"{size(footprint.idle_bytes)} idle") if footprint else None,
        "cost": seconds(row.trial.cost_s) if row.trial.cost_s else None,
    }


def _pair(first: str, second: str) -> Markup:
    return join(first, element("small", None, second))


def _details(row: Row) -> Iterator[Markup]:
    trial = row.trial
    yield element("p", None, row.explanation)
    if trial.mend:
        yield copyable(trial.mend)
    yield from _blocks("What it did", trial.notes)
    yield element("div", {"class": "columns"}, *_columns(row))
    for title, text in (("Traceback", trial.traceback), ("The child's last output", trial.output)):
        if text:
            yield join(element("h4", None, title), preformatted(text))


def _columns(row: Row) -> Iterator[Markup]:
    trial = row.trial
    if trial.timing:
        yield _titled("Measurement", rounds_line(trial.timing), _measurement(trial.timing))
    if trial.error:
        yield _titled("Error", _error(trial.error))
    yield _titled("Trial", _trial(trial, row.earlier))


def _titled(title: str, *children: Child) -> Markup:
    return element("section", None, element("h4", None, title), *children)


def _measurement(timing: Timing) -> Markup:
    noise = timing.noise
    return definitions(
        {
            "first call": milliseconds(timing.first_call_ms) if timing.first_call_ms else None,
            "building": seconds(timing.build_s) if timing.build_s else None,
            "spread of times": percent(noise.spread),
            "waiting for a core": percent(noise.waiting),
            "stolen by the host": percent(noise.stolen),
            "cores busy elsewhere": significant(noise.neighbours, 2),
            "noise": "; ".join(noise.warnings),
        }
    )


def _error(error: ErrorReport) -> Markup:
    metric = (
        f"{significant(error.metric)}, the original {significant(error.metric_original or 0)}" if error.metric else None
    )
    leaves = {
        leaf.name: f"{significant(leaf.units, 2)} x eager's own, at most {relative(leaf.max_abs)}"
        for leaf in error.leaves
    }
    return definitions(
        {
            "verdict": "faithful" if error.faithful else "not faithful",
            "problems": "; ".join(error.problems),
            "relative error": f"{relative(error.rmse)} (largest {relative(error.max_abs)})",
            "metric": metric,
            **leaves,
        }
    )


def _trial(trial: Trial, earlier: Sequence[Trial]) -> Markup:
    again = [f"{milliseconds(t.timing.latency_ms.median) if t.timing else t.outcome.value}" for t in earlier]
    footprint = trial.footprint
    return definitions(
        {
            "recipe": element("code", None, trial.recipe.id),
            "ended in": trial.stage if trial.outcome is not Outcome.OK else None,
            "idle": size(footprint.idle_bytes) if footprint else None,
            "peak above idle": size(footprint.peak_bytes) if footprint else None,
            "allocator's peak": size(footprint.allocator_peak_bytes)
            if footprint and footprint.allocator_peak_bytes is not None
            else None,
            "tried before": f"{plural(len(again), 'time')}: {', '.join(again)}" if again else None,
            **{f"{phase} took": seconds(spent) for phase, spent in trial.phases_s.items()},
        }
    )


def _blocks(title: str, sentences: Iterable[str]) -> Iterator[Markup]:
    items = [element("li", None, sentence) for sentence in sentences]
    if items:
        yield join(element("h4", None, title), element("ul", None, *items))


def _slug(outcome: Outcome) -> str:
    return outcome.value.replace(" ", "-")
