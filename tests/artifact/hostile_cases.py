"""Hostile artifacts, made of good ones: a name for each, and how the folder is changed.

Whoever makes such an artifact knows what is checked: sizes and hashes are made right again afterwards.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import pickle
import random
import shutil
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from togi.artifact.manifest import MANIFEST, document_hash

Change = Callable[[Path], None]
TENSOR = {"kind": "tensor"}
CANARIES = "tests.artifact.canaries"
"""The module of classes that must not run: see there."""


class Boom:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.system, ("touch sprung",)


PICKLES = [pickle.dumps(Boom(), protocol) for protocol in range(6)]


def cases(engine: str, count: int, *, thorough: bool = False) -> Iterator[tuple[str, Change]]:
    """``count``: of each kind that is drawn at random. ``thorough``: every class in every place, and other draws; what
    an artifact of eager is changed into without it is left out."""
    seed = 38 if thorough else 37
    chance = random.Random(f"{engine} {seed}")
    if engine == "eager":
        yield from _more_structures() if thorough else _structures(thorough=False)
        if not thorough:
            yield from _manifests()
            yield from _folders()
            yield from _graphs()
        for number in range(4 * count):
            yield f"manifest {number} of {seed}", _of_document(_drawn_value(chance))
        for number in range(2 * count):
            yield f"graph {number} of {seed}", _graph(_drawn_value(chance))
    yield from _files(engine)
    for number in range(count):
        yield f"bytes {number} of {seed}", _drawn_bytes(chance)


def rewritten(folder: Path, change: Callable[[Any], None]) -> None:
    """The manifest changed, with the hashes of all that lies in the folder."""
    path = folder / MANIFEST
    document = json.loads(path.read_text(encoding="utf-8"))
    document["files"] = [
        {"path": file.relative_to(folder).as_posix(), "bytes": file.stat().st_size, "sha256": _hash(file)}
        for file in sorted(folder.rglob("*"))
        if file.is_file() and not file.is_symlink() and file != path
    ]
    change(document)
    document["sha256"] = document_hash(document)
    path.write_text(json.dumps(document), encoding="utf-8")


def _hash(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


def _of_document(change: Callable[[Any], None]) -> Change:
    return lambda folder: rewritten(folder, change)


# Structures: what an output is made of ---------------------------------------------------------------------------


def _more_structures() -> Iterator[tuple[str, Change]]:
    quick = {name for name, _ in _structures(thorough=False)}
    return (case for case in _structures(thorough=True) if case[0] not in quick)


def _structures(*, thorough: bool) -> Iterator[tuple[str, Change]]:
    kinds = ("namedtuple", "mapping", "dataclass", "object", "tuple", "list")
    loaded = [f"{CANARIES}:{name}" for name in _CANARY_CLASSES]
    library = [
        *("numpy.lib._npyio_impl:NpzFile", "shelve:DbfilenameShelf", "dbm.dumb:_Database", "subprocess:Popen"),
        *(
            "tempfile:_TemporaryFileCloser",
            "tempfile:TemporaryDirectory",
            "zipfile:Path",
            "pathlib:Path",
            "os:_Environ",
        ),
        *("ctypes:CDLL", "torch.hub:Path", "torch.package:PackageImporter", "importlib.metadata:PathDistribution"),
        *("canary_side:Out", "antigravity:Out", "this:Out", "canary_side.inner:Out", "torch.canary_side:Out"),
        *(f"{CANARIES}:missing", f"{CANARIES}:Items.missing", f"{CANARIES}:", ":Items", CANARIES, "builtins:dict"),
        *("builtins:object", f"{CANARIES}:Path", "transformers.canary_side:Out"),
        *("torch:Tensor", "torch.nn:Module", "../canary_side:Out", "canary_side\n:Out", f"{CANARIES}:Items\x00"),
    ]
    for number, name in enumerate([*loaded, *library]):
        for kind in kinds if thorough or name in loaded else (kinds[number % len(kinds)],):
            yield f"outputs {kind} {name!r}", _outputs(_keyed(kind, name))
        if thorough or name in loaded:
            of_factory = _keyed("mapping", "collections:defaultdict") | {"value": f"factory {name}"}
            yield f"factory {name!r}", _outputs(of_factory)
        if thorough or number % 2:
            yield f"class {name!r}", _outputs(_beside({"kind": "class", "type": name}))
        for member in ("ONE", "mro") if thorough or not number % 2 else ():
            yield f"enum {name!r} {member}", _outputs(_beside({"kind": "enum", "type": name, "value": member}))
    for value in ("save", "ops", "hub", "__name__", "float32 ", "", "os.system"):
        yield f"dtype {value!r}", _outputs(_beside({"kind": "dtype", "value": value}))
        yield f"device {value!r}", _outputs(_beside({"kind": "device", "value": value}))
    for context in _CONTEXTS:
        yield f"pytree {context[:60]!r}", _outputs({"kind": "pytree", "children": [TENSOR, TENSOR], "value": context})
    yield (
        "a class inside an object",
        _outputs(_keyed("object", f"{CANARIES}:Plain", {"kind": "class", "type": "os:system"})),
    )
    yield (
        "another package's class",
        _outputs(_keyed("object", f"{CANARIES}:Plain", {"kind": "class", "type": "numpy:memmap"})),
    )
    for depth in (50, 200, 5000):
        yield f"nested {depth}", _nested(depth)
    yield "too many keys", _outputs({"kind": "dict", "keys": ["y", "norm", "z"], "children": [TENSOR, TENSOR]})
    yield "too few tensors", _outputs(TENSOR)


_CANARY_CLASSES = [
    *("Items", "Wrapped", "Plain", "WithProperty", "Fields", "OwnInit", "Deleted", "Restored", "Slotted", "Tuple"),
    *("Member", "OwnLookup", "Registered", "spring", "lazily"),
]


def _context(type_: str, context: str) -> str:
    """As torch writes what it knows of a class with two children."""
    leaf = {"type": None, "context": None, "children_spec": []}
    return json.dumps([1, {"type": type_, "context": context, "children_spec": [leaf, leaf]}])


_FACTORY = '{"default_factory_module": "canary_side", "default_factory_name": "f", "dict_context": ["y", "norm"]}'
_CONTEXTS = [
    *(_context("collections.defaultdict", text) for text in (_FACTORY, "null")),
    *(
        _context("collections.OrderedDict", f'[{{"__enum__": true{named}}}, "norm"]')
        for named in (
            "",
            ', "fqn": "canary_side:Enum", "name": "ONE"',
            f', "fqn": "{CANARIES}:OwnLookup", "name": "TWO"',
        )
    ),
    _context("collections.namedtuple", f'"{CANARIES}.Tuple"'),
    *(_context(type_, "null") for type_ in (f"{CANARIES}.Registered", "torch.Size", "builtins.type")),
    _context("builtins.dict", "[" * 100_000),
    *("", "[]", "null", "[2, {}]", "[1, []]", "[" * 100_000, '[1, {"type": "builtins.dict"}]', "9" * 5000),
]


def _outputs(structure: Any) -> Change:
    return _of_document(lambda document: document["signature"].update(outputs=structure))


def _keyed(kind: str, name: str, more: Any = None) -> Any:
    keys, children = ["y", "norm"], [TENSOR, TENSOR]
    return {
        "kind": kind,
        "type": name,
        "keys": keys if more is None else [*keys, "more"],
        "children": children if more is None else [*children, more],
    }


def _beside(constant: Any) -> Any:
    return {"kind": "tuple", "children": [TENSOR, TENSOR, constant]}


def _nested(depth: int) -> Change:
    def change(folder: Path) -> None:
        rewritten(folder, lambda document: document["signature"].update(outputs="DEEP", sha256=""))
        text = (folder / MANIFEST).read_text(encoding="utf-8")
        deep = '{"kind": "tuple", "children": [' * depth + '{"kind": "tensor"}' + "]}" * depth
        (folder / MANIFEST).write_text(text.replace('"DEEP"', deep), encoding="utf-8")

    return change


# The rest of the manifest, and the folder --------------------------------------------------------------------------


def _manifests() -> Iterator[tuple[str, Change]]:
    def link(**given: Any) -> Change:
        return _of_document(lambda document: document["chain"][0].update(given))

    def runtime(technique: str, **options: Any) -> Change:
        return link(runtime=[{"stage": "runtime", "technique": technique, "options": options}])

    for name in ("..", "../..", "/", "/etc", "eager/../eager", "", ".", "\x00", "eager/", "x" * 5000, "./eager"):
        yield f"folder {name[:20]!r}", link(folder=name)
    for name in ("no_grad", "parts", "canary_side", "os.system", "torchscript", "ncnn", "openvino", "cuda_graph", ""):
        yield f"engine {name!r}", link(engine=name)
    for meta in ({}, {"file": "../../x"}, {"in_place": True}, {"kept": 1}, {"options": None}):
        yield f"meta {meta}", link(meta=meta)
    for count in (10**12, -1, 0, True, 1.5, "1", None, [1], 1024):
        yield f"threads {count}", link(threads=count)
        yield f"count {count}", runtime("threads", count=count)
        yield f"pieces {count}", runtime("split_batch", pieces=count, at_once=True)
    yield "allocator", runtime("allocator", name="canary.so")
    yield "attention", runtime("attention_backend", name="canary", backend="canary")
    yield "unknown runtime", runtime("canary_side", name="x")
    yield "empty chain", _of_document(lambda document: document.update(chain=[]))
    part = {"key": {"path": "body"}, "module": "Body", "effects": {}, "weights": ""}
    for parts in ([part], [part] * 3000, [{**part, "key": {"path": "../x"}}], [{**part, "folder": "../../x"}], 1):
        yield f"parts {str(parts)[:80]}", _of_document(lambda document, parts=parts: document.update(parts=parts))
    yield "long chain", _of_document(lambda document: document.update(chain=document["chain"] * 3000))
    for name in ("save", "ops", "Tensor", "float99", ""):
        yield (
            f"dtype of an output {name!r}",
            _of_document(lambda document, name=name: document["signature"]["outputs_facts"][0].update(dtype=name)),
        )
    for text in ("size(0, 0) <= 9**9**9", "__import__('os')", "size(9, 9) == 1", "size(0, 0) % 0 == 0", "(" * 999):
        yield (
            f"condition {text[:30]!r}",
            _of_document(lambda document, text=text: document["signature"].update(conditions=[text])),
        )


def _folders() -> Iterator[tuple[str, Change]]:
    yield "a pipe", lambda folder: os.mkfifo(folder / "eager" / "model.onnx")
    yield "a pipe for a manifest", lambda folder: ((folder / MANIFEST).unlink(), os.mkfifo(folder / MANIFEST))  # type: ignore[func-returns-value]
    yield "a pipe for a signature", lambda folder: os.mkfifo(folder / "manifest.sig")
    yield "a link out", lambda folder: (folder / "eager" / "x.bin").symlink_to("/etc/passwd")
    yield "a dangling link", lambda folder: (folder / "x.bin").symlink_to("/nowhere/at/all")
    yield "a ring of links", lambda folder: (folder / "ring").symlink_to(folder)
    yield "a device", lambda folder: (folder / "eager" / "x.bin").symlink_to("/dev/zero")

    def linked_folder(folder: Path) -> None:
        shutil.move(folder / "eager", folder.parent / f"{folder.name} elsewhere")
        (folder / "eager").symlink_to(folder.parent / f"{folder.name} elsewhere")

    yield "a linked folder", linked_folder
    for name in ("model.pkl", "model.py", "model.so", "model.pth", "sitecustomize.py", "a\\b.bin", "model.PT2"):

        def added(folder: Path, name: str = name) -> None:
            (folder / "eager" / name).write_bytes(PICKLES[2])
            rewritten(folder, lambda _: None)

        yield f"added {name}", added
    for path in ("../outside.bin", "/etc/passwd", "eager/../../x.bin", "eager//model.pt2", "", ".", "eager\x00.bin"):
        yield f"listed {path!r}", _of_document(lambda document, path=path: document["files"][0].update(path=path))
    yield "listed twice", _of_document(lambda document: document.update(files=document["files"] * 2))


# Files of engines ----------------------------------------------------------------------------------------------------


def _files(engine: str) -> Iterator[tuple[str, Change]]:
    held = [
        b"",
        b"\x00" * 4096,
        b"PK\x05\x06" + b"\x00" * 18,
        b"<?xml version='1.0'?>",
        b"7767517\n9999999 9999999\n",
        *PICKLES,
    ]
    for number, content in enumerate(held):
        yield f"content {number}", _content(engine, lambda _, content=content: content)
    for share in (0.0, 0.1, 0.5, 0.9, 0.999):
        yield f"cut at {share}", _content(engine, lambda old, share=share: old[: int(len(old) * share)])
    yield "behind it a pickle", _content(engine, lambda old: old + PICKLES[2])
    yield "before it a pickle", _content(engine, lambda old: PICKLES[2] + old)
    if engine == "openvino":
        for text in (
            '<!DOCTYPE x [<!ENTITY e SYSTEM "file:///etc/passwd">]><net>&e;</net>',
            "<!DOCTYPE x ["
            + "".join(f'<!ENTITY e{n} "{f"&e{n - 1};" * 20}">' for n in range(1, 20))
            + "]><net>&e19;</net>",
            "<net" + " a" * 10_000 + ">",
            "<net>" * 50_000,
        ):
            yield f"xml {text[:40]!r}", _content(engine, lambda _, text=text: text.encode(), ".xml")
        for wanted, given in (
            (b'size="', b'size="9'),
            (b'offset="', b'offset="9'),
            (b'type="', b'type="Plugin'),
            (b"<dim>", b"<dim>-"),
        ):
            yield f"xml with {given!r}", _content(engine, lambda old, w=wanted, g=given: old.replace(w, g), ".xml")


def _content(engine: str, change: Callable[[bytes], bytes], ending: str = "") -> Change:
    def changed(folder: Path) -> None:
        for file in (folder / engine).iterdir():
            if file.name.endswith(ending):
                file.write_bytes(change(file.read_bytes()))
        rewritten(folder, lambda document: document.update(chain=document["chain"][:1]))

    return changed


def _drawn_bytes(chance: random.Random) -> Change:
    seed = chance.random()

    def changed(folder: Path) -> None:
        drawn = random.Random(seed)
        file = drawn.choice(sorted(file for file in folder.rglob("*") if file.is_file() and file.name != MANIFEST))
        content = bytearray(file.read_bytes())
        for _ in range(drawn.choice((1, 4, 32))):
            content[drawn.randrange(len(content))] = drawn.choice((0, 0x7F, 0xFF, drawn.randrange(256)))
        file.write_bytes(content)
        rewritten(folder, lambda _: None)

    return changed


# The exported graph of an archive ------------------------------------------------------------------------------------

_TARGETS = [
    *("torch.ops.aten.from_file.default", "torch.ops.aten.save.default", "torch.ops.aten.save", "torch.save"),
    *("torch.ops.aten._convert_indices_from_csr_to_coo.default", "torch.ops.aten._sparse_coo_tensor_unsafe.default"),
    *("torch.ops.aten._ctc_loss.default", "torch.ops.aten.set_.source_Storage", "torch.ops.aten.resize_.default"),
    *("torch.ops.aten._reshape_alias.default", "torch.ops.aten._index_put_impl_.default"),
    *("torch.ops.aten.max_pool2d_with_indices_backward.default", "torch.ops.aten.embedding_dense_backward.default"),
    *("torch.ops.mkldnn.data_ptr.default", "torch.ops.quantized.linear.default", "torch.ops.aten._print.default"),
    *("torch.ops.aten.segment_reduce.default", "torch.ops.aten.record_stream.default", "torch.ops.load_library"),
    *("torch.ops.prims.as_strided.default", "torch.ops.canary_side.f.default", "torch.ops.higher_order.print"),
    *("torch.hub.load", "torch.os.system", "_operator.methodcaller", "math.factorial", "torch.jit.load", ""),
    *("torch.ops.aten.linear.default.__class__", "torch.ops.inductor._alloc_from_pool.default", "builtins.eval"),
    *("torch.ops.higher_order.invoke_subgraph", "torch.ops.profiler._record_function_enter.default", "torch._C._jit"),
]
_SIZES = [
    *("9**9**9**9", "Pow(9, Pow(9, 9))", "1 << 99999999", "LShift(1, 10**9)", "((9**64)**64)**64", "2**Symbol('s0')"),
    *("__import__('os').system('touch sprung')", "Symbol('s0) + __import__(\"os\")')", "(lambda: 1)()", "[1][0]"),
    *("Float(1, 999999999)", "1e999", "(" * 5000, "9" * 6000, "Symbol", "open('sprung', 'w')", "s0.__class__", ""),
    *(
        "Function('f')(1)",
        "factorial(99999)",
        "Symbol('s0', evaluate=True)",
        "Integer(open)",
        "Max(" + "s0," * 5000 + ")",
    ),
]


def _graphs() -> Iterator[tuple[str, Change]]:
    for target in _TARGETS:
        yield f"target {target!r}", _graph(lambda model, target=target: _nodes(model)[0].update(target=target))
    for text in _SIZES:
        yield f"size {text[:30]!r}", _graph(lambda model, text=text: _size(model, text))
    for text in ("print(1)", "__import__('os').system('touch sprung')"):
        yield f"guard {text[:20]!r}", _graph(lambda model, text=text: model.update(guards_code=[text]))
        yield f"name {text[:20]!r}", _graph(lambda model, text=text: _nodes(model)[0].update(name=text))
    for number, content in enumerate(PICKLES):
        yield f"sample inputs {number}", _archive({"data/sample_inputs/model.pt": lambda _, c=content: c})
        yield f"weights {number}", _archive({"data/weights/weight_0": lambda _, c=content: c})
    for name in ("extra/run.py", "data/weights/model.pt", "../../escape", "data/aotinductor/model/run.so", "x" * 9000):
        yield f"member {name[:40]!r}", _archive({}, {name: b"x"})
    yield "deep model", _archive({"models/model.json": lambda _: b'{"a":' * 100_000})
    yield "wrong model", _archive({"models/model.json": lambda _: b"[1, 2, 3]"})
    yield "long number", _archive({"models/model.json": lambda _: b'{"a": ' + b"9" * 5000 + b"}"})
    yield "wrong weights", _archive({"data/weights/model_weights_config.json": lambda _: b'{"config": []}'})
    for sizes in ([2**62], [-1], [10**6, 10**6], ["x"], [{"as_int": 2**62}], [{"as_int": 10**30}]):
        yield (
            f"weight of {sizes}",
            _archive({"data/weights/model_weights_config.json": lambda old, s=sizes: _weights(old, sizes=s)}),
        )
    for offset in (2**40, -(2**40), -1):
        yield (
            f"weight at {offset}",
            _archive(
                {
                    "data/weights/model_weights_config.json": lambda old, o=offset: _weights(
                        old, storage_offset={"as_int": o}
                    )
                }
            ),
        )
        yield (
            f"strides of {offset}",
            _archive(
                {
                    "data/weights/model_weights_config.json": lambda old, o=offset: _weights(
                        old, strides=[{"as_int": o}, {"as_int": 1}]
                    )
                }
            ),
        )


def _nodes(model: Any) -> Any:
    return model["graph_module"]["graph"]["nodes"]


def _size(model: Any, text: str) -> None:
    for value in model["graph_module"]["graph"]["tensor_values"].values():
        value["sizes"][0] = {"as_expr": {"expr_str": text, "hint": {"as_int": 3}}}


def _weights(content: bytes, **given: Any) -> bytes:
    document = json.loads(content)
    for meta in document["config"].values():
        meta["tensor_meta"].update(given)
    return json.dumps(document).encode()


def _graph(change: Callable[[Any], None]) -> Change:
    def edited(content: bytes) -> bytes:
        document = json.loads(content)
        change(document)
        return json.dumps(document).encode()

    return _archive({"models/model.json": edited})


def _archive(changes: dict[str, Callable[[bytes], bytes]], added: dict[str, bytes] | None = None) -> Change:
    """The exported program with members changed and others added, under its root."""

    def change(content: bytes) -> bytes:
        made = io.BytesIO()
        with zipfile.ZipFile(io.BytesIO(content)) as source, zipfile.ZipFile(made, "w") as copy:
            root = source.namelist()[0].split("/")[0]
            for member in source.namelist():
                edit = changes.get(member.split("/", 1)[1], lambda old: old)
                copy.writestr(member, edit(source.read(member)))
            for name, extra in (added or {}).items():
                copy.writestr(f"{root}/{name}", extra)
        return made.getvalue()

    return _content("eager", change)


_VALUES: list[Any] = [
    *(None, True, False, 0, -1, 1, 2**31, 2**63, 10**30, 1.5, 1e308, "", "x" * 10_000, "../../x", "/etc/passwd"),
    *("canary_side:Out", f"{CANARIES}:Items", "__import__('os')", "torch.save", "9**9**9", "\x00", "\ud800"),
    *([], {}, [[]], [None] * 100, {"a": 1}, {"as_none": True}, {"as_custom_obj": {}}),
    {"kind": "object", "type": f"{CANARIES}:Plain"},
]


def _drawn_value(chance: random.Random) -> Callable[[Any], None]:
    """One value somewhere in a document is another, or is gone."""
    seed = chance.random()

    def change(document: Any) -> None:
        drawn = random.Random(seed)
        places = list(_places(document))
        for holder, key in drawn.sample(places, min(len(places), drawn.choice((1, 1, 1, 3)))):
            if drawn.random() < 0.1 and isinstance(holder, dict):
                holder.pop(key, None)
            else:
                holder[key] = drawn.choice(_VALUES)

    return change


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    for key, item in value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ():
        yield value, key
        yield from _places(item)
