"""What was proven on which device stands in one file, and is shown by explain, doctor and docs/gpu.md."""

from __future__ import annotations

import io
import subprocess
import sys
from pathlib import Path

import pytest

from togi.core import proven as proven_module
from togi.core.proven import (
    DEVICES,
    FILE,
    NOT_YET,
    WITHOUT,
    Mark,
    MarkedPart,
    as_text,
    mark_of,
    proofs,
    read_proofs,
    with_rows,
)
from togi.core.records import Machine
from togi.doctor import gpu
from togi.doctor.check import Level
from togi.doctor.packages import Packages
from togi.render import proven_table
from togi.render.pages import page_text, technique_page
from togi.render.proven_table import sentence, with_table
from togi.techniques import all_techniques, technique
from togi.techniques.registry import all_marks, technique_mark

DOCS = Path(__file__).parents[2] / "docs" / "gpu.md"


def test_the_table_in_the_docs_is_that_of_the_code() -> None:
    text = DOCS.read_text(encoding="utf-8")
    assert text == with_table(text), "run: python -m togi.render.proven_table docs/gpu.md"


def test_every_built_in_technique_for_the_cpu_was_proven_there() -> None:
    built_in = [one for one in all_techniques().values() if type(one).__module__.startswith("togi.")]
    assert len(built_in) > 20
    for_calls = [one for one in built_in if one.infers and "cpu" in one.devices]  # steps are proven in each study
    assert [one.id for one in for_calls if technique_mark(one).days["cpu"] is None] == []


def test_every_proof_is_of_something_and_on_a_device_that_is_known() -> None:
    assert proofs().keys() <= {mark.part for mark in all_marks()}
    assert all(devices.keys() <= {*DEVICES} for devices in proofs().values())


def test_the_file_has_a_line_for_each_part_and_is_written_as_it_is_read() -> None:
    text = FILE.read_text(encoding="utf-8")
    assert as_text(read_proofs(FILE)) == text
    assert len(text.splitlines()) == len(proofs()) + 2


Known = dict[str, dict[str, dict[str, str]]]


@pytest.fixture
def known(monkeypatch: pytest.MonkeyPatch) -> Known:
    """What is proven: nothing, unless a test fills it."""
    written: Known = {}
    for module in (proven_module, proven_table):
        monkeypatch.setattr(module, "proofs", lambda: written)
    return written


@pytest.mark.usefixtures("known")
def test_a_technique_without_a_proof_is_not_proven() -> None:
    assert technique_mark(technique("cuda_graph")) == Mark(part="cuda_graph", days={"cuda": None})


@pytest.mark.usefixtures("known")
def test_parts_are_marked_for_the_devices_that_they_are_made_for() -> None:
    assert mark_of(MarkedPart.TRITON_OPS, MarkedPart.TRITON_OPS.devices).sentence == f"cuda: {NOT_YET}"
    assert mark_of(MarkedPart.NATIVE_OPS, MarkedPart.NATIVE_OPS.devices).days == {"cpu": None}
    assert {*MarkedPart} <= {mark.part for mark in all_marks()}


def test_reading_the_marks_imports_no_torch() -> None:
    code = "import sys, togi.techniques.registry as p; assert len(p.all_marks()) > 30; print('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "False\n"


@pytest.mark.parametrize(("device", "level"), [("cpu", Level.OK), ("cuda", Level.WARNING)])
def test_doctor_counts_what_was_proven_on_cuda(device: str, level: Level, here: Machine) -> None:
    (check,) = [check for check in gpu.check_gpu(here, device, Packages()) if check.name == "proven"]
    marks = [mark for mark in all_marks() if "cuda" in mark.days]
    proven = sum(mark.days["cuda"] is not None for mark in marks)
    assert check.found == f"{proven} of {len(marks)} parts of togi for CUDA were proven on a device"
    assert check.level is (level if proven < len(marks) else Level.OK)


def test_explain_says_where_a_technique_was_proven(here: Machine) -> None:
    from rich.console import Console

    page = technique_page(technique("torch_compile"), here, "cpu")
    console = Console(width=100, record=True, file=io.StringIO())
    console.print(page_text(page))
    text = console.export_text()
    assert page.proven["cpu"] is not None
    assert f"cpu: {page.proven['cpu']}; cuda: {page.proven['cuda'] or NOT_YET}" in " ".join(text.split())


