"""Subjects ``transformers:X``: a local folder with a config.json, a model type (``bert``) or a class (``BertModel``).

Weights are loaded where the folder holds them as safetensors, and random otherwise. Nothing is downloaded, and code of
a model folder is run with the permit for it alone. The cache of keys and values is switched off: one call is one whole
pass.
"""

from __future__ import annotations

import importlib.util
import inspect
import json
import os
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from togi.core.errors import SubjectError, UnknownNameError, nearest
from togi.subject.hub import check_files
from togi.subject.inputs import Subject
from togi.subject.locator import FORMS, Spec
from togi.subject.made_inputs import made_tensor, vary_constants
from togi.subject.own_code import check_own_code
from togi.subject.sources.missing_weights import check_made_up, noting_made_up


def from_transformers(locator: Spec, seed: int) -> Subject:
    """Options: ``batch`` (1), ``length`` (tokens, 128 where the model takes that many), ``size`` (pixels), and any
    value of the model's configuration: ``transformers:gpt2?n_layer=4&length=64``. With ``task``, the whole pipeline.

    Raises SubjectError when transformers cannot build it or its inputs are of no known form.
    """
    os.environ.setdefault("HF_HUB_OFFLINE", "1")  # a configuration may name a backbone, or kernels, to be downloaded
    import transformers

    transformers.logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    transformers.utils.logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    if "task" in locator.options:
        from togi.subject.sources.pipeline import from_pipeline

        return from_pipeline(locator, seed)
    try:
        module = _model(transformers, locator, seed)
    except (SubjectError, UnknownNameError):
        raise
    except Exception as error:  # foreign code
        raise locator.failed("transformers cannot build it", error) from error
    return Subject(module.eval(), example_inputs(locator, module, seed))


def _model(transformers: Any, locator: Spec, seed: int) -> Any:
    if locator.path.exists():
        return _from_folder(transformers, locator, seed)
    types = transformers.CONFIG_MAPPING
    if locator.target in types:
        config = _overridden(locator, transformers.AutoConfig.for_model(locator.target))
        return vary_constants(transformers.AutoModel.from_config(config), seed)
    cls = getattr(transformers, locator.target, None)
    if cls is None or getattr(cls, "config_class", None) is None:
        near = nearest(locator.target, types) or nearest(locator.target, dir(transformers))
        raise UnknownNameError(f"transformers has no model type or architecture '{locator.target}'{near or '.'}")
    return vary_constants(cls._from_config(_overridden(locator, cls.config_class())), seed)


def _from_folder(transformers: Any, locator: Spec, seed: int) -> Any:
    path = locator.path
    folder = path if path.is_dir() else path.parent
    trusted = check_own_code(locator.text, locator.form, path)
    config = transformers.AutoConfig.from_pretrained(str(path), local_files_only=True, trust_remote_code=trusted)
    config = _overridden(locator, config)
    _check_implementations(locator, config)
    if path.is_dir():
        check_files(locator)
    cls = _class(transformers, config)
    own = {"trust_remote_code": trusted} if hasattr(cls, "from_config") else {}
    has_weights = any((folder / name).exists() for name in ("model.safetensors", "model.safetensors.index.json"))
    if has_weights and path.is_dir():
        # Threads that load weights may outlive the loading; a trial server that has threads cannot fork.
        os.environ.setdefault("HF_DEACTIVATE_ASYNC_LOAD", "1")
        with noting_made_up(transformers.PreTrainedModel) as made_up:
            options = {"config": config, "local_files_only": True, "use_safetensors": True, **own}
            module = cls.from_pretrained(str(folder), **options)
        check_made_up(locator, made_up, lambda: module(**example_inputs(locator, module, seed)))
        return module
    if any(folder.glob("pytorch_model*.bin")) and path.is_dir():
        raise SubjectError(
            f"{locator.text}: its weights are pickled (pytorch_model.bin), and togi does not unpickle. Convert them "
            "once: AutoModel.from_pretrained(DIR).save_pretrained(NEW_DIR) writes safetensors."
        )
    return vary_constants(cls.from_config(config, **own) if own else cls._from_config(config), seed)


