"""Engines on this machine: the values that they answer otherwise than torch, measured and kept for their versions."""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import subprocess
import sys
from pathlib import Path

from togi.core.caches import cache_folder, private, processor
from togi.core.needs_torch import need_torch
from togi.doctor.check import Check, Level
from togi.techniques import Engine, all_techniques

_LIMIT_S = 600.0
_LEVELS = {"right": Level.OK, "bounded": Level.OPTIONAL, "refused": Level.OPTIONAL, "wrong": Level.MISSING}
_SAYS = {
    "right": "answered as torch does",
    "bounded": "refused beyond what was proven",
    "refused": "not used for such a model",
    "wrong": "answered wrongly, and nothing keeps such calls out",
}


def check_engines() -> tuple[Check, ...]:
    """Every engine of files that runs on this CPU, kind by kind. Each is a process; minutes the first time."""
    need_torch("doctor --engines")
    engines = [engine for engine in all_techniques().values() if isinstance(engine, Engine) and _is_asked(engine)]
    return tuple(check for engine in engines for check in _of(engine))


def _is_asked(engine: Engine) -> bool:
    return "cpu" in engine.devices and engine.captures and not any(package.missing() for package in engine.packages)


def _of(engine: Engine) -> list[Check]:
    topic = " ".join([engine.id, *(version for _, version in _versions(engine)[:1])])
    rows = _kept(engine)
    if isinstance(rows, str):
        return [Check(topic=topic, name="all kinds", level=Level.WARNING, found="not known", why=rows)]
    return [
        Check(topic=topic, name=row["kind"], level=_LEVELS[row["end"]], found=_SAYS[row["end"]], why=row["how"])
        for row in rows
    ]


def _kept(engine: Engine) -> list[dict[str, str]] | str:
    """The answers of these versions, from an earlier examination or measured now; or why there are none."""
    key = hashlib.sha256(json.dumps([*_versions(engine), processor()]).encode()).hexdigest()[:16]
    file = cache_folder() / "engines" / f"{engine.id}-{key}.json"
    if file.is_file():
        return _read(file)
    try:
        done = subprocess.run(
            [sys.executable, "-P", "-m", "togi.techniques.kinds", engine.id],
            capture_output=True,
            text=True,
            timeout=_LIMIT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"its process did not end: {error}"
    rows = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    if done.returncode != 0 or not rows:
        return f"it ended its process after {len(rows)} kinds ({done.returncode})"
    private(file.parent)
    file.write_text(json.dumps(rows), encoding="utf-8")
    return rows


def _read(file: Path) -> list[dict[str, str]] | str:
    try:
        return [
            {"kind": str(row["kind"]), "end": row["end"] if row["end"] in _LEVELS else "wrong", "how": str(row["how"])}
            for row in json.loads(file.read_text(encoding="utf-8"))
        ]
    except (OSError, ValueError, KeyError, TypeError) as error:
        return f"{file} cannot be read ({type(error).__name__}): remove it"


def _versions(engine: Engine) -> list[tuple[str, str]]:
    names = [*(package.distribution for package in engine.packages), "torch", "togi"]
    return [(name, importlib.metadata.version(name)) for name in names]
