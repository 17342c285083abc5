"""Asks of a candidate whether the rows of its calls are computed apart."""

from __future__ import annotations

import copy
from collections.abc import Sequence

import torch
from torch import nn

from togi.graph.candidate import Candidate, FlatModule
from togi.graph.dependence.analysis import RowsVerdict
from togi.graph.dependence.any_size import rows_apart_at_any_size
from togi.graph.dependence.proof import rows_apart
from togi.verify.derived_inputs import sizes_that_lead


def why_rows_depend(candidate: Candidate, batched: Sequence[int], piece: int | None) -> str:
    """Empty where pieces of a batch give the rows that the batch gives, as dimension 0 of every output.

    Args:
        batched: the flat inputs whose dimension 0 is the batch; the others are given to every piece whole.
        piece: rows of a piece; None where batches are of several sizes, and pieces have two rows or more.
    """
    signature = candidate.signature
    call = FlatModule(with_objects_of_its_own(candidate.module), signature)
    sample = candidate.flat_samples()[0]
    cut = [0 if i in batched else None for i in range(len(sample))]
    verdicts = []
    with torch.no_grad():
        if signature.dynamic:
            batch = next(iter(batched)), 0
            follows = {(i, 0): (batch, 0) for i in batched} | sizes_that_lead(candidate.samples, signature)
            verdicts.append(rows_apart_at_any_size(call, sample, cut, follows))
        if piece is not None and not any(verdict.reason for verdict in verdicts):
            verdicts.append(rows_apart(call, sample, cut, [piece]))
    return next(filter(None, map(_reason, verdicts)), "")


def _reason(verdict: RowsVerdict) -> str:
    if not verdict.reason and set(verdict.along) != {0}:
        return "an output has its rows along another dimension than the first"
    return verdict.reason


def with_objects_of_its_own(module: nn.Module) -> nn.Module:
    """A copy that shares the tensors: what a module keeps of a call on fake tensors, it keeps in the copy."""
    shared = {id(tensor): tensor for tensor in (*module.parameters(), *module.buffers())}
    with torch.no_grad():  # a copy of TorchScript would otherwise be computed from the original's parameters
        return copy.deepcopy(module, shared)
