"""Classes that a file names, and instances of them that are made without running a line of their code.

Who writes an artifact chooses these names, so they decide as little as possible:

- A name never causes an import. A class comes from a module that this process has imported already. The one exception
  are the modules in which ``_LIBRARIES`` define their models, imported from where packages are installed, so that an
  artifact of such a model loads in a fresh process.
- A class must hold data (``_REFUSALS``). None of the standard library is made but ``collections``' own containers.
- Nothing of a class is called. ``tuple``, ``dict`` or ``object`` makes the instance, and its fields are filled in.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import hashlib
import importlib
import importlib.util
import json
import re
import site
import sys
import sysconfig
from collections import OrderedDict, UserDict, defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from types import MemberDescriptorType, ModuleType
from typing import Any

from togi.core.errors import ArtifactError

_LIBRARIES = re.compile(
    r"transformers\.(modeling_outputs|cache_utils|tokenization_utils_base|feature_extraction_utils)"
    r"|transformers\.models\.\w+\.modeling_\w+"
    r"|(diffusers|torchvision)\.models(\.\w+)+"
)
"""Modules that may be imported on behalf of a file: they define models and what these return, and nothing else."""

_MADE_OF_A_DICT = frozenset(
    {"transformers.tokenization_utils_base:BatchEncoding", "transformers.feature_extraction_utils:BatchFeature"}
)
"""Known classes whose own ``__init__`` is called, with a dict alone: it sets what they keep besides the dict."""

_OF_ITEMS_ALONE = frozenset({"torch:Size"})
"""Tuples of a class of their own that are their items and nothing else, as structures of results are
(``is_struct_sequence``)."""

_CONSTANT_CLASSES = frozenset({bool, int, float, complex, str, bytes, list, tuple, dict, set, frozenset})
"""Of the standard library, those that a value may name as it names a dtype."""


def name_of(cls: type) -> str:
    return f"{cls.__module__}:{cls.__qualname__}"


def find_class(name: str, kind: str) -> type:
    """The class of that name, if it is one that a ``kind`` of structure may have.

    Raises ArtifactError where it is not imported here, or is not such a class.
    """
    if len(name) > 500:
        raise ArtifactError(f"it names a class of {len(name):,} characters: it is damaged")
    module_name, _, qualified = name.partition(":")
    module = _module(module_name, qualified.partition(".")[0])
    named: Any = module
    for part in qualified.split("."):
        inside = object.__getattribute__(named, "__dict__") if isinstance(named, type | ModuleType) else {}
        named = inside.get(part)  # not getattr: a module may import others when it is asked for a name
    if module is not None and named is None:
        raise ArtifactError(f"{name!r} is not defined here: install the version of the package that it was tuned with")
    if module is None:
        raise ArtifactError(
            f"its values are of the class {name!r}, whose module is not imported here. togi imports nothing because a "
            "file names it: import that module before the artifact (with the command line, name the subject too)"
        )
    if not isinstance(named, type) or not _MADE[kind](named) or _refused_library(named, kind):
        raise ArtifactError(f"{name!r} is not a {kind} of plain values: it is not built from a file")
    return named


def _module(name: str, defines: str) -> ModuleType | None:
    """The imported module; for one that togi imported from a file under a name of its own, the program's own import of
    it: of that very file, or, where the file was moved, of the one file of that name that defines the class.

    Raises ArtifactError where several do.
    """
    found = sys.modules.get(name)
    if found is None and _LIBRARIES.fullmatch(name) and _is_installed(name.partition(".")[0]):
        try:
            found = importlib.import_module(name)
        except Exception:  # foreign code: another version of the library has no such module, or lacks what it needs
            return None
    stem = re.fullmatch(r"togi_subject_(.+)_[0-9a-f]{8}", name)
    if found is None and stem is not None:
        modules = [module for module in list(sys.modules.values()) if isinstance(module, ModuleType)]
        named_so = [module for module in modules if Path(getattr(module, "__file__", None) or "").stem == stem[1]]
        candidates = {Path(str(module.__file__)).resolve(): module for module in named_so if defines in vars(module)}
        of_that_file = {file: module for file, module in candidates.items() if name_of_file(file) == name}
        found = _the_only(of_that_file or candidates, defines)
    return found if isinstance(found, ModuleType) else None


def _the_only(candidates: Mapping[Path, ModuleType], defines: str) -> ModuleType | None:
    if len(candidates) > 1:
        files = " and ".join(sorted(map(str, candidates)))
        raise ArtifactError(
            f"the file that defined its {defines!r} is elsewhere now, and {files} both define one: a value of the "
            "wrong class would look right. Load the artifact in a process that imports the one that belongs to it"
        )
    return next(iter(candidates.values()), None)


def name_of_file(path: Path) -> str:
    """The name under which togi imports a file: ``models.py`` must not hide, nor be, another module ``models``."""
    return f"togi_subject_{path.stem}_{hashlib.sha256(str(path).encode()).hexdigest()[:8]}"


def _is_installed(package: str) -> bool:
    """True if the import would find it among the installed packages, not in the working folder."""
    try:
        spec = importlib.util.find_spec(package)
    except (ImportError, ValueError):
        return False
    places = {sysconfig.get_path("purelib"), sysconfig.get_path("platlib"), *site.getsitepackages()}
    places |= {site.getusersitepackages()} if site.ENABLE_USER_SITE else set()
    origin = Path(spec.origin).resolve() if spec is not None and spec.origin else None
    return origin is not None and any(origin.is_relative_to(Path(place).resolve()) for place in places)


def _refused_library(cls: type, kind: str) -> bool:
    """Classes of the standard library work on files and processes; none is an output of a model."""
    if kind in ("enum", "namedtuple") or cls in _CONSTANT_CLASSES:
        return False
    package = cls.__module__.partition(".")[0]
    return package in sys.stdlib_module_names and package != "collections"


@functools.lru_cache(maxsize=4096)
def is_plain(cls: Any) -> bool:
    """Its instances are their attributes and nothing else (no slots, no hooks for creating, copying and deleting), and
    another process finds the class by its name."""
    return (
        "<locals>" not in cls.__qualname__
        and cls.__module__ not in ("__main__", "torch")  # torch's symbol for a size is not an object of the program
        and cls.__dictoffset__ != 0
        and cls.__new__ is object.__new__
        and cls.__reduce_ex__ is object.__reduce_ex__
        and cls.__reduce__ is object.__reduce__
        and getattr(cls, "__getstate__", None) is getattr(object, "__getstate__", None)
        and not hasattr(cls, "__setstate__")
        and not hasattr(cls, "__del__")
        and not any(vars(base).get("__slots__") for base in cls.__mro__)
    )


def is_struct_sequence(cls: Any) -> bool:
    """A tuple of named items that C code defines, as ``torch.topk`` and ``torch.max`` return them: nobody can derive
    from its class, so no line of Python is in it."""
    is_final = not cls.__flags__ & _MAY_BE_DERIVED_FROM
    return is_final and bool(cls.__bases__ == (tuple,)) and hasattr(cls, "n_sequence_fields")


_MAY_BE_DERIVED_FROM = 1 << 10
"""CPython's ``Py_TPFLAGS_BASETYPE``."""


