"""``togi memory``: where the memory of a run goes."""

from __future__ import annotations

from typing import Annotated

import typer

from togi.cli.options import Device, Json, Seed
from togi.cli.quantities import parse_size


def memory(
    subject: Annotated[str, typer.Argument(metavar="SUBJECT", help="A locator: timm:resnet50, file.py:factory, ...")],
    train: Annotated[bool, typer.Option("--train", help="A training step instead of inference.")] = False,
    optimizer: Annotated[
        str, typer.Option("--optimizer", metavar="NAME", help="With --train: none, sgd, momentum, adam, adamw.")
    ] = "none",
    batch: Annotated[int | None, typer.Option("--batch", min=1, help="Replace the samples' batch size.")] = None,
    dtype: Annotated[str | None, typer.Option("--dtype", metavar="bf16|fp16|fp32", help="Cast the model.")] = None,
    fail_over: Annotated[
        int | None,
        typer.Option("--fail-over", metavar="SIZE", parser=parse_size, help="Exit with 1 when the peak is above it."),
    ] = None,
    json: Json = False,
    device: Device = "cpu",
    seed: Seed = 0,
) -> int:
    """Run once and say who owns the memory at the peak: by category, module, line; what autograd keeps; what to delete.

    Exit code 1 when the peak is above --fail-over.
    """
    from togi import api
    from togi.cli.output import print_json, print_text, stdout
    from togi.report.account_text import account_text
    from togi.report.quantities import size

    found = api.memory(subject, train=train, optimizer=optimizer, batch=batch, dtype=dtype, device=device, seed=seed)
    if json:
        print_json({"kind": "account", **found.model_dump(mode="json")})
    else:
        print_text(stdout(), account_text(found))
    if fail_over is None or found.peak_bytes <= fail_over:
        return 0
    typer.echo(f"togi memory: the peak of {size(found.peak_bytes)} is above --fail-over {size(fail_over)}", err=True)
    return 1
