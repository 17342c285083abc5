"""Experience from earlier studies: how much each technique gained there, and what trials with it took.

Techniques come with the guesses of their authors (``expected_speedup``, ``cost_s``). Where a user's journal has studies
made on this machine, the guesses are moved towards their medians, by the more the more studies there are. That decides
in which order recipes are tried and nothing else: what is chosen was measured on the subject itself.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from typing_extensions import Self

from togi.core.choices import Objective
from togi.core.quantities import times
from togi.core.records import Facts, MeasuredTrial, Recipe, Study, Timing, measured
from togi.core.settings import Settings
from togi.decide.choose import latest
from togi.decide.faster import BETWEEN_PROCESSES
from togi.search.configurations import EAGER, TechniqueConfiguration
from togi.search.features import STAGE_SPREAD, RecipeFeatures
from togi.search.space import Space
from togi.techniques.base import Technique

HARDWARE = ("cpu_model", "int8_sums", "onednn_limit", "cpu_cores", "threads", "gpu")
"""A study that was made on another machine in one of these teaches nothing here: engines rank otherwise there."""
OTHER_VERSIONS = 0.5
"""What a study counts that was made with other versions of torch, the engines or the driver."""
OTHER_KIND = 0.5
"""What a study of another kind of model counts."""
GUESS = 1.0
"""The author's guess counts as much as so many studies."""
UNTOLD = math.log(BETWEEN_PROCESSES.band_x)
"""Two processes of one recipe differ by as much: a guess that is off by less is left as it is."""
CROWDED = 0.2
"""A trial in which threads waited for a core for more than this share of the time says what engines gain next to busy
neighbours: threads of one engine that wait for each other lose a factor of a hundred, those of another nothing. It
teaches nothing."""
FURTHEST = 1.5
"""No guess is moved by more than so many of the deviations that its stage's have: whatever a journal says, an engine is
tried where nothing else is faster."""
FURTHEST_COST = math.log(10.0)
_OTHER_SIZE_X = 4.0
"""What trials cost with a graph that is so many times larger, or smaller, counts half."""
SHOWN = 4

KINDS = {
    "detection": ("nms", "roi_align", "roi_pool", "deform_conv2d"),
    "recurrent": ("lstm", "gru", "rnn_tanh", "rnn_relu"),
    "transformer": ("scaled_dot_product_attention", "multi_head_attention_forward"),
    "convolutional": ("conv1d", "conv2d", "conv3d"),
}
"""Kinds of models by the torch functions that a forward pass calls; the first that it calls any of."""

Key = tuple[str, str]
"""A technique's id, or a choice's label, and the engine it was applied under (``eager`` where none)."""


def kind_of(facts: Facts) -> str:
    """One of ``KINDS``, or ``dense``."""
    return next((kind for kind, calls in KINDS.items() if any(name in facts.functions for name in calls)), "dense")


def relevance(study: Study, facts: Facts, settings: Settings) -> float:
    """How much a study counts for a subject with ``facts``: from 0, not at all, to 1."""
    there = study.facts
    if (there.device, there.callers, there.train) != (facts.device, facts.callers, facts.train):
        return 0.0
    if study.settings.get("objective", Objective.LATENCY) != settings.objective:
        return 0.0
    if any(getattr(there.machine, field) != getattr(facts.machine, field) for field in HARDWARE):
        return 0.0
    versions = OTHER_VERSIONS if there.machine.differences(facts.machine) else 1.0
    return versions * (1.0 if kind_of(there) == kind_of(facts) else OTHER_KIND)


@dataclass(frozen=True)
class Seen:
    """One number from one study, with what the study counts."""

    value: float
    weight: float


