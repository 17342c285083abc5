"""Records that the parts of togi exchange: frozen, all of them JSON.

A record crosses processes, rests in the journal and appears in ``--json`` output in the same form. There is no torch in
here and nothing in here is ever a tensor, a module or a pickle. Units stand in the names; a ratio is ``speedup_x``.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any

from pydantic import Field

from togi.core.backports import StrEnum
from togi.core.choices import AccuracyMeasure, Direction, OperatorKind, ScoreForm
from togi.core.instructions import saturates
from togi.core.recipe import PLAIN_STEP_RECIPE as PLAIN_STEP_RECIPE
from togi.core.recipe import REFERENCE as REFERENCE
from togi.core.recipe import REFERENCE_RECIPE as REFERENCE_RECIPE
from togi.core.recipe import REFERENCES as REFERENCES
from togi.core.recipe import STAGES as STAGES
from togi.core.recipe import AnyRecipe, PartKey
from togi.core.recipe import Choice as Choice
from togi.core.recipe import Recipe as Recipe
from togi.core.recipe import Stage as Stage
from togi.core.recipe import reference_recipe as reference_recipe
from togi.core.record import Record as Record  # the base stands apart so that ``togi check`` loads no study
from togi.core.record import Request as Request
from togi.core.record import Scalar as Scalar

SCHEMA_VERSION = 1
"""Version of every JSON document and journal that togi writes. Raised when a field changes its meaning or goes away."""


def now() -> str:
    """This moment as records keep it: ISO 8601, UTC, to the second."""
    return datetime.now(timezone.utc).isoformat(timespec="seconds")


class Outcome(StrEnum):
    """The ending of a trial."""

    OK = "ok"
    REFUSED = "refused"
    MISSING = "missing"
    FAILED = "failed"
    WRONG = "wrong output"
    TIMED_OUT = "timed out"
    CRASHED = "crashed"
    OUT_OF_MEMORY = "out of memory"
    UNSTABLE = "unstable"


class Unused(StrEnum):
    """Kinds of reasons why a recipe cannot be chosen, those that a person can do most about first."""

    NOT_INSTALLED = "not installed"
    NOT_ALLOWED = "not allowed"
    NO_TIME = "no time"
    IN_VAIN = "tried in vain"
    """It was wrong, or it broke, or the machine was too noisy to judge it."""
    NOT_WORTH_IT = "not worth it"
    """Too little was expected of it."""
    ANOTHER_DEVICE = "another device"
    DOES_NOT_APPLY = "does not apply"


class Ending(Record):
    """The reason why a trial cannot go on."""

    outcome: Outcome
    reason: str
    stage: str
    fix: str = ""
    """The command that would fix it, if there is one."""
    traceback: str = ""


class Interval(Record):
    """A median with its confidence interval (``low <= median <= high``)."""

    median: float
    low: float
    high: float

    @property
    def has_ends(self) -> bool:
        """There were enough rounds for it to have ends at all."""
        return math.isfinite(self.low) and math.isfinite(self.high)


class TensorFacts(Record):
    """One tensor input. ``shape`` holds None where the size is dynamic (differs between samples, or declared so)."""

    name: str
    dtype: str
    shape: tuple[int | None, ...]


class Port(Record):
    """An input or output of an engine's own file. ``shape`` holds None where any size is taken."""

    name: str | None
    """In the file; None where it goes by its position."""
    path: str
    """The tensor of the original's call or result that it is."""
    dtype: str
    shape: tuple[int | None, ...]


class Interface(Record):
    """The facts of an engine's own file that its caller needs, besides the engine's documentation."""

    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    """For each tensor of the result; two of them may be one output of the file."""
    settings: dict[str, Scalar] = Field(default_factory=dict)
    """Of the engine, under its own names, that differ from its defaults."""


