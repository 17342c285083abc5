import itertools
import math
import random

import pytest

from tests.measure.simulated_runners import NOISES, SimulatedMachine, SimulatedRunner, gaussian
from togi.decide.faster import BETWEEN_PROCESSES, Criterion, Speed
from togi.measure import RaceResult, RaceVerdict, race, rounds_needed
from togi.measure.interval import ratio_interval
from togi.measure.race_result import of_each, together
from togi.measure.turn import Turn

RACES = 60


def _pair(noise, slower: float, seed: int, budget_s: float = 12.0, bias: float = 0.0, **settings) -> RaceResult:
    rng = random.Random(seed)
    machine = SimulatedMachine(noise(rng, 0.05))
    a, b = SimulatedRunner("a", machine), SimulatedRunner("b", machine, ms=10.0 * slower * (1 + rng.gauss(0, bias)))
    return race([b], a, budget_s=budget_s, seed=seed, clock=machine.clock, **settings)


def some_noises(*soon: str) -> list[object]:
    """All of them; those not named in thorough runs only."""
    return [
        pytest.param(noise, id=name, marks=() if name in soon else pytest.mark.thorough)
        for name, noise in NOISES.items()
    ]


def test_fastest_is_separated_and_wins():
    machine = SimulatedMachine(gaussian(random.Random(0), 0.02))
    base = SimulatedRunner("base", machine)
    field = [SimulatedRunner("half", machine, ms=5.0), SimulatedRunner("slow", machine, ms=20.0)]
    result = race(field, base, budget_s=30, seed=1, clock=machine.clock)
    assert (result.verdict, result.winner) == (RaceVerdict.SEPARATED, "half")
    found = result.entry("half").speedup_x
    assert found.low <= 2.0 <= found.high
    assert result.entry("slow").left_at is not None
    assert "half" in result.sentence


def test_a_race_for_speed_ups_goes_on_until_all_are_sharp_and_nobody_leaves():
    machine = SimulatedMachine(gaussian(random.Random(0), 0.02))
    base = SimulatedRunner("base", machine)
    field = [SimulatedRunner("half", machine, ms=5.0), SimulatedRunner("slow", machine, ms=20.0)]

    def sharp(speedup_x):
        return speedup_x.low > 0 and speedup_x.high / speedup_x.low < 1.01

    result = race(field, base, budget_s=300, seed=1, clock=machine.clock, enough=sharp)
    short = race(field, base, budget_s=300, seed=1, clock=machine.clock)
    assert result.rounds > short.rounds
    for name, speedup in (("half", 2.0), ("slow", 0.5)):
        entry = result.entry(name)
        assert None not in entry.rounds_ms
        assert sharp(entry.speedup_x)
        assert entry.speedup_x.low <= speedup <= entry.speedup_x.high
    assert (result.verdict, result.winner) == (RaceVerdict.SEPARATED, "half")
    brief = race(field, base, budget_s=3, seed=1, clock=machine.clock, enough=lambda _: False)
    assert brief.wall_s <= 3
    least = race(field, base, budget_s=0, seed=1, clock=machine.clock, enough=lambda _: False, least_rounds=8)
    assert least.rounds == 8


def test_same_seed_same_race():
    assert _pair(gaussian, 1.1, seed=5) == _pair(gaussian, 1.1, seed=5)


def test_order_of_turns_is_random_but_every_round_has_everyone():
    machine, called = SimulatedMachine(gaussian(random.Random(1), 0.05)), []

    class Watched(SimulatedRunner):
        def turn(self, passes):
            called.append(self.name)
            return super().turn(passes)

    a, b = Watched("a", machine), Watched("b", machine)
    result = race([b], a, budget_s=3, seed=0, clock=machine.clock)
    rounds = [tuple(called[i : i + 2]) for i in range(4, len(called), 2)]  # two turns each chose the passes
    assert len(rounds) == result.rounds
    assert {frozenset(r) for r in rounds} == {frozenset("ab")}
    assert {("a", "b"), ("b", "a")} == set(rounds)


