"""Parts of a random suite that are written as a whole: fixtures wider than a test, plugins, doctests, ways to stop."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclasses.dataclass(frozen=True)
class Whole:
    """Tests and fixtures that belong together.

    Attributes:
        source: the text, as in `snippets`.
        tests: what is left by each test, by id below the file (see `suites.verdicts_of`).
        fixtures: what is left by wider fixtures, by name.
        conftest: text for the suite's conftest.py.
        plugin: the module that must be installed.
        last: whether it ends the run, and stands at its end.
        forbids: kinds of runs that it is not made for (``xdist``).
    """

    source: str
    tests: Mapping[str, str]
    fixtures: Mapping[str, str] = dataclasses.field(default_factory=dict)
    conftest: str = ""
    plugin: str = ""
    last: bool = False
    forbids: tuple[str, ...] = ()


STATE = """
def test_N():
    say('state', os.getcwd() == HERE, sorted(name for name in os.environ if name.startswith('SOAK_')), 'HOME' in os.environ)
    say('gc', gc.isenabled(), gc.get_threshold())
    say('draws', random.random(), random.Random(4).random())
    say('hooks', sys.gettrace(), sys.getprofile(), signal.getsignal(signal.SIGUSR1))
    say('warnings', warnings.showwarning.__module__, logging.getLogger('soak').level)
