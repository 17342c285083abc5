"""A module is known again if it would answer the same, and by nothing that differs from process to process."""

from __future__ import annotations

import re
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

    @property
    def doubled(self):
        return 2 * self.scale

    def forward(self, x):
        y = self.act(self.linear(x) * self.doubled)
        return helpers.shift(self.after(self.later(y))) + ARGUMENTS.bias + len(NAMES) + self.table.sum()

from togi.script.identity import code_hash, identity_of, settings_hash

def identity():
    torch.manual_seed(0)
    model = Net().eval()
    return identity_of(model, settings_hash(model), code_hash(model))
"""
HELPERS = "AMOUNT = 1\nOTHER = 1\n\ndef shift(x):\n    return x + AMOUNT\n"
PRINTED = "print(identity().to_json())\n"


def identity(folder: Path, text: str = MODULE, helpers: str = HELPERS, seed: str = "1") -> str:
    written(folder, helpers, "helpers.py")
    script = written(folder, text + PRINTED)
    variables = {**environment(folder), "PYTHONHASHSEED": seed}
    done = subprocess.run(
        [sys.executable, str(script)], env=variables, capture_output=True, text=True, timeout=100, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


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
}
SAME = {
    "an argument that nothing names": ("unused=1.0", "unused=2.0"),
    "a comment": ("FACTOR = 2.0", "# a comment\n\nFACTOR = 2.0"),
    "code that the module does not run": ("def identity():", "def other():\n    return 1\n\ndef identity():"),
}


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> str:
    return identity(tmp_path_factory.mktemp("original"))


@pytest.mark.thorough
@pytest.mark.parametrize("change", CHANGES)
def test_whatever_decides_an_answer_makes_it_another_module(change: str, original: str, tmp_path: Path) -> None:
    before, after = CHANGES[change]
    assert before in MODULE
    assert identity(tmp_path, MODULE.replace(before, after)) != original


@pytest.mark.parametrize("change", [*SAME, "nothing"])
def test_it_is_known_again_in_another_process(change: str, original: str, tmp_path: Path) -> None:
    before, after = SAME.get(change, ("", ""))
    assert before in MODULE
    assert identity(tmp_path, MODULE.replace(before, after) if before else MODULE, seed="77") == original


def test_a_helper_of_another_file_counts_as_far_as_it_is_named(original: str, tmp_path: Path) -> None:
    assert identity(tmp_path, helpers=HELPERS.replace("OTHER = 1", "OTHER = 2")) == original
    assert identity(tmp_path, helpers=HELPERS.replace("AMOUNT = 1", "AMOUNT = 2")) != original


def test_compiled_files_of_modules_change_nothing(tmp_path: Path) -> None:
    """What is read from ``__pycache__`` shares constants otherwise than what was just compiled."""
    written(tmp_path, MODULE, "model.py")
    written(tmp_path, HELPERS, "helpers.py")
    script = written(tmp_path, f"import model\n{re.sub('identity', 'model.identity', PRINTED)}")
    variables = {name: value for name, value in environment(tmp_path).items() if name != "PYTHONDONTWRITEBYTECODE"}
    command = [sys.executable, str(script)]
    first, second = (
        subprocess.run(command, env=variables, capture_output=True, text=True, timeout=100, check=True).stdout
        for _ in range(2)
    )
    assert list(tmp_path.glob("__pycache__/model.*"))
    assert first == second
