"""The artifact of a program: its tuned parts, and how they are put into the live program and taken out again."""

from __future__ import annotations

import functools
import hashlib
import threading
import warnings
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, final

import torch
from torch import nn
from typing_extensions import Self

from togi.artifact.manifest import PartEntry
from togi.artifact.watch import Watch
from togi.core.errors import ArtifactError, TogiError
from togi.subject.program import ProgramModule
from togi.subject.state import STATE, State

if TYPE_CHECKING:
    from togi.artifact.load import OptimizedModule


_GRADIENTS = (
    "the original of {} serves calls whose inputs want gradients, and its tuned part does not. Where none are needed, "
    "call the program under torch.no_grad() or torch.inference_mode()"
)

_AUTOCAST = (
    "it is called under torch.autocast ({}), where the original computes in another precision, and its tuned part was "
    "proven without"
)

_GRADIENTS_OF_WEIGHTS = (
    "the tuned part of {} serves a call with gradients switched on, and none will reach its weights, which require "
    "them. Where none are needed, call the program under torch.no_grad(), or .requires_grad_(False) on it; to train "
    "it, call .remove() on what put the parts in"
)


@final
@dataclass(frozen=True)
class LoadedPart:
    entry: PartEntry
    optimized: OptimizedModule

    @property
    def runs_original(self) -> bool:
        """In settings of its own: right for any call, whatever became of the module."""
        return self.optimized.in_place and self.optimized.engine == "eager"

    def of(self, original: Callable[..., Any]) -> LoadedPart:
        """To stand for this ``forward``."""
        return replace(self, optimized=self.optimized.of(original))


