"""The switch that stands for a module's ``forward``: it serves what was proven, and the original serves the rest."""

from __future__ import annotations

import copy
import functools
import inspect
import io
import pickle
import re
import threading
import types
import warnings
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.fx.experimental.proxy_tensor import make_fx

from tests.artifact.exports import exporting_elsewhere
from tests.artifact.forks import in_a_fork, needs_fork
from togi.artifact.installed import Installed, installed_in
from togi.artifact.installed import install as put_in
from togi.artifact.links import EAGER
from togi.artifact.manifest import Link, PartEntry
from togi.artifact.part_engine import PartEngine
from togi.artifact.settings import settings_of, varying_settings
from togi.artifact.watch import Watch
from togi.artifact.weights import weights_hash
from togi.core.errors import ArtifactError, TogiError
from togi.core.recipe import PartKey
from togi.subject.effects import Effects
from togi.subject.inputs import Inputs, Subject
from togi.subject.pure import pure
from togi.subject.signature import Signature
from togi.subject.state import STATE
from togi.subject.state import State as Kept
from togi.techniques.engine.programs.in_place import InPlaceProgram
from togi.torch_internals.deferred import Deferred
from togi.worker.survey import survey


class Body(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Dropout(0.5), nn.ReLU())
        self.register_buffer("scale", torch.tensor(2.0))

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x) * self.scale  # type: ignore[no-any-return]


class Block(nn.Module):
    """Its plain attributes say what it computes."""

    power = 1

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.activation = nn.Linear(4, 4), torch.relu
        self.scale, self.adapters, self.enabled = 1.0, {"one": 1.0, "two": 2.0}, ["one"]
        self.shift, self.half = torch.zeros(4), 0.5
        self.shifts = {"all": [torch.zeros(4), (torch.zeros(1),)]}
        self.calls, self.widths = 0, [0]

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        self.widths[0] = len(x)
        factor = sum(self.adapters[name] for name in self.enabled)
        shift = self.shift + self.half + self.shifts["all"][0] + self.shifts["all"][1][0]  # type: ignore[operator]
        return self.activation(self.linear(x)) ** self.power * self.scale * factor + shift  # type: ignore


class Program(nn.Module):
    def __init__(self, part: nn.Module) -> None:
        super().__init__()
        self.part = part

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.part(*args, **kwargs)


def program(part: Callable[[], nn.Module] = Body) -> Program:
    torch.manual_seed(0)
    return Program(part()).eval().requires_grad_(False)


class Engine:
    """Plain eager, of a module that nobody changes."""

    in_place = runs_original = False
    keeps = None

    def __init__(self, module: nn.Module, signature: Signature, entry: PartEntry) -> None:
        self.module, self.signature, self.entry = module, signature, entry

    def of(self, _: Any) -> Engine:
        return self

    def call_with(self, _: list[Tensor], args: Any, kwargs: Any) -> Any:
        return self.module(*args, **kwargs)


def part_of(tuned: Any, *calls: Inputs, state: tuple[str, ...] = ()) -> Engine:
    """An engine for the part: a copy of it as it is now. ``state``: names of what it keeps from call to call."""
    kept = {STATE: Kept(tuned.part, state).read()} if state else {}
    given = [Inputs(call.args, {**call.kwargs, **kept}) for call in calls]
    before = settings_of(tuned.part, state)
    with torch.no_grad():
        changes = Effects.of(pure(tuned.part, Effects(state=state)), *(call.clone() for call in given)).changes
        effects = Effects(changes=changes, state=state)
        frozen = pure(copy.deepcopy(tuned.part), effects)
        signature = survey(Subject(frozen, given)).signature
    settings = settings_of(tuned.part, state, varying_settings(before, settings_of(tuned.part, state)))
    known = {"weights": weights_hash(tuned.part, without=state), "settings": settings}
    entry = PartEntry(key=PartKey(path="part"), module=type(tuned.part).__name__, effects=effects, **known)
    return Engine(frozen, signature, entry)


