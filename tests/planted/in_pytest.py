"""Kinds of tests whose arrays are held by pytest's objects: fixtures, TestCases, subtests, parameters; threads and asyncio too."""

from __future__ import annotations

from tests.planted.kind import Kind, clean, leak, simple

TRAINER = """
@pytest.fixture(scope="$scope")
def fix_$n():
    return Node(trainer=None, seen=[])

def fit_$n(module, batch):
    model = torch.nn.Linear(512, 1536)
    trainer = Node(model=model, data=module)
    model.__dict__["trainer"] = trainer
    model(torch.ones(4, 512)).sum().backward()
    module.trainer = trainer
"""


KEPT = """
KEPT_$n, OTHERS_$n = [], []

@pytest.fixture(scope="$scope")
def fix_$n():
    KEPT_$n.append(Node(last=None))
    return KEPT_$n[-1]
"""


def fixture(scope: str, body: str, name: str = "fix") -> str:
    """Return the source of a fixture `name` and its number."""
    lines = "".join(f"    {line}\n" for line in body.splitlines())
    return f"@pytest.fixture(scope={scope!r})\ndef {name}_$n():\n{lines}"


FIXTURES: tuple[Kind, ...] = (
    *(
        Kind(
            f"{scope}'s fixture keeps the last trainer",
            "6 MiB that only a wider fixture holds which is still up: a note, judged at its teardown",
            TRAINER.replace("$scope", scope) + "\ndef test_${n}_noted(fix_$n):\n    $pause\n    fit_$n(fix_$n, 4)\n",
        )
        for scope in ("module", "session")
    ),
    *(
        Kind(
            f"tests share a {scope}'s fixture that keeps the last trainer",
            "each replaces what the one before has left",
            TRAINER.replace("$scope", scope)
            + "\n@pytest.mark.parametrize('i', range(4))\ndef test_${n}(fix_$n, i):\n    $pause\n    fit_$n(fix_$n, 4 + i)\n",
        )
        for scope in ("module", "session")
    ),
    Kind(
        "fixture keeps the last trainer and every batch",
        "the trainer is replaced, the list of the same fixture grows",
        TRAINER.replace("$scope", "module")
        + "\ndef test_${n}_leaks(fix_$n):\n    $pause\n    fit_$n(fix_$n, 4)\n    fix_$n.seen.append($array)\n",
    ),
    *(
        Kind(
            f"tests share a {scope}'s fixture that a list keeps",
            "each replaces what the one before has put there, the last one too, for which the fixture is set up again",
            KEPT.replace("$scope", scope)
            + "\n@pytest.mark.parametrize('i', range(3))\ndef test_${n}_noted(fix_$n, i):\n    $pause\n    fix_$n.last = $array\n",
        )
        for scope in ("module", "session")
    ),
    Kind(
        "class's fixture that a list keeps beside another list",
        "what its only test puts into the fixture is no growth, and what it appends is",
        KEPT.replace("$scope", "class")
        + "\nclass Test$n:\n    def test_${n}_noted(self, fix_$n):\n        $pause\n        fix_$n.last = $array\n"
        "\nclass TestAnother$n:\n    def test_${n}_leaks(self, fix_$n):\n        $pause\n        fix_$n.last = $array\n"
        "        OTHERS_$n.append($array)\n",
    ),
    Kind(
        "class's fixture with bytes that a list keeps",
        "12 MiB of the host in a new fixture of each run are no growth; in a list they are",
        KEPT.replace("$scope", "class")
        + "\nclass Test$n:\n    def test_${n}(self, fix_$n):\n        $pause\n        fix_$n.last = bytearray(b'x') * (12 << 20)\n"
        "\nclass TestAnother$n:\n    def test_${n}_leaks(self, fix_$n):\n        $pause\n"
        "        OTHERS_$n.append(bytearray(b'x') * (12 << 20))\n",
    ),
    simple(
        "module's fixture, list",
        fixture("module", "return []"),
        "fix_$n.append($array)",
        "growing",
        "it grows while it is up",
        "fix_$n",
    ),
    simple(
        "session's fixture, list",
        fixture("session", "return []"),
        "fix_$n.append($array)",
        "growing",
        "it grows while it is up",
        "fix_$n",
    ),
    clean("module's fixture, slot", fixture("module", "return {}"), "fix_$n['x'] = $array", "replaced", "fix_$n"),
    clean(
        "session's fixture, large slot",
        fixture("session", "return {}"),
        "fix_$n['x'] = torch.ones(1 << 19)",
        "2 MiB in a fixture that is still up: a note",
        "fix_$n",
    ),
    clean(
        "module's fixture, large slot in a cycle",
        fixture("module", "return {}"),
        "fix_$n['x'] = cycle(torch.ones(1 << 19))",
        "2 MiB in a fixture that is still up: a note",
        "fix_$n",
    ),
    clean(
        "fixture's full buffer",
        fixture("module", "return collections.deque([$array, $array], maxlen=2)"),
        "fix_$n.append($array)",
        "each that it takes pushes out an older one",
        "fix_$n",
    ),
    clean(
        "garbage with a fixture's object",
        fixture("module", "return Node()"),
        "n = cycle($array); n.old = fix_$n; fix_$n.new = n; del fix_$n.new",
        "nothing reaches it but itself",
        "fix_$n",
    ),
    clean(
        "slot in a cycle with its fixture",
        fixture("module", "return Node()"),
        "fix_$n.last = Node(a=$array, owner=fix_$n)",
        "one stays, and goes with the fixture",
        "fix_$n",
    ),
    simple(
        "list in a cycle with its fixture",
        fixture("module", "return Node(seen=[])"),
        "fix_$n.seen.append(Node(a=$array, owner=fix_$n))",
        "growing",
        "one more each run",
        "fix_$n",
    ),
    clean(
        "gradients of a session's model",
        fixture("session", "return torch.nn.Linear(1024, 1024)"),
        "fix_$n(torch.ones(1, 1024)).sum().backward()",
        "4 MiB in a fixture that is still up: a note",
        "fix_$n",
    ),
    leak(
        "setup of a function's fixture",
        "G$n = []\n" + fixture("function", "G$n.append($array)"),
        "pass",
        "each setup adds one",
        "fix_$n",
    ),
    leak(
        "teardown of a function's fixture",
        "G$n = []\n" + fixture("function", "yield\nG$n.append($array)"),
        "pass",
        "each teardown adds one",
        "fix_$n",
    ),
    leak(
        "finalizer of a request",
        "G$n = []",
        "request.addfinalizer(lambda: G$n.append($array))",
        "each teardown adds one",
        "request",
    ),
    clean("setup replaces", "G$n = Node()\n" + fixture("function", "G$n.last = $array"), "pass", "one stays", "fix_$n"),
    clean(
        "teardown replaces",
        "G$n = Node()\n" + fixture("function", "yield\nG$n.last = $array"),
        "pass",
        "one stays",
        "fix_$n",
    ),
    clean(
        "teardown empties",
        "G$n = []\n" + fixture("function", "yield\nG$n.clear()"),
        "G$n.append($array)",
        "taken out",
        "fix_$n",
    ),
    leak(
        "teardown empties, and setup leaks alike",
        "G$n, H$n = [], []\n" + fixture("function", "H$n.append($array)\nyield\nG$n.clear()"),
        "G$n.append($array)",
        "what teardown empties is no partner of what setup adds",
        "fix_$n",
    ),
    clean("fixture's value", fixture("function", "yield $array"), "pass", "gone with the fixture", "fix_$n"),
    clean(
        "attribute patched for a test",
        "G$n = Node(x=None)",
        "monkeypatch.setattr(G$n, 'x', $array)",
        "undone by teardown",
        "monkeypatch",
    ),
    Kind(
        "fixture that lets go",
        "3 MiB that teardown frees",
        "G$n = []\n"
        + fixture("module", "G$n.append(torch.ones(3 << 18))\nyield\nG$n.clear()")
        + "\ndef test_$n(fix_$n):\n    $pause\n",
    ),
    Kind(
        "fixture that does not let go",
        "3 MiB of its own that stay after its teardown: the fixture fails, its test does not",
        "G$n = []\n"
        + fixture("module", "G$n.append(torch.ones(3 << 18))\nyield", "fix_leaks")
        + "\ndef test_$n(fix_leaks_$n):\n    $pause\n",
    ),
)

