"""The tests that need a device; without one, those of what is made for CUDA alone, which need none."""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from xml.etree import ElementTree

from benchmarks.gpu_parts.row import Row, asked_for, attempt

from togi.core.proven import MarkedPart

WITHOUT_A_DEVICE = {
    "fp16_accumulation": ("techniques/runtime/test_cuda_settings.py",),
    "tf32": ("techniques/runtime/test_cuda_settings.py",),
    "cuda_graph": ("techniques/engine/test_cuda_graph.py",),
    "cudnn_benchmark": ("techniques/runtime/test_cuda_settings.py",),
    "expandable_segments": ("techniques/runtime/test_expandable_segments.py",),
    MarkedPart.TRITON_OPS: ("ops/test_triton_boxes.py",),
    MarkedPart.DATA_SHEET_TIMES: ("lint/roofline",),
    MarkedPart.CUDA_GRAPHS: ("lint/trace/test_trace_cuda_graphs.py", "torch_internals/test_cuda_graphs.py"),
    MarkedPart.CUDA_SEMANTICS: ("lint/trace/test_trace_simulation.py",),
    MarkedPart.PREDICTION_FOR_CUDA: ("footprint/prediction/test_predict_cuda.py",),
    MarkedPart.SNAPSHOT: ("footprint/snapshot",),
}
"""Files of tests, by the part that they prove. Torch-TensorRT has none: nothing stands in for it."""
ON_A_DEVICE = {
    "tf32": ("techniques/runtime/test_cuda_settings.py",),
    MarkedPart.TRITON_OPS: ("ops/test_triton_boxes.py",),
    MarkedPart.CUDA_GRAPHS: ("lint/trace/test_trace_cuda_graphs.py", "torch_internals/test_cuda_graphs.py"),
    MarkedPart.CUDA_SEMANTICS: ("lint/trace/test_trace_programs.py",),
    MarkedPart.PEAK_MEMORY: ("measure/test_measure_memory.py",),
    MarkedPart.TURN: ("measure/test_turn.py",),
    "": ("subject/test_facts.py",),
}
"""The files that hold tests with the mark ``gpu``, by the part that they prove; no other file is imported, since a
machine with a device need not have what other tests import."""


def rows(device: str) -> Iterator[Row]:
    """The tests that need a device; without one, those of what is made for CUDA alone, which need none."""
    by_part = ON_A_DEVICE if device == "cuda" else WITHOUT_A_DEVICE
    rows = {f"tests of {part or 'what a subject is'}": (part, files) for part, files in by_part.items()}
    wanted = sorted({f"tests/{file}" for name, (_, files) in rows.items() if asked_for(name) for file in files})
    marked = "gpu" if device == "cuda" else "not gpu and not thorough"
    cases = junit_cases(wanted, marked) if wanted else []
    failing = [file for file in wanted if passed(of_files(cases, [file]))[0] is False]
    # a crash fails all of them, and a device that answers nothing more those that come later
    for file in failing if len(failing) == len(wanted) > 1 else failing[1:]:
        others = [case for case in cases if case not in of_files(cases, [file])]
        cases = [*others, *junit_cases([file], marked)]
    for name, (part, files) in rows.items():
        own = of_files(cases, [f"tests/{file}" for file in files])
        took_s = sum(float(case.get("time", 0.0)) for case in own)  # they ran above, all in one process
        yield {**attempt(name, "all pass", passed, own, proves=(part,) if part else ()), "seconds": round(took_s, 1)}


def junit_cases(files: Sequence[str], marked: str) -> list[ElementTree.Element]:
    """Of one run of pytest, in which a file that cannot be imported takes no other along. If it crashes, a case that
    has failed for each file."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "found.xml"
        given = ("-m", marked, "--continue-on-collection-errors", "-o", "junit_family=xunit1", f"--junit-xml={path}")
        tested(*given, *files)
        if path.exists():
            return list(ElementTree.parse(path).iter("testcase"))
    return [ElementTree.fromstring(f"<testcase name='pytest' file='{file}'><failure/></testcase>") for file in files]


def of_files(cases: Sequence[ElementTree.Element], files: Sequence[str]) -> list[ElementTree.Element]:
    """Files or folders, whose names begin those of their files."""
    return [case for case in cases if case.get("file", "").startswith(tuple(files))]


def passed(cases: Sequence[ElementTree.Element]) -> tuple[bool | None, str]:
    failed = [case for case in cases if case.find("failure") is not None or case.find("error") is not None]
    ran = [case for case in cases if case.find("skipped") is None]
    return (not failed if ran else None), f"{len(ran) - len(failed)} of {len(ran)} passed" + "".join(
        f"; {case.get('name', '')} failed{_missing(case)}" for case in failed[:3]
    )


def _missing(case: ElementTree.Element) -> str:
    """The package that a file of tests imports and that is not there."""
    found = re.search(r"No module named '[\w.]+'", " ".join(case.itertext()))
    return f" ({found[0]})" if found else ""


def tested(*given: str) -> tuple[bool | None, str]:
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *given]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    print(done.stdout, done.stderr, file=sys.stderr)
    last = (done.stdout.strip().splitlines() or ["no output"])[-1]
    return None if done.returncode == 5 else done.returncode == 0, last
