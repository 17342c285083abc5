"""Recipes: what is done to a subject, or to each part of a program."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import TypeAlias

from pydantic import Field
from typing_extensions import Self

from togi.core.backports import StrEnum
from togi.core.record import Record, Scalar

REFERENCE = "no_grad"
"""The technique that is, alone, the reference of every speed-up: plain eager without autograd."""
PLAIN_STEP = "plain_step"
"""The same of a training step: the user's own step as it is."""
REFERENCES = frozenset({REFERENCE, PLAIN_STEP})
PARTS = "parts"
"""What reports call a program whose parts have recipes of their own; ``togi explain parts`` is the page."""


class Stage(StrEnum):
    """Where in the pipeline a technique acts, in this order."""

    REWRITE = "rewrite"
    LAYOUT = "layout"
    PRECISION = "precision"
    ENGINE = "engine"
    ACTIVATIONS = "activations"
    OPTIMIZER = "optimizer"
    RUNTIME = "runtime"


STAGES: tuple[Stage, ...] = tuple(Stage)


class Choice(Record):
    """One technique with its options."""

    stage: Stage
    technique: str
    options: dict[str, Scalar] = Field(default_factory=dict)

    def __hash__(self) -> int:
        return hash(self.label)

    @property
    def label(self) -> str:
        """``torchscript(freeze=True)``: how people read it."""
        options = ", ".join(f"{key}={value}" for key, value in sorted(self.options.items()))
        return f"{self.technique}({options})" if options else self.technique


class Recipe(Record):
    """The choices made, in the order in which they are applied. Build one with ``togi.techniques.recipe``.

    Comparable, hashable, one line of JSON. ``Recipe()`` is the original, called as it is.
    """

    choices: tuple[Choice, ...] = ()

    def __hash__(self) -> int:
        return hash(self.choices)

    @property
    def listed(self) -> tuple[Choice, ...]:
        """The choices as reports list them."""
        return self.choices

    @property
    def every_choice(self) -> tuple[Choice, ...]:
        """All choices, those of a program's parts too: it is exact if each of them is."""
        return self.choices

    @property
    def label(self) -> str:
        return " + ".join(choice.label for choice in self.listed) or "original"

    @property
    def short_label(self) -> str:
        """``fold_batch_norm+openvino``: the label without the reference's ``no_grad``."""
        return "+".join(choice.label for choice in self.listed if choice.technique not in REFERENCES)

    @property
    def id(self) -> str:
        """Twelve hex digits that name this recipe in journals, folders and repro scripts."""
        canonical = json.dumps(self.model_dump(mode="json"), sort_keys=True)
        return hashlib.sha256(canonical.encode()).hexdigest()[:12]

    @property
    def engine(self) -> str:
        """The technique whose engine runs it; empty: it runs in eager PyTorch."""
        return next((choice.technique for choice in self.at(Stage.ENGINE)), "")

    def at(self, stage: Stage) -> tuple[Choice, ...]:
        return tuple(choice for choice in self.listed if choice.stage is stage)

    def find(self, technique: str) -> Choice | None:
        return next((choice for choice in self.listed if choice.technique == technique), None)

    @property
    def techniques(self) -> frozenset[str]:
        return frozenset(choice.technique for choice in self.listed)

    @property
    def trains(self) -> bool:
        """It is a recipe of a training step."""
        return PLAIN_STEP in self.techniques

    @property
    def is_reference(self) -> bool:
        """Plain eager under ``no_grad``, or the plain training step, to which every speed-up relates."""
        return len(self.techniques) == 1 and self.techniques <= REFERENCES


REFERENCE_RECIPE = Recipe(choices=(Choice(stage=Stage.RUNTIME, technique=REFERENCE),))
PLAIN_STEP_RECIPE = Recipe(choices=(Choice(stage=Stage.RUNTIME, technique=PLAIN_STEP),))


def reference_recipe(*, train: bool) -> Recipe:
    """What every speed-up of a study relates to."""
    return PLAIN_STEP_RECIPE if train else REFERENCE_RECIPE


class PartKey(Record):
    """Names a part of a program: a module in one form of its calls, or modules that are compiled where they stand."""

    path: str
    """Name of the module below the program; empty for the program itself."""
    form: int | None = 0
    """Number of the form among those of the module's calls. None: all of them, compiled where it stands."""
    alike: int = 0
    """How many other modules share what is compiled for this one where it stands."""

    @property
    def label(self) -> str:
        """``encoder``; ``decoder#1`` for its second form of calls; ``blocks.0 and 2 alike``."""
        form = f"#{self.form}" if self.form else ""
        alike = f" and {self.alike} alike" if self.alike else ""
        return f"{self.path or 'program'}{form}{alike}"


class ProgramRecipe(Recipe):
    """What is done to a program: a recipe for each of its tuned parts. All else of it runs as it is.

    ``choices`` are those of the reference, under which the whole runs.
    """

    parts: tuple[tuple[PartKey, Recipe], ...]
    """Sorted, so that equal recipes are equal records."""

    @classmethod
    def of(cls, parts: Mapping[PartKey, Recipe]) -> Self:
        return cls(choices=REFERENCE_RECIPE.choices, parts=tuple(sorted(parts.items(), key=lambda part: part[0].label)))

    def __hash__(self) -> int:
        return hash(self.parts)

    @property
    def listed(self) -> tuple[Choice, ...]:
        """``parts(encoder=openvino)`` before the choices of the whole."""
        of_parts: dict[str, Scalar] = {key.label: recipe.short_label for key, recipe in self.parts}
        return (Choice(stage=Stage.ENGINE, technique=PARTS, options=of_parts), *self.choices)

    @property
    def every_choice(self) -> tuple[Choice, ...]:
        return (*self.choices, *(choice for _, recipe in self.parts for choice in recipe.choices))


AnyRecipe: TypeAlias = ProgramRecipe | Recipe
"""For fields of records: both kinds are read back as what they were."""
