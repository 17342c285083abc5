"""The contents of an artifact's ``manifest.json``, and the checks made before any other file of it is touched."""

from __future__ import annotations

import hashlib
import json
import stat
from pathlib import Path, PurePosixPath
from typing import Any

from pydantic import Field, ValidationError

from togi.artifact.signing import SIGNATURE, Trusted, check_signature
from togi.core.callers import MOST_THREADS
from togi.core.choices import Objective
from togi.core.errors import ArtifactError
from togi.core.judging import Judging
from togi.core.plain_files import sha256_of
from togi.core.recipe import PARTS, AnyRecipe, Choice, PartKey
from togi.core.records import Facts, Record, Trial
from togi.subject.domain import Domain
from togi.subject.effects import Effects
from togi.subject.signature import Signature

MANIFEST = "manifest.json"
MANIFEST_VERSION = 2
"""Raised when a field changes its meaning or goes away."""
MANIFEST_LIMIT_BYTES = 16 << 20
FILE_KINDS = frozenset({".pt2", ".ts", ".onnx", ".data", ".xml", ".param", ".bin", ".json", ".safetensors"})
"""Endings of the files that engines write. Anything else in an artifact is refused."""


_NAME = r"^[A-Za-z0-9_][A-Za-z0-9_.\-]{0,99}$"


class PartEntry(Record):
    """A part of a program, and what it stands for there. Its engine is an artifact of its own."""

    key: PartKey
    module: str
    """Its class."""
    effects: Effects
    weights: str
    """Hash of what the module was when it was tuned."""
    settings: dict[str, str] | None = None
    """Hashes of its plain attributes and code (``togi.artifact.settings``). None: they do not matter, as of what runs
    the live module, or an earlier version of togi wrote it."""


class FileEntry(Record):
    """One file: POSIX path relative to the artifact's folder."""

    path: str
    bytes: int
    sha256: str


class Link(Record):
    """One way to run it: an engine, its files, and the runtime settings around every call."""

    engine: str = Field(pattern=_NAME)
    folder: str = Field(pattern=_NAME)
    meta: dict[str, Any]
    runtime: tuple[Choice, ...] = ()
    threads: int | None = Field(default=None, ge=1, le=MOST_THREADS)
    domains: tuple[Domain, ...] = ()
    """Of a fallback that was proven for fewer values than the artifact (``Signature.domains``). Empty: for as many."""
    instructions: tuple[str, ...] = ()
    """Of the processor, on which its answers depend (``togi.core.instructions``)."""
    one_at_a_time: bool = False
    """Callers that come at once wait for each other: the engine hung or ended where two called it."""

    def takes(self, signature: Signature) -> Signature:
        """The calls that it answers. ``signature``: of the artifact."""
        return signature.within(self.domains) if self.domains else signature


def in_turn(chain: tuple[Link, ...]) -> tuple[Link, ...]:
    """The same engines, which serve one call at a time."""
    return tuple(link.model_copy(update={"one_at_a_time": True}) for link in chain)


TRAINING = "training.json"
"""In place of a manifest where a training step was tuned (``artifact/training``)."""


class Saved(Record):
    """What a recipe that is running has written."""

    links: tuple[Link, ...] = ()
    parts: tuple[PartEntry, ...] = ()
    """Of a program (``Manifest.parts``)."""
    notes: tuple[str, ...] = ()
    domains: tuple[Domain, ...] = ()
    """Values of every flat input for which it was proven (``Signature.domains``)."""
    unsaveable: str = ""
    """Why it has no file form; empty where it has one."""
    weights: str = ""
    """As ``Manifest.weights``."""
    settings: dict[str, str] | None = None
    """As ``Manifest.settings``."""
    wrong: str = ""
    """What it answers otherwise than the original on values that no sample shows, where no domain keeps these out."""
    calibration: str = ""
    """Of an approximate recipe (``Manifest.calibration``)."""


class Manifest(Record):
    """The whole of ``manifest.json``."""

    schema_version: int = MANIFEST_VERSION
    togi_version: str
    created: str
    """ISO 8601, UTC."""
    subject: str
    recipe: AnyRecipe
    signature: Signature
    facts: Facts
    proof: Trial
    """The artifact itself, loaded in a fresh process, verified and measured against the original."""
    chain: tuple[Link, ...] = ()
    """The chosen engine first, then the fallbacks in order. Empty for a program."""
    parts: tuple[PartEntry, ...] = ()
    """Of a program: its tuned parts. The first has its artifact in the folder ``parts/0``, and so on."""
    files: tuple[FileEntry, ...]
    weights: str = ""
    """Hash of the module that was tuned whole (``togi.artifact.weights``). Empty for a program, whose parts have their
    own, and where an earlier version of togi wrote it."""
    settings: dict[str, str] | None = None
    """Hashes of that module's plain attributes and code (``togi.artifact.settings``). None where ``weights`` is empty,
    and where an earlier version of togi wrote it."""
    environment: dict[str, str] = {}
    """Environment variables under which the proof was made (an allocator), which loading cannot set."""
    max_error: float | None = None
    """Largest relative error that was accepted of an approximate recipe."""
    max_drop: float | None = None
    """Largest drop of the subject's metric that was."""
    judging: Judging | None = None
    """By what it was judged besides its error. On validation data: the proof has the interval."""
    calibration: str = ""
    """The sha256 of the samples that an approximate recipe could calibrate on. Of the data by which it was judged, the
    proof has it, with the accuracy and its interval (``Accuracy``)."""
    objective: Objective = Objective.LATENCY
    """What the proof's timing is of."""
    sha256: str = ""
    """Of this document without it (``document_hash``). Against damage: who changes the one on purpose changes the
    other, which a signature shows."""

    @property
    def identity(self) -> str:
        """Hash of all that it says, and so of every file: equal where the same artifact was read."""
        return hashlib.sha256(self.model_dump_json().encode()).hexdigest()


