"""CUDA kernels on the host: g++ compiles them, and launches check what no device does."""

from __future__ import annotations

import ctypes
import re
import subprocess
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np


class Kernels:
    """The kernels of a CUDA source, compiled with options into a library in a folder."""

    _launching = threading.Lock()  # the threads of a kernel are in static memory

    def __init__(self, source: Path, options: Sequence[str], library: Path) -> None:
        around = Path(__file__).with_name("emulated.cpp")
        names = re.findall(
            r'"C" __global__ void (?:__launch_bounds__\(.*\)\s+)?(\w+)\(', source.read_text()
        )
        each = " ".join(f"KERNEL({name})" for name in names)
        defined = [f'-DKERNELS="{source}"', f"-DEACH_KERNEL={each}"]
        command = ["g++", "-std=c++14", "-O1", "-w", "-shared", "-fPIC", *options, *defined]
        subprocess.run([*command, "-o", library, around], check=True)
        self._library = ctypes.CDLL(str(library))
        self._library.types.restype = self._library.launch.restype = ctypes.c_char_p

    def launch(
        self,
        name: str,
        grid: tuple[int, int, int],
        n_threads: int,
        shared: int,
        args: Sequence[Any],
        *,
        is_reversed: bool = False,
    ) -> None:
        """Run a kernel on arrays and numbers; `is_reversed` lets its threads run the other way."""
        with self._launching:
            kinds = self._library.types(name.encode()).decode().split()
            values = [_as_cuda_takes_it(*pair) for pair in zip(args, kinds, strict=True)]
            pointers = (ctypes.c_void_p * len(values))(*(value.ctypes.data for value in values))
            problem = self._library.launch(
                name.encode(), *grid, n_threads, shared, is_reversed, pointers
            )
        assert problem is None, problem.decode()


class Emulator:
    """Runs the kernels of a source, compiled once for each set of compile-time constants."""

    def __init__(self, folder: Path, source: Path) -> None:
        self.folder, self.source = folder, source
        self.compiled: dict[tuple[str, ...], Kernels] = {}
        self.begin()

    def begin(self) -> Emulator:
        """Forget what was launched, and let threads run in their order."""
        self.launched: list[Any] = []
        self.reversed = False
        return self

    def run(
        self,
        options: tuple[str, ...],
        name: str,
        grid: tuple[int, int, int],
        n_threads: int,
        shared: int,
        args: Sequence[Any],
    ) -> None:
        """Run a kernel that is compiled with options."""
        if options not in self.compiled:
            library = self.folder / f"{self.source.stem}-{len(self.compiled)}.so"
            self.compiled[options] = Kernels(self.source, options, library)
        args = [getattr(arg, "_array", arg) for arg in args]  # array_api_strict's
        kernels = self.compiled[options]
        kernels.launch(name, grid, n_threads, shared, args, is_reversed=self.reversed)


def _as_cuda_takes_it(arg: Any, kind: str) -> np.ndarray:
    """Check an argument against the type of its parameter; return its bits."""
    if isinstance(arg, np.ndarray):
        assert arg.flags.c_contiguous
        assert f"{arg.dtype}*" == kind
        return np.array(arg.ctypes.data, np.uint64)
    if kind.endswith("*"):
        arg = np.uint64(0) if arg is None else arg
        assert (arg.dtype, arg) == (np.uint64, 0)  # no array
    else:
        assert arg.dtype == kind
    return np.array(arg)
