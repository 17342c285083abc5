"""Dynamo, Inductor, AOTInductor and TorchScript: settings, counters, reasons and marks without public names.

Behind it: torch._dynamo, torch._C._dynamo.guards, torch._C._aoti, torch._functorch.config, torch._inductor,
torch.jit._trace, and the two attributes that ``torch.jit.script_if_tracing`` leaves on a function (torch 2.9 to
2.15). When they go: ``torch._inductor.aoti_load_package`` loads packages, slowly; ``torch.compiler`` has ``reset`` and
``set_stance``; ``torch.compile(options=...)`` takes Inductor's settings; the rest has no public form.

Dynamo and Inductor are imported when a function here is called first: they take a second.
"""

from __future__ import annotations

import json
import sys
import threading
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

from torch import nn
from torch.jit._trace import TracerWarning

from togi.torch_internals.modules import compile_calls, forget_compiled_call

if TYPE_CHECKING:
    from torch import Tensor
    from torch.export import ExportedProgram
    from torch.fx import GraphModule

__all__ = [
    "Compilations",
    "TracerWarning",
    "aoti_load",
    "aoti_operators",
    "aoti_package",
    "as_dynamos_fakes",
    "checking_every_guard",
    "compilations",
    "compile_error",
    "compile_without_kernels",
    "cpp_compiler_missing",
    "global_state",
    "import_dynamo",
    "inductor_compile",
    "inductor_is_loaded",
    "inductor_options",
    "inductor_settings",
    "keeping_activations",
    "mark_script_original",
    "mark_varying",
    "reset_dynamo",
    "short_loops_without_threads",
    "sizes_by_default",
    "trace_symbolically",
    "varying_source",
]


def import_dynamo() -> None:
    """Import Dynamo now: it keeps what it finds in ``torch`` at that moment, and costs a second."""
    import torch._dynamo  # noqa: F401


def reset_dynamo() -> None:
    """Forget everything that was compiled in this process, the counters and the reasons of graph breaks."""
    import torch._dynamo
    from torch._dynamo.utils import clear_compilation_metrics, counters, graph_break_reasons

    torch._dynamo.reset()
    counters.clear()
    graph_break_reasons.clear()
    clear_compilation_metrics()


def compile_error() -> type[Exception]:
    """The base class of every error of Dynamo's."""
    from torch._dynamo.exc import TorchDynamoException

    return TorchDynamoException


@contextmanager
def compile_without_kernels(
    module: nn.Module,
    *,
    empty_strided: Callable[..., Tensor],
    reinterpret: Callable[..., Tensor],
    kernel: Callable[..., Any],
) -> Iterator[None]:
    """Inside, calls of the module are compiled by Inductor, and these stand for what the written programs call: two
    functions that allocate and view, and the compiler of kernels on the CPU.

    What was compiled in this process is forgotten before and after, so that no stand-in is ever run for real.
    """
    import torch._inductor.config
    from torch._inductor.async_compile import AsyncCompile

    allocations = torch._C._dynamo.guards
    _forget_compiled_code()
    compile_calls(module, _inductor_for_fakes if torch.__version__ < "2.11" else "inductor")
    try:
        with ExitStack() as stack:
            for owner, name, stand_in in (
                (allocations, "_empty_strided_cpu", empty_strided),
                (allocations, "_reinterpret_tensor", reinterpret),
                (AsyncCompile, "cpp_pybinding", kernel),
                (AsyncCompile, "cpp", kernel),
            ):
                stack.enter_context(patch.object(owner, name, stand_in))
            stack.enter_context(torch._inductor.config.patch(force_disable_caches=True, compile_threads=1))
            yield
    finally:
        forget_compiled_call(module)
        _forget_compiled_code()


def _inductor_for_fakes(graph: GraphModule, inputs: Sequence[Any]) -> Any:
    """Inductor, which before torch 2.11 refuses inputs that are fake already, in a mode other than Dynamo's."""
    from torch._inductor.compile_fx import compile_fx

    return compile_fx(graph, as_dynamos_fakes(inputs))


