"""Experiments: the model that tests the claim of each technique, and what is expected of it there."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from togi.core.recipe import PARTS
from togi.decide.faster import Speed
from togi.techniques.base import Options


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """The test of a technique's claim."""

    model: str = ""
    """A function of ``claims.formulas.models``."""
    about: str
    """What it is tested on, in words: that model, or the user's subject as it is named."""
    expects: Speed = Speed.FASTER
    memory: bool = False
    """The claim is about memory too: a call's peak must be lower."""
    options: Options = field(default_factory=dict)
    """Of the technique; empty: the most promising of its own."""
    on_cuda: str = ""
    """The model of ``claims.formulas.gpu_models`` of that name, in words; empty: on a GPU the same as on a CPU, since
    what the claim is about is what launching costs, or the technique is made for a CPU."""
    _module: str = "models"

    def at(self, device: str) -> Experiment:
        """At the size of the device."""
        if not self.on_cuda or device.partition(":")[0] != "cuda":
            return self
        return replace(self, about=self.on_cuda, _module="gpu_models")

    def on(self, subject: str) -> Experiment:
        """The same on the user's subject, with what the technique itself tries first there."""
        return Experiment(about=subject, expects=self.expects, memory=self.memory)

    @property
    def locator(self) -> str:
        return f"togi.claims.formulas.{self._module}:{self.model}" if self.model else self.about

    @property
    def setting(self) -> str:
        return f"{self.about}, float32" if self.model else self.about


_IMAGES = "on 32 images of 224 x 224"
_TOKENS = "of width 1,024 on 4 x 2,048 tokens"
DEFAULT = Experiment(
    model="convolutions", about="a small residual network", on_cuda=f"a residual network of 64 channels {_IMAGES}"
)
"""Of convolutions, and for techniques of third parties, which are not listed."""
_TRANSFORMER = Experiment(
    model="transformer", about="two transformer blocks", on_cuda=f"two transformer blocks {_TOKENS}"
)
_SMALL = Experiment(model="small_operations", about="sixty small layers")
_LARGE = Experiment(model="large_products", about="five products of 4,096 x 4,096, of one row")
EXPERIMENTS: dict[str, Experiment] = {
    "drop_no_ops": Experiment(
        model="copies", about="elementwise operations between copies", on_cuda="the same between copies of 256 MiB"
    ),
    "compute_once": Experiment(
        model="standardised",
        about="convolutions that standardise their weights",
        on_cuda="convolutions of 2,048 channels that standardise their weights",
    ),
    "fuse_formulas": Experiment(
        model="handwritten",
        about="two transformer blocks written out by hand",
        on_cuda="two transformer blocks of width 1,024 written out by hand, on 2 x 2,048 tokens",
    ),
    "drop_unused_rows": Experiment(
        model="classified",
        about="two transformer blocks of which one token is used",
        on_cuda=f"two transformer blocks {_TOKENS}, of which one is used",
    ),
    "fold_batch_norm": DEFAULT,
    "fold_upsampling": Experiment(
        model="upsampled",
        about="3 x 3 convolutions after an upsampling by two",
        on_cuda="3 x 3 convolutions after an upsampling by two, on 32 images up to 224 x 224",
    ),
    "merge_branches": Experiment(
        model="branches",
        about="RepVGG blocks as they are trained",
        on_cuda=f"RepVGG blocks as they are trained, {_IMAGES}",
    ),
    "split_concatenation": Experiment(
        model="skips",
        about="3 x 3 convolutions after a concatenation",
        on_cuda="3 x 3 convolutions after a concatenation, on 32 images of 112 x 112",
    ),
    "persistent_rnn": Experiment(model="gru", about="two layers of GRU, 100 steps of one sequence"),
    "pad_channels": Experiment(
        model="odd_channels",
        about="a small residual network of 61 channels",
        on_cuda=f"a residual network of 61 channels {_IMAGES}",
    ),
    "channels_last": DEFAULT,
    "channels_last_3d": Experiment(
        model="volumes", about="3 x 3 x 3 convolutions", on_cuda="3 x 3 x 3 convolutions on 8 volumes of 32 x 64 x 64"
    ),
    "bf16": _TRANSFORMER,
    "fp16": _TRANSFORMER,
    "fp16_accumulation": _TRANSFORMER,
    "bf16_openvino": _TRANSFORMER,
    "int4_onnxruntime": _LARGE,
    "int4_openvino": _LARGE,
    "int8_onnxruntime": DEFAULT,
    "int8_openvino": DEFAULT,
    "tf32": _TRANSFORMER,
    "aot_inductor": replace(_TRANSFORMER, options={"freezing": True, "max_autotune": False}),
    "cuda_graph": _SMALL,
    "eager": replace(DEFAULT, expects=Speed.SAME),
    "ncnn": DEFAULT,
    "onnxruntime": DEFAULT,
    "openvino": DEFAULT,
    PARTS: Experiment(
        model="early_exit",
        about="a residual network that is repeated until its result is small",
        on_cuda="the same of 64 channels on 32 images of 112 x 112",
    ),
    "torch_compile": replace(_TRANSFORMER, options={"mode": "default", "freezing": True}),
    "torch_tensorrt": DEFAULT,
    "torchscript": DEFAULT,
    "attention_backend": _TRANSFORMER,
    "allocator": Experiment(model="large_activations", about="elementwise operations on 16 MiB"),
    "cudnn_benchmark": DEFAULT,
    "expandable_segments": Experiment(
        model="growing",
        about="results that grow from step to step",
        expects=Speed.SAME,
        memory=True,
        on_cuda="results that grow from 128 MiB on",
    ),
    "flush_denormal": Experiment(model="decaying", about="a filter that decays to denormal numbers"),
    "inference_mode": _SMALL,
    "no_grad": Experiment(model="kept_activations", about="sixty small layers of 512 rows", memory=True),
    "split_batch": Experiment(
        model="matrices", about="singular values of 64 matrices", options={"pieces": 2, "at_once": True}
    ),
    "threads": replace(_SMALL, options={"count": 1}),
}
