"""Who makes and who uses a value of a forward pass, views followed."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator

from togi.lint.module.forward_pass import Call, ForwardPass, Value

CONVOLUTIONS = frozenset({"convolution", "_convolution", "cudnn_convolution", "mkldnn_convolution"})
BATCH_NORMS = frozenset(
    {"native_batch_norm", "_native_batch_norm_legit", "cudnn_batch_norm", "miopen_batch_norm", "_batch_norm_no_update"}
)


class Flow:
    """The data flow of one pass."""

    def __init__(self, forward: ForwardPass) -> None:
        self.forward = forward
        self.makers: dict[int, Call] = {}
        self._users: defaultdict[int, list[Call]] = defaultdict(list)
        for call in forward.calls:
            for value in {value.number: value for value in call.inputs}.values():
                self._users[value.number].append(call)
            for value in call.outputs:
                self.makers.setdefault(value.number, call)

    def users(self, value: Value) -> list[Call]:
        """Calls that do something with the value or a view of it, in order; views themselves are not among them."""
        return [call for call in self._reached(value) if not call.view]

    def returned(self, value: Value) -> bool:
        """Whether the value or a view of it is among what the module returned."""
        numbers = {value.number, *(made.number for call in self._reached(value) if call.view for made in call.outputs)}
        return bool(numbers & self.forward.outputs)

    def only_user(self, value: Value) -> Call | None:
        """The one call that uses it, or None where there are several, none, or it is returned."""
        found = self.users(value)
        return found[0] if len(found) == 1 and not self.returned(value) else None

    def maker(self, value: Value | None) -> Call | None:
        """The call that computed the value, views of it passed over; None for inputs and parameters."""
        while value is not None:
            call = self.makers.get(value.number)
            if call is None or not call.view:
                return call
            value = call.inputs[0] if call.inputs else None
        return None

    def made_by(
        self, value: Value | None, wanted: Callable[[Call], bool], through: Callable[[Call], bool]
    ) -> Call | None:
        """The nearest ``wanted`` call that the value comes from, over calls that may be passed ``through``."""
        seen: set[int] = set()
        waiting = [value] if value is not None else []
        while waiting:
            call = self.maker(waiting.pop(0))
            if call is None or call.index in seen:
                continue
            seen.add(call.index)
            if wanted(call):
                return call
            if through(call):
                waiting += [item for item in call.inputs if not item.constant]
        return None

    def _reached(self, value: Value) -> Iterator[Call]:
        waiting, seen = [value.number], set[int]()
        while waiting:
            for call in self._users.get(waiting.pop(0), ()):
                if call.index in seen:
                    continue
                seen.add(call.index)
                yield call
                if call.view:
                    waiting += [made.number for made in call.outputs]


def is_linear(call: Call) -> bool:
    """A convolution or linear layer with weights of its own, not computed ones."""
    weight = call.value("weight") if call.name in CONVOLUTIONS else call.value("mat2") or call.value("weight")
    return call.name in {*CONVOLUTIONS, "addmm", "mm", "linear"} and weight is not None and weight.constant


def bias_of(call: Call) -> Value | None:
    """The bias of a convolution or linear layer."""
    bias = call.value("self") if call.name == "addmm" else call.value("bias")
    return bias if bias is not None and bias.constant else None


def uses_batch_statistics(call: Call) -> bool:
    return call.name in BATCH_NORMS and (bool(call.given.get("training")) or call.value("running_mean") is None)
