from __future__ import annotations

import re
from html.parser import HTMLParser

import pytest

from tests.render.made_up_study import (
    CHANNELS_LAST,
    FOLD,
    HOSTILE,
    INFERENCE,
    OPENVINO,
    hostile_study,
    made_up_study,
    ran,
    recipe,
    timed,
)
from togi.core.records import Interval, Study
from togi.render.gains import gains
from togi.render.html import study_html
from togi.render.html.axis import Axis, tick_label
from togi.render.html.charts import staircase
from togi.render.rows import rows


def test_same_study_gives_the_same_bytes() -> None:
    assert study_html(made_up_study()) == study_html(made_up_study())


def test_every_recipe_has_its_row_and_its_reason() -> None:
    study = made_up_study()
    page = study_html(study)
    assert page.count("<tbody") == len(rows(study))
    for trial in study.trials:
        assert f'id="trial-{trial.recipe.id}"' in page
    assert "it needs a CUDA device, and the subject is on the CPU" in page
    assert "omp.h: No such file or directory" in page


def test_nothing_is_loaded_from_elsewhere() -> None:
    page = study_html(made_up_study())
    attributes: set[str] = set()
    parser = HTMLParser()
    parser.handle_starttag = lambda _, attrs: attributes.update(dict(attrs))  # type: ignore[method-assign]
    parser.feed(page)
    assert {"class", "data-hint"} <= attributes
    assert not attributes & {"src", "srcset", "href", "action", "xlink:href", "onclick", "onload"}
    assert not re.search(r"@import|url\(|https?://", page)
    assert "default-src 'none'" in page


def test_hostile_text_is_escaped_everywhere() -> None:
    page = study_html(hostile_study())
    assert HOSTILE not in page
    assert page.count("<script>") == 1
    assert "<img" not in page
    assert "\x1b" not in page
    assert page.count("&lt;script&gt;") > 10


def test_a_study_without_trials_is_shown_too() -> None:
    empty = made_up_study().model_copy(update={"trials": (), "best": None, "finalists": (), "verdict": ""})
    page = study_html(empty)
    assert "Nothing could be chosen." in page
    assert "<tbody" not in page


def test_headline_tile_and_row_of_the_chosen_agree() -> None:
    """The time of eager is that of the chosen recipe's own rounds, not of its own trial at another moment."""
    study = made_up_study()
    chosen = study.trials[-1].model_copy(update={"timing": timed(20.0, 3.0, half=0.01)})
    page = study_html(study.model_copy(update={"trials": (*study.trials[:-1], chosen)}))
    eager_ms = float(re.search(r"eager ([\d.]+) ms in the same rounds", page)[1])  # type: ignore[index]
    assert eager_ms / 20.0 == pytest.approx(3.0, rel=0.03)
    assert "<strong>3.00&times;</strong><span>the speed of eager (2.97-3.03)</span>" in page
    assert "3.00x<small>2.97-3.03</small>" in page


def test_the_page_explains_why_a_recipe_that_looks_faster_was_not_chosen() -> None:
    study = made_up_study()
    page = study_html(study)
    assert re.search(r'class="point mark chosen"', page)
    assert "looks faster" not in page
    other = ran(recipe(FOLD, CHANNELS_LAST, OPENVINO, INFERENCE), 13.1, 3.19, 2.0, (50.0, 9.5))
    beaten = study_html(study.model_copy(update={"trials": (*study.trials, other)}))
    assert "Not chosen though it looks faster: fold_batch_norm + channels_last + openvino" in beaten


def test_intervals_without_ends_are_words() -> None:
    study = made_up_study()
    timing = timed(20.0, 1.4)
    endless = Interval(median=1.4, low=0.0, high=float("inf"))
    timing = timing.model_copy(update={"speedup_x": endless, "latency_ms": endless})
    rough = study.trials[1].model_copy(update={"timing": timing})
    page = study_html(study.model_copy(update={"trials": (study.trials[0], rough)}))
    assert "inf" not in re.sub(r"inference|infinit\w+", "", page.partition("<body>")[2].partition("<script>")[0])
    assert "not measured well enough" in page
    assert "too few rounds" in page


def test_extreme_numbers_do_not_break_figures() -> None:
    study = made_up_study()
    trial = study.trials[0]
    assert trial.timing is not None
    assert trial.error is not None
    nan = float("nan")
    broken = trial.model_copy(
        update={
            "timing": trial.timing.model_copy(
                update={"speedup_x": trial.timing.speedup_x.model_copy(update={"low": 0.0, "high": float("inf")})}
            ),
            "error": trial.error.model_copy(update={"units": nan, "rmse": nan, "max_abs": nan}),
        }
    )
    page = study_html(Study(**{**dict(study), "trials": (broken, *study.trials[1:])}))
    assert "left:nan%" not in page
    assert "left:inf%" not in page


def test_control_characters_are_made_visible() -> None:
    study = made_up_study().model_copy(update={"subject": "a\x00b\x1b", "verdict": '"<b>'})
    page = study_html(study)
    assert "<h1>a\N{REPLACEMENT CHARACTER}b\N{REPLACEMENT CHARACTER}</h1>" in page
    assert "&#34;&lt;b&gt;" in page


@pytest.mark.parametrize(
    ("values", "logarithmic"), [([1.0, 1.5], False), ([1.0, 100.0], True), ([3.0], False), ([], False)]
)
def test_axis_keeps_values_inside_and_in_order(values: list[float], logarithmic: bool) -> None:
    axis = Axis(values)
    assert axis.logarithmic is logarithmic
    places = [axis.place(value) for value in values]
    assert places == sorted(places)
    assert all(0 < place < 100 for place in places)
    ticks = axis.ticks()
    assert 2 <= len(ticks) <= 8
    assert all(0 <= axis.place(tick) <= 100 for tick in ticks)


def test_tick_labels_are_short() -> None:
    assert [tick_label(v) for v in (0.5, 1.0, 20.0, 1000.0, 100_000.0, 2e6)] == [
        "0.5",
        "1",
        "20",
        "1,000",
        "100k",
        "2M",
    ]


def test_the_page_shows_how_soon_it_became_faster() -> None:
    page = study_html(made_up_study())
    assert "The first gain was measured 20 s after the start" in page
    assert page.count('class="point mark faithful" type="button"') >= 3
    without = made_up_study()
    untimed = tuple(trial.model_copy(update={"ended_s": None}) for trial in without.trials)
    assert "How soon" not in study_html(without.model_copy(update={"trials": untimed}))


def test_the_staircase_rises_from_left_to_right() -> None:
    chart = staircase(gains(made_up_study()))
    assert chart is not None
    points = [tuple(map(float, point.split(","))) for point in chart.line.split()]
    assert points[0][0] == 0
    assert points[-1][0] == 100
    assert [left for left, _ in points] == sorted(left for left, _ in points)
    assert [top for _, top in points] == sorted((top for _, top in points), reverse=True)
