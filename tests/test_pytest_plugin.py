"""The plug-in of pytest: fixtures, the baseline, what an undecided speed becomes, and what it costs at the start.

Runs of pytest inside a test get the plug-in by name, installed or not (its entry point is named like the module).
"""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

import pytest

import togi.api  # these stay imported, which a run of pytest inside the test would undo
import togi.pytest_plugin
import togi.study.agreement
import togi.study.baseline
import togi.study.live_bench
from tests.made_up_race import MadeUp
from tests.offline import OFFLINE
from togi.core import needs_torch
from togi.core.backports import tomllib
from togi.machine.describe import machine

pytest_plugins = ["pytester"]
ROOT = Path(__file__).parents[1]
PLUGIN = ("-p", "togi.pytest_plugin")


@pytest.fixture
def race(monkeypatch: pytest.MonkeyPatch) -> MadeUp:
    made_up = MadeUp()
    monkeypatch.setattr("togi.study.live_bench.run_live_bench", made_up)
    return made_up


@pytest.fixture
def suite(pytester: pytest.Pytester) -> pytest.Pytester:
    """A project with speeds to keep; it knows nothing of the options that this run has."""
    pytester.makeini("[pytest]")
    return pytester


NOT_SLOWER = """
    def old(): ...
    def new(): ...
    def test_speed(togi_bench):
        togi_bench(new, old, ()).assert_not_slower("3%")
"""
BASELINE = """
    def new(): ...
    def test_speed(togi_bench):
        togi_bench(new, ()).assert_not_slower("3%", than="baseline")
"""


def lines_of(result: pytest.RunResult) -> str:
    return "\n".join(result.outlines)


