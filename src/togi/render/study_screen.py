"""The end of ``togi tune`` on one screen: what was chosen, what came near it, what was not used, what to do next.

Each line is cut to the width, so that a small terminal shows all of them. ``study_text`` cuts nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.cells import cell_len
from rich.console import Group
from rich.text import Text

from togi.core.printable import one_line
from togi.core.quantities import bounds, milliseconds, plural, significant, size, times
from togi.core.recipe import ProgramRecipe
from togi.core.records import Study
from togi.decide.choose import nearest_of, nothing_gained, set_aside
from togi.decide.faster import BETWEEN_PROCESSES
from togi.render.gains import pays_off
from togi.render.next_steps import NextStep, how_to_apply, next_steps
from togi.render.not_used import NotUsed, not_used_by_kind
from togi.render.rows import Row, chosen_of, looks_faster, rows, speed, trade_offs, what_to_know
from togi.render.terminal import DOTS, cut

LINES = 24
WIDEST = 120
"""Longer lines are hard to read, whatever the terminal."""
_LABEL = 10
"""Columns of what stands in front of the lines of a section."""
_SAID, _NEAR, _KINDS, _NEXT = 3, 3, 5, 3
"""Most lines of a section."""

Line = tuple[str, str]
"""Text and its style."""


def study_screen(study: Study, *, width: int, artifact: str | None = None) -> Group:
    """At most ``LINES`` lines, less the four that the command and the shell print behind them, none wider than
    ``width``."""
    found, width = rows(study), min(width, WIDEST)
    sections = {
        "subject": _subject(study, found),
        "result": _result(study, found, width - _LABEL),
        "near it": _near(found),
        "not used": _not_used(not_used_by_kind(study, found)),
        "know": _to_know(study, found),
        "next": _next(study, artifact),
    }
    return Group(*(line for label, body in sections.items() for line in _section(label, list(body), width)))


def _section(label: str, body: Sequence[Line], width: int) -> Iterator[Text]:
    for number, (text, style) in enumerate(body):
        heading = ("" if number else label).ljust(_LABEL)[: max(1, width)]
        line = Text(heading, style="dim", no_wrap=True, overflow="crop")
        yield line.append(cut(one_line(text), width - _LABEL), style)


def wrapped(text: str, width: int, most: int) -> list[str]:
    """The text in at most so many lines; dots where that is not all of it."""
    words, lines = one_line(text).split(), [""]
    for word in words:
        longer = f"{lines[-1]} {word}".lstrip()
        if cell_len(longer) <= width or not lines[-1]:
            lines[-1] = longer
        elif len(lines) < most:
            lines.append(word)
        else:
            lines[-1] = longer + DOTS  # is cut, whatever follows
            break
    return [cut(line, width) for line in lines if line]


def _subject(study: Study, found: Sequence[Row]) -> Iterator[Line]:
    facts, machine = study.facts, study.facts.machine
    on_gpu = machine.gpu if facts.device == "cuda" else None
    processor = on_gpu or f"{machine.cpu_model}, {plural(machine.threads, 'thread')}"
    tried = plural(len({row.trial.recipe for row in found} - {trial.recipe for trial in study.excluded}), "recipe")
    yield study.subject, "bold"
    yield f"{tried} of {facts.module_class}, {size(facts.parameter_bytes)}, on {facts.device}: {processor}", "dim"


def _result(study: Study, found: Sequence[Row], width: int) -> Iterator[Line]:
    """At most four lines."""
    chosen = chosen_of(found)
    if chosen is not None and not chosen.reference:
        yield chosen.trial.recipe.label, "bold green"
        yield from ((line, "") for line in (*_speed_and_error(chosen), *_worth(study, chosen)))
    elif chosen is not None and (kept := _kept(found)):
        yield kept, "bold yellow"
    else:
        said = study.verdict or "Nothing could be chosen."
        yield from ((line, "bold yellow") for line in wrapped(said, width, _SAID))


def _kept(found: Sequence[Row]) -> str:
    """That nothing was gained, with the nearest; empty where nothing was measured but the original, or where something
    is faster that could not be used."""
    nearest = nearest_of(row.trial for row in found)
    if nearest is None or BETWEEN_PROCESSES.faster(nearest.speedup_x):
        return ""
    label = nearest.recipe.short_label or nearest.recipe.label
    return f"{nothing_gained(nearest)} (nearest: {times(nearest.speedup_x.median)} {label})"


def _speed_and_error(chosen: Row) -> Iterator[str]:
    """How fast, how right and how large it is."""
    timing, error, footprint = chosen.trial.timing, chosen.trial.error, chosen.trial.footprint
    if timing is not None:
        word = "" if BETWEEN_PROCESSES.faster(timing.speedup_x) else f" ({speed(timing)})"
        ms = f"{milliseconds(timing.latency_ms.median)}, eager {milliseconds(timing.reference_ms)}"
        yield f"{times(timing.speedup_x.median)} the speed of eager, {bounds(timing.speedup_x)}{word}: {ms}"
    what = "step" if chosen.trial.recipe.trains else "call"
    memory = f"; memory {size(footprint.idle_bytes)} + {size(footprint.peak_bytes)} in a {what}" if footprint else ""
    if error is not None:
        right = "approximate, " if chosen.approximate else ""
        yield f"{right}error {significant(error.units, 2)} x eager's own{memory}"


def _worth(study: Study, chosen: Row) -> Iterator[str]:
    timing = chosen.trial.timing
    if set_aside(chosen.trial):
        yield f"could not be saved: {chosen.trial.reason}"
    elif timing is not None and not BETWEEN_PROCESSES.faster(timing.speedup_x):
        yield "chosen for what it takes, not for its speed"
    elif even := pays_off(study):
        yield even


def _near(found: Sequence[Row]) -> Iterator[Line]:
    """The fastest of the others; the reference is not one of them, since its time stands next to the chosen one's."""
    others = [row for row in found if row.trial.eligible and not (row.chosen or row.reference)]
    for row in others[:_NEAR]:
        memory = size(row.trial.footprint.total_bytes) if row.trial.footprint else ""
        label = row.trial.recipe.short_label or row.trial.recipe.label
        yield f"{_speed(row):<21}{memory:>9}  {label}", "green" if row.verdict == "faster" else ""
    if len(others) > _NEAR:
        yield f"and {len(others) - _NEAR} more (-v)", "dim"


