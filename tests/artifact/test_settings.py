"""An artifact goes into the module that it was made of, known by its settings too, wherever that was loaded."""

from __future__ import annotations

import copy
import functools
import json
import subprocess
import sys
import types
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from togi.artifact.settings import changed_setting, settings_of, varying_settings


def halved(x: Tensor) -> Tensor:
    return x / 2


def doubled(x: Tensor) -> Tensor:
    return x * 2


def shifted(x: Tensor, by: float) -> Tensor:
    return x + by * UNITS


UNITS = 1.0
tools = types.ModuleType("tools")
tools.__file__, tools.gain = "/home/somebody/tools.py", 1.0


class Config:
    """As libraries have it: what the model is, where it came from, and what a call returns."""

    def __init__(self) -> None:
        self.eps, self.folder, self.note, self.dtype = 1e-5, "/models/one", None, torch.float32

    def added(self) -> float:
        return self.eps * 2


class Helper:
    """Its own code says what of it counts."""

    def __init__(self) -> None:
        self.weight, self.calls_so_far = 3.0, 0

    def __call__(self, x: Tensor) -> Tensor:
        self.calls_so_far += 1
        return x * self.weight * tools.gain


class Inner(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(2, 2, 3, padding=1), nn.BatchNorm2d(2)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(self.conv(x))  # type: ignore[no-any-return]


class Scaled(nn.Module):
    """All kinds of settings, and what is none."""

    power = 1

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.name_or_path, self.place = Inner(), "/models/one", torch.device("cpu")
        self.scale, self.half, self.mode, self.table = 2.0, 0.5, "plain", {"one": 1.0, "file": "/models/one"}
        self.act: Callable[[Tensor], Tensor] = halved
        self.last = functools.partial(shifted, by=1.0)
        self.config, self.helper, self.args = Config(), Helper(), Namespace(bias=1.0, out="/tmp/one")
        self.offset, self.device_name, self.seen, self.order = torch.ones(1), "cpu", [0], [1, 2]
        self.unread = [1]

    @functools.cached_property
    def factor(self) -> float:
        return 4.0

    @property
    def doubled_scale(self) -> float:
        return 2 * self.scale

    def forward(self, x: Tensor) -> Tensor:
        self.seen.append(len(x))
        self.latest = x
        y = self.act(self.inner(x.to(self.place, dtype=torch.float32).to(self.device_name)) * self.doubled_scale)
        y = self.helper(y) * sum(self.order) + self.config.added() + self.args.bias + self.offset
        y = y + getattr(self, "half")  # noqa: B009
        return self.last(y) * (y if self.mode == "square" else 1) ** self.power * self.table["one"] * self.factor  # type: ignore


def scaled() -> Scaled:
    torch.manual_seed(0)
    return Scaled().eval()


OTHER: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "a number": ("scale", lambda m: setattr(m, "scale", 5.0)),
    "a number of another kind": ("scale", lambda m: setattr(m, "scale", 2)),
    "a number that has a method's name": ("half", lambda m: setattr(m, "half", 1.0)),
    "a text that calls read": ("mode", lambda m: setattr(m, "mode", "square")),
    "a number in a dict": ("table", lambda m: m.table.update(one=2.0)),
    "a list": ("order", lambda m: m.order.append(3)),
    "a function": ("act", lambda m: setattr(m, "act", doubled)),
    "a function without a name": ("act", lambda m: setattr(m, "act", lambda x: x / 3)),
    "an argument of a function": ("last", lambda m: setattr(m, "last", functools.partial(shifted, by=2.0))),
    "a number in a configuration": ("config", lambda m: setattr(m.config, "eps", 1e-2)),
    "a number in an object of its own": ("helper", lambda m: setattr(m.helper, "weight", 4.0)),
    "a number in a namespace": ("args", lambda m: setattr(m.args, "bias", 2.0)),
    "a tensor": ("offset", lambda m: m.offset.add_(1)),
    "a number of the class": ("power", lambda m: setattr(m, "power", 2)),
    "eps of torch's own": ("eps", lambda m: setattr(m.inner.norm, "eps", 0.1)),
    "stride of torch's own": ("stride", lambda m: setattr(m.inner.conv, "stride", (2, 2))),
    "a hook": ("forward hooks", lambda m: m.inner.norm.register_forward_hook(lambda _, __, y: y + 1)),
    "a pre-hook": ("forward hooks", lambda m: m.inner.register_forward_pre_hook(lambda _, args: (args[0] + 1,))),
    "a replaced forward": ("forward", lambda m: setattr(m.inner, "forward", types.MethodType(lambda _, x: x, m.inner))),
    "a replaced forward of its own": ("forward", lambda m: setattr(m, "forward", doubled)),
}


