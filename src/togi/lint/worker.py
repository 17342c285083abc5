"""A process that checks files: a list of paths in, one line of JSON out for each.

``python -m togi.lint.worker`` rather than ``multiprocessing``: it starts without torch, without a copy of the caller's
threads, and without running the caller's main module again; and a crash of one costs one file.
"""

from __future__ import annotations

import gc
import json
import signal
import sys
from typing import Any, BinaryIO

from togi.lint.cache import cache_key
from togi.lint.check_file import check_bytes, source_rules

_COLLECT_EVERY = 50


def main() -> None:
    """Answer requests from standard input until it closes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the caller was interrupted too, and closes our input
    gc.disable()  # trees are full of cycles and short-lived: scanning them again and again costs a third of the time
    source_rules()
    answers = sys.stdout.buffer
    sys.stdout = sys.stderr  # what anything prints does not disturb the answers
    for number, line in enumerate(sys.stdin.buffer, start=1):
        _answer(json.loads(line), answers)
        if number % _COLLECT_EVERY == 0:
            gc.collect()


def _answer(request: dict[str, Any], answers: BinaryIO) -> None:
    try:
        with open(request["path"], "rb") as file:
            data = file.read()
    except OSError as error:
        reply = {"error": f"cannot be read: {error.strerror or error}"}
    else:
        report = check_bytes(data, request["shown"], request["hot"])
        key = cache_key(request["path"], data, request["hot"])
        reply = {"key": key.hex(), "report": report.model_dump_json(exclude_defaults=True)}
    answers.write(json.dumps(reply).encode() + b"\n")
    answers.flush()


if __name__ == "__main__":
    main()
