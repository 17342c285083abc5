"""Subjects ``model.ckpt?class=FILE.py:Net``: a checkpoint of Lightning with the class of its module.

A checkpoint is a pickle. It is read as one that holds only weights and plain values; more needs the permit for it.
"""

from __future__ import annotations

import inspect
import pickle
import zipfile
from collections.abc import Mapping
from typing import Any

import torch

from togi.core.errors import SubjectError
from togi.core.permits import Permit, permitted
from togi.subject.inputs import Subject
from togi.subject.locator import Spec, class_of
from togi.subject.sources.factory import named_in
from togi.subject.sources.torchscript import asked_inputs
from togi.subject.sources.weights import unpickling


def from_checkpoint(locator: Spec, seed: int) -> Subject:
    """Options: ``class``, and ``inputs`` (``1x3x224x224,1x77:int64``) where the module has no ``example_input_array``.

    Raises SubjectError where the class is not one of Lightning's, or the checkpoint does not fit it.
    """
    module = _loaded(locator, _module_class(locator))
    return Subject(module.eval(), _inputs(locator, module, seed))


def _module_class(locator: Spec) -> Any:
    cls = named_in(class_of(locator))
    if not isinstance(cls, type) or not hasattr(cls, "load_from_checkpoint"):
        raise SubjectError(
            f"{locator.text}: {locator.options['class']} is not a class of Lightning: it has no load_from_checkpoint. "
            "Name the LightningModule whose checkpoint it is"
        )
    return cls


def _loaded(locator: Spec, cls: Any) -> Any:
    trusted = permitted(Permit.PICKLE)
    by_option = {"weights_only": not trusted} if "weights_only" in _parameters(cls.load_from_checkpoint) else {}
    try:
        if not trusted:
            _check_instantiator(locator)
        with unpickling(trusted=trusted):
            return cls.load_from_checkpoint(str(locator.path), map_location="cpu", **by_option)
    except SubjectError:
        raise
    except pickle.UnpicklingError as error:
        if trusted:
            raise SubjectError(f"{locator.text}: {locator.path} is not a checkpoint: {error}") from error
        raise SubjectError(
            f"{locator.text}: it cannot be read as weights and plain values: either it holds objects, which are "
            "read by running code of the file, or it is damaged. If you trust who made it, add " + Permit.PICKLE.how
        ) from error
    except TypeError as error:
        raise SubjectError(
            f"{locator.text}: {cls.__name__} cannot be made from what the checkpoint holds ({error}). Call "
            "self.save_hyperparameters() in its __init__ before it is trained, or write a function that returns "
            f"{cls.__name__}.load_from_checkpoint(...) and a sample"
        ) from error
    except Exception as error:  # foreign code
        raise locator.failed(f"it does not fit {cls.__name__}", error) from error


def _check_instantiator(locator: Spec) -> None:
    """The command line of Lightning writes down which function makes the module and of which class: names that
    Lightning imports, whoever wrote them, and before 2.6.6 without a look at them.

    Raises SubjectError, and UnpicklingError where it cannot be read as plain values.
    """
    read = torch.load(locator.path, map_location="cpu", weights_only=True, mmap=zipfile.is_zipfile(locator.path))
    for name, values in read.items() if isinstance(read, dict) else ():
        if isinstance(values, Mapping) and "_instantiator" in values:
            raise SubjectError(
                f"{locator.text}: its {name} name {values['_instantiator']!r} as the function that makes the module, "
                "and togi runs nothing that a file names unasked: it may do whatever you may. If you trust who made "
                f"{locator.path}, add {Permit.PICKLE.how}"
            )


def _parameters(function: Any) -> tuple[str, ...]:
    return tuple(inspect.signature(function).parameters)


def _inputs(locator: Spec, module: Any, seed: int) -> Any:
    """Those that are asked for, else what Lightning's own summary calls the module with."""
    if "inputs" in locator.options:
        return asked_inputs(locator, torch.Generator().manual_seed(seed))
    sample = getattr(module, "example_input_array", None)
    if sample is None:
        example = f"{locator.target}?class={locator.options['class']}&inputs=1x3x224x224"
        raise SubjectError(
            f"{locator.text}: {type(module).__name__} has no example_input_array, so its inputs are not known. Give "
            f"their sizes, '{example}' (several with commas, ':int64' for another dtype), or set "
            "self.example_input_array in its __init__"
        )
    return sample