class Machine(Record):
    """The machine that a measurement depends on. Records of machines with ``differences`` are not compared silently."""

    cpu_model: str
    cpu_flags: tuple[str, ...] = ()
    onednn_limit: str = ""
    """``ONEDNN_MAX_CPU_ISA`` where it is set: oneDNN (in torch and in OpenVINO) uses no later instructions."""
    cpu_cores: int
    memory_bytes: int
    threads: int
    os: str
    python: str
    versions: dict[str, str] = Field(default_factory=dict)
    """Installed version of torch and of each backend, by distribution name."""
    gpu: str | None = None
    gpu_memory_bytes: int | None = None
    gpu_driver: str | None = None
    compiler: str | None = None
    """The C++ compiler that torch's engines call."""
    c_compiler: str | None = None
    """The C compiler that Triton calls, which generates the kernels for a GPU."""
    cuda_headers: str | None = None
    """Folder of CUDA's headers, which AOTInductor compiles against on a GPU."""
    allocators: dict[str, str] = Field(default_factory=dict)
    """Shared libraries of faster allocators found here: name -> path."""

    @property
    def int8_sums(self) -> str:
        """How 8-bit products are added up. Processors of one name (``AMD EPYC`` of a cloud) differ in it."""
        return "saturating" if saturates(self.cpu_flags, self.onednn_limit) else "exact"

    def differences(self, other: Machine, *, python: bool = False) -> list[str]:
        """The checked fields in which ``other`` differs, as sentences. ``python``: its version too, since small calls
        depend on it."""
        checked = ("cpu_model", "int8_sums", "onednn_limit", "cpu_cores", "threads", "gpu", "gpu_driver")
        facts = [(field, getattr(self, field), getattr(other, field)) for field in checked]
        if python:
            facts.append(("python", _minor(self.python), _minor(other.python)))
        packages = sorted(self.versions.keys() | other.versions.keys())
        none = "not installed"
        facts += [(name, self.versions.get(name, none), other.versions.get(name, none)) for name in packages]
        return [f"{name}: {here!r} here, {there!r} there" for name, here, there in facts if here != there]


def _minor(python: str) -> str:
    """The version without its last part."""
    return ".".join(python.split(".")[:2])


PHASES = ("forward", "loss", "forward and loss", "backward", "optimizer", "the rest")
"""Of a training step, in its order. The third is both before it, where they were compiled together."""


class Facts(Record):
    """Facts of a subject before any trial. Techniques decide on these alone whether they apply."""

    device: str = "cpu"
    """``cpu`` or ``cuda``."""
    machine: Machine
    module_class: str
    modules: dict[str, int] = Field(default_factory=dict)
    """How many modules of each class it holds; torch.nn classes count under their own name for subclasses too."""
    functions: dict[str, int] = Field(default_factory=dict)
    """How often one forward pass calls each torch function, e.g. ``conv2d``, ``batch_norm``, ``linear``."""
    parameters: int = 0
    parameter_bytes: int = 0
    parameter_dtypes: tuple[str, ...] = ()
    buffers_change: bool = False
    """The forward pass updates a buffer (a counter, a running average, a cache)."""
    training: bool = False
    """It runs in training mode, or parts of it do."""
    random: bool = False
    """Two calls with the same input differ unless the seed is set before each."""
    repeatable: bool = True
    """Two calls with the same input and the same seed agree to the bit."""
    tf32: tuple[str, ...] = ()
    """Of ``convolution``, ``matmul`` and ``rnn``, which plain eager runs in TensorFloat-32 on the device, by torch's
    flags as the subject left them."""
    inputs: tuple[TensorFacts, ...] = ()
    outputs: tuple[TensorFacts, ...] = ()
    non_finite_outputs: bool = False
    denormals: bool | None = None
    """A pass over the first sample meets denormal numbers, in weights, inputs or intermediates. None: unknown."""
    samples: int = 1
    program: bool = False
    """It is Python code round modules: ``model.generate``, a pipeline, a function."""
    autograd_off: bool = False
    """It is a program that runs all of its modules with autograd off, whoever calls it."""
    part: bool = False
    """It is a part of a program, whose own code, and other parts, run between its calls."""
    steps: bool = False
    """It is a part that a program calls again and again with what the last call made longer in its arguments: a cache,
    which the program leaves as it is meanwhile."""
    exportable: bool = True
    export_error: str | None = None
    """Why ``torch.export`` cannot capture it (first line), if it cannot."""
    idle_rewrites: dict[str, str] = Field(default_factory=dict)
    """By choice, e.g. ``pad_channels(multiple=8)``: why a rewrite finds nothing to do in the captured graph."""
    flops: int | None = None
    """Floating-point operations of one pass over the samples (torch.utils.flop_counter: matmul, conv, attention)."""
    winograd_flops: int | None = None
    """Of them, in dense 3x3 convolutions of stride 1, which Winograd's algorithm computes with fewer."""
    latency_ms: float | None = None
    """A first, rough time of one eager pass over all samples; for planning only."""
    callers: int = 1
    """How many call at once, in threads of one process, while it is measured."""
    train: bool = False
    """It is a training step. ``samples``, ``latency_ms``, ``random`` and the like are those of the step."""
    optimizer: str = ""
    """Of the step: its class; empty where it has none."""
    optimizer_options: tuple[str, ...] = ()
    """Of ``fused``, ``foreach`` and ``capturable``, which the optimizer's groups know."""
    phases_ms: dict[str, float] = Field(default_factory=dict)
    """Of a training step: ``latency_ms`` by phase (``PHASES``), as rough as that."""
    blocks: tuple[int, ...] = ()
    """Of a training step's module: how many parts there are of each kind that repeats (``repeated_parts``)."""
    own_loop: bool = False
    """The step is the user's whole loop body, which calls backward and the optimizer by itself."""
    notes: tuple[str, ...] = ()
    """What the user should know of this subject, in sentences."""

    @property
    def dynamic(self) -> bool:
        return any(None in tensor.shape for tensor in self.inputs)