class Experience:
    """Corrections of what the authors of techniques expect. Without studies it corrects nothing."""

    def __init__(self, *, left_out: int = 0, unreadable: int = 0) -> None:
        """``left_out``, ``unreadable``: how many studies teach nothing, for ``sentence``."""
        self._latency: dict[Key, list[Seen]] = defaultdict(list)
        """Log latency that a choice adds, less what its author expected of it there."""
        self._cost: dict[str, list[Seen]] = defaultdict(list)
        """Log of what a trial took over what was expected, by the technique that was expected to take longest, and by
        its choice. Models as large as this one count most."""
        self._alone: dict[str, list[Seen]] = defaultdict(list)
        """Log speed-up of each technique by itself."""
        self._kind, self._size = "", 1
        self.used = self.alike = self.other_versions = 0
        self.left_out, self.unreadable = left_out, unreadable

    @classmethod
    def of(
        cls,
        studies: Iterable[Study],
        facts: Facts,
        settings: Settings,
        techniques: Mapping[str, Technique],
        *,
        left_out: int = 0,
        unreadable: int = 0,
    ) -> Self:
        """What these studies teach one that begins with ``facts`` and ``settings``: the newest first, and of one
        subject the newest alone. ``left_out``, ``unreadable``: how many more there were."""
        experience = cls(left_out=left_out, unreadable=unreadable)
        experience._kind, experience._size = kind_of(facts), _size(facts)
        subjects = set()
        for study in studies:
            weight = relevance(study, facts, settings)
            subject = (study.subject, study.facts.parameters)
            if weight == 0:
                experience.left_out += 1
            elif subject not in subjects and experience._learn(study, weight, techniques):
                subjects.add(subject)
                experience.used += 1
                experience.alike += kind_of(study.facts) == experience._kind
                experience.other_versions += bool(study.facts.machine.differences(facts.machine))
        return experience

    def log_latency(self, features: RecipeFeatures) -> float:
        """What to add to ``features.expected_log_latency``."""
        family = _family(features)
        return sum(self._shift(configuration, family) for configuration in features.configurations)

    def log_cost(self, features: RecipeFeatures) -> float:
        """What to add to ``features.expected_log_cost``."""
        technique, label = _costliest(features)
        learned = _towards(0.0, self._cost.get(technique, ()), FURTHEST_COST)
        return learned if label == technique else _towards(learned, self._cost.get(label, ()), FURTHEST_COST)

    def sentence(self, tried: Collection[str]) -> str:
        """What was learned of the techniques ``tried`` (ids), for people; empty where nothing was."""
        gains = {id: math.exp(_median(seen)) for id, seen in self._alone.items() if id in tried}
        if not gains:
            return ""
        most = sorted(gains, key=lambda id: -abs(math.log(gains[id])))[:SHOWN]
        medians = ", ".join(f"{id} {times(gains[id])}" for id in sorted(most, key=lambda id: -gains[id]))
        asides = [
            f"{self.alike or 'none'} of {self._kind} models",
            *([f"{self.other_versions} with other versions, which count half"] if self.other_versions else ()),
            *([f"{self.left_out} of other machines or objectives left out"] if self.left_out else ()),
            *([f"{self.unreadable} could not be read"] if self.unreadable else ()),
        ]
        studies = "study" if self.used == 1 else "studies"
        return f"what to try first, from {self.used} earlier {studies} here ({'; '.join(asides)}): {medians}"

    def _shift(self, configuration: TechniqueConfiguration, family: str) -> float:
        """First what the technique did with any options, then what it did with these."""
        furthest = FURTHEST * STAGE_SPREAD[configuration.technique.stage]
        technique = _towards(0.0, self._latency.get((configuration.technique.id, family), ()), furthest)
        if not configuration.choice.options:
            return technique
        return _towards(technique, self._latency.get((configuration.label, family), ()), furthest)

    def _learn(self, study: Study, weight: float, techniques: Mapping[str, Technique]) -> bool:
        """Whether there was anything to learn. A study whose facts or techniques mean nothing here teaches nothing."""
        eligible = [trial for trial in measured(latest(study.trials)) if trial.eligible]
        known = {
            trial.recipe: trial
            for trial in eligible
            if trial.recipe.techniques <= techniques.keys()
            and (trial.recipe.is_reference or (trial.recipe.choices and not crowded(trial.timing)))
        }
        if not any(recipe.is_reference for recipe in known):
            return False
        try:
            space = Space.listing(known, study.facts, techniques)
            shifts, alone, costs = _observed(known, space)
        except Exception:  # options of another togi, or a third party's technique
            self.unreadable += 1
            return False
        for key, values in shifts.items():
            self._latency[key].append(Seen(_middle(values), weight))
        for id, values in alone.items():
            self._alone[id].append(Seen(_middle(values), weight))
        near = 1 / (1 + (math.log(_size(study.facts) / self._size) / math.log(_OTHER_SIZE_X)) ** 2)
        for id, values in costs.items():
            self._cost[id].append(Seen(_middle(values), weight * near))
        return bool(shifts)


