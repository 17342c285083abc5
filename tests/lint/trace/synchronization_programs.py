"""The programs of ``programs/``, each with the lines on which the host waits for the GPU."""

from __future__ import annotations

import ast
import importlib.util
import inspect
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

import togi
from tests.small_modules import Computes

FOLDER = Path(__file__).parent / "programs"
_MARK = re.compile(r"#\s*sync( unseen)?(?: before ([\d.]+))?\s*$")


@dataclass(frozen=True, kw_only=True)
class Program:
    name: str
    path: Path
    function: Callable
    lines: range
    waits: frozenset[int]
    """Lines on which the host waits."""
    names_cuda: bool
    """Asks for a CUDA device by name, so it cannot run on a machine without one."""
    unseen: frozenset[int]
    """Those of them that PyTorch's debug mode does not report."""

    def subject(self) -> togi.Subject:
        if not inspect.signature(self.function).parameters:
            return self.function()
        torch.manual_seed(0)
        return togi.Subject(Computes(self.function), torch.randn(6, 4))

    def lines_of(self, events) -> set[int]:
        """Lines of this program at which ``events`` happened: the innermost frame that lies in it."""
        return {line for event in events if (line := self._line(event)) is not None}

    def _line(self, event) -> int | None:
        own = (f.line for f in event.stack if f.path == str(self.path) and f.line in self.lines)
        return next(own, None)


def programs() -> list[Program]:
    """All, but those of libraries that are not installed: a machine with a device need not have them."""
    found = []
    for path in sorted(FOLDER.glob("*.py")):
        try:
            found += _of(path)
        except ModuleNotFoundError as missing:
            if path.stem != "libraries" or missing.name not in ("timm", "torchvision"):
                raise
    return found


def _of(path: Path) -> list[Program]:
    text = path.read_text(encoding="utf-8")
    module = _imported(path)
    marks = {number: m for number, line in enumerate(text.splitlines(), 1) if (m := _MARK.search(line))}
    collected = []
    for node in ast.parse(text).body:
        if not isinstance(node, ast.FunctionDef) or node.name.startswith("_"):
            continue
        lines = range(node.lineno, (node.end_lineno or node.lineno) + 1)
        collected.append(
            Program(
                name=f"{path.stem}.{node.name}",
                path=path,
                function=getattr(module, node.name),
                lines=lines,
                names_cuda="cuda" in (ast.get_source_segment(text, node) or ""),
                waits=frozenset(n for n in marks if n in lines),
                unseen=frozenset(n for n, m in marks.items() if n in lines and _unseen(m)),
            )
        )
    return collected


def _unseen(mark: re.Match[str]) -> bool:
    return bool(mark[1]) and (mark[2] is None or torch.__version__ < mark[2])


def _imported(path: Path):
    spec = importlib.util.spec_from_file_location(f"synchronization_program_{path.stem}", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
