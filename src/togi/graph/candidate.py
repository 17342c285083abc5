"""A candidate on its way through the pipeline, and the program that an engine makes of it."""

from __future__ import annotations

import abc
import copy
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from togi.core.records import Facts, Interface, Port, TensorFacts
from togi.subject.inputs import Inputs
from togi.subject.nested import exchanged
from togi.subject.signature import Signature

Context = Callable[[], AbstractContextManager[Any]]


class Program(abc.ABC):
    """A callable that an engine made: called like the original, returns the original's output structure."""

    holds_module: bool = True
    """The program still uses the tensors of the torch module it was made from (memory accounting)."""
    in_place: bool = False
    """It is the engine's options alone, to be made of a live module with ``of``; nothing else of it can be called."""
    stores_export: bool = False
    """Its files hold an export of the module, whatever it calls while it is live."""
    allocates_with_torch: bool = True
    """Its working memory comes from torch's allocator, so that the allocator's peak is the whole truth."""
    waits_for_threads: bool = False
    """A call waits for threads of the engine's own. A forked process has none of them, so it would wait for ever."""

    @abc.abstractmethod
    def __call__(self, *args: Any, **kwargs: Any) -> Any: ...

    def of(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Make it of a callable. With ``in_place`` it stands for ``original``, a live module's own ``forward``."""
        raise NotImplementedError

    def notes(self) -> Sequence[str]:
        """Sentences that people should know of it that only its calls have shown."""
        return ()

    @abc.abstractmethod
    def save(self, folder: Path) -> dict[str, Any]:
        """Write what ``Engine.load`` needs into ``folder`` (it exists, and is this program's own).

        Returns JSON for the manifest. Raises NotSaveable with a reason.
        """


class FlatProgram(Program):
    """Runs on a flat list of tensors in the signature's order and returns a flat list of output tensors.

    The base of all engines with a file form: binds and checks arguments, and rebuilds the output structure.
    """

    keeps_state = False
    """What a call returns is given to the next one without leaving the engine."""

    def __init__(self, signature: Signature) -> None:
        self.signature = signature
        self._turn: AbstractContextManager[Any] = nullcontext()

    def serve_one_at_a_time(self) -> None:
        """Let callers that come at once wait for each other, since the engine does not serve them.

        They wait without the interpreter's lock. So what the engine runs in Python meanwhile goes on: an engine's own
        lock, waited for with the interpreter's held, is what two callers of such an engine hang on.
        """
        self._turn = threading.Lock()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.call_with(self.signature.checked(args, kwargs, self.keeps))

    def call_with(self, inputs: list[Tensor]) -> Any:
        """The same with the tensors of a call, flat and checked already."""
        with self._turn:
            outputs = self.run([_resolved(tensor) for tensor in inputs])
        return self.signature.build_outputs(outputs)

    def keeps(self, position: int, tensor: Tensor) -> bool:
        """Whether this input, a deferred tensor, is what the program returned last and still holds, so that its values
        need not be looked at."""
        return False

    @abc.abstractmethod
    def run(self, inputs: list[Tensor]) -> Sequence[Tensor]:
        """Inputs: checked tensors in signature order, any strides. Outputs: fresh tensors (never overwritten by a later
        call), in signature order, with the original's dtypes and device."""

    def as_returned(self, inputs: list[Tensor]) -> list[Tensor]:
        """The inputs of a call as they are for somebody who calls again and again with what the last call returned: of
        the same sizes, and of nearly the same values."""
        return inputs

    def interface(self) -> Interface:
        """The way to call its file without togi. This is that of files whose inputs and outputs have no names."""
        return Interface(
            inputs=tuple(map(_by_position, self.signature.inputs_facts)),
            outputs=tuple(map(_by_position, self.signature.outputs_facts)),
        )


def _resolved(tensor: Tensor) -> Tensor:
    """The same values without torch's flags for one that is still to be conjugated or negated: engines read memory."""
    return tensor.resolve_conj().resolve_neg() if tensor.is_conj() or tensor.is_neg() else tensor


def _by_position(facts: TensorFacts) -> Port:
    return Port(name=None, path=facts.name, dtype=facts.dtype, shape=facts.shape)


class FlatModule(nn.Module):
    """The module with flat tensors in and a flat tuple of tensors out: the one form that is exported and traced."""

    def __init__(self, module: nn.Module, signature: Signature) -> None:
        super().__init__()
        self.module = module
        self.signature = signature
        self.training = False  # not eval(): an exported module inside forbids it, and the module is in eval mode

    def forward(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        args, kwargs = self.signature.build_inputs(tensors)
        return tuple(self.signature.flatten_outputs(self.module(*args, **kwargs)))


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """The candidate that the pipeline hands from technique to technique. Immutable: ``with_`` makes the next one."""

    module: nn.Module
    """In eval mode, on the device. Never changed in place: a technique that edits works on ``copy()``."""
    samples: tuple[Inputs, ...]
    """The user's example inputs, on the device, unchanged by anybody."""
    signature: Signature
    """How calls are flattened and outputs rebuilt; shapes hold None where a dimension is dynamic."""
    facts: Facts
    calibration: tuple[Inputs, ...] = ()
    """Inputs for quantization; the samples where the user gave none."""
    threads: int | None = None
    """Threads for one call, set by ``configure`` of a technique; None leaves the engine's default."""
    flushes_denormals: bool = False
    """Threads of an engine's own treat denormal numbers as zero. Set by ``configure`` of a technique."""
    at_once: int = 1
    """How many calls come at once, made of one: a technique answers it in pieces."""
    program: Program | None = None
    """Set by the engine; None means the module is run as it is."""
    contexts: tuple[Context, ...] = ()
    """Context managers entered around every call, outermost first."""
    around: Callable[[Callable[..., Any]], Callable[..., Any]] | None = None
    """Makes what users call of calls of the program within its contexts. None: they are the same."""
    passes: Mapping[str, tuple[Callable[..., Any], ...]] = field(default_factory=dict)
    """Transformations for an engine's own model form, by engine id: e.g. quantization of an OpenVINO model. Each is
    called as ``pass_(model, candidate)`` and returns the model."""
    notes: tuple[str, ...] = ()
    """What people should know of how it was built ("merged 22 branches")."""

    @property
    def device(self) -> torch.device:
        return torch.device(self.facts.device)

    def with_(self, **changes: Any) -> Candidate:
        return replace(self, **changes)

    def noting(self, note: str) -> Candidate:
        return replace(self, notes=(*self.notes, note))

    def with_pass(self, engine: str, transform: Callable[..., Any]) -> Candidate:
        passes = {**self.passes, engine: (*self.passes.get(engine, ()), transform)}
        return replace(self, passes=passes)

    def copy(self) -> nn.Module:
        """A deep copy of the module to edit; its parameters do not require gradients."""
        with torch.no_grad():  # a copy of TorchScript would otherwise be computed from the original's parameters
            copied = copy.deepcopy(self.module)
        for parameter in copied.parameters():  # TorchScript has no requires_grad_ of a whole module
            parameter.requires_grad_(False)
        return copied

    def flat(self) -> FlatModule:
        """Flat tensors in, a tuple of flat tensors out: what is exported, traced and converted."""
        return FlatModule(self.module, self.signature)

    def flat_samples(self) -> list[list[Tensor]]:
        """Flat input tensors of every sample."""
        return [self.signature.flatten_inputs(sample.args, sample.kwargs) for sample in self.samples]

    def runnable(self) -> Callable[..., Any]:
        """The callable that is verified and measured: the program (or the module) inside its contexts."""
        call: Callable[..., Any] = self.program if self.program is not None else self.module
        called = in_contexts(call, self.contexts)
        return called if self.around is None else self.around(called)


def in_contexts(call: Callable[..., Any], contexts: Sequence[Context]) -> Callable[..., Any]:
    """``call`` surrounded by context managers; the common case of one is kept cheap. What was made in inference mode
    is handed on as tensors that its caller may write to and record."""
    called = _inside(call, contexts)
    if torch.inference_mode not in contexts:
        return called
    return lambda *args, **kwargs: _out_of_inference_mode(called(*args, **kwargs))


def _out_of_inference_mode(output: Any) -> Any:
    """On the same memory. In its caller's own inference mode it stays as it is."""
    ordinary: dict[int, tuple[Tensor, Tensor]] = {}
    """By identity; what it stands for is kept, so that no other takes its place."""

    def of(tensor: Tensor) -> Tensor:
        if not tensor.is_inference():
            return tensor
        if id(tensor) not in ordinary:
            ordinary[id(tensor)] = tensor, _ordinary(tensor)
        return ordinary[id(tensor)][1]

    return output if torch.is_inference_mode_enabled() else exchanged(output, of)


def _ordinary(tensor: Tensor) -> Tensor:
    dense = type(tensor) is Tensor and tensor.layout is torch.strided and not (tensor.is_nested or tensor.is_quantized)
    if not dense or tensor.is_conj() or tensor.is_neg():
        return tensor.clone()
    empty = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
    return empty.set_(tensor.untyped_storage(), tensor.storage_offset(), tensor.shape, tensor.stride())


def _inside(call: Callable[..., Any], contexts: Sequence[Context]) -> Callable[..., Any]:
    if not contexts:
        return call
    if len(contexts) == 1:
        (context,) = contexts

        def inside_one(*args: Any, **kwargs: Any) -> Any:
            with context():
                return call(*args, **kwargs)

        return inside_one

    def inside(*args: Any, **kwargs: Any) -> Any:
        with ExitStack() as stack:
            for context in contexts:
                stack.enter_context(context())
            return call(*args, **kwargs)

    return inside