class LeafError(Record):
    """The distance of one output tensor from the truth. Relative to the truth's root mean square; ``units`` is in
    multiples of plain eager's own error (floored)."""

    name: str
    rmse: float
    max_abs: float
    units: float
    limit_units: float = 8.0
    """With how many it is still faithful."""


class ForcedCalls(Record):
    """Calls of one part of a program, as the original makes them: with plain eager's own decisions before each."""

    path: str
    calls: int
    units: float
    """Worst call: error in multiples of plain eager's own error."""
    faithful: bool
    problem: str = ""


class Decisions(Record):
    """What a candidate returns besides floating-point numbers (tokens, labels, text, how many), left to its own
    decisions, against the original's: over all samples."""

    agree: int
    total: int
    """Where one has more of them than the other, of the one with more."""
    sample: int | None = None
    """The first sample, from 1, in which a decision differs. None: all agree."""
    output: str = ""
    """Where in what is returned."""
    position: tuple[int, ...] = ()
    """And where in that tensor. Of tensors of unequal sizes what both have is compared, and its end is the first
    difference where there is no other."""


class Drop(Record):
    """By how much a mean of samples got worse, with an interval (``togi.decide.paired``)."""

    mean: float
    low: float
    high: float
    seen: int
    """Independent samples: groups, where samples form groups."""
    planned: int
    losses: int | None = None
    """Samples that the original answers rightly and the candidate wrongly. None: scores are not right or wrong."""
    gains: int | None = None
    """The other way round. None: there can be none, since the original's own answers count as right."""

    @property
    def complete(self) -> bool:
        return self.seen >= self.planned


class OwnMetricReport(Record):
    """What the user's own metric says of a candidate on validation data: means over the groups that were seen."""

    name: str
    """Its locator, or ``metric`` where the subject brought it."""
    code: str
    """The sha256 of its code and its declared direction. What it calls is not looked at."""
    original: float
    candidate: float
    better: Direction


class Accuracy(Record):
    """A candidate on validation data, next to the original."""

    measure: AccuracyMeasure
    confirmation: bool
    """Of the half of the data that confirms a choice. False: of the half by which is chosen."""
    drop: Drop
    data: str = ""
    """The sha256 of all of the data, with labels and groups. Empty: written by a version that did not keep it."""
    metric: OwnMetricReport | None = None
    """Of the measure ``own``."""
    original: float | None = None
    """The share of labels that the original hits, of the measure ``accuracy``: a mean over what was seen."""
    candidate: float | None = None
    form: ScoreForm | None = None
    """How the scores were read, where that decides what is right. None: it does not, or an earlier version."""
    outputs: tuple[str, ...] = ()
    """Names of the outputs that were judged; all here is of the first of them, which lost most. Empty: by the user's
    function, which is given all of them, or an earlier version."""


