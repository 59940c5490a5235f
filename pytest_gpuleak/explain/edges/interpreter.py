"""Name references in objects of the interpreter by its own names, so that a path can be pasted into a debugger."""

from __future__ import annotations

import contextvars
import threading
import types
from gc import get_referents
from typing import TYPE_CHECKING, Any, Final

from pytest_gpuleak.explain.edges.chain import Edge
from pytest_gpuleak.heap import safe_access
from pytest_gpuleak.heap.frames import function_name, local_variables, without_comprehensions

if TYPE_CHECKING:
    from collections.abc import Callable

    from pytest_gpuleak.explain.edges.chain import Chain


ANOTHER_THREAD: Final = "another thread"
"""End of the label of a `threading.local` whose value is not the searching thread's."""

_MAX_CONTEXT_LINKS: Final = 12
"""References between a context and a variable's value: the tree is at most eight nodes deep (Python/hamt.c)."""


def _name_in_function(chain: Chain, position: int) -> Edge | None:  # noqa: PLR0911 - a return for each part
    """Name a closure's variable, a default, a global of a module that is gone, or a function's attribute."""
    function: types.FunctionType = chain.objects[position]
    first, second, third = chain.at(position + 1), chain.at(position + 2), chain.at(position + 3)
    name = without_comprehensions(safe_access.cut_name(function.__qualname__))
    if first is None:
        return None
    if first is function.__closure__ and type(second) is types.CellType:
        index = chain.lookups.index(first, second, tuple)
        if index is not None:
            label = f"closure variable {function.__code__.co_freevars[index]!r} of {name}"
            if third is None or cell_contents(second) is not third:
                return Edge(f".__closure__[{index}]", label, 2)
            return Edge(f".__closure__[{index}].cell_contents", label, 3)
    defaults = function.__defaults__
    if defaults is not None and first is defaults:
        index = chain.lookups.index(defaults, second, tuple)
        if index is not None:
            code = function.__code__
            # Defaults belong to the last positional arguments (Objects/funcobject.c).
            argument = code.co_varnames[: code.co_argcount][index - len(defaults) :][:1]
            label = f"default of argument {argument[0]!r} of {name}" if argument else f"default argument of {name}"
            return Edge(f".__defaults__[{index}]", label, 2)
    if first is function.__kwdefaults__:
        item = chain.item(first, position + 2)
        if item is not None:
            return Edge(f".__kwdefaults__{item}", f"default of argument {item[1:-1]} of {name}", 2)
    if first is function.__globals__:
        label = f"function {name} of {namespace_label(first)}"
        item = chain.item(first, position + 2) if chain.reaches(position + 2) else None
        return Edge(".__globals__", label) if item is None else Edge(f".__globals__{item}", label, 2)
    return None


def namespace_label(namespace: dict[str, Any]) -> str:
    """Describe a dict of globals by its module, and tell where `sys.modules` has another of this name, or none."""
    module = safe_access.plain_text(dict.get(namespace, "__name__"))
    if module is None or module == "builtins":
        return "an exec'd namespace"
    loaded = safe_access.loaded_module(module)
    if safe_access.module_dict(loaded) is namespace:
        return f"module {safe_access.cut_name(module)}"
    if loaded is None:
        return f"module {safe_access.cut_name(module)}, which sys.modules no longer holds"
    return f"an earlier copy of module {safe_access.cut_name(module)}"


def cell_contents(cell: types.CellType) -> Any:
    """Return a closure cell's content, or None where it is empty."""
    try:
        return cell.cell_contents
    except ValueError:
        return None


def _name_in_cell(chain: Chain, position: int) -> Edge | None:
    return Edge(".cell_contents", chain.label(position))


def _name_in_frame(chain: Chain, position: int) -> Edge | None:
    """Name a local variable of an ended frame that a traceback or a generator keeps."""
    frame: types.FrameType = chain.objects[position]
    return _local(chain, position, frame, "") or _trusted(chain, position)


def _name_in_generator(chain: Chain, position: int) -> Edge | None:
    """Name a local variable of a suspended generator or coroutine, or what it waits for."""
    attribute, _ = _ATTRIBUTES[id(type(chain.objects[position]))]
    # The descriptor creates the frame object, which the generator then keeps (Objects/genobject.c).
    frame = safe_access.slot(chain.objects[position], type(chain.objects[position]), attribute)
    if frame is None:
        return _trusted(chain, position)
    skip = int(frame is chain.at(position + 1))  # Python 3.10: the frame is a link of its own
    return _local(chain, position, frame, f".{attribute}", skip) or _trusted(chain, position)


def _local(chain: Chain, position: int, frame: types.FrameType, prefix: str, skip: int = 0) -> Edge | None:
    """Name a local variable, also one in a cell; `skip` links lie between."""
    child, beyond = chain.at(position + skip + 1), chain.at(position + skip + 2)
    # A generator knows its qualified name in all versions, its code object since 3.11.
    owner = chain.objects[position]
    name_of_owner = safe_access.plain_text(safe_access.slot(owner, type(owner), "__qualname__")) if prefix else None
    # Python 3.10 would need a walk over the heap for the qualified name.
    name = name_of_owner or chain.lookups.once("function", frame.f_code, lambda: function_name(frame.f_code))
    label = f"frame of {without_comprehensions(safe_access.cut_name(name))}"
    places = chain.lookups.once("locals", frame, lambda: _places_of_locals(frame))
    found = [(places[id(child)], 1)] if child is not None and id(child) in places else []
    if beyond is not None and type(child) is types.CellType and id(beyond) in places:
        found.append((places[id(beyond)], 2))
    if not found:
        return None
    (_, variable), length = min(found)
    return Edge(f"{prefix}.f_locals[{safe_access.cut_name(variable)!r}]", label, skip + length)


