"""The documented JSON form of studies, comparisons, fleets, findings (``docs/commands.md``). Plain JSON: no NaN, no
Infinity."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Sequence
from typing import Any

from togi.core.printable import escaped
from togi.core.records import SCHEMA_VERSION, Recipe, Study, Trial
from togi.decide.break_even import break_even
from togi.decide.gate import FINDING, Case, exit_code
from togi.fleet.answer import Fleet
from togi.lint.finding import CheckResult
from togi.render.attribution import Effect, effects
from togi.render.findings.text import counts
from togi.render.next_steps import next_steps
from togi.render.rows import Row, rows, warnings
from togi.script.records import ServedModule, TunedModule
from togi.script.report import ScriptReport
from togi.study.comparison import Comparison, Verification
from togi.study.price_records import PricedRecipe, PriceList


def price_list_json(prices: PriceList) -> dict[str, Any]:
    """All prices, in the order of the table."""
    facts = prices.facts.model_dump()
    content = {
        "schema_version": SCHEMA_VERSION,
        "subject": prices.subject,
        "measure": prices.measure,
        "metric": prices.metric,
        "samples": prices.samples,
        "prices": [_price(price) for price in prices.prices],
        "all_in_8_bits": None if prices.whole is None else _price(prices.whole),
        "kinds": [{"kind": k.kind, "alone": _price(k.alone), "kept": _price(k.kept)} for k in prices.kinds],
        "layers": None if prices.layers is None else prices.layers.model_dump(),
        "sensitive": None if prices.sensitive is None else prices.sensitive.kind,
        "command": prices.command,
        "took_s": prices.took_s,
        "notes": list(prices.notes),
        "machine": facts.pop("machine"),
        "facts": facts,
    }
    return _document("precision", content)


def _price(price: PricedRecipe) -> dict[str, Any]:
    return price.model_dump() | {"recipe": _recipe(price.recipe)}


def study_json(study: Study) -> dict[str, Any]:
    """The whole study: facts, settings, every trial in the order they ran, the choice."""
    seen = {id(row.trial): row for row in rows(study)}
    facts = study.facts.model_dump()
    machine = facts.pop("machine")
    content = {
        "schema_version": SCHEMA_VERSION,
        "id": study.id,
        "subject": study.subject,
        "started": study.started,
        "command": study.command,
        "verdict": study.verdict,
        "break_even": None if (even := break_even(study)) is None else even.model_dump(),
        "best": study.best.id if study.best else None,
        "reference": study.reference.recipe.id if study.reference else None,
        "finalists": [recipe.id for recipe in study.finalists],
        "trials": [_trial(trial, seen.get(id(trial))) for trial in study.trials],
        "calibration": study.calibration,
        "left_out": study.left_out,
        "techniques": [_effect(effect) for effect in effects(study.trials)],
        "untried": [technique.model_dump() for technique in study.untried],
        "next": [{"type": step.type, "command": step.command, "brings": step.brings} for step in next_steps(study)],
        "warnings": warnings(study),
        "facts": facts,
        "machine": machine,
        "settings": study.settings,
    }
    return _document("study", content)


def comparison_json(comparison: Comparison, cases: Sequence[Case] = (), undecided: int = FINDING) -> dict[str, Any]:
    """``cases``: what the gate answers, and with it how the command ends. ``undecided``: the exit code of that."""
    gate = {
        "contestants": [contestant.model_dump() | {"speed": contestant.speed} for contestant in comparison.contestants],
        "gate": [case.model_dump() for case in cases],
        "exit_code": exit_code(cases, undecided) if cases else None,
    }
    return _document("comparison", comparison.model_dump() | gate)


def script_json(
    report: ScriptReport, *, folder: str = "", tuned: Sequence[TunedModule] = (), served: Sequence[ServedModule] = ()
) -> dict[str, Any]:
    """``folder``: where artifacts were written, or are used from; empty: neither."""
    content = dataclasses.asdict(report) | {
        "folder": folder,
        "tuned": [one.model_dump() for one in tuned],
        "served": [one.model_dump() for one in served],
        "schema_version": SCHEMA_VERSION,
        "exit_code": None,
    }
    return _document("script", content)


def verification_json(verification: Verification, undecided: int = FINDING) -> dict[str, Any]:
    told = {
        "comparison": comparison_json(verification.comparison),
        "proven": verification.proven,
        "exit_code": exit_code([verification.case], undecided),
    }
    return _document("verification", verification.model_dump() | told)


def fleet_json(fleet: Fleet) -> dict[str, Any]:
    return _document("fleet", fleet.model_dump())


def findings_json(result: CheckResult) -> dict[str, Any]:
    told = {"statistics": counts(result), "exit_code": result.exit_code}
    return {"schema_version": SCHEMA_VERSION, "kind": "findings", **result.model_dump(), **told}


def dumps(document: dict[str, Any]) -> str:
    """Two-space indented JSON text with a final line feed."""
    return escaped(json.dumps(_plain(document), indent=2, allow_nan=False)) + "\n"


def _document(kind: str, content: dict[str, Any]) -> dict[str, Any]:
    plain: dict[str, Any] = _plain({"kind": kind, **content})
    return plain


def _trial(trial: Trial, row: Row | None) -> dict[str, Any]:
    """``row`` is None for an earlier trial of a recipe that was tried again."""
    timing, footprint = trial.timing, trial.footprint
    return {
        "recipe": _recipe(trial.recipe),
        "outcome": trial.outcome,
        "reason": trial.reason,
        "unused": trial.unused,
        "verdict": row.verdict if row else "measured again later",
        "latency_ms": timing.latency_ms.model_dump() if timing else None,
        "reference_ms": row.eager_ms if row else None,
        "speedup_x": timing.speedup_x.model_dump() if timing else None,
        "idle_bytes": footprint.idle_bytes if footprint else None,
        "peak_bytes": footprint.peak_bytes if footprint else None,
        "total_bytes": footprint.total_bytes if footprint else None,
        "allocator_peak_bytes": footprint.allocator_peak_bytes if footprint else None,
        "error": trial.error.model_dump() if trial.error else None,
        "chosen": bool(row and row.chosen),
        "finalist": bool(row and row.finalist),
        "pareto_front": bool(row and row.front),
        "fix": trial.fix,
        "stage": trial.stage,
        "call_ms": timing.waited_ms if timing else None,
        "first_call_ms": timing.first_call_ms if timing else None,
        "start_ms": timing.start_ms if timing else None,
        "build_s": timing.build_s if timing else None,
        "energy_mj": timing.energy_mj if timing else None,
        "rounds_ms": timing.rounds_ms if timing else (),
        "noise": timing.noise.model_dump() if timing else None,
        "cost_s": trial.cost_s,
        "ended_s": trial.ended_s,
        "phases_s": trial.phases_s,
        "notes": trial.notes,
        "traceback": trial.traceback,
        "output": trial.output,
    }


def _recipe(recipe: Recipe) -> dict[str, Any]:
    return {"id": recipe.id, "label": recipe.label, "choices": [choice.model_dump() for choice in recipe.listed]}


def _effect(effect: Effect) -> dict[str, Any]:
    return {
        "technique": effect.technique,
        "stage": effect.stage,
        "units": effect.units,
        "units_without": effect.units_before,
        "recipe": effect.with_.recipe.id,
        "recipe_without": effect.without.recipe.id if effect.without else None,
        "pairs": effect.pairs,
    }


def _plain(value: Any) -> Any:
    """JSON has no NaN and no infinity: they become the strings "NaN", "Infinity" and "-Infinity"."""
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_plain(item) for item in (sorted(value) if isinstance(value, set | frozenset) else value)]
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    return value if value is None or isinstance(value, str | int | float | bool) else str(value)