def as_dynamos_fakes(inputs: Sequence[Any]) -> list[Any]:
    """Turn what Dynamo hands to a backend into its own fake tensors, where they are of other modes."""
    from torch._guards import TracingContext
    from torch._subclasses.fake_tensor import FakeTensor

    mode = TracingContext.get().fake_mode
    assert mode is not None
    return [mode.from_tensor(x) if isinstance(x, FakeTensor) and x.fake_mode is not mode else x for x in inputs]


def _forget_compiled_code() -> None:
    from torch._inductor.codecache import PyCodeCache

    reset_dynamo()
    PyCodeCache.cache_clear()


def checking_every_guard() -> AbstractContextManager[Any]:
    """Inside, what is compiled looks at each of its guards at every call.

    Otherwise torch (2.9 and 2.11; not 2.15) skips those on a module whose dicts are as they were. On Python 3.13.0,
    whose dicts do not tell of changes, it then skips them always: a compiled module counts no further than 1.
    """
    import torch._dynamo.config

    patched: AbstractContextManager[Any] = torch._dynamo.config.patch(use_recursive_dict_tags_for_guards=False)
    return patched


def sizes_by_default() -> AbstractContextManager[Any]:
    """Inside, sizes are static until they vary, as is the default of torch.compile, whatever the process has set."""
    import torch._dynamo.config

    patched: AbstractContextManager[Any] = torch._dynamo.config.patch(
        assume_static_by_default=True, automatic_dynamic_shapes=True
    )
    return patched


def keeping_activations(share: float) -> AbstractContextManager[Any]:
    """Inside, what is compiled keeps about this share of the activations that it would keep for its backward pass by
    default, and computes the others again there; 0 keeps its inputs alone. An estimate of the partitioner's: what the
    process then holds can be more (pytorch issue 197838)."""
    import torch._functorch.config

    patched: AbstractContextManager[Any] = torch._functorch.config.patch(activation_memory_budget=share)
    return patched


@dataclass(frozen=True, kw_only=True)
class Compilations:
    """The work of Dynamo since ``reset_dynamo``."""

    graphs: int
    """Graphs that it handed to the backend."""
    breaks: tuple[Any, ...]
    """Graph breaks: objects with ``reason`` (text), ``user_stack`` (frame summaries) and ``graph_break``."""
    counted_breaks: Mapping[str, int]
    """Reasons of graph breaks, and how often each occurred."""
    metrics: tuple[Any, ...]
    """One a compilation, with ``recompile_reason``, ``co_name``, ``co_filename`` and ``co_firstlineno``."""


def compilations() -> Compilations:
    from torch._dynamo.utils import counters, get_compilation_metrics, graph_break_reasons

    return Compilations(
        graphs=counters["stats"]["unique_graphs"],
        breaks=tuple(graph_break_reasons),
        counted_breaks=dict(counters["graph_break"]),
        metrics=tuple(get_compilation_metrics()),
    )


def mark_varying(tensor: Any, dim: int) -> None:
    """Tell Dynamo that a dimension may vary, without an error where it is found to be fixed after all."""
    import torch._dynamo

    torch._dynamo.maybe_mark_dynamic(tensor, dim)


def varying_source(name: str) -> Any:
    """A source for ``ShapeEnv``'s symbols: where a size comes from, for its messages."""
    from torch._dynamo.source import ConstantSource

    return ConstantSource(name)


def trace_symbolically(
    call: Callable[..., Any], fakes: Sequence[Tensor], decompositions: Mapping[Any, Any]
) -> GraphModule:
    """The ATen graph of ``call(*fakes)`` with symbolic sizes; tensors that it closes over may be real ones."""
    from torch.fx.experimental.proxy_tensor import make_fx

    traced: GraphModule = make_fx(
        call, decomposition_table=dict(decompositions), tracing_mode="symbolic", _allow_non_fake_inputs=True
    )(*fakes)
    return traced


@contextmanager
def inductor_settings(settings: Mapping[str, Any], *, exportable: bool = False) -> Iterator[None]:
    """Inside, Inductor's configuration has these values. Dynamo reads some of them too (``freezing``).

    One thread at a time: the configuration is the process's, and two that patch it would put back what the other set.

    Args:
        exportable: ``torch.export`` captures what is compiled. Then Dynamo, as it does there, takes sizes that depend
            on values (``nonzero``) into its graph; else it cuts there, and fails on a captured graph whose weights are
            frozen (``KeyError: u0``).
    """
    import torch._dynamo.config
    import torch._inductor.config

    sizes = dict.fromkeys(("capture_dynamic_output_shape_ops", "capture_scalar_outputs"), True) if exportable else {}
    with _ONE_CONFIGURATION, torch._inductor.config.patch(dict(settings)), torch._dynamo.config.patch(sizes):
        yield


