"""The whole page: headline, figures, trials, machine, how to repeat it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence

import togi
from togi.core.quantities import bounds, count, milliseconds, plural, significant, size
from togi.core.records import Study, TensorFacts
from togi.render.attribution import effects
from togi.render.html.bars import error_plot, speedup_plot
from togi.render.html.document import bullets, document, section, tile
from togi.render.html.markup import Child, Markup, copyable, definitions, element
from togi.render.html.pareto import pareto_plot
from togi.render.html.trials import trials_table
from togi.render.next_steps import how_to_load, next_steps
from togi.render.rows import Row, counts, rows, warnings

SHOWN_MODULES = 8


def study_html(study: Study) -> str:
    """The study as one document."""
    found = rows(study)
    return document(
        study.subject,
        header=_header(study, found),
        sections=list(_sections(study, found)),
        footer=f"togi {togi.__version__}, study {study.id}. All numbers were measured on the machine named above.",
        script="study.js",
    )


def _header(study: Study, found: Sequence[Row]) -> Markup:
    chosen = next((row for row in found if row.chosen), None)
    reference = next((row for row in found if row.reference), None)
    return element(
        "header",
        None,
        element("p", {"class": "brand"}, "togi", element("small", None, f" {study.started}")),
        element("h1", None, study.subject),
        _headline(chosen),
        element("p", {"class": "verdict"}, study.verdict or "Nothing could be chosen."),
        element("p", {"class": "recipe"}, chosen.trial.recipe.label) if chosen else None,
        element("dl", {"class": "tiles"}, *_tiles(chosen, reference, found)),
    )


def _headline(chosen: Row | None) -> Markup | None:
    if chosen is None or chosen.trial.timing is None or chosen.reference:
        return None
    speedup = chosen.trial.timing.speedup_x
    number = element("strong", None, f"{significant(speedup.median)}\N{MULTIPLICATION SIGN}")
    return element("p", {"class": "headline"}, number, element("span", None, f"the speed of eager ({bounds(speedup)})"))


def _tiles(chosen: Row | None, reference: Row | None, found: Sequence[Row]) -> Iterator[Markup]:
    before, after = (row.trial if row else None for row in (reference, chosen))
    if after and after.timing:
        was = milliseconds(before.timing.latency_ms.median) if before and before.timing else None
        yield tile("latency", milliseconds(after.timing.latency_ms.median), _was(was))
    if after and after.footprint:
        was = size(before.footprint.total_bytes) if before and before.footprint else None
        yield tile("memory", size(after.footprint.total_bytes), _was(was))
    if after and after.error:
        kind = "faithful" if after.error.faithful else "approximate"
        yield tile("error", f"{significant(after.error.units, 2)}x eager's", kind)
    tally = counts(found)
    yield tile("recipes", f"{len(found)}", ", ".join(f"{number} {outcome.value}" for outcome, number in tally.items()))


def _was(value: str | None) -> str:
    return f"was {value}" if value else ""


def _sections(study: Study, found: Sequence[Row]) -> Iterator[Markup]:
    knowledge = (
        *study.facts.notes,
        *warnings(study),
        *(note for row in found if row.chosen for note in row.trial.notes),
    )
    if knowledge:
        yield section("What to know", bullets(knowledge), kind="notice")
    yield from _figure(
        "Latency and memory", "Point at a recipe for its numbers; select it for its trial.", pareto_plot(found)
    )
    yield from _figure(
        "Speed-up", "Recipes whose bar touches the line at 1 may be no faster than the original.", speedup_plot(found)
    )
    about = "Each technique beside the same recipe without it: which one moved the outputs, and by how much."
    yield from _figure("Error by technique", about, error_plot(effects(study.trials)))
    yield section(
        "Every recipe", element("p", None, "Select a recipe for details, a heading to sort."), trials_table(found)
    )
    yield element("div", {"class": "columns"}, *_context(study))


def _context(study: Study) -> Iterator[Markup]:
    load = (element("h3", None, "Load the result"), copyable(how_to_load("NAME.togi"))) if study.best else ()
    repeat = copyable(study.command) if study.command else None
    yield section("Repeat it", repeat, *load, element("h3", None, "Next"), bullets(tuple(next_steps(study))))
    yield section("Subject", definitions(_subject(study)))
    yield section("Machine", definitions(_machine(study)))
    yield section("Settings", definitions({name: _setting(value) for name, value in study.settings.items()}))


def _figure(title: str, about: str, figure: Markup | None) -> Iterator[Markup]:
    if figure is not None:
        yield section(title, element("p", None, about), figure)


def _subject(study: Study) -> dict[str, Child]:
    facts = study.facts
    common = sorted(facts.modules.items(), key=lambda item: (-item[1], item[0]))[:SHOWN_MODULES]
    dtypes = ", ".join(facts.parameter_dtypes) or "none"
    return {
        "class": facts.module_class,
        "parameters": f"{facts.parameters:,} ({size(facts.parameter_bytes)}; {dtypes})",
        "modules": ", ".join(f"{number} {name}" for name, number in common),
        "inputs": _tensors(facts.inputs),
        "outputs": _tensors(facts.outputs),
        "samples": plural(facts.samples, "sample"),
        "floating-point operations": f"{count(facts.flops)} per pass" if facts.flops else None,
        "export": None
        if facts.exportable
        else f"torch.export cannot capture it: {facts.export_error or 'unknown reason'}",
    }


def _tensors(tensors: Sequence[TensorFacts]) -> str:
    def shape(tensor: TensorFacts) -> str:
        return " x ".join("any" if size is None else str(size) for size in tensor.shape) or "scalar"

    return "; ".join(f"{tensor.name}: {tensor.dtype} {shape(tensor)}" for tensor in tensors)


def _machine(study: Study) -> dict[str, Child]:
    machine = study.facts.machine
    gpu = f"{machine.gpu}, driver {machine.gpu_driver or 'unknown'}" if machine.gpu else None
    return {
        "processor": machine.cpu_model,
        "cores": f"{machine.cpu_cores}, {plural(machine.threads, 'thread')} used",
        "memory": size(machine.memory_bytes),
        "GPU": gpu,
        "system": machine.os,
        "Python": machine.python,
        "versions": ", ".join(f"{name} {version}" for name, version in machine.versions.items()),
        "compiler": machine.compiler,
        "device": study.facts.device,
    }


def _setting(value: object) -> str:
    if value is None or value == [] or value == ():
        return "none"
    return value if isinstance(value, str) else json.dumps(value, default=str, sort_keys=True)
