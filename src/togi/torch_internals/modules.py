"""Parts of ``nn.Module`` that have no public name; a tracker of the running module, source line and phase of a step.

Behind it: ``Module._forward_hooks``, ``_forward_pre_hooks``, ``Tensor._backward_hooks``,
``_post_accumulate_grad_hooks``, ``_parameters``, ``_buffers``, ``_modules``, ``_flat_weights`` and
``_flat_weight_refs`` of recurrent layers,
``_compiled_call_impl``, ``_apply``, ``_is_replica``, ``_orig_mod`` of torch.compile's wrapper,
nn.modules.batchnorm._BatchNorm, nn.utils.parametrize's ``_inject_new_class``, ``_inject_property`` (torch 2.9 to
2.15). When they go:
``named_parameters(recurse=False)`` and ``setattr`` replace the dicts; hooks would have to be asked of a copy;
parametrized modules could not be pickled.

An operation of the backward pass belongs to the module and the line whose forward operation it differentiates: both
have the sequence number of one autograd node, which is drawn just before the forward operation is dispatched.
Source: torch/csrc/autograd/function.h (sequence_nr).
"""

from __future__ import annotations

import itertools
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from types import CellType, FunctionType
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm as BatchNorm
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.nn.utils import parametrize
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from togi.core.user_code import place_in, user_frames
from togi.torch_internals.autograd import current_node, next_sequence_number, sequence_number, version_of
from togi.torch_internals.tensors import tensors_of

__all__ = [
    "BatchNorm",
    "calls_through",
    "compile_calls",
    "compiled_original",
    "convert_tensors",
    "forget_compiled_call",
    "forward_hook_counts",
    "forward_hooks",
    "forward_pre_hooks",
    "has_hooks",
    "has_own_call",
    "hooks_noted",
    "in_training",
    "is_replica",
    "own_buffers",
    "own_modules",
    "own_parameters",
    "parametrized_as_pickled",
    "recurrent_weights_kept",
    "replace_tensors",
    "runs_compiled",
    "surround_compiled_calls",
    "users_hooks",
]

_COMPILED = itertools.count()
_WEIGHT_LISTS = ("_flat_weights", "_flat_weight_refs")


def forward_hook_counts(module: nn.Module) -> tuple[int, int]:
    """``(forward hooks, forward pre-hooks)`` registered on this module itself."""
    return len(module._forward_hooks), len(module._forward_pre_hooks)


def forward_hooks(module: nn.Module) -> dict[int, Any]:
    """The module's own dict of forward hooks."""
    return module._forward_hooks


def forward_pre_hooks(module: nn.Module) -> dict[int, Any]:
    """The module's own dict of forward pre-hooks."""
    return module._forward_pre_hooks


def users_hooks(module: nn.Module) -> list[Any]:
    """The forward hooks and pre-hooks that were registered on this module itself, but for torch's own: those set its
    weights, to the same whenever they are called."""
    hooks = (*module._forward_hooks.values(), *module._forward_pre_hooks.values())
    return [hook for hook in hooks if not _is_torchs(hook)]


def has_own_call(module: nn.Module) -> bool:
    """Whether its class has a ``__call__`` that is not torch's."""
    owner = next(cls for cls in type(module).__mro__ if "__call__" in vars(cls))
    return not owner.__module__.startswith("torch.")


def _is_torchs(hook: Any) -> bool:
    return str(getattr(hook, "__module__", None) or type(hook).__module__).startswith("torch.")


@contextmanager
def hooks_noted(modules: Iterable[nn.Module]) -> Iterator[set[int]]:
    """The identities of those of the modules whose own hooks return something inside, or write into what they are
    given: they change what the modules are called with, or answer."""
    changing: set[int] = set()

    def noting(hook: Callable[..., Any], key: int) -> Callable[..., Any]:
        def noted(module: nn.Module, *given: Any, **kwargs: Any) -> Any:
            tensors = [tensor for tensor in tensors_of(given) if not tensor.is_inference()]
            before = sum(map(version_of, tensors))
            answer = hook(module, *given, **kwargs)
            if answer is not None or sum(map(version_of, tensors)) != before:
                changing.add(key)
            return answer

        return noted

    def put_back(hooks: dict[int, Any], key: int, hook: Any) -> None:
        if key in hooks:  # some take themselves out
            hooks[key] = hook

    with ExitStack() as undo:
        for module in (module for module in modules if not isinstance(module, torch.jit.ScriptModule)):
            for hooks in (forward_hooks(module), forward_pre_hooks(module)):
                for key, hook in list(hooks.items()):
                    if not _is_torchs(hook):
                        hooks[key] = noting(hook, id(module))
                        undo.callback(put_back, hooks, key, hook)
        yield changing


def has_hooks(parameter: Tensor) -> bool:
    """Whether hooks were registered on a parameter: on its gradient, or for when that is added up."""
    return bool(parameter._backward_hooks) or bool(parameter._post_accumulate_grad_hooks)


