"""The rule ``unsafe-load``."""

from __future__ import annotations

import ast
from collections.abc import Iterable

from togi.lint.finding import Finding, Fix
from togi.lint.rule import SourceRule
from togi.lint.source.call_sites import calls_without
from togi.lint.source.edits import add_argument
from togi.lint.source.fixes import fix
from togi.lint.source.model import Source
from togi.lint.source.syntax import argument


class UnsafeLoad(SourceRule):
    """``torch.load`` that leaves open whether it may run code of the file.

    What it reports: ``torch.load`` without ``weights_only``.

    Why it costs: before torch 2.6 this unpickles whatever the file holds, which runs code; since then it refuses files
    that hold more than tensors and plain containers. So the same line is unsafe on one version and may fail on the
    next. Said outright, it is the same everywhere.

    When it stays silent: ``weights_only`` is given (False is a decision, and stands where a reader sees it),
    ``**kwargs`` may hold it, or the call is made under a test of the version or in the handler of an error.

    Example::

        state = torch.load(path)

    Use instead::

        state = torch.load(path, weights_only=True)

    or ``safetensors.torch.load_file(path)``, which maps the file instead of copying it.

    Fix safety: the fix is not applied without being asked. A file that holds more than tensors and plain containers can
    then not be loaded on any version. There is no fix where ``pickle_module`` is given.

    Source: https://docs.pytorch.org/docs/stable/generated/torch.load.html
    """

    id = "unsafe-load"

    def check(self, source: Source) -> Iterable[Finding]:
        for call, _ in calls_without(source, {"torch.load"}, "weights_only"):
            if any(isinstance(above, ast.ExceptHandler) for above in source.ancestors(call)):
                continue  # done where weights_only is unknown
            yield source.finding(
                self.id,
                call,
                "without weights_only, torch.load runs code of the file before torch 2.6 and refuses it since",
                "add weights_only=True (False only for files you trust), or keep weights as safetensors",
                fix=_fix(source, call),
            )


def _fix(source: Source, call: ast.Call) -> Fix | None:
    if argument(call, "pickle_module", 2) is not None:
        return None
    return fix("Load tensors only", add_argument(source, call, "weights_only=True"), safe=False)