class State:
    def __init__(self) -> None:
        self.bias = torch.ones(3)

    def of(self, x: Tensor) -> Tensor:
        return x + self.bias


class OtherState(State):
    def of(self, x: Tensor) -> Tensor:
        return x - self.bias


class Reader(nn.Module):
    def forward(self, x: Tensor, state: State) -> Tensor:
        return state.of(x)


X = torch.rand(1, 3, 8, 8)


@pytest.fixture
def live() -> Iterator[tuple[Program, Installed]]:
    model = program()
    part = part_of(model, Inputs((X,)))
    with put_in([part], model, keep_originals=True) as installed:
        model(X)
        assert installed.counts == {"part": (1, 0)}
        yield model, installed


class Adds(nn.Module):
    """Writes into its first argument before it reads the second."""

    def forward(self, total: Tensor, x: Tensor) -> Tensor:
        total += 1
        return total * 10 + x


def test_calls_in_which_what_is_written_shares_memory_with_another_input_run_the_original() -> None:
    """An engine is given what was there before, and the original reads what it has just written."""
    model, twin = program(Adds), program(Adds)
    given = Inputs((torch.rand(4), torch.rand(4)))
    with put_in([part_of(model, given)], model, keep_originals=True) as installed:
        for start in (4, 2, 0):
            memory, expected = torch.arange(8.0), torch.arange(8.0)
            found = model(memory[:4], memory[start : start + 4])
            assert torch.equal(found, twin(expected[:4], expected[start : start + 4]))
            assert torch.equal(memory, expected)
        assert installed.counts == {"part": (1, 2)}
        (switch,) = installed.switches
        assert "share memory, and the call writes into" in switch.last_reason


