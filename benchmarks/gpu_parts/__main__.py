"""Rows of one part of the sweep, in this process: ``python -m benchmarks.gpu_parts engines --device cpu``, a row a
line."""

from __future__ import annotations

import argparse
import importlib
import json
import os

import torch
from benchmarks.gpu_jobs import PARTS
from benchmarks.gpu_parts.environment import name_of
from benchmarks.gpu_parts.row import LEFT_OUT, ask_for, row
from benchmarks.gpu_rows import BEGINS, DEVICE_LOST, NO_DEVICE, Row

from togi.torch_internals.cuda import device_answers


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("part", choices=PARTS)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--rows", default="", help="a regular expression: run those alone")
    parser.add_argument("--known", default="[]", help="names of rows that need not be run, as JSON")
    parser.add_argument("--models", help="names of benchmarks/gpu_models.py for the part tune; none: all")
    options = parser.parse_args()
    if options.device == "cuda" and not torch.cuda.is_available():
        print(json.dumps(row(NO_DEVICE, False, f"torch {torch.__version__} sees no CUDA device here")))
        return
    ask_for(options.rows, json.loads(options.known), lambda begun: say({BEGINS: begun}))
    rows = importlib.import_module(f"benchmarks.gpu_parts.{options.part}").rows
    chosen = [options.models.split(",")] if options.part == "tune" and options.models else []
    name = name_of(options.device)
    for found in rows(options.device, *chosen):
        if found["result"] != LEFT_OUT:
            say({**found, "machine": name})
        if found["result"] == "fail" and options.device == "cuda":
            if not device_answers():  # an illegal access makes every later call of the process fail
                os._exit(DEVICE_LOST)
            torch.cuda.empty_cache()  # what it left there is for those that run beside


def say(told: Row) -> None:
    """To who started this process, at once: it may crash."""
    print(json.dumps(told), flush=True)


if __name__ == "__main__":
    main()