def read_manifest(folder: Path, trusted: Trusted | None = None) -> Manifest:
    """Parse and validate the manifest alone. ``trusted``: keys, one of which has to have signed it.

    Raises ArtifactError: no folder, missing, above 16 MiB, not signed by them, not JSON, another schema, other fields,
    changed. Raises TogiError where a key cannot be used.
    """
    path = folder / MANIFEST
    if not folder.is_dir():
        raise ArtifactError(
            f"{folder} is not a folder: an artifact is a folder made by 'togi tune SUBJECT --out {folder}'"
        )
    if not path.is_file() and (folder / TRAINING).is_file():
        raise ArtifactError(
            f"{folder} is the record of a training step, which is applied to your own model: "
            f"togi.TrainingRecipe.read({str(folder)!r}).apply(model, optimizer, step=loss). To race it, name the "
            f"subject too: togi bench train.py:subject {folder} --train"
        )
    if not path.is_file() or path.is_symlink():
        raise ArtifactError(f"{folder} holds no {MANIFEST}, so it is not a togi artifact, or it was copied in part")
    size = path.stat().st_size
    if size > MANIFEST_LIMIT_BYTES:
        raise ArtifactError(
            f"{path} is {size:,} bytes; a manifest is never above {MANIFEST_LIMIT_BYTES:,}. It was not read: "
            "get the artifact again from where it was made"
        )
    data = path.read_bytes()
    if trusted is not None:
        check_signature(folder, data, trusted)
    try:
        manifest = Manifest.model_validate_json(data)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"]) or "the document"
        raise ArtifactError(
            f"{path} is not a manifest of schema {MANIFEST_VERSION}: {where}: {first['msg']}. "
            "It is damaged or from another version of togi: tune again, or load it with the togi that made it"
        ) from None
    if manifest.schema_version != MANIFEST_VERSION:
        raise ArtifactError(
            f"{folder} has schema {manifest.schema_version}, this togi reads {MANIFEST_VERSION}: tune again with this "
            "one"
        )
    if manifest.sha256 != document_hash(json.loads(data)):
        raise ArtifactError(f"{path} has changed since it was written (its sha256 differs): get the artifact again")
    return manifest


def document_hash(document: dict[str, Any]) -> str:
    """Of a manifest's JSON, whatever its white space and the order of its fields."""
    hashed = {name: value for name, value in document.items() if name != "sha256"}
    return hashlib.sha256(json.dumps(hashed, sort_keys=True).encode()).hexdigest()


def check_files(folder: Path, manifest: Manifest) -> None:
    """That exactly the listed files are there (and maybe a signature), inside the folder, of known kinds, with their
    sizes and hashes.

    Raises ArtifactError naming the first file that is not as it should be. Nothing is parsed or executed.
    """
    listed = {entry.path: entry for entry in manifest.files}
    for name in listed:
        _check_path(name)
    present = _walk(folder)
    missing = sorted(set(listed) - set(present))
    extra = sorted(set(present) - set(listed) - {MANIFEST, SIGNATURE})
    if missing:
        raise ArtifactError(f"{folder} lacks {missing[0]}, which its manifest lists: copy the whole folder again")
    if extra:
        raise ArtifactError(
            f"{folder} holds {extra[0]}, which its manifest does not list: it was added later. Remove it"
        )
    for name, entry in listed.items():
        _check_content(folder / name, entry)


def part_folder(folder: Path, number: int) -> Path:
    """The artifact of one part of the program's artifact in ``folder``."""
    return folder / PARTS / str(number)


def describe_file(folder: Path, path: Path) -> FileEntry:
    return FileEntry(path=path.relative_to(folder).as_posix(), bytes=path.stat().st_size, sha256=sha256_of(path))


def list_files(folder: Path) -> tuple[FileEntry, ...]:
    """Entries of all files below the folder but the manifest."""
    return tuple(describe_file(folder, folder / name) for name in sorted(_walk(folder)) if name != MANIFEST)


def _check_path(name: str) -> None:
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts or "\\" in name or path.as_posix() != name:
        raise ArtifactError(f"the manifest lists {name!r}, a path that leaves the artifact's folder: it is not loaded")
    if path.suffix not in FILE_KINDS:
        raise ArtifactError(
            f"the manifest lists {name!r}, which is not a file that an engine of togi writes: it is not loaded, "
            "because files of other kinds may be pickles, which run code when they are read"
        )


def _walk(folder: Path) -> list[str]:
    names = []
    for path in folder.rglob("*"):
        mode = path.lstat().st_mode
        if stat.S_ISDIR(mode):
            continue
        if not stat.S_ISREG(mode):
            raise ArtifactError(f"{path} is a link or a special file: an artifact holds plain files only")
        names.append(path.relative_to(folder).as_posix())
    return names


def _check_content(path: Path, entry: FileEntry) -> None:
    size = path.stat().st_size
    if size != entry.bytes:
        raise ArtifactError(f"{path} has {size:,} bytes, its manifest says {entry.bytes:,}: it was cut or changed")
    if sha256_of(path) != entry.sha256:
        raise ArtifactError(f"{path} has changed since it was proven (its sha256 differs): get the artifact again")
    with path.open("rb") as file:
        head = file.read(2)
    if len(head) == 2 and head[0] == 0x80 and 2 <= head[1] <= 5:
        raise ArtifactError(f"{path} is a pickle, which could run any code when loaded: it is refused")