class AddsOwn(nn.Module):
    """Writes into its argument before it reads its weight."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.arange(8.0), requires_grad=False)

    def forward(self, total: Tensor) -> Tensor:
        total += 1
        return total * self.weight[:4]


def test_a_call_that_writes_into_its_own_weight_runs_the_original() -> None:
    model, twin = program(AddsOwn), program(AddsOwn)
    with put_in([part_of(model, Inputs((torch.rand(4),)))], model, keep_originals=True) as installed:
        assert torch.equal(model(torch.ones(4)), twin(torch.ones(4)))
        assert torch.equal(model(model.part.weight[2:6]), twin(twin.part.weight[2:6]))
        assert torch.equal(model.part.weight, twin.part.weight)
        assert installed.counts == {"part": (1, 1)}
        (switch,) = installed.switches
        assert "in the memory of its own weights" in switch.last_reason


def other_weight(model: Any) -> None:
    model.part.layers[0].weight = nn.Parameter(torch.rand(4, 3, 3, 3), requires_grad=False)


def other_values(model: Any) -> None:
    model.part.layers[0].weight.data = torch.rand(4, 3, 3, 3)


def weights_of_another_dtype_and_back(model: Any) -> None:
    model.part.layers[0].bfloat16().float()


def written_weight(model: Any) -> None:
    model.part.layers[1].bias.add_(1)


def written_buffer(model: Any) -> None:
    model.part.layers[1].running_mean.add_(1)


def other_buffer(model: Any) -> None:
    model.part.layers[1].running_var = torch.full((4,), 2.0)


def other_buffer_of_an_equal_number_written(model: Any) -> None:
    model.part.scale = torch.tensor(2.0)
    model.part.scale += 1


def other_part(model: Any) -> None:
    model.part.layers[3] = nn.GELU()


def more_parts(model: Any) -> None:
    model.part.layers.append(nn.Sigmoid())


def fewer_parts(model: Any) -> None:
    del model.part.layers[3]


def training_part(model: Any) -> None:
    model.part.layers[2].train()


def hook_on_a_part(model: Any) -> None:
    model.part.layers[3].register_forward_hook(lambda _, __, output: output + 1)


def pre_hook_on_a_part(model: Any) -> None:
    model.part.layers[3].register_forward_pre_hook(lambda _, args: (args[0] + 1,))


def hook_on_the_module(model: Any) -> None:
    model.part.register_forward_pre_hook(lambda module, _: setattr(module.layers[3], "inplace", True))


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (other_weight, "its weight 'layers.0.weight' was replaced by another"),
        (other_values, "its 'layers.0.weight' was given other values"),
        (weights_of_another_dtype_and_back, "its 'layers.0.weight' was given other values, of torch.float32"),
        (written_weight, "its weights were changed ('layers.1.bias' was written to)"),
        (written_buffer, "its weights were changed ('layers.1.running_mean' was written to)"),
        (other_buffer, "its buffer 'layers.1.running_var' was replaced by another"),
        (other_buffer_of_an_equal_number_written, "its buffer 'scale' was replaced by another"),
        (other_part, "its part 'layers.3' was replaced by another"),
        (more_parts, "the part 'layers.4' was added"),
        (fewer_parts, "its part 'layers.3' is gone"),
        (training_part, "its part 'layers.2' is in training mode"),
        (hook_on_a_part, "a forward hook was put on 'layers.3'"),
        (pre_hook_on_a_part, "a forward pre-hook was put on 'layers.3'"),
        (hook_on_the_module, "a forward pre-hook was put on 'the module itself'"),
    ],
)
def test_a_module_that_was_changed_answers_itself_and_says_so_once(
    live: tuple[Program, Installed], change: Callable[[Any], None], reason: str
) -> None:
    model, installed = live
    change(model)
    torch.manual_seed(1)
    with warnings.catch_warnings(record=True, action="always") as told:
        found = model(X)
        model(X)
    assert len(told) == 1
    assert "the original of part serves its calls" in str(told[0].message)
    assert installed.counts == {"part": (1, 2)}
    assert reason in installed.switches[0].last_reason
    assert reason in str(told[0].message)
    torch.manual_seed(1)
    with installed.suspended():
        assert torch.equal(found, model(X))


def otherwise(module: Any, x: Tensor) -> Tensor:
    return module.layers(x) / module.scale  # type: ignore[no-any-return]


EDITS: dict[str, Callable[[pytest.MonkeyPatch], None]] = {
    "its code": lambda patch: patch.setattr(Body.forward, "__code__", otherwise.__code__),
    "its method": lambda patch: patch.setattr(Body, "forward", otherwise),
}


@pytest.mark.parametrize("edit", EDITS)
def test_a_module_whose_code_was_edited_answers_itself(
    live: tuple[Program, Installed], edit: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As ``%autoreload`` does it."""
    model, installed = live
    before = model(X)
    EDITS[edit](monkeypatch)
    with pytest.warns(UserWarning, match=r"its code was edited \('.*forward'\)"):
        found = model(X)
    torch.testing.assert_close(found * 4, before)
    monkeypatch.undo()
    torch.testing.assert_close(model(X), before)
    assert installed.counts == {"part": (3, 1)}


def test_a_file_that_was_read_again_is_no_edit(
    live: tuple[Program, Installed], monkeypatch: pytest.MonkeyPatch
) -> None:
    model, installed = live
    monkeypatch.setattr(Body.forward, "__code__", Body.forward.__code__.replace(co_firstlineno=1000))
    with warnings.catch_warnings(action="error"):
        model(X)
    assert installed.counts == {"part": (2, 0)}


SETTINGS: dict[str, Callable[[Any], Any]] = {
    "scale": lambda block: setattr(block, "scale", 3.0),
    "adapters": lambda block: block.adapters.update(one=4.0),
    "enabled": lambda block: block.enabled.append("two"),
    "activation": lambda block: setattr(block, "activation", torch.sigmoid),
    "shift": lambda block: setattr(block, "shift", torch.ones(4)),
    "power": lambda block: setattr(block, "power", 2),
    "half": lambda block: setattr(block, "half", 1.0),
    "linear.forward": lambda block: setattr(block.linear, "forward", lambda x: 2 * x),
}


