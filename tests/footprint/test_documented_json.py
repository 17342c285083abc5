"""docs/commands.md names exactly the fields that the JSON of memory's commands has."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from togi.core.records import Record
from togi.footprint.account.change import AccountChange, Change
from togi.footprint.account.record import Account, CategoryTimeline, HeldName, Holding, KeptStorage, PeakMoment
from togi.footprint.prediction.record import BatchNeed, Prediction
from togi.footprint.snapshot.record import (
    AllocatorTimeline,
    DeviceAccount,
    HeldMemory,
    History,
    OutOfMemory,
    PoolSegments,
    SnapshotAccount,
    TraceEvent,
)

PAGE = Path(__file__).parents[2] / "docs" / "commands.md"
KINDS: dict[str, tuple[type[Record], list[type[Record]]]] = {
    "account": (Account, [PeakMoment, Holding, KeptStorage, HeldName, CategoryTimeline, AccountChange, Change]),
    "prediction": (Prediction, [BatchNeed]),
    "snapshot": (
        SnapshotAccount,
        [DeviceAccount, PoolSegments, HeldMemory, History, TraceEvent, OutOfMemory, AllocatorTimeline],
    ),
}


def section(kind: str) -> str:
    found = re.search(
        rf'^### [^\n]*`"kind": "{kind}"`\n(.*?)(?=^###? )', PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL
    )
    assert found
    return found[1]


@pytest.mark.parametrize("kind", KINDS)
def test_the_table_has_the_fields_of_the_document(kind: str) -> None:
    cells = re.findall(r"^\| (`[^|]*`) \|", section(kind), re.MULTILINE)
    documented = {name for cell in cells for name in re.findall(r"`(\w+)`", cell)} - {"change"}
    assert documented == KINDS[kind][0].model_fields.keys() - {"schema_version"}


@pytest.mark.parametrize("kind", KINDS)
def test_the_forms_in_braces_are_the_records_inside_of_it(kind: str) -> None:
    documented = [set(re.findall(r"\w+", form)) for form in re.findall(r"\{([^}]*)\}", section(kind))]
    records = [set(record.model_fields) for record in KINDS[kind][1]]
    assert sorted(map(sorted, documented)) == sorted(map(sorted, records))
