"""What random suites are made of: how a test holds on to memory, what else it does, where it does it, how it ends.

Written as a user would write it. ``N`` in a name becomes the piece's number, ``SIZE`` the bytes of an array; `make` and
`say` come from the suite's own `soak_support`. Each snippet is one to be crossed with the others, so that none relies on
another's names.
"""

from __future__ import annotations

import dataclasses
import string
from typing import TYPE_CHECKING, Final, Literal

from tests.planted.table import KINDS

if TYPE_CHECKING:
    from collections.abc import Mapping

Stays = Literal["growing", "retained", "cycle", "nothing"]
"""What a passing test leaves: more with each run, the same after each run, garbage for the collector, nothing."""


@dataclasses.dataclass(frozen=True)
class Holder:
    """How a test holds on to an array.

    Attributes:
        body: the statements in the test.
        stays: what is left after it.
        declared: what stands before the test, at the level of the module.
    """

    body: str
    stays: Stays
    declared: str = ""


@dataclasses.dataclass(frozen=True)
class Noise:
    """What a test does beside holding memory, and what no later test may notice because of the check.

    Attributes:
        body: the statements.
        fixtures: fixtures of pytest's that they use.
        declared: what stands before the test.
        once: whether it does harm in a loop or beside another of its kind.
    """

    body: str
    fixtures: tuple[str, ...] = ()
    declared: str = ""


@dataclasses.dataclass(frozen=True)
class Place:
    """Where a test's body stands.

    Attributes:
        source: has ``@BODY`` on a line of its own, indented, and ``@FIXTURES`` where fixtures can be asked for.
        tests: the ids below the file that run the body; each is judged alike.
        clean_tests: ids of tests of the place that do not run it.
        flow: whether an exception of the body's (a failure, a skip) ends the test as such.
        counted: whether a run of the test runs the body to its end once: where not, garbage may be found meanwhile.
        unsure: whether the place itself may leave garbage for the collector.
        plugin: the module that must be installed.
    """

    source: str
    tests: tuple[str, ...]
    clean_tests: tuple[str, ...] = ()
    flow: bool = True
    unsure: bool = False
    plugin: str = ""


LEAVES: Final[Mapping[Stays, tuple[str, ...]]] = {
    "nothing": (
        "local",
        "caught exception",
        "queue emptied",
        "suspended generator dropped",
        "thread that lets go late",  # what goes while the collector runs may pass for garbage
    ),
    "cycle": ("garbage", "exception in its own frame"),
    "growing": (
        "list",
        "set",
        "dict by a counter",
        "class attribute",
        "cycles in a list",
        "cache without a bound",
        "closure's list",
        "default argument",
        "suspended generators",
        "exceptions",
        "partials",
        "threads that never end",
        "exit functions",
        "finalizers of a global",
        "objects with slots",
        "classes",
        "modules",
        "mock's calls",
        "queue",
        "several at once",
    ),
    "retained": (
        "dict by a constant",
        "filled once",
        "class attribute replaced",
        "function's attribute replaced",
        "global name",
        "cached property",
    ),
}
"""Kinds of the table of planted leaks (tests/planted) by what they leave."""


def _holder(name: str, stays: Stays) -> Holder:
    declared, body = (string.Template(part).substitute(n="_N", array="make(SIZE)") for part in KINDS[name].parts)
    return Holder(body, stays, declared)


HOLDERS = {name: _holder(name, stays) for stays, names in LEAVES.items() for name in names}

