"""``togi export``: an artifact as a server loads it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from togi.cli.options import Device, Json, NoNative, Seed, Trusted, without_effect
from togi.cli.output import say, tell


def export(
    artifact: Annotated[Path, typer.Argument(metavar="NAME.togi", help="An artifact that togi tune wrote.")],
    to: Annotated[
        str,
        typer.Option(
            "--to",
            metavar="triton|openvino|onnx|pt2",
            help="A model repository of Triton Inference Server, or the plain file of an engine.",
        ),
    ],
    out: Annotated[Path, typer.Option("--out", metavar="FOLDER", help="Where to write it; it must not exist.")],
    trusted: Trusted = None,
    no_native: NoNative = False,
    json: Json = False,
    device: Device = "cpu",
    seed: Seed = 0,
) -> int:
    """Write what a server loads without togi, with the proof next to it (export.json).

    Exit code 2 when it has no such form; the message says what would.
    """
    from togi import api
    from togi.cli.output import print_json

    without_effect("export", device=device != "cpu", seed=seed)
    exported = api.export(artifact, to=to, out=out, trusted=trusted, native=not no_native)
    if json:
        print_json(exported.model_dump(mode="json"))
        return 0
    for kind, ports in (("input", exported.inputs), ("output", exported.outputs)):
        for i, port in enumerate(ports):
            sizes = ", ".join("any" if size is None else str(size) for size in port.shape)
            tell(f"{kind:6} {port.name or i} = {port.path}: {port.dtype} ({sizes})")
    tell(f"{out}: {exported.engine}, {exported.file}, proof in export.json")
    for note in exported.notes:
        say(f"note: {note}")
    return 0
