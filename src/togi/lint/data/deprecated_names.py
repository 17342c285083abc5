"""Deprecated and removed names of PyTorch and torchvision, each with its successor.

Also names that PyTorch never had though advice names them, and what to write instead.

Facts from the installed packages' warnings and documentation (torch 2.15, torchvision 0.29);
``tests/lint/rules/test_source_deprecated_function.py`` asks the installed ones again.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Deprecated:
    """A name that should not be used any more."""

    name: str
    successor: str
    """Dotted name of what stands in for it."""
    instead: str
    """How a call is written with the successor."""
    drop_in: bool = False
    """Whether the successor takes the same arguments and does the same, so that changing the name is enough."""
    removed: bool = False
    """Whether it raises when it is called."""
    documented: bool = False
    """Deprecated by its documentation alone: using it warns of nothing."""
    keywords: bool = True
    """Whether the successor's parameters have the same names, so that calls with keywords can be rewritten too."""
    private: bool = False
    """Not deprecated, but private, and its successor is the public name."""


def _renamed(name: str, successor: str, *, documented: bool = False, keywords: bool = True) -> Deprecated:
    return Deprecated(name, successor, f"{successor}(...)", drop_in=True, documented=documented, keywords=keywords)


def _removed(name: str, successor: str, instead: str) -> Deprecated:
    return Deprecated(name, successor, instead, removed=True)


_INITIALISERS = """uniform normal constant eye dirac xavier_uniform xavier_normal kaiming_uniform kaiming_normal
    orthogonal sparse""".split()
_TRANSFORMS = ("vmap", "grad", "vjp", "jvp", "jacrev", "jacfwd", "hessian", "functionalize")

_LINEAR_ALGEBRA = (
    _removed("torch.solve", "torch.linalg.solve", "torch.linalg.solve(A, B) (the arguments change places; no LU)"),
    _removed("torch.symeig", "torch.linalg.eigh", "torch.linalg.eigh(A) or torch.linalg.eigvalsh(A)"),
    _removed("torch.eig", "torch.linalg.eig", "torch.linalg.eig(A), which returns complex tensors"),
    _removed("torch.matrix_rank", "torch.linalg.matrix_rank", "torch.linalg.matrix_rank(A, hermitian=...)"),
    _removed("torch.lstsq", "torch.linalg.lstsq", "torch.linalg.lstsq(A, B).solution (the arguments change places)"),
    _removed("torch.qr", "torch.linalg.qr", 'torch.linalg.qr(A), with mode="complete" for some=False'),
    _removed("torch.cholesky", "torch.linalg.cholesky", "torch.linalg.cholesky(A), and .mH of it for upper=True"),
    Deprecated("torch.chain_matmul", "torch.linalg.multi_dot", "torch.linalg.multi_dot([A, B, ...])"),
    Deprecated("torch.lu", "torch.linalg.lu_factor", "LU, pivots = torch.linalg.lu_factor(A)"),
    Deprecated(
        "torch.lu_solve",
        "torch.linalg.lu_solve",
        "torch.linalg.lu_solve(LU, pivots, B) (the order of the arguments changes)",
    ),
    Deprecated(
        "torch.triangular_solve",
        "torch.linalg.solve_triangular",
        "torch.linalg.solve_triangular(A, B, upper=...) (the arguments change places, upper must be given)",
    ),
    Deprecated(
        "torch.norm",
        "torch.linalg.vector_norm",
        "torch.linalg.vector_norm(x, ord, dim) for vectors, torch.linalg.matrix_norm for matrices",
        documented=True,
    ),
    Deprecated(
        "torch.svd",
        "torch.linalg.svd",
        "U, S, Vh = torch.linalg.svd(A, full_matrices=False), which returns V transposed",
        documented=True,
    ),
    _renamed("torch.ger", "torch.outer", documented=True),
    Deprecated("torch.range", "torch.arange", "torch.arange(start, end + step, step), whose end is exclusive"),
)

_LAYERS = (
    Deprecated(
        "torch.nn.UpsamplingNearest2d", "torch.nn.Upsample", 'torch.nn.Upsample(..., mode="nearest")', documented=True
    ),
    Deprecated(
        "torch.nn.UpsamplingBilinear2d",
        "torch.nn.Upsample",
        'torch.nn.Upsample(..., mode="bilinear", align_corners=True)',
        documented=True,
    ),
    _renamed("torch.nn.functional.upsample", "torch.nn.functional.interpolate"),
    _renamed("torch.nn.functional.upsample_nearest", "torch.nn.functional.interpolate"),
    Deprecated(
        "torch.nn.functional.upsample_bilinear",
        "torch.nn.functional.interpolate",
        'torch.nn.functional.interpolate(..., mode="bilinear", align_corners=True)',
    ),
    _renamed("torch.nn.NLLLoss2d", "torch.nn.NLLLoss"),
    _renamed("torch.nn.utils.clip_grad_norm", "torch.nn.utils.clip_grad_norm_"),
    Deprecated(
        "torch.nn.utils.weight_norm",
        "torch.nn.utils.parametrizations.weight_norm",
        "torch.nn.utils.parametrizations.weight_norm(module) (names in state_dict change)",
    ),
    _renamed("torch.nn.utils.stateless.functional_call", "torch.func.functional_call", keywords=False),
    Deprecated(
        "torch.nn.Module.register_backward_hook",
        "torch.nn.Module.register_full_backward_hook",
        "register_full_backward_hook(...), whose gradients are those of the whole module",
        documented=True,
    ),
    *(_renamed(f"torch.nn.init.{name}", f"torch.nn.init.{name}_") for name in _INITIALISERS),
)