def is_of_items(cls: Any) -> bool:
    """A tuple of a class of its own that its items make again."""
    return issubclass(cls, tuple) and (name_of(cls) in _OF_ITEMS_ALONE or is_struct_sequence(cls))


_MADE: dict[str, Callable[[Any], bool]] = {
    "tuple": is_of_items,
    "list": lambda _: False,
    "namedtuple": lambda cls: issubclass(cls, tuple) and hasattr(cls, "_fields") and not hasattr(cls, "__del__"),
    "mapping": lambda cls: is_mapping(cls) and not hasattr(cls, "__del__"),
    "dataclass": lambda cls: is_data(cls) and not hasattr(cls, "__del__"),
    "object": is_plain,
    "class": lambda cls: isinstance(cls, type),
    "enum": lambda cls: issubclass(cls, enum.Enum),
}
"""What a class must be before a file may have it filled or returned."""


def slots_of(cls: type) -> Iterator[str]:
    """The names under which instances keep what is in slots: Python writes those of a class's own (``__size``) with the
    name of the class."""
    for base in cls.__mro__:
        slots = vars(base).get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            private = name.startswith("__") and not name.endswith("__")
            yield f"_{base.__name__.lstrip('_')}{name}" if private else name


def is_mapping(cls: type) -> bool:
    """A dict of a class of its own, as transformers' ModelOutput is."""
    return issubclass(cls, dict) or (issubclass(cls, UserDict) and cls.__new__ is object.__new__)


