"""The original as the measure of what is right for a call: plain eager, float64, and copies moved by a rounding.

One stands for the whole proof of a recipe. What eager answered is kept, since its engine and the files of its fallback
are asked for the same values.
"""

from __future__ import annotations

import copy
import hashlib
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from togi.subject.inputs import Inputs
from togi.subject.plain_tensors import bits, plain
from togi.subject.signature import Signature
from togi.verify.float64 import float64_arithmetic, nudged, nudged_inputs, wide, widened, widened_inputs
from togi.verify.leaves import may_be_index
from togi.verify.observe import Observation, observe
from togi.verify.units import NUDGES_FEW

_KEPT_BYTES = 64 << 20
"""Of answers, all together."""
CPU_CANNOT = re.compile("allocate memory|not implemented for|on the same device")
"""What torch raises where the CPU cannot run a module of a GPU, whatever its values are."""


class CpuCannotTell(Exception):
    """Whether a call is legal cannot be asked without the risk that the device is lost."""


@dataclass
class Original:
    """``module``: repeatable, and without a state that calls change."""

    module: nn.Module
    signature: Signature
    seed: int
    varying: tuple[str, ...] = ()
    """As in ``TruthFacts``."""
    _answers: dict[bytes | None, Observation] = field(default_factory=dict)
    _kept_bytes: int = 0
    _wide: nn.Module | None = None
    _on_cpu: nn.Module | None = None

    def answer(self, given: Inputs) -> Observation:
        """Plain eager's. Raises what the original raises: such a call is illegal; CpuCannotTell as ``check``."""
        key = _values(given)
        if key in self._answers:
            return self._answers[key]
        self.check(given)
        seen = self.observe(self.module, given)
        if key is not None:
            self._keep(key, seen)
        return seen

    def observe(self, call: Callable[..., Any], given: Inputs) -> Observation:
        """A call of anything that should answer as the original does. Raises whatever ``call`` raises."""
        return observe(call, given, self.signature, seed=self.seed, varying=self.varying)

    def run(self, given: Inputs) -> None:
        """One call and nothing else, so that its operators can be watched. ``check`` it before."""
        self.module(*given.args, **given.kwargs)

    def run_in_float64(self, given: Inputs) -> None:
        """The same in float64."""
        wider = widened_inputs(given, self.signature.device)
        with float64_arithmetic():
            self._widened()(*wider.args, **wider.kwargs)

    def truth(self, given: Inputs, eager: Sequence[Tensor]) -> Sequence[Tensor]:
        """In float64; eager's own where that is none."""
        try:
            wider = widened_inputs(given, self.signature.device)
            with float64_arithmetic():
                seen = self.observe(self._widened(), wider)
        except Exception:  # foreign code: a forward may insist on its own dtype
            return [wide(e) for e in eager]
        return _of_shapes(seen, eager) or [wide(e) for e in eager]

    def nudged(self, given: Inputs, eager: Sequence[Tensor], *, inputs: bool, alike: bool) -> Iterator[list[Tensor]]:
        """Eager's answers with weights, and ``inputs``, moved by a rounding, equal values ``alike``; fewer where it
        does not take them."""
        for number in range(NUDGES_FEW):
            try:
                module = nudged(self.module, self.seed + number)
                asked = nudged_inputs(given, self.seed + number, alike=alike) if inputs else given
                leaves = _of_shapes(self.observe(module, asked), eager)
            except Exception:  # foreign code: a module may insist on exact values
                return
            if leaves:
                yield leaves

    def _keep(self, key: bytes, seen: Observation) -> None:
        """Copies, where there is room: a later call may write into what this one returned."""
        kept_bytes = self._kept_bytes + sum(leaf.nbytes for _, leaf in seen.leaves)
        if kept_bytes > _KEPT_BYTES:
            return
        self._kept_bytes = kept_bytes
        leaves = [(name, leaf.detach().clone()) for name, leaf in seen.leaves]
        self._answers[key] = replace(seen, output=None, leaves=leaves, inputs=[])

    def _widened(self) -> nn.Module:
        if self._wide is None:
            self._wide = widened(self.module, self.signature.device)
        return self._wide

    def check(self, given: Inputs) -> None:
        """Try a call of a GPU on the CPU first: an index out of range raises there, but on a GPU it ends the process's
        use of the device.

        Raises what the original raises; CpuCannotTell where the CPU cannot run it.
        """
        if self.signature.device == "cpu" or not any(map(may_be_index, given.tensors())):
            return
        try:
            if self._on_cpu is None:
                self._on_cpu = copy.deepcopy(self.module).to("cpu")
            on_cpu = given.to("cpu")
            self._on_cpu(*on_cpu.args, **on_cpu.kwargs)
        except (MemoryError, NotImplementedError) as error:
            raise CpuCannotTell from error
        except RuntimeError as error:
            if CPU_CANNOT.search(str(error)):
                raise CpuCannotTell from error
            raise


def _values(given: Inputs) -> bytes | None:
    """What tells calls apart that differ in sizes and values of tensors alone, bit by bit; None where a tensor has no
    bits of its own, as a nested one."""
    digest = hashlib.blake2b()
    for tensor in given.tensors():
        if tensor.layout is not torch.strided or tensor.is_nested:
            return None
        digest.update(str(tuple(tensor.shape)).encode())
        digest.update(bits(tensor))
    return digest.digest()


def _of_shapes(seen: Observation, like: Sequence[Tensor]) -> list[Tensor]:
    leaves = [plain(tensor) for _, tensor in seen.leaves]
    return leaves if [t.shape for t in leaves] == [t.shape for t in like] else []
