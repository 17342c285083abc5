"""How well does the search search? Replays recorded full studies, so that the answer is the same every time.

    python benchmarks/search.py --record timm:resnet18    try every recipe once, keep it in benchmarks/data/studies/
    python benchmarks/search.py                           replay all recorded studies, print the tables
    python benchmarks/search.py --json                    the same as one JSON document

In a replay nothing runs: a strategy asks for a recipe and is told what the recorded trial showed, and its clock moves
by what that trial cost. Three strategies meet the same recipes, all beginning with the reference: togi's search, random
choice without repetition, and Optuna's TPE (multivariate) on the same space as conditional categorical parameters. A
recipe that TPE suggests again costs it nothing. Regret is how much slower the best found so far is than the best
recorded.

Each study is also replayed with what the others teach (``togi.search.experience``, leave one out): with the guesses of
the techniques' authors, as in a new study of a user with this journal; and without any guess, as for techniques and
machines that the authors know nothing of. Their guesses were made with these studies at hand, so that beside them
there is little to learn.
"""

from __future__ import annotations

import argparse
import copy
import json
import math
import random
import re
import statistics
import sys
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from togi.core.choices import Effort
from togi.core.records import Facts, Recipe, Study, Trial
from togi.core.settings import Settings
from togi.search import Experience, Search, Space
from togi.techniques.base import Technique
from togi.techniques.registry import all_techniques

DATA = Path(__file__).parent / "data" / "studies"
BUDGETS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 1.0)
"""Shares of what trying everything costs."""
NEAR = 1.02
"""Within 2 % of the best."""
RANDOM_SEEDS = 200
TPE_SEEDS = 20


@dataclass(frozen=True)
class Recorded:
    """A full study: how every recipe of a space ended, and what it cost."""

    name: str
    facts: Facts
    trials: dict[Recipe, Trial]

    @classmethod
    def of(cls, study: Study) -> Recorded:
        """The first trial of each recipe: what a search sees. Later ones are the finalists' race."""
        first = {trial.recipe: trial for trial in reversed(study.trials) if ran(trial)}
        return cls(study.subject, study.facts, dict(sorted(first.items(), key=lambda item: item[0].label)))

    @property
    def cost_s(self) -> float:
        return sum(trial.cost_s for trial in self.trials.values())

    @property
    def best_x(self) -> float:
        return max(speedup(trial) for trial in self.trials.values())

    @property
    def reference(self) -> Recipe:
        return next(recipe for recipe in self.trials if recipe.techniques == {"no_grad"})


@dataclass(frozen=True)
class Curve:
    """One run of one strategy: at each share of the full cost spent, how much slower the best found was."""

    steps: tuple[tuple[float, float], ...]

    def regret(self, budget: float) -> float:
        done = [regret for spent, regret in self.steps if spent <= budget]
        return done[-1] if done else self.steps[0][1]

    @property
    def cost_to_near(self) -> float:
        """Share of the full cost until within 2 %; infinite when it never gets there."""
        return next((spent for spent, regret in self.steps if regret <= NEAR - 1), math.inf)


def ran(trial: Trial) -> bool:
    """It cost something: techniques that were excluded before any trial are no part of a replay."""
    return trial.cost_s > 0


def speedup(trial: Trial) -> float:
    return trial.timing.speedup_x.median if trial.eligible and trial.timing else 0.0


def curve(recorded: Recorded, tried: Sequence[Recipe]) -> Curve:
    """Recipes that repeat are free."""
    spent, best, steps = 0.0, speedup(recorded.trials[recorded.reference]), []
    for recipe in dict.fromkeys(tried):
        trial = recorded.trials[recipe]
        spent, best = spent + trial.cost_s, max(best, speedup(trial))
        steps.append((spent / recorded.cost_s, recorded.best_x / best - 1))
    return Curve(tuple(steps))


def by_togi(
    recorded: Recorded,
    techniques: dict[str, Technique],
    seed: int,
    effort: Effort,
    experience: Experience | None = None,
) -> list[Recipe]:
    space = Space.listing(recorded.trials, recorded.facts, techniques)
    search = Search(recorded.facts, Settings(effort=effort, seed=seed), space=space, experience=experience)
    tried: list[Recipe] = []
    while (recipe := search.next()) is not None:
        search.tell(recorded.trials[recipe])
        tried.append(recipe)
        if effort is Effort.THOROUGH and speedup(recorded.trials[recipe]) == recorded.best_x:
            break  # its regret stays zero from here on
    return tried


