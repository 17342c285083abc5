"""``togi.tune`` on live programs that do to their process what most do not.

Each is tuned as any other, or refused in a sentence. Either way the study ends in its time, the object is afterwards
what it was, and nothing that was started is left.

The module inside sleeps, which a captured graph does not: its engine is faster on any machine, however busy.
"""

from __future__ import annotations

import importlib
import os
import re
import socket
import sys
import time
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import pytest
import torch

import togi
from togi.artifact.weights import weights_hash
from togi.core.errors import SubjectError
from togi.core.recipe import ProgramRecipe
from togi.machine.limits import descendants
from togi.study.result import StudyResult

PROGRAMS = """
import os
import signal
import socket
import threading
import time

import torch
from torch import nn


class Sleeper(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(8, 8)

    def forward(self, x):
        time.sleep(0.01)
        for _ in range(50):
            x = torch.tanh(self.inner(x))
        return x


class Program:
    def __init__(self):
        torch.manual_seed(0)
        self.body = Sleeper().eval()
        self.lock = threading.Lock()
        self.calls, self.sockets = 0, None

    def plain(self, x):
        found = self.body(x)
        return found.sum(1).tolist() if float(found.sum()) < 1e6 else []  # decided by value: it is cut into parts

    def forks(self, x):
        received, sent = os.pipe()
        child = os.fork()
        if not child:
            os.write(sent, b"3")
            os._exit(0)
        os.waitpid(child, 0)
        number = float(os.read(received, 1))
        os.close(received), os.close(sent)
        return [number, *self.plain(x)]

    def opens_sockets(self, x):
        if self.sockets is None:
            server = socket.create_server(("127.0.0.1", 0))
            client = socket.create_connection(server.getsockname())
            self.sockets = client, server.accept()[0], server
        client, other, _ = self.sockets
        client.sendall(b"3")
        return [float(other.recv(1)), *self.plain(x)]

    def keeps_a_port(self, x):
        if self.sockets is None:
            self.sockets = socket.create_server(("127.0.0.1", int(os.environ["PORT"])))
        return self.plain(x)

    def holds_a_lock(self, x):
        if self.lock.locked():
            self.lock.release()
        self.lock.acquire()
        return self.plain(x)

    def waits_for_its_own_lock(self, x):
        self.lock.acquire()
        return self.plain(x)

    def prints_megabytes(self, x):
        print("x" * (4 << 20))
        return self.plain(x)

    def changes_its_parameters(self, x):
        found = self.plain(x)
        with torch.no_grad():
            self.body.inner.bias.data.add_(0.01)
        return found

    def wants_the_main_thread_at_first(self, x):
        if not self.calls:
            signal.signal(signal.SIGUSR1, signal.SIG_DFL)  # raises in any other
        self.calls += 1
        return self.plain(x)

    def raises_in_its_third_call(self, x):
        self.calls += 1
        if self.calls == 3:
            raise RuntimeError("the third time")
        return self.plain(x)
"""
LIMIT_S = 60.0
X = torch.ones(1, 8)

pytestmark = [pytest.mark.starts_servers, pytest.mark.usefixtures("brief_studies")]


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ModuleType]:
    folder = tmp_path_factory.mktemp("programs")
    (folder / "ill_behaved.py").write_text(PROGRAMS, encoding="utf-8")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(folder))
        patch.setenv("TOGI_HOME", str(folder / "home"))
        yield importlib.import_module("ill_behaved")
    sys.modules.pop("ill_behaved", None)


class Tuned:
    """What comes of a study of one program; it has ended in its time, and changed nothing of the user's."""

    def __init__(self, programs: ModuleType, name: str, limit_s: float) -> None:
        self.program: Any = programs.Program()
        self.call: Callable[..., list[float]] = getattr(self.program, name)
        weights, held = weights_hash(self.program.body), dict(vars(self.program))
        before, began = set(descendants(os.getpid())), time.monotonic()
        self.study: StudyResult | None = None
        self.refusal = ""
        try:
            self.study = togi.tune(
                self.call, togi.Inputs((X,)), only=["torchscript"], effort="quick", time_limit_s=limit_s, progress=False
            )
        except SubjectError as error:
            self.refusal = str(error)
        assert time.monotonic() - began < limit_s + 10.0
        assert weights_hash(self.program.body) == weights
        assert vars(self.program) == held
        assert set(descendants(os.getpid())) <= before

    def serves(self) -> None:
        """Its engine is put in, and answers as the original does."""
        assert self.study is not None, self.refusal
        assert isinstance(self.study.best.recipe, ProgramRecipe), (self.study.record.verdict, self.study.record.program)
        with torch.no_grad():
            expected = self.call(X)
            with self.study.best.apply(self.call) as installed:
                assert self.call(X) == pytest.approx(expected, rel=1e-4)
                assert installed.counts == {"body": (1, 0)}
        for opened in self.program.sockets or ():
            opened.close()


GAIN = ["forks", "opens_sockets", "holds_a_lock", "prints_megabytes", "wants_the_main_thread_at_first"]


@pytest.mark.thorough(20)
@pytest.mark.parametrize("name", GAIN)
def test_one_that_can_be_called_again_and_again_gains(
    name: str, programs: ModuleType, capfd: pytest.CaptureFixture[str]
) -> None:
    Tuned(programs, name, LIMIT_S).serves()
    printed = capfd.readouterr()
    if name == "prints_megabytes":
        printed = printed._replace(out=printed.out.replace("x" * (4 << 20), "", 2))  # what this test itself called
    assert len(printed.out) + len(printed.err) < 20_000, "the processes of a study print into files"


REFUSED = {
    "changes_its_parameters": (
        r"Program\.changes_its_parameters writes into parameters in every call \(body\.inner\.bias\).*register_buffer"
    ),
    "raises_in_its_third_call": (
        r"Program\.raises_in_its_third_call answers at first, and a later call with sample 1 raises: .*ill_behaved\.py:"
        r"\d+ in raises_in_its_third_call.*the third time\. A study calls it thousands of times"
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_one_that_goes_another_way_with_each_call_is_refused_in_a_sentence(name: str, programs: ModuleType) -> None:
    tuned = Tuned(programs, name, LIMIT_S)
    assert tuned.study is None
    assert re.search(REFUSED[name], tuned.refusal), tuned.refusal
    assert "Traceback" not in tuned.refusal


@pytest.mark.thorough(25)
def test_one_that_waits_for_itself_is_told_when_the_time_is_over(programs: ModuleType) -> None:
    tuned = Tuned(programs, "waits_for_its_own_lock", 15.0)
    assert "still in survey" in tuned.refusal
    assert "Traceback" not in tuned.refusal


@pytest.mark.thorough(30)
def test_one_that_no_second_process_can_run_is_told(programs: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        monkeypatch.setenv("PORT", str(free.getsockname()[1]))
    tuned = Tuned(programs, "keeps_a_port", LIMIT_S)
    reasons = [] if tuned.study is None else [trial.reason for trial in tuned.study.record.trials]
    assert any("Address already in use" in said for said in (tuned.refusal, *reasons)), (tuned.refusal, reasons)
    assert tuned.study is None or tuned.study.best.recipe.is_reference
    assert not tuned.refusal or "several processes at once: what one alone may hold (a port" in tuned.refusal