def test_a_runner_far_behind_leaves_early_and_costs_no_more_turns():
    machine = SimulatedMachine(gaussian(random.Random(2), 0.03))
    base, near = SimulatedRunner("base", machine), SimulatedRunner("near", machine, ms=9.99)
    far = SimulatedRunner("far", machine, ms=50.0)
    result = race([near, far], base, budget_s=5, seed=3, clock=machine.clock)
    entry = result.entry("far")
    assert entry.left_at < result.rounds
    assert len([t for t in entry.rounds_ms if t is not None]) == entry.left_at
    assert "times" in entry.left_because


def test_each_group_finds_its_own_fastest_and_these_are_compared():
    machine = SimulatedMachine(gaussian(random.Random(4), 0.05))
    times_ms = {"a1": 21.0, "a2": 19.0, "b1": 8.0, "b2": 5.0, "alone": 60.0}
    base, *field = [SimulatedRunner(name, machine, ms=ms) for name, ms in times_ms.items()]
    groups = {"a1": "a", "a2": "a", "b1": "b", "b2": "b", "alone": "c"}
    result = race(field, base, budget_s=600, seed=3, clock=machine.clock, rivals=groups, turn_ms=1.0)
    left = {entry.name: entry.left_at or result.rounds for entry in result.entries}
    assert left["b1"] < left["a1"] == result.rounds  # when it was clear in all
    assert left["a2"] == left["b2"] == left["alone"] == result.rounds
    found = result.speed_x("b2", over="a2")
    assert found.low <= 3.8 <= found.high
    assert (result.verdict, result.winner) == (RaceVerdict.SEPARATED, "b2")
    assert "b2 is the fastest beyond doubt" in result.sentence
    in_one = race(field, base, budget_s=600, seed=3, clock=machine.clock, turn_ms=1.0)
    assert in_one.rounds < result.rounds


@pytest.mark.parametrize("seed", range(40))
def test_the_sentence_calls_no_contestant_both_slower_and_undecided(seed):
    rng = random.Random(seed)
    machine = SimulatedMachine(gaussian(rng, 0.02))
    names = "abcd"[: rng.randint(2, 4)]
    noisy = SimulatedMachine(gaussian(rng, 0.5))  # the leader may be one of whom little is known
    base, *field = [
        SimulatedRunner(name, rng.choice([machine, noisy]), ms=10.0 * 2 ** rng.uniform(-1, 1)) for name in names
    ]
    clock = lambda: machine.clock() + noisy.clock()  # noqa: E731
    result = race(field, base, budget_s=rng.uniform(0.1, 2), seed=seed, clock=clock, turn_ms=1.0)
    left = [entry.name for entry in result.entries if entry.left_at is None]
    speeds = {(a, b): result.criterion.speed(result.speed_x(a, b)) for a, b in itertools.permutations(left, 2)}
    assert set(speeds.values()) <= {Speed.SAME, Speed.UNCLEAR}
    assert (len(left) == 1) == (result.verdict is RaceVerdict.SEPARATED)
    if result.verdict is RaceVerdict.CANNOT_TELL:
        assert f"cannot tell {' and '.join(left)} apart" in result.sentence
    assert result.winner == "a" or result.criterion.faster(result.entry(result.winner).speedup_x)
    assert "a" in left or "nothing is faster" not in result.sentence


def test_orders_of_magnitude_are_told_after_one_round():
    machine = SimulatedMachine(gaussian(random.Random(0), 0.05))
    base, slow = SimulatedRunner("base", machine, ms=0.01), SimulatedRunner("slow", machine, ms=200.0)
    result = race([slow], base, budget_s=0.1, seed=0, clock=machine.clock)
    assert result.rounds == 1
    assert (result.verdict, result.winner) == (RaceVerdict.SEPARATED, "base")
    assert "(too few rounds) the time of base" in result.entry("slow").left_because


def test_beaten_reference_goes_on_in_every_fourth_round():
    machine = SimulatedMachine(gaussian(random.Random(2), 0.05))
    base = SimulatedRunner("base", machine, ms=40.0)
    field = [SimulatedRunner("x", machine), SimulatedRunner("y", machine)]
    result = race(
        field, base, budget_s=6, seed=3, criterion=Criterion(margin=0.0, process_bias=0.001), clock=machine.clock
    )
    entry = result.entry("base")
    later = entry.rounds_ms[entry.left_at :]
    assert len(later) > 8
    assert [time is not None for time in later] == [k % 4 == 0 for k in range(entry.left_at + 1, result.rounds + 1)]
    assert result.timing("x").speedup_x.low > 3.5


