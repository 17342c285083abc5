"""The trial of one recipe or artifact in a child: built and verified at once; then it obeys its parent: warm, turn,
footprint, save, quit.
"""

from __future__ import annotations

import contextlib
import functools
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypedDict, final

import torch
from torch import Tensor

from togi.artifact.installed import Installed
from togi.artifact.links import EAGER, write_links
from togi.artifact.manifest import MANIFEST, Link, Saved, read_manifest
from togi.artifact.reach import Ask, Call, proven
from togi.core.callers import Callers
from togi.core.errors import ArtifactError, NotSaveable, Refused
from togi.core.quantities import first_line
from togi.core.records import ErrorReport, Footprint, ForcedCalls, Stage
from togi.decide.faithful import limit_units
from togi.graph.candidate import Candidate, FlatProgram
from togi.measure import GivenAs, callers_on, give_back_cache, mark_memory, measure_footprint, take_turn, wait_for, warm
from togi.subject.inputs import Inputs, Subject
from togi.subject.prepare import prepare
from togi.subject.program import find_module
from togi.subject.signature import Signature
from togi.subject.structure import tensors_in
from togi.techniques import is_exact
from togi.techniques.build import build
from togi.torch_internals.script import assigned_inside
from togi.verify.beyond import reach_of
from togi.verify.derived_inputs import variants
from togi.verify.original import Original
from togi.verify.truth import Truth
from togi.verify.verdict import verify, wrong_at_once
from togi.worker.job import TRUTH_FOLDER, ChildJob, part_of
from togi.worker.protocol import AskedAtOnce, Channel, Job, Message, ServerConfig


