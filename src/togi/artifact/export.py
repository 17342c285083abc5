"""Write what a server loads without togi: an engine's own file, or a model repository of Triton Inference Server.

The file is the artifact's, byte for byte. What its caller must know, and the proof, stand next to it in
``export.json``.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from os import PathLike
from pathlib import Path

from togi.artifact import triton
from togi.artifact.load import load_link
from togi.artifact.manifest import Link, Manifest, check_files, read_manifest
from togi.artifact.save import written_whole
from togi.artifact.signing import Trusted
from togi.core.errors import ArtifactError, OutputExistsError, UnknownNameError, nearest
from togi.core.quantities import first_line
from togi.core.records import SCHEMA_VERSION, Choice, Machine, Port, Recipe, Record, Scalar, Trial
from togi.graph.candidate import FlatProgram
from togi.techniques import Engine, technique

EXPORT = "export.json"

TRITON = "triton"
ENGINES = {
    "onnx": ("onnxruntime",),
    "openvino": ("openvino",),
    "pt2": ("aot_inductor", "eager"),
    TRITON: ("onnxruntime", "openvino", "aot_inductor"),
}
"""Which engines' files each form takes."""


_EXACTLY = {"onnxruntime": ", or set session.x64quantprecision=1 there, which is slower and exact"}
"""By engine, how it sums 8-bit products exactly on any processor."""


class Export(Record):
    """The whole of ``export.json``."""

    schema_version: int = SCHEMA_VERSION
    kind: str = "export"
    togi_version: str
    to: str
    file: str
    """The model, relative to this document; files next to it belong to it."""
    engine: str
    device: str
    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    settings: dict[str, Scalar]
    """Of the engine, under its own names, under which the proof was made."""
    threads: int | None
    """For one call; None: as many as the engine takes by default."""
    runtime: tuple[Choice, ...]
    """What surrounded each call when the proof was made."""
    notes: tuple[str, ...]
    subject: str
    recipe: Recipe
    machine: Machine
    proof: Trial
    """Of the artifact: of its first engine, loaded in a fresh process."""


def export(
    path: str | PathLike[str], to: str, out: Path, trusted: Trusted | None = None, *, native: bool = True
) -> Export:
    """Write the artifact in ``path`` to the new folder ``out`` in the form ``to``: a key of ``ENGINES``.

    The first engine of its chain that the form takes is written; it is loaded here, to read what its file takes and
    gives. ``trusted``, ``native``: as for ``load``. The files that are written are those that the engine writes, under
    its names for them: no name in the manifest decides where something is written.

    Raises:
        UnknownNameError: there is no such form.
        OutputExistsError: ``out`` is there.
        ArtifactError: it is damaged or changed, cannot be written, cannot be opened here, or has no engine, type or
            runtime setting that this form could take; the message says which form can.
    """
    if to not in ENGINES:
        raise UnknownNameError(f"there is no form '{to}'{nearest(to, ENGINES) or '.'} The forms: {', '.join(ENGINES)}")
    if out.exists():
        raise OutputExistsError(f"{out} exists already: give another --out, or remove it")
    folder = Path(path)
    manifest = read_manifest(folder, trusted)
    check_files(folder, manifest)
    link = _link(folder, manifest, to, native)
    files = _files(folder, manifest, link)
    program = _opened(folder, manifest, link)
    repository = None
    if to == TRITON:
        # compiled code does not check sizes, so those for the warm-up are tried on torch's operators, which do
        checking = "eager" if link.engine == "aot_inductor" else link.engine
        tried = next(
            (_opened(folder, manifest, checked) for checked in manifest.chain if checked.engine == checking), None
        )
        repository = triton.served(program.interface(), _served_name(folder), manifest, link, tried)
    interface = repository.interface if repository else program.interface()
    exported = Export(
        togi_version=manifest.togi_version,
        to=to,
        file=f"{'1/' if repository else ''}{files[0]}",
        engine=link.engine,
        device=manifest.facts.device,
        inputs=interface.inputs,
        outputs=interface.outputs,
        settings=interface.settings,
        threads=link.threads,
        runtime=link.runtime,
        notes=(*_notes(manifest, link), *(repository.notes if repository else ())),
        subject=manifest.subject,
        recipe=manifest.recipe,
        machine=manifest.facts.machine,
        proof=manifest.proof,
    )
    with written_whole(out) as whole:
        place = whole / repository.name if repository else whole
        beside = (place / exported.file).parent
        beside.mkdir(parents=True)
        for name in files:
            shutil.copyfile(folder / link.folder / name, beside / name)
        (place / EXPORT).write_text(json.dumps(json.loads(exported.to_json()), indent=1), encoding="utf-8")
        if repository:
            (place / "config.pbtxt").write_text(repository.config, encoding="utf-8")
    return exported


