"""Every module call of a pass: what goes in, what comes out, and which calls are alike.

Modules of one kind (the feed-forward parts of all blocks) are planned together.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from togi.footprint.fit.inference.chunked import chunkable
from togi.footprint.fit.inference.leaves import constants, named_leaves, unknown
from togi.footprint.fit.inference.simulate import Simulation
from togi.footprint.storage_tracker import tensors_of


@dataclass(frozen=True)
class Call:
    """What decides whether two calls are alike."""

    shapes: Mapping[str, tuple[int, ...]]
    dtypes: tuple[torch.dtype, ...]
    constants: Mapping[str, str]
    unknown: str
    result_bytes: int


@dataclass
class Site:
    """A module and its calls in one pass."""

    name: str
    part: nn.Module
    calls: list[Call] = field(default_factory=list)
    problem: str = ""

    @property
    def weights_bytes(self) -> int:
        return sum(parameter.nbytes for parameter in self.part.parameters())

    @property
    def leaves(self) -> int:
        """Modules in it that have no parts: what a call of it costs at least grows with them."""
        return sum(not list(part.children()) for part in self.part.modules())

    @property
    def kind(self) -> str:
        """Equal for modules of one class, with parameters of equal shapes, that are called alike."""
        weights = [(name, tuple(p.shape), p.dtype) for name, p in self.part.named_parameters()]
        inner = [type(part).__name__ for part in self.part.modules()]
        return repr((type(self.part), inner, weights, [str(call) for call in self.calls]))


def sites_of(simulation: Simulation) -> dict[str, Site]:
    """By name, those that were called; one pass of the simulation's step."""
    module = simulation.step.module
    sites = {name: Site(name, part) for name, part in module.named_modules()}
    with _following(sites), torch.random.fork_rng(), simulation.mode or nullcontext():
        simulation.step.run()
    called = {name: site for name, site in sites.items() if site.calls}
    for site in called.values():
        site.problem = _problem(site)
    return called


@contextmanager
def _following(sites: Mapping[str, Site]) -> Iterator[None]:
    with ExitStack() as hooks:
        for site in sites.values():
            if not isinstance(site.part, torch.jit.ScriptModule):
                hook = site.part.register_forward_hook(_noting(site), with_kwargs=True)
                hooks.callback(hook.remove)
        yield


def _noting(site: Site) -> Any:
    def note(part: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        leaves = named_leaves(type(part).forward, args, kwargs)
        tensors = {name: leaf for name, leaf in leaves.items() if isinstance(leaf, Tensor)}
        results = tensors_of(output)
        site.calls.append(
            Call(
                {name: tuple(tensor.shape) for name, tensor in tensors.items()},
                tuple(tensor.dtype for tensor in tensors.values()),
                constants(leaves),
                unknown(leaves),
                sum(result.nbytes for result in results),
            )
        )
        if not site.problem and _shared(results, [*tensors.values(), *part.parameters()]):
            site.problem = "it returns a tensor that it was given, or a view of one"

    return note


def _shared(results: list[Tensor], others: list[Tensor]) -> bool:
    there = {tensor.untyped_storage()._cdata for tensor in others}
    return any(result.untyped_storage()._cdata in there for result in results)


def _problem(site: Site) -> str:
    first = site.calls[0]
    if reason := chunkable(site.part) or site.problem:
        return reason
    if first.unknown:
        return f"it gets {first.unknown}, of which it is not known how it would be cut"
    if any((call.shapes.keys(), call.constants) != (first.shapes.keys(), first.constants) for call in site.calls):
        return f"it is called {len(site.calls)} times, in different ways"
    return ""
