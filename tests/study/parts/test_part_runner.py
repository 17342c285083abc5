"""The study of a part in processes of its own: what it leaves behind, and what its copies are held to."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.study.parts.part_fakes import OPENVINO, part
from tests.study.stand_ins import FAST, NEXT, Does, open_study, pool_of
from tests.study.stand_ins import trial as measured_trial
from togi.artifact.manifest import Saved
from togi.core.errors import SubjectError
from togi.core.records import REFERENCE_RECIPE, Outcome
from togi.core.settings import Settings
from togi.study.finals import Finals
from togi.study.parts.part_runner import RUINED, PartRunner, settings_of_parts
from togi.study.progress import Progress
from togi.study.runner import StudyRunner
from togi.worker.deadline import Deadline


def test_a_part_may_be_approximate_where_its_program_has_a_budget() -> None:
    """The metric is the program's. An error is the part's own."""
    for budget in (Settings(max_drop=0.01, allow=("bf16",)), Settings(min_agreement=0.99, data="data.py:data")):
        of_part = settings_of_parts(budget)
        assert (of_part.max_error, of_part.judging, of_part.allow) == (RUINED, None, budget.allow)
    assert settings_of_parts(Settings(max_drop=0.01, max_error=0.01)).max_error == 0.01
    assert not settings_of_parts(Settings()).has_bound


class Pool:
    """Of a part; ``running`` is built in it."""

    def __init__(self, folder: Path, running: object = None, error: Exception | None = None) -> None:
        self.folder, self.running, self.error = folder, running, error
        self.deadline, self.closed = Deadline(), 0

    def part(self, *_: object) -> Pool:
        return self

    def capture(self, *_: object, **__: object) -> Any:
        if self.error is not None:
            raise self.error
        return SimpleNamespace(facts=None, signature=SimpleNamespace(within=lambda _: None))

    def make_truth(self, *_: object) -> None:
        return None

    def complete_truth(self, *_: object) -> None:
        return None

    def start(self, *_: object) -> object:
        return self.running

    def close(self) -> None:
        self.closed += 1


def study_in(pool: Pool, left_s: float = 60.0) -> Any:
    """Of the program."""
    subject = SimpleNamespace(pool=pool, name="program", settings=Settings(), limits=None)
    budget = SimpleNamespace(explore_s=lambda: left_s, proof_s=10.0)
    return SimpleNamespace(subject=subject, budget=budget, progress=Progress())


def test_a_part_that_cannot_be_opened_leaves_no_process(tmp_path: Path) -> None:
    pool = Pool(tmp_path, error=SubjectError("its truth cannot be made"))
    given = part("a").model_copy(update={"survey": None})
    with pytest.raises(SubjectError, match="its truth cannot be made"):
        PartRunner.open(study_in(pool), None, given, (), 60.0, resume=False)  # type: ignore[arg-type]
    assert pool.closed == 1


def test_a_part_is_known_again_by_its_code_and_by_the_calls_that_it_is_calibrated_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its weights alone do not say what it computes."""
    opened: list[tuple[str, str]] = []

    def open_study(_subject: Any, fingerprint: str, *_: Any, calibration: str, **__: Any) -> Any:
        opened.append((fingerprint, calibration))
        raise SubjectError("enough")

    monkeypatch.setattr("togi.study.parts.part_runner.OpenStudy", SimpleNamespace(open=open_study))
    monkeypatch.setattr("togi.study.parts.part_runner.TunedSubject", lambda *_: None)
    pool, given = Pool(tmp_path), part("a").model_copy(update={"survey": None})
    whole = study_in(pool)
    whole.budget = SimpleNamespace(started=0.0, loaded=0.0)
    whole.pace = None
    for code, calls in (("one", "calls"), ("one", "others"), ("another", "calls")):
        known = SimpleNamespace(facts=None, signature=None, code=code, calibration=calls)
        monkeypatch.setattr(pool, "capture", lambda *_, known=known, **__: known)
        with pytest.raises(SubjectError, match="enough"):
            PartRunner.open(whole, None, given, (), 60.0, resume=True)  # type: ignore[arg-type]
    assert [fingerprint for fingerprint, _ in opened].count(opened[0][0]) == 2
    assert [calibration for _, calibration in opened] == ["calls", "others", "calls"]


class Running:
    """A process that has built and verified a recipe."""

    error = None

    def __init__(self) -> None:
        self.saved: list[Path] = []

    def __enter__(self) -> Running:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def save(self, folder: Path, _ask_s: float) -> Saved:
        self.saved.append(folder)
        return Saved()


def copied(pool: Pool, form: int = 0, outcome: Outcome = Outcome.OK, left_s: float = 60.0) -> Path | None:
    """``outcome``: by the bounds of a part, not the program's."""
    given = part("l.0", "l.1", form=form).model_copy(update={"survey": None})
    subject = SimpleNamespace(accepted=lambda _: (outcome, ""))
    runner: Any = SimpleNamespace(study=SimpleNamespace(subject=subject, budget=SimpleNamespace(ask_s=2.0)))
    finals: Any = None
    return PartRunner(study_in(pool, left_s), given, runner, finals).copy("l.1", OPENVINO)


def test_forms_of_one_module_keep_their_copies_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("togi.study.parts.part_runner.write_manifest", lambda *_, **__: None)
    running = Running()
    folders = [copied(Pool(tmp_path, running), form) for form in range(2)]
    assert folders == running.saved
    assert len(set(folders)) == 2


def test_a_copy_that_is_wrong_or_comes_too_late_is_not_made(tmp_path: Path) -> None:
    running = Running()
    wrong = Pool(tmp_path, running)
    assert copied(wrong, outcome=Outcome.WRONG) is None
    assert wrong.closed == 1
    assert copied(Pool(tmp_path, running), left_s=9.0) is None, "the program is to be proven yet"
    assert running.saved == []


def test_what_cannot_be_chosen_of_a_part_is_no_bar_for_what_is_tried_next(tmp_path: Path) -> None:
    """Its files are wrong where no sample is, or the program is with it."""
    speeds_x = {REFERENCE_RECIPE: 1.0, FAST: 3.0, NEXT: 2.0}
    study = open_study(tmp_path, *(measured_trial(each, speed_x) for each, speed_x in speeds_x.items()))
    pool_of(study).built[FAST] = [Does.faster(3.0, saved=Saved(wrong="it clips 300"))]
    whole: Any = None
    runner = PartRunner(whole, part("a"), StudyRunner(study), Finals(study, tmp_path / "artifacts"))
    saved = runner.save().chosen.trial
    assert saved is not None
    assert saved.recipe == NEXT
    assert study.search.finalists(2) == (NEXT,)
    runner.set_aside(NEXT, "the program was not right with it", wrong=True)
    assert not study.search.gained()
    assert set(runner.unusable) == {FAST, NEXT}
