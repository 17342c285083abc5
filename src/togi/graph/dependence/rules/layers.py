"""Layers: convolution, normalization, pooling, resampling, recurrence."""

from __future__ import annotations

from togi.graph.dependence.recording import RecordedTensor
from togi.graph.dependence.rules.registry import Answer, Operands, agreed, mixing, rule
from togi.graph.dependence.state import Depends, Rows, Same, Times, plain, quotient


@rule("convolution _convolution", sizes="groups")
def _convolution(given: Operands) -> Answer:
    state, weight = given.state("input"), given.state("weight")
    if isinstance(weight, Rows) and isinstance(state, Rows):
        return _of_each_row(given, state, weight)
    state = given.kept("input", [1])
    if not plain(given["groups"]):
        raise Depends(f"{given.call.name} has as many groups as there are rows")
    if state.dim > 1:
        place = state.dim - 2
        kernel = given["weight"].shape[state.dim]
        moved = [given[name][place if len(given[name]) > 1 else 0] for name in ("stride", "padding", "output_padding")]
        if kernel != 1 or moved != [1, 0, 0]:
            raise Depends(f"{given.call.name} takes neighbouring rows together")
    return state


def _of_each_row(given: Operands, state: Rows, weight: Rows) -> Answer:
    """A kernel for each row: rows are groups of channels (the modulated convolution of StyleGAN2)."""
    groups = given["groups"]
    whole = (state.dim, state.outer, weight.dim, weight.outer) == (1, 1, 0, 1) and not given["transposed"]
    if not (whole and given["bias"] is None and isinstance(groups, Times)):
        raise Depends(f"{given.call.name} takes rows together")
    if quotient(state.inner, groups.each) is None or quotient(weight.inner, groups.each) is None:
        raise Depends(f"{given.call.name} has groups of channels that hold several rows")
    return Rows(1, 1, weight.inner)


mixing("col2im", lambda _: [-2, -1])


@rule("native_group_norm", sizes="N HxW")
def _group_norm(given: Operands) -> Answer:
    """``N`` samples, which are the rows."""
    state = given.kept("input", range(1, len(given["input"].shape)))
    if state.times != given["N"]:
        raise Depends(f"{given.call.name} takes rows together")
    return state


@rule(
    "native_batch_norm _native_batch_norm_legit _native_batch_norm_legit_no_training _batch_norm_no_update "
    "_batch_norm_with_update _batch_norm_with_update_functional cudnn_batch_norm miopen_batch_norm batch_norm"
)
def _batch_norm(given: Operands) -> Answer:
    """Normalized by statistics that are given, or of each channel over all rows; there rows can only be channels."""
    name = "input" if given["input"] is not None else "self"
    state = given.state(name)
    always = given.call.name.endswith(("_no_training", "_no_update"))
    fixed = given["running_mean"] is not None and (always or given["training"] is False)
    unknown = [None] * (len(given.call.results) - 1)
    if fixed:
        return [given.kept(name, [1]), *unknown]
    per_channel = [given.states[v] for v in given.tensors() if v is not given[name]]
    alike = all(
        isinstance(statistic, Same) or (isinstance(state, Rows) and statistic == state.at(0))
        for statistic in per_channel
    )
    if not isinstance(state, Rows) or state.dim != 1 or not alike:
        raise Depends(f"{given.call.name} takes the statistics of all rows")
    return [state, *unknown]


_LAST = {
    1: "max_pool1d avg_pool1d adaptive_avg_pool1d adaptive_max_pool1d upsample_nearest1d _upsample_nearest_exact1d "
    "upsample_linear1d reflection_pad1d replication_pad1d max_pool1d_with_indices",
    2: "max_pool2d max_pool2d_with_indices avg_pool2d adaptive_avg_pool2d _adaptive_avg_pool2d adaptive_max_pool2d "
    "upsample_nearest2d _upsample_nearest_exact2d upsample_bilinear2d upsample_bicubic2d _upsample_bilinear2d_aa "
    "_upsample_bicubic2d_aa reflection_pad2d replication_pad2d",
    3: "max_pool3d max_pool3d_with_indices avg_pool3d adaptive_avg_pool3d _adaptive_avg_pool3d adaptive_max_pool3d "
    "upsample_nearest3d _upsample_nearest_exact3d upsample_trilinear3d reflection_pad3d replication_pad3d "
    "pixel_shuffle pixel_unshuffle im2col",
}
"""Operators that work on so many last dimensions, each of the others by itself."""


def _on_last(count: int) -> None:
    @rule(_LAST[count])
    def _last(given: Operands) -> Answer:
        name = "self" if given["self"] is not None else "input"
        return given.kept(name, range(-count, 0))


for _count in _LAST:
    _on_last(_count)


mixing("channel_shuffle native_channel_shuffle", lambda _: [1])


@rule("grid_sampler_2d grid_sampler_3d grid_sampler")
def _grid_sampler(given: Operands) -> Answer:
    return _first_of_all(given, [given["input"], given["grid"]])


@rule("torchvision::deform_conv2d")
def _deform(given: Operands) -> Answer:
    if any(isinstance(given.state(name), Rows) for name in ("weight", "bias")):
        raise Depends(f"{given.call.name} takes rows together")
    return _first_of_all(given, [given["input"], given["offset"], *([given["mask"]] if given["use_mask"] else [])])


def _first_of_all(given: Operands, values: list[RecordedTensor]) -> Answer:
    """Samples along dimension 0 of each of them."""
    states = {given.states[value] for value in values}
    together = agreed(given.call, list(states))
    if len(states) != 1 or not isinstance(together, Rows) or together.dim != 0:
        raise Depends(f"{given.call.name} takes rows together")
    return together


@rule("mkldnn_rnn_layer")
def _recurrent(given: Operands) -> Answer:
    """(time, rows, channels), with states of (rows, channels)."""
    if given["batch_sizes"]:
        raise Depends(f"{given.call.name} runs packed sequences")
    state = given.state("input")
    states = [given.state(name) for name in ("hx_", "cx_")]
    weights = [given.state(f"weight{i}") for i in range(4)]
    if not isinstance(state, Rows) or state.dim != 1 or any(isinstance(weight, Rows) for weight in weights):
        raise Depends(f"{given.call.name} takes rows together")
    first = [
        first_state.at(first_state.dim - (len(given[name].shape) - 2)) if isinstance(first_state, Rows) else first_state
        for name, first_state in zip(("hx_", "cx_"), states, strict=True)
    ]
    if any(first_state != state.at(0) for first_state in first):
        raise Depends(f"{given.call.name} takes rows together")
    ranks = [len(result.shape) for result in given.call.results[1:3]]
    return [state, *(state.at(rank - 2) for rank in ranks), *[None] * (len(given.call.results) - 3)]
