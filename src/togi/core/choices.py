"""Choices by name: how much a study tries, what it races, and the mode of a module."""

from __future__ import annotations

import re

from typing_extensions import Self

from togi.core.backports import StrEnum
from togi.core.errors import UnknownNameError, nearest


class _NamedChoice(StrEnum):
    @classmethod
    def of(cls, name: object, _option: str = "") -> Self:
        """Look it up by name. Raises UnknownNameError with the nearest name."""
        if name in list(cls):
            return cls(str(name))
        kind, near = re.sub("(?<!^)(?=[A-Z])", " ", cls.__name__).lower(), nearest(str(name), cls) or "."
        raise UnknownNameError(f"there is no {kind} {name!r}{near} It is {', '.join(cls)}.")


class Mode(_NamedChoice):
    """The mode in which togi tunes a module that was handed over in training mode."""

    EVAL = "eval"
    """``eval()`` is called on it."""
    AS_IS = "as-is"
    """Each of its parts keeps its mode: dropout drops, batch norm takes the statistics of the batch."""


class Effort(_NamedChoice):
    """The thoroughness of a study. Its time limit holds in each."""

    QUICK = "quick"
    """Only the few most promising recipes."""
    NORMAL = "normal"
    """Until nothing left is expected to be 1 % better."""
    THOROUGH = "thorough"
    """Everything, the most promising first."""

    @property
    def time_limit_s(self) -> float | None:
        """How long a study takes after the subject is loaded, where no limit is given; the race of the finalists and
        the proof are inside it."""
        return {Effort.QUICK: 30.0, Effort.NORMAL: 300.0, Effort.THOROUGH: None}[self]

    @property
    def max_trials(self) -> int | None:
        """Including the reference and the original."""
        return 8 if self is Effort.QUICK else None

    @property
    def cost_weight(self) -> float:
        """How much a trial's cost counts against what is expected of it: with few trials, each should count."""
        return 0.5 if self is Effort.QUICK else 1.0

    @property
    def least_improvement(self) -> float:
        """The search ends when no recipe is expected to lower the best time by this share."""
        return 0.0 if self is Effort.THOROUGH else 0.01


class Direction(_NamedChoice):
    """Which values of a metric are better."""

    HIGHER = "higher"
    """Accuracy, agreement."""
    LOWER = "lower"
    """Error rates, losses, perplexity."""


class AccuracyMeasure(_NamedChoice):
    """What is measured on validation data, sample by sample."""

    ACCURACY = "accuracy"
    """The share of labels that the largest score hits."""
    AGREEMENT = "agreement"
    """The share of answers whose largest score is the original's."""
    DECIDED = "decided"
    """The same of the answers for which the original's probability is above one half."""
    KL = "kl"
    """The Kullback-Leibler divergence from the original's probabilities, at most 1 a sample."""
    RMS = "rms"
    """The root-mean-square error relative to the original's answer, at most 1 a sample."""
    RANK = "rank"
    """One less the rank correlation with which an embedding orders the original's embeddings of the others."""
    NEAREST = "nearest"
    """The share of embeddings whose nearest among the original's embeddings of the others is the original's nearest."""
    IOU = "iou"
    """One less the intersection over the union with the original's mask."""
    PERPLEXITY = "perplexity"
    """The logarithm of perplexity (with labels): 0.01 more is a perplexity 1 % higher. At most 1 a row."""
    CHARACTERS = "characters"
    """The character error rate of the text that is read from scores at each step (CTC), against the labels, else
    against the original's text. At most 1 a row."""
    OWN = "own"
    """The user's own function of outputs and labels, of the samples of one group at a time."""

    @property
    def of_answers(self) -> bool:
        """An answer is right or wrong, and a drop is a share of them, said in points (hundredths)."""
        return self in (
            AccuracyMeasure.ACCURACY,
            AccuracyMeasure.AGREEMENT,
            AccuracyMeasure.DECIDED,
            AccuracyMeasure.NEAREST,
        )


class ScoreForm(StrEnum):
    """The form in which a model returns the scores of a decision."""

    LOGITS = "logits"
    PROBABILITIES = "probabilities"
    """Of classes, which sum to 1; a single one is that of yes."""
    INDEPENDENT = "independent probabilities"
    """Of labels that do not exclude each other: each is that of yes."""


class OperatorKind(_NamedChoice):
    """A kind of convolution or matrix product, by what it is sensitive to. Each is of one kind, the first that fits."""

    DEPTHWISE = "depthwise"
    """Depthwise and other grouped convolutions."""
    ATTENTION = "attention"
    """Products of two activations."""
    FIRST = "first"
    """The first of the others."""
    LAST = "last"
    """And the last."""
    SQUEEZE = "squeeze"
    """Convolutions of a single place: squeeze and excitation."""
    POINTWISE = "pointwise"
    """Convolutions of 1 x 1."""
    CONVOLUTION = "convolution"
    """All other convolutions."""
    LINEAR = "linear"
    """Products with weights: MLPs and projections."""


class Objective(_NamedChoice):
    """The measure that is raced, and so chosen by. The other measures can be limited."""

    LATENCY = "latency"
    """The time of a call, one after the other."""
    END_TO_END = "end-to-end"
    """The time of a call of which inputs and results are in host memory: with the copies to the device and back."""
    THROUGHPUT = "throughput"
    """Requests per second of several callers at once, in threads of one process."""
    FIRST_CALL = "first-call"
    """The time from loading the files until the first answer, in a fresh process."""
