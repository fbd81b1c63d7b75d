"""NumPy behind the names and signatures of CuPy 14, so that tests for a GPU run without one.

Like CuPy it never brings values to the host unasked, and takes none from there: arrays of NumPy are
refused as operands. What CuPy has and nobody here uses raises when it is called; whoever comes to
use it adds its signature. It knows one device of 8 GB, and its kernels are emulated.
"""

from __future__ import annotations

import builtins
import hashlib
import inspect
import os
import sys
import tempfile
import threading
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
from cupy_names import METHODS, OPERATORS, SIGNATURES, UFUNCS
from emulated_kernels import Kernels

__path__: list[str] = []  # submodules are made below
__version__ = "14.2.0"

_words = str.split
_IN_PLACE = _words("iadd isub imul itruediv ifloordiv imod ipow iand ior ixor ilshift irshift")
_OF_TYPES = _words("can_cast finfo iinfo isdtype issubdtype promote_types result_type")
_NUMBERS = (builtins.int, builtins.float, builtins.complex, np.generic)
# What makes no new values: arrays without values, and views.
_FREE = _words("empty empty_like broadcast_shapes broadcast_to reshape swapaxes transpose diagonal")
_FREE += _words("data device dtype flags item itemsize ndim nbytes ravel shape size squeeze")
_FREE += _words("strides T view get")
# Names of what CuPy would have launched or copied to the device, for tests that count it.
launched: list[str] = []


def _note(name: str) -> None:
    if name not in _FREE:
        launched.append(name)


def _refuse(x: Any) -> None:
    raise TypeError(f"Unsupported type {type(x)}")


def _values(x: Any) -> Any:
    """Give what NumPy is to work on: the values of arrays on the device, and no others."""
    if isinstance(x, ndarray):
        return x._values
    if isinstance(x, np.ndarray):
        _refuse(x)
    return type(x)(map(_values, x)) if type(x) in (list, tuple) else x


def _there(x: Any) -> Any:
    """Put what NumPy has made on the device; single numbers too."""
    if isinstance(x, np.ndarray | np.generic):
        if x.dtype.kind not in "biufc":
            raise ValueError(f"Unsupported dtype {x.dtype}")
        array = object.__new__(ndarray)
        array._values = np.asarray(x)
        return array
    if isinstance(x, tuple):
        parts = [_there(part) for part in x]
        return type(x)(*parts) if hasattr(x, "_fields") else tuple(parts)
    return x


def _index(i: Any) -> Any:
    """Give an index as NumPy's; CuPy brings up those of NumPy by itself."""
    if isinstance(i, tuple):
        return tuple(map(_index, i))
    if isinstance(i, slice):
        ends = (e.get().item() if isinstance(e, ndarray) else e for e in (i.start, i.stop, i.step))
        return slice(*ends)
    return i._values if isinstance(i, ndarray) else i


