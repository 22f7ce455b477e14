"""NIfTI and Analyze files: real and written ones, compared with nibabel."""

import bz2
import gzip
import logging
import lzma
import struct

import nibabel
import numpy as np
import pytest
from checks import axes_text, refuses
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from manifest import by_file, manifest

import dask_tiled
from dask_tiled import (
    Corrections,
    CorruptFileError,
    TruncatedFileError,
    UnknownFormatError,
)
from dask_tiled.codecs import packed_files as compression
from dask_tiled.formats.nifti import header as tables
from dask_tiled.formats.nifti.header import HEADERS, intent_of, kind_of
from dask_tiled.formats.nifti.space import affine_of, slice_times
from dask_tiled.testing import check_format, counting_frames

pytestmark = pytest.mark.usefixtures("synchronous")
logging.getLogger("nibabel.global").setLevel(logging.CRITICAL)

DTYPES = ["u1", "i1", "i2", "u2", "i4", "u4", "i8", "u8", "f4", "f8", "c8", "c16"]
COLOURS = {"RGB": [("R", "u1"), ("G", "u1"), ("B", "u1")]}
COLOURS["RGBA"] = [*COLOURS["RGB"], ("A", "u1")]
KINDS = {"nifti 1": nibabel.Nifti1Image, "nifti 2": nibabel.Nifti2Image}
PAIRS = {"nifti 1": nibabel.Nifti1Pair, "nifti 2": nibabel.Nifti2Pair}
ANALYZE = {"analyze": nibabel.AnalyzeImage, "spm 99": nibabel.Spm99AnalyzeImage}
ANALYZE["spm 2"] = nibabel.Spm2AnalyzeImage


def write(path, array, kind=nibabel.Nifti1Image, order="<", **fields):
    """Write an array in nibabel's order of axes, unscaled whatever the header has."""
    header = kind.header_class(endianness=order)
    header.set_data_dtype(array.dtype)
    header.set_data_shape(array.shape)
    offset = 0 if "Pair" in kind.__name__ or "Analyze" in kind.__name__ else None
    for name, value in fields.items():
        header[name] = value
    block = header.binaryblock
    if offset is None:
        offset = int(header["vox_offset"]) or len(block) + 4
        header["vox_offset"] = offset
        pixels, block = path, header.binaryblock.ljust(offset, b"\0")
    else:
        pixels = path.with_suffix(".img")
        path.write_bytes(block)
        block = b""
    stored = array.astype(array.dtype.newbyteorder(order))
    pixels.write_bytes(block + stored.tobytes(order="F"))
    return path


def unscaled(path):
    """Return the stored pixels that nibabel reads, in C order."""
    return np.asarray(nibabel.load(path).dataobj.get_unscaled()).T


def frames_of(shape, dtype):
    """Return counting frames in nibabel's order of axes."""
    return counting_frames(shape[::-1], dtype).T


@by_file(manifest("NIfTI"), "row")
def test_file_has_the_numbers_of_the_manifest_and_equals_nibabel(data, row):
    path = data / row["file"]
    theirs = nibabel.load(path)
    arr = dask_tiled.open_dataset(path)
    pixels = arr.compute()
    assert arr.description.format == "nifti"
    assert str(arr.shape[::-1]) in row["shape_dtype"]
    assert arr.dtype.str[1:] in row["shape_dtype"]
    raw, _, scaled = row["sum"].partition(" ; scaled=")
    assert pixels.sum() == int(raw)
    np.testing.assert_array_equal(pixels, unscaled(path))
    found = dask_tiled.open_dataset(path, scaled=True)
    assert found.dtype == "f8"
    assert found.compute().sum() == pytest.approx(float(scaled))
    np.testing.assert_array_equal(found, theirs.get_fdata().T)
    single = dask_tiled.open_dataset(path, scaled=True, dtype="f4")
    np.testing.assert_array_equal(single, theirs.get_fdata(dtype="f4").T)
    facts = arr.description.metadata["nifti"]
    np.testing.assert_array_equal(facts["affine"], theirs.affine)


