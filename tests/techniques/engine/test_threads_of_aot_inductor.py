"""Machine code runs on the threads of the process that loads it, not on those of the one that compiled it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from tests.techniques.engine.engine_subjects import candidate_of, made
from togi.graph.capture import export
from togi.techniques.engine.programs import aot_inductor
from togi.torch_internals.compiler import cpp_compiler_missing

ROOT = Path(__file__).parents[3]
LOADED = """
import os
import sys
from pathlib import Path

import torch
from tests.techniques.engine.engine_subjects import candidate_of
from togi.techniques.engine.programs import aot_inductor
from togi.torch_internals.openmp import end_openmp_threads

def running():
    return len(os.listdir("/proc/self/task"))

class Sums(torch.nn.Module):
    def forward(self, x):
        return x.sin().sum(), x.exp() + 1

torch.set_num_threads(5)
x = torch.rand(700, 700)
candidate = candidate_of(Sums(), [x]).with_(threads=3)
folder = Path(sys.argv[1])
meta = aot_inductor.build(candidate, {"freezing": True, "max_autotune": False}).save(folder)
loaded = aot_inductor.load(folder, meta, candidate.signature)
expected = candidate.module(x)
end_openmp_threads()
before = running()
for count, used in ((1, 1), (2, 2), (3, 3), (9, 3)):
    torch.set_num_threads(count)
    answers = loaded(x)
    assert running() - before == used - 1, (count, used, running() - before)
    assert torch.get_num_threads() == count
    end_openmp_threads()
    torch.testing.assert_close(answers, expected)
    end_openmp_threads()
torch.set_num_threads(3)
short = candidate_of(Sums(), [torch.rand(8)])
aot_inductor.build(short, {"freezing": True, "max_autotune": False})(torch.rand(8))
assert running() == before, "a short loop needs no threads"
"""


@pytest.mark.thorough
@pytest.mark.skipif(not os.path.isdir("/proc/self/task"), reason="threads are counted in /proc")
@pytest.mark.skipif(cpp_compiler_missing(), reason="there is no C++ compiler")
def test_kernels_run_on_the_threads_that_there_are_and_on_no_more_than_they_were_compiled_for(tmp_path: Path) -> None:
    """By default each has the number in it, and some have memory for so many alone."""
    command = [sys.executable, "-c", LOADED, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280, cwd=ROOT)
    assert done.returncode == 0, done.stderr[-3000:]


@pytest.mark.parametrize("threads", [0, -1, True, "2", 1 << 30])
def test_a_manifest_that_names_no_number_of_threads_is_refused(threads: object, tmp_path: Path) -> None:
    meta = {"file": aot_inductor.FILE, "threads": threads, "built_on": aot_inductor.built_on("cpu")}
    with pytest.raises(RuntimeError, match="the number of threads that it was compiled for"):
        aot_inductor.load(tmp_path, meta, made("strided_input").signature)


@pytest.mark.parametrize("written", [0, "0", [2], [-1], [True]])
def test_a_manifest_that_names_no_inputs_into_which_it_writes_is_refused(written: object, tmp_path: Path) -> None:
    meta = {"file": aot_inductor.FILE, "threads": 1, "written": written, "built_on": aot_inductor.built_on("cpu")}
    with pytest.raises(RuntimeError, match="the inputs into which it writes"):
        aot_inductor.load(tmp_path, meta, made("strided_input").signature)


class Rectified(nn.Module):
    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return x.relu_() + y


class Runner:
    """As the package does it."""

    def boxed_run(self, given: list[Tensor]) -> list[Tensor]:
        x, y = given
        given.clear()
        return [x.relu_() + y]


def test_what_a_call_writes_into_a_copy_of_an_input_reaches_the_input(monkeypatch: pytest.MonkeyPatch) -> None:
    """Machine code is given contiguous tensors, so of others copies."""
    x, y = torch.randn(3, 4), torch.randn(1, 4).expand(3, 4)
    candidate = candidate_of(Rectified(), [(x.clone(), y.contiguous())])
    written = aot_inductor.written_inputs(export(candidate))
    assert written == (0,)
    monkeypatch.setattr(aot_inductor, "aoti_load", lambda _: Runner())
    monkeypatch.setattr(aot_inductor, "aoti_operators", lambda _: [])
    program = aot_inductor.AotInductorProgram(Path("any"), candidate.signature, None, written=written)
    for given in (x.clone(), x.t().contiguous().t()):
        (answer,) = program.run([given, y])
        assert torch.equal(given, x.relu())
        assert torch.equal(answer, x.relu() + y)
