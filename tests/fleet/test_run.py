"""The driver, on a cluster that answers from a script: what is kept, what is tried again, what is refused."""

from __future__ import annotations

import contextlib
import io
import json
import sys
import zipfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from togi.cli.app import run
from togi.core.errors import FleetError
from togi.fleet import node as on_node
from togi.fleet.answer import Fleet
from togi.fleet.cluster import Cluster, ClusterNode, Lost, connect
from togi.fleet.run import ATTEMPTS, check_versions, run_fleet
from togi.render.fleet_text import fleet_text

PRICES = 'currency = "USD"\n[per_hour]\nsmall = 1.0\nlarge = 10.0\n'


def node(id: str, kind: str) -> ClusterNode:
    return ClusterNode(id=id, kind=kind, address="10.0.0.1", cpus=4, gpus=0)


def packed(ms: float = 4.0, exit_code: int = 0, **files: str) -> bytes:
    study = {
        "machine": {"cpu_model": "a CPU", "gpu": None, "threads": 4},
        "trials": [
            {"chosen": False, "latency_ms": None, "recipe": {"label": "no_grad"}},
            {
                "chosen": True,
                "recipe": {"label": "openvino"},
                "latency_ms": {"median": ms, "low": ms * 0.99, "high": ms * 1.01},
            },
        ],
        "verdict": "openvino is faster",
    }
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w") as written:
        written.writestr("exit_code", str(exit_code))
        for name, text in {"study.json": json.dumps(study), "model.togi/manifest.json": "{}", **files}.items():
            written.writestr(name, text)
    return archive.getvalue()


class ScriptedTask:
    """Equal to no other, as references of Ray are."""

    def __init__(self, comes_to: bytes | Lost) -> None:
        self.comes_to = comes_to


class ScriptedCluster:
    """``script``: what each study on a node of an id comes to, one after the other."""

    def __init__(self, nodes: Sequence[ClusterNode], script: dict[str, list[bytes | Lost]]) -> None:
        self._nodes, self._script = list(nodes), script
        self.started: list[str] = []

    def nodes(self) -> list[ClusterNode]:
        return self._nodes

    def start(self, node: ClusterNode, function: Callable[..., bytes], *arguments: Any, alone: bool) -> Any:
        if function is on_node.versions:
            assert not alone
            return ScriptedTask(function(*arguments))
        assert alone
        self.started.append(node.id)
        return ScriptedTask(self._script[node.id].pop(0))

    def first(self, tasks: Sequence[Any]) -> Any:
        return tasks[0]

    def answer(self, task: Any) -> bytes:
        if isinstance(task.comes_to, Lost):
            raise task.comes_to
        return bytes(task.comes_to)


@pytest.fixture
def subject(tmp_path: Path) -> Path:
    (tmp_path / "m").mkdir()
    (tmp_path / "m" / "model.py").write_text("def subject(): ...\n", encoding="utf-8")
    (tmp_path / "m" / "prices.toml").write_text(PRICES, encoding="utf-8")
    return tmp_path / "m" / "model.py"


def fleet(subject: Path, cluster: Cluster | None, *options: str, force: bool = False, said: Any = None) -> Fleet:
    @contextlib.contextmanager
    def given() -> Iterator[Cluster]:
        assert cluster is not None, "everything is finished, so no cluster is needed"
        yield cluster

    connected: Callable[[], AbstractContextManager[Cluster]] = given
    out = subject.parent / "out"
    say = said.append if said is not None else lambda _: None
    prices = subject.parent / "prices.toml"
    return run_fleet(f"{subject}:subject", prices, options, connect=connected, out=out, force=force, say=say)


def test_each_kind_is_studied_once_and_kept(subject: Path) -> None:
    cluster = ScriptedCluster([node("s", "small"), node("l", "large")], {"s": [packed(4.0)], "l": [packed(1.0)]})
    found = fleet(subject, cluster)
    assert found.cheapest == "small"
    assert [kind.state for kind in found.kinds] == ["ok", "ok"]
    assert (subject.parent / "out/small/model.togi/manifest.json").exists()
    assert fleet(subject, None) == found
    (subject.parent / "prices.toml").write_text(PRICES.replace("1.0", "100.0"), encoding="utf-8")
    assert fleet(subject, None).cheapest == "large"

    with_table = Console(width=100, record=True, file=io.StringIO())
    with_table.print(fleet_text(found))
    text = with_table.export_text()
    assert "small costs least: 1.11 USD (1.10-1.12) for a million calls" in text
    assert "large instead of small: 0.000556 USD" in text