@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.parametrize("name", COLOURS)
def test_colours_are_a_last_axis(tmp_path, name, order):
    array = counting_frames((3, 4, 5, len(COLOURS[name])), "u1")
    structured = array.view(COLOURS[name])[..., 0].T
    path = write(tmp_path / "a.nii", structured, order=order, scl_slope=2, scl_inter=1)
    check_format(path, array, cuts=3)
    desc = dask_tiled.describe(path)
    assert (desc.dims, desc.sig_shape) == (("z", "y", "x", "s"), array.shape[1:])
    theirs = np.asarray(nibabel.load(path).dataobj.get_unscaled()).T
    for k, (field, _) in enumerate(COLOURS[name]):
        np.testing.assert_array_equal(array[..., k], theirs[field])
    np.testing.assert_array_equal(dask_tiled.open_dataset(path, scaled=True), array)


PACKED = {"": bytes, ".gz": gzip.compress, ".bz2": bz2.compress, ".xz": lzma.compress}


@pytest.mark.parametrize(("packed", "kind"), [*zip(PACKED, [*PAIRS] * 2, strict=True)])
def test_either_file_of_a_pair_opens_it(tmp_path, kind, packed):
    array = frames_of((5, 4, 3), "i2")
    path = write(tmp_path / "a.hdr", array, PAIRS[kind], ">")
    for part in (path, path.with_suffix(".img")):
        content = PACKED[packed](part.read_bytes())
        part.unlink()
        part.with_name(part.name + packed).write_bytes(content)
    header, pixels = (tmp_path / f"a{part}{packed}" for part in (".hdr", ".img"))
    if packed in ("", ".gz"):  # nibabel knows no others
        np.testing.assert_array_equal(unscaled(header), array.T)
    check_format(header, array.T, cuts=2)
    assert dask_tiled.open_dataset(pixels).name == dask_tiled.open_dataset(header).name
    assert [f.path for f in dask_tiled.describe(header).files] == [str(pixels)]
    pixels.unlink()
    with pytest.raises(TruncatedFileError, match="missing"):
        dask_tiled.describe(header)


def test_pairs_half_compressed_or_in_capitals(tmp_path):
    array = frames_of((5, 4, 3), "i2")
    path = write(tmp_path / "a.hdr", array, nibabel.Nifti1Pair)
    pixels = tmp_path / "a.img"
    (tmp_path / "a.img.gz").write_bytes(gzip.compress(pixels.read_bytes()))
    pixels.unlink()
    np.testing.assert_array_equal(dask_tiled.open_dataset(path), array.T)
    np.testing.assert_array_equal(dask_tiled.open_dataset(tmp_path / "a.img.gz"), array.T)
    path = write(tmp_path / "b.hdr", array, nibabel.Nifti1Pair)
    path = path.rename(tmp_path / "B.HDR")
    (tmp_path / "b.img").rename(tmp_path / "B.IMG")
    np.testing.assert_array_equal(dask_tiled.open_dataset(path), array.T)


def test_pixels_without_their_header_are_not_recognised(tmp_path):
    array = frames_of((5, 4, 3), "i2")
    write(tmp_path / "a.hdr", array, nibabel.Nifti1Pair).unlink()
    refuses(tmp_path / "a.img", r"nifti.*neither", UnknownFormatError)


@pytest.mark.parametrize(
    ("dtype", "kind", "order"),
    list(zip(["u1", "i2", "i4", "f4", "f8", "c8"], [*ANALYZE] * 2, "<><><>", strict=True)),
)
def test_analyze_files(tmp_path, kind, dtype, order):
    array = frames_of((5, 4, 3, 2), dtype)
    path = write(tmp_path / "a.hdr", array, ANALYZE[kind], order, pixdim=[0, 3, 2, 1, 5, 0, 0, 0])
    np.testing.assert_array_equal(unscaled(path), array.T)
    check_format(path, array.T, cuts=2)
    desc = dask_tiled.describe(tmp_path / "a.img")
    assert axes_text(desc) == "t 5, z 1 mm, y 2 mm, x 3 mm"
    assert desc.metadata["nifti"]["version"] == "Analyze 7.5"


def test_invalid_analyze_header_is_not_recognised(tmp_path):
    """The length of a header alone does not suffice."""
    path = tmp_path / "a.hdr"
    path.write_bytes(struct.pack("<i", 348) + bytes(344))
    path.with_suffix(".img").write_bytes(bytes(100))
    refuses(path, kind=UnknownFormatError)


scalings = st.sampled_from([(0, 0), (1, 0), (2, 0), (1, 3), (0.1, -7.25), (-3e5, 1e-3)])
scalings |= st.sampled_from([(np.nan, np.nan), (np.inf, 1), (np.nan, 5)])