class ErrorReport(Record):
    """The verdict of verification on one candidate."""

    faithful: bool
    units: float
    """Worst output: error in multiples of plain eager's own error."""
    rmse: float
    """Worst output: root-mean-square error relative to the truth's root mean square."""
    max_abs: float
    """Worst output: largest absolute error relative to the truth's root mean square."""
    leaves: tuple[LeafError, ...] = ()
    unproven: str = ""
    """Why being near the truth shows nothing of an output: plain eager itself is far from it. Without a full stop.
    Empty where it shows something, or where the output is eager's to the bit."""
    problems: tuple[str, ...] = ()
    """What is wrong beyond numbers: structure, dtype, aliasing, mutated inputs, unrepeatable. Any makes it WRONG."""
    notes: tuple[str, ...] = ()
    """What deserves knowing and is not wrong: other strides than the original's, a copy instead of a view, ..."""
    metric: float | None = None
    """Of the user: what it says of a pass over the samples. None: there is none, or it could not be computed."""
    metric_original: float | None = None
    better: Direction = Direction.HIGHER
    """Which values of the metric are better."""
    metric_problem: str = ""
    """Why the metric could not be computed, in words that follow "the metric"."""
    accuracy: Accuracy | None = None
    """On validation data. None: there are none, or it was faithful or wrong before."""
    divergence: str = ""
    """Of a program in parts: the first decision (a token, a box, a number of results) that it takes differently."""
    forced: tuple[ForcedCalls, ...] = ()
    """Where it decides differently: its parts on the calls that the original makes."""
    decisions: Decisions | None = None
    """None: it returns nothing but floating-point numbers."""
    other_sizes: bool = False
    """An output has another size than the original's, though the input is as large as the first: values decide it."""
    other_decisions: bool = False
    """A few of the integers or truth values of an output are others: a rounding may have decided between two that are
    as good as equal, or the candidate is wrong."""

    @property
    def shown_right(self) -> bool:
        """It is as right as plain eager, and that shows something: its results do, or, where these show nothing, each
        of its parts with eager's decisions."""
        parts_are_right = all(part.faithful for part in self.forced)
        return self.faithful and parts_are_right and (not self.unproven or bool(self.forced))


class Noise(Record):
    """The report of a measurement on its own noise."""

    spread: float = 0.0
    """Interquartile range over the median of the raw times."""
    waiting: float = 0.0
    """Share of wall time in which our runnable threads waited for a core."""
    stolen: float = 0.0
    """Share of the machine's time stolen by the hypervisor."""
    neighbours: float = 0.0
    """Cores kept busy by other processes, on average."""
    warnings: tuple[str, ...] = ()


class Timing(Record):
    """Paired measurement of one candidate against the reference: rounds taken in turns."""

    latency_ms: Interval
    """What was raced: one pass over all samples, divided by the number of its calls. Of one caller that is the time of
    a call, of several the time in which they are given one answer. Where the first call was the objective: ``start_ms``
    of several starts."""
    speedup_x: Interval
    """Reference time over candidate time, per round; above 1 is faster."""
    rounds_ms: tuple[tuple[float, float], ...] = ()
    """Raw: (reference, candidate) of every round, in ms per sample."""
    confidence: float = 0.95
    """Of the interval of the speed-up. In a race of several each has more, so that all of them hold together."""
    call_ms: float | None = None
    """If that is not the time of a call: the time next to the other callers (95 of 100 at most), or once it is warm."""
    first_call_ms: float = 0.0
    build_s: float = 0.0
    start_ms: float | None = None
    """From loading its files to the first answer, in a fresh process. None: it was not loaded from files."""
    energy_mj: float | None = None
    """What the whole GPU takes for a call, in millijoules, while this recipe alone runs. None: it does not tell."""
    noise: Noise = Field(default_factory=Noise)

    @property
    def waited_ms(self) -> float:
        """The time that a caller waits for an answer."""
        return self.latency_ms.median if self.call_ms is None else self.call_ms

    @property
    def reference_ms(self) -> float:
        """Median time of the reference in the rounds in which this was measured: what ``latency_ms`` compares with."""
        if not self.rounds_ms:  # only its medians are known
            return self.latency_ms.median * self.speedup_x.median
        return statistics.median(reference_ms for reference_ms, _ in self.rounds_ms)


class Footprint(Record):
    """Memory of one candidate in its own process."""

    idle_bytes: int
    """What it keeps resident between calls: weights, engine, code caches; beyond the process before building it."""
    peak_bytes: int
    """High-water mark of a call above idle."""
    allocator_peak_bytes: int | None = None
    """The same by torch's allocator, exact, where it can be observed."""

    @property
    def total_bytes(self) -> int:
        return self.idle_bytes + self.peak_bytes


class LayerPrice(Record):
    """How sensitive one layer is to 8 bits. Errors are relative root-mean-square ones of the worst output; times are of
    the processor, for a call by one thread."""

    name: str
    """In OpenVINO's form of the model."""
    kind: OperatorKind
    alone: float
    """The error if it alone has 8 bits."""
    alone_ms: float
    kept: float
    """The error that is left if it alone stays in floating point."""
    kept_ms: float


class LayerStep(Record):
    """So many of the most sensitive layers in floating point, all others in 8 bits."""

    kept: int
    rmse: float
    ms: float


