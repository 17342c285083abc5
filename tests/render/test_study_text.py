from __future__ import annotations

import io

import pytest
from rich.console import Console

from tests.render.made_up_study import HOSTILE, hostile_study, machine, made_up_study
from togi.core.quantities import significant
from togi.core.recipe import PartKey, ProgramRecipe
from togi.core.records import (
    Decisions,
    ErrorReport,
    Interval,
    Obstacle,
    Outcome,
    PartResult,
    ProgramCall,
    ProgramTree,
    Study,
)
from togi.render.comparison_text import comparison_text
from togi.render.html.study_page import comparison_fragment, study_html
from togi.render.json import study_json
from togi.render.rows import rows
from togi.render.study_text import study_text
from togi.study.comparison import Comparison
from togi.study.contestants import BestSize, Contestant
from togi.techniques import recipe


def text(study: Study, width: int, **more: object) -> str:
    console = Console(file=io.StringIO(), width=width)
    console.print(study_text(study, width=width, **more))  # type: ignore[arg-type]
    return console.file.getvalue()  # type: ignore[attr-defined, no-any-return]


@pytest.mark.parametrize("width", [72, 80, 120, 160])
def test_fits_the_width_and_cuts_nothing(width: int) -> None:
    shown = text(made_up_study(), width)
    assert max(len(line) for line in shown.splitlines()) <= width
    assert "…" not in shown
    joined = " ".join(shown.split())
    for needed in ("13.3", "13.0-13.6", "3.14x", "3.08-3.20", "2.1 x", "58.9 MiB", "12,400 x"):
        assert needed in joined


def test_every_outcome_has_its_reason_and_fix() -> None:
    shown = text(made_up_study(), 200)
    for row in rows(made_up_study()):
        if not row.trial.eligible:
            assert row.trial.outcome.value in shown
            assert row.explanation in shown
    assert "fix: apt-get install libjemalloc2" in shown


def test_tells_notes_noise_loading_and_next_steps() -> None:
    shown = text(made_up_study(), 200, artifact="photos.togi")
    assert "it was handed over in training mode" in shown
    assert "other processes kept 1.1 cores busy" in shown
    assert "fast = togi.load('photos.togi')" in shown
    assert "togi report 5f2c9a7be1d0 --html report.html" in shown
    assert "--out NAME.togi" in text(made_up_study(), 200)


def test_nobody_is_told_to_keep_what_could_not_be_saved() -> None:
    study = made_up_study()
    *others, chosen = study.trials
    unsaved = chosen.model_copy(update={"reason": "it has no file form here: it is Python code"})
    assert chosen.recipe == study.best
    assert "--out NAME.togi  keeps it" in text(study, 200)
    assert "keeps it" not in text(study.model_copy(update={"trials": (*others, unsaved)}), 200)


def test_a_name_cannot_steer_the_terminal() -> None:
    shown = text(hostile_study(), 120)
    assert "\x1b" not in shown
    assert HOSTILE.partition("\x1b")[0][:30] in shown


def test_nothing_chosen_is_reported() -> None:
    empty = made_up_study().model_copy(update={"trials": (), "best": None, "verdict": ""})
    assert "Nothing could be chosen." in text(empty, 80)


def test_comparison_shows_each_contestant() -> None:
    first = Contestant(name="a.togi", latency_ms=Interval(median=10, low=9.9, high=10.1))
    second = Contestant(
        name="b.togi",
        latency_ms=Interval(median=5, low=4.9, high=5.1),
        speedup_x=Interval(median=2, low=1.95, high=2.05),
    )
    third = Contestant(name="c.togi", outcome=Outcome.FAILED, reason="it raised ValueError")
    found = Comparison(contestants=(first, second, third), verdict="b.togi is faster", machine=machine(), rounds=30)
    console = Console(file=io.StringIO(), width=100)
    console.print(comparison_text(found))
    shown = console.file.getvalue()  # type: ignore[attr-defined]
    for needed in ("2.00x", "1.95-2.05", "failed: it raised ValueError", "b.togi is faster", "30 rounds"):
        assert needed in shown


def program_study() -> Study:
    best = ProgramRecipe.of({PartKey(path="backbone"): recipe(openvino={}, no_grad={})})
    tree = ProgramTree(
        calls=(
            ProgramCall(path="", module="Detector", parent=None, calls=1, ms=100.0),
            ProgramCall(path="backbone", module="Backbone", parent=0, calls=1, ms=50.0),
            ProgramCall(path="head", module="Head", parent=0, calls=1, ms=20.0),
        ),
        parts=(
            PartResult(
                key=PartKey(path="backbone"),
                module="Backbone",
                copies=("backbone",),
                calls=1,
                share=0.5,
                recipe=recipe(openvino={}, no_grad={}),
                speedup_x=Interval(median=3.0, low=2.9, high=3.1),
            ),
        ),
        obstacles=(Obstacle(path="head", module="Head", share=0.2, reason="torch.export cannot capture it: <sizes>"),),
    )
    return made_up_study().model_copy(update={"program": tree, "best": best})