@pytest.mark.thorough
@given(
    shape=hnp.array_shapes(min_dims=1, max_dims=7, max_side=4),
    dtype=st.sampled_from(DTYPES),
    order=st.sampled_from("<>"),
    kind=st.sampled_from(list(KINDS.values())),
    scaling=scalings,
    packed=st.booleans(),
    seed=st.integers(0, 2**32 - 1),
)
def test_any_volume_equals_nibabel(
    tmp_path_factory, shape, dtype, order, kind, scaling, packed, seed
):
    """Raw and scaled pixels are right in any chunks."""
    rng = np.random.default_rng(seed)
    size = np.dtype(dtype).itemsize
    array = rng.integers(0, 256, (*shape, size), "u1").view(dtype)[..., 0]
    if array.dtype.kind in "fc":
        array = rng.normal(size=shape).astype(dtype)
    path = tmp_path_factory.mktemp("any") / "a.nii"
    write(path, array, kind, order, scl_slope=scaling[0], scl_inter=scaling[1])
    if packed:
        path = path.with_suffix(".nii.gz")
        path.write_bytes(gzip.compress(path.with_suffix("").read_bytes()))
    theirs = nibabel.load(path)
    chunks = tuple(int(rng.integers(1, n + 1)) for n in array.T.shape)
    arr = dask_tiled.open_dataset(path, chunks=chunks)
    assert arr.shape == theirs.shape[::-1]
    np.testing.assert_array_equal(arr, unscaled(path))
    found = dask_tiled.open_dataset(path, scaled=True, chunks=chunks)
    kind = np.complex128 if array.dtype.kind == "c" else np.float64
    assert found.dtype == kind
    facts = arr.description.metadata["nifti"]
    version = f"NIfTI-{2 if isinstance(theirs, nibabel.Nifti2Image) else 1}"
    assert (facts["version"], facts["byte_order"]) == (version, order)
    np.testing.assert_array_equal(found, theirs.get_fdata(dtype=kind).T)
    index = tuple(int(rng.integers(n)) if rng.integers(2) else slice(None) for n in arr.shape)
    np.testing.assert_array_equal(found[index], theirs.get_fdata(dtype=kind).T[index])


def test_scaled_pixels_can_be_corrected_first(tmp_path):
    array = frames_of((5, 4, 3), "i2")
    path = write(tmp_path / "a.nii", array, scl_slope=0.5, scl_inter=10)
    corrections = Corrections(dark=np.full((4, 5), 2), excluded_pixels=[(0, 0)])
    plain = dask_tiled.open_dataset(path, corrections=corrections).compute()
    arr = dask_tiled.open_dataset(path, corrections=corrections, scaled=True)
    scaled = plain.astype("f8") * 0.5 + 10
    np.testing.assert_array_equal(arr[:, 1:], scaled[:, 1:])
    np.testing.assert_array_equal(arr[:, 0, 1:], scaled[:, 0, 1:])
    # Pixels are repaired by means in double precision.
    mean = scaled[:, [0, 1, 1], [1, 0, 1]].mean(axis=1)
    np.testing.assert_allclose(arr[:, 0, 0], mean, rtol=1e-14)
    rounded = dask_tiled.open_dataset(path, scaled=True, dtype="i2")
    np.testing.assert_array_equal(rounded, (array.T * 0.5 + 10).astype("i2"))
    raw = dask_tiled.open_dataset(path)
    assert len({arr.name, rounded.name, raw.name}) == 3
    scaled = dask_tiled.open_dataset(path, scaled=True, nav_shape=(4,), fill_value=np.nan)
    expected = np.concatenate([array.T * 0.5 + 10, np.full((1, 4, 5), np.nan)])
    np.testing.assert_array_equal(scaled, expected)
    np.testing.assert_allclose(scaled[:3].sum(axis=0), expected[:3].sum(axis=0))


@pytest.fixture
def decompressions(monkeypatch):
    """Return a list of the files that are decompressed."""
    paths = []
    decode = compression.decode

    def counted(block, fetch, **options):
        paths.append(block.file.path)
        return decode(block, fetch, **options)

    monkeypatch.setattr(compression, "decode", counted)
    return paths


def add(total, tile, _info):
    return total + tile.sum(dtype=float)


@pytest.fixture(scope="module")
def slices(tmp_path_factory):
    """Write 200 slices of 16 KiB, plain and compressed."""
    path = tmp_path_factory.mktemp("slices") / "a.nii"
    array = np.random.default_rng(0).integers(0, 9, (64, 128, 5, 40)).astype("i2")
    plain = write(path, array, scl_slope=2)
    packed = path.with_suffix(".nii.gz")
    packed.write_bytes(gzip.compress(plain.read_bytes(), 1))
    return plain, packed


