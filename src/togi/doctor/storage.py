"""What togi keeps on this machine, where, how large it is, and what of it may go.

Only names that togi itself gives are looked at, and only files of this user, without following links: a folder of
caches that holds other things too loses none of them.
"""

from __future__ import annotations

import os
import re
import shutil
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path

from togi.core.caches import RUN_MARK, Keeping, cache_folder, home
from togi.core.plain_files import NotPlainError, read_plain
from togi.core.quantities import parse_size
from togi.core.records import Record
from togi.machine.limits import is_running

LIMIT = "TOGI_CACHE_LIMIT"
DEFAULT_LIMIT = "2GiB"
IN_USE_S = 24 * 3600.0
"""What changed since may belong to a run that goes on."""


class StoredEntry(Record):
    """One file or folder."""

    kind: Keeping
    path: str
    what: str
    size_bytes: int
    changed: str
    """ISO 8601, UTC: the newest change in it."""
    stays: str = ""
    """Why it is not removed now; empty where it may go."""


@dataclass(frozen=True)
class _KeptPlace:
    kind: Keeping
    folder: Callable[[], Path]
    names: tuple[str, ...]
    """A regular expression for each name on the way from the folder."""
    what: str


def _temporary() -> Path:
    return Path(tempfile.gettempdir())


_RANDOM = "[a-z0-9_]{8}"  # of tempfile
_JOURNAL = r"journal\.sqlite(-wal|-shm)?(\.old)?"
_PLACES = (
    _KeptPlace(Keeping.CACHES, cache_folder, (r"check\.sqlite(-journal)?",), "findings of togi check"),
    _KeptPlace(Keeping.CACHES, cache_folder, (r"figures-[0-9a-f]{16}\.json",), "how fast this machine is"),
    _KeptPlace(Keeping.CACHES, cache_folder, ("kernels", r"[\w.-]+-[0-9a-f]{20}\.(so|lock)"), "compiled kernels"),
    _KeptPlace(Keeping.CACHES, cache_folder, ("inductor", "[0-9a-f]{16}"), "what Inductor compiled"),
    _KeptPlace(Keeping.CACHES, cache_folder, ("headers", "[0-9a-f]{16}"), "headers of torch that Inductor compiled"),
    _KeptPlace(Keeping.CACHES, cache_folder, ("tensorrt", "[0-9a-f]{32}|timings"), "engines of TensorRT"),
    _KeptPlace(
        Keeping.CACHES, cache_folder, ("engines", r"\w+-[0-9a-f]{16}\.json"), "answers of togi doctor --engines"
    ),
    _KeptPlace(Keeping.LEFTOVERS, _temporary, (f"togi-{_RANDOM}",), "folders of runs"),
    _KeptPlace(Keeping.LEFTOVERS, _temporary, (f"togi-(live|kernel|driver|doctor)-{_RANDOM}",), "folders of runs"),
    _KeptPlace(
        Keeping.ARTIFACTS,
        home,
        ("artifacts", r"[0-9a-f]{12}-[0-9a-f]{12}-\d+(-\d+)?\.togi"),
        "results that --out did not take",
    ),
    _KeptPlace(Keeping.JOURNALS, home, (_JOURNAL,), "trials of all studies"),
    _KeptPlace(Keeping.JOURNALS, home, ("fleet", "[^/]+", _JOURNAL), "trials of a fleet's studies"),
    _KeptPlace(Keeping.JOURNALS, home, ("proven", "[0-9a-f]{64}"), "artifacts that togi verify proved here"),
)


def what_is_kept(now_s: float | None = None) -> list[StoredEntry]:
    """All of it, by kind and place. ``now_s``: seconds since the epoch."""
    now_s = time.time() if now_s is None else now_s
    return [
        entry
        for place in _PLACES
        for path in _matching(place.folder(), place.names)
        if (entry := _entry(place, path, now_s)) is not None
    ]


def cache_limit_bytes() -> int:
    """``$TOGI_CACHE_LIMIT``. Raises BudgetError where that is not a size."""
    return parse_size(os.environ.get(LIMIT) or DEFAULT_LIMIT, LIMIT)


def beyond(entries: Iterable[StoredEntry], limit_bytes: int) -> list[StoredEntry]:
    """Caches that changed longest ago, so that those that are left hold no more than the limit."""
    total, old = 0, list[StoredEntry]()
    for entry in sorted((e for e in entries if e.kind is Keeping.CACHES), key=lambda e: e.changed, reverse=True):
        total += entry.size_bytes
        if total > limit_bytes:
            old.append(entry)
    return old


def trim_caches(limit_bytes: int, now_s: float | None = None) -> None:
    """After a study: the oldest caches beyond the limit go, but for those of today. Nothing is raised."""
    now_s = time.time() if now_s is None else now_s
    with suppress(OSError):
        today = _written(now_s - IN_USE_S)
        remove(entry for entry in beyond(what_is_kept(now_s), limit_bytes) if entry.changed < today)


def remove(entries: Iterable[StoredEntry]) -> list[StoredEntry]:
    """Remove them, but for those that stay. Returns what could not be removed."""
    left = []
    for entry in entries:
        path = Path(entry.path)
        with suppress(OSError):
            if not entry.stays:
                shutil.rmtree(path) if path.is_dir() else path.unlink()
        if os.path.lexists(path):
            left.append(entry)
    return left


def _matching(folder: Path, names: tuple[str, ...]) -> Iterator[Path]:
    with suppress(OSError):
        for path in sorted(folder.iterdir()):
            if re.fullmatch(names[0], path.name) and not path.is_symlink():
                if len(names) == 1:
                    yield path
                elif path.is_dir():
                    yield from _matching(path, names[1:])


def _entry(place: _KeptPlace, path: Path, now_s: float) -> StoredEntry | None:
    """None where it is another user's, is gone meanwhile, or is not togi's."""
    with suppress(OSError):
        files = [path, *(path.rglob("*") if path.is_dir() else ())]
        stats = [file.lstat() for file in files]
        if not _is_own(stats[0]) or (place.kind is Keeping.LEFTOVERS and not _is_run(path)):
            return None
        changed_s = max(stat.st_mtime for stat in stats)
        return StoredEntry(
            kind=place.kind,
            path=str(path),
            what=place.what,
            size_bytes=sum(stat.st_size for stat in stats),
            changed=_written(changed_s),
            stays=_stays(place.kind, path, now_s - changed_s),
        )
    return None


def _written(at_s: float) -> str:
    return datetime.fromtimestamp(at_s, timezone.utc).isoformat(timespec="seconds")


def _stays(kind: Keeping, path: Path, age_s: float) -> str:
    if kind is Keeping.JOURNALS:
        return "it holds what was measured; to lose that, remove it by hand"
    if kind is Keeping.LEFTOVERS and (pid := _owner(path)) is not None and is_running(pid):
        return f"process {pid} uses it"
    if kind in (Keeping.ARTIFACTS, Keeping.LEFTOVERS) and age_s < IN_USE_S:
        return "it changed within a day: a run may still use it"
    return ""


def _is_own(status: os.stat_result) -> bool:
    """On Windows nobody else has such folders."""
    return not hasattr(os, "getuid") or status.st_uid == os.getuid()


def _is_run(path: Path) -> bool:
    """Somebody else may call a folder so: that of a run holds a mark, or has a longer name."""
    return path.name.count("-") > 1 or (path / RUN_MARK).is_file()


def _owner(path: Path) -> int | None:
    """The process that made the folder of a run."""
    with suppress(OSError, NotPlainError, ValueError):
        return int(read_plain(path / RUN_MARK, 100))
    return None
