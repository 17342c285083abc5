"""What earlier studies teach, on synthetic subjects."""

from __future__ import annotations

import math
from typing import Any

import pytest

from tests.search.search_landscapes import CONVOLUTIONAL, MACHINE, TRANSFORMER, Fake, Landscape, family, measured_trial
from togi.core.records import Choice, Facts, Machine, Outcome, Recipe, Stage, Study, Trial
from togi.core.settings import Settings
from togi.search import Experience, Search
from togi.search.experience import kind_of, relevance
from togi.techniques.base import Technique

SETTINGS = Settings(without=("pad", "allocator"))
REFERENCE = Recipe(choices=(Choice(stage=Stage.RUNTIME, technique="no_grad"),))
ENGINES = ("script", "compile", "onnx", "vino")


def with_engine(id: str, **options: Any) -> Recipe:
    return Recipe(choices=(Choice(stage=Stage.ENGINE, technique=id, options=options), *REFERENCE.choices))


def study(name: str = "a", facts: Facts = CONVOLUTIONAL, **speedups_x: float) -> Study:
    """In which engines came to so much."""
    tried = [measured_trial(REFERENCE, 1.0)]
    tried += [measured_trial(with_engine(id), speedup_x) for id, speedup_x in speedups_x.items()]
    return Study(id=name, subject=name, facts=facts, trials=tuple(tried))


def learned(*studies: Study, facts: Facts = CONVOLUTIONAL, settings: Settings = SETTINGS) -> Experience:
    return Experience.of(studies, facts, settings, family())


def expected_x(experience: Experience, recipe: Recipe) -> float:
    """Over the reference."""
    space = Search(CONVOLUTIONAL, SETTINGS, family()).space
    one, other = (space.features(each) for each in (recipe, REFERENCE))
    guessed = other.expected_log_latency - one.expected_log_latency
    return math.exp(guessed + experience.log_latency(other) - experience.log_latency(one))


def on(**changes: Any) -> Facts:
    return CONVOLUTIONAL.model_copy(update={"machine": MACHINE.model_copy(update=changes)})


@pytest.mark.parametrize(
    ("calls", "kind"),
    [
        (("conv2d", "linear", "batch_norm"), "convolutional"),
        (("conv2d", "scaled_dot_product_attention"), "transformer"),
        (("conv1d", "gru"), "recurrent"),
        (("conv2d", "nms"), "detection"),
        (("linear", "relu"), "dense"),
    ],
)
def test_kinds_of_models(calls: tuple[str, ...], kind: str) -> None:
    assert kind_of(Facts(machine=MACHINE, module_class="Net", functions=dict.fromkeys(calls, 1))) == kind


@pytest.mark.parametrize(
    ("facts", "objective", "counts"),
    [
        (CONVOLUTIONAL, "latency", 1.0),
        (TRANSFORMER, "latency", 0.5),
        (on(versions={"torch": "2.9"}), "latency", 0.5),
        (on(cpu_model="another"), "latency", 0.0),
        (on(threads=64), "latency", 0.0),
        (CONVOLUTIONAL.model_copy(update={"device": "cuda"}), "latency", 0.0),
        (CONVOLUTIONAL.model_copy(update={"callers": 4}), "latency", 0.0),
        (CONVOLUTIONAL, "throughput", 0.0),
    ],
)
def test_what_a_study_counts(facts: Facts, objective: str, counts: float) -> None:
    earlier = study(facts=facts).model_copy(update={"settings": {"objective": objective}})
    assert relevance(earlier, CONVOLUTIONAL, SETTINGS) == counts


def test_guesses_move_towards_medians_the_more_the_more_studies_there_are() -> None:
    vino = with_engine("vino")
    guessed = expected_x(Experience(), vino)
    assert guessed == pytest.approx(2.4)
    found = [expected_x(learned(*(study(str(n), vino=1.2) for n in range(count))), vino) for count in (1, 2, 9)]
    assert found == [pytest.approx(1.2 * 2 ** (1 / (count + 1))) for count in (1, 2, 9)]
    outlier = [study("slow", vino=0.01), *(study(str(n), vino=1.2) for n in range(4))]
    assert expected_x(learned(*outlier), vino) == pytest.approx(1.2 * 2 ** (1 / 6))


def test_of_options_nothing_is_known_but_what_the_technique_did_with_others() -> None:
    hinted = with_engine("vino", hint="latency")
    guessed = expected_x(Experience(), hinted)
    assert expected_x(learned(study(vino=1.2)), hinted) == pytest.approx(guessed / math.sqrt(2))


def test_what_processes_differ_by_teaches_nothing() -> None:
    assert expected_x(learned(study(vino=2.4 * 1.02)), with_engine("vino")) == pytest.approx(2.4)


