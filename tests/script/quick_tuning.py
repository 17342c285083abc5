"""``togi``, but for tuning: each module gets an artifact of plain eager, with nothing measured. For tests of what comes
before and after. What ``togi.tune`` was asked is a line of ``asked.jsonl`` in the folder of the command."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import togi.api
from tests.artifact.artifact_maker import ArtifactMaker
from togi.cli import main
from togi.core.errors import SubjectError
from togi.subject.inputs import Subject
from togi.techniques import recipe

ASKED = Path("asked.jsonl").absolute()


def tune(module: Any, *, inputs: Any, out: Path, time_limit_s: float, device: str, **_: Any) -> Any:
    name = type(module).__name__
    with ASKED.open("a", encoding="utf-8") as file:
        file.write(json.dumps([name, len(inputs), time_limit_s, device]) + "\n")
    if name.startswith("Refused"):
        raise SubjectError(f"{name} cannot be sent to another process")
    if name.startswith("Interrupted"):
        raise KeyboardInterrupt
    if name.startswith("Late"):
        chosen = recipe(no_grad={})
        best = SimpleNamespace(recipe=chosen, trial=SimpleNamespace(timing=None))
        return SimpleNamespace(record=SimpleNamespace(best=chosen, trials=[best.trial]), best=best, artifact=None)
    chosen = recipe(no_grad={}) if name.startswith("Slow") else recipe(eager={}, no_grad={})
    ArtifactMaker.of(Subject(module, inputs), name).make(out, chosen)
    best = SimpleNamespace(recipe=chosen, trial=SimpleNamespace(timing=None))
    trials = [SimpleNamespace(timing=True)]
    return SimpleNamespace(record=SimpleNamespace(best=chosen, trials=trials), best=best, artifact=out)


togi.api.tune = tune

if __name__ == "__main__":
    main()
