"""Read user objects without running their code, through descriptors of the built-in types.

``isinstance``, ``getattr``, ``==``, ``repr`` and ``bool`` run code of an object: a dead weak proxy, a mock, a lazy module.
"""

from __future__ import annotations

import collections
import functools
import keyword
import sys
import types
import weakref
from itertools import compress
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable


mro: Final[Callable[[type], tuple[type, ...]]] = vars(type)["__mro__"].__get__
"""Return a class's method resolution order."""

subclasses: Final[Callable[[type], list[type]]] = vars(type)["__subclasses__"]
"""Return a class's live direct subclasses."""

read_name: Final[Callable[[type], Any]] = vars(type)["__name__"].__get__
"""Return a class's ``__name__``."""

read_module: Final[Callable[[type], Any]] = vars(type)["__module__"].__get__
"""Return a class's ``__module__``. Raises AttributeError if its namespace lost that (typeobject.c, type_module)."""

MAX_KEY_LENGTH: Final = 40
"""Longest key that is shown, in characters."""

MAX_NAME: Final = 1000
"""Longest name that is shown, in characters. Generated names may have any length, and every path repeats them."""

class_dict: Final[Callable[[type], types.MappingProxyType[str, Any]]] = vars(type)["__dict__"].__get__
"""Return the class's own namespace, read only."""

_CLASS_QUALNAME: Final[Any] = type.__dict__["__qualname__"]
_MODULE_DICT: Final[Any] = vars(types.ModuleType)["__dict__"]

_TUPLE_FIELD: Final[type] = type(collections.namedtuple("_TUPLE_FIELD", "x").x)  # type: ignore[attr-defined]  # noqa: PYI024

LRU_WRAPPER: Final[type] = type(functools.lru_cache(lambda: None))


def is_subclass(kind: type, base: type) -> bool:
    """Tell whether `base` is in a class's method resolution order, by identity.

    ``isinstance`` asks ``__class__``, which proxies answer with side effects; ``in`` may call a metaclass's ``__eq__``.
    """
    for candidate in mro(kind):  # noqa: SIM110 - half the time of `any`, for every container met
        if candidate is base:
            return True
    return False


def is_a(value: object, base: type) -> bool:
    """Tell whether the type of `value` derives from `base`. `isinstance` would also ask ``value.__class__``."""
    return is_subclass(type(value), base)


def subclasses_named(cls: type, name: str) -> list[type]:
    """Return the live direct subclasses of `cls` with this ``__name__``. `object` has thousands, so it is done in C."""
    found = subclasses(cls)
    # The method of a plain str compares it with a subclass of str without asking that.
    return list(compress(found, map(name.__eq__, map(read_name, found))))


def plain_text(value: object) -> str | None:
    """Return `value` if it is exactly a str, else None: a subclass may format itself with side effects."""
    return value if type(value) is str else None


def cut_name(name: str) -> str:
    """Cut a name longer than `MAX_NAME` characters in its middle."""
    if len(name) <= MAX_NAME:
        return name
    half = MAX_NAME // 2 - 2
    return f"{name[:half]}...{name[-half:]}"


def class_name(cls: type) -> str:
    """Return the class's ``__name__``, cut."""
    return cut_name(plain_text(read_name(cls)) or "?")


def class_qualname(cls: type) -> str:
    """Return the class's whole ``__qualname__``, by which it is looked up."""
    return plain_text(_CLASS_QUALNAME.__get__(cls)) or "?"


def class_module(cls: type) -> str | None:
    """Return the class's ``__module__``; None where that is no plain str."""
    try:
        return plain_text(read_module(cls))
    except AttributeError:
        return None


def class_label(cls: type) -> str:
    """Return a type as paths show it: dotted with its module, built-ins without."""
    module, qualname = class_module(cls), cut_name(class_qualname(cls))
    return qualname if module is None or module == "builtins" else f"{cut_name(module)}.{qualname}"


def public_label(cls: type) -> str:
    """Return a type's `class_label` by its public module, as on any Python: ``asyncio.Future``, not ``_asyncio``'s."""
    module, qualname = class_module(cls), class_qualname(cls)
    if module is not None and module.startswith("_") and resolve(module[1:], qualname) is cls:
        return f"{module[1:]}.{qualname}"
    return class_label(cls)


def in_package(cls: type, package: str) -> bool:
    """Tell whether the class's ``__module__`` is `package` or below it."""
    return is_within(class_module(cls), package)


def is_within(module: str | None, package: str) -> bool:
    """Tell whether a dotted module name is `package` or below it."""
    return module is not None and (module == package or module.startswith(package + "."))


def module_dict(module: object) -> dict[str, Any] | None:
    """Return the namespace of a module; None where `module` is none (`sys.modules` accepts anything)."""
    if not is_a(module, types.ModuleType):
        return None
    namespace = _MODULE_DICT.__get__(module)
    return namespace if type(namespace) is dict else None