@pytest.mark.parametrize("setting", SETTINGS)
def test_a_part_whose_plain_attributes_were_changed_answers_itself(setting: str) -> None:
    model, x = program(Block), torch.rand(2, 4) + 1
    with put_in([part_of(model, Inputs((x,)))], model, keep_originals=True) as installed:
        before = model(x)
        assert installed.counts == {"part": (1, 0)}
        SETTINGS[setting](model.part)
        with pytest.warns(UserWarning, match=f"attribute '{setting}' was"):
            found = model(x)
        with installed.suspended():
            assert torch.equal(found, model(x))
        assert not torch.equal(found, before)


TENSORS: dict[str, Callable[[Any], Any]] = {
    "shift": lambda block: block.shift.add_(1),
    "shifts['all'][0]": lambda block: block.shifts["all"][0].add_(1),
    "shifts['all'][1][0]": lambda block: block.shifts["all"][1][0].add_(1),
}


@pytest.mark.parametrize("name", TENSORS)
def test_a_tensor_in_a_plain_attribute_that_was_written_to_is_seen(name: str) -> None:
    model, x = program(Block), torch.rand(2, 4)
    with put_in([part_of(model, Inputs((x,)))], model, keep_originals=True) as installed:
        TENSORS[name](model.part)
        with pytest.warns(UserWarning, match=f"'{re.escape(name)}' was written to"):
            found = model(x)
        with installed.suspended():
            assert torch.equal(found, model(x))


def test_a_tensor_of_an_equal_number_in_a_list_is_another_one() -> None:
    model, x = program(Block), torch.rand(2, 4)
    with put_in([part_of(model, Inputs((x,)))], model, keep_originals=True):
        model.part.shifts["all"][1] = (torch.zeros(1),)  # type: ignore[union-attr,index]
        with pytest.warns(UserWarning, match="'shifts' was given another value"):
            model(x)


def test_what_was_written_to_before_an_original_added_an_attribute_stays_written() -> None:
    model, x = program(Block), torch.rand(2, 4)
    with put_in([part_of(model, Inputs((x,)))], model, keep_originals=True) as installed:
        attributes = installed.switches[0].watch.attributes
        model.part.shift += 1  # type: ignore[union-attr,operator]
        attributes.look_again()
        assert not attributes.are_unwritten()


def test_what_the_original_itself_writes_down_in_its_calls_keeps_no_engine_out() -> None:
    model, x = program(Block), torch.rand(2, 4)
    with put_in([part_of(model, Inputs((x,)))], model, keep_originals=True) as installed:
        with installed.suspended():
            model(x)
        model(torch.rand(3, 4))
        assert model.part.widths == [3]
        with warnings.catch_warnings(action="error"):
            model(x)
        assert installed.counts == {"part": (1, 1)}


def test_a_call_under_autocast_is_the_originals_and_is_said_once(live: tuple[Program, Installed]) -> None:
    model, installed = live
    with torch.autocast("cpu", torch.bfloat16):
        with pytest.warns(UserWarning, match=r"the original of part serves its calls: .*torch\.autocast"):
            found = model(X)
        with warnings.catch_warnings(action="error"):
            model(X)
        with installed.suspended():
            expected = model(X)
        with torch.autocast("cpu", enabled=False):
            model(X)
    assert expected.dtype is torch.bfloat16, "which the engine never gives"
    assert found.dtype is expected.dtype
    assert torch.equal(found, expected)
    assert installed.counts == {"part": (2, 2)}, "the engine serves where autocast is off again"
    assert "bfloat16 on cpu" in installed.switches[0].last_reason


def original_of(model: Program, form: int | None) -> PartEngine:
    """The original in settings of its own, for one form of the calls of its part, or (None) for all."""
    entry = part_of(model, Inputs((X,))).entry.model_copy(update={"key": PartKey(path="part", form=form)})
    signature = Signature.of(model.part, [Inputs((X,))], [model.part(X)])
    facts = survey(Subject(model.part, X)).facts
    manifest: Any = types.SimpleNamespace(signature=signature, facts=facts)
    link = Link(engine=EAGER, folder="eager", meta={})
    loaded: Any = types.SimpleNamespace(
        program=InPlaceProgram(lambda forward: forward), runnable=lambda: None, contexts=(), around=None
    )
    return PartEngine(loaded, manifest, link, (), entry)