_SYSTEM = (
    _renamed("torch.cuda.memory_cached", "torch.cuda.memory_reserved"),
    _renamed("torch.cuda.max_memory_cached", "torch.cuda.max_memory_reserved"),
    _renamed("torch.cuda.reset_max_memory_allocated", "torch.cuda.reset_peak_memory_stats"),
    _renamed("torch.cuda.reset_max_memory_cached", "torch.cuda.reset_peak_memory_stats"),
    _renamed("torch.accelerator.current_device_idx", "torch.accelerator.current_device_index"),
    _renamed("torch.accelerator.set_device_idx", "torch.accelerator.set_device_index"),
    _renamed("torch.library.impl_abstract", "torch.library.register_fake", keywords=False),
    Deprecated(
        "torch.backends.cuda.sdp_kernel",
        "torch.nn.attention.sdpa_kernel",
        "torch.nn.attention.sdpa_kernel(SDPBackend.FLASH_ATTENTION)",
    ),
    Deprecated(
        "torch.set_default_tensor_type",
        "torch.set_default_dtype",
        "torch.set_default_dtype(...) and torch.set_default_device(...)",
    ),
    Deprecated(
        "torch.testing.assert_allclose",
        "torch.testing.assert_close",
        "torch.testing.assert_close(actual, expected), which compares dtypes too",
    ),
    Deprecated(
        "torch.autograd.Variable",
        "torch.tensor",
        "the tensor itself: tensors record gradients since torch 0.4",
        documented=True,
    ),
    Deprecated(
        "torch.distributed.checkpoint.save_state_dict",
        "torch.distributed.checkpoint.save",
        "torch.distributed.checkpoint.save(state_dict, storage_writer=...)",
    ),
    Deprecated(
        "torch.distributed.checkpoint.load_state_dict",
        "torch.distributed.checkpoint.load",
        "torch.distributed.checkpoint.load(state_dict, storage_reader=...)",
    ),
)

_OTHER = (
    *(_renamed(f"functorch.{name}", f"torch.func.{name}") for name in _TRANSFORMS),
    Deprecated(
        "functorch.make_functional",
        "torch.func.functional_call",
        "torch.func.functional_call(module, parameters, arguments)",
    ),
    Deprecated(
        "torch._vmap_internals.vmap",
        "torch.vmap",
        "torch.vmap(...), which refuses random operations unless randomness= allows them",
    ),
    *(
        Deprecated(
            f"torch.utils.data._utils.collate.{name}",
            f"torch.utils.data.{name}",
            f"torch.utils.data.{name}(...)",
            drop_in=True,
            private=True,
        )
        for name in ("default_collate", "default_convert")
    ),
    Deprecated(
        "torch.utils._pytree._register_pytree_node",
        "torch.utils._pytree.register_pytree_node",
        "torch.utils._pytree.register_pytree_node(...)",
        private=True,
    ),
    Deprecated(
        "torchvision.transforms.v2.ToTensor",
        "torchvision.transforms.v2.ToImage",
        "v2.Compose([v2.ToImage(), v2.ToDtype(torch.float32, scale=True)])",
    ),
)

DEPRECATED = {entry.name: entry for entry in (*_LINEAR_ALGEBRA, *_LAYERS, *_SYSTEM, *_OTHER)}
"""By dotted name."""


GONE = {
    "torch.compiler.optimize": "torch.compile(model), for CUDA graph trees with mode='reduce-overhead'",
    "torch.dynamo": "torch.compile(model), and torch.compiler for what surrounds it",
    "torch.inductor": "torch.compile(model), whose default backend it is",
    "torch.rfft": "torch.fft.rfft or torch.fft.rfftn, which return complex tensors",
    "torch.irfft": "torch.fft.irfft or torch.fft.irfftn, which take complex tensors",
    "torch.ifft": "torch.fft.ifft or torch.fft.ifftn, which take complex tensors",
    "torch.gels": "torch.linalg.lstsq(A, B).solution (the arguments change places)",
    "torch.gesv": "torch.linalg.solve(A, B) (the arguments change places)",
    "torch.potrf": "torch.linalg.cholesky(A)",
    "torch.trtrs": "torch.linalg.solve_triangular(A, B, upper=...) (the arguments change places)",
    "torch.btrifact": "torch.linalg.lu_factor(A)",
    "torch.set_deterministic": "torch.use_deterministic_algorithms(...)",
    "torch.is_deterministic": "torch.are_deterministic_algorithms_enabled()",
    "torch._six": "the standard library: (str, bytes) for string_classes, collections.abc, torch.inf",
    "torch.utils.ffi": "torch.utils.cpp_extension",
    "torch.legacy": "torch.nn",
    "torch.profiler._pattern_matcher": "togi check, which has its patterns",
    "torch.onnx.dynamo_export": "torch.onnx.export(model, args, dynamo=True)",
    "torch.onnx.ExportOptions": "keyword arguments of torch.onnx.export(..., dynamo=True)",
    "torch.export.export_for_training": "torch.export.export(model, args)",
    "torch.export.export_for_inference": "torch.export.export(model, args).run_decompositions()",
    "torch._export.capture_pre_autograd_graph": "torch.export.export(model, args).module()",
    "torch.distributed.pipeline": "torch.distributed.pipelining",
    "torch.nn._functions": "torch.autograd.Function",
}
"""Advice by dotted name. A test asks the installed torch that none of them is there."""
