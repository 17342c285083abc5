"""What ``torch.export`` does not capture, compiled where it stands: an alternative to the parts inside of it.

Its artifact is the compiler's options and nothing else: where it is put into a program, the live module is compiled.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from pathlib import Path
from typing import final

from togi.artifact.manifest import Link, PartEntry
from togi.artifact.save import write_manifest
from togi.core.records import REFERENCE, Outcome, PartResult, Recipe, Trial
from togi.program.parts import Uncaptured
from togi.search.space import TechniqueConfiguration
from togi.study.composed import Made, Tried
from togi.study.runner import StudyRunner
from togi.subject.effects import Effects
from togi.techniques import recipe, technique
from togi.techniques.base import IN_PLACE

_ENGINE, _MODE = "torch_compile", "default"
"""CUDA graphs write every call's outputs to the same memory, and Python in between may keep them."""
_WITH_PROOF = 1.5
"""It is compiled once more for the proof, with kernels that are there already."""


@final
class InPlace:
    """A module that is not captured, and what was tried on it."""

    def __init__(self, whole: StudyRunner, found: Uncaptured) -> None:
        self.whole, self.found = whole, found
        self.label = found.path or "program"
        self._tried = 0

    def holds(self, path: str) -> bool:
        """Whether the part is inside of it, or it itself in some of its calls."""
        return not self.found.path or f"{path}.".startswith(f"{self.found.path}.")

    def next(self) -> Made | None:
        """What is tried on it next, the most promising first; None where nothing is left, or too little time."""
        every = self.whole.search.space.configurations
        ways = [each for each in every if each.choice.technique == _ENGINE and each.choice.options["mode"] == _MODE]
        ways.sort(key=lambda each: -each.expected_speedup_x)
        if len(ways) == self._tried or self.whole.explore_s(race=False) < _WITH_PROOF * ways[self._tried].cost_s:
            return None
        self._tried += 1
        return self._made(ways[self._tried - 1])

    def _made(self, way: TechniqueConfiguration) -> Made:
        options = way.choice.options
        chosen = recipe(**{_ENGINE: options, REFERENCE: {}})
        folder = self.whole.pool.folder / f"{self.label}-{chosen.id}.togi"
        folder.mkdir()
        runtime = tuple(choice for choice in chosen.choices if technique(choice.technique).surrounds_calls)
        proof = Trial(recipe=chosen, outcome=Outcome.OK, reason="proven in its program alone")
        survey = self.found.survey
        write_manifest(
            folder,
            subject=f"{self.whole.subject}[{self.found.path}]",
            recipe=chosen,
            signature=self.whole.signature if survey is None else survey.signature,
            facts=self.whole.facts if survey is None else survey.facts,
            proof=proof,
            chain=(Link(engine=_ENGINE, folder=_ENGINE, meta={"options": options, IN_PLACE: True}, runtime=runtime),),
            environment={},
        )
        return Made(proof, {self.found.path: folder})

    def placed(self, made: Made) -> Iterator[tuple[PartEntry, Path]]:
        """For the artifact of the program, with the folder of its own."""
        for path, folder in made.folders.items():
            yield (
                PartEntry(
                    path=path, module=self.found.module, folder="", effects=Effects(), weights=self.found.weights
                ),
                folder,
            )

    def result(self, made: Made | None, tried: Collection[Tried]) -> PartResult | None:
        """``made``: what is in its place. ``tried``: the programs that were. None where it was not tried."""
        mine = [each for each in tried if self.label in each.made]
        if not mine:
            return None
        fastest = max(mine, key=lambda each: each.speedup_x)
        reason = "" if made is not None else f"compiled where it stands: {fastest.fate()}"
        return PartResult(
            path=self.found.path,
            module=self.found.module,
            copies=(self.found.path,),
            form=0,
            calls=self.found.calls,
            share=self.found.share,
            recipe=None if made is None else made.recipe,
            reason=reason,
            tried=len(mine),
        )


def by_torch(chosen: Recipe) -> bool:
    """Its engine is one of torch's own: where these are fastest for the parts, they gain more from compiling what is
    round them too."""
    return not any(technique(choice.technique).packages for choice in chosen.choices)
