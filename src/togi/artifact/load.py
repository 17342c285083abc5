"""Load an artifact: validate everything, then take the first engine of its chain that runs here.

What it gives is a module that is called like the original.
"""

from __future__ import annotations

import os
import warnings
from contextlib import nullcontext
from os import PathLike
from pathlib import Path
from typing import NamedTuple

import torch
from torch import nn

from togi.artifact.installed import Installed, install
from togi.artifact.manifest import Link, Manifest, PartEntry, check_files, part_folder, read_manifest
from togi.artifact.optimized import OptimizedModule, OptimizedProgram
from togi.artifact.part_engine import PartEngine
from togi.artifact.proven_here import is_proven_here, lacks
from togi.artifact.signing import Trusted
from togi.artifact.switch import Switch
from togi.core.device import is_device, parse_device
from togi.core.errors import ArtifactError
from togi.core.quantities import first_line
from togi.core.recipe import PartKey
from togi.core.records import Facts
from togi.graph.candidate import Candidate, FlatProgram
from togi.machine.describe import differences, usable_cores
from togi.measure.allocator import keep_freed_memory
from togi.subject.effects import Effects
from togi.subject.signature import Signature
from togi.techniques import Engine, technique
from togi.techniques.runtime.threads import torch_threads, with_threads
from togi.torch_internals.modules import has_own_call, users_hooks


class FallbackWarning(UserWarning):
    """The chosen engine cannot run here; a fallback of the recorded chain is used."""


def load(
    path: str | PathLike[str],
    *,
    device: str | None = None,
    native: bool = True,
    trusted: Trusted | None = None,
    keep_memory: bool = True,
) -> OptimizedModule:
    """The tuned model in ``path`` (a ``.togi`` folder), ready to call.

    Every listed file is checked (presence, size, sha256, kind) before any is opened; nothing is unpickled, no Python
    of the artifact is run, and no name in it causes an import (``togi.subject.classes``). If the chosen engine cannot
    run here, the next of the recorded chain is taken, with a ``FallbackWarning``. So it is where the processor lacks
    instructions on which its answers depend (8-bit products and VNNI), unless ``togi verify`` proved it here.

    Only ``trusted`` checks who made an artifact: its hashes stand in the artifact itself. The files of some engines
    are programs, which may do whatever this process may: machine code of ``aot_inductor``, TorchScript of
    ``torchscript``, and those of ``ncnn``, whose parser trusts them. Load such an artifact only from people whose
    programs you would run, or with ``native=False``. Graphs of the other engines are data: torch and the backends read
    them with their own parsers, and call operators that are installed here. That is not a sandbox: a fault in such a
    parser or operator may be used by a file that was made for it.

    Args:
        device: what it is to run on: the device that it was tuned for, and of several the current one of this process.
            None: that one.
        native: False leaves out engines whose files are programs, and takes the next of the chain.
        trusted: PEM files of public keys, one of which has to have signed it (``togi sign``); this is checked before
            anything of it is parsed. None: it need not be signed.
        keep_memory: on a CPU, tell glibc's malloc to keep what this process frees for its next call, as in
            the processes in which the artifact was proven (``togi explain keep-freed-memory``). The process then does
            not shrink after a peak. False leaves malloc alone, as variables that set its thresholds do.

    Raises:
        UnknownNameError: ``device`` is not a device that togi can use.
        TogiError: a key cannot be read, is of another kind, or none is named.
        ArtifactError: it is not signed by a trusted key, damaged, changed, unsafe, of another schema, tuned for another
            device, or no engine of its chain runs here (without native code, where that is left out).
    """
    parsed = None if device is None else parse_device(device)
    folder = Path(path)
    return load_manifest(folder, read_manifest(folder, trusted), device=parsed, native=native, keep_memory=keep_memory)


