"""The settings of a study, each described once: the command line, the repeated command and the docs read them here.

A new one takes a field in this file and a typed parameter of ``togi.tune``; ``python docs/options.py`` then writes the
tables.
"""

import dataclasses
import functools
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Annotated, Any

from togi.core.choices import AccuracyMeasure, Direction, Effort, Objective
from togi.core.device import parse_device
from togi.core.errors import TogiError, UnknownNameError, nearest
from togi.core.options import Option, options_of
from togi.core.quantities import parse_drop, parse_duration, parse_share, parse_size, parse_switch, parse_whole

if TYPE_CHECKING:
    from togi.core.judging import Judging

ALL = "approximate"
NAN_DIFFERENCES = "nan-differences"
"""Of ``allow``: what the original shows as NaN may be a number."""
_EXAMPLES = {"metric": "metric.py:score", "calibration": "data.py:calibration"}
"""Of functions that an option names."""


def names(given: str | Iterable[str], option: str) -> tuple[str, ...]:
    """``["a", "b,c"]`` or ``"a,b,c"`` as one tuple without repeats. Raises TogiError for what is not text."""
    if not isinstance(given, Iterable):
        raise TogiError(f"{option}={given!r} is not a name: give ids of techniques as text")
    parts: list[str] = []
    for item in (given,) if isinstance(given, str) else given:
        if not isinstance(item, str):
            raise TogiError(f"{option}={given!r} holds {item!r}, which is not a name: give ids of techniques as text")
        parts += [part.strip() for part in item.split(",")]
    return tuple(dict.fromkeys(part for part in parts if part))


def parse_function(given: Any, option: str) -> str:
    """``FILE.py:function`` or ``package.module:function``. Raises TogiError for what names no function."""
    target, colon, function = given.rpartition(":") if isinstance(given, str) else ("", "", "")
    if not (colon and target and function.isidentifier()):
        example = _EXAMPLES.get(option, "data.py:validation")
        raise TogiError(f"{option or 'data'}={given!r} names no function: give {example}")
    return str(given)


def parse_data(given: Any, option: str) -> str:
    """``FILE.py:function``, or a folder, which is not looked for here. Raises TogiError for what is neither."""
    if isinstance(given, str) and ":" in given:
        return parse_function(given, option)
    if not isinstance(given, str) or not given.strip():
        raise TogiError(f"{option}={given!r} is neither a folder nor a function: give a folder, or data.py:calibration")
    return given


