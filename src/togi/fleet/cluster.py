"""Ray, as far as a fleet needs it: nodes by kind, one task on a node, answers that are bytes.

Ray pickles what a task returns, its exceptions included, and ``ray.get`` unpickles it, which runs whatever the node
wrote. So ``ray.get`` is not used here: an answer is read as it lies in the object store, and only bytes are taken.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import secrets
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

from togi.core.errors import FleetError
from togi.core.quantities import first_line
from togi.core.record import Record
from togi.fleet import node as on_node

LOCAL = "local"
"""The cluster that is this machine alone; its one node is of the kind of this name."""
KIND = "togi-kind"
"""``ray start --labels togi-kind=NAME``, or ``--resources '{"togi-kind:NAME": 1}'``."""

Task = Any
"""A reference to what a task will answer."""


class ClusterNode(Record):
    id: str
    kind: str
    address: str
    cpus: float
    gpus: float

    def __str__(self) -> str:
        return f"{self.address} ({self.id[:8]})"


class Lost(Exception):
    """No answer will come from the node. Message: the reason."""


class Cluster(Protocol):
    """A cluster as ``togi.fleet.run`` needs it."""

    def nodes(self) -> list[ClusterNode]:
        """Nodes that are alive and have a kind."""

    def start(self, node: ClusterNode, function: Callable[..., bytes], *arguments: Any, alone: bool) -> Task:
        """Call ``function`` on ``node``; ``alone``: while nothing else of Ray runs there."""

    def first(self, tasks: Sequence[Task]) -> Task:
        """The first that has ended."""

    def answer(self, task: Task) -> bytes:
        """Raises Lost."""


@contextlib.contextmanager
def connect(address: str) -> Iterator[Cluster]:
    """The cluster at ``address`` (``host:port``, ``auto``), or ``local``.

    With Ray's token authentication, unless the user's RAY_AUTH_MODE says otherwise.

    Raises:
        FleetError: there is no Ray here, or no such cluster, or its token is another.
    """
    if address.startswith("ray://"):
        raise FleetError(
            f"{address} is an address of Ray's client, which unpickles what the cluster sends. Start togi fleet on a "
            "machine of the cluster ('ray start --address=HOST:PORT --num-cpus=0' adds this one) with --cluster auto"
        )
    os.environ.setdefault("RAY_AUTH_MODE", "token")
    if address == LOCAL:
        os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))  # for this run alone, in no file
    try:
        ray = importlib.import_module("ray")
    except ImportError:
        raise FleetError("a fleet runs on Ray, which is not installed here: pip install 'togi[ray]'") from None
    own = {"labels": {KIND: LOCAL}, "include_dashboard": False} if address == LOCAL else {}
    with contextlib.redirect_stdout(sys.stderr):  # where Ray says what happens to its nodes
        try:
            ray.init(address=address, log_to_driver=False, logging_level="ERROR", **own)
        except Exception as error:  # foreign code: Ray raises many kinds for a cluster that is not there
            raise FleetError(
                f"no cluster at {address}: {first_line(error)}. A driver needs a node of the cluster on its own "
                "machine ('ray start'), and its token in RAY_AUTH_TOKEN or ~/.ray/auth_token ('ray get-auth-token')"
            ) from error
        try:
            yield _RayCluster(ray)
        finally:
            ray.shutdown()


class _RayCluster:
    def __init__(self, ray: Any) -> None:
        self._ray = ray
        self._worker = ray._private.worker.global_worker
        self._worker.raise_errors = lambda *_: None  # Ray reads exceptions that nobody asked for, to log them
        ray.cloudpickle.register_pickle_by_value(on_node)

    def nodes(self) -> list[ClusterNode]:
        return [
            ClusterNode(
                id=node["NodeID"],
                kind=kind,
                address=node["NodeManagerAddress"],
                cpus=node["Resources"].get("CPU", 0),
                gpus=node["Resources"].get("GPU", 0),
            )
            for node in self._ray.nodes()
            if node["Alive"] and (kind := _kind(node))
        ]

    def start(self, node: ClusterNode, function: Callable[..., bytes], *arguments: Any, alone: bool) -> Task:
        strategy = importlib.import_module("ray.util.scheduling_strategies").NodeAffinitySchedulingStrategy
        remote = self._ray.remote(function).options(
            num_cpus=node.cpus if alone else 0,
            num_gpus=node.gpus if alone else 0,
            max_retries=0,
            scheduling_strategy=strategy(node.id, soft=False),
        )
        return remote.remote(*arguments)

    def first(self, tasks: Sequence[Task]) -> Task:
        (done,), _ = self._ray.wait(list(tasks), num_returns=1)
        return done

    def answer(self, task: Task) -> bytes:
        data, metadata = self._worker.core_worker.get_objects([task], -1)[0][:2]
        kind = metadata.split(b",")[0]
        if kind == self._ray._private.ray_constants.OBJECT_METADATA_TYPE_RAW:
            return b"" if data is None else bytes(data.to_pybytes())
        with contextlib.suppress(ValueError):
            error = importlib.import_module("ray.core.generated.common_pb2").ErrorType.Name(int(kind))
            raise Lost(f"Ray says {error.lower().replace('_', ' ')}")
        raise Lost("it answered with an object that would have to be unpickled, which was refused")


def _kind(node: dict[str, Any]) -> str | None:
    prefix = f"{KIND}:"
    resources = (name.removeprefix(prefix) for name in node["Resources"] if name.startswith(prefix))
    label = node["Labels"].get(KIND)
    return label or next(resources, None)
