"""Subjects ``transformers:X``: a local folder with a config.json, a model type (``bert``) or a class (``BertModel``).

Weights are loaded where the folder holds them as safetensors, and random otherwise. Nothing is downloaded and no code
of a model folder is run. The cache of keys and values is switched off: one call is one whole pass.
"""

from __future__ import annotations

import json
import os
from typing import Any

from togi.core.errors import SubjectError, UnknownNameError, nearest
from togi.subject.inputs import Subject
from togi.subject.random_weights import live_in
from togi.subject.sources.transformers_inputs import example_inputs
from togi.subject.spec import FORMS, Spec


def from_transformers(spec: Spec, seed: int) -> Subject:
    """Options: ``batch`` (1), ``length`` (tokens, 128 where the model takes that many), ``size`` (pixels), and any
    value of the model's configuration: ``transformers:gpt2?n_layer=4&length=64``.

    Raises SubjectError when transformers cannot build it or its inputs are of no known form.
    """
    import transformers

    transformers.logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    transformers.utils.logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    try:
        module = _model(transformers, spec, seed)
    except (SubjectError, UnknownNameError):
        raise
    except Exception as error:  # foreign code
        raise SubjectError(f"{spec.text}: transformers cannot build it: {type(error).__name__}: {error}") from error
    return Subject(module.eval(), example_inputs(spec, module, seed))


def _model(transformers: Any, spec: Spec, seed: int) -> Any:
    if spec.path.exists():
        return _from_folder(transformers, spec, seed)
    types = transformers.CONFIG_MAPPING
    if spec.target in types:
        config = _overridden(spec, transformers.AutoConfig.for_model(spec.target))
        return live_in(transformers.AutoModel.from_config(config), seed)
    cls = getattr(transformers, spec.target, None)
    if cls is None or getattr(cls, "config_class", None) is None:
        near = nearest(spec.target, types) or nearest(spec.target, dir(transformers))
        raise UnknownNameError(f"transformers has no model type or architecture '{spec.target}'{near or '.'}")
    return live_in(cls._from_config(_overridden(spec, cls.config_class())), seed)


def _from_folder(transformers: Any, spec: Spec, seed: int) -> Any:
    path = spec.path
    folder = path if path.is_dir() else path.parent
    config = transformers.AutoConfig.from_pretrained(str(path), local_files_only=True)
    config = _overridden(spec, config)
    cls = getattr(transformers, (config.architectures or [""])[0], None) or transformers.AutoModel
    has_weights = any((folder / name).exists() for name in ("model.safetensors", "model.safetensors.index.json"))
    if has_weights and path.is_dir():
        # Threads that load weights may outlive the loading; a trial server that has threads cannot fork.
        os.environ.setdefault("HF_DEACTIVATE_ASYNC_LOAD", "1")
        return cls.from_pretrained(str(folder), config=config, local_files_only=True, use_safetensors=True)
    if any(folder.glob("pytorch_model*.bin")) and path.is_dir():
        raise SubjectError(
            f"{spec.text}: its weights are pickled (pytorch_model.bin), and togi does not unpickle. Convert them once: "
            "AutoModel.from_pretrained(DIR).save_pretrained(NEW_DIR) writes safetensors."
        )
    fresh = cls.from_config(config) if cls is transformers.AutoModel else cls._from_config(config)
    return live_in(fresh, seed)


def _overridden(spec: Spec, config: Any) -> Any:
    """The configuration with the values given as options, and without the cache."""
    own = set(FORMS["transformers"])
    for name, text in spec.options.items():
        if name in own:
            continue
        if not hasattr(config, name):
            known = [*config.to_dict(), *config.attribute_map, *own - {"*"}]
            raise UnknownNameError(f"{spec.text}: {type(config).__name__} has no '{name}'{nearest(name, known) or '.'}")
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
