"""Engines that do not serve two callers at once serve one after the other."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from togi.artifact.manifest import Link, in_turn
from togi.graph.candidate import FlatProgram
from togi.subject.inputs import Inputs
from togi.subject.signature import Signature
from togi.torch_internals.compiler import aoti_operators
from togi.torch_internals.operators import runs_python

LIBRARY = torch.library.Library("togi_one_at_a_time", "DEF")
LIBRARY.define("twice(Tensor x) -> Tensor")
LIBRARY.impl("twice", lambda x: x * 2, "CompositeExplicitAutograd")
LIBRARY.define("known_by_its_shape(Tensor x) -> Tensor")


@torch.library.custom_op("togi_one_at_a_time::thrice", mutates_args=())
def thrice(x: Tensor) -> Tensor:
    return x * 3


@pytest.mark.parametrize("name", ["togi_one_at_a_time::twice", "togi_one_at_a_time::thrice", "nobody::knows_this"])
def test_operators_with_a_python_body_are_known(name: str) -> None:
    assert runs_python(name)


def test_a_kernel_of_atens_that_python_replaces_counts() -> None:
    assert not runs_python("aten::frac")
    replaced = torch.library.Library("aten", "IMPL")
    replaced.impl("frac", lambda x: x, "CPU")
    try:
        assert runs_python("aten::frac")
    finally:
        replaced._destroy()


def test_operators_in_cpp_do_not_count_though_python_knows_their_shapes() -> None:
    common = ("add.Tensor", "convolution", "index_put_", "sort", "_unique2", "lstm.input", "topk", "scatter_reduce.two")
    assert not [name for name in common if runs_python(f"aten::{name}")]


def test_what_a_package_calls_stands_in_it(tmp_path: Path) -> None:
    package = tmp_path / "model.pt2"
    nodes = [{"name": "buf1", "node": {"target": target}} for target in ("one::two", "torch.ops.three.four.default")]
    with zipfile.ZipFile(package, "w") as archive:
        archive.writestr("m/data/model/a.wrapper.json", json.dumps({"nodes": nodes}))
        archive.writestr("m/data/model/a.wrapper_metadata.json", json.dumps({"AOTI_DEVICE_KEY": "cpu"}))
        archive.writestr("m/data/model/a.wrapper.so", b"\x7fELF")
    assert list(aoti_operators(package)) == ["one::two", "three.four"]


class Alone(FlatProgram):
    """Fails where two call."""

    def __init__(self) -> None:
        x = torch.ones(2)
        super().__init__(Signature.of(torch.nn.ReLU(), [Inputs((x,))], [x]))
        self.inside = self.most = 0

    def run(self, inputs: list[Tensor]) -> Sequence[Tensor]:
        self.inside += 1
        self.most = max(self.most, self.inside)
        time.sleep(0.01)
        self.inside -= 1
        return [inputs[0] + 1]

    def save(self, folder: Path) -> dict[str, Any]:
        return {}


@pytest.mark.parametrize("in_turns", [True, False])
def test_callers_wait_for_each_other_where_the_program_says_so(in_turns: bool) -> None:
    program = Alone()
    if in_turns:
        program.serve_one_at_a_time()
    answers: list[Tensor] = []
    threads = [threading.Thread(target=lambda: answers.append(program(torch.ones(2)))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(answers) == 4
    assert (program.most == 1) is in_turns


def test_a_chain_in_turn_is_so_in_each_of_its_links() -> None:
    chain = in_turn((Link(engine="openvino", folder="openvino", meta={}), Link(engine="eager", folder="e", meta={})))
    assert [link.one_at_a_time for link in chain] == [True, True]
    assert Link.model_validate({"engine": "eager", "folder": "e", "meta": {}}).one_at_a_time is False, "of before"


HUNG = """
import sys, threading, torch
from pathlib import Path
from togi.graph.candidate import Candidate
from togi.subject.inputs import Inputs
from togi.subject.signature import Signature
from togi.techniques.engine.programs import aot_inductor
from togi.core.records import Facts, Machine

@torch.library.custom_op("toy::added", mutates_args=())
def added(x: torch.Tensor) -> torch.Tensor:
    for _ in range(2000):
        pass
    return x + 1

@added.register_fake
def _(x):
    return torch.empty_like(x)

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(16, 16)

    def forward(self, x):
        return torch.ops.toy.added(self.linear(x)).relu()

net, x = Net().eval(), torch.randn(4, 16)
machine = Machine(cpu_model="", cpu_cores=2, memory_bytes=2**33, threads=2, os="linux", python="3.11")
with torch.no_grad():
    wanted = net(x)
    signature = Signature.of(net, [Inputs((x,))], [wanted])
    facts = Facts(machine=machine, module_class="Net")
    start = Candidate(module=net, samples=(Inputs((x,)),), signature=signature, facts=facts)
    built = aot_inductor.build(start, {"freezing": False, "max_autotune": False})
folder = Path(sys.argv[1])
meta = built.save(folder)
for program in (built, aot_inductor.load(folder, meta, signature)):
    answers = []
    ask = lambda: answers.extend(program(x) for _ in range(200))
    threads = [threading.Thread(target=ask) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(answers) == 400
    for answer in answers:
        torch.testing.assert_close(answer, wanted)
print("served")
"""


@pytest.mark.thorough
def test_a_package_with_an_operator_in_python_serves_two_callers(tmp_path: Path) -> None:
    """Both would wait for ever: one for the interpreter's lock inside of the operator, one with it for the runner."""
    script = tmp_path / "hung.py"
    script.write_text(HUNG, encoding="utf-8")
    command = [sys.executable, str(script), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280, env=os.environ, check=False)
    assert done.stdout.strip() == "served", done.stderr[-2000:]


def test_an_engine_is_given_memory_that_holds_the_values() -> None:
    """Of a conjugated or a negative view torch computes them when somebody looks; engines read memory."""

    class Reads(Alone):
        def run(self, inputs: list[Tensor]) -> Sequence[Tensor]:
            return [torch.from_numpy(inputs[0].detach().numpy().copy())]

    given = torch.tensor([1 + 2j, 3 - 4j]).conj().imag
    assert given.is_neg()
    assert Reads()(given).tolist() == [-2.0, 4.0]
    program = Reads()
    z = torch.tensor([1 + 2j, 3 - 4j])
    program.signature = Signature.of(torch.nn.Identity(), [Inputs((z,))], [z])
    assert program(z.conj()).tolist() == [1 - 2j, 3 + 4j]