NOISES = {
    "print": Noise("print('soak out N')"),
    "stderr": Noise("import sys\nprint('soak err N', file=sys.stderr)"),
    "descriptor": Noise("import os\nos.write(1, b'soak fd N\\n')"),
    "random": Noise("import random\nsay('draws', 'N', random.random())"),
    "seeded": Noise("import random\nrandom.seed(5)\nsay('draws', 'N', random.randrange(10**6))"),
    "own generator": Noise("say('draws', 'N', RANDOM_N.random())", (), "import random\nRANDOM_N = random.Random(1)"),
    "log": Noise("import logging\nlogging.getLogger('soak').warning('soak log N')"),
    "warn": Noise("import warnings\nwarnings.simplefilter('always')\nwarnings.warn('soak warning N', UserWarning)"),
    "collect": Noise("import gc\ngc.collect()"),
    "collect young": Noise("import gc\ngc.collect(0)"),
    "freeze": Noise("import gc\ngc.freeze()\ngc.unfreeze()"),
    "freeze for good": Noise("import gc\ngc.freeze()"),
    "unfreeze": Noise("import gc\ngc.unfreeze()"),
    "disable": Noise("import gc\ngc.disable()"),
    "enable": Noise("import gc\ngc.enable()\nassert gc.isenabled()"),
    "get_objects": Noise(
        "import gc\nclass Seen: pass\nseen = Seen()\nassert [one for one in gc.get_objects() if type(one) is Seen]\ndel seen"
    ),
    "get_objects of a generation": Noise("import gc\nassert gc.get_objects(0) is not None"),
    "referrers": Noise(
        "import gc\nowner = [make(64)]\nassert any(one is owner for one in gc.get_referrers(owner[0]))\ndel owner"
    ),
    "old objects": Noise(
        "import gc\nsay('old', any(one is OLD_N for one in gc.get_objects()))",
        (),
        "class Old_N:\n    pass\nOLD_N = Old_N()",
    ),
    "freeze count": Noise("import gc\nsay('frozen', gc.get_freeze_count() > 1000)"),
    "weakref": Noise(
        "import gc, weakref\nclass Seen: pass\nseen = Seen()\nseen.me = seen\nseen = weakref.ref(seen)\n"
        "gc.collect()\nassert seen() is None"
    ),
    "threshold": Noise("import gc\ngc.set_threshold(400, 5, 5)\nassert gc.get_threshold() == (400, 5, 5)"),
    "gc callback": Noise(
        "import gc\ncalls = []\ndef note(phase, info):\n    calls.append(phase)\n"
        "gc.callbacks.append(note)\ngc.collect()\ngc.callbacks.remove(note)\nassert calls == ['start', 'stop'], calls"
    ),
    "gc stats": Noise(
        "import gc\nbefore = gc.get_stats()[2]['collections']\ngc.collect()\nassert gc.get_stats()[2]['collections'] == before + 1\ndel before"
    ),
    "many objects": Noise("junk = [[i] for i in range(3000)]\ndel junk"),
    "frames": Noise("import sys\nassert sys._getframe() is not None"),
    "chdir": Noise("import os\nos.chdir(tmp_path)", ("tmp_path",)),
    "chdir into what goes": Noise(
        "import os\nfolder = os.path.join(HERE, 'gone-N')\nos.mkdir(folder)\nos.chdir(folder)\nos.rmdir(folder)\nos.chdir('/')"
    ),
    "environ": Noise("import os\nos.environ['SOAK_N'] = 'set'"),
    "environ cleared": Noise("import os\nsaved = dict(os.environ)\nos.environ.pop('HOME', None)"),
    "monkeypatch": Noise(
        "import os, time\nmonkeypatch.setenv('SOAK_M', 'N')\nmonkeypatch.setattr(time, 'sleep', lambda seconds: None)",
        ("monkeypatch",),
    ),
    "time stands still": Noise(
        "import time\nmonkeypatch.setattr(time, 'perf_counter', lambda: 0.0)\nmonkeypatch.setattr(time, 'monotonic', lambda: 0.0)",
        ("monkeypatch",),
    ),
    "open is patched": Noise(
        "import builtins, os\ndef broken(*arguments, **options):\n    raise OSError('no files here')\n"
        "monkeypatch.setattr(os, 'getcwd', broken)\nmonkeypatch.setattr(os, 'getpid', lambda: 1)",
        ("monkeypatch",),
    ),
    "sys.modules": Noise(
        "import sys\nmonkeypatch.delitem(sys.modules, 'json', raising=False)\nimport json", ("monkeypatch",)
    ),
    "hostile module": Noise(
        "import sys\nsys.modules['soak_hostile_N'] = Hostile_N()",
        (),
        "class Hostile_N:\n    def __getattr__(self, name):\n        raise RuntimeError('soak: hands off')\n"
        "    __class__ = property(lambda self: 1 / 0)",
    ),
    "None in sys.modules": Noise("import sys\nsys.modules['soak_none_N'] = None"),
    "tmp_path": Noise("(tmp_path / 'made-N').write_text('soak')", ("tmp_path",)),
    "tmp_path_factory": Noise("(tmp_path_factory.mktemp('soakN') / 'x').write_text('soak')", ("tmp_path_factory",)),
    "a file": Noise("import pathlib\npathlib.Path(HERE, 'written-N').write_text('soak')"),
    "capsys": Noise("print('seen N')\nassert 'seen N' in capsys.readouterr().out", ("capsys",)),
    "capfd": Noise("import os\nos.write(1, b'fd N')\nassert 'fd N' in capfd.readouterr().out", ("capfd",)),
    "caplog": Noise(
        "import logging\nlogging.getLogger('soak').error('log N')\nassert any('log N' in one for one in caplog.messages)",
        ("caplog",),
    ),
    "recwarn": Noise("import warnings\nwarnings.warn('w N')\nassert len(recwarn) == 1", ("recwarn",)),
    "property": Noise("record_property('soak', 'N')", ("record_property",)),
    "finalizer": Noise("request.addfinalizer(lambda: print('soak finalizer N'))", ("request",)),
    "cache": Noise("request.config.cache.set('soak/N', 1)", ("request",)),
    "recursion": Noise("def deep():\n    return deep()\ntry:\n    deep()\nexcept RecursionError:\n    pass"),
    "fork": Noise(
        "import os\nchild = os.fork()\nif not child:\n    os._exit(0)\nos.waitpid(child, 0)\nchild = 0"
    ),  # no number of a process in what `--showlocals` shows
    "subprocess": Noise("import subprocess, sys\nsubprocess.run([sys.executable, '-S', '-c', 'pass'], check=True)"),
    "thread": Noise(
        "import threading\nthread = threading.Thread(target=lambda: make(64))\nthread.start()\nthread.join()"
    ),
    "pool": Noise(
        "from concurrent.futures import ThreadPoolExecutor\nwith ThreadPoolExecutor(2) as pool:\n"
        "    assert len(list(pool.map(len, [[], []]))) == 2"
    ),
    "asyncio": Noise("import asyncio\nasync def nothing():\n    await asyncio.sleep(0)\nasyncio.run(nothing())"),
    "settrace": Noise("import sys\nprevious = sys.gettrace()\nsys.settrace(None)\nsys.settrace(previous)"),
    "signal": Noise("import signal\nsignal.signal(signal.SIGUSR1, signal.SIG_IGN)"),
    "alarm": Noise(
        "import signal\nprevious = signal.signal(signal.SIGALRM, lambda *_: None)\nsignal.setitimer(signal.ITIMER_REAL, 5)\n"
        "signal.setitimer(signal.ITIMER_REAL, 0)\nsignal.signal(signal.SIGALRM, previous)"
    ),
    "excepthook": Noise("import sys\nsys.excepthook = lambda *_: None"),
    "unraisable": Noise("import sys\nassert sys.unraisablehook is not None"),
    "dead weakref proxy": Noise(
        "import weakref\nclass Gone: pass\nPROXIES_N.append(weakref.proxy(Gone()))", (), "PROXIES_N = []"
    ),
    "raises on everything": Noise(
        "HOSTILE_N.append(Hostile_N())",
        (),
        "HOSTILE_N = []\nclass Hostile_N:\n    def __getattribute__(self, name):\n        raise RuntimeError('soak')\n"
        "    def __eq__(self, other):\n        raise RuntimeError('soak')\n    __hash__ = None\n"
        "    def __repr__(self):\n        raise RuntimeError('soak')",
    ),
    "mock": Noise("from unittest import mock\nwith mock.patch('os.path.exists', return_value=True):\n    pass"),
    "tracemalloc": Noise("import tracemalloc\ntracemalloc.start()\ntracemalloc.stop()"),
    "time.sleep for good": Noise("import time\ntime.sleep = lambda seconds: None"),
    "os.path.exists for good": Noise("import os\nos.path.exists = lambda path: True"),
    "files closed": Noise(
        "import os\nfor number in range(40, 60):\n    try:\n        os.close(number)\n    except OSError:\n        pass"
    ),
    "logging disabled": Noise("import logging\nlogging.disable(logging.CRITICAL)\nlogging.disable(logging.NOTSET)"),
    "filters reset": Noise("import warnings\nwarnings.resetwarnings()"),
    "profiler": Noise("import sys\nsys.setprofile(lambda *_: None)\nsys.setprofile(None)"),
    "tracer for good": Noise("import sys\nsys.settrace(lambda *_: None)\nsys.settrace(None)"),
    "saveall": Noise("import gc\ngc.set_debug(gc.DEBUG_SAVEALL)\ngc.collect()\ngc.set_debug(0)\ngc.garbage.clear()"),
    "switch interval": Noise("import sys\nsys.setswitchinterval(1e-6)\nsys.setswitchinterval(0.005)"),
    "recursion limit": Noise("import sys\nsys.setrecursionlimit(20000)"),
    "sys.path": Noise("import sys\nsys.path.insert(0, '/nowhere')"),
    "stdout replaced": Noise(
        "import io, sys\nprevious, sys.stdout = sys.stdout, io.StringIO()\nprint('lost')\nsys.stdout = previous\ndel previous"
    ),
    "plugins unloaded": Noise(
        "import sys\nfor name in [name for name in sys.modules if name.startswith('pytest_gpuleak.')]:\n    del sys.modules[name]\nname = ''"
    ),
    "reload": Noise("import importlib, random\nimportlib.reload(random)\nrandom.seed(7)"),
    "umask": Noise("import os\nos.umask(0o077)"),
    "locale": Noise("import locale\nlocale.setlocale(locale.LC_ALL, 'C')"),
    "hash of a class": Noise(
        "made = Meta_N('Made', (), {})()\nassert made is not None",
        (),
        "class Meta_N(type):\n    def __eq__(cls, other):\n        raise RuntimeError('soak')\n    def __hash__(cls):\n        raise RuntimeError('soak')\n"
        "    def __instancecheck__(cls, other):\n        raise RuntimeError('soak')",
    ),
    "globals that lie": Noise(
        "GLOBALS_N['x'] = 1",
        (),
        "class Lies_N(dict):\n    def __iter__(self):\n        raise RuntimeError('soak')\n    def items(self):\n        raise RuntimeError('soak')\n"
        "    def __len__(self):\n        return 10**9\nGLOBALS_N = Lies_N()",
    ),
    "contextvars": Noise(
        "VAR_N.set(make(64))\nVAR_N.set(None)", (), "import contextvars\nVAR_N = contextvars.ContextVar('soakN')"
    ),
    "closed stdin": Noise("import sys\nassert sys.stdin is not None"),
}

