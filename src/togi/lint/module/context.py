"""Everything that module rules read: the module, one forward pass, what it costs, and the captured graph if any."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from togi.core.records import Obstacle
from togi.core.user_code import Origin, origin
from togi.lint.finding import Place, shown
from togi.lint.module.forward_pass import AtenCall, DataFlow, ForwardPass, Line
from togi.lint.roofline.costs import Costs

if TYPE_CHECKING:
    from torch import nn

    from togi.graph.candidate import Candidate
    from togi.graph.edit import EditableGraph
    from togi.subject.inputs import Inputs


_NAMED = 3
"""Layers that a finding names; the rest is counted."""


@dataclass(eq=False, kw_only=True)
class ModuleContext:
    """Gathered by ``inspect_module``; read by rules."""

    module: nn.Module
    """A copy in eval mode, on the device."""
    given: nn.Module
    """The user's own, to look at: a copy no longer shows which tensors share memory."""
    samples: Sequence[Inputs]
    forward: ForwardPass
    costs: Costs
    """Of the forward pass, on the device that times are predicted for."""
    device: str
    """``cpu`` or ``cuda``: where it ran. Times may be predicted for another."""
    training: Mapping[str, str]
    """Class of each part that was handed over in training mode, by name; the module itself has the name ''."""
    capture: Candidate | str
    """The subject as an ATen graph, or why there is none."""
    notes: Sequence[str] = ()
    obstacles: tuple[Obstacle, ...] = ()
    """Modules that cannot be captured, where that was asked for."""

    @functools.cached_property
    def flow(self) -> DataFlow:
        return DataFlow(self.forward)

    @functools.cached_property
    def kinds(self) -> dict[str, str]:
        """Class of each part by name."""
        return {name: type(part).__name__ for name, part in self.module.named_modules()}

    def calls(self, *names: str) -> list[AtenCall]:
        """The operations of the pass with one of these names (``convolution``)."""
        return [call for call in self.forward.calls if call.name in names]

    def share(self, calls: Sequence[AtenCall]) -> float:
        """The part of the predicted time that these calls take, from 0 to 1."""
        return self.costs.share(calls)

    @property
    def captured(self) -> Candidate | None:
        """The subject as an ATen graph, to apply techniques to; None where it cannot be captured."""
        return None if isinstance(self.capture, str) else self.capture

    @property
    def capture_error(self) -> str:
        """Why there is no graph; empty where there is one."""
        return self.capture if isinstance(self.capture, str) else ""

    def graph(self) -> EditableGraph | None:
        """A graph to try edits on, a new one at each call; None where the module cannot be captured."""
        from togi.graph.edit import EditableGraph

        return EditableGraph.of(self.captured) if self.captured is not None else None


def layer_of(node: Any) -> str:
    """Qualified name of the module that made a node of the captured graph; empty for the module itself."""
    stack = list(node.meta.get("nn_module_stack", {}).values())
    path = str(stack[-1][0]) if stack else ""
    return path.removeprefix("module").removeprefix(".")


def place_of(line: Line | None) -> Place | None:
    """The line as a place of a finding; None for installed packages, which the user cannot edit."""
    if line is None or origin(line.path) is not Origin.USER or not Path(line.path).is_file():
        return None
    return Place(path=shown(line.path), line=line.line)


def layers(names: Iterable[str]) -> str:
    """``features.0, features.3 and 11 others``; each name once, in the order given."""
    unique = list(dict.fromkeys(name or "(the module itself)" for name in names))
    unnamed = len(unique) - _NAMED
    if unnamed > 0:
        return f"{', '.join(unique[:_NAMED])} and {unnamed} other{'s' * (unnamed > 1)}"
    return " and ".join([", ".join(unique[:-1]), unique[-1]]) if len(unique) > 1 else "".join(unique)
