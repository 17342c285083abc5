"""``togi.tune`` of what people hold, by its name alone: the pipeline with its tokenizer, and the modules inside."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import togi
from tests.subject.made_hub import BERT, tiny_model, tokenizer

pytestmark = [pytest.mark.thorough, pytest.mark.usefixtures("brief_studies")]


def text(folder: Path) -> str:
    tiny_model("BertForSequenceClassification", **BERT).save_pretrained(folder)
    tokenizer(folder)
    return f"transformers:{folder}?task=text-classification"


def noise(folder: Path) -> str:
    import diffusers

    torch.manual_seed(0)
    blocks = {"down_block_types": ("DownBlock2D",), "up_block_types": ("UpBlock2D",)}
    unet = diffusers.UNet2DModel(
        sample_size=8, block_out_channels=(8,), layers_per_block=1, norm_num_groups=4, **blocks
    )
    diffusers.DDIMPipeline(unet, diffusers.DDIMScheduler()).save_pretrained(folder)
    return f"diffusers:{folder}?steps=2"


@pytest.mark.parametrize(("make", "part"), [(text, "model"), (noise, "unet")])
def test_the_modules_inside_are_found_and_tuned(
    make: object, part: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOGI_HOME", str(tmp_path / "home"))
    name = make(tmp_path / "made")  # type: ignore[operator]
    study = togi.tune(name, effort="quick", time_limit_s=60, only=["no_grad", "openvino"]).record
    assert study.subject == name
    assert study.best is not None
    assert study.program is not None, "it is called as its users call it, which no engine takes as a whole"
    assert [each.key.path for each in study.program.parts] == [part]
