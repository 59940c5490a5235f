"""A simulated accelerator for the tests: torch's device `simgpu`, two of them, with a caching allocator in Python.

`install()` registers it as torch's PrivateUse1 backend, once a process, and this module then is `torch.simgpu`. Tensors
are real: their memory lies in anonymous mappings outside the C heap (so that host counters do not see it), operations
are computed on CPU aliases of it, and views, autograd and optimisers are torch's own. A storage comes in by DLPack with
a deleter, so that its block is given back when the storage dies, whoever held it last: Python or C++ alone.

The allocator rounds to 512 bytes and caches as CUDA's does, but splits nothing: each block has a segment of its own, of
a multiple of 64 KiB, which is used again for a block that needs as much.
"""

from __future__ import annotations

import atexit
import collections
import contextlib
import ctypes
import itertools
import math
import mmap
import pathlib
import re
import sys
import threading
import time
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator

MIB = 1 << 20
ROUNDING = 512
SEGMENT = 64 * 1024
DEVICES = 2
CAPACITY = 1024 * MIB
CONTEXT_BYTES = 16 * MIB
"""What the first use of a device takes from it outside of the allocator, as a CUDA context does."""
WORKSPACE_BYTES = 8 * MIB + 128 * 1024
"""What the first matrix product takes and keeps: CUDA's default for cuBLAS, 8.125 MiB."""


class Block(NamedTuple):
    """What a storage has: its bytes, those that were asked for, and those of its segment."""

    size: int
    requested: int
    segment: int


