"""Reading strangers without running their code.

A leaked array may hang from anything: a dead weak proxy, a mock, a lazy module whose ``__getattr__`` imports things, a
class whose metaclass overrides ``__mro__``. ``isinstance``, ``getattr``, ``==``, ``repr`` and ``bool`` all ask the
stranger. The functions here ask the interpreter instead, through descriptors of the built-in types.
"""

from __future__ import annotations

import functools
import keyword
import sys
import types
from typing import Any, Final

MAX_KEY_LENGTH: Final = 40
"""Characters of a key that are shown."""

_MRO: Final[Any] = type.__dict__["__mro__"]
_CLASS_DICT: Final[Any] = type.__dict__["__dict__"]
_CLASS_NAME: Final[Any] = type.__dict__["__name__"]
_CLASS_QUALNAME: Final[Any] = type.__dict__["__qualname__"]
_CLASS_MODULE: Final[Any] = type.__dict__["__module__"]
_MODULE_DICT: Final[Any] = type.__dict__["__dict__"].__get__(types.ModuleType)["__dict__"]
_SUBCLASSES: Final[Any] = type.__dict__["__subclasses__"]

LRU_WRAPPER: Final[type] = type(functools.lru_cache(lambda: None))
"""What `functools.lru_cache` and `functools.cache` return."""


def mro(cls: type) -> tuple[type, ...]:
    """The method resolution order that the interpreter itself uses, whatever the metaclass says."""
    order: tuple[type, ...] = _MRO.__get__(cls)
    return order


def is_a(value: object, base: type) -> bool:
    """Whether the type of `value` derives from `base`; `isinstance` would also ask ``value.__class__``."""
    return is_subclass(type(value), base)


def is_subclass(cls: type, base: type) -> bool:
    """Whether `base` is in the method resolution order of `cls`, by identity."""
    for candidate in mro(cls):  # noqa: SIM110  # asked of every container met; `in` would ask a metaclass's __eq__
        if candidate is base:
            return True
    return False


def subclasses(cls: type) -> list[type]:
    """The direct subclasses of `cls` that are alive."""
    found: list[type] = _SUBCLASSES(cls)
    return found


def class_dict(cls: type) -> types.MappingProxyType[str, Any]:
    """The class's own namespace, read only."""
    namespace: types.MappingProxyType[str, Any] = _CLASS_DICT.__get__(cls)
    return namespace


def plain_text(value: object) -> str | None:
    """`value` where it is exactly a str, else None: a subclass may format itself with side effects."""
    return value if type(value) is str else None


def class_name(cls: type) -> str:
    """The class's ``__name__``."""
    return plain_text(_CLASS_NAME.__get__(cls)) or "?"


def class_qualname(cls: type) -> str:
    """The class's ``__qualname__``."""
    return plain_text(_CLASS_QUALNAME.__get__(cls)) or "?"


def class_module(cls: type) -> str | None:
    """The module that the class says it is from, or None where that is no plain str."""
    try:
        return plain_text(_CLASS_MODULE.__get__(cls))
    except AttributeError:  # a class whose namespace lost its __module__ (typeobject.c, type_module)
        return None


def class_label(cls: type) -> str:
    """How a type is written in a path: dotted with its module, built-ins without."""
    module = class_module(cls)
    return class_qualname(cls) if module in (None, "builtins") else f"{module}.{class_qualname(cls)}"


def in_package(cls: type, package: str) -> bool:
    """Whether the class says it is from `package` or a module below it."""
    return is_within(class_module(cls), package)


def is_within(module: str | None, package: str) -> bool:
    """Whether a dotted module name is `package` or below it."""
    return module is not None and (module == package or module.startswith(package + "."))


def module_dict(module: object) -> dict[str, Any] | None:
    """The namespace of a module, or None where `module` is none (`sys.modules` accepts anything)."""
    if not is_a(module, types.ModuleType):
        return None
    namespace = _MODULE_DICT.__get__(module)
    return namespace if type(namespace) is dict else None


