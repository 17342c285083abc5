"""Serve an artifact that takes one tensor: POST /predict, GET /health, GET /metrics (the text format of Prometheus).

    ARTIFACT=fast.togi TRUSTED=team.pub uvicorn examples.server:app

It needs ``pip install fastapi uvicorn``, next to togi and the engine of the artifact. TRUSTED may be left out.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import torch
from fastapi import FastAPI, HTTPException
from fastapi.responses import PlainTextResponse

import togi

counts: Counter[str] = Counter()


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    """Load it and call it once, before the first request: the first call is the slowest."""
    app.state.model = model = togi.load(os.environ["ARTIFACT"], trusted=os.environ.get("TRUSTED"))
    if len(model.signature.inputs_facts) != 1:
        raise RuntimeError(
            f"it takes {len(model.signature.inputs_facts)} tensors, and predict sends one: change predict"
        )
    (facts,) = model.signature.inputs_facts
    app.state.dtype = getattr(torch, facts.dtype)
    model(torch.zeros([2 if size is None else size for size in facts.shape], dtype=app.state.dtype))
    yield


app = FastAPI(lifespan=lifespan)


@app.post("/predict")
def predict(rows: list[Any]) -> Any:  # def, not async def: the framework calls it on a thread of its own
    began = time.perf_counter()
    try:
        output = app.state.model(torch.tensor(rows, dtype=app.state.dtype))
    except (TypeError, ValueError) as refused:  # a size or a dtype that was not proven
        counts["refused"] += 1
        raise HTTPException(422, str(refused)) from None
    counts["answered"] += 1
    counts["nanoseconds"] += int((time.perf_counter() - began) * 1e9)
    return output.tolist()


@app.get("/health")
def health() -> dict[str, Any]:
    return {"engine": app.state.model.engine, "warnings": app.state.model.warnings}


@app.get("/metrics")
def metrics() -> PlainTextResponse:
    lines = [f'togi_requests_total{{result="{result}"}} {counts[result]}' for result in ("answered", "refused")]
    return PlainTextResponse("\n".join([*lines, f"togi_predict_seconds_total {counts['nanoseconds'] / 1e9}"]) + "\n")
