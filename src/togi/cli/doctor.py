"""``togi doctor``: what this machine has, what is missing or outdated, and the command that fixes it."""

from __future__ import annotations

from typing import Annotated

import typer

from togi.cli.options import Device, Json, Seed, without_effect

Engines = Annotated[
    bool,
    typer.Option("--engines", help="Which values each engine here answers otherwise than torch, measured; 1 to 3 min."),
]


def doctor(json: Json = False, engines: Engines = False, device: Device = "cpu", seed: Seed = 0) -> int:
    """Examine this machine: processor, memory, packages, compiler, allocators, GPU, other processes.

    Exit code 1 when something needed is missing, or with --engines when one would answer wrongly in silence.
    """
    from togi.cli.output import print_json, print_text, stdout
    from togi.core.records import SCHEMA_VERSION
    from togi.doctor import Level, check_engines, examine
    from togi.render.doctor_text import examination_text

    without_effect("doctor", seed=seed)
    checks = check_engines() if engines else examine(device)
    if json:
        documents = [check.model_dump() for check in checks]
        print_json({"schema_version": SCHEMA_VERSION, "kind": "examination", "checks": documents})
    else:
        print_text(stdout(), examination_text(checks))
    return 1 if any(check.level is Level.MISSING for check in checks) else 0
