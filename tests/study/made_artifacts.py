"""Artifacts of plain eager, made without a study. For the tests of this folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from togi.artifact.links import write_links
from togi.artifact.save import write_manifest
from togi.core.records import Interval, Outcome, Timing, Trial
from togi.techniques import recipe
from togi.techniques.build import build, first_candidate
from togi.worker.locate import locate
from togi.worker.survey import survey


def made_artifact(
    out: Path, locator: str, *, subject: str = "", was: Interval | None = None, callers: int = 1, **given: Any
) -> Path:
    """``subject``: what its manifest says that it was made of; ``was``: the speed-up that its proof claims."""
    found, chosen = locate(locator), recipe(no_grad={})
    known = survey(found, callers=callers)
    start = first_candidate(found, known.facts, known.signature)
    out.mkdir()
    links, _ = write_links(build(chosen, start), start, chosen, out)
    one = Interval(median=1, low=1, high=1)
    timing = None if was is None else Timing(latency_ms=one, speedup_x=was)
    proof = Trial(recipe=chosen, outcome=Outcome.OK, timing=timing)
    about = {"subject": subject or locator, "recipe": chosen, "signature": known.signature, "facts": known.facts}
    write_manifest(out, **about, proof=proof, chain=links, environment={}, **given)
    return out