class Device:
    """One device's memory: what is allocated, cached and taken by others."""

    def __init__(self, index: int) -> None:
        self.index = index
        self.lock = threading.Lock()
        self.late: collections.deque[tuple[float, int]] = collections.deque()
        self.reset()

    def reset(self) -> None:
        """As at the start of a process, with nothing allocated."""
        self.capacity, self.other_use, self.outside = CAPACITY, 0, 0
        self.initialised = self.broken = False
        self.sticky = ""
        self.free_delay, self.skew = 0.0, 0
        self.blocks: dict[int, Block] = {}
        self.cached: collections.defaultdict[int, list[int]] = collections.defaultdict(list)
        self.raw: dict[int, int] = {}
        self.workspace: int | None = None
        self.allocated = self.requested = self.reserved = self.peak = self.reserved_peak = 0
        self.count = self.ooms = 0
        self.late.clear()

    def allocate(self, size: int) -> int:
        """An address of `size` bytes; raises torch.OutOfMemoryError."""
        self.initialised = True
        if self.broken:
            raise RuntimeError("simgpu error: unspecified launch failure")
        self.answer()
        self.collect_late()
        with self.lock:
            rounded = max(ROUNDING, -(-size // ROUNDING) * ROUNDING)
            block = Block(rounded, size, -(-rounded // SEGMENT) * SEGMENT)
            address = self._take(block.segment)
            if address is not None:
                self.blocks[address] = block
                self.allocated += block.size
                self.requested += size
                self.count += 1
                self.peak = max(self.peak, self.allocated)
                self.reserved_peak = max(self.reserved_peak, self.reserved)
                return address
            self.ooms += 1
        raise out_of_memory(self, size)

    def answer(self) -> None:
        """What each call to the device does: raises the error that it was lost by."""
        if self.sticky:
            raise RuntimeError(f"CUDA error: {self.sticky}\nCUDA kernel errors might be asynchronously reported")

    def free(self, address: int) -> None:
        """Give an address back, now or when its delay is over. Called by deleters, in whatever thread, at any point."""
        self.late.append((time.monotonic() + self.free_delay if self.free_delay else 0.0, address))
        self.collect_late()

    def collect_late(self, *, all_of_them: bool = False) -> None:
        """Take in what was given back and is due; whoever holds the lock does so for the others, later."""
        if not self.late or not self.lock.acquire(blocking=False):
            return
        try:
            for due, address in [self.late.popleft() for _ in range(len(self.late))]:
                if all_of_them or due <= time.monotonic():
                    self._give_back(address)
                else:
                    self.late.append((due, address))
        finally:
            self.lock.release()

    def release_cached(self) -> None:
        """Give what is cached back to the device, as `empty_cache` does."""
        with self.lock:
            self._release_cached()

    @property
    def used(self) -> int:
        """Bytes in use on the device, of this process and of others."""
        context = CONTEXT_BYTES if self.initialised else 0
        return context + self.reserved + self.outside + self.other_use

    def _take(self, segment: int) -> int | None:
        if self.cached[segment]:
            return self.cached[segment].pop()
        if self.used + segment > self.capacity:
            self._release_cached()
            if self.used + segment > self.capacity:
                return None
        self.reserved += segment
        return _map(segment)

    def _give_back(self, address: int) -> None:
        block = self.blocks.pop(address, None)
        if block is None:  # of before a reset
            return
        self.allocated -= block.size
        self.requested -= block.requested
        self.cached[block.segment].append(address)

    def _release_cached(self) -> None:
        for segment, addresses in self.cached.items():
            for address in addresses:
                self.reserved -= segment
                _libc.munmap(ctypes.c_void_p(address), ctypes.c_size_t(segment))
        self.cached.clear()


_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.malloc.restype = ctypes.c_void_p


def _map(size: int) -> int:
    """Fresh memory outside the C heap."""
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    protection = mmap.PROT_READ | mmap.PROT_WRITE
    address = _libc.mmap(None, ctypes.c_size_t(size), protection, flags, -1, ctypes.c_long(0))
    if address is None or address == ctypes.c_void_p(-1).value:
        raise MemoryError(f"no {size} bytes of host memory for the simulated device")
    return int(address)


def out_of_memory(device: Device, size: int) -> Exception:
    """The error that torch raises at capacity, in its words (CUDACachingAllocator.cpp, `malloc`)."""
    import torch

    context = CONTEXT_BYTES if device.initialised else 0
    others = f"Process 4711 has {_words(device.other_use)} memory in use. " if device.other_use else ""
    error: Exception = torch.OutOfMemoryError(
        f"SIMGPU out of memory. Tried to allocate {_words(size)}. GPU {device.index} has a total capacity of "
        f"{_words(device.capacity)} of which {_words(max(0, device.capacity - device.used))} is free. {others}"
        f"Including non-PyTorch memory, this process has {_words(context + device.reserved + device.outside)} memory in "
        f"use. Of the allocated memory {_words(device.allocated)} is allocated by PyTorch, and "
        f"{_words(device.reserved - device.allocated)} is reserved by PyTorch but unallocated. If reserved but "
        "unallocated memory is large try setting PYTORCH_ALLOC_CONF=expandable_segments:True to avoid fragmentation."
    )
    return error


def _words(size: int) -> str:
    for unit, scale in (("GiB", 1 << 30), ("MiB", MIB), ("KiB", 1024)):
        if size >= scale:
            return f"{size / scale:.2f} {unit}"
    return f"{size} bytes"


_devices = [Device(index) for index in range(DEVICES)]
_current = threading.local()


# What torch calls, and what its users do: the backend module `torch.simgpu`.


def is_available() -> bool:
    return True


def is_initialized() -> bool:
    """Whether any device was used by this process."""
    return any(device.initialised for device in _devices)


def device_count() -> int:
    return DEVICES


def current_device() -> int:
    return int(getattr(_current, "index", 0))


def set_device(device: Any) -> None:
    _current.index = _index(device)


@contextlib.contextmanager
def device(chosen: Any) -> Iterator[None]:
    """The current device for a while, as `torch.cuda.device`."""
    before = current_device()
    set_device(chosen)
    try:
        yield
    finally:
        set_device(before)


def _index(chosen: Any) -> int:
    if chosen is None:
        return current_device()
    if isinstance(chosen, str):
        import torch

        chosen = torch.device(chosen)
    index = chosen if isinstance(chosen, int) else chosen.index
    index = current_device() if index is None else index
    if not 0 <= index < DEVICES:
        raise RuntimeError(f"simgpu error: invalid device ordinal {index}")
    return int(index)


def _counted(chosen: Any) -> Device:
    """The device, its late frees taken in; raises where it is broken."""
    found = _devices[_index(chosen)]
    if found.broken:
        raise RuntimeError("simgpu error: unspecified launch failure")
    found.collect_late()
    return found


def memory_allocated(device: Any = None) -> int:
    found = _counted(device)
    return found.allocated - found.skew


def max_memory_allocated(device: Any = None) -> int:
    found = _counted(device)
    return found.peak - found.skew


def memory_reserved(device: Any = None) -> int:
    found = _counted(device)
    return found.reserved - found.skew


def max_memory_reserved(device: Any = None) -> int:
    found = _counted(device)
    return found.reserved_peak - found.skew


def memory_stats(device: Any = None) -> dict[str, int]:
    """The flat statistics, under the names of `torch.cuda.memory_stats`; empty before the device's first use."""
    found = _counted(device)
    if not found.initialised:
        return {}
    return {
        "allocated_bytes.all.current": found.allocated - found.skew,
        "allocated_bytes.all.peak": found.peak - found.skew,
        "requested_bytes.all.current": found.requested - found.skew,
        "reserved_bytes.all.current": found.reserved - found.skew,
        "reserved_bytes.all.peak": found.reserved_peak - found.skew,
        "active_bytes.all.current": found.allocated - found.skew,
        "active_bytes.all.peak": found.peak - found.skew,
        "allocation.all.current": len(found.blocks),
        "allocation.all.allocated": found.count,
        "segment.all.current": len(found.blocks) + sum(map(len, found.cached.values())),
        "num_ooms": found.ooms,
    }


def reset_peak_memory_stats(device: Any = None) -> None:
    found = _counted(device)
    found.peak, found.reserved_peak = found.allocated, found.reserved


def empty_cache() -> None:
    """Give what is cached back, on every device."""
    for each in _devices:
        each.collect_late()
        each.release_cached()


def synchronize(device: Any = None) -> None:
    """Wait for the device; frees that arrive late are the host's business and stay late."""
    _counted(device).answer()


def mem_get_info(device: Any = None) -> tuple[int, int]:
    """Free and total bytes of the device; initialises it, as CUDA's does."""
    found = _counted(device)
    found.answer()
    found.initialised = True
    return max(0, found.capacity - found.used), found.capacity


def manual_seed_all(seed: int) -> None:
    """Random numbers come from the CPU's generator."""


def get_rng_state(device: Any = None) -> Any:
    import torch

    return torch.get_rng_state()


def set_rng_state(state: Any, device: Any = None) -> None:
    import torch

    torch.set_rng_state(state)


def get_amp_supported_dtype() -> list[Any]:
    import torch

    return [torch.float16, torch.bfloat16]


def _is_in_bad_fork() -> bool:
    return False


def _lazy_init() -> None:
    """A device is initialised by its own first allocation, not by torch's look at its type."""


def clear_workspaces() -> None:
    """Let go of what matrix products took and kept."""
    for each in _devices:
        if each.workspace is not None:
            each.free(each.workspace)
            each.workspace = None


# What tests arrange.


def reset() -> None:
    """As at the start of the process, but for blocks still in use, which stay where they are and are not counted."""
    for each in _devices:
        each.reset()


def set_capacity(device: Any, size: int) -> None:
    """The device's total memory in bytes, 1 GiB if not told."""
    _devices[_index(device)].capacity = size


def set_other_use(device: Any, size: int) -> None:
    """Bytes that other processes hold of the device."""
    _devices[_index(device)].other_use = size


def set_free_delay(seconds: float) -> None:
    """From now on freed memory counts as allocated for that long; 0 gives back at once."""
    for each in _devices:
        each.free_delay = seconds


def raw_allocate(device: Any, size: int, *, counted: bool = True) -> int:
    """Memory outside of any tensor: from the caching allocator, or past it from the device (`counted=False`).

    Returns what `raw_free` takes.
    """
    found = _devices[_index(device)]
    if counted:
        return found.allocate(size)
    if found.used + size > found.capacity:
        raise out_of_memory(found, size)
    found.initialised = True
    handle = -next(_handles)
    found.raw[handle] = size
    found.outside += size
    return handle


def raw_free(device: Any, handle: int) -> None:
    """Give back what `raw_allocate` returned."""
    found = _devices[_index(device)]
    if handle < 0:
        found.outside -= found.raw.pop(handle)
    else:
        found.free(handle)


def process_use(device: Any) -> int:
    """What a driver would say that this process holds of the device: context, segments and memory past the allocator."""
    found = _devices[_index(device)]
    return found.used - found.other_use


def break_device(device: Any = 0, *, broken: bool = True) -> None:
    """From now on every counter and allocation of the device raises RuntimeError."""
    _devices[_index(device)].broken = broken


def lose_device(device: Any = 0, error: str = "device-side assert triggered") -> None:
    """From now on every call to the device raises this error of CUDA's; its allocator's counters can be read."""
    _devices[_index(device)].sticky = error


def skew_counters(device: Any, size: int) -> None:
    """From now on the device's counters say `size` bytes less than is true, below zero if it comes to that."""
    _devices[_index(device)].skew = size


_handles = itertools.count(1)


# Storages: they come in by DLPack, whose deleter is called when the last holder lets go, in C++ or Python.


class _Tensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.c_void_p),
        ("strides", ctypes.c_void_p),
        ("byte_offset", ctypes.c_uint64),
    )


class _ManagedTensor(ctypes.Structure):
    _fields_ = (("tensor", _Tensor), ("context", ctypes.c_void_p), ("deleter", ctypes.c_void_p))


EXTENSION_DEVICE = 12
"""`kDLExtDev` of dlpack.h, which torch takes for PrivateUse1 (ATen/DLConvertor.cpp)."""

_new_capsule = ctypes.pythonapi.PyCapsule_New
_new_capsule.restype = ctypes.py_object
_new_capsule.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
_managed: dict[int, tuple[int, int]] = {}
"""Device index and block of each storage alive, by the address of its DLPack header."""


def _storage_dies(header: int) -> None:
    owner = _managed.pop(header, None)
    if owner is not None:
        _devices[owner[0]].free(owner[1])
    _libc.free(ctypes.c_void_p(header))


_deleter = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(_storage_dies)


@atexit.register
def _forget_storages() -> None:
    """No call into an interpreter that is gone: storages that outlive it are left to the process's end."""
    for header in _managed:
        _ManagedTensor.from_address(header).deleter = None


def _codes() -> dict[Any, tuple[int, int]]:
    """DLPack's type codes and bits of the dtypes that go by it."""
    import torch

    codes = {torch.bool: (6, 8), torch.bfloat16: (4, 16), torch.uint8: (1, 8)}
    for bits in (8, 16, 32, 64):
        codes[getattr(torch, f"int{bits}")] = (0, bits)
    for bits in (16, 32, 64):
        codes[getattr(torch, f"float{bits}")] = (2, bits)
        codes[getattr(torch, f"uint{bits}")] = (1, bits)
    codes.update({torch.complex32: (5, 32), torch.complex64: (5, 64), torch.complex128: (5, 128)})
    codes.update({torch.float8_e4m3fn: (10, 8), torch.float8_e5m2: (12, 8)})
    return codes


def _new_tensor(index: int, shape: Any, strides: Any, dtype: Any) -> Any:
    """An uninitialised tensor on the device."""
    import torch

    code, bits = _codes()[dtype]
    shape, strides = list(map(int, shape)), list(map(int, strides))
    length = 0 if 0 in shape else 1 + sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True))
    size = length * bits // 8
    found = _devices[index]
    address = found.allocate(size) if size else 0
    found.initialised = True
    # Of the C heap, since the header may outlive the interpreter; shape and strides follow it.
    header = _libc.malloc(ctypes.c_size_t(ctypes.sizeof(_ManagedTensor) + 16 * max(1, len(shape))))
    numbers = header + ctypes.sizeof(_ManagedTensor)
    for place, number in enumerate(shape + strides):
        ctypes.c_int64.from_address(numbers + 8 * place).value = number
    managed = _ManagedTensor.from_address(header)
    managed.tensor = _Tensor(
        address or None, EXTENSION_DEVICE, index, len(shape), code, bits, 1, numbers, numbers + 8 * len(shape), 0
    )
    managed.deleter = ctypes.cast(_deleter, ctypes.c_void_p).value
    if address:
        _managed[header] = (index, address)
    return torch._C._from_dlpack(_new_capsule(header, b"dltensor", None))