def test_equal_runners_are_equivalent_and_the_reference_wins():
    result = _pair(gaussian, 1.0, seed=0, budget_s=60)
    assert (result.verdict, result.winner) == (RaceVerdict.EQUIVALENT, "a")
    assert "within 4.0%" in result.sentence


def test_out_of_budget_cannot_tell_and_the_reference_wins():
    result = _pair(gaussian, 0.9, seed=0, budget_s=0.5)
    assert (result.verdict, result.winner) == (RaceVerdict.CANNOT_TELL, "a")
    assert result.rounds == 2
    assert "cannot tell" in result.sentence


def test_budget_holds():
    result = _pair(gaussian, 1.02, seed=0, budget_s=4.0, criterion=Criterion(margin=0.0, process_bias=0.0))
    assert result.wall_s <= 4.5


def test_one_round_is_run_however_small_the_budget():
    result = _pair(gaussian, 1.0, seed=0, budget_s=0.0)
    assert result.rounds == 1
    assert result.timing("b").rounds_ms


def test_a_runner_that_raises_leaves_with_its_reason_and_the_race_goes_on():
    machine = SimulatedMachine(gaussian(random.Random(2), 0.03))
    base, good = SimulatedRunner("base", machine), SimulatedRunner("good", machine, ms=5.0)
    bad = SimulatedRunner("bad", machine, ms=1.0, raises_at=6)
    result = race([good, bad], base, budget_s=20, seed=3, clock=machine.clock)
    assert result.winner == "good"
    entry = result.entry("bad")
    assert entry.left_because == "RuntimeError: bad broke in turn 6"
    assert "simulated_runners.py" in entry.traceback
    assert entry.left_at == 4


@pytest.mark.parametrize("turn", [1, 2, 5])
def test_a_reference_that_raises_ends_the_race_without_a_winner_over_it(turn):
    machine = SimulatedMachine()
    base, other = SimulatedRunner("base", machine, raises_at=turn), SimulatedRunner("other", machine, ms=5.0)
    result = race([other], base, budget_s=5, seed=0, clock=machine.clock)
    assert (result.verdict, result.winner) == (RaceVerdict.CANNOT_TELL, "base")
    assert "broke" in result.sentence


def test_nobody_left_to_compare_with():
    machine = SimulatedMachine()
    result = race(
        [SimulatedRunner("b", machine, raises_at=1)],
        SimulatedRunner("a", machine),
        budget_s=5,
        seed=0,
        clock=machine.clock,
    )
    assert (result.verdict, result.winner) == (RaceVerdict.CANNOT_TELL, "a")
    assert result.timing("b") is None


def test_all_may_fail_in_one_round():
    """Their server was killed."""
    machine = SimulatedMachine(gaussian(random.Random(2), 0.1))
    field = [SimulatedRunner(name, machine, raises_at=14) for name in ("base", "a", "b")]
    result = race(field[1:], field[0], budget_s=20, seed=3, clock=machine.clock)
    assert (result.verdict, result.winner) == (RaceVerdict.CANNOT_TELL, "base")
    assert "broke in turn 14" in result.sentence


def test_those_that_beat_the_reference_may_fail_afterwards():
    machine = SimulatedMachine(gaussian(random.Random(2), 0.1))
    base = SimulatedRunner("base", machine)
    good = [SimulatedRunner(name, machine, ms=3.0, raises_at=15) for name in ("a", "b")]
    result = race(good, base, budget_s=20, seed=3, clock=machine.clock)
    assert result.entry("base").left_at is not None
    assert (result.verdict, result.winner) == (RaceVerdict.CANNOT_TELL, "base")
    assert result.sentence == "no runner was left to compare base with"


def test_reference_among_the_runners_races_once():
    machine = SimulatedMachine()
    base, other = SimulatedRunner("base", machine), SimulatedRunner("other", machine)
    result = race([base, other], base, budget_s=5, seed=0, clock=machine.clock)
    assert [entry.name for entry in result.entries] == ["base", "other"]


