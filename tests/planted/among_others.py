"""Kinds whose verdict was missed or a false alarm once, because of the tests beside them."""

from __future__ import annotations

from tests.planted.kind import Kind

KINDS: tuple[Kind, ...] = (
    Kind(
        "garbage in a cycle with older objects, beside a leak alike",
        "each is freed by a collection during a later test, and is no partner of what the list keeps",
        """
O$n, G$n = [Node() for _ in range(8)], []

@pytest.mark.parametrize("i", range(8))
def test_${n}(i):
    node = cycle($array)
    node.old = O$n[i]
    O$n[i] = Node(node=node)
    O$n[i].me = O$n[i]
    O$n[i] = None

def test_${n}_leaks():
    $pause
    G$n.append(cycle($array))
""",
    ),
    Kind(
        "one of many that replace also leaks",
        "each is judged by its own runs",
        """
S$n, G$n = {}, []

@pytest.mark.parametrize("i", range(12), ids=lambda i: f"{i}-leaks" if i == 7 else str(i))
def test_${n}(i):
    x = $array
    if i == 7:
        $pause
        S$n.clear()
        G$n.append(x)
    else:
        S$n["last"] = x
""",
    ),
    Kind(
        "session's fixture keeps the last batch, and in one test every one",
        "2 MiB are replaced, the list of the same fixture grows by little",
        """
@pytest.fixture(scope="session")
def service_$n():
    return Node(last=None, log=[])

@pytest.mark.parametrize("i", range(4))
def test_${n}_noted(service_$n, i):
    service_$n.last = torch.ones(512, 1024) + i

def test_${n}_leaks(service_$n):
    $pause
    service_$n.last = torch.ones(512, 1024)
    service_$n.log.append(torch.ones(8))
""",
    ),
)
