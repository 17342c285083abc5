"""Observes a module in use: random or repeatable, changing its buffers, parameters or inputs, reusing memory of its
outputs.

Each is found by calling it a few times on the first sample and comparing bits. Nothing is assumed from class names: a
dropout whose probability is zero is not random, and a noise layer that nobody knows is.
"""

from __future__ import annotations

import hashlib
import random
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.weak import TensorWeakRef
from typing_extensions import Self

from togi.core.quantities import few_of
from togi.subject.compared import as_compared, taken_apart
from togi.subject.inputs import Inputs, apart
from togi.subject.nested import tensors_in
from togi.subject.plain_tensors import as_bytes, bits, stored
from togi.subject.structure import Structure


@dataclass(frozen=True, kw_only=True)
class Behaviour:
    random: bool
    """Calls differ unless the seed is set before each."""
    repeatable: bool
    """Two calls with the same input and seed agree to the bit."""
    buffers_change: bool
    parameters_change: tuple[str, ...] = ()
    """Names of the parameters into which every call writes, and not the first one alone."""
    inputs_change: bool
    """A call leaves other values in its arguments."""
    non_finite: bool
    """A floating-point output holds NaN or infinity."""
    all_zero: bool
    """Every output is zero everywhere: nothing can be learned from comparing it."""
    notes: tuple[str, ...] = ()


class RaisesLater(Exception):
    """A call raised though earlier ones had answered; ``__cause__`` is what it raised."""


def observe(
    module: nn.Module, sample: Inputs, outputs: Sequence[Any], *, seed: int, written: Sequence[str] = ()
) -> Behaviour:
    """Call ``module`` three times on ``sample``, four times where that changes buffers.

    ``outputs``: what it gave before on every sample. ``written``: names of the parameters into which those calls wrote
    (``HeldParameters``). Raises RaisesLater where a call raises.
    """
    buffers, untouched = SavedBuffers(module), apart(sample)
    parameters = {name: value.detach().clone() for name, value in module.named_parameters() if name in written}
    first = _call(module, sample, seed)
    changed = buffers.changed()
    first_values = [tensor.detach().clone() for tensor in _numbers(first.output)]
    second = _call(module, sample, seed)
    repeatable = same(first_values, _numbers(second.output))
    overwritten = not same(first_values, _numbers(first.output))
    seeded = repeatable
    if changed:
        buffers.restore()
        seeded = same(first_values, _numbers(_call(module, sample, seed).output))
        buffers.restore()
    differs = not same(first_values, _numbers(_call(module, sample, seed + 1).output))
    buffers.restore()
    now = dict(module.named_parameters())
    written_again = tuple(n for n, value in parameters.items() if n not in now or not same([value], [now[n]]))
    inputs_change = changes_arguments(untouched, first.after)
    return Behaviour(
        random=seeded and differs,
        repeatable=repeatable,
        buffers_change=bool(changed),
        parameters_change=written_again,
        inputs_change=inputs_change,
        all_zero=_all_zero([t for output in outputs for t in _numbers(output)]),
        non_finite=any(
            not bool(_computable(t).isfinite().all()) for o in outputs for t in _numbers(o) if _is_numeric(t)
        ),
        notes=(
            *_input_notes(first, changed=inputs_change),
            *_alias_notes(module, first, second),
            *(["The next call overwrites the outputs of the one before: copy them where they are kept."] * overwritten),
            *_change_notes(changed, repeatable=repeatable, seeded=seeded, differs=differs),
            *_parameter_notes([name for name in written if name not in written_again]),
        ),
    )


def _numbers(output: Any) -> list[Tensor]:
    return tensors_in(as_compared(output))


class SavedBuffers:
    """The buffers of a module as they are now, to be put back: so a call does not depend on the calls before it.

    A buffer that a call replaces is not kept alive: what it holds would count where memory is measured.
    """

    def __init__(self, module: nn.Module) -> None:
        self._module = module
        buffers = dict(module.named_buffers())
        self._buffers = {name: TensorWeakRef(buffer) for name, buffer in buffers.items()}
        self._values = {name: buffer.detach().clone() for name, buffer in buffers.items()}

    def changed(self) -> list[str]:
        """Names of buffers that differ in some bit, or are new."""
        now = dict(self._module.named_buffers())
        return [
            name for name, value in now.items() if name not in self._values or not same([self._values[name]], [value])
        ]

    def restore(self) -> None:
        """Put them back, in place where the buffer is still the same tensor; one that was replaced or resized is put
        back."""
        now = dict(self._module.named_buffers())
        with torch.no_grad():
            for name, value in self._values.items():
                buffer = self._buffers[name]()
                if buffer is not None and (buffer.shape, buffer.dtype) == (value.shape, value.dtype):
                    buffer.copy_(value)
                else:
                    buffer = value.clone()
                if now.get(name) is not buffer:
                    owner, _, attribute = name.rpartition(".")
                    setattr(self._module.get_submodule(owner), attribute, buffer)


