"""The rule ``torchscript``."""

from __future__ import annotations

import ast
from collections.abc import Iterable

from togi.lint.finding import Finding
from togi.lint.rule import SourceRule
from togi.lint.source.compatibility import guarded
from togi.lint.source.model import Source
from togi.lint.source.references import called, uses

_COMPILE = "torch.compile for speed; torch.export and AOTInductor (.pt2) for running without Python"
_INSTEAD = {
    "script": _COMPILE,
    "trace": _COMPILE,
    "trace_module": _COMPILE,
    "script_method": _COMPILE,
    "ScriptModule": "a plain torch.nn.Module with torch.compile or torch.export",
    "freeze": "torch.compile (Inductor freezes with torch._inductor.config.freezing), or torch.export and AOTInductor",
    "optimize_for_inference": "torch.compile, or torch.export and AOTInductor",
    "fork": "torch.cuda.Stream on a GPU, or concurrent.futures",
    "load": "torch.export.load or torch._inductor.aoti_load_package, once the model is exported as .pt2",
    "save": "torch.export.save or torch._inductor.aoti_compile_and_package",
}
_NAMES = {f"torch.jit.{name}": name for name in _INSTEAD}


class Torchscript(SourceRule):
    """TorchScript, which is deprecated.

    What it reports: ``torch.jit.script``, ``trace``, ``trace_module``, ``freeze``, ``optimize_for_inference``,
    ``fork``, ``save``, ``load`` and classes derived from ``torch.jit.ScriptModule``. Of calls inside each other, the
    outermost.

    Why it costs: TorchScript is deprecated since torch 2.5, warns in 2.15 and is not supported on Python 3.14; no new
    operator, dtype or kernel is optimised for it. Measured here for resnet50, traced and frozen models are still faster
    than eager on a CPU, so measure before changing (``togi tune`` tries both).

    When it stays silent: what library code does to *remain* scriptable (``is_scripting``, ``is_tracing``, ``ignore``,
    ``unused``, ``export``, ``Final``, ``annotate``, ``isinstance``, ``script_if_tracing``), which costs nothing and
    warns of nothing, and code under a test of the version.

    Example::

        scripted = torch.jit.script(model)
        scripted.save("model.pt")

    Use instead::

        program = torch.export.export(model, (x,))
        torch._inductor.aoti_compile_and_package(program, package_path="model.pt2")

    or ``torch.compile(model)`` where it stays in Python.

    Source: https://docs.pytorch.org/docs/stable/jit.html, https://docs.pytorch.org/docs/stable/export.html
    """

    id = "torchscript"

    def check(self, source: Source) -> Iterable[Finding]:
        places = [(node, _NAMES[name]) for node, name in uses(source, _NAMES)]
        counting = [(node, function) for node, function in places if _counts(source, node, function)]
        calls = {source.parent(node) for node, _ in counting}
        for node, function in counting:
            if calls.isdisjoint(set(source.ancestors(node)) - {source.parent(node)}):
                yield source.finding(self.id, node, _message(function), f"use {_INSTEAD[function]}")


def _counts(source: Source, node: ast.expr, function: str) -> bool:
    """Whether something is compiled, run, loaded or saved, not only named."""
    above = source.parent(node)
    if function == "ScriptModule":
        return isinstance(above, ast.ClassDef) and node in above.bases
    return called(source, node) and not guarded(source, node)


def _message(function: str) -> str:
    if function == "load":
        return "this reads a TorchScript file: the format is deprecated, warns, and is not supported on Python 3.14"
    return f"torch.jit.{function} is TorchScript: deprecated, no longer developed, not supported on Python 3.14"
