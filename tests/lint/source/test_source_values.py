"""Values, names and hot places of the semantic model."""

from __future__ import annotations

import ast
import textwrap

import pytest
from hypothesis import given
from hypothesis import strategies as st

from togi.lint.source.model import Source, Value, ValueKind
from togi.lint.source.value import join

HEAD = """
import numpy as np
import torch
import torch as t
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader as Loader
from tqdm import tqdm
"""


def parse(body: str, **options: object) -> Source:
    return Source.parse(HEAD + textwrap.dedent(body), **options)  # type: ignore[arg-type]


def probe(body: str) -> Value:
    """The value of the argument of the only call of ``probe``."""
    source = parse(body)
    (call,) = (n for n in source.nodes(ast.Call) if isinstance(n.func, ast.Name) and n.func.id == "probe")
    return source.value(call.args[0])


def is_hot(body: str, **options: object) -> bool:
    source = parse(body, **options)
    (call,) = (n for n in source.nodes(ast.Call) if isinstance(n.func, ast.Name) and n.func.id == "probe")
    return source.hot(call) is not None


def in_forward(body: str) -> str:
    lines = textwrap.indent(textwrap.dedent(body), " " * 8)
    return f"class Net(nn.Module):\n    def forward(self, x: torch.Tensor, n: int = 1, other=None):\n{lines}"


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        ("probe(x)", ValueKind.TENSOR),
        ("probe(x.shape)", ValueKind.SHAPE),
        ("probe(x.shape[0])", ValueKind.NUMBER),
        ("probe(x.size(0) * n)", ValueKind.NUMBER),
        ("probe(len(x))", ValueKind.NUMBER),
        ("probe(x is None)", ValueKind.NUMBER),
        ("probe(x > 0)", ValueKind.TENSOR),
        ("probe(not x)", ValueKind.NUMBER),
        ("probe(x.item())", ValueKind.NUMBER),
        ("probe(x.cpu().numpy())", ValueKind.NDARRAY),
        ("probe(np.zeros(3).sum())", ValueKind.NDARRAY),
        ("probe(x.max(dim=1)[0])", ValueKind.TENSOR),
        ("values, index = x.topk(3)\nprobe(index)", ValueKind.TENSOR),
        ("a, b = x.shape\nprobe(b)", ValueKind.NUMBER),
        ("probe(x.chunk(2)[0])", ValueKind.TENSOR),
        ("probe([y * 2 for y in x.unbind()][0])", ValueKind.TENSOR),
        ("probe(F.relu(other))", ValueKind.TENSOR),
        ("if isinstance(x, np.ndarray):\n    probe(x)", ValueKind.NDARRAY),
        ("if not isinstance(x, torch.Tensor):\n    probe(x)", ValueKind.UNKNOWN),
        ("if n > 1:\n    x = foo(x)\nelse:\n    x = 3\nprobe(x)", ValueKind.UNKNOWN),
        ("x = x.tolist()\nprobe(x)", ValueKind.LIST),
        ("for i in range(3):\n    n = n + x.sum()\nprobe(n)", ValueKind.TENSOR),
        ("while (y := x.sum()) is not None:\n    probe(y)", ValueKind.TENSOR),
        ("try:\n    y = x\nexcept ValueError:\n    y = None\nprobe(y)", ValueKind.TENSOR),
        ("del x\nprobe(x)", ValueKind.UNKNOWN),
        ("probe(x.no_such_method())", ValueKind.UNKNOWN),
        ("probe(self.undefined)", ValueKind.UNKNOWN),
        ("probe(nn.Linear(3, 3)(x))", ValueKind.TENSOR),
        ("probe({'a': x}['a'])", ValueKind.TENSOR),
        ("probe(lambda: x)", ValueKind.FUNCTION),
    ],
)
def test_kinds_in_forward(body: str, kind: ValueKind) -> None:
    assert probe(in_forward(body)).kind is kind


