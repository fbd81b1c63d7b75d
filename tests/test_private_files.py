"""Checkpoints and scratch folders are for their owner alone, and others' files are not opened."""

import os
import pickle
import stat
import sys
import tempfile
from pathlib import Path

import dask
import pytest

from skfleet import Fleet, config_context
from skfleet._checkpoint_store import CheckpointStore
from skfleet._private_files import check_trusted, scratch_directory
from skfleet.engine._dask._disk_blocks import scratch_space
from skfleet.fleet._credentials import load_connection

pytestmark = pytest.mark.skipif(os.name != "posix", reason="modes of files are POSIX's")
ROOT, NOBODY, SOMEBODY = 0, 65534, 4242


def mode_of(path):
    return stat.S_IMODE(os.lstat(path).st_mode)


@pytest.fixture
def as_nobody(monkeypatch):
    """Look at files as a user who is not root."""
    monkeypatch.setattr("skfleet._private_files.os.getuid", lambda: NOBODY)


def owned_by(path, user):
    if os.geteuid() != ROOT:
        pytest.skip("only root can make files of other users")
    os.chown(path, user, user)


@pytest.fixture
def wide_umask():
    before = os.umask(0)
    yield
    os.umask(before)


# -- checkpoints -----------------------------------------------------------------------------------


@pytest.mark.usefixtures("wide_umask")
def test_checkpoints_are_for_their_owner(tmp_path):
    store = CheckpointStore(tmp_path / "search" / "new", "models")
    store.dump("one", {"a": 1})
    store.add("two", b"content")
    folder = tmp_path / "search" / "new" / "models"
    assert {mode_of(folder / name) for name in ("one", "two")} == {0o600}
    assert mode_of(folder) == 0o700
    assert store.load("one") == {"a": 1}
    store.dump("one", {"a": 2})
    assert store.load("one") == {"a": 2}
    assert mode_of(folder / "one") == 0o600


@pytest.mark.usefixtures("wide_umask")
def test_shared_checkpoints_have_the_modes_of_other_files(tmp_path):
    with config_context(trust_files=True):
        store = CheckpointStore(tmp_path / "shared")
    sent = pickle.loads(pickle.dumps(store))  # to a worker, which has no such setting
    sent.dump("one", 1)
    assert mode_of(tmp_path / "shared" / "one") == 0o666
    assert sent.load("one") == 1


@pytest.fixture
def stored(tmp_path):
    """Path of a file in a checkpoint that a store has written."""
    CheckpointStore(tmp_path).dump("one", 1)
    tmp_path.chmod(0o755)
    path = tmp_path / "one"
    owned_by(path, NOBODY)
    owned_by(tmp_path, NOBODY)
    return path


@pytest.mark.usefixtures("as_nobody")
@pytest.mark.parametrize("owner", [NOBODY, ROOT])
def test_files_of_the_user_and_of_root_are_read(owner, stored):
    owned_by(stored, owner)
    assert CheckpointStore(stored.parent).load("one") == 1


@pytest.mark.usefixtures("as_nobody")
@pytest.mark.parametrize("part", ["file", "folder"])
@pytest.mark.parametrize("change", ["owner", "group", "others"])
def test_files_that_others_may_have_written_are_not_opened(change, part, stored, monkeypatch):
    path = stored if part == "file" else stored.parent
    if change == "owner":
        owned_by(path, SOMEBODY)
        message = rf"Got '{path}' of user {SOMEBODY} instead\. Copy what you trust"
    else:
        path.chmod(path.stat().st_mode | (0o020 if change == "group" else 0o002))
        message = rf"Got '{path}' of mode \d+ instead\. chmod go-w {path}, or use config_context"
    monkeypatch.setattr("pickle.loads", lambda *args: pytest.fail("it was opened"))
    with pytest.raises(PermissionError, match=message):
        CheckpointStore(stored.parent).load("one")
    monkeypatch.undo()
    with config_context(trust_files=True):
        assert CheckpointStore(stored.parent).load("one") == 1


@pytest.mark.usefixtures("as_nobody")
def test_an_address_that_others_may_have_written_is_not_used(stored):
    path = stored.parent / "scheduler.json"
    path.write_text('{"address": "tcp://10.0.0.1:8786"}')
    owned_by(path, SOMEBODY)
    with pytest.raises(PermissionError, match=rf"of user {SOMEBODY} instead\. Copy what you trust"):
        Fleet(path)
    with config_context(trust_files=True):
        assert load_connection(path) == ("tcp://10.0.0.1:8786", None)


@pytest.mark.usefixtures("as_nobody")
def test_nobody_replaces_files_of_others_in_a_sticky_folder(stored):
    stored.parent.chmod(0o1777)
    check_trusted(str(stored))


def test_root_opens_any_file(stored, monkeypatch):
    owned_by(stored, SOMEBODY)
    stored.chmod(0o666)
    monkeypatch.setattr("skfleet._private_files.os.getuid", lambda: ROOT)
    assert CheckpointStore(stored.parent).load("one") == 1


def test_other_locations_are_as_trusted_as_their_store():
    store = CheckpointStore("memory://private-files-test")
    store.dump("one", 1)
    assert store.load("one") == 1


# -- scratch folders -------------------------------------------------------------------------------


@pytest.mark.usefixtures("wide_umask")
def test_scratch_folder_is_for_its_owner(tmp_path):
    folder = scratch_directory(str(tmp_path / "disk"))
    assert folder == str(tmp_path / "disk" / f"skfleet-{os.getuid()}")
    assert mode_of(folder) == 0o700
    assert scratch_directory(str(tmp_path / "disk")) == folder


@pytest.mark.parametrize("squatter", ["link", "file", "open", "other"])
def test_scratch_folder_of_another_is_not_used(squatter, tmp_path):
    taken = tmp_path / f"skfleet-{os.getuid()}"
    if squatter == "link":
        (tmp_path / "elsewhere").mkdir(0o700)
        taken.symlink_to(tmp_path / "elsewhere")
    elif squatter == "file":
        taken.touch(0o700)
    else:
        taken.mkdir(0o700)
        taken.chmod(0o777 if squatter == "open" else 0o700)
        if squatter == "other":
            owned_by(taken, SOMEBODY)
    folder = Path(scratch_directory(str(tmp_path)))
    assert folder.parent == tmp_path
    assert folder != taken
    assert mode_of(folder) == 0o700


def own_folder():
    parent = dask.config.get("temporary-directory") or tempfile.gettempdir()
    return Path(parent, f"skfleet-{os.getuid()}")


@pytest.mark.parametrize("processes", [True, False])
def test_fleets_write_in_a_folder_of_their_users(processes):
    before = set(sys.path)
    with Fleet(n_workers=1, processes=processes) as client:
        (folder,) = client.run(lambda dask_worker: dask_worker.local_directory).values()
        other = client.run_on_scheduler(lambda dask_scheduler: dask_scheduler.local_directory)
        folders = [folder, other, *(set(sys.path) - before)]  # modules are imported from some
    assert [path for path in folders if own_folder() not in Path(path).parents] == []
    assert mode_of(own_folder()) == 0o700


def test_fits_without_a_client_write_in_a_folder_of_their_users(tmp_path):
    (tmp_path / "dask-scratch-space").mkdir()  # another user was there first
    (tmp_path / "dask-scratch-space").chmod(0o777)
    with dask.config.set({"temporary-directory": str(tmp_path)}), scratch_space() as space:
        assert own_folder() in Path(space.directory).parents
        assert mode_of(own_folder()) == mode_of(space.directory) == 0o700
