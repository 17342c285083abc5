"""What ``torch.export`` does not capture, compiled where it stands: an alternative to the parts inside of it.

Blocks that repeat inside of it can be compiled in its place: what is compiled for one of them serves all. The artifact
is the compiler's options and nothing else: where it is put into a program, the live modules are compiled. Settings are
put round the calls of modules in the same way, also of those that cannot be compiled.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from operator import itemgetter

from togi.artifact.manifest import Link
from togi.artifact.save import write_manifest
from togi.core.recipe import REFERENCE, PartKey, ProgramRecipe, Recipe
from togi.core.records import Facts, Outcome, PartResult, Trial, measured
from togi.decide.choose import latest
from togi.decide.faster import BETWEEN_PROCESSES
from togi.program.parts import Uncaptured
from togi.search.configurations import TechniqueConfiguration
from togi.study.open_study import OpenStudy
from togi.study.parts.assembly import Assembly, TunedPart, fastest_of
from togi.techniques import recipe, technique
from togi.techniques.base import IN_PLACE
from togi.worker.pool import environment_of

_ENGINE, _PLAIN, _MODE = "torch_compile", "eager", "default"
"""CUDA graphs write every call's outputs to the same memory, and Python in between may keep them."""
_WITH_PROOF = 1.5
"""It is compiled once more for the proof, with kernels that are there already."""


class InPlace:
    """A module that is not captured, or the blocks that repeat in the program, and what was tried on it."""

    def __init__(self, whole: OpenStudy, *places: Uncaptured) -> None:
        """``places``: the forms of calls of modules of one class."""
        self._whole, self._places = whole, places
        self._paths = tuple(dict.fromkeys(place.path for place in places))
        self.key = PartKey(path=self._paths[0], form=None, alike=len(self._paths) - 1)
        self._tried = 0

    @property
    def repeats(self) -> bool:
        return len(self._paths) > 1

    def holds(self, path: str) -> bool:
        """Whether the part is inside of it, or it itself in some of its calls."""
        return any(not mine or f"{path}.".startswith(f"{mine}.") for mine in self._paths)

    def meets(self, other: InPlace) -> bool:
        """Whether one of them is inside of the other."""
        return any(map(self.holds, other._paths)) or any(map(other.holds, self._paths))

    def next(self) -> TunedPart | None:
        """What is tried on it next, the most promising first; None where nothing is left, or too little time."""
        every = self._whole.search.space.configurations
        ways = sorted(filter(self._suits, every), key=lambda way: -way.expected_speedup_x)
        way = next(iter(ways[self._tried :]), None)
        if way is None or self._whole.budget.explore_s(race=False) < _WITH_PROOF * self._cost_s(way):
            return None
        self._tried += 1
        return self.tuned(recipe(**{_ENGINE: way.choice.options, REFERENCE: {}}))

    def _suits(self, way: TechniqueConfiguration) -> bool:
        """Blocks share what is compiled for one of them, unless it holds that one's weights."""
        options = way.choice.options
        fits = way.choice.technique == _ENGINE and options["mode"] == _MODE
        return self._places[0].compiles and fits and not (self.repeats and options["freezing"])

    def _cost_s(self, way: TechniqueConfiguration) -> float:
        """That of the whole program's operators, of which one block is compiled."""
        return way.cost_s / len(self._paths)

    def tuned(self, chosen: Recipe) -> TunedPart:
        """With a recipe of this engine, or of settings alone."""
        engine = chosen.find(_ENGINE)
        name, options = (_PLAIN, {}) if engine is None else (_ENGINE, engine.options)
        proof = Trial(recipe=chosen, outcome=Outcome.OK, reason="proven in its program alone")
        link = Link(
            engine=name,
            folder=name,
            meta={"options": options, IN_PLACE: True},
            runtime=tuple(choice for choice in chosen.choices if technique(choice.technique).surrounds_calls),
        )
        subject, artifacts = self._whole.subject, []
        for number, place in enumerate(self._places):
            folder = subject.pool.folder / f"{self.key.label}-{chosen.id}-{number}.togi"
            folder.mkdir(exist_ok=True)
            write_manifest(
                folder,
                subject=f"{subject.name}[{place.path}]",
                recipe=chosen,
                signature=subject.signature if place.survey is None else place.survey.signature,
                facts=subject.facts if place.survey is None else place.survey.facts,
                proof=proof,
                chain=(link,),
            )
            artifacts.append((place.entry, folder))
        return TunedPart(proof, tuple(artifacts))

    def result(self, tuned: TunedPart | None, assemblies: Collection[Assembly]) -> PartResult | None:
        """``tuned``: what is in its place in the chosen program. ``assemblies``: all programs that were tried. None
        where it is in none of them."""
        mine = [assembly for assembly in assemblies if self.key in assembly.parts]
        if not mine:
            return None
        fastest = fastest_of(mine)
        compiled = fastest.parts[self.key].recipe.find(_ENGINE) is not None
        how = "compiled where it stands" if compiled else "with settings round its calls"
        return PartResult(
            key=self.key,
            module=self._places[0].module,
            copies=self._paths,
            calls=sum(place.calls for place in self._places),
            share=sum(place.share for place in self._places),
            recipe=None if tuned is None else tuned.recipe,
            reason=how if tuned is not None else f"{how}: {fastest.fate()}",
            tried=len(mine),
        )


def by_torch(chosen: Recipe) -> bool:
    """Its engine is one of torch's own: where these are fastest for the parts, they gain more from compiling what is
    round them too."""
    return not any(technique(choice.technique).packages for choice in chosen.choices)


def fastest_settings(trials: Iterable[Trial], facts: Facts) -> Recipe | None:
    """The fastest recipe that is faster beyond doubt by what surrounds each call and nothing else, if there is one."""
    faster = [
        (trial.speedup_x.median, trial.recipe)
        for trial in measured(latest(trials))
        if trial.eligible and BETWEEN_PROCESSES.faster(trial.speedup_x)
        if not isinstance(trial.recipe, ProgramRecipe)
        if all(technique(choice.technique).surrounds_calls for choice in trial.recipe.choices)
        if not environment_of(trial.recipe, facts)
    ]
    return max(faster, key=itemgetter(0))[1] if faster else None
