"""Names that PyTorch no longer has, or never had though advice names them, and what to write instead."""

from __future__ import annotations

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
