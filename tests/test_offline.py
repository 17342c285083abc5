"""The suite's guard against the network bites, in this process and in those that tests start."""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from tests.conftest import nobody_else_was_asked
from tests.offline.sitecustomize import TRIED
from togi.core.interpreter import python
from togi.subject import hub

ELSEWHERE = "192.0.2.1"
"""An address that documentation may use: nobody has it."""


def tried() -> str:
    """What was tried so far, which then counts no more."""
    file = Path(os.environ[TRIED])
    text = file.read_text(encoding="utf-8")
    file.write_text("", encoding="utf-8")
    return text


def test_another_machine_cannot_be_reached() -> None:
    with pytest.raises(OSError, match="tests reach no other machine") as raised:
        socket.create_connection((ELSEWHERE, 80), timeout=1)
    assert raised.value.errno == errno.ENETUNREACH
    assert tried().startswith(f"connect ('{ELSEWHERE}', 80) by ")


def test_no_name_server_is_asked() -> None:
    with pytest.raises(urllib.error.URLError, match="tests ask no name server"):
        urllib.request.urlopen("http://hub.example.invalid/model", timeout=1)
    assert tried().startswith("look up hub.example.invalid by ")


def test_nothing_is_sent_without_a_connection() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as plain, pytest.raises(OSError, match="no other machine"):
        plain.sendto(b"x", (ELSEWHERE, 9))
    assert "sendto" in tried()


def test_a_test_that_tries_fails_although_a_library_swallowed_the_error() -> None:
    with contextlib.suppress(OSError):
        socket.create_connection((ELSEWHERE, 80), timeout=1)
    with pytest.raises(pytest.fail.Exception, match=f"reached for the network.*{ELSEWHERE}"):
        nobody_else_was_asked()
    nobody_else_was_asked()


@pytest.mark.parametrize("start", [lambda code: [sys.executable, "-c", code], python], ids=["python", "of togi"])
def test_processes_that_tests_start_are_guarded_too(start: object) -> None:
    code = f"import socket; socket.create_connection(('{ELSEWHERE}', 80), timeout=1)"
    ended = subprocess.run(start(code), capture_output=True, text=True, check=False)  # type: ignore[operator]
    assert "tests reach no other machine" in ended.stderr
    assert ELSEWHERE in tried()


def test_the_own_machine_can_be_reached() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        thread = threading.Thread(target=lambda: server.accept()[0].sendall(b"here"))
        thread.start()
        with socket.create_connection(("localhost", port), timeout=5) as connection:
            assert connection.recv(4) == b"here"
        thread.join()


def test_processes_of_togi_ask_no_hub_without_the_suites_help(monkeypatch: pytest.MonkeyPatch) -> None:
    """The suite sets what keeps the library of the Hub offline. So does togi by itself, also if it is imported."""
    from huggingface_hub import constants

    from togi.worker.locate import locate

    monkeypatch.delenv("HF_HUB_OFFLINE")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    locate("timm:resnet10t?size=32")
    assert os.environ["HF_HUB_OFFLINE"] == "1"
    assert constants.is_offline_mode()
    monkeypatch.setenv("HF_HUB_OFFLINE", "0")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    hub.offline()
    assert not constants.is_offline_mode(), "what the user says counts"
