"""How far apart are faithful and wrong? Error in units of plain eager's own, for engines and for planted faults.

    python benchmarks/verification.py [--only NAME] [--compile] [--json FILE]

Every subject is verified with its faithful engines (which must stay within ``MAX_UNITS``) and with planted faults
(which must not). The last lines give both extremes, which is what the limit rests on. A fault that changes nothing (on
this subject) is left out; one that hides below the original's own error passes, and is listed. ``--compile`` adds
torch.compile (minutes).
"""

from __future__ import annotations

import argparse
import copy
import json
import tempfile
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from togi.core.records import Outcome
from togi.decide.faithful import MAX_UNITS, accept
from togi.subject.inputs import Inputs
from togi.subject.signature import Signature
from togi.verify.derived_inputs import variants
from togi.verify.reference import make_truth
from togi.verify.verdict import verify

Call = Callable[[Tensor], Tensor]


class Of(nn.Module):
    """A module of a function, so that a subject is one line."""

    def __init__(self, function: Call, **parts: nn.Module) -> None:
        super().__init__()
        self.parts = nn.ModuleDict(parts)
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(self, x)  # type: ignore[call-arg]


def subjects() -> Iterator[tuple[str, nn.Module, Tensor]]:
    import timm

    yield "resnet18", timm.create_model("resnet18", num_classes=100), torch.randn(1, 3, 96, 96)
    yield "mobilenetv3_small", timm.create_model("mobilenetv3_small_100", num_classes=100), torch.randn(1, 3, 96, 96)
    yield "vit_tiny", timm.create_model("vit_tiny_patch16_224", img_size=64), torch.randn(1, 3, 64, 64)
    yield "one number", mlp(12, 128, 1), torch.randn(1, 128)
    yield "two numbers, deep", mlp(40, 64, 2), torch.randn(1, 64)
    yield "saturated softmax", nn.Sequential(nn.Linear(64, 64), Scale(30.0), nn.Softmax(-1)), torch.randn(8, 64)
    yield "saturated sigmoid", nn.Sequential(nn.Linear(64, 64), Scale(20.0), nn.Sigmoid()), torch.randn(8, 64)
    yield "log softmax", nn.Sequential(nn.Linear(64, 64), Scale(30.0), nn.LogSoftmax(-1)), torch.randn(8, 64)
    yield "layer norm", nn.Sequential(nn.Linear(64, 64), nn.LayerNorm(64), nn.Linear(64, 64)), torch.randn(8, 64)
    yield "argmax map", nn.Sequential(nn.Conv2d(3, 16, 3, padding=1), Argmax()), torch.randn(1, 3, 64, 64)
    yield "cancelling sum", nn.Sequential(nn.Linear(64, 64), Cancel()), torch.randn(8, 64)
    yield "long sum", Sum(), torch.randn(1, 1_000_000)
    yield "variance far from 0", Variance(), torch.randn(8, 10_000) + 100
    yield "variances far from 0", Variance(), torch.randn(300, 10_000) + 100
    yield "lstm", First(nn.LSTM(32, 64, 2, batch_first=True)), torch.randn(2, 40, 32)
    yield "gru", First(nn.GRU(32, 64, 2, batch_first=True)), torch.randn(2, 40, 32)
    yield "convolution, a million outputs", nn.Conv2d(3, 16, 3, padding=1), torch.randn(1, 3, 256, 256)
    yield "dead outputs", nn.Sequential(nn.Linear(64, 64), Shift(-50.0), nn.ReLU()), torch.randn(8, 64)
    yield "elementwise only", nn.Sequential(nn.GELU(), nn.Tanh()), torch.randn(8, 64)
    yield "boxes and scores", Detector(80, 640.0), torch.randn(400, 64)
    yield "84 columns of anchors", nn.Sequential(Detector(80, 1900.0), Anchors()), torch.randn(400, 64)
    yield "rare classes", Detector(80, 640.0, rare=8.0), torch.randn(400, 64)
    yield "a picture in bytes", nn.Sequential(nn.Conv2d(3, 3, 5, padding=2), Bytes()), torch.randn(1, 3, 256, 256)
    yield "prices", nn.Sequential(nn.Linear(64, 64), HeavyTail()), torch.randn(64, 64)
    yield "bf16", mlp(6, 64, 64).bfloat16(), torch.randn(32, 64).bfloat16()
    yield "bf16 inside", Inside(mlp(12, 64, 64)), torch.randn(32, 64)
    yield "labels in bf16", nn.Sequential(Inside(mlp(4, 64, 16)), Argmax()), torch.randn(2048, 64)


