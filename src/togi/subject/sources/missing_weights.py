"""Weights that a model has and its files do not: libraries make them up at random, with a warning at most."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from togi.core.errors import SubjectError
from togi.core.quantities import few_of
from togi.subject.locator import Spec


@dataclass(frozen=True)
class MadeUp:
    """Names of weights of a model that no file held."""

    module: nn.Module
    names: tuple[str, ...]


@contextmanager
def noting_made_up(*bases: Any) -> Iterator[list[MadeUp]]:
    """Collect meanwhile what ``from_pretrained`` makes up, whoever calls it.

    Args:
        bases: the classes that define it, as ``PreTrainedModel`` of transformers and ``ModelMixin`` of diffusers do.
    """
    found: list[MadeUp] = []
    with ExitStack() as undo:
        for base in bases:
            plain = vars(base)["from_pretrained"]
            undo.callback(setattr, base, "from_pretrained", plain)
            base.from_pretrained = classmethod(_noting(plain.__func__, found))
        yield found


def check_made_up(
    locator: Spec, found: Sequence[MadeUp], call: Callable[[], Any] | None = None, *, answers_count: bool = False
) -> None:
    """Raises SubjectError where weights were made up.

    Args:
        call: runs the models. Weights that do not reach what a model returns may be missing: some serve training alone.
        answers_count: the call returns numbers, and only what reaches these counts: a pooler does not where the
            vectors of the tokens are asked for.
    """
    counting = [each for each in found if call is None or _reach(each, call, answers_count=answers_count)]
    if not counting:
        return
    names = [f"{type(each.module).__name__}.{name}" for each in counting for name in each.names]
    raise SubjectError(
        f"{locator.text}: its files hold no {few_of(names)}, which would be random. That would be another "
        "model. If a download was interrupted, repeat it. If the weights are of another class, save them with the "
        "class that they are of, CLASS.from_pretrained(...).save_pretrained(DIR), and name DIR"
    )


def _noting(plain: Callable[..., Any], found: list[MadeUp]) -> Callable[..., Any]:
    @functools.wraps(plain)
    def from_pretrained(cls: Any, *args: Any, output_loading_info: bool = False, **options: Any) -> Any:
        returned = plain(cls, *args, output_loading_info=True, **options)
        if not isinstance(returned, tuple):
            return returned
        module, info = returned
        if names := _not_tied(module, info["missing_keys"]):
            found.append(MadeUp(module, names))
        return returned if output_loading_info else module

    return from_pretrained


def _not_tied(module: nn.Module, missing: Sequence[str]) -> tuple[str, ...]:
    """Without those that are other names of weights that were found."""
    state: dict[str, Tensor] = dict(module.state_dict(keep_vars=True))
    there = {id(value) for name, value in state.items() if name not in missing}
    return tuple(sorted(name for name in missing if id(state.get(name)) not in there))


_SCALES = (1.0, 30.0)


def _reach(made_up: MadeUp, call: Callable[[], Any], *, answers_count: bool) -> bool:
    """Whether what is returned depends on them: it changes, were it by one bit, where they do. (A value that is not a
    number would not tell: attention kernels lose it.)"""
    answer = call if answers_count else functools.partial(_returned, made_up.module, call)
    state = made_up.module.state_dict()
    values = {name: state[name] for name in made_up.names if name in state}
    if len(values) < len(made_up.names) or not all(value.is_floating_point() for value in values.values()):
        return True
    before = {name: value.clone() for name, value in values.items()}
    generator = torch.Generator().manual_seed(0)
    try:
        with torch.no_grad():
            expected = answer()
            for scale in _SCALES:
                for value in values.values():
                    value.normal_(std=scale, generator=generator)
                if not _equal(expected, answer()):
                    return True
        return False
    finally:
        for name, value in values.items():
            value.copy_(before[name])


def _returned(module: nn.Module, call: Callable[[], Any]) -> list[Tensor]:
    """All tensors that the module returns meanwhile."""
    found: list[Tensor] = []
    hook = module.register_forward_hook(lambda _, __, output: found.extend(_tensors(output)))
    try:
        call()
    finally:
        hook.remove()
    return found


def _tensors(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value.clone()
    elif isinstance(value, (Mapping, list, tuple)):
        for inner in value.values() if isinstance(value, Mapping) else value:
            yield from _tensors(inner)


def _equal(one: Any, other: Any) -> bool:
    """Where a module returned no tensor, nothing shows that they are."""
    if isinstance(one, (list, tuple)):
        return 0 < len(one) == len(other) and all(map(_equal, one, other))
    return torch.equal(torch.as_tensor(one), torch.as_tensor(other))