def test_a_lost_node_is_replaced_by_another_of_its_kind(subject: Path) -> None:
    said: list[str] = []
    nodes = [node("s1", "small"), node("s2", "small"), node("l", "large")]
    cluster = ScriptedCluster(nodes, {"s1": [Lost("node died")], "s2": [packed()], "l": [packed()]})
    assert [kind.state for kind in fleet(subject, cluster, said=said).kinds] == ["ok", "ok"]
    assert sorted(cluster.started) == ["l", "s1", "s2"]
    assert "small: 10.0.0.1 (s1) was lost: node died" in said


def test_what_stays_lost_or_fails_is_named_and_tried_by_the_next_run(subject: Path) -> None:
    lost = [Lost("worker died")] * ATTEMPTS
    failing = packed(exit_code=2, **{"messages.txt": "loading\ntogi: model.py needs timm\n"})
    cluster = ScriptedCluster([node("s", "small"), node("l", "large")], {"s": [*lost], "l": [failing]})
    small, large = fleet(subject, cluster).kinds
    assert (small.state, large.state) == ("lost", "failed")
    assert cluster.started.count("s") == ATTEMPTS
    assert "worker died" in small.reason
    assert "togi: model.py needs timm" in large.reason

    again = ScriptedCluster([node("s", "small")], {"s": [packed()]})
    small, large = fleet(subject, again).kinds
    assert (small.state, large.state) == ("ok", "lost")
    assert large.reason == "no node of the kind is in the cluster"


def test_an_answer_that_is_not_a_study_is_refused_and_leaves_no_file_outside(subject: Path) -> None:
    outside = packed(**{"../../escaped": "x"})
    cluster = ScriptedCluster([node("s", "small"), node("l", "large")], {"s": [b"\x80\x04N."], "l": [outside]})
    small, large = fleet(subject, cluster).kinds
    assert (small.state, large.state) == ("failed", "ok")
    assert "no study in its answer: File is not a zip file" in small.reason
    assert [file.parent.name for file in subject.parent.parent.rglob("escaped")] == ["large"]


def test_another_subject_or_other_options_are_not_mixed_with_finished_studies(subject: Path) -> None:
    nodes = [node("s", "small"), node("l", "large")]
    fleet(subject, ScriptedCluster(nodes, {"s": [packed()], "l": [packed()]}), "--seed=0")
    with pytest.raises(FleetError, match="options '--seed=0', where these are '--seed=1'"):
        fleet(subject, None, "--seed=1")
    (subject.parent / "notes.txt").write_text("came later", encoding="utf-8")
    fleet(subject, None, "--seed=0")
    subject.write_text("def subject(): return None\n", encoding="utf-8")
    with pytest.raises(FleetError, match=r"since then model\.py changed"):
        fleet(subject, None, "--seed=0")
    anew = ScriptedCluster(nodes, {"s": [packed()], "l": [packed()]})
    fleet(subject, anew, "--seed=0", force=True)
    assert sorted(anew.started) == ["l", "s"]


def test_a_folder_of_something_else_is_left_alone(subject: Path) -> None:
    precious = subject.parent / "out" / "thesis.txt"
    precious.parent.mkdir()
    precious.write_text("years of work", encoding="utf-8")
    with pytest.raises(FleetError, match="holds no studies of a fleet"):
        fleet(subject, None, force=True)
    assert precious.exists()


@pytest.mark.parametrize("force", [False, True])
def test_a_folder_that_holds_a_request_of_something_else_is_left_alone(force: bool, subject: Path) -> None:
    out = subject.parent / "out"
    out.mkdir()
    (out / "request.json").write_text('{"url": "https://example.org"}', encoding="utf-8")
    (out / "thesis.txt").write_text("years of work", encoding="utf-8")
    with pytest.raises(FleetError, match=r"request") as error:
        fleet(subject, None, force=force)
    assert "--force" not in str(error.value)
    assert sorted(path.name for path in out.iterdir()) == ["request.json", "thesis.txt"]


