"""The processor, the instructions that matter to fast inference, and what changes its clock."""

from __future__ import annotations

from pathlib import Path

from togi.core.records import Machine
from togi.doctor.check import Check, Level

MATTER = {
    "avx2": "wide float instructions",
    "avx512f": "wider float instructions",
    "avx512_vnni": "int8 at full speed",
    "avx_vnni": "int8 at full speed",
    "avx512_bf16": "bf16 at full speed",
    "amx_bf16": "bf16 matrix tiles",
    "amx_int8": "int8 matrix tiles",
    "asimd": "float instructions",
    "asimddp": "int8 at full speed",
    "bf16": "bf16 at full speed",
    "i8mm": "int8 matrix multiplication",
    "sve": "wide float instructions",
}
"""Name in /proc/cpuinfo -> what it makes fast (x86 first, then Arm)."""

_GOVERNOR = Path("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor")


def check(machine: Machine) -> list[Check]:
    return [_model(machine), _instructions(machine), *_governor()]


def _model(machine: Machine) -> Check:
    found = f"{machine.cpu_model}: {machine.cpu_cores} cores usable, torch uses {machine.threads} threads"
    return Check(topic="processor", name="model", level=Level.OK, found=found)


def _instructions(machine: Machine) -> Check:
    present = [flag for flag in MATTER if flag in machine.cpu_flags]
    if not machine.cpu_flags:
        return Check(topic="processor", name="instructions", level=Level.WARNING, found="cannot be read on this system")
    if not {"avx2", "asimd"} & set(present):
        why = "without avx2 (or Arm's asimd) most engines are slow here, and some do not start"
        return Check(topic="processor", name="instructions", level=Level.WARNING, found="none that matter", why=why)
    half = {"avx512_bf16", "amx_bf16", "bf16"} & set(present)
    why = "" if half else "no bf16 instructions: bf16 is emulated here and rarely faster"
    return Check(topic="processor", name="instructions", level=Level.OK, found=", ".join(present), why=why)


def _governor() -> list[Check]:
    try:
        governor = _GOVERNOR.read_text(encoding="ascii").strip()
    except OSError:
        return []  # virtual machines and most containers do not show it
    if governor == "performance":
        return [Check(topic="processor", name="governor", level=Level.OK, found=governor)]
    why = "the clock follows the load, so the first rounds of a measurement are slower than the later ones"
    mend = "sudo cpupower frequency-set --governor performance"
    return [Check(topic="processor", name="governor", level=Level.WARNING, found=governor, why=why, mend=mend)]
