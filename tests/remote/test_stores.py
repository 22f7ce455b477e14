"""Object stores, and file systems of fsspec."""

import json
import pickle
import zipfile

import boto3
import fsspec
import numpy as np
import pytest
from moto.server import ThreadedMotoServer
from obstore.store import S3Store
from range_server import serving

from dask_tiled import DatasetError, Piece, StaleFileError, from_pieces, open_dataset
from dask_tiled.testing import counting_frames, write_mib, write_mib_series

FRAMES = counting_frames((12, 4, 128), "u2", bits=12)


@pytest.fixture
def members(tmp_path):
    return write_mib_series(tmp_path / "scan-", FRAMES, frames_per_file=5, hdr=False)


@pytest.fixture
def memory(members):
    """Copy the members to fsspec's memory file system."""
    system = fsspec.filesystem("memory")
    for path in members:
        system.pipe(f"/series/{path.name}", path.read_bytes())
    yield system
    system.rm("/series", recursive=True)


def test_file_systems_of_fsspec(memory, members):
    """File systems are found by the URL's scheme, or passed as storage_options."""
    one = f"memory://series/{members[1].name}"
    for url, given in ((one, None), ("memory://series/*.mib", None), (one, memory)):
        arr = open_dataset(url, storage_options=given)
        np.testing.assert_array_equal(pickle.loads(pickle.dumps(arr)).compute(), FRAMES)


def test_changed_files_raise(memory, members):
    name = f"/series/{members[0].name}"
    arr = open_dataset(f"memory:/{name}")
    memory.pipe(name, members[0].read_bytes())
    with pytest.raises(StaleFileError, match="changed"):
        arr.compute()
    memory.rm(name)
    with pytest.raises(StaleFileError, match="has been removed"):
        arr.compute()
    with pytest.raises(FileNotFoundError):
        open_dataset(f"memory:/{name}")


def test_missing_credentials_raise(monkeypatch):
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name, raising=False)
    nobody = {"metadata_endpoint": "http://127.0.0.1:9", "region": "eu-west-1"}
    with pytest.raises(DatasetError, match=r"no credentials found\. For public files"):
        open_dataset("s3://bucket/scan.mib", storage_options=nobody)


@pytest.mark.usefixtures("memory")
def test_folders_are_refused():
    with pytest.raises(DatasetError, match="not a file"):
        open_dataset("memory://series")


def test_unreachable_file_systems_raise(tmp_path):
    archive = tmp_path / "a.zip"
    for url in ("ftp://127.0.0.1:9/scan.mib", f"zip://scan.mib::{archive}"):
        archive.write_bytes(b"none")
        with pytest.raises(DatasetError, match="cannot open") as caught:
            open_dataset(url)
        assert caught.value.path == url


def test_chained_urls(tmp_path, members):
    """A file in an archive opens with the other files of its series."""
    with zipfile.ZipFile(tmp_path / "scan.zip", "w") as archive:
        for path in members:
            archive.write(path, f"inside/{path.name}")
    arr = open_dataset(f"zip://inside/{members[0].name}::file://{tmp_path}/scan.zip")
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(arr)).compute(), FRAMES)


@pytest.fixture(scope="module")
def bucket():
    """Run a local S3 server with an empty bucket."""
    server = ThreadedMotoServer("127.0.0.1", 0)
    server.start()
    host, port = server.get_host_and_port()
    keys = {"aws_access_key_id": "id", "aws_secret_access_key": "secret"}
    client = boto3.client(
        "s3", endpoint_url=f"http://{host}:{port}", region_name="us-east-1", **keys
    )
    client.create_bucket(Bucket="scans")
    options = {"endpoint": f"http://{host}:{port}", "region": "us-east-1", **keys}
    yield client, options
    server.stop()


def upload(client, paths):
    for path in paths:
        client.put_object(Bucket="scans", Key=f"a folder/{path.name}", Body=path.read_bytes())


@pytest.mark.thorough
def test_buckets(bucket, members):
    client, options = bucket
    upload(client, members)
    for name in (members[1].name, "scan-*.mib"):
        arr = open_dataset(f"s3://scans/a folder/{name}", storage_options=options)
        np.testing.assert_array_equal(pickle.loads(pickle.dumps(arr)).compute(), FRAMES)
    store = S3Store("scans", **options, client_options={"allow_http": True})
    arr = open_dataset(f"s3://scans/a folder/{members[1].name}", storage_options=store)
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(arr)).compute(), FRAMES)
    assert "secret" not in repr(arr.description) + repr(arr.description.files) + arr.name


def test_changed_objects_raise(bucket, tmp_path):
    client, options = bucket
    path = write_mib(tmp_path / "changing.mib", FRAMES, hdr=False)
    upload(client, [path])
    arr = open_dataset("s3://scans/a folder/changing.mib", storage_options=options)
    upload(client, [write_mib(path, FRAMES[::-1], hdr=False)])
    with pytest.raises(StaleFileError, match="changed"):
        arr.compute()
    again = open_dataset("s3://scans/a folder/changing.mib", storage_options=options)
    assert again.name != arr.name
    np.testing.assert_array_equal(again.compute(), FRAMES[::-1])
    with pytest.raises(FileNotFoundError):
        open_dataset("s3://scans/nothing.mib", storage_options=options)