@pytest.mark.parametrize(
    ("body", "device"),
    [
        ("probe(torch.zeros(3))", "cpu"),
        ("probe(t.zeros(3, device='cuda:1'))", "cuda"),
        ("probe(torch.zeros(3).cuda() + torch.ones(1))", "cuda"),
        ("d = torch.device('cuda' if torch.cuda.is_available() else 'cpu')\nprobe(torch.zeros(3).to(d))", "cuda"),
        ("probe(torch.zeros(3).to(torch.float16))", "cpu"),
        ("x = make().cuda()\nx = x.unsqueeze(0).cpu()\nprobe(x)", "cpu"),
        ("for x, y in tqdm(Loader(data)):\n    probe(x)", "cpu"),
        ("for i, (x, y) in enumerate(loader):\n    y = y.to('cuda')\n    probe(y)", "cuda"),
        ("probe(torch.zeros(3).to(something))", None),
        ("x = torch.rand(3)\nif flag:\n    x = x.cuda()\nprobe(x)", None),
    ],
)
def test_the_device_of_a_value_is_followed(body: str, device: str | None) -> None:
    value = probe(body)
    assert (value.kind, value.device) == (ValueKind.TENSOR, device)


def test_graphs_end_at_detach_and_under_no_grad() -> None:
    loop = "for x, y in loader:\n    loss = criterion(model(x), y)\n    probe({})\n"
    assert probe(loop.format("loss")).graph is True
    assert probe(loop.format("loss.detach()")).graph is False
    assert probe(loop.format("model(x).argmax(1)")).graph is False
    assert probe("with torch.no_grad():\n" + textwrap.indent(loop.format("loss"), "    ")).graph is False


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("BertForMaskedLM.from_pretrained('x')", ValueKind.MODULE),
        ("AutoModel.from_pretrained('x')", ValueKind.MODULE),
        ("AutoTokenizer.from_pretrained('x')", ValueKind.UNKNOWN),
        ("trainer.get_train_dataloader()", ValueKind.DATALOADER),
    ],
)
def test_names_tell_what_libraries_return(text: str, kind: ValueKind) -> None:
    imports = "from transformers import AutoModel, AutoTokenizer, BertForMaskedLM\n"
    assert probe(f"{imports}probe({text})").kind is kind


def test_batches_of_a_loader_that_others_have_wrapped_may_have_been_moved() -> None:
    value = probe("loader = accelerator.prepare(Loader(data))\nfor x in loader:\n    probe(x)")
    assert (value.kind, value.device, value.batch) == (ValueKind.UNKNOWN, None, True)


def test_helpers_are_entered_with_what_they_are_passed() -> None:
    body = """
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = nn.Linear(3, 3)
            self.scale = 2.0

        def forward(self, x):
            return self.helper(self.fc(x), x.shape[0])

        def helper(self, h, n):
            probe(ARGUMENT)
            return h
    """
    assert probe(body.replace("ARGUMENT", "h")).kind is ValueKind.TENSOR
    assert probe(body.replace("ARGUMENT", "n")).kind is ValueKind.NUMBER
    assert probe(body.replace("ARGUMENT", "self.scale")).kind is ValueKind.NUMBER
    assert probe(body.replace("ARGUMENT", "self.fc")).qualified == "torch.nn.Linear"
    assert "parameter of helper" in probe(body.replace("ARGUMENT", "h")).why


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("t.relu", "torch.relu"),
        ("F.relu", "torch.nn.functional.relu"),
        ("Loader", "torch.utils.data.DataLoader"),
        ("print", "print"),
        ("torch.ones(3).sum", "torch.Tensor.sum"),
        ("nn.Linear(3, 3).eval", "torch.nn.Module.eval"),
        ("torch.optim.SGD([], 1).zero_grad", "torch.optim.Optimizer.zero_grad"),
        ("Loader(data).__iter__", "torch.utils.data.DataLoader.__iter__"),
        ("unknown.relu", None),
        ("np.ones(3).item", "numpy.ndarray.item"),
    ],
)
def test_names_are_resolved_to_qualified_names(text: str, name: str | None) -> None:
    source = parse(f"probe({text})")
    call = next(n for n in source.nodes(ast.Call) if isinstance(n.func, ast.Name) and n.func.id == "probe")
    assert source.qualified(call.args[0]) == name


def test_local_names_hide_imports() -> None:
    source = parse("def f(torch):\n    return torch.jit\n\ndef g():\n    import torch.nn as nn2\n    return nn2.ReLU\n")
    names = {ast.unparse(n): source.qualified(n) for n in source.nodes(ast.Attribute)}
    assert names == {"torch.jit": None, "nn2.ReLU": "torch.nn.ReLU"}