def in_training(module: nn.Module) -> bool:
    """Its mode. Frozen TorchScript has none: it is what it was when it was frozen."""
    return getattr(module, "training", False)


def own_modules(module: nn.Module) -> dict[str, nn.Module | None]:
    """The module's own dict of children. Assigning to it replaces one."""
    return module._modules


def own_parameters(module: nn.Module) -> dict[str, nn.Parameter | None]:
    """The module's own dict of parameters, without those of its children. Assigning to it replaces a parameter."""
    return module._parameters


def own_buffers(module: nn.Module) -> dict[str, Tensor | None]:
    """The module's own dict of buffers, without those of its children. Assigning to it replaces a buffer."""
    return module._buffers


def replace_tensors(
    module: nn.Module, parameter: Callable[[nn.Parameter], nn.Parameter], buffer: Callable[[Tensor], Tensor]
) -> None:
    """Other parameters and buffers in the place of all that the module and its parts have."""
    for part in module.modules():
        own = own_parameters(part)
        own.update({name: parameter(tensor) for name, tensor in own.items() if tensor is not None})
        buffers = own_buffers(part)
        buffers.update({name: buffer(tensor) for name, tensor in buffers.items() if tensor is not None})


@contextmanager
def recurrent_weights_kept(module: nn.Module) -> Iterator[None]:
    """Recurrent layers list the weights that they compute with. ``torch.export`` of torch 2.9 leaves its own fake ones
    there until the next call; after this the lists are as they were."""
    layers = [part for part in module.modules() if isinstance(part, nn.RNNBase)]
    lists = [(vars(part), name, vars(part)[name]) for part in layers for name in _WEIGHT_LISTS if name in vars(part)]
    kept = [[*held] for *_, held in lists]
    try:
        yield
    finally:
        for (attributes, name, held), weights in zip(lists, kept, strict=True):
            held[:] = weights
            attributes[name] = held


def convert_tensors(module: nn.Module, convert: Callable[[Tensor], Tensor]) -> None:
    """Every parameter, gradient and buffer through ``convert``, in place, as ``module.to`` does."""
    module._apply(convert)  # type: ignore[no-untyped-call]


def compiled_original(module: nn.Module) -> Any:
    """The module inside of ``torch.compile(module)``; None for any other module."""
    return getattr(module, "_orig_mod", None)


def uncompiled(function: Any) -> Any:
    """The function inside of ``torch.compile(function)``; any other value as it is."""
    return getattr(function, "_torchdynamo_orig_callable", function)


def parametrized_as_pickled(module: nn.Module) -> tuple[Any, ...] | None:
    """Answer a pickler's ``reducer_override`` for a module with tensors of ``torch.nn.utils.parametrize`` (weight
    norm, as audio models have it), whose own class refuses to be pickled; None for any other."""
    if not parametrize.is_parametrized(module):
        return None
    plain = parametrize.type_before_parametrizations(module)
    return plain.__new__, (plain,), vars(module), None, None, _restore_parametrized


def _restore_parametrized(module: nn.Module, state: dict[str, Any]) -> None:
    vars(module).update(state)
    parametrize._inject_new_class(module)
    for name in state["_modules"]["parametrizations"]:
        parametrize._inject_property(module, name)


def compile_calls(
    module: nn.Module,
    backend: str | Callable[..., Any] = "inductor",
    options: dict[str, Any] | None = None,
    *,
    alike: Iterable[nn.Module] = (),
) -> None:
    """``module.compile()``, which before torch 2.12 makes no graph of torch's own containers (``nn.Sequential``).

    ``alike``: other modules whose calls are compiled, too. What is compiled for one of them serves all for which it
    holds.
    """

    def call(*args: Any, **kwargs: Any) -> Any:
        return module._call_impl(*args, **kwargs)  # type: ignore[no-untyped-call]

    # Dynamo keeps what it compiles with the code object, and so many for each; which sizes vary it keeps by the name
    code = call.__code__.replace(co_name=f"call_{next(_COMPILED)}")
    for one in (module, *alike):
        its_call = FunctionType(code, globals(), closure=(CellType(one),))
        one._compiled_call_impl = torch.compile(its_call, backend=backend, options=options)


def forget_compiled_call(module: nn.Module) -> None:
    """Undo ``compile_calls``: calls run the plain ``forward`` again."""
    module._compiled_call_impl = None


@contextmanager
def calls_through(module: nn.Module, around: Callable[[Callable[..., Any]], Callable[..., Any]]) -> Iterator[None]:
    """Have calls of the module from Python run ``around(call)``. Hooks would make Dynamo compile anew; calls inside of
    what is compiled do not come by here."""
    own = vars(module).get("_compiled_call_impl")
    vars(module)["_compiled_call_impl"] = around(own or module._call_impl)
    try:
        yield
    finally:
        if own is None:
            del vars(module)["_compiled_call_impl"]
        else:
            vars(module)["_compiled_call_impl"] = own