def test_pytest_starts_without_torch_and_without_records(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("""
        import sys
        def test_nothing_is_imported_before_a_fixture_is_used():
            assert "togi.pytest_plugin" in sys.modules
            assert not {"torch", "numpy", "pydantic", "togi.api", "togi.core.records"} & set(sys.modules)
    """)
    pytester.makeini("[pytest]")
    result = pytester.run(sys.executable, "-m", "pytest", *PLUGIN, "-q")
    result.assert_outcomes(passed=1)


def test_the_entry_point_has_the_name_of_the_module() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert project["entry-points"]["pytest11"] == {togi.pytest_plugin.__name__: togi.pytest_plugin.__name__}


def test_the_example_of_the_guide_passes_and_says_what_it_measured(suite: pytest.Pytester) -> None:
    guide = (ROOT / "docs" / "guides" / "tests.md").read_text(encoding="utf-8")
    found = re.search(r'```python title="test_speed.py"\n(.*?)```', guide, re.DOTALL)
    assert found is not None
    suite.makepyfile(test_speed=found[1])
    result = suite.runpytest(*PLUGIN)
    result.assert_outcomes(passed=2)
    said = lines_of(result).partition("= togi =")[2]
    assert "test_speed.py::test_same: new is the same as old, up to rounding" in said
    assert "test_speed.py::test_speed: new is faster than old beyond doubt" in said


def test_what_is_slower_fails_with_the_speed_and_the_line_of_the_test(suite: pytest.Pytester, race: MadeUp) -> None:
    suite.makepyfile(NOT_SLOWER)
    suite.runpytest(*PLUGIN).assert_outcomes(passed=1)
    race.speed = 0.8
    result = suite.runpytest(*PLUGIN)
    result.assert_outcomes(failed=1)
    said = lines_of(result)
    assert "new is slower than old by more than 3.0 % beyond doubt: 0.800x the speed" in said
    assert "Noise meanwhile: a drum was beaten" in said
    assert "test_what_is_slower_fails_with_the_speed_and_the_line_of_the_test.py:4: AssertionError" in said
    assert "def assert_not_slower" not in said, "the frames of the plug-in are not the user's"


@pytest.mark.parametrize(
    ("options", "ini", "outcome"),
    [((), "", "failed"), (("--togi-undecided=skip",), "", "skipped"), ((), "togi_undecided = skip", "skipped")],
)
def test_undecided_is_what_the_rule_says(
    suite: pytest.Pytester, race: MadeUp, options: tuple[str, ...], ini: str, outcome: str
) -> None:
    race.speed, race.share = 1.0, 0.2
    suite.makeini(f"[pytest]\n{ini}")
    suite.makepyfile(NOT_SLOWER)
    result = suite.runpytest(*PLUGIN, *options, "-rs")
    result.assert_outcomes(**{outcome: 1})
    assert "The figures do not show whether new is slower" in lines_of(result)


def test_a_baseline_is_written_read_and_refused_on_another_machine(
    suite: pytest.Pytester, race: MadeUp, monkeypatch: pytest.MonkeyPatch
) -> None:
    suite.makepyfile(test_it=BASELINE)
    missing = suite.runpytest(*PLUGIN)
    missing.assert_outcomes(failed=1)
    assert "there is no speed of test_it.py::test_speed in togi_baseline.json" in lines_of(missing)
    written = suite.runpytest(*PLUGIN, "--togi-baseline-update")
    written.assert_outcomes(passed=1)
    assert "1 speed written to togi_baseline.json" in lines_of(written)
    race.speed = 1.3
    suite.runpytest(*PLUGIN).assert_outcomes(passed=1)
    race.speed = 1.0
    slower = suite.runpytest(*PLUGIN)
    slower.assert_outcomes(failed=1)
    assert "new is slower than it was by more than 3.0 % beyond doubt: 0.833x the speed" in lines_of(slower)
    there = machine().model_copy(update={"cpu_model": "another"})
    monkeypatch.setattr("tests.made_up_race.machine", lambda: there)
    for option, outcome in (("fail", "failed"), ("skip", "skipped")):
        refused = suite.runpytest(*PLUGIN, f"--togi-undecided={option}", "-rs")
        refused.assert_outcomes(**{outcome: 1})
        assert "comes from another machine (cpu_model: 'another' here" in lines_of(refused)
    elsewhere = suite.runpytest(*PLUGIN, "--togi-baseline=other.json", "--togi-baseline-update")
    elsewhere.assert_outcomes(passed=1)
    assert sorted(path.name for path in suite.path.glob("*.json")) == ["other.json", "togi_baseline.json"]


@pytest.mark.usefixtures("race")
def test_each_speed_of_a_test_has_an_entry_of_its_own(suite: pytest.Pytester) -> None:
    suite.makepyfile(
        test_it="""
        import pytest
        def new(): ...
        @pytest.mark.parametrize("size", [1, 2])
        def test_speed(togi_bench, size):
            for _ in range(2):
                togi_bench(new, ()).assert_not_slower("3%", than="baseline")
    """
    )
    suite.runpytest(*PLUGIN, "--togi-baseline-update").assert_outcomes(passed=2)
    kept = togi.study.baseline.read_baseline(suite.path / "togi_baseline.json")
    assert kept is not None
    names = [f"test_it.py::test_speed[{size}]" for size in (1, 2)]
    assert [*kept.speeds] == [f"{name}{more}" for name in names for more in ("", " (2)")]
    suite.runpytest(*PLUGIN).assert_outcomes(passed=2)


@pytest.mark.usefixtures("race")
def test_the_speed_of_a_test_that_failed_is_not_kept(suite: pytest.Pytester) -> None:
    suite.makepyfile(
        test_it="""
        def new(): ...
        def test_speed(togi_bench):
            togi_bench(new, ()).assert_not_slower("3%", than="baseline")
            assert new() == "the right answer"
    """
    )
    result = suite.runpytest(*PLUGIN, "--togi-baseline-update")
    result.assert_outcomes(failed=1)
    assert "no baseline was written: no test that passed asserts" in lines_of(result)
    assert not [*suite.path.glob("*.json")]


@pytest.mark.usefixtures("race")
def test_bad_use_is_one_sentence(suite: pytest.Pytester) -> None:
    suite.makepyfile("""
        import pytest
        def new(): ...
        def test_alone(togi_bench):
            togi_bench(new, ()).assert_not_slower("3%")
        def test_other(togi_bench):
            togi_bench(new, ()).assert_not_slower("3%", than="yesterday")
        def test_no_inputs(togi_bench):
            togi_bench(new)
    """)
    result = suite.runpytest(*PLUGIN, "--togi-baseline-update")
    result.assert_outcomes(failed=3)
    said = lines_of(result)
    assert "there is nothing to compare with: give a second subject" in said
    assert "than='yesterday'" in said
    assert "live objects need inputs to run on" in said
    assert "no baseline was written" in said
    suite.makeini("[pytest]\ntogi_undecided = shrug")
    assert suite.runpytest(*PLUGIN).ret == pytest.ExitCode.USAGE_ERROR


@pytest.mark.usefixtures("race")
def test_a_baseline_that_is_something_else_is_kept_and_the_run_fails(suite: pytest.Pytester) -> None:
    suite.makepyfile(test_it=BASELINE)
    (suite.path / "togi_baseline.json").write_text("{}", encoding="utf-8")
    result = suite.runpytest(*PLUGIN, "--togi-baseline-update")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    assert "the baseline was not written: " in lines_of(result)
    assert (suite.path / "togi_baseline.json").read_text(encoding="utf-8") == "{}"


def test_where_only_the_core_is_installed_the_fixtures_say_what_is_missing(
    suite: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(needs_torch, "PACKAGES", ("no_such_package",))
    suite.makepyfile("""
        def test_speed(togi_bench): ...
        def test_same(togi_compare): ...
        def test_else(): ...
    """)
    result = suite.runpytest(*PLUGIN)
    result.assert_outcomes(passed=1, errors=2)
    assert "the fixture togi_bench needs no_such_package, which is not installed here: pip install" in lines_of(result)


@pytest.mark.thorough
def test_workers_of_xdist_bring_what_they_measured_and_are_named_as_noise(
    suite: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In processes of their own, with the race made up there."""
    suite.makeconftest("""
        import pytest
        from tests.made_up_race import MadeUp
        @pytest.fixture(autouse=True)
        def race(monkeypatch):
            made_up = MadeUp()
            monkeypatch.setattr("togi.pytest_plugin._measured", lambda subjects, *_: made_up(
                subjects, (), yardstick=len(subjects) == 2
            ))
            return made_up
    """)
    suite.makepyfile(
        test_it="""
        def new(): ...
        def test_kept(togi_bench):
            togi_bench(new, ()).assert_not_slower("3%", than="baseline")
        def test_slower(togi_bench, race):
            race.speed = 0.5
            togi_bench(new, new, ()).assert_not_slower("3%")
    """
    )
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), str(ROOT / "src"), OFFLINE]))
    result = suite.runpytest_subprocess(*PLUGIN, "-n", "2", "--togi-baseline-update")
    result.assert_outcomes(passed=1, failed=1)
    said = lines_of(result)
    assert "2 workers of pytest-xdist ran tests side by side" in said
    assert "test_it.py::test_kept: new stands to the yardstick" in said
    assert "1 speed written to togi_baseline.json" in said
