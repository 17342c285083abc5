"""Telemetry stays off: an artifact of ONNX Runtime, made and loaded, connects to nothing and leaves the home folder
alone. ONNX Runtime connects in native code, so a preloaded library counts what asks for a name or a connection."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from togi.core.telemetry import OFF

COUNTER = r"""
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <dlfcn.h>
#include <netdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>

static void note(const char *what, const char *whom) {
    FILE *file = fopen(getenv("TOGI_TEST_CONNECTIONS"), "a");
    if (file) { fprintf(file, "%s %s\n", what, whom ? whom : ""); fclose(file); }
}

int getaddrinfo(const char *node, const char *service, const struct addrinfo *hints, struct addrinfo **found) {
    note("name", node);
    return EAI_FAIL;
}

int connect(int fd, const struct sockaddr *address, socklen_t length) {
    static int (*real)(int, const struct sockaddr *, socklen_t);
    if (!real) real = (int (*)(int, const struct sockaddr *, socklen_t))dlsym(RTLD_NEXT, "connect");
    if (address->sa_family == AF_INET || address->sa_family == AF_INET6) { note("connect", ""); return -1; }
    return real(fd, address, length);
}
"""
LINEAR = """
import torch

def subject():
    return torch.nn.Linear(4, 4).eval(), torch.ones(1, 4)
"""
USES = """
import sys, time
import togi
from togi.techniques import technique
if sys.argv[1:] == ["control"]:
    import socket
    try:
        socket.create_connection(("example.org", 80))
    except OSError:
        sys.exit()
if sys.argv[1:]:
    __import__(sys.argv[1])  # as the user's file may do before togi does: that reports by itself
    if sys.argv[2:] == ["alone"]:
        sys.exit()
import onnxruntime, torch
from togi.techniques.engine.programs.openvino_library import openvino
with torch.no_grad():
    program = torch.onnx.export(torch.nn.Linear(4, 4), (torch.ones(1, 4),), dynamo=True)
program.save("linear.onnx")
session = onnxruntime.InferenceSession("linear.onnx")
session.run(None, {session.get_inputs()[0].name: torch.ones(1, 4).numpy()})
openvino().convert_model("linear.onnx")
time.sleep(1)  # uploads are made by a thread
"""


@pytest.fixture(scope="module")
def counter(tmp_path_factory: pytest.TempPathFactory) -> Path:
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("no C compiler here to make the library that counts connections")
    folder = tmp_path_factory.mktemp("counter")
    (folder / "counter.c").write_text(COUNTER, encoding="ascii")
    library = folder / "counter.so"
    subprocess.run([compiler, "-shared", "-fPIC", "-o", library, folder / "counter.c", "-ldl"], check=True)
    return library


def seen(counter: Path, folder: Path, *arguments: str, command: list[str]) -> tuple[str, list[str]]:
    """What asked for a connection, and what stands in the home folder, after ``command``."""
    home, work, log = folder / "home", folder / "work", folder / "connections"
    home.mkdir()
    work.mkdir()
    (work / "linear.py").write_text(LINEAR, encoding="utf-8")
    kept = {name: value for name, value in os.environ.items() if name not in OFF and not name.startswith("XDG_")}
    environment = {
        **kept,
        "HOME": str(home),
        "LD_PRELOAD": str(counter),
        "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
        "TOGI_TEST_CONNECTIONS": str(log),
        "TOGI_HOME": str(folder / "togi"),
        "TOGI_CACHE": str(folder / "cache"),
    }
    subprocess.run([*command, *arguments], cwd=work, env=environment, check=True, timeout=240, capture_output=True)
    found = [str(path.relative_to(home)) for path in sorted(home.rglob("*"))]
    return log.read_text(encoding="utf-8") if log.exists() else "", found


def test_the_counter_sees_a_connection(counter: Path, tmp_path: Path) -> None:
    connections, _ = seen(counter, tmp_path, "control", command=[sys.executable, "-P", "-c", USES])
    assert "name example.org" in connections


@pytest.mark.thorough
def test_engines_connect_to_nothing(counter: Path, tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    pytest.importorskip("openvino")
    assert seen(counter, tmp_path, command=[sys.executable, "-P", "-c", USES]) == ("", [])


@pytest.mark.thorough
@pytest.mark.parametrize("imported", ["openvino", "nncf"])
def test_togi_adds_nothing_to_what_an_earlier_import_reported(counter: Path, tmp_path: Path, imported: str) -> None:
    for package in ("onnxruntime", "openvino", imported):
        pytest.importorskip(package)
    command = [sys.executable, "-P", "-c", USES, imported]
    for folder in ("alone", "both"):
        (tmp_path / folder).mkdir()
    reported, _ = seen(counter, tmp_path / "alone", "alone", command=command)
    assert seen(counter, tmp_path / "both", command=command)[0] == reported


@pytest.mark.thorough
def test_tuning_connects_to_nothing(counter: Path, tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    tune = ["tune", "linear.py:subject", "--only", "onnxruntime,int8_onnxruntime", "--effort", "quick"]
    command = [sys.executable, "-P", "-m", "togi", *tune, "--out", "linear.togi", "--time-limit", "60s"]
    assert seen(counter, tmp_path, command=command) == ("", [])


def test_the_users_own_choice_stays() -> None:
    code = "import os, togi; print(os.environ['ORT_DISABLE_TELEMETRY'])"
    environment = {**os.environ, "ORT_DISABLE_TELEMETRY": "0"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "0"