@pytest.mark.parametrize(
    ("use", "options"),
    [
        (lambda arr: arr, {"scaled": True}),
        (lambda arr: arr[1:6, 2, ::2], {}),
        (lambda arr: arr.sum(axis=(2, 3)), {}),
        (lambda arr: arr.mean(axis=(0, 1)), {"scaled": True}),
        (lambda arr: dask_tiled.reduce_tiles(arr, init=0.0, step=add, combine=np.add), {}),
    ],
    ids=["whole", "slices", "frames", "pattern", "tiles"],
)
def test_gzip_is_decompressed_once_not_once_per_slice(slices, decompressions, options, use):
    """The file is one chunk, which every operation decompresses once."""
    plain, path = slices
    arr = dask_tiled.open_dataset(path, **options)
    assert arr.npartitions == 1
    found = use(arr).compute()
    assert decompressions == [str(path)]
    expected = use(dask_tiled.open_dataset(plain, **options)).compute()
    np.testing.assert_array_equal(found, expected)


def test_compressed_file_is_one_chunk_of_any_size(tmp_path):
    path = tmp_path / "a.nii.bz2"
    plain = write(tmp_path / "a.nii", frames_of((50, 40, 30), "u1"))
    path.write_bytes(bz2.compress(plain.read_bytes()))
    desc = dask_tiled.describe(path)
    assert dask_tiled.negotiate(desc, chunk_bytes=5000).chunks == ((30,), (40,), (50,))
    assert len(dask_tiled.negotiate(dask_tiled.describe(plain), chunk_bytes=5000).chunks[0]) > 5


def test_extensions_are_listed_by_code_and_size(tmp_path):
    image = nibabel.Nifti1Image(np.zeros((5, 4, 3), "i2"), np.eye(4))
    for code, content in ((6, b"a comment"), (4, b"x" * 100)):
        image.header.extensions.append(nibabel.nifti1.Nifti1Extension(code, content))
    nibabel.save(image, tmp_path / "a.nii")
    nibabel.save(image, tmp_path / "a.nii.gz")
    nibabel.save(image, tmp_path / "a.hdr")
    for name in ("a.nii", "a.nii.gz", "a.hdr"):
        desc = dask_tiled.describe(tmp_path / name)
        assert desc.metadata["nifti"]["extensions"] == ((6, 32), (4, 112))
        assert desc.layout.shape == (3, 4, 5)


@pytest.mark.parametrize(("flag", "size"), [(0, 16), (1, 0), (1, 7)])
def test_bytes_that_are_no_extensions(tmp_path, flag, size):
    """Extensions follow a flag, and have at least 8 bytes."""
    path = write(tmp_path / "a.nii", frames_of((5, 4, 3), "i2"), vox_offset=400)
    whole = bytearray(path.read_bytes())
    struct.pack_into("<B3x2i", whole, 348, flag, size, 6)
    path.write_bytes(whole)
    assert dask_tiled.describe(path).metadata["nifti"]["extensions"] == ()


def test_headers_of_nibabel_as_metadata(tmp_path):
    image = nibabel.Nifti2Image(np.zeros((5, 4, 3, 2), "f4"), np.diag([2, 3, 4, 1]))
    image.header.set_xyzt_units("micron", "msec")
    image.header.set_intent("t test", (7.0,), name="told")
    image.header["descrip"] = b"made by a test\0before"
    image.header["toffset"] = 1.5
    nibabel.save(image, tmp_path / "a.nii")
    desc = dask_tiled.describe(tmp_path / "a.nii")
    facts = desc.metadata["nifti"]
    assert facts["version"] == "NIfTI-2"
    assert facts["intent"] == {"code": "t test", "parameters": (7.0,), "name": "told"}
    assert facts["description"] == "made by a test"
    assert axes_text(desc) == "t 1+1.5 ms, z 4 µm, y 3 µm, x 2 µm"
    assert desc == dask_tiled.describe(tmp_path / "a.nii")


@pytest.mark.parametrize("code", [0, 1, 255, 1536, 2048, 7])
def test_unsupported_types_raise(tmp_path, code):
    path = write(tmp_path / "a.nii", frames_of((5, 4, 3), "i2"), datatype=code)
    refuses(path, "datatype")


