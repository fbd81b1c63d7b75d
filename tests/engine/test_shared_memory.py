"""Pickled objects in memory that the processes of a machine share."""

import contextlib
import gc
import os
import pickle
import subprocess
import sys

import numpy as np
import pytest
import scipy.sparse as sp
from dask.sizeof import sizeof
from distributed.protocol import deserialize, serialize

from skfleet._cluster import host_identity
from skfleet.engine._dask import _shared_memory
from skfleet.engine._dask._serialize import Pickled
from skfleet.engine._dask._shared_memory import SharedMemoryPickled

pytestmark = pytest.mark.skipif(host_identity() is None, reason="no memory can be shared here")

A = np.arange(12.0).reshape(3, 4)


@pytest.mark.parametrize("obj", [A, np.asfortranarray(A), sp.csr_array(A), [A, A[:0], "text"], 5])
@pytest.mark.parametrize("way", ["dask", "pickle"])
def test_it_is_the_parcel_it_was_made_of(obj, way):
    plain = Pickled.dumps(obj)
    parcel = SharedMemoryPickled.create(plain)
    if way == "dask":
        copy = deserialize(*serialize(parcel))
    else:
        copy = pickle.loads(pickle.dumps(parcel))
    for one in (parcel, copy):
        assert one.digest() == plain.digest()
        assert one.nbytes == plain.nbytes
        assert pickle.dumps(one.loads()) == pickle.dumps(plain.loads())


def test_buffers_are_written_in_pieces(monkeypatch):
    monkeypatch.setattr(_shared_memory, "_PIECE_BYTES", 100)
    B = np.arange(77, dtype=np.float32)
    parcel = SharedMemoryPickled.create(Pickled.dumps([B, A]))
    for one, other in zip(parcel.loads(), [B, A], strict=True):
        np.testing.assert_array_equal(one, other)


def test_what_travels_is_the_place():
    parcel = SharedMemoryPickled.create(Pickled.dumps(np.zeros(1_000_000)))
    assert len(pickle.dumps(parcel)) < 1000
    _, frames = serialize(parcel)
    assert sum(len(frame) for frame in frames) < 1000


def test_large_buffers_can_only_be_read():
    parcel = SharedMemoryPickled.create(Pickled.dumps(A))
    reader = pickle.loads(pickle.dumps(parcel))
    with pytest.raises(ValueError, match="read-only"):
        reader.loads(readonly=True)[0] = 1
    for own in (reader.loads(), reader.loads(steal=True)):
        own[0] = 1
    np.testing.assert_array_equal(parcel.loads(), A)


def test_another_process_reads_it():
    parcel = SharedMemoryPickled.create(Pickled.dumps(A))
    code = "import pickle, sys; print(pickle.load(sys.stdin.buffer).loads().sum())"
    done = subprocess.run(
        [sys.executable, "-c", code],
        input=pickle.dumps(parcel),
        capture_output=True,
        check=True,
        timeout=60,
    )
    assert float(done.stdout) == A.sum()


def test_memory_goes_with_the_last_who_reads_it():
    parcel = SharedMemoryPickled.create(Pickled.dumps(A))
    travelled = pickle.dumps(parcel)
    reader = pickle.loads(travelled)
    descriptor, identity = parcel._handle.descriptor, parcel._handle.identity
    del parcel
    gc.collect()
    with contextlib.suppress(OSError):  # its number may be that of another file by now
        assert (os.fstat(descriptor).st_dev, os.fstat(descriptor).st_ino) != identity
    np.testing.assert_array_equal(reader.loads(), A)
    with pytest.raises(OSError, match="must be one of this machine"):
        pickle.loads(travelled).loads()


def test_an_object_whose_memory_is_gone_has_a_size():
    # Dask asks for it when a message comes late, and warns of an error
    parcel = SharedMemoryPickled.create(Pickled.dumps(A))
    n_bytes, travelled = sizeof(parcel), pickle.dumps(parcel)
    del parcel
    assert sizeof(pickle.loads(travelled)) == n_bytes >= A.nbytes


def test_memory_of_something_else_is_not_taken_for_it():
    parcel = SharedMemoryPickled.create(Pickled.dumps(A))
    with open(os.devnull) as other:
        place = parcel._handle._replace(descriptor=other.fileno())
        with pytest.raises(OSError, match="its memory is gone"):
            SharedMemoryPickled.attach(parcel.header, place).loads()
