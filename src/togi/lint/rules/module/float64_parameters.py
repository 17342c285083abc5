"""The rule ``float64-parameters``."""

from __future__ import annotations

from collections.abc import Iterable

from togi.core.quantities import percent, plural, size
from togi.lint.finding import Cost, Finding
from togi.lint.module.context import ModuleContext, layers
from togi.lint.rule import ModuleRule

LEAST_BYTES = 64 * 2**10
LEAST_SHARE = 0.01


class Float64Parameters(ModuleRule):
    """Parameters or buffers are in float64.

    What it reports: float64 tensors of a module, where they hold at least 64 KiB or make 1 % of the bytes that a pass
    moves float64.

    Why it costs: twice the memory and twice the bytes to move; on GPUs arithmetic at 1/2 (data center) to 1/64 (others)
    of the float32 rate. One such tensor makes everything computed from it float64 too.

    When it stays silent: a few small float64 tensors, such as running counters, that do not spread.

    Example: ``self.scale = nn.Parameter(torch.from_numpy(np.ones(512)))``: NumPy's default is float64.

    Use instead: ``torch.from_numpy(array).float()``, ``torch.tensor(values, dtype=torch.float32)``, or
    ``module.float()``.

    Source: https://docs.pytorch.org/docs/stable/tensor_attributes.html, "torch.dtype" and type promotion.
    """

    id = "float64-parameters"

    def check(self, context: ModuleContext) -> Iterable[Finding]:
        tensors = [*context.module.named_parameters(), *context.module.named_buffers()]
        wide = {name: tensor for name, tensor in tensors if str(tensor.dtype) == "torch.float64"}
        held_bytes = sum(tensor.nbytes for tensor in wide.values())
        values = [value for call in context.forward.calls if not call.view for value in call.outputs]
        moved = sum(value.bytes for value in values)
        spread = sum(value.bytes for value in values if value.dtype == "float64") / moved if moved else 0.0
        if not wide or (held_bytes < LEAST_BYTES and spread < LEAST_SHARE):
            return
        yield Finding(
            rule=self.id,
            layer=next(iter(wide)).rpartition(".")[0],
            count=len(wide),
            message=f"{plural(len(wide), 'tensor')} of the module in float64.",
            evidence=f"{layers(wide)}: {size(held_bytes)}; {percent(spread)} of what the pass writes is float64.",
            remedy="Make them float32 where they are made (from_numpy(...).float()), or call float() on the module; "
            "keep float64 only where the precision was shown to be needed.",
            cost=Cost(text=f"{size(held_bytes / 2)} more than in float32", measured=False, bytes=held_bytes // 2),
        )
