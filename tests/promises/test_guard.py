"""Exceptions of formats, and of the libraries they use, become errors that name the file."""

import errno
import operator
import pickle
import struct
import sys
from dataclasses import replace
from functools import partial

import dask
import numpy as np
import pytest
from range_server import serving

import dask_tiled
from dask_tiled import CorruptFileError, DatasetError, Format, UnknownFormatError, frame_facts
from dask_tiled.errors import Guard
from dask_tiled.formats import tools
from dask_tiled.formats.registry import _registered
from dask_tiled.formats.tools.header import read_scattered, read_table

SHAPE, FRAMES = (4, 8), 3


class OwnError(Exception):
    """An exception of a library, which does not even print."""

    def __str__(self):
        raise KeyError("no text")

    __repr__ = __str__


class UnsupportedError(DatasetError):
    """A plug-in's kind of error, with parameters of its own."""

    def __init__(self):
        super().__init__("unsupported camera")


ERRORS = {
    "value": ValueError("bad"),
    "key": KeyError("gone"),
    "struct": struct.error("unpack requires a buffer of 8 bytes"),
    "recursion": RecursionError("maximum recursion depth exceeded"),
    "memory": MemoryError("Unable to allocate 7 EiB"),
    "stop": StopIteration(),
    "library": OSError("unable to open file"),
    "offset": OSError(errno.EINVAL, "Invalid argument"),
    "own": OwnError(),
    "no path": DatasetError("unsupported"),
    "feature": NotImplementedError("version 7"),
    "own kind": UnsupportedError(),
}
RAISED = {"error": None}


def fail(*_args, **_options):
    """Raise the chosen error."""
    raise RAISED["error"]


def kernel(src, starts, step, out, dests, out_step, count, nbytes, lag):  # noqa: ARG001, PLR0917
    """Fail to compile."""
    out[0] = "text"


HERE = f"{__name__}:fail"
U2 = np.dtype("<u2")
PIECES = [
    tools.Piece(0, (k, 0, 0), (1, *SHAPE), 64 * k, (0, 0, 0), nbytes=64) for k in range(FRAMES)
]
DECODERS = {
    "block": tools.BlockDecoder(HERE, U2),
    "blocks": tools.BlockDecoder(HERE, U2, many=HERE),
    "events": tools.EventDecoder(HERE, U2),
    "index": tools.EventDecoder(f"{__name__}:kernel", U2, index=HERE),
    "absent": tools.BlockDecoder(f"{__name__}:absent", U2),
}


def describe(paths, *, decoder="plain"):
    """Describe frames of 64 bytes."""
    file = tools.File.only(paths, "plugin")
    if decoder in DECODERS:
        layout = tools.Layout([file], (FRAMES,), SHAPE, PIECES, [DECODERS[decoder]])
        return tools.Description.of("plugin", layout, {"energy": 300})
    record = tools.Record(SHAPE, tools.plain(U2))
    if decoder == "kernel":
        record = tools.Record(SHAPE, tools.Decoder(f"{__name__}:kernel", U2, 2))
    return tools.Description.of("plugin", tools.lay_out([file], record), {"energy": 300})


def headers(desc):
    """Return headers whose decoding fails."""
    (file,) = desc.files
    header = tools.Record((1,), tools.plain(U2), 0, 62)
    return tools.Headers(tools.lay_out([file], header), np.dtype([("n", "u2")]), fail)


PLUGIN = Format("plugin", (".plug",), "a plugin", "one axis", lambda *_: None, describe)


@pytest.fixture
def path(tmp_path, monkeypatch):
    """Write a file of the plugin, whose functions tests replace."""
    monkeypatch.setitem(_registered, "plugin", PLUGIN)
    path = tmp_path / "run.plug"
    path.write_bytes(np.arange(FRAMES * 32, dtype=U2).tobytes())
    return path


def register(monkeypatch, **hooks):
    monkeypatch.setitem(_registered, "plugin", replace(PLUGIN, **hooks))


def opened(path, **options):
    return dask_tiled.open_dataset(path, format="plugin", **options)


def computed(path, **options):
    with dask.config.set(scheduler="synchronous"):
        opened(path, **options).compute()


