"""The rule ``synchronization``."""

from __future__ import annotations

from collections.abc import Iterable

from togi.core.quantities import plural, size
from togi.lint.finding import Finding, shown
from togi.lint.rule import TraceRule
from togi.lint.rules.trace._finding import finding
from togi.lint.trace.record import StepEvent, Trace, by_line, per_step, times, total, total_bytes

_REMEDIES = {
    "Tensor.item": "Keep it a tensor (detach() it), and read it once every many steps or after the loop.",
    "Tensor.tolist": "Compute with the tensor, or read all values at once after the loop.",
    "Tensor.cpu": "Move results once, after the loop; or cpu copies with non_blocking=True and one event to wait for.",
    "Tensor.__bool__": "Select with torch.where, or check every many steps; torch._assert_async does not wait.",
    "Tensor.__float__": "Keep it a tensor: arithmetic with a tensor without dimensions does not wait.",
    "Tensor.__int__": "Compute the number on the host from shapes, or keep it a tensor.",
    "Tensor.__index__": "Use a number that the host knows, or a mask of fixed size.",
    "Tensor.__format__": "Log every many steps, and from a value that was copied without blocking.",
    "Tensor.__repr__": "Print every many steps, or print shape and dtype, which the host knows.",
    "Tensor.__contains__": "Compare on the device: (x == value).any() stays a tensor.",
    "Tensor.masked_fill": "Use torch.where(mask, value, x): it takes a device value without reading it.",
    "Tensor.masked_fill_": "Use torch.where(mask, value, x): it takes a device value without reading it.",
    "torch.equal": "Use torch.eq(a, b).all() and keep it a tensor.",
    "torch.allclose": "Use torch.isclose(a, b).all() and keep it a tensor.",
    "torch.tensor": "Make it once in __init__ (register_buffer); torch.full and torch.arange with device= do not copy.",
    "torch.nonzero": "Use the mask itself (torch.where(mask, a, b), a product), or nonzero_static of a fixed size.",
    "torch.where": "Use the three-argument torch.where(mask, a, b), or torch.nonzero_static of a fixed size.",
    "torch.masked_select": "Multiply by the mask, or use torch.where(mask, x, 0): sums need no smaller tensor.",
    "torch.unique": "Count with scatter_add_ into a tensor of known size.",
    "torch.bincount": "Use zeros(n, device=x.device).scatter_add_(0, labels, ones), with n known.",
    "torch.repeat_interleave": "Pass output_size=, when the host knows the sum of the repeats.",
    "torch.nn.functional.one_hot": "Pass num_classes=.",
    "torch.histc": "Pass min= and max=.",
    "torch.linalg.inv": "Use torch.linalg.inv_ex: it does not wait for the error flag. Better: torch.linalg.solve_ex.",
    "torch.cuda.synchronize": "Leave it out: results are ready when they are read. For timing use torch.cuda.Event.",
    "torch.cuda.empty_cache": "Leave it out: the allocator gives the memory to the next tensor.",
}
_INDEX = "Use torch.where(mask, a, b) or a multiplication by the mask; positions that are on the device do not wait."
_HOST_INDEX = "Make the index once, on the device (register_buffer), and index with it."
_TO_DEVICE = (
    "Make it on the device (device=x.device) or once as a buffer; for batches use pinned memory and non_blocking=True."
)
_OTHER = "Compute with the tensor on the device, and read values once every many steps."


class Synchronization(TraceRule):
    """The host waits for the GPU in the middle of a step.

    What it reports: every line at which the host waited for the device in one watched step, with how often: values
    read by ``item``, ``tolist``, ``if``, ``print``; sizes that depend on values (``nonzero``, a boolean index);
    blocking copies in either direction; explicit calls. Without a GPU the run is simulated for CUDA; with one it is
    compared with ``torch.cuda.set_sync_debug_mode``.

    Why it costs: kernels are queued, and the host runs ahead. To wait empties the queue: afterwards the GPU idles until
    the host has launched the next kernels. A CUDA graph cannot hold it at all.

    When it stays silent: the tensor is on the CPU, or what is asked for is known without its values (``shape``,
    ``device``, ``len``). ``wait_stream`` and events that only streams wait for keep the host free. Copies that do not
    wait are left to ``copy-between-devices``.

    Example::

        if loss.isnan().any():
            raise FloatingPointError

    Use instead::

        torch._assert_async(~loss.isnan().any(), "the loss is NaN")

    Source: https://docs.pytorch.org/docs/stable/generated/torch.cuda.set_sync_debug_mode.html;
    https://docs.pytorch.org/tutorials/recipes/recipes/tuning_guide.html#avoid-unnecessary-cpu-gpu-synchronization;
    what it knows and the debug mode does not, and the other way round: docs/trace.md
    """

    id = "synchronization"

    def check(self, trace: Trace) -> Iterable[Finding]:
        for events in by_line(event for event in trace.events if event.waits):
            first, count, moved = events[0], total(events), total_bytes(events)
            copied = f"; {size(moved)} copied" if moved else ""
            wait = finding(
                self.id,
                events,
                trace,
                message=f"{first.op} makes the host wait for the GPU, {times(count)} {per_step(trace)}: {first.why}.",
                remedy=_remedy(first),
                cost=f"{plural(count, 'synchronisation')} {per_step(trace)}, counted{copied}",
                moved=moved or None,
            )
            if any(event.seen_by_debug_mode for event in events):
                yield wait
            else:
                unseen = f"{wait.evidence}\ntorch.cuda.set_sync_debug_mode does not report it."
                yield wait.model_copy(update={"evidence": unseen})


def _remedy(event: StepEvent) -> str:
    if event.op in _REMEDIES:
        return _REMEDIES[event.op]
    if event.op in ("Tensor.__getitem__", "Tensor.__setitem__"):
        return _HOST_INDEX if event.kind == "copy" else _INDEX
    if event.kind == "copy" and event.why.startswith("values are copied from"):
        return _TO_DEVICE
    if event.stack and event.op.startswith("torch.distributions"):
        return f"Pass validate_args=False where {shown(event.stack[0].path)} makes the distribution."
    return _OTHER
