"""``togi clean``: what togi keeps where, how large it is, and what of it may go."""

from __future__ import annotations

from typing import Annotated

import typer

from togi.cli.options import SIZE, Device, Json, Seed, without_effect
from togi.core.caches import Keeping


def clean(
    what: Annotated[
        list[Keeping] | None,
        typer.Argument(metavar="[caches|leftovers|artifacts]", help="What may go; default: caches and leftovers."),
    ] = None,
    limit: Annotated[
        int | None,
        typer.Option(
            "--limit", metavar="SIZE", parser=SIZE, help="Of caches, remove only the oldest beyond this size."
        ),
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", help="Remove it. Without this, nothing is removed.")] = False,
    json: Json = False,
    device: Device = "cpu",
    seed: Seed = 0,
) -> int:
    """Show what togi keeps on this machine; with --yes, remove what may go.

    Caches are made again when they are needed. Journals stay. Exit code 1 when something could not be removed.
    """
    from togi.cli.output import print_json, print_text, stdout, tell
    from togi.core.quantities import size
    from togi.core.records import SCHEMA_VERSION
    from togi.doctor.storage import beyond, cache_limit_bytes, remove, what_is_kept
    from togi.render.storage_text import storage_text

    without_effect("clean", device=device != "cpu", seed=seed)
    kept, most_bytes = what_is_kept(), cache_limit_bytes()
    kinds = what or [Keeping.CACHES, Keeping.LEFTOVERS]
    old = kept if limit is None else beyond(kept, limit)
    chosen = [
        entry
        for entry in kept
        if entry.kind in kinds and not entry.stays and (entry.kind is not Keeping.CACHES or entry in old)
    ]
    left = remove(chosen) if yes else []
    freed_bytes = sum(entry.size_bytes for entry in chosen if entry not in left)
    if json:
        entries = [entry.model_dump() | {"goes": entry in chosen} for entry in kept]
        document = {"schema_version": SCHEMA_VERSION, "kind": "storage", "limit_bytes": most_bytes, "entries": entries}
        print_json(document | {"removed": yes, "bytes": freed_bytes, "left": [entry.path for entry in left]})
        return 1 if left else 0
    print_text(stdout(), storage_text(kept, chosen, most_bytes))
    for entry in left:
        tell(f"could not be removed: {entry.path}")
    if yes:
        tell(f"Removed: {size(freed_bytes)}.")
    elif chosen:
        named = "".join(f" {kind.value}" for kind in what or ())
        limited = "" if limit is None else f" --limit {limit}"
        tell(f"Nothing was removed. 'togi clean{named}{limited} --yes' removes {size(freed_bytes)} (marked >).")
    return 1 if left else 0
