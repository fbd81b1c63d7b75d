"""Content keys of objects: equal for equal contents, in every process and on every machine."""

from __future__ import annotations

import copyreg
import dis
import hashlib
import sys
from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property, lru_cache
from pathlib import Path
from types import (
    BuiltinFunctionType,
    CodeType,
    FunctionType,
    MappingProxyType,
    MethodType,
    ModuleType,
)
from typing import Any

import numpy as np
from scipy import stats
from sklearn.base import clone
from sklearn.utils import check_random_state

from skfleet._sklearn_private import estimator_state
from skfleet.blocks import normalize_token

_NUMBERS = frozenset([bool, int, float, complex])
_DATA = (bool, int, float, complex, str, bytes, list, tuple, dict, set, frozenset)
_LIBRARY_FOLDERS = frozenset(["site-packages", "dist-packages"])


def content_key(*objects: Any) -> str:
    """Return a hash of the contents of objects, the same in every process.

    joblib's hash and Dask's tokens are hashes of pickles, which depend on more than the contents:
    the identity of equal objects, the iteration order of a set, the line number of a function, the
    state of NumPy's global generator in a distribution. Here the parts of an object, as pickle
    would reduce it, are hashed one by one:

    - functions and classes by module and name; outside of installed libraries also by their code
      and the globals that it reads;
    - estimators by class and parameters, and by their fitted attributes;
    - distributions of SciPy by name, arguments and seed;
    - sets and dicts without an order, arrays and DataFrames by their values;
    - objects with Dask's ``__dask_tokenize__``, collections among them, by their token.

    Raises
    ------
    TypeError
        For an object that cannot be pickled, such as a lock or an open file.
    """
    return _Contents().digest(objects).hex()


def unfitted(values: Any) -> Any:
    """Return a copy of parameters in which all estimators are cloned, and so are not fitted."""
    if isinstance(values, Mapping):
        return {name: unfitted(value) for name, value in values.items()}
    if type(values) in (list, tuple):
        return type(values)(map(unfitted, values))
    is_estimator = hasattr(values, "get_params") and not isinstance(values, type)
    return clone(values) if is_estimator else values


