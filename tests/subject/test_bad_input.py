"""Everything a user may hand over that cannot work: each gets its own message, none a traceback of togi's."""

import re

import pytest
import torch
from torch import nn

from togi.core.errors import SubjectError, TogiError, UnknownNameError
from togi.machine.nvml import Gpu
from togi.subject.inputs import Subject
from togi.worker.locate import locate
from togi.worker.survey import survey

HEAD = """
import torch
from torch import nn
import togi
X = torch.rand(1, 3)
NET = nn.Linear(3, 2)
"""

BODIES = {
    "def make(): return NET": r"returned a module \(Linear\) without inputs",
    "def make(): return None": "returned None",
    "def make(): pass": "returned None",
    "def make(): return NET, X, X": r"a tuple of 3 \(Linear, Tensor, Tensor\)",
    "def make(): return X, NET": "gave a torch.Tensor as the module",
    "def make(): return nn.Linear, X": "That is the class",
    "def make(): return (lambda x: x), X": "no torch module can be found",
    "def make(): return torch.jit.script(torch.relu) if False else torch.relu, X": "no torch module can be found",
    "def make(): return torch.export.export(NET, (X,)), X": r"program\.module\(\)",
    "def make(): return NET.state_dict(), X": "as the module",
    "def make(): return NET, []": "list of samples is empty",
    "def make(): return NET, None": "a sample is a NoneType",
    "def make(): return NET, [1, 2]": "a sample is an int",
    "def make(): return NET, [[X]]": "a sample is a list",
    "def make(): return NET, {1: X}": "a sample is a dict",
    "def make(): return NET, 'x'": "a sample is a str",
    "def make(): return togi.Subject(NET, X, calibration=[])": "list of samples is empty",
    "def make(): return {'module': NET}": "returned a dict",
    "async def make(): return NET, X": "returned a coroutine",
    "def make(width): return NET, X": "requires width",
    "def make(*, width): return NET, X": "requires width",
    "make = 3": "is an int, not a function",
    "make = nn.Linear": "Write a function",
    "def make(): raise ValueError('no weights')": r"m\.py:\d+ in make: .*ValueError: no weights",
    "def make(): return helper()\ndef helper(): return 1 / 0": r"in helper: .*ZeroDivisionError",
    "def make(): return nn.Linear('a', 2), X": r"in make: .*TypeError",
    "def make(): import sys; sys.exit('done')": "SystemExit: done",
    "import not_a_package_at_all\ndef make(): ...": "pip install not_a_package_at_all",
    "raise RuntimeError('at import')\ndef make(): ...": r"cannot be imported: .*m\.py:\d+ .*at import",
    "import no_such.part\ndef make(): ...": r"If 'no_such' is a package, install it here \(pip install no_such\)",
    "raise ModuleNotFoundError(name='cv2')\ndef make(): ...": r"\(pip install opencv-python-headless\)",
}


def write(tmp_path, body):
    path = tmp_path / "m.py"
    path.write_text(HEAD + body + "\n", encoding="utf-8")
    return path


@pytest.mark.parametrize("body", BODIES)
def test_a_bad_factory_is_explained(tmp_path, body):
    with pytest.raises(SubjectError) as caught:
        locate(f"{write(tmp_path, body)}:make")
    assert re.search(BODIES[body], str(caught.value)), str(caught.value)


def test_the_original_error_is_kept_as_the_cause(tmp_path):
    with pytest.raises(SubjectError) as caught:
        locate(f"{write(tmp_path, 'def make(): raise KeyError(1)')}:make")
    assert isinstance(caught.value.__cause__, KeyError)


def test_the_subjects_own_errors_pass_through(tmp_path):
    body = "def make(): return togi.Subject(NET, [])"
    with pytest.raises(SubjectError, match="is empty"):
        locate(f"{write(tmp_path, body)}:make")


def test_a_syntax_error_names_its_line(tmp_path):
    path = tmp_path / "m.py"
    path.write_text("x = 1\ndef make(:\n    pass\n", encoding="utf-8")
    with pytest.raises(SubjectError, match=r"m\.py:2: .*def make\(:"):
        locate(f"{path}:make")


