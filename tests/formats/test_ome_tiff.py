"""OME-TIFF sets: real ones from each of their files, and every form of the specification."""

import itertools
import math
import os

import numpy as np
import pytest
import tifffile
from checks import axes_text, refused, refuses
from conftest import DATA
from hypothesis import given
from hypothesis import strategies as st
from manifest import by_file, expected_of, manifest
from ome_writer import (
    attributes,
    binary_only,
    document,
    image,
    tiff_data,
    uuid_of,
    write_pages,
    write_set,
)

from dask_tiled import (
    CorruptFileError,
    DatasetError,
    MissingFramesWarning,
    TruncatedFileError,
    describe,
    frame_facts,
    open_dataset,
    open_volumes,
)
from dask_tiled.files import file
from dask_tiled.testing import counting_frames

pytestmark = pytest.mark.usefixtures("synchronous")

FILES = [
    path.relative_to(DATA).as_posix()
    for expected in sorted(DATA.glob("ometiff/*/expected.npy"))
    for path in sorted(expected.parent.iterdir())
    if path != expected
]
COMPANIONS = sorted(path.name for path in (DATA / "ometiff/multi_companion").glob("*.ome*"))
SINGLES = [row for row in manifest("OME-TIFF") if "/singles/" in row["file"]]
ORDERS = ["XY" + "".join(rest) for rest in itertools.permutations("ZCT")]
SHAPE = (3, 2, 4, 5, 7)
PLANES = counting_frames(SHAPE, "u2")
FLAT = PLANES.reshape(-1, 5, 7)


def facts_of(path, **options):
    return describe(path, **options).metadata["ome_tiff"]


def read(path, **options):
    return open_dataset(path, **options).compute()


def single(folder, planes, inner, sizes=None, *, name="a.ome.tif", more="", **options):
    """Write one file of planes and XML."""
    in_xml = {k: options.pop(k) for k in ("order", "samples") if k in options}
    sizes = sizes or (*planes.shape[:3], *planes.shape[-2:])
    xml = document(image(sizes, inner, dtype=planes.dtype.str[1:], **in_xml) + more, uuid_of(name))
    pages = planes.reshape(-1, *planes.shape[3:]) if planes.ndim > 3 else planes
    return write_pages(folder / name, pages, xml, **options)


# Real sets


@pytest.mark.parametrize("name", FILES or ["none"])
def test_real_set_from_each_of_its_files(data, name):
    path = data / name
    expected = np.load(path.parent / "expected.npy")
    arr = open_dataset(path)
    assert arr.description.format == "ome_tiff"
    assert arr.shape == tuple(n for n in expected.shape if n > 1)
    assert arr.dtype == expected.dtype
    np.testing.assert_array_equal(arr.compute(), expected.squeeze())
    whole = open_dataset(path, squeeze=False)
    assert whole.description.dims == ("t", "c", "z", "y", "x")
    np.testing.assert_array_equal(whole.compute(), expected)


def test_real_missing_planes_are_listed_by_name(data):
    folder = data / "ometiff/e_plane_per_file_missing"
    desc = describe(folder / "e_t00_c0_z0.ome.tif")
    lost = ("e_t01_c0_z1.ome.tif", "e_t06_c1_z2.ome.tif")
    assert desc.missing.tolist() == [1 * 6 + 1, 6 * 6 + 5]
    facts = desc.metadata["ome_tiff"]
    assert facts["missing_files"] == lost
    assert facts["missing_planes"] == (
        (1, 0, 1, f"page 0 of {lost[0]}"),
        (6, 1, 2, f"page 0 of {lost[1]}"),
    )
    with pytest.raises(TruncatedFileError, match=", ".join(lost)):
        open_dataset(folder / "e_t00_c0_z0.ome.tif", missing="raise")
    with pytest.warns(MissingFramesWarning, match="2 of 60 frames are missing") as warned:
        open_dataset(folder / "e_t00_c0_z0.ome.tif")
    assert len(warned) == 1
    filled = read(folder / "e_t09_c1_z2.ome.tif", fill_value=7)
    assert (filled[1, 0, 1] == 7).all()
    assert (filled[6, 1, 2] == 7).all()


@pytest.mark.parametrize("name", ["g_c0.ome.tif", "g_c1.ome.tif"])
def test_real_pyramid(data, name):
    folder = data / "ometiff/g_pyramid"
    levels = facts_of(folder / name)["levels"]
    with tifffile.TiffFile(folder / "g_c0.ome.tif", is_ome=False) as c0:
        assert levels == 1 + len(c0.pages[0].pages) > 1
        with tifffile.TiffFile(folder / "g_c1.ome.tif", is_ome=False) as c1:
            for level in range(1, levels):
                both = [file.pages[0].pages[level - 1].asarray() for file in (c0, c1)]
                np.testing.assert_array_equal(read(folder / name, level=level), both)
    with pytest.raises(DatasetError, match="level"):
        open_dataset(folder / name, level=levels)


