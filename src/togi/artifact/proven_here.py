"""Which artifacts ``togi verify`` has proven on this machine, for processors that lack what their proof had.

An empty file for each, in a folder of the user's alone. Its name is a hash of the artifact and of the processor, since
machines with different processors may share a home folder.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

from togi.artifact.manifest import Link, Manifest, part_folder, read_manifest
from togi.core.caches import check_own, home, private, processor
from togi.core.instructions import lacking
from togi.machine import describe


def lacks(*links: Link) -> str:
    """What this processor lacks of the instructions on which the answers of these engines depend, in words; empty where
    it lacks nothing."""
    needed = [name for link in links for name in link.instructions]
    return lacking(needed, describe.cpu_flags(), describe.onednn_limit()) if needed else ""


def artifact_lacks(folder: Path, manifest: Manifest) -> str:
    """The same of all engines in an artifact."""
    parts = (read_manifest(part_folder(folder, number)) for number in range(len(manifest.parts)))
    return lacks(*manifest.chain, *(link for part in parts for link in part.chain))


def remember(manifest: Manifest, *, proven: bool) -> None:
    """Keep what ``togi verify`` found. Without a folder that can be written it is forgotten."""
    place = _place(manifest)
    try:
        if proven:
            (private(place.parent) / place.name).touch(mode=0o600)
        else:
            place.unlink(missing_ok=True)
    except OSError:
        return


def is_proven_here(manifest: Manifest) -> bool:
    try:
        check_own(_place(manifest).parent)
        return _place(manifest).exists()
    except OSError:  # no folder, or one in which others can write
        return False


def _place(manifest: Manifest) -> Path:
    here = f"{manifest.identity}\n{processor()}\n{describe.onednn_limit()}"
    return home() / "proven" / hashlib.sha256(here.encode()).hexdigest()
