"""What a rule is, and where rules are found.

A rule is one file: ``lint/rules/<kind>/<name_with_underscores>.py`` holds one class whose docstring is its published
page (``togi explain RULE``, docs/rules/), with these headings in this order: What it reports, Why it costs, When it
stays silent, Example, Use instead, Source. Its id is the file's name with hyphens; it names the pattern, not the
remedy.
"""

from __future__ import annotations

import abc
import functools
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from togi.core.plugins import by_id, instances_in
from togi.lint.finding import Finding

if TYPE_CHECKING:
    from togi.lint.source.model import Source

HEADINGS = ("What it reports", "Why it costs", "When it stays silent", "Example", "Use instead", "Source")
Kind = Literal["source", "module", "trace"]
KINDS: tuple[Kind, ...] = ("source", "module", "trace")


class Rule(abc.ABC):
    """One pitfall. Stateless: one instance serves all files and subjects."""

    id: ClassVar[str]
    kind: ClassVar[Kind]
    default: ClassVar[bool] = True
    """Whether it is selected where the user selects nothing."""
    technique: ClassVar[str | None] = None
    """The technique of ``togi tune`` that mends it, tried to measure what a finding costs."""


class SourceRule(Rule):
    """Reads one source file. Imports no torch, executes nothing, and reports only what it can show."""

    kind = "source"
    valid: ClassVar[tuple[str, ...]] = ()
    """Snippets in which it finds nothing: whole modules, also ones that look alike."""
    invalid: ClassVar[tuple[str, ...]] = ()
    """Snippets with ``# here`` at the end of every line on which a finding starts, and on no other line."""

    @abc.abstractmethod
    def check(self, source: Source) -> Iterable[Finding]:
        """The findings in ``source``; the order does not matter."""


class ModuleRule(Rule):
    """Looks at a module and what one forward pass told of it. Runs in the subject's own process."""

    kind = "module"

    @abc.abstractmethod
    def check(self, seen: Any) -> Iterable[Finding]:
        """The findings in ``seen`` (``togi.lint.module.seen.Seen``)."""


class TraceRule(Rule):
    """Reads the record of one watched run."""

    kind = "trace"

    @abc.abstractmethod
    def check(self, trace: Any) -> Iterable[Finding]:
        """The findings in ``trace`` (``togi.lint.trace.record.Trace``)."""


@functools.cache
def all_rules() -> Mapping[str, Rule]:
    """Every rule by id, by kind and then by name."""
    found = (rule for kind in KINDS for rule in instances_in(f"togi.lint.rules.{kind}", Rule))
    return by_id(found, "rules")