def describe_short(paths):
    """Fail for files that have grown."""
    desc = describe(paths)
    return desc if desc.layout.n_frames == FRAMES else fail()


def grown(path):
    arr = opened(path, follow=True)
    with path.open("ab") as file:
        file.write(bytes(64))
    arr.refresh()


HOOKS = {
    "describe": (opened, {"describe": fail}),
    "listing": (partial(dask_tiled.open_datasets, format="plugin"), {"describe": fail}),
    "growth": (grown, {"describe": describe_short}),
    "corrections": (lambda path: opened(path, corrections="dataset"), {"corrections": fail}),
    "headers": (lambda path: frame_facts(opened(path)), {"headers": fail}),
    "decode headers": (lambda path: frame_facts(opened(path)).compute(), {"headers": headers}),
    "adjust_tile": (opened, {"adjust_tile": fail}),
    **{
        name: (lambda path, name=name: computed(path, decoder=name), {})
        for name in ("block", "blocks", "events", "index")
    },
}


@pytest.mark.parametrize("error", ERRORS)
@pytest.mark.parametrize("hook", HOOKS)
def test_errors_of_plugins_are_typed(path, monkeypatch, hook, error):
    """Whatever a function of a format raises, the error names the file, and keeps the cause."""
    call, hooks = HOOKS[hook]
    register(monkeypatch, **hooks)
    monkeypatch.setitem(RAISED, "error", ERRORS[error])
    with pytest.raises(DatasetError) as caught:
        call(path)
    assert caught.value.path == str(path)
    assert caught.value.__cause__ is ERRORS[error]
    assert type(pickle.loads(pickle.dumps(caught.value))) is type(caught.value)
    if error not in {"no path", "feature", "own kind"} and hook != "adjust_tile":
        assert isinstance(caught.value, CorruptFileError)


@pytest.mark.parametrize("hook", [name for name in HOOKS if name != "growth"])
def test_errors_about_urls_are_typed(path, monkeypatch, hook):
    call, hooks = HOOKS[hook]
    register(monkeypatch, **hooks)
    monkeypatch.setitem(RAISED, "error", ERRORS["key"])
    with (
        serving(path.parent) as server,
        pytest.raises((CorruptFileError, dask_tiled.TilingError)) as caught,
    ):
        call(server.url(path))
    assert caught.value.path == server.url(path)
    assert caught.value.__cause__ is ERRORS["key"]


def test_parameters_that_cannot_be_listed_are_refused():
    with pytest.raises(DatasetError, match="the parameters of describe cannot be listed"):
        replace(PLUGIN, describe=None)


@pytest.mark.parametrize("error", ERRORS)
def test_errors_of_detection_are_reasons(path, monkeypatch, error):
    register(monkeypatch, sniff=fail, extensions=(".other",))
    monkeypatch.setitem(RAISED, "error", ERRORS[error])
    with pytest.raises(UnknownFormatError) as caught:
        dask_tiled.open_dataset(path)
    assert caught.value.reasons["plugin"].startswith("failed with ")


@pytest.mark.parametrize("error", ERRORS)
def test_facts_that_cannot_be_read_are_left_out(path, monkeypatch, error):
    entry = tools.Entry("plugin/energy", "kV", fail)
    register(monkeypatch, instrument={"beam_energy": [entry]})
    monkeypatch.setitem(RAISED, "error", ERRORS[error])
    assert dict(dask_tiled.describe(path, format="plugin").instrument) == {}


@pytest.mark.parametrize("decoder", ["absent", "kernel"])
def test_decoders_that_cannot_be_called_are_typed(path, decoder):
    for compute in (lambda arr: arr, lambda arr: arr.sum((1, 2))):
        arr = opened(path, decoder=decoder)
        with pytest.raises(DatasetError) as caught:
            compute(arr).compute(scheduler="synchronous")
        assert caught.value.path == str(path)


@pytest.mark.parametrize("found", [None, 3, "records", np.zeros(FRAMES)])
def test_headers_of_another_type_are_refused(path, monkeypatch, found):
    register(monkeypatch, headers=lambda _: found)
    with pytest.raises(DatasetError, match="must return Headers or records") as caught:
        frame_facts(opened(path))
    assert caught.value.path == str(path)