def _observed(
    known: Mapping[Recipe, MeasuredTrial], space: Space
) -> tuple[dict[Key, list[float]], dict[str, list[float]], dict[str, list[float]]]:
    """Of one study: the shifts of each choice, wherever the same recipe was measured without it; the log speed-up of
    each technique alone; and what trials took next to what was expected.

    An engine that was tried with other choices only, as a short study does, is held to be what they gained together.
    """
    shifts: dict[Key, list[float]] = defaultdict(list)
    alone: dict[str, list[float]] = defaultdict(list)
    costs: dict[str, list[float]] = defaultdict(list)
    for recipe, measurement in known.items():
        features = space.features(recipe)
        if (cost_s := measurement.trial.cost_s) > 0:
            for key in dict.fromkeys(_costliest(features)):
                costs[key].append(math.log(cost_s) - features.expected_log_cost)
        for configuration in features.configurations:
            without = _without(recipe, configuration, space)
            if without == recipe or without not in known:
                continue
            gained = _log_speedup(measurement) - _log_speedup(known[without])
            _note(shifts, configuration, features, space.features(without), gained)
            if without.is_reference:
                alone[configuration.technique.id].append(gained)
    noted, reference = {id for id, _ in shifts}, space.features(space.reference)
    for recipe, measurement in known.items():
        features = space.features(recipe)
        if features.engine is not None and features.engine.technique.id not in noted:
            _note(shifts, features.engine, features, reference, _log_speedup(measurement))
            alone[features.engine.technique.id].append(_log_speedup(measurement))
    return shifts, alone, costs


def _note(
    shifts: dict[Key, list[float]],
    configuration: TechniqueConfiguration,
    features: RecipeFeatures,
    without: RecipeFeatures,
    gained: float,
) -> None:
    """By how much the recipe gained less than was expected over the one ``without`` the choice, in log latency."""
    family = _family(features)
    for key in {(configuration.technique.id, family), (configuration.label, family)}:
        shifts[key].append(without.expected_log_latency - features.expected_log_latency - gained)


def _without(recipe: Recipe, configuration: TechniqueConfiguration, space: Space) -> Recipe:
    """The recipe less one choice; a grad mode becomes that of the reference."""
    remaining = [other for other in space.configurations_of(recipe) if other is not configuration]
    if configuration.is_grad_mode:
        remaining += [grad_mode for grad_mode in space.configurations_of(space.reference) if grad_mode not in remaining]
    return space.recipe(remaining)


def crowded(timing: Timing) -> bool:
    return timing.noise.waiting > CROWDED


def _log_speedup(measurement: MeasuredTrial) -> float:
    return math.log(measurement.speedup_x.median)


def _family(features: RecipeFeatures) -> str:
    return features.engine.technique.id if features.engine else EAGER


def _costliest(features: RecipeFeatures) -> tuple[str, str]:
    """The technique that is expected to take longest to build, and its choice; ``eager`` where none takes any time."""
    costliest = max(features.configurations, key=lambda configuration: (configuration.cost_s, configuration.is_engine))
    takes_time = costliest.cost_s > 0 or costliest.is_engine
    return (costliest.technique.id, costliest.label) if takes_time else (EAGER, EAGER)


def _size(facts: Facts) -> int:
    """Of its graph, about: how many of torch's functions a forward pass calls."""
    return max(1, sum(facts.functions.values()))


def _towards(guess: float, seen: Sequence[Seen], furthest: float) -> float:
    """The guess, moved towards the median of what was seen; no further than ``furthest`` from 0."""
    if not seen or abs(off := _median(seen) - guess) <= UNTOLD:
        return guess
    weight = sum(number.weight for number in seen)
    return max(-furthest, min(furthest, guess + off * weight / (weight + GUESS)))


def _median(seen: Sequence[Seen]) -> float:
    """Weighted: half of the weight lies on either side."""
    ordered = sorted(seen, key=lambda number: number.value)
    half, below = sum(number.weight for number in seen) / 2, 0.0
    for number, middle in enumerate(ordered):
        below += middle.weight
        if math.isclose(below, half) and number + 1 < len(ordered):
            return (middle.value + ordered[number + 1].value) / 2
        if below > half:
            return middle.value
    return ordered[-1].value


def _middle(values: Sequence[float]) -> float:
    return _median([Seen(value, 1.0) for value in values])