class HeldParameters:
    """What the parameters of a module are before it is called, to know afterwards into which of them it wrote.

    A write to ``weight.data`` leaves no trace but the values. Of a copy the original holds these, at no cost; of what
    could not be copied, hashes are kept.
    """

    def __init__(self, module: nn.Module, original: nn.Module) -> None:
        """``original``: of which ``module`` is a copy; itself where it could not be copied."""
        self._module = module
        theirs = dict(original.named_parameters())
        self._before = {name: _held(value, theirs.get(name)) for name, value in module.named_parameters()}

    def written(self) -> list[str]:
        """Names of those that hold other values. Not of what came since, or went."""
        now = dict(self._module.named_parameters())
        return [name for name, held in self._before.items() if name in now and not _holds(now[name], held)]


def _held(parameter: Tensor, original: Tensor | None) -> Tensor | bytes:
    alike = original is not None and (original.shape, original.dtype) == (parameter.shape, parameter.dtype)
    if original is None or not alike or _storages([parameter]) & _storages([original]):
        return _digest(parameter)
    return original


def _holds(parameter: Tensor, held: Tensor | bytes) -> bool:
    if isinstance(held, bytes):
        return _digest(parameter) == held
    return same([held.detach().to(parameter.device)], [parameter])


def _digest(parameter: Tensor) -> bytes:
    digest = hashlib.sha256(f"{parameter.dtype} {tuple(parameter.shape)}".encode())
    for values in stored(parameter):
        if values.layout is torch.strided and values.numel():
            digest.update(bits(values))
    return digest.digest()


@contextmanager
def kept_buffers(module: nn.Module) -> Iterator[SavedBuffers]:
    """Put the buffers back after what is called inside: matters where the module itself runs, and no copy. Gives them
    as they are before."""
    state = SavedBuffers(module)
    try:
        yield state
    finally:
        state.restore()


@dataclass(frozen=True)
class _ObservedCall:
    output: Any
    before: Inputs
    after: Inputs


def _call(module: nn.Module, sample: Inputs, seed: int) -> _ObservedCall:
    after = apart(sample)
    seed_all(seed)
    try:
        with torch.no_grad():
            output = module(*after.args, **after.kwargs)
    except Exception as error:  # foreign code: the user's forward
        raise RaisesLater from error
    return _ObservedCall(output, sample, after)


def seed_all(seed: int) -> None:
    """Every generator that a module may draw from.

    Without a device the CPU's alone: torch would keep a stack trace for each kind of device, which takes as long as a
    call of a small model.
    """
    if torch.accelerator.is_available():
        torch.manual_seed(seed)
    else:
        torch.default_generator.manual_seed(seed)
    random.seed(seed)
    if "numpy" in sys.modules:
        import numpy

        numpy.random.seed(seed % 2**32)


@dataclass(frozen=True, kw_only=True)
class GeneratorStates:
    """The states of the generators that ``seed_all`` seeds: torch's of the CPU and of CUDA devices, Python's, NumPy's.
    CUDA's where it has begun: asking begins it."""

    torch_states: tuple[Tensor, ...]
    """Of the CPU, then of every CUDA device."""
    python: Any
    arrays: Any

    @classmethod
    def now(cls) -> Self:
        numpy = sys.modules.get("numpy")
        return cls(
            torch_states=(torch.get_rng_state(), *(torch.cuda.get_rng_state(device) for device in cuda_devices())),
            python=random.getstate(),
            arrays=numpy.random.get_state() if numpy else None,
        )

    def restore(self) -> None:
        """Every generator goes on from here again."""
        on_cpu, *on_cuda = self.torch_states
        torch.set_rng_state(on_cpu)
        for device, state in enumerate(on_cuda):
            torch.cuda.set_rng_state(state, device)
        random.setstate(self.python)
        if self.arrays is not None:
            sys.modules["numpy"].random.set_state(self.arrays)

    def differ_from(self, other: GeneratorStates) -> list[str]:
        """Names of the generators in whose states the two differ; of devices, those that both know."""
        names = ["torch's generator", *(f"torch's generator of cuda:{i}" for i in range(len(self.torch_states) - 1))]
        pairs = zip(names, self.torch_states, other.torch_states, strict=False)
        differing = [name for name, one, two in pairs if not torch.equal(one, two)]
        if self.python != other.python:
            differing.append("Python's random")
        if None not in (self.arrays, other.arrays) and _of_numpy(self.arrays) != _of_numpy(other.arrays):
            differing.append("NumPy's generator")
        return differing


