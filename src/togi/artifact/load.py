"""Load an artifact: validate everything, then take the first engine of its chain that runs here.

What it gives is a module that is called like the original.
"""

from __future__ import annotations

import copy
import functools
import warnings
from collections.abc import Callable
from os import PathLike
from pathlib import Path
from typing import Any, final

import torch
from pydantic import ValidationError
from torch import Tensor, nn

from togi.artifact.manifest import PARTS, Link, Manifest, PartEntry, check_files, read_manifest
from togi.artifact.program import Installed, LoadedPart, install
from togi.artifact.signing import Trusted
from togi.core.device import parse_device
from togi.core.errors import ArtifactError, TogiError
from togi.core.quantities import first_line
from togi.core.records import Facts, Recipe, Record, Trial
from togi.graph.candidate import Candidate, FlatProgram, Program, in_contexts
from togi.machine.describe import differences
from togi.measure.allocator import keep_freed_memory
from togi.subject.signature import Signature
from togi.techniques import Engine, technique
from togi.torch_internals.deferred import Deferred


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
    run here, the next of the recorded chain is taken, with a ``FallbackWarning``.

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
    wanted = None if device is None else parse_device(device)
    folder = Path(path)
    return load_manifest(folder, read_manifest(folder, trusted), device=wanted, native=native, keep_memory=keep_memory)


def load_manifest(
    folder: Path,
    manifest: Manifest,
    *,
    device: str | None = None,
    native: bool = True,
    keep_memory: bool = True,
    whole: bool = True,
) -> OptimizedModule:
    """As ``load``, of an artifact whose manifest was read. ``whole``: it is not a part of a program, whose classes may
    be imported later than this."""
    check_files(folder, manifest)
    _check_device(manifest, device)
    if whole and not (manifest.chain and manifest.chain[0].engine == PARTS):
        manifest.signature.resolve()
    if keep_memory and manifest.facts.device == "cpu":
        keep_freed_memory()
    if manifest.chain and manifest.chain[0].engine == PARTS:
        return OptimizedProgram(manifest, manifest.chain[0], _load_parts(folder, manifest.chain[0], native))
    notes: list[str] = []
    for link in manifest.chain:
        try:
            loaded = load_link(folder, manifest.signature, manifest.facts, link, native)
        except Exception as error:  # foreign code: a backend that does not run on this machine
            notes.append(f"{link.engine} cannot run here ({type(error).__name__}: {first_line(error)[:300]})")
            continue
        return _finish(loaded, manifest, link, notes)
    raise ArtifactError(
        f"no engine of {folder} runs on this machine: {'; '.join(notes) or 'its chain is empty'}. "
        "'togi doctor' says what is missing; or tune again here"
    )


def _finish(loaded: Candidate, manifest: Manifest, link: Link, notes: list[str]) -> OptimizedModule:
    if notes:
        notes.append(f"using {link.engine} instead")
        warnings.warn(f"{', '.join(notes)}. It is right, but its speed is not the proven one.", FallbackWarning, 4)
    facts = manifest.facts
    notes += [f"proven on another machine: {each}" for each in differences(facts.machine, facts.device)]
    flat, keeps_state = None, False
    if isinstance(loaded.program, FlatProgram) and loaded.around is None:
        flat = in_contexts(loaded.program.call_with, loaded.contexts)
        keeps_state = loaded.program.keeps_state
    of = None
    if loaded.program is not None and loaded.program.in_place:
        of = functools.partial(_made_of, loaded, loaded.program)
    return OptimizedModule(loaded.runnable(), manifest, link, tuple(notes), flat, keeps_state, of)


def _made_of(loaded: Candidate, program: Program, original: Callable[..., Any]) -> Callable[..., Any]:
    """The call of a program that is ``in_place``."""
    called = in_contexts(program.of(original), loaded.contexts)
    return called if loaded.around is None else loaded.around(called)


class _Parts(Record):
    parts: tuple[PartEntry, ...]


def _load_parts(folder: Path, link: Link, native: bool) -> list[LoadedPart]:
    try:
        entries = _Parts.model_validate(link.meta).parts
    except ValidationError as error:
        raise ArtifactError(
            f"the manifest's list of parts cannot be read ({error.errors()[0]['msg']}): get the artifact again"
        ) from None
    inside = {entry.folder: folder / link.folder / entry.folder for entry in entries}
    for name, path in inside.items():
        if path.resolve().parent.parent != folder.resolve():
            raise ArtifactError(f"the manifest names the folder {name!r}, which is not in the artifact")
    # the hash of each file of a part, its manifest too, stands in the manifest that was checked
    return [LoadedPart(entry, _load_part(inside[entry.folder], native)) for entry in entries]


def _load_part(folder: Path, native: bool) -> OptimizedModule:
    manifest = read_manifest(folder)
    if any(link.engine == PARTS for link in manifest.chain):
        raise ArtifactError(f"{folder} holds parts again, which no part does: get the artifact again")
    return load_manifest(folder, manifest, native=native, keep_memory=False, whole=False)


