"""``togi::recurrence``: one recurrent layer, all steps at once.

Registered with torch.library, so that torch.compile and torch.export keep it as one node; as an operator of the CPU,
since ``custom_op`` adds 35 us to a call (two cores of an EPYC, torch 2.14). Computed by a compiled kernel; where there
is none, step by step in torch.
"""

from __future__ import annotations

import functools
import warnings

import torch
from torch import Tensor

from togi.ops.kernels.library import KernelUnavailableError
from togi.ops.kernels.recurrence import GATES, RecurrentLayer, packed_shape, run, unpack


def recurrence(
    inputs: Tensor,
    hidden: Tensor,
    cell: Tensor | None,
    input_weights: Tensor,
    state_weights: Tensor,
    bias: Tensor,
    kind: str,
    batch_first: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """Outputs of all steps, the last hidden state, and the last cell (of an LSTM; else of size 0). Float32 on the CPU.

    Args:
        inputs: ``[steps, batch, features]``, with ``batch_first`` ``[batch, steps, features]``; the outputs likewise.
        hidden, cell: first states, ``[directions, batch, units]``.
        input_weights, state_weights, bias: as in ``kernels.recurrence.Layer``.
        kind: ``lstm``, ``gru``, ``rnn_tanh`` or ``rnn_relu``.

    Raises ValueError where these do not fit together, RuntimeError where a gradient is wanted for any of them.
    """
    given = (inputs, hidden, cell, input_weights, state_weights, bias)
    if torch.is_grad_enabled() and any(tensor is not None and tensor.requires_grad for tensor in given):
        raise RuntimeError("togi::recurrence has no gradient: call it under torch.no_grad(), or the original to train")
    layer = RecurrentLayer(kind, input_weights.contiguous(), state_weights.contiguous(), bias.contiguous())
    _check(layer, inputs, hidden, cell, batch_first)
    inputs = inputs if inputs.stride(-1) == 1 else inputs.contiguous()
    outputs, last, last_cell = _results(inputs, hidden, cell)
    by_step, to = (inputs.transpose(0, 1), outputs.transpose(0, 1)) if batch_first else (inputs, outputs)
    states, results = (hidden.contiguous(), None if cell is None else cell.contiguous()), (to, last, last_cell)
    try:
        run(layer, by_step, states, results)
    except KernelUnavailableError as error:
        _tell(str(error))
        _run_in_torch(layer, by_step, states, results)
    return outputs, last, last_cell


def _shapes(inputs: Tensor, hidden: Tensor, cell: Tensor | None, *_constants: object) -> tuple[Tensor, Tensor, Tensor]:
    return _results(inputs, hidden, cell)


_LIBRARY = torch.library.Library("togi", "FRAGMENT")  # type: ignore[no-untyped-call]
_LIBRARY.define(  # type: ignore[no-untyped-call]
    "recurrence(Tensor inputs, Tensor hidden, Tensor? cell, Tensor input_weights, Tensor state_weights, Tensor bias, "
    "str kind, bool batch_first) -> (Tensor, Tensor, Tensor)"
)
_LIBRARY.impl("recurrence", recurrence, "CPU")  # type: ignore[no-untyped-call]
torch.library.register_fake("togi::recurrence", _shapes, lib=_LIBRARY)


def _results(inputs: Tensor, hidden: Tensor, cell: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    directions, _, units = hidden.shape
    outputs = inputs.new_empty((*inputs.shape[:2], directions * units))
    return outputs, hidden.new_empty(hidden.shape), hidden.new_empty((0,) if cell is None else cell.shape)


def _check(layer: RecurrentLayer, inputs: Tensor, hidden: Tensor, cell: Tensor | None, batch_first: bool) -> None:
    """The kernel checks none of its arguments."""
    kind = layer.kind
    if kind not in GATES:
        raise ValueError(f"the kind {kind!r} is unknown; it can be {', '.join(GATES)}")
    if hidden.dim() != 3 or inputs.dim() != 3:
        raise ValueError(f"inputs {list(inputs.shape)} and state {list(hidden.shape)} need three dimensions each")
    directions, batch, units = hidden.shape
    features = inputs.shape[2]
    if not 1 <= directions <= 2 or units == 0 or features == 0:
        raise ValueError(
            f"inputs {list(inputs.shape)} and state {list(hidden.shape)} are of no layer: one has one or two "
            "directions, features and units"
        )
    wanted = {
        "inputs": (inputs, (batch, inputs.shape[1], features) if batch_first else (inputs.shape[0], batch, features)),
        "cell": (cell, (directions, batch, units) if kind == "lstm" else None),
        "input_weights": (layer.input_weights, packed_shape(kind, directions, units, features)),
        "state_weights": (layer.state_weights, packed_shape(kind, directions, units, units)),
        "bias": (layer.bias, (directions, GATES[kind] + 1, units)),
    }
    for name, (tensor, shape) in wanted.items():
        actual = None if tensor is None else tuple(tensor.shape)
        if actual != shape:
            raise ValueError(
                f"{name} of a {kind}: the shape is {actual}, and a state {list(hidden.shape)} needs {shape}"
            )
    for tensor in (inputs, hidden, cell, layer.input_weights, layer.state_weights, layer.bias):
        if tensor is not None and (tensor.dtype, tensor.device.type) != (torch.float32, "cpu"):
            raise ValueError(f"it is computed in float32 on the CPU, and was given {tensor.dtype} on {tensor.device}")


@functools.cache
def _tell(reason: str) -> None:
    """Once."""
    warnings.warn(
        f"the compiled kernel of recurrent layers is not there ({reason}): they are computed step by step in torch, "
        "which is right and slow",
        RuntimeWarning,
        stacklevel=2,
    )


def _run_in_torch(
    layer: RecurrentLayer,
    inputs: Tensor,
    states: tuple[Tensor, Tensor | None],
    results: tuple[Tensor, Tensor, Tensor],
) -> None:
    """The same as ``kernels.recurrence.run``."""
    outputs, last, last_cell = results
    units = states[0].shape[2]
    of_inputs = unpack(layer.input_weights, units, inputs.shape[2])
    of_state = unpack(layer.state_weights, units, units)
    for direction, (input_weight, state_weight, bias) in enumerate(zip(of_inputs, of_state, layer.bias, strict=True)):
        products = inputs @ input_weight.t() + bias[:-1].flatten()
        hidden, cell = states[0][direction], None if states[1] is None else states[1][direction]
        for step in range(len(inputs)) if direction == 0 else reversed(range(len(inputs))):
            product = hidden @ state_weight.t()
            if layer.kind == "lstm":
                assert cell is not None  # checked
                into, forget, candidate, out = (products[step] + product).chunk(4, -1)
                cell = forget.sigmoid() * cell + into.sigmoid() * candidate.tanh()
                hidden = out.sigmoid() * cell.tanh()
            elif layer.kind == "gru":
                reset, update, new = products[step].chunk(3, -1)
                of_reset, of_update, of_new = product.chunk(3, -1)
                new = (new + (reset + of_reset).sigmoid() * (of_new + bias[-1])).tanh()
                hidden = new + (update + of_update).sigmoid() * (hidden - new)
            else:
                hidden = products[step] + product
                hidden = hidden.tanh() if layer.kind == "rnn_tanh" else hidden.relu()
            outputs[step, :, direction * units : (direction + 1) * units] = hidden
        last[direction] = hidden
        if cell is not None:
            last_cell[direction] = cell
