"""Finds techniques and puts choices in the order in which they are applied; marks on what devices they were proven."""

from __future__ import annotations

import functools
import importlib.metadata
from collections.abc import Iterable, Mapping
from typing import Protocol

from togi.core.errors import UnknownNameError, nearest
from togi.core.judging import Judging
from togi.core.plugins import by_id, instances_in
from togi.core.proven import Mark, MarkedPart, mark_of
from togi.core.recipe import AnyRecipe
from togi.core.records import STAGES, Choice, Recipe, Stage
from togi.core.settings import covers
from togi.techniques.base import Options, Remedy, Technique
from togi.techniques.parts import Parts

ENTRY_POINT_GROUP = "togi.techniques"


@functools.cache
def all_techniques() -> Mapping[str, Technique]:
    """Every technique by id, in pipeline order. A built-in that cannot be imported raises: it is never dropped."""
    techniques = [t for stage in STAGES for t in instances_in(f"togi.techniques.{stage}", Technique)]  # type: ignore[type-abstract]
    techniques += [entry.load()() for entry in importlib.metadata.entry_points(group=ENTRY_POINT_GROUP)]
    return by_id(sorted(techniques, key=_place), "techniques")


def all_remedies() -> Mapping[str, Remedy]:
    """All that ``togi explain`` has a page of and can measure, in pipeline order: techniques, and a program's parts."""
    remedies = sorted([*all_techniques().values(), Parts()], key=_place)
    return {remedy.id: remedy for remedy in remedies}


def technique(id: str) -> Technique:
    try:
        return all_techniques()[id]
    except KeyError:
        raise UnknownNameError(
            f"there is no technique '{id}'{nearest(id, all_techniques()) or '.'} 'togi explain' lists them."
        ) from None


def recipe(**choices: Options) -> Recipe:
    """``recipe(channels_last={}, torchscript={"freeze": True}, no_grad={})``, in the order of application."""
    ordered = (t for t in all_techniques().values() if t.id in choices)
    unknown = [id for id in choices if id not in all_techniques()]
    if unknown:
        technique(unknown[0])
    return Recipe(choices=tuple(Choice(stage=t.stage, technique=t.id, options=choices[t.id]) for t in ordered))


def equals_to_the_bit(recipe: Recipe) -> bool:
    """A training step with it claims to be the original's to the bit."""
    return all(technique(choice.technique).step_to_the_bit for choice in recipe.choices)


def is_exact(recipe: Recipe) -> bool:
    """No technique of it is approximate."""
    return all(technique(choice.technique).exact for choice in recipe.every_choice)


def judged_on_data(recipe: AnyRecipe, judging: Judging | None) -> bool:
    """Whether it may err, of recipes of a whole subject, and validation data say by how much."""
    if judging is None or not judging.on_data:
        return False
    techniques = [choice.technique for choice in recipe.every_choice]
    return not is_exact(recipe) or any(covers(name, each) for name in judging.named for each in techniques)


class Combined(Protocol):
    """What may stand in a recipe with others: a technique, or one with options on a subject."""

    @property
    def stage(self) -> Stage: ...
    @property
    def needs(self) -> frozenset[str]: ...
    @property
    def provides(self) -> frozenset[str]: ...
    @property
    def conflicts(self) -> frozenset[str]: ...


def compatible(techniques: Iterable[Combined]) -> bool:
    """Whether these may stand in one recipe: at most one engine, every need met, no conflict."""
    chosen = tuple(techniques)
    if sum(t.stage == "engine" for t in chosen) > 1:
        return False
    for t in chosen:
        provided = frozenset().union(*(o.provides for o in chosen if o is not t))
        if not t.needs <= provided or t.conflicts & provided:
            return False
    return True


def _place(remedy: Remedy) -> tuple[int, int, str]:
    return STAGES.index(remedy.stage), remedy.rank, remedy.id


def technique_mark(remedy: Remedy) -> Mark:
    return mark_of(remedy.id, remedy.devices)


def all_marks() -> tuple[Mark, ...]:
    """One mark a remedy for calls (third-party ones too), then one each for the other parts. Imports no torch.

    Those for training steps alone have none: every study proves them anew on its own step.
    """
    parts = sorted(MarkedPart, key=str)
    return (
        *(technique_mark(remedy) for remedy in all_remedies().values() if remedy.infers),
        *(mark_of(part, part.devices) for part in parts),
    )
