"""The engine ``ncnn``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from togi.core.records import Facts
from togi.techniques.base import Options, Package, Refuses, fixes_decisions
from togi.techniques.engine.torchscript import TRACED
from togi.techniques.graph_engine import OF_A_LIBRARY, GraphEngine

if TYPE_CHECKING:
    from togi.graph.candidate import Candidate, Program
    from togi.subject.signature import Signature

WORTHWHILE = 0.7
"""Share of the operations in dense 3x3 convolutions of stride 1 from which on it is tried."""
NEARLY_ALL = 0.9
"""From which on it was ahead of ONNX Runtime: VGG-16 on two Xeons, a U-Net on an EPYC."""


class Ncnn(GraphEngine):
    """Run the module in ncnn, on the CPU.

    What it does: traces the module, converts the trace with pnnx and runs the network with weights, activations and
    arithmetic in float32. ncnn computes dense 3x3 convolutions of stride 1 by Winograd's algorithm, with down to a
    fifth of the multiplications that the definition needs.

    When it applies: on CPUs, to calls of one sample with float32 tensors of fixed sizes, where at least 70 % of the
    operations are in dense 3x3 convolutions of stride 1: after the other engines, or, from 90 % on, before ONNX
    Runtime.

    When it refuses: inputs hold a batch of several samples (it runs without an axis for it) or vary in size. Inputs or
    outputs are of another type. Other operators prevail. The forward pass updates a buffer. pnnx or ncnn does not know
    an operator.

    Claim: VGG-16 at 224 x 224 on 2 cores of a Sapphire Rapids CPU: 120 ms, ONNX Runtime 148 ms, OpenVINO 158 ms. Next
    to OpenVINO there, VGG-11 ran at 1.15 x, and RepVGG, a U-Net and ResNet-18 at 0.80 to 0.84 x: it is an engine for
    few models. ``togi explain ncnn --prove`` measures it here.

    Source: https://github.com/Tencent/ncnn/wiki/use-ncnn-with-pytorch-or-onnx; Lavin and Gray, Fast Algorithms for
    Convolutional Neural Networks, https://arxiv.org/abs/1509.09308.

    Cost and risk: seconds to convert, and half a minute for a gigabyte of weights. The error was 0.7 to 4.4 times that
    of plain eager. Inputs and outputs are copied. Calls of several threads are answered one after the other, and
    nothing else of Python runs meanwhile, since ncnn's binding holds Python's lock.
    """

    id = "ncnn"
    library = "ncnn"
    devices = frozenset({"cpu"})
    packages = (Package("ncnn", "ncnn", "1.0.20261020"), Package("pnnx", "ncnn", "20261020"))
    provides = OF_A_LIBRARY | {"engine:ncnn"}
    conflicts = frozenset({"precision"})
    native = True
    files = ("model.param", "model.bin")

    def why_not(self, facts: Facts) -> Refuses | None:
        return _other_calls(facts) or _other_work(facts)

    def expected_speedup(self, facts: Facts, options: Options) -> float:
        return 2.4 if _share(facts) >= NEARLY_ALL else 1.8  # OpenVINO's is 2.5, ONNX Runtime's 2.0

    def cost_s(self, facts: Facts, options: Options) -> float:
        return 2.0 + facts.parameter_bytes / 35e6

    def apply(self, candidate: Candidate, options: Options) -> Candidate:
        from togi.techniques.engine.programs import ncnn

        return candidate.with_(program=ncnn.build(candidate))

    def repro(self, options: Options, threads: int | None) -> str | None:
        return (
            f"import ncnn, pnnx, subprocess\n{TRACED}\n"
            "run.save(here / 'model.pt')\n"
            "shapes = ','.join(f'{list(tensor.shape)}f32'.replace(' ', '') for tensor in samples[0])\n"
            "subprocess.run([pnnx.EXEC_PATH, str(here / 'model.pt'), f'inputshape={shapes}', 'fp16=0'], check=True)\n"
            "net = ncnn.Net()\n"
            "for option in dir(net.opt):\n"
            "    if option.startswith(('use_fp16_', 'use_bf16_')):\n"
            "        setattr(net.opt, option, False)\n"
            f"net.opt.num_threads = {threads or 'torch.get_num_threads()'}\n"
            "net.load_param(str(here / 'model.ncnn.param'))\n"
            "net.load_model(str(here / 'model.ncnn.bin'))\n"
            "def run(*tensors):\n"
            "    extractor = net.create_extractor()\n"
            "    arrays = [tensor.contiguous().numpy()[0] for tensor in tensors]\n"
            "    for name in net.input_names():\n"
            "        extractor.input(name, ncnn.Mat(arrays[int(name[2:])]).clone())\n"
            "    names = [f'out{i}' for i in range(len(net.output_names()))]\n"
            "    return [torch.from_numpy(extractor.extract(name)[1].numpy())[None] for name in names]"
        )

    def load(self, folder: Path, meta: dict[str, Any], signature: Signature, threads: int | None) -> Program:
        from togi.techniques.engine.programs import ncnn

        return ncnn.load(folder, signature, threads)


def _other_calls(facts: Facts) -> Refuses | None:
    """Calls that the conversion is not for."""
    if refused := fixes_decisions(facts):
        return refused
    if others := {tensor.dtype for tensor in (*facts.inputs, *facts.outputs)} - {"float32"}:
        return Refuses(f"ncnn is given and returns float32 alone, not {', '.join(sorted(others))}")
    if facts.dynamic:
        return Refuses("it is converted for fixed sizes, and an input's vary")
    if any(len(tensor.shape) > 1 and tensor.shape[0] != 1 for tensor in facts.inputs):
        return Refuses("ncnn is run without an axis for a batch, so that an input's first size must be 1")
    return None


def _other_work(facts: Facts) -> Refuses | None:
    """Work at which ncnn is not ahead."""
    if not facts.flops or facts.winograd_flops is None or _share(facts) >= WORTHWHILE:
        return None
    return Refuses(
        "ncnn is ahead in dense 3x3 convolutions of stride 1, which are "
        f"{_share(facts):.0%} of its operations: less than {WORTHWHILE:.0%}"
    )


def _share(facts: Facts) -> float:
    """The share of its operations in dense 3x3 convolutions of stride 1; 0 where nobody counted."""
    return (facts.winograd_flops or 0) / facts.flops if facts.flops else 0.0