def is_data(cls: type) -> bool:
    """A dataclass that Python's own ``object`` makes."""
    return dataclasses.is_dataclass(cls) and cls.__new__ is object.__new__


def data_names(value: Any) -> tuple[str, ...]:
    """All that the instance of a dataclass holds: its fields, and attributes besides them."""
    fields = [field.name for field in dataclasses.fields(value) if hasattr(value, field.name)]
    return (*fields, *(name for name in getattr(value, "__dict__", ()) if name not in fields))


def attributes_beside(value: Mapping[Any, Any]) -> str | None:
    """The relation of the attributes of a dict of its own class to its items: None where a new one has them by
    itself."""
    attributes_held = getattr(value, "__dict__", {})
    if attributes_held is value:
        return "itself"
    if isinstance(value, UserDict):
        is_known = name_of(type(value)) in _MADE_OF_A_DICT or attributes_held.keys() <= {"data"}
    elif dataclasses.is_dataclass(value):  # transformers' ModelOutput keeps None as an attribute alone
        fields = {field.name for field in dataclasses.fields(value)}
        items = {name: item for name, item in attributes_held.items() if item is not None}
        is_known = attributes_held.keys() <= fields and _same_items(items, value)
    elif attributes_held and _same_items(attributes_held, value):
        return "items"
    else:
        is_known = not attributes_held
    return None if is_known else OTHER_ATTRIBUTES


def kept_by_class(value: Any) -> str | None:
    """What a list, a tuple or a dict with a factory keeps that its items do not show, as ``attributes_beside``."""
    if isinstance(value, defaultdict):
        factory: Any = value.default_factory
        if factory is not None:
            is_known = any(factory is cls for cls in _CONSTANT_CLASSES)
            return _FACTORY + name_of(factory) if is_known else OTHER_ATTRIBUTES
    elif isinstance(value, list | tuple) and type(value) not in (list, tuple) and not is_of_items(type(value)):
        is_known = hasattr(value, "_fields") and not getattr(value, "__dict__", None)
        return None if is_known else OTHER_ATTRIBUTES
    return None


def _same_items(attributes: Mapping[str, Any], value: Mapping[Any, Any]) -> bool:
    return attributes.keys() == value.keys() and all(value[name] is item for name, item in attributes.items())


OTHER_ATTRIBUTES = "others"
"""Such a value cannot be built again: what its class would do is not known."""

_FACTORY = "factory "
"""Before the name of the class with which a ``defaultdict`` fills in what is missing."""


def filled(cls: Any, kind: str, named: dict[str, Any], attributes: object = None) -> Any:
    """An instance that holds these. ``attributes``: as ``attributes_beside`` says.

    Raises ArtifactError where the class has other fields.
    """
    match kind:
        case "namedtuple":
            if tuple(named) != tuple(cls._fields):
                raise _other_fields(cls, named)
            return tuple.__new__(cls, named.values())
        case "mapping":
            return _filled_mapping(cls, named, attributes)
        case _:
            instance = object.__new__(cls)
            for name, item in named.items():
                _set(instance, name, item)
            return instance


