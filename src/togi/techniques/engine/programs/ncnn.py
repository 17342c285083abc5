"""ncnn programs: pnnx converts a trace, and what it writes is read as data; its Python files are never run or kept."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from togi.core.errors import Refused
from togi.core.quantities import last_line
from togi.graph.candidate import Candidate
from togi.subject.signature import Signature
from togi.techniques.engine.programs.ncnn_network import check_weights, read_layers
from togi.techniques.engine.programs.stored import HiddenFiles, StoredProgram, hidden_folder
from togi.techniques.engine.programs.torchscript import quiet, trace

LAYERS, WEIGHTS = "model.param", "model.bin"

_BATCH_AXIS = re.compile(r'\.input\("in\d+", .*batch_index=(\d+)')
"""How pnnx says in its own example which axis of an input it took for the batch's."""


class NcnnProgram(StoredProgram):
    """Runs a network. Several threads may call it; the binding holds Python's lock, so that they take turns."""

    holds_module = False
    allocates_with_torch = False

    def __init__(self, net: Any, signature: Signature, stored: HiddenFiles | None = None) -> None:
        super().__init__(signature, stored)
        self.net = net
        self.waits_for_threads = net.opt.num_threads > 1
        self.names = [f"out{i}" for i in range(len(signature.outputs_facts))]
        self.used = [(int(name.removeprefix("in")), name) for name in net.input_names()]

    def run(self, inputs: list[Tensor]) -> Sequence[Tensor]:
        import ncnn

        extractor = self.net.create_extractor()
        for i, name in self.used:
            # The array has a name, since a Mat does not hold it. Copied, since a layer that works in place would write
            # into the caller's memory, or crash on it: it has no count of its users.
            array = inputs[i].detach().contiguous().numpy()[0]
            extractor.input(name, ncnn.Mat(array).clone())
        outputs = []
        for name, facts in zip(self.names, self.signature.outputs_facts, strict=True):
            code, output = extractor.extract(name)
            if code != 0:
                raise RuntimeError(f"ncnn could not compute {facts.name or 'the output'}: code {code}")
            shape = [size or 0 for size in facts.shape]
            outputs.append(torch.from_numpy(output.numpy()).reshape(shape).contiguous())  # ncnn aligns channels
        return outputs

    def meta(self) -> dict[str, Any]:
        return {}


def build(candidate: Candidate) -> NcnnProgram:
    """Raises Refused where pnnx cannot convert the module, or ncnn cannot run what it wrote."""
    signature = candidate.signature
    if signature.opaque:
        raise Refused(signature.opaque)
    with hidden_folder() as (folder, stored):
        convert(candidate, folder)
        try:
            program = NcnnProgram(open_net(folder, signature, candidate.threads), signature, stored)
            program.run(candidate.flat_samples()[0])
        except RuntimeError as error:  # of ncnn, or of the wrong number of elements
            raise Refused(f"ncnn cannot run what pnnx made of it: {error}") from error
    return program


def load(folder: Path, signature: Signature, threads: int | None) -> NcnnProgram:
    return NcnnProgram(open_net(folder, signature, threads), signature)


def convert(candidate: Candidate, folder: Path) -> None:
    """Write the network's two files into ``folder``, and nothing else. Raises Refused where pnnx cannot."""
    import pnnx

    inputs = candidate.flat_samples()[0]
    traced, example = folder / "trace.pt", folder / "example.py"
    with quiet() as caught:
        trace(candidate, caught).save(str(traced))
    shapes = ",".join(f"[{','.join(map(str, tensor.shape))}]f32" for tensor in inputs)
    unwanted = [f"{form}=/dev/null" for form in ("pnnxparam", "pnnxbin", "pnnxpy", "pnnxonnx")]
    wanted = [f"ncnnparam={folder / LAYERS}", f"ncnnbin={folder / WEIGHTS}", f"ncnnpy={example}"]
    done = subprocess.run(
        [pnnx.EXEC_PATH, str(traced), f"inputshape={shapes}", "fp16=0", *unwanted, *wanted],
        capture_output=True,
        text=True,
        errors="replace",
        check=False,
    )
    if done.returncode != 0 or not (folder / WEIGHTS).exists():
        last = last_line(done.stderr) or "without a word"
        raise Refused(f"pnnx cannot convert it: exit code {done.returncode}: {last}")
    axes = _BATCH_AXIS.findall(example.read_text(encoding="utf-8"))
    traced.unlink()
    example.unlink()
    if set(axes) != {"0"}:
        raise Refused("pnnx did not find that the first axis of each input is the batch's, which ncnn leaves out")


def open_net(folder: Path, signature: Signature, threads: int | None) -> Any:
    """Open the network in float32. Raises RuntimeError where the installed ncnn cannot read the files, or would read
    beyond weights."""
    import ncnn

    layers = read_layers((folder / LAYERS).read_text(encoding="utf-8"))
    check_weights(layers, [facts.shape for facts in signature.inputs_facts])
    net = ncnn.Net()
    for option in dir(net.opt):
        if option.startswith(("use_fp16_", "use_bf16_")):
            setattr(net.opt, option, False)
    net.opt.num_threads = threads or torch.get_num_threads()
    if unknown := sorted({layer.kind for layer in layers if ncnn.layer_to_index(layer.kind) < 0}):
        raise RuntimeError(f"ncnn {ncnn.__version__} has no layer {', '.join(unknown)}")
    if net.load_param(str(folder / LAYERS)) != 0 or net.load_model(str(folder / WEIGHTS)) != 0:
        raise RuntimeError(f"ncnn {ncnn.__version__} cannot read {LAYERS} and {WEIGHTS}")
    return net
