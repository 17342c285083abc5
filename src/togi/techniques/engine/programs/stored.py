"""Programs of engines that read their model from files, and keep those files so that they can be stored.

The files have no names meanwhile: they vanish with the process, however it ends, and cost no memory. Named temporary
files would stay behind when a trial is killed; holding the bytes would count as the engine's memory.
"""

from __future__ import annotations

import abc
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from togi.core.errors import NotSaveable
from togi.graph.candidate import FlatProgram
from togi.subject.signature import Signature

LOADED = "it was loaded from an artifact: copy that artifact instead"
"""Why a loaded program is not saved again."""


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


@contextmanager
def hidden_folder() -> Iterator[tuple[Path, HiddenFiles]]:
    """A temporary folder for the block; what lies in it at the end lives on in the ``HiddenFiles``."""
    files: dict[str, BinaryIO] = {}
    with tempfile.TemporaryDirectory(prefix="togi-") as name:
        yield Path(name), HiddenFiles(files)
        for entry in sorted(os.listdir(name)):
            files[entry] = open(Path(name) / entry, "rb")  # noqa: SIM115 - it outlives the block on purpose


class StoredProgram(FlatProgram):
    """Runs a model that was read from ``stored``; without files (it was loaded from an artifact) it cannot be saved."""

    def __init__(self, signature: Signature, stored: HiddenFiles | None) -> None:
        super().__init__(signature)
        self.stored = stored

    def save(self, folder: Path) -> dict[str, Any]:
        if self.stored is None:
            raise NotSaveable(LOADED)
        self.stored.write(folder)
        return self.meta()

    @abc.abstractmethod
    def meta(self) -> dict[str, Any]:
        """JSON for the manifest, which ``Engine.load`` is given again."""