class _Contents:
    """Recursive hash of objects that may refer to one another."""

    def __init__(self) -> None:
        self._path: dict[int, int] = {}  # depths of the objects that contain the current one, by id
        # digests of functions and classes by id, with a reference that keeps the id valid
        self._code: dict[int, tuple[Any, bytes]] = {}
        self._in_distribution = False

    def digest(self, obj: Any) -> bytes:
        """Return a hash of an object's content."""
        kind = type(obj)
        if obj is None or kind in _NUMBERS:
            return _hash(kind.__name__, repr(obj).encode())
        if kind is str:
            return _hash("str", obj.encode("utf-8", "surrogatepass"))
        if kind is bytes:
            return _hash("bytes", obj)
        if id(obj) in self._code:
            return self._code[id(obj)][1]
        # Counted from here, so that the key of an object does not depend on what contains it.
        if id(obj) in self._path:
            return _hash("cycle", str(len(self._path) - self._path[id(obj)]).encode())
        self._path[id(obj)] = len(self._path)
        try:
            digest = _hash(*self._parts(obj))
        finally:
            del self._path[id(obj)]
        if isinstance(obj, (FunctionType, type)):
            self._code[id(obj)] = obj, digest
        return digest

    def _node(self, name: str, *parts: Any) -> Iterator[str | bytes]:
        yield name
        for part in parts:
            yield self.digest(part)

    def _unordered(self, name: str, parts: Iterable[Any], *ordered: Any) -> Iterator[str | bytes]:
        yield from self._node(name, *ordered)
        # By their digests, the only order that is the same in every process.
        yield from sorted(map(self.digest, parts))

    def _parts(self, obj: Any) -> Iterable[str | bytes]:
        """Return the kind of an object, and the digests of its parts."""
        kind = type(obj)
        if isinstance(obj, type):
            return self._class(obj)
        if kind in (list, tuple):
            if obj and _NUMBERS.issuperset(map(type, obj)):
                return kind.__name__, repr(obj).encode()
            return self._node(kind.__name__, *obj)
        if kind in (dict, MappingProxyType):
            return self._unordered("dict", obj.items())
        if isinstance(obj, (set, frozenset)):
            return self._unordered("set", obj, kind, getattr(obj, "__dict__", None))
        if kind in (FunctionType, BuiltinFunctionType, MethodType) or _is_library(obj):
            return self._function(obj)
        if kind is CodeType:
            return self._code_parts(obj)
        if kind is ModuleType:
            return "module", obj.__name__.encode()
        if (content := normalize_token(obj)) is not None:
            return self._node(*content)
        if hasattr(obj, "get_params"):
            return self._node("estimator", kind, estimator_state(obj))
        return self._object(obj)

    # -- code -----------------------------------------------------------------------------------

    def _function(self, function: Any) -> Iterable[str | bytes]:
        """Hash a library's function by name, others by code, defaults, closure and globals too."""
        if isinstance(function, MethodType):
            return self._node("method", function.__self__, function.__func__)
        owner = getattr(function, "__self__", None)
        if isinstance(function, BuiltinFunctionType):
            is_bound = owner is not None and not isinstance(owner, ModuleType)
            return self._node("function", *_name(function), *([owner] if is_bound else []))
        if _is_library(function):
            return self._node("function", *_name(function))
        code = function.__code__
        cells = function.__closure__ or ()
        closure = {name: _content(cell) for name, cell in zip(code.co_freevars, cells, strict=True)}
        names = sorted(_global_names(code) & function.__globals__.keys())
        variables = {name: self._global_value(function.__globals__[name]) for name in names}
        defaults = function.__defaults__, function.__kwdefaults__
        return self._node("function", *_name(function), code, *defaults, closure, variables)

    def _global_value(self, value: Any) -> Any:
        """Return the digest of a global if it is data or code; else its class.

        A global may be a client or a lock, which cannot be hashed and do not affect scores.
        """
        is_code = isinstance(value, (FunctionType, BuiltinFunctionType, MethodType, type))
        is_data = isinstance(value, _DATA) or normalize_token(value) is not None
        try:
            return self.digest(value if is_code or is_data else type(value))
        except TypeError:
            return type(value)

    def _code_parts(self, code: CodeType) -> Iterator[str | bytes]:
        """Hash code without its file name and line numbers."""
        names = code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars
        counts = [code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount]
        content = (code.co_code, code.co_consts, *names, [*counts, code.co_flags])
        return self._node("code", *content, code.co_exceptiontable)

    def _class(self, cls: type) -> Iterator[str | bytes]:
        """Hash a library's class by name, others by their bases and methods too.

        Class attributes that are no functions are ignored: they may be counters or caches.
        """
        if _is_library(cls):
            return self._node("class", *_name(cls))
        functions = {name: _functions_in(value) for name, value in vars(cls).items()}
        methods = {name: own for name, own in functions.items() if own}
        return self._node("class", *_name(cls), cls.__bases__, methods)

    # -- other objects --------------------------------------------------------------------------

    def _object(self, obj: Any) -> Iterable[str | bytes]:
        """Hash an object by the parts to which pickle reduces it."""
        kind = type(obj)
        if kind is np.random.RandomState:
            is_global = obj is check_random_state(None)
            if is_global or self._in_distribution:
                return self._node("seed", None if is_global else _seed(obj))
        if any(base.__module__.startswith("scipy.stats.") for base in kind.__mro__):
            return self._distribution(obj)
        if (content := _library_content(obj)) is not None:
            return self._node("object", kind, content)
        try:
            reduce = copyreg.dispatch_table.get(kind)
            reduced: Any = obj.__reduce_ex__(4) if reduce is None else reduce(obj)
        except Exception as error:
            raise TypeError(
                "what a search depends on must be picklable with a checkpoint, to tell it from "
                f"others. Got {obj!r} instead. Leave it out, or give its class the method "
                "__dask_tokenize__, which returns what tells its objects apart."
            ) from error
        if isinstance(reduced, str):
            module, wrapped = (getattr(obj, f"__{name}__", None) for name in ("module", "wrapped"))
            return self._node("global", module, reduced, wrapped)
        make, args, state, items, pairs = [*reduced, None, None, None][:5]
        if isinstance(state, dict) and kind.__module__.partition(".")[0] == "pandas":
            # what was asked of the object before, which pandas keeps
            state = {name: value for name, value in state.items() if name != "_cache"} or None
        return self._node("object", kind, make, args, state, list(items or ()), dict(pairs or ()))

    def _distribution(self, obj: Any) -> Iterable[str | bytes]:
        """Hash a distribution by name, arguments and seed; an unnamed one by its state."""
        outer, self._in_distribution = self._in_distribution, True
        try:
            dist = getattr(obj, "dist", None)
            name = getattr(dist, "name", None)
            if name is not None and type(getattr(stats, name, None)) is type(dist):
                content: Any = name, obj.args, obj.kwds, obj.random_state
            else:
                state = obj.__getstate__()
                state = state if isinstance(state, dict) else {"": state}
                content = {key: v for key, v in state.items() if key != "__doc__"}
            return list(self._node("distribution", type(obj), content))
        finally:
            self._in_distribution = outer


