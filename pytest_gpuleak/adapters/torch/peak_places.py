"""Tell where a run is while its memory is recorded: the user's line, the phase, and the path of the module called."""

from __future__ import annotations

import functools
import os
import sys
import threading
from itertools import islice
from opcode import opmap, opname
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from weakref import ref

from pytest_gpuleak.heap import safe_access

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import FrameType

    from pytest_gpuleak.model.peak_parts import PeakPhase

_USER: Final = 1
_OPTIMIZER: Final = 2
_COMPILER: Final = 3

_KEEPING: Final = frozenset(code for code, name in enumerate(opname) if name.startswith(("STORE_", "DELETE_")))
"""Instructions by which a name, an attribute or a container loses the value that it had."""
_INTO: Final = frozenset(code for code in _KEEPING if opname[code] in ("STORE_SUBSCR", "STORE_SLICE"))
"""Those that may copy the new value, and drop it."""
_NOWHERE: Final = (None, "", None)
"""What is known of an autograd node that has no place."""


class Line(NamedTuple):
    """A user's line, and the id of the frame that runs it."""

    file: str
    line: int
    function: str
    frame: int


class Place(NamedTuple):
    """Where an operator was called. `forward` is the line and module whose backward pass called it, if known.

    `operator` is the operator's own name, or that of the autograd node that called it. A checkpoint that called it for the
    second time, in a backward pass, has `recomputed` it.
    """

    line: Line | None
    phase: PeakPhase
    module: str
    operator: str
    forward: Line | None = None
    recomputed: bool = False


class _Threads(threading.local):
    """What each thread has: the modules that it calls, the number of its last node with a place, whether it is Python's.

    `steps`: an optimizer has begun a step, and was not found to have ended it.
    """

    def __init__(self) -> None:
        self.stack: list[int] = []
        self.noted: int | None = None
        self.begun = self.steps = False


