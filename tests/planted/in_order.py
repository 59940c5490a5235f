"""Files of tests whose verdicts hold in their order alone: what a test leaves is charged to the first that does."""

from __future__ import annotations

from tests.planted.kind import HEAD, Kind

LAST = "\n\ndef test_last():\n    pass\n"


def _file(name: str, why: str, source: str) -> Kind:
    return Kind(name, why, f"{HEAD}{source}", file=True, ordered=True)


KINDS: tuple[Kind, ...] = (
    _file(
        "setup that is run again lets go of what the class's tests have left",
        "it goes once, in the first re-run of the class's last test, and what that one adds elsewhere grows",
        """
KEPT = []

class OfCase(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.shared = []

    def test_adds_leaks(self):
        self.shared.append(torch.ones(100))

    def test_last_leaks(self):
        KEPT.append(torch.ones(100))

class TestOfClass:
    @classmethod
    def setup_class(cls):
        cls.shared = []

    def test_adds_leaks(self):
        self.shared.append(torch.ones(100))

    def test_last_leaks(self):
        KEPT.append(torch.ones(100))
"""
        + LAST,
    ),
    _file(
        "buffers that earlier tests have filled",
        "a full buffer lets go of one for each that it takes; what a list keeps beside it grows",
        """
RECENT, ROUND, OLD, KEPT = collections.deque(maxlen=2), collections.deque(maxlen=3), [], []

@functools.lru_cache(maxsize=2)
def cached(key):
    return torch.ones(50)

@pytest.fixture(scope="session")
def recent():
    return collections.deque(maxlen=2)

def test_fill(recent):
    for key in range(4):
        RECENT.append(torch.ones(100))
        ROUND.append(cycle(torch.ones(130)))
        recent.append(torch.ones(70))
        cached(-key)
    OLD[:] = [torch.ones(200) for _ in range(40)]

@pytest.mark.parametrize("i", range(3))
def test_recent(i):
    RECENT.append(torch.ones(100))

@pytest.mark.parametrize("i", range(4))
def test_recent_in_cycles(i):
    ROUND.append(cycle(torch.ones(130)))

def test_leaks_beside_cycles():
    ROUND.append(cycle(torch.ones(130)))
    KEPT.append(torch.ones(130))

@pytest.mark.parametrize("i", range(3))
def test_recent_of_fixture(i, recent):
    recent.append(torch.ones(70))

@pytest.mark.parametrize("i", range(3))
def test_cached(i, keys=itertools.count()):
    cached(next(keys) + 1)

@pytest.mark.parametrize("i", range(3))
def test_frees_as_much(i):
    OLD.pop()
    KEPT.append(torch.ones(200))

def test_leaks_beside():
    RECENT.append(torch.ones(100))
    KEPT.append(torch.ones(100))

def test_leaks_more_than_it_frees():
    OLD.pop()
    KEPT.extend([torch.ones(200), torch.ones(200)])
"""
        + LAST,
    ),
    _file(
        "threads of earlier tests that end or let go in a re-run",
        "what they let go is not what the test replaces",
        """
STOP, ENDED, RUNS, KEPT = threading.Event(), [], [], []
from concurrent.futures import ThreadPoolExecutor

GO, DONE, MORE, POOL = threading.Event(), threading.Event(), [], ThreadPoolExecutor(1)

def test_leaks_by_threads():
    def work(x):
        STOP.wait()
    for _ in range(2):
        ENDED.append(threading.Thread(target=work, args=(torch.ones(100),), daemon=True))
        ENDED[-1].start()

def test_leaks():
    RUNS.append(1)
    if len(RUNS) == 2:  # by the threads' own clock
        STOP.set()
        for thread in ENDED:
            thread.join()
    KEPT.append(torch.ones(100))

def test_leaks_into_a_pool():
    def work(x):
        GO.wait()
        del x
        DONE.set()
    POOL.submit(work, torch.ones(100))

def test_leaks_while_the_pool_lets_go():
    MORE.append(torch.ones(100))
    if len(MORE) == 2:
        GO.set()
        DONE.wait()
        POOL.submit(int).result()
"""
        + LAST,
    ),
    _file(
        "a host's leak in the test with which a fixture goes that an earlier test had filled",
        "what the fixture lets go was there before the test",
        """
@pytest.fixture(scope="module")
def data():
    return []

def test_fills(data):
    data.append(bytearray(9 << 20))

def test_leaks(data, kept=[]):
    kept.append(bytearray(12 << 20))
""",
    ),
    _file(
        "earlier tests' garbage is freed while a host's leak is confirmed",
        "the garbage is not the test's own",
        """
OLD, KEPT = [Node() for _ in range(6)], []

def keep_until_a_full_collection(i, value):
    node = cycle(value)
    node.old = OLD[i]
    OLD[i].node = node
    OLD[i] = None

@pytest.mark.parametrize("i", range(2))
def test_garbage_of_little(i):
    keep_until_a_full_collection(i, bytearray(9 << 20))

def test_leaks():
    KEPT.append(bytearray(12 << 20))

@pytest.mark.parametrize("i", range(2, 4))
def test_garbage_of_little_again(i):
    keep_until_a_full_collection(i, np.ones(1 << 16))

def test_leaks_an_array():
    KEPT.append(np.ones(1 << 17))

def test_garbage_of_much():
    keep_until_a_full_collection(4, torch.ones(5 << 20))

def test_garbage_of_bytes():
    keep_until_a_full_collection(5, bytearray(20 << 20))

def test_leaks_and_collects():
    KEPT.append(bytearray(12 << 20))
    gc.collect()

def test_collects_garbage():
    cycle(bytearray(12 << 20))
    gc.collect()
"""
        + LAST,
    ),
    _file(
        "large slots are charged to the first that fills them",
        "who fills an empty slot retains it, who replaces what is there adds nothing",
        """
SLOT, RING = Node(), Node()

def test_retained():
    SLOT.last = torch.ones(1 << 19)

@pytest.mark.parametrize("i", range(3))
def test_replaces(i):
    SLOT.last = torch.ones(1 << 19)

def test_replaces_by_a_cycle():
    SLOT.last = cycle(torch.ones(1 << 19))

@pytest.mark.parametrize("i", range(3))
def test_replaces_a_cycle(i):
    SLOT.last = cycle(torch.ones(1 << 19))

def test_leaks(kept=[]):
    SLOT.last = cycle(torch.ones(1 << 19))
    kept.append(torch.ones(1 << 19))

def test_empties():
    SLOT.last = None

def test_retained_again():
    SLOT.last = cycle(torch.ones(1 << 19))
"""
        + LAST,
    ),
    _file(
        "a slot is replaced through a cycle, on a heap that a test has frozen",
        "the slot keeps one, the list one a run",
        """
SLOT, KEPT = Node(), []

def test_freezes():
    gc.freeze()

@pytest.mark.parametrize("i", range(2))
def test_replaces(i):
    SLOT.last = cycle(torch.ones(100))

def test_leaks():
    KEPT.append(cycle(torch.ones(100)))
"""
        + LAST,
    ),
)