ENDINGS = {
    "fails": ("assert 'soak' == 'N'", "unchecked"),
    "raises": ("raise RuntimeError('soak N')", "unchecked"),
    "fails with it": ("kept_local = make(SIZE)\nassert not kept_local", "unchecked"),
    "skips": ("pytest.skip('soak N')", "unchecked"),
    "xfails": ("pytest.xfail('soak N')", "unchecked"),
    "pytest.fail": ("pytest.fail('soak N')", "unchecked"),
}

MARKS = {
    "skip": ("@pytest.mark.skip(reason='soak')", False, "unchecked"),
    "skipif": ("@pytest.mark.skipif(True, reason='soak')", False, "unchecked"),
    "xfail that fails": ("@pytest.mark.xfail(reason='soak', strict=True)", True, "unchecked"),
    "xfail that passes": ("@pytest.mark.xfail(reason='soak', strict=False)", False, "passes"),
    "strict xfail that passes": ("@pytest.mark.xfail(reason='soak', strict=True)", False, "unchecked"),
    "usefixtures": ("@pytest.mark.usefixtures('tmp_path')", False, "passes"),
    "filterwarnings": ("@pytest.mark.filterwarnings('ignore')", False, "passes"),
    "timeout": ("@pytest.mark.timeout(60)", False, "passes"),
    "flaky": ("@pytest.mark.flaky(reruns=1)", False, "passes"),
    "allowed": ("@pytest.mark.allow_gpu_leak(reason='soak')", False, "allowed"),
    "budget": ("@pytest.mark.max_gpu_mb(100)", False, "passes"),
}
"""By name: the line, whether the body must fail, and what it makes of the test."""

