"""What rules advise can be followed: remedies show the real operand, and fixes are offered only where they are safe."""

from __future__ import annotations

import ast
import textwrap

import pytest

from togi.lint.finding import Finding
from togi.lint.fix import apply_fixes
from togi.lint.rule import SourceRule, all_rules
from togi.lint.source.model import Source


def findings(rule: str, text: str) -> list[Finding]:
    checker = all_rules()[rule]
    assert isinstance(checker, SourceRule)
    return list(checker.check(Source.parse("import torch\nfrom torch import nn\n" + textwrap.dedent(text), "train.py")))


@pytest.mark.parametrize(
    ("expression", "remedy"),
    [
        ("torch.log(1 + torch.relu(self.l1(x)))", "write torch.log1p(torch.relu(self.l1(x)))"),
        ("torch.log(a * b + 1.0)", "write torch.log1p(a * b)"),
        ("torch.exp(-x / 2) - 1", "write torch.expm1(-x / 2)"),
    ],
)
def test_the_remedy_of_a_handwritten_log1p_shows_the_operand_that_stands_there(expression: str, remedy: str) -> None:
    (finding,) = findings("handwritten-log1p", f"y = {expression}\n")
    assert finding.remedy == remedy


def test_exp_with_an_output_tensor_is_left_alone() -> None:
    assert findings("handwritten-log1p", "y = torch.exp(x, out=z) - 1\n") == []


TRAINING = """
def train(data):
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for x, y in data:
        loss = nn.functional.mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(loss.item())
"""


def test_a_number_from_a_model_that_is_made_here_and_never_moved_waits_for_no_device() -> None:
    assert findings("scalar-from-tensor", TRAINING) == []


@pytest.mark.parametrize(
    "changed",
    [
        TRAINING.replace("nn.Linear(8, 1))", 'nn.Linear(8, 1)).to("cuda")'),
        TRAINING.replace("nn.Linear(8, 1))", "nn.Linear(8, 1)).cuda()"),
        TRAINING.replace("nn.Linear(8, 8)", "nn.Linear(8, 8, device=where)"),
        TRAINING.replace("    for x", "    move(model)\n    for x"),
        TRAINING.replace("    for x", "    model, optimizer = fabric.setup(model, optimizer)\n    for x"),
        TRAINING.replace("def train(data):\n    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 1))",
                         "def train(model, data):"),
        'torch.set_default_device("cuda")\n' + TRAINING,
    ],
    ids=["to", "cuda", "device", "handed on", "set up by a library", "given", "default device"],
)  # fmt: skip
def test_a_number_from_a_model_that_may_lie_on_a_device_is_reported(changed: str) -> None:
    assert len(findings("scalar-from-tensor", changed)) == 1


def test_a_model_whose_class_moves_itself_may_lie_on_a_device() -> None:
    own = """
        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self.layer = nn.Linear(8, 1)
                self.cuda()

            def forward(self, x):
                return self.layer(x)
        """
    script = TRAINING.replace("nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 1))", "Net()")
    assert len(findings("scalar-from-tensor", textwrap.dedent(own) + script)) == 1
    assert findings("scalar-from-tensor", textwrap.dedent(own).replace("        self.cuda()\n", "") + script) == []


@pytest.mark.parametrize(
    ("move", "fixed"),
    [("x.cuda()", True), ('x.to("cuda")', True), ("x.to(device)", False), ("x.to(self.place)", False)],
)
def test_a_copy_is_made_asynchronous_only_where_it_is_seen_to_go_to_the_gpu(move: str, fixed: bool) -> None:
    (finding,) = findings(
        "blocking-transfer", f"def train(model, loader, device):\n    for x in loader:\n        model({move})\n"
    )
    assert (finding.fix is not None) is fixed
    assert ("only where this goes to a CUDA device" in finding.remedy) is not fixed


def test_the_device_that_is_cuda_if_there_is_one_counts_as_the_gpu() -> None:
    text = """
        device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        for x in loader:
            model(x.to(device))
        """
    (finding,) = findings("blocking-transfer", text)
    assert finding.fix is not None
    assert (
        "x.to(device, non_blocking=True)"
        in apply_fixes("import torch\nfrom torch import nn\n" + textwrap.dedent(text), [finding.fix])[0]
    )


def test_what_is_to_be_detached_stands_in_parentheses_where_it_is_an_operation() -> None:
    text = """
        def train(model, loader, criterion):
            total = 0
            for x, y in loader:
                loss = criterion(model(x), y)
                loss.backward()
                total += loss / 3
        """
    (finding,) = findings("loss-kept-with-graph", text)
    assert finding.remedy == "keep (loss / 3).detach()"


def test_a_loader_whose_batches_are_not_seen_to_move_is_not_pinned_without_asking() -> None:
    single = """
        from torch.utils.data import DataLoader
        loader = DataLoader(data, batch_size=8)
        for x in loader:
            model(x.cuda())
        """
    (alone,) = findings("dataloader-without-pinning", single)
    assert alone.fix is not None
    assert alone.fix.safe
    second = textwrap.dedent(single) + "others = DataLoader(on_gpu)\n"
    assert [finding.fix.safe for finding in findings("dataloader-without-pinning", second) if finding.fix] == [
        True,
        False,
    ]


@pytest.mark.parametrize(
    ("imported", "call", "fixed"),
    [
        ("import torch", "torch.tensor(np.zeros(3))", "torch.tensor(np.zeros(3), dtype=torch.float32)"),
        ("import torch as th", "th.tensor(np.zeros(3))", "th.tensor(np.zeros(3), dtype=th.float32)"),
        ("from torch import as_tensor", "as_tensor(np.zeros(3))", "as_tensor(np.zeros(3)).float()"),
    ],
)
def test_the_fix_of_a_float64_tensor_spells_torch_as_the_file_does(imported: str, call: str, fixed: str) -> None:
    rule, before = all_rules()["float64-by-accident"], f"import numpy as np\n{imported}\nx = "
    assert isinstance(rule, SourceRule)
    source = Source.parse(f"{before}{call}\n", "train.py")
    (finding,) = rule.check(source)
    assert finding.fix is not None
    assert apply_fixes(source.text, [finding.fix])[0] == f"{before}{fixed}\n"


def test_mixed_precision_is_mended_at_once_for_all_uses_of_an_import(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither the text nor the import is gone through again for each use: thousands of uses would take minutes."""
    divided: list[str] = []

    class Text(str):
        def split(self, *separator: str) -> list[str]:  # type: ignore[override]
            divided.append(self)
            return super().split(*separator)

    monkeypatch.delattr(ast, "get_source_segment")
    before = "from torch.cuda.amp import autocast\n" + "with autocast(enabled, torch.bfloat16):\n    f()\n" * 9
    rule, source = all_rules()["deprecated-amp"], Source.parse(Text(before), "train.py")
    assert isinstance(rule, SourceRule)
    found = list(rule.check(source))
    assert len(found) == 9
    (fix,) = {id(finding.fix): finding.fix for finding in found}.values()
    assert fix is not None
    after = before.replace("torch.cuda.amp", "torch.amp").replace("(enabled, ", '("cuda", enabled=enabled, dtype=')
    assert apply_fixes(before, [fix])[0] == after
    assert len(divided) == 1