def _of_numpy(state: Any) -> tuple[Any, ...]:
    """NumPy's state so that two can be compared."""
    _, words, *rest = state
    return words.tobytes(), *rest


def cuda_devices() -> range:
    """The CUDA devices whose generators this process may draw from: none where CUDA has not begun in it. Given these,
    ``torch.random.fork_rng`` does not begin it for what runs on the CPU, as it does by itself where there is a device:
    that takes seconds and memory, and no process can be forked from this one any more."""
    return range(torch.cuda.device_count() if torch.cuda.is_initialized() else 0)  # type: ignore[no-untyped-call]


@contextmanager
def kept_generators() -> Iterator[None]:
    """The generators that ``seed_all`` seeds are left as they were."""
    states = GeneratorStates.now()
    try:
        yield
    finally:
        states.restore()


def same(first: Sequence[Tensor], second: Sequence[Tensor]) -> bool:
    """The same shapes, dtypes, layouts and bits, so that NaN agrees with NaN. Tensors of tensors: shapes only."""
    return len(first) == len(second) and all(map(_same, first, second))


def _same(a: Tensor, b: Tensor) -> bool:
    if (a.shape, a.dtype, a.layout) != (b.shape, b.dtype, b.layout):
        return False
    if a.is_quantized:
        return _same_bits(a.dequantize(), b.dequantize())
    if _is_dense(a):
        return _same_bits(a, b)
    one, other = stored(a), stored(b)
    return one[0].layout is not torch.strided or same(one, other)


def _same_bits(a: Tensor, b: Tensor) -> bool:
    return torch.equal(_bytes(a), _bytes(b))


def _bytes(tensor: Tensor) -> Tensor:
    return as_bytes(tensor.detach().resolve_conj().resolve_neg())


def _all_zero(tensors: Sequence[Tensor]) -> bool:
    numeric = [tensor for tensor in tensors if _is_numeric(tensor) and tensor.numel() > 0]
    return bool(numeric) and not any(bool(_computable(tensor).any()) for tensor in numeric)


def _computable(tensor: Tensor) -> Tensor:
    """The same values in a type in which torch computes: it does little in floating point of 8 bits."""
    return tensor.float() if tensor.is_floating_point() and tensor.element_size() == 1 else tensor


def _is_dense(tensor: Tensor) -> bool:
    return tensor.layout is torch.strided and not tensor.is_quantized


def _is_numeric(tensor: Tensor) -> bool:
    return _is_dense(tensor) and (tensor.is_floating_point() or tensor.is_complex())


def changes_arguments(before: Inputs, after: Inputs) -> bool:
    """Whether a call left other values in its arguments than there were: in tensors, arrays, lists, counters, objects.
    ``before``, ``after``: copies of one call, made in the same way."""
    held, left = (taken_apart((each.args, dict(each.kwargs))) for each in (before, after))
    return Structure.of(held) != Structure.of(left) or not same(tensors_in(held), tensors_in(left))


def _input_notes(observed: _ObservedCall, *, changed: bool) -> Iterator[str]:
    arguments = observed.before.tensors()
    if changed:
        yield "The forward pass changes its inputs in place: callers that use them afterwards see the change."
    if any(tensor.requires_grad for tensor in arguments):
        yield "An input requires gradients; trials run without them."


def _alias_notes(module: nn.Module, first: _ObservedCall, second: _ObservedCall) -> Iterator[str]:
    outputs = _storages(_numbers(first.output))
    if outputs & _storages(first.after.tensors()):
        yield "An output shares memory with an input."
    if outputs & _storages([*module.parameters(), *module.buffers()]):
        yield "An output shares memory with a parameter or a buffer of the module."
    elif outputs & _storages(_numbers(second.output)):
        yield "Outputs of two calls share memory."


def _storages(tensors: Sequence[Tensor]) -> set[int]:
    return {t.untyped_storage().data_ptr() for t in tensors if _is_dense(t) and t.numel() > 0}


def _parameter_notes(once: Sequence[str]) -> Iterator[str]:
    if once:
        yield (
            f"After a call its parameters ({few_of(once)}) are not what was handed over, and later calls leave them so"
            ": what is tuned is the module after its first call."
        )


def _change_notes(changed: list[str], *, repeatable: bool, seeded: bool, differs: bool) -> Iterator[str]:
    if changed:
        effect = "the output depends on earlier calls" if not repeatable else "the output does not depend on it"
        yield f"The forward pass updates buffers ({few_of(changed)}); {effect}."
    if seeded and differs:
        yield "The output is random: calls with other seeds differ, so it is compared with the same seed."
    elif not seeded:
        yield "Two calls with the same input and the same seed differ, so its output cannot be compared bit by bit."