def loaded_module(name: str) -> object:
    """What `sys.modules` has under a name, or None."""
    modules: dict[str, Any] = sys.modules
    return dict.get(modules, name)


def loaded_modules() -> dict[str, dict[str, Any]]:
    """The namespaces of all modules in `sys.modules`, by the name they are found under."""
    found: dict[str, dict[str, Any]] = {}
    for name, module in list(dict.items(sys.modules)):
        namespace = module_dict(module)
        if namespace is not None and type(name) is str:
            found[name] = namespace
    return found


def loaded(module: str, name: str) -> Any:
    """A global of a module that is already imported, or None: never imports, never asks a lazy module."""
    namespace = module_dict(loaded_module(module))
    return None if namespace is None else namespace.get(name)


def loaded_class(module: str, name: str) -> type | None:
    """A class that is already imported, or None."""
    found = loaded(module, name)
    return found if is_a(found, type) else None


def resolve(module: str | None, qualname: str | None) -> object:
    """What a dotted name leads to, by module and class namespaces alone; None where it leads nowhere."""
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
    """The attributes that `value` keeps in its ``__dict__``, or None where it has none.

    Since CPython 3.11 the attributes of many instances lie in the instance itself, and this call makes the dict
    (Objects/object.c, _PyObject_GetDictPtr): use it only for objects that a path leads through.
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
        if descriptor is not None:  # a property of the user's own in the way: it would run their code
            return None
    return None


def slot(value: object, cls: type, name: str) -> Any:
    """An attribute of `value` by the descriptor of the trusted built-in class `cls`; None where it is unset."""
    try:
        return class_dict(cls)[name].__get__(value, type(value))
    except (AttributeError, KeyError, TypeError, ValueError):
        return None


def members(value: object) -> list[tuple[str, Any]]:
    """Names and values of all ``__slots__`` and C members that are set on `value`."""
    found: list[tuple[str, Any]] = []
    for cls in mro(type(value)):
        for name, descriptor in list(class_dict(cls).items()):
            if type(descriptor) is types.MemberDescriptorType and type(name) is str:
                try:
                    found.append((name, descriptor.__get__(value, type(value))))
                except (AttributeError, TypeError, ValueError, SystemError):
                    continue  # an empty slot
    return found


def is_attribute_name(name: object) -> bool:
    """Whether ``.name`` can be written in Python."""
    return type(name) is str and name.isidentifier() and not keyword.iskeyword(name)


def key_text(key: object) -> str:
    """A mapping's key as Python text, at most about `MAX_KEY_LENGTH` characters, with no control characters.

    Only built-in scalars, tuples of those and enum members are shown; any other key is written as its type.
    """
    text = _scalar_text(key)
    if text is None:  # an enum member's dotted name is never cut: it would lead nowhere
        return _enum_text(key) or f"<{class_name(type(key))}>"
    return text if len(text) <= MAX_KEY_LENGTH else text[: MAX_KEY_LENGTH - 3] + "..."


def _scalar_text(key: object) -> str | None:
    """The text of a key that is safe to write out, else None. Tuples go one level deep."""
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
        # Beyond 4300 digits repr raises (CVE-2020-10735), and no one reads beyond 40.
        return repr(key) if key.bit_length() <= 128 else "<int>"  # type: ignore[attr-defined]  # an exact int
    if kind is float or kind is bool or key is None:
        return repr(key)
    return None


def _enum_text(key: object) -> str | None:
    """An enum member as ``module.Colour.RED``, where that name leads to it; else None."""
    enum = loaded_class("enum", "Enum")
    kind = type(key)
    if enum is None or not is_subclass(kind, enum):
        return None
    namespace = instance_dict(key)
    name = None if namespace is None else plain_text(namespace.get("_name_"))
    module = class_module(kind)
    if name is None or module is None or not is_attribute_name(name):
        return None
    return f"{module}.{class_qualname(kind)}.{name}"