def test_settings_round_the_original_leave_autocast_to_the_caller() -> None:
    model = program()
    with put_in([original_of(model, None)], model, keep_originals=True) as installed:
        with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
            found = model(X)
            assert installed.counts == {"part": (1, 0)}
            with installed.suspended():
                expected = model(X)
        assert (found.dtype, expected.dtype) == (torch.bfloat16, torch.bfloat16)
        assert torch.equal(found, expected)


def test_where_no_engine_of_a_part_runs_the_original_serves_its_calls_and_is_kept() -> None:
    model = program()
    expected = model(X)
    installed = put_in([original_of(model, 0)], model, keep_originals=False)
    assert torch.equal(model(X), expected)
    assert installed.counts == {"part": (0, 1)}
    installed.remove()
    assert torch.equal(model(X), expected)


def test_a_part_looks_like_the_forward_that_it_stands_for(live: tuple[Program, Installed]) -> None:
    model, _ = live
    forward, plain = model.part.forward, program().part.forward
    assert inspect.signature(forward) == inspect.signature(plain)
    for name in ("__name__", "__qualname__", "__doc__", "__module__", "__code__"):
        assert getattr(forward, name) == getattr(plain, name), name
    assert inspect.getsourcelines(forward) == inspect.getsourcelines(plain)


def test_a_part_below_another_librarys_wrapper_can_be_taken_out(live: tuple[Program, Installed]) -> None:
    model, installed = live
    forward = model.part.forward
    model.part.forward = functools.wraps(forward)(lambda *args, **kwargs: forward(*args, **kwargs))
    model(X)
    assert installed.counts == {"part": (2, 0)}
    with installed.suspended():
        torch.testing.assert_close(model(X), program()(X))
        assert installed.counts == {"part": (2, 0)}
    model(X)
    assert installed.counts == {"part": (3, 0)}
    installed.remove()
    torch.testing.assert_close(model(X), program()(X))
    assert installed.counts == {"part": (3, 0)}


def test_what_is_put_back_is_served_again(live: tuple[Program, Installed]) -> None:
    model, installed = live
    hook = model.part.register_forward_hook(lambda *_: None)
    model.train()  # no call: it would change what the batch norm keeps
    model.eval()
    with warnings.catch_warnings(action="ignore"):
        model(X)
    hook.remove()
    model.requires_grad_()
    model.to("cpu")
    model.float()
    model(X)
    assert installed.counts == {"part": (2, 1)}


@pytest.mark.parametrize("copied", [copy.deepcopy, pickle.dumps, lambda model: torch.save(model, io.BytesIO())])
def test_a_program_with_parts_is_not_copied(live: tuple[Program, Installed], copied: Callable[[Any], Any]) -> None:
    model, installed = live
    with pytest.raises(TogiError, match=r"tuned part at 'part'.* call \.remove\(\)"):
        copied(model)
    installed.remove()
    copied(model)
    copied(model.state_dict())


def test_that_no_gradients_reach_the_weights_is_said_once(live: tuple[Program, Installed]) -> None:
    model, installed = live
    with warnings.catch_warnings(action="error"):
        model(X)  # none of its weights requires any
        model.requires_grad_()
        with torch.no_grad():
            model(X)
    with warnings.catch_warnings(record=True, action="always") as told:
        model(X)
        assert not model(X).requires_grad
    (warning,) = told
    assert "none will reach its weights" in str(warning.message)
    assert installed.counts == {"part": (5, 0)}


def test_an_argument_of_a_derived_class_is_the_originals() -> None:
    model, x = program(Reader), torch.zeros(3)
    with put_in([part_of(model, Inputs((x, State())))], model, keep_originals=True) as installed:
        assert torch.equal(model(x, State()), torch.ones(3))
        assert installed.counts == {"part": (1, 0)}
        assert torch.equal(model(x, OtherState()), -torch.ones(3))
        assert installed.counts == {"part": (1, 1)}
        assert "OtherState" in installed.switches[0].last_reason


