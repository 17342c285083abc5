"""DataLoaders that a file builds, where it iterates over them, and where their batches go."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import PurePath
from typing import TYPE_CHECKING

from togi.lint.source.hints import PASSING_ON
from togi.lint.source.placement import cuda_names, mentions_cuda
from togi.lint.source.references import calls_of
from togi.lint.source.syntax import argument, arguments_of, called_method, first_name, last_name, unpacks
from togi.lint.source.value import ValueKind, gives_batches, iterate

if TYPE_CHECKING:
    from togi.lint.source.model import Source

LOADER = "torch.utils.data.DataLoader"
_WRAPPERS = PASSING_ON | {"enumerate", "zip", "iter"}
_IN_MEMORY = {"torch.utils.data.TensorDataset", "torch.utils.data.dataset.TensorDataset"}
_LOOK = {"len", "isinstance", "print", "str", "repr", "id", "type", "next", "prepare"}


def loader_calls(source: Source) -> Iterator[ast.Call]:
    """Calls of DataLoader whose arguments are all to be seen. None in a file of tests, whose data are tiny."""
    if not is_test(source.path):
        calls = calls_of(source, {LOADER, "torch.utils.data.dataloader.DataLoader"})
        yield from (call for call, _ in calls if not unpacks(call))


def in_memory(source: Source, call: ast.Call) -> bool:
    """Whether the samples lie in memory, ready to be stacked: a TensorDataset, a list, tensors."""
    dataset = argument(call, "dataset", 0)
    if dataset is None:
        return False
    if isinstance(dataset, ast.List | ast.ListComp | ast.Tuple):
        return True
    return any(_holds_samples(source, value) for value in (dataset, *assigned(source, dataset)))


def assigned(source: Source, node: ast.expr) -> tuple[ast.expr, ...]:
    """What is assigned to this name in the scope that binds it, or to this attribute anywhere in the file."""
    targets = source.bindings(node)
    if isinstance(node, ast.Attribute):
        named_so = source.index.attributes.get(node.attr, [])
        targets = [attribute for attribute in named_so if isinstance(attribute.ctx, ast.Store)]
    statements = map(source.parent, targets)
    return tuple(
        statement.value
        for statement in statements
        if isinstance(statement, ast.Assign | ast.AnnAssign | ast.NamedExpr) and statement.value
    )


def made_by(source: Source, node: ast.expr) -> tuple[ast.expr, ...]:
    """The calls that may have made the value of ``node``."""
    call = source.value(node).call
    return (node, *((call,) if call is not None else ()), *assigned(source, node))


def passes(source: Source) -> Iterator[tuple[ast.expr, ast.AST]]:
    """Expressions that are iterated over, or given to a function that may do so, and where that happens."""
    for loop in source.nodes(ast.For, ast.AsyncFor, ast.comprehension):
        where = source.parent(loop) if isinstance(loop, ast.comprehension) else loop
        if where is not None:
            yield unwrapped(loop.iter), where
    for call in source.nodes(ast.Call):
        if last_name(call.func) not in _LOOK | _WRAPPERS:
            for arg in arguments_of(call):
                if isinstance(arg, ast.Name | ast.Attribute):
                    yield arg, call


def unwrapped(node: ast.expr) -> ast.expr:
    """``loader`` of ``enumerate(tqdm(loader), 1)``."""
    while isinstance(node, ast.Call) and node.args and last_name(node.func) in _WRAPPERS:
        node = node.args[0]
    return node


def batch_to_cuda(source: Source) -> ast.Call | None:
    """A call by which a batch out of a loader goes to a CUDA device in this file, or None."""
    devices = cuda_names(source)
    call: ast.Call
    for call in source.nodes(ast.Call):
        if (
            isinstance(call.func, ast.Attribute)
            and _to_cuda(source, call, devices)
            and _of_batch(source, call.func.value)
        ):
            return call
    return None


def collates_tensors(call: ast.Call) -> bool:
    """Whether the batches of this DataLoader can only hold tensors: PyTorch's own collation refuses other objects."""
    return argument(call, "collate_fn", 6) is None and not unpacks(call)


def _to_cuda(source: Source, call: ast.Call, devices: set[str]) -> bool:
    method = called_method(call)
    device = argument(call, "device", 0)
    if method != "to" or device is None:
        return method == "cuda"
    if source.value(device).device == "mps":
        return False
    return mentions_cuda(source, device) or last_name(device) in devices


def _of_batch(source: Source, node: ast.expr) -> bool:
    value = source.value(node)
    if value.batch:
        return value.kind is ValueKind.TENSOR
    name = first_name(node)
    return any(
        isinstance(loop, ast.For | ast.AsyncFor)
        and any(target.id == name for target in source.walk(loop.target, ast.Name))
        and _over_loader(source, loop)
        for loop in source.loops(node)
    )


def _over_loader(source: Source, loop: ast.For | ast.AsyncFor) -> bool:
    loader = unwrapped(loop.iter)
    value = source.value(loader)
    if gives_batches(value):
        return iterate(value).kind is ValueKind.TENSOR
    makers = (call.func for call in made_by(source, loader) if isinstance(call, ast.Call))
    return any(source.qualified(maker) == LOADER for maker in makers) or "loader" in last_name(loader).lower()


def _holds_samples(source: Source, node: ast.expr) -> bool:
    value = source.value(node)
    if value.qualified in _IN_MEMORY or value.kind is ValueKind.TENSOR:
        return True
    return isinstance(node, ast.Call) and source.qualified(node.func) in _IN_MEMORY


def is_test(path: str) -> bool:
    name = PurePath(path).name
    return name.startswith("test_") or name.endswith("_test.py") or name == "conftest.py"