class ndarray:  # noqa: N801 - as CuPy has it
    """An array on the device."""

    __array_priority__ = 100
    __hash__ = None  # type: ignore[assignment]
    _values: np.ndarray

    def __array__(self, *args: Any, **kwargs: Any) -> np.ndarray:
        raise TypeError("Implicit conversion to a NumPy array is not allowed.")

    def __array_ufunc__(self, function: Any, method: str, *args: Any, **kwargs: Any) -> Any:
        known = method == "__call__" and function.__name__ in UFUNCS
        return globals()[function.__name__](*args, **kwargs) if known else NotImplemented

    def __array_function__(self, function: Any, types: Any, args: Any, kwargs: Any) -> Any:
        home = linalg if "linalg" in function.__module__ else sys.modules[__name__]
        return getattr(home, function.__name__)(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        if name not in METHODS:
            raise AttributeError(f"'cupy.ndarray' object has no attribute {name!r}")
        found = getattr(self._values, name)
        if not callable(found):
            return _there(found)

        def method(*args: Any, **kwargs: Any) -> Any:
            if kwargs.keys() & {"where", "initial", "casting"}:
                raise TypeError(f"{name}() got an unexpected keyword argument")
            _note(name)
            asked = {key: _values(value) for key, value in kwargs.items()}
            return _there(found(*map(_values, args), **asked))

        return method

    def get(self, stream: Any = None, order: str = "C") -> np.ndarray:
        return self._values.copy(order)

    def set(self, values: np.ndarray, stream: Any = None) -> None:
        assert values.dtype == self.dtype
        assert values.shape == self.shape
        assert self._values.flags.forc
        self._values[...] = values

    def item(self, *where: Any) -> Any:
        return self._values.item(*where)

    def tolist(self) -> Any:
        return self._values.tolist()

    @property
    def device(self) -> Any:
        return cuda.Device(0)

    @property
    def dtype(self) -> np.dtype:
        return self._values.dtype

    @property
    def shape(self) -> tuple[int, ...]:
        return self._values.shape

    @property
    def flags(self) -> Any:
        return self._values.flags

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return self._values.__array_interface__

    def __len__(self) -> int:
        return len(self._values)

    def __iter__(self) -> Any:
        return iter([self[i] for i in range(len(self))])

    def __getitem__(self, i: Any) -> Any:
        if builtins.any(hasattr(part, "__len__") for part in (i if isinstance(i, tuple) else (i,))):
            _note("take")  # of other places than a slice's
        return _there(self._values[_index(i)])

    def __setitem__(self, i: Any, values: Any) -> None:
        _note("__setitem__")
        self._values[_index(i)] = _values(values)

    def __float__(self) -> float:
        return builtins.float(self._values)

    def __int__(self) -> int:
        return builtins.int(self._values)

    def __bool__(self) -> bool:
        return builtins.bool(self._values)

    def __repr__(self) -> str:
        return repr(self._values)

    def __copy__(self) -> ndarray:
        return self.copy()

    def __deepcopy__(self, memo: Any) -> ndarray:
        return self.copy()

    def __reduce__(self) -> tuple[Any, ...]:
        return array, (self.get(),)


def _operator(name: str, *, in_place: bool) -> Any:
    def operate(self: ndarray, other: Any) -> Any:
        if not isinstance(other, (ndarray, *_NUMBERS)):
            return _refuse(other) if isinstance(other, np.ndarray) else NotImplemented
        _note(name)
        answer = getattr(self._values, name)(_values(other))
        return self if in_place else _there(answer)

    return operate


def _unary(name: str) -> Any:
    def operate(self: ndarray) -> Any:
        _note(name)
        return _there(getattr(self._values, name)())

    return operate


for _name in ("__neg__", "__abs__", "__invert__"):
    setattr(ndarray, _name, _unary(_name))
for _name in (*OPERATORS, *_IN_PLACE):
    setattr(ndarray, f"__{_name}__", _operator(f"__{_name}__", in_place=_name in _IN_PLACE))


def _ufunc(name: str) -> Any:
    function = getattr(np, name)

    def call(*args: Any, out: Any = None, dtype: Any = None) -> Any:
        for arg in args:
            if isinstance(arg, np.ndarray) or not isinstance(arg, (ndarray, *_NUMBERS)):
                _refuse(arg)
        _note(name)
        return _there(function(*map(_values, args), out=_values(out), dtype=dtype))

    return call


def _function(line: str) -> tuple[str, Any]:
    """Make a function that takes no other arguments than CuPy's."""
    place, _, parameters = line.partition("(")
    function: Any = np
    for part in place.split("."):
        function = getattr(function, part)
    scope: dict[str, Any] = {}
    exec(f"def like({parameters}: pass", scope)
    signature = inspect.signature(scope["like"])

    def call(*args: Any, **kwargs: Any) -> Any:
        signature.bind(*args, **kwargs)
        _note(place)
        asked = {key: _values(value) for key, value in kwargs.items() if value is not None}
        return _there(function(*map(_values, args), **asked))

    return place, call


def _unknown(name: str) -> Any:
    """Make a function of which nobody has written down the signature."""

    def call(*args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError(f"this stand-in does not know cupy.{name}: add its signature")

    return call


def _of_types(function: Any) -> Any:
    """Make a function of types, and of arrays' types."""

    def call(*args: Any) -> Any:
        return function(*(arg.dtype if isinstance(arg, ndarray) else arg for arg in args))

    return call


def __getattr__(name: str) -> Any:
    if name.startswith("_"):
        raise AttributeError(name)
    found = getattr(np, name)  # types, constants
    if name in _OF_TYPES:
        return _of_types(found)
    return _unknown(name) if callable(found) and not isinstance(found, type) else found


def array(
    obj: Any,
    dtype: Any = None,
    copy: bool = True,
    order: str = "K",
    subok: bool = False,
    ndmin: int = 0,
    *,
    blocking: bool = False,
) -> ndarray:
    _note("array")
    values = obj._values if isinstance(obj, ndarray) else obj
    return _there(np.array(values, dtype, copy=copy or None, order=order, ndmin=ndmin))


def asarray(
    a: Any, dtype: Any = None, order: Any = None, *, copy: Any = None, blocking: bool = False
) -> ndarray:
    has_dtype = dtype is None or np.dtype(dtype) == getattr(a, "dtype", None)
    if isinstance(a, ndarray) and has_dtype and order in (None, "K") and not copy:
        return a
    return array(a, dtype, copy=copy is not False, order=order or "K")


def asfortranarray(a: Any, dtype: Any = None) -> ndarray:
    return array(a, dtype, order="F")


def ascontiguousarray(a: Any, dtype: Any = None) -> ndarray:
    if isinstance(a, ndarray) and a.flags.c_contiguous and dtype in (None, a.dtype):
        return a
    return array(a, dtype, order="C")


def asnumpy(a: Any) -> np.ndarray:
    return a.get() if isinstance(a, ndarray) else np.asarray(a)


class RawModule:
    """A CUDA source, compiled by g++; what was compiled before is found again."""

    _folder = Path(tempfile.gettempdir(), f"skfleet-kernels-{os.getuid()}")

    def __init__(self, code: str | None = None, *, options: tuple[str, ...] = ()) -> None:
        assert code is not None
        assert type(options) is tuple
        name = hashlib.sha256(repr((code, options)).encode()).hexdigest()[:16]
        self._folder.mkdir(exist_ok=True)
        source = self._folder / f"{name}-{os.getpid()}-{threading.get_ident()}.cu"
        source.write_text(code)
        self._kernels = Kernels(source, options, source.with_suffix(".so"))
        source.with_suffix(".so").unlink()
        source.unlink()

    def get_function(self, name: str) -> RawKernel:
        return RawKernel(self._kernels, name)


class RawKernel:
    """A kernel of such a source."""

    max_dynamic_shared_size_bytes = 48 * 1024

    def __init__(self, kernels: Kernels, name: str) -> None:
        self._kernels, self._name = kernels, name

    def __call__(self, grid: Any, block: Any, args: Any, *, shared_mem: int = 0) -> None:
        assert shared_mem <= self.max_dynamic_shared_size_bytes
        _note(self._name)
        given = [arg._values if isinstance(arg, ndarray) else arg for arg in args]
        self._kernels.launch(self._name, grid, block[0], shared_mem, given)


# Memory that nobody counts: CuPy's pools have given all of it away.
class _Malloc:
    """A method of a Cython class, which has no module."""

    __module__ = None  # type: ignore[assignment]


_pool = SimpleNamespace(malloc=_Malloc(), free_bytes=lambda: 0, free_all_blocks=lambda: None)
_pinned = SimpleNamespace(n_free_blocks=lambda: 0, free_all_blocks=lambda: None)


def get_default_memory_pool() -> Any:
    return _pool


def get_default_pinned_memory_pool() -> Any:
    return _pinned


class _AtOnce:
    """Something of CUDA's, all of which has been done when anybody asks."""

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def synchronize(self) -> None:
        pass


class _Device(_AtOnce):
    mem_info = (4 * 2**30, 8 * 2**30)
    attributes = {
        "MultiProcessorCount": 132,
        "MaxSharedMemoryPerBlockOptin": 227 * 1024,
        "MaxSharedMemoryPerMultiprocessor": 228 * 1024,
    }

    def __init__(self, device: Any = None) -> None:
        self.id = 0 if device is None else builtins.int(device)

    def __int__(self) -> int:
        return self.id

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Device) and other.id == self.id

    def __hash__(self) -> int:
        return self.id

    def __repr__(self) -> str:
        return f"<CUDA Device {self.id}>"


class _Event(_AtOnce):
    def __init__(self, *, disable_timing: bool = False) -> None:
        pass

    def record(self, stream: Any = None) -> None:
        pass


class _Stream(_AtOnce):
    def __init__(self, *, non_blocking: bool = False) -> None:
        pass

    def wait_event(self, event: _Event) -> None:
        assert isinstance(event, _Event)


class _CUDARuntimeError(RuntimeError):
    """What CUDA says."""


def _count_devices() -> int:
    if os.environ.get("CUDA_VISIBLE_DEVICES") in ("", "-1"):
        raise _CUDARuntimeError("cudaErrorNoDevice: no CUDA-capable device is detected")
    return 1


class _Generator:
    """Random numbers of NumPy's, others than those of CuPy."""

    def __init__(self, bits: Any) -> None:
        self._host = np.random.default_rng(bits)

    def standard_normal(self, size: Any = None, dtype: Any = np.float64, out: Any = None) -> Any:
        return _there(self._host.standard_normal(size, dtype))


def _module(name: str, **content: Any) -> ModuleType:
    """Make a submodule."""
    module = ModuleType(f"{__name__}.{name}")
    vars(module).update(content)
    sys.modules[module.__name__] = module
    return module


for _name in UFUNCS:
    globals()[_name] = _ufunc(_name)
_linalg: dict[str, Any] = {"lstsq": _unknown("linalg.lstsq")}
for _line in SIGNATURES.strip().splitlines():
    _place, _made = _function(_line)
    if "." in _place:
        _linalg[_place.rpartition(".")[2]] = _made
    else:
        globals()[_place] = _made
linalg = _module("linalg", **_linalg)
fft = _module("fft")
random = _module(
    "random", default_rng=_Generator, Generator=_Generator, Philox4x3210=np.random.Philox
)
runtime = SimpleNamespace(
    CUDARuntimeError=_CUDARuntimeError,
    getDeviceCount=_count_devices,
    memGetInfo=lambda: _Device.mem_info,
    driverGetVersion=lambda: 13000,
    runtimeGetVersion=lambda: 13000,
    getDeviceProperties=lambda i: {"name": b"a stand-in", "totalGlobalMem": 8 * 2**30},
)
cuda = _module(
    "cuda",
    __path__=[],
    Device=_Device,
    Event=_Event,
    Stream=_Stream,
    alloc_pinned_memory=bytearray,
    get_allocator=lambda: _pool.malloc,
    get_current_stream=_Stream,
    runtime=runtime,
)
_module("cuda.device", Device=_Device)
__all__ = sorted(
    {name for name in dir(np) if not name.startswith("_")} - {"test", "linalg", "fft", "random"}
    | {name for name in globals() if not name.startswith("_") and name not in ("annotations",)}
)
