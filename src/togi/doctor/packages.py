"""Installed packages against what togi's own metadata asks for: nothing about versions is written down twice."""

from __future__ import annotations

import importlib.metadata
import platform
import sys
from collections.abc import Iterator

from packaging.requirements import Requirement

from togi.doctor.check import Check, Level

EXTRAS = ("onnx", "openvino", "nncf")
"""Extras that make more techniques possible."""


def check() -> list[Check]:
    python = Check(
        topic="packages", name="python", level=Level.OK, found=f"{platform.python_version()} ({sys.executable})"
    )
    return [python, *_required(), *_optional()]


def requirements(distribution: str = "togi") -> tuple[Requirement, ...]:
    return tuple(Requirement(line) for line in importlib.metadata.requires(distribution) or ())


def _required() -> Iterator[Check]:
    for requirement in requirements():
        if requirement.marker is None:
            yield compare(requirement, Level.MISSING, f"pip install --upgrade '{requirement}'")


def _optional() -> Iterator[Check]:
    seen = set()
    for extra in EXTRAS:
        for requirement in requirements():
            marker = requirement.marker
            if marker and marker.evaluate({"extra": extra}) and not marker.evaluate({"extra": ""}):
                if requirement.name not in seen and requirement.name != "togi":
                    yield compare(requirement, Level.OPTIONAL, f"pip install --upgrade 'togi[{extra}]'")
                seen.add(requirement.name)


def compare(requirement: Requirement, level: Level, mend: str) -> Check:
    """``level`` is what it is when the package is not there, or older than needed."""
    common = {"topic": "packages", "name": requirement.name}
    try:
        version = importlib.metadata.version(requirement.name)
    except importlib.metadata.PackageNotFoundError:
        why = "needed" if level is Level.MISSING else "its techniques are left out"
        return Check(**common, level=level, found="not installed", why=why, mend=mend)
    if requirement.specifier.contains(version, prereleases=True):
        return Check(**common, level=Level.OK, found=version)
    worse = Level.MISSING if level is Level.MISSING else Level.WARNING
    return Check(**common, level=worse, found=version, why=f"outdated: {requirement.specifier} is needed", mend=mend)
