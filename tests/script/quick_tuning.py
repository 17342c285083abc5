"""``togi``, but for tuning: each module gets an artifact of plain eager, with nothing measured. For tests of what comes
before and after."""

from __future__ import annotations

import functools
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import togi.api
from tests.artifact.artifact_maker import ArtifactMaker
from togi.cli import main
from togi.core.errors import JournalError, SubjectError, TrialServerError
from togi.core.records import Outcome
from togi.subject.inputs import Subject
from togi.techniques import recipe

ASKED = "asked.jsonl"
"""In the folder of the command: a line for what ``togi.tune`` was asked each time."""
ERRORS: dict[str, BaseException] = {
    "Refused": SubjectError("it cannot be sent to another process"),
    "Locked": JournalError("the journal is in use"),
    "Killed": TrialServerError("the process that starts trials was ended by SIGKILL"),
    "Interrupted": KeyboardInterrupt(),
}
"""By the beginning of a module's name."""


def tune(asked: Path, module: Any, *, inputs: Any, out: Path, time_limit_s: float, device: str, **_: Any) -> Any:
    name = type(module).__name__
    with asked.open("a", encoding="utf-8") as file:
        file.write(json.dumps([name, len(inputs), time_limit_s, device]) + "\n")
    for beginning, error in ERRORS.items():
        if name.startswith(beginning):
            raise error
    original, other = recipe(no_grad={}), recipe(eager={}, no_grad={})
    late, slow = name.startswith("Late"), name.startswith("Slow")
    trials = [_trial(original, timing=None if late else True), *([] if late else [_trial(other, timing=True)])]
    chosen = original if late or slow else other
    best = SimpleNamespace(recipe=chosen, trial=_trial(chosen, timing=None))
    if not late:
        ArtifactMaker.of(Subject(module, inputs), name).make(out, chosen)
    record = SimpleNamespace(best=chosen, trials=trials)
    return SimpleNamespace(record=record, best=best, artifact=None if late else out)


def _trial(tried: Any, timing: Any) -> Any:
    return SimpleNamespace(recipe=tried, outcome=Outcome.OK, reason="", timing=timing)


def run() -> None:
    """The command, with the arguments of this process."""
    togi.api.tune = functools.partial(tune, Path(ASKED).absolute())
    main()
