"""The contenders of trials: recipes that are built here, and artifacts that are loaded."""

from __future__ import annotations

import abc
import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from togi.artifact.installed import Installed
from togi.artifact.links import EAGER, write_links
from togi.artifact.manifest import Link, Saved, read_manifest
from togi.artifact.reach import Ask, Call, proven
from togi.artifact.save import copy_files
from togi.artifact.settings import settings_of
from togi.artifact.weights import weights_hash
from togi.core.errors import ArtifactError, NotSaveable, Refused
from togi.core.records import ErrorReport, Stage
from togi.graph.candidate import FlatProgram
from togi.measure import GivenAs, mark_memory
from togi.subject.batch import Batch
from togi.subject.inputs import Inputs, Subject
from togi.subject.prepare import prepare
from togi.subject.program import find_module
from togi.subject.signature import Signature
from togi.subject.stored_inputs import read_inputs
from togi.subject.validation import hash_of
from togi.techniques import is_exact
from togi.techniques.build import build
from togi.torch_internals.script import assigned_inside
from togi.verify.beyond import reach_of
from togi.verify.original import Original
from togi.verify.truth import Truth
from togi.worker.job import ChildJob, part_of
from togi.worker.messages import TryArtifact, TryRecipe

if TYPE_CHECKING:
    from togi.worker.checking import TrialCheck


class Contender(abc.ABC):
    """A callable in place of the original, with what verifying and measuring it have to know."""

    call: Callable[..., Any]
    samples: tuple[Inputs, ...]
    notes: tuple[str, ...] = ()
    """Of how it was made."""
    proven_for: Signature | None = None
    """The calls that it serves by itself. None: those of the subject's signature."""
    given_as: GivenAs | None = None
    """How a caller gives it the arguments of a sample; None: as they are."""
    allocates_with_torch = False
    """Its working memory comes from torch's allocator alone."""

    def __init__(self, trial: ChildJob[Any]) -> None:
        self.trial = trial
        self.mark = mark_memory(trial.config.device)
        """Of the memory before it was made."""

    @property
    def held_bytes(self) -> int:
        """Bytes that it works on and that were in the process before."""
        return 0

    def notes_of_calls(self) -> Sequence[str]:
        """Notes that only its calls have shown."""
        return ()

    @contextmanager
    def original(self) -> Iterator[Callable[..., Any]]:
        """The subject without it."""
        yield prepare(self.trial.subject, device=self.trial.config.device).module

    def assigned_by_torchscript(self) -> list[str]:
        """Attributes that TorchScript in the subject assigns in each call."""
        subject = self.trial.subject
        return assigned_inside(subject.module) if isinstance(subject, Subject) else []

    def settle_ties(self, report: ErrorReport, _truth: Truth, _exact: bool, /) -> ErrorReport:
        """The report with what tells a decision that rounding took from a fault, where the results alone do not."""
        return report

    @abc.abstractmethod
    def save(self, folder: Path, check: TrialCheck, ask_s: float) -> Saved:
        """Write its files. ``ask_s``: about how long to ask it for values that no sample shows."""

    def takes(self, given: Inputs, signature: Signature) -> bool:
        """Return whether it is for calls of such sizes. It refuses others, which is right for a derived input; for one
        of the samples it is an answer that the user should see."""
        try:
            return not any(form.unmet(given) for form in (signature, self.proven_for) if form is not None)
        except TypeError:  # another form: the call itself says so
            return True

    def of_batch(self, batch: Batch, signature: Signature) -> tuple[Inputs, ...]:
        """Its samples with so many rows. Raises Refused where it was not proven for that."""
        samples = tuple(batch.of(sample, signature) for sample in self.samples)
        if self.proven_for is not None:
            for sample in samples:
                try:
                    self.proven_for.checked(sample.args, sample.kwargs)
                except (TypeError, ValueError) as refusal:
                    raise Refused(str(refusal)) from None
        return samples


