"""Folders of models that name code which is not of an installed library. Who runs it leaves a file behind."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

RAN = "it-ran"


def strange_folder(folder: Path, entry: str, changed: dict[str, Any]) -> Path:
    """A folder whose files are plain, but for those that are changed: a document, or the text of a program."""
    made: dict[str, Any] = {**_PLAIN[entry], "evil.py": _evil(folder), **changed}
    for name, content in made.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        text = content if isinstance(content, str) else json.dumps(content)
        (folder / name).write_text(text.replace("{EVIL}", _evil(folder)), encoding="utf-8")
    return folder


def _evil(folder: Path) -> str:
    return f"open({str(folder.parent / RAN)!r}, 'w')\nclass Evil: ...\n"


_TRANSFORMER = "sentence_transformers.models.Transformer"
_PLAIN: dict[str, dict[str, Any]] = {
    "modules.json": {
        "modules.json": [
            {"idx": 0, "name": "0", "path": "", "type": _TRANSFORMER},
            {"idx": 1, "name": "1", "path": "1_Dense", "type": "sentence_transformers.models.Dense"},
        ],
        "config.json": {"model_type": "bert", "architectures": ["BertModel"]},
        "tokenizer_config.json": {"tokenizer_class": "BertTokenizer"},
        "1_Dense/config.json": {"activation_function": "torch.nn.modules.activation.Tanh", "in_features": 4},
    },
    "model_index.json": {
        "model_index.json": {
            "_class_name": "StableDiffusionPipeline",
            "unet": ["diffusers", "UNet2DConditionModel"],
            "text_encoder": ["transformers", "CLIPTextModel"],
            "safety_checker": ["stable_diffusion", "StableDiffusionSafetyChecker"],
            "image_encoder": [None, None],
        },
        "unet/config.json": {"sample_size": 8},
        "text_encoder/config.json": {"model_type": "clip_text_model"},
    },
}
STRANGE: dict[str, tuple[str, dict[str, Any]]] = {
    "a module": ("modules.json", {"modules.json": [{"idx": 0, "name": "0", "path": "", "type": "evil.Evil"}]}),
    "a module like one of the library": (
        "modules.json",
        {"modules.json": [{"idx": 0, "name": "0", "path": "", "type": "sentence_transformers_evil.Evil"}]},
    ),
    "an activation": ("modules.json", {"1_Dense/config.json": {"activation_function": "evil.Evil"}}),
    "a tokenizer of a module": (
        "modules.json",
        {"1_Dense/wordembedding_config.json": {"tokenizer_class": "evil.Evil"}},
    ),
    "a module inside of a router": (
        "modules.json",
        {
            "modules.json": [{"path": "", "type": "sentence_transformers.models.Router"}],
            "router_config.json": {"types": {"query_0": "sentence_transformers.models.Router"}},
            "query_0/router_config.json": {"types": {"0": "evil.Evil"}},
        },
    ),
    "settings that trust": ("modules.json", {"sentence_bert_config.json": {"model_args": {"trust_remote_code": True}}}),
    "a tokenizer": (
        "modules.json",
        {"tokenizer_config.json": {"tokenizer_class": "Evil", "auto_map": {"AutoTokenizer": [None, "evil.Evil"]}}},
    ),
    "a type": ("modules.json", {"config.json": {"model_type": "evil", "auto_map": {"AutoModel": "evil.Evil"}}}),
    "a type of a part": (
        "modules.json",
        {
            "config.json": {
                "model_type": "clip",
                "text_config": {"model_type": "x", "auto_map": {"AutoModel": "evil.X"}},
            }
        },
    ),
    "an architecture": (
        "modules.json",
        {"config.json": {"model_type": "bert", "architectures": ["Evil"], "auto_map": {"AutoModel": "evil.Evil"}}},
    ),
    "a component": (
        "model_index.json",
        {"model_index.json": {"_class_name": "DDIMPipeline", "unet": ["evil", "Evil"]}},
    ),
    "a file by the name of a library": ("model_index.json", {"unet/diffusers.py": "{EVIL}"}),
    "a pipeline": ("model_index.json", {"model_index.json": {"_class_name": ["evil", "Evil"]}}),
    "a pipeline by default": ("model_index.json", {"None.py": "{EVIL}"}),
    "a pipeline of other pipelines": (
        "model_index.json",
        {"model_index.json": {"_class_name": "KandinskyV22CombinedPipeline"}, "README.md": "base_model: evil"},
    ),
    "a part of a part": (
        "model_index.json",
        {"unet/model_index.json": {"_class_name": "DDIMPipeline", "vae": ["evil", "Evil"]}},
    ),
    "a part of diffusers": ("model_index.json", {"unet/config.json": {"auto_map": {"AutoModel": "evil.Evil"}}}),
    "a part of transformers": (
        "model_index.json",
        {"text_encoder/config.json": {"model_type": "evil", "auto_map": {"AutoModel": "evil.Evil"}}},
    ),
}
"""What is strange in a folder: its entry, and the files that make it so."""
