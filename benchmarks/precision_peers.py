"""What the tools of ``benchmarks/precision.py`` do by themselves, as techniques that no study tries.

They are plug-ins while a race runs (``installed``): NNCF's accuracy control, which gives layers back to floating point
until a metric is kept, and ONNX Runtime's two quantizers with all that they do by default.
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
"""Validation samples by which NNCF's metric is computed. On EfficientNet it asks for all of them a hundred times."""
_AS_PEER = Refuses("it is a peer of a benchmark")


class AccuracyControl(LowerPrecision):
    """``nncf.quantize_with_accuracy_control``, by the measure and the budget of the row."""

    id = "nncf_accuracy_control"
    devices = frozenset({"cpu"})
    needs = frozenset({"engine:openvino"})

    def applies(self, facts: Facts) -> Applies | Refuses:
        return _AS_PEER

    def apply(self, candidate: Any, options: Options) -> Any:
        return candidate.with_pass("openvino", partial(_controlled, **options))


class DefaultsOfOnnxRuntime(LowerPrecision):
    """``quantize_static`` and ``quantize_dynamic`` with nothing but the model (and calibration inputs)."""

    id = "onnxruntime_defaults"
    devices = frozenset({"cpu"})
    needs = frozenset({"engine:onnxruntime"})

    def applies(self, facts: Facts) -> Applies | Refuses:
        return _AS_PEER

    def apply(self, candidate: Any, options: Options) -> Any:
        return candidate.with_pass("onnxruntime", partial(_by_default, **options))


@contextmanager
def installed() -> Iterator[None]:
    """Have them among the techniques, here and in processes that are started meanwhile."""
    before = os.environ.get("PYTHONPATH")
    with tempfile.TemporaryDirectory() as folder:
        info = Path(folder) / "togi_precision_peers-1.dist-info"
        info.mkdir()
        known = ("Metadata-Version: 2.1", "Name: togi-precision-peers", "Version: 1")
        (info / "METADATA").write_text("\n".join(known) + "\n", encoding="utf-8")
        kinds = (AccuracyControl, DefaultsOfOnnxRuntime)
        lines = [f"[{ENTRY_POINT_GROUP}]", *(f"{kind.id} = {__name__}:{kind.__name__}" for kind in kinds)]
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
    from benchmarks import precision_subjects

    from togi.subject.validation import Validation
    from togi.techniques.engine.programs.openvino_library import no_telemetry, openvino
    from togi.techniques.precision.lowering.quantization import calibration_tensors

    with no_telemetry():
        import nncf
    given = getattr(precision_subjects, data)()
    numbers = range(0, len(given.inputs), max(1, len(given.inputs) // _JUDGED))
    labels = None if given.labels is None else [given.labels[i] for i in numbers]
    some = Validation([given.samples[i] for i in numbers], labels=labels)
    flat = [candidate.signature.flatten_inputs(each.args, each.kwargs) for each in some.inputs]
    names = [port.get_any_name() for port in model.inputs]

    def feed(tensors: Sequence[Any]) -> dict[str, Any]:
        return {name: tensor.detach().contiguous().numpy() for name, tensor in zip(names, tensors, strict=True)}

    plain = openvino().Core().compile_model(model, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    answers = [_answer(plain(feed(tensors))) for tensors in flat]
    lost = _lost(some, answers, AccuracyMeasure(measure), getattr(precision_subjects, metric) if metric else None)

    def validated(compiled: Any, items: Iterable[tuple[int, Sequence[Any]]]) -> tuple[float, list[float]]:
        kept = [1.0 - lost(number, _answer(compiled(feed(tensors)))) for number, tensors in items]
        return sum(kept) / len(kept), kept

    judging = [number for number in range(len(flat)) if lost(number, answers[number]) is not None]
    calibration = calibration_tensors(candidate)
    return nncf.quantize_with_accuracy_control(
        model,
        nncf.Dataset(calibration, feed),
        nncf.Dataset([(number, flat[number]) for number in judging], lambda item: feed(item[1])),
        validated,
        max_drop=max_drop,
        subset_size=len(calibration),
    )


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
