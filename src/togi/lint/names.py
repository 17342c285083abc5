"""The names of rules and kinds, known from file names: no rule is imported for checking what the user wrote."""

from __future__ import annotations

import functools
import pkgutil
from collections.abc import Iterable, Mapping
from pathlib import Path

from togi.core.errors import UnknownNameError, nearest
from togi.lint.rule import KINDS, Kind

ALL = "all"


@functools.cache
def rule_kinds() -> Mapping[str, Kind]:
    """Kind by rule id, by kind and then by name. A file whose name starts with ``_`` holds no rule."""
    rules = Path(__file__).parent / "rules"
    return {
        entry.name.replace("_", "-"): kind
        for kind in KINDS
        for entry in sorted(pkgutil.iter_modules([str(rules / kind)]), key=lambda entry: entry.name)
        if not entry.name.startswith("_")
    }


def canonical(name: str) -> str:
    """``Scalar_From_Tensor`` and ``scalar-from-tensor`` are one name."""
    return name.strip().lower().replace("_", "-")


def choices() -> tuple[str, ...]:
    """What ``--select`` takes: ids, kinds, and ``all``."""
    return (*rule_kinds(), *KINDS, ALL)


def check_names(where: str, given: Iterable[str]) -> tuple[str, ...]:
    """``given`` in canonical form. Raises UnknownNameError with the nearest name, saying ``where`` it was written."""
    names = tuple(dict.fromkeys(canonical(name) for name in given))
    for name in names:
        if name not in choices():
            raise UnknownNameError(
                f"{where}: there is no rule '{name}'{nearest(name, choices())}. Nothing was checked. "
                f"'togi explain' lists the rules; {', '.join(KINDS)} and {ALL} are names too"
            )
    return names


def expand(names: Iterable[str]) -> frozenset[str]:
    """The rule ids that canonical ``names`` stand for."""
    kinds = rule_kinds()
    found: set[str] = set()
    for name in names:
        found.update(id for id, kind in kinds.items() if name in (id, kind, ALL))
    return frozenset(found)
