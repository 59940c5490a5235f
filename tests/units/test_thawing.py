"""The order of the collector's list, by which a full collection walks memory."""

from __future__ import annotations

import subprocess
import sys
import textwrap

import pytest

from pytest_gpuleak.heap.collector import epochs_supported

SCRIPT = """
    import gc
    from pytest_gpuleak.adapters.registry import own_frameworks
    from pytest_gpuleak.engine.detect.epochs import EpochDetector

    class Marked:
        pass

    def marked(name):
        one = Marked()
        one.name = name
        return one

    gc.disable()
    get_objects = gc.get_objects
    detector = EpochDetector(own_frameworks().arrays)
    detector.start()
    old = marked("old")
    detector.open()
    middle = marked("middle")
    detector.open()
    young = marked("young")
    gc.collect(1)
    younger = marked("younger")
    if {whole}:
        with detector.whole_heap():
            print(*[kept.name for kept in get_objects() if type(kept) is Marked])
    detector.stop()
    print(*[kept.name for kept in get_objects() if type(kept) is Marked])
"""


@pytest.mark.skipif(not epochs_supported(), reason="no epochs on this interpreter")
@pytest.mark.parametrize("whole", [False, True])
def test_old_objects_stay_before_the_young(whole: bool) -> None:
    script = textwrap.dedent(SCRIPT).format(whole=whole)
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60)
    lines = [line.split() for line in done.stdout.splitlines()]
    assert len(lines) == 1 + whole
    for names in lines:
        assert sorted(names) == ["middle", "old", "young", "younger"]
        assert names.index("old") < names.index("middle") < names.index("young")
