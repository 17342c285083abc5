"""What failed trials teach: which combinations need not be tried again, and how likely a recipe is to succeed.

A failure blames a set of choices; every recipe that holds the whole set would fail likewise and is dropped. Where one
technique is known to have failed, the choices applied after it are innocent.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import final

from togi.records import Outcome, Stage, Trial
from togi.search.model import EAGER, engine_of
from togi.search.offers import Offer

Atoms = frozenset[str]
"""Labels of choices, ``technique:ID`` for a technique with any options, and ``eager`` for no engine."""

SETTLED = frozenset({Outcome.OK, Outcome.UNSTABLE})
"""Outcomes that blame nobody."""


def atoms(offers: Sequence[Offer]) -> Atoms:
    found = {offer.label for offer in offers} | {f"technique:{offer.technique.id}" for offer in offers}
    return frozenset(found if engine_of(offers) else found | {EAGER})


@final
class Lessons:
    """Learns from every trial told; answers for recipes not tried."""

    def __init__(self) -> None:
        self._hopeless: list[Atoms] = []
        self._succeeded: Counter[str] = Counter()
        self._failed: Counter[str] = Counter()
        self._failures: dict[tuple[str, str], set[Atoms]] = {}
        """(technique, reason) -> the combinations it failed in."""

    def learn(self, offers: Sequence[Offer], trial: Trial) -> str:
        """Returns what was concluded, as a sentence; empty when nothing."""
        if trial.outcome in SETTLED:
            self._succeeded.update(_evidence(offers))
            return ""
        culprit = _culprit(offers, trial)
        blamed = self._blamed(offers, trial, culprit)
        if not blamed:
            return ""
        self._failed.update(e for e in _evidence(offers) if any(part in blamed for part in e.split("|")))
        if culprit is not None:
            blamed = self._generalised(culprit, trial, blamed)
        if self.hopeless(blamed):
            return ""
        self._hopeless.append(blamed)
        names = " with ".join(sorted(atom.removeprefix("technique:") for atom in blamed))
        reason = trial.reason.rstrip(".") or trial.outcome.value
        return f"{names} is not tried again: {trial.outcome.value}" + (f" ({reason})" if reason != trial.outcome else "")

    def hopeless(self, recipe_atoms: Atoms) -> bool:
        """It holds a combination that has failed."""
        return any(blamed <= recipe_atoms for blamed in self._hopeless)

    def doubt(self, offers: Sequence[Offer]) -> None:
        """It ran, but is no use (it does not meet a limit): recipes like it become less likely, none is ruled out."""
        self._failed.update(_evidence(offers))

    def chance(self, offers: Sequence[Offer]) -> float:
        """Probability that the recipe works, from how often what it is made of has worked."""
        prior = 0.9 if all(offer.technique.exact for offer in offers) else 0.75
        return min((self._rate(e, prior) for e in _evidence(offers)), default=prior)

    def _rate(self, evidence: str, prior: float) -> float:
        good, bad = self._succeeded[evidence], self._failed[evidence]
        return (good + 2 * prior) / (good + bad + 2)

    def _blamed(self, offers: Sequence[Offer], trial: Trial, culprit: Offer | None) -> Atoms:
        """The choices that together are taken to be the cause."""
        if culprit is not None:
            if trial.outcome is Outcome.MISSING:
                return frozenset({f"technique:{culprit.technique.id}"})
            before = [offer for offer in offers if offer.place < culprit.place]
            suspects = [*before, culprit]
        else:
            suspects = list(offers)
        blamed = {offer.label for offer in suspects if not self._innocent(offer)}
        approximate = any(not offer.technique.exact for offer in suspects)
        if blamed and trial.outcome is Outcome.WRONG and approximate and engine_of(offers) is None:
            blamed.add(EAGER)  # another engine may round in other places
        return frozenset(blamed)

    def _innocent(self, offer: Offer) -> bool:
        """A grad mode, once it has worked anywhere."""
        return offer.is_grad_mode and (offer.technique.id == "no_grad" or self._succeeded[offer.label] > 0)

    def _generalised(self, culprit: Offer, trial: Trial, blamed: Atoms) -> Atoms:
        """The technique as such, when it failed for the same reason in two combinations and never worked."""
        id = culprit.technique.id
        seen = self._failures.setdefault((id, trial.reason), set())
        seen.add(blamed)
        structural = trial.outcome not in (Outcome.WRONG, Outcome.TIMED_OUT, Outcome.OUT_OF_MEMORY)
        if structural and trial.reason and len(seen) > 1 and not self._succeeded[f"technique:{id}"]:
            return frozenset({f"technique:{id}"})
        return blamed


def _culprit(offers: Sequence[Offer], trial: Trial) -> Offer | None:
    """The technique named by the trial; when building failed without a name, the engine."""
    named = next((offer for offer in offers if offer.technique.id == trial.stage), None)
    if named is None and trial.stage == "build" and trial.outcome is not Outcome.WRONG:
        return engine_of(offers)
    return named


def _evidence(offers: Sequence[Offer]) -> list[str]:
    """What success and failure are counted on: choices, techniques, and each with the engine (joined by ``|``)."""
    engine = engine_of(offers)
    family = f"technique:{engine.technique.id}" if engine else EAGER
    counted = [offer for offer in offers if not offer.is_grad_mode]
    singles = [atom for o in offers for atom in (o.label, f"technique:{o.technique.id}")]
    return [*dict.fromkeys(singles), *(f"{o.label}|{family}" for o in counted if o is not engine)]
