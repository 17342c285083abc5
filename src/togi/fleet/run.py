"""One study on each kind of machine, kept in a folder as they finish, so that the same command goes on.

The folder holds ``request.json`` (what is studied) and a folder for each finished kind. It appears whole or not at
all; a kind without one is studied. A lost node's study is run again on another node of its kind; on the same machine
it goes on from the journal there.
"""

from __future__ import annotations

import errno
import hashlib
import importlib.metadata
import io
import re
import shutil
import tempfile
import zipfile
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Literal

from packaging.version import InvalidVersion, Version
from pydantic import ValidationError

from togi.core.errors import FleetError, nearest
from togi.core.plain_files import has_fields
from togi.core.quantities import first_line, size
from togi.core.record import Record
from togi.core.version import version
from togi.fleet import node as on_node
from togi.fleet.answer import Fleet, KindAnswer, conclude, read_kind
from togi.fleet.cluster import KIND, Cluster, ClusterNode, Lost, Task
from togi.fleet.prices import Prices, read_prices
from togi.fleet.shipment import Shipment, shipment

LARGEST_ANSWER = 16 * 2**30
"""Bytes of what a node may send."""
MOST_WORDS = 1000
"""Characters of a failed study's last words."""
_DOCUMENT_LIMIT_BYTES = 64 << 20
_PART = re.compile(r"\..+\.\w{8}")
"""Names of folders in which answers are unpacked."""
ATTEMPTS = 3
"""Studies that are started on one kind before it is given up as lost."""
_FINISHED = {b"0", b"1"}
"""Exit codes of ``togi tune`` that mean a whole study."""

Say = Callable[[str], None]


class FleetRequest(Record):
    """The study of each kind; studies of another request are not mixed with these."""

    subject: str
    options: tuple[str, ...]
    """Of ``togi tune``."""
    files: dict[str, str]
    """SHA-256 of each file that was shipped."""

    @property
    def id(self) -> str:
        return hashlib.sha256(self.to_json().encode()).hexdigest()[:16]


def run_fleet(
    subject: str,
    price_file: Path,
    options: Sequence[str],
    *,
    connect: Callable[[], AbstractContextManager[Cluster]],
    out: Path,
    force: bool,
    say: Say,
) -> Fleet:
    """Study ``subject`` on each kind that has a price and no finished study in ``out``.

    Args:
        options: of ``togi tune``, for all of them.
        connect: called where there is something left to study.
        force: begin anew where ``out`` holds studies of something else.
        say: takes a line for each event.

    Raises:
        FleetError, SubjectError: before anything is studied; nothing is lost then.
    """
    prices = read_prices(price_file)
    shipped = shipment(subject, without=(out, price_file))
    request = _opened(out, FleetRequest(subject=subject, options=tuple(options), files=shipped.digests()), force)
    finished = {kind: answer for kind, price in prices.per_hour.items() if (answer := _kept(out / kind, kind, price))}
    for kind in finished:
        say(f"{kind}: the study in {out / kind} is kept")
    if len(finished) < len(prices.per_hour):
        with connect() as cluster:
            finished |= _Drive(cluster, prices, shipped, request, out, say).run(finished)
    return conclude(subject, prices.currency, [finished[kind] for kind in prices.per_hour])


def _opened(out: Path, request: FleetRequest, force: bool) -> FleetRequest:
    """The request of ``out``: an earlier one where it is the same but for files that came later (results, logs)."""
    file = out / "request.json"
    if file.exists() and not force:
        earlier = _read(file)
        if different := _differences(earlier, request):
            raise FleetError(f"{out} holds studies of something else: {different}. Give another --out{_or_force(file)}")
        return earlier
    if out.exists():
        if why := _not_own(file):
            raise FleetError(f"{out} exists and holds no studies of a fleet ({why}): give another --out")
        shutil.rmtree(out)
    part = out.absolute().with_name(f".{out.absolute().name}.part")
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir(parents=True)
    (part / file.name).write_text(request.to_json(), encoding="utf-8")
    part.rename(out)
    return request