PLACES = {
    "function": Place("@MARKS\ndef test_N(@FIXTURES):\n    @BODY\n", ("test_N",)),
    "function with fixtures": Place(
        "@pytest.fixture\ndef made_N():\n    value = make(128)\n    yield value\n    del value\n"
        "@MARKS\ndef test_N(made_N, @FIXTURES):\n    @BODY\n",
        ("test_N",),
    ),
    "method": Place(
        "class TestN:\n    @MARKS\n    def test_it(self, @FIXTURES):\n        @BODY\n    def test_other(self):\n        pass\n",
        ("TestN::test_it",),
        ("TestN::test_other",),
    ),
    "method with setup": Place(
        "class TestN:\n    def setup_method(self):\n        self.value = make(64)\n    def teardown_method(self):\n        del self.value\n"
        "    @MARKS\n    def test_it(self, @FIXTURES):\n        @BODY\n",
        ("TestN::test_it",),
    ),
    "TestCase": Place(
        "class TestN(unittest.TestCase):\n    @classmethod\n    def setUpClass(cls):\n        cls.shared = make(64)\n"
        "    @classmethod\n    def tearDownClass(cls):\n        del cls.shared\n"
        "    def setUp(self):\n        self.value = make(64)\n        self.addCleanup(print, 'soak cleanup N')\n"
        "    @MARKS\n    def test_it(self):\n        @BODY\n    def test_other(self):\n        assert self.shared is not None\n",
        ("TestN::test_it",),
        ("TestN::test_other",),
    ),
    "async": Place(
        "@MARKS\ndef test_N(@FIXTURES):\n    async def main():\n        @BODY\n    asyncio.run(main())\n",
        ("test_N",),
        unsure=True,
    ),
    "asyncio": Place(
        "@pytest.mark.asyncio\n@MARKS\nasync def test_N(@FIXTURES):\n    await asyncio.sleep(0)\n    @BODY\n",
        ("test_N",),
        unsure=True,
        plugin="pytest_asyncio",
    ),
    "IsolatedAsyncioTestCase": Place(
        "class TestN(unittest.IsolatedAsyncioTestCase):\n    async def test_it(self):\n        @BODY\n",
        ("TestN::test_it",),
        unsure=True,
    ),
    "parametrized": Place(
        "@MARKS\n@pytest.mark.parametrize('number', [1, 2, 3])\ndef test_N(number, @FIXTURES):\n    @BODY\n",
        ("test_N[1]", "test_N[2]", "test_N[3]"),
    ),
    "parametrized fixture": Place(
        "@pytest.fixture(params=['a', 'b'])\ndef kind_N(request):\n    return request.param\n"
        "@MARKS\ndef test_N(kind_N, @FIXTURES):\n    @BODY\n",
        ("test_N[a]", "test_N[b]"),
    ),
    "thread": Place(
        "@MARKS\ndef test_N(@FIXTURES):\n    def work():\n        @BODY\n    thread = threading.Thread(target=work)\n"
        "    thread.start()\n    thread.join()\n",
        ("test_N",),
        flow=False,
    ),
    "fixture's setup": Place(
        "@pytest.fixture\ndef it_N(@FIXTURES):\n    @BODY\n    yield 1\n@MARKS\ndef test_N(it_N):\n    assert it_N == 1\n",
        ("test_N",),
    ),
    "fixture's teardown": Place(
        "@pytest.fixture\ndef it_N(@FIXTURES):\n    yield 1\n    @BODY\n@MARKS\ndef test_N(it_N):\n    assert it_N == 1\n",
        ("test_N",),
        flow=False,
    ),
    "factory": Place(
        "@pytest.fixture\ndef factory_N(@FIXTURES):\n    def work():\n        @BODY\n    return work\n"
        "@MARKS\ndef test_N(factory_N):\n    factory_N()\n",
        ("test_N",),
    ),
    "with a module's fixture": Place(
        "@pytest.fixture(scope='module')\ndef shared_N():\n    value = make(4096)\n    yield value\n    del value\n"
        "@MARKS\ndef test_N(shared_N, @FIXTURES):\n    @BODY\ndef test_N_other(shared_N):\n    assert shared_N is not None\n",
        ("test_N",),
        ("test_N_other",),
    ),
    "subtests": Place(
        "class TestN(unittest.TestCase):\n    def test_it(self):\n        for i in range(2):\n            with self.subTest(i=i):\n"
        "                assert i < 5\n        @BODY\n",
        ("TestN::test_it",),
    ),
    "hypothesis": Place(
        "@hypothesis.settings(max_examples=3, deadline=None, database=None, derandomize=True)\n"
        "@hypothesis.given(number=hypothesis.strategies.integers())\ndef test_N(number):\n    @BODY\n",
        ("test_N",),
        flow=False,
        unsure=True,
        plugin="hypothesis",
    ),
}