class TwoParts(nn.Module):
    """``b`` shares a weight with ``a``."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(3, 3), nn.Sequential(nn.Linear(3, 3), nn.ReLU())
        self.b[0].weight = self.a.weight
        self.head = nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.a(x) + self.b(x))  # type: ignore[no-any-return]


class InPlaceEngine(Engine):
    """Runs the live module's own forward."""

    in_place = True

    def of(self, original: Any) -> InPlaceEngine:
        placed = copy.copy(self)
        placed.module = original
        return placed


def engine_of(program: nn.Module, path: str, kind: type[Engine], x: Tensor) -> Engine:
    module = program.get_submodule(path)
    made = part_of(SimpleNamespace(part=module), Inputs((x,)))
    return kind(made.module, made.signature, made.entry.model_copy(update={"key": PartKey(path=path)}))


def test_freed_originals_leave_the_weights_that_a_part_in_place_runs_on() -> None:
    model, x = TwoParts().eval().requires_grad_(False), torch.rand(2, 3)
    expected = model(x)
    engines = [engine_of(model, "a", InPlaceEngine, x), engine_of(model, "b", Engine, x)]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        put_in(engines, model, keep_originals=False)
        torch.testing.assert_close(model(x), expected)
    assert model.a.weight.numel() == model.b[0].weight.numel() == 9, "one weight, in use"
    assert model.b[0].bias.numel() == 0


class Shares(nn.Module):
    """Two parts, and a module that is a part of one of them and is called by itself too."""

    def __init__(self) -> None:
        super().__init__()
        inner = nn.Linear(3, 3)
        self.tuned, self.other = nn.Sequential(inner, nn.Linear(3, 3)), nn.Sequential(inner, nn.ReLU())

    def forward(self, x: Tensor) -> Tensor:
        return self.tuned(x) + self.other(x)  # type: ignore[no-any-return]


def test_freed_originals_leave_modules_that_others_call_too() -> None:
    model, x = Shares().eval().requires_grad_(False), torch.rand(2, 3)
    expected = model(x)
    put_in([engine_of(model, "tuned", Engine, x)], model, keep_originals=False)
    torch.testing.assert_close(model(x), expected)
    assert model.other[0].weight.numel() == 9
    assert model.tuned[1].weight.numel() == 0


def test_a_module_that_torch_fx_made_can_be_watched() -> None:
    """Its ``forward`` is in no module."""
    module = torch.fx.symbolic_trace(nn.Sequential(nn.Linear(2, 2), nn.ReLU()).eval())
    watch = Watch(module)
    assert watch.changed() == ""
    module.scale = 2.0
    assert "scale" in watch.changed()


def test_a_module_with_other_settings_is_not_the_one_that_was_tuned() -> None:
    x = torch.rand(2, 4)
    part, other = part_of(program(Block), Inputs((x,))), program(Block)
    other.part.scale = 3.0
    with pytest.raises(ArtifactError, match="the setting 'scale' of 'part' is not what it was when it was tuned"):
        put_in([part], other, keep_originals=True)
    other.part.scale = 1.0
    other(x)
    with put_in([part], other, keep_originals=True) as installed:
        other(x)
    assert installed.counts == {"part": (1, 0)}


class Outer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(3, 3), nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.b(self.a(x))  # type: ignore[no-any-return]


def test_parts_inside_of_a_part_are_no_change_of_it() -> None:
    model, x = nn.Sequential(Outer()).eval().requires_grad_(False), torch.rand(2, 3)
    engines = [engine_of(model, path, Engine, x) for path in ("0", "0.a")]
    with put_in(engines, model, keep_originals=True) as installed, warnings.catch_warnings(action="error"):
        model(x)
        with installed.suspended():
            model(x)
        model(x)
        assert installed.counts == {"0": (2, 0), "0.a": (0, 0)}


