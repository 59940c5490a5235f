"""Which root is found, and which of several."""

from __future__ import annotations

import functools
import sys
import threading
import types
from typing import TYPE_CHECKING, Any

import pytest

from pytest_gpuleak.explain.explain import explain

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pytest_gpuleak.explain.search import Explanation

pytestmark = pytest.mark.interpreter


class Thing:
    """Stands for a tensor."""


class Registry:
    kept: dict[str, object] = {}  # noqa: RUF012  # a class attribute that leaks is the subject

    @functools.lru_cache(maxsize=8)  # noqa: B019  # as above
    def mask(self, size: object) -> object:
        return [size]

    @staticmethod
    @functools.cache
    def table(size: object) -> object:
        return {"size": size}


@functools.cache
def tokens(text: object) -> object:
    return (text, "tokens")


def explained(target: object) -> Explanation:
    holders = [target]
    return explain(holders)[0]


def test_global_has_file_and_line(app: Any) -> None:
    target = Thing()
    app.CACHE["a"] = target
    holder = explained(target).holder
    assert holder.file == app.__file__
    assert holder.line == 2


def test_class_attribute(app: Any) -> None:
    target = Thing()
    app.Attention.masks["a"] = target
    holder = explained(target).holder
    assert (holder.kind, holder.root) == ("class", "leaky_app.Attention.masks")
    assert holder.text == "leaky_app.Attention.masks['a']"
    assert (holder.file, holder.line) == (app.__file__, 6)


def test_attribute_of_a_class_that_its_name_does_not_lead_to(app: Any) -> None:
    target = Thing()
    app.Alias = type("Local", (), {"kept": [target]})
    holder = explained(target).holder
    assert (holder.kind, holder.root, holder.text) == ("class", "leaky_app.Alias.kept", "leaky_app.Alias.kept[0]")


def test_static_method_of_a_class(app: Any) -> None:
    target = Thing()
    app.Attention.helper = staticmethod(functools.partial(print, target))
    holder = explained(target).holder
    assert eval(holder.text, {"leaky_app": app}) is target


@pytest.fixture
def empty_caches() -> Iterator[None]:
    yield
    Registry.mask.cache_clear()
    Registry.table.cache_clear()
    tokens.cache_clear()


@pytest.mark.usefixtures("empty_caches")
def test_bounded_cache_of_a_method() -> None:
    owner, size = Registry(), Thing()
    result = owner.mask(size)
    found = explain([owner, result])
    assert [item.holder.kind for item in found] == ["cache", "cache"]
    assert {item.holder.root for item in found} == {f"{__name__}.Registry.mask"}
    assert found[0].holder.text == f"{__name__}.Registry.mask (cache key)[0]"
    assert found[1].holder.text == f"{__name__}.Registry.mask (cached result)"
    assert found[0].holder.file == __file__


@pytest.mark.usefixtures("empty_caches")
def test_unbounded_caches() -> None:
    size, text = Thing(), Thing()
    table = Registry.table(size)
    result = tokens(text)
    texts = [found.holder.text for found in explain([table, result, text])]
    assert texts[0] == f"{__name__}.Registry.table (cached result)"
    assert texts[1] == f"{__name__}.tokens (cached result)"
    assert texts[2] in (f"{__name__}.tokens (cache key)[0]", f"{__name__}.tokens (cached result)[0]")


@pytest.mark.usefixtures("empty_caches")
def test_cache_of_a_local_function_under_a_global(app: Any) -> None:
    target = Thing()
    app.lookup = functools.lru_cache(maxsize=None)(lambda: [target])
    result = app.lookup()
    holder = explained(result).holder
    assert (holder.kind, holder.root, holder.text) == ("cache", "leaky_app.lookup", "leaky_app.lookup (cached result)")


def test_module_beats_frame_and_thread(app: Any) -> None:
    target = Thing()
    app.HISTORY.append([[[target]]])
    assert explained(target).holder.text == "leaky_app.HISTORY[0][0][0][0]"


def test_module_that_defines_beats_test_that_imports(
    app: Any, make_module: Callable[[str, str], types.ModuleType]
) -> None:
    importer = make_module("test_of_leaky_app", "from leaky_app import HISTORY")
    app.HISTORY.append(Thing())
    assert importer.__dict__["HISTORY"] is app.HISTORY
    assert explain([app.HISTORY[0]])[0].holder.root == "leaky_app.HISTORY"


def test_module_that_defines_beats_module_that_imports(
    app: Any, make_module: Callable[[str, str], types.ModuleType]
) -> None:
    make_module("a_package", "from leaky_app import CACHE as cache")
    app.CACHE["a"] = Thing()
    holder = explained(app.CACHE["a"]).holder
    assert (holder.root, holder.file, holder.line) == ("leaky_app.CACHE", app.__file__, 2)


def test_each_module_that_imports_an_array_is_a_holder(make_module: Callable[[str, str], types.ModuleType]) -> None:
    store: Any = make_module("b_store", "class Table:\n    pass\n\n\nTABLE = Table()\n")
    make_module("a_package", "from b_store import TABLE")
    explanation = explained(store.TABLE)
    names = {one.root for one in (explanation.holder, *explanation.others)}
    assert names == {"a_package.TABLE", "b_store.TABLE"}


