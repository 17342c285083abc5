"""Packs what togi needs beside torch for a machine that has torch and nothing else, and no network.

    python -m benchmarks.gpu_wheels DIR [--python 3.12] [--extra timm]

DIR then holds wheels of togi's own dependencies, of pytest, and of what is asked for besides (that without its own
dependencies, among which torch would be); NumPy is taken to be there. On that machine:

    python -m pip install --no-index --no-deps --target SITE DIR/*.whl; export PYTHONPATH=SITE:src

Fails where DIR would be larger than 64 MiB.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tomllib
from pathlib import Path

MOST_BYTES = 64 << 20
HERE = Path(__file__).parents[1]
TESTS = ("pytest>=8", "pytest-timeout", "hypothesis", "nvidia-ml-py>=12")
PLATFORMS = ["manylinux2014_x86_64", *(f"manylinux_2_{glibc}_x86_64" for glibc in (17, 24, 27, 28, 31, 34))]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--python", default="3.12")
    parser.add_argument("--extra", action="append", default=[], help="one more distribution")
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--only-binary=:all:", "--dest", str(options.folder)]
    command += ["--python-version", options.python, "--implementation", "cp"]
    command += [word for platform in PLATFORMS for word in ("--platform", platform)]
    for more in ([*needed(), *TESTS], ["--no-deps", *options.extra]):
        if more != ["--no-deps"] and subprocess.run([*command, *more], check=False).returncode != 0:
            return 1
    kept = sorted(options.folder.glob("*.whl"))
    total = sum(wheel.stat().st_size for wheel in kept)
    print("\n".join(f"{wheel.stat().st_size / 2**20:7.1f} MiB  {wheel.name}" for wheel in kept))
    print(f"{total / 2**20:7.1f} MiB  in all, at most {MOST_BYTES >> 20}")
    return 0 if total <= MOST_BYTES else 1


def needed() -> list[str]:
    """Togi's dependencies, with those of the extra ``torch``, but torch and NumPy."""
    project = tomllib.loads((HERE / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    found = [*project["dependencies"], *project["optional-dependencies"]["torch"]]
    return [one for one in found if not re.match(r"torch|numpy", one)]


if __name__ == "__main__":
    sys.exit(main())
