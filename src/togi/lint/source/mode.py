"""Which models compute something else in training mode: those with dropout or with batch norm."""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING

from togi.lint.source.value import Value

if TYPE_CHECKING:
    from togi.lint.source.model import Source

_LAYERS = re.compile(
    r"^torch\.nn\.(modules\.\w+\.)?(\w*Dropout\w*|\w*BatchNorm\w*|Transformer\w*|RReLU)$|"
    r"^torch\.nn\.functional\.\w*dropout\w*$"
)
_FAMILIES = (
    "torchvision.models.",
    "timm.create_model",
    "torch.hub.load",
    "segmentation_models_pytorch.",
    "efficientnet",
)


def depends_on_mode(source: Source, value: Value) -> bool:
    """Whether the model, made in this file, has a layer with a training mode, as far as the file shows."""
    if (value.qualified or "").startswith(_FAMILIES):
        return True
    if isinstance(value.definition, ast.ClassDef):
        return _holds_layer(source, value.definition, set())
    return isinstance(value.origin, ast.Call) and _holds_layer(source, value.origin, set())


def _holds_layer(source: Source, node: ast.AST, seen: set[ast.AST]) -> bool:
    if node in seen:
        return False
    seen.add(node)
    if isinstance(node, ast.ClassDef) and any(_holds_layer(source, base, seen) for base in source.classes.bases(node)):
        return True
    for call in ast.walk(node):
        if isinstance(call, ast.Call) and not _without_effect(call):
            name = source.names.qualified(call.func, source.scope(call)) or ""
            if _LAYERS.match(name) or name.startswith(_FAMILIES):
                return True
            made = source.value(call.func).definition
            if isinstance(made, ast.ClassDef) and _holds_layer(source, made, seen):
                return True
    return False


def _without_effect(call: ast.Call) -> bool:
    """``nn.Dropout(0.0)``."""
    given = [*call.args, *(keyword.value for keyword in call.keywords)]
    return len(given) == 1 and isinstance(given[0], ast.Constant) and given[0].value == 0
