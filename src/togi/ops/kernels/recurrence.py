"""Recurrent layers through the compiled kernel (``recurrence.cpp``), on float32 tensors of the CPU.

Threads are OpenMP's, so torch's own where its library is the only one of the process, and at most
``torch.get_num_threads()``. The interpreter is free meanwhile.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from togi.ops.kernels.library import KernelLibrary

RECURRENCE = KernelLibrary(Path(__file__).with_name("recurrence.cpp"), ("-fopenmp", "-ffp-contract=fast"))

GATES = {"lstm": 4, "gru": 3, "rnn_tanh": 1, "rnn_relu": 1}
"""By kind of layer: how many products of the state a step needs."""
LANES = 16
"""Units whose weights lie side by side."""
_UNROLLED = 4
"""The kernel takes several inputs at a time: their number is padded to a multiple of this."""
_KINDS = {kind: number for number, kind in enumerate(GATES)}
_NO_MEMORY = 2


def packed_shape(kind: str, directions: int, units: int, inputs: int) -> tuple[int, int, int, int, int]:
    """(directions, blocks of units, inputs, gates, units of a block)."""
    return directions, -(-units // LANES), -(-inputs // _UNROLLED) * _UNROLLED, GATES[kind], LANES


def pack(kind: str, weights: Sequence[Tensor]) -> Tensor:
    """One ``[gates * units, inputs]`` a direction, as the kernel reads them."""
    rows, inputs = weights[0].shape
    units = rows // GATES[kind]
    directions, blocks, depth, gates, lanes = packed_shape(kind, len(weights), units, inputs)
    padded = weights[0].new_zeros(directions, gates, blocks * lanes, depth)
    for direction, weight in enumerate(weights):
        padded[direction, :, :units, :inputs] = weight.reshape(gates, units, inputs)
    return padded.view(directions, gates, blocks, lanes, depth).permute(0, 2, 4, 1, 3).contiguous()


def unpack(packed: Tensor, units: int, inputs: int) -> list[Tensor]:
    """The layers that ``pack`` was given."""
    directions, blocks, depth, gates, lanes = packed.shape
    padded = packed.permute(0, 3, 1, 4, 2).reshape(directions, gates, blocks * lanes, depth)
    return list(padded[:, :, :units, :inputs].reshape(directions, gates * units, inputs))


class _Arguments(ctypes.Structure):
    """``TogiRecurrence``."""

    _fields_ = [
        *((name, ctypes.c_void_p) for name in ("inputs", "input_weights", "state_weights", "bias", "hidden", "cell")),
        *((name, ctypes.c_void_p) for name in ("outputs", "last_hidden", "last_cell")),
        *((name, ctypes.c_int64) for name in ("steps", "rows", "directions", "units", "features")),
        *((name, ctypes.c_int64) for name in ("input_depth", "state_depth")),
        *((name, ctypes.c_int64) for name in ("inputs_step", "inputs_row", "outputs_step", "outputs_row")),
        ("kind", ctypes.c_int32),
        ("threads", ctypes.c_int32),
    ]


class RecurrentLayer(NamedTuple):
    """Constants of one recurrent layer, contiguous."""

    kind: str
    input_weights: Tensor
    """From ``pack``, like those of the state."""
    state_weights: Tensor
    bias: Tensor
    """``[directions, gates + 1, units]``: the sum of a gate's two. The last, of a GRU alone, is the state's of its new
    value, which is added before the reset (and not in the sum of that gate)."""


def run(
    layer: RecurrentLayer,
    inputs: Tensor,
    states: tuple[Tensor, Tensor | None],
    results: tuple[Tensor, Tensor, Tensor],
) -> None:
    """Fills ``results``: of all steps ``[steps, rows, directions * units]`` and the last states (the cell of an
    LSTM alone).

    Args:
        inputs: ``[steps, rows, features]``; its last dimension is contiguous, as that of the outputs.
        states: hidden and, of an LSTM, cell: ``[directions, rows, units]``, contiguous like the last ones.

    Raises KernelUnavailableError and MemoryError. Nothing is checked here.
    """
    outputs, last_hidden, last_cell = results
    hidden, cell = states
    directions, rows, units = hidden.shape
    given = _Arguments(
        inputs=inputs.data_ptr(),
        input_weights=layer.input_weights.data_ptr(),
        state_weights=layer.state_weights.data_ptr(),
        bias=layer.bias.data_ptr(),
        hidden=hidden.data_ptr(),
        cell=None if cell is None else cell.data_ptr(),
        outputs=outputs.data_ptr(),
        last_hidden=last_hidden.data_ptr(),
        last_cell=last_cell.data_ptr(),
        steps=inputs.shape[0],
        rows=rows,
        directions=directions,
        units=units,
        features=inputs.shape[2],
        input_depth=layer.input_weights.shape[2],
        state_depth=layer.state_weights.shape[2],
        inputs_step=inputs.stride(0),
        inputs_row=inputs.stride(1),
        outputs_step=outputs.stride(0),
        outputs_row=outputs.stride(1),
        kind=_KINDS[layer.kind],
        threads=torch.get_num_threads(),
    )
    if RECURRENCE.get().togi_recurrence(ctypes.byref(given)) == _NO_MEMORY:
        raise MemoryError(f"togi_recurrence: no memory for {rows} sequences of {len(inputs)} steps and {units} units")
