"""The base classes of techniques and engines.

A technique is one remedy in one file: ``techniques/<stage>/<id>.py`` holds one class, and the class's docstring is its
published page (``togi explain ID``), with these headings in this order: What it does, When it applies, When it refuses,
Claim, Source, Cost and risk.

The parent process plans with techniques and never imports torch, so a technique's file imports torch and its backend
inside its methods.
"""

from __future__ import annotations

import abc
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from togi.core.errors import Refused
from togi.core.packages import installed
from togi.core.records import Choice, Facts, Machine, Recipe, Scalar, Stage, Unused

if TYPE_CHECKING:
    from togi.graph.candidate import Candidate, Program
    from togi.graph.edit import EditableGraph
    from togi.subject.signature import Signature
    from togi.subject.training import TrainingStep


HEADINGS = ("What it does", "When it applies", "When it refuses", "Claim", "Source", "Cost and risk")
"""Of the page that a technique's docstring is, in this order."""

Options = dict[str, Scalar]

IN_PLACE = "in_place"
"""Of an engine's ``meta``: it has no files, and is made of the live module for which it stands."""
OWN_LAYOUT = "own_layout"
"""Provided by engines that arrange memory as they see fit: the layout of what they are given cannot matter."""
FOLDS_CONSTANTS = "folds_constants"
"""Provided by engines that, when they load the model, compute what depends on no input, drop calls that do nothing, and
make one of equal calls."""
OUTSIDE_TORCH = "outside_torch"
"""Provided by engines that compute outside of torch: modes of autograd and torch's choice of kernels cannot matter."""


@dataclass(frozen=True)
class Applies:
    """The technique may be tried on this subject."""


@dataclass(frozen=True)
class Refuses:
    """The technique must not, or need not, be tried on this subject: ``reason`` is one sentence for people."""

    reason: str
    why: Unused | None = None
    """The kind of reason, where that is not that it does not apply."""


@dataclass(frozen=True)
class Package:
    """A distribution that a technique needs, and the extra of togi that installs it."""

    distribution: str
    extra: str
    minimum: str | None = None
    alternatives: tuple[str, ...] = ()
    """Other distributions that hold the same package: of a device, of every night."""

    def missing(self) -> str | None:
        """Say what is wrong with it here; None when it is installed and new enough."""
        from packaging.version import Version

        version = next(filter(None, map(installed, (self.distribution, *self.alternatives))), None)
        if version is None:
            return f"{self.distribution} is not installed"
        if self.minimum is not None and Version(version) < Version(self.minimum):
            return f"{self.distribution} {version} is older than {self.minimum}"
        return None

    @property
    def fix(self) -> str:
        """The command that installs it."""
        return f"pip install 'togi[{self.extra}]'"


class Remedy(abc.ABC):
    """Something that makes models faster, with a page and a claim that can be measured: ``togi explain ID --prove``."""

    id: ClassVar[str]
    """The same as its file's name."""
    stage: ClassVar[Stage]
    exact: ClassVar[bool] = True
    """True: faithful up to rounding by design. False: approximate, eligible only where the user allowed it."""
    rank: ClassVar[int] = 0
    """Order among those of one stage: lower is applied first."""
    devices: ClassVar[frozenset[str]] = frozenset({"cpu", "cuda"})
    packages: ClassVar[tuple[Package, ...]] = ()
    infers: ClassVar[bool] = True
    """It is for calls."""