def cloud(kind, address, folder):
    """Return the URL of a folder at Google or Azure, and options that redirect it to a server.

    The local server suffices, as both stores are asked for a path and a range of bytes.
    """
    if kind == "gs":
        key = dict.fromkeys(("private_key", "private_key_id", "client_email"), "")
        key |= {"gcs_base_url": address, "disable_oauth": True}
        return f"gs://{folder}", {"service_account_key": json.dumps(key), "skip_signature": True}
    options = {"endpoint": address, "skip_signature": True}
    if kind == "az":
        return f"az://{folder}", options | {"account_name": "lab"}
    return f"abfss://{folder}@lab.dfs.core.windows.net", options


@pytest.mark.parametrize("kind", ["gs", "az", "abfss"])
def test_google_and_azure(tmp_path, kind):
    """URLs and options of both stores work, and secrets are never shown."""
    (tmp_path / "scans").mkdir()
    path = write_mib(tmp_path / "scans" / "scan.mib", FRAMES, hdr=False)
    with serving(tmp_path) as server:
        url, options = cloud(kind, server.url()[:-1], "scans")
        arr = open_dataset(f"{url}/scan.mib", storage_options=options)
        np.testing.assert_array_equal(pickle.loads(pickle.dumps(arr)).compute(), FRAMES)
        assert "private" not in repr(arr.description) + arr.name
        assert "bytes=0-65535" in {bytes_asked for _, bytes_asked in server.asked}
        with pytest.raises(FileNotFoundError):
            open_dataset(f"{url}/other.mib", storage_options=options)
        server.fault = lambda *_: 403
        with pytest.raises(PermissionError):
            open_dataset(f"{url}/scan.mib", storage_options=options)
        server.fault = lambda *_: None
        path.unlink()
        with pytest.raises(StaleFileError, match="has been removed"):
            arr.compute()


@pytest.mark.parametrize(
    ("url", "options"),
    [
        ("gs://scans/scan.mib", {"skip_signature": True, "colour": "red"}),
        ("gs://scans/scan.mib", {"service_account_key": "{no json"}),
        ("gs://scans/scan.mib", {"service_account_path": "/nowhere.json"}),
        ("gs://", {"skip_signature": True}),
        ("az://scans/scan.mib", {"skip_signature": True}),  # without an account
        ("az://scans/scan.mib", {"account_name": "lab", "account_key": "no base64!"}),
        ("az://scans/scan.mib", {"account_name": "lab", "sas_key": "secret"}),
        ("abfss://scans@lab.dfs.core.windows.net/a", {"skip_signature": True, "colour": "red"}),
        ("adl://", {"account_name": "lab"}),
    ],
)
def test_invalid_options_of_google_and_azure_are_refused(url, options):
    with pytest.raises(DatasetError, match="unknown store") as caught:
        open_dataset(url, storage_options=options)
    assert caught.value.path
    assert "secret" not in str(caught.value)


def test_remote_pieces(bucket, tmp_path):
    """`from_pieces` reads remote files with storage options."""
    client, options = bucket
    paths = [tmp_path / "a.raw", tmp_path / "b.raw"]
    for path, part in zip(paths, (FRAMES[:5], FRAMES[5:]), strict=True):
        path.write_bytes(part.tobytes())
    upload(client, paths)
    pieces = [Piece(0, (0, 0, 0), (5, 4, 128)), Piece(1, (5, 0, 0), (7, 4, 128))]
    urls = [f"s3://scans/a folder/{path.name}" for path in paths]
    arr = from_pieces(pieces, shape=FRAMES.shape, dtype="u2", files=urls, storage_options=options)
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(arr)).compute(), FRAMES)
    with pytest.raises(DatasetError, match="storage options"):
        from_pieces(pieces, shape=FRAMES.shape, dtype="u2", files=paths, storage_options=options)


def test_remote_pieces_with_queries(tmp_path):
    """The query of a piece's URL is sent, and never shown."""
    (tmp_path / "a.raw").write_bytes(FRAMES.tobytes())
    with serving(tmp_path) as server:
        server.query = "signature=secret"
        url = server.url(tmp_path / "a.raw")
        piece = Piece(f"{url}?signature=secret", (0, 0, 0), FRAMES.shape)
        arr = from_pieces([piece], shape=FRAMES.shape, dtype="u2")
        np.testing.assert_array_equal(arr.compute(), FRAMES)
        assert "secret" not in repr(arr.description) + repr(arr.description.files) + arr.name
        with pytest.raises(PermissionError):
            from_pieces([piece._replace(file=url)], shape=FRAMES.shape, dtype="u2")
