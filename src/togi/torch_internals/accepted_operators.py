"""Operators that a graph in a file may call: those that a capture of a model holds, and no others.

torch registers some 1,700 operators under ``aten``. What people call is checked by torch: it raises where an argument
makes no sense. Many of the others trust their arguments, because torch itself calls them after it has checked: given
wrong ones, they read and write memory that is not theirs, in silence. A file of somebody else must not reach them.

``torch.export`` records what Python called, so a capture holds torch's public functions and the few private ones that
torch's own Python calls (``_PRIVATE``). Of the public ones, these are left out: backward passes, which no inference
holds; layouts whose indices nobody checks again (sparse, nested); kernels of one library; and functions that change
storages, take packed weights, or touch files.

This is not a sandbox. torch does not promise that its public functions are safe against hostile arguments.

Behind it: torch._C._VariableFunctions, torch._C._nn, _linalg, _fft, _special (the bindings that are generated for the
public functions; torch 2.9 to 2.15), torch._C._dispatch_get_all_op_names. When they go: the names in ``torch``,
``torch.Tensor``, ``torch.nn.functional`` and their kind.
"""

from __future__ import annotations

import functools
import re

import torch

# fmt: off
_PRIVATE = frozenset("""
    __and__ __or__ __xor__ __lshift__ __rshift__ __iand__ __ior__ __ixor__ __ilshift__ __irshift__
    _adaptive_avg_pool2d _adaptive_avg_pool3d _add_relu _addmm_activation _aminmax _assert_async _assert_scalar
    _assert_tensor_metadata _batch_norm_impl_index _batch_norm_no_update _batch_norm_with_update
    _batch_norm_with_update_functional _cdist_forward _compute_linear_combination _conj _conj_physical _conv_depthwise2d
    _convolution _convolution_mode _dim_arange _embedding_bag _embedding_bag_forward_only _euclidean_dist _fft_c2c
    _fft_c2r _fft_r2c _functional_assert_async _functional_assert_scalar _functional_sym_constrain_range
    _functional_sym_constrain_range_for_size _fused_rms_norm _grouped_mm _int_mm _is_all_true _is_any_true
    _linalg_check_errors _linalg_det _linalg_eigh _linalg_eigvals _linalg_slogdet _linalg_solve_ex _linalg_svd
    _local_scalar_dense _log_softmax _logcumsumexp _native_batch_norm_legit _native_batch_norm_legit_functional
    _native_batch_norm_legit_no_training _native_multi_head_attention _neg_view _pack_padded_sequence _pad_circular
    _pad_enum _pad_packed_sequence _pdist_forward _prelu_kernel _safe_softmax _scaled_dot_product_attention_math
    _scaled_dot_product_cudnn_attention _scaled_dot_product_efficient_attention _scaled_dot_product_flash_attention
    _scaled_dot_product_flash_attention_for_cpu _scaled_grouped_mm _scaled_mm _shape_as_tensor _softmax _stack _to_copy
    _transformer_encoder_layer_fwd _trilinear _unique _unique2 _unsafe_index _unsafe_index_put _unsafe_masked_index
    _unsafe_masked_index_put_accumulate _unsafe_view _upsample_bicubic2d_aa _upsample_bilinear2d_aa
    _upsample_lanczos2d_aa _upsample_nearest_exact1d _upsample_nearest_exact2d _upsample_nearest_exact3d _weight_norm
    _weight_norm_interface
""".split())
"""What torch's own Python calls in a forward pass, or an older file form has in place of it."""
_OTHER_PUBLIC = frozenset("""
    alias copy index slice lift lift_fresh lift_fresh_copy fill zero uniform normal_functional exponential random
    nll_loss_forward nll_loss2d_forward log_sigmoid_forward slow_conv3d_forward unique_dim_consecutive sym_size
    sym_numel sym_stride sym_storage_offset sym_is_contiguous numpy_T matrix_H sym_constrain_range
    sym_constrain_range_for_size
""".split())
"""The names under which Python's operators and slices arrive, and forms of public functions without an argument."""
# fmt: on
_LEFT_OUT = re.compile(
    r".*(backward|sparse|nested|jagged|crow_|ccol_|quantize|_jvp).*"
    r"|(cudnn|miopen|mkldnn|fbgemm|mps|nnpack|quantized|fake_quantize|native_channel|segment|fractional)_.*"
    r"|(coalesce|indices|values|col_indices|row_indices|to_mkldnn|to_padded_tensor)(_copy)?"
    r"|(set|resize|resize_as|set_data|data|share_memory|record_stream|rename|requires_grad|retain_grad)_?"
    r"|from_file|ctc_loss|max_unpool[23]d|is_set_to|batch_norm_(stats|elemt|gather_stats\w*|update_stats)"
)
_OTHER_NAMESPACES = {
    "prims": frozenset({"convert_element_type", "device_put", "iota", "view_of", "broadcast_in_dim"}),
    "torchvision": frozenset({"nms", "roi_align", "roi_pool", "ps_roi_align", "ps_roi_pool", "deform_conv2d"}),
    "togi": frozenset({"recurrence"}),  # of its rewrites
}
_WRITTEN_IN_PYTHON = frozenset({"quantized_decomposed"})
"""Their operators are made of ``aten``'s public ones."""


def is_accepted(namespace: str, name: str, overload: str) -> bool:
    """Return whether a file may call the operator ``torch.ops.<namespace>.<name>.<overload>``."""
    if namespace == "aten":
        return _is_captured(name) and f"aten::{name}{'' if overload == 'default' else '.' + overload}" in _dispatched()
    return namespace in _WRITTEN_IN_PYTHON or name in _OTHER_NAMESPACES.get(namespace, ())


def _is_captured(name: str) -> bool:
    if name in _PRIVATE or name in _OTHER_PUBLIC:
        return True
    return not name.startswith("_") and name in _public() and not _LEFT_OUT.fullmatch(name)


@functools.cache
def _dispatched() -> frozenset[str]:
    """Operators with kernels; TorchScript's own functions (``aten::save``) have none."""
    return frozenset(torch._C._dispatch_get_all_op_names())


@functools.cache
def _public() -> frozenset[str]:
    """Public functions by the names of their operators: ``torch.linalg.inv`` is ``linalg_inv``."""
    own = [getattr(torch._C, name) for name in ("_VariableFunctions", "_nn", "_linalg", "_fft", "_special")]
    return frozenset(name for binding in (torch.Tensor, *own) for name in dir(binding))
