import zipfile

import pytest
import torch
from torch import nn

from togi.core.errors import ArtifactError, SubjectError
from togi.subject.made_inputs import samples_from_signature
from togi.worker.locate import locate
from togi.worker.survey import survey


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(10, 4)

    def forward(self, ids, *, extra, flag=None):
        return {"a": self.embedding(ids) * extra["w"], "n": [ids.float()]}


@pytest.fixture
def exported(tmp_path):
    """Writes a program and returns its path."""

    def write(module, args, kwargs=None, dynamic=None):
        program = torch.export.export(module, args, kwargs, dynamic_shapes=dynamic)
        torch.export.save(program, tmp_path / "m.pt2")
        return tmp_path / "m.pt2"

    return write


def test_exported_program_gets_inputs_of_its_own_form(exported):
    module = Net()
    path = exported(module, (torch.tensor([[1, 2]]),), {"extra": {"w": torch.rand(4)}, "flag": None})
    subject = locate(str(path))
    (sample,) = subject.inputs
    assert sample.args[0].dtype == torch.int64
    assert sample.args[0].shape == (1, 2)
    with torch.no_grad():
        ours = subject.module(*sample.args, **sample.kwargs)
        theirs = module(*sample.args, **sample.kwargs)
    assert torch.equal(ours["a"], theirs["a"])
    assert torch.equal(ours["n"][0], theirs["n"][0])


def test_exported_dynamic_dimensions_stay_dynamic_and_in_range(exported):
    dim = torch.export.Dim("batch", min=2, max=5)
    path = exported(nn.Linear(3, 2), (torch.rand(4, 3),), dynamic=({0: dim},))
    found = survey(locate(str(path)))
    assert found.facts.inputs[0].shape == (None, 3)
    assert 2 <= locate(str(path)).inputs[0].args[0].shape[0] <= 5
    assert not found.facts.training


def test_exported_file_that_is_damaged(exported):
    path = exported(nn.ReLU(), (torch.rand(2),))
    path.write_bytes(path.read_bytes()[:200])
    with pytest.raises(SubjectError, match=r"not a \.pt2 file|cannot be loaded"):
        locate(str(path))


def test_exported_example_inputs_are_not_unpickled(exported, tmp_path):
    """The file's own pickle is replaced by one that would leave a mark."""
    path, mark = exported(nn.ReLU(), (torch.rand(2),)), tmp_path / "mark"
    reader, bad = torch._C.PyTorchFileReader(str(path)), tmp_path / "bad.pt2"
    writer = torch._C.PyTorchFileWriter(str(bad))
    writer.set_min_version(6)
    payload = b"cos\nsystem\n(S'touch " + str(mark).encode() + b"'\ntR."
    for name in reader.get_all_records():
        if not name.startswith(".data/"):
            record = payload if name.endswith("sample_inputs/model.pt") else reader.get_record(name)
            writer.write_record(name, record, len(record))
    writer.write_end_of_file()
    locate(str(bad))
    assert not mark.exists()


class Structured(nn.Module):
    def forward(self, x, d):
        return x + d["a"] + d["b"][0]


def test_traced_torchscript_remembers_its_inputs(tmp_path):
    inputs = (torch.rand(2, 3), {"a": torch.rand(3), "b": torch.rand(1, 3)})
    torch.jit.trace(Structured(), inputs, strict=False).save(tmp_path / "m.pt")
    found = survey(locate(str(tmp_path / "m.pt")))
    assert [(t.name, t.shape) for t in found.facts.inputs] == [("x", (2, 3)), ("d['a']", (3,)), ("d['b']", (1, 3))]
    assert found.facts.module_class == "Structured"