def test_errors_of_disks_pass_with_the_file(path, monkeypatch):
    """They are of the machine, not of the file."""
    register(monkeypatch, describe=fail)
    monkeypatch.setitem(RAISED, "error", OSError(errno.EIO, "Input/output error"))
    with pytest.raises(OSError, match="Input/output error") as caught:
        opened(path)
    assert not isinstance(caught.value, DatasetError)
    assert caught.value.filename == str(path)


@pytest.mark.parametrize("error", [KeyboardInterrupt(), SystemExit(1), UserWarning("a user's")])
def test_interruptions_pass(path, monkeypatch, error):
    """Warnings are raised if a user turns them into errors."""
    register(monkeypatch, describe=fail)
    monkeypatch.setitem(RAISED, "error", error)
    with pytest.raises(type(error)):
        opened(path)


def test_recursion_in_a_format_is_typed(path, monkeypatch):
    def deep(paths):
        return deep(paths)

    register(monkeypatch, describe=deep)
    before = sys.getrecursionlimit()
    with pytest.raises(CorruptFileError, match="maximum recursion depth"):
        opened(path)
    assert sys.getrecursionlimit() == before


@pytest.mark.parametrize("remote", [False, True])
@pytest.mark.parametrize("place", [(-1, 4), (0, -4), (-(1 << 70), 1)])
def test_negative_offsets_are_values_of_the_file(path, place, remote):
    """Offsets and lengths come from headers, which may be damaged."""
    offset, nbytes = place
    with serving(path.parent) as server:
        place = server.url(path) if remote else str(path)
        for read in (partial(tools.read_head, place), tools.File.at(place).read):
            with pytest.raises(CorruptFileError, match="a negative offset or length") as caught:
                read(nbytes, offset)
            assert caught.value.path == place
        with pytest.raises(CorruptFileError):
            tools.read_fields(place, {"n": (0, "u4")}, at=-abs(offset) - 1)
        with tools.File.at(place).open() as stream:
            assert stream.read() == path.read_bytes()


@pytest.mark.parametrize("order", ["<", ">"])
def test_tables_in_either_byte_order(path, order):
    """Blocks of 12 bytes: a number of 4 bytes, and other ones."""
    expected = [7, 70_000, 1 << 31]
    path.write_bytes(b"head" + b"".join(struct.pack(f"{order}I8x", one) for one in expected))
    fields = {"n": (0, "u4")}
    for found in (
        read_table(path, fields, 4, 12, 3, order),
        read_scattered(path, fields, np.array([4, 16, 28]), order),
    ):
        assert found["n"].tolist() == expected
        assert found["n"].dtype.isnative


def test_table_that_begins_before_the_file(path):
    with pytest.raises(DatasetError) as caught:
        read_table(path, {"n": (0, "u4")}, -8, 4, 3)
    assert caught.value.path == str(path)


def test_notes_of_a_place_are_made_for_errors_only():
    made = []
    with Guard("a", "fails", lambda: made.append("place") or {"where": "byte 3"}):
        pass
    assert not made
    with (
        pytest.raises(CorruptFileError, match="a: fails, at byte 3; found KeyError"),
        Guard("a", "fails", lambda: made.append("place") or {"where": "byte 3"}),
    ):
        raise KeyError
    assert made


def first_word(path):
    """Return the first word of a file, by a library that may hang."""
    file = tools.File.at(path)
    word = int.from_bytes(file.read(2), "little")
    while word == 7:
        pass
    return word


@pytest.mark.thorough
def test_libraries_in_child_processes_are_limited(tmp_path):
    """A plugin may call any library within limits; its errors stay what they are."""
    path = tmp_path / "run.plug"
    path.write_bytes(b"\x05\0")
    file = tools.File.at(path)
    assert tools.safely(file, "the library", partial(first_word, path)) == 5
    with pytest.raises(KeyError, match="'name'"):
        tools.safely(file, "the library", partial(operator.getitem, {}, "name"))
    path.write_bytes(b"\x07\0")
    file = tools.File.at(path)
    with pytest.raises(CorruptFileError, match="the library crashes or hangs") as caught:
        tools.safely(file, "the library", partial(first_word, path))
    assert caught.value.path == str(path)
    with pytest.raises(MemoryError):
        tools.safely(file, "the library", partial(bytearray, 1 << 30))
