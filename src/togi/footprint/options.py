"""What may be asked of a step, checked before anything is started. No torch."""

from __future__ import annotations

from togi.core.errors import TogiError, UnknownNameError, nearest

OPTIMIZERS = ("none", "sgd", "momentum", "adam", "adamw")
DTYPES = ("fp32", "bf16", "fp16")


def check_options(*, train: bool, optimizer: str, batch: int | None, dtype: str | None) -> None:
    """Raises TogiError for what does not exist or does not go together."""
    if optimizer not in OPTIMIZERS:
        raise UnknownNameError(
            f"there is no optimizer '{optimizer}' here{nearest(optimizer, OPTIMIZERS) or '.'} "
            f"Known: {', '.join(OPTIMIZERS)}."
        )
    if dtype is not None and dtype not in DTYPES:
        raise UnknownNameError(
            f"there is no dtype '{dtype}' here{nearest(dtype, DTYPES) or '.'} Known: {', '.join(DTYPES)}."
        )
    if optimizer != "none" and not train:
        raise TogiError(f"optimizer {optimizer} has no part in inference: add --train (train=True), or leave it out")
    if batch is not None and batch < 1:
        raise TogiError(f"a batch of {batch} is no batch: give 1 or more")


def check_compile(compile: bool, device: str) -> None:
    """Raises TogiError where a compiled run cannot be predicted."""
    if compile and device != "cpu":
        raise TogiError(
            f"a compiled run is predicted for the CPU only, and the device is {device}: what is fused for a GPU, and "
            "so what is kept, is another program, which cannot be planned without that device. Leave --compile "
            "(compile=True) out for a prediction of the uncompiled model"
        )