def _class(transformers: Any, config: Any) -> Any:
    """What transformers has by the name of the architecture, else the automatic class that finds the folder's own."""
    architecture = (config.architectures or [""])[0]
    own = getattr(config, "auto_map", None) or {}
    finds = (name for name, place in own.items() if str(place).endswith(f".{architecture}") and "Config" not in name)
    return getattr(transformers, architecture, None) or getattr(transformers, next(finds, "AutoModel"))


def _check_implementations(locator: Spec, config: Any) -> None:
    """transformers downloads the code of an attention that it lacks, where the package ``kernels`` is installed.

    Raises SubjectError.
    """
    known = {"eager", "sdpa", "flex_attention", "paged|eager", "paged|sdpa"}
    known |= {f"flash_attention_{n}" for n in "234" if importlib.util.find_spec("flash_attn") is not None}
    for part in _configs(config):
        for name, value in vars(part).items():
            chosen = value.values() if isinstance(value, dict) else [value]
            texts = [text for text in chosen if isinstance(text, str)] if "implementation" in name else []
            strange = [text for text in texts if "/" in text or ("attn" in name and text not in known)]
            if strange:
                raise SubjectError(
                    f"{locator.text}: its configuration asks for {strange[0]!r} ({name.strip('_')}), whose code would "
                    "be downloaded, and togi downloads nothing: leave it out of config.json, or name 'sdpa' or 'eager'"
                )


def _configs(config: Any) -> Iterator[Any]:
    """A configuration and those of its parts."""
    yield config
    for value in vars(config).values():
        if hasattr(value, "model_type"):
            yield from _configs(value)


def _overridden(locator: Spec, config: Any) -> Any:
    """The configuration with the values given as options, and without the cache."""
    own = set(FORMS["transformers"])
    for name, text in locator.options.items():
        if name in own:
            continue
        if not hasattr(config, name):
            known = [*config.to_dict(), *config.attribute_map, *own - {"*"}]
            raise UnknownNameError(
                f"{locator.text}: {type(config).__name__} has no '{name}'{nearest(name, known) or '.'}"
            )
        setattr(config, name, _value(text))
    for part in (config, config.get_text_config(decoder=True)):
        if hasattr(part, "use_cache"):
            part.use_cache = False
    return config


def _value(text: str) -> Any:
    """``4``, ``0.1``, ``true``, ``null`` and ``[1,2]`` as JSON; anything else is a string (``gelu``)."""
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        return {"True": True, "False": False, "None": None}.get(text, text)


DEFAULT_LENGTH = 128
_SAMPLES_PER_SECOND = 16_000
_TEXT = ("input_ids", "attention_mask")
_MAIN = ("input_ids", "pixel_values", "pixel_values_videos", "input_features", "input_values")


def example_inputs(locator: Spec, module: Any, seed: int) -> dict[str, Tensor]:
    """Keyword arguments of one call.

    Text: ``input_ids``, ``attention_mask`` (int64, batch x length), and ``decoder_input_ids`` for encoder-decoders.
    Pictures: ``pixel_values`` (float32, batch x channels x size x size). Audio: ``input_features`` or ``input_values``.

    Raises SubjectError for models whose main input is none of these.
    """
    maker = _Maker(locator, module, torch.Generator().manual_seed(seed))
    return maker.inputs()