CLASSES: tuple[Kind, ...] = (
    Kind(
        "TestCase's class attribute",
        "the class holds an array more each run",
        "class TestC$n(unittest.TestCase):\n    seen = []\n    def test_${n}_leaks(self):\n        $pause\n        self.seen.append($array)\n",
    ),
    Kind(
        "TestCase's instance",
        "the instance goes after the test",
        "class TestC$n(unittest.TestCase):\n    def setUp(self):\n        self.x = $array\n    def test_$n(self):\n        $pause\n",
    ),
    Kind(
        "setUpClass and tearDownClass",
        "what the class set up goes with it",
        "class TestC$n(unittest.TestCase):\n    @classmethod\n    def setUpClass(cls):\n        cls.x = torch.ones(3 << 18)\n"
        "    @classmethod\n    def tearDownClass(cls):\n        del cls.x\n    def test_$n(self):\n        $pause\n",
    ),
    Kind(
        "TestCase's cleanup leaks",
        "each cleanup adds an array",
        "G$n = []\nclass TestC$n(unittest.TestCase):\n    def test_${n}_leaks(self):\n        $pause\n        self.addCleanup(lambda: G$n.append($array))\n",
    ),
    Kind(
        "plain class's attribute",
        "the class holds an array more each run",
        "class TestC$n:\n    seen = []\n    def test_${n}_leaks(self):\n        $pause\n        self.seen.append($array)\n",
    ),
    Kind(
        "plain class's instance",
        "the instance goes after the test, or is pytest's",
        "class TestC$n:\n    def test_$n(self):\n        $pause\n        self.x = $array\n",
    ),
    Kind(
        "setup_method leaks",
        "each setup adds an array",
        "class TestC$n:\n    seen = []\n    def setup_method(self):\n        self.seen.append($array)\n    def test_${n}_leaks(self):\n        $pause\n",
    ),
    Kind(
        "objects as parameters, one keeps all",
        "each object's test is judged by its own runs",
        "B$n = [Box(f'b{i}') for i in range(7)]\n"
        "@pytest.mark.parametrize('box', B$n, ids=[f'b{i}' + '-leaks' * (i == 5) for i in range(7)])\ndef test_$n(box):\n"
        "    $pause\n    x = $array\n    box.kept = [*box.kept, x] if box.name == 'b5' else [x]\n",
    ),
    Kind(
        "arrays as parameters",
        "made when the tests are collected",
        "@pytest.mark.parametrize('x', [$array, $array], ids=str)\ndef test_$n(x):\n    $pause\n".replace(
            "ids=str", "ids=['a', 'b']"
        ),
    ),
    Kind(
        "caches by random keys, run again twice",
        "each run draws a key of its own",
        "import random\nG$n = {}\n"
        "@pytest.mark.gpu_leak(confirm=2)\n@pytest.mark.parametrize('draw', [random.random, np.random.rand, lambda: torch.rand(1).item()],"
        " ids=['python-leaks', 'numpy-leaks', 'torch-leaks'])\n"
        "def test_$n(draw):\n    $pause\n    G$n[draw()] = $array\n",
    ),
    Kind(
        "cache by a temporary folder, run again twice",
        "each run has a folder of its own",
        "@functools.lru_cache(maxsize=None)\ndef load_$n(path):\n    return $array\n"
        "@pytest.mark.gpu_leak(confirm=2)\ndef test_${n}_leaks(tmp_path):\n    $pause\n    load_$n(str(tmp_path))\n",
    ),
    Kind(
        "subtests leak",
        "each subtest adds an array",
        "G$n = []\ndef test_${n}_leaks(subtests):\n    $pause\n    for i in range(3):\n        with subtests.test(i=i):\n            G$n.append($array)\n",
        needs="_pytest.subtests",
    ),
    Kind(
        "subtests replace",
        "one stays",
        "G$n = Node()\ndef test_$n(subtests):\n    $pause\n    for i in range(3):\n        with subtests.test(i=i):\n            G$n.last = $array\n",
        needs="_pytest.subtests",
    ),
    clean(
        "log records of caplog",
        "L$n = logging.getLogger('L$n')",
        "L$n.warning('%s', $array)",
        "pytest lets go of them",
        "caplog",
    ),
    Kind(
        "exception caught by pytest.raises",
        "a cycle at most",
        "def test_$n():\n    $pause\n    x = $array\n    with pytest.raises(ValueError) as caught:\n        raise ValueError(x.shape)\n",
    ),
    Kind(
        "view by NumPy on the instance and in a slot",
        "pytest keeps the first instance, with what the re-run replaces in the slot",
        "S$n = {}\nclass Test$n:\n    def test_$n(self):\n        $pause\n        self.view = $array.detach().numpy()\n        S$n['last'] = self.view\n",
    ),
    Kind(
        "view by NumPy on the instance and in a list",
        "the list keeps one a run",
        "G$n = []\nclass Test$n:\n    def test_${n}_leaks(self):\n        $pause\n        self.view = $array.detach().numpy()\n        G$n.append(self.view)\n",
    ),
    Kind(
        "result of torch's on the instance and in a slot",
        "pytest keeps the first instance, with what the re-run replaces in the slot",
        "S$n = {}\nclass Test$n:\n    def test_$n(self):\n        $pause\n        self.found = $array.view(1, -1).max(0)\n        S$n['last'] = self.found\n",
    ),
    Kind(
        "emptied by the settle hook",
        "what the project's hook releases is kept on purpose",
        "import hooked_$n\ndef test_$n():\n    $pause\n    hooked_$n.KEPT.append($array)\n",
        "import sys, types\nsys.modules['hooked_$n'] = types.ModuleType('hooked_$n')\nsys.modules['hooked_$n'].KEPT = []\n"
        "SETTLE.append(sys.modules['hooked_$n'].KEPT.clear)\n",
    ),
    Kind(
        "emptied by the settle hook, and a list",
        "the hook releases one, the list keeps one",
        "import hooked_$n\nG$n = []\ndef test_${n}_leaks():\n    $pause\n    hooked_$n.KEPT.append($array)\n    G$n.append($array)\n",
        "import sys, types\nsys.modules['hooked_$n'] = types.ModuleType('hooked_$n')\nsys.modules['hooked_$n'].KEPT = []\n"
        "SETTLE.append(sys.modules['hooked_$n'].KEPT.clear)\n",
    ),
)

