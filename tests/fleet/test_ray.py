"""On a real cluster of Ray: four nodes on this machine, a head without processors and three with a kind."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

SUBJECT = """
import torch
from torch import nn

def subject():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(32, 32), nn.ReLU()), torch.rand(4, 32)
"""
OPTIONS = "--effort quick --time-limit 60s --only no_grad".split()
WAIT_S = 120.0


class Nodes(NamedTuple):
    cluster: Any
    environment: dict[str, str]
    home: Path


@pytest.fixture(scope="module")
def nodes() -> Iterator[Nodes]:
    """Kinds that differ in threads and instructions: one node is ``wide``, two are ``narrow``."""
    home = Path(tempfile.mkdtemp(prefix="togi-"))  # not tmp_path: the path of a socket is short
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_AUTH_MODE", "token")
        patch.setenv("RAY_AUTH_TOKEN", secrets.token_hex(32))
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        patch.setenv("RAY_TMPDIR", str(home))
        patch.setenv("TOGI_HOME", str(home / "togi"))
        patch.setenv("PYTHONPATH", os.pathsep.join(filter(None, sys.path)))
        from ray.cluster_utils import Cluster

        head = {"num_cpus": 0, "include_dashboard": False}
        cluster = Cluster(initialize_head=True, head_node_args=head, shutdown_at_exit=False)
        try:
            narrow = {"OMP_NUM_THREADS": "1", "ONEDNN_MAX_CPU_ISA": "AVX2", "ATEN_CPU_CAPABILITY": "avx2"}
            cluster.add_node(wait=False, num_cpus=2, labels={"togi-kind": "wide"}, env_vars={"OMP_NUM_THREADS": "2"})
            cluster.add_node(wait=False, num_cpus=1, labels={"togi-kind": "narrow"}, env_vars=narrow)
            cluster.add_node(wait=False, num_cpus=1, resources={"togi-kind:narrow": 1}, env_vars=narrow)
            cluster.wait_for_nodes()
            yield Nodes(cluster, dict(os.environ), home)
        finally:
            cluster.shutdown()
            wait_until(lambda: shutil.rmtree(home, ignore_errors=True) or not home.exists())  # Ray's last processes log


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "model.py").write_text(SUBJECT, encoding="utf-8")
    prices = 'currency = "USD"\n[per_hour]\nwide = 1000\nnarrow = 0.01\n'
    (tmp_path / "prices.toml").write_text(prices, encoding="utf-8")
    return tmp_path


def driver(nodes: Nodes, folder: Path, **environment: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "togi", "fleet", "model.py:subject", "--prices", "prices.toml", "--json"]
    return subprocess.Popen(
        [*command, "--cluster", nodes.cluster.address, *OPTIONS],
        cwd=folder,
        env={**nodes.environment, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def studied_on(process: subprocess.Popen[str], kind: str) -> str:
    """The first digits of the id of the node on which the driver says that it studies ``kind``."""
    assert process.stderr is not None
    said = []
    for line in process.stderr:
        said.append(line)
        if line.startswith(f"{kind}: studied on "):
            return line.rpartition("(")[2].rstrip(")\n")
    raise AssertionError("".join(said))


def wait_until(reached: Callable[[], object]) -> None:
    until = time.monotonic() + WAIT_S
    while not reached():
        assert time.monotonic() < until
        time.sleep(0.05)


def studies_that_run(nodes: Nodes) -> list[str]:
    found = []
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            command = file.read_bytes()
        except OSError:
            continue
        if str(nodes.home / "togi" / "fleet").encode() in command:
            found.append(command.decode())
    return found


@pytest.mark.thorough(20)
def test_the_cheapest_kind_is_found_although_a_node_is_killed(nodes: Nodes, folder: Path) -> None:
    process = driver(nodes, folder)
    id = studied_on(process, "narrow")
    wait_until(lambda: list(nodes.home.glob("togi/fleet/*-narrow/journal.sqlite")))  # it is in the midst
    (killed,) = (node for node in nodes.cluster.worker_nodes if node.node_id.startswith(id))
    nodes.cluster.remove_node(killed, allow_graceful=False)
    out, said = process.communicate(timeout=2 * WAIT_S)

    assert process.returncode == 0, said
    assert f"({id}) was lost" in said
    found = json.loads(out)
    kinds = {kind["kind"]: kind for kind in found["kinds"]}
    assert found["cheapest"] == "narrow"
    assert (kinds["wide"]["threads"], kinds["narrow"]["threads"]) == (2, 1)
    assert kinds["narrow"]["per_million"]["median"] == pytest.approx(
        kinds["narrow"]["latency_ms"]["median"] * 0.01 / 3.6
    )
    narrow = folder / "togi-fleet" / "narrow"
    assert json.loads((narrow / "study.json").read_bytes())["machine"]["onednn_limit"] == "AVX2"
    assert {"journal.sqlite", "messages.txt", "model.togi", "study.json"} == {file.name for file in narrow.iterdir()}
    assert not studies_that_run(nodes)
    assert {file.name for file in nodes.home.glob("togi/fleet/*/*")} == {"journal.sqlite"}


@pytest.mark.thorough(20)
def test_a_killed_driver_leaves_no_study_and_goes_on(nodes: Nodes, folder: Path) -> None:
    first = driver(nodes, folder)
    studied_on(first, "wide")
    wait_until(lambda: studies_that_run(nodes))
    first.kill()
    first.communicate()
    wait_until(lambda: not studies_that_run(nodes))
    second = driver(nodes, folder)
    _, said = second.communicate(timeout=2 * WAIT_S)
    assert second.returncode == 0, said


@pytest.mark.thorough(20)
def test_a_token_is_asked_for_by_default(nodes: Nodes, folder: Path) -> None:
    """Without one anywhere. Ray refuses another token, too, after twenty seconds."""
    bare = {name: value for name, value in nodes.environment.items() if not name.startswith("RAY_AUTH")}
    process = driver(nodes._replace(environment=bare), folder, HOME=str(folder))
    _, said = process.communicate(timeout=WAIT_S)
    assert process.returncode == 2
    assert "togi: no cluster at" in said
    assert "authentication" in said


HOSTILE = r"""
import os, sys, time
import ray
from togi.fleet.cluster import Lost, connect

