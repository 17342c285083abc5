"""``togi fit``: make a training step or an inference pass fit a byte budget."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from togi.cli.options import DURATION, SIZE, Batch, Device, Dtype, Json, Optimizer, Seed, with_permits
from togi.cli.output import say

APPROXIMATE = "approximate"


@with_permits
def fit(
    subject: Annotated[str, typer.Argument(metavar="SUBJECT", help="A locator: timm:resnet50, file.py:factory, ...")],
    memory: Annotated[
        int,
        typer.Option("--memory", metavar="SIZE", parser=SIZE, help="The whole peak: parameters, optimizer, all."),
    ],
    inference: Annotated[
        bool, typer.Option("--inference", help="One inference pass instead of a training step: modules run in slices.")
    ] = False,
    optimizer: Optimizer = "none",
    batch: Batch = None,
    dtype: Dtype = None,
    allow: Annotated[
        str | None, typer.Option("--allow", metavar=APPROXIMATE, help="Also try what changes gradients a little.")
    ] = None,
    out: Annotated[Path | None, typer.Option("--out", metavar="FILE.json", help="Write the plan, if one fits.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Let --out replace a file.")] = False,
    time_limit: Annotated[
        float | None,
        typer.Option(
            "--time-limit",
            metavar="TIME",
            parser=DURATION,
            help="Plan for so long, once SUBJECT is loaded. Default: a minute, or 40 steps where they take longer.",
        ),
    ] = None,
    json: Json = False,
    device: Device = "cpu",
    seed: Seed = 0,
) -> int:
    """Plan what a training step recomputes so that its peak stays within --memory, at the least cost in time.

    The plan is measured and proven: loss and gradients are the unmodified model's. Exit code 1, and no file, when
    nothing fits.
    """
    from togi import api
    from togi.cli.output import print_json, print_text, stdout
    from togi.core.errors import UnknownNameError, nearest
    from togi.render.fit_text import fit_text

    if allow not in (None, APPROXIMATE):
        near = nearest(str(allow), [APPROXIMATE])
        raise UnknownNameError(f"--allow {allow} is not known{near or f': it takes {APPROXIMATE}'}")
    if out is not None:
        _check_out(out, force)
    result = api.fit(
        subject,
        memory=memory,
        train=not inference,
        optimizer=optimizer,
        batch=batch,
        dtype=dtype,
        allow_approximate=allow == APPROXIMATE,
        time_limit_s=time_limit,
        device=device,
        seed=seed,
        progress=True,
    )
    if out is not None and result.fits:
        result.plan.save(out)
        say(f"plan: {out}")
    elif out is not None:
        say(f"{out} was not written, as no plan fits; --json prints the lowest plan that was found")
    if json:
        print_json(result.model_dump(mode="json"))
    else:
        print_text(stdout(), fit_text(result, out=str(out) if out else None))
    return 0 if result.fits else 1


def _check_out(out: Path, force: bool) -> None:
    """Before anything is measured."""
    from togi.core.errors import OutputExistsError

    if not out.absolute().parent.is_dir():
        raise OutputExistsError(
            f"the folder {out.absolute().parent} does not exist: create it, or choose another place"
        )
    if out.is_dir() or (out.exists() and not force):
        raise OutputExistsError(f"{out} exists: choose another name, or give --force")
