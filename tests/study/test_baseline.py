"""Baselines of speeds: what was kept, what it is compared with, and on which machine."""

from __future__ import annotations

from pathlib import Path

import pytest

from togi.core.errors import TogiError, UndecidedError
from togi.core.records import Interval, Noise
from togi.decide.faster import inverse
from togi.decide.gate import Answer
from togi.machine.describe import machine
from togi.study import baseline
from togi.study.baseline import BaselineSpeed, next_to_baseline, read_baseline, write_speeds
from togi.study.comparison import Comparison
from togi.study.contestants import Contestant


def measured(median: float, over: str = "the yardstick", share: float = 0.01) -> Comparison:
    """``new`` at so many times the speed of the other."""
    one, speed_x = Interval(median=1, low=1, high=1), near(median, share)
    other = Contestant(name=over, latency_ms=one, speedup_x=inverse(speed_x), own_process=False)
    return Comparison(contestants=(Contestant(name="new", latency_ms=one), other), machine=machine())


def near(median: float, share: float) -> Interval:
    return Interval(median=median, low=median * (1 - share), high=median * (1 + share))


@pytest.fixture
def kept(tmp_path: Path) -> Path:
    path = tmp_path / "speeds.json"
    assert write_speeds(path, {"test_a": BaselineSpeed.of(measured(2.0))}) == "1 speed written to speeds.json"
    return path


def test_what_is_as_fast_as_it_was_passes_and_what_is_slower_fails(kept: Path) -> None:
    found = [next_to_baseline(kept, "test_a", measured(speed), 0.05) for speed in (2.0, 2.4, 1.8, 1.5)]
    assert [case.answer for case in found] == [Answer.PASSED, Answer.PASSED, Answer.UNDECIDED, Answer.FAILED]
    assert found[3].said.startswith("new is slower than it was by more than 5.0 % beyond doubt: 0.750x the speed (0.7")
    assert found[3].said.endswith(
        ", by speeds.json. If that is meant, write the baseline again with --togi-baseline-update."
    )
    assert "measure longer" in found[2].said


def test_speeds_of_other_tests_stay_on_the_same_machine_and_go_with_another(
    kept: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_speeds(kept, {"test_b": BaselineSpeed.of(measured(3.0))})
    found = read_baseline(kept)
    assert found is not None
    assert [*found.speeds] == ["test_a", "test_b"]
    assert "/" not in f"{found.machine.compiler or ''}{found.machine.allocators or ''}", "no paths of this machine"
    monkeypatch.setattr(baseline, "machine", lambda: machine().model_copy(update={"cpu_model": "another"}))
    said = write_speeds(kept, {"test_b": BaselineSpeed.of(measured(4.0))})
    assert said == "1 speed written to speeds.json; 1 speed of another machine went"
    found = read_baseline(kept)
    assert found is not None
    assert found.speeds["test_b"].speed_x.median == pytest.approx(4.0)
    assert [*found.speeds] == ["test_b"]
    assert [path.name for path in kept.parent.iterdir()] == ["speeds.json"]


def test_a_baseline_that_cannot_tell_is_undecided_with_what_to_do(kept: Path) -> None:
    elsewhere = measured(2.0)
    update = {"cpu_model": "a faster one", "versions": machine().versions | {"torch": "1.0"}}
    elsewhere = elsewhere.model_copy(update={"machine": machine().model_copy(update=update)})
    cases = [
        (kept.with_name("none.json"), "test_a", measured(2.0), "there is no speed of test_a in none.json"),
        (kept, "test_c", measured(2.0), "there is no speed of test_c in speeds.json"),
        (kept, "test_a", measured(2.0, over="old"), "is over the yardstick, and this one is over old"),
        (kept, "test_a", measured(2.0, share=2.0), "too few rounds"),
        (
            kept,
            "test_a",
            elsewhere,
            r"comes from another machine \(cpu_model: 'a faster one' here, .*; torch: '1.0' here",
        ),
    ]
    for path, key, comparison, said in cases:
        with pytest.raises(UndecidedError, match=said):
            next_to_baseline(path, key, comparison, 0.05)


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"schema_version": 2}', "\x00"])
def test_a_file_that_is_something_else_is_refused_and_kept(kept: Path, content: str) -> None:
    kept.write_text(content, encoding="utf-8")
    with pytest.raises(TogiError, match="cannot be read as a baseline"):
        read_baseline(kept)
    with pytest.raises(TogiError, match="remove it, and write it again"):
        write_speeds(kept, {"test_a": BaselineSpeed.of(measured(2.0))})
    assert kept.read_text(encoding="utf-8") == content


@pytest.mark.parametrize("flags", [("avx2",), ("avx2", "avx512f", "avx512bw", "avx512dq", "avx512vl")])
def test_a_processor_whose_sums_of_8_bits_saturate_is_the_same_machine_later(
    tmp_path: Path, flags: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of its flags those are kept that decide it."""
    old = machine().model_copy(update={"cpu_flags": ("aes", *flags)})
    monkeypatch.setattr(baseline, "machine", lambda: old)
    path, found = tmp_path / "speeds.json", measured(2.0).model_copy(update={"machine": old})
    write_speeds(path, {"test_a": BaselineSpeed.of(found)})
    assert next_to_baseline(path, "test_a", found, 0.05).answer is Answer.PASSED
    assert write_speeds(path, {"test_b": BaselineSpeed.of(found)}) == "1 speed written to speeds.json"
    newer = found.model_copy(update={"machine": old.model_copy(update={"cpu_flags": (*flags, "avx512_vnni")})})
    with pytest.raises(UndecidedError, match="int8_sums: 'exact' here, 'saturating' there"):
        next_to_baseline(path, "test_a", newer, 0.05)
    kept = read_baseline(path)
    assert kept is not None
    assert kept.machine.cpu_flags == flags


def test_another_version_of_python_is_another_machine(kept: Path) -> None:
    found = measured(2.0)
    versions = (f"{found.machine.python}9", "3.99.1")
    machines = [found.machine.model_copy(update={"python": python}) for python in versions]
    patch, minor = (found.model_copy(update={"machine": here}) for here in machines)
    assert next_to_baseline(kept, "test_a", patch, 0.05).answer is Answer.PASSED
    with pytest.raises(UndecidedError, match=r"python: '3\.99' here"):
        next_to_baseline(kept, "test_a", minor, 0.05)


def test_a_speed_of_a_disturbed_machine_is_not_kept() -> None:
    found = measured(2.0).model_copy(update={"noise": Noise(spread=1.64)})
    with pytest.raises(UndecidedError, match=r"to keep a speed \(times vary by 164%\): write it on a quiet machine"):
        BaselineSpeed.to_keep(found)
    assert BaselineSpeed.to_keep(measured(2.0)) == BaselineSpeed.of(measured(2.0))
