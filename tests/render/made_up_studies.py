"""Studies of any kind, for property tests: all outcomes, long names, names in any script, many parts."""

from __future__ import annotations

from hypothesis import strategies as st

from tests.render.made_up_study import NO_GRAD, facts, ran, recipe, right
from togi.core.recipe import PartKey, ProgramRecipe, Recipe
from togi.core.records import Choice, Outcome, Stage, Study, Trial, Untried, Unused

names = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=200) | st.sampled_from(
    ["openvino", "onnxruntime", "torch_compile", "x" * 300, "\u795e\u7d4c\u7db2" * 40, "a\nb\tc\x1b[31m"]
)
"""Of letters that take no, one or two columns, and of what steers a terminal."""
sentences = st.lists(names, min_size=1, max_size=12).map(" ".join)


@st.composite
def recipes(draw: st.DrawFn) -> Recipe:
    choices = [
        Choice(stage=stage, technique=draw(names), options={draw(names): 1} if draw(st.booleans()) else {})
        for stage in draw(st.lists(st.sampled_from([Stage.REWRITE, Stage.ENGINE, Stage.PRECISION]), max_size=3))
    ]
    plain = recipe(*choices, NO_GRAD)
    if draw(st.integers(0, 4)):
        return plain
    return ProgramRecipe.of({PartKey(path=f"{draw(names)}.{part}"): plain for part in range(draw(st.integers(1, 40)))})


@st.composite
def trials(draw: st.DrawFn) -> Trial:
    outcome = draw(st.sampled_from([*Outcome, Outcome.OK, Outcome.OK]))
    reason = draw(sentences)
    tried = draw(recipes())
    if outcome is Outcome.OK:
        speedup = draw(st.floats(0.2, 400))
        return ran(
            tried, 10.0 / speedup, speedup, draw(st.floats(0.1, 9000)), (9.0, 1.0), reason=draw(st.just("") | sentences)
        )
    return Trial(
        recipe=tried,
        outcome=outcome,
        reason=reason,
        fix=draw(st.just("") | sentences),
        stage=draw(names),
        traceback=draw(st.just("") | sentences),
        error=right(20.0, draw(st.floats(1e-9, 1.0))) if outcome is Outcome.WRONG else None,
        refused_for=draw(st.sampled_from([None, Unused.NOT_ALLOWED, Unused.ANOTHER_DEVICE]))
        if outcome is Outcome.REFUSED
        else None,
    )


@st.composite
def studies(draw: st.DrawFn) -> Study:
    reference = draw(st.lists(st.just(ran(recipe(NO_GRAD), 10.0, 1.0, 1.0, (9.0, 1.0))), max_size=1))
    tried = (*reference, *draw(st.lists(trials(), max_size=25)))
    excluded = tuple(trial for trial in tried if trial.outcome in (Outcome.REFUSED, Outcome.MISSING))
    eligible = [trial.recipe for trial in tried if trial.eligible]
    untried = st.builds(
        Untried, technique=names, reason=sentences, unused=st.sampled_from([Unused.NO_TIME, Unused.NOT_WORTH_IT])
    )
    return Study(
        id="5f2c9a7be1d0",
        subject=draw(names),
        facts=facts().model_copy(
            update={"module_class": draw(names), "notes": tuple(draw(st.lists(sentences, max_size=5)))}
        ),
        settings={"max_drop": None},
        trials=tried,
        excluded=excluded,
        best=draw(st.sampled_from([None, *eligible])),
        verdict=draw(st.just("") | sentences),
        notes=tuple(draw(st.lists(sentences, max_size=3))),
        untried=tuple(draw(st.lists(untried, max_size=20))),
        took_s=draw(st.none() | st.floats(0, 1e5)),
        command=draw(st.just("") | sentences),
    )
