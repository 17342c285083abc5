"""The table of deprecated names against the installed packages: what it says of them is so."""

from __future__ import annotations

import importlib
import inspect
import warnings
from typing import Any

import pytest
import torch

from togi.lint.data.deprecated_names import DEPRECATED, Deprecated
from togi.lint.fix import apply_fixes
from togi.lint.rules.source.deprecated_function import DeprecatedFunction
from togi.lint.source.model import Source

MATRIX = torch.eye(3)
CALLS = {
    "torch.nn.functional.upsample": lambda f: f(torch.ones(1, 1, 2, 2), scale_factor=2),
    "torch.nn.functional.upsample_nearest": lambda f: f(torch.ones(1, 1, 2, 2), scale_factor=2),
    "torch.nn.functional.upsample_bilinear": lambda f: f(torch.ones(1, 1, 2, 2), scale_factor=2),
    "torch.range": lambda f: f(0, 3),
    "torch.nn.NLLLoss2d": lambda f: f(),
    "torch.nn.utils.weight_norm": lambda f: f(torch.nn.Linear(2, 2)),
    "torch.nn.utils.clip_grad_norm": lambda f: f([MATRIX.clone()], 1.0),
    "torch.backends.cuda.sdp_kernel": lambda f: f(),
    "torch.lu_solve": lambda f: f(MATRIX, *torch.linalg.lu_factor(MATRIX)),
    "torch.cuda.memory_cached": lambda f: f(),
    "torch.cuda.max_memory_cached": lambda f: f(),
    "torch.set_default_tensor_type": lambda f: f(torch.FloatTensor),
    "torch.testing.assert_allclose": lambda f: f(MATRIX, MATRIX),
    "functorch.grad": lambda f: f(torch.sum),
    "functorch.vmap": lambda f: f(torch.sum),
    "torch._vmap_internals.vmap": lambda f: f(torch.sum),
    **{f"torch.{name}": lambda f: f(MATRIX, MATRIX) for name in ("chain_matmul", "triangular_solve")},
    "torch.lu": lambda f: f(MATRIX),
    **{
        f"torch.nn.init.{name}": lambda f: f(MATRIX.clone())
        for name in ("uniform", "normal", "eye", "xavier_uniform", "xavier_normal", "kaiming_uniform", "orthogonal")
    },
    **{f"functorch.{name}": lambda f: f(torch.sum) for name in ("jacrev", "jacfwd", "hessian", "functionalize")},
    "functorch.vjp": lambda f: f(torch.sum, MATRIX),
    "functorch.jvp": lambda f: f(torch.sum, (MATRIX,), (MATRIX,)),
    "functorch.make_functional": lambda f: f(torch.nn.Linear(2, 2)),
    "torch.nn.utils.stateless.functional_call": lambda f: f(torch.nn.Linear(3, 3), {}, MATRIX),
    "torchvision.transforms.v2.ToTensor": lambda f: f(),
}


def resolved(name: str) -> Any:
    parts = name.split(".")
    for count in range(len(parts) - 1, 0, -1):
        try:
            member: Any = importlib.import_module(".".join(parts[:count]))
        except ModuleNotFoundError:
            continue
        for part in parts[count:]:
            member = getattr(member, part)
        return member
    raise AssertionError(name)


@pytest.mark.parametrize("entry", DEPRECATED.values(), ids=lambda entry: entry.name)
def test_the_successor_is_there(entry: Deprecated) -> None:
    assert resolved(entry.successor) is not None
    assert entry.instead


@pytest.mark.parametrize(
    "entry", [deprecated for deprecated in DEPRECATED.values() if deprecated.removed], ids=lambda entry: entry.name
)
def test_what_is_removed_raises_or_says_that_it_will_be(entry: Deprecated) -> None:
    function = resolved(entry.name)
    arguments = (MATRIX, MATRIX) if entry.name.endswith(("solve", "lstsq")) else (MATRIX,)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises((RuntimeError, UserWarning), match="removed"):
            function(*arguments)


@pytest.mark.parametrize("name", CALLS)
def test_what_is_deprecated_warns(name: str) -> None:
    assert not DEPRECATED[name].documented
    before, always = torch.get_default_dtype(), torch.is_warn_always_enabled()
    torch.set_warn_always(True)
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            CALLS[name](resolved(name))
    finally:
        torch.set_default_dtype(before)
        torch.set_warn_always(always)
    assert any(word in str(warning.message) for warning in caught for word in ("deprecated", "renamed", "Please use"))


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("import torch\nq, r = torch.qr(a)\n", "import torch\nq, r = torch.linalg.qr(a)\n"),
        ("import torch\nx = torch.chain_matmul(a, b, c)\n", "import torch\nx = torch.linalg.multi_dot([a, b, c])\n"),
        ("import functorch\nf = functorch.vmap(g)\n", "import torch\nimport functorch\nf = torch.func.vmap(g)\n"),
        ("from torch import ger as g\ny = g(a, b)\n", "from torch import outer as g\ny = g(a, b)\n"),
        (
            "from torch import ger\ny = ger(a, b)\nz = ger(b, a)\n",
            "from torch import outer\ny = outer(a, b)\nz = outer(b, a)\n",
        ),
        (
            "import torch.nn.functional as F\nF.upsample(é, 2)\n",
            "import torch.nn.functional as F\nF.interpolate(é, 2)\n",
        ),
    ],
)
def test_fixes_of_drop_in_successors(before: str, after: str) -> None:
    fixes = [finding.fix for finding in DeprecatedFunction().check(Source.parse(before)) if finding.fix]
    assert apply_fixes(before, fixes)[0] == after
    assert all(fix.safe for fix in fixes)


@pytest.mark.parametrize(
    "text",
    [
        "import torch\nq, r = torch.qr(a, some=False)\n",
        "import torch\nw = torch.symeig(a)\n",
        "from torch import ger\nouter = 1\ny = ger(a, b)\n",
        "from torch import chain_matmul\nx = chain_matmul(a, b)\ny = chain_matmul(*matrices)\n",
        "from torch import chain_matmul as chain\nx = chain(a, b)\ny = chain(c, d)\n",
        "from torch import qr\nx = qr(a)\ny = qr(b, False)\n",
        "from torch.nn.utils.stateless import functional_call\n"
        "x = functional_call(m, p, a)\ny = functional_call(m, parameters_and_buffers=p, args=a)\n",
        "from torch import ger\nger = ger or None\ny = ger(a, b)\n",
    ],
)
def test_no_fix_where_more_than_the_name_changes(text: str) -> None:
    assert not any(finding.fix for finding in DeprecatedFunction().check(Source.parse(text)))


@pytest.mark.parametrize(
    "entry", [entry for entry in DEPRECATED.values() if entry.drop_in], ids=lambda entry: entry.name
)
def test_a_drop_in_successor_takes_the_same_arguments(entry: Deprecated) -> None:
    """Parameters in the same order; of the same names, unless the entry says that calls with keywords stay."""
    try:
        old, new = (
            list(inspect.signature(resolved(name)).parameters.values()) for name in (entry.name, entry.successor)
        )
    except (ValueError, AssertionError, AttributeError):  # written in C, or not in this version
        return
    if any(parameter.kind is parameter.VAR_POSITIONAL for parameter in old):  # a wrapper that hands all on
        return
    assert len(old) <= len(new)
    for before, after in zip(old, new, strict=False):
        assert before.name == after.name or not entry.keywords
        assert before.default == after.default