# Operations: computed on CPU aliases of the device's memory.


def _empty(size: Any, dtype: Any = None, layout: Any = None, device: Any = None, **options: Any) -> Any:
    import torch

    strides = torch.empty(tuple(size), device="meta", memory_format=options.get("memory_format")).stride()
    return _new_tensor(_index(device), size, strides, dtype or torch.get_default_dtype())


def _empty_strided(size: Any, stride: Any, dtype: Any = None, device: Any = None, **_: Any) -> Any:
    import torch

    return _new_tensor(_index(device), size, stride, dtype or torch.get_default_dtype())


def _alias(tensor: Any) -> Any:
    """A CPU tensor over the same bytes."""
    import torch

    storage = tensor.untyped_storage()
    alias = torch.empty(0, dtype=tensor.dtype)
    if not storage.nbytes():
        return alias.resize_(tensor.shape)
    bytes_ = torch._C._construct_storage_from_data_pointer(storage.data_ptr(), torch.device("cpu"), storage.nbytes())
    return alias.set_(bytes_, tensor.storage_offset(), tensor.size(), tensor.stride())


def _copy_from(source: Any, target: Any, non_blocking: bool = False) -> Any:
    from_, to = (_alias(each) if each.device.type == "simgpu" else each for each in (source, target))
    to.copy_(from_)
    return target


