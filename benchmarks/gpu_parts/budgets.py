"""Promises about memory against measured peaks: what was predicted, what a plan was to fit into, what may be chosen.

Each figure is of a process of its own: a prediction never sees the run that it is compared with.
"""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from benchmarks.gpu_models import locator
from benchmarks.gpu_parts.row import LIMITS, MIB, Row, attempt, ignore

from togi import api
from togi.core.proven import MarkedPart
from togi.footprint.account.record import Account, Category
from togi.footprint.prediction.record import Prediction
from togi.machine.describe import machine
from togi.techniques import recipe
from togi.worker.messages import Purpose
from togi.worker.pool import WorkerPool
from togi.worker.protocol import SubjectRef

STEPS = (("resnet50", False), ("bert_base", True))
"""A pass, and a step with Adam."""
SHARE = 0.8
"""Of the step's own peak, for ``togi fit``."""
ROOM_BYTES = {"cpu": 24 * MIB, "cuda": 64 * MIB}
"""Beyond what eager needs, for ``--max-memory``: on a GPU, less than an engine takes that holds the weights twice; on a
CPU more than a process's memory varies by."""
TUNED_S = {"cpu": 60, "cuda": 60}
ONLY = {"cpu": ("openvino", "inference_mode"), "cuda": ()}


def rows(device: str) -> Iterator[Row]:
    """Predicted, fitted and tuned within what was said."""
    exact = "within 1 % of the measured peak" if device == "cpu" else "the measured peak is in the range"
    parts = (MarkedPart.PREDICTION_FOR_CUDA if device == "cuda" else MarkedPart.PREDICTION_FOR_CPU, MarkedPart.ACCOUNT)
    for name, train in STEPS:
        what = "a step of" if train else "a pass of"
        yield attempt(f"prediction for {what} {name}", exact, predicted, name, train, device, proves=parts)
    yield attempt(
        "togi fit",
        f"{SHARE:.0%} of the step's peak, the same gradients",
        fitted,
        "bert_base",
        device,
        proves=(MarkedPart.FIT,),
    )
    yield attempt("tune --max-memory", "what was chosen keeps to it, loaded anew", limited, "resnet50", device)


def predicted(name: str, train: bool, device: str) -> tuple[bool, str]:
    optimizer = "adam" if train else "none"
    found = api.predict_memory(locator(name, device), train=train, optimizer=optimizer, device=device)
    account = api.memory(locator(name, device), train=train, optimizer=optimizer, device=device)
    peak = account.peak_bytes
    slack = 0.01 * peak if device == "cpu" else 0.0
    figure = f"{peak / MIB:.1f} MiB, predicted {found.low_bytes / MIB:.1f} to {found.high_bytes / MIB:.1f}"
    right = found.low_bytes - slack <= peak <= found.high_bytes + slack
    return right, figure if right else f"{figure}; {compared(found, account)}"


_TOLD = (Category.WORKSPACE, Category.TEMPORARY)
"""What differs from device to device, told by operation."""


def compared(found: Prediction, account: Account) -> str:
    """What was alive at both peaks, to tell which of it was not foreseen."""
    measured: Counter[str] = Counter()
    for one in account.holdings:
        measured[f"{one.category} of {one.op}" if one.category in _TOLD else one.category] += one.bytes
    foreseen = {str(category): size for category, size in found.by_category.items()}
    parts = [f"{name} {size / MIB:.1f}" for name, size in measured.most_common() if size > 0.1 * MIB]
    others = [f"{name} {size / MIB:.1f}" for name, size in foreseen.items() if size > 0.1 * MIB]
    places = [f"in {peak.phase or 'the run'} at {peak.op} of {peak.module}" for peak in (account.peak, found.peak)]
    unwatched = "; ".join(note for note in account.notes if "watched" in note)
    told = f"measured {', '.join(parts)} {places[0]}; predicted {', '.join(others)} {places[1]}"
    return f"{told}; {unwatched}" if unwatched else told


def fitted(name: str, device: str) -> tuple[bool, str]:
    peak = api.memory(locator(name, device), train=True, device=device).peak_bytes
    limit = int(SHARE * peak)
    found = api.fit(locator(name, device), memory=limit, train=True, device=device)
    figure, _, _ = str(found).partition("; plan for ")  # which would name the subject by its path on this machine
    return found.fits and (found.proof.exact or found.proof.within_noise), figure


def limited(name: str, device: str) -> tuple[bool, str]:
    subject = SubjectRef.here("locator", locator(name, device))
    with WorkerPool(subject, machine(device), device=device, seed=0) as pool:
        facts = pool.make_truth(pool.survey(LIMITS, ignore)[0].facts, LIMITS, ignore)
        with pool.start(recipe(no_grad={}), facts, LIMITS, ignore) as eager:
            eager.warm()
            limit = eager.footprint().total_bytes + ROOM_BYTES[device]
        with tempfile.TemporaryDirectory() as folder:
            best = api.tune(
                locator(name, device),
                device=device,
                max_memory=limit,
                only=ONLY[device],
                time_limit_s=TUNED_S[device],
                journal=Path(folder) / "journal.sqlite",
                progress=True,
            ).best
        if best.artifact is None:
            return False, f"nothing could be saved of {best.recipe.label}"
        with pool.start_artifact(best.artifact, best.recipe, facts, LIMITS, check=Purpose.PROOF) as loaded:
            loaded.warm()
            needed = loaded.footprint().total_bytes
    return needed <= limit, f"{needed / MIB:.1f} of {limit / MIB:.1f} MiB: {best.recipe.label}"
