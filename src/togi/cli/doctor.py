"""``togi doctor``: what this machine has, what is missing or outdated, and the command that mends it."""

from __future__ import annotations

from togi.cli.options import Device, Json, Seed, without_effect


def doctor(json: Json = False, device: Device = "cpu", seed: Seed = 0) -> int:
    """Examine this machine: processor, memory, packages, compiler, allocators, GPU, other processes.

    Exit code 1 when something needed is missing.
    """
    from togi.cli.output import print_json, print_text, stdout
    from togi.core.records import SCHEMA_VERSION
    from togi.doctor import Level, examine
    from togi.render.doctor_text import examination_text

    without_effect("doctor", seed=seed)
    checks = examine(device)
    if json:
        # "mend": the name of "fix" before November 2026, kept while the schema's version is 1
        found = [{**check.model_dump(), "mend": check.fix} for check in checks]
        print_json({"schema_version": SCHEMA_VERSION, "kind": "examination", "checks": found})
    else:
        print_text(stdout(), examination_text(checks))
    return 1 if any(check.level is Level.MISSING for check in checks) else 0