@pytest.mark.parametrize("name", COMPANIONS or ["none"])
def test_real_companion(data, name):
    """Members hold one plane each, which equals tifffile's."""
    folder = data / "ometiff/multi_companion"
    arr = open_dataset(folder / name)
    assert arr.description.dims == ("z", "y", "x")
    expected = [
        tifffile.imread(folder / f"multifile-Z{k}.ome.tiff", is_ome=False) for k in range(1, 6)
    ]
    np.testing.assert_array_equal(arr.compute(), expected)
    totals = {row["file"]: row["sum"] for row in manifest("OME-TIFF")}
    for k, plane in enumerate(expected, 1):
        assert plane.sum() == int(totals[f"ometiff/multi_companion/multifile-Z{k}.ome.tiff"])


@by_file(SINGLES, "row")
def test_real_single_file_equals_tifffile(data, row):
    arr = open_dataset(data / row["file"])
    shape, dtype, total = expected_of(row | {"shape_dtype": row["shape_dtype"].partition("[")[0]})
    assert arr.shape == shape
    assert arr.dtype == dtype
    pixels = arr.compute()
    np.testing.assert_array_equal(pixels, tifffile.imread(data / row["file"]))
    assert pixels.sum(dtype=np.int64) == total


# TiffData


def places_by_the_specification(order, shape, elements, page_counts):
    """Return file and page of each (t, c, z), plane by plane."""
    sizes = dict(zip("TCZ", shape, strict=True))
    places = {}
    for source, page, count, first in elements:
        default = page_counts[source] if page is None else 1
        at = {axis: first.get(axis, 0) for axis in "ZCT"}
        for k in range(default if count is None else count):
            places[at["T"], at["C"], at["Z"]] = source, (page or 0) + k
            for axis in order[2:]:
                at[axis] += 1
                if at[axis] < sizes[axis]:
                    break
                at[axis] = 0
            else:
                break
    return places


@pytest.mark.parametrize("order", ORDERS[::2])
def test_first_and_plane_count(tmp_path, order):
    """Runs of planes come in any order, with and without a page and a count."""
    counted_as = "NumPlanes" if order == "XYZCT" else "PlaneCount"
    elements = [
        (0, 7, 5, {"Z": 2, "C": 1}),
        (0, 0, 7, {"T": 1, "C": 1, "Z": 1}),
        (0, None, 3, {"Z": 1}),
        (0, 12, None, {"T": 2, "C": 1, "Z": 3}),
    ]
    inner = "".join(tiff_data(*rest, counted_as=counted_as) for _, *rest in elements)
    path = single(tmp_path, PLANES, inner, order=order)
    places = places_by_the_specification(order, SHAPE[:3], elements, [24])
    found = read(path, fill_value=9)
    for tcz in np.ndindex(SHAPE[:3]):
        expected = FLAT[places[tcz][1]] if tcz in places else np.full((5, 7), 9)
        np.testing.assert_array_equal(found[tcz], expected)
    lost = [tcz for tcz in np.ndindex(SHAPE[:3]) if tcz not in places]
    facts = facts_of(path)
    assert facts["missing_planes"] == tuple((*tcz, "in no TiffData") for tcz in lost)
    assert facts["missing_files"] == ()


@pytest.mark.parametrize("inner", ["", "<MetadataOnly/>"])
@pytest.mark.parametrize("order", ["XYCZT", "XYZTC"])
def test_pages_in_no_tiffdata_follow_the_order_of_dimensions(tmp_path, inner, order):
    """The recipe of libvips: tiles and pyramids, sizes in the XML, and no TiffData."""
    planes = counting_frames((2, 3, 4, 32, 48), "u2")
    slow_first = ["TCZ".index(axis) for axis in reversed(order[2:])]
    pages = planes.transpose(*slow_first, 3, 4).reshape(-1, 32, 48)
    xml = document(image(planes.shape, inner, order=order))
    path, options = tmp_path / "a.ome.tif", {"metadata": None, "tile": (16, 16)}
    with tifffile.TiffWriter(path) as writer:
        for k, page in enumerate(pages):
            told = {"description": None if k else xml, "subifds": 1, **options}
            writer.write(page, compression="lzw", photometric="minisblack", **told)
            writer.write(page[::2, ::2], subfiletype=1, photometric="minisblack", **options)
    arr = open_dataset(path, doubts="raise")
    assert arr.description.dims == ("t", "c", "z", "y", "x")
    np.testing.assert_array_equal(arr.compute(), planes)
    np.testing.assert_array_equal(read(path, level=1), planes[..., ::2, ::2])
    np.testing.assert_array_equal(read([path]), planes)


