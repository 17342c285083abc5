"""Run by test_engines_in_a_child: imports torch and Dynamo, computes nothing, and forks one child for each engine, as
a trial server does."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import torch

from togi.techniques.registry import technique
from togi.torch_internals.compiler import import_dynamo

ENGINES = {
    "eager": {},
    "torchscript": {"how": "trace", "freeze": True, "optimize": True},
    "onnxruntime": {"spinning": True},
    "openvino": {},
    "ncnn": {},
    "torch_compile": {"mode": "default", "freezing": True},
    "aot_inductor": {"freezing": False, "max_autotune": False},
}


def trial(id: str) -> None:
    """Build and run with two threads; nothing may be reported to anybody, and no process may be left."""
    torch.set_num_threads(2)
    from tests.techniques.engine.engine_subjects import made

    candidate = made("dense" if id == "ncnn" else "strided_input").with_(threads=2)
    program = technique(id).apply(candidate, dict(ENGINES[id])).program
    with torch.no_grad():
        for sample in candidate.samples:
            expected = candidate.module(*sample.args)
            for _ in range(2):
                torch.testing.assert_close(program(*sample.args), expected, rtol=1e-4, atol=1e-5)
    assert "openvino_telemetry" not in sys.modules
    children = Path(f"/proc/self/task/{os.getpid()}/children")
    assert not children.exists() or not children.read_text(encoding="utf-8").split(), "it left processes behind"


def in_child(id: str) -> int:
    pid = os.fork()
    if pid:
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    code = 1
    try:
        trial(id)
        code = 0
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    import_dynamo()
    codes = {id: in_child(id) for id in sys.argv[1:]}
    print(codes)
    sys.exit(any(codes.values()))
