"""What a study did not use, by the kind of reason that its records give: one group for each kind."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from togi.core.records import Outcome, Study, Trial, Unused
from togi.render.rows import Row


@dataclass(frozen=True)
class NotUsed:
    """What was not used for one kind of reason."""

    kind: Unused
    names: tuple[str, ...]
    """Techniques that were not tried, and recipes that were."""
    help: str = ""
    """The first command that would help, or how those ended that were tried in vain."""
    reason: str = ""
    """Why the search ended."""

    def __str__(self) -> str:
        before = f"{self.help}: " if self.help else ""
        return f"{before}{', '.join(self.names)}" + (f" ({self.reason})" if self.reason else "")


def not_used_by_kind(study: Study, found: Sequence[Row]) -> list[NotUsed]:
    """In the order of ``Unused``."""
    trials: dict[Unused, list[Trial]] = defaultdict(list)
    for row in found:
        if row.trial.unused is not None and not row.chosen:
            trials[row.trial.unused].append(row.trial)
    groups = []
    for kind in Unused:
        untried = [technique for technique in study.untried if technique.unused is kind]
        names = [_name(trial) for trial in trials[kind]] + [technique.technique for technique in untried]
        if names:
            reason = untried[0].reason if untried else ""
            groups.append(NotUsed(kind, tuple(dict.fromkeys(names)), _help(kind, trials[kind]), reason))
    return groups


def _name(trial: Trial) -> str:
    """A technique that was not tried has a trial of its own, which took no time."""
    planned_only = trial.outcome in (Outcome.REFUSED, Outcome.MISSING) and trial.cost_s == 0
    return trial.stage if planned_only and trial.stage else trial.recipe.short_label or trial.recipe.label


def _help(kind: Unused, trials: Sequence[Trial]) -> str:
    if kind is Unused.IN_VAIN:
        endings = Counter(trial.outcome.value for trial in trials)
        return ", ".join(f"{count} {ending}" for ending, count in endings.items())
    return next((trial.fix for trial in trials if trial.fix), "")