@final
class TrialJob(ChildJob):
    """Of a recipe, or of an artifact."""

    def __init__(self, job: Job, config: ServerConfig, subject: Any, channel: Channel) -> None:
        super().__init__(job, config, subject, channel)
        self.inherited: dict[int, int] = {}
        self.call: Callable[..., Any]
        self.samples: tuple[Inputs, ...]
        self.candidate: Candidate | None = None
        self.installed: Installed | None = None
        self.callers = callers_on(config.callers, config.device) if config.callers > 1 else None
        self.report: ErrorReport
        self.first_call_ms: float | None = None
        """Of the call that verification began with: what compiles at its first call did it there."""

    def run(self) -> None:
        """Build and verify at once; then obey until told to quit."""
        self._build()
        if self.job.check:
            self._verify()
        self.channel.send({"ready": True})
        while (message := self.channel.receive()) and "quit" not in message:
            self._obey(message)

    @functools.cached_property
    def measured(self) -> tuple[Callable[..., Any], tuple[Inputs, ...]]:
        """What is called in a turn, and with what. Parts of a program are called from within, on the device."""
        if not self.config.from_host or self.job.part is not None:
            return self.call, self.measured_samples
        return self._call_from_host, tuple(sample.to("cpu") for sample in self.measured_samples)

    @functools.cached_property
    def measured_samples(self) -> tuple[Inputs, ...]:
        """Of the size of batch that the job asks for. Raises Refused where an artifact was not proven for that."""
        if self.job.batch is None:
            return self.samples
        proven: Any = getattr(self.call, "signature", None) if self.job.artifact is not None else None
        signature: Signature = proven if self.subject is None else self.surveyed.signature
        samples = tuple(self.job.batch.of(sample, signature) for sample in self.samples)
        for sample in samples if proven is not None else ():
            try:
                proven.checked(sample.args, sample.kwargs)
            except (TypeError, ValueError) as refusal:
                raise Refused(str(refusal)) from None
        return samples

    @property
    def _measured_as(self) -> _MeasuredAs:
        """By whom."""
        program = self.candidate.program if self.candidate and self.candidate.around is None else None
        if not isinstance(program, FlatProgram) or not program.keeps_state or self.callers is not None:
            return {"callers": self.callers}
        return {"given_as": functools.partial(_as_returned, program)}

    def _call_from_host(self, *args: Any, **kwargs: Any) -> list[Tensor]:
        given = Inputs(args, kwargs).to(self.config.device)
        return [tensor.cpu() for tensor in tensors_in(self.call(*given.args, **given.kwargs))]

    def _build(self) -> None:
        self.enter("build")
        started = time.perf_counter()
        if self.job.artifact is not None:
            self._load_artifact(Path(self.job.artifact))
        else:
            self._build_recipe()
        notes = list(self.candidate.notes) if self.candidate else []
        self.channel.send({"built": {"build_s": time.perf_counter() - started, "notes": notes}})

    def _build_recipe(self) -> None:
        assert self.job.recipe is not None
        start = self.start()
        self.inherited = storages(start.module)
        self.mark = mark_memory(self.config.device)
        self.candidate = build(self.job.recipe, start)
        self.call = self.candidate.runnable()
        self.samples = start.samples
        if self.candidate.program is not None and not self.candidate.program.holds_module:
            self.candidate = self.candidate.with_(module=torch.nn.Identity())  # its memory is not the program's

    def _load_artifact(self, folder: Path) -> None:
        from togi.artifact.load import load_manifest
        from togi.artifact.optimized import OptimizedProgram

        self.mark = mark_memory(self.config.device)
        manifest = read_manifest(folder)
        if self.job.identity not in ("", manifest.identity):
            raise ArtifactError(f"{folder} was changed after it was checked, so it is not loaded: get it again")
        optimized = load_manifest(folder, manifest, native=self.job.native)
        self.call = optimized
        if isinstance(optimized, OptimizedProgram):
            if self.subject is None:
                raise ArtifactError(f"{folder} holds the parts of a program, which calls them: name the program first")
            ready = prepare(self.subject, device=self.config.device)
            for part in optimized.parts:
                find_module(ready.module, part.entry.key.path, ready.samples[0])
            self.installed = optimized.into(ready.module)
            self.call = torch.no_grad()(self.installed.program)  # as the original: parts serve no gradients
        self.samples = self._artifact_samples(optimized.signature)

    def _artifact_samples(self, signature: Signature) -> tuple[Inputs, ...]:
        """The subject's samples; for an artifact on its own, inputs made from its signature."""
        if isinstance(self.subject, Subject):
            return tuple(sample.to(self.config.device) for sample in self.subject.inputs)
        from togi.subject.made_inputs import samples_from_signature

        return samples_from_signature(signature, self.config.seed)

    def _verify(self) -> None:
        self.enter("verify")
        first = _FirstCall(self.call, self.config.device)
        if not self.surveyed.facts.buffers_change:
            # Before the memory that verification takes, as where an artifact is used: what an engine allocates at its
            # first call stays, and where that lies made an OpenVINO model 2 % slower in every process that verified it.
            given = self.samples[0].clone()
            first(*given.args, **given.kwargs)
        truth, inputs = self._known()
        metric = self.whole.metric if isinstance(self.whole, Subject) and self.job.part is None else None
        report = verify(
            first,
            truth,
            inputs,
            self.surveyed.signature,
            seed=self.config.seed,
            max_units=self._limit_units(truth),
            metric=metric,
            callers=self.callers,
        )
        self.first_call_ms = first.ms
        if self.installed is not None:
            report = self._with_forced_calls(report, truth, self.installed)
        self.report = report
        program = self.candidate.program if self.candidate else None
        notes = list(program.notes()) if program is not None else []
        self.channel.send({"verified": report.model_dump(mode="json"), "notes": notes})

    def _known(self) -> tuple[Truth, list[Inputs]]:
        """What is right, and on what: of the derived inputs those that what is verified takes."""
        truth = Truth.load(self.folder / TRUTH_FOLDER)
        inputs = variants(self.samples, self.surveyed.signature, self.config.seed)
        refused = [i for i in range(len(self.samples), len(inputs)) if not self._takes(inputs[i])]
        return truth.without(refused), inputs

    def _asked_at_once(self, count: int) -> AskedAtOnce:
        """By so many callers. What is raised is noted only: nobody takes it for an answer."""
        if assigned := self._assigned_by_torchscript():
            return AskedAtOnce(
                note=f"one caller at a time: each call of its TorchScript assigns {assigned[0]}, and two at once would "
                "end the process"
            )
        truth, inputs = self._known()
        callers = callers_on(count, self.config.device)
        ask = functools.partial(
            wrong_at_once,
            truth=truth,
            inputs=inputs,
            signature=self.surveyed.signature,
            report=self.report,
            seed=self.config.seed,
            max_units=self._limit_units(truth),
            callers=callers,
        )
        try:
            problems = ask(self.call)
            if problems and self._original_errs(ask):
                return AskedAtOnce(note="the original itself gives wrong answers when several call at once")
            return AskedAtOnce(problems=problems)
        except Exception as error:  # foreign code: an engine's
            return AskedAtOnce(note=f"it fails when {count} call at once: {first_line(error)}")
        finally:
            callers.close()

    def _assigned_by_torchscript(self) -> list[str]:
        if self.installed is not None:
            return assigned_inside(self.installed.program)
        return assigned_inside(self.subject.module) if isinstance(self.subject, Subject) else []

    def _original_errs(self, ask: Callable[[Callable[..., Any]], Any]) -> bool:
        """Whether the original, asked in the same way, is wrong or fails."""
        with contextlib.ExitStack() as stack:
            if self.installed is not None:
                stack.enter_context(self.installed.suspended())
                original = self.installed.program
            else:
                original = prepare(self.subject, device=self.config.device).module
            try:
                return bool(ask(torch.no_grad()(original)))
            except Exception:  # foreign code: the user's
                return True

    def _takes(self, given: Inputs) -> bool:
        """Whether what is verified is for calls of such sizes: elsewhere it refuses them, which for a derived input is
        right, and for one of the user's samples an answer that he should see."""
        loaded = getattr(self.call, "signature", None) if self.job.artifact is not None else None
        with contextlib.suppress(TypeError):  # another form: the call itself says so
            return not any(each.unmet(given) for each in (self.surveyed.signature, loaded) if each is not None)
        return True

    def _limit_units(self, truth: Truth) -> float:
        exact = self.job.recipe is None or is_exact(self.job.recipe)
        return limit_units(exact=exact, tf32_units=truth.facts.tf32_units)

    def _with_forced_calls(self, report: ErrorReport, truth: Truth, installed: Installed) -> ErrorReport:
        """A program in parts whose results do not tell whether it is right: whether it decides otherwise than the
        original, and its parts on the calls that the original makes."""
        from togi.worker.forced import divergence, forced_calls, needed

        if not needed(report, truth):
            return report
        seed, device = self.config.seed, self.config.device
        different = divergence(installed, self.samples, seed)
        if not different and not report.faithful:
            return report
        found: list[ForcedCalls] = []
        with installed.suspended():  # a program that cannot be copied is its own original
            for path, form in [(switch.path, form) for switch in installed.switches for form in switch.forms]:
                forced = [
                    forced_calls(part_of(self.subject, ref, device), path, form, seed, device, self._limit_units)
                    for ref in self.job.proven_on
                    if path == ref.key.path and form.entry.effects == ref.effects
                ]
                if not any(forced):
                    return report
                found += filter(None, forced)
        return report.model_copy(update={"divergence": different, "forced": tuple(found)})

    def _obey(self, message: Message) -> None:
        if "warm" in message:
            self.enter("warm")
            warmed = warm(*self.measured, device=self.config.device, **self._measured_as, **message["warm"])
            if self.first_call_ms is not None:
                warmed = warmed.model_copy(update={"first_call_ms": self.first_call_ms})
            self.channel.send({"warmed": warmed.model_dump(mode="json")})
        elif "turn" in message:
            self.phase = "measure"
            taken = take_turn(*self.measured, device=self.config.device, **self._measured_as, **message["turn"])
            self.channel.send({"turned": taken.model_dump(mode="json")})
        elif "footprint" in message:
            self.enter("memory")
            self.channel.send({"footprint": self._footprint().model_dump(mode="json")})
        elif "callers" in message:
            self.enter("verify")
            asked = self._asked_at_once(message["callers"])
            self.channel.send({"asked_at_once": asked.model_dump(mode="json")})
        elif "rest" in message:
            give_back_cache(self.config.device)
            self.channel.send({"rested": {}})
        elif "save" in message:
            self.enter("save")
            self.channel.send({"saved": self._save(Path(message["save"]), message["ask_s"]).model_dump(mode="json")})

    def _footprint(self) -> Footprint:
        program = self.candidate.program if self.candidate else None
        used = storages(self.candidate.module) if self.candidate else {}
        return measure_footprint(
            self.call if self.callers is None else self._call_of_each,
            self.measured_samples,
            self.mark,
            held_bytes=sum(size for pointer, size in used.items() if pointer in self.inherited),
            device=self.config.device,
            exact=self.callers is None
            and self.candidate is not None
            and (program is None or program.allocates_with_torch),
        )

    def _call_of_each(self, *args: Any, **kwargs: Any) -> None:
        """The same call of all callers at once."""
        assert self.callers is not None
        self.callers.answer(lambda _: self.call(*args, **kwargs), self.callers.count)

    def _save(self, folder: Path, ask_s: float) -> Saved:
        """Write the artifact's runnable files. A program without a file form is an answer, not a failure."""
        if self.job.artifact is not None:
            return _copied(Path(self.job.artifact), folder)
        assert self.candidate is not None
        assert self.job.recipe is not None
        try:
            links, notes = write_links(self.candidate, self.start(), self.job.recipe, folder)
        except (NotSaveable, Refused) as error:
            return Saved(unsaveable=str(error))
        written = Saved(links=links, notes=notes)
        facts = self.surveyed.facts
        if facts.buffers_change or facts.random or not facts.repeatable:
            untried = "Its answers depend on earlier calls or chance: no values beyond the samples were tried."
            # plain settings leave the original as it is
            settings = all(choice.stage is Stage.RUNTIME for choice in self.job.recipe.choices)
            return written if settings else written.model_copy(update={"notes": (*notes, untried)})
        live = None if links[0].engine == EAGER else self.call  # else its files are asked
        exported = self.candidate.program is None or self.candidate.program.stores_export
        return proven(written, live, self._stored(folder), self._ask(), ask_s, exported=exported)

    def _stored(self, folder: Path) -> Callable[[Link], Call | None]:
        """Loads what a link has written. None: it is the original."""

        def load(link: Link) -> Call | None:
            from togi.artifact.load import load_link

            loaded = load_link(folder, self.surveyed.signature, self.surveyed.facts, link, native=True)
            if loaded.program is None or loaded.program.in_place:
                return None
            call = loaded.runnable()
            self._check_on_samples(call)
            return call

        return load

    def _ask(self) -> Ask:
        """How to ask for values beyond the samples."""
        return functools.partial(
            reach_of,
            original=Original(
                prepare(self.subject, device=self.config.device).module, self.surveyed.signature, self.config.seed
            ),
            samples=self.samples,
            max_units=self._max_units(),
            nan=not self.config.nan_differences,
        )

    def _max_units(self) -> float:
        """Of what is saved: what an approximate recipe was seen to need, twice."""
        return max(self._limit_units(Truth.load(self.folder / TRUTH_FOLDER)), 2 * self.report.units)

    def _check_on_samples(self, call: Call) -> None:
        """Raises Refused where what was stored is wrong there."""
        truth, inputs = self._known()
        found = verify(call, truth, inputs, self.surveyed.signature, seed=self.config.seed, max_units=self._max_units())
        if found.problems or not found.faithful:
            raise Refused(next(iter(found.problems), f"its error is {found.units:,.0f} x eager's own"))


