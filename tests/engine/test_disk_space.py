"""Room on a disk for blocks: how much is taken, what a trial of it tells, and what travels."""

import math
import os
import pickle
import shutil
from collections import namedtuple
from pathlib import Path

import numpy as np
import psutil
import pytest
from distributed.protocol import deserialize, serialize

from skfleet import config_context
from skfleet.blocks import Block, open_block
from skfleet.engine import _disk_cache as disk_cache
from skfleet.engine._dask._disk_blocks import CachedBlock, StoredBlock
from skfleet.engine._disk_cache import DiskSpace, DiskSpeed, is_disk_faster, measure_disk

ROOM = 1e9
X = np.random.default_rng(0).normal(size=(600, 5))


def test_free_space_is_respected(tmp_path, monkeypatch):
    block, size = Block(np.ones((100, 10))), 8000
    usage = shutil.disk_usage(tmp_path)

    def free(n_bytes, total=10**6):
        answer = usage._replace(total=total, free=n_bytes)
        monkeypatch.setattr(shutil, "disk_usage", lambda path: answer)

    space = DiskSpace(str(tmp_path / "blocks"))
    free(10**5 + size - 1)
    assert space.write(block, ROOM) is None, "a tenth of the disk stays free"
    free(10**5 + size)
    file = space.write(block, ROOM)
    np.testing.assert_array_equal(file.load().X, block.X)
    free(11 * 2**30, total=10**15)
    assert space.write(block, ROOM) is not None, "of a large disk, a tenth is too much"
    free(10**9)
    assert space.write(block, 3 * size - 1) is None
    space.remove(file)
    assert space.write(block, 3 * size) is not None, "what was removed leaves room"
    space.clear()
    assert not os.path.exists(space.directory)


def test_a_directory_that_cannot_be_made_is_no_error(tmp_path):
    (tmp_path / "file").touch()
    space = DiskSpace(str(tmp_path / "file" / "blocks"))
    assert space.write(Block(np.ones((3, 2))), ROOM) is None


def test_a_directory_in_memory_is_no_disk(tmp_path, monkeypatch):
    monkeypatch.setattr(disk_cache, "is_in_memory", lambda directory: True)
    space, block = DiskSpace(str(tmp_path)), Block(np.ones((3, 2)))
    assert space.write(block, math.inf) is None
    assert space.write(block, ROOM) is not None, "a number is the user's own decision"


def test_a_mount_in_memory_is_known(monkeypatch):
    Mount = namedtuple("Mount", "mountpoint fstype")
    mounts = [Mount("/", "ext4"), Mount("/tmp", "tmpfs"), Mount("/tmp/disk", "xfs")]
    monkeypatch.setattr(psutil, "disk_partitions", lambda all: mounts)
    monkeypatch.setattr(Path, "resolve", lambda self: self)
    folders = ("/tmp/a/b", "/tmp", "/tmp/disk/a", "/var")
    assert [disk_cache.is_in_memory(f) for f in folders] == [True, True, False, False]


def test_a_trial_measures_the_disk_and_leaves_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr(disk_cache, "TRIAL_BYTES", 10**4)
    space = DiskSpace(str(tmp_path))
    speed = measure_disk(space, ROOM)
    assert 0 < speed.write < math.inf
    assert 0 < speed.read < math.inf
    assert space.n_bytes == 0
    assert not list(tmp_path.glob("**/*.joblib"))
    assert measure_disk(space, 100) == DiskSpeed(math.inf, math.inf)


def test_a_trial_in_the_page_cache_does_not_wait_for_the_disk(tmp_path, monkeypatch):
    def wait_for_ever(*args):
        raise AssertionError("the disk is not asked")

    for name in ("fsync", "posix_fadvise"):
        monkeypatch.setattr(os, name, wait_for_ever, raising=False)
    with pytest.raises(AssertionError):
        measure_disk(DiskSpace(str(tmp_path)), ROOM)
    assert measure_disk(DiskSpace(str(tmp_path)), ROOM, in_page_cache=True).write < math.inf


def test_what_pays():
    disk = DiskSpeed(write=4.0, read=1.0)
    assert is_disk_faster(4.0, [disk])
    assert not is_disk_faster(3.0, [disk])
    assert is_disk_faster(4.0, [DiskSpeed(), disk]), "the better of the trials counts"
    assert not is_disk_faster(1e9, [DiskSpeed()])


@pytest.mark.parametrize("value", ["10 GB", -1, None, np.nan])
def test_a_setting_that_cannot_be(value):
    with (
        pytest.raises(ValueError, match=r"disk_cache must be one of .* or a number of bytes"),
        config_context(disk_cache=value),
    ):
        pass


def test_the_settings():
    for value, limit in ((True, math.inf), ("auto", math.inf), (False, 0), (5e9, 5e9), (7, 7)):
        with config_context(disk_cache=value):
            assert disk_cache.disk_limit() == limit


@pytest.mark.parametrize("is_small", [True, False])
def test_what_travels_to_another_process_can_be_opened_there(is_small, tmp_path):
    block = Block(X, X[:, 0])
    file = DiskSpace(str(tmp_path)).write(block, ROOM)
    again = pickle.dumps(Block(X * 2)) if is_small else None
    stored = StoredBlock("key", file, again, None, ROOM)
    spilled = serialize(stored)
    assert sum(len(frame) for frame in spilled[1]) < X.nbytes * 2.5, "what is spilled is small"
    mapped = deserialize(*spilled)
    np.testing.assert_array_equal(mapped.load().X, X)
    header, frames = serialize(stored, context={"recipient": {}})
    arrived = deserialize(header, [bytes(frame) for frame in frames])
    Path(file.path).unlink()
    np.testing.assert_array_equal(open_block(Block(CachedBlock(arrived))).X, X * (1 + is_small))
    if not is_small:
        with pytest.raises(FileNotFoundError):
            mapped.load()