class Counter(nn.Module):
    """Counts in a buffer, next to one that stays."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 3)
        self.register_buffer("total", torch.zeros(3))
        self.register_buffer("scale", torch.full((3,), 2.0))

    def forward(self, x: Tensor) -> Tensor:
        self.total = self.total + self.linear(x).sum(0)
        return self.total * self.scale


def test_freed_originals_leave_the_state_that_the_switch_reads_and_writes() -> None:
    model, x = program(Counter), torch.rand(2, 3)
    expected = [model(x), model(x)]
    model.part.total.zero_()
    part = part_of(model, Inputs((x,)), state=("total",))
    put_in([part], model, keep_originals=False)
    assert model.part.linear.weight.numel() == 0
    for answer in expected:
        torch.testing.assert_close(model(x), answer)


def test_a_buffer_next_to_a_state_that_was_replaced_is_seen() -> None:
    model, x = program(Counter), torch.rand(2, 3)
    with put_in([part_of(model, Inputs((x,)), state=("total",))], model, keep_originals=True) as installed:
        model(x)
        model(x)
        assert installed.counts == {"part": (2, 0)}
        model.part.scale = torch.full((3,), 3.0)
        with pytest.warns(UserWarning, match="its buffer 'scale' was replaced by another"):
            model(x)
        assert installed.counts == {"part": (2, 1)}


RECORDED: dict[str, Callable[[nn.Module, Tensor], Any]] = {
    "a trace": lambda model, x: torch.jit.trace(model, x, check_trace=False)(x),
    "an export": lambda model, x: torch.export.export(model, (x,)).module()(x),
    "operators": lambda model, x: make_fx(model)(x)(x),
    "operators before autograd": lambda model, x: make_fx(model, pre_dispatch=True)(x)(x),
}


@pytest.mark.parametrize("how", RECORDED)
@pytest.mark.filterwarnings("ignore:.*torch.jit.*:FutureWarning", "ignore:.*torch.jit.*:DeprecationWarning")
def test_what_records_a_program_records_the_original(how: str, live: tuple[Program, Installed]) -> None:
    """The engine's answer would be a constant for it: an engine is no operator of torch."""
    model, installed = live
    engine = installed.switches[0].forms[0]
    installed.switches[0].forms = (OpaqueEngine(engine.module, engine.signature, engine.entry),)  # type: ignore
    torch.testing.assert_close(RECORDED[how](model, X + 1), program()(X + 1))
    assert installed.counts["part"][0] == 1


@pytest.mark.filterwarnings("ignore:.*torch.jit.*:FutureWarning", "ignore:.*torch.jit.*:DeprecationWarning")
def test_what_records_a_program_whose_originals_were_freed_hears_of_it() -> None:
    model = program()
    put_in([part_of(model, Inputs((X,)))], model, keep_originals=False)
    with pytest.raises(TogiError, match=r"traced.*keep_originals=False"):
        torch.jit.trace(model, X)


@pytest.mark.parametrize("keep", [True, False])
def test_it_serves_while_another_thread_exports(keep: bool) -> None:
    model = program()
    expected = model(X)
    installed = put_in([part_of(model, Inputs((X,)))], model, keep_originals=keep)
    with exporting_elsewhere():
        torch.testing.assert_close(model(X), expected)
        assert installed.counts == {"part": (1, 0)}


class OpaqueEngine(Engine):
    """As one that computes outside of torch."""

    def call_with(self, _: list[Tensor], args: Any, kwargs: Any) -> Any:
        return torch.from_numpy(self.module(*args, **kwargs).numpy().copy())


@needs_fork
def test_a_forked_process_has_the_originals(live: tuple[Program, Installed]) -> None:
    model, installed = live
    forward = model.part.forward
    assert in_a_fork(lambda: "forward" not in vars(model.part) and not installed_in(model))
    model.part.forward = functools.wraps(forward)(lambda *args, **kwargs: forward(*args, **kwargs))
    assert in_a_fork(lambda: installed.switches[0].retired)
    assert not installed.switches[0].retired
    model(X)
    assert installed.counts == {"part": (2, 0)}