def test_no_tiffdata_where_the_pages_are_unknown(tmp_path):
    """XML without pages, and one of several images, are refused."""
    xml = document(image(SHAPE, ""))
    (tmp_path / "a.companion.ome").write_bytes(xml)
    refuses(tmp_path / "a.companion.ome", "all planes of the image 'img' are missing")
    both = image(SHAPE, "<TiffData/>") + image(SHAPE, "", name="other", number=1)
    path = write_pages(tmp_path / "a.ome.tif", FLAT, document(both))
    np.testing.assert_array_equal(read(path), PLANES)
    refuses(path, r"'other' are missing.*format=.tiff.", TruncatedFileError, dataset=1)


def test_planes_that_are_equally_spaced_are_one_piece(tmp_path):
    path = single(
        tmp_path, PLANES, "".join(tiff_data(k) for k in range(24)), sizes=(24, 1, 1, 5, 7)
    )
    assert len(describe(path).layout.pieces) <= 3  # the first IFD is longer, and the last data


@given(st.sampled_from(ORDERS), st.tuples(*[st.integers(1, 4)] * 3), st.data())
def test_any_partition_in_any_form(tmp_path_factory, order, shape, data):
    """Files list planes by page, in runs, or all at once; with or without file names."""
    folder = tmp_path_factory.mktemp("set")
    draw = data.draw
    planes = counting_frames((*shape, 2, 3), "u2")
    slow_first = [*reversed(order[2:])]
    axes = ["TCZ".index(axis) for axis in slow_first]
    flat = planes.transpose(*axes, 3, 4).reshape(-1, 2, 3)
    places = [
        dict(zip(slow_first, at, strict=True)) for at in np.ndindex(*(shape[k] for k in axes))
    ]
    bounds = sorted({0, len(flat), *draw(st.lists(st.integers(0, len(flat)), max_size=5))})
    inner, members = [], []
    for k, (start, stop) in enumerate(itertools.pairwise(bounds)):
        name = f"m{k}.ome.tif"
        member = {"uuid": uuid_of(name), "name": draw(st.sampled_from([name, None]))}
        form = draw(st.sampled_from(["each", "run", "whole"]))
        pages = list(range(start, stop))
        if form == "each":
            pages = draw(st.permutations(pages))
            inner += [tiff_data(i, first=places[page], **member) for i, page in enumerate(pages)]
        elif form == "run":
            inner.append(tiff_data(0, len(pages), places[start], **member))
        else:
            inner.append(tiff_data(first=places[start], **member))
        members.append((folder / name, flat[pages]))
    xml = image(planes.shape, "".join(draw(st.permutations(inner))), order=order)
    for path, pages in members:
        write_pages(path, pages, document(xml, uuid_of(path.name)))
    path, _ = draw(st.sampled_from(members))
    np.testing.assert_array_equal(read(path, squeeze=False), planes)


# Members of sets


def test_binary_only_files(tmp_path):
    """Sets open from any file, also if the master has another name, but not without it."""
    names = ["master.ome.tif", "second.ome.tif"]
    inner = "".join(
        tiff_data(0, 8, {"T": t}, uuid=uuid_of(name), name=name) for t, name in enumerate(names)
    )
    planes, flat = PLANES[:2], FLAT[:16]
    xml = image(planes.shape, inner)
    write_pages(tmp_path / names[0], flat[:8], document(xml, uuid_of(names[0])))
    stub = binary_only(names[0], uuid_of(names[0]), uuid_of(names[1]))
    write_pages(tmp_path / names[1], flat[8:], stub)
    for name in names:
        np.testing.assert_array_equal(read(tmp_path / name), planes)
    os.rename(tmp_path / names[0], tmp_path / "other.ome.tif")
    for name in ("other.ome.tif", names[1]):
        np.testing.assert_array_equal(read(tmp_path / name), planes)
    os.remove(tmp_path / "other.ome.tif")
    refuses(tmp_path / names[1], r"master\.ome\.tif")


def test_circular_binary_only_files_raise(tmp_path):
    for name, other in (("a", "b"), ("b", "a")):
        stub = binary_only(f"{other}.ome.tif", uuid_of(other), uuid_of(name))
        write_pages(tmp_path / f"{name}.ome.tif", FLAT[:1], stub)
    with pytest.raises(CorruptFileError, match="has no metadata itself"):
        open_dataset(tmp_path / "a.ome.tif")


def test_renamed_and_copied_files(tmp_path):
    """Files are identified by UUID, not by name."""
    one = tiff_data(0, 24, uuid=uuid_of("a.ome.tif"), name="a.ome.tif")
    path = single(tmp_path, PLANES, one)
    renamed = tmp_path / "b.ome.tif"
    os.rename(path, renamed)
    np.testing.assert_array_equal(read(renamed), PLANES)
    single(tmp_path, PLANES + 1, one)
    np.testing.assert_array_equal(read(renamed), PLANES)
    assert describe(renamed).files[0].path == str(renamed)


