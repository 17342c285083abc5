import copy
import os
import pickle
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from togi.subject.inputs import Inputs, Subject
from togi.worker.locate import locate
from togi.worker.survey import survey

FILE = """
import dataclasses
import torch
from torch import nn
import togi

@dataclasses.dataclass
class Output:
    logits: torch.Tensor

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(3, 2)
    def forward(self, x):
        return Output(self.linear(x))

def one(): return Net(), torch.rand(1, 3)
def several(): return Net(), [torch.rand(1, 3), torch.rand(2, 3)]
def keywords(): return Net(), {"x": torch.rand(1, 3)}
def full(): return togi.Subject(Net(), (torch.rand(1, 3),), dynamic={"x": [0]})
"""


@pytest.fixture
def models(tmp_path):
    path = tmp_path / "my-models.py"
    path.write_text(FILE, encoding="utf-8")
    return path


@pytest.mark.parametrize("factory", ["one", "several", "keywords", "full"])
def test_every_form_that_a_factory_may_return(models, factory):
    subject = locate(f"{models}:{factory}")
    assert isinstance(subject, Subject)
    assert survey(subject).facts.module_class == "Net"


def test_classes_of_the_file_can_be_copied_and_pickled(models):
    module = locate(f"{models}:one").module
    again = pickle.loads(pickle.dumps(module))
    assert type(again) is type(module)
    assert copy.deepcopy(module) is not module


def test_the_files_name_hides_no_other_module(tmp_path):
    path = tmp_path / "json.py"
    path.write_text(FILE, encoding="utf-8")
    import json

    locate(f"{path}:one")
    assert sys.modules["json"] is json


def test_files_next_to_it_are_imported(tmp_path):
    (tmp_path / "togi_test_neighbour.py").write_text("WIDTH = 5\n", encoding="utf-8")
    path = tmp_path / "m.py"
    path.write_text(
        "from togi_test_neighbour import WIDTH\nimport torch\n"
        "def make(): return torch.nn.Linear(WIDTH, 1), torch.rand(1, WIDTH)\n",
        encoding="utf-8",
    )
    assert locate(f"{path}:make").module.in_features == 5


def test_a_file_inside_a_package_has_its_relative_imports(tmp_path):
    package = tmp_path / "togi_test_package"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "parts.py").write_text("WIDTH = 4\n", encoding="utf-8")
    (package / "models.py").write_text(
        "from .parts import WIDTH\nimport torch\ndef make(): return torch.nn.Linear(WIDTH, 1), torch.rand(1, WIDTH)\n",
        encoding="utf-8",
    )
    assert locate(f"{package / 'models.py'}:make").module.in_features == 4


def test_a_package_in_the_current_folder(tmp_path, monkeypatch):
    package = tmp_path / "togi_test_other"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "models.py").write_text(
        "import torch\ndef make(): return torch.nn.ReLU(), torch.rand(2)\n", encoding="utf-8"
    )
    monkeypatch.chdir(tmp_path)
    assert isinstance(locate("togi_test_other.models:make").module, nn.ReLU)


def test_a_changed_file_is_read_again(models):
    locate(f"{models}:one")
    models.write_text(FILE + "\ndef later(): return Net(), torch.zeros(4, 3)\n", encoding="utf-8")
    assert locate(f"{models}:later").inputs[0].args[0].shape == (4, 3)


def test_weights_depend_on_the_seed_alone(models):
    state = torch.random.get_rng_state()
    first, again, other = (locate(f"{models}:one", seed=seed).module.linear.weight for seed in (1, 1, 2))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert torch.equal(torch.random.get_rng_state(), state)


def test_locating_runs_no_forward_pass(tmp_path):
    path = tmp_path / "m.py"
    path.write_text(
        "import torch\nclass N(torch.nn.Module):\n    def forward(self, x): raise RuntimeError('ran')\n"
        "def make(): return N(), torch.rand(1)\n",
        encoding="utf-8",
    )
    assert locate(f"{path}:make").inputs == (Inputs.of(locate(f"{path}:make").samples),)


@pytest.mark.thorough
@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="threads are counted in /proc")
@pytest.mark.parametrize(
    "name", ["minilm", *(pytest.param(n, marks=pytest.mark.thorough) for n in ("unet", "lstm_tagger"))]
)
def test_building_a_subject_leaves_no_thread_that_cannot_be_ended(name):
    """A forked child of a process with a thread pool would hang in its first parallel region."""
    models = Path(__file__).parents[2] / "benchmarks" / "models.py"
    code = (
        "import os, numpy, torch\n"
        "from togi.worker.forking import end_idle_threads\n"
        "from togi.worker.locate import locate\n"
        "before = os.listdir('/proc/self/task')\n"
        f"locate('{models}:{name}')\n"
        "end_idle_threads()\n"
        "assert os.listdir('/proc/self/task') == before, os.listdir('/proc/self/task')\n"
    )
    servers = {"OPENBLAS_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}  # as trial servers are started
    subprocess.run([sys.executable, "-c", code], check=True, env=os.environ | servers)