def test_parts_of_a_program_obstacles_and_the_python_between_them_are_shown() -> None:
    shown = " ".join(text(program_study(), 120, artifact="detector.togi").split())
    assert "backbone" in shown
    assert "openvino + no_grad: 3.00x alone" in shown
    assert "50.0 ms, 50% 16.7 ms" in shown
    assert "not captured whole: torch.export cannot capture it: <sizes>" in shown
    assert "(outside of modules)" in shown
    assert "30%" in shown
    assert ".into(program)" in shown
    page = study_html(program_study())
    assert "Parts of the program" in page
    assert "&lt;sizes&gt;" in page
    assert "Parts of the program" not in study_html(made_up_study())


@pytest.mark.parametrize(("share", "tried", "said"), [(0.4, 5, True), (0.4, 0, False), (0.2, 5, False)])
def test_a_part_that_nothing_made_faster_bounds_the_whole(share: float, tried: int, said: bool) -> None:
    """A network of convolutions before an LSTM: the convolutions have an engine, and the LSTM is as fast as it was."""
    study, key = program_study(), PartKey(path="recurrent")
    assert study.program is not None
    slow = PartResult(key=key, module="LSTM", copies=("recurrent",), calls=1, share=share, tried=tried)
    tree = study.program.model_copy(update={"parts": (*study.program.parts, slow)})
    shown = " ".join(text(study.model_copy(update={"program": tree}), 120).split())
    bound = (
        "recurrent (LSTM) takes 40% of the time, and nothing of what was tried there (5 recipes) is faster: whatever "
        "the rest gains, the whole gains 2.50x at most."
    )
    assert (bound in shown) is said


def busy_study() -> Study:
    """The same as if four callers had raced, each waiting for seven answers."""
    study = made_up_study()
    trials = [
        trial.model_copy(
            update={"timing": trial.timing.model_copy(update={"call_ms": 7 * trial.timing.latency_ms.median})}
        )
        if trial.timing
        else trial
        for trial in study.trials
    ]
    facts = study.facts.model_copy(update={"callers": 4})
    settings = {**study.settings, "objective": "throughput"}
    return study.model_copy(update={"trials": tuple(trials), "facts": facts, "settings": settings})


@pytest.mark.parametrize("width", [80, 160])
def test_the_energy_of_a_call_is_reported_where_a_gpu_tells_it(width: int) -> None:
    plain = made_up_study()
    trials = [
        trial.model_copy(update={"timing": trial.timing.model_copy(update={"energy_mj": 321.4})})
        if trial.timing
        else trial
        for trial in plain.trials
    ]
    study = plain.model_copy(update={"trials": tuple(trials)})
    shown = " ".join(text(study, width).split())
    assert "321 mJ" in shown
    assert "mJ: what the whole GPU takes for a call" in shown
    assert "321 mJ" in study_html(study)
    assert {one["energy_mj"] for one in study_json(study)["trials"]} == {321.4, None}
    assert "mJ" not in text(plain, width)
    assert "mJ" not in study_html(plain)


@pytest.mark.parametrize("width", [80, 160])
def test_what_several_callers_were_answered_is_distinguished_from_a_call(width: int) -> None:
    study = busy_study()
    chosen = next(row for row in rows(study) if row.chosen)
    assert chosen.trial.timing is not None
    shown = " ".join(text(study, width).split())
    assert "ms: from one answer to the next, with 4 callers at once (1 ms is 1,000 requests per second)" in shown
    assert f"call {significant(chosen.trial.timing.waited_ms)}" in shown
    assert "Nothing beats these in speed, time of a call and memory at once: " in shown
    assert "Nothing beats these" not in text(made_up_study(), width)
    page = study_html(study)
    assert "time per request" in page
    assert "Nothing beats these in speed" in page
    assert "time per sample" in study_html(made_up_study())


def test_what_is_wrong_beyond_numbers_is_said_next_to_a_difference_of_none() -> None:
    one = Interval(median=2.0, low=1.9, high=2.1)
    wrong = ErrorReport(faithful=False, units=0.0, rmse=0.0, max_abs=0.0, problems=("output is NaN elsewhere",))
    first = Contestant(name="a", latency_ms=one)
    contestants = (first, Contestant(name="b", latency_ms=one, speedup_x=one, error=wrong))
    console = Console(file=io.StringIO(), width=200)
    console.print(comparison_text(Comparison(contestants=contestants, machine=machine(), rounds=9)))
    shown = console.file.getvalue()  # type: ignore[attr-defined]
    assert "b: it does not answer as the original does: output is NaN elsewhere" in shown