def _resize(tensor: Any, size: Any, memory_format: Any = None) -> Any:
    """Resize in place; a storage of the right size is taken if the old one is too small."""
    import torch

    strides = torch.empty(tuple(size), device="meta", memory_format=memory_format).stride()
    needed = (tensor.storage_offset() + math.prod(size)) * tensor.element_size()
    storage = tensor.untyped_storage()
    if needed > storage.nbytes():
        larger = _new_tensor(tensor.device.index, (needed,), (1,), torch.uint8)
        ctypes.memmove(larger.data_ptr(), storage.data_ptr(), storage.nbytes())
        storage = larger.untyped_storage()
    return tensor.set_(storage, tensor.storage_offset(), tuple(size), strides)


def _compute(operator: Any, *args: Any, **kwargs: Any) -> Any:
    """Any other operation: views by the CPU's kernels, which look at sizes alone, the rest on aliases."""
    import torch
    from torch.utils import _pytree

    returned = operator._schema.returns
    if any(each.alias_info is not None and not each.alias_info.is_write for each in returned):
        return operator.redispatch(torch._C.DispatchKeySet(torch._C.DispatchKey.CPU), *args, **kwargs)
    index: int | None = None
    pairs: list[tuple[Any, Any]] = []

    def to_host(value: Any) -> Any:
        nonlocal index
        if isinstance(value, torch.device) and value.type == "simgpu":
            index = _index(value)
            return torch.device("cpu")
        if not isinstance(value, torch.Tensor) or value.device.type != "simgpu":
            return value
        index = value.device.index if index is None else index
        alias = next((alias for tensor, alias in pairs if tensor is value), None)
        if alias is None:
            alias = _alias(value)
            pairs.append((value, alias))
        return alias

    def to_device(value: Any) -> Any:
        if not isinstance(value, torch.Tensor) or index is None:
            return value
        for tensor, alias in pairs:
            if value is alias:
                return tensor
        made = _new_tensor(index, value.shape, _dense_strides(value), value.dtype)
        if value.numel():
            _alias(made).copy_(value)
        return made

    host_args, host_kwargs = _pytree.tree_map(to_host, (args, kwargs))
    if index is not None and operator._schema.name in MATRIX_PRODUCTS and _devices[index].workspace is None:
        _devices[index].workspace = _devices[index].allocate(WORKSPACE_BYTES)
    result = operator(*host_args, **host_kwargs)
    for tensor, alias in pairs:
        if alias.shape != tensor.shape:  # an `out=` that the operation has resized
            _resize(tensor, alias.shape)
            _alias(tensor).copy_(alias)
        elif not tensor.untyped_storage().nbytes() and alias.numel():
            raise RuntimeError("simgpu: an operation wrote to a tensor without memory")
    return _pytree.tree_map(to_device, result)