def test_frame_of_this_thread() -> None:
    target = Thing()
    holder = explained(target).holder
    assert holder.kind == "frame"
    assert holder.text.endswith(": local 'target'")
    assert holder.file == __file__


def test_ignored_frames_do_not_count() -> None:
    target = Thing()
    holders = (target,)
    frame = sys._getframe()
    holder = explain(holders, ignore={id(frame)})[0].holder
    assert holder.kind == "native"
    assert holder.text == f"C++ -> {__name__}.Thing"


def test_local_of_another_thread() -> None:
    started, finish = threading.Event(), threading.Event()
    box: list[Thing] = []

    def work() -> None:
        batch = [Thing()]
        box.append(batch[0])
        started.set()
        finish.wait()

    thread = threading.Thread(target=work, name="loader")
    thread.start()
    started.wait()
    holder = explain(box, ignore={id(sys._getframe())})[0].holder
    finish.set()
    thread.join()
    assert holder.kind == "thread"
    assert holder.root.startswith("thread 'loader' in ")
    assert holder.root.endswith("work: local 'batch'")
    assert holder.text.endswith("work: local 'batch'[0]")


def test_argument_of_a_running_thread() -> None:
    finish = threading.Event()
    thread = threading.Thread(target=lambda batch: finish.wait(), args=([Thing()],), name="loader")
    box = [thread._args[0][0]]  # type: ignore[attr-defined]
    thread.start()
    holder = explain(box, ignore={id(sys._getframe())})[0].holder
    finish.set()
    thread.join()
    assert holder.kind == "thread"
    assert "thread 'loader'" in holder.root


def test_last_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "last_value", ValueError([Thing()]), raising=False)
    box = [sys.last_value.args[0][0]]  # type: ignore[union-attr]
    holder = explain(box, ignore={id(sys._getframe())})[0].holder
    assert holder.kind == "traceback"
    assert "sys.last_value" in holder.text or "monkeypatch" in holder.text


def test_traceback_that_a_frame_holds() -> None:
    def fail() -> None:
        batch = Thing()
        box.append(batch)
        raise ValueError

    box: list[Thing] = []
    try:
        fail()
    except ValueError as error:
        kept = error
    holder = explain(box)[0].holder
    del kept
    assert holder.kind == "traceback"
    assert holder.root == "exception ValueError"
    assert holder.text.endswith(".f_locals['batch']")


def test_exception_beats_its_traceback(app: Any) -> None:
    def fail() -> None:
        batch = Thing()
        box.append(batch)
        raise ValueError

    def keep() -> object:
        try:
            fail()
        except ValueError as error:
            return error
        return None

    box: list[Thing] = []
    kept = iter([keep()])
    holder = explain(box, ignore={id(sys._getframe())})[0].holder
    assert next(kept) is not None
    assert holder.text == "exception ValueError.__traceback__.tb_next.tb_frame.f_locals['batch']"


def test_coroutine_of_a_task(app: Any) -> None:
    import asyncio

    async def wait(batch: object) -> None:
        await asyncio.sleep(60)

    target = Thing()
    loop = asyncio.new_event_loop()
    app.TASK = loop.create_task(wait(target))
    loop.run_until_complete(asyncio.sleep(0))
    text = explained(target).holder.text
    app.TASK.cancel()
    loop.run_until_complete(asyncio.gather(app.TASK, return_exceptions=True))
    loop.close()
    # A pass over the whole heap, and another: CPython 3.12 hangs where the first one looked into _asyncio.
    app.MANY = [Thing() for _ in range(300)]
    for _ in range(2):
        explain([*app.MANY])
    assert text == "leaky_app.TASK.get_coro().cr_frame.f_locals['batch']"


def test_only_a_cycle_holds_it() -> None:
    def make() -> list[Any]:
        target: Any = Thing()
        target.itself = target
        return [target]

    box = make()
    holder = explain(box, ignore={id(sys._getframe())})[0].holder
    assert (holder.kind, holder.root) == ("unknown", "a reference cycle")


def test_globals_of_the_plugin_are_no_roots(monkeypatch: pytest.MonkeyPatch) -> None:
    module: Any = types.ModuleType("pytest_gpuleak.pretended")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    module.LEDGER = [Thing()]
    box = [module.LEDGER[0]]
    holder = explain(box, ignore={id(sys._getframe()), id(module)})[0].holder
    assert holder.kind == "native"


def test_module_that_sys_modules_no_longer_holds(app: Any) -> None:
    gone: Any = types.ModuleType("gone")
    gone.HISTORY = [Thing()]
    app.gone = gone
    holder = explain([gone.HISTORY[0]])[0].holder
    assert holder.text == "leaky_app.gone.HISTORY[0]"


def test_one_answer_a_target_in_their_order(app: Any) -> None:
    targets = [Thing() for _ in range(300)]
    app.HELD = [*targets]
    texts = [found.holder.text for found in explain([*targets, targets[5]])]
    assert texts == [f"leaky_app.HELD[{index}]" for index in range(300)] + ["leaky_app.HELD[5]"]