class Technique(Remedy):
    """A remedy that recipes choose. Stateless: one instance serves all trials."""

    captures: ClassVar[bool] = False
    """It works on what ``torch.export`` makes of the module."""
    calibrates: ClassVar[bool] = False
    """Some of its options take ranges from calibration inputs."""
    inductor: ClassVar[bool] = False
    """It compiles with Inductor, whose work is kept from run to run."""
    saves_memory_alone: ClassVar[bool] = False
    """Nobody gains time by it: it is tried where a limit of memory was given, or it was asked for by name."""
    needs: ClassVar[frozenset[str]] = frozenset()
    """Capabilities that other choices of the same recipe must provide, e.g. ``engine:openvino``."""
    provides: ClassVar[frozenset[str]] = frozenset()
    conflicts: ClassVar[frozenset[str]] = frozenset()
    """Capabilities that no other choice of the recipe may provide (it would do the same work again, or undo it)."""

    trains: ClassVar[bool] = False
    """It is for training steps: it has an ``apply_step``."""
    step_to_the_bit: ClassVar[bool] = False
    """A training step with it is the original's to the bit."""

    speedup: ClassVar[float] = 1.0
    """Expected over leaving it out, from experience; orders the first trials, decides nothing."""

    def needs_with(self, facts: Facts, options: Options) -> frozenset[str]:
        """``needs``, where the subject and the options decide it."""
        return self.needs

    def conflicts_with(self, facts: Facts, options: Options) -> frozenset[str]:
        """``conflicts``, where the subject and the options decide it."""
        return self.conflicts

    @property
    def surrounds_calls(self) -> bool:
        """Whether it is set round each call, and so round each call of what was saved and loaded."""
        return self.stage is Stage.RUNTIME

    @abc.abstractmethod
    def applies(self, facts: Facts) -> Applies | Refuses:
        """Whether to try it on such a subject. Pure, cheap, never raises. Package and device are checked elsewhere."""

    def options(self, facts: Facts) -> Sequence[Options]:
        """The option values worth trying, the most promising first; never empty where it applies."""
        return ({},)

    def mends(self, facts: Facts, options: Options) -> Sequence[Choice]:
        """Choices that are as fast as these options and err more: these are worth a trial once one of those was wrong,
        and none was right. Empty: they stand for themselves."""
        return ()

    def coarsens(self, facts: Facts, options: Options) -> Sequence[Choice]:
        """Choices of more bits: these options are worth a trial once one of those was right, and so fast that half of
        the bytes could make it the fastest. Empty: they stand for themselves."""
        return ()

    def expected_speedup(self, facts: Facts, options: Options) -> float:
        """``speedup``, where the subject and the options decide it."""
        return self.speedup

    def expected_memory(self, facts: Facts, options: Options) -> float:
        """Expected memory over leaving it out: where a limit is set, it orders the first trials; it decides nothing."""
        return 1.0

    def cost_s(self, facts: Facts, options: Options) -> float:
        """Expected seconds that building it adds to a trial; orders the first trials, decides nothing."""
        return 0.0

    def instructions(self, machine: Machine) -> tuple[str, ...]:
        """The instructions of ``machine`` on which its answers depend (``togi.core.instructions``). A file that it made
        there is not used where they are missing, unless it is verified there."""
        return ()

    def environment(self, facts: Facts, options: Options) -> dict[str, str]:
        """Environment variables that must be set before the process starts (such a trial starts a fresh process)."""
        return {}

    def preload(self) -> None:
        """Load what building it needs and running it does not: it is called before memory is measured."""

    def configure(self, candidate: Candidate, options: Options) -> Candidate:
        """Called on every technique of a recipe before the first ``apply``: settings that earlier stages must know."""
        return candidate

    def repro_setting(self, options: Options) -> str | None:
        """Python lines that set for a whole process what it sets round each call, for the script that repeats a trial
        elsewhere. Empty: nothing, since the exported model holds what it does. None: there is no such form."""
        return None if self.needs or self.surrounds_calls else ""

    @abc.abstractmethod
    def apply(self, candidate: Candidate, options: Options) -> Candidate:
        """Turn one candidate into the next. Never changes ``candidate.module`` in place: use ``candidate.copy()``.

        Raises:
            Refused: when only building could show that it does not apply.
        """

    def apply_step(self, step: TrainingStep, options: Options) -> TrainingStep:
        """Turn one training step into the next, in place: it is a copy that nobody else trains, or the user's own once
        a recipe is proven. What is changed in place is noted with ``step.changed``, so that it can be undone.

        Raises:
            Refused: when only building could show that it does not apply.
        """
        raise Refused(f"{self.id} is not for training steps")

    def step_lines(self, options: Options, recipe: Recipe, facts: Facts) -> str | None:
        """Python that does what ``apply_step`` does to a step before its first run, for a script without togi. It
        changes ``module`` and ``optimizer`` in place, and may define another ``loss``, a function of a module and a
        batch. Empty: nothing. None: there is no such form of a few lines.

        Args:
            recipe: all that is chosen together with it.
        """
        return None


class StepTechnique(Technique):
    """A technique for training steps alone."""

    infers = False
    trains = True
    devices = frozenset({"cpu"})  # where training steps are tuned so far

    def repro_setting(self, options: Options) -> str | None:
        return None

    def apply(self, candidate: Candidate, options: Options) -> Candidate:
        raise Refused(f"{self.id} is for training steps: togi tune --train")


class LowerPrecision(Technique):
    """A technique that computes floating-point operators in a smaller type: one of them in a recipe."""

    stage = Stage.PRECISION
    exact = False
    provides = frozenset({"precision"})
    conflicts = frozenset({"precision"})


