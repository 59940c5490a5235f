"""Kinds of tests that keep arrays in plain Python objects: what leaks beside what does not."""

from __future__ import annotations

from tests.planted.kind import Kind, clean, leak

KINDS: tuple[Kind, ...] = (
    leak("list", "G$n = []", "G$n.append($array)", "each run leaves an array more"),
    leak("dict by a counter", "G$n = {}", "G$n[len(G$n)] = $array", "each run leaves an array more"),
    leak("set", "G$n = set()", "G$n.add($array)", "each run leaves an array more"),
    leak("several at once", "G$n = []", "G$n.extend($array for _ in range(7))", "each run leaves seven more"),
    clean("dict by a constant", "G$n = {}", "G$n['x'] = $array", "the second run replaces the first one's array"),
    clean("slot of all tests", "", "STATE['last'] = $array", "the second run replaces the first one's array"),
    clean(
        "slot of an object", "G$n = Box('G$n')", "G$n.kept = [$array]", "the second run replaces the first one's list"
    ),
    clean(
        "filled once", "G$n = []", "G$n or G$n.append($array)", "the second run adds nothing; 12 kB is below the limit"
    ),
    clean("garbage", "", "cycle($array)", "a collection frees it: a note at most"),
    clean(
        "garbage with an older object",
        "G$n = Node()",
        "n = cycle($array); n.old = G$n; G$n.new = n; del G$n.new",
        "nothing reaches it but itself",
    ),
    clean("local", "", "x = $array", "gone when the test returns"),
    clean("emptied by the next setup", "", "store.append($array)", "the setup of the next run lets go of it", "store"),
    leak(
        "emptied by the next setup, and a list",
        "G$n = []",
        "store.append($array); G$n.append($array)",
        "what setup frees is matched by what fills its place; the list grows",
        "store",
    ),
    leak("cycles in a list", "G$n = []", "G$n.append(cycle($array))", "a global reaches each of them"),
    leak(
        "list beside garbage alike",
        "G$n = []",
        "cycle($array); G$n.append($array)",
        "the first run's garbage, freed later, is no partner of the second's array",
    ),
    leak(
        "list beside a slot in a cycle alike",
        "G$n = []",
        "STATE['cycle'] = cycle($array); G$n.append($array)",
        "the slot replaces one, the list keeps one a run",
    ),
    clean("slot in a cycle", "G$n = Node()", "G$n.last = cycle($array)", "replaced; a collection frees the one before"),
    leak("linked list", "G$n = Node(head=None)", "G$n.head = ($array, G$n.head)", "each run adds a link in front"),
    leak("two in, one out", "G$n = []", "G$n.append($array); G$n.append($array); G$n.pop(0)", "one more a run"),
    clean("one in, one out", "G$n = []", "G$n.append($array); del G$n[:-1]", "one stays, whatever the number of runs"),
    clean(
        "list cleared first", "G$n = []", "G$n.clear(); G$n.append($array)", "one stays, whatever the number of runs"
    ),
    leak(
        "frees what an older one kept, and keeps",
        "G$n, OLD$n = [], [$array]",
        "OLD$n.clear(); G$n.append($array)",
        "the older array can go once only; each run adds one",
    ),
    clean(
        "frees an older one for each that it keeps",
        "G$n, OLD$n = [], [$array for _ in range(40)]",
        "OLD$n.pop(); G$n.append($array)",
        "as a full buffer: each run lets go of an older array alike, the sum stays",
    ),
    clean(
        "full buffer",
        "G$n = collections.deque([$array, $array], maxlen=2)",
        "G$n.append($array)",
        "each that it takes pushes out an older one",
    ),
    clean(
        "buffer that a run fills",
        "G$n = collections.deque(maxlen=2)",
        "for _ in range(3):\n    G$n.append($array)",
        "the second run replaces all that the first one left",
    ),
    leak(
        "buffer with a bound far off",
        "G$n = collections.deque(maxlen=1000)",
        "G$n.append($array)",
        "not full: it grows",
    ),
    clean("two slots in turn", "G$n = [$array, $array]", "G$n[:] = [G$n[1], $array]", "the older of two goes"),
    leak("class attribute", "class C$n:\n    seen = []", "C$n().seen.append($array)", "a class holds all"),
    clean("class attribute replaced", "class C$n:\n    last = None", "C$n.last = $array", "the class holds the last"),
    clean("function's attribute replaced", "def f$n():\n    pass", "f$n.last = $array", "the function holds the last"),
    clean("global name", "G$n = None", "global G$n\nG$n = $array", "the second run replaces the first one's array"),
    leak(
        "objects with slots",
        "G$n = []\nclass C$n:\n    __slots__ = ('kept',)\n    def __init__(self, kept):\n        self.kept = kept",
        "G$n.append(C$n($array))",
        "each run leaves an object more",
    ),
    leak("classes", "G$n = []", "G$n.append(type('C', (), {'kept': $array}))", "a registry keeps each"),
    leak(
        "modules",
        "C$n = itertools.count()",
        "import sys\nm = types.ModuleType(f'planted$n{next(C$n)}'); m.kept = $array; sys.modules[m.__name__] = m",
        "sys.modules keeps each",
    ),
    leak(
        "mock's calls",
        "from unittest import mock\nG$n = mock.Mock(return_value=None)",
        "G$n($array)",
        "it keeps the arguments of each call",
    ),
    leak(
        "default argument",
        "def f$n(x, seen=[]):\n    seen.append(x)",
        "f$n($array)",
        "the function's default holds all",
    ),
    leak(
        "closure's list",
        "def make$n():\n    seen = []\n    return lambda x: seen.append(x)\nG$n = make$n()",
        "G$n($array)",
        "the closure's cell holds all",
    ),
    leak(
        "partials", "G$n = []", "G$n.append(functools.partial(id, $array))", "a registry keeps each with its argument"
    ),
    clean("partial replaced", "G$n = Node()", "G$n.last = functools.partial(id, $array)", "replaced with its argument"),
    leak(
        "bound methods",
        "G$n = []",
        "box = Box('b'); box.kept = $array; G$n.append(box.__repr__)",
        "a registry keeps each with its object",
    ),
    leak(
        "context variable",
        "G$n = contextvars.ContextVar('G$n', default=())",
        "G$n.set((*G$n.get(), $array))",
        "the context holds a longer tuple after each run",
    ),
    clean(
        "context variable replaced",
        "G$n = contextvars.ContextVar('G$n')",
        "G$n.set($array)",
        "the context holds the last",
    ),
    clean(
        "context of its own",
        "G$n = contextvars.ContextVar('G$n')",
        "contextvars.copy_context().run(G$n.set, $array)",
        "gone with the copy of the context",
    ),
    leak(
        "finalizers of a global",
        "G$n = Node()",
        "weakref.finalize(G$n, id, $array).atexit = False",
        "each waits, with its argument, for a death that does not come",
    ),
    clean("finalizer of a local", "", "weakref.finalize(Node(), id, $array)", "called at once: its object has died"),
    leak(
        "chain of exception hooks",
        "import sys",
        "x, before = $array, sys.excepthook; sys.excepthook = lambda *a: (before(*a), x)[0]",
        "each run wraps the hook of the one before",
    ),
    clean(
        "exception hook replaced",
        "import sys",
        "x = $array; sys.excepthook = lambda *a: (sys.__excepthook__(*a), x)[0]",
        "one hook is set",
    ),
    leak(
        "chain of signal handlers",
        "import signal",
        "x, before = $array, signal.getsignal(signal.SIGTERM); signal.signal(signal.SIGTERM, lambda *_: (before, x))",
        "each run wraps the handler of the one before",
    ),
    leak(
        "chain of factories of log records",
        "",
        "x, before = $array, logging.getLogRecordFactory(); logging.setLogRecordFactory(lambda *a, **k: (before(*a, **k), x)[0])",
        "each run wraps the factory of the one before",
    ),
    leak("exit functions", "", "atexit.register(id, $array)", "atexit keeps each with its argument"),
    clean(
        "exit function taken back",
        "",
        "atexit.register(f := functools.partial(id, $array)); atexit.unregister(f)",
        "atexit has let go",
    ),
    leak(
        "cache without a bound",
        "C$n = itertools.count()\n@functools.lru_cache(maxsize=None)\ndef f$n(key):\n    return $array",
        "f$n(next(C$n))",
        "a new key each run",
    ),
    clean(
        "cache by a constant key",
        "@functools.lru_cache(maxsize=None)\ndef f$n(key):\n    return $array",
        "f$n('x')",
        "filled by the first run",
    ),
    leak(
        "cache on a method",
        "class C$n:\n    @functools.lru_cache(maxsize=None)\n    def f(self):\n        return 1",
        "c = C$n(); c.kept = $array; c.f()",
        "the cache keeps each `self`",
    ),
    clean(
        "cached property",
        "class C$n:\n    @functools.cached_property\n    def kept(self):\n        return $array\nG$n = C$n()",
        "G$n.kept",
        "filled by the first run",
    ),
    leak(
        "module attributes",
        "G$n = types.ModuleType('G$n')",
        "setattr(G$n, f'a{len(vars(G$n))}', $array)",
        "a name a run",
    ),
    leak(
        "by weak key of a global",
        "K$n = Node()\nG$n = weakref.WeakKeyDictionary({K$n: []})",
        "G$n[K$n].append($array)",
        "the key lives on, and the list with it",
    ),
    clean(
        "by weak key of a local",
        "G$n = weakref.WeakKeyDictionary()",
        "k = Node(); G$n[k] = $array",
        "goes with its key",
    ),
    clean("weak values", "G$n = weakref.WeakValueDictionary()", "x = $array; G$n[len(G$n)] = x", "no strong reference"),
    clean(
        "weak references in a list",
        "G$n = []",
        "x = $array; G$n.append(weakref.ref(x))",
        "the list grows, no array stays",
    ),
    clean(
        "the same array again and again", "G$n, A$n = [], $array", "G$n.append(A$n)", "the list grows, no array is new"
    ),
    leak("queue", "G$n = queue.Queue()", "G$n.put($array)", "nobody takes them out"),
    clean("queue emptied", "G$n = queue.Queue()", "G$n.put($array); G$n.get()", "taken out by the test"),
    leak(
        "log records",
        "G$n = []\nL$n = logging.Logger('L$n')\nL$n.addHandler(h := logging.Handler())\nh.emit = G$n.append",
        "L$n.warning('%s', $array)",
        "a handler keeps the records with their arguments",
    ),
    leak(
        "resurrected each time",
        "G$n = []\nclass C$n:\n    def __del__(self):\n        G$n.append(self.array)",
        "C$n().array = $array",
        "`__del__` keeps an array a run",
    ),
    leak(
        "resurrected from a cycle each time",
        "G$n = []\nclass C$n:\n    def __del__(self):\n        G$n.append(self.array)",
        "c = C$n(); c.me, c.array = c, $array",
        "the collection that frees the cycle has `__del__` keep an array a run",
    ),
    clean(
        "resurrected once",
        "G$n = []\nclass C$n:\n    def __del__(self):\n        G$n or G$n.append(self.array)",
        "C$n().array = $array",
        "the second run's goes: the place is taken",
    ),
    leak(
        "exceptions",
        "G$n = []\ndef f$n():\n    x = $array\n    raise ValueError",
        "try:\n    f$n()\nexcept ValueError as e:\n    G$n.append(e)",
        "each keeps the frames of its traceback",
    ),
    clean(
        "exception replaced",
        "G$n = Node()\ndef f$n():\n    x = $array\n    raise ValueError",
        "try:\n    f$n()\nexcept ValueError as e:\n    G$n.last = e",
        "the last keeps its frames, which form a cycle with it at most",
    ),
    clean(
        "caught exception",
        "",
        "x = $array\ntry:\n    raise ValueError\nexcept ValueError:\n    pass",
        "it dies with its traceback",
    ),
    clean(
        "exception in its own frame",
        "",
        "x = $array\ntry:\n    raise ValueError\nexcept ValueError as e:\n    kept = e",
        "a cycle of frame, traceback and exception",
    ),
    leak(
        "suspended generators",
        "G$n = []\ndef f$n():\n    x = $array\n    yield",
        "g = f$n(); next(g); G$n.append(g)",
        "the frame of each is kept",
    ),
    clean(
        "suspended generator replaced",
        "G$n = Node()\ndef f$n():\n    x = $array\n    yield",
        "G$n.last = f$n(); next(G$n.last)",
        "the frame of the last is kept",
    ),
    clean("suspended generator dropped", "def f$n():\n    x = $array\n    yield", "next(f$n())", "closed as it dies"),
    clean(
        "function that calls itself",
        "",
        "x = $array\ndef f():\n    return f, x\nf()",
        "a cycle of function and cell",
    ),
    clean(
        "class of the test's own", "", "C = type('C', (), {'x': $array})", "a class is a cycle, and has no other holder"
    ),
    clean(
        "kept in each second run from the first on",
        "C$n, G$n = itertools.count(), []",
        "if next(C$n) % 2 == 0:\n    G$n.append($array)",
        "the second run adds nothing: by its size",
    ),
    clean(
        "kept in each second run from the second on",
        "C$n, G$n = itertools.count(), []",
        "if next(C$n) % 2:\n    G$n.append($array)",
        "the first run leaves nothing, so there is no second",
    ),
    clean(
        "toggled",
        "G$n = []",
        "if G$n:\n    G$n.clear()\nelse:\n    G$n.append($array)",
        "the second run empties what the first filled",
    ),
)