def parse_metric(given: Any, option: str) -> AccuracyMeasure | str:
    """A measure by its name, or the user's function. Raises TogiError as ``parse_function``, and UnknownNameError."""
    if isinstance(given, str) and ":" in given:
        return parse_function(given, option)
    return AccuracyMeasure.of(given, option)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings:
    """The settings of a study that users may choose: sizes and durations as numbers or text, names as one text or more.

    Raises:
        TogiError: a bad value, with the nearest name; an approximate technique that is allowed without a bound on what
            it may cost.
    """

    train: Annotated[
        bool,
        Option(
            "",
            parse_switch,
            "Tune the training step: the subject's step or train_step, with its optimizer, in place of its calls.",
            per_call=False,
        ),
    ] = False
    objective: Annotated[
        Objective,
        Option(
            "|".join(Objective),
            Objective.of,
            "What is raced: a call (latency), a call with its copies to the device and back (end-to-end), requests per "
            "second (throughput), or the time from loading the files to the first answer (first-call).",
            per_call=False,
        ),
    ] = Objective.LATENCY
    callers: Annotated[
        int | None,
        Option(
            "N",
            functools.partial(parse_whole, least=2),
            "With the objective throughput: how many call at once, in threads of one process. Default: one for each "
            "core, at least 2.",
            lasting=False,  # it is among the facts
            per_call=False,
        ),
    ] = None
    effort: Annotated[Effort, Option("|".join(Effort), Effort.of, "How much to try.", lasting=False)] = Effort.NORMAL
    time_limit_s: Annotated[
        float | None,
        Option(
            "TIME",
            parse_duration,
            "Stop after this long: 90s, 5m, 1h. Default: quick 30s and normal 5m after loading, thorough none.",
            lasting=False,
        ),
    ] = None
    max_memory_bytes: Annotated[
        int | None,
        Option(
            "SIZE",
            parse_size,
            "Memory that the result may need, idle and peak of a call together: 2GiB, 500MB.",
            name="max_memory",
            lasting=False,
        ),
    ] = None
    max_latency_s: Annotated[
        float | None,
        Option(
            "TIME",
            parse_duration,
            "Time that a call of the result may take: 20ms. With several callers 95 of 100 calls.",
            name="max_latency",
            lasting=False,
        ),
    ] = None
    max_first_call_s: Annotated[
        float | None,
        Option(
            "TIME",
            parse_duration,
            "Time from loading the result's files to the first answer: 2s.",
            name="max_first_call",
            lasting=False,
        ),
    ] = None
    max_error: Annotated[
        float | None,
        Option(
            "ERROR",
            parse_share,
            "Try approximate techniques (or only those that are allowed) up to this relative RMS error: 1e-2, 1%.",
        ),
    ] = None
    max_drop: Annotated[
        float | None, Option("DROP", parse_drop, "Try approximate techniques up to this drop of the metric.")
    ] = None
    min_agreement: Annotated[
        float | None,
        Option(
            "SHARE",
            parse_share,
            "Try approximate techniques as long as this share of the validation data is proven to be answered as the "
            "original does: 99%.",
            per_call=False,
        ),
    ] = None
    metric: Annotated[
        AccuracyMeasure | str | None,
        Option(
            "|".join((*AccuracyMeasure, "FILE:function")),
            parse_metric,
            "What --max-drop limits on the validation data: a measure, or a function of outputs and labels (own: the "
            "subject's). Default: agreement; without data the subject's own metric, on its samples.",
            per_call=False,
        ),
    ] = None
    better: Annotated[
        Direction | None,
        Option(
            "|".join(Direction),
            Direction.of,
            "Which values of the --metric function are better. Default: found by damaging copies of the model.",
            per_call=False,
        ),
    ] = None
    data: Annotated[
        str | None,
        Option(
            "FILE:function",
            parse_function,
            "Validation data: a function that returns samples, (samples, labels) or a togi.Validation.",
            per_call=False,
        ),
    ] = None
    calibration: Annotated[
        str | None,
        Option(
            "FILE:function|FOLDER",
            parse_data,
            "Calibration data: a function that returns samples or a DataLoader, or a folder of tensors or pictures.",
            per_call=False,
            lasting=False,  # trials that are calibrated go by the data themselves
        ),
    ] = None
    allow: Annotated[
        tuple[str, ...],
        Option(
            "ID",
            names,
            "Of the approximate techniques try only this: an id, the beginning of ids (int8), or 'approximate' for "
            "all. The id of an exact one (openvino) lets it err beyond rounding, within the bound. With "
            "'nan-differences', a number may stand where the original shows NaN.",
        ),
    ] = ()
    only: Annotated[tuple[str, ...], Option("ID", names, "Try only this technique.", lasting=False)] = ()
    without: Annotated[tuple[str, ...], Option("ID", names, "Leave out this technique.", lasting=False)] = ()
    trial_timeout_s: Annotated[
        float,
        Option("TIME", parse_duration, "End a trial that is not ready to be measured after this long.", lasting=False),
    ] = 300.0
    trial_memory_bytes: Annotated[
        int | None,
        Option(
            "SIZE",
            parse_size,
            "End a trial that holds more memory. Default: 80% of what is free when it starts.",
            name="trial_memory",
            lasting=False,
        ),
    ] = None
    device: Annotated[str, Option("cpu|cuda[:N]", parse_device, "Where the model runs.")] = "cpu"
    seed: Annotated[int, Option("N", parse_whole, "Seed of everything that is random.")] = 0

    @classmethod
    def of(cls, given: Mapping[str, Any], *, techniques: Iterable[str]) -> "Settings":
        """Parse what people give, by the options' names in Python; other entries are not settings. Raises TogiError as
        the class does, and for names that are not among ``techniques``."""
        settings = cls(**{option.field: given[option.name] for option in OPTIONS if option.name in given})
        settings.check(techniques)
        return settings

    def __post_init__(self) -> None:
        for option in OPTIONS:
            object.__setattr__(self, option.field, option.value(getattr(self, option.field)))
        if self.approximate and not self.has_bound:
            raise TogiError(
                f"allowing {self.approximate[0]} needs a bound on what it may cost: give --max-error (relative RMS "
                "error, such as 1e-2), --min-agreement with --data, or a metric and --max-drop. Without one, nothing "
                "says what is too wrong."
            )
        if self.min_agreement is not None and self.max_drop is not None:
            raise TogiError(
                f"min_agreement={self.min_agreement:g} and max_drop={self.max_drop:g} are two budgets: give one of them"
            )
        _check_metric(self)
        if self.train:
            _check_training(self)
        if self.callers is not None and self.objective is not Objective.THROUGHPUT:
            raise TogiError(
                f"callers={self.callers} are those of the objective throughput, and this is {self.objective}: give "
                "--objective throughput, or leave them out"
            )

    def arguments(self) -> list[str]:
        """The arguments of ``togi tune``: every setting that is not the default."""
        return [part for option in OPTIONS for part in option.arguments(getattr(self, option.field))]

    def as_json(self, *, lasting: bool = False) -> dict[str, Any]:
        """Values of JSON by field. ``lasting``: only those under which a study goes on with its trials."""
        values = {option.field: getattr(self, option.field) for option in OPTIONS if option.lasting or not lasting}
        return {field: list(value) if isinstance(value, tuple) else value for field, value in values.items()}

    def callers_on(self, cores: int) -> int:
        """The number of callers on a machine of so many cores."""
        if self.objective is not Objective.THROUGHPUT:
            return 1
        return self.callers if self.callers is not None else max(2, cores)

    @property
    def has_bound(self) -> bool:
        """Something says how wrong an approximate result may be."""
        return any(bound is not None for bound in (self.max_error, self.max_drop, self.min_agreement))

    @property
    def judging(self) -> "Judging | None":
        """By what approximate results are judged besides their error."""
        from togi.core.judging import Judging

        named = tuple(name for name in self.approximate if name != ALL)
        if self.min_agreement is not None:
            return Judging(
                measure=AccuracyMeasure.AGREEMENT, max_drop=1 - self.min_agreement, seed=self.seed, named=named
            )
        if self.max_drop is None:
            return None
        measure, function = (None if self.data is None else AccuracyMeasure.AGREEMENT), ""
        if isinstance(self.metric, AccuracyMeasure):
            measure = self.metric
        elif self.metric is not None:
            measure, function = AccuracyMeasure.OWN, self.metric
        return Judging(
            measure=measure,
            max_drop=self.max_drop,
            metric=function,
            better=self.better,
            seed=self.seed,
            named=named,
        )

    @property
    def limit_s(self) -> float | None:
        """What was given, of the whole study; else the effort's own, which begins when the subject is loaded."""
        return self.time_limit_s if self.time_limit_s is not None else self.effort.time_limit_s

    @property
    def approximate(self) -> tuple[str, ...]:
        """The techniques among ``allow``."""
        return tuple(name for name in self.allow if name != NAN_DIFFERENCES)

    @property
    def nan_differences(self) -> bool:
        return NAN_DIFFERENCES in self.allow

    def allows(self, technique: str) -> bool:
        """Whether an approximate technique may be tried. A bound alone allows each."""
        allowed = self.approximate or ((ALL,) if self.has_bound else ())
        return any(covers(name, technique) for name in allowed)

    def named(self, technique: str) -> bool:
        """Whether ``allow`` names it, and not only all: an exact one may then err beyond rounding, within the bound."""
        return any(name != ALL and covers(name, technique) for name in self.approximate)

    def check(self, techniques: Iterable[str]) -> None:
        """Raises UnknownNameError for a name that no technique has."""
        known = list(techniques)
        for option, given in (("only", self.only), ("without", self.without)):
            for name in given:
                if name not in known:
                    raise UnknownNameError(
                        f"{option}: there is no technique '{name}'{nearest(name, known) or '.'} 'togi explain' lists "
                        "them."
                    )
        for name in self.approximate:
            if not any(covers(name, id) for id in known):
                raise UnknownNameError(
                    f"allow: there is no technique '{name}'{nearest(name, [*known, ALL, NAN_DIFFERENCES]) or '.'} "
                    f"'togi explain' lists them; {ALL} means all."
                )