def test_names_must_differ():
    machine = SimulatedMachine()
    with pytest.raises(ValueError, match="names of their own"):
        race([SimulatedRunner("a", machine)], SimulatedRunner("a", machine), budget_s=1, seed=0)


def test_passes_fill_a_turn():
    machine = SimulatedMachine()
    asked = []

    class Watched(SimulatedRunner):
        def turn(self, passes):
            asked.append(passes)
            return super().turn(passes)

    slow = SimulatedRunner("slow", machine, ms=500.0)
    race([slow], Watched("quick", machine, ms=0.5), budget_s=9, seed=0, clock=machine.clock)
    assert asked[:2] == [1, 120]
    assert set(asked[2:]) == {120}


def test_progress_is_told_of_every_round():
    machine, seen = SimulatedMachine(gaussian(random.Random(0), 0.01)), []
    a, b = SimulatedRunner("a", machine), SimulatedRunner("b", machine, ms=20.0)
    result = race([b], a, budget_s=5, seed=0, clock=machine.clock, on_round=lambda n, s: seen.append((n, sorted(s))))
    assert [number for number, _ in seen] == list(range(1, result.rounds + 1))
    assert seen[0][1] == ["a", "b"]


def test_timing_keeps_raw_pairs_and_survives_json():
    result = _pair(gaussian, 1.5, seed=0)
    timing = result.timing("b", first_call_ms=3.0, build_s=0.5)
    assert len(timing.rounds_ms) == result.rounds
    assert timing.speedup_x.median == pytest.approx(1 / 1.5, rel=0.05)
    assert (timing.first_call_ms, timing.build_s) == (3.0, 0.5)
    assert RaceResult.from_json(result.to_json()) == result


@pytest.mark.parametrize("noise", some_noises("heavy-tailed"))
def test_equal_runners_are_rarely_called_different(noise):
    """At most 5 % of 60 races, whatever the noise."""
    verdicts = [_pair(noise, 1.0, seed=seed).verdict for seed in range(RACES)]
    assert verdicts.count(RaceVerdict.SEPARATED) <= 0.05 * RACES


@pytest.mark.parametrize("noise", some_noises("gaussian", "autocorrelated"))
def test_lasting_differences_between_processes_are_not_taken_for_more(noise):
    """Each process is off by 1 % (standard deviation) for as long as it lives."""
    verdicts = [_pair(noise, 1.0, seed=seed, bias=0.01).verdict for seed in range(RACES)]
    assert verdicts.count(RaceVerdict.SEPARATED) <= 0.05 * RACES


@pytest.mark.parametrize("noise", some_noises("heavy-tailed", "autocorrelated"))
def test_a_tenth_slower_is_found_and_never_the_wrong_way_round(noise):
    results = [_pair(noise, 1.1, seed=seed, bias=0.01) for seed in range(RACES)]
    wrong = [result for result in results if result.winner == "b" or result.entry("a").left_at is not None]
    found = [result for result in results if result.verdict is RaceVerdict.SEPARATED]
    assert wrong == []
    assert len(found) >= 0.9 * RACES


