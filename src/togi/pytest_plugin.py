"""The plug-in of pytest: fixtures ``togi_bench`` and ``togi_compare``, and a baseline of speeds.

pytest imports this file at each start, so it imports nothing else of togi, and no torch, before a fixture is used.
``docs/guides/tests.md`` shows how to use it.
"""

from __future__ import annotations

import functools
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from togi.study.comparison import Agreement, Comparison

BASELINE = "baseline"
_SAID, _SPEED = "togi", "togi_speed"
"""Properties of a test's report: a sentence, and a speed for the baseline."""
_RULES = ("fail", "skip")


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("togi", "speeds (togi)")
    group.addoption("--togi-baseline", metavar="FILE", help="the baseline of speeds (ini: togi_baseline)")
    group.addoption("--togi-baseline-update", action="store_true", help="write the speeds of these tests to it")
    group.addoption(
        "--togi-undecided",
        choices=_RULES,
        help="what becomes of a test whose figures do not decide, or whose baseline is missing or another machine's "
        "(ini: togi_undecided)",
    )
    parser.addini("togi_baseline", "the baseline of speeds, relative to the root folder", default="togi_baseline.json")
    parser.addini("togi_undecided", "fail or skip: a test whose figures do not decide", default=_RULES[0])


def pytest_configure(config: pytest.Config) -> None:
    if _rule(config) not in _RULES:
        raise pytest.UsageError(f"togi_undecided is {_rule(config)!r}: give fail or skip")
    if not hasattr(config, "workerinput"):  # a worker of pytest-xdist, whose reports come to the other process
        config.pluginmanager.register(_Results(config), "togi_results")


@pytest.fixture
def togi_bench(request: pytest.FixtureRequest) -> BenchInTest:
    """``togi_bench(new, old, inputs).assert_not_slower("3%")``: see ``togi.bench``.

    ``togi_bench(new, inputs).assert_not_slower("3%", than="baseline")`` compares with what ``--togi-baseline-update``
    wrote.
    """
    _need_torch("togi_bench")
    return BenchInTest(request)


@pytest.fixture
def togi_compare(request: pytest.FixtureRequest) -> Callable[..., Agreement]:
    """``assert togi_compare(original, new, inputs)``: see ``togi.compare``."""
    _need_torch("togi_compare")

    def compare(a: Any, b: Any, inputs: Any, **options: Any) -> Agreement:
        import togi

        agreement = togi.compare(a, b, inputs, **options)
        _say(request, agreement.verdict)
        return agreement

    return compare


class BenchInTest:
    """The fixture ``togi_bench`` of one test."""

    def __init__(self, request: pytest.FixtureRequest) -> None:
        self._request = request
        self._of_baseline = 0

    def __call__(self, *subjects: Any, inputs: Any = None, **options: Any) -> SpeedInTest:
        """Race subjects, as ``togi.bench`` does with the same arguments. One alone is for a baseline."""
        comparison = _side_by_side(_measured(subjects, inputs, options))
        _say(self._request, comparison.verdict)
        return SpeedInTest(comparison, self._request, self._next_key)

    def _next_key(self) -> str:
        self._of_baseline += 1
        name = str(self._request.node.nodeid)
        return name if self._of_baseline == 1 else f"{name} ({self._of_baseline})"