def _places_of_locals(frame: types.FrameType) -> dict[int, tuple[int, str]]:
    places: dict[int, tuple[int, str]] = {}
    for index, (name, value) in enumerate(local_variables(frame)):
        places.setdefault(id(value), (index, name))
    return places


def _trusted(chain: Chain, position: int) -> Edge | None:
    parent, child = chain.objects[position], chain.at(position + 1)
    for cls in safe_access.mro(type(parent)):
        for name in _ATTRIBUTES.get(id(cls), ()):
            if safe_access.slot(parent, cls, name) is child:
                return Edge(f".{name}", chain.label(position))
    return None


def _name_in_cache(chain: Chain, position: int) -> Edge | None:
    """Name an argument in a key of an `lru_cache`, or a result, for which Python has no syntax.

    Only an unbounded cache has them in its dict (Modules/_functoolsmodule.c, lru_cache_tp_traverse).
    """
    wrapper, child, beyond = chain.objects[position], chain.at(position + 1), chain.at(position + 2)
    namespace = safe_access.instance_dict(wrapper)
    label = "functools.lru_cache"
    if namespace is not None:
        length = 2 if namespace is child else 1
        text = chain.attribute(namespace, position + length)
        if text is not None:
            return Edge(text, label, length)  # __wrapped__
    contents = chain.lookups.once("contents", wrapper, lambda: _contents_of_cache(wrapper, namespace))
    if child is contents and beyond is not None:
        kept = chain.lookups.key(contents, beyond) is not None
        return Edge(" (cached result)" if kept else " (cache key)", label, 2, cached=True)
    is_key = contents is not None and chain.lookups.is_key(contents, child)
    return Edge(" (cache key)" if is_key else " (cached result)", label, cached=True)


def _contents_of_cache(wrapper: object, namespace: object) -> dict[Any, Any] | None:
    dicts = [value for value in get_referents(wrapper) if type(value) is dict and value is not namespace]
    return dicts[-1] if dicts else None


def _name_in_thread_local(chain: Chain, position: int) -> Edge | None:
    """Name an attribute of a `threading.local`, which keeps a dict for each thread (Modules/_threadmodule.c)."""
    values = chain.at(position + 2)
    if type(chain.at(position + 1)) is not dict or type(values) is not dict or not chain.reaches(position + 3):
        return None
    text = chain.attribute(values, position + 3)
    if text is None:
        return None
    local, which = chain.objects[position], "the thread that set it"
    # A thread's first look calls `__init__`, which may be user code.
    may_look = safe_access.find_in_class(type(local), "__init__") is safe_access.class_dict(object)["__init__"]
    if may_look and threading.local.__getattribute__(local, "__dict__") is not values:
        which = ANOTHER_THREAD
    return Edge(text, f"threading.local, in {which}", 3)


def _name_in_context(chain: Chain, position: int) -> Edge | None:
    """Name the value of a context variable. Between it and the context lie nodes of a tree (Python/hamt.c)."""
    context: contextvars.Context = chain.objects[position]
    names = chain.lookups.once("variables", context, lambda: _names_in_context(context))
    for length in range(1, _MAX_CONTEXT_LINKS + 1):
        if not chain.reaches(position + length):
            break
        name = names.get(id(chain.objects[position + length]))
        if name is not None:
            return Edge(f"[<ContextVar {name!r}>]", "contextvars.Context", length)
    return None


def _names_in_context(context: contextvars.Context) -> dict[int, str]:
    names: dict[int, str] = {}
    for variable, value in contextvars.Context.items(context):
        names.setdefault(id(value), safe_access.cut_name(variable.name))
    return names


def _name_in_exception(chain: Chain, position: int) -> Edge | None:
    found = _trusted(chain, position)
    if found is not None and found.text == ".args" and chain.reaches(position + 2):
        index = chain.lookups.index(chain.at(position + 1), chain.at(position + 2), tuple)
        return found if index is None else Edge(f".args[{index}]", found.label, 2)
    return found


def _name_in_view(chain: Chain, position: int) -> Edge | None:
    return Edge(".mapping", chain.label(position)) if safe_access.is_a(chain.at(position + 1), dict) else None


_ATTRIBUTES: Final[dict[int, tuple[str, ...]]] = {
    id(types.GeneratorType): ("gi_frame", "gi_yieldfrom"),
    id(types.CoroutineType): ("cr_frame", "cr_await"),
    id(types.AsyncGeneratorType): ("ag_frame", "ag_await"),
    id(types.FrameType): ("f_back", "f_globals", "f_trace"),
    id(types.TracebackType): ("tb_frame", "tb_next"),
    id(BaseException): ("__traceback__", "__context__", "__cause__", "args"),
    id(types.BuiltinFunctionType): ("__self__",),
    id(types.MethodWrapperType): ("__self__",),
    id(memoryview): ("obj",),
}

NAMERS: Final[dict[int, Callable[[Chain, int], Edge | None]]] = {
    **dict.fromkeys(_ATTRIBUTES, _trusted),
    id(types.FunctionType): _name_in_function,
    id(types.CellType): _name_in_cell,
    id(types.FrameType): _name_in_frame,
    id(types.GeneratorType): _name_in_generator,
    id(types.CoroutineType): _name_in_generator,
    id(types.AsyncGeneratorType): _name_in_generator,
    id(BaseException): _name_in_exception,
    id(safe_access.LRU_WRAPPER): _name_in_cache,
    id(threading.local): _name_in_thread_local,
    id(contextvars.Context): _name_in_context,
    **dict.fromkeys(map(id, (type({}.keys()), type({}.values()), type({}.items()))), _name_in_view),
}
"""Namers by the id of a built-in type. `edges` asks them in the order of a class's bases."""
