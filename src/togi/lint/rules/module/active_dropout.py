"""The rule ``active-dropout``."""

from __future__ import annotations

from collections.abc import Iterable

from togi.core.quantities import plural
from togi.lint.finding import Cost, Finding
from togi.lint.module.context import ModuleContext, layers, place_of
from togi.lint.module.forward_pass import FunctionCall, Line
from togi.lint.rule import ModuleRule


class ActiveDropout(ModuleRule):
    """Dropout is on although the module is in eval mode.

    What it reports: calls of dropout functions with ``training=True`` in eval mode, attention with a ``dropout_p``
    above zero there, and dropout layers in training mode inside a module in eval mode.

    Why it costs: random numbers are drawn for every element and multiplied in; attention with dropout cannot take its
    fastest kernels. Results are random.

    When it stays silent: the probability is 0; the whole module was handed over in training mode (``training-mode``
    reports it).

    Example: ``x = F.dropout(x, 0.1)`` in ``forward``: its ``training`` is True by default.

    Use instead: ``F.dropout(x, 0.1, training=self.training)``, and
    ``dropout_p=self.p if self.training else 0.0`` for attention. Where the randomness is wanted (Monte Carlo dropout),
    say so with an ignore.

    Source: https://docs.pytorch.org/docs/stable/generated/torch.nn.functional.scaled_dot_product_attention.html, the
    note on dropout_p.
    """

    id = "active-dropout"

    def check(self, context: ModuleContext) -> Iterable[Finding]:
        by_line: dict[tuple[str, Line | None], list[FunctionCall]] = {}
        for call in context.forward.functions:
            if _is_on(call) and "Dropout" not in context.training.get(call.layer, ""):  # reported as a module below
                by_line.setdefault((call.name, call.line), []).append(call)
        for (name, line), calls in by_line.items():
            yield _of_function(self.id, name, line, calls)
        modules = [name for name, kind in context.training.items() if "Dropout" in kind and _probability(context, name)]
        if modules and "" not in context.training:  # training-mode reports the whole module
            yield Finding(
                rule=self.id,
                layer=modules[0],
                count=len(modules),
                message=f"{plural(len(modules), 'dropout layer')} in training mode inside a module in eval mode.",
                evidence=layers(modules),
                remedy="Call eval() on the whole module, after anything that calls train() on parts of it.",
            )


def _of_function(rule: str, name: str, line: Line | None, calls: list[FunctionCall]) -> Finding:
    attention = name == "scaled_dot_product_attention"
    p = calls[0].numbers.get("dropout_p" if attention else "p")
    names = [call.layer for call in calls]
    return Finding(
        rule=rule,
        place=place_of(line),
        layer=names[0],
        count=len(calls),
        message=f"{name} drops with p={p} although the module is in eval mode.",
        evidence=f"{layers(names)}" + (f", {line}" if line else ""),
        remedy=f"Pass dropout_p={p} if self.training else 0.0."
        if attention
        else f"Pass training=self.training to {name}, or use nn.Dropout.",
        cost=Cost(
            text="a random number and a multiplication for each element, and results that differ", measured=False
        ),
    )


def _is_on(call: FunctionCall) -> bool:
    if call.name == "scaled_dot_product_attention":
        return bool(call.numbers.get("dropout_p"))
    return bool(call.numbers.get("training")) and bool(call.numbers.get("p"))


def _probability(context: ModuleContext, name: str) -> float:
    return float(getattr(context.module.get_submodule(name), "p", 1.0))