@pytest.mark.parametrize(
    "note",
    [
        b"\x80\x02Nr\xff\xff\xff\x1f.",
        b"\x80\x02" + b"(" * 9,
        b"\x80\x02cos\nsystem\nX\x04\x00\x00\x00trueq\x00\x85R.",
        b"x" * (2 << 20),
    ],
    ids=["a memo of gigabytes", "nothing but marks", "a call", "too long"],
)
def test_notes_of_a_trace_that_are_none_are_left(tmp_path, note):
    path = tmp_path / "model.ts"
    torch.jit.script(nn.Linear(4, 2).eval()).save(path)
    with zipfile.ZipFile(path, "a") as archive:
        root = archive.namelist()[0].split("/")[0]
        archive.writestr(f"{root}/traced_inputs.pkl", note)
    with pytest.raises(SubjectError, match="sizes of its inputs"):
        locate(str(path))


def test_inputs_that_nobody_can_hold_are_not_made(tmp_path):
    path = tmp_path / "model.ts"
    torch.jit.script(nn.Linear(4, 2).eval()).save(path)
    with pytest.raises(SubjectError, match="nobody can hold"):
        locate(f"{path}?inputs=9999999x9999999")


def test_scripted_torchscript_asks_for_its_inputs(tmp_path):
    torch.jit.script(nn.Linear(3, 2)).save(tmp_path / "m.ts")
    with pytest.raises(SubjectError, match=r"inputs \(input\).*\?inputs="):
        locate(str(tmp_path / "m.ts"))
    subject = locate(f"{tmp_path / 'm.ts'}?inputs=5x3")
    assert survey(subject).facts.outputs[0].shape == (5, 2)


@pytest.mark.parametrize("text", ["", "axb", "1x3:float33", "1x3:nn", "-1x3"])
def test_described_inputs_that_are_none(tmp_path, text):
    torch.jit.script(nn.Linear(3, 2)).save(tmp_path / "m.ts")
    if text == "":
        assert locate(f"{tmp_path / 'm.ts'}?inputs=").inputs[0].args[0].shape == ()
        return
    with pytest.raises(SubjectError, match="describes no input"):
        locate(f"{tmp_path / 'm.ts'}?inputs={text}")


@pytest.mark.parametrize("suffix", [".pt", ".pth"])
@pytest.mark.parametrize("whole", [True, False])
@pytest.mark.parametrize("zipped", [True, False])
def test_pickles_are_refused(tmp_path, suffix, whole, zipped):
    path, module = tmp_path / f"m{suffix}", nn.Linear(1, 1)
    torch.save(module if whole else module.state_dict(), path, _use_new_zipfile_serialization=zipped)
    with pytest.raises(SubjectError, match=r"does not unpickle.*named 'ultralytics:.*m\.pth?'"):
        locate(str(path))


def test_an_exported_program_with_the_wrong_suffix(exported):
    path = exported(nn.ReLU(), (torch.rand(2),))
    renamed = path.rename(path.with_suffix(".pt"))
    with pytest.raises(SubjectError, match=r"rename it to end in \.pt2"):
        locate(str(renamed))


def test_a_text_file_is_not_torchscript(tmp_path):
    (tmp_path / "m.pt").write_text("hello", encoding="utf-8")
    with pytest.raises(SubjectError, match="not a TorchScript file"):
        locate(str(tmp_path / "m.pt"))


def test_an_empty_folder_is_not_an_artifact(tmp_path):
    (tmp_path / "m.togi").mkdir()
    with pytest.raises(ArtifactError):
        locate(str(tmp_path / "m.togi"))


def test_samples_from_a_signature_have_its_form(tmp_path):
    torch.jit.trace(Structured(), (torch.rand(2, 3), {"a": torch.rand(3), "b": torch.rand(1, 3)}), strict=False).save(
        tmp_path / "m.pt"
    )
    signature = survey(locate(str(tmp_path / "m.pt"))).signature
    (first,), (again,) = (samples_from_signature(signature, seed=3) for _ in range(2))
    flat, same = (signature.flatten_inputs(s.args, s.kwargs) for s in (first, again))
    signature.check(flat)
    assert all(torch.equal(a, b) for a, b in zip(flat, same, strict=True))
