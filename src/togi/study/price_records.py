"""A price list: what each precision takes and how right it is, on the user's data. Nothing is chosen."""

from __future__ import annotations

from togi.core.choices import AccuracyMeasure, OperatorKind
from togi.core.records import Accuracy, Facts, Interval, LayerPrices, Outcome, Recipe, Record
from togi.subject.signature import Signature


class PricedRecipe(Record):
    """One precision on one engine."""

    recipe: Recipe
    exact: bool
    """In the original's precision."""
    outcome: Outcome
    reason: str = ""
    latency_ms: Interval | None = None
    speedup_x: Interval | None = None
    """Over plain eager, in the same rounds."""
    over_float32_x: Interval | None = None
    """Over the fastest engine in the original's precision. Both took turns with plain eager, at different moments."""
    rmse: float | None = None
    """Relative root-mean-square error of the worst output, on the samples and derived inputs."""
    accuracy: Accuracy | None = None
    """On all of the validation data. None: it answers as the original does, but for rounding; or it did not run."""


class KindPrices(Record):
    """How sensitive one kind of operators is to 8 bits."""

    kind: OperatorKind
    alone: PricedRecipe
    """It alone has 8 bits."""
    kept: PricedRecipe
    """It alone stays in floating point."""


class LayersRequest(Record):
    """What a process needs to measure layers."""

    facts: Facts
    signature: Signature
    time_limit_s: float
    known: LayerPrices | None = None
    """What was measured before."""


class PriceList(Record):
    """Prices of precision. The fastest in float32 comes first, then the others as they were tried."""

    subject: str
    facts: Facts
    measure: AccuracyMeasure
    metric: str = ""
    """Of the measure ``own``: the function's locator."""
    samples: int
    prices: tuple[PricedRecipe, ...]
    whole: PricedRecipe | None = None
    """All operators in 8 bits, without what is done for accuracy: with it ``kinds`` are compared."""
    kinds: tuple[KindPrices, ...] = ()
    layers: LayerPrices | None = None
    """None: there was no time, or 8 bits cannot be had layer by layer here."""
    notes: tuple[str, ...] = ()
    command: str = ""
    """To tune within a budget of the same measure."""
    took_s: float = 0.0

    @property
    def float32(self) -> PricedRecipe | None:
        """The fastest in the original's precision."""
        return next((price for price in self.prices if price.exact and price.speedup_x is not None), None)

    @property
    def sensitive(self) -> KindPrices | None:
        """The kind without which the error of all in 8 bits falls most. None where none lowers it."""
        known = [each for each in self.kinds if each.kept.rmse is not None]
        least = min(known, key=lambda each: each.kept.rmse or 0.0, default=None)
        whole = None if self.whole is None else self.whole.rmse
        if least is None or whole is None or least.kept.rmse is None or least.kept.rmse >= whole:
            return None
        return least
