"""Fixed suites: what once was missed or a false alarm, and verdicts that rest on the order of the tests."""

from __future__ import annotations

from tests.verdicts.kind import HEAD
from tests.verdicts.suites import Suite


def _suite(name: str, source: str, *, ordered: bool = False) -> Suite:
    return Suite(name, f"{HEAD}{source}\n\ndef test_last():\n    pass\n", ordered=ordered)


CASES: tuple[Suite, ...] = (
    _suite(
        "garbage in a cycle with older objects, beside a leak alike",
        """
OLD, KEPT = [Node() for _ in range(40)], []

@pytest.mark.parametrize("i", range(20))
def test_garbage(i):
    node = cycle(torch.ones(100))
    node.old = OLD[i]
    OLD[i] = Node(node=node)
    OLD[i].me = OLD[i]
    OLD[i] = None

def test_leaks():
    KEPT.append(cycle(torch.ones(100)))
""",
    ),
    _suite(
        "a host's leak in a test of 0.3 s among quick ones",
        """
KEPT = []

@pytest.mark.parametrize("i", range(20))
def test_quick(i):
    pass

def test_leaks():
    time.sleep(0.3)
    KEPT.append(bytearray(12 << 20))

@pytest.mark.parametrize("i", range(20))
def test_quick_too(i):
    pass
""",
    ),
    _suite(
        "a module's fixture keeps the last trainer with its model",
        """
@pytest.fixture(scope="module")
def data():
    return Node(trainer=None)

@pytest.mark.parametrize("i", range(6))
def test_fit(data, i):
    model = torch.nn.Linear(512, 1536)
    data.trainer = Node(model=model)
    model.__dict__["trainer"] = data.trainer
    model(torch.ones(4, 512)).sum().backward()
""",
    ),
    _suite(
        "one of sixty that replace also leaks",
        """
HISTORY = []

@pytest.mark.parametrize("i", range(60), ids=lambda i: f"{i}-leaks" if i == 37 else str(i))
def test_step(i):
    time.sleep(0.02)
    x = torch.ones(100) + i
    if i == 37:
        STATE.clear()
        HISTORY.append(x)
    else:
        STATE["last"] = x
""",
    ),
    _suite(
        "the tenth of twelve objects as parameters keeps all",
        """
BOXES = [Box(f"b{i}") for i in range(12)]

@pytest.mark.parametrize("box", BOXES, ids=lambda box: f"{box}-leaks" if box.name == "b9" else str(box))
def test_box(box):
    x = torch.ones(64)
    box.kept = [*box.kept, x] if box.name == "b9" else [x]
""",
    ),
    _suite(
        "two leaks alike to what slow tests replace",
        """
HISTORY = []

@pytest.mark.parametrize("i", range(3))
def test_step(i):
    time.sleep(0.6)
    STATE["last"] = torch.ones(100) + i

def test_leaks():
    time.sleep(0.6)
    STATE.clear()
    HISTORY.append(torch.ones(100))

def test_leaks_too():
    time.sleep(0.6)
    HISTORY.append(torch.ones(100))
""",
    ),
    _suite(
        "a session's fixture keeps the last batch, and in one test every one",
        """
@pytest.fixture(scope="session")
def service():
    return Node(last=None, log=[])

@pytest.mark.parametrize("i", range(4))
def test_serves(service, i):
    service.last = torch.ones(512, 1024) + i

def test_grows(service):
    service.last = torch.ones(512, 1024)
    service.log.append(torch.ones(8))
""",
    ),
    _suite(
        "setup empties what each test fills; one also fills another list",
        """
OTHER = []

@pytest.fixture(autouse=True)
def reset():
    STORE.clear()

@pytest.mark.parametrize("i", range(8))
def test_fills(i):
    STORE.append(torch.ones(100) + i)

def test_leaks():
    STORE.append(torch.ones(100))
    OTHER.append(torch.ones(100))
""",
    ),
    _suite(
        "buffers that earlier tests have filled",
        """
RECENT, OLD, KEPT = collections.deque(maxlen=2), [], []

@functools.lru_cache(maxsize=2)
def cached(key):
    return torch.ones(50)

@pytest.fixture(scope="session")
def recent():
    return collections.deque(maxlen=2)

def test_fill(recent):
    for key in range(4):
        RECENT.append(torch.ones(100))
        recent.append(torch.ones(70))
        cached(-key)
    OLD[:] = [torch.ones(200) for _ in range(40)]

@pytest.mark.parametrize("i", range(5))
def test_recent(i):
    RECENT.append(torch.ones(100))

@pytest.mark.parametrize("i", range(5))
def test_recent_of_fixture(i, recent):
    recent.append(torch.ones(70))

@pytest.mark.parametrize("i", range(5))
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
""",
        ordered=True,
    ),
    _suite(
        "large slots are charged to the first that fills them",
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
""",
        ordered=True,
    ),
    Suite(
        "a host's leak in the test with which a fixture goes that an earlier test had filled",
        HEAD
        + """
@pytest.fixture(scope="module")
def data():
    return []

def test_fills(data):
    data.append(bytearray(9 << 20))

def test_leaks(data, kept=[]):
    kept.append(bytearray(12 << 20))
""",
        ordered=True,
    ),
    _suite(
        "earlier tests' garbage is freed while a host's leak is confirmed",
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
""",
        ordered=True,
    ),
    _suite(
        "a slot is replaced through a cycle, on a heap that a test has frozen",
        """
SLOT, KEPT = Node(), []

def test_freezes():
    gc.freeze()

@pytest.mark.parametrize("i", range(2))
def test_replaces(i):
    SLOT.last = cycle(torch.ones(100))

def test_leaks():
    KEPT.append(cycle(torch.ones(100)))
""",
        ordered=True,
    ),
)
