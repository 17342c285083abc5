"""Records of what was tuned for a script, and of what served it. No torch."""

from __future__ import annotations

from pathlib import Path

from pydantic import ValidationError

from togi.core.errors import ArtifactError, OutputExistsError
from togi.core.plain_files import has_fields, read_plain
from togi.core.record import Record
from togi.core.records import Interval

INDEX = "index.json"
INDEX_VERSION = 1
"""Raised when a field changes its meaning or goes away."""
_INDEX_LIMIT_BYTES = 4 << 20
_FIELDS = ("schema_version", "togi_version", "created", "script", "modules")
"""Of the index, by which togi knows it."""
_ANEW = "'togi run --again SCRIPT' writes it anew"


class ModuleIdentity(Record):
    """What a module has to be for an artifact to stand for it."""

    module: str
    """Its class."""
    settings: str
    """Hash of the plain attributes of all its parts, as they were before its first call."""
    code: str
    """Hash of the code of their classes, and of the functions of the user's own that this code names."""
    weights: str
    """Hash of the classes of all parts and of every weight and buffer."""

    def difference(self, tuned: ModuleIdentity) -> str:
        """The first that differs from what was tuned, as a clause."""
        if self.weights != tuned.weights:
            return "its weights or its structure are not those that were tuned"
        if self.code != tuned.code:
            return "its code, Python or torch has changed since it was tuned"
        if self.settings != tuned.settings:
            return "its settings (plain attributes) are not those that were tuned"
        return ""


class TunedModule(Record):
    """The result of tuning one module of a script."""

    identity: ModuleIdentity
    share: float
    """Of the script's seconds, when it was watched."""
    artifact: str = ""
    """Name of its folder next to the index; empty if the original was not beaten."""
    recipe: str = ""
    """The label of what was chosen."""
    speedup_x: Interval | None = None
    saved_s: float = 0.0
    """Of the run that was watched, with that speed-up."""
    loading_s: float | None = None
    """From loading the artifact to its first answer."""
    why_not: str = ""
    """Why there is no artifact."""
    decided: bool = True
    """Its study came to its end, or the module itself is why there is none. False if a later one may end otherwise: the
    time was over, the journal was in use, a process was ended."""
    sha256: str = ""
    """The hash that the artifact's manifest has of itself: another artifact in its place is not used. Empty where an
    earlier togi wrote it."""


class ScriptIndex(Record):
    """The file that says which artifact in a folder stands for which module of a script."""

    schema_version: int = INDEX_VERSION
    togi_version: str
    created: str
    """ISO 8601, UTC."""
    script: str
    modules: tuple[TunedModule, ...]

    @property
    def undecided(self) -> tuple[str, ...]:
        """The modules whose studies should be made again."""
        return tuple(one.identity.module for one in self.modules if not one.decided)

    @property
    def settles(self) -> bool:
        """Whether a run has something of it: artifacts, or the knowledge that nothing is faster."""
        return any(one.artifact for one in self.modules) or not self.undecided


class ServedModule(Record):
    """How often an artifact served the calls of a module."""

    module: str
    recipe: str
    engine_calls: int
    original_calls: int
    last_reason: str = ""
    """Why the original served the last of these."""


def is_script_folder(folder: Path) -> bool:
    """Whether its index is one that ``togi run`` wrote, in this version or another."""
    return has_fields(folder / INDEX, _FIELDS, _INDEX_LIMIT_BYTES)


def not_own(folder: Path) -> str:
    """The first thing of a folder that ``togi run`` did not write, as a clause; empty if it wrote all of it."""
    from togi.artifact.save import is_artifact

    if not is_script_folder(folder):
        return f"it holds no {INDEX} of togi"
    others = (path for path in sorted(folder.iterdir()) if path.name != INDEX)
    other = next((path.name for path in others if path.is_symlink() or not is_artifact(path)), "")
    return other and f"it holds {other}, which togi did not put there"


def check_replaceable(folder: Path) -> None:
    """Raises OutputExistsError for something that ``togi run`` did not write."""
    if (folder.exists() or folder.is_symlink()) and (why := not_own(folder)):
        raise OutputExistsError(
            f"{folder} exists and was not written by 'togi run' ({why}): it is not replaced. Give another --out"
        )


def read_index(folder: Path) -> ScriptIndex:
    """Raises ArtifactError for a folder that ``togi run`` did not write, or one that cannot be read."""
    if not folder.is_dir():
        raise ArtifactError(
            f"there is no folder {folder}: 'togi run SCRIPT' writes one after it tuned what SCRIPT calls"
        )
    try:
        index = ScriptIndex.model_validate_json(read_plain(folder / INDEX, _INDEX_LIMIT_BYTES))
    except OSError as error:
        raise ArtifactError(
            f"{folder / INDEX} cannot be read ({error.strerror or error}): give the folder that 'togi run SCRIPT' wrote"
        ) from None
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"])) or "the document"
        remedy = "give the folder that 'togi run SCRIPT' wrote" if not_own(folder) else _ANEW
        raise ArtifactError(
            f"{folder / INDEX} is damaged or from another version of togi ({where}: {first['msg']}): {remedy}"
        ) from None
    if index.schema_version != INDEX_VERSION:
        raise ArtifactError(f"{folder} has schema {index.schema_version}, this togi reads {INDEX_VERSION}: {_ANEW}")
    for tuned in index.modules:
        if tuned.artifact and Path(tuned.artifact).name != tuned.artifact:
            raise ArtifactError(
                f"{folder / INDEX} names {tuned.artifact!r}, which is not in the folder: it is not used"
            )
    return index