@pytest.fixture
def here() -> Machine:
    from togi.machine.describe import machine

    return machine("cpu")


ROWS = [
    {"row": "eager on one", "result": "pass", "figure": "0.4 units", "proves": ["eager"]},
    {"row": "eager on two", "result": "skip", "figure": "", "proves": ["eager"]},
    {"row": "graph on one", "result": "pass", "figure": "1 unit", "proves": ["cuda_graph"]},
    {"row": "graph on two", "result": "fail", "figure": "wrong", "proves": ["cuda_graph"]},
    {"row": "ncnn on one", "result": "skip", "figure": "", "proves": ["ncnn"]},
    {"row": "the process", "result": "fail", "figure": ""},
]

ROWS = [{**row, "date": "2026-12-01", "machine": "NVIDIA H200"} for row in ROWS]


def test_a_sweep_proves_what_passed_and_takes_out_what_failed() -> None:
    before = {part: {"cpu": {"date": "2026-01-01"}, "cuda": {"date": "2026-01-01"}} for part in ("cuda_graph", "ncnn")}
    found = with_rows(before, ROWS, "cuda")
    assert found["eager"] == {
        "cuda": {"date": "2026-12-01", "device": "NVIDIA H200", "figure": "eager on one: 0.4 units"}
    }
    assert found["cuda_graph"] == {"cpu": {"date": "2026-01-01"}}
    assert found["ncnn"] == before["ncnn"]
    assert "cuda" in before["cuda_graph"], "what is known is not changed in place"


def test_a_claim_of_speed_takes_no_proof_of_correctness_away() -> None:
    day = {"date": "2026-12-02", "machine": "NVIDIA H200", "speed_of": ["eager", "ncnn"]}
    failed = {**day, "row": "its claim", "result": "fail", "figure": "0.9x the speed"}
    found = with_rows({}, [*ROWS, failed], "cuda")
    assert found["eager"]["cuda"] == {
        "date": "2026-12-01",
        "device": "NVIDIA H200",
        "figure": "eager on one: 0.4 units",
        "speed": "not as claimed: 0.9x the speed",
    }
    assert "ncnn" not in found, "nor does it prove anything"
    assert with_rows({}, [*ROWS, {**failed, "result": "skip"}], "cuda") == with_rows({}, ROWS, "cuda")
    held = with_rows(found, [*ROWS, {**failed, "result": "pass", "figure": "2x the speed"}], "cuda")
    assert held["eager"]["cuda"]["speed"] == "2x the speed"


def test_a_sweep_on_a_cpu_proves_a_cuda_part_without_a_device(known: Known) -> None:
    proves = "not proven on a device yet: `python -m benchmarks.gpu --parts engines --docs docs/gpu.md`"
    assert f"| `cuda_graph` | not proven | {proves} |" in proven_table.table()
    of_cpu = with_rows({}, [{**ROWS[2], "machine": "Some CPU"}], "cpu")
    known |= with_rows(of_cpu, ROWS[:1], "cuda")
    mark = technique_mark(technique("cuda_graph"))
    assert mark.sentence == f"{WITHOUT}: 2026-12-01; cuda: {NOT_YET}"
    assert f"| `cuda_graph` | 2026-12-01 | {proves} |" in proven_table.table()
    assert "| `eager` | not proven | 2026-12-01: eager on one: 0.4 units |" in proven_table.table()
    assert sum("cuda" in each.days for each in all_marks()) > 20, "those without a device count as made for CUDA"


def test_marks_pages_and_notes_come_from_what_the_sweep_wrote(known: Known) -> None:
    assert sentence().startswith("**Nothing has been proven on a CUDA device yet**")
    known |= with_rows({}, ROWS[:1], "cuda")
    assert technique_mark(technique("eager")).days["cuda"] == "2026-12-01"
    assert sentence().startswith("**1 of ")
    assert "(NVIDIA H200, 2026-12-01)" in sentence()