class Harm:
    def __init__(self, folder):
        self.folder = folder

    def __reduce__(self):
        return os.mkdir, (self.folder,)

def answers(kind, folder):
    if kind == "bytes":
        return b"plain"
    if kind == "error":
        raise ValueError(Harm(folder))
    return Harm(folder)

said = []
with connect(sys.argv[1]) as cluster:
    node = next(node for node in cluster.nodes() if node.kind == "wide")
    for kind in ("bytes", "object", "error"):
        task = cluster.start(node, answers, kind, sys.argv[2], alone=False)
        cluster.first([task])
        try:
            said.append(str(cluster.answer(task)))
        except Lost as lost:
            said.append(str(lost))
    task = cluster.start(node, answers, "error", sys.argv[2], alone=False)
    time.sleep(2)
    del task  # nobody asked for this error: Ray would log it
    time.sleep(1)
    said.append(str(ray.get(cluster.start(node, answers, "object", sys.argv[2] + "_by_ray", alone=False))))
print(*said, sep="\n")
"""


@pytest.mark.thorough(20)
def test_nothing_that_a_node_pickled_is_unpickled(nodes: Nodes, tmp_path: Path) -> None:
    harmed = tmp_path / "harmed"
    done = subprocess.run(
        [sys.executable, "-c", HOSTILE, nodes.cluster.address, str(harmed)],
        env=nodes.environment,
        capture_output=True,
        text=True,
        timeout=WAIT_S,
        check=False,
    )
    assert done.stdout.splitlines() == [
        "b'plain'",
        "it answered with an object that would have to be unpickled, which was refused",
        "Ray says task execution exception",
        "None",
    ], done.stderr
    assert not harmed.exists()
    assert harmed.with_name("harmed_by_ray").exists()  # it would have done harm
