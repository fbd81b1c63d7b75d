"""The files of checkpoints: whole or not there, at any location, and known by their checksums."""

import logging
import pickle

import pytest

from skfleet._checkpoint_store import CheckpointStore, with_checksum, without_checksum


@pytest.fixture(params=["folder", "memory"])
def store(request, tmp_path):
    return CheckpointStore(
        tmp_path / "there" if request.param == "folder" else f"memory://{tmp_path}", "models"
    )


def test_objects_come_back(store):
    assert store.load("some") is None
    store.dump("some", {"a": 1})
    store.dump("some", {"a": 2})
    assert store.load("some") == {"a": 2}
    assert pickle.loads(pickle.dumps(store)).load("some") == {"a": 2}


def test_names_are_those_of_the_folder(store):
    assert store.names("*") == []
    for name in ("1-2.model", "1-3.model", "2-1.model"):
        store.dump(name, name)
    CheckpointStore(store.location).add("search.json", b"{}")
    assert sorted(store.names("1-*.model")) == ["1-2.model", "1-3.model"]
    store.remove("1-2.model")
    assert sorted(store.names("*")) == ["1-3.model", "2-1.model"]  # and no drafts


@pytest.mark.parametrize("change", [lambda data: data[:-1], lambda data: b"", lambda data: b"text"])
def test_damaged_files_count_for_nothing(store, change, caplog):
    store.dump("some", list(range(100)))
    store.add("some", change(store.read("some")))
    with caplog.at_level(logging.WARNING, "skfleet"):
        assert store.load("some") is None
    assert f"{store.path('some')} is damaged" in caplog.text


def test_a_file_of_a_class_that_is_gone_counts_for_nothing(store, caplog):
    store.write("some", with_checksum(b"cno_such_module\nName\n."))
    assert store.load("some") is None
    assert "is damaged" in caplog.text


def test_a_draft_is_not_taken_for_the_file(store, monkeypatch):
    store.dump("some", "before")
    files, _ = store._files()
    monkeypatch.setattr(type(files), "mv", lambda *args, **kwargs: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        store.dump("some", "after")
    assert store.load("some") == "before"


def test_workers_see_the_folder_of_the_caller(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert CheckpointStore("here").location == str(tmp_path / "here")


@pytest.mark.parametrize(
    ("location", "shown"),
    [
        ("ftp://name:s3cr%2Ft@host/fits", "ftp://name:***@host/fits"),
        ("s3://key:s3cr%2Ft@bucket/fits", "s3://key:***@bucket/fits"),
        ("simplecache::ftp://name:s3cr%2Ft@host", "simplecache::ftp://name:***@host"),
        ("ftp://name:@host", "ftp://name:***@host"),
    ],
)
def test_no_location_has_a_password(location, shown):
    with pytest.raises(ValueError, match="checkpoint must be a location without a p") as error:
        CheckpointStore(location)
    assert f"Got {shown!r} instead" in str(error.value)
    assert "s3cr" not in str(error.value)


@pytest.mark.parametrize(
    "location", ["sftp://name@host/fits", "abfs://container@account/fits", "hdfs://host:9000/a@b"]
)
def test_locations_may_have_a_name_and_a_port(location):
    assert CheckpointStore(location).location == location


def test_checksums():
    assert without_checksum(with_checksum(b"a b\nc")) == b"a b\nc"
    for data in (b"", b"00000000 a", b"no checksum", with_checksum(b"a") + b"b"):
        with pytest.raises(ValueError, match=r"checksum|invalid literal"):
            without_checksum(data)