class LayerPrices(Record):
    """All layers of one model with one calibration, whose biases are not corrected."""

    inputs: int
    """By which errors were measured."""
    count: int
    """Of layers that can have 8 bits; there was no time for those that are not in ``layers``."""
    float32_ms: float
    rmse: float
    """With all of them in 8 bits."""
    ms: float
    layers: tuple[LayerPrice, ...] = ()
    """In the order in which they compute."""
    steps: tuple[LayerStep, ...] = ()

    @property
    def most_sensitive(self) -> list[LayerPrice]:
        """Those without which the error falls, by how far it does."""
        return sorted((each for each in self.layers if each.kept < self.rmse), key=lambda each: each.kept)

    @property
    def complete(self) -> bool:
        """Each layer was measured, and as many of the most sensitive together as there are steps for."""
        next_step = 2 * max((step.kept for step in self.steps), default=1)
        return len(self.layers) == self.count and next_step > len(self.most_sensitive)


class Trial(Record):
    """One recipe, built, verified and measured: the line that the journal keeps and ``--json`` shows."""

    recipe: AnyRecipe
    outcome: Outcome
    reason: str = ""
    """One line for people: why it was refused, what failed, by how much it is wrong. Empty for a faithful OK."""
    fix: str = ""
    """The command that would fix it (install a package, a compiler), if there is one."""
    stage: str = ""
    """Where it failed: build, verify, measure, save, or the technique's id."""
    traceback: str = ""
    output: str = ""
    """The last lines that the child printed."""
    error: ErrorReport | None = None
    timing: Timing | None = None
    footprint: Footprint | None = None
    cost_s: float = 0.0
    """Wall time of the whole trial."""
    ended_s: float | None = None
    """When it ended: seconds since the command that ran it began, loading included. None: it was not tried."""
    phases_s: dict[str, float] = Field(default_factory=dict)
    """Wall time by phase: start, build, verify, warm, measure, ..."""
    notes: tuple[str, ...] = ()
    refused_for: Unused | None = None
    """Why it was refused, where that is not that it does not apply."""
    layers: LayerPrices | None = None
    """Of the recipe with all operators in 8 bits, once ``togi precision`` has measured it layer by layer."""
    memory_bytes: int | None = None
    """What it might take, where that was not enough."""

    @property
    def eligible(self) -> bool:
        """It ran, it was measured, and it was found right (or wrong within what the user allowed)."""
        return self.outcome is Outcome.OK and self.timing is not None

    @property
    def judged(self) -> bool:
        """It ended in a way that counts: what the machine disturbed is tried again when it is quiet."""
        return self.outcome is not Outcome.UNSTABLE

    def settled(self, timeout_s: float, memory_bytes: float | None = None) -> bool:
        """A later session with so much time and memory (None: not known) for a trial need not try it again. What was
        missing may be there now, and what had too little of either may have enough."""
        if self.outcome is Outcome.TIMED_OUT and self.timing is None and self.stage in _GETTING_READY:
            return self.cost_s >= timeout_s
        if self.outcome is Outcome.OUT_OF_MEMORY and self.memory_bytes is not None and memory_bytes is not None:
            return memory_bytes <= _MORE_MEMORY_X * self.memory_bytes
        return self.judged and self.outcome is not Outcome.MISSING

    @property
    def unused(self) -> Unused | None:
        """The kind of reason why it cannot be chosen; None where it can be."""
        if self.eligible or self.refused_for is not None:
            return self.refused_for
        return _UNUSED.get(self.outcome, Unused.IN_VAIN)

    @property
    def measured(self) -> MeasuredTrial | None:
        """It with its timing; None where it has none."""
        return None if self.timing is None else MeasuredTrial(self, self.timing)


_MORE_MEMORY_X = 1.25
"""By less than this what is free varies from moment to moment."""
_GETTING_READY = ("start", "build", "verify", "validate", "warm")
"""Stages of a trial for which its time is."""
_UNUSED = {
    Outcome.REFUSED: Unused.DOES_NOT_APPLY,
    Outcome.MISSING: Unused.NOT_INSTALLED,
    Outcome.TIMED_OUT: Unused.NO_TIME,
    Outcome.OK: Unused.NO_TIME,  # it ran, and was not measured any more
}


class Untried(Record):
    """A technique that could have been tried, and no recipe with it was."""

    technique: str
    reason: str
    unused: Unused