def test_what_somebody_put_next_to_studies_is_not_removed_with_them(subject: Path) -> None:
    nodes = [node("s", "small"), node("l", "large")]
    fleet(subject, ScriptedCluster(nodes, {"s": [packed()], "l": [packed()]}), "--seed=0")
    out = subject.parent / "out"
    (out / ".small.abcd1234").mkdir()  # of a driver that was killed
    (out / "thesis.txt").write_text("years of work", encoding="utf-8")
    fleet(subject, None, "--seed=0")
    with pytest.raises(FleetError, match=r"the options .* Give another --out$"):
        fleet(subject, None, "--seed=1")
    with pytest.raises(FleetError, match=r"it holds thesis\.txt, which togi did not put there"):
        fleet(subject, None, "--seed=1", force=True)
    (out / "thesis.txt").unlink()
    with pytest.raises(FleetError, match=r"or --force to begin anew$"):
        fleet(subject, None, "--seed=1")
    fleet(subject, ScriptedCluster(nodes, {"s": [packed()], "l": [packed()]}), "--seed=1", force=True)


def test_kinds_and_prices_that_do_not_match(subject: Path) -> None:
    with pytest.raises(FleetError, match=r"none for the kind 'smal' of 10\.0\.0\.1 \(s\); did you mean 'small'\?"):
        fleet(subject, ScriptedCluster([node("s", "smal")], {}))
    with pytest.raises(FleetError, match="no node of the cluster has a kind: start it with 'ray start --labels"):
        fleet(subject, ScriptedCluster([], {}))


def test_other_versions_are_said_for_each_node() -> None:
    mine = {"togi": "1.2", "torch": "2.15.0+cpu"}
    check_versions(mine, {"a": {"togi": "1.2", "torch": "2.15.0+cu128"}})
    with pytest.raises(FleetError) as error:
        check_versions(mine, {"a": {"togi": "1.2", "torch": "2.9.1"}, "b": {"togi": None, "torch": "2.15.0"}})
    assert "a has torch 2.9.1; b has togi not at all" in str(error.value)


def test_without_the_extra_and_with_an_address_of_the_client(
    monkeypatch: pytest.MonkeyPatch, subject: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    prices = subject.parent / "prices.toml"
    prices.write_text('currency = "USD"\n[per_hour]\nlocal = 1\n', encoding="utf-8")
    monkeypatch.chdir(subject.parent)
    assert run(["fleet", "model.py:subject", "--cluster", "local", "--prices", "prices.toml"]) == 2
    assert "pip install 'togi[ray]'" in capsys.readouterr().err
    with pytest.raises(FleetError, match="unpickles what the cluster sends"), connect("ray://host:10001"):
        pass


def bomb() -> bytes:
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("exit_code", "0")
        archive.writestr("study.json", "0" * 10_000_000)
    return made.getvalue()


STUDY = '{"machine": {"cpu_model": "a", "gpu": null, "threads": 1}, "verdict": "", "trials": %s}'
HOSTILE = {
    "a name too long": packed(**{"x" * 5000: ""}),
    "a file as a folder": packed(**{"model.togi": "", "study.json/x": ""}),
    "more than it holds": bomb(),
    "no time": packed(0.0),
    "endless": packed(float("inf")),
    "no number": packed(float("nan")),
    "negative": packed(-1.0),
    "too deep": packed(**{"study.json": "[" * 100_000}),
    "numbers for lists": packed(**{"study.json": STUDY % "7"}),
    "texts for records": packed(**{"study.json": STUDY % '["x"]'}),
    "words that steer": packed(exit_code=2, **{"messages.txt": "\x1b[2J" * 100_000}),
    "without a code": b"PK\x05\x06" + bytes(18),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_an_answer_of_whatever_kind_ends_only_its_own_study(name: str, subject: Path) -> None:
    nodes = [node("s", "small"), node("l", "large")]
    cluster = ScriptedCluster(nodes, {"s": [HOSTILE[name]], "l": [packed()]})
    small, large = fleet(subject, cluster).kinds
    assert (small.state, large.state) == ("failed", "ok"), small
    assert len(small.reason) < 2000
    assert not list((subject.parent / "out").glob(".*"))