def _check_device(manifest: Manifest, wanted: str | None) -> None:
    if wanted is None:
        return
    tuned_for, (kind, _, number) = manifest.facts.device, wanted.partition(":")
    if kind != tuned_for:
        raise ArtifactError(f"it was tuned for {tuned_for}, not for {wanted}: tune again with --device {wanted}")
    if number and torch.cuda.is_available() and int(number) != torch.cuda.current_device():
        raise ArtifactError(
            f"it runs on the current device of this process, cuda:{torch.cuda.current_device()}, and not on {wanted}: "
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
    steps = [(technique(choice.technique), dict(choice.options)) for choice in link.runtime]
    loaded = Candidate(module=nn.Identity(), samples=(), signature=link.takes(signature), facts=facts)
    for step, options in steps:
        loaded = step.configure(loaded, options)
    program = engine.load(inside, link.meta, loaded.signature, link.threads)
    if link.one_at_a_time and isinstance(program, FlatProgram):
        program.serve_one_at_a_time()
    loaded = loaded.with_(program=program)
    for step, options in steps:
        loaded = step.apply(loaded, options)
    return loaded


class OptimizedModule(nn.Module):
    """A tuned model: the original's call signature and output structure, on the engine that was proven fastest.

    It runs inference only. Sizes and dtypes beyond those that were proven are refused with a clear error. Under
    ``torch.autocast`` it computes as it was proven, too.
    """

    def __init__(
        self,
        call: Callable[..., Any],
        manifest: Manifest,
        link: Link,
        warnings: tuple[str, ...],
        flat: Callable[[list[Tensor]], Any] | None = None,
        keeps_state: bool = False,
        of: Callable[[Callable[..., Any]], Callable[..., Any]] | None = None,
    ) -> None:
        """``flat``: the same call with tensors that were flattened and checked already; ``keeps_state``: some of them
        may be what it keeps inside; ``of``: makes the call of the ``forward`` of a live module, without which there is
        none."""
        super().__init__()
        self._call = call
        self._flat = flat
        self._keeps_state = keeps_state
        self._of = of
        self.manifest = manifest
        self._signature = link.takes(manifest.signature)
        self.engine = link.engine
        """The engine that runs here: the chosen one, or a fallback."""
        self.warnings = warnings
        """What differs here from where it was proven: engines that could not be loaded, another machine."""
        self.training = False

    @property
    def signature(self) -> Signature:
        return self._signature

    @property
    def recipe(self) -> Recipe:
        return self.manifest.recipe

    @property
    def proof(self) -> Trial:
        """The measurement and verification that the artifact carries."""
        return self.manifest.proof

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        device = self.manifest.facts.device
        if not torch.is_autocast_enabled(device):
            return self._call(*args, **kwargs)
        with torch.autocast(device, enabled=False):  # torch's own engines would cast, others would not
            return self._call(*args, **kwargs)

    def call_with(self, tensors: list[Tensor], args: Any, kwargs: Any) -> Any:
        """A call whose ``tensors`` are what ``signature.checked`` made of its arguments."""
        if not self._keeps_state and any(type(tensor) is Deferred for tensor in tensors):
            # another part keeps them: compiled code reads memory, and does not ask
            tensors = [tensor.plain() if isinstance(tensor, Deferred) else tensor for tensor in tensors]
            args, kwargs = self.signature.build_inputs(tensors)
        return self._call(*args, **kwargs) if self._flat is None else self._flat(tensors)

    @property
    def in_place(self) -> bool:
        """It is made of a live module where it stands: ``of``."""
        return self._of is not None

    def of(self, original: Callable[..., Any]) -> OptimizedModule:
        """What stands for ``original``, the ``forward`` of a live module: itself, unless it is ``in_place``."""
        if self._of is None:
            return self
        made = copy.copy(self)
        made._call = self._of(original)
        return made

    def into(self, program: Any, *, keep_originals: bool = True) -> Installed:
        """For the parts of a program (``OptimizedProgram.into``). Raises TogiError for a whole model."""
        raise TogiError("this artifact stands for the whole model: call it as the model is called")

    def train(self, mode: bool = True) -> OptimizedModule:
        """Inference only: ``train()`` raises, ``eval()`` changes nothing."""
        if mode:
            raise RuntimeError("a tuned model runs inference only: train the original, then tune it again")
        return self

    def extra_repr(self) -> str:
        return f"{self.recipe.label}, engine={self.engine}"


@final
class OptimizedProgram(OptimizedModule):
    """The tuned parts of a program. They run inside the program: ``togi.load(path).into(program)``."""

    def __init__(self, manifest: Manifest, link: Link, parts: list[LoadedPart]) -> None:
        super().__init__(self._alone, manifest, link, tuple(note for part in parts for note in part.optimized.warnings))
        self.parts = parts

    def into(self, program: Any, *, keep_originals: bool = True) -> Installed:
        """Put the parts into the live program, whose own calls then use them; ``.remove()`` of what is returned takes
        them out.

        Args:
            program: the module, bound method, pipeline or function that was tuned, with the same weights.
            keep_originals: False frees the weights that the parts replace. Calls outside of what was proven, which the
                original serves otherwise, then raise.

        Raises:
            ArtifactError: it is another program, or its weights differ.
        """
        return install(self.parts, program, keep_originals=keep_originals)

    @staticmethod
    def _alone(*_: Any, **__: Any) -> Any:
        raise TogiError(
            "this artifact holds parts of a program, and the rest of it is your Python code: put them into the program "
            "with togi.load(path).into(program), then call the program"
        )