def unguessed(techniques: dict[str, Technique]) -> dict[str, Technique]:
    """The same techniques, of which nothing is expected."""
    found = {id: copy.copy(each) for id, each in techniques.items()}
    for each in found.values():
        vars(each).update(expected_speedup=lambda *_: 1.0, cost_s=lambda *_: 0.0)
    return found


def with_earlier(
    recorded: Recorded, others: Sequence[Study], techniques: dict[str, Technique]
) -> dict[str, tuple[float, float]]:
    """By what is known before the first trial: the share of the full cost, and the seconds, to be within 2 %."""
    found = {}
    for name, known in (("guesses", techniques), ("no guesses", unguessed(techniques))):
        learned = Experience.of(others, recorded.facts, Settings(), known)
        for label, experience in ((name, None), (f"{name}, earlier studies", learned)):
            near = curve(recorded, by_togi(recorded, known, 0, Effort.THOROUGH, experience)).cost_to_near
            found[label] = (near, near * recorded.cost_s)
    return found


def by_random(recorded: Recorded, seed: int) -> list[Recipe]:
    rest = [recipe for recipe in recorded.trials if recipe != recorded.reference]
    random.Random(seed).shuffle(rest)
    return [recorded.reference, *rest]


def by_tpe(recorded: Recorded, seed: int, patience: int = 100) -> list[Recipe]:
    """Until the best is found, or ``patience`` suggestions in a row were repeats (it has converged)."""
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    warnings.filterwarnings("ignore", category=optuna.exceptions.ExperimentalWarning)
    sampler = optuna.samplers.TPESampler(seed=seed, multivariate=True, group=True)
    study = optuna.create_study(sampler=sampler)
    tree = Tree(list(recorded.trials))
    tried, repeats = {recorded.reference: None}, 0
    while len(tried) < len(recorded.trials) and repeats < patience:
        asked = study.ask()
        recipe = tree.suggest(asked)
        repeats = repeats + 1 if recipe in tried else 0
        tried[recipe] = None
        if speedup(recorded.trials[recipe]) == recorded.best_x:
            break
        found = speedup(recorded.trials[recipe])
        study.tell(asked, -math.log(found) if found else math.log(10.0))  # a failure counts as ten times slower
    return list(tried)


class Tree:
    """The space as conditional categorical parameters: the engine, the grad mode, then each technique's options.

    A parameter's values depend on what was chosen before, so that every suggestion is a recipe that exists; Optuna
    wants fixed values for a name, so the values are part of the name.
    """

    def __init__(self, recipes: list[Recipe]) -> None:
        self.rows = [(recipe, parameters(recipe)) for recipe in recipes]
        names = sorted({name for _, row in self.rows for name in row})
        self.names = sorted(names, key=lambda name: (name != "engine", name))

    def suggest(self, trial: Any) -> Recipe:
        rows = self.rows
        for name in self.names:
            values = sorted({row.get(name, "") for _, row in rows})
            if len(values) > 1:
                value = trial.suggest_categorical(f"{name}: {'|'.join(values)}", values)
                rows = [(recipe, row) for recipe, row in rows if row.get(name, "") == value]
        (recipe, _) = rows[0]
        return recipe


def parameters(recipe: Recipe) -> dict[str, str]:
    return {"engine" if choice.stage == "engine" else choice.technique: choice.label for choice in recipe.choices}


def replay(
    recorded: Recorded,
    techniques: dict[str, Technique],
    random_seeds: int,
    tpe_seeds: int,
    others: Sequence[Study] = (),
) -> dict[str, Any]:
    """Everything the tables show of one study. ``others``: of other subjects."""
    strategies: dict[str, list[Curve]] = {
        "togi": [curve(recorded, by_togi(recorded, techniques, 0, Effort.THOROUGH))],
        "random": [curve(recorded, by_random(recorded, seed)) for seed in range(random_seeds)],
        "tpe": [curve(recorded, by_tpe(recorded, seed)) for seed in range(tpe_seeds)],
    }
    normal = curve(recorded, by_togi(recorded, techniques, 0, Effort.NORMAL))
    quick = curve(recorded, by_togi(recorded, techniques, 0, Effort.QUICK))
    return {
        "study": recorded.name,
        "recipes": len(recorded.trials),
        "failed": sum(not trial.eligible for trial in recorded.trials.values()),
        "cost_s": recorded.cost_s,
        "best_x": recorded.best_x,
        "cost_to_near": with_earlier(recorded, others, techniques),
        "togi_stops": {"normal": normal.steps[-1], "quick": quick.steps[-1]},
        "strategies": {
            name: {
                "cost_to_near": statistics.median(c.cost_to_near for c in curves),
                "regret": [statistics.fmean(c.regret(budget) for c in curves) for budget in BUDGETS],
            }
            for name, curves in strategies.items()
        },
    }


