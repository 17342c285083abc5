"""Records of how a program is cut. No torch: the parent process plans with them."""

from __future__ import annotations

from togi.artifact.manifest import PartEntry
from togi.core.recipe import PartKey
from togi.core.records import Machine, Obstacle, ProgramTree, Record, Request
from togi.subject.effects import Effects
from togi.worker.protocol import Survey


class Part(Record):
    """Calls of one form of a module, which can be captured."""

    key: PartKey
    copies: tuple[str, ...]
    """Modules that are alike and called alike: the same recipe serves each, with its own weights. Its own path is one
    of them."""
    module: str
    """Its class."""
    calls: int
    share: float
    """Of the program's time, of all copies together."""
    inputs: str
    """File of recorded calls, in the folder given: what it is tuned on."""
    proof: dict[str, str]
    """Files of the calls that the original makes of each copy, by path."""
    effects: Effects
    survey: Survey
    weights: dict[str, str]
    """Hash of what each copy is now, by path."""
    settings: dict[str, dict[str, str]]
    """Of each copy, by path: as ``PartEntry.settings``."""

    def entry(self, path: str) -> PartEntry:
        """What an artifact says of one of the copies."""
        key = PartKey(path=path, form=self.key.form)
        return PartEntry(
            key=key,
            module=self.module,
            effects=self.effects,
            weights=self.weights[path],
            settings=self.settings[path],
        )


class Uncaptured(Record):
    """A module for which an engine can stand where it is: an outermost one of the program that ``torch.export`` does
    not capture, or one form of calls of a block that repeats inside of it."""

    path: str
    """Empty for the program itself."""
    module: str
    """Its class."""
    share: float
    """Of the program's time."""
    calls: int
    weights: str
    """Hash of what it is now."""
    survey: Survey | None = None
    """Of its calls, of one form; None: that of the program, which it is."""
    compiles: bool = True
    """Not so TorchScript."""

    @property
    def entry(self) -> PartEntry:
        """What an artifact says of it: its calls change what the original's do."""
        key = PartKey(path=self.path, form=None)
        return PartEntry(key=key, module=self.module, effects=Effects(), weights=self.weights)


class CutRequest(Request):
    folder: str
    """Takes the recorded inputs of the parts."""
    device: str = "cpu"
    seed: int = 0
    machine: Machine | None = None
    """As the parent knows it."""
    callers: int = 1
    """How many call the program at once."""


class Cuts(Record):
    tree: ProgramTree
    parts: tuple[Part, ...]
    obstacles: tuple[Obstacle, ...]
    uncaptured: tuple[Uncaptured, ...] = ()
    repeated: tuple[tuple[Uncaptured, ...], ...] = ()
    """Blocks of one class each, outermost ones alone: compiled where they stand, they share what is compiled."""