def test_ambiguous_uuid_raises(tmp_path):
    inner = tiff_data(0, 24, uuid=uuid_of("lost"))
    xml = document(image(SHAPE, inner), uuid_of("a"))
    write_pages(tmp_path / "a.ome.tif", FLAT, xml)
    for name in ("b.ome.tif", "c.ome.tif"):
        write_pages(tmp_path / name, FLAT, document("", uuid_of("lost")))
    with pytest.raises(CorruptFileError, match="the same UUID") as caught:
        open_dataset(tmp_path / "a.ome.tif")
    assert "b.ome.tif" in str(caught.value)
    assert "c.ome.tif" in str(caught.value)


def test_lists_of_files(tmp_path):
    members = write_set(tmp_path, "a", PLANES, [range(10), range(10, 24)])
    np.testing.assert_array_equal(read(members[::-1]), PLANES)
    np.testing.assert_array_equal(read(tmp_path / "a*.ome.tif"), PLANES)
    stray = single(tmp_path, PLANES, "<TiffData/>", name="stray.ome.tif")
    with refused(stray, r"not of one set.*open_volumes\(\)"):
        open_dataset([*members, stray])
    stacked = open_volumes([stray, single(tmp_path, PLANES + 1, "<TiffData/>", name="b.ome.tif")])
    np.testing.assert_array_equal(stacked.compute(), [PLANES, PLANES + 1])


def test_members_are_opened_once(tmp_path, monkeypatch):
    """The first file does not count: detection opens it as well."""
    members = write_set(tmp_path, "a", PLANES, [[k] for k in range(24)])
    opened = []
    real = file.open_file
    monkeypatch.setattr(
        file, "open_file", lambda path, *rest: opened.append(str(path)) or real(path, *rest)
    )
    describe(members[0])
    assert [opened.count(str(path)) for path in members[1:]] == [1] * 23


def test_damaged_members_are_named(tmp_path):
    members = write_set(tmp_path, "a", PLANES, [range(10), range(10, 24)])
    members[1].write_bytes(b"II*\0\xff\xff")
    with refused(members[1]):
        open_dataset(members[0])


def test_planes_beyond_the_last_page_are_missing(tmp_path):
    """The XML of a stopped acquisition has more planes than the file."""
    path = single(tmp_path, PLANES, "<TiffData/>", sizes=(100, 2, 4, 5, 7))
    desc = describe(path)
    assert desc.nav_shape == (100, 2, 4)
    assert desc.missing.tolist() == list(range(24, 800))
    np.testing.assert_array_equal(read(path)[:3], PLANES)
    path = single(
        tmp_path,
        PLANES,
        "".join(tiff_data(k, first={"T": k}) for k in range(99)),
        sizes=(99, 1, 1, 5, 7),
    )
    assert facts_of(path)["missing_planes"][0] == (24, 0, 0, "page 24 of a.ome.tif")
    np.testing.assert_array_equal(read(path)[:24], FLAT)


def test_other_nav_shapes_keep_the_order_of_planes(tmp_path):
    members = write_set(tmp_path, "a", PLANES, [range(23, -1, -2), range(0, 23, 2)])
    np.testing.assert_array_equal(read(members[0], nav_shape=(24,)), FLAT)
    os.remove(members[1])
    expected = FLAT.copy()
    expected[::2] = 9
    for count in (24, 10, 30):
        found = open_dataset(members[0], nav_shape=count, fill_value=9)
        padded = np.concatenate([expected, np.full((6, 5, 7), 9)])[:count]
        np.testing.assert_array_equal(found.compute(), padded)
        assert found.description.dims == ("frame", "y", "x")
    refuses(members[0], "too large", nav_shape=10**12)


# Images, samples, axes