def load_manifest(
    folder: Path,
    manifest: Manifest,
    *,
    device: str | None = None,
    native: bool = True,
    keep_memory: bool = True,
    unproven: bool = False,
) -> OptimizedModule:
    """As ``load``, of an artifact whose manifest was read. ``unproven``: also with engines whose answers depend on
    instructions that this processor lacks, which is for those who verify them."""
    check_files(folder, manifest)
    _check_device(manifest, device)
    if keep_memory and manifest.facts.device == "cpu":
        keep_freed_memory()
    allowed = _Allowed(manifest, native, unproven)
    if manifest.parts:
        # the hash of each file of a part, its manifest too, stands in the manifest that was checked
        folders = [part_folder(folder, number) for number in range(len(manifest.parts))]
        parts = [
            _load_part(inside, read_manifest(inside), entry, allowed)
            for inside, entry in zip(folders, manifest.parts, strict=True)
        ]
        return OptimizedProgram(manifest, parts)
    manifest.signature.resolve()
    loaded, link, notes = _first_that_runs(folder, manifest, allowed)
    waits = loaded.program is not None and loaded.program.waits_for_threads
    return OptimizedModule(loaded.runnable(), manifest, link, notes, forks=not waits)


class _Allowed(NamedTuple):
    """The engines of an artifact that may be used."""

    whole: Manifest
    native: bool
    """Those whose files are programs."""
    unproven: bool
    """Those whose answers depend on instructions that this processor lacks."""

    def lacks(self, link: Link) -> str:
        """What this processor lacks for the engine to be right, in words; empty where it may be used."""
        lacking = "" if self.unproven else lacks(link)
        return "" if lacking and is_proven_here(self.whole) else lacking


def put_in_place(
    folder: Path,
    module: nn.Module,
    switch: type[Switch] = Switch,
    *,
    native: bool = True,
    manifest: Manifest | None = None,
) -> Installed:
    """Put an artifact into the live module that it was made of, whole or in parts. Calls beyond what was proven run the
    original. ``switch``: what stands for the ``forward`` of a module. ``manifest``: of the artifact, if it was read;
    its files have to be those that it lists.

    The caller knows that a module which was tuned whole is the one: its artifact does not name its weights.

    Raises ArtifactError as ``load`` does, and where the parts are of another module, or the whole has forward hooks
    or a ``__call__`` of its own.
    """
    manifest = manifest or read_manifest(folder)
    if manifest.parts:
        program = load_manifest(folder, manifest, native=native)
        assert isinstance(program, OptimizedProgram)
        return install(program.parts, module, keep_originals=True, switch=switch)
    if users_hooks(module) or has_own_call(module):
        raise ArtifactError(
            f"the {type(module).__name__} has forward hooks or a __call__ of its own, which are in what was tuned: "
            "they would be called once more round it. Tune it without, or call what togi.load gives in its place"
        )
    if manifest.facts.device == "cpu":
        keep_freed_memory()
    entry = PartEntry(key=PartKey(path=""), module=type(module).__name__, effects=Effects(), weights="")
    whole = switch(module, "", module.forward)
    whole.serve_with(_load_part(folder, manifest, entry, _Allowed(manifest, native, unproven=False)))
    return Installed(module, [whole])


def _load_part(folder: Path, manifest: Manifest, entry: PartEntry, allowed: _Allowed) -> PartEngine:
    """The classes of its signature are not resolved: the program may import them later."""
    if manifest.parts:
        raise ArtifactError(f"{folder} holds parts again, which no part does: get the artifact again")
    check_files(folder, manifest)
    loaded, link, notes = _first_that_runs(folder, manifest, allowed)
    return PartEngine(loaded, manifest, link, notes, entry)


def _first_that_runs(folder: Path, manifest: Manifest, allowed: _Allowed) -> tuple[Candidate, Link, list[str]]:
    """The first engine of the chain that runs here and is right here, and what differs here from where it was
    proven."""
    notes: list[str] = []
    for link in manifest.chain:
        if lacking := allowed.lacks(link):
            notes.append(
                f"{link.engine} may answer wrongly here: it was proven with {lacking}, which this processor lacks "
                "('togi verify' proves it here)"
            )
            continue
        try:
            loaded = load_link(folder, manifest.signature, manifest.facts, link, allowed.native)
        except Exception as error:  # foreign code: a backend that does not run on this machine
            notes.append(f"{link.engine} cannot run here ({type(error).__name__}: {first_line(error)[:300]})")
            continue
        if notes:
            notes.append(f"using {link.engine} instead")
            warnings.warn(f"{', '.join(notes)}. It is right, but its speed is not the proven one.", FallbackWarning, 4)
        facts = manifest.facts
        elsewhere = [
            f"proven on another machine: {difference}" for difference in differences(facts.machine, facts.device)
        ]
        return loaded, link, [*notes, *elsewhere, *_cut(link, facts.device)]
    raise ArtifactError(
        f"no engine of {folder} runs on this machine: {'; '.join(notes) or 'its chain is empty'}. "
        "'togi doctor' says what is missing; or tune again here"
    )


