"""A module is known again if it would answer the same, and by nothing that differs from process to process."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.script.run_scripts import environment, written

MODULE = """
import argparse, functools, sys
import helpers
import torch
from torch import nn

FACTOR = 2.0
NAMES = ("a", "b", "c")
ARGUMENTS = argparse.Namespace(bias=1.0, unused=1.0)

def activation(x):
    return torch.relu(x) * FACTOR

class Scaler:
    def __init__(self, factor):
        self.factor = factor

    def apply(self, x):
        return x * self.factor

scaled = Scaler(1.5).apply

@functools.lru_cache
def counted(n):
    return n + 7

def adder(amount):
    def add(x):
        return x + amount
    return add

class Config:
    def __init__(self, width):
        self.width, self.names = width, {"x", "y", "z"}

class Base(nn.Module):
    def after(self, x):
        return x + 1

class Net(Base):
    def __init__(self, width=4):
        super().__init__()
        self.config = Config(width)
        self.linear = nn.Linear(4, width)
        self.scale = 3
        self.act = activation
        self.table = torch.arange(4.0)
        self.later = functools.partial(torch.mul, other=2)
        self.bound, self.own = Scaler(2).apply, self.after
        self.lookup = {"a": 1.0}.get
        first, second = adder(1), adder(2)
        self.steps, self.any_of = [first, second, first], {first, second, "neither"}

    @property
    def doubled(self):
        return 2 * self.scale

    def forward(self, x):
        y = self.act(self.linear(x) * self.doubled)
        shifted = helpers.shift(self.after(self.later(y))) + ARGUMENTS.bias + len(NAMES)
        return shifted + self.table.sum() + scaled(y).sum() + counted(1)

from togi.script.identity import identity_of
from togi.subject.identity import code_hash, settings_hash

def identity():
    torch.manual_seed(0)
    model = Net().eval()
    return identity_of(model, settings_hash(model), code_hash(model))
"""
HELPERS = "AMOUNT = 1\nOTHER = 1\n\ndef shift(x):\n    return x + AMOUNT\n"
EACH = """
import json, sys, types
found = {}
for folder in sys.argv[1:]:
    sys.path[0] = folder
    sys.modules.pop("helpers", None)
    module = sys.modules["script"] = types.ModuleType("script")
    module.__file__ = folder + "/script.py"
    with open(module.__file__, encoding="utf-8") as file:
        exec(compile(file.read(), module.__file__, "exec"), vars(module))
    found[folder] = module.identity().to_json()
print(json.dumps(found))
"""


def identities(variants: dict[Path, tuple[str, str]], seed: str) -> dict[Path, str]:
    """Of each text of script and helpers, by its folder; all in one process."""
    for folder, (text, helpers) in variants.items():
        folder.mkdir(parents=True)
        written(folder, text)
        written(folder, helpers, "helpers.py")
    command = [sys.executable, "-c", EACH, *map(str, variants)]
    variables = {**environment(next(iter(variants))), "PYTHONHASHSEED": seed}
    done = subprocess.run(command, env=variables, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stderr
    return {Path(folder): found for folder, found in json.loads(done.stdout).items()}


CHANGES = {
    "weights": ("manual_seed(0)", "manual_seed(1)"),
    "structure": ("self.scale = 3", "self.scale = 3; self.more = nn.ReLU()"),
    "an attribute": ("self.scale = 3", "self.scale = 4"),
    "a tensor in an attribute": ("torch.arange(4.0)", "torch.arange(4.0) + 1"),
    "an argument of a partial": ("other=2", "other=3"),
    "the configuration": ("self.width, self.names = width,", "self.width, self.names = width + 1,"),
    "a set in the configuration": ('{"x", "y", "z"}', '{"x", "y", "w"}'),
    "the mode of a part": ("Net().eval()", "Net().eval(); model.linear.train()"),
    "forward": ("self.act(self.linear(x) *", "self.act(self.linear(x) +"),
    "a method of a base": ("return x + 1\n\nclass Net", "return x + 2\n\nclass Net"),
    "a property": ("return 2 * self.scale", "return 3 * self.scale"),
    "a function of the script": ("torch.relu(x) * FACTOR", "torch.tanh(x) * FACTOR"),
    "a constant that a function names": ("FACTOR = 2.0", "FACTOR = 2.5"),
    "a tuple that forward names": ('("a", "b", "c")', '("a", "b")'),
    "an argument that forward names": ("bias=1.0", "bias=2.0"),
    "the object of a method": ("Scaler(2)", "Scaler(3)"),
    "the object of a method that forward names": ("Scaler(1.5)", "Scaler(2.5)"),
    "the table of a built-in method": ('{"a": 1.0}', '{"a": 2.0}'),
    "which function comes again": ("[first, second, first]", "[first, second, second]"),
    "a function in a set": ('{first, second, "neither"}', '{first, adder(3), "neither"}'),
    "a function whose results are kept": ("return n + 7", "return n + 8"),
}
SAME = {
    "an argument that nothing names": ("unused=1.0", "unused=2.0"),
    "copies that were made": ("torch.manual_seed(0)", "import copy; copy.deepcopy(Net()); torch.manual_seed(0)"),
    "a comment": ("FACTOR = 2.0", "# a comment\n\nFACTOR = 2.0"),
    "code that the module does not run": ("def identity():", "def other():\n    return 1\n\ndef identity():"),
}


def variants(folder: Path, changes: dict[str, tuple[str, str]]) -> dict[Path, tuple[str, str]]:
    for before, _ in changes.values():
        assert before in MODULE
    return {folder / name: (MODULE.replace(*change), HELPERS) for name, change in changes.items()}


@pytest.mark.thorough
def test_a_module_is_another_if_it_may_answer_otherwise_and_known_again_else(tmp_path: Path) -> None:
    """In processes with other hashes of texts."""
    plain = {tmp_path / "plain": (MODULE, HELPERS)}
    (original,) = identities(plain, "1").values()
    named, unnamed = tmp_path / "named helper", tmp_path / "unnamed helper"
    asked = {
        **variants(tmp_path / "changed", CHANGES),
        **variants(tmp_path / "same", {**SAME, "nothing": ("FACTOR", "FACTOR")}),
        named: (MODULE, HELPERS.replace("AMOUNT = 1", "AMOUNT = 2")),
        unnamed: (MODULE, HELPERS.replace("OTHER = 1", "OTHER = 2")),
    }
    found = identities(asked, "77")
    equal = {folder.name for folder, identity in found.items() if identity == original}
    assert equal == {*SAME, "nothing", unnamed.name}


@pytest.mark.thorough
def test_compiled_files_of_modules_change_nothing(tmp_path: Path) -> None:
    """What is read from ``__pycache__`` shares constants otherwise than what was just compiled."""
    written(tmp_path, MODULE, "model.py")
    written(tmp_path, HELPERS, "helpers.py")
    script = written(tmp_path, "import model\nprint(model.identity().to_json())\n")
    variables = {name: value for name, value in environment(tmp_path).items() if name != "PYTHONDONTWRITEBYTECODE"}
    command = [sys.executable, str(script)]
    found = []
    for _ in range(2):
        done = subprocess.run(command, env=variables, capture_output=True, text=True, timeout=100, check=False)
        assert done.returncode == 0, done.stderr
        found.append(done.stdout)
    assert list(tmp_path.glob("__pycache__/model.*"))
    assert found[0] == found[1]
