"""From a watched run to its account."""

from __future__ import annotations

import gc
import time
from collections.abc import Iterable

from torch import Tensor
from torch.utils._pytree import tree_leaves

from togi.footprint.account.owners import held_names, holdings_at, kept_by_autograd, moment, owners
from togi.footprint.account.record import Account, Category
from togi.footprint.account.timeline import timeline_of
from togi.footprint.account.watch import Watch
from togi.footprint.step import Step

_BEFORE = (Category.PARAMETER, Category.BUFFER, Category.INPUT, Category.OPTIMIZER)


def account_of(step: Step, *, device: str = "cpu", subject: str = "") -> Account:
    """Run the step three times: to warm up (which makes the optimizer's state), for the time, and watched."""
    step.run()
    gc.collect()
    started = time.perf_counter()
    step.run()
    plain_ms = (time.perf_counter() - started) * 1e3
    watch = Watch(step.module, device=device)
    watch.enter_module(step.module)
    watch.enter(_tensors((step.sample.args, dict(step.sample.kwargs))), Category.INPUT)
    if step.optimizer is not None:
        watch.enter_optimizer(step.optimizer, step.module)
    with watch:
        step.run()
    found = close_account(watch)
    trained = sum(p.nbytes for p in step.module.parameters() if p.requires_grad) if step.train else 0
    return found.model_copy(
        update={
            "subject": subject,
            "train": step.train,
            "plain_ms": plain_ms,
            "minimum_bytes": found.minimum_bytes + trained,
            "notes": step.notes,
        }
    )


def close_account(watch: Watch) -> Account:
    """The account of a run that has been watched."""
    stream = watch.stream
    order, owner = stream.peak_order, owners(watch)
    holdings = holdings_at(watch, order, owner)
    before = [piece for piece in watch.ledger.pieces if piece.op == "" and piece.category]
    outputs = sum(piece.bytes for piece in watch.ledger.pieces if piece.category == Category.OUTPUT)
    return Account(
        device=watch.device,
        train=watch.backward_at is not None,
        peak_bytes=sum(holding.bytes for holding in holdings),
        baseline_bytes=sum(piece.bytes for piece in before),
        peak=moment(watch, order, owner),
        holdings=holdings,
        kept=kept_by_autograd(watch),
        held_names=held_names(watch, order, owner),
        minimum_bytes=sum(piece.bytes for piece in before if piece.category in _BEFORE) + outputs,
        timeline=timeline_of(watch, owner),
        watched_ms=watch.ms,
    )


def _tensors(values: object) -> Iterable[Tensor]:
    return (leaf for leaf in tree_leaves(values) if isinstance(leaf, Tensor))
