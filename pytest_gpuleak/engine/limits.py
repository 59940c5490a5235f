"""Every limit of the engine, with its unit and its reason, and whether it stops, orders or bounds.

What stops ends a wait, and says so. What orders chooses between two exact ways, or when one is taken. What bounds cuts a
walk, a list or an estimate: what is cut off excuses, or is told less fully, and accuses nobody (docs/how-it-works.md).
"""

from __future__ import annotations

from typing import Final

# Waits.

CHECK_LIMIT_S: Final = 60.0
"""Seconds that a single wait of the check may take: the settle hook, a device, its driver, processes. Stops: what takes
longer hangs, and is named."""

FIRST_WAIT_S: Final = 1e-6
"""Seconds of the first wait for other threads; each further one takes twice as long. Orders: most need one turn."""

LONGEST_WAIT_S: Final = 0.1
"""Seconds of the longest such wait. Orders: what is freed meanwhile is met soon."""

ALL_WAITS_S: Final = 0.45
"""Seconds of all such waits for a thread that the test has started (goleak's options.go). Stops."""

KNOWN_THREADS_WAIT_S: Final = 0.02
"""Seconds of all such waits for threads from before the test, which seldom hold what is its own. Stops."""

DEVICE_STEP_S: Final = 0.25
"""Seconds between two readings of a device that is waited for (`--gpu-leak-wait`). Orders: no verdict comes of them."""

STEADY_READINGS: Final = 4
"""Readings of a device, a second in all, in which what living processes hold has not fallen. Stops: it is held.

vLLM polled 241 equal readings over 240 s (github.com/vllm-project/vllm/pull/54162)."""

LEAST_OCCUPIED: Final = 64 * 1024 * 1024
"""Bytes on a device from which they are waited for and told: less than a CUDA context takes. Bounds: smaller differences
between what is in use and what processes have are the driver's own."""

MOST_ROUNDS: Final = 20
"""Collections in a row, each of which has freed something. Stops: a finalizer may make new garbage for ever.

A cycle through C++ (an autograd graph) may be garbage that a collection sees only after another has freed what refers to
it: torch's tensors show the collector their graph only while nothing else uses it (THPVariable_traverse)."""

# Runs.

MOST_ADDED_RERUNS: Final = 2
"""Re-runs beyond those asked for where one leaves a doubt. Bounds: the first begins from a settled heap and decides."""

LEAST_RISES: Final = 3
"""Replacements in a row, each larger by as many bytes, that are growth (``X = torch.cat([X, new])``). Bounds: fewer excuse,
and sizes that are drawn or take turns seldom rise so."""

# Arrays that are older than the test.

LEAST_NETTED: Final = 16 * 1024
"""Bytes of an older array from which a run is credited with letting it go. Bounds: 1/64 of the default `retained_mb`, so
that what is not followed cannot tip a verdict by much, and a model's biases cost no clean test anything."""

MOST_OLDER: Final = 100_000
"""Older arrays that are followed while a suspect is run again. Bounds: a weak handle takes 100 bytes and 0.1 us to ask."""

LEAST_SWEPT: Final = 256
"""Entries of the account of who left what, from which dead ones are removed, and again after each doubling. Orders: the
cost of an entry is constant."""

# The epoch.

LONG_LIVED_SHARE: Final = 4
"""A full collection is due when more than this part (1/4) of the heap was frozen since the last. Orders: CPython's own
rule for the time of a collection."""

LEAST_FROZEN: Final = 100_000
"""Objects frozen before the heap is counted for the first time, and the minimum before a full collection. Orders."""

LEAST_STEP: Final = 4
"""The heap is counted again once it can have grown by this part (1/4) of what makes a full collection due. Orders."""

LEAST_STAYING: Final = 0.25
"""Lower bound for the share of frozen objects that survive, which heap counts measure. Orders: the higher, the more
often the heap is counted."""

MOST_CONTAINERS: Final = 1000
"""Containers below an object that are looked at for a reference back to it, or from a fixture's value to what a test has
left. Bounds: others are left to a full collection, and a fixture is taken to have held it."""

# The host's memory.

MODULE_BYTES: Final = 48 * 1024
"""Host bytes of an imported module: 18 to 35 KiB on the mean of large packages, 82 KiB of torch (Python 3.11). Bounds the
growth of the first run that imports excuse where no re-run repeats it."""

PROGRAM_BYTES: Final = 2 * 1024 * 1024
"""Host bytes of a compiled program beside its instructions: 1.5 MiB of jaxlib 0.10 on the CPU. Bounds the growth that
compiling excuses."""

INSTRUCTION_BYTES: Final = 6 * 1024
"""Host bytes of an instruction of a compiled program: 2 to 6 KiB of jaxlib 0.10 on the CPU. Bounds the growth that
compiling excuses."""

SLACK_SHARE: Final = 16
"""Part of the growth (1/16) by which arrays may exceed it, because something small was freed meanwhile. Bounds."""

LEAST_EXPLAINED: Final = 0.75
"""Share of the growth that arrays must explain to be named: those chosen by their size may be older than the run. Bounds."""

REST_SHARE: Final = 64
"""Part of the growth (1/64) that may stay unexplained before smaller arrays are named too. Bounds."""

SMALL_SHARE: Final = 256
"""Part of the growth (1/256) below which an array is left out. Bounds."""

LEAST_ASKED: Final = 512
"""Bytes of the smallest memory of an array whose creating line is told, or whose lender is looked for. Bounds."""

LEAST_PYTHON_OBJECT: Final = 64 * 1024
"""Bytes of the smallest Python object that is taken for an array's memory (`numpy.frombuffer` of bytes). Bounds."""

TRACED_FRAMES: Final = 12
"""Frames kept for each allocation: a library's function is called by the user's line. Bounds: deeper ones have no line."""

# Judgement.

MINOR_SHARE: Final = 16
"""Part (1/16) of the limit, or of what a test adds, up to which a finding is a note where larger ones fail without it.
Bounds: it is not worth an edit, and changes no verdict."""

# Holders.

MOST_WAITING: Final = 200
"""Tests whose findings wait before their holders are searched for together. Orders: it bounds the memory they take."""

MOST_ARRAYS_WAITING: Final = 20_000
"""Arrays that wait before their holders are searched for together. Orders."""

SEARCH_STEPS: Final = 80_000_000
"""Steps (`heap.budget`) of a search for holders: some 20 s. Bounds: what is not met is held by "unknown"."""

STEPS_A_TEST: Final = 1_000_000
"""Steps that each test adds to `SEARCH_STEPS`: most of one heap's search is shared, and the naming is not. Bounds."""

GRAPHS_STEPS: Final = 10_000_000
"""Steps (`heap.budget`) of counting what one test's autograd graphs retain: 100,000 nodes. Bounds: what is cut excuses."""

MOST_ASKED: Final = 1000
"""Arrays of a suspect that are asked one by one: which line made them, whose memory they use, whether lasting roots lead to
them. Bounds: of more, less is told, and the heap is collected to tell garbage."""

MOST_SOUGHT: Final = 32
"""Arrays that a search up through the heap may prove to be no garbage: three levels of it take as long as a collection.
Orders: of more, the heap is collected."""

MOST_ALONE: Final = 32
"""Arrays that are asked for one by one, where what in the test's runner holds them was too much to be looked at together.
Bounds."""

OPEN_FILES_STEPS: Final = 50_000_000
"""Steps (`heap.budget`) of the walk for file objects: seven million containers and what they hold. Bounds."""

MOST_LENDER_SEARCHES: Final = 10
"""Searches of a session for lenders, each of which walks the whole heap. Bounds what is told beside the holder."""