CONCURRENT: tuple[Kind, ...] = (
    leak(
        "threads that never end",
        "E$n = threading.Event()\ndef f$n(x):\n    E$n.wait()",
        "threading.Thread(target=f$n, args=($array,), daemon=True).start()",
        "a thread a run, which keeps its argument",
    ),
    clean(
        "thread that lets go late",
        "def f$n(x):\n    time.sleep(0.05)",
        "threading.Thread(target=f$n, args=($array,)).start()",
        "it lets go 50 ms after the test",
    ),
    clean(
        "thread that has ended",
        "",
        "t = threading.Thread(target=id, args=($array,)); t.start(); t.join()",
        "it has let go",
    ),
    leak(
        "thread's local list",
        "G$n = threading.local()",
        "G$n.__dict__.setdefault('seen', []).append($array)",
        "the main thread's",
    ),
    clean("thread's local slot", "G$n = threading.local()", "G$n.last = $array", "the main thread's, replaced"),
    leak(
        "results of a pool",
        "import concurrent.futures\nP$n = concurrent.futures.ThreadPoolExecutor(1)\nG$n = []",
        "f = P$n.submit(lambda: $array); f.result(); G$n.append(f)",
        "each future keeps its result",
    ),
    clean(
        "result of a pool",
        "import concurrent.futures\nP$n = concurrent.futures.ThreadPoolExecutor(1)",
        "P$n.submit(lambda: $array).result()",
        "future and result go with the test",
    ),
    leak(
        "tasks of a loop",
        "L$n, G$n = asyncio.new_event_loop(), []\nasync def f$n(x):\n    await asyncio.sleep(3600)\n"
        "async def start$n(x):\n    G$n.append(asyncio.ensure_future(f$n(x)))\n    await asyncio.sleep(0)",
        "L$n.run_until_complete(start$n($array))",
        "the loop and the list keep a task a run",
    ),
    leak(
        "async results",
        "G$n = []\nasync def f$n():\n    await asyncio.sleep(0)\n    G$n.append($array)",
        "asyncio.run(f$n())",
        "the list grows",
    ),
    clean(
        "async local",
        "async def f$n():\n    x = $array\n    await asyncio.sleep(0)\n    return x",
        "asyncio.run(f$n())",
        "gone with the loop",
    ),
    clean(
        "async task cancelled by run",
        "async def f$n(x):\n    await asyncio.sleep(3600)\nasync def g$n():\n"
        "    task = asyncio.ensure_future(f$n($array))\n    await asyncio.sleep(0)",
        "asyncio.run(g$n())",
        "the end of the loop cancels it",
    ),
)

