"""Compiles a module for a run on fake tensors: Inductor plans everything, and only its kernels are not built.

``torch.compile`` partitions, fuses and plans memory as always, and writes the program that would run: allocations,
kernel calls, reuse, ``del``. That program runs under the storage tracker, with allocations that it sees and kernels
that do nothing, so it keeps what the real one keeps. The CPU's program only: what Triton fuses for a GPU is another.

Source: torch/_inductor/codegen/wrapper.py (write_header: what the written program calls).
"""

from __future__ import annotations

import linecache
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Any

import torch
from torch import Tensor, nn

from togi.core.errors import SubjectError
from togi.core.quantities import first_line
from togi.core.user_code import user_frames
from togi.torch_internals.compiler import compilations, compile_error, compile_without_kernels
from togi.torch_internals.modules import Where

_KERNEL_CALL = re.compile(r"(?:cpp_fused\w*|(?:buf\d+ = )?(?:extern_kernels|torch\.ops|aten)\.[\w.]+)(?=\()")
_LINES_AHEAD = 40
"""How far behind an allocation the kernel is looked for that it is made for."""


@contextmanager
def compiled(module: nn.Module) -> Iterator[None]:
    """Inside, calls of the module are compiled, with stand-ins for kernels.

    What torch has compiled in this process is forgotten before and after, so that no stand-in is ever run for real.

    Raises:
        SubjectError: ``torch.compile`` fails on the module.
    """
    try:
        with compile_without_kernels(module, empty_strided=_empty_strided, reinterpret=_reinterpret, kernel=_no_kernel):
            yield
    except compile_error() as error:
        raise SubjectError(
            f"torch.compile fails on it, so there is no compiled run to predict: {_said(error)} Leave --compile out to "
            "see whether it runs without."
        ) from error


def compilation_notes() -> list[str]:
    """Notes on how many graphs ``torch.compile`` made, and why it was more than one: to be asked inside
    ``compiled``."""
    compiled_so_far = compilations()
    graphs, breaks = compiled_so_far.graphs, compiled_so_far.counted_breaks
    if not graphs:
        return ["torch.compile made no graph of it: it runs as without."]
    if graphs == 1:
        return []
    reasons = "; ".join(first_line(reason) for reason in list(breaks)[:3])
    return [
        f"torch.compile made {graphs} graphs{' (' + reasons + ')' if reasons else ''}: what is between is not fused."
    ]


def where_in(now: Callable[[], Where], frame: FrameType | None) -> Where:
    """``now()``, with the written program's kernel in place of a line of a generated file."""
    where = now()
    user = next(user_frames(frame), None)
    if user is None or "assert_size_stride" not in user.f_globals:
        return where
    return where._replace(line=f"compiled, {_kernel_after(user.f_code.co_filename, user.f_lineno)}")


def _kernel_after(file: str, line: int) -> str:
    """The kernel that is called there, or the next one: an allocation is made for it."""
    lines: Sequence[str] = linecache.getlines(file)[line - 1 : line + _LINES_AHEAD]
    return next((match[0].split(" = ")[-1] for text in lines if (match := _KERNEL_CALL.search(text))), "no kernel")


def _said(error: BaseException) -> str:
    """Dynamo's explanation, where it gives one below the heading."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
    return next((line.partition(": ")[2] for line in lines if line.startswith("Explanation: ")), lines[0])


def _empty_strided(size: Any, stride: Any, dtype: torch.dtype) -> Tensor:
    """Stands for the program's own, which does not pass the dispatcher."""
    return torch.empty_strided(size, stride, dtype=dtype)


def _reinterpret(tensor: Tensor, size: Any, stride: Any, offset: int = 0) -> Tensor:
    return tensor.as_strided(size, stride, int(tensor.storage_offset()) + offset)


def _no_kernel(*_: Any, **__: Any) -> Callable[..., None]:
    return lambda *_args, **_kwargs: None