class Scale(nn.Module):
    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor = factor

    def forward(self, x: Tensor) -> Tensor:
        return x * self.factor


class Shift(nn.Module):
    def __init__(self, by: float) -> None:
        super().__init__()
        self.by = by

    def forward(self, x: Tensor) -> Tensor:
        return x + self.by


class Argmax(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.argmax(1)


class Cancel(nn.Module):
    """Zero in exact arithmetic: every digit of the output is rounding."""

    def forward(self, x: Tensor) -> Tensor:
        return (x - x.mean(-1, keepdim=True)).sum(-1)


class Detector(nn.Module):
    """Boxes in pixels, and scores next to them."""

    def __init__(self, classes: int, pixels: float, rare: float = 0.0) -> None:
        super().__init__()
        self.head = nn.Linear(64, 4 + classes)
        self.pixels = pixels
        self.register_buffer("rarity", torch.linspace(0, rare, classes))

    def forward(self, x: Tensor) -> Tensor:
        y = self.head(x)
        return torch.cat([y[:, :4].sigmoid() * self.pixels, (3 * y[:, 4:] - self.rarity).sigmoid()], -1)


class Anchors(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.t()[None].contiguous()


class Bytes(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return (x.sigmoid() * 255).round().to(torch.uint8)


class HeavyTail(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return (4 * x).exp().where(x > 0, x * x) + (9 * x).exp()


class Inside(nn.Module):
    """Computes in bf16, and takes and answers float32."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner.bfloat16()

    def forward(self, x: Tensor) -> Tensor:
        output: Tensor = self.inner(x.bfloat16()).float()
        return output


class Sum(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.sum(-1)


class Variance(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return (x * x).mean(-1) - x.mean(-1) ** 2


class First(nn.Module):
    def __init__(self, recurrent: nn.Module) -> None:
        super().__init__()
        self.recurrent = recurrent

    def forward(self, x: Tensor) -> Tensor:
        output: Tensor = self.recurrent(x)[0]
        return output


def mlp(depth: int, width: int, outputs: int) -> nn.Module:
    layers: list[nn.Module] = []
    for _ in range(depth):
        layers += [nn.Linear(width, width), nn.GELU(), nn.LayerNorm(width)]
    return nn.Sequential(*layers, nn.Linear(width, outputs))


def engines(module: nn.Module, x: Tensor, *, compiled: bool) -> Iterator[tuple[str, Callable[[], Call]]]:
    """Each as a builder: some cannot build some subjects, which is then said."""
    yield "no_grad", lambda: module
    if x.dim() == 4:
        yield "channels_last", lambda: channels_last(module)
    yield "one thread", lambda: one_thread(module)
    if 1 < len(x) <= 64 and len(module(x)) == len(x):
        yield "row by row", lambda: lambda x: torch.cat([module(row[None]) for row in x])
    yield "torchscript", lambda: torchscript(module, x)
    yield "onnxruntime", lambda: onnxruntime(module, x)
    yield "openvino", lambda: openvino(module, x)
    if compiled:
        yield "torch.compile", lambda: torch.compile(copy.deepcopy(module))


def channels_last(module: nn.Module) -> Call:
    other = copy.deepcopy(module).to(memory_format=torch.channels_last)
    return lambda x: other(x.contiguous(memory_format=torch.channels_last)).contiguous()


def one_thread(module: nn.Module) -> Call:
    def call(x: Tensor) -> Tensor:
        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        try:
            output: Tensor = module(x)
        finally:
            torch.set_num_threads(threads)
        return output

    return call


def torchscript(module: nn.Module, x: Tensor) -> Call:
    traced = torch.jit.optimize_for_inference(torch.jit.freeze(torch.jit.trace(copy.deepcopy(module), x)))
    return lambda x: traced(x).clone()


def onnxruntime(module: nn.Module, x: Tensor) -> Call:
    import onnxruntime as ort

    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder) / "m.onnx")
        torch.onnx.export(copy.deepcopy(module), (x,), path, dynamo=True, verbose=False)
        session = ort.InferenceSession(path, providers=["CPUExecutionProvider"])
    name = session.get_inputs()[0].name
    return lambda x: torch.from_numpy(session.run(None, {name: x.numpy()})[0])


def openvino(module: nn.Module, x: Tensor) -> Call:
    import openvino as ov

    core = ov.Core()
    core.set_property("CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    compiled = core.compile_model(ov.convert_model(copy.deepcopy(module), example_input=x), "CPU")
    return lambda x: torch.from_numpy(compiled({0: x.numpy()})[0].copy())


def faults(module: nn.Module, x: Tensor) -> Iterator[tuple[str, Callable[[], Call]]]:
    """Things that must be caught. Scales are relative to the output's root mean square."""
    yield "bf16", lambda: lower(module, torch.bfloat16)
    yield "fp16", lambda: lower(module, torch.float16)
    if x.dim() == 4:
        yield "border pixels", lambda: border(module)
    with torch.no_grad():
        output = module(x)
    if not output.is_floating_point():
        yield "one wrong element", lambda: changed(module, one_other_class)
        yield "a block of zeros", lambda: changed(module, block_of_zeros)
        return
    yield "shift of 1e-4", lambda: changed(module, lambda y: y + 1e-4 * y.square().mean().sqrt())
    yield "scale of 1e-4", lambda: changed(module, lambda y: y * (1 + 1e-4))
    yield "shift of 1e-5", lambda: changed(module, lambda y: y + 1e-5 * y.square().mean().sqrt())
    yield "one element off by 1e-3", lambda: changed(module, one_element)
    yield "scale of 1e-2", lambda: changed(module, lambda y: y * 1.01)
    yield "small columns off by 1e-3", lambda: changed(module, small_columns)
    yield "large numbers off by 1e-3", lambda: changed(module, lambda y: y.where(y.abs() < 1e4, y * 1.001))
    yield "rolled by one", lambda: changed(module, lambda y: y.roll(1, 1) if y.dim() > 1 else y.roll(1))


def lower(module: nn.Module, dtype: torch.dtype) -> Call:
    other = copy.deepcopy(module).to(dtype)

    def call(x: Tensor) -> Tensor:
        y: Tensor = other(x.to(dtype))
        return y.float() if y.is_floating_point() else y

    return call


def border(module: nn.Module) -> Call:
    """Convolutions pad with the edge instead of zeros."""
    other = copy.deepcopy(module)
    for part in other.modules():
        if isinstance(part, nn.Conv2d) and any(part.padding):
            part.padding_mode = "replicate"
            top, left = part.padding if isinstance(part.padding, tuple) else (1, 1)
            part._reversed_padding_repeated_twice = [left, left, top, top]
    return other


def changed(module: nn.Module, change: Call) -> Call:
    return lambda x: change(module(x))


def one_element(y: Tensor) -> Tensor:
    y = y.clone()
    y[tuple(size // 2 for size in y.shape)] += 1e-3 * y.square().mean().sqrt()
    return y


def small_columns(y: Tensor) -> Tensor:
    """Those that are a hundred times smaller than the largest."""
    if y.dim() < 2:
        return y
    largest = y.abs().transpose(0, 1).flatten(1).amax(1)
    small = (largest < largest.max() / 100).reshape(-1, *[1] * (y.dim() - 2))
    return torch.where(small, y + 1e-3 * largest.reshape(small.shape), y)


def block_of_zeros(y: Tensor) -> Tensor:
    y = y.clone()
    y[tuple(slice(0, size if size < 8 else size // 8) for size in y.shape)] = 0
    return y


def one_other_class(y: Tensor) -> Tensor:
    y = y.clone()
    y.view(-1)[y.numel() // 2] += 1
    return y


def judge(name: str, module: nn.Module, x: Tensor, *, compiled: bool) -> list[dict[str, Any]]:
    module = module.eval().requires_grad_(False)
    samples = [Inputs((x,))]
    signature = Signature.of(module, samples, [module(x)])
    inputs = variants(samples, signature, 0)
    truth = make_truth(module, inputs, signature, seed=0)
    leaf = truth.facts.answers[0].leaves[0]
    rows = []
    for kind, builders in (("engine", engines(module, x, compiled=compiled)), ("fault", faults(module, x))):
        for label, build in builders:
            row: dict[str, Any] = {"subject": name, "kind": kind, "candidate": label, "eager_rmse": leaf.eager_rmse}
            try:
                with torch.no_grad():
                    call = build()
                    if kind == "fault" and torch.equal(call(x), module(x)):
                        continue
                    report = verify(call, truth, inputs, signature, seed=0)
            except Exception as error:  # foreign code: an engine that cannot build this subject
                row["failed"] = f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error) else ''}"
            else:
                row |= {
                    "units": report.units,
                    "rmse": report.rmse,
                    "faithful": accept(report, exact=True)[0] is Outcome.OK,
                }
                row["problems"] = [*report.problems, *([report.unproven] if report.unproven else [])]
            rows.append(row)
            print(line(row), flush=True)
    return rows


def line(row: dict[str, Any]) -> str:
    start = f"{row['subject']:32}{row['kind']:8}{row['candidate']:26}"
    if "failed" in row:
        return f"{start}{row['failed'][:60]}"
    told = "faithful" if row["faithful"] else "not faithful"
    return f"{start}{row['units']:12.3g} units  rmse {row['rmse']:9.2e}  {told}  {'; '.join(row['problems'])}"


def summary(rows: list[dict[str, Any]]) -> str:
    judged = [row for row in rows if "failed" not in row]
    engines_ = sorted((r for r in judged if r["kind"] == "engine"), key=lambda r: -r["units"])
    faults_ = sorted((r for r in judged if r["kind"] == "fault"), key=lambda r: r["units"])
    text = [f"limit: {MAX_UNITS:g} units of plain eager's own error"]
    text += [f"  furthest engine:  {line(row)}" for row in engines_[:3]]
    text += [f"  fault passed:     {line(row)}" for row in faults_ if row["faithful"]]
    text += [f"  nearest refused:  {line(row)}" for row in [r for r in faults_ if not r["faithful"]][:3]]
    text.append(f"engines refused: {sum(not r['faithful'] for r in engines_)} of {len(engines_)}")
    text.append(f"faults passed: {sum(r['faithful'] for r in faults_)} of {len(faults_)}")
    return "\n".join(text)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="subjects whose name contains this")
    parser.add_argument("--compile", action="store_true", help="torch.compile too")
    parser.add_argument("--json", type=Path, help="write the rows here")
    options = parser.parse_args()
    warnings.filterwarnings("ignore")
    torch.manual_seed(0)
    rows = []
    for name, module, x in subjects():
        if options.only in name:
            rows += judge(name, module, x, compiled=options.compile)
    print(summary(rows))
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
