"""Where in the user's own files a line is."""

from __future__ import annotations

import os
from pathlib import Path

from togi.lint.finding import Place
from togi.lint.module.forward_pass import Line


def place_of(line: Line | None) -> Place | None:
    """The line as a place of a finding; None for installed packages, which the user cannot edit."""
    if line is None or "site-packages" in line.path or "dist-packages" in line.path or not Path(line.path).is_file():
        return None
    path = Path(line.path)
    if path.is_relative_to(Path.cwd()):
        path = path.relative_to(Path.cwd())
    return Place(path=str(path).replace(os.sep, "/"), line=line.line)