@pytest.mark.parametrize(
    "body",
    [
        in_forward("probe()"),
        in_forward("if mask is not None:\n    return mask\nprobe()"),
        in_forward("if x.size(1) >= 9:\n    return y\nprobe()"),
        "for x in loader:\n    probe()",
        "for i in range(9):\n    loss.backward()\n    probe()",
        "for x in logger.log_every(loader, 50):\n    probe()",
        "def step():\n    probe()\n\nfor x in loader:\n    step()",
        "for i, x in enumerate(loader):\n    if i % 2 != 0:\n        probe()",
        "class Net(Base):\n    def training_step(self, batch):\n        probe()",
    ],
)
def test_code_that_runs_in_each_step_is_hot(body: str) -> None:
    assert is_hot(body)


@pytest.mark.parametrize(
    "body",
    [
        "probe()",
        "class Net(nn.Module):\n    def __init__(self):\n        probe()",
        "for epoch in range(9):\n    for x in loader:\n        loss.backward()\n    probe()",
        "for i, x in enumerate(loader):\n    if i % 100 == 0 and x:\n        probe()",
        "for i, x in enumerate(loader):\n    if i % 100:\n        continue\n    probe()",
        "for x in loader:\n    if stop:\n        probe()\n        break",
        "for x in loader:\n    try:\n        run(x)\n    except ValueError:\n        probe()",
        "for _ in range(n_warmup):\n    model(x)\n    probe()",
        in_forward("if torch.jit.is_scripting():\n    probe()"),
        in_forward("if not torch.jit.is_tracing():\n    return x\nelse:\n    probe()"),
        in_forward("if n > 3:\n    raise ValueError(probe())"),
        in_forward("if self.cache is None:\n    self.cache = probe()"),
        in_forward("if self.verbose:\n    probe()"),
        in_forward(
            "if n == self.n and self.table is not None:\n    return self.table\nself.n = n\nself.table = probe()"
        ),
        in_forward("if table is not None:\n    if table.size(1) >= n:\n        return table\nprobe()"),
        "class Data(torch.utils.data.Dataset):\n    def __getitem__(self, i):\n        probe()",
    ],
)
def test_code_that_runs_rarely_is_not_hot(body: str) -> None:
    assert not is_hot(body)


def test_configured_functions_are_hot() -> None:
    body = "class Model:\n    def decode(self):\n        probe()\n"
    assert not is_hot(body)
    assert is_hot(body, hot=("decode",))
    assert is_hot(body, hot=("package.Model.decode",))


def test_places_count_characters() -> None:
    source = Source.parse("s = 'ü'; torch = probe(1)\n")
    (call,) = source.nodes(ast.Call)
    assert source.place(call).column == 18


@pytest.mark.parametrize(
    "text",
    [
        "",
        "# torch\n",
        "torch\n" + "x = " + "+".join(["1"] * 400),
        "import torch\ndef f(a):\n    return f(f(a))\nf(f(1))\n",
        "import torch\nclass A(A):\n    def forward(self, x):\n        return self.forward(self.forward(x))\n",
        "import torch\nclass A(B): pass\nclass B(A):\n    x = y = self.x\n",
        "import torch\nwhile True:\n    x = x.y = [x for x in x][x:x]\n",
        "import torch\nmatch torch:\n    case {'a': [x, *y], **z} if x: pass\n    case torch.A(b=c) | None: pass\n",
        "import torch\n(lambda *a, b=1, **c: (yield a))(*torch, **torch)\nasync def f():\n"
        "    async for x in y: await x\n",
        "import torch\nglobal x\nx: int\n[x, *y] = a, b[1:2, ...] = torch\ndel x, y[0], z.a\n",
    ],
)
def test_odd_code_is_read(text: str) -> None:
    source = Source.parse(text)
    for node in ast.walk(source.tree):
        if isinstance(node, ast.expr):
            source.value(node)
            source.hot(node)


VALUES = st.builds(
    Value,
    kind=st.sampled_from(list(ValueKind)),
    device=st.sampled_from([None, "cpu", "cuda"]),
    graph=st.sampled_from([None, True, False]),
    certain=st.booleans(),
    optional=st.booleans(),
)


@given(VALUES, VALUES)
def test_joins_do_not_depend_on_the_order(left: Value, right: Value) -> None:
    assert join(left, right) == join(right, left)


@given(VALUES)
def test_joining_with_itself_changes_nothing(value: Value) -> None:
    assert join(value, value) == value