def _check_device(manifest: Manifest, device: str | None) -> None:
    if not is_device(manifest.facts.device):
        raise ArtifactError(f"its manifest names {manifest.facts.device!r} as the device, which is none: tune again")
    if device is None:
        return
    tuned_for, (kind, _, number) = manifest.facts.device, device.partition(":")
    if kind != tuned_for:
        raise ArtifactError(f"it was tuned for {tuned_for}, not for {device}: tune again with --device {device}")
    if number and torch.cuda.is_available() and int(number) != torch.cuda.current_device():
        raise ArtifactError(
            f"it runs on the current device of this process, cuda:{torch.cuda.current_device()}, and not on {device}: "
            f"call torch.cuda.set_device({number}) first"
        )


def load_link(folder: Path, signature: Signature, facts: Facts, link: Link, native: bool) -> Candidate:
    """One engine of the chain, with what surrounds each call. Raises whatever keeps it from running here.

    ``signature``, ``facts``: of the artifact."""
    engine = technique(link.engine)
    if not isinstance(engine, Engine):
        raise ArtifactError(f"the manifest names {link.engine} as an engine, which it is not")
    if engine.native and not native:
        raise ArtifactError("its files are a program, which native=False leaves out")
    inside = folder / link.folder
    if inside.resolve().parent != folder.resolve():
        raise ArtifactError(f"the manifest names the folder {link.folder!r}, which is not in the artifact")
    strange = sorted(path.name for path in inside.iterdir() if path.name not in engine.files) if inside.is_dir() else []
    if engine.files and strange:
        raise ArtifactError(f"{link.folder} holds {strange[0]!r}, which {link.engine} never writes")
    missing = [problem for package in engine.packages if (problem := package.missing())]
    if missing:
        raise ImportError(f"{missing[0]}: {engine.packages[0].fix}")
    fitting = threads_that_fit(link.threads, facts.device)
    steps = [(technique(choice.technique), dict(choice.options)) for choice in link.runtime]
    loaded = Candidate(module=nn.Identity(), samples=(), signature=link.takes(signature), facts=facts)
    for step, options in steps:
        loaded = step.configure(loaded, options)
    own = link.threads is not None  # the recipe has a number of threads; else calls have their caller's
    loaded = loaded if fitting is None or not own else loaded.with_(threads=fitting)
    with nullcontext() if fitting is None else torch_threads(fitting):  # engines start as many as torch has
        threads = link.threads if fitting is None else None
        program = engine.load(inside, link.meta, loaded.signature, threads)
    if link.one_at_a_time and isinstance(program, FlatProgram):
        program.serve_one_at_a_time()
    loaded = loaded.with_(program=program)
    if fitting is not None and not own:  # round the steps, which ask for that number
        loaded = with_threads(loaded, fitting, at_most=True)
    for step, options in steps:
        loaded = step.apply(loaded, options)
    return with_threads(loaded, fitting) if fitting is not None and own else loaded


def threads_that_fit(proven: int | None, device: str) -> int | None:
    """The cores that this process may use, by its container's quota and set, where more threads would run on the CPU:
    those that were proven, else torch's, which counts no quota. None where they fit, and where ``OMP_NUM_THREADS`` is
    set: somebody chose."""
    if device != "cpu" or "OMP_NUM_THREADS" in os.environ:
        return None
    cores = usable_cores()
    return cores if (proven or torch.get_num_threads()) > cores else None


def _cut(link: Link, device: str) -> list[str]:
    fitting = threads_that_fit(link.threads, device)
    if fitting is None:
        return []
    wanted = link.threads or torch.get_num_threads()
    return [f"{wanted} threads were cut to {fitting}: this process may use no more cores (OMP_NUM_THREADS sets others)"]