class _Maker:
    def __init__(self, locator: Spec, module: Any, generator: torch.Generator) -> None:
        self.locator = locator
        self.config = module.config
        self.main = getattr(module, "main_input_name", "input_ids")
        self.accepted = inspect.signature(module.forward).parameters
        self.generator = generator
        self.batch = locator.integer("batch") or 1

    def inputs(self) -> dict[str, Tensor]:
        needed = [name for name in _MAIN if name == self.main or (name in self.accepted and self._is_joint(name))]
        if not needed:
            raise SubjectError(
                f"{self.locator.text}: its main input is '{self.main}', for which togi makes no example. "
                "Write a factory that returns the model with inputs of your own."
            )
        arguments: dict[str, Tensor] = {}
        for name in needed:
            arguments.update(self._make(name))
        if self.config.is_encoder_decoder and "decoder_input_ids" in self.accepted:
            arguments["decoder_input_ids"] = self._tokens(self._length())
        return arguments

    def _is_joint(self, name: str) -> bool:
        """Models of text and pictures (CLIP) need both: they have one configuration for each."""
        parts = {"input_ids": "text_config", "pixel_values": "vision_config"}
        return name in parts and all(hasattr(self.config, part) for part in parts.values())

    def _make(self, name: str) -> dict[str, Tensor]:
        if name == "input_ids":
            tokens = self._tokens(self._length())
            return {"input_ids": tokens} | ({_TEXT[1]: torch.ones_like(tokens)} if _TEXT[1] in self.accepted else {})
        return {name: made_tensor(torch.float32, self._shape(name), self.generator)}

    def _shape(self, name: str) -> tuple[int, ...]:
        vision = getattr(self.config, "vision_config", self.config)
        if name == "pixel_values":
            height, width = self._size(vision)
            return self.batch, int(getattr(vision, "num_channels", 3)), height, width
        if name == "pixel_values_videos":
            height, width = self._size(vision)
            frames: Any = getattr(vision, "num_frames", None) or getattr(vision, "frames_per_clip", 16)
            return self.batch, int(frames), int(getattr(vision, "num_channels", 3)), height, width
        if name == "input_features":
            return self._features()
        return self._waveform()

    def _features(self) -> tuple[int, ...]:
        """Spectrograms: whisper's two frames per position, else one frame per token (time before mels)."""
        mels = getattr(self.config, "num_mel_bins", None) or getattr(self.config, "feature_projection_input_dim", None)
        if mels is None:
            raise SubjectError(
                f"{self.locator.text}: the size of its input_features is not in its configuration. "
                "Write a factory that returns the model with inputs of your own."
            )
        if hasattr(self.config, "max_source_positions") and self.config.model_type == "whisper":
            return self.batch, int(mels), 2 * int(self.config.max_source_positions)
        return self.batch, self.locator.integer("length") or DEFAULT_LENGTH, int(mels)

    def _waveform(self) -> tuple[int, ...]:
        """One second of sound; the audio spectrogram transformer calls its spectrogram ``input_values`` too."""
        if hasattr(self.config, "num_mel_bins") and hasattr(self.config, "max_length"):
            return self.batch, int(self.config.max_length), int(self.config.num_mel_bins)
        return self.batch, self.locator.integer("length") or _SAMPLES_PER_SECOND

    def _size(self, config: Any) -> tuple[int, int]:
        if side := self.locator.integer("size"):
            return side, side
        size: Any = getattr(config, "image_size", None) or getattr(config, "input_size", None) or 224
        if isinstance(size, dict):
            size = (size.get("height", 224), size.get("width", 224))
        height, width = (size, size) if isinstance(size, int) else tuple(size)[-2:]
        return int(height), int(width)

    def _length(self) -> int:
        """Tokens: as asked, else 128 or as many as the model has positions for."""
        text = self.config.get_text_config(decoder=self.config.is_encoder_decoder)
        limits = [getattr(text, name, None) for name in ("max_position_embeddings", "max_target_positions")]
        usable = [limit for limit in limits if isinstance(limit, int) and limit > 0]
        length = self.locator.integer("length")
        if length is not None and usable and length > min(usable):
            raise SubjectError(f"{self.locator.text}: length={length}, but the model has {min(usable)} positions.")
        return length or min([DEFAULT_LENGTH, *usable])

    def _tokens(self, length: int) -> Tensor:
        """Ids that are not special: padding and end marks change what a model computes."""
        text = self.config.get_text_config(decoder=self.config.is_encoder_decoder)
        vocabulary = int(text.vocab_size)
        special = {getattr(text, f"{kind}_token_id", None) for kind in ("pad", "bos", "eos", "sep", "cls")}
        tokens = torch.randint(0, vocabulary, (self.batch, length), generator=self.generator)
        ordinary = next(i for i in range(vocabulary) if i not in special)
        for token in special - {None}:
            if isinstance(token, int):
                tokens[tokens == token] = ordinary
        return tokens