def _convolution(*arguments: Any) -> Any:
    import torch

    return _compute(torch.ops.aten.convolution.default, *arguments)


def _convolution_backward(gradient: Any, input_: Any, weight: Any, *arguments: Any) -> Any:
    import torch

    *sizes, mask = arguments  # strides, paddings, dilations, transposed, output paddings, groups
    bias = [weight.shape[1] * sizes[5] if sizes[3] else weight.shape[0]] if mask[2] else None
    return _compute(torch.ops.aten.convolution_backward.default, gradient, input_, weight, bias, *sizes, mask)


def _dense_strides(tensor: Any) -> Any:
    """The tensor's strides, where they leave no gaps; else those of a contiguous one."""
    import torch

    dense = torch.ops.aten.is_non_overlapping_and_dense.default(tensor)
    return tensor.stride() if dense else torch.empty(tensor.shape, device="meta").stride()


MATRIX_PRODUCTS = frozenset(f"aten::{name}" for name in ("mm", "addmm", "bmm", "baddbmm", "addmv", "mv"))


def install() -> None:
    """Make the devices known to torch, as `torch.simgpu`. Does nothing the second time.

    A process has one PrivateUse1 backend for good. Where pytester has dropped this module from `sys.modules` since, the
    one that was installed takes the place of this one.
    """
    import torch

    installed = getattr(torch, "simgpu", None)
    if installed is not None:
        sys.modules["torch.simgpu"] = sys.modules[__name__] = installed
        globals().update({name: value for name, value in vars(installed).items() if not name.startswith("__")})
        return
    from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

    guard = type(
        "Guard", (torch._C._acc.DeviceGuard,), {"type_": lambda _: torch._C._autograd.DeviceType.PrivateUse1}
    )()
    _setup_privateuseone_for_python_backend("simgpu", backend_module=sys.modules[__name__], device_guard=guard)
    _tell_count(guard)
    operators = torch.library.Library("aten", "IMPL")
    for name, kernel in {
        "empty.memory_format": _empty,
        "empty_strided": _empty_strided,
        "_copy_from": _copy_from,
        "resize_": _resize,
        "convolution_overrideable": _convolution,
        "convolution_backward_overrideable": _convolution_backward,
    }.items():
        operators.impl(name, kernel, "PrivateUse1")
    for name in ("set_.source_Storage_storage_offset", "set_.source_Storage", "set_.source_Tensor", "set_"):
        operators.impl(name, _on_sizes(name), "PrivateUse1")
    fallback = torch.library.Library("_", "IMPL")
    fallback.fallback(_compute, "PrivateUse1")
    _libraries.extend((operators, fallback))


