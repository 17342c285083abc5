"""What ``torch.export`` does not capture, compiled where it stands: an alternative to the parts inside of it.

Blocks that repeat inside of it can be compiled in its place: what is compiled for one of them serves all. The artifact
is the compiler's options and nothing else: where it is put into a program, the live modules are compiled. Settings are
put round the calls of modules in the same way, also of those that cannot be compiled.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from operator import itemgetter
from pathlib import Path
from typing import final

from togi.artifact.manifest import Link, PartEntry
from togi.artifact.save import write_manifest
from togi.core.records import REFERENCE, Facts, Outcome, PartResult, Recipe, Trial, measured
from togi.decide.choose import latest
from togi.decide.faster import BETWEEN_PROCESSES
from togi.program.parts import Uncaptured
from togi.search.configurations import TechniqueConfiguration
from togi.study.composed import Made, Tried
from togi.study.open_study import OpenStudy
from togi.subject.effects import Effects
from togi.techniques import recipe, technique
from togi.techniques.base import IN_PLACE
from togi.worker.pool import environment_of

_ENGINE, _PLAIN, _MODE = "torch_compile", "eager", "default"
"""CUDA graphs write every call's outputs to the same memory, and Python in between may keep them."""
_WITH_PROOF = 1.5
"""It is compiled once more for the proof, with kernels that are there already."""


@final
class InPlace:
    """A module that is not captured, or the blocks that repeat in the program, and what was tried on it."""

    def __init__(self, whole: OpenStudy, *found: Uncaptured) -> None:
        """``found``: the forms of calls of modules of one class."""
        self.whole, self.found = whole, found
        self.paths = tuple(dict.fromkeys(each.path for each in found))
        self.label = self.paths[0] or "program"
        if self.repeats:
            self.label += f" and {len(self.paths) - 1} alike"
        self._tried = 0

    @property
    def repeats(self) -> bool:
        return len(self.paths) > 1

    def holds(self, path: str) -> bool:
        """Whether the part is inside of it, or it itself in some of its calls."""
        return any(not mine or f"{path}.".startswith(f"{mine}.") for mine in self.paths)

    def meets(self, other: InPlace) -> bool:
        """Whether one of them is inside of the other."""
        return any(map(self.holds, other.paths)) or any(map(other.holds, self.paths))

    def next(self) -> Made | None:
        """What is tried on it next, the most promising first; None where nothing is left, or too little time."""
        ways = sorted(filter(self._suits, self.whole.search.space.configurations), key=lambda w: -w.expected_speedup_x)
        if len(ways) == self._tried or self.whole.budget.explore_s(race=False) < _WITH_PROOF * self._cost_s(
            ways[self._tried]
        ):
            return None
        self._tried += 1
        return self.made(recipe(**{_ENGINE: ways[self._tried - 1].choice.options, REFERENCE: {}}))

    def _suits(self, way: TechniqueConfiguration) -> bool:
        """Blocks share what is compiled for one of them, unless it holds that one's weights."""
        options = way.choice.options
        fits = way.choice.technique == _ENGINE and options["mode"] == _MODE
        return self.found[0].compiles and fits and not (self.repeats and options["freezing"])

    def _cost_s(self, way: TechniqueConfiguration) -> float:
        """That of the whole program's operators, of which one block is compiled."""
        return way.cost_s / len(self.paths)

    def made(self, chosen: Recipe) -> Made:
        """Artifacts of a recipe of this engine, or of settings alone."""
        engine = chosen.find(_ENGINE)
        name, options = (_PLAIN, {}) if engine is None else (_ENGINE, engine.options)
        made = Made(Trial(recipe=chosen, outcome=Outcome.OK, reason="proven in its program alone"), {})
        link = Link(
            engine=name,
            folder=name,
            meta={"options": options, IN_PLACE: True},
            runtime=tuple(choice for choice in chosen.choices if technique(choice.technique).surrounds_calls),
        )
        for number, found in enumerate(self.found):
            folder = self.whole.subject.pool.folder / f"{self.label}-{chosen.id}-{number}.togi"
            folder.mkdir(exist_ok=True)
            write_manifest(
                folder,
                subject=f"{self.whole.subject.name}[{found.path}]",
                recipe=chosen,
                signature=self.whole.subject.signature if found.survey is None else found.survey.signature,
                facts=self.whole.subject.facts if found.survey is None else found.survey.facts,
                proof=made.trial,
                chain=(link,),
                environment={},
            )
            made.folders[str(number)] = folder
        return made

    def placed(self, made: Made) -> Iterator[tuple[PartEntry, Path]]:
        """For the artifact of the program, with the folder of its own."""
        for found, folder in zip(self.found, made.folders.values(), strict=True):
            entry = PartEntry(path=found.path, module=found.module, folder="", effects=Effects(), weights=found.weights)
            yield entry, folder

    def result(self, made: Made | None, tried: Collection[Tried]) -> PartResult | None:
        """``made``: what is in its place. ``tried``: the programs that were. None where it was not tried."""
        mine = [each for each in tried if self.label in each.made]
        if not mine:
            return None
        fastest = max(mine, key=lambda each: each.speedup_x)
        compiled = fastest.recipes[self.label].find(_ENGINE) is not None
        how = "compiled where it stands" if compiled else "with settings round its calls"
        return PartResult(
            path=self.paths[0],
            module=self.found[0].module,
            copies=self.paths,
            form=0,
            calls=sum(each.calls for each in self.found),
            share=sum(each.share for each in self.found),
            recipe=None if made is None else made.recipe,
            reason=how if made is not None else f"{how}: {fastest.fate()}",
            tried=len(mine),
        )


def by_torch(chosen: Recipe) -> bool:
    """Its engine is one of torch's own: where these are fastest for the parts, they gain more from compiling what is
    round them too."""
    return not any(technique(choice.technique).packages for choice in chosen.choices)


def fastest_settings(trials: Iterable[Trial], facts: Facts) -> Recipe | None:
    """The fastest recipe that is faster beyond doubt by what surrounds each call and nothing else, if there is one."""
    found = [
        (trial.speedup_x.median, trial.recipe)
        for trial in measured(latest(trials))
        if trial.eligible and BETWEEN_PROCESSES.faster(trial.speedup_x)
        if all(technique(choice.technique).surrounds_calls for choice in trial.recipe.choices)
        if not environment_of(trial.recipe, facts)
    ]
    return max(found, key=itemgetter(0))[1] if found else None
