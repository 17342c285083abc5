"""Write an artifact. The child that holds the program writes the engine's files; the parent makes the manifest."""

from __future__ import annotations

import errno
import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from togi.artifact.manifest import MANIFEST, Link, Manifest, document_hash, list_files
from togi.core.errors import ArtifactError, OutputExistsError
from togi.core.objective import Objective
from togi.core.records import Facts, Recipe, Trial, now
from togi.core.version import version
from togi.subject.signature import Signature

SUFFIX = ".togi"


def check_writable(out: Path, force: bool) -> None:
    """Before any work is done: that ``out`` can be written.

    Raises OutputExistsError (there already, without ``force``) or ArtifactError (not ``NAME.togi``, no folder there,
    not writable).
    """
    if out.suffix != SUFFIX:
        raise ArtifactError(
            f"{out} is no name of an artifact, so togi could not find it again: give {out.name or 'NAME'}{SUFFIX}"
        )
    if out.exists() and not force:
        raise OutputExistsError(f"{out} exists already. Give another --out, or --force to replace it")
    if out.exists() and not (out / MANIFEST).is_file():
        raise OutputExistsError(f"{out} exists and is not a togi artifact: it is not replaced, even with --force")
    parent = out.absolute().parent
    if not parent.is_dir():
        raise ArtifactError(f"the folder {parent} does not exist: create it, or choose another place")
    probe = parent / f".{out.name}.probe"
    try:
        probe.touch()
        probe.unlink()
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
    chain: tuple[Link, ...],
    environment: dict[str, str],
    max_error: float | None = None,
    max_drop: float | None = None,
    objective: Objective = Objective.LATENCY,
) -> Manifest:
    """Hash what the engine wrote into ``folder`` and write the manifest beside it."""
    manifest = Manifest(
        togi_version=version(),
        created=now(),
        subject=subject,
        recipe=recipe,
        signature=signature,
        facts=facts,
        proof=proof,
        chain=chain,
        files=list_files(folder),
        environment=environment,
        max_error=max_error,
        max_drop=max_drop,
        objective=objective,
    )
    document = json.loads(manifest.model_dump_json())
    document["sha256"] = document_hash(document)
    (folder / MANIFEST).write_text(json.dumps(document, indent=1), encoding="utf-8")
    return manifest


def publish(source: Path, out: Path, *, force: bool = False) -> Path:
    """Copy a finished artifact to ``out``: complete or not at all.

    Raises OutputExistsError, or ArtifactError when the disk is full or the folder cannot be written.
    """
    check_writable(out, force)
    with written_whole(out) as folder:
        shutil.copytree(source, folder)
    return out


@contextmanager
def written_whole(out: Path) -> Iterator[Path]:
    """A folder for the block to make and fill, which then takes the place of ``out``: complete or not at all.

    Raises ArtifactError when the disk is full or the folder cannot be written.
    """
    partial = out.with_name(f".{out.name}.partial")
    try:
        shutil.rmtree(partial, ignore_errors=True)
        yield partial
        if out.exists():
            shutil.rmtree(out)
        partial.rename(out)
    except OSError as error:
        why = "the disk is full" if error.errno == errno.ENOSPC else str(error.strerror or error)
        raise ArtifactError(
            f"{out} could not be written: {why}. Nothing else is lost: free some space, or choose another folder, and "
            "give the same command again"
        ) from None
    finally:
        shutil.rmtree(partial, ignore_errors=True)