def _engine(link: Link) -> Engine:
    engine = technique(link.engine)
    if not isinstance(engine, Engine):
        raise ArtifactError(f"the manifest names {link.engine} as an engine, which it is not")
    return engine


def _files(folder: Path, manifest: Manifest, link: Link) -> list[str]:
    """Those of the engine's files that the artifact lists, the model first."""
    listed = {entry.path for entry in manifest.files}
    names = [name for name in _engine(link).files if f"{link.folder}/{name}" in listed]
    if names[:1] != list(_engine(link).files[:1]):
        raise ArtifactError(f"{folder} lists no file of {link.engine} to export: get the artifact again")
    return names


def _served_name(folder: Path) -> str:
    """What Triton calls the model, which is the name of its folder there."""
    name = folder.resolve().stem
    if not re.fullmatch(r"\w[\w.\- ]*", name) or name.endswith("."):
        raise ArtifactError(
            f"{folder} is called {name!r}, which cannot be the name of a model in Triton's repository: rename the "
            "artifact, such as to model.togi"
        )
    return name


def _link(folder: Path, manifest: Manifest, to: str, native: bool) -> Link:
    if manifest.parts:
        raise ArtifactError(
            f"{folder} holds parts of a program, whose rest is Python code that no server has. Serve the program from "
            "Python, with togi.load(path).into(program); or tune one of its modules alone, and export that"
        )
    for link in manifest.chain:
        if link.engine in ENGINES[to] and (native or not _engine(link).native):
            return link
    held = [link.engine for link in manifest.chain]
    forms = ", ".join(form for form, engines in ENGINES.items() if set(held) & set(engines))
    raise ArtifactError(
        f"{folder} cannot be exported to {to}, which takes {' or '.join(ENGINES[to])}: it holds {', '.join(held)}. "
        f"For {to}, tune again with --only {ENGINES[to][0]}{forms and f'; with what it holds: --to {forms}'}"
    )


def _opened(folder: Path, manifest: Manifest, link: Link) -> FlatProgram:
    try:
        loaded = load_link(folder, manifest.signature, manifest.facts, link, native=True)
    except Exception as error:  # foreign code: a backend that does not run on this machine
        raise ArtifactError(
            f"{link.engine} of {folder} cannot be opened here ({type(error).__name__}: {first_line(error)}), so what "
            "its file takes and gives cannot be read: export it on a machine where it runs"
        ) from error
    if loaded.around is not None:
        raise ArtifactError(
            f"{folder} answers a batch in pieces ({manifest.recipe.label}), which servers do by settings of their own: "
            "tune again with --without split_batch"
        )
    assert isinstance(loaded.program, FlatProgram)
    return loaded.program


def _notes(manifest: Manifest, link: Link) -> Iterator[str]:
    chosen = manifest.chain[0].engine
    if link.engine != chosen:
        yield f"the proof is of {chosen}; this is its fallback {link.engine}: it is right, but its speed is not proven"
    if link.engine == "aot_inductor":
        yield (
            f"machine code for torch {link.meta['built_on']['torch']} and this kind of CPU; it checks no input: give "
            "contiguous tensors of these dtypes and sizes"
        )
    if link.instructions:
        yield (
            "its answers depend on instructions of the processor (VNNI), and may be wrong where they are missing: have "
            "it answer your own samples there before it serves" + _EXACTLY.get(link.engine, "")
        )
    if where := " and ".join(link.takes(manifest.signature).conditions_in_words()):
        yield f"right where {where}; the file does not check that, and for other sizes the original computes otherwise"
    if manifest.environment:
        settings = " ".join(f"{name}={value}" for name, value in manifest.environment.items())
        yield f"proven in a process that was started with {settings}"