@dataclass(frozen=True)
class MeasuredTrial:
    """A trial that was timed: what can be compared, ranked, raced and chosen."""

    trial: Trial
    timing: Timing

    @property
    def recipe(self) -> Recipe:
        return self.trial.recipe

    @property
    def outcome(self) -> Outcome:
        return self.trial.outcome

    @property
    def error(self) -> ErrorReport | None:
        return self.trial.error

    @property
    def footprint(self) -> Footprint | None:
        return self.trial.footprint

    @property
    def speedup_x(self) -> Interval:
        return self.timing.speedup_x

    @property
    def eligible(self) -> bool:
        """As ``Trial.eligible``."""
        return self.outcome is Outcome.OK


def measured(trials: Iterable[Trial]) -> list[MeasuredTrial]:
    """Those of the trials that were timed, in their order."""
    return [found for trial in trials if (found := trial.measured) is not None]


class ProgramCall(Record):
    """What a run of a program calls at one place of its tree of calls."""

    path: str
    """Name of the module below the program; empty for the program itself, and for a module made anew in the run."""
    module: str
    """Its class."""
    parent: int | None
    """Index of the caller among the calls of the tree."""
    calls: int
    ms: float
    """All calls together, in one run. Those in other threads than the program's overlap: they share the time in which
    any of them runs."""


class PartResult(Record):
    """What became of a part of a program."""

    key: PartKey
    module: str
    """Its class."""
    copies: tuple[str, ...]
    """Modules that are alike and called alike, this one among them."""
    calls: int
    share: float
    """Of the program's time, all copies together."""
    recipe: Recipe | None = None
    """What runs it; None where the original does."""
    speedup_x: Interval | None = None
    """Of the fastest that was found, alone."""
    reason: str = ""
    """Why the original runs it, or some of the copies."""
    tried: int = 0
    """How many recipes."""


class Obstacle(Record):
    """A module that takes time and cannot be captured whole: what it calls is tried next."""

    path: str
    module: str
    share: float
    reason: str


class ProgramTree(Record):
    """One run of a program over its samples: the tree of module calls, in the order of first calls, and its parts."""

    calls: tuple[ProgramCall, ...]
    parts: tuple[PartResult, ...] = ()
    obstacles: tuple[Obstacle, ...] = ()

    @property
    def total_ms(self) -> float:
        return self.calls[0].ms

    def children(self, index: int) -> list[int]:
        return [i for i, call in enumerate(self.calls) if call.parent == index]

    def share(self, index: int) -> float:
        """Of the program's time."""
        return self.calls[index].ms / self.total_ms if self.total_ms else 0.0


class Study(Record):
    """All trials of one subject on one machine, with the choice made."""

    schema_version: int = SCHEMA_VERSION
    id: str
    subject: str
    """How the subject was named: a locator such as ``timm:resnet50``, or the class of a live module."""
    facts: Facts
    settings: dict[str, Any] = Field(default_factory=dict)
    started: str = ""
    """ISO 8601, UTC."""
    trials: tuple[Trial, ...] = ()
    """In the order in which they ended, then those of ``excluded``."""
    excluded: tuple[Trial, ...] = ()
    """One trial for each technique that was not tried at all, with the reason: refused or missing."""
    calibration: str | None = None
    """Hash of the inputs that recipes of ``trials`` are calibrated on; empty: none is calibrated. None: unknown."""
    left_out: int = 0
    """How many trials more the journal has, of recipes that were calibrated on other inputs."""
    finalists: tuple[AnyRecipe, ...] = ()
    """Recipes of the last race, fastest first."""
    best: AnyRecipe | None = None
    program: ProgramTree | None = None
    """Where it cannot be captured whole: what a run of it calls, and what its parts came to."""
    verdict: str = ""
    """The choice in a sentence."""
    notes: tuple[str, ...] = ()
    """The sentences with which the verdict ends: how the race and the proof went."""
    untried: tuple[Untried, ...] = ()
    took_s: float | None = None
    """Wall time of the commands that made it; of those before the last, what their trials took. None: unknown."""
    command: str = ""
    """The command that repeats it."""

    @property
    def reference(self) -> Trial | None:
        """The trial of plain eager under ``no_grad``, to which every speed-up relates."""
        return next((t for t in self.trials if t.recipe.is_reference), None)

    def trial(self, recipe: Recipe) -> Trial | None:
        """The last trial of ``recipe`` (a finalist is measured again)."""
        return next((t for t in reversed(self.trials) if t.recipe == recipe), None)