def test_a_comparison_among_callers_says_what_each_waits_for() -> None:
    interval = Interval(median=2.0, low=1.9, high=2.1)
    contestants = [
        Contestant(name=name, latency_ms=interval, call_ms=call_ms) for name, call_ms in (("a", 9.0), ("b", 8.0))
    ]
    console = Console(file=io.StringIO(), width=200)
    console.print(comparison_text(Comparison(contestants=tuple(contestants), machine=machine(), callers=4, rounds=9)))
    shown = console.file.getvalue()  # type: ignore[attr-defined]
    assert "with 4 callers at once" in shown
    assert "b: 95 of 100 calls take 8.00 ms at most" in shown


def by_batch_size(callers: int = 1) -> Comparison:
    """Of two, one of which takes a single size."""
    interval, call_ms = Interval(median=2.0, low=1.9, high=2.1), 9.0 if callers > 1 else None
    sized = {"latency_ms": interval, "samples_per_s": Interval(median=4000, low=3800, high=4200), "call_ms": call_ms}
    contestants = (
        Contestant(name="a", batch=4, **sized),
        Contestant(name="a", batch=8, **sized, reason="over the limit of 1.50 ms"),
        Contestant(name="<b>", batch=4, outcome=Outcome.REFUSED, reason="x has shape (4, 8)"),
        Contestant(name="<b>", batch=8, **sized, speedup_x=interval),
    )
    best = tuple(BestSize(name=name, batch=size, verdict="so") for name, size in (("a", 4), ("<b>", 8)))
    about = {"batch_sizes": (4, 8), "max_latency_s": 0.0015, "best": best, "callers": callers, "rounds": 9}
    return Comparison(contestants=contestants, machine=machine(), verdict="a at 4", **about)


@pytest.mark.parametrize("width", [80, 160])
def test_a_comparison_by_batch_size_has_the_sizes_below_each_name(width: int) -> None:
    console = Console(file=io.StringIO(), width=width)
    console.print(comparison_text(by_batch_size()))
    lines = [line.rstrip() for line in console.file.getvalue().splitlines()]  # type: ignore[attr-defined]
    shown = "\n".join(lines)
    assert lines.index("a") < lines.index("<b>")
    assert [line.split()[:6] for line in lines if line.startswith("> ")] == [
        [">", "batch", "4", "2.00", "4,000", "-"],
        [">", "batch", "8", "2.00", "4,000", "2.00x"],
    ]
    for needed in ("samples/s", "3,800-4,200", "over the limit of 1.50 ms", "at the same batch size", "a at 4"):
        assert needed in shown
    assert "refused: x has shape (4, 8)" in " ".join(shown.split())
    assert "call 9.00" not in shown


def test_with_callers_each_size_says_what_a_call_takes() -> None:
    console = Console(file=io.StringIO(), width=100)
    console.print(comparison_text(by_batch_size(callers=4)))
    shown = console.file.getvalue()  # type: ignore[attr-defined]
    assert shown.count("call 9.00") == 3
    assert "what 95 of 100 calls take at most" in shown


def test_in_a_notebook_sizes_have_a_column_of_samples_a_second() -> None:
    page = comparison_fragment(by_batch_size())
    for needed in (
        "samples/s",
        "&lt;b&gt;, batch 8",
        "4,000 (3,800-4,200)",
        "refused: x has shape",
        "at the same batch",
    ):
        assert needed in page


def with_decisions(found: Decisions, outcome: Outcome) -> Study:
    """Of the last trial with that outcome: that of what is chosen, where it is OK."""
    study = made_up_study()
    trials = list(study.trials)
    place = max(place for place, trial in enumerate(trials) if trial.outcome is outcome)
    error = trials[place].error
    assert error is not None
    trials[place] = trials[place].model_copy(update={"error": error.model_copy(update={"decisions": found})})
    return study.model_copy(update={"trials": tuple(trials)})


@pytest.mark.parametrize(
    ("found", "line"),
    [
        (Decisions(agree=416, total=416), "decisions: 416 of 416 agree with the original's"),
        (
            Decisions(agree=412, total=416, sample=2, output="output", position=(17,)),
            "decisions: 412 of 416 agree with the original's; first difference in sample 2 at position 17",
        ),
    ],
)
@pytest.mark.parametrize("outcome", [Outcome.OK, Outcome.WRONG])
def test_what_was_decided_as_by_the_original_is_shown(found: Decisions, line: str, outcome: Outcome) -> None:
    study = with_decisions(found, outcome)
    assert line in " ".join(text(study, 200).split())
    page = study_html(study).replace("&#39;", "'")
    assert page.count(line) == (2 if outcome is Outcome.OK else 1), "of what is chosen it is worth knowing at once"