@final
class Switch:
    """Stands for the ``forward`` of one module: calls of the forms that were proven go to the engine."""

    def __init__(self, module: nn.Module, path: str, original: Callable[..., Any], kept: Sequence[str] = ()) -> None:
        """``kept``: attributes that hold its state from call to call, which its engine is given and hands on."""
        self.path = path
        self.name = path or "the program"
        self.module = module
        self.original: Callable[..., Any] | None = original
        self.forms: tuple[LoadedPart, ...] = ()
        self.plain: Callable[..., Any] | None = None
        """The original in settings of its own."""
        self.engine_calls = 0
        self.original_calls = 0
        """Calls outside of what was proven, which the original served."""
        self._counting = threading.Lock()
        self.told: set[str] = set()
        """What was warned of already, by a word for it. The parts of one program share it."""
        self.last_reason = ""
        """Why the last of these was not the engine's."""
        self.kept = tuple(kept)
        self.state = State(module, kept) if kept else None
        self.watch = Watch(module, kept)
        functools.update_wrapper(self, original)  # callers read its signature and pass what it names

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self.plain is not None and not torch.is_grad_enabled():  # looking at the call costs more than they gain
            with self._counting:
                self.engine_calls += 1
            return self.plain(*args, **kwargs)
        if changed := self.watch.changed():
            self._warn_once("changed", f"the original of {self.name} serves its calls: {changed}")
            return self._fall_back(changed, args, kwargs)
        if cast := autocast():
            reason = _AUTOCAST.format(cast)
            self._warn_once("autocast", f"the original of {self.name} serves its calls: {reason}")
            return self._fall_back(reason, args, kwargs)
        reason = "no form of its calls was tuned"
        named = kwargs if self.state is None else {**kwargs, STATE: self.state.read()}
        for position, form in enumerate(self.forms):
            signature = form.optimized.signature
            try:
                tensors = signature.checked(args, named)
            except (TypeError, ValueError) as error:
                reason = str(error)
                continue
            if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors):
                self._warn_once("gradients", _GRADIENTS.format(self.name))
                return self._fall_back("gradients are wanted", args, kwargs)
            if torch.is_grad_enabled() and "weights" not in self.told and self.watch.wants_gradients():
                self._warn_once("weights", _GRADIENTS_OF_WEIGHTS.format(self.name))
            if position:  # the calls that follow are likely of the same form; a new tuple, since threads may be reading
                self.forms = (form, *(other for other in self.forms if other is not form))
            with self._counting:
                self.engine_calls += 1
            result = form.optimized.call_with(tensors, args, named)
            if not form.entry.effects.changes:
                return result
            of_argument = functools.partial(signature.of_argument, tensors)
            output = form.entry.effects.finish(result, args, named, of_argument)
            if self.state is not None:
                self.state.write(named[STATE])
            return output
        return self._fall_back(reason, args, kwargs)

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Copying, pickling and ``torch.save`` ask this. Raises TogiError."""
        raise TogiError(
            f"the program has a tuned part at '{self.name}', whose engine cannot be copied or pickled: call .remove() "
            "on what put the parts in first, and put them into the copy afterwards. A state_dict can be saved as ever"
        )

    def _warn_once(self, of: str, text: str) -> None:
        if of not in self.told:
            self.told.add(of)
            warnings.warn(text, stacklevel=3)

    def _fall_back(self, reason: str, args: Any, kwargs: Any) -> Any:
        with self._counting:
            self.original_calls += 1
        self.last_reason = reason
        if self.original is None:
            raise TogiError(
                f"{self.name} was called outside of what was proven ({reason}), and its original was freed "
                "(keep_originals=False). Put the parts into a new program that keeps them, or tune it with such calls"
            )
        return self.original(*args, **kwargs)


@final
class Installed:
    """Parts at work in a live program. As a context manager it takes them out at the end."""

    def __init__(self, program: nn.Module, switches: Sequence[Switch]) -> None:
        self.program = program
        self.switches = tuple(switches)
        self._before = [vars(switch.module).get("forward") for switch in switches]
        told: set[str] = set()
        for switch in switches:
            switch.told = told
            vars(switch.module)["forward"] = switch

    @property
    def counts(self) -> dict[str, tuple[int, int]]:
        """By part: calls that its engine served, and calls that the original served."""
        return {switch.path: (switch.engine_calls, switch.original_calls) for switch in self.switches}

    def remove(self) -> None:
        """The originals serve all calls again. Raises TogiError where they were freed."""
        if freed := [switch.path for switch in self.switches if switch.original is None]:
            raise TogiError(f"the original of {freed[0]} was freed (keep_originals=False): it cannot be put back")
        for switch, before in zip(self.switches, self._before, strict=True):
            if vars(switch.module).get("forward") is switch:
                del vars(switch.module)["forward"]
                if before is not None:
                    vars(switch.module)["forward"] = before

    @contextmanager
    def suspended(self) -> Iterator[None]:
        """Inside, the originals serve all calls."""
        self.remove()
        try:
            yield
        finally:
            for switch in self.switches:
                vars(switch.module)["forward"] = switch

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.remove()

    def __str__(self) -> str:
        if not self.switches:
            return "the program runs as it is: nothing was faster beyond doubt, so no part is in it"
        served = ", ".join(
            f"{each.name} {each.engine_calls} of {each.engine_calls + each.original_calls}" for each in self.switches
        )
        return f"calls served by engines: {served}"


def install(parts: Sequence[LoadedPart], program: Any, *, keep_originals: bool) -> Installed:
    """Put parts into a program.

    Raises ArtifactError when it is not the program that they were proven on (another structure or other weights).
    """
    module = program if isinstance(program, nn.Module) else ProgramModule(program)
    if isinstance(module, ProgramModule):
        module.look_again()
    modules = dict(module.named_modules())
    switches: dict[str, Switch] = {}
    for part in parts:
        path = part.entry.path
        found = modules.get(path)
        if found is None or type(found).__name__ != part.entry.module:
            there = "nothing" if found is None else f"a {type(found).__name__}"
            raise ArtifactError(
                f"the program has {there} at '{path}', where the one that was tuned had a {part.entry.module}: "
                "it is another program, or one that makes its modules in its first call and was not called yet. Tune "
                "this one, or call it once"
            )
        if path not in switches:
            if isinstance(vars(found).get("forward"), Switch):
                raise ArtifactError(f"'{path}' of this program is a tuned part already: call .remove() on it first")
            kept = part.entry.effects.state
            if weights_hash(found, without=kept) != part.entry.weights:
                raise ArtifactError(
                    f"the weights of '{path}' are not those that were tuned: its part would answer for other ones. "
                    "Tune this program again"
                )
            switches[path] = Switch(found, path, found.forward, kept)
            if part.optimized.in_place and any(isinstance(vars(m).get("forward"), Switch) for m in found.modules()):
                raise ArtifactError(f"'{path}' of this program has tuned parts inside: call .remove() on them first")
        original = switches[path].original
        assert original is not None  # it is freed later
        switches[path].forms += (part.of(original),)
        if part.runs_original:
            switches[path].plain = switches[path].forms[-1].optimized.forward
    installed = Installed(module, list(switches.values()))
    if not keep_originals:
        _free(module, installed.switches)
    return installed


def _free(program: nn.Module, switches: Sequence[Switch]) -> None:
    """Give back the memory of the originals' weights, but for those that other modules share."""
    replaced = {id(part) for switch in switches for part in switch.module.modules()}
    used = {
        tensor.untyped_storage().data_ptr()
        for part in program.modules()
        if id(part) not in replaced
        for tensor in (*part.parameters(recurse=False), *part.buffers(recurse=False))
    }
    for switch in switches:
        if any(form.optimized.in_place for form in switch.forms):
            continue  # it runs on them
        switch.original = None
        for tensor in (*switch.module.parameters(), *switch.module.buffers()):
            if tensor.untyped_storage().data_ptr() not in used:
                tensor.data = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
    for switch in switches:
        switch.watch = Watch(switch.module, switch.kept)


def autocast() -> str:
    """``bfloat16 on cpu`` in a block of ``torch.autocast``, in this thread; empty outside of one."""
    on = (kind for kind in ("cpu", "cuda") if torch.is_autocast_enabled(kind))
    return ", ".join(f"{str(torch.get_autocast_dtype(kind)).removeprefix('torch.')} on {kind}" for kind in on)


def weights_hash(module: nn.Module, without: Collection[str] = ()) -> str:
    """Of the classes of all parts and of every weight, bit by bit (buffers too, but for those in ``without``)."""
    digest = hashlib.sha256()
    for name, part in module.named_modules():
        digest.update(f"{name}|{type(part).__name__};".encode())
    for name, tensor in [*module.named_parameters(), *module.named_buffers()]:
        if name in without:
            continue
        digest.update(f"{name}|{tensor.dtype}|{tuple(tensor.shape)};".encode())
        if tensor.layout is torch.strided and tensor.device.type != "meta" and tensor.numel():
            digest.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)
    return digest.hexdigest()