class _FirstCall:
    """Calls through, and keeps how long the first one took, on a device until it was done. ``ms``: None before."""

    def __init__(self, call: Callable[..., Any], device: str) -> None:
        self.call, self.device = call, device
        self.ms: float | None = None

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self.ms is not None:
            return self.call(*args, **kwargs)
        began = time.perf_counter()
        output = self.call(*args, **kwargs)
        wait_for(self.device)()
        self.ms = (time.perf_counter() - began) * 1e3
        return output


class _MeasuredAs(TypedDict, total=False):
    callers: Callers | None
    given_as: GivenAs


def _as_returned(program: FlatProgram, args: Any, kwargs: Any) -> tuple[Any, Any]:
    """The call as a program makes it that goes on from what the last call returned."""
    return program.signature.build_inputs(program.as_returned(program.signature.checked(args, kwargs)))


def _copied(artifact: Path, folder: Path) -> Saved:
    """What was loaded is saved as it is."""
    shutil.copytree(artifact, folder, dirs_exist_ok=True)
    (folder / MANIFEST).unlink()
    manifest = read_manifest(artifact)
    return Saved(links=manifest.chain, parts=manifest.parts)


def storages(module: torch.nn.Module) -> dict[int, int]:
    """Address and bytes of every storage behind the module's parameters and buffers."""
    tensors = [t for t in (*module.parameters(), *module.buffers()) if t.device.type != "meta"]
    return {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in tensors}