def test_a_choice_is_judged_next_to_the_same_recipe_without_it_and_by_engine() -> None:
    """Under vino, fold gained nothing: there and only there less is expected of it."""
    fold = Choice(stage=Stage.REWRITE, technique="fold")
    folded = {
        id: Recipe(choices=(fold, *recipe.choices))
        for id, recipe in (("eager", REFERENCE), *((id, with_engine(id)) for id in ("vino", "onnx")))
    }
    trials = [measured_trial(with_engine("vino"), 2.4), measured_trial(folded["vino"], 2.4 * 0.8)]
    earlier = [
        Study(id=str(n), subject=str(n), facts=CONVOLUTIONAL, trials=(measured_trial(REFERENCE, 1.0), *trials))
        for n in range(3)
    ]
    after, before = learned(*earlier), Experience()
    assert expected_x(after, folded["vino"]) < 0.9 * expected_x(before, folded["vino"])
    assert expected_x(after, folded["onnx"]) == expected_x(before, folded["onnx"])
    assert expected_x(after, folded["eager"]) == expected_x(before, folded["eager"])


def test_an_engine_tried_only_with_other_choices_gets_their_joint_gain() -> None:
    folded = Recipe(choices=(Choice(stage=Stage.REWRITE, technique="fold"), *with_engine("vino").choices))
    trials = (measured_trial(REFERENCE, 1.0), measured_trial(folded, 7.0))
    experience = learned(Study(id="a", subject="a", facts=CONVOLUTIONAL, trials=trials))
    assert expected_x(Experience(), folded) < expected_x(experience, folded) < 7.0
    assert expected_x(experience, with_engine("vino")) > expected_x(Experience(), with_engine("vino"))
    assert experience.sentence({"vino", "fold"}).endswith("vino 7.00x")


def test_what_was_measured_next_to_busy_neighbours_teaches_nothing() -> None:
    quiet = study(vino=9.0)
    tried = quiet.trials[1]
    assert tried.timing is not None
    noise = tried.timing.noise.model_copy(update={"waiting": 0.5})
    crowded = tried.model_copy(update={"timing": tried.timing.model_copy(update={"noise": noise})})
    experience = learned(quiet.model_copy(update={"trials": (quiet.trials[0], crowded)}))
    assert experience.used == 0
    assert expected_x(experience, with_engine("vino")) == expected_x(Experience(), with_engine("vino"))


def test_costs_are_learned_of_what_takes_longest() -> None:
    features = Search(CONVOLUTIONAL, SETTINGS, family()).space.features
    slow = measured_trial(
        with_engine("vino"), 2.4, cost_s=4 * math.exp(features(with_engine("vino")).expected_log_cost)
    )
    earlier = Study(id="a", subject="a", facts=CONVOLUTIONAL, trials=(measured_trial(REFERENCE, 1.0, cost_s=0.0), slow))
    assert learned(earlier).log_cost(features(with_engine("vino"))) == pytest.approx(math.log(2))
    assert learned(earlier).log_cost(features(with_engine("onnx"))) == 0


def test_costs_of_graphs_of_this_size_count_most() -> None:
    features = Search(CONVOLUTIONAL, SETTINGS, family()).space.features(with_engine("vino"))

    def cost_x(size_x: int) -> float:
        facts = CONVOLUTIONAL.model_copy(update={"functions": {"conv2d": 100 * size_x}})
        took = measured_trial(with_engine("vino"), 2.4, cost_s=4 * math.exp(features.expected_log_cost))
        trials = (measured_trial(REFERENCE, 1.0, cost_s=0.0), took)
        return math.exp(learned(Study(id="a", subject="a", facts=facts, trials=trials)).log_cost(features))

    assert cost_x(1) == pytest.approx(2.0)
    assert cost_x(4) == pytest.approx(4 ** (1 / 3))
    assert cost_x(64) < 1.2


def test_costs_are_learned_of_options_too() -> None:
    """Those of ``compile`` with one mode say little of another."""
    features = Search(CONVOLUTIONAL, SETTINGS, family()).space.features
    slow, other = (with_engine("compile", mode=mode, freezing=True) for mode in ("max", "default"))
    cost_s = 4 * math.exp(features(slow).expected_log_cost)
    trials = (measured_trial(REFERENCE, 1.0, cost_s=0.0), measured_trial(slow, 1.6, cost_s=cost_s))
    experience = learned(Study(id="a", subject="a", facts=CONVOLUTIONAL, trials=trials))
    assert experience.log_cost(features(slow)) == pytest.approx(1.5 * math.log(2))
    assert experience.log_cost(features(other)) == pytest.approx(math.log(2))


def test_of_one_subject_the_newest_study_counts() -> None:
    newest_first = [study(vino=1.2), study(vino=9.0), study(vino=9.0)]
    assert expected_x(learned(*newest_first), with_engine("vino")) < 2.4
    assert learned(*newest_first).used == 1


