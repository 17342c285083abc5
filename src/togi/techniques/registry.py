"""Finds techniques and puts choices in the order in which they are applied."""

from __future__ import annotations

import functools
import importlib
import importlib.metadata
import inspect
import pkgutil
from collections.abc import Iterable, Mapping
from types import ModuleType

from togi.core.errors import TogiError, UnknownNameError, nearest
from togi.core.records import STAGES, Choice, Recipe
from togi.techniques.base import Options, Technique

ENTRY_POINT_GROUP = "togi.techniques"


@functools.cache
def all_techniques() -> Mapping[str, Technique]:
    """Every technique by id, in pipeline order. A built-in that cannot be imported raises: it is never dropped."""
    found = [*_built_in(), *_third_party()]
    found.sort(key=lambda t: (STAGES.index(t.stage), t.rank, t.id))
    by_id = {t.id: t for t in found}
    if len(by_id) != len(found):
        twice = sorted({t.id for t in found if sum(o.id == t.id for o in found) > 1})
        raise TogiError(
            f"two techniques share the id {', '.join(twice)}: rename one, ids name files and journal entries"
        )
    return by_id


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


def compatible(techniques: Iterable[Technique]) -> bool:
    """Whether these may stand in one recipe: at most one engine, every need met, no conflict."""
    chosen = tuple(techniques)
    if sum(t.stage == "engine" for t in chosen) > 1:
        return False
    for t in chosen:
        provided = frozenset().union(*(o.provides for o in chosen if o is not t))
        if not t.needs <= provided or t.conflicts & provided:
            return False
    return True


def _built_in() -> list[Technique]:
    package = importlib.import_module("togi.techniques")
    found: list[Technique] = []
    for stage in STAGES:
        for entry in pkgutil.iter_modules([f"{path}/{stage}" for path in package.__path__]):
            module = importlib.import_module(f"togi.techniques.{stage}.{entry.name}")
            found.extend(_classes(module))
    return found


def _classes(module: ModuleType) -> list[Technique]:
    own = (c for c in vars(module).values() if inspect.isclass(c) and c.__module__ == module.__name__)
    return [c() for c in own if issubclass(c, Technique) and not inspect.isabstract(c)]


def _third_party() -> list[Technique]:
    return [entry.load()() for entry in importlib.metadata.entry_points(group=ENTRY_POINT_GROUP)]