COLLECTOR: tuple[Kind, ...] = (
    *(
        kind
        for name, before, after in (
            ("gc.disable()", "gc.disable()", "gc.enable()"),
            ("gc.set_threshold(1)", "old = gc.get_threshold(); gc.set_threshold(1)", "gc.set_threshold(*old)"),
            ("gc.freeze() and unfreeze()", "gc.freeze()", "gc.unfreeze()"),
            ("gc.collect()", "gc.collect()", "gc.collect()"),
            ("gc.get_objects()", "len(gc.get_objects())", "len(gc.get_objects())"),
        )
        for kind in (
            leak(
                f"{name} and a list",
                "G$n = []",
                f"{before}\nG$n.append($array)\n{after}",
                "each run leaves an array more",
            ),
            clean(f"{name} and a slot", "G$n = Node()", f"{before}\nG$n.last = $array\n{after}", "replaced"),
            clean(f"{name} and garbage", "", f"{before}\ncycle($array)\n{after}", "a collection frees it"),
        )
    ),
    leak("gc.freeze() and a list", "G$n = []", "G$n.append($array); gc.freeze()", "each run leaves an array more"),
    clean("gc.freeze() and a slot", "G$n = Node()", "G$n.last = $array; gc.freeze()", "replaced"),
    clean(
        "gc.disable() left so, and garbage",
        fixture("function", "yield\ngc.enable()"),
        "gc.disable(); cycle($array)",
        "a collection frees it",
        "fix_$n",
    ),
)

KINDS = (*FIXTURES, *CLASSES, *CONCURRENT, *COLLECTOR)
