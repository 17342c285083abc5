"""What a recipe has in common with others, computed once for each: what predictions and lessons are made of."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, final

from togi.core.records import Recipe, Stage
from togi.search.offers import EAGER, Offer

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

Feature = tuple[str, ...]
Atoms = frozenset[str]
"""Labels of choices, ``technique:ID`` for a technique with any options, and ``eager`` for no engine."""

STAGE_SPREAD = {Stage.REWRITE: 0.12, Stage.LAYOUT: 0.25, Stage.PRECISION: 0.35, Stage.ENGINE: 0.6, Stage.RUNTIME: 0.15}
"""Standard deviation of the log of a choice's effect, by its stage: a guess at first, soon outweighed by trials."""

ENGINES_DO_IT = 0.4
"""How much of a rewrite's or layout's promised log speed-up is left under an engine that compiles: most do the same on
their own."""

STARTING_COST_S = 3.0
"""Guess at starting, verifying and measuring one recipe; replaced by what trials cost."""


@final
class Traits:
    """One recipe, taken apart. ``columns`` numbers its features in ``index`` (shared by all recipes of a space)."""

    def __init__(self, recipe: Recipe, offers: Sequence[Offer], index: dict[Feature, int]) -> None:
        import numpy as np

        self.recipe = recipe
        self.offers = tuple(offers)
        self.engine = next((offer for offer in offers if offer.is_engine), None)
        self.atoms = _atoms(offers, self.engine)
        self.evidence = {offer: _evidence(offer, self.engine) for offer in offers}
        """What success and failure are counted on, for each offer."""
        found = dict(_features(offers, self.engine))
        self.columns: NDArray[np.intp] = np.array([index.setdefault(f, len(index)) for f in found], dtype=np.intp)
        self.spreads: NDArray[np.float64] = np.array(list(found.values()))
        """Standard deviation of each feature's effect on log latency."""
        self.variance = float(self.spreads @ self.spreads)
        self.promised_log_latency = _promised_log_latency(offers, self.engine)
        """Log latency relative to the reference that the techniques' own promises amount to."""
        self.promised_log_cost = math.log(STARTING_COST_S + sum(offer.cost_s for offer in offers))


def _promised_log_latency(offers: Sequence[Offer], engine: Offer | None) -> float:
    total = 0.0
    for offer in offers:
        redundant = engine is not None and offer.technique.stage in (Stage.REWRITE, Stage.LAYOUT)
        total -= math.log(offer.promise) * (ENGINES_DO_IT if redundant else 1.0)
    return total


def _features(offers: Sequence[Offer], engine: Offer | None) -> Iterator[tuple[Feature, float]]:
    """What the recipe may share with others, with the standard deviation of its effect."""
    family, engine_label = (engine.technique.id, engine.label) if engine else (EAGER, EAGER)
    if engine:
        yield ("engine", family), STAGE_SPREAD[Stage.ENGINE]
        if engine.choice.options:
            yield ("engine", engine_label), 0.2
        for key, value in engine.choice.options.items():
            yield ("engine", family, key, str(value)), 0.2
    others = [offer for offer in offers if not offer.is_engine]
    for offer in others:
        spread = 0.04 if offer.is_grad_mode else STAGE_SPREAD[offer.technique.stage]
        id = offer.technique.id
        yield ("technique", id), spread
        yield ("technique", id, "on", family), spread * 0.8
        yield ("technique", id, "on", engine_label, ""), spread * 0.3
        if offer.choice.options:
            yield ("choice", offer.label), spread * 0.6
            yield ("choice", offer.label, "on", family), spread * 0.5
    for one, other in itertools.combinations([o for o in others if not o.is_grad_mode], 2):
        yield ("pair", one.technique.id, other.technique.id), 0.05


def _atoms(offers: Sequence[Offer], engine: Offer | None) -> Atoms:
    found = {offer.label for offer in offers} | {f"technique:{offer.technique.id}" for offer in offers}
    return frozenset(found if engine else found | {EAGER})


def _evidence(offer: Offer, engine: Offer | None) -> tuple[str, ...]:
    """The choice, the technique, and the choice with the engine (joined by ``|``)."""
    family = f"technique:{engine.technique.id}" if engine else EAGER
    alone = (offer.label, f"technique:{offer.technique.id}")
    return alone if offer.is_engine or offer.is_grad_mode else (*alone, f"{offer.label}|{family}")