def _filled_mapping(cls: Any, named: dict[str, Any], attributes: object) -> Any:
    if name_of(cls) in _MADE_OF_A_DICT:
        return cls(dict(named))
    if issubclass(cls, UserDict):
        instance = object.__new__(cls)
        _set(instance, "data", dict(named))
        return instance
    base: Any = OrderedDict if issubclass(cls, OrderedDict) else dict
    instance = base.__new__(cls)
    for name, item in named.items():
        base.__setitem__(instance, name, item)
    if isinstance(instance, defaultdict):
        instance.default_factory = factory_of(attributes)
    if attributes == "itself":
        object.__setattr__(instance, "__dict__", instance)
    elif dataclasses.is_dataclass(cls) or attributes == "items":
        fields = [field.name for field in dataclasses.fields(cls)] if dataclasses.is_dataclass(cls) else list(named)
        for name in fields:
            _set(instance, name, named.get(name))
    return instance


def factory_of(attributes: object) -> Any:
    """The class that fills in what a dict lacks, as ``kept_by_class`` says; None where there is none of it.

    Raises ArtifactError for one that is not plain.
    """
    if not str(attributes).startswith(_FACTORY):
        return None
    name = str(attributes).removeprefix(_FACTORY)
    factory = next((cls for cls in _CONSTANT_CLASSES if name_of(cls) == name), None)
    if factory is None:
        raise ArtifactError(f"a dict is filled in by {name[:80]!r}, which is not a plain class: it is not built")
    return factory


def of_items(cls: Any, children: Collection[Any]) -> Any:
    """A tuple of such a class (``is_of_items``). Raises ArtifactError where it has another number of items."""
    if getattr(cls, "n_sequence_fields", len(children)) != len(children):
        raise _other_fields(cls, [f"{len(children)} items"])
    return cls(children)


def _set(instance: Any, name: str, item: Any) -> None:
    """An attribute, by no code of its class: in a slot, or in its dict."""
    slot = next((vars(base)[name] for base in type(instance).__mro__ if name in vars(base)), None)
    if isinstance(slot, MemberDescriptorType):
        slot.__set__(instance, item)
    elif type(instance).__dictoffset__:
        object.__getattribute__(instance, "__dict__")[name] = item
    else:
        raise _other_fields(type(instance), {name: item})


def _other_fields(cls: type, named: Collection[str]) -> ArtifactError:
    return ArtifactError(
        f"{name_of(cls)} has other fields here than {', '.join(named)}: install the version of the package that it was "
        "tuned with"
    )


def enum_member(name: str, member: str) -> enum.Enum:
    """Raises ArtifactError where there is none."""
    listed: Any = enum.EnumMeta.__members__  # the property of all of them, since one may have its own
    members: Mapping[str, Any] = listed.fget(find_class(name, "enum"))
    if member not in members:
        raise ArtifactError(f"{name} has no {member!r} here: install the version of the package that it was tuned with")
    constant: enum.Enum = members[member]
    return constant


def check_registered(context: str) -> None:
    """That what torch's pytree knows of a value (``tensors.one_level``) has torch import nothing.

    Raises ArtifactError where it is of an unknown form, or names what is not imported here.
    """
    from togi.torch_internals.tensors import registered_plainly

    try:
        protocol, node = json.loads(context)
        type_name, named = str(node["type"]), list(_dicts(json.loads(node["context"])))
        leaves = all(child == {"type": None, "context": None, "children_spec": []} for child in node["children_spec"])
    except (ValueError, TypeError, KeyError, RecursionError):
        raise ArtifactError(f"what it says of a registered class cannot be read: {context[:80]!r}") from None
    if protocol != 1 or not leaves or len(node) != 3:
        raise ArtifactError(f"a registered class is written as {context[:80]!r}, which togi never does")
    if not registered_plainly(type_name):
        raise ArtifactError(
            f"its values hold a {type_name!r}, which is not registered with torch's pytree here, or has a form of its "
            "own: import the package that registers it before it is used"
        )
    for entry in named:
        if "__enum__" in entry:  # torch imports the module that it names
            enum_member(str(entry.get("fqn")), str(entry.get("name")))


def _dicts(value: Any) -> Iterator[dict[Any, Any]]:
    if isinstance(value, dict):
        yield value
        value = list(value.values())
    for item in value if isinstance(value, list) else ():
        yield from _dicts(item)
