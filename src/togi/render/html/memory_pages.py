"""The pages of an account of memory and of a CUDA memory snapshot."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from togi.core.quantities import size
from togi.footprint.account.record import Account, HeldName
from togi.footprint.snapshot.record import DeviceAccount, SnapshotAccount
from togi.render import snapshot_text
from togi.render.html.document import document
from togi.render.html.memory_charts import Timeline, css, icicle, timeline
from togi.render.memory_text import short_line

SHOWN = 40
"""Rows of a table; --json has them all."""


def account_html(account: Account) -> str:
    """The same bytes for the same account."""
    boxes = icicle(account.holdings)
    return document(
        "account.html",
        title=account.subject or "memory",
        script="account.js",
        account=account,
        notes=[*_advice(account.held_names), *account.notes],
        timeline=timeline(account.timeline),
        boxes=boxes,
        depth=1 + max((box.level for box in boxes), default=0),
        css=css,
        shown=SHOWN,
    )


def snapshot_html(account: SnapshotAccount) -> str:
    """The same bytes for the same account."""
    return document(
        "snapshot.html",
        title=Path(account.path).name,
        script="account.js",
        account=account,
        notes=[*account.notes, *(f"Device {one.device}: {note}" for one in account.devices for note in one.notes)],
        timelines={device.device: found for device in account.devices if (found := _timeline(device))},
        text=snapshot_text,
        shown=SHOWN,
    )


def _advice(held: Sequence[HeldName]) -> Iterator[str]:
    for line in dict.fromkeys(one.line for one in held):
        names = [one for one in held if one.line == line]
        listed = ", ".join(sorted({one.name for one in names}))
        yield f"del {listed} before {short_line(line)} lowers the peak by {size(names[0].saved_bytes)}."


def _timeline(device: DeviceAccount) -> Timeline | None:
    if device.history is None:
        return None
    unit = "ms, recorded" if device.history.timed else "events, recorded"
    return timeline(device.history.timeline, what="memory reserved, MiB", unit=unit)
