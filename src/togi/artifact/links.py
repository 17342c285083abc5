"""Write the runnable files of an artifact: the chosen engine and its fallback. Runs in the child that built them."""

from __future__ import annotations

from pathlib import Path

from togi.artifact.manifest import Link
from togi.core.errors import NotSaveable, Refused
from togi.core.records import Machine, Recipe, Stage
from togi.graph.candidate import Candidate, Program
from togi.techniques import technique
from togi.techniques.base import IN_PLACE
from togi.techniques.build import StepFailed, build

EAGER = "eager"
"""The engine that ends every chain: an exported program, run by plain torch on any machine."""


def write_links(
    built: Candidate, start: Candidate, recipe: Recipe, folder: Path
) -> tuple[tuple[Link, ...], tuple[str, ...]]:
    """Save the program of ``built`` and, where it is another engine, an eager fallback made anew from ``start``. A part
    falls back on the original, which the program has.

    Returns the chain and notes for people. Raises NotSaveable when the chosen engine has no file form here.
    """
    engine = recipe.engine or EAGER
    program = built.program if built.program is not None else _eager_program(built)
    links = [_write(program, engine, built, recipe, recipe, folder)]
    if engine == EAGER:
        return tuple(links), ()
    if built.facts.part and not program.stores_export:  # else the fallback is asked for what both hold
        return (*links, Link(engine=EAGER, folder=EAGER, meta={"options": {}, IN_PLACE: True})), ()
    try:
        kept = without_engine(recipe)
        plain = build(kept, start)
        links.append(_write(_eager_program(plain), EAGER, plain, recipe, kept, folder))
    except (NotSaveable, Refused, StepFailed) as error:
        return tuple(links), (f"no fallback for machines that cannot run {engine}: {error}",)
    return tuple(links), ()


def without_engine(recipe: Recipe) -> Recipe:
    """The recipe without its engine and without what only that engine can do (an engine's own quantization)."""
    choices = [choice for choice in recipe.choices if choice.stage is not Stage.ENGINE]
    without = [choice for choice in choices if not technique(choice.technique).needs]
    return Recipe(choices=tuple(without))


def _eager_program(candidate: Candidate) -> Program:
    program = technique(EAGER).apply(candidate.with_(program=None), {}).program
    assert program is not None
    return program


def _write(program: Program, engine: str, candidate: Candidate, recipe: Recipe, built: Recipe, folder: Path) -> Link:
    """``built``: the choices of ``recipe`` that are in the program."""
    inside = folder / engine
    inside.mkdir(parents=True)
    meta = program.save(inside)
    runtime = tuple(choice for choice in recipe.choices if technique(choice.technique).surrounds_calls)
    return Link(
        engine=engine,
        folder=engine,
        meta=meta,
        runtime=runtime,
        threads=candidate.threads,
        instructions=instructions_of(built, candidate.facts.machine),
    )


def instructions_of(recipe: Recipe, machine: Machine) -> tuple[str, ...]:
    """The instructions of ``machine`` on which the answers of what is made of the recipe depend."""
    needed = [name for choice in recipe.choices for name in technique(choice.technique).instructions(machine)]
    return tuple(dict.fromkeys(needed))