@pytest.mark.parametrize("kind", OTHER)
def test_what_computes_something_else_is_another_module(kind: str) -> None:
    tuned, other = settings_of(scaled()), scaled()
    assert changed_setting(tuned, other) == ""
    name, change = OTHER[kind]
    change(other)
    assert changed_setting(tuned, other) == f"the setting '{name}'"


def reordered(module: Any) -> None:
    held = {name: vars(module).pop(name) for name in ("scale", "mode", "table", "act")}
    vars(module).update(reversed(held.items()))


def called(module: Any) -> None:
    module(torch.rand(1, 2, 4, 4))


SAME: dict[str, Callable[[Any], Any]] = {
    "another order": reordered,
    "called before": called,
    "made lazily": lambda m: m.factor,
    "another place": lambda m: vars(m).update(
        name_or_path="/other", place=torch.device("cuda:1"), device_name="cuda:0"
    ),
    "another place in objects": lambda m: (
        vars(m.config).update(folder="/other", note="read from there", _name_or_path="/other", dtype="float32"),
        m.args.__dict__.update(out="/other"),
        m.table.update(file="/other"),
    ),
    "marks of libraries": lambda m: [setattr(part, "_is_initialized", True) for part in m.modules()],
    "what no call reads": lambda m: m.__dict__.update(unread=[], epoch=3),
    "other modes": lambda m: m.train(),
    "copied": lambda m: m.__dict__.update(vars(copy.deepcopy(m))),
}


@pytest.mark.parametrize("kind", SAME)
def test_what_computes_the_same_is_the_same_module(kind: str) -> None:
    first, other = scaled(), scaled()
    before = settings_of(first)
    called(first)
    tuned = settings_of(first, varying=varying_settings(before, settings_of(first)))
    SAME[kind](other)
    assert changed_setting(tuned, other) == ""


@pytest.mark.filterwarnings("ignore:.*weight_norm:FutureWarning")
def test_hooks_that_were_there_are_no_change() -> None:
    one, other = (nn.utils.weight_norm(nn.Linear(2, 2)) for _ in range(2))
    other.load_state_dict(one.state_dict())
    assert changed_setting(settings_of(one), other) == ""
    assert changed_setting(settings_of(nn.Linear(2, 2)), other) != ""


def test_state_is_no_setting() -> None:
    first, other = scaled(), scaled()
    other.offset = torch.zeros(1)
    state = ("offset",)
    assert changed_setting(settings_of(first, state), other, state) == ""


EDITED: dict[str, Callable[[pytest.MonkeyPatch], None]] = {
    "a forward": lambda patch: patch.setattr(Inner, "forward", lambda self, x: self.conv(x)),
    "a method of an object": lambda patch: patch.setattr(Config, "added", lambda self: self.eps),
    "a property": lambda patch: patch.setattr(Scaled, "doubled_scale", property(lambda self: 3 * self.scale)),
    "a function that it holds": lambda patch: patch.setattr(halved, "__code__", doubled.__code__),
    "a number of its class": lambda patch: patch.setattr(Scaled, "power", 3),
    "a number that a function names": lambda patch: patch.setitem(globals(), "UNITS", 2.0),
    "a tensor in a file of functions": lambda patch: patch.setattr(tools, "gain", torch.full((2,), 2.0)),
}


