"""What stands for the ``forward`` of a module in a live program: engines for the calls that were proven, else the
original.
"""

from __future__ import annotations

import functools
import threading
import types
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn

from togi.artifact.autocast import autocast
from togi.artifact.part_engine import PartEngine
from togi.artifact.watch import Watch
from togi.core.errors import TogiError
from togi.core.quantities import first_line
from togi.subject.stand_in import FunctionStandIn
from togi.subject.state import STATE, State
from togi.torch_internals.autograd import is_forward_mode, is_transformed
from togi.torch_internals.deferred import Deferred
from togi.torch_internals.modes import dispatch_modes
from togi.torch_internals.script import is_traced

_GRADIENTS = (
    "the original of {} serves calls whose inputs want gradients, and its tuned part does not. Where none are needed, "
    "call the program under torch.no_grad() or torch.inference_mode()"
)

_AUTOCAST = (
    "it is called under torch.autocast ({}), where the original computes in another precision, and its tuned part was "
    "proven without"
)

_OWN_MEMORY = "it overwrites an input that lies in the memory of its own weights, and goes on with what it has written"

_GRADIENTS_OF_WEIGHTS = (
    "the tuned part of {} serves a call with gradients switched on, and none will reach its weights, which require "
    "them. Where none are needed, call the program under torch.no_grad(), or .requires_grad_(False) on it; to train "
    "it, call .remove() on what put the parts in"
)


def is_observed() -> bool:
    """Whether something traces, compiles, transforms or watches what runs now in this thread. It has to see the
    original's own operators: of an engine it would see none, and take its answer for a constant. A forward-mode
    derivative would be lost, without a word; under ``torch.func`` the engine would be given a wrapper round the real
    tensor."""
    dynamo = torch.compiler.is_dynamo_compiling()  # ``is_compiling`` is true while any thread compiles or exports
    return dynamo or is_traced() or is_transformed() or is_forward_mode() or bool(dispatch_modes())


def _left_as_it_was(form: PartEngine, tensors: Sequence[Any]) -> bool:
    """Whether a call that raised has changed nothing: what is captured changes nothing before it has answered, and the
    program's own code may have. What an engine keeps for the program it may no longer have."""
    return not form.in_place and not any(type(tensor) is Deferred for tensor in tensors)


def _forward_of(module: nn.Module) -> types.FunctionType | None:
    """That of its class; None for anything but a plain function."""
    forward = getattr(type(module), "forward", None)
    return forward if isinstance(forward, types.FunctionType) else None