class GraphRewrite(Technique):
    """A technique of the rewrite stage: edits the captured graph of the module."""

    stage = Stage.REWRITE
    captures = True
    nothing_to_do: ClassVar[str] = "nothing in the graph is of the kind that it rewrites"
    """Why it refuses a graph that ``edit`` left as it is."""

    def cost_s(self, facts: Facts, options: Options) -> float:
        return 1.0 + 0.02 * sum(facts.functions.values())

    def apply(self, candidate: Candidate, options: Options) -> Candidate:
        from togi.graph.edit import EditableGraph

        graph = EditableGraph.of(candidate)
        done = self.edit(graph, options)
        if not done:
            raise Refused(self.nothing_to_do)
        return graph.candidate(candidate).noting(done)

    @abc.abstractmethod
    def edit(self, graph: EditableGraph, options: Options) -> str:
        """Edit the graph in place.

        Returns what was done, for the candidate's notes; nothing where there was nothing to do. Raises Refused where
        the options make no sense.
        """


class Engine(Technique):
    """A technique of the engine stage: makes a ``Program`` of the candidate, and loads a saved one again.

    ``apply`` returns ``candidate.with_(program=...)``.
    """

    stage = Stage.ENGINE
    native: ClassVar[bool] = False
    """Its files are a program: machine code, TorchScript, or what a parser without checks reads. Whoever made them may
    do whatever the process may."""
    files: ClassVar[tuple[str, ...]] = ()
    """Names of the files that it writes into an artifact, the model first. Only these are exported."""
    compiles_when_loaded: ClassVar[bool] = False
    """Its files hold what it compiles, not what it compiled: loading them takes as long as building did."""

    def repro(self, options: Options, threads: int | None) -> str | None:
        """Python lines that make ``run(*tensors)`` from ``program`` (an ExportedProgram) and ``samples`` without togi.

        For the script that repeats a trial elsewhere; ``run`` returns tensors. None: there is no such form.
        """
        return None

    @abc.abstractmethod
    def load(self, folder: Path, meta: dict[str, Any], signature: Signature, threads: int | None) -> Program:
        """The program again from what ``Program.save(folder)`` wrote; ``meta`` is what it returned (JSON).

        Unpickles nothing. Raises ImportError where the package is missing and RuntimeError where this machine cannot
        run it: the loader then goes on along the fallback chain.
        """


def not_exportable(facts: Facts) -> Refuses | None:
    """For engines that start from ``torch.export``."""
    if facts.exportable:
        return None
    return Refuses(facts.export_error or "torch.export cannot capture it")


def fixes_decisions(facts: Facts) -> Refuses | None:
    """For engines that start from a trace where ``torch.export`` could not follow."""
    if facts.exportable or not facts.program:
        return None
    return Refuses("a trace would fix what the program's Python decides by values: its modules are traced")


def changes_buffers(facts: Facts, engine: str) -> Refuses | None:
    """For engines whose graph is a pure function: an updated buffer would stay at its first value, silently."""
    if not facts.buffers_change:
        return None
    return Refuses(
        f"the forward pass updates a buffer, and {engine} runs a graph without state: the update would be lost. "
        "Engines that keep buffers: eager, torch_compile without freezing."
    )


def no_compiler(facts: Facts) -> Refuses | None:
    """For engines that generate kernels: C++ on a CPU, Triton on a GPU, whose launchers are C."""
    on_cpu = facts.device == "cpu"
    if (facts.machine.compiler if on_cpu else facts.machine.c_compiler) is not None:
        return None
    language, package, variable = ("C++", "g++", "CXX") if on_cpu else ("C", "gcc", "CC")
    return Refuses(
        f"no {language} compiler was found, and the generated kernels must be compiled. Install one (apt-get install "
        f"{package}) or name it in the environment variable {variable}.",
        Unused.NOT_INSTALLED,
    )


def no_cuda_headers(facts: Facts) -> Refuses | None:
    """For engines that compile a whole program for a GPU: its C++ includes CUDA's headers (pytorch issues 150442 and
    197765)."""
    if facts.device == "cpu":
        return None
    if facts.machine.compiler is None:
        return Refuses(
            "no C++ compiler was found, and the generated program must be compiled. Install one (apt-get install g++).",
            Unused.NOT_INSTALLED,
        )
    if facts.machine.cuda_headers is None:
        return Refuses(
            "CUDA's headers (cuda.h, cuda_runtime.h) were not found, and the generated program includes them. Install "
            "the CUDA toolkit, or set CUDA_HOME to where it is; 'togi doctor --device cuda' looks for them.",
            Unused.NOT_INSTALLED,
        )
    return None
