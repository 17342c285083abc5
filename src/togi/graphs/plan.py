"""The plan of a captured function, for people: which sizes have a graph, in how much memory."""

from __future__ import annotations

from dataclasses import dataclass

from togi.core.quantities import plural, size


@dataclass(frozen=True, kw_only=True)
class GraphPlan:
    """The graphs that were captured, and why not more. Sizes are those of the histogram; bytes were measured at the
    captures."""

    buckets: tuple[int, ...]
    """Sizes that have a graph, ascending."""
    eager: tuple[int, ...]
    """Buckets without one, since it was not faster than eager: their calls run as they are."""
    padding: float
    """Computed for nothing by the histogram's calls that a bucket holds, as a share of what they need."""
    above: int
    """Calls of the histogram that are above the largest bucket."""
    held_bytes: int
    """Of the whole pool: graphs, working memory, buffers."""
    memory_bytes: int
    notes: tuple[str, ...]
    """What the memory, or the device, did not allow."""

    def __str__(self) -> str:
        lines = [
            f"{plural(len(self.buckets), 'graph')} for sizes up to {', '.join(map(str, self.buckets)) or '-'}; "
            f"padding {self.padding:.1%}; {size(self.held_bytes)} of {size(self.memory_bytes)}"
        ]
        lines += [f"not faster than eager: {', '.join(map(str, self.eager))}"] if self.eager else []
        lines += [f"above the largest bucket: {plural(self.above, 'call')}"] if self.above else []
        return "\n".join([*lines, *self.notes])
