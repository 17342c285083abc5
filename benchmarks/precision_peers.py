"""What the tools of ``benchmarks/precision.py`` do by themselves, as techniques that no study tries.

They are plug-ins while a race runs (``installed``): NNCF's accuracy control, which gives layers back to floating point
until a metric is kept; the autotune of Intel Neural Compressor, which tries one configuration after the other until one
keeps it; and ONNX Runtime's two quantizers with all that they do by default.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from togi.core.choices import AccuracyMeasure
from togi.core.records import Facts
from togi.techniques.base import Applies, LowerPrecision, Options, Refuses
from togi.techniques.registry import ENTRY_POINT_GROUP, all_techniques

ROOT = Path(__file__).parents[1]
_JUDGED = 300
"""Validation samples by which these tools compute their metric. On EfficientNet NNCF asks for all of them a hundred
times."""


class Peer(LowerPrecision):
    """What a tool does by itself, which no study tries."""

    devices = frozenset({"cpu"})

    def applies(self, facts: Facts) -> Applies | Refuses:
        return Refuses("it is a peer of a benchmark")


class AccuracyControl(Peer):
    """``nncf.quantize_with_accuracy_control``, by the measure and the budget of the row."""

    id = "nncf_accuracy_control"
    needs = frozenset({"engine:openvino"})

    def apply(self, candidate: Any, options: Options) -> Any:
        return candidate.with_pass("openvino", partial(_controlled, **options))


class Autotune(Peer):
    """``neural_compressor``'s ``autotune`` over its static configurations of 8 bits, by the measure and the budget of
    the row, compiled as its documentation shows. It stops at the first that keeps the budget, and times none."""

    id = "neural_compressor_autotune"
    needs = frozenset({"engine:torch_compile"})

    def apply(self, candidate: Any, options: Options) -> Any:
        return candidate.with_(module=_autotuned(candidate, **options))


class DefaultsOfOnnxRuntime(Peer):
    """``quantize_static`` and ``quantize_dynamic`` with nothing but the model (and calibration inputs)."""

    id = "onnxruntime_defaults"
    needs = frozenset({"engine:onnxruntime"})

    def apply(self, candidate: Any, options: Options) -> Any:
        return candidate.with_pass("onnxruntime", partial(_by_default, **options))


KINDS: tuple[type[Peer], ...] = (AccuracyControl, Autotune, DefaultsOfOnnxRuntime)


@contextmanager
def installed() -> Iterator[None]:
    """Have them among the techniques, here and in processes that are started meanwhile."""
    before = os.environ.get("PYTHONPATH")
    with tempfile.TemporaryDirectory() as folder:
        info = Path(folder) / "togi_precision_peers-1.dist-info"
        info.mkdir()
        known = ("Metadata-Version: 2.1", "Name: togi-precision-peers", "Version: 1")
        (info / "METADATA").write_text("\n".join(known) + "\n", encoding="utf-8")
        lines = [f"[{ENTRY_POINT_GROUP}]", *(f"{kind.id} = {__name__}:{kind.__name__}" for kind in KINDS)]
        (info / "entry_points.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
        sys.path.insert(0, folder)
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (folder, str(ROOT), before)))
        all_techniques.cache_clear()
        try:
            yield
        finally:
            sys.path.remove(folder)
            os.environ.pop("PYTHONPATH")
            if before is not None:
                os.environ["PYTHONPATH"] = before
            all_techniques.cache_clear()


def _controlled(model: Any, candidate: Any, *, data: str, measure: str, metric: str, max_drop: float) -> Any:
    """In 8 bits, but for what is given back until no more than the budget is lost on the data that togi chooses by."""
    from togi.techniques.engine.programs.openvino_library import no_telemetry, openvino
    from togi.techniques.precision.lowering.quantization import calibration_tensors

    with no_telemetry():
        import nncf
    names = [port.get_any_name() for port in model.inputs]

    def feed(tensors: Sequence[Any]) -> dict[str, Any]:
        return {name: tensor.detach().contiguous().numpy() for name, tensor in zip(names, tensors, strict=True)}

    plain = openvino().Core().compile_model(model, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    given, lost = _judging(candidate, lambda tensors: _answer(plain(feed(tensors))), data, measure, metric)

    def validated(compiled: Any, items: Iterable[tuple[int, Sequence[Any]]]) -> tuple[float, list[float]]:
        kept = [1.0 - lost(number, _answer(compiled(feed(tensors)))) for number, tensors in items]
        return sum(kept) / len(kept), kept

    calibration = calibration_tensors(candidate)
    return nncf.quantize_with_accuracy_control(
        model,
        nncf.Dataset(calibration, feed),
        nncf.Dataset(given, lambda item: feed(item[1])),
        validated,
        max_drop=max_drop,
        subset_size=len(calibration),
    )


def _autotuned(candidate: Any, *, data: str, measure: str, metric: str, max_drop: float) -> Any:
    """The first configuration that loses no more than the budget on the data that togi chooses by, else the one that
    loses least, as a module that is called as the candidate's."""
    import torch
    from neural_compressor.torch.export import export
    from neural_compressor.torch.quantization import INT8StaticQuantConfig, TuningConfig, autotune

    from togi.graph.capture import _distinct_sizes, _dynamic_shapes
    from togi.techniques.precision.lowering.quantization import calibration_tensors

    flat = candidate.flat()

    def first(outputs: Sequence[Any]) -> Any:
        return outputs[0].float()

    with torch.no_grad():
        given, lost = _judging(candidate, lambda tensors: first(flat(*tensors)), data, measure, metric)

        def calibrate(module: Callable[..., Any]) -> None:
            for tensors in calibration_tensors(candidate):
                module(*tensors)

        def kept(module: Callable[..., Any]) -> float:
            return sum(1.0 - lost(number, first(module(*tensors))) for number, tensors in given) / len(given)

        example = tuple(_distinct_sizes(candidate))
        chosen = autotune(
            export(flat, example, _dynamic_shapes(candidate)),
            TuningConfig([INT8StaticQuantConfig.get_config_set_for_tuning()], tolerable_loss=max_drop),
            kept,
            run_fn=calibrate,
            example_inputs=example,
        )
    return _as_called(chosen, candidate.signature)