def _hash(*parts: str | bytes) -> bytes:
    """Hash parts with their lengths, so that different parts never give the same bytes."""
    digest = hashlib.blake2b(digest_size=16)
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        digest.update(len(data).to_bytes(8, "little"))
        digest.update(data)
    return digest.digest()


def _name(obj: Any) -> tuple[str, str]:
    """Return the module and the name of a function or a class."""
    # the script's name in processes that are spawned
    module = str(getattr(obj, "__module__", None)).replace("__mp_main__", "__main__")
    return module, obj.__qualname__


def _is_library(obj: Any) -> bool:
    """Return whether a function or class can be imported by its name from an installed library."""
    if not isinstance(getattr(obj, "__qualname__", None), str):
        return False
    module, name = _name(obj)
    imported: Any = sys.modules.get(module)
    for part in name.split("."):
        imported = getattr(imported, part, None)
    return imported is obj and _is_installed(module.partition(".")[0])


@lru_cache(maxsize=1024)
def _is_installed(package: str) -> bool:
    """Return whether a package is of the standard library, this one, or in site-packages."""
    if package == "__main__":
        return False
    if package in sys.stdlib_module_names or package == __name__.partition(".")[0]:
        return True
    file = getattr(sys.modules.get(package), "__file__", None)
    return file is not None and not _LIBRARY_FOLDERS.isdisjoint(Path(file).parts)


def _functions_in(value: Any) -> list[Any]:
    """Return the functions of a method, property or wrapper; an empty list for other values."""
    if isinstance(value, (staticmethod, classmethod)):
        value = value.__func__
    if isinstance(value, property):
        return [value.fget, value.fset, value.fdel]
    if isinstance(value, cached_property):
        return [value.func]
    if isinstance(value, FunctionType):
        return [value]
    wrapped = getattr(value, "__wrapped__", None)
    return [wrapped] if isinstance(wrapped, FunctionType) else []


@lru_cache(maxsize=1024)
def _global_names(code: CodeType) -> frozenset[str]:
    """Return the global names that code, with nested code, reads and does not set."""
    names: dict[str, set[str]] = {"LOAD_GLOBAL": set(), "LOAD_NAME": set(), "STORE_GLOBAL": set()}
    codes = [code]
    while codes:
        nested = codes.pop()
        codes += [const for const in nested.co_consts if isinstance(const, CodeType)]
        for instruction in dis.get_instructions(nested):
            if instruction.opname in names:
                names[instruction.opname].add(instruction.argval)
    return frozenset((names["LOAD_GLOBAL"] | names["LOAD_NAME"]) - names["STORE_GLOBAL"])


def _content(cell: Any) -> Any:
    """Return the content of a closure's cell, None if it is empty."""
    try:
        return cell.cell_contents
    except ValueError:
        return None


def _library_content(obj: Any) -> Any:
    """Return the content of library objects whose pickles contain a random name."""
    library = type(obj).__module__.partition(".")[0]
    if library == "numba" and hasattr(obj, "py_func"):
        return obj.py_func
    if library == "optuna" and hasattr(obj, "trials"):
        trials = [(trial.state, trial.params, trial.values) for trial in obj.trials]
        return obj.sampler, obj.pruner, obj.directions, trials
    return None


def _seed(random_state: np.random.RandomState) -> Any:
    """Return the seed of an unused generator; None if it was used, or has no seed.

    Distributions without a seed have NumPy's global generator, or a copy of it in its state at that
    moment.
    """
    state = random_state.get_state(legacy=False)
    if state["bit_generator"] != "MT19937":
        return state
    seed = int(state["state"]["key"][0])
    first = np.random.RandomState(seed).get_state(legacy=False)["state"]
    is_first = all(np.array_equal(state["state"][name], first[name]) for name in first)
    return seed if is_first else None