class SpeedInTest:
    """What ``togi_bench(...)`` measured. ``comparison`` is what ``togi.bench`` returns."""

    def __init__(self, comparison: Comparison, request: pytest.FixtureRequest, next_key: Callable[[], str]) -> None:
        self.comparison = comparison
        self._request, self._next_key = request, next_key

    def __str__(self) -> str:
        return str(self.comparison)

    def assert_not_slower(self, share: float | str, than: str | None = None) -> None:
        """That the first does not take longer by more than ``share`` (``"3%"``): than each other contestant, or with
        ``than="baseline"`` than it did when the baseline was written.

        Raises AssertionError, or as ``--togi-undecided`` says where the figures do not decide.
        """
        __tracebackhide__ = True
        if than is None:
            self._check_others()
            self._decided(functools.partial(self.comparison.assert_not_slower, share))
        elif than == BASELINE:
            self._decided(functools.partial(self._next_to_baseline, share))
        else:
            raise ValueError(f"than={than!r}: leave it out to compare with the others, or give {BASELINE!r}")

    def assert_faster(self, share: float | str) -> None:
        """That the first has more than ``1 + share`` times the speed of each other (``"10%"``: 1.10x). Raises as
        ``assert_not_slower`` does."""
        __tracebackhide__ = True
        self._check_others()
        self._decided(functools.partial(self.comparison.assert_faster, share))

    def _check_others(self) -> None:
        from togi.core.errors import SubjectError
        from togi.study.yardstick import NAME

        if self.comparison.contestants[1].name == NAME:
            raise SubjectError(
                "there is nothing to compare with: give a second subject, togi_bench(new, old, inputs), or "
                f'assert_not_slower(..., than="{BASELINE}")'
            )

    def _next_to_baseline(self, share: float | str) -> None:
        __tracebackhide__ = True
        from togi.core.quantities import parse_share
        from togi.study.assertions import check
        from togi.study.baseline import BaselineSpeed, next_to_baseline

        config, key, allowed = self._request.config, self._next_key(), parse_share(share, "share")
        if config.getoption("togi_baseline_update"):
            speed = BaselineSpeed.to_keep(self.comparison)
            self._request.node.user_properties.append((_SPEED, json.dumps([key, speed.to_json()])))
            return
        case = next_to_baseline(_path(config), key, self.comparison, allowed)
        _say(self._request, case.said)
        check([case], self.comparison.noise)

    def _decided(self, assertion: Callable[[], None]) -> None:
        __tracebackhide__ = True
        from togi.core.errors import UndecidedError

        try:
            assertion()
        except UndecidedError as undecided:
            if _rule(self._request.config) == "skip":
                pytest.skip(str(undecided))
            raise


class _Results:
    """What the tests said and measured: their reports bring it, from the workers of pytest-xdist, too."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._said: list[str] = []
        self._speeds: dict[str, str] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when != "call":
            return
        for name, value in report.user_properties:
            if name == _SAID:
                self._said.append(f"{report.nodeid}: {value}")
            elif name == _SPEED and not report.failed:  # what else it asserts does not hold: it may be of other work
                key, speed = json.loads(str(value))
                self._speeds[key] = speed

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if self._speeds:
            from togi.core.errors import TogiError
            from togi.study.baseline import BaselineSpeed, write_speeds

            speeds = {key: BaselineSpeed.from_json(speed) for key, speed in self._speeds.items()}
            try:
                self._said.append(write_speeds(_path(self._config), speeds))
            except (OSError, TogiError) as error:
                self._said.append(f"the baseline was not written: {error}")
                session.exitstatus = pytest.ExitCode.TESTS_FAILED
        elif self._config.getoption("togi_baseline_update"):
            self._said.append(f'no baseline was written: no test that passed asserts than="{BASELINE}"')

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if self._said:
            terminalreporter.write_sep("=", "togi")
        for line in self._said:
            terminalreporter.write_line(line)


def _measured(subjects: tuple[Any, ...], inputs: Any, options: dict[str, Any]) -> Comparison:
    import togi

    if inputs is None and all(isinstance(subject, str | Path) for subject in subjects):
        return togi.bench(*subjects, **options)
    from togi.core.quantities import parse_duration
    from togi.study.live import with_inputs
    from togi.study.live_bench import run_live_bench

    found, inputs = with_inputs(subjects, inputs)
    if len(found) != 1:
        return togi.bench(*found, inputs=inputs, **options)
    if options.get("time_limit_s") is not None:
        options["time_limit_s"] = parse_duration(options["time_limit_s"], "time_limit_s")
    return run_live_bench(found, inputs, yardstick=True, **options)


def _side_by_side(comparison: Comparison) -> Comparison:
    """With a warning where other workers of pytest-xdist ran tests meanwhile."""
    workers = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    if workers < 2:
        return comparison
    warning = f"{workers} workers of pytest-xdist ran tests side by side (run those that measure alone, -n 0)"
    noise = comparison.noise.model_copy(update={"warnings": (*comparison.noise.warnings, warning)})
    return comparison.model_copy(update={"noise": noise})


def _say(request: pytest.FixtureRequest, sentence: str) -> None:
    request.node.user_properties.append((_SAID, sentence))


def _need_torch(fixture: str) -> None:
    from togi.core.needs_torch import need_torch

    need_torch(f"the fixture {fixture}")


def _rule(config: pytest.Config) -> str:
    return str(config.getoption("togi_undecided") or config.getini("togi_undecided"))


def _path(config: pytest.Config) -> Path:
    given = config.getoption("togi_baseline")
    if given:
        return config.invocation_params.dir / str(given)
    return config.rootpath / str(config.getini("togi_baseline"))