_ONE_CONFIGURATION = threading.RLock()


def global_state() -> Callable[[], bool]:
    """What asks later whether all that compiled code depends on besides its inputs is as it is now: the gradient mode,
    the number of threads, the default dtype, whatever else this torch looks at."""
    from torch._C._dynamo.guards import GlobalStateGuard

    unchanged: Callable[[], bool] = GlobalStateGuard().check
    return unchanged


def inductor_options(mode: str, dynamic: bool | None) -> dict[str, Any]:
    """The settings that stand behind ``torch.compile(mode=...)``."""
    import torch._inductor

    return dict(torch._inductor.list_mode_options(mode, dynamic))


def inductor_compile(module: Any, inputs: Any) -> Any:
    """Compile an FX graph module with Inductor directly, without Dynamo."""
    from torch._inductor.compile_fx import compile_fx

    compiled: Any = compile_fx(module, inputs)
    return compiled


def inductor_is_loaded() -> bool:
    """Return whether this process has compiled with Inductor, or at least loaded what takes longest to load."""
    return "torch._inductor.compile_fx" in sys.modules


@contextmanager
def short_loops_without_threads() -> Iterator[None]:
    """Inside, loops that are too short for several threads run on one, also with ``cpp.dynamic_threads``. By itself
    Inductor then wakes all threads for each of them (six layers of 64 numbers: 95 in place of 85 microseconds)."""
    import torch._inductor.config
    from torch._inductor.codegen.cpp import CppKernel

    by_number_or_length = CppKernel.decide_parallel_depth

    def by_length(*args: Any, **kwargs: Any) -> Any:
        with torch._inductor.config.patch({"cpp.dynamic_threads": False}):
            return by_number_or_length(*args, **kwargs)  # type: ignore[no-untyped-call]

    with patch.object(CppKernel, "decide_parallel_depth", by_length):
        yield


def aoti_package(program: ExportedProgram, path: str, configs: Mapping[str, Any]) -> str:
    """Compile an exported program to a package of machine code at ``path`` (``*.pt2``); the path written."""
    import torch._inductor

    return str(torch._inductor.aoti_compile_and_package(program, package_path=path, inductor_configs=dict(configs)))


def aoti_load(path: str) -> Any:
    """A package of ``aoti_package``, loaded. ``boxed_run(tensors)`` of what is returned runs it.

    Not by ``aoti_load_package``, which asks what this processor can do by compiling programs for it, only to warn of
    another one: in each new process, without a compiler in vain.
    """
    import torch

    return torch._C._aoti.AOTIModelPackageLoader(path, "model", False, 1, -1)


def aoti_operators(path: Path) -> Iterator[str]:
    """Names of the operators that a package calls by the dispatcher, for want of a kernel."""
    with zipfile.ZipFile(path) as package:
        for name in package.namelist():
            listing = json.loads(package.read(name)) if name.endswith(".json") else {}
            for node in listing.get("nodes", ()):  # metadata has none
                yield node["node"]["target"].removeprefix("torch.ops.").removesuffix(".default")


def cpp_compiler_missing() -> bool:
    """Return whether Inductor finds no C++ compiler."""
    import torch._inductor.cpp_builder
    from torch._inductor.exc import InvalidCxxCompiler

    try:
        torch._inductor.cpp_builder.get_cpp_compiler()
    except InvalidCxxCompiler:
        return True
    return False


def mark_script_original(stand_in: Any, original: Callable[..., Any]) -> None:
    """Let TorchScript and Dynamo compile ``original`` where they meet ``stand_in``: their compilers can see through
    it. This is what ``torch.jit.script_if_tracing`` leaves on a function."""
    setattr(stand_in, "__script_if_tracing_wrapper", True)
    setattr(stand_in, "__original_fn", getattr(original, "__original_fn", original))
