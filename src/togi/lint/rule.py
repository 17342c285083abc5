"""The base classes of rules, where rules are found, and the names by which people select them.

A rule is one file: ``lint/rules/<kind>/<name_with_underscores>.py`` holds one class whose docstring is its published
page (``togi explain RULE``, docs/rules/), with these headings in this order: What it reports, Why it costs, When it
stays silent, Example, Use instead, Fix safety (of a rule that offers fixes), Source. Its id is the file's name with
hyphens; it names the pattern, not the remedy. So names are checked without importing any rule.
"""

from __future__ import annotations

import abc
import functools
import pkgutil
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeVar

from togi.core.errors import UnknownNameError, nearest
from togi.core.plugins import by_id, instances_in
from togi.lint.finding import Finding

if TYPE_CHECKING:
    from togi.lint.source.model import Source

FIX_SAFETY = "Fix safety"
HEADINGS = ("What it reports", "Why it costs", "When it stays silent", "Example", "Use instead", FIX_SAFETY, "Source")
Kind = Literal["source", "module", "trace"]
KINDS: tuple[Kind, ...] = ("source", "module", "trace")
ALL = "all"


class Rule(abc.ABC):
    """One pitfall. Stateless: one instance serves all files and subjects."""

    id: ClassVar[str]
    kind: ClassVar[Kind]
    default: ClassVar[bool] = True
    """Whether it is selected where the user selects nothing."""
    technique: ClassVar[str | None] = None
    """The technique of ``togi tune`` that removes the pitfall, tried to measure what a finding costs."""


R = TypeVar("R", bound=Rule)


class SourceRule(Rule):
    """Reads one source file. Imports no torch, executes nothing, and reports only what it can show."""

    kind = "source"

    @abc.abstractmethod
    def check(self, source: Source) -> Iterable[Finding]:
        """The findings in ``source``; the order does not matter."""


class ModuleRule(Rule):
    """Looks at a module and what one forward pass told of it. Runs in the subject's own process."""

    kind = "module"

    @abc.abstractmethod
    def check(self, context: Any) -> Iterable[Finding]:
        """The findings in ``context`` (``togi.lint.module.context.ModuleContext``)."""


class TraceRule(Rule):
    """Reads the record of one watched run."""

    kind = "trace"

    @abc.abstractmethod
    def check(self, trace: Any) -> Iterable[Finding]:
        """The findings in ``trace`` (``togi.lint.trace.record.Trace``)."""


@functools.cache
def all_rules() -> Mapping[str, Rule]:
    """Every rule by id, by kind and then by name."""
    return by_id((rule for kind in KINDS for rule in rules_of(kind).values()), "rules")


@functools.cache
def rules_of(kind: Kind) -> Mapping[str, Rule]:
    """The rules of one kind by id; those of other kinds are not imported."""
    return by_id(instances_in(f"togi.lint.rules.{kind}", Rule), "rules")


def rules_to_run(base: type[R], ids: Sequence[str] | None) -> list[R]:
    """Those of a base class that have one of ``ids``; None: those that are on by default."""
    rules = (rule for rule in all_rules().values() if isinstance(rule, base))
    return [rule for rule in rules if (rule.default if ids is None else rule.id in ids)]


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


def check_names(where: str, written: Iterable[str]) -> tuple[str, ...]:
    """``given`` in canonical form. Raises UnknownNameError with the nearest name, saying ``where`` it was written."""
    names = tuple(dict.fromkeys(canonical(name) for name in written))
    accepted = (*rule_kinds(), *KINDS, ALL)
    for name in names:
        if name not in accepted:
            raise UnknownNameError(
                f"{where}: there is no rule '{name}'{nearest(name, accepted) or '.'} Nothing was checked. "
                f"'togi explain' lists the rules; {', '.join(KINDS)} and {ALL} are names too"
            )
    return names


def rules_named(names: Iterable[str]) -> frozenset[str]:
    """The ids that canonical ``names`` stand for: rules, kinds of rules, or ``all``."""
    asked_names = set(names)
    return frozenset(id for id, kind in rule_kinds().items() if asked_names & {id, kind, ALL})