@pytest.mark.parametrize("races", [6, pytest.param(30, marks=pytest.mark.thorough)])
def test_field_of_eight_keeps_its_fastest(races):
    """The error of losing the fastest is held over all runners together."""
    lost = 0
    for seed in range(races):
        machine = SimulatedMachine(NOISES["autocorrelated"](random.Random(seed), 0.1))
        base = SimulatedRunner("base", machine, ms=10.0)
        field = [SimulatedRunner(f"r{k}", machine, ms=8.0 + 0.4 * k) for k in range(7)]
        result = race(field, base, budget_s=40, seed=seed, clock=machine.clock)
        lost += result.entry("r0").left_at is not None
    assert lost <= max(1, races // 15)


@pytest.mark.parametrize("slower", [0.5, 0.93, 0.96, 0.99, 1.05])
def test_the_sentence_says_what_the_intervals_say(slower):
    """Whoever reads the intervals with the criterion finds nobody faster exactly where the sentence says so."""
    for seed in range(10):
        machine = SimulatedMachine(gaussian(random.Random(seed), 0.05))
        base = SimulatedRunner("base", machine)
        field = [SimulatedRunner(f"r{k}", machine, ms=10.0 * slower * (1 + 0.01 * k)) for k in range(3)]
        result = race(field, base, budget_s=3, seed=seed, clock=machine.clock)
        faster = [entry.name for entry in result.entries[1:] if BETWEEN_PROCESSES.faster(entry.speedup_x)]
        assert (result.winner == "base") == (not faster)
        assert result.winner == "base" or result.winner in faster
        assert ("nothing is faster" in result.sentence) <= (not faster)


def test_intervals_of_a_race_hold_together():
    """Each of two others has half of the error that is allowed, so it takes more rounds until they say anything."""
    machine = SimulatedMachine()
    base = SimulatedRunner("base", machine)
    for field, confidence in ((1, 0.95), (2, 0.975), (4, 0.9875)):
        others = [SimulatedRunner(f"r{k}", machine) for k in range(field)]
        result = race(others, base, budget_s=60, seed=0, clock=machine.clock, min_rounds=1)
        assert result.rounds == rounds_needed(confidence)


def test_how_far_behind_one_was_is_reported_in_times():
    machine = SimulatedMachine()
    base, slow = SimulatedRunner("base", machine), SimulatedRunner("slow", machine, ms=20.0)
    result = race([slow], base, budget_s=60, seed=0, clock=machine.clock)
    assert result.entry("slow").left_because == "it takes 2.00 times (2.00 to 2.00) the time of base"
    assert result.sentence == "base is the fastest beyond doubt after 8 rounds"
    assert result.rounds == 8
    fast = SimulatedRunner("fast", machine, ms=5.0)
    result = race([fast], base, budget_s=60, seed=0, clock=machine.clock)
    assert result.sentence == (
        "fast is the fastest beyond doubt after 8 rounds; fast is 2.00 times (2.00 to 2.00) as fast as base"
    )
    assert result.order == "fast is the fastest beyond doubt after 8 rounds"


def test_what_is_reported_where_nobody_is_ahead():
    machine = SimulatedMachine()
    base, same = SimulatedRunner("base", machine), SimulatedRunner("same", machine)
    result = race([same], base, budget_s=60, seed=0, clock=machine.clock)
    assert result.sentence == (
        "base and same are within 4.0% of each other after 8 rounds; nothing is faster than base beyond doubt"
    )
    result = race([same], base, budget_s=0, seed=0, clock=machine.clock)
    assert result.sentence == (
        "cannot tell base and same apart after 1 round on this machine now; nothing is faster than base beyond doubt"
    )
    broken = SimulatedRunner("broken", machine, raises_at=1)
    result = race([broken], base, budget_s=5, seed=0, clock=machine.clock)
    assert result.sentence == "no runner was left to compare base with"


def test_a_turn_without_time_is_not_a_round_of_a_pair():
    class Timeless(SimulatedRunner):
        def turn(self, passes):
            return super().turn(passes).model_copy(update={"times_ms": (0.0,)})

    machine = SimulatedMachine()
    result = race([Timeless("b", machine)], SimulatedRunner("a", machine), budget_s=1, seed=0, clock=machine.clock)
    assert result.entry("b").speedup_x is None
    assert result.timing("b") is None
    assert result.winner == "a"


@pytest.mark.parametrize(("ms", "asked"), [(60.0, [1]), (59.0, [1, 1]), (30.0, [1, 2])])
def test_passes_are_tried_once_more_where_one_was_short_of_a_turn(ms, asked):
    machine, seen = SimulatedMachine(), []

    class Watched(SimulatedRunner):
        def turn(self, passes):
            seen.append(passes)
            return super().turn(passes)

    race([], Watched("a", machine, ms=ms), budget_s=1, seed=0, clock=machine.clock, turn_ms=60.0)
    assert seen == asked


def test_the_next_round_must_fit_into_the_budget():
    """A pass each of 60 ms, which is a turn, so no second look; then rounds of two turns, 0.12 s each."""
    machine = SimulatedMachine()
    a, b = SimulatedRunner("a", machine, ms=60.0), SimulatedRunner("b", machine, ms=60.0)
    rounds = [
        race([b], a, budget_s=budget_s, seed=0, clock=machine.clock).rounds for budget_s in (0.1, 0.35, 0.37, 0.49)
    ]
    assert rounds == [1, 1, 2, 3]


def _raced(rounds_ms: list[tuple[float, float]]) -> RaceResult:
    """A race of two that took these rounds; the first is the reference."""
    turns = [iter(each) for each in zip(*rounds_ms, strict=True)]

    class Recorded:
        def __init__(self, name: str, times_ms) -> None:
            self.name, self.times_ms = name, times_ms

        def turn(self, passes: int) -> Turn:
            return Turn(times_ms=(next(self.times_ms),), passes=1, wall_s=1.0)

    return race(
        [Recorded("b", itertools.chain([1.0], turns[1]))],  # one turn each to choose the passes
        Recorded("a", itertools.chain([1.0], turns[0])),
        budget_s=math.inf,
        seed=0,
        min_rounds=len(rounds_ms),
        criterion=Criterion(margin=1e9),
        clock=lambda: 0.0,
    )


def test_rounds_in_which_the_reference_was_slow_count_for_nobody():
    """A neighbour came: the reference took twice as long, the other four times."""
    result = _raced([(10.0, 5.0)] * 12 + [(20.0, 20.0)] * 14)
    every, calm = result.timing("b"), result.timing("b", slowest_ms=13.0)
    assert (len(every.rounds_ms), every.speedup_x.median) == (26, 1.0)
    assert calm.rounds_ms == ((10.0, 5.0),) * 12
    assert (calm.speedup_x.low, calm.speedup_x.median, calm.latency_ms.median) == (2.0, 2.0, 5.0)


def test_where_nearly_all_rounds_were_disturbed_all_of_them_are_reported():
    result = _raced([(10.0, 5.0)] * (rounds_needed() - 1) + [(20.0, 20.0)] * 12)
    assert result.timing("b", slowest_ms=13.0) == result.timing("b")
    assert result.timing("b", slowest_ms=13.0).reference_ms > 13.0


def test_leaving_out_slow_rounds_of_the_reference_makes_nothing_faster():
    """Even where they are not disturbed, and half of them are cut off: the same against itself."""
    medians, faster = [], 0
    for seed in range(100):
        rng = random.Random(seed)
        rounds_ms = [(10 * math.exp(rng.gauss(0, 0.1)), 10 * math.exp(rng.gauss(0, 0.1))) for _ in range(30)]
        found = _raced(rounds_ms).timing("b", slowest_ms=10.0).speedup_x
        medians.append(found.median)
        faster += found.low > 1.0
    assert sum(medians) / len(medians) < 1.0
    assert faster <= 5


def test_three_that_are_equal_are_equal_to_the_leader():
    """The others were not compared with each other: at 4 % below and above it they may be 8 % apart."""
    machine = SimulatedMachine()
    base, *others = (SimulatedRunner(name, machine, ms=ms) for name, ms in (("base", 10.0), ("a", 9.9), ("b", 10.1)))
    result = race(others, base, budget_s=60, seed=0, clock=machine.clock)
    assert result.order == f"base and b are each within 4.0% of a after {result.rounds} rounds"


def test_measurements_put_together_hold_as_the_stricter_did():
    """What was one of several looks in a race is still one of several."""
    machine = SimulatedMachine()
    base = SimulatedRunner("base", machine)
    field = [SimulatedRunner(f"r{k}", machine, ms=9.0) for k in range(4)]
    of_race = race(field, base, budget_s=60, seed=0, clock=machine.clock).timing("r0")
    alone = race(field[:1], base, budget_s=60, seed=1, clock=machine.clock).timing("r0")
    assert (of_race.confidence, alone.confidence) == (of_each(0.95, 5), 0.95)
    for both in (together(alone, of_race), together(of_race, alone)):
        assert both.confidence == of_race.confidence
        references, own = zip(*both.rounds_ms, strict=True)
        assert both.speedup_x == ratio_interval(references, own, of_race.confidence)
    few = alone.model_copy(update={"rounds_ms": alone.rounds_ms[:3]})
    assert not together(few, of_race.model_copy(update={"rounds_ms": of_race.rounds_ms[:3]})).speedup_x.has_ends