class BuiltRecipe(Contender):
    """A recipe, built on what recipes begin with."""

    def __init__(self, trial: ChildJob[Any], job: TryRecipe) -> None:
        start = trial.start()
        self._inherited = storages(start.module)
        super().__init__(trial)
        candidate = build(job.recipe, start)
        self.call, self.samples, self.notes = candidate.runnable(), start.samples, candidate.notes
        program = candidate.program
        if program is not None and not program.holds_module:
            candidate = candidate.with_(module=torch.nn.Identity())  # its memory is not the program's
        if isinstance(program, FlatProgram) and program.keeps_state and candidate.around is None:
            self.given_as = functools.partial(_as_returned, program)
        self.allocates_with_torch = program is None or program.allocates_with_torch
        self.candidate, self._recipe = candidate, job.recipe

    @property
    def held_bytes(self) -> int:
        used = storages(self.candidate.module)
        return sum(nbytes for address, nbytes in used.items() if address in self._inherited)

    def notes_of_calls(self) -> Sequence[str]:
        return self.candidate.program.notes() if self.candidate.program is not None else ()

    def save(self, folder: Path, check: TrialCheck, ask_s: float) -> Saved:
        """A program without a file form is an answer, not a failure."""
        start, facts = self.trial.start(), self.trial.surveyed.facts
        try:
            links, notes = write_links(self.candidate, start, self._recipe, folder)
        except (NotSaveable, Refused) as error:
            return Saved(unsaveable=str(error))
        calibration = "" if is_exact(self._recipe) else hash_of(start.calibration)
        written = Saved(links=links, notes=notes, calibration=calibration, **self._identity())
        if facts.buffers_change or facts.random or not facts.repeatable:
            untried = "Its answers depend on earlier calls or chance: no values beyond the samples were tried."
            # plain settings leave the original as it is
            settings = all(choice.stage is Stage.RUNTIME for choice in self._recipe.choices)
            return written if settings else written.model_copy(update={"notes": (*notes, untried)})
        live = None if links[0].engine == EAGER else self.call  # else its files are asked
        exported = self.candidate.program is None or self.candidate.program.stores_export
        stored = functools.partial(self._stored, folder, check)
        return proven(written, live, stored, self._ask(check), ask_s, exported=exported)

    def _identity(self) -> dict[str, Any]:
        """By what the module is known again. That of a part stands in its entry in the program's manifest."""
        module = self.trial.subject.module
        if self.trial.job.part is not None or not isinstance(module, torch.nn.Module):
            return {}
        settings = settings_of(module, varying=self.trial.surveyed.varying)
        return {"weights": weights_hash(module), "settings": settings}

    def _stored(self, folder: Path, check: TrialCheck, link: Link) -> Call | None:
        """Load what a link has written. None: it is the original. Raises Refused where it is wrong on the samples."""
        from togi.artifact.load import load_link

        loaded = load_link(folder, self.trial.surveyed.signature, self.trial.surveyed.facts, link, native=True)
        if loaded.program is None or loaded.program.in_place:
            return None
        call = loaded.runnable()
        check.verify_stored(call)
        return call

    def _ask(self, check: TrialCheck) -> Ask:
        """How to ask for values beyond the samples."""
        config = self.trial.config
        module = prepare(self.trial.subject, device=config.device).module
        return functools.partial(
            reach_of,
            original=Original(module, self.trial.surveyed.signature, config.seed, check.varying),
            samples=self._shown(),
            others=self._others(),
            exact=is_exact(self._recipe),
            max_units=check.lasting_units(),
            nan=not config.nan_differences,
        )

    def _shown(self) -> Sequence[Inputs]:
        """The samples, and the data by which it is judged: how it answers those is proven by their measure."""
        data = self.trial.data_for(self._recipe)
        return self.samples if data is None else (*self.samples, *data.inputs)  # where they are: only read

    def _others(self) -> Sequence[Inputs]:
        """Calls that the program makes of a part, besides those on which it was verified."""
        part = self.trial.job.part
        if part is None or not part.others:
            return ()
        return tuple(call.to(self.trial.config.device) for call in read_inputs(Path(part.others)))


class LoadedArtifact(Contender):
    """The files of an artifact, loaded; the parts of a program are put into the subject."""

    installed: Installed | None = None
    """The parts of a program, in the program."""

    def __init__(self, trial: ChildJob[Any], job: TryArtifact) -> None:
        from togi.artifact.load import load_manifest
        from togi.artifact.optimized import OptimizedProgram

        super().__init__(trial)
        self._proven_on = job.proven_on
        self._folder = folder = Path(job.folder)
        manifest = read_manifest(folder)
        if job.identity not in ("", manifest.identity):
            raise ArtifactError(f"{folder} was changed after it was checked, so it is not loaded: get it again")
        optimized = load_manifest(folder, manifest, native=job.native, unproven=job.unproven)
        if isinstance(optimized, OptimizedProgram):
            if trial.subject is None:
                raise ArtifactError(f"{folder} holds the parts of a program, which calls them: name the program first")
            ready = prepare(trial.subject, device=trial.config.device)
            for part in optimized.parts:
                find_module(ready.module, part.entry.key.path, ready.samples[0])
            self.installed = optimized.into(ready.module)
            for switch in self.installed.switches:
                switch.strict = True
            self.call = torch.no_grad()(self.installed.program)  # as the original: parts serve no gradients
        else:
            self.call, self.proven_for = optimized, optimized.signature
        self.samples = self._samples(optimized.signature)

    def _samples(self, signature: Signature) -> tuple[Inputs, ...]:
        """The subject's samples; for an artifact on its own, inputs made from its signature."""
        subject, config = self.trial.subject, self.trial.config
        if isinstance(subject, Subject):
            return tuple(sample.to(config.device) for sample in subject.inputs)
        from togi.subject.made_inputs import samples_from_signature

        return samples_from_signature(signature, config.seed)

    @contextmanager
    def original(self) -> Iterator[Callable[..., Any]]:
        if self.installed is None:
            with super().original() as original:
                yield original
        else:
            with self.installed.suspended():
                yield self.installed.program

    def assigned_by_torchscript(self) -> list[str]:
        return super().assigned_by_torchscript() if self.installed is None else assigned_inside(self.installed.program)

    def settle_ties(self, report: ErrorReport, truth: Truth, exact: bool, /) -> ErrorReport:
        if self.installed is None:
            return report
        from togi.worker.forced import with_forced_calls

        subject, config = self.trial.subject, self.trial.config
        return with_forced_calls(
            report,
            truth,
            self.installed,
            self.samples,
            self._proven_on,
            lambda part: part_of(subject, part, config.device),
            seed=config.seed,
            device=config.device,
            exact=exact,
        )

    def save(self, folder: Path, check: TrialCheck, ask_s: float) -> Saved:
        """Copy the files."""
        return copy_files(self._folder, folder)


def _as_returned(program: FlatProgram, args: Any, kwargs: Any) -> tuple[Any, Any]:
    """The call as a program makes it that goes on from what the last call returned."""
    return program.signature.build_inputs(program.as_returned(program.signature.checked(args, kwargs, program.keeps)))


def storages(module: torch.nn.Module) -> dict[int, int]:
    """Address and bytes of every storage behind the module's parameters and buffers."""
    tensors = [t for t in (*module.parameters(), *module.buffers()) if t.device.type != "meta"]
    return {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in tensors}