class Places:
    """Places of a run, for each of its threads; keeps file names, line numbers and paths, and no frame or module."""

    def __init__(self, torch: Any, is_user_file: Callable[[str], bool]) -> None:
        self._torch, self._is_user_file = torch, is_user_file
        folder = os.path.dirname(torch.__file__)  # noqa: PTH120 - paths are compared as text, for each operator
        self._optimizers = os.path.join(folder, "optim", "")  # noqa: PTH118
        self._steps = os.path.join(self._optimizers, "optimizer.py")  # noqa: PTH118
        self._compiler = os.path.join(folder, "_dynamo", "eval_frame.py")  # noqa: PTH118
        self._kind = functools.cache(self._kind_of)
        self._met: set[tuple[str, int]] = set()
        self._threads = _Threads()
        self._last: Line | None = None
        self._forward: dict[int, tuple[Line | None, str, object]] = {}
        """The line and module of nodes by their number, and the thread that made them."""
        self.of_backward_threads: set[int] = set()
        """Numbers of nodes that threads of C++ have made, which run backward passes."""
        self._paths: dict[int, tuple[Any, str]] = {}
        self._sequence_number: Any = torch._C._autograd._get_sequence_nr
        self.stage: PeakPhase = "call"
        self.compiled = False
        """Whether a function given to `torch.compile` was met: under a dispatch mode it runs uncompiled."""

    # -- lines and phases

    def begin(self) -> None:
        """Begin in the calling thread, which is none of C++: nodes that it has made so far have no place."""
        self._threads.begun = True
        self._threads.noted = self._sequence_number()

    def place(self, operator: str, node: Any) -> Place:
        """Return where the calling thread is; `node` is the autograd node that runs, None in a forward pass."""
        line, in_optimizer = self._line()
        stack = self._threads.stack
        module = self._path(stack[-1]) if stack else ""
        if node is None:
            phase: PeakPhase = "optimizer" if in_optimizer else "forward" if stack else self.stage
            found = Place(line, phase, module, operator)
        elif stack:  # a module that runs within a backward pass
            found = Place(line, "backward", module, operator, recomputed=True)
        else:
            forward, module, _ = self._forward.get(node._sequence_nr(), _NOWHERE)
            found = Place(line, "backward", module, node.name(), forward)
        if self.new_node:
            self._note_node(line, module)
        return found

    @property
    def new_node(self) -> bool:
        """Whether the calling thread has made an autograd node that has no place yet."""
        number = self._sequence_number()
        noted = self._threads.noted
        if noted is None:  # a thread of C++, which makes nodes for a second backward pass
            noted = self._threads.noted = number - self._torch.is_grad_enabled()
        return bool(number > noted)

    def _note_node(self, line: Line | None, module: str) -> None:
        # A node takes its number just before its operator is called (torch/csrc/autograd/function.h). Each thread counts
        # for itself, so nodes of two threads may have one number: neither's place is told then.
        self._threads.noted = number = self._sequence_number()
        if not self._threads.begun:
            self.of_backward_threads.add(number - 1)
        thread = self._threads.stack
        *_, other = self._forward.get(number - 1, (None, "", thread))
        self._forward[number - 1] = (line, module, thread) if other is thread else _NOWHERE

    def _line(self) -> tuple[Line | None, bool]:
        """Return the innermost user's line, and whether an optimizer called torch. A thread of C++ has the last line."""
        kind_of, in_optimizer, frame = self._kind, False, _frame_above(2)
        while frame is not None:
            kind = kind_of(frame.f_code.co_filename)
            if kind == _USER:
                code = frame.f_code
                file = code.co_filename
                if (file, code.co_firstlineno) not in self._met:
                    self._met.add((file, code.co_firstlineno))
                    self.compiled = self.compiled or self._is_compiled(frame)
                line = Line(file, frame.f_lineno, code.co_name, id(frame))
                if self._threads.begun:
                    self._last = line
                return line, in_optimizer or self._is_in_step(frame)
            if kind == _OPTIMIZER:
                in_optimizer = True
            frame = frame.f_back
        return self._last, in_optimizer

    def begin_step(self) -> None:
        """Note that an optimizer begins a step, which may be of the user's own class. It may end by an error."""
        self._threads.steps = True

    def _is_in_step(self, frame: FrameType | None) -> bool:
        above = frame
        while self._threads.steps:
            if above is None:
                self._threads.steps = False
            elif self._kind(above.f_code.co_filename) == _OPTIMIZER:
                return above.f_code.co_filename == self._steps  # not a closure's, which torch's own optimizers call
            else:
                above = above.f_back
        return False

    def _kind_of(self, file: str) -> int:
        if file.startswith(self._optimizers):
            return _OPTIMIZER
        return _COMPILER if file == self._compiler else int(self._is_user_file(file))

    def _is_compiled(self, frame: FrameType | None) -> bool:
        while frame is not None:
            if self._kind(frame.f_code.co_filename) == _COMPILER and "compile" in frame.f_code.co_name:
                return True
            frame = frame.f_back
        return False

    def still_runs(self, place: Place, *, is_newest: bool) -> bool:
        """Return whether the statement that made a storage still runs in the calling thread, in which the storage ends.

        It `is_newest` if no other was made since: an assignment to an item drops what it copies, or the older value.
        A thread of C++ without a frame of the user's runs a backward pass, in a statement of another thread. What a
        checkpoint recomputes is used until its backward pass if it ends outside the module.
        """
        if place.recomputed:
            return bool(self._threads.stack)
        line, seen, frame = place.line, False, _frame_above(2)
        while frame is not None:
            if line is not None and id(frame) == line.frame:
                return frame.f_code.co_filename == line.file and _evaluates(frame, line.line, is_newest=is_newest)
            seen = seen or self._kind(frame.f_code.co_filename) == _USER
            frame = frame.f_back
        return place.phase == "backward" and not seen and not self._threads.begun

    # -- modules

    def enter(self, module: Any) -> bool:
        """Note that a module is called; return whether it is an outermost call."""
        stack = self._threads.stack
        if self._path(id(module), module) == "":
            root = safe_access.class_name(type(module))
            self._name(module, f"{self._path(stack[-1])}.{root}" if stack else root)
        stack.append(id(module))
        return len(stack) == 1

    def leave(self, module: Any) -> None:
        """Note that a module's call has ended, and the calls within it that have raised."""
        stack = self._threads.stack
        while id(module) in stack and stack.pop() != id(module):
            pass

    def _path(self, key: int, module: Any = None) -> str:
        known, path = self._paths.get(key, (None, ""))
        return path if known is not None and (module is None or known() is module) else ""

    def _name(self, module: Any, path: str) -> None:
        """Name a module and those below it that have no name from an earlier call."""
        for inner, name in parts_below(module, path):
            if not self._path(id(inner), inner):
                self._paths[id(inner)] = (ref(inner), name)

    def path_of(self, module: Any) -> str:
        """Return the path of a module, from the model that was called; the name of its class before that."""
        return self._path(id(module), module) or safe_access.class_name(type(module))


def parts_below(module: Any, path: str) -> Iterator[tuple[Any, str]]:
    """Yield a module and the modules below it, each once, with their paths."""
    todo, seen = [(module, path)], {id(module)}
    while todo:
        inner, name = todo.pop()
        yield inner, name
        for key, part in registered(inner, "_modules"):
            if id(part) not in seen:
                seen.add(id(part))
                todo.append((part, f"{name}.{key}"))


def registered(module: Any, kind: str) -> list[tuple[str, Any]]:
    """Return a module's own ``_modules``, ``_parameters`` or ``_buffers`` that are set, without its code."""
    found = (safe_access.instance_dict(module) or {}).get(kind)
    return [(key, part) for key, part in found.items() if part is not None] if type(found) is dict else []


def _evaluates(frame: FrameType, line: int, *, is_newest: bool) -> bool:
    """Return whether the expression that a frame evaluates has a line. What a name loses was not made by it."""
    code, last = frame.f_code, frame.f_lasti
    if last < 0:  # another call, which has not begun
        return False
    instruction, number = code.co_code[last : last + 2]
    if instruction in _KEEPING and not (is_newest and instruction in _INTO):
        names = code.co_varnames[number : number + 1] if instruction == opmap["STORE_FAST"] else ()
        if not "".join(names).startswith("@"):  # those that pytest gives to the parts of an assertion
            return False
    if frame.f_lineno == line or not hasattr(code, "co_positions"):  # which Python 3.10 has not
        return frame.f_lineno == line
    first, end, *_ = next(islice(code.co_positions(), last // 2, None))
    return first is not None and end is not None and first <= line <= end


def _frame_above(count: int) -> FrameType | None:
    """Return the frame that is so many above; None in a thread of C++ that has fewer."""
    try:
        return sys._getframe(count + 1)
    except ValueError:
        return None
