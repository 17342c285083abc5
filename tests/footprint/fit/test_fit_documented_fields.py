"""The JSON of ``togi fit`` that docs/fit.md documents is the JSON that is written: no field more, none less."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from togi.core.records import Record
from togi.footprint.fit.plan import Plan
from togi.footprint.fit.policies import Chunk, SavePolicy
from togi.footprint.fit.result import FitResult, Point, StepProof

PAGE = (Path(__file__).parents[3] / "docs" / "fit.md").read_text(encoding="utf-8").split("## As JSON")[1]
RESULT, PLAN = PAGE.split("\nA plan:\n")


def _table(text: str) -> set[str]:
    rows = [line.split("|")[1] for line in text.splitlines() if line.startswith("| `")]
    return {name for row in rows for name in re.findall(r"`(\w+)`", row)}


def _group(text: str, before: str) -> set[str]:
    found = re.search(rf"{before}[^{{]*`\{{([^}}]+)\}}`", text)
    assert found is not None, before
    return set(found[1].split(", "))


@pytest.mark.parametrize(
    ("documented", "record"),
    [
        (_table(RESULT), FitResult),
        (_table(PLAN), Plan),
        (_group(RESULT, "A point is"), Point),
        (_group(RESULT, r"\| `proof` \|"), StepProof),
        (_group(PLAN, r"\| `policies` \|"), SavePolicy),
        (_group(PLAN, r"\| `chunks` \|"), Chunk),
    ],
    ids=["fit", "plan", "point", "proof", "policy", "chunk"],
)
def test_documented_fields_are_the_fields_that_are_written(documented: set[str], record: type[Record]) -> None:
    assert documented == set(record.model_fields)


def test_the_documented_version_is_the_one_that_is_written() -> None:
    assert f"`schema_version` is {Plan().schema_version};" in PAGE
    assert FitResult.model_fields["schema_version"].default == Plan().schema_version