def _not_own(file: Path) -> str:
    """The first thing in the folder of a request that no fleet put there, as a clause; empty if there is none."""
    if not file.parent.is_dir():
        return "it is not a folder"
    others = sorted(path for path in file.parent.iterdir() if path != file)
    if (others or file.exists()) and not has_fields(file, tuple(FleetRequest.model_fields), _DOCUMENT_LIMIT_BYTES):
        return f"it has no {file.name} of togi"
    other = next((path.name for path in others if path.is_symlink() or not _is_kind(path)), "")
    return other and f"it holds {other}, which togi did not put there"


def _is_kind(folder: Path) -> bool:
    """A finished study, or an answer that was not unpacked to its end when the driver was killed."""
    return folder.is_dir() and (_PART.fullmatch(folder.name) is not None or (folder / "study.json").is_file())


def _read(file: Path) -> FleetRequest:
    try:
        return FleetRequest.from_json(file.read_bytes())
    except ValidationError as error:
        raise FleetError(
            f"{file} is not a request of this version of togi ({error.errors()[0]['msg']}): give another "
            f"--out{_or_force(file)}"
        ) from None


def _or_force(file: Path) -> str:
    return "" if _not_own(file) else ", or --force to begin anew"


def _differences(earlier: FleetRequest, now: FleetRequest) -> str:
    if earlier.subject != now.subject:
        return f"the subject {earlier.subject}"
    if earlier.options != now.options:
        return f"the options '{' '.join(earlier.options)}', where these are '{' '.join(now.options)}'"
    changed = [name for name, digest in earlier.files.items() if now.files.get(name) != digest]
    return f"since then {', '.join(changed[:5])} changed" if changed else ""


def _kept(folder: Path, kind: str, per_hour: float) -> KindAnswer | None:
    try:
        return read_kind(folder, kind, per_hour) if folder.exists() else None
    except (OSError, ValueError) as error:
        raise FleetError(f"{folder} holds no study ({first_line(error)}): remove it, and it is made again") from None


class _Versions(Record):
    """The answer of ``node.versions``."""

    host: str
    versions: dict[str, str | None]


class _Drive:
    """The studies of a fleet that are not finished, on a cluster."""

    def __init__(
        self, cluster: Cluster, prices: Prices, shipped: Shipment, request: FleetRequest, out: Path, say: Say
    ) -> None:
        self._cluster = cluster
        self._prices = prices
        self._shipped = shipped
        self._packed = shipped.pack()
        self._request = request
        self._out = out
        self._say = say
        self._tried: dict[str, list[str]] = defaultdict(list)
        """By kind: the node of each study that was started."""
        self._running: dict[Task, ClusterNode] = {}

    def run(self, finished: Collection[str]) -> dict[str, KindAnswer]:
        """An answer for each kind that is not ``finished``."""
        nodes = self._cluster.nodes()
        check_kinds(self._prices, nodes, finished)
        kinds = [kind for kind in self._prices.per_hour if kind not in finished]
        check_versions(*self._versions([node for node in nodes if node.kind in kinds]))
        ended = {kind: lost for kind in kinds if (lost := self._start(kind))}
        while self._running:
            task = self._cluster.first(list(self._running))
            node = self._running.pop(task)
            if done := self._ended(node, task):
                ended[node.kind] = done
                ending = f"finished: {done.recipe}" if done.state == "ok" else f"{done.state}: {done.reason}"
                self._say(f"{node.kind}: {ending}")
        return ended

    def _versions(self, nodes: Sequence[ClusterNode]) -> tuple[dict[str, str], dict[str, dict[str, str | None]]]:
        mine = {"togi": version(), "torch": importlib.metadata.version("torch")}
        tasks = [(node, self._cluster.start(node, on_node.versions, list(mine), alone=False)) for node in nodes]
        installed = {}
        for node, task in tasks:
            try:
                answer = _Versions.from_json(self._cluster.answer(task))
            except (Lost, ValueError) as lost:
                self._say(f"{node.kind}: {node} does not answer ({first_line(lost)})")
            else:
                installed[f"{answer.host}, {node} of the kind {node.kind}"] = answer.versions
        return mine, installed

    def _start(self, kind: str, because: str = "no node of the kind is in the cluster") -> KindAnswer | None:
        """Begin the study on the node of the kind that was tried least; an answer where there is none."""
        nodes = [node for node in self._cluster.nodes() if node.kind == kind]
        tried = self._tried[kind]
        if not nodes or len(tried) == ATTEMPTS:
            return self._none(kind, "lost", because)
        node = min(nodes, key=lambda node: tried.count(node.id))
        tried.append(node.id)
        name = f"{self._request.id}-{kind}"
        arguments = (self._packed, self._shipped.locator, name, list(self._request.options))
        self._running[self._cluster.start(node, on_node.study, *arguments, alone=True)] = node
        self._say(f"{kind}: studied on {node}")
        return None

    def _ended(self, node: ClusterNode, task: Task) -> KindAnswer | None:
        """None where the study was started again."""
        try:
            packed = self._cluster.answer(task)
        except Lost as lost:
            self._say(f"{node.kind}: {node} was lost: {lost}")
            return self._start(node.kind, f"{node} was lost: {lost}")
        part = Path(tempfile.mkdtemp(dir=self._out, prefix=f".{node.kind}."))
        try:
            _unpack(packed, part)
            read_kind(part, node.kind, 0.0)
        except Exception as error:  # foreign: whatever the node sent
            shutil.rmtree(part, ignore_errors=True)
            if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EIO):
                raise  # of this machine
            prefix = "" if isinstance(error, FleetError) else "no study in its answer: "
            return self._none(node.kind, "failed", f"{node}: {prefix}{first_line(error)}")
        part.rename(self._out / node.kind)
        return read_kind(self._out / node.kind, node.kind, self._prices.per_hour[node.kind])

    def _none(self, kind: str, state: Literal["failed", "lost"], reason: str) -> KindAnswer:
        return KindAnswer(kind=kind, per_hour=self._prices.per_hour[kind], state=state, reason=reason)


