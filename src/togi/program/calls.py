"""One run of a program, recorded: which modules it calls, how often, how long, in which forms.

Two runs: one with nothing but a clock round every call, so that times are the program's own; one in which the arguments
of the calls that matter are looked at and kept.
"""

from __future__ import annotations

import math
import threading
import time
import weakref
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from torch import Tensor, nn

from togi.artifact.autocast import autocast
from togi.core.records import ProgramCall, ProgramTree
from togi.subject.common_structure import without_counts
from togi.subject.inputs import Inputs
from togi.subject.state import STATE, State
from togi.subject.structure import Structure
from togi.torch_internals.cuda import wait_for_device
from togi.torch_internals.modules import hooks_noted

_MOST_CALLS = 500_000
_SIZES_KEPT, _FIRST_KEPT = 6, 3
_CALLS_PROVEN = 48
"""Of one module, as the original makes them, for the proof with the original's own decisions."""

Form: TypeAlias = tuple[Structure, ...]
"""What calls that one engine can serve have in common."""
InsteadOfCall = Callable[[nn.Module, Any, Any, Callable[..., Any]], Any]
"""``(module, args, kwargs, run)``: what is done instead of a call; ``run`` makes it."""


@dataclass
class _Counted:
    module: nn.Module | None
    parent: int | None
    calls: int = 0
    seconds: float = 0.0
    seconds_elsewhere: float = 0.0
    """Of its calls in other threads than the program's."""
    places: dict[int, int] = field(default_factory=dict)


class _CallTree:
    """The calls of a program by who calls them. What is called first in another thread is the program's own call: who
    had the thread do it cannot be seen."""

    def __init__(self, program: nn.Module) -> None:
        self.counted = [_Counted(program, None)]
        self._own_thread = threading.get_ident()
        self._local = threading.local()
        self._lock = threading.Lock()
        self._spans: list[tuple[float, float]] = []
        """Of the outermost calls in other threads."""

    def call(self, module: nn.Module, args: Any, kwargs: Any, run: Callable[..., Any]) -> Any:
        at: list[int] = vars(self._local).setdefault("at", [0])
        index = self._place(module, at[-1])
        if index is None:
            return run(*args, **kwargs)
        at.append(index)
        wait_for_device()  # what was queued before is none of its time
        began = time.perf_counter()
        try:
            return run(*args, **kwargs)
        finally:
            wait_for_device()
            ended = time.perf_counter()
            at.pop()
            self._count(index, began, ended, outermost=len(at) == 1)

    def _place(self, module: nn.Module, caller: int) -> int | None:
        """None where there are too many."""
        with self._lock:
            places = self.counted[caller].places
            if id(module) not in places:
                if len(self.counted) > _MOST_CALLS:
                    return None
                places[id(module)] = len(self.counted)
                self.counted.append(_Counted(module, caller))
            return places[id(module)]

    def _count(self, index: int, began: float, ended: float, *, outermost: bool) -> None:
        with self._lock:
            here = self.counted[index]
            here.calls += 1
            if threading.get_ident() == self._own_thread:
                here.seconds += ended - began
                return
            here.seconds_elsewhere += ended - began
            if outermost:
                self._spans.append((began, ended))

    def record(self, names: Mapping[int, str]) -> ProgramTree:
        """Calls in threads overlap: they share the time in which any of them runs."""
        every = sum(ended - began for began, ended in self._spans)
        factor = _covered(self._spans) / every if every else 1.0
        return ProgramTree(
            calls=tuple(
                ProgramCall(
                    path=names.get(id(counted.module), ""),
                    module=type(counted.module).__name__,
                    parent=counted.parent,
                    calls=counted.calls,
                    ms=(counted.seconds + factor * counted.seconds_elsewhere) * 1e3,
                )
                for counted in list(self.counted)
            )
        )