def loaded_module(name: str) -> object:
    """Return the entry of `sys.modules` under a name, or None."""
    return dict.get(sys.modules, name)


def loaded_modules() -> dict[str, dict[str, Any]]:
    """Return the namespaces of all modules in `sys.modules`, by name."""
    found: dict[str, dict[str, Any]] = {}
    for name, module in list(dict.items(sys.modules)):
        namespace = _MODULE_DICT.__get__(module) if type(module) is types.ModuleType else module_dict(module)
        if type(namespace) is dict and type(name) is str:
            found[name] = namespace
    return found


def loaded(module: str, name: str) -> Any:
    """Return a global of an imported module, or None. Never imports, never asks a lazy module."""
    namespace = module_dict(loaded_module(module))
    return None if namespace is None else namespace.get(name)


def loaded_class(module: str, name: str) -> type | None:
    """Return a class of an imported module, or None."""
    found = loaded(module, name)
    return found if is_a(found, type) else None


def resolve(module: str | None, qualname: str | None) -> object:
    """Return what a dotted name leads to, through module and class namespaces alone; else None."""
    if module is None or qualname is None or "<" in qualname:
        return None
    namespace = module_dict(loaded_module(module))
    if namespace is None:
        return None
    first, *rest = qualname.split(".")
    found: object = namespace.get(first)
    for name in rest:
        if not is_a(found, type):
            return None
        found = class_dict(found).get(name)  # type: ignore[arg-type]  # is_a has just said that it is a class
    return found


def instance_dict(value: object) -> dict[Any, Any] | None:
    """Return the ``__dict__`` of `value`, or None. Use it only for objects on a path, since it may create the dict.

    It does so since CPython 3.11 for many instances (Objects/object.c, _PyObject_GetDictPtr).
    """
    for cls in mro(type(value)):
        descriptor = class_dict(cls).get("__dict__")
        # A member only in types.SimpleNamespace and a few others written in C.
        if type(descriptor) is types.GetSetDescriptorType or type(descriptor) is types.MemberDescriptorType:
            try:
                namespace = descriptor.__get__(value, type(value))
            except (AttributeError, TypeError):
                return None
            return namespace if is_a(namespace, dict) else None
        if descriptor is not None:  # a user's property, which would run user code
            return None
    return None


def slot(value: object, cls: type, name: str) -> Any:
    """Return an attribute by the descriptor of the trusted built-in class `cls`; None where it is unset."""
    try:
        return class_dict(cls)[name].__get__(value, type(value))
    except (AttributeError, KeyError, TypeError, ValueError):
        return None


def member_descriptors(cls: type) -> list[tuple[str, Any]]:
    """Return names and descriptors of all ``__slots__`` and C members of a class."""
    found: list[tuple[str, Any]] = []
    for base in mro(cls):
        for name, descriptor in list(class_dict(base).items()):
            if type(descriptor) is types.MemberDescriptorType and type(name) is str:
                found.append((name, descriptor))
    return found


def members(value: object, descriptors: list[tuple[str, Any]] | None = None) -> list[tuple[str, Any]]:
    """Return names and values of all ``__slots__`` and C members that are set on `value`."""
    found: list[tuple[str, Any]] = []
    for name, descriptor in member_descriptors(type(value)) if descriptors is None else descriptors:
        try:
            found.append((name, descriptor.__get__(value, type(value))))
        except (AttributeError, TypeError, ValueError, SystemError):
            continue  # an empty slot
    return found


def field_of_tuple(value: Any, index: int) -> str | None:
    """Return the field name of item `index` of a named tuple or C struct sequence, or None."""
    kind = type(value)
    for cls in mro(kind):
        namespace = class_dict(cls)
        names = namespace.get("_fields")
        if type(names) is tuple and 0 <= index < len(names):
            name = names[index]
            # The type's own descriptor, not a property that user code put in its place.
            if is_attribute_name(name) and type(find_in_class(kind, name)) is _TUPLE_FIELD:
                return str(name)
        if "n_sequence_fields" in namespace:  # Objects/structseq.c; torch.return_types are such tuples
            item = tuple.__getitem__(value, index)
            for name, content in members(value):
                if content is item and is_attribute_name(name):
                    return name
    return None


def find_in_class(cls: type, name: str) -> object:
    """Return the attribute `name` of the class or of its first base that has it, or None."""
    for base in mro(cls):
        namespace = class_dict(base)
        if name in namespace:
            return namespace[name]
    return None


def is_attribute_name(name: object) -> bool:
    """Tell whether ``.name`` can be written in Python, within `MAX_NAME` characters."""
    return type(name) is str and len(name) <= MAX_NAME and name.isidentifier() and not keyword.iskeyword(name)


