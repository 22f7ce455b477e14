"""Text that grows is refused before it has: XML, JSON, TOML, and what regular expressions read."""

import signal
from contextlib import contextmanager, nullcontext

import pytest
from bombs import BESIDE, BOMBS, PLACES

from dask_tiled import CorruptFileError, describe, open_dataset
from dask_tiled.formats.frms6 import _read_hdr
from dask_tiled.formats.raw_csr import read_toml
from dask_tiled.formats.ser import emi
from dask_tiled.formats.tools import markup, parse_pairs, parse_xml
from dask_tiled.formats.tools.detached import PATTERN
from dask_tiled.model.instrument import _number


class Fed(bytes):
    """Text that counts how many parts of it are taken."""

    parts = 0

    def __getitem__(self, key):
        self.parts += 1
        return super().__getitem__(key)


@contextmanager
def limited(seconds=10):
    """Fail where something takes long that should take no time: a square, or worse."""

    def give_up(*_):
        raise AssertionError(f"more than {seconds} s of the processor")

    before = signal.signal(signal.SIGVTALRM, give_up)
    signal.setitimer(signal.ITIMER_VIRTUAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)


@pytest.mark.parametrize("bomb", BOMBS)
def test_a_refusal_ends_the_work(bomb):
    """The parser sees no more of a document than it takes to refuse it."""
    text = Fed(BOMBS[bomb]())
    with pytest.raises(CorruptFileError):
        parse_xml(text, "a.xml", take={"P": lambda _: None})
    most = markup.MAX_COUNT * 30 // markup.BLOCK_BYTES + 1
    assert text.parts <= max(most, markup.MAX_TOKEN // markup.BLOCK_BYTES + 2)
    assert text.parts < len(text) / markup.BLOCK_BYTES / 2 or len(text) < 100_000


@pytest.mark.parametrize("bomb", BOMBS)
@pytest.mark.parametrize("place", PLACES)
def test_bombs_in_files(tmp_path, place, bomb):
    """They are an error, or where they stand beside the pixels, they are left out."""
    path, options = PLACES[place](tmp_path, BOMBS[bomb]())
    if place in BESIDE:
        desc = describe(path)
        assert "root:" not in str(desc.metadata)
        assert len(str(desc.metadata)) < 100_000
        if place == "TIA":
            told = desc.metadata["emi"].values()
            assert sum(str(one).startswith("not read: ") for one in told) >= 1
    else:
        with pytest.raises(CorruptFileError, match="the XML cannot be read"):
            open_dataset(path, **options)


def test_elements_inside_each_other():
    """Few enough of them to be counted."""
    for depth, within in ((markup.MAX_DEPTH, True), (markup.MAX_DEPTH + 1, False)):
        text = b"<a>" * depth + b"</a>" * depth
        with nullcontext() if within else pytest.raises(CorruptFileError, match="inside each"):
            parse_xml(text, "a.xml")


def test_what_is_no_bomb_is_read():
    """Text of any length, in pieces and sections, namespaces, and elements that are taken."""
    text = (
        b"<a xmlns='u' x='1'><![CDATA[<&]]>" + b"\n" * 500_000 + b"<p:b xmlns:p='v' p:y='2'/></a>"
    )
    root = parse_xml(text, "a.xml")
    assert root.tag == "{u}a"
    assert root.attrib == {"x": "1"}
    assert root.text == "<&" + "\n" * 500_000
    assert [(one.tag, one.attrib) for one in root] == [("{v}b", {"{v}y": "2"})]
    taken = []
    many = b"<a>" + b"<b><c/></b>" * 60_000 + b"</a>"
    assert not len(parse_xml(many, "a.xml", take={"b": taken.append}))
    assert len(taken) == 60_000


@pytest.mark.parametrize(
    "encoding", ["foo", "idna", "hex", "utf-7", "utf-16", "punycode", "x" * 99]
)
def test_odd_encodings(encoding):
    text = f"<?xml version='1.0' encoding='{encoding}'?><a>\xe9</a>".encode("latin1")
    with pytest.raises(CorruptFileError):
        parse_xml(text, "a.xml")


def test_objects_share_what_may_be_read(tmp_path):
    """Many objects that are just small enough are, taken together, too large."""
    one = b"<ObjectInfo>" + b"<a/>" * (markup.MAX_COUNT // 3) + b"</ObjectInfo>"
    (tmp_path / "a.emi").write_bytes(emi.MAGIC + one * 9)
    told = list(emi.read_objects(str(tmp_path / "a.emi")).values())[1:]
    assert len(told) == 9
    assert sum(isinstance(found, dict) for found in told) == 2
    assert str(told[-1]).startswith("not read: ")


JSON = {
    "lists in lists": "[" * 10**6,
    "objects in objects": '{"a":' * 10**6,
    "lists": "[" + "[]," * 10**6 + "1]",
    "keys": "{" + ",".join(f'"{k}":1' for k in range(400_000)) + "}",
    "the same key": "{" + '"a":1,' * 400_000 + '"a":1}',
    "digits": "1" * 10**6,
    "few brackets": "[" * 66 + "]" * 66,
}


@pytest.mark.parametrize("kind", JSON)
@pytest.mark.parametrize("coded", [str, str.encode])
def test_json(kind, coded):
    with pytest.raises(ValueError, match=r"more than|limit"):
        markup.parse_json(coded(JSON[kind]))


TOML = {
    "a key of many parts": ".".join("a" * 30_000) + " = 1",
    "a table of many parts": "[" + ".".join("a" * 30_000) + "]",
    "arrays in arrays": "a = " + "[" * 60_000,
    "tables in tables": "a = " + "{a=" * 20_000,
    "digits": "a = " + "1" * 60_000,
    "length": "#" * 70_000,
}


@pytest.mark.parametrize("kind", TOML)
def test_toml(tmp_path, kind):
    path = tmp_path / "a.toml"
    path.write_text(TOML[kind])
    with limited(3), pytest.raises(CorruptFileError) as caught:
        read_toml(str(path))
    assert caught.value.path == str(path)
    assert len(str(caught.value)) < 1000


def test_lines_without_end():
    """Of pairs in lines, the first MiB is read."""
    with limited():
        pairs = parse_pairs("".join(f"{k}=\n" for k in range(3_000_000)), "=")
    assert 100_000 < len(pairs) < 200_000


def test_a_line_of_blanks(tmp_path):
    """Python's own reader of such files takes more than the square of their number."""
    path = tmp_path / "a.hdr"
    path.write_text("[measurementInfo]\nb" + " " * 60_000 + "x")
    with limited(), pytest.raises(CorruptFileError):
        _read_hdr(str(path))


@pytest.mark.parametrize(
    ("read", "text"),
    [
        (PATTERN.fullmatch, "%d" + " " * 4090 + "x"),
        (PATTERN.fullmatch, "%d 1 1 1" + " " * 4000 + "x"),
        (lambda text: _number(text, "V", "V"), "1" * 1_000_000 + "x1"),
        (lambda text: emi._tree(parse_xml(f"<a>{text}</a>".encode(), "a")), "1" * 1_000_000 + "x"),
    ],
)
def test_regular_expressions(read, text):
    with limited():
        read(text)