def _covered(spans: Sequence[tuple[float, float]]) -> float:
    """Seconds in which any of them runs."""
    covered, until = 0.0, -math.inf
    for began, ended in sorted(spans):
        covered += max(0.0, ended - max(began, until))
        until = max(until, ended)
    return covered


def record_tree(program: nn.Module, samples: Sequence[Inputs]) -> ProgramTree:
    """Run the program once on every sample (as it is: under the caller's ``no_grad``) with a clock round each call."""
    names = {id(module): path for path, module in program.named_modules()}
    tree = _CallTree(program)
    for sample in samples:
        tree.counted[0].seconds += _run(program, sample, tree.call)
        tree.counted[0].calls += 1
    return tree.record(names)


def _run(program: nn.Module, sample: Inputs, call: InsteadOfCall) -> float:
    """Seconds that it took."""
    inputs = sample.clone()
    wait_for_device()
    began = time.perf_counter()
    with watched(call, outermost=program):
        program(*inputs.args, **inputs.kwargs)
    wait_for_device()
    return time.perf_counter() - began


@contextmanager
def watched(call: InsteadOfCall, *, outermost: nn.Module | None = None) -> Iterator[None]:
    """``call(module, args, kwargs, run)`` instead of every call of a module, in whichever thread; ``run`` goes on.

    The call of ``nn.Module`` itself is replaced, so that modules are seen wherever they come from, scripted ones too.
    ``outermost`` is left alone.
    """
    original = nn.Module.__call__

    def instead(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        if self is outermost:
            return original(self, *args, **kwargs)
        return call(self, args, kwargs, lambda *a, **k: original(self, *a, **k))

    nn.Module.__call__ = instead  # type: ignore[method-assign]
    try:
        yield
    finally:
        nn.Module.__call__ = original  # type: ignore[method-assign]


class Recorded:
    """The arguments of the calls of one module, as they were before each call: one copy for each sizes seen.

    Of many sizes the first few and the last few are kept: a cache that grows is seen short and long, and one whose
    window was full in the end.
    """

    def __init__(self, limit_bytes: int, calls: int) -> None:
        """``limit_bytes``: for the copies of sizes, and half of it for those of the proof. ``calls``: how many come."""
        self.forms: dict[Form, dict[Any, Inputs]] = {}
        """By form, then by sizes and counts."""
        self.proof: dict[Form, list[Inputs]] = defaultdict(list)
        """By form: all calls, or as many as there is room for, evenly spread: what a part is proven on."""
        self.autocast: dict[Form, str] = {}
        """By form: of ``torch.autocast``, which its calls are made under; empty for none."""
        self.calls: Counter[Form] = Counter()
        self.seconds: dict[Form, float] = defaultdict(float)
        self._left, self._left_to_prove = limit_bytes, limit_bytes // 2
        self._every = math.ceil(calls / _CALLS_PROVEN)
        self.hooks_change = False
        """Forward hooks of its own change what it is called with, or what it answers."""
        self._gone_on: Counter[Form] = Counter()
        self._new: dict[int, list[weakref.ref[Tensor]]] = {}
        """By thread: tensors that its last call left in its arguments."""
        self._lock = threading.Lock()

    def see(self, inputs: Inputs) -> Form:
        """Look at a call before it is made; its form."""
        structures = _structures(inputs)
        cast = autocast()
        form = _form(structures, inputs, cast)
        before = set(map(id, inputs.tensors()))
        with self._lock:
            self.autocast[form] = cast
            self._keep(form, structures, inputs)
            new = self._new.get(threading.get_ident(), [])
            self._gone_on[form] += bool(new) and all(id(ref()) in before for ref in new)
        return form

    def made(self, form: Form, seconds: float, before: Sequence[Tensor], inputs: Inputs) -> None:
        """``before``: the tensors of the arguments before the call."""
        before_ids = set(map(id, before))
        new = [weakref.ref(tensor) for tensor in inputs.tensors() if id(tensor) not in before_ids]
        with self._lock:
            self.calls[form] += 1
            self.seconds[form] += seconds
            self._new[threading.get_ident()] = new

    def goes_on(self, form: Form) -> bool:
        """Whether most of its calls are given the very tensors that the call before left in its arguments: a cache, as
        it is, and not reordered or copied."""
        return self._gone_on[form] > self.calls[form] / 2

    def share(self, form: Form) -> float:
        """Of the time of all its calls."""
        total = sum(self.seconds.values())
        return self.seconds[form] / total if total else 0.0

    def _keep(self, form: Form, structures: Sequence[Structure], inputs: Inputs) -> None:
        by_sizes = self.forms.setdefault(form, {})
        shapes, size_bytes = _sizes(inputs)
        sizes = (shapes, *structures)
        new = sizes not in by_sizes and size_bytes <= self._left
        to_prove = self.calls[form] % self._every == 0 and size_bytes <= self._left_to_prove
        if not new and not to_prove:
            return
        copied = inputs.clone()
        if to_prove:
            self._left_to_prove -= size_bytes
            self.proof[form].append(copied)
        if not new:
            return
        if len(by_sizes) == _SIZES_KEPT:
            del by_sizes[list(by_sizes)[_FIRST_KEPT]]
        else:
            self._left -= size_bytes
        by_sizes[sizes] = copied


def record_inputs(
    program: nn.Module,
    samples: Sequence[Inputs],
    modules: Mapping[str, nn.Module],
    calls: Mapping[str, int],
    limit_bytes: int,
    state_names: Mapping[str, Sequence[str]] | None = None,
) -> dict[str, Recorded]:
    """Run the program once more and keep what some modules are called with, ``limit_bytes`` for each at most.
    ``calls``: how often each is called. ``state_names``: of what each keeps from call to call, which is recorded
    as an argument (``togi.subject.state``)."""
    recorded = {path: Recorded(limit_bytes, calls[path]) for path in modules}
    states = {path: State(modules[path], names) for path, names in (state_names or {}).items() if names}
    watched_modules = {id(module): (recorded[path], states.get(path)) for path, module in modules.items()}

    def call(module: nn.Module, args: Any, kwargs: Any, run: Callable[..., Any]) -> Any:
        if id(module) not in watched_modules:
            return run(*args, **kwargs)
        seen_calls, state = watched_modules[id(module)]
        inputs = Inputs(args, kwargs if state is None else {**kwargs, STATE: state.read()})
        form, before = seen_calls.see(inputs), inputs.tensors()
        wait_for_device()
        began = time.perf_counter()
        output = run(*args, **kwargs)
        wait_for_device()
        seconds = time.perf_counter() - began
        if state is not None:
            inputs.kwargs[STATE].update(state.read())
        seen_calls.made(form, seconds, before, inputs)
        return output

    with hooks_noted(modules.values()) as changing:
        for sample in samples:
            _run(program, sample, call)
    for path, module in modules.items():
        recorded[path].hooks_change = id(module) in changing
    return recorded


def _structures(inputs: Inputs) -> list[Structure]:
    return [Structure.of(value) for value in (*inputs.args, *(inputs.kwargs[name] for name in sorted(inputs.kwargs)))]


def _form(structures: Sequence[Structure], inputs: Inputs, cast: str) -> Form:
    """Arguments, nesting, constants, dtypes, ranks, and whether they are made under ``torch.autocast`` (``cast``). Not
    the numbers that may be counts."""
    dtypes = [f"{str(t.dtype).removeprefix('torch.')}[{t.dim()}]" for t in inputs.tensors()]
    words = (str(len(inputs.args)), *sorted(inputs.kwargs), *dtypes, *filter(None, (cast,)))
    called = Structure(kind="constant", value=" ".join(words))
    return (*map(without_counts, structures), called)


def _sizes(inputs: Inputs) -> tuple[Any, int]:
    tensors = inputs.tensors()
    return tuple(tuple(t.shape) for t in tensors), sum(t.numel() * t.element_size() for t in tensors)
