"""The claim that ``disable_saved_tensors_hooks`` saves memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from togi.claims.claim import Claim, ClaimVerdict, Measured, MeasuredClaim
from togi.core.quantities import size

if TYPE_CHECKING:
    import torch

_LAYERS, _WIDTH, _ROWS = 8, 512, 16_384
_NOTICEABLE = 0.02
"""A smaller share of the peak is not a saving."""
_FORBIDDEN = "saved-tensor hooks are disabled"
"""What the context raises when hooks are installed under it."""

PLAIN = "forward and backward"
DISABLED = "the same under disable_saved_tensors_hooks"
CHECKPOINTED = "checkpoint"
OFFLOADED_DISABLED = "save_on_cpu under disable_saved_tensors_hooks"
CHECKPOINTED_DISABLED = "checkpoint under disable_saved_tensors_hooks"
UNRECORDED = "forward alone, under no_grad"


class SavedTensorsHooksDisabled(Claim):
    """``torch.autograd.graph.disable_saved_tensors_hooks`` is said to reduce what a forward pass keeps.

    What is claimed: wrapping a forward pass in ``disable_saved_tensors_hooks("...")`` keeps autograd from saving
    tensors, and so saves memory and time.

    What is measured: forward and backward of eight linear layers with GELU, plainly, under the context, and with what
    is known to save memory (``checkpoint``, ``no_grad``); then ``checkpoint`` and ``save_on_cpu`` under the context.

    What is known: the context changes nothing about what is kept. It makes *installing* saved-tensor hooks raise, so
    that code which cannot work under them fails early; non-reentrant checkpointing and ``save_on_cpu``, which do save
    memory, are hooks, and fail under it. Use ``torch.no_grad()`` where no gradient is needed, else ``checkpoint``.

    Source: https://docs.pytorch.org/docs/stable/autograd.html (torch.autograd.graph.disable_saved_tensors_hooks).
    """

    id: ClassVar[str] = "disable-saved-tensors-hooks"

    def prove(self) -> MeasuredClaim:
        from togi.claims.contest import contest, row

        rows = contest(_ways())
        return MeasuredClaim(
            claim=self.id,
            setting=f"{_LAYERS} x (Linear({_WIDTH}, {_WIDTH}) + GELU), {_ROWS:,} rows, float32",
            rows=rows,
            **judge(row(rows, PLAIN), row(rows, DISABLED), row(rows, CHECKPOINTED_DISABLED)),
        )


def judge(plain: Measured, disabled: Measured, forbidden: Measured) -> dict[str, Any]:
    if plain.peak_bytes is None or disabled.peak_bytes is None:
        return {"verdict": ClaimVerdict.UNTESTED, "sentence": f"It did not run here: {plain.note or disabled.note}"}
    saved = plain.peak_bytes - disabled.peak_bytes
    figures = f"the peak is {size(plain.peak_bytes)} without it and {size(disabled.peak_bytes)} with it"
    if saved > _NOTICEABLE * plain.peak_bytes:
        return {"verdict": ClaimVerdict.HOLDS, "sentence": f"It saves {size(saved)}: {figures}."}
    also = " Checkpointing, which does save memory, is what it forbids." if _FORBIDDEN in forbidden.note else ""
    return {"verdict": ClaimVerdict.REFUTED, "sentence": f"It saves nothing: {figures}.{also}"}


def _ways() -> dict[str, Any]:
    import torch
    from torch import nn
    from torch.autograd.graph import disable_saved_tensors_hooks, save_on_cpu
    from torch.utils.checkpoint import checkpoint

    torch.manual_seed(0)
    blocks = nn.ModuleList(nn.Sequential(nn.Linear(_WIDTH, _WIDTH), nn.GELU()) for _ in range(_LAYERS))
    rows = torch.randn(_ROWS, _WIDTH)

    def forward() -> torch.Tensor:
        activations = rows
        for block in blocks:
            activations = block(activations)
        return activations.sum()

    def checkpointed() -> torch.Tensor:
        activations = rows
        for block in blocks:
            activations = checkpoint(block, activations, use_reentrant=False)
        return activations.sum()

    def disabled(run: Any) -> Any:
        with disable_saved_tensors_hooks(_FORBIDDEN):
            return run()

    def offloaded() -> torch.Tensor:
        with save_on_cpu():
            return forward()

    return {
        PLAIN: lambda: _train(forward, blocks),
        DISABLED: lambda: disabled(lambda: _train(forward, blocks)),
        # these two raise at once where the context forbids them: asked before the time is spent
        CHECKPOINTED_DISABLED: lambda: disabled(lambda: _train(checkpointed, blocks)),
        OFFLOADED_DISABLED: lambda: disabled(lambda: _train(offloaded, blocks)),
        CHECKPOINTED: lambda: _train(checkpointed, blocks),
        UNRECORDED: torch.no_grad()(forward),
    }


def _train(loss: Any, blocks: torch.nn.Module) -> None:
    loss().backward()
    blocks.zero_grad()
