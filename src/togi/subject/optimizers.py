"""Optimizers of a training step: made by the user's function, made again for a copy's parameters, and their state."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from togi.core.errors import SubjectError
from togi.core.quantities import a_type
from togi.core.user_code import user_place
from togi.torch_internals.tensors import tensors_of, tree_map_only

MakeOptimizer = Callable[[list[nn.Parameter]], Optimizer]


def trainable(module: nn.Module) -> list[nn.Parameter]:
    """The parameters that take a gradient, in the order of ``module.parameters()``."""
    return [parameter for parameter in module.parameters() if parameter.requires_grad]


def made_optimizer(make: MakeOptimizer, module: nn.Module) -> Optimizer:
    """The optimizer of a module.

    Raises SubjectError where the user's function raises, or makes another thing, and for a module of which no copy can
    be trained.
    """
    parameters = trainable(module)
    if not all(parameter.is_leaf for parameter in parameters):
        raise SubjectError(
            "parameters in a copy of the module are results of autograd, which no optimizer takes, and togi trains "
            "copies. TorchScript is copied so: give the module that it was made of"
        )
    try:
        optimizer: Any = make(parameters)
    except Exception as error:  # the user's function, and what torch says of its groups
        raise SubjectError(
            f"optimizer(parameters) raises: {user_place(error)}. It is given the parameters that take a gradient, and "
            "returns a torch.optim.Optimizer in which each of them is in one group at most: "
            "optimizer=lambda parameters: torch.optim.AdamW(parameters, lr=1e-3)"
        ) from error
    if not isinstance(optimizer, Optimizer):
        raise SubjectError(
            f"optimizer(parameters) returned {a_type(optimizer)}; it must return one torch.optim.Optimizer. Parameters "
            "with other rates are groups of the same one: AdamW([{'params': ..., 'lr': ...}, ...])"
        )
    _check_closure(optimizer)
    _check_parameters(optimizer, module)
    return optimizer


def unwrapped(optimizer: Any) -> Any:
    """The optimizer itself, where a trainer (accelerate's, Lightning's) has put a wrapper around it.

    What holds another optimizer and keeps a state of its own, as Lookahead does, computes something: it stays.
    """
    inner = getattr(optimizer, "optimizer", None)
    while isinstance(inner, Optimizer) and getattr(optimizer, "state", inner.state) is inner.state:
        optimizer, inner = inner, getattr(inner, "optimizer", None)
    return optimizer


def _check_closure(optimizer: Optimizer) -> None:
    closure = inspect.signature(optimizer.step).parameters.get("closure")
    if closure is not None and closure.default is closure.empty:
        raise SubjectError(
            f"{type(optimizer).__name__} needs a closure, which evaluates the loss several times in a step, as often "
            "as the values say: no two steps can be compared. Use an optimizer whose step() takes none"
        )


def _check_parameters(optimizer: Optimizer, module: nn.Module) -> None:
    own = {id(parameter) for parameter in module.parameters()}
    strangers = [p for group in optimizer.param_groups for p in group["params"] if id(p) not in own]
    if strangers:
        raise SubjectError(
            f"optimizer(parameters) trains {len(strangers)} tensors that are not parameters of the module (the first "
            f"has the shape {tuple(strangers[0].shape)}). togi trains a copy of the module: use the parameters that "
            "are given to the function, and make all others parameters of the module"
        )


def again(optimizer: Optimizer, counterparts: Mapping[int, nn.Parameter]) -> Optimizer:
    """An optimizer of the same class and groups for other parameters, named by the identity of its own."""
    make: Any = type(optimizer)
    other: Optimizer = make(
        [{**group, "params": [counterparts[id(p)] for p in group["params"]]} for group in optimizer.param_groups]
    )
    return other


class OptimizerState:
    """Copies of an optimizer's state and of its groups' settings, by the names of the parameters."""

    def __init__(self, optimizer: Optimizer | None, parameters: Mapping[str, nn.Parameter]) -> None:
        names = {id(parameter): name for name, parameter in parameters.items()}
        self._dtypes = {name: parameter.dtype for name, parameter in parameters.items()}
        self._state: dict[Any, Any] = {}
        self._groups: list[dict[str, Any]] = []
        if optimizer is not None:
            self._state = {names.get(id(key), key): _cloned(value) for key, value in optimizer.state.items()}
            self._groups = [_settings(group) for group in optimizer.param_groups]

    def write(self, optimizer: Optimizer | None, parameters: Mapping[str, nn.Parameter]) -> None:
        """Into the optimizer of other parameters of the same names, in another dtype maybe.

        Raises SubjectError where it has other groups.
        """
        if optimizer is None:
            return
        if len(optimizer.param_groups) != len(self._groups):
            raise SubjectError(
                "the training step adds groups to its optimizer or takes them away, and every run begins with an "
                "optimizer that optimizer(parameters) made: make all groups there, and freeze what is to be trained "
                "later inside of the step (requires_grad_)"
            )
        optimizer.state.clear()
        for key, value in self._state.items():
            parameter = parameters.get(key) if isinstance(key, str) else None
            if parameter is None:
                optimizer.state[key] = _cloned(value)
            else:
                optimizer.state[parameter] = self._as_of(parameter, key, value)
        for group, settings in zip(optimizer.param_groups, self._groups, strict=True):
            for name in _settings(group).keys() - settings.keys():
                del group[name]
            group.update(_settings(settings))

    def _as_of(self, parameter: nn.Parameter, name: str, state: Any) -> Any:
        """The state of one parameter. Its numbers take the parameter's dtype where they had it. A count of steps stays
        as it is: fused kernels read it in float32."""
        before, now = self._dtypes[name], parameter.dtype

        def moved(tensor: Tensor) -> Tensor:
            return tensor.to(now, copy=True) if tensor.dtype is before else tensor.clone()

        if not isinstance(state, dict):
            return _cloned(state)
        return {
            key: _cloned(value) if key == "step" else tree_map_only(Tensor, moved, value)
            for key, value in state.items()
        }


def state_tensors(optimizer: Optimizer, parameters: Mapping[str, nn.Parameter]) -> Iterator[tuple[str, Tensor]]:
    """``(parameter.key, tensor)`` of an optimizer's state as it is."""
    names = {id(parameter): name for name, parameter in parameters.items()}
    for parameter, state in optimizer.state.items():
        entries: Sequence[tuple[str, Any]] = list(state.items()) if isinstance(state, dict) else [("state", state)]
        for key, value in entries:
            for i, part in enumerate(tensors_of(value)):
                yield f"{names.get(id(parameter), 'more')}.{key}" + (f"[{i}]" if i else ""), part


def settings_of(optimizer: Optimizer) -> dict[str, float]:
    """The numbers of its groups: learning rates, momenta, as a schedule left them."""
    return {
        f"{name} of group {i}": number
        for i, group in enumerate(optimizer.param_groups)
        for name, value in _settings(group).items()
        if (number := _number(value)) is not None
    }


def _settings(group: Mapping[str, Any]) -> dict[str, Any]:
    """All of a group but its parameters. Their names, where torch was given them, stay with the group."""
    return {name: _cloned(value) for name, value in group.items() if name not in ("params", "param_names")}


def _number(value: Any) -> float | None:
    if isinstance(value, Tensor) and value.numel() == 1:
        return float(value)
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def _cloned(value: Any) -> Any:
    """A value whose tensors have memory of their own."""
    return tree_map_only(Tensor, lambda tensor: tensor.detach().clone(), value)
