"""The engine ``onnxruntime``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from togi.core.records import Facts, Scalar, Unused
from togi.techniques.base import Options, Package, Refuses, not_exportable
from togi.techniques.graph_engine import OF_A_LIBRARY, GraphEngine

if TYPE_CHECKING:
    from togi.graph.candidate import Candidate, Program
    from togi.subject.signature import Signature


class OnnxRuntime(GraphEngine):
    """Run the module in ONNX Runtime.

    What it does: exports the captured graph to ONNX and runs it with all graph optimisations, on the CPU provider or,
    on a GPU, the CUDA provider with inputs and outputs bound in device memory. ``spinning`` lets idle threads of its
    pool wait busily: a little faster alone, and it takes the cores from whatever else runs for some milliseconds after
    each call; ``in_calls`` between the operators of a call alone, which is what parts of programs get. ``opset`` is the
    version of ONNX to export to (without it, the exporter's own choice): from 23 on, attention is one operator.
    On a GPU, ``cuda_graph`` launches all kernels at once, from a capture of the first run, and ``nhwc`` keeps channels
    innermost. ``provider`` ``tensorrt``, on a GPU: TensorRT builds what it can when the model is loaded, and what it
    built is kept for other processes of this user (in togi's cache folder, by all of the model); CUDA's provider runs
    the rest.
    It may compute in float16 (``trt_fp16_enable``) where the recipe made the model one of float16, and not otherwise.

    When it applies: to modules that ``torch.export`` captures and whose operators ONNX has.

    When it refuses: where the module cannot be exported or updates a buffer; where inputs or outputs are bfloat16,
    float8 or complex on a CPU; on a GPU, where the installed package is the build for CPUs. It is not offered with
    ``bf16`` on a CPU, since it multiplies no bfloat16 there. TensorRT's provider where the package lacks it or cannot
    load its libraries; it is not offered where sizes vary, or where plain eager multiplies in IEEE float32, since it
    has no switch for TensorFloat-32. ``cuda_graph`` where sizes vary, several call at once, or an operator runs
    elsewhere than on CUDA.

    Claim: resnet50 on 2 cores of an AVX-512 CPU: 59 ms against 134 ms of eager under ``inference_mode``;
    mobilenetv3_large 16 ms against 32 ms. Against the exporter's own choice, opset 23 ran MiniLM 1.13 x as fast on one
    CPU and a GPT-2 0.53 x on another. ``togi explain onnxruntime --prove`` measures it here.

    Source: https://onnxruntime.ai/docs/performance/tune-performance/threading.html and
    https://onnx.ai/onnx/operators/onnx__Attention.html

    Cost and risk: seconds to export; TensorRT's provider builds for minutes the first time on a machine. Weights are
    held in ONNX Runtime's own memory. Some operators round differently, or fall back to slow reference kernels.
    """

    id = "onnxruntime"
    library = "ONNX Runtime"
    captures = True
    packages = (
        Package("onnx", "onnx"),
        Package("onnxscript", "onnx"),
        Package("onnxruntime", "onnx", "1.20", ("onnxruntime-gpu",)),
    )
    provides = OF_A_LIBRARY | {"engine:onnxruntime"}
    files = ("model.onnx", "model.onnx.data")
    speedup = 2.0

    def why_not(self, facts: Facts) -> Refuses | None:
        return _build_for_cpus(facts) or not_exportable(facts)

    def conflicts_with(self, facts: Facts, options: Options) -> frozenset[str]:
        """Its kernels for CPUs only move what is bfloat16; none multiplies it."""
        return self.conflicts | {"bfloat16"} if facts.device == "cpu" else self.conflicts

    def options(self, facts: Facts) -> Sequence[Options]:
        # of no use where they were measured: parallel execution, smaller blocks, no memory arena or pattern
        if facts.device != "cpu":
            return self._on_cuda(facts)
        spinning: Scalar = "in_calls" if facts.part else True
        attends = "scaled_dot_product_attention" in facts.functions
        one_operator: list[Options] = [{"spinning": spinning, "opset": 23}] if attends else []
        # several callers fill the cores: whoever waits busily takes one from another
        less: list[Options] = [] if facts.part else [{"spinning": False if facts.callers > 1 else "in_calls"}]
        return [{"spinning": spinning}, *one_operator, *less]

    def _on_cuda(self, facts: Facts) -> list[Options]:
        plain: Options = {"spinning": False}
        offered = [plain]
        if not facts.dynamic and facts.callers == 1:
            offered.append({**plain, "cuda_graph": True})
        if any(name.startswith("conv") for name in facts.functions):
            offered.append({**offered[-1], "nhwc": True})
        # TensorRT's provider rounds to TensorFloat-32 and has no switch for it
        tensorrt: list[Options] = [{**plain, "provider": "tensorrt"}] if facts.tf32 and not facts.dynamic else []
        return [*offered, *tensorrt]

    def cost_s(self, facts: Facts, options: Options) -> float:
        builds = 60.0 if options.get("provider") == "tensorrt" else 0.0
        return 4.0 + builds + 0.011 * sum(facts.functions.values())

    def apply(self, candidate: Candidate, options: Options) -> Candidate:
        from togi.techniques.engine.programs import onnxruntime

        return candidate.with_(program=onnxruntime.build(candidate, options))

    def repro(self, options: Options, threads: int | None) -> str | None:
        from togi.techniques.engine.programs.onnxruntime import waiting

        opset = f", opset_version={options['opset']}" if "opset" in options else ""
        return (
            "import os\n"
            "os.environ.setdefault('ORT_DISABLE_TELEMETRY', '1')  # read when it is imported\n"
            "import onnxruntime\n"
            f"torch.onnx.export(program, (), here / 'model.onnx', dynamo=True{opset})\n"
            "settings = onnxruntime.SessionOptions()\n"
            f"settings.intra_op_num_threads = {threads or 0}  # 0: one for each core\n"
            f"for setting in {waiting(options)}.items():\n"
            "    settings.add_session_config_entry(*setting)\n"
            "session = onnxruntime.InferenceSession(str(here / 'model.onnx'), settings)\n"
            "names = [put.name for put in session.get_inputs()]\n"
            "def run(*tensors):\n"
            "    arrays = [tensor.numpy() for tensor in tensors]\n"
            "    return [torch.from_numpy(out) for out in session.run(None, dict(zip(names, arrays)))]"
        )

    def load(self, folder: Path, meta: dict[str, Any], signature: Signature, threads: int | None) -> Program:
        from togi.techniques.engine.programs import onnxruntime

        return onnxruntime.load(folder, meta, signature, threads)


def _build_for_cpus(facts: Facts) -> Refuses | None:
    """Told by the distribution's name, without importing it; what a build offers beyond that, ``build`` asks."""
    versions = facts.machine.versions
    if facts.device == "cpu" or "onnxruntime" not in versions or "onnxruntime-gpu" in versions:
        return None
    return Refuses(
        f"the installed onnxruntime {versions['onnxruntime']} is the build for CPUs, which cannot use the GPU: pip "
        "install onnxruntime-gpu",
        Unused.NOT_INSTALLED,
    )