def _tell_count(guard: Any) -> None:
    """Have torch's C++ know of all devices: autograd has a thread for each that is counted, and fails on the others.

    torch's guard for Python says one, in C++, and cannot be overridden in Python (torch/csrc/acc/Module.cpp). So the
    guard is given a table of virtual functions in which that one function is replaced; its place is counted in the
    header that comes with torch. Where that is not found, backward works on the first device alone.
    """
    import torch

    header = pathlib.Path(torch.__file__).parent / "include/c10/core/impl/DeviceGuardImplInterface.h"
    if not header.exists():
        return
    before, found, _ = header.read_text().partition("virtual DeviceIndex deviceCount() const noexcept = 0;")
    if not found:
        return
    place = len(
        re.findall(r"^  virtual ", before[before.index("struct C10_API DeviceGuardImplInterface") :], re.MULTILINE)
    )
    instance = ctypes.c_void_p.from_address(id(guard) + object.__basicsize__).value
    assert instance is not None
    table = ctypes.c_void_p.from_address(instance)
    assert table.value is not None
    length, ahead = 64, 2  # type information and the offset to the top stand before the functions
    copy = (ctypes.c_void_p * length)()
    ctypes.memmove(copy, table.value - 8 * ahead, 8 * length)
    copy[ahead + place] = ctypes.cast(_count_devices, ctypes.c_void_p).value
    table.value = ctypes.addressof(copy) + 8 * ahead
    _libraries.extend((guard, copy))


_count_devices = ctypes.CFUNCTYPE(ctypes.c_int8, ctypes.c_void_p)(lambda _: DEVICES)


def _on_sizes(name: str) -> Any:
    """A kernel that hands the operation to the CPU's, which looks at sizes and storages alone."""
    import torch

    packet, _, overload = name.partition(".")
    operator = getattr(getattr(torch.ops.aten, packet), overload or "default")
    host = torch._C.DispatchKeySet(torch._C.DispatchKey.CPU)

    def kernel(*args: Any, **kwargs: Any) -> Any:
        return operator.redispatch(host, *args, **kwargs)

    return kernel


_libraries: list[Any] = []
"""What must not die: registrations end with their library."""