def _unpack(packed: bytes, folder: Path) -> None:
    """Raises FleetError with the last words of a study that failed, and for what a node of togi does not send."""
    if len(packed) > LARGEST_ANSWER:
        raise FleetError(f"its answer has {size(len(packed))}, and at most {size(LARGEST_ANSWER)} are taken")
    with zipfile.ZipFile(io.BytesIO(packed)) as archive:
        # a node stores what it sends, so no file may claim more than there is
        if sum(member.file_size for member in archive.infolist()) > len(packed):
            raise FleetError("its answer claims to hold more than it has")
        if archive.read("exit_code") not in _FINISHED:
            words = archive.read("messages.txt").decode(errors="replace").split("\n")
            last = next((line for line in reversed(words) if line.strip()), "it ended without a word")
            raise FleetError(last[:MOST_WORDS])
        archive.extractall(folder, set(archive.namelist()) - {"exit_code"})  # a name cannot lead out of the folder


def check_kinds(prices: Prices, nodes: Sequence[ClusterNode], finished: Collection[str]) -> None:
    """Raises FleetError where a node's kind has no price, or no node has a kind and none is ``finished``."""
    kinds = sorted({node.kind for node in nodes})
    for kind in kinds:
        if kind not in prices.per_hour:
            raise FleetError(
                f"the prices have none for the kind '{kind}' of {', '.join(str(n) for n in nodes if n.kind == kind)}"
                f"{nearest(kind, prices.per_hour) or '.'} Write it into [per_hour], or leave these nodes without a kind"
            )
    if not kinds and not finished:
        raise FleetError(
            f"no node of the cluster has a kind: start it with 'ray start --labels {KIND}=NAME', where NAME is one of "
            f"the prices ({', '.join(prices.per_hour)})"
        )


def check_versions(mine: Mapping[str, str], nodes: Mapping[str, Mapping[str, str | None]]) -> None:
    """Raises FleetError with each node that has another togi, or another torch but for its build (cpu, cu128)."""
    differences = [
        f"{name} has {package} {installed.get(package) or 'not at all'}"
        for name, installed in nodes.items()
        for package, here in mine.items()
        if _release(installed.get(package)) != _release(here)
    ]
    if differences:
        here = ", ".join(f"{package} {number}" for package, number in mine.items())
        raise FleetError(
            f"nodes have other versions than this machine ({here}), so their studies could not be compared: "
            f"{'; '.join(differences)}. Install the same there, or leave them without a kind"
        )


def _release(number: str | None) -> str | None:
    try:
        return Version(number).public if number else None
    except InvalidVersion:
        return number