def test_datasets_by_number_and_by_name(tmp_path):
    """Datasets of different shapes have pages in both files, in turns."""
    shapes = {"first": (2, 1, 3, 5, 7), "second": (1, 2, 2, 4, 6)}
    stacks = {name: counting_frames(shape, "u2") for name, shape in shapes.items()}
    order = [("second", 0), ("first", 0), ("first", 1), ("first", 2), ("second", 1), ("first", 3)]
    order += [("second", 2), ("first", 4), ("second", 3), ("first", 5)]
    names = ["a.ome.tif", "b.ome.tif"]
    inner = ""
    for number, (name, shape) in enumerate(shapes.items()):
        elements = ""
        for at, (of, place) in enumerate(order):
            if of == name:
                first = dict(zip("TCZ", np.unravel_index(place, shape[:3]), strict=True))
                file = names[at // 5]
                elements += tiff_data(at % 5, first=first, uuid=uuid_of(file), name=file)
        inner += image(shape, elements, name=name, number=number)
    for k, file in enumerate(names):
        pages = [stacks[of].reshape(-1, *shapes[of][3:])[at] for of, at in order[5 * k :][:5]]
        write_pages(tmp_path / file, pages, document(inner, uuid_of(file)))
    for file in names:
        for number, name in enumerate(shapes):
            for dataset in (number, name):
                found = read(tmp_path / file, dataset=dataset, squeeze=False)
                np.testing.assert_array_equal(found, stacks[name])
    assert facts_of(tmp_path / names[0])["datasets"] == ("first", "second")
    assert [facts_of(tmp_path / file)["dataset"] for file in names] == [
        1,
        0,
    ]  # that of the first page
    for dataset in (2, -1, "third", 1.0, True):
        refuses(tmp_path / names[0], "no such dataset", dataset=dataset)


def write_images(folder, stacks, *, one_uuid=False, binary=False):
    """Write images, a file for each plane of T, with the XML of all images in each file."""
    paths = [[folder / f"{k}{t}.ome.tif" for t in range(len(s))] for k, s in enumerate(stacks)]
    uuids = {path: uuid_of("a" if one_uuid else path.name) for own in paths for path in own}
    inner = ""
    for k, (stack, own) in enumerate(zip(stacks, paths, strict=True)):
        runs = [
            tiff_data(0, 8, {"T": t}, uuid=uuids[path], name=path.name)
            for t, path in enumerate(own)
        ]
        inner += image(stack.shape, "".join(runs), name=f"image {k}", number=k)
    for stack, own in zip(stacks, paths, strict=True):
        for planes, path in zip(stack, own, strict=True):
            xml = document(inner, uuids[path])
            if binary and path != paths[0][0]:
                xml = binary_only(paths[0][0].name, uuids[paths[0][0]], uuids[path])
            write_pages(path, planes.reshape(-1, 5, 7), xml)
    (folder / "all.companion.ome").write_bytes(document(inner))
    return paths


@pytest.mark.parametrize("way", ["copies", "one UUID", "binary only", "renamed", "linked"])
def test_file_opens_its_own_image(tmp_path, way):
    """Other images are listed in the metadata, and open by ``dataset``."""
    stacks = [PLANES, PLANES[:2] + 100, PLANES[:2, :, ::-1] + 200]
    options = {"one_uuid": way == "one UUID", "binary": way == "binary only"}
    (tmp_path / "set").mkdir()
    for k, own in enumerate(write_images(tmp_path / "set", stacks, **options)):
        for path in own:
            other = path.with_name("other.tif") if way == "renamed" else tmp_path / path.name
            if way == "renamed":
                path.rename(other)
            elif way == "linked":
                other.symlink_to(path)
            else:
                other = path
            arr = open_dataset(other)
            np.testing.assert_array_equal(arr.compute(), stacks[k])
            facts = arr.description.metadata["ome_tiff"]
            assert facts["dataset"] == k
            assert facts["datasets"] == ("image 0", "image 1", "image 2")
            np.testing.assert_array_equal(read(other, dataset="image 1"), stacks[1])
            if way == "renamed":
                other.rename(path)
    np.testing.assert_array_equal(read(tmp_path / "set/all.companion.ome"), PLANES)


@pytest.mark.parametrize("planar", ["contig", "separate"])
def test_samples_are_an_axis_of_the_frames(tmp_path, planar):
    """Samples are no channels, whether the XML counts them or not."""
    frames = counting_frames((2, 3, 5, 7) if planar == "separate" else (2, 5, 7, 3), "u1")
    for samples in (3, 1):
        xml = document(image((2, 3, 1, 5, 7), "<TiffData/>", dtype="u1", samples=samples))
        path = tmp_path / "rgb.ome.tif"
        write_pages(path, frames, xml, photometric="rgb", planarconfig=planar)
        arr = open_dataset(path)
        assert "".join(arr.description.dims) == ("tsyx" if planar == "separate" else "tyxs")
        np.testing.assert_array_equal(arr.compute(), frames)
    xml = document(image((2, 4, 1, 5, 7), "<TiffData/>", dtype="u1"))
    write_pages(path, frames, xml, photometric="rgb", planarconfig=planar)
    refuses(path, "SizeC", CorruptFileError)


def test_scales_units_and_names(tmp_path):
    scales = {"PhysicalSizeX": 0.5, "PhysicalSizeY": "0.25", "PhysicalSizeYUnit": "nm"}
    scales |= {"PhysicalSizeZ": "-1", "TimeIncrement": 2}
    xml = document(image(SHAPE, "<TiffData/>", **scales), uuid_of("a"))
    desc = describe(write_pages(tmp_path / "a.ome.tif", FLAT, xml))
    assert axes_text(desc) == "t 2 s, c 1, z 1, y 0.25 nm, x 0.5 µm"
    facts = desc.metadata["ome_tiff"]
    assert facts["channels"] == ("ch0", "ch1")
    assert facts["image"]["Pixels"]["@PhysicalSizeZ"] == "-1"


HEIGHTS = {
    "in steps": ([4.5, 5.25, 6.0], "µm", 4.5),
    "in another unit": ([4500, 5250, 6000], "nm", 4.5),
    "measured": ([4.5, 5.2, 6.05], "µm", 4.5),
    "downwards": ([4.5, 3.75, 3.0], "µm", 0),
    "other steps": ([4.5, 5.5, 6.5], "µm", 0),
    "reference frame": ([4.5, 5.25, 6.0], "reference frame", 0),
    "no unit": ([4.5, 5.25, 6.0], None, 0),
    "missing": ([4.5, 5.25], "µm", 0),
    "invalid": ([4.5, "5,25", "high"], "µm", 0),
}


@pytest.mark.parametrize(("heights", "unit", "start"), HEIGHTS.values(), ids=HEIGHTS)
def test_heights_of_a_stack(tmp_path, heights, unit, start):
    """A stack begins at PositionZ of its first plane, if its planes lie in steps from there."""
    steps = {"PhysicalSizeZ": 0.75, "PhysicalSizeZUnit": "µm"}
    planes = "".join(
        f"<Plane{attributes(TheZ=z, TheT=t, PositionZ=height, PositionZUnit=unit)}/>"
        for t in range(2)
        for z, height in enumerate(heights)
    )
    xml = document(image((2, 1, 3, 5, 7), f"<TiffData/>{planes}", **steps))
    desc = describe(write_pages(tmp_path / "a.ome.tif", FLAT[:6], xml))
    z = desc.axes[1]
    assert (z.name, z.units, z.scale, z.offset) == ("z", "µm", 0.75, start)
    assert desc.axes[0].offset == desc.axes[2].offset == 0


def test_heights_that_drift(tmp_path):
    """A stack has no single position if it moves, and images do not share theirs."""
    steps = {"PhysicalSizeZ": 1, "TimeIncrement": 2}
    unit = {"PositionZUnit": "µm"}
    moved = "".join(
        f"<Plane{attributes(TheT=t, TheZ=z, PositionZ=5 + z + t / 2, **unit)}/>"
        for t, z in np.ndindex(2, 2)
    )
    rests = "".join(f"<Plane{attributes(TheZ=z, PositionZ=7 + z, **unit)}/>" for z in range(2))
    inner = tiff_data(0, 4) + moved, tiff_data(4, 2) + rests
    shapes = (2, 1, 2, 5, 7), (1, 1, 2, 5, 7)
    images = [
        image(shape, told, number=k, name=f"{k}", **steps)
        for k, (shape, told) in enumerate(zip(shapes, inner, strict=True))
    ]
    path = write_pages(tmp_path / "a.ome.tif", FLAT[:6], document("".join(images)))
    drifts, stays = (describe(path, dataset=k, doubts="ignore") for k in range(2))
    assert [axis.offset for axis in drifts.axes] == [0, 0, 0, 0]
    assert [axis.offset for axis in stays.axes] == [7, 0, 0]
    np.testing.assert_allclose(
        frame_facts(open_dataset(path, dataset=0, doubts="ignore")).compute()["position_z"],
        [[5e-6, 6e-6], [5.5e-6, 6.5e-6]],
    )


@pytest.mark.parametrize("lacking", [None, {}, {"PositionZ": "NaN"}, {"PositionZ": ""}], ids=repr)
@pytest.mark.parametrize("axis", ["T", "C"])
def test_heights_of_some_planes(tmp_path, axis, lacking):
    """A stack begins at 0 if planes of one time or channel have no position."""
    lack = {"PositionZUnit": "reference frame"} if lacking == {} else {"PositionZUnit": "µm"}
    planes = []
    for t, c, z in np.ndindex(2, 2, 2):
        told = {"PositionZ": 5 + z, "PositionZUnit": "µm"}
        if {"T": t, "C": c}[axis]:
            told |= lack | (lacking or {})
        if lacking is not None or not {"T": t, "C": c}[axis]:
            planes.append(f"<Plane{attributes(TheT=t, TheC=c, TheZ=z, **told)}/>")
    planes += planes[:4]  # some twice
    xml = document(image((2, 2, 2, 5, 7), f"<TiffData/>{''.join(planes)}", PhysicalSizeZ=1))
    desc = describe(write_pages(tmp_path / "a.ome.tif", FLAT[:8], xml))
    assert [(one.name, one.offset) for one in desc.axes[:3]] == [("t", 0), ("c", 0), ("z", 0)]


def test_scales_of_a_pyramid(tmp_path):
    """The scale of a level grows as its number of pixels falls."""
    pages = counting_frames((2, 16, 24), "u2")
    xml = document(image((2, 1, 1, 16, 24), "<TiffData/>", PhysicalSizeX=0.5, PhysicalSizeY=2))
    path = tmp_path / "p.ome.tif"
    with tifffile.TiffWriter(path) as writer:
        for k, page in enumerate(pages):
            options = {"metadata": None, "photometric": "minisblack"}
            writer.write(page, subifds=1, description=None if k else xml, **options)
            writer.write(page[::2, ::4], subfiletype=1, **options)
    desc = describe(path, level=1)
    assert [axis.scale for axis in desc.axes[1:]] == [4.0, 2.0]
    assert desc.metadata["ome_tiff"]["levels"] == 2
    np.testing.assert_array_equal(read(path, level=1), pages[:, ::2, ::4])


def modulo(inner):
    return (
        '<StructuredAnnotations><XMLAnnotation ID="Annotation:3" Namespace="openmicroscopy.org/'
        'omero/dimension/modulo"><Value><Modulo namespace="http://www.openmicroscopy.org/Schemas/'
        f'Additions/2011-09">{inner}</Modulo></Value></XMLAnnotation></StructuredAnnotations>'
    )


def test_modulo_annotations_split_axes(tmp_path):
    axes = '<ModuloAlongZ Type="lifetime" Start="0" Step="0.5" End="0.5" Unit="ns"/>'
    axes += '<ModuloAlongT Type="other"><Label>a</Label><Label>b</Label><Label>c</Label>'
    planes = image(SHAPE, "<TiffData/>").replace(
        "</Image>", '<AnnotationRef ID="Annotation:3"/></Image>'
    )
    xml = document(planes + modulo(axes + "</ModuloAlongT>"), uuid_of("a"))
    path = write_pages(tmp_path / "a.ome.tif", FLAT, xml)
    arr = open_dataset(path)
    assert arr.description.dims == ("other", "c", "z", "lifetime", "y", "x")
    assert arr.description.axes[3].units == "ns"
    assert arr.description.axes[3].scale == 0.5
    assert arr.description.metadata["ome_tiff"]["modulo"]["T"]["labels"] == ("a", "b", "c")
    with tifffile.TiffFile(path) as file:
        assert arr.shape == file.series[0].shape
        np.testing.assert_array_equal(arr.compute(), file.series[0].asarray())


def test_instructions_before_the_root(tmp_path):
    """Style sheets and comments before the root are ignored."""
    xml = document(image(SHAPE, tiff_data(name="a.tif", uuid=uuid_of("a"))), uuid_of("x"))
    write_pages(tmp_path / "a.tif", FLAT, None)
    more = b"?><?xml-stylesheet href='a'?>\n<!-- ?> --><?b c?>"
    (tmp_path / "a.companion.ome").write_bytes(xml.replace(b"?>", more, 1))
    np.testing.assert_array_equal(read(tmp_path / "a.companion.ome"), PLANES)


def test_text_in_latin_1(tmp_path):
    """Some writers store µ as one byte."""
    xml = document(image(SHAPE, "<TiffData/>", PhysicalSizeX=1, PhysicalSizeXUnit="µm"))
    path = write_pages(tmp_path / "a.ome.tif", FLAT, xml.decode().encode("latin-1"))
    assert describe(path).axes[-1].units == "µm"


@pytest.mark.parametrize("padding", [b" " * 60, b"\n" * 200, b"\0" * 5000, b" \r\t\0" * 30_000])
def test_text_that_is_padded(tmp_path, padding):
    xml = document(image((24, 1, 1, 5, 7), "<TiffData/>", TimeIncrement=2))
    path = write_pages(tmp_path / "a.tif", FLAT, xml + padding)
    desc = describe(path)
    assert (desc.format, desc.dims, desc.axes[0].scale) == ("ome_tiff", ("t", "y", "x"), 2.0)
    np.testing.assert_array_equal(read(path), FLAT)
    blank = write_pages(tmp_path / "blank.tif", FLAT, padding)
    assert describe(blank).format == "tiff"


@pytest.mark.parametrize(
    ("inner", "sizes", "more"),
    [
        ("".join(tiff_data(k, 1, {"C": k}) for k in range(4)), (1, 1, 1), 3),  # multi-camera
        (tiff_data(0, 24), (3, 1, 5), 9),
        ("<TiffData/>", (2, 2, 4), 8),
        ("", (2, 2, 4), 8),
        (tiff_data(0, 8) + tiff_data(8, 1, {"T": 2}), (2, 1, 4), 1),
        (tiff_data(0, 8) + tiff_data(7, 1, {"T": 2}), (2, 1, 4), 0),  # shown at another place
    ],
)
def test_pages_beyond_the_sizes_are_a_doubt(tmp_path, inner, sizes, more):
    path = single(tmp_path, PLANES, inner, (*sizes, 5, 7))
    count = math.prod(sizes)
    desc = describe(path)
    told = [(one.code, one.text.split(" beyond")[0]) for one in desc.doubts]
    assert told == [("left-over-frames", f"TiffData lists {more} pages")] * (more > 0)
    shown = read(path, squeeze=False, doubts="ignore")
    np.testing.assert_array_equal(shown.reshape(-1, 5, 7), FLAT[:count])
    assert describe(path, nav_shape=desc.nav_shape).doubts == ()
    np.testing.assert_array_equal(read(path, format="tiff"), FLAT)


def test_samples_that_are_listed_as_channels_are_no_doubt(tmp_path):
    """One page holds three channels, each with its own TiffData."""
    inner = "".join(tiff_data(0, 1, {"C": k}) for k in range(3))
    xml = document(image((1, 3, 1, 5, 7), inner, dtype="u1", samples=3))
    frame = counting_frames((1, 5, 7, 3), "u1")
    path = write_pages(tmp_path / "a.ome.tif", frame, xml, photometric="rgb")
    np.testing.assert_array_equal(read(path, doubts="raise"), frame[0])


# Invalid XML


def valid(**options):
    return image(SHAPE, "<TiffData/>", **options)


INVALID = {
    "an entity": document(valid()).replace(b"img", b"&a;"),
    "no end": document(valid())[:-12] + b"<a></OME>",
    "another root": document(valid()).replace(b"OME", b"xOME"),
    "nothing": document(""),
    "no Pixels": document("<Image/>"),
    "a size of 0": document(image((0, 1, 1, 5, 7), "<TiffData/>")),
    "a negative size": document(image((-3, 1, 1, 5, 7), "<TiffData/>")),
    "a size that is no number": document(image(("many", 1, 1, 5, 7), "<TiffData/>")),
    "a huge size": document(image((10**9, 1, 1, 5, 7), "<TiffData/>")),
    "huge sizes": document(image((10**9, 10**9, 10**9, 5, 7), "<TiffData/>")),
    "a size of many digits": document(image(("1" * 5000, 1, 1, 5, 7), "<TiffData/>")),
    "pages of another size": document(image((24, 1, 1, 10**9, 7), "<TiffData/>")),
    "a page far beyond": document(image(SHAPE, tiff_data(10**9))),
    "a negative page": document(image(SHAPE, tiff_data(-1))),
    "a negative count": document(image(SHAPE, tiff_data(0, -5))),
    "a negative place": document(image(SHAPE, tiff_data(0, 1, {"T": -1}))),
    "no place": document(image(SHAPE, tiff_data(0, 1, {"T": 10**9}))),
    "another order": document(image(SHAPE, "<TiffData/>", order="XYZZT")),
    "another uuid": document(image(SHAPE, tiff_data(0, 1, uuid=uuid_of("lost")))),
    "a name with a zero": document(image(SHAPE, tiff_data(0, 1, uuid="x", name="a\ufffdb"))),
    "planes again and again": document(
        image((10**6, 1, 1, 5, 7), "".join(tiff_data(0, 10**6) for _ in range(100)))
    ),
}


@pytest.mark.parametrize("xml", INVALID.values(), ids=list(INVALID))
def test_invalid_xml_raises(tmp_path, xml):
    path = write_pages(tmp_path / "bad.ome.tif", FLAT, xml)
    with refused(path) as caught:
        open_dataset(path)
    if xml.endswith(b"OME>") and b"<UUID" not in xml:
        assert caught.value.hint == 'With format="tiff" the pages are read without the XML.'
    np.testing.assert_array_equal(read(path, format="tiff"), FLAT)
    (tmp_path / "bad.companion.ome").write_bytes(xml)
    with refused(tmp_path / "bad.companion.ome") as caught:
        open_dataset(tmp_path / "bad.companion.ome", format="ome_tiff")
    assert caught.value.hint is None


def test_huge_counts_end_with_the_planes(tmp_path):
    path = single(tmp_path, PLANES, tiff_data(0, 10**14))
    np.testing.assert_array_equal(read(path), PLANES)


@pytest.mark.thorough
def test_many_ignored_elements(tmp_path):
    """Long acquisitions have many annotations and elements of planes."""
    inner = "<TiffData/>" + '<Plane TheZ="0" TheC="0" TheT="0"/>' * 60_000
    one = '<XMLAnnotation ID="a"><Value><b>1</b></Value></XMLAnnotation>'
    more = f"<StructuredAnnotations>{one * 30_000}</StructuredAnnotations>"
    path = single(tmp_path, PLANES, inner, more=more)
    np.testing.assert_array_equal(read(path), PLANES)


def test_members_are_found_by_uuid_beside_the_target_of_a_link(tmp_path):
    (tmp_path / "set").mkdir()
    first, second = write_set(tmp_path / "set", "a", PLANES, [range(10), range(10, 24)])
    moved = second.rename(tmp_path / "set/moved.tif")
    link = tmp_path / "link.ome.tif"
    link.symlink_to(first)
    for path in (first, moved, link):
        np.testing.assert_array_equal(read(path, missing="raise"), PLANES)