OPTIONS = options_of(Settings)


def _check_metric(settings: Settings) -> None:
    """Raises TogiError for a measure that nothing would be judged by, or whose direction is known."""
    metric, judging = settings.metric, settings.judging
    if settings.min_agreement is not None and metric not in (None, AccuracyMeasure.AGREEMENT):
        raise TogiError(
            f"min_agreement={settings.min_agreement:g} is a budget of agreement, and metric={metric} is another "
            "measure: limit it by max_drop instead"
        )
    if settings.better is not None and judging is not None and not judging.by_own_metric:
        raise TogiError(
            f"better={settings.better} is the direction of a metric of your own, and that of {judging.measure} is "
            "known: leave it out"
        )


def _check_training(settings: Settings) -> None:
    """Raises TogiError for settings that mean nothing for a training step."""
    if settings.objective is not Objective.LATENCY:
        raise TogiError(
            f"the time of a training step is raced, and objective={settings.objective} is of calls: leave it out, or "
            "leave out train"
        )
    if settings.judging is not None or settings.data is not None:
        raise TogiError(
            "a training step is proven by its loss, gradients and updates, and data or a metric say nothing of these: "
            "leave out data, metric, max_drop and min_agreement. max_error bounds what is approximate"
        )
    if settings.max_latency_s is not None or settings.max_first_call_s is not None:
        raise TogiError(
            "max_latency and max_first_call are limits of calls, and a training step is tuned: leave them out"
        )
    if settings.device != "cpu":
        raise TogiError(
            f"training steps are tuned on the CPU so far, and device={settings.device} was given: on a GPU nothing of "
            "the search was proven yet"
        )


def covers(name: str, id: str) -> bool:
    """Whether a name that ``allow`` gives is, or begins, the id of a technique."""
    return name in (ALL, id) or id.startswith(f"{name}_")