def surround_compiled_calls(module: nn.Module, around: Callable[[], AbstractContextManager[Any]]) -> Callable[[], None]:
    """Have calls of the module, and of its parts, that ``compile_calls`` compiled run inside of ``around()``. Returns
    what undoes it."""
    calls = {part: call for part in module.modules() if (call := vars(part).get("_compiled_call_impl")) is not None}

    def surrounded(call: Callable[..., Any]) -> Callable[..., Any]:
        def inside(*args: Any, **kwargs: Any) -> Any:
            with around():
                return call(*args, **kwargs)

        return inside

    def undo() -> None:
        for part, call in calls.items():
            part._compiled_call_impl = call

    for part, call in calls.items():
        part._compiled_call_impl = surrounded(call)
    return undo


def runs_compiled(module: nn.Module) -> bool:
    """Whether it is what ``torch.compile(module)`` returned, or ``module.compile()`` was called."""
    return compiled_original(module) is not None or getattr(module, "_compiled_call_impl", None) is not None


def is_replica(module: nn.Module) -> bool:
    """Whether data parallelism made it, for one call on one of several devices."""
    return "_is_replica" in vars(module)


FORWARD, BACKWARD, OPTIMIZER = "forward", "backward", "optimizer"


class Where(NamedTuple):
    """The code that was running when something happened."""

    module: str = ""
    """Qualified name of the innermost module; empty outside of any."""
    line: str = ""
    """``file.py:12 in name``: the innermost line of the user's source."""
    phase: str = ""
    """``forward``, ``backward`` or ``optimizer``; empty for what was there before."""


class ModuleTracker:
    """Follows a run while ``following`` is active; ``now()`` answers."""

    def __init__(
        self,
        module: nn.Module | None = None,
        *,
        root: str = "",
        on_output: Callable[[Any], None] = lambda _: None,
        name_outsiders: bool = True,
    ) -> None:
        """Gives the parts of ``module`` their qualified names.

        Args:
            root: the name of ``module`` itself.
            on_output: called with what the outermost module returned.
            name_outsiders: a module that is not a part of ``module`` has its class's name; otherwise its caller's.
        """
        self._names = {part: name or root for name, part in module.named_modules()} if module else {}
        self._on_output = on_output
        self._name_outsiders = name_outsiders
        self.runs: Counter[str] = Counter()
        """How often each part of ``module`` was called, by name."""
        self._running: list[tuple[str, bool]] = []
        """Name, and whether it is a part of the module."""
        self._stepping = False
        self._forward: dict[int, Where] = {}

    @contextmanager
    def following(self, *, module_hooks: bool = True) -> Iterator[None]:
        """Installs torch's global hooks of optimizers and, unless told not to, of modules; removes them afterwards."""
        with ExitStack() as hooks:
            hooks.callback(register_optimizer_step_pre_hook(self._step_begins).remove)
            hooks.callback(register_optimizer_step_post_hook(self._step_ends).remove)
            if module_hooks:
                hooks.callback(register_module_forward_pre_hook(self._entered).remove)
                hooks.callback(register_module_forward_hook(self._left, always_call=True).remove)
            yield

    @property
    def innermost(self) -> str:
        """The name of the module that is running; empty outside of any."""
        return self._running[-1][0] if self._running else ""

    @property
    def running(self) -> tuple[str, ...]:
        """The parts of ``module`` that are running, the outermost first; outsiders are left out."""
        return tuple(name for name, is_part in self._running if is_part)

    def now(self) -> Where:
        node = current_node()
        if node is not None:
            return self._of_node(node)
        phase = OPTIMIZER if self._stepping else FORWARD
        frame = next(user_frames(sys._getframe(1)), None)
        where = Where(self.innermost, "" if frame is None else place_in(frame), phase)
        if phase == FORWARD and torch.is_grad_enabled():
            # the first operation after a node was drawn is the node's; later ones may have none
            self._forward.setdefault(next_sequence_number() - 1, where)
        return where

    def _of_node(self, node: Any) -> Where:
        where = self._forward.get(sequence_number(node), Where())
        return where._replace(phase=BACKWARD)

    def _entered(self, module: nn.Module, _: Any) -> None:
        name = self._names.get(module)
        if name is not None:
            self.runs[name] += 1
            self._running.append((name, True))
        else:
            self._running.append((type(module).__name__ if self._name_outsiders else self.innermost, False))

    def _left(self, module: nn.Module, _: Any, output: Any) -> None:
        if self._running:
            self._running.pop()
        if not self._running and output is not None:
            self._on_output(output)

    def _step_begins(self, *_: Any) -> None:
        self._stepping = True

    def _step_ends(self, *_: Any) -> None:
        self._stepping = False
