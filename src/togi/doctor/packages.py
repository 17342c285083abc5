"""The Python packages of this environment: their versions and what they ask for, by their metadata."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement

from togi.core.backports import tomllib

PROJECT = Path(__file__).parents[3] / "pyproject.toml"
"""Of a tree of sources in which togi runs without being installed."""


@dataclass(frozen=True)
class Packages:
    """What is installed here."""

    project: Path = PROJECT

    def version(self, distribution: str) -> str | None:
        """None where it is not installed."""
        try:
            return importlib.metadata.version(distribution)
        except importlib.metadata.PackageNotFoundError:
            return None

    def requirements(self, distribution: str = "togi") -> tuple[Requirement, ...] | None:
        """By the distribution's own metadata; togi's by its sources, where it was not installed. None: by neither."""
        lines = self.requires(distribution)
        if lines is None and distribution == "togi" and self.project.is_file():
            lines = _in_sources(tomllib.loads(self.project.read_text(encoding="utf-8"))["project"])
        return None if lines is None else tuple(map(Requirement, lines))

    def requires(self, distribution: str) -> Sequence[str] | None:
        """The lines of its metadata; None where it is not installed."""
        try:
            return importlib.metadata.requires(distribution) or ()
        except importlib.metadata.PackageNotFoundError:
            return None


def applies(requirement: Requirement, extra: str = "") -> bool:
    """Whether it is asked for here, with an extra or without any."""
    return requirement.marker is None or requirement.marker.evaluate({"extra": extra})


def without_marker(requirement: Requirement) -> str:
    """As ``pip install`` takes it."""
    return str(requirement).partition(";")[0].strip()


def _in_sources(project: dict[str, Any]) -> list[str]:
    """As metadata would spell them: those of an extra with a marker that names it."""
    lines: list[str] = list(project["dependencies"])
    for extra, needed in project.get("optional-dependencies", {}).items():
        for line in needed:
            named, _, marker = line.partition(";")
            lines.append(f"{named}; ({marker}) and extra == '{extra}'" if marker else f"{named}; extra == '{extra}'")
    return lines