class Elsewhere(Landscape):
    """A machine on which engines rank the other way round."""

    def _log_latency(self, recipe: Recipe, engine: str) -> float:
        wrong = {"vino": 1.2, "onnx": 0.6, "compile": -0.4, "script": -0.9}
        return super()._log_latency(recipe, engine) + wrong.get(engine, 0.0)


def spent_s(landscape: Landscape, experience: Experience) -> float:
    """Until within 2 % of the best of all simple recipes."""
    search = Search(CONVOLUTIONAL, SETTINGS, family(), experience=experience, clock=lambda: 0.0)
    recipes = list(search.space.recipes())
    best, spent = max(speedup(landscape.trial(recipe)) for recipe in recipes), 0.0
    while (recipe := search.next()) is not None:
        trial = landscape.trial(recipe)
        search.tell(trial)
        spent += trial.cost_s
        if speedup(trial) >= best / 1.02:
            return spent
    return spent + sum(landscape.trial(recipe).cost_s for recipe in recipes)  # it never got there


def speedup(trial: Trial) -> float:
    return trial.timing.speedup_x.median if trial.eligible and trial.timing else 0.0


def as_study(landscape: Landscape) -> Study:
    search, trials = Search(CONVOLUTIONAL, SETTINGS, family(), clock=lambda: 0.0), []
    while (recipe := search.next()) is not None:
        trials.append(landscape.trial(recipe))
        search.tell(trials[-1])
    return Study(id=str(landscape.seed), subject=str(landscape.seed), facts=CONVOLUTIONAL, trials=tuple(trials))


def test_where_guesses_are_wrong_earlier_studies_shorten_the_way() -> None:
    landscapes = [Elsewhere(seed) for seed in range(6)]
    studies = [as_study(landscape) for landscape in landscapes]
    before = sum(spent_s(landscape, Experience()) for landscape in landscapes)
    after = sum(
        spent_s(landscape, learned(*(s for s in studies if s is not own)))
        for landscape, own in zip(landscapes, studies, strict=True)
    )
    assert after < 0.9 * before


def test_no_journal_keeps_an_engine_from_its_trial() -> None:
    """Studies that say what is not so cost trials, not the result."""
    lies = [study(str(n), vino=1e-6, onnx=1e-6, script=1e6) for n in range(30)]
    search, tried = Search(CONVOLUTIONAL, SETTINGS, family(), experience=learned(*lies), clock=lambda: 0.0), []
    while (recipe := search.next()) is not None:
        tried.append(measured_trial(recipe, 2.0 if recipe.find("vino") else 0.9 if recipe.at(Stage.ENGINE) else 1.0))
        search.tell(tried[-1])
    assert any(trial.recipe.find("vino") for trial in tried)


def test_studies_that_mean_nothing_here_are_passed_over() -> None:
    class Raises(Fake):
        def expected_speedup(self, facts: Facts, options: Any) -> float:
            raise KeyError("of another version")

    techniques: dict[str, Technique] = {**family(), "raises": Raises("raises", Stage.ENGINE)}
    foreign = study("foreign", gone=3.0)
    broken = study("broken", raises=3.0)
    unmeasured = Study(id="u", subject="u", facts=CONVOLUTIONAL, trials=(Trial(recipe=REFERENCE, outcome=Outcome.OK),))
    negative = study("negative", vino=-1.0)
    experience = Experience.of(
        [foreign, broken, unmeasured, negative, study("good", vino=1.2)], CONVOLUTIONAL, SETTINGS, techniques
    )
    assert experience.used == 1
    assert experience.unreadable == 2
    assert expected_x(experience, with_engine("vino")) == pytest.approx(
        expected_x(learned(study(vino=1.2)), with_engine("vino"))
    )


def test_what_was_learned_is_reported_in_one_line() -> None:
    other = Machine(**{**MACHINE.model_dump(), "versions": {"torch": "2.9"}})
    studies = [
        study("a", vino=3.1, onnx=2.0),
        study("b", TRANSFORMER, vino=3.3),
        study("c", CONVOLUTIONAL.model_copy(update={"machine": other}), script=1.5),
        study("d", on(cpu_model="another"), onnx=7.0),
    ]
    experience = Experience.of(studies, CONVOLUTIONAL, SETTINGS, family(), left_out=2, unreadable=1)
    assert experience.sentence({"vino", "onnx"}) == (
        "what to try first, from 3 earlier studies here (2 of convolutional models; 1 with other versions, which count "
        "half; 3 of other machines or objectives left out; 1 could not be read): vino 3.10x, onnx 2.00x"
    )
    assert experience.sentence({"compile"}) == ""
    assert Experience().sentence({"vino"}) == ""