def table(result: dict[str, Any]) -> Iterator[str]:
    yield (
        f"{result['study']}: {result['recipes']} recipes ({result['failed']} without a result), "
        f"{result['cost_s']:.0f} s for all, best {result['best_x']:.2f}x"
    )
    yield f"  {'':8} cost to 2 %   mean regret at " + "".join(f"{budget:>8.0%}" for budget in BUDGETS)
    for name, row in result["strategies"].items():
        reached = "never" if math.isinf(row["cost_to_near"]) else f"{row['cost_to_near']:.1%}"
        yield f"  {name:8} {reached:>11}" + " " * 18 + "".join(f"{regret:>8.1%}" for regret in row["regret"])
    for effort, (spent, regret) in result["togi_stops"].items():
        yield f"  effort {effort}: stops at {spent:.1%} of the cost, {regret:.1%} from the best"
    for known, (share, spent_s) in result["cost_to_near"].items():
        yield f"  to 2 % with {known}: {share:.1%}, {spent_s:.0f} s"
    yield f"  within 2 % at <= 20 % of the cost: {verdict(result['strategies']['togi']['cost_to_near'] <= 0.2)}"
    yield f"  ahead of random and of TPE at every budget: {verdict(ahead(result))}"


def means(results: Sequence[dict[str, Any]]) -> Iterator[str]:
    yield f"mean cost to 2 % of {len(results)} studies, by what is known before the first trial"
    for known in results[0]["cost_to_near"]:
        shares, spent_s = zip(*(result["cost_to_near"][known] for result in results), strict=True)
        yield f"  {known}: {statistics.fmean(shares):.1%}, {statistics.fmean(spent_s):.0f} s"


def ahead(result: dict[str, Any]) -> bool:
    """Not behind at any budget (half a percent is no difference)."""
    ours, *others = (row["regret"] for row in result["strategies"].values())
    return all(own <= theirs + 0.005 for other in others for own, theirs in zip(ours, other, strict=True))


def verdict(holds: bool) -> str:
    return "yes" if holds else "NO"


def record(subject: str, folder: Path, only: Sequence[str], allow: Sequence[str], max_error: float | None) -> Path:
    """Try every recipe of ``subject`` and keep the study as JSON, without raw rounds, output and packages' folders."""
    import togi

    found = togi.tune(subject, effort="thorough", only=only, allow=allow, max_error=max_error)
    full: Study = found.record
    small = full.model_copy(update={"trials": tuple(slim(trial) for trial in full.trials)})
    path = folder / f"{''.join(c if c.isalnum() else '_' for c in subject)}.json"
    text = re.sub(r'/[^\s"\\]*/(?=site-packages/)', "", small.to_json())
    path.write_text(text + "\n", encoding="utf-8")
    return path


def slim(trial: Trial) -> Trial:
    timing = trial.timing and trial.timing.model_copy(update={"rounds_ms": ()})
    return trial.model_copy(update={"timing": timing, "output": "", "traceback": "", "notes": ()})


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--record", metavar="SUBJECT", help="try every recipe of SUBJECT and keep the study")
    parser.add_argument("--only", default="", help="with --record: the techniques to combine, separated by commas")
    parser.add_argument("--allow", default="", help="with --record: approximate techniques, separated by commas")
    parser.add_argument("--max-error", type=float, help="with --record: bound on approximate techniques, such as 1e-1")
    parser.add_argument("--data", type=Path, default=DATA, help="folder of recorded studies")
    parser.add_argument("--random-seeds", type=int, default=RANDOM_SEEDS)
    parser.add_argument("--tpe-seeds", type=int, default=TPE_SEEDS)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    if options.record:
        print(record(options.record, options.data, split(options.only), split(options.allow), options.max_error))
        return 0
    studies = [Study.from_json(path.read_bytes()) for path in sorted(options.data.glob("*.json"))]
    if not studies:
        print(f"there are no recorded studies in {options.data}: make one with --record SUBJECT", file=sys.stderr)
        return 2
    techniques = dict(all_techniques())
    seeds = options.random_seeds, options.tpe_seeds
    results = [replay(Recorded.of(s), techniques, *seeds, [o for o in studies if o is not s]) for s in studies]
    texts = [*map(table, results), means(results)]
    print(json.dumps(results, indent=1) if options.json else "\n\n".join("\n".join(text) for text in texts))
    return 0


def split(text: str) -> list[str]:
    return [part for part in text.split(",") if part]


if __name__ == "__main__":
    sys.exit(main())