"""

WHOLES = {
    "state": Whole(STATE, {"test_N": "nothing"}),
    "plain": Whole("def test_N():\n    pass\n", {"test_N": "nothing"}),
    "many plain": Whole(
        "@pytest.mark.parametrize('i', range(12))\ndef test_N(i):\n    assert make(64) is not None\n",
        {f"test_N[{i}]": "nothing" for i in range(12)},
    ),
    "module fixture that leaks": Whole(
        "KEPT_N = []\n@pytest.fixture(scope='module')\ndef model_N():\n    KEPT_N.append(make(SIZE))\n    yield KEPT_N\n"
        "def test_N(model_N):\n    assert model_N\ndef test_N_b(model_N):\n    assert model_N\n",
        {"test_N": "nothing", "test_N_b": "nothing"},
        {"model_N": "retained"},
    ),
    "class fixture that leaks": Whole(
        "KEPT_N = []\nclass TestN:\n    @pytest.fixture(scope='class')\n    def model_N(self):\n        KEPT_N.append(make(SIZE))\n"
        "        return 1\n    def test_a(self, model_N):\n        pass\n    def test_b(self, model_N):\n        pass\n",
        {"TestN::test_a": "nothing", "TestN::test_b": "nothing"},
        {"model_N": "retained"},
        forbids=("xdist",),
    ),
    "session fixture that leaks": Whole(
        "KEPT_N = []\n@pytest.fixture(scope='session')\ndef model_N():\n    KEPT_N.append(make(SIZE))\n    yield 1\n"
        "def test_N(model_N):\n    pass\n",
        {"test_N": "nothing"},
        {"model_N": "retained"},
    ),
    "fixture that leaks in its teardown": Whole(
        "KEPT_N = []\n@pytest.fixture(scope='module')\ndef model_N():\n    value = make(SIZE)\n    yield 1\n    KEPT_N.append(value)\n"
        "def test_N(model_N):\n    pass\n",
        {"test_N": "nothing"},
        {"model_N": "retained"},
    ),
    "parametrized fixture that grows": Whole(
        "KEPT_N = []\n@pytest.fixture(scope='module', params=['a', 'b', 'c'])\ndef model_N(request):\n"
        "    KEPT_N.append(make(SIZE))\n    yield request.param\ndef test_N(model_N):\n    pass\n",
        {"test_N[a]": "nothing", "test_N[b]": "nothing", "test_N[c]": "nothing"},
        {"model_N": "growing"},
        forbids=("xdist", "order"),
    ),
    "fixture that lets go": Whole(
        "@pytest.fixture(scope='module')\ndef model_N():\n    kept = [make(SIZE)]\n    yield kept\n    kept.clear()\n"
        "def test_N(model_N):\n    assert len(model_N) == 1\ndef test_N_b(model_N):\n    assert len(model_N) == 1\n",
        {"test_N": "nothing", "test_N_b": "nothing"},
    ),
    "a test that fills a shared fixture": Whole(
        "@pytest.fixture(scope='module')\ndef bag_N():\n    return []\ndef test_N(bag_N):\n    bag_N.append(make(SIZE))\n"
        "def test_N_b(bag_N):\n    assert bag_N is not None\n",
        {"test_N": "shared", "test_N_b": "nothing"},
    ),
    "a test that fills a session's fixture": Whole(
        "@pytest.fixture(scope='session')\ndef bag_N():\n    return []\ndef test_N(bag_N):\n    bag_N.append(make(SIZE))\n"
        "def test_N_b(bag_N):\n    assert bag_N is not None\n",
        {"test_N": "shared", "test_N_b": "nothing"},
    ),
    "autouse fixtures of all scopes": Whole(
        "",
        {},
        conftest="".join(
            f"@pytest.fixture(scope='{scope}', autouse=True)\ndef auto_{scope}_N(request):\n    value = make(256)\n    yield value\n"
            for scope in ("function", "class", "module", "package", "session")
        ),
    ),
    "plain class that keeps": Whole(
        "class TestN:\n    def test_it(self):\n        self.value = make(SIZE)\n", {"TestN::test_it": "retained"}
    ),
    "TestCase that keeps": Whole(
        "class TestN(unittest.TestCase):\n    def setUp(self):\n        self.model = make(SIZE)\n    def test_it(self):\n        self.value = make(SIZE)\n",
        {"TestN::test_it": "nothing"},
    ),
    "setUpClass that leaks": Whole(
        "class TestN(unittest.TestCase):\n    @classmethod\n    def setUpClass(cls):\n        cls.model = make(SIZE)\n"
        "    def test_a(self):\n        pass\n    def test_b(self):\n        pass\n",
        {"TestN::test_a": "nothing", "TestN::test_b": "nothing"},
        {"TestN.setUpClass": "retained"},
    ),
    "setup_class that leaks": Whole(
        "class TestN:\n    @classmethod\n    def setup_class(cls):\n        cls.model = make(SIZE)\n    def test_a(self):\n        pass\n",
        {"TestN::test_a": "nothing"},
        {"TestN.setup_class": "retained"},
    ),
    "fixture that fails": Whole(
        "@pytest.fixture(scope='SCOPE')\ndef bad_N():\n    value = make(SIZE)\n    raise RuntimeError('soak setup N')\n"
        "def test_N(bad_N):\n    pass\ndef test_N_b(bad_N):\n    pass\n",
        {"test_N": "unchecked", "test_N_b": "unchecked"},
    ),
    "fixture that fails in its teardown": Whole(
        "@pytest.fixture\ndef bad_N():\n    value = make(SIZE)\n    yield value\n    raise RuntimeError('soak teardown N')\n"
        "def test_N(bad_N):\n    pass\n",
        {"test_N": "unchecked"},
    ),
    "class fixture that fails in its teardown": Whole(
        "class TestN:\n    @pytest.fixture(scope='class')\n    def bad_N(self):\n        yield make(64)\n        raise RuntimeError('soak teardown N')\n"
        "    def test_a(self, bad_N):\n        pass\n    def test_b(self, bad_N):\n        pass\n",
        {"TestN::test_a": "nothing", "TestN::test_b": "unchecked"},
        forbids=("xdist", "order"),
    ),
    "fixture that skips": Whole(
        "@pytest.fixture(scope='SCOPE')\ndef absent_N():\n    pytest.skip('soak N')\ndef test_N(absent_N):\n    pass\n",
        {"test_N": "unchecked"},
    ),
    "dynamic fixture": Whole(
        "@pytest.fixture\ndef late_N():\n    return make(SIZE)\ndef test_N(request):\n    assert request.getfixturevalue('late_N') is not None\n",
        {"test_N": "nothing"},
    ),
    "fixtures on fixtures": Whole(
        "@pytest.fixture(scope='session')\ndef one_N():\n    return make(128)\n@pytest.fixture(scope='module')\ndef two_N(one_N):\n    yield [one_N, make(128)]\n"
        "@pytest.fixture\ndef three_N(two_N):\n    yield [*two_N, make(128)]\ndef test_N(three_N):\n    assert len(three_N) == 3\n"
        "def test_N_b(three_N, two_N):\n    assert three_N[0] is two_N[0]\n",
        {"test_N": "nothing", "test_N_b": "nothing"},
    ),
    "subtests that fail": Whole(
        "class TestN(unittest.TestCase):\n    def test_it(self):\n        for i in range(3):\n            with self.subTest(i=i):\n"
        "                value = make(SIZE)\n                self.assertNotEqual(i, 1)\n",
        {"TestN::test_it": "unchecked"},
    ),
    "subtests fixture": Whole(
        "def test_N(subtests):\n    for i in range(3):\n        with subtests.test(i=i):\n            assert make(64) is not None\n",
        {"test_N": "nothing"},
    ),
    "expected failure of unittest": Whole(
        "class TestN(unittest.TestCase):\n    @unittest.expectedFailure\n    def test_it(self):\n        value = make(SIZE)\n        self.fail('soak')\n"
        "    @unittest.skip('soak')\n    def test_skipped(self):\n        pass\n",
        {"TestN::test_it": "unchecked", "TestN::test_skipped": "unchecked"},
    ),
    "timeout": Whole(
        "@pytest.mark.timeout(0.3, method='signal')\ndef test_N():\n    value = make(SIZE)\n    threading.Event().wait(20)\n",
        {"test_N": "unchecked"},
        plugin="pytest_timeout",
        forbids=("reruns",),  # its timer covers the first attempt alone
    ),
    "flaky": Whole(
        "TRIES_N = []\n@pytest.mark.flaky(reruns=2)\ndef test_N():\n    TRIES_N.append(1)\n    value = make(SIZE)\n    assert len(TRIES_N) > 1\n",
        {"test_N": "nothing"},
        plugin="pytest_rerunfailures",
    ),
    "flaky and leaking": Whole(
        "KEPT_N = []\n@pytest.mark.flaky(reruns=1)\ndef test_N():\n    KEPT_N.append(make(SIZE))\n",
        {"test_N": "growing"},
        plugin="pytest_rerunfailures",
    ),
    "hypothesis": Whole(
        "@hypothesis.given(hypothesis.strategies.lists(hypothesis.strategies.integers(), max_size=4))\n"
        "@hypothesis.settings(max_examples=8, deadline=None, database=None, derandomize=True)\n"
        "def test_N(numbers):\n    assert sorted(numbers)[:1] == ([min(numbers)] if numbers else [])\n",
        {"test_N": "unsure"},
        plugin="hypothesis",
    ),
    "hypothesis that fails": Whole(
        "@hypothesis.given(hypothesis.strategies.integers())\n"
        "@hypothesis.settings(max_examples=20, deadline=None, database=None, derandomize=True)\n"
        "def test_N(number):\n    value = make(SIZE)\n    assert number < 3\n",
        {"test_N": "unchecked"},
        plugin="hypothesis",
    ),
    "doctest": Whole(
        'def documented_N(x):\n    """\n    >>> documented_N(1)\n    2\n    """\n    return x + 1\n',
        {"@doctest documented_N": "nothing"},
    ),
    "doctest that fails": Whole(
        'def documented_N(x):\n    """\n    >>> documented_N(1)\n    3\n    """\n    return x + 1\n',
        {"@doctest documented_N": "unchecked"},
    ),
    "processes": Whole(
        "def work_N(queue):\n    queue.put(5)\ndef test_N():\n    context = multiprocessing.get_context('fork')\n    queue = context.Queue()\n"
        "    process = context.Process(target=work_N, args=(queue,))\n    process.start()\n    assert queue.get(timeout=30) == 5\n    process.join()\n"
        "    queue.close()\n    queue.join_thread()\n",
        {"test_N": "nothing"},
    ),
    "a process that stays for a while": Whole(
        "STARTED_N = []\ndef test_N():\n    quiet = {'stdin': subprocess.DEVNULL, 'stdout': subprocess.DEVNULL, 'stderr': subprocess.DEVNULL}\n"
        "    STARTED_N.append(subprocess.Popen(['sleep', '1.5'], **quiet))\n    STARTED_N[-1].returncode = 0\n",  # no warning at its end
        {"test_N": "any"},
    ),
    "an executor that stays": Whole(
        "from concurrent.futures import ThreadPoolExecutor\nPOOL_N = ThreadPoolExecutor(1)\ndef test_N():\n"
        "    POOL_N.submit(lambda: make(SIZE)).result()\n",
        {"test_N": "unsure"},
    ),
    "a broken finalizer": Whole(
        "class Broken_N:\n    def __del__(self):\n        self.value = make(64)\n        KEPT_N.append(1)\nKEPT_N = []\ndef test_N():\n"
        "    broken = Broken_N()\n    del broken\n    assert KEPT_N\n",
        {"test_N": "nothing"},
    ),
    "resurrection": Whole(
        "KEPT_N = []\nclass Lazarus_N:\n    def __del__(self):\n        if not KEPT_N:\n            KEPT_N.append(self)\ndef test_N():\n"
        "    lazarus = Lazarus_N()\n    lazarus.value = make(SIZE)\n",
        {"test_N": "retained"},
    ),
    "leaks only the first time": Whole(
        "KEPT_N = []\nCALLS_N = []\ndef test_N():\n    CALLS_N.append(1)\n    if len(CALLS_N) == 1:\n        KEPT_N.append(make(SIZE))\n",
        {"test_N": "retained"},
    ),
    "fails when run again": Whole(
        "KEPT_N = []\ndef test_N():\n    assert not KEPT_N\n    KEPT_N.append(make(SIZE))\n", {"test_N": "retained"}
    ),
    "skips when run again": Whole(
        "KEPT_N = []\ndef test_N():\n    if KEPT_N:\n        pytest.skip('soak')\n    KEPT_N.append(make(SIZE))\n",
        {"test_N": "retained"},
    ),
    "exits when run again": Whole(
        "KEPT_N = []\ndef test_N():\n    if KEPT_N:\n        ENDING\n    KEPT_N.append(make(SIZE))\n",
        {"test_N": "retained"},
    ),
    "a warning of its own": Whole(
        "def test_N():\n    with warnings.catch_warnings():\n        warnings.simplefilter('error')\n        with pytest.raises(UserWarning):\n"
        "            warnings.warn('soak N', UserWarning)\n",
        {"test_N": "nothing"},
    ),
    "own hooks": Whole(
        "def test_N(request):\n    assert request.node.name == 'test_N'\n    request.node.add_marker('soak_mark')\n",
        {"test_N": "nothing"},
        conftest="def pytest_runtest_logreport(report):\n    if report.when == 'call':\n        print('soak logged', report.nodeid, report.outcome)\n"
        "def pytest_runtest_teardown(item):\n    print('soak teardown of', item.name)\n",
    ),
    "own protocol": Whole(
        "def test_N():\n    assert make(64) is not None\n",
        {"test_N": "nothing"},
        conftest="@pytest.hookimpl(wrapper=True)\ndef pytest_runtest_call(item):\n    item.soak_calls_N = getattr(item, 'soak_calls_N', 0) + 1\n"
        "    return (yield)\n",
    ),
    "mocker": Whole(
        "def test_N(mocker):\n    stub = mocker.patch('os.path.exists', return_value=True)\n    stub(make(SIZE))\n    assert stub.call_count == 1\n",
        {"test_N": "unsure"},
        plugin="pytest_mock",
    ),
    "modules put back": Whole(
        "KEPT_N = []\n@pytest.fixture(scope='module')\ndef modules_N():\n    saved = dict(sys.modules)\n    yield\n"
        "    for name in set(sys.modules) - set(saved):\n        if not name.startswith('torch'):\n            del sys.modules[name]\n"
        "def test_N(modules_N):\n    KEPT_N.append(make(SIZE))\n",
        {"test_N": "growing"},
    ),
    "a thread that works": Whole(
        "class TestN:\n    @pytest.fixture(scope='class', autouse=True)\n    def busy_N(self):\n        stop = threading.Event()\n"
        "        def work():\n            while not stop.wait(0.0005):\n                made = [make(64) for _ in range(3)]\n                made.append(made)\n"
        "        thread = threading.Thread(target=work)\n        thread.start()\n        yield\n        stop.set()\n        thread.join()\n"
        "    def test_a(self):\n        assert make(SIZE) is not None\n    def test_b(self):\n        threading.Event().wait(0.02)\n",
        {"TestN::test_a": "busy", "TestN::test_b": "busy"},
    ),
    "an older thread that fills a list": Whole(
        "KEPT_N = []\ndef test_N():\n    thread = threading.Thread(target=lambda: KEPT_N.append(make(SIZE)))\n    thread.start()\n    thread.join()\n"
        "def test_N_b():\n    assert KEPT_N\n",
        {"test_N": "growing", "test_N_b": "nothing"},
        forbids=("xdist", "order", "reruns"),
    ),
    "indirect": Whole(
        "@pytest.fixture(scope='module')\ndef sized_N(request):\n    yield make(request.param)\n"
        "@pytest.mark.parametrize('sized_N', [100, 200], indirect=True)\ndef test_N(sized_N):\n    assert sized_N is not None\n"
        "@pytest.mark.parametrize('sized_N', [100, 200], indirect=True)\ndef test_N_b(sized_N):\n    assert sized_N is not None\n",
        {f"test_N{suffix}[{size}]": "nothing" for suffix in ("", "_b") for size in (100, 200)},
    ),
    "exit": Whole(
        "def test_N():\n    pytest.exit('soak')\ndef test_N_never():\n    pass\n", {}, last=True, forbids=("xdist",)
    ),
    "KeyboardInterrupt": Whole(
        "def test_N():\n    raise KeyboardInterrupt\ndef test_N_never():\n    pass\n", {}, last=True, forbids=("xdist",)
    ),
    "SystemExit": Whole("def test_N():\n    raise SystemExit(3)\n", {"test_N": "unchecked"}),
    "os._exit": Whole("def test_N():\n    os._exit(5)\n", {}, last=True, forbids=("xdist",)),
    "a file that cannot be collected": Whole("raise ImportError('soak')\n", {}, last=True),
}
