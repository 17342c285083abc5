"""Subjects whose files are pickles, or are fetched when that is asked for: never without the permit."""

from __future__ import annotations

import hashlib
import importlib
import os
import pickle
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from tests.subject.made_hub import BERT, COMMIT, hub, in_cache, noise, tiny_model
from togi.core.errors import SubjectError, UnknownNameError
from togi.core.permits import Permit, permitting
from togi.subject.locator import check_locator
from togi.subject.program import ProgramModule
from togi.worker.locate import locate

BOOM = "touched"


class Boom:
    """Its pickle makes a file when it is read."""

    def __reduce__(self) -> Any:
        return open, (BOOM, "w")


def same(one: nn.Module, other: nn.Module) -> bool:
    return all(torch.equal(a, b) for a, b in zip(one.parameters(), other.parameters(), strict=True))


class TestDownload:
    """From a Hub on this machine."""

    @pytest.fixture(autouse=True)
    def empty_cache(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        from huggingface_hub import constants

        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
        monkeypatch.setenv("HF_HOME", str(tmp_path / "home"))

    def test_a_model_is_fetched_once_and_its_commit_written_down(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        model = tiny_model("BertModel", **BERT)
        model.save_pretrained(tmp_path / "there")
        (tmp_path / "there" / "pytorch_model.bin").write_bytes(b"\x80\x02")
        with hub(tmp_path / "there") as server, permitting([Permit.DOWNLOAD]):
            monkeypatch.setenv("HF_ENDPOINT", server.address)
            found = check_locator("hf:someone/tiny")
            assert found.text == f"hf:someone/tiny?revision={COMMIT}"
            fetched = [path for path in server.asked if "/resolve/" in path]
            assert same(locate("hf:someone/tiny").module, model)
        assert fetched
        assert [path for path in server.asked if "/resolve/" in path] == fetched, "what is there is not fetched again"
        assert not any(path.endswith(".bin") for path in server.asked)

    def test_published_weights_of_timm_are_fetched(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        import safetensors.torch
        import timm

        model = timm.create_model("resnet10t")
        (tmp_path / "there").mkdir()
        safetensors.torch.save_file(model.state_dict(), tmp_path / "there" / "model.safetensors")
        with hub(tmp_path / "there") as server, permitting([Permit.DOWNLOAD]):
            monkeypatch.setenv("HF_ENDPOINT", server.address)
            assert same(locate("timm:resnet10t?pretrained&size=32").module, model)

    def test_nothing_is_asked_without_the_permit(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        with hub(tmp_path) as server:
            monkeypatch.setenv("HF_ENDPOINT", server.address)
            with pytest.raises(SubjectError, match=r"downloads nothing.*or add --download"):
                check_locator("hf:someone/tiny")
        assert server.asked == []

    def test_a_gated_model_says_how_to_get_at_it(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        with hub(tmp_path, gated=True) as server, permitting([Permit.DOWNLOAD]):
            monkeypatch.setenv("HF_ENDPOINT", server.address)
            with pytest.raises(SubjectError, match=r"it is gated: ask for access on its page.*'hf auth login'"):
                check_locator("hf:someone/tiny")

    def test_a_hub_that_is_not_there_is_said(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        with hub(tmp_path) as server:
            monkeypatch.setenv("HF_ENDPOINT", server.address)
        with permitting([Permit.DOWNLOAD]), pytest.raises(SubjectError, match="the Hub cannot be reached from here"):
            check_locator("hf:someone/tiny")


CODE = """
import torch, transformers

class OwnConfig(transformers.PretrainedConfig):
    model_type = "own-of-a-test"

class OwnModel(transformers.PreTrainedModel):
    config_class = OwnConfig
    def __init__(self, config):
        super().__init__(config)
        self.table = torch.nn.Embedding(50, 4)
        self.post_init()
    def forward(self, input_ids, attention_mask=None):
        return self.table(input_ids)
"""


class TestRemoteCode:
    @pytest.fixture
    def named(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
        import safetensors.torch
        from huggingface_hub import constants

        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
        monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path / "modules"))
        made = tmp_path / "made"
        made.mkdir()
        (made / "own.py").write_text(CODE, encoding="utf-8")
        (made / "config.json").write_text(
            '{"model_type": "own-of-a-test", "architectures": ["OwnModel"], "vocab_size": 50, "auto_map": '
            '{"AutoConfig": "own.OwnConfig", "AutoModelForCausalLM": "own.OwnModel"}}',
            encoding="utf-8",
        )
        weights = {"table.weight": torch.arange(200.0).reshape(50, 4)}
        safetensors.torch.save_file(weights, made / "model.safetensors", metadata={"format": "pt"})
        in_cache(tmp_path / "hub", "someone/own", made)
        return "hf:someone/own"

    def test_it_runs_with_the_permit(self, named: str) -> None:
        with permitting([Permit.REMOTE_CODE]):
            subject = locate(named)
        assert type(subject.module).__name__ == "OwnModel"
        assert subject.module.table.weight[1].tolist() == [4, 5, 6, 7]

    @pytest.mark.parametrize("form", ["hf", "transformers"])
    def test_it_does_not_without(self, tmp_path: Path, named: str, form: str) -> None:
        folder = tmp_path / "hub" / "models--someone--own" / "snapshots" / COMMIT
        with pytest.raises(SubjectError, match=r"no downloaded code unasked.*Read the \.py files.*--trust-remote-code"):
            check_locator(named if form == "hf" else f"transformers:{folder}")
        assert not (tmp_path / "modules").exists()


class TestTorchvision:
    """Published weights come from torch's own cache."""

    NAME = "torchvision:squeezenet1_1"

    @pytest.fixture
    def published(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, nn.Module]:
        """The file of the weights as it is published, and the model."""
        import torchvision

        monkeypatch.setattr(torch.hub, "_hub_dir", str(tmp_path / "torch"))
        torch.manual_seed(3)
        model = torchvision.models.squeezenet1_1()
        torch.save(model.state_dict(), tmp_path / "weights")
        digest = hashlib.sha256((tmp_path / "weights").read_bytes()).hexdigest()[:8]
        file = tmp_path / f"squeezenet-{digest}.pth"
        (tmp_path / "weights").rename(file)
        (tmp_path / "torch" / "checkpoints").mkdir(parents=True)
        weights = torchvision.models.SqueezeNet1_1_Weights.DEFAULT.value
        monkeypatch.setattr(weights, "url", f"https://example.invalid/{file.name}")
        return file, model

    @pytest.mark.parametrize("name", ["DEFAULT", "IMAGENET1K_V1"])
    def test_they_are_loaded_from_the_cache(self, tmp_path: Path, published: tuple[Path, nn.Module], name: str) -> None:
        file, model = published
        file.rename(tmp_path / "torch" / "checkpoints" / file.name)
        assert same(locate(f"{self.NAME}?weights={name}&size=64").module, model)

    def test_without_them_a_message_says_where_they_belong(self, published: tuple[Path, nn.Module]) -> None:
        with pytest.raises(SubjectError, match=rf"example\.invalid/{published[0].name} there as .*--download"):
            locate(f"{self.NAME}?weights=DEFAULT")

    def test_they_are_fetched_where_that_is_permitted(
        self, tmp_path: Path, published: tuple[Path, nn.Module], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        import torchvision

        file, model = published
        with hub(tmp_path) as server, permitting([Permit.DOWNLOAD]):
            url = f"{server.address}/x/resolve/{COMMIT}/{file.name}"
            monkeypatch.setattr(torchvision.models.SqueezeNet1_1_Weights.DEFAULT.value, "url", url)
            assert same(locate(f"{self.NAME}?weights=DEFAULT").module, model)

    def test_a_damaged_file_is_not_loaded(self, tmp_path: Path, published: tuple[Path, nn.Module]) -> None:
        (tmp_path / "torch" / "checkpoints" / published[0].name).write_bytes(b"half")
        with pytest.raises(SubjectError, match="is damaged: its SHA-256 does not begin with"):
            locate(f"{self.NAME}?weights=DEFAULT")

    def test_a_pickle_of_more_than_weights_is_not_run(
        self, tmp_path: Path, published: tuple[Path, nn.Module], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        import torchvision

        monkeypatch.chdir(tmp_path)
        content = pickle.dumps(Boom())
        name = f"evil-{hashlib.sha256(content).hexdigest()[:8]}.pth"
        (tmp_path / "torch" / "checkpoints" / name).write_bytes(content)
        monkeypatch.setattr(torchvision.models.SqueezeNet1_1_Weights.DEFAULT.value, "url", f"https://x.invalid/{name}")
        with pytest.raises(SubjectError, match="torchvision cannot build it"):
            locate(f"{self.NAME}?weights=DEFAULT")
        assert not Path(BOOM).exists()

    @pytest.mark.parametrize(
        ("option", "says"),
        [
            (
                "weights=DEFUALT",
                r"did you mean 'DEFAULT'\? It has IMAGENET1K_V1, DEFAULT; a file ends",
            ),
            ("weights=DEFAULT&classes=3", "leave 'classes' out"),
        ],
    )
    def test_a_bad_choice_is_said(self, option: str, says: str) -> None:
        with pytest.raises((SubjectError, UnknownNameError), match=says):
            locate(f"{self.NAME}?{option}")


MODULE = """
import lightning, torch

class Net(lightning.LightningModule):
    def __init__(self, width=4):
        super().__init__()
        self.save_hyperparameters()
        self.example_input_array = torch.ones(2, 3)
        self.layer = torch.nn.Linear(3, width)
    def forward(self, x):
        return self.layer(x)

class Bare(lightning.LightningModule):
    def __init__(self, width):
        super().__init__()
        self.layer = torch.nn.Linear(3, width)
    def forward(self, x):
        return self.layer(x)

class Plain(torch.nn.Linear):
    pass

def net(): ...
"""


class TestLightning:
    @pytest.fixture
    def checkpoint(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
        """As Lightning writes one, with a width that is not the default."""
        monkeypatch.chdir(tmp_path)
        (tmp_path / "net.py").write_text(MODULE, encoding="utf-8")
        torch.manual_seed(1)
        self.state = {f"layer.{name}": value for name, value in nn.Linear(3, 7).state_dict().items()}
        self.save(tmp_path / "a.ckpt")
        return tmp_path / "a.ckpt"

    def save(self, path: Path, **more: Any) -> None:
        content = {"state_dict": self.state, "hyper_parameters": {"width": 7}, "pytorch-lightning_version": "2.5.0"}
        torch.save({**content, "epoch": 1, "global_step": 2, **more}, path)

    def test_its_class_makes_it_and_its_own_example_is_the_sample(self, checkpoint: Path) -> None:
        subject = locate(f"{checkpoint}?class=net.py:Net")
        assert torch.equal(subject.module.layer.weight, self.state["layer.weight"])
        assert not subject.module.training
        assert subject.inputs[0].args[0].shape == (2, 3)
        asked = locate(f"{checkpoint}?class=net.py:Net&inputs=5x3")
        assert asked.inputs[0].args[0].shape == (5, 3)

    def test_objects_in_it_are_read_with_the_permit_alone(self, checkpoint: Path) -> None:
        self.save(checkpoint, callbacks={"mine": Boom()})
        with pytest.raises(SubjectError, match=r"read by running code of the file.*--trust-pickle"):
            locate(f"{checkpoint}?class=net.py:Net")
        assert not Path(BOOM).exists()
        with permitting([Permit.PICKLE]):
            assert locate(f"{checkpoint}?class=net.py:Net").module.layer.out_features == 7
        assert Path(BOOM).exists()

    @pytest.mark.parametrize("key", ["hyper_parameters", "hparams", "datamodule_hyper_parameters"])
    def test_a_function_that_it_names_is_called_with_the_permit_alone(
        self, checkpoint: Path, monkeypatch: pytest.MonkeyPatch, key: str
    ) -> None:
        """Lightning did so before 2.6.6, whatever the function."""
        from lightning import LightningModule

        def old_loader(cls: Any, path: str, **_: Any) -> Any:
            read = torch.load(path, weights_only=True)
            importlib.import_module(read[key]["_instantiator"].rpartition(".")[0])
            return cls(7)

        monkeypatch.setattr(LightningModule, "load_from_checkpoint", classmethod(old_loader))
        Path("evil.py").write_text(f"open({BOOM!r}, 'w')", encoding="utf-8")
        monkeypatch.syspath_prepend(".")
        self.save(checkpoint, **{key: {"_instantiator": "evil.make", "width": 7}})
        with pytest.raises(SubjectError, match=rf"its {key} name 'evil\.make' as the function.*--trust-pickle"):
            locate(f"{checkpoint}?class=net.py:Net")
        assert not Path(BOOM).exists()
        with permitting([Permit.PICKLE]):
            locate(f"{checkpoint}?class=net.py:Net")
        assert Path(BOOM).exists()
        del sys.modules["evil"]

    @pytest.mark.parametrize(
        ("options", "says"),
        [
            ("", r"Name the class: '.*a\.ckpt\?class=FILE\.py:CLASS'"),
            ("?class=timm:resnet18", "is not a class"),
            ("?class=net.py:Nett", "did you mean 'Net'"),
            ("?class=net.py:Plain", "it has no load_from_checkpoint"),
            ("?class=net.py:net", "it has no load_from_checkpoint"),
            ("?class=net.py:Bare", r"no example_input_array.*inputs=1x3x224x224"),
        ],
    )
    def test_what_is_missing_is_said(self, checkpoint: Path, options: str, says: str) -> None:
        with pytest.raises((SubjectError, UnknownNameError), match=says):
            locate(f"{checkpoint}{options}")

    def test_a_class_that_cannot_be_made_from_it_is_said(self, checkpoint: Path) -> None:
        self.save(checkpoint, hyper_parameters={})
        with pytest.raises(SubjectError, match=r"cannot be made.*save_hyperparameters\(\)"):
            locate(f"{checkpoint}?class=net.py:Bare")


YOLO = """
import pickle, types
from torch import nn

class YOLO(nn.Module):
    '''Like the real one: it reads a pickle, its predict takes a picture, and its train starts a training.'''
    def __init__(self, path):
        super().__init__()
        with open(path, "rb") as file:
            self.model = pickle.load(file)
    def predict(self, source, device=None, verbose=True, save=True, imgsz=640):
        assert (device, verbose, save) == ("cpu", False, False)
        import numpy, torch
        picture = torch.from_numpy(numpy.asarray(source).copy()).float().mean(dim=(0, 1))
        return [Results(self.model(picture[None]))]

class Results:
    boxes = None
    def __init__(self, data):
        self.probs = types.SimpleNamespace(data=data)
"""


class TestUltralytics:
    """A stand-in package: the real one is not among the suite's (a thorough test elsewhere takes it if it is there)."""

    @pytest.fixture(autouse=True)
    def package(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        (tmp_path / "ultralytics").mkdir()
        (tmp_path / "ultralytics" / "__init__.py").write_text(YOLO, encoding="utf-8")
        monkeypatch.syspath_prepend(str(tmp_path))
        monkeypatch.delitem(sys.modules, "ultralytics", raising=False)
        monkeypatch.chdir(tmp_path)
        (tmp_path / "m.pt").write_bytes(pickle.dumps(nn.Linear(3, 2)))

    def test_predict_is_called_with_a_picture(self) -> None:
        with permitting([Permit.PICKLE]):
            subject = locate("ultralytics:m.pt?size=96")
        ((picture,),) = (sample.args for sample in subject.inputs)
        assert picture.size == (96, 96)
        ((name, value),) = subject.module(picture)[0].items()
        assert (name, value.shape) == ("probs", (1, 2))
        assert any(isinstance(part, nn.Linear) for part in subject.module.modules())

    def test_an_artifact_fits_predict_of_the_users_own_model(self) -> None:
        import ultralytics

        own = ProgramModule(ultralytics.YOLO("m.pt").predict)
        with permitting([Permit.PICKLE]):
            program = locate("ultralytics:m.pt").module
        assert [name for name, _ in program.named_modules()] == [name for name, _ in own.named_modules()]

    def test_without_the_permit_nothing_is_read(self, tmp_path: Path) -> None:
        (tmp_path / "m.pt").write_bytes(pickle.dumps(Boom()))
        with pytest.raises(SubjectError, match=r"keeps its models as pickles.*--trust-pickle"):
            locate("ultralytics:m.pt")
        assert not Path(BOOM).exists()

    @pytest.mark.parametrize(
        ("name", "says"), [("ultralytics:n.pt", "did you mean 'm.pt'"), ("ultralytics:", "'ultralytics:FILE.pt'")]
    )
    def test_a_file_that_is_not_there(self, name: str, says: str) -> None:
        with permitting([Permit.PICKLE]), pytest.raises(SubjectError, match=says):
            check_locator(name)

    def test_a_file_of_another_kind(self, tmp_path: Path) -> None:
        (tmp_path / "m.pt").write_bytes(b"nothing")
        with permitting([Permit.PICKLE]), pytest.raises(SubjectError, match="ultralytics cannot load it"):
            locate("ultralytics:m.pt")


class TestDiffusers:
    @pytest.fixture
    def folder(self, tmp_path: Path) -> Path:
        torch.manual_seed(0)
        noise(tmp_path / "made")
        return tmp_path / "made"

    def test_it_is_called_as_its_users_call_it(self, folder: Path) -> None:
        subject = locate(f"diffusers:{folder}?steps=2")
        (sample,) = (sample.clone() for sample in subject.inputs)
        assert sample.kwargs["num_inference_steps"] == 2
        assert subject.module(**sample.kwargs).images.shape == (1, 8, 8, 3)

    def test_a_name_of_the_hub_is_found_in_the_cache(
        self, tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        from huggingface_hub import constants

        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
        in_cache(tmp_path / "hub", "someone/noise", folder)
        assert check_locator("diffusers:someone/noise").text == f"diffusers:someone/noise?revision={COMMIT}"
        assert locate("diffusers:someone/noise").module.name == "DDIMPipeline"
        with pytest.raises(SubjectError, match="name it as diffusers:someone/noise"):
            check_locator("hf:someone/noise")

    def test_pickled_parts_are_refused(self, folder: Path) -> None:
        (weights,) = (folder / "unet").glob("*.safetensors")
        weights.rename(weights.with_suffix(".bin"))
        with pytest.raises(SubjectError, match="is pickled, and togi does not unpickle"):
            locate(f"diffusers:{folder}")

    def test_code_of_the_folder_is_not_run(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.chdir(folder)
        (folder / "pipeline.py").write_text(f"open({BOOM!r}, 'w')", encoding="utf-8")
        index = (folder / "model_index.json").read_text(encoding="utf-8")
        own = index.replace('"DDIMPipeline"', '["pipeline", "Mine"]')
        (folder / "model_index.json").write_text(own, encoding="utf-8")
        with pytest.raises(SubjectError, match=r"has code of its own.*add --trust-remote-code"):
            locate(f"diffusers:{folder}")
        assert not Path(BOOM).exists()

    def test_a_size_that_it_does_not_take(self, folder: Path) -> None:
        with pytest.raises(SubjectError, match="makes pictures of one size"):
            locate(f"diffusers:{folder}?size=64")

    def test_a_folder_of_something_else(self, tmp_path: Path, folder: Path) -> None:
        with pytest.raises(SubjectError, match=r"no model_index\.json"):
            check_locator(f"diffusers:{tmp_path}")
        with pytest.raises(SubjectError, match=f"name it as 'diffusers:{folder}'"):
            check_locator(str(folder))


@contextmanager
def unprivileged(path: Path) -> Iterator[None]:
    """Someone who may not read below ``path``, whoever runs the tests."""
    path.chmod(0o700)
    if os.geteuid() == 0:
        os.seteuid(65534)
    else:
        path.chmod(0)
    try:
        yield
    finally:
        if os.getuid() == 0:
            os.seteuid(0)
        path.chmod(0o700)


@pytest.mark.parametrize("form", ["transformers:{}", "diffusers:{}", "{}/m.pt2", "{}/a.ckpt?class=x.py:A", "{}/f.py:g"])
def test_a_folder_without_rights_is_said(tmp_path: Path, form: str) -> None:
    closed = tmp_path / "closed"
    (closed / "m").mkdir(parents=True)
    with (
        unprivileged(closed),
        pytest.raises(SubjectError, match=r"cannot be read \(Permission denied\)\. Give your"),
    ):
        check_locator(form.format(closed / "m"))
