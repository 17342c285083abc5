"""The page of a study: headline, figures, every recipe with its details, machine, how to repeat it."""

from __future__ import annotations

import json
from collections.abc import Sequence

from togi.core.choices import Objective
from togi.core.records import Outcome, Study, TensorFacts
from togi.decide.faster import BETWEEN_PROCESSES
from togi.render.attribution import effects
from togi.render.gains import gains, how_soon, pays_off
from togi.render.html.charts import errors, kind, rounds, speedups, staircase, trade_off
from togi.render.html.document import document, fragment
from togi.render.next_steps import has_files, how_to_load, next_steps
from togi.render.part_rows import part_rows
from togi.render.rows import (
    Row,
    chosen_of,
    counts,
    decisions,
    left,
    looks_faster,
    objective_of,
    rows,
    trade_offs,
    what_is_timed,
    what_to_know,
)
from togi.study.comparison import Comparison

TIME_OF = {
    Objective.LATENCY: "time per sample",
    Objective.END_TO_END: "time per sample, with the copies",
    Objective.THROUGHPUT: "time per request",
    Objective.FIRST_CALL: "time to the first answer",
}
SHOWN_MODULES = 8
SHOWN_IN_NOTEBOOK = 8


def study_html(study: Study) -> str:
    """The study as one document. The same bytes for the same study."""
    found = rows(study)
    chosen, reference = _chosen_and_reference(found)
    modules = sorted(study.facts.modules.items(), key=lambda item: (-item[1], item[0]))[:SHOWN_MODULES]
    return document(
        "study.html",
        title=study.subject,
        script="study.js",
        study=study,
        facts=study.facts,
        machine=study.facts.machine,
        rows=found,
        chosen=chosen,
        reference=reference,
        counts={outcome.value: number for outcome, number in counts(found).items()},
        time_of=TIME_OF[objective_of(study)],
        notes=[*what_is_timed(study), *what_to_know(study, found), *filter(None, [pays_off(study)]), *left(study)],
        parts=part_rows(study),
        trade_off=trade_off(found),
        staircase=staircase(gains(study)),
        how_soon=how_soon(gains(study)),
        looks_faster=(*trade_offs(study, found), *looks_faster(study, found)),
        speedups=speedups(found),
        errors=errors(effects(study.trials)),
        band_x=BETWEEN_PROCESSES.band_x,
        process_bias=BETWEEN_PROCESSES.process_bias,
        margin=BETWEEN_PROCESSES.margin,
        kind=kind,
        decisions=decisions,
        rounds=rounds,
        sort_keys=_sort_keys,
        modules=", ".join(f"{number} {name}" for name, number in modules),
        tensors=_tensors,
        settings={name: _setting(value) for name, value in study.settings.items()},
        how_to_load=(
            how_to_load("NAME.togi", study.best, own_loop=study.facts.own_loop)
            if study.best and has_files(study)
            else None
        ),
        next_steps=tuple(map(str, next_steps(study))),
    )


def study_fragment(study: Study) -> str:
    """The result for a notebook: a table, and the recipes by speed and memory with the best trade-offs."""
    found = rows(study)
    chosen, reference = _chosen_and_reference(found)
    ran = [row for row in found if row.trial.eligible]
    shown = [row for number, row in enumerate(ran) if number < SHOWN_IN_NOTEBOOK or row in (chosen, reference)]
    more = len(found) - len(shown)
    chart = trade_off(found) if len(ran) > 1 else None
    return fragment("notebook_study.html", study=study, rows=shown, trade_off=chart, more=more)


def comparison_fragment(comparison: Comparison) -> str:
    """The result of ``togi.bench`` as a table for a notebook."""
    return fragment("notebook_comparison.html", comparison=comparison)


def _chosen_and_reference(found: Sequence[Row]) -> tuple[Row | None, Row | None]:
    return chosen_of(found), next((row for row in found if row.reference), None)


def _sort_keys(row: Row) -> dict[str, str]:
    """The values that sorting compares, as data attributes; what has none stands last in either direction."""
    timing, footprint, error = row.trial.timing, row.trial.footprint, row.trial.error
    keys = {
        "recipe": row.trial.recipe.label,
        "kind": str(list(Outcome).index(row.trial.outcome)),
        "latency": repr(timing.latency_ms.median) if timing else None,
        "speedup": repr(row.speedup_x.median) if row.speedup_x else "1" if row.reference else None,
        "error": repr(error.units) if error else None,
        "memory": str(footprint.total_bytes) if footprint else None,
        "cost": repr(row.trial.cost_s),
    }
    return {name: value for name, value in keys.items() if value is not None}


def _tensors(tensors: Sequence[TensorFacts]) -> str:
    def shape(tensor: TensorFacts) -> str:
        return " x ".join("any" if size is None else str(size) for size in tensor.shape) or "scalar"

    return "; ".join(f"{tensor.name}: {tensor.dtype} {shape(tensor)}" for tensor in tensors)


def _setting(value: object) -> str:
    if value is None or value == [] or value == ():
        return "none"
    return value if isinstance(value, str) else json.dumps(value, default=str, sort_keys=True)