@pytest.mark.parametrize("kind", EDITED)
def test_a_module_whose_code_was_edited_is_another_one(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    tuned = settings_of(scaled())
    EDITED[kind](monkeypatch)
    assert changed_setting(tuned, scaled()) == "the code"


def written(text: str, path: str) -> nn.Module:
    names: dict[str, Any] = {}
    exec(compile(text, path, "exec"), names)
    made: type[nn.Module] = type("Made", (nn.Module,), {"forward": names["forward"]})
    return made()


def test_where_code_stands_and_what_it_says_of_itself_is_no_edit() -> None:
    doubles = written("def forward(self, x):\n    'It doubles.'\n    return x * 2", "/one/net.py")
    too = written("# as ever\n\ndef forward(self, x):\n    'It adds x.'\n    return x * 2", "/two/net.py")
    triples = written("def forward(self, x):\n    'It doubles.'\n    return x * 3", "/one/net.py")
    assert changed_setting(settings_of(doubles), too) == ""
    assert changed_setting(settings_of(doubles), triples) == "the code"


def test_code_is_not_compared_under_another_version_of_python() -> None:
    tuned = {name: value for name, value in settings_of(scaled()).items() if not name.startswith("code under")}
    assert changed_setting(tuned | {"code under Python 3.0": "0"}, scaled()) == ""


def test_calls_that_change_a_number_in_their_own_code_are_no_edit(monkeypatch: pytest.MonkeyPatch) -> None:
    before = settings_of(scaled())
    monkeypatch.setitem(globals(), "UNITS", 2.0)
    tuned = settings_of(scaled(), varying=varying_settings(before, settings_of(scaled())))
    monkeypatch.setitem(globals(), "UNITS", 3.0)
    assert changed_setting(tuned, scaled()) == ""


def test_what_an_earlier_togi_wrote_is_not_compared() -> None:
    assert changed_setting(None, scaled()) == ""


def test_settings_are_the_same_in_another_process_and_under_another_name_of_its_file(tmp_path: Path) -> None:
    (tmp_path / "elsewhere.py").write_text(Path(__file__).read_text(encoding="utf-8"), encoding="utf-8")
    script = "import elsewhere, json\nprint(json.dumps(elsewhere.settings_of(elsewhere.scaled())))"
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True, timeout=100, check=True
    )
    assert json.loads(done.stdout) == settings_of(scaled())


class Measures(nn.Module):
    def _noted(self, x: Tensor) -> Tensor:
        self.width = x.shape[-1]
        return x

    def forward(self, x: Tensor) -> Tensor:
        return self._noted(x) * getattr(self, "width", 1)


class MeasuresToo(Measures):
    def _noted(self, x: Tensor) -> Tensor:
        return x

    def forward(self, x: Tensor) -> Tensor:
        return super()._noted(x) * 2


def test_what_calls_of_a_base_class_assign_is_no_setting() -> None:
    called_before = MeasuresToo()
    called_before(torch.ones(3))
    assert changed_setting(settings_of(called_before), MeasuresToo()) == ""


def helping(module: Any, x: Tensor) -> Tensor:
    return x * module.first  # type: ignore[no-any-return]


def helping_otherwise(module: Any, x: Tensor) -> Tensor:
    return x * module.second  # type: ignore[no-any-return]


def helped() -> nn.Module:
    class Helped(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = 1.0, 2.0

        def forward(self, x: Tensor) -> Tensor:
            return helping(self, x)

    return Helped()


EDITS: dict[str, Callable[[Any, pytest.MonkeyPatch], None]] = {
    "another method": lambda cls, _: setattr(cls, "forward", helping_otherwise),
    "other code in a function": lambda _, patch: patch.setattr(helping, "__code__", helping_otherwise.__code__),
    "another function of that name": lambda _, patch: patch.setattr(
        sys.modules[__name__], "helping", helping_otherwise
    ),
}
"""As ``%autoreload`` makes them, and a cell that is run again."""


@pytest.mark.parametrize("edit", EDITS)
def test_an_edit_of_what_calls_name_is_seen(edit: str, monkeypatch: pytest.MonkeyPatch) -> None:
    module = helped()
    assert {"first", "second"} & set(settings_of(module)) == {"first"}
    EDITS[edit](type(module), monkeypatch)
    assert {"first", "second"} & set(settings_of(module)) == {"second"}