@needs_fork
def test_a_forked_process_hears_that_the_originals_were_freed() -> None:
    model = program()
    put_in([part_of(model, Inputs((X,)))], model, keep_originals=False)

    def says_so() -> bool:
        with pytest.raises(TogiError, match=r"forked.*keep_originals=False"):
            model(X)
        return True

    assert in_a_fork(says_so)
    model(X)


class Failing(Engine):
    """Of a library that raises."""

    def call_with(self, _: list[Tensor], args: Any, kwargs: Any) -> Any:
        raise RuntimeError("[ library ] no memory\nat line 3")


def failing(engine: Any, *, in_place: bool = False) -> Any:
    found = Failing(engine.module, engine.signature, engine.entry)
    found.in_place = in_place
    return found


def test_the_original_serves_a_call_in_which_the_engine_fails_and_that_is_said_once(
    live: tuple[Program, Installed],
) -> None:
    model, installed = live
    (switch,) = installed.switches
    switch.forms = (failing(switch.forms[0]),)
    with pytest.warns(UserWarning, match=r"the original of part serves a call: its engine failed \(.*no memory\)"):
        torch.testing.assert_close(model(X), program()(X))
    with warnings.catch_warnings(action="error"):
        model(X)
    assert installed.counts == {"part": (1, 2)}
    assert "no memory" in switch.last_reason


@pytest.mark.parametrize("why", ["strict", "in place", "freed", "deferred"])
def test_what_an_engine_raises_is_raised_where_the_original_may_not_stand_in(
    why: str, live: tuple[Program, Installed]
) -> None:
    """Trials ask for it; code that ran in place may have changed what the original would change again; what an engine
    keeps it may have lost."""
    model, installed = live
    (switch,) = installed.switches
    switch.strict = why == "strict"
    switch.forms = (failing(switch.forms[0], in_place=why == "in place"),)
    given = X
    if why == "deferred":
        place: Any = SimpleNamespace(lock=threading.RLock(), fetch=lambda: X)
        given = Deferred(tuple(X.shape), X.dtype, place)
    original, switch.original = switch.original, None if why == "freed" else switch.original
    with pytest.raises(RuntimeError, match="no memory"):
        model(given)
    switch.original = original
    assert installed.counts == {"part": (1, 0)}


def test_a_forward_mode_derivative_goes_through_the_original(live: tuple[Program, Installed]) -> None:
    model, installed = live
    engine = installed.switches[0].forms[0]
    installed.switches[0].forms = (OpaqueEngine(engine.module, engine.signature, engine.entry),)  # type: ignore
    with forward_ad.dual_level():
        given = forward_ad.make_dual(X, torch.ones_like(X))
        found = forward_ad.unpack_dual(model(given)).tangent
        with installed.suspended():
            expected = forward_ad.unpack_dual(model(given)).tangent
    assert found is not None
    torch.testing.assert_close(found, expected)
    assert installed.counts == {"part": (1, 0)}
    model(X)
    assert installed.counts == {"part": (2, 0)}


TRANSFORMS: dict[str, Callable[[nn.Module, Tensor], Any]] = {
    "vmap": lambda model, x: torch.vmap(model)(torch.stack([x, x + 1])),
    "jvp": lambda model, x: torch.func.jvp(model, (x,), (torch.ones_like(x),)),
    "grad": lambda model, x: torch.func.grad(lambda given: model(given).sum())(x),
}


@pytest.mark.parametrize("how", TRANSFORMS)
def test_what_transforms_a_program_transforms_the_original(how: str, live: tuple[Program, Installed]) -> None:
    model, installed = live
    engine = installed.switches[0].forms[0]
    installed.switches[0].forms = (OpaqueEngine(engine.module, engine.signature, engine.entry),)  # type: ignore
    torch.testing.assert_close(TRANSFORMS[how](model, X), TRANSFORMS[how](program(), X))
    assert installed.counts["part"][0] == 1