class Switch(FunctionStandIn):
    """Stands for the ``forward`` of one module: calls of the forms that were proven go to the engine."""

    _original: Any
    _is_of_class: bool
    """The original is the ``forward`` of the module's class, and nothing that was put in its place."""

    def __init__(self, module: nn.Module, path: str, original: Callable[..., Any], state: Sequence[str] = ()) -> None:
        """``state``: attributes that hold its state from call to call, which its engine is given and hands on."""
        self.path = path
        self.name = path or "the program"
        self.module = module
        self.original = original
        self.forms: tuple[PartEngine, ...] = ()
        self.plain: Callable[..., Any] | None = None
        """The original in settings of its own."""
        self.needs_original = False
        """It serves calls of a form whose engine does not run here."""
        self.engine_calls = 0
        self.original_calls = 0
        """Calls outside of what was proven, which the original served."""
        self._counting = threading.Lock()
        self.installed: Any = None
        """What put it in (``togi.artifact.installed``)."""
        self.told: set[str] = set()
        """What was warned of already, by a word for it. The parts of one program share it."""
        self.last_reason = ""
        """Why the last of these was not the engine's."""
        self.strict = False
        """What an engine raises is raised, and the original does not stand in: where parts are proven, one that fails
        must not pass for a slow one."""
        self.retired = False
        """The original serves all calls: it was taken out while another library's wrapper stood round it, or its
        process was forked from the one in which it was put in."""
        self.state = State(module, state) if state else None
        self._state_names = tuple(state)
        self.watch_again()
        self.look_like(original)

    @property
    def original(self) -> Callable[..., Any] | None:
        """What the module runs without it: the ``forward`` of its class, another one if the class has that by now, or
        what stood in its place. None: it was freed."""
        now = _forward_of(self.module) if self._is_of_class else None
        if now is not None and now is not self._original.__func__:
            self._original = types.MethodType(now, self.module)
        return self._original  # type: ignore[no-any-return]

    @original.setter
    def original(self, original: Callable[..., Any] | None) -> None:
        self._original = original
        bound = isinstance(original, types.MethodType) and original.__self__ is self.module
        self._is_of_class = bound and self._original.__func__ is _forward_of(self.module)

    def watch_again(self) -> None:
        """From now on the engines answer for the module as it is."""
        self.watch = Watch(self.module, self._state_names)

    def serve_with(self, part: PartEngine) -> None:
        """Serve calls of one more form. Where no engine of it runs here, the original does, as all others."""
        assert self.original is not None  # it is freed later
        if part.runs_original and part.entry.key.form is not None:
            self.needs_original = True
            return
        form = part.of(self.original)
        self.forms += (form,)
        if part.runs_original:
            self.plain = form

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self.retired or is_observed():
            return self._run_original(args, kwargs)
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
        reason = "its engine does not run here" if self.needs_original else "no form of its calls was tuned"
        named = kwargs if self.state is None else {**kwargs, STATE: self.state.read()}
        for position, form in enumerate(self.forms):
            signature = form.signature
            try:
                tensors = signature.checked(args, named, form.keeps)
            except (TypeError, ValueError) as error:
                reason = str(error)
                continue
            if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors):
                self._warn_once("gradients", _GRADIENTS.format(self.name))
                return self._fall_back("gradients are wanted", args, kwargs)
            if torch.is_grad_enabled() and "weights" not in self.told and self.watch.wants_gradients():
                self._warn_once("weights", _GRADIENTS_OF_WEIGHTS.format(self.name))
            if any(map(self.watch.holds, map(tensors.__getitem__, signature.written))):
                return self._fall_back(_OWN_MEMORY, args, kwargs)
            if unknown := self._unknown_of(form):
                return self._fall_back(unknown, args, kwargs)
            if position:  # the calls that follow are likely of the same form; a new tuple, since threads may be reading
                self.forms = (form, *(other for other in self.forms if other is not form))
            try:
                result = form.call_with(tensors, args, named)
            except Exception as error:  # foreign code: a library's own error, or no memory left for it
                if self.strict or self.original is None or not _left_as_it_was(form, tensors):
                    raise
                reason = f"its engine failed ({first_line(error)})"
                self._warn_once("failed", f"the original of {self.name} serves a call: {reason}")
                return self._fall_back(reason, args, kwargs)
            with self._counting:
                self.engine_calls += 1
            if not form.entry.effects.changes:
                return result
            of_argument = functools.partial(signature.of_argument, tensors)
            output = form.entry.effects.finish(result, args, named, of_argument)
            if self.state is not None:
                self.state.write(named[STATE])
            return output
        return self._fall_back(reason, args, kwargs)

    def _run_original(self, args: Any, kwargs: Any) -> Any:
        if self.original is None:
            when = (
                "in a process that was forked from the one in which its part was put in, where the engine does not run"
                if self.retired
                else "while it is traced, compiled, transformed (torch.func, forward-mode derivatives) or watched, "
                "which an engine cannot be"
            )
            raise TogiError(
                f"{self.name} was called {when}, and its original was freed (keep_originals=False). Put the parts into "
                "a program that keeps its originals, or load and put them in in the new process"
            )
        return self.original(*args, **kwargs)

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Copying, pickling and ``torch.save`` ask this. Raises TogiError."""
        raise TogiError(
            f"the program has a tuned part at '{self.name}', whose engine cannot be copied or pickled: call .remove() "
            "on what put the parts in first, and put them into the copy afterwards. A state_dict can be saved as ever"
        )

    def _unknown_of(self, _form: PartEngine) -> str:
        """What has to be known of a call that the form takes, and is not, as a clause: then the original serves it."""
        return ""

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
        attributes = self.watch.attributes
        were_the_same = attributes.are_the_same()
        output = self.original(*args, **kwargs)
        if were_the_same and not attributes.are_the_same():
            self.watch.accept_attributes()  # the original's own call did that, and would in the next
        return output