def test_sizes_beyond_a_compressed_file_raise(tmp_path):
    """A header that asks for 2**60 pixels raises before memory is allocated."""
    for dims, sizes in ((4, [2**15 - 1] * 4), (3, [30000] * 3)):
        path = write(tmp_path / "a.nii", frames_of((5, 4, 3), "i2"))
        whole = bytearray(path.read_bytes())
        struct.pack_into(f"<h{dims}h", whole, 40, dims, *sizes)
        packed = tmp_path / "a.nii.gz"
        refuses(packed, "cannot hold", TruncatedFileError, content=gzip.compress(bytes(whole)))


@pytest.mark.parametrize("ndim", [-1, 0, 8, 259])
def test_invalid_number_of_axes_raises(tmp_path, ndim):
    path = write(tmp_path / "a.nii", frames_of((5, 4, 3), "i2"))
    whole = bytearray(path.read_bytes())
    struct.pack_into("<h", whole, 40, ndim)
    refuses(path, rf"byte 40 \(dim\).*found {ndim} axes", CorruptFileError, content=whole)


def header_of(rng, k):
    """Return header ``k``: transforms, units, intent and times of slices depend on ``k``."""
    header = (nibabel.Nifti1Header, nibabel.Nifti2Header)[k % 2](endianness="<>"[k // 2 % 2])
    header.set_data_shape((3, 4, 5, 2)[: 2 + k % 3])
    affine = nibabel.affines.from_matvec(
        nibabel.eulerangles.euler2mat(*rng.normal(size=3)) @ np.diag([2.0, 3, 4 * (-1) ** k]),
        rng.normal(size=3) * 9,
    )
    header.set_qform(affine, code=k % 6)
    header.set_sform(affine if k % 4 == 1 else None, code=k % 6 if k % 4 == 1 else 0)
    if k % 3:
        header.set_dim_info(slice=2)
        header["slice_duration"], header["slice_code"] = 0.1, 1 + k % 6
        header["slice_start"], header["slice_end"] = k // 6 % 2, 3
    header.set_xyzt_units("mm", ("sec", "msec")[k % 2])
    code = sorted(set(nibabel.nifti1.intent_codes.code.values()))[k * 2 % 57]
    header["intent_code"], header["intent_p1"], header["intent_name"] = code, 1.5, b"told"
    return header


@pytest.mark.parametrize("k", range(36))
def test_headers_are_read_as_by_nibabel(k):
    """Transforms are equal to the last bit, and so are intents and times of slices."""
    header = header_of(np.random.default_rng(k), k)
    found = np.frombuffer(header.binaryblock, HEADERS[1 + k % 2].newbyteorder(header.endianness))[0]
    kind = kind_of(header.binaryblock)
    np.testing.assert_array_equal(affine_of(kind, found), header.get_best_affine())
    label, parameters, name = header.get_intent()
    assert intent_of(found) == {"code": label, "parameters": parameters, "name": name}
    if k % 3:
        times = np.array(header.get_slice_times(), float)
        np.testing.assert_array_equal(slice_times(found, 5), times)


def test_codes_are_those_of_nibabel():
    kinds = nibabel.nifti1.data_type_codes
    codes = set(kinds.code.values())
    assert codes == tables.DTYPES.keys() | tables.UNREAD
    assert {
        code: len(kinds.dtype[code]) for code in codes if kinds.dtype[code].names
    } == tables.COLOURS
    for code in tables.DTYPES.keys() - tables.COLOURS.keys():
        assert kinds.dtype[code] == tables.DTYPES[code]
    assert {tables.DTYPES[code] for code in tables.COLOURS} == {"u1"}
    bits = {code: 8 * kinds.dtype[code].itemsize for code in tables.ANALYZE_BITS}
    assert bits == tables.ANALYZE_BITS
    intents = nibabel.nifti1.intent_codes
    assert {
        code: (intents.label[code], len(intents.parameters[code])) for code in intents.code.values()
    } == tables.INTENTS
    units = nibabel.nifti1.unit_codes
    names = {"meter": "m", "micron": "µm", "sec": "s", "msec": "ms", "usec": "µs", "hz": "Hz",
             "rads": "rad/s"}  # fmt: skip
    told = {code: units.label[code] for code in units.code.values() if code}
    told = {code: names.get(name, name) for code, name in told.items()} | {0: ""}
    assert told == tables.SPACE | tables.TIME
    transforms = nibabel.nifti1.xform_codes
    assert {*enumerate(tables.TRANSFORMS)} == {
        (code, transforms.label[code]) for code in transforms.code.values()
    }


@pytest.mark.parametrize("kind", KINDS)
def test_affine_and_directions_in_the_metadata(tmp_path, kind):
    """Columns run to the front of the body, rows to the left, slices to the top."""
    affine = ((0, -2, 0, 10), (3, 0, 0, -20), (0, 0, 4, 30), (0, 0, 0, 1))
    image = KINDS[kind](np.zeros((5, 4, 3), "i2"), np.array(affine))
    assert nibabel.aff2axcodes(image.affine) == ("A", "L", "S")
    directions = {"x": "PA", "y": "RL", "z": "IS"}
    for sform, qform, told in ((4, 1, "sform"), (0, 3, "qform"), (0, 0, "pixdim")):
        image.set_sform(affine, code=sform)
        image.set_qform(affine, code=qform)
        nibabel.save(image, tmp_path / "a.nii")
        desc = dask_tiled.describe(tmp_path / "a.nii")
        facts = desc.metadata["nifti"]
        names = {0: "unknown", 1: "scanner", 3: "talairach", 4: "mni"}
        assert (facts["sform"], facts["qform"]) == (names[sform], names[qform])
        assert facts["affine_from"] == told
        # By sizes alone, x runs to the left from the middle of the volume.
        plain = ((-3, 0, 0, 6), (0, 2, 0, -3), (0, 0, 4, -4), (0, 0, 0, 1))
        expected = plain if told == "pixdim" else affine
        np.testing.assert_allclose(facts["affine"], expected, atol=1e-6)
        assert facts.get("directions") == (None if told == "pixdim" else directions)
        assert [axis.scale for axis in desc.axes] == [4, 2, 3]


def test_affine_of_analyze_files_of_spm():
    for origin in ((3, 4, 5), (0, 0, 0), (9, 9, -99), (1, 2, 11)):
        header = nibabel.Spm2AnalyzeImage.header_class()
        header.set_data_shape((3, 5, 7))
        header.set_zooms((3, 2, 1))
        header["origin"][:3] = origin
        found = np.frombuffer(header.binaryblock, HEADERS[0])[0]
        expected = header.get_best_affine()
        np.testing.assert_array_equal(affine_of(kind_of(header.binaryblock), found), expected)


# Defects of other readers


def test_opening_many_volumes_reads_headers_only(tmp_path, loads):
    """ConfUSIus #329: opening reads no pixels, and a slice its own bytes only."""
    array = frames_of((50, 40, 30), "i2")
    paths = [write(tmp_path / f"{k}.nii", array + k) for k in range(5)]
    arrays = [dask_tiled.open_dataset(path, io="counting") for path in paths]
    assert loads.nbytes == 0
    np.testing.assert_array_equal(arrays[3][7, 5], array.T[7, 5] + 3)
    assert 0 < loads.nbytes <= 2 * 50


@pytest.mark.parametrize("kind", KINDS.values(), ids=list(KINDS))
@pytest.mark.parametrize("offset", [1, 100, 347, -16])
def test_pixels_inside_the_header_raise(tmp_path, kind, offset):
    """nibabel refuses them, too."""
    path = write(tmp_path / "a.nii", frames_of((3, 4, 5), "u1"), kind)
    whole, size = path.read_bytes(), kind.header_class.sizeof_hdr
    header = kind.header_class(whole[:size], check=False)
    header["vox_offset"] = offset
    path.write_bytes(header.binaryblock + whole[size:])
    with pytest.raises(nibabel.spatialimages.HeaderDataError):
        nibabel.load(path)
    expected = f"vox_offset; expected {size} or more, or 0; found {offset}"
    refuses(path, expected, CorruptFileError)


def test_offsets_beyond_4_gib(tmp_path):
    """RosettaSciIO #506: 32-bit offsets overflow. The file is sparse."""
    path = write(tmp_path / "a.nii", np.zeros((2, 2, 2), "u1"), nibabel.Nifti2Image)
    header = nibabel.Nifti2Header()
    header.set_data_dtype("u1")
    header.set_data_shape((1 << 16, 1 << 14, 5))
    header["vox_offset"] = 544
    with open(path, "wb") as file:
        file.write(header.binaryblock)
        file.seek(544 + 5 * (1 << 30) - 1)
        file.write(b"\x07")
    arr = dask_tiled.open_dataset(path)
    assert arr[4, -1, -3:].compute().tolist() == [0, 0, 7]
