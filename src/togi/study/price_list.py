"""``togi precision``: the prices of precision, as trials of a study of their own, without choosing."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from itertools import chain

from togi.core.choices import OperatorKind
from togi.core.errors import SubjectError, TogiError
from togi.core.judging import Judging
from togi.core.records import Interval, LayerPrices, Outcome, Recipe, Trial
from togi.core.settings import Settings
from togi.decide.budget import Budget
from togi.decide.faster import change
from togi.journal import Journal
from togi.search.listed import ListedRecipes, listed_recipes
from togi.study.open_study import OpenStudy
from togi.study.pace import USUAL, Pace
from togi.study.price_records import KindPrices, LayersRequest, PricedRecipe, PriceList
from togi.study.progress import Progress
from togi.study.run import opened_study
from togi.study.runner import StudyRunner
from togi.techniques import all_techniques, is_exact
from togi.worker.call import ChildCall
from togi.worker.protocol import SubjectRef
from togi.worker.supervise import Limits

ANYTHING = 1.0
"""The drop that is allowed: nothing is chosen, so that whatever runs and returns numbers has its price."""
_LAYERS_S, _MOST_FOR_LAYERS_S = 15.0, 300.0
"""The least and the most that layers are measured for. 51 of EfficientNet-Lite0 take one to two minutes."""
_CLEARLY = 0.9
"""Of the error of all in 8 bits: a kind counts as sensitive if what is left without it is below."""


def run_price_list(
    subject: SubjectRef,
    name: str,
    settings: Settings,
    *,
    journal: Journal,
    resume: bool,
    progress: Progress,
    started: float | None = None,
    pace: Pace = USUAL,
) -> PriceList:
    """Try each precision, then each kind of operators, then the sensitive kinds together, until the time is over.

    ``settings``: allow a drop of ``ANYTHING``. Raises TogiError when the subject cannot be loaded or run.
    """
    judging = settings.judging
    if judging is None or not judging.on_data:
        raise SubjectError("prices of precision are measured on validation data: give --data FILE:function")
    with opened_study(
        subject,
        name,
        settings,
        journal=journal,
        resume=resume,
        progress=progress,
        started=started,
        pace=pace,
        judging=judging.model_copy(update={"by_all": True}),
        listed=lambda facts: listed_recipes(facts, settings, all_techniques()).all,
    ) as study:
        return _Pricing(study, judging, listed_recipes(study.subject.facts, settings, all_techniques())).run()


LAYERS = ChildCall(
    function="togi.study.layer_prices:measure_layers",
    request=LayersRequest,
    answer=LayerPrices,
    purpose="measured layer by layer",
)


class _Pricing:
    def __init__(self, study: OpenStudy, judging: Judging, listed: ListedRecipes) -> None:
        assert judging.measure is not None
        self._study, self._judging, self._listed, self._measure = study, judging, listed, judging.measure
        self._layers: LayerPrices | None = None

    def run(self) -> PriceList:
        study, runner, listed = self._study, StudyRunner(self._study), self._listed
        progress = study.progress
        progress.surveyed(study.subject.facts, len(listed.prices) + 1, study.budget.limit_s)
        progress.resumed(study.log.trials(), Budget.of(study.subject.settings))
        study.subject.make_truth(progress.message, whole=True)
        runner.try_reference()
        runner.try_each(listed.prices)
        if listed.whole is not None and self._ran(listed.whole) is not None:
            runner.try_each([listed.whole, *chain.from_iterable(self._kinds())])
            runner.try_each(self._joint_of_sensitive())
            self._layers = self._measured_layers(listed.whole)
        return self._record()

    def _kinds(self) -> Iterator[tuple[Recipe, Recipe]]:
        """A kind that is not in the model is refused at once, and is not asked for again."""
        for kind in OperatorKind:
            yield self._listed.kept[kind], self._listed.alone[kind]

    def _ran(self, recipe: Recipe) -> Trial | None:
        """Its trial, if it ran and was measured."""
        trial = self._study.log.last(recipe)
        return trial if trial is not None and trial.timing is not None else None

    def _joint_of_sensitive(self) -> list[Recipe]:
        """Recipes that keep the most sensitive kind, and the two most sensitive, in floating point. Errors of kinds do
        not add up, so that what two of them bring has to be tried."""
        whole = self._error_of(self._listed.whole)
        left = {kind: error for kind, recipe in self._listed.kept.items() if (error := self._error_of(recipe))}
        if whole is None:
            return []
        sensitive = sorted((k for k, error in left.items() if error < _CLEARLY * whole), key=lambda k: left[k])[:2]
        groups = [tuple(k for k in OperatorKind if k in sensitive[:count]) for count in range(1, len(sensitive) + 1)]
        return list(chain.from_iterable(self._listed.joint[group] for group in groups))

    def _measured_layers(self, whole: Recipe) -> LayerPrices | None:
        """In the time that is left, in one process, and once: the journal keeps them with the trial of ``whole``."""
        study, left_s, known = self._study, self._study.budget.left_s, self._known_layers(whole)
        if known is not None and known.complete:
            return known
        if left_s < _LAYERS_S:
            if known is None:
                study.notes.append("No time was left to measure single layers: a longer --time-limit does")
            return known
        subject, time_limit_s = study.subject, min(left_s, _MOST_FOR_LAYERS_S)
        request = LayersRequest(
            facts=subject.facts, signature=subject.signature, time_limit_s=time_limit_s, known=known
        )
        limits = Limits(timeout_s=2 * time_limit_s, memory_bytes=subject.settings.trial_memory_bytes)
        began = study.clock()
        try:
            layers = LAYERS.run(subject.pool, request, limits, study.progress.message)
        except TogiError as error:  # the prices are known all the same
            study.notes.append(f"Single layers were not measured: {error}")
            return known
        self._keep(whole, layers, study.clock() - began)
        return layers

    def _known_layers(self, whole: Recipe) -> LayerPrices | None:
        """What the journal has of them, calibrated on the same data."""
        trials = reversed(self._study.log.trials())
        return next((trial.layers for trial in trials if trial.recipe == whole and trial.layers), None)

    def _keep(self, whole: Recipe, layers: LayerPrices, took_s: float) -> None:
        last = self._study.log.last(whole)
        assert last is not None
        self._study.log.append(last.model_copy(update={"layers": layers, "cost_s": last.cost_s + took_s}))

    def _error_of(self, recipe: Recipe | None) -> float | None:
        trial = None if recipe is None else self._ran(recipe)
        return None if trial is None or trial.error is None else trial.error.rmse

    def _record(self) -> PriceList:
        study, listed, settings = self._study, self._listed, self._study.subject.settings
        every = (listed.reference, *listed.prices, *self._joint_of_sensitive())
        tried = [recipe for recipe in every if study.log.last(recipe) is not None]
        prices = _sorted([self._price(recipe) for recipe in dict.fromkeys(tried)])
        kinds = [
            KindPrices(kind=kind, alone=self._price(listed.alone[kind]), kept=self._price(kept))
            for kind, kept in listed.kept.items()
            if self._ran(kept) is not None or self._ran(listed.alone[kind]) is not None
        ]
        whole = None if listed.whole is None or study.log.last(listed.whole) is None else self._price(listed.whole)
        return PriceList(
            subject=study.subject.name,
            facts=study.subject.facts,
            measure=self._measure,
            metric=self._judging.metric,
            samples=self._samples(prices),
            prices=tuple(prices),
            whole=whole,
            kinds=tuple(kinds),
            layers=self._layers,
            notes=(*study.subject.facts.notes, *study.notes, *self._unlisted(tried)),
            command=shlex.join(["togi", "tune", study.subject.name, *_to_tune(settings)]),
            took_s=study.earlier_s + study.budget.elapsed_s,
        )

    def _price(self, recipe: Recipe) -> PricedRecipe:
        trial = self._study.log.last(recipe)
        exact = is_exact(recipe)
        if trial is None:
            late = "the time was over before it was tried: the same command with a longer --time-limit goes on"
            return PricedRecipe(recipe=recipe, exact=exact, outcome=Outcome.TIMED_OUT, reason=late)
        timing, error = trial.timing, trial.error
        return PricedRecipe(
            recipe=recipe,
            exact=exact,
            outcome=trial.outcome,
            reason="" if trial.outcome is Outcome.OK else trial.reason,
            latency_ms=None if timing is None else timing.latency_ms,
            speedup_x=None if timing is None else timing.speedup_x,
            rmse=None if error is None else error.rmse,
            accuracy=None if error is None else error.accuracy,
        )

    def _samples(self, prices: list[PricedRecipe]) -> int:
        return max((price.accuracy.drop.planned for price in prices if price.accuracy is not None), default=0)

    def _unlisted(self, tried: list[Recipe]) -> Iterator[str]:
        """Why something that a reader may look for is not in the list."""
        for trial in self._listed.excluded:
            yield f"{trial.recipe.choices[0].technique} is not in the list: {trial.reason}"
        if late := [recipe for recipe in self._listed.prices if recipe not in tried]:
            yield (
                f"The time was over before {len(late)} of the list were tried: the same command with a longer "
                "--time-limit goes on"
            )
        if self._listed.whole is None:
            yield "Sensitivity is measured in OpenVINO's form of a model, which cannot be had here"


def _sorted(prices: list[PricedRecipe]) -> list[PricedRecipe]:
    """In float32 the fastest first, the others behind; each with its speed over that."""
    exact = [price for price in prices if price.exact]
    exact.sort(key=lambda price: (price.outcome is not Outcome.OK, -price.speedup_x.median if price.speedup_x else 0.0))
    best = exact[0].speedup_x if exact and exact[0].outcome is Outcome.OK else None
    ordered = [*exact, *(price for price in prices if not price.exact)]
    return [_over(price, best) for price in ordered]


def _over(price: PricedRecipe, best: Interval | None) -> PricedRecipe:
    """With its speed over the best in float32, unless the machine disturbed one of them."""
    if best is None or price.speedup_x is None or price.outcome is not Outcome.OK:
        return price
    return price.model_copy(update={"over_float32_x": change(price.speedup_x, best)})


def _to_tune(settings: Settings) -> list[str]:
    """Arguments of the command that chooses by the same measure, but for the budget, which only the user knows."""
    given = settings.arguments()
    at = given.index("--max-drop")
    return [*given[:at], *given[at + 2 :], "--max-drop", "DROP"]