def key_text(key: object) -> str:
    """Write a mapping's key as text of about `MAX_KEY_LENGTH` characters, without control characters.

    Scalars, tuples of scalars, and what a dotted name leads to can be evaluated; any other key is written as its type.
    """
    text = _scalar_text(key)
    if text is None:  # a dotted name is never cut, or it would lead nowhere
        return _enum_text(key) or _definition_text(key) or _weak_text(key) or f"<{class_name(type(key))}>"
    return text if len(text) <= MAX_KEY_LENGTH else text[: MAX_KEY_LENGTH - 3] + "..."


def _scalar_text(key: object) -> str | None:
    """Write a scalar key; None where that is not safe. Tuples go one level deep."""
    kind = type(key)
    if kind is tuple:
        parts: list[str] = []
        for item in key[:MAX_KEY_LENGTH]:  # type: ignore[index]  # an exact tuple
            text = None if type(item) is tuple else _scalar_text(item)
            parts.append(f"<{class_name(type(item))}>" if text is None else text)
        return "(" + ", ".join(parts) + ("," if len(parts) == 1 else "") + ")"
    if kind is str or kind is bytes:
        return repr(key[: MAX_KEY_LENGTH + 1])  # type: ignore[index]  # exact types
    if kind is int:
        # Beyond 4300 digits repr raises (CVE-2020-10735).
        return repr(key) if key.bit_length() <= 128 else "<int>"  # type: ignore[attr-defined]  # an exact int
    if kind is float or kind is bool or key is None:
        return repr(key)
    return None


def _enum_text(member: object) -> str | None:
    """Write an enum's member as ``module.Colour.RED`` where that name leads to it; else None."""
    enum = loaded_class("enum", "Enum")
    kind = type(member)
    if enum is None or not is_subclass(kind, enum):
        return None
    namespace = instance_dict(member)
    name = None if namespace is None else plain_text(namespace.get("_name_"))
    module = class_module(kind)
    if name is None or module is None or not is_attribute_name(name):
        return None
    return f"{cut_name(module)}.{cut_name(class_qualname(kind))}.{name}"


def definition_name(value: object) -> str | None:
    """Return the dotted name that a class, a Python function or a C function states for itself; else None."""
    if is_a(value, type):
        return class_label(value)  # type: ignore[arg-type]  # a class, as was just checked
    if type(value) is types.FunctionType or type(value) is types.BuiltinFunctionType:
        module, name = plain_text(value.__module__), plain_text(value.__qualname__)
        if name is not None:
            name = cut_name(name)
            return name if module is None or module == "builtins" else f"{cut_name(module)}.{name}"
    return None


def leads_to(name: str, value: object) -> bool:
    """Tell whether a dotted name, resolved from the longest loaded module, leads to `value`."""
    if value is resolve("builtins", name):
        return True
    if len(name) > MAX_NAME:
        return False  # it was cut, and every dot would be tried
    parts = name.split(".")
    for end in range(len(parts) - 1, 0, -1):
        module = ".".join(parts[:end])
        if module_dict(loaded_module(module)) is not None:
            return resolve(module, ".".join(parts[end:])) is value
    return False


def _definition_text(key: object) -> str | None:
    name = definition_name(key)
    if name is None:
        return None
    if leads_to(name, key):
        return name
    return f"<class {cut_name(class_qualname(key))}>" if is_a(key, type) else f"<function {name}>"  # type: ignore[arg-type]


def _weak_text(key: object) -> str | None:
    if not is_a(key, weakref.ReferenceType):
        return None
    referent = weakref.ReferenceType.__call__(key)  # type: ignore[arg-type]  # a reference, as checked
    if referent is None:
        return "<dead weakref>"
    return f"<weakref to {definition_name(referent) or class_label(type(referent))}>"


def pid_of(process: Any) -> int | None:
    """Return the pid of a started ``multiprocessing`` process; None for any other object."""
    pid = field_of(field_of(process, "_popen"), "pid")
    return pid if type(pid) is int else None


def field_of(value: Any, name: str) -> Any:
    """Return an attribute from the instance's own dict: runs no property or `__getattr__` of a user's class."""
    try:
        return object.__getattribute__(value, "__dict__").get(name)
    except AttributeError:
        return None


_OFFSET: Final[Any] = type.__dict__.get("__weakrefoffset__")
"""Reads from a class where its objects keep their weak references; None on PyPy, where all objects may have some."""


def has_weak_references(value: object) -> bool:
    """Tell whether objects of its type support weak references, without running its code."""
    return _OFFSET is None or bool(_OFFSET.__get__(type(value)))


def weak_reference(value: object) -> Callable[[], object | None] | None:
    """Return a weak reference; None for a type without any."""
    try:
        return weakref.ref(value) if has_weak_references(value) else None
    except TypeError:  # PyPy's built-in types
        return None
