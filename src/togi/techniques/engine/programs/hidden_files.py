"""Files without names: they vanish with the process, however it ends, and cost no memory.

An engine reads its model from files and must be able to store them later. Named temporary files would stay behind when
a trial is killed; holding the bytes would count as the engine's memory.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO


class HiddenFiles:
    """Open handles on files whose names are gone."""

    def __init__(self, files: dict[str, BinaryIO]) -> None:
        self._files = files

    def write(self, folder: Path) -> None:
        """Every file again, under its name, in ``folder``."""
        for name, handle in self._files.items():
            handle.seek(0)
            with open(folder / name, "wb") as target:
                shutil.copyfileobj(handle, target)

    def read(self, name: str) -> bytes:
        handle = self._files[name]
        handle.seek(0)
        return handle.read()


@contextmanager
def hidden_folder() -> Iterator[tuple[Path, HiddenFiles]]:
    """A temporary folder for the block; what lies in it at the end lives on in the ``HiddenFiles``."""
    files: dict[str, BinaryIO] = {}
    with tempfile.TemporaryDirectory(prefix="togi-") as name:
        yield Path(name), HiddenFiles(files)
        for entry in sorted(os.listdir(name)):
            files[entry] = open(Path(name) / entry, "rb")  # noqa: SIM115 - it outlives the block on purpose