def _as_called(flat: Any, signature: Any) -> Any:
    """The module of flat tensors as one with the signature's calls."""
    from torch import nn

    class AsCalled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.flat = flat
            self.training = False

        def forward(self, *args: Any, **kwargs: Any) -> Any:
            return signature.build_outputs(list(self.flat(*signature.flatten_inputs(args, kwargs))))

    return AsCalled()


def _judging(
    candidate: Any, original: Callable[[Sequence[Any]], Any], data: str, measure: str, metric: str
) -> tuple[list[tuple[int, Sequence[Any]]], Callable[[int, Any], Any]]:
    """Flat inputs of the samples that count, with their numbers; and by how much an answer to one of them is worse than
    the ``original``'s."""
    from benchmarks import precision_subjects

    from togi.subject.validation import Validation

    given = getattr(precision_subjects, data)()
    numbers = range(0, len(given.inputs), max(1, len(given.inputs) // _JUDGED))
    labels = None if given.labels is None else [given.labels[i] for i in numbers]
    some = Validation([given.samples[i] for i in numbers], labels=labels)
    flat = [candidate.signature.flatten_inputs(each.args, each.kwargs) for each in some.inputs]
    answers = [original(tensors) for tensors in flat]
    lost = _lost(some, answers, AccuracyMeasure(measure), getattr(precision_subjects, metric) if metric else None)
    return [(i, tensors) for i, tensors in enumerate(flat) if lost(i, answers[i]) is not None], lost


def _answer(outputs: Any) -> Any:
    import torch

    return torch.from_numpy(outputs.to_tuple()[0].copy()).float()


def _lost(
    some: Any, answers: Sequence[Any], measure: AccuracyMeasure, own: Callable[..., float] | None
) -> Callable[[int, Any], Any]:
    """By how much an answer to one of the samples is worse than the original's; None where it does not count."""
    from togi.verify.measures import RowMeasure

    if own is not None:
        return lambda number, answer: (
            own([answers[number]], [some.labels[number]]) - own([answer], [some.labels[number]])
        )
    rows = RowMeasure(measure, some, answers)

    def lost(number: int, answer: Any) -> float | None:
        worse = rows.worse(number, answer)[rows.counted(number)]
        return float(worse.mean()) if len(worse) else None

    return lost


def _by_default(path: Path, candidate: Any, *, how: str) -> None:
    """Replaces the model at ``path``, after the preparation that ONNX Runtime's documentation asks for."""
    from onnxruntime import quantization
    from onnxruntime.quantization.shape_inference import quant_pre_process

    from togi.techniques.precision.lowering.quantization import _feeds, _Reader

    prepared, quantized = path.with_name("prepared.onnx"), path.with_name("quantized.onnx")
    quant_pre_process(str(path), str(prepared), skip_symbolic_shape=True)
    if how == "static":
        quantization.quantize_static(prepared, quantized, _Reader(_feeds(prepared, candidate)))
    else:
        quantization.quantize_dynamic(prepared, quantized)
    prepared.unlink()
    quantized.replace(path)