@pytest.mark.parametrize("content", [b"\xff\xfe\x00bad", b"a = '\x00'"])
def test_a_file_that_is_not_text(tmp_path, content):
    (tmp_path / "m.py").write_bytes(content)
    with pytest.raises(SubjectError):
        locate(f"{tmp_path / 'm.py'}:make")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "names no subject"),
        (":", "names no subject"),
        ("resnet50", r"did you mean '(timm|torchvision):resnet50'"),
        ("nothing", "names no subject"),
        ("m.py", r"which function\? Name it as"),
        ("m.py:", "names no subject"),
        (":make", "names no subject"),
        ("m.py:1make", "names no subject"),
        ("sentence_transformers:all-MiniLM-L6-v2", "did you mean 'sentence-transformers'"),
        ("Ultralytic:yolo.v8", "did you mean 'ultralytics'"),
        ("m.onnx", "an ONNX model is not a PyTorch module"),
        ("m.safetensors", "weights without a model"),
        ("timm:", r"name is missing, as in 'timm:resnet50'"),
        ("missing.py:make", r"no file missing\.py"),
        ("nofolder/missing.py:make", "no folder nofolder"),
        ("missing.pt2", r"no file missing\.pt2"),
        ("missing.pt", r"no file missing\.pt"),
        ("missing.togi", r"no file missing\.togi"),
        ("tim:resnet50", "no module 'tim'.*did you mean 'timm'"),
        ("not.a.module:make", r"no module 'not'"),
        (".relative:make", "no module"),
    ],
)
def test_a_bad_name_of_a_subject_is_explained(tmp_path, monkeypatch, text, expected):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SubjectError) as caught:
        locate(text)
    assert re.search(expected, str(caught.value)), str(caught.value)


def test_a_misspelt_file_and_factory(tmp_path):
    path = write(tmp_path, "def subject(): return NET, X\ndef other(): return NET, X")
    with pytest.raises(SubjectError, match=r"did you mean 'm\.py'"):
        locate(f"{tmp_path / 'mm.py'}:subject")
    with pytest.raises(UnknownNameError, match=r"did you mean 'subject'\? It has subject, other\."):
        locate(f"{path}:subjcet")


def test_a_folder_where_a_file_is_needed(tmp_path):
    (tmp_path / "m.pt2").mkdir()
    with pytest.raises(SubjectError, match="is a folder"):
        locate(str(tmp_path / "m.pt2"))
    (tmp_path / "m.togi").write_text("x", encoding="utf-8")
    with pytest.raises(SubjectError, match="is a file"):
        locate(str(tmp_path / "m.togi"))


MODULES = {
    "wrong width": (lambda: nn.Linear(3, 2), torch.rand(1, 4), r"sample 1, \(input: float32 \(1, 4\)\)"),
    "wrong dtype": (lambda: nn.Embedding(3, 2), torch.rand(1, 4), r"float32 \(1, 4\)"),
    "too many": (lambda: nn.ReLU(), (torch.rand(1), torch.rand(1)), "does not run on sample 1"),
    "unknown keyword": (lambda: nn.ReLU(), {"y": torch.rand(1)}, r"\(y: float32 \(1,\)\).*TypeError"),
    "no forward": (lambda: nn.Module(), torch.rand(1), "NotImplementedError"),
    "second sample": (lambda: nn.Linear(3, 2), [torch.rand(1, 3), torch.rand(1, 2)], "sample 2"),
    "forms differ": (lambda: nn.ReLU(), [torch.rand(1), {"input": torch.rand(1)}], "sample 2 is called differently"),
    "dtypes differ": (lambda: nn.ReLU(), [torch.rand(1), torch.rand(1).double()], "differs between samples"),
    "meta": (lambda: nn.Linear(3, 2, device="meta"), torch.rand(1, 3), "meta device"),
    "lazy": (lambda: nn.LazyLinear(2), torch.rand(1, 3), "lazy parameter"),
}


@pytest.mark.parametrize("name", MODULES)
def test_modules_and_inputs_that_do_not_fit(name):
    build, samples, expected = MODULES[name]
    with pytest.raises(SubjectError) as caught:
        survey(Subject(build(), samples))
    assert re.search(expected, str(caught.value)), str(caught.value)


def test_the_users_own_line_is_named_when_forward_fails(tmp_path):
    body = "class N(nn.Module):\n    def forward(self, x):\n        return NET(x.T)\ndef make(): return N(), X"
    with pytest.raises(SubjectError, match=r"m\.py:\d+ in forward: return NET\(x\.T\): RuntimeError"):
        survey(locate(f"{write(tmp_path, body)}:make"))


@pytest.mark.parametrize(
    ("device", "error"), [("cuda", SubjectError), ("cuda:9", SubjectError), ("nonsense", UnknownNameError)]
)
def test_devices_that_are_not_here(device, error):
    if device == "cuda" and torch.cuda.is_available():
        pytest.skip("there is a CUDA device")
    with pytest.raises(error, match=r"device"):
        survey(Subject(nn.ReLU(), torch.rand(1)), device=device)


def test_all_of_these_are_togis_own_errors():
    assert issubclass(SubjectError, TogiError)
    assert issubclass(UnknownNameError, TogiError)


def test_a_driver_that_is_too_old_is_named_with_what_it_must_be(monkeypatch: pytest.MonkeyPatch) -> None:
    """NVML alone, which trial servers ask, would call the device available."""
    old = Gpu(driver="535.183.01", cuda="12.2")
    monkeypatch.setattr("togi.machine.nvml.read_gpu", lambda _: old)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.version, "cuda", "13.2")
    with pytest.raises(
        SubjectError, match=r"driver 535\.183\.01 serves CUDA 12\.2, .* update the driver to 580 or newer"
    ):
        survey(Subject(nn.Linear(2, 1), torch.rand(3, 2)), device="cuda")
