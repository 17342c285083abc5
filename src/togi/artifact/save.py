"""Write an artifact. The child that holds the program writes the engine's files; the parent makes the manifest."""

from __future__ import annotations

import errno
import json
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from togi.artifact.manifest import (
    MANIFEST,
    MANIFEST_LIMIT_BYTES,
    TRAINING,
    Link,
    Manifest,
    PartEntry,
    Saved,
    check_files,
    document_hash,
    in_turn,
    list_files,
    read_manifest,
)
from togi.artifact.signing import SIGNATURE, PathLikeOrStr, private_key, public_pem
from togi.core.choices import Objective
from togi.core.errors import ArtifactError, OutputExistsError
from togi.core.judging import Judging
from togi.core.locks import locked
from togi.core.plain_files import has_fields
from togi.core.records import Facts, Recipe, Trial, now
from togi.core.version import version
from togi.subject.signature import Signature

SUFFIX = ".togi"
_FIELDS = ("schema_version", "togi_version", "created", "recipe")
"""Of both kinds of documents."""


def check_writable(out: Path, force: bool) -> None:
    """Before any work is done: that ``out`` can be written.

    Raises OutputExistsError (there already, without ``force``) or ArtifactError (not ``NAME.togi``, no folder there,
    not writable).
    """
    if out.suffix != SUFFIX:
        raise ArtifactError(
            f"{out} is not a name of an artifact, so togi could not find it again: give {out.name or 'NAME'}{SUFFIX}"
        )
    if out.exists() and not force:
        raise OutputExistsError(f"{out} exists already. Give another --out, or --force to replace it")
    if out.exists() and not is_artifact(out):
        raise OutputExistsError(f"{out} exists and is not a togi artifact: it is not replaced, even with --force")
    check_parent(out)


def is_artifact(folder: Path) -> bool:
    """Whether togi wrote it, in this version or another."""
    return any(has_fields(folder / name, _FIELDS, MANIFEST_LIMIT_BYTES) for name in (MANIFEST, TRAINING))


def check_parent(out: Path) -> None:
    """Raises ArtifactError if nothing can be written next to ``out``."""
    parent = out.absolute().parent
    if not parent.is_dir():
        raise ArtifactError(f"the folder {parent} does not exist: create it, or choose another place")
    try:
        with tempfile.TemporaryFile(dir=parent):  # a name of its own, so that no link can wait under it
            pass
    except OSError as error:
        raise ArtifactError(
            f"{parent} cannot be written ({error.strerror}), so the result could not be saved. Give another --out"
        ) from None


def write_manifest(
    folder: Path,
    *,
    subject: str,
    recipe: Recipe,
    signature: Signature,
    facts: Facts,
    proof: Trial,
    chain: tuple[Link, ...] = (),
    parts: tuple[PartEntry, ...] = (),
    weights: str = "",
    settings: dict[str, str] | None = None,
    environment: dict[str, str] | None = None,
    max_error: float | None = None,
    max_drop: float | None = None,
    judging: Judging | None = None,
    calibration: str = "",
    objective: Objective = Objective.LATENCY,
) -> Manifest:
    """Hash what the engine wrote into ``folder`` and write the manifest next to it."""
    manifest = Manifest(
        togi_version=version(),
        created=now(),
        subject=subject,
        recipe=recipe,
        signature=signature,
        facts=facts,
        proof=proof,
        chain=chain,
        parts=parts,
        files=list_files(folder),
        weights=weights,
        settings=settings,
        environment=environment or {},
        max_error=max_error,
        max_drop=max_drop,
        judging=judging,
        calibration=calibration,
        objective=objective,
    )
    _write(folder, manifest)
    return manifest


def _write(folder: Path, manifest: Manifest) -> None:
    document = json.loads(manifest.model_dump_json())
    document["sha256"] = document_hash(document)
    (folder / MANIFEST).write_text(json.dumps(document, indent=1), encoding="utf-8")


def copy_files(source: Path, folder: Path) -> Saved:
    """Copy an artifact's files into ``folder``, without its manifest. Returns what they are.

    Raises ArtifactError as ``read_manifest`` does, and OSError.
    """
    manifest = read_manifest(source)
    shutil.copytree(source, folder, dirs_exist_ok=True)
    (folder / MANIFEST).unlink()
    return Saved(links=manifest.chain, parts=manifest.parts, weights=manifest.weights, settings=manifest.settings)


def serve_in_turn(folder: Path) -> None:
    """Write the manifest of one part anew: its engines then serve one call at a time.

    Raises ArtifactError as ``read_manifest`` does. What lists its files has to be written after it.
    """
    manifest = read_manifest(folder)
    _write(folder, manifest.model_copy(update={"chain": in_turn(manifest.chain)}))


def publish(source: Path, out: Path, *, force: bool = False) -> Path:
    """Copy a finished artifact to ``out``: complete or not at all.

    Raises OutputExistsError, or ArtifactError when the disk is full or the folder cannot be written.
    """
    check_writable(out, force)
    with written_whole(out) as folder:
        shutil.copytree(source, folder)
    return out


def sign(folder: Path, key: PathLikeOrStr, password: str | None = None) -> str:
    """Sign the artifact; an earlier signature is replaced. Returns the public key as the text of a PEM file.

    Args:
        key: PEM file of a private Ed25519 key.
        password: of that file, where it is encrypted.

    Raises ArtifactError (damaged or changed: it is not signed) and TogiError (the key cannot be used).
    """
    signer = private_key(key, password)
    check_files(folder, read_manifest(folder))
    (folder / SIGNATURE).write_bytes(signer.sign((folder / MANIFEST).read_bytes()))
    return public_pem(signer)


@contextmanager
def written_whole(out: Path) -> Iterator[Path]:
    """A folder for the block to make and fill, which then takes the place of ``out``: complete or not at all, and one
    process after the other. It is made in a folder that nobody else may enter, where nobody can have put a link.

    Raises ArtifactError when the disk is full or the folder cannot be written.
    """
    partial = out.with_name(f".{out.name}.partial")
    if not out.absolute().parent.is_dir():
        raise ArtifactError(f"the folder {out.absolute().parent} does not exist: create it, or choose another place")
    try:
        with locked(out.absolute().parent), _removed(partial):
            partial.mkdir(mode=0o700)
            yield partial / "new"
            if out.is_symlink() or out.exists():
                out.rename(partial / "replaced")
            (partial / "new").rename(out)
    except OSError as error:
        why = "the disk is full" if error.errno == errno.ENOSPC else str(error.strerror or error)
        raise ArtifactError(
            f"{out} could not be written: {why}. Nothing else is lost: free some space, or choose another folder, and "
            "give the same command again"
        ) from None


@contextmanager
def _removed(folder: Path) -> Iterator[None]:
    """Before the block, where a killed process left it, and after it."""
    if folder.is_symlink():
        folder.unlink()
    shutil.rmtree(folder, ignore_errors=True)
    try:
        yield
    finally:
        shutil.rmtree(folder, ignore_errors=True)
