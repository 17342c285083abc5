"""``togi sign``: say who made an artifact."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from togi.cli.options import Device, Json, Seed, without_effect
from togi.cli.output import say, tell


def sign(
    artifact: Annotated[Path, typer.Argument(metavar="NAME.togi", help="An artifact that togi tune wrote.")],
    key: Annotated[
        Path, typer.Option("--key", metavar="KEY.pem", help="The private key: 'openssl genpkey -algorithm ed25519'.")
    ],
    ask_password: Annotated[
        bool, typer.Option("--ask-password", help="Ask for the password of an encrypted key.")
    ] = False,
    json: Json = False,
    device: Device = "cpu",
    seed: Seed = 0,
) -> int:
    """Sign an artifact, so that others load it only if it is yours: togi.load(path, trusted=PUBLIC_KEY).

    An earlier signature is replaced. Exit code 2 when the artifact is damaged or the key cannot be used.
    """
    from togi import api
    from togi.cli.output import print_json
    from togi.core.records import SCHEMA_VERSION

    without_effect("sign", device=device != "cpu", seed=seed)
    password = typer.prompt(f"Password of {key}", hide_input=True, err=True) if ask_password else None
    public_key = api.sign(artifact, key=key, password=password)
    if json:
        signed = {"artifact": str(artifact), "public_key": public_key}
        print_json({"schema_version": SCHEMA_VERSION, "kind": "signature", **signed})
    else:
        say(f"{artifact} is signed. The public key, for trusted= and --trusted:")
        tell(public_key, end="")
    return 0