def _speed(row: Row) -> str:
    return f"{times(row.speedup_x.median)} {bounds(row.speedup_x)}" if row.speedup_x else "-"


def _not_used(groups: Sequence[NotUsed]) -> Iterator[Line]:
    """A line for each kind of reason; those that are too many share the last."""
    own = groups if len(groups) <= _KINDS else groups[: _KINDS - 1]
    for group in own:
        yield f"{group.kind.value:<15}{len(group.names):>3}: {group}", "dim"
    if rest := groups[len(own) :]:
        yield "; ".join(f"{group.kind.value} {len(group.names)}: {', '.join(group.names)}" for group in rest), "dim"


def _to_know(study: Study, found: Sequence[Row]) -> Iterator[Line]:
    """The first of what is worth knowing, and how much more there is."""
    sentences = [*study.notes, *what_to_know(study, found), *trade_offs(study, found), *looks_faster(study, found)]
    if sentences:
        more = f"(1 of {len(sentences)}, -v shows all) " if len(sentences) > 1 else ""
        yield f"{more}{sentences[0]}", "yellow"


def _next(study: Study, artifact: str | None) -> Iterator[Line]:
    """What is most useful, and in the end where all of it is."""
    steps = list(next_steps(study, artifact))
    if artifact is not None:
        into = ".into(program)" if isinstance(study.best, ProgramRecipe) else ""
        applied = how_to_apply(artifact, own_loop=study.facts.own_loop)
        loads = NextStep(f"togi.load({artifact!r}){into}", "loads it")
        steps.insert(0, NextStep(applied, "applies it") if study.facts.train else loads)
    shown = steps if len(steps) <= _NEXT else [*steps[: _NEXT - 1], steps[-1]]
    yield from ((f"{step.type}  {step.brings}", "cyan") for step in shown)
