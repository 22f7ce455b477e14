"""Table of sample files: one or more rows per format.

``test_battery.py`` runs the same tests on every row.
"""

import gzip
import json
import shutil
import zipfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import h5py
import hdf5plugin
import nibabel
import numpy as np
import tifffile
import zarr
from astropy.io import fits
from delmic_writer import write_delmic
from eer_writer import BITS, coded, write_eer
from eiger_writer import write_eiger
from lsm_writer import write_lsm
from metamorph_writer import write_stk
from ome_writer import document, image, tiff_data, uuid_of, write_pages, write_set
from zarr.codecs import BloscCodec, TransposeCodec

from dask_tiled import to_beton
from dask_tiled.testing import (
    Tile,
    counting_frames,
    write_bcf,
    write_blo,
    write_czi,
    write_direct_electron,
    write_dm,
    write_edf,
    write_empad,
    write_fits,
    write_frms6,
    write_gis,
    write_ims,
    write_jeol_image,
    write_jeol_list,
    write_jeol_spectrum,
    write_k2is,
    write_lif,
    write_metaimage,
    write_mgh,
    write_mib,
    write_mib_series,
    write_mrc,
    write_nd2,
    write_ndata,
    write_npy,
    write_nrrd,
    write_pts,
    write_raw,
    write_raw_csr,
    write_ripple,
    write_seq,
    write_ser,
    write_tpx3,
    write_tvips,
    write_velox,
)


class Sample(NamedTuple):
    """A small data set: files that belong together, and the pixels they hold.

    Attributes
    ----------
    options : dict
        Arguments of ``open_dataset``, including ``path``.
    expected : array
        The pixels, in shape and native dtype.
    members : list of Path
        All files in the order of their frames; files without pixels come last.
    sig_dims : int
        Number of signal axes, which are the last ones.
    known_by : {"content", "suffix", "name"}
        What the format is recognised by: the content of the file at ``path`` under any name; its
        suffix as well; or ``format=`` only ("name").
    counted : bool
        Whether the files record the number of frames, so that lost frames are noticed.
    cut : list of Path, optional
        The files that tests truncate; by default all.
    links : Path, optional
        A file without pixels that leads to the files that hold them.
    """

    options: dict[str, Any]
    expected: np.ndarray
    members: list[Path]
    sig_dims: int = 2
    known_by: str = "content"
    counted: bool = True
    cut: list[Path] | None = None
    links: Path | None = None

    @property
    def sig_shape(self):
        return self.expected.shape[self.expected.ndim - self.sig_dims :]

    @property
    def frames(self):
        """All frames along one axis."""
        return self.expected.reshape(-1, *self.sig_shape)


def make_raw(folder, stem, *, dtype="<u2", gaps=(0, 0, 0)):
    names = ("file_header", "frame_header", "frame_footer")
    sizes = dict(zip(names, gaps, strict=True))
    frames = counting_frames((12, 5, 7), dtype)
    path = write_raw(folder / f"{stem}.raw", frames, **sizes)
    options = {"format": "raw", "dtype": dtype, "sig_shape": (5, 7), **sizes}
    expected = frames.astype(frames.dtype.newbyteorder("="))
    return Sample({"path": path, **options}, expected, [path], known_by="name", counted=False)


def make_raw_series(folder, stem):
    gaps = {"file_header": 13, "frame_header": 3, "frame_footer": 2}
    frames = counting_frames((12, 5, 7), "u2")
    paths = [
        write_raw(folder / f"{stem}{i}.raw", part, **gaps)
        for i, part in enumerate(np.split(frames, [2, 9]))
    ]
    options = {"path": paths, "format": "raw", "dtype": "u2", "sig_shape": (5, 7), **gaps}
    return Sample(options, frames, paths, known_by="name", counted=False, cut=paths[-1:])


def make(
    folder, stem, *, write, suffix, shape=(12, 5, 7), dtype="u2", bits=None, sig_dims=2,
    counted=True, **options,
):  # fmt: skip
    """Write one file by a function of a path and pixels."""
    array = counting_frames(shape, dtype, bits=bits)
    if write in (write_dm, write_ser):
        options["sig_dims"] = sig_dims
    path = write(folder / f"{stem}{suffix}", array, **options)
    expected = array.astype(array.dtype.newbyteorder("="))
    return Sample({"path": path}, expected, [path], sig_dims, counted=counted)


SCAN = {"shape": (3, 4, 5, 7)}
make_npy = partial(make, write=write_npy, suffix=".npy", dtype=">u2", **SCAN)
make_ndata = partial(make, write=write_ndata, dtype="f4", **SCAN)
make_mib = partial(
    make, write=write_mib, suffix=".mib", shape=(12, 4, 128), counted=False, hdr=False
)
make_mrc = partial(make, write=write_mrc, suffix=".mrc")
make_ser = partial(make, write=write_ser, suffix="_1.ser")
make_dm = partial(make, write=write_dm, suffix=".dm4")
make_nd2 = partial(make, write=write_nd2, suffix=".nd2", shape=(2, 3, 2, 5, 7), axes="tzcyx")
make_blo = partial(make, write=write_blo, suffix=".blo", shape=(3, 4, 6, 6))
make_seq = partial(make, write=write_seq, suffix=".seq")
make_edf = partial(make, write=write_edf, suffix=".edf", counted=False)
make_mgh = partial(make, write=write_mgh, suffix=".mgh", dtype="i2", **SCAN)
make_jeol = partial(make, write=write_jeol_image, suffix=".img", shape=(5, 7))


def make_npz(folder, stem, *, save, order="C"):
    array = counting_frames((3, 4, 5, 7), ">u2")
    path = folder / f"{stem}.npz"
    save(path, x=np.asarray(array, order=order), y=np.arange(3))
    return Sample({"path": path}, array.astype("u2"), [path])


def make_beton(folder, stem):
    frames = counting_frames((12, 5, 7), "u2")
    path = folder / f"{stem}.beton"
    to_beton(path, {"x": frames, "n": np.arange(12)}, page_size=1 << 21, progress=False)
    return Sample({"path": path}, frames, [path])


def make_mib_hdr(folder, stem):
    frames = counting_frames((3, 4, 6, 9), "u2", bits=12)
    path = write_mib(folder / f"{stem}.mib", frames)
    hdr = path.with_suffix(".hdr")
    return Sample({"path": hdr}, frames, [path, hdr])


def make_mib_series(folder, stem):
    frames = counting_frames((12, 4, 128), "u2", bits=12)
    members = write_mib_series(
        folder / f"{stem}-", frames, frames_per_file=5, hdr=False, kind="R64", depth=12
    )
    return Sample({"path": members[0]}, frames, members, counted=False)


def make_mrc_gz(folder, stem):
    sample = make_mrc(folder, stem, dtype="i2")
    (path,) = sample.members
    packed = path.with_suffix(".mrc.gz")
    packed.write_bytes(gzip.compress(path.read_bytes()))
    path.unlink()
    return sample._replace(options={"path": packed}, members=[packed])


def make_direct_electron(folder, stem):
    frames = counting_frames((12, 5, 7), "u2")
    info = {"Scan - Enable": "Enable", "Scan - Size X": 4, "Scan - Size Y": 3}
    path = write_direct_electron(folder, frames, info, name=stem)
    members = [path, *sorted(set(folder.iterdir()) - {path})]
    return Sample({"path": path}, frames.reshape(3, 4, 5, 7), members)


def make_tvips(folder, stem, *, version, dtype, scan=(), per_file=None):
    frames = counting_frames((12, 5, 7), dtype)
    positions = [(y, x) for y in range(scan[0]) for x in range(scan[1])] if scan else ()
    members = write_tvips(
        folder / stem, frames, version=version, frames_per_file=per_file, positions=positions
    )
    expected = frames.reshape(*(scan or (12,)), 5, 7)
    return Sample({"path": members[0]}, expected, members, counted=False)


def make_hdf5(folder, stem, **options):
    frames = counting_frames((3, 4, 5, 7), options.pop("dtype", "u2"))
    path = folder / f"{stem}.h5"
    with h5py.File(path, "w") as file:
        file.create_dataset("scan/frames", data=frames, **options)
    return Sample({"path": path}, frames.astype(frames.dtype.newbyteorder("=")), [path])


def make_scales(folder, stem):
    """Write axes in each way that is no instrument's: scales, labels, tags and properties."""
    frames = counting_frames((3, 4, 5, 7), "u2")
    path = folder / f"{stem}.h5"
    with h5py.File(path, "w") as file:
        data = file.create_dataset("data", data=frames)
        for k, size in enumerate(frames.shape):
            data.dims[k].label = f"axis {k}"
            scale = file.create_dataset(f"scale_{k}", data=np.arange(size) ** 2.0)
            scale.make_scale()
            data.dims[k].attach_scale(scale)
        steps = [{"offset": 1.0, "scale": 2.0, "units": "nm"}] * 2
        data.attrs["properties"] = json.dumps({"dimensional_calibrations": steps})
        tags = [{"key": key, "resolution": 0.5} for key in "tz"]
        data.attrs["axistags"] = json.dumps({"axes": tags})
    return Sample({"path": path}, frames, [path])


def make_eiger(folder, stem):
    """Write a master file with links to two data files, as Eiger detectors do."""
    frames = counting_frames((12, 5, 7), "u4")
    options = {"chunks": (1, 5, 7), **hdf5plugin.Bitshuffle()}
    master = write_eiger(folder, np.split(frames, [7]), stem=stem, **options)
    members = [folder / f"{stem}_data_{k:06}.h5" for k in (1, 2)]
    return Sample({"path": master}, frames, [*members, master], counted=False, links=master)


def make_colour_planes(folder, stem):
    """Write a colour picture by the HDF5 Image Specification, plane by plane."""
    picture = counting_frames((9, 11, 3), "u1")
    path = folder / f"{stem}.h5"
    with h5py.File(path, "w") as file:
        image = file.create_dataset("picture", data=picture.transpose(2, 0, 1), chunks=(1, 4, 6))
        kind = {"CLASS": "IMAGE", "IMAGE_SUBCLASS": "IMAGE_TRUECOLOR", "IMAGE_COLORMODEL": "RGB"}
        for name, value in {**kind, "INTERLACE_MODE": "INTERLACE_PLANE"}.items():
            image.attrs[name] = np.bytes_(value)
    return Sample({"path": path}, picture, [path], sig_dims=3)


def make_delmic(folder, stem, **storage):
    """Write spectra of a scan, beside two images of electrons and a thumbnail."""
    spectra = counting_frames((3, 4, 37), "u2")
    stored = spectra.transpose(2, 0, 1)[:, None, None]
    images = [
        # Other values than those of spectra, which are not together in the file.
        {
            "data": 1000 + counting_frames((1, 1, 1, *shape), "u2"),
            "title": f"Secondary electrons {name}",
        }
        for name, shape in (("survey", (9, 8)), ("concurrent", (3, 4)))
    ]
    path = write_delmic(folder / f"{stem}.h5", [*images, {"data": stored, **storage}])
    return Sample({"path": path}, spectra, [path], sig_dims=1)


def make_velox(folder, stem, *, chunk=8192, frames="sum"):
    """Write counts of two detectors in three frames of a scan."""
    counts = counting_frames((2, 3, 4, 5, 32), "u2", bits=3) // 5
    counts[:, :, 1, 2:] = 0
    path = write_velox(folder / f"{stem}.emd", counts, chunk=chunk)
    summed = counts.sum(axis=0, dtype="u2")
    expected = summed.sum(axis=0, dtype="u2") if frames == "sum" else summed[frames]
    return Sample({"path": path, "frames": frames}, expected, [path], sig_dims=1)


def make_lif(folder, stem, *, suffix=".lif", dtype="u2", shape=(2, 3, 2, 5, 7), axes="tczyx"):
    array = counting_frames(shape, dtype)
    path = write_lif(folder / f"{stem}{suffix}", {"cells": array}, axes)
    return Sample({"path": path}, array, [path], sig_dims=3 if "s" in axes else 2)


def make_czi(folder, stem, *, dtype="u2", samples=(), compression=0, mosaic=True):
    """Write one tile for each frame, or two overlapping ones if ``mosaic``."""
    array = counting_frames((2, 3, 5, 7, *samples), dtype)
    tiles = []
    for (t, c), frame in zip(np.ndindex(2, 3), array.reshape(6, *array.shape[2:]), strict=True):
        place = {"T": t, "C": c, "Y": 3}
        if not mosaic:
            tiles.append(Tile({**place, "X": 10}, frame))
            continue
        tiles.append(Tile({**place, "X": 13, "M": 1}, frame[:, 3:]))
        under = frame[:, :4].copy()
        under[:, 3] = 1
        tiles.append(Tile({**place, "X": 10, "M": 0}, under))
    path = write_czi(folder / f"{stem}.czi", tiles, compression=compression)
    return Sample({"path": path}, array, [path], sig_dims=2 + len(samples))


def make_raw_csr(folder, stem):
    frames = counting_frames((3, 4, 5, 7), "f4", bits=12)
    frames[frames % 8 != 0] = 0
    toml = write_raw_csr(folder / f"{stem}.toml", frames, shuffle=True)
    members = [toml.with_suffix(f".{part}") for part in ("indptr", "indices", "data")]
    return Sample({"path": toml}, frames, [*members, toml])


def make_bcf(folder, stem, **options):
    counts = counting_frames((3, 4, 40), "u4", bits=3)
    counts[1, 2] = 0
    path = write_bcf(folder / f"{stem}.bcf", counts, **options)
    return Sample({"path": path}, counts, [path], sig_dims=1)


def make_pts(folder, stem, **options):
    counts = np.zeros((3, 16, 16, 4096), "u2")
    counts[..., ::511] = counting_frames((3, 16, 16, 9), "u2", bits=3)
    path = write_pts(folder / f"{stem}.pts", counts)
    expected = counts if options else counts.sum(axis=0, dtype="u2")
    return Sample({"path": path, **options}, expected, [path], sig_dims=1)


def make_jeol_list(folder, stem):
    (folder / "Sample").mkdir(exist_ok=True)
    sample = make_jeol(folder / "Sample", stem, dtype="u2")
    path = write_jeol_list(folder / f"{stem}.ASW", [f"Sample/{stem}.EDS", f"Sample/{stem}.img"])
    options = {"path": path, "dataset": 1}
    return sample._replace(options=options, members=[*sample.members, path], links=path)


def make_tpx3(folder, stem):
    """Write all hits in one chunk, so that truncation is noticed."""
    counts = np.zeros((4, 256, 256), "u4")
    for frame, number in zip(counts, counting_frames((4, 40), "u2"), strict=True):
        frame.reshape(-1)[number.astype(int) * 577 % frame.size] += 1
    path = write_tpx3(folder / f"{stem}.tpx3", counts, per_chunk=1000)
    return Sample({"path": path, "frame_time": 1e-3}, counts, [path], counted=False)


def make_frms6(folder, stem, *, binning):
    stored = counting_frames((12, 8, 6), "u2", bits=14)
    dark = np.zeros((2, 8, 6), "u2")
    members = write_frms6(
        folder / stem, stored, dark=dark, scan_shape=(3, 4), binning=binning, frames_per_file=7
    )
    hdr = folder / f"{stem}.hdr"
    frames = np.repeat(stored, binning, axis=1)
    return Sample({"path": hdr}, frames.reshape(3, 4, *frames.shape[1:]), [*members[1:], hdr])


def make_k2is(folder, stem):
    frames = counting_frames((2, 1860, 2048), "u2", bits=12)
    members = write_k2is(folder / f"{stem}_", frames, scan_shape=(1, 2))
    return Sample({"path": members[0]}, frames[None], [*members, folder / f"{stem}_.gtg"])


def make_empad(folder, stem, *, by=".xml", nav=(2, 3), mode="acquire"):
    frames = counting_frames((*nav, 128, 128), "f4")
    name = f"{stem}_frames.raw" if by == ".xml" else f"{stem}_x3_y2.raw"
    path = write_empad(folder / f"{stem}.xml", frames, mode=mode, raw_name=name)
    raw = path.with_name(name)
    if by == ".xml":
        return Sample({"path": path}, frames, [raw, path])
    path.unlink()
    return Sample({"path": raw}, frames, [raw], known_by="suffix")


def make_nifti(folder, stem, *, suffix=".nii", dtype="i2", order="<", **options):
    frames = counting_frames((3, 4, 5, 7), dtype)
    kind = nibabel.Nifti1Pair if suffix == ".img" else nibabel.Nifti1Image
    header = kind.header_class(endianness=order)
    header.set_data_dtype(dtype)
    header.set_xyzt_units("mm", "sec")
    path = folder / f"{stem}{suffix}"
    image = kind(frames.T, np.eye(4), header)
    image.header.set_slope_inter(1, 0)
    nibabel.save(image, path)
    members = [path, path.with_suffix(".hdr")] if suffix == ".img" else [path]
    known_by = "suffix" if suffix == ".img" else "content"
    expected = frames.astype("f8") if options else frames
    return Sample({"path": path, **options}, expected, members, known_by=known_by)


def make_zarr(folder, stem, *, dtype="u2", shape=(3, 4, 5, 7), **options):
    frames = counting_frames(shape, dtype)
    place = folder / f"{stem}.zarr"
    keys = {"name": "v2", "separator": "."}  # all files in one folder
    array = zarr.create_array(place, shape=shape, dtype=dtype, chunk_key_encoding=keys, **options)
    array[...] = frames
    document = place / "zarr.json"
    chunks = sorted(path for path in place.iterdir() if path != document)
    expected = frames.astype(frames.dtype.newbyteorder("="))
    return Sample({"path": document}, expected, [*chunks, document], links=document)


def make_zarr_2(folder, stem):
    frames = counting_frames((3, 4, 5, 7), ">u2")
    place = folder / f"{stem}.zarr"
    options = {"chunks": (2, 3, 5, 4), "order": "F", "compressors": None, "fill_value": None}
    array = zarr.create_array(place, shape=frames.shape, dtype=">u2", zarr_format=2, **options)
    array[...] = frames
    document = place / ".zarray"
    chunks = sorted(path for path in place.iterdir() if path.name[0] != ".")
    (place / ".zattrs").unlink()
    files = [*chunks, document]
    return Sample({"path": document}, frames.astype("u2"), files, known_by="suffix", links=document)


def make_zarr_zip(folder, stem, *, method):
    """Zip a zarr as other programs do: in a folder of its own, the document last."""
    whole = make_zarr(folder / "zipped", stem, chunks=(2, 3, 5, 4), compressors=None)
    path = folder / f"{stem}.zarr.zip"
    with zipfile.ZipFile(path, "w", method) as archive:
        for member in whole.members:
            archive.write(member, f"{stem}.zarr/{member.name}")
    shutil.rmtree(folder / "zipped")
    return Sample({"path": path}, whole.expected, [path])


def put(group, tags):
    """Write nested tags as groups with attributes."""
    for name, value in tags.items():
        if isinstance(value, dict):
            put(group.create_group(name), value)
        else:
            group.attrs[name] = value


def write_dm5(path, images, *, shown=0, thumbnails=()):
    """Write images: name, data, steps from the fastest axis, tags, data type."""
    with h5py.File(path, "w") as file:
        for k, (name, data, steps, tags, kind) in enumerate(images):
            image = file.create_group(f"ImageList/[{k}]")
            image.attrs["Name"] = np.bytes_(name)
            image["ImageData/Data"] = data
            image["ImageData"].attrs["DataType"] = kind
            dims = {f"[{i}]": np.uint32(n) for i, n in enumerate(data.shape[::-1])}
            told = {
                f"[{i}]": {"Origin": np.float32(a), "Scale": np.float32(b), "Units": np.bytes_(c)}
                for i, (a, b, c) in enumerate(steps)
            }
            put(image["ImageData"].create_group("Dimensions"), dims)
            put(image["ImageData"].create_group("Calibrations"), {"Dimension": told})
            put(image.create_group("ImageTags"), tags)
        put(
            file.create_group("Thumbnails"),
            {f"[{k}]": {"ImageIndex": n} for k, n in enumerate(thumbnails)},
        )
        put(file.create_group("DocumentObjectList"), {"[0]": {"ImageSource": np.uint64(0)}})
        put(file.create_group("ImageSourceList"), {"[0]": {"ImageRef": np.uint32(shown)}})
    return path


def make_dm5(folder, stem):
    frames = counting_frames((3, 4, 5, 7), "u2")
    stored = np.ascontiguousarray(frames.transpose(2, 3, 0, 1))
    steps = [(1.0, 0.5, "nm")] * 2 + [(1.0, 0.5, "1/nm")] * 2
    path = write_dm5(folder / f"{stem}.dm5", [("scan", stored, steps, {}, 10)])
    return Sample({"path": path}, frames, [path])


def make_edf_of_ge(folder, stem, *, pack=bytes):
    frames = counting_frames((12, 5, 7), "u2")
    path = write_edf(folder / f"{stem}.edf", frames[:1], keys={"Num_Images": 12})
    path.write_bytes(pack(path.read_bytes() + frames[1:].tobytes()))
    return Sample({"path": path}, frames, [path])


def make_fits(folder, stem, *, dtype, shape=(3, 4, 5, 7), before=()):
    frames = counting_frames(shape, dtype)
    path = write_fits(folder / f"{stem}.fits", *before, frames)
    return Sample({"path": path}, frames, [path])


def make_gis(folder, stem, *, suffix, dtype="i2", shape=(3, 4, 5, 7), cut=None, **options):
    frames = counting_frames(shape, dtype, **({"bits": 12} if options.get("ascii") else {}))
    members = write_gis(folder / f"{stem}.dim", frames, voxel_size=(1, 2, 3, 4), **options)
    sig_dims = 3 if "kind" in options else 2
    known_by = "content" if suffix == ".dim" else "suffix"
    # A header that lost -bo is valid, and so is a text whose last number lost digits.
    return Sample(
        {"path": folder / f"{stem}{suffix}"},
        frames,
        members,
        sig_dims=sig_dims,
        known_by=known_by,
        cut=members[cut] if cut else None,
    )


def make_ripple(folder, stem, *, suffix=".rpl", dtype="u2", shape=(12, 5, 7), **options):
    array = counting_frames(shape, dtype)
    members = write_ripple(folder / f"{stem}{suffix}", array, **options)
    sig_dims = 1 if "record_by" in options else 2
    path = folder / f"{stem}{suffix}"
    known_by = "content" if suffix == ".rpl" else "suffix"
    expected = array.astype(array.dtype.newbyteorder("="))
    return Sample({"path": path}, expected, members, sig_dims, known_by)


def make_volume(folder, stem, *, write, suffix, dtype="u2", shape=(3, 4, 5, 7), **options):
    """Write an NRRD or MetaImage volume."""
    array = counting_frames(shape, dtype)
    members = write(folder / f"{stem}{suffix}", array, **options)
    expected = array.astype(array.dtype.newbyteorder("="))
    sig_dims = 3 if "fields" in options else 2
    return Sample({"path": members[-1]}, expected, members, sig_dims)


make_nrrd = partial(make_volume, write=write_nrrd, suffix=".nrrd")


def make_nrrd_hex(folder, stem):
    """Write pixels as hexadecimal digits."""
    sample = make_nrrd(folder, stem, dtype=">u2", fields={"encoding": "hex"})
    path = sample.options["path"]
    whole, nbytes = path.read_bytes(), sample.expected.nbytes
    path.write_bytes(whole[:-nbytes] + whole[-nbytes:].hex().encode())
    return Sample({"path": path}, sample.expected, [path])


make_metaimage = partial(make_volume, write=write_metaimage, suffix=".mha")


def make_ome_tiff(folder, stem, *, dtype="u2", **options):
    """Write two files: the last seven planes in reverse order, then the first five."""
    planes = counting_frames((2, 3, 2, 5, 7), dtype)
    parts = [range(11, -1, -1)[:7], range(5)]
    members = write_set(folder, stem, planes, parts, **options)
    return Sample({"path": members[0]}, planes, members)


def make_ome_tiff_companion(folder, stem):
    """Write a companion file of XML and a file of pages."""
    frames = counting_frames((12, 5, 7), "u2")
    name = f"{stem}.ome.tif"
    inner = tiff_data(uuid=uuid_of(name), name=name)
    xml = document(image((12, 1, 1, 5, 7), inner))
    companion = folder / f"{stem}.companion.ome"
    companion.write_bytes(xml)
    path = write_pages(folder / name, frames, document("", uuid_of(name)))
    return Sample({"path": companion}, frames, [path, companion], counted=True, cut=[path])


def make_tiff(folder, stem, *, dtype="u2", shape=(12, 5, 7), sig_dims=2, **options):
    frames = counting_frames(shape, dtype, bits=options.get("bitspersample"))
    path = folder / f"{stem}.tif"
    tifffile.imwrite(path, frames, **{"photometric": "minisblack", **options})
    return Sample({"path": path}, frames, [path], sig_dims)


def make_tiff_series(folder, stem):
    """Write one file for each page."""
    frames = counting_frames((12, 5, 7), "u2")
    members = [folder / f"{stem}{k}.tif" for k in range(12)]
    for path, frame in zip(members, frames, strict=True):
        tifffile.imwrite(path, frame)
    return Sample({"path": members}, frames, members)


def make_stk(folder, stem):
    """Write a stack of MetaMorph, whose planes follow one page."""
    frames = counting_frames((12, 5, 7), "u2")
    distances, wavelengths = [(1, 4)] * 12, [488] * 12
    options = {"pixel": ((1, 8), (1, 8)), "distances": distances, "wavelengths": wavelengths}
    path = write_stk(folder / f"{stem}.stk", frames, rows=2, **options)
    return Sample({"path": path}, frames, [path])


def make_lsm(folder, stem):
    """Write planes of three channels, in turns with thumbnails."""
    frames = counting_frames((6, 3, 5, 7), "u2")
    path = write_lsm(folder / f"{stem}.lsm", frames, lzw=True)
    return Sample({"path": path}, frames, [path], 3)


def make_eer(folder, stem):
    """Write frames of electron events behind their sum."""
    frames = counting_frames((12, 5, 7), "u1") % 5 == 0
    streams = [coded(frame, BITS[65001]) for frame in frames]
    total = frames.sum(0, "u2")
    path = write_eer(folder / f"{stem}.eer", streams, (5, 7), 65001, (), image=total)
    return Sample({"path": path}, frames, [path])


def make_fits_tiles(folder, stem, *, dtype, **options):
    """Write a tile-compressed image by astropy, whose tiles do not divide the frames."""
    frames = counting_frames((3, 50, 61), dtype, bits=12)
    path = folder / f"{stem}.fits"
    packed = fits.CompImageHDU(frames, tile_shape=(1, 20, 30), **options)
    fits.HDUList([fits.PrimaryHDU(), packed]).writeto(path)
    return Sample({"path": path}, np.array(fits.getdata(path, 1)).astype(dtype), [path])


# The first word of a key is the name of the format.
TABLE: dict[str, Callable[[Path, str], Sample]] = {
    "raw": make_raw,
    "raw with gaps": partial(make_raw, dtype=">f4", gaps=(13, 3, 2)),
    "raw series": make_raw_series,
    "npy C": partial(make_npy, order="C"),
    "npy F": partial(make_npy, order="F"),
    "npz": partial(make_npz, save=np.savez),
    "npz deflated F": partial(make_npz, save=np.savez_compressed, order="F"),
    "ndata": partial(make_ndata, suffix=".ndata"),
    "ndata exported": partial(make_ndata, suffix=".ndata1", deflated=True),
    "beton": make_beton,
    "mib u16": partial(make_mib, kind="U16", dtype="u2", bits=16),
    "mib 1 bit": partial(make_mib, kind="R64", depth=1, dtype="u1", bits=1),
    "mib 6 bit": partial(make_mib, kind="R64", depth=6, dtype="u1", bits=6),
    "mib 12 bit": partial(make_mib, kind="R64", depth=12, dtype="u2", bits=12),
    "mib 24 bit": partial(make_mib, kind="R64", depth=24, dtype="u4", bits=24),
    "mib 1 bit quad": partial(make_mib, kind="R64", depth=1, quad=True, dtype="u1", bits=1),
    "mib 12 bit quad": partial(make_mib, kind="R64", depth=12, quad=True, dtype="u2", bits=12),
    "mib hdr": make_mib_hdr,
    "mib series": make_mib_series,
    "mrc i2": partial(make_mrc, dtype="i2"),
    "mrc f4": partial(make_mrc, dtype="f4", byte_order=">"),
    "mrc c8": partial(make_mrc, dtype="c8", extended=b"a" * 100),
    "mrc gzip": make_mrc_gz,
    "mrc movie": make_direct_electron,
    "tvips 1": partial(make_tvips, version=1, dtype="u1"),
    "tvips 2": partial(make_tvips, version=2, dtype="u2", scan=(3, 4)),
    "tvips series": partial(make_tvips, version=2, dtype="u2", per_file=5),
    "ser images": partial(make_ser, dtype="i2", shape=(12, 5, 7)),
    "ser map": partial(make_ser, dtype="f4", shape=(3, 4, 5, 7), version=0x210, gaps=(0, 3, 1)),
    "ser spectra": partial(make_ser, dtype="u4", shape=(3, 4, 9), sig_dims=1),
    "dm stack": partial(make_dm, suffix=".dm3", dtype="f4", version=3),
    "dm scan": partial(make_dm, dtype="u2", shape=(3, 4, 5, 7)),
    "dm transposed": partial(make_dm, dtype="u2", shape=(3, 4, 5, 7), transposed=True),
    "dm spectra": partial(make_dm, dtype="i4", shape=(3, 4, 9), sig_dims=1, transposed=True),
    "dm picture": partial(make_dm, dtype="c8", shape=(6, 8)),
    "hdf5": make_hdf5,
    "hdf5 chunks": partial(make_hdf5, dtype=">i4", chunks=(2, 2, 5, 4)),
    "hdf5 gzip": partial(make_hdf5, chunks=(1, 2, 5, 7), compression="gzip", shuffle=True),
    "hdf5 eiger": make_eiger,
    "hdf5 colours": make_colour_planes,
    "hdf5 delmic": make_delmic,
    "hdf5 delmic chunks": partial(make_delmic, chunks=(8, 1, 1, 2, 3), compression="gzip"),
    "hdf5 dm5": make_dm5,
    "hdf5 scales": make_scales,
    "hdf5 imaris": partial(make, write=write_ims, suffix=".ims", shape=(2, 2, 5, 9, 11), levels=2),
    "hdf5 velox": make_velox,
    "hdf5 velox frames": partial(make_velox, chunk=None, frames=slice(1, None)),
    "ome_tiff": make_ome_tiff,
    "ome_tiff tiles": partial(make_ome_tiff, dtype="i2", tile=(16, 16), compression="zlib"),
    "ome_tiff companion": make_ome_tiff_companion,
    "tiff": make_tiff,
    "tiff big-endian strips": partial(make_tiff, byteorder=">", rowsperstrip=2, bigtiff=True),
    "tiff tiles": partial(
        make_tiff, dtype="f4", shape=(3, 4, 5, 7), tile=(16, 16), compression="zlib", predictor=3
    ),
    "tiff packed": partial(make_tiff, dtype="u1", bitspersample=6, metadata=None),
    "tiff colours": partial(
        make_tiff, dtype="u1", shape=(12, 5, 7, 3), sig_dims=3, photometric="rgb"
    ),
    "tiff ImageJ": partial(make_tiff, shape=(3, 4, 5, 7), imagej=True, metadata={"axes": "TZYX"}),
    "tiff series": make_tiff_series,
    "tiff MetaMorph": make_stk,
    "tiff LSM": make_lsm,
    "tiff EER": make_eer,
    "nd2": make_nd2,
    "nd2 padded rows": partial(make_nd2, shape=(6, 3, 5, 7), axes="pcyx", padding=6),
    "nd2 zlib": partial(make_nd2, shape=(12, 5, 7), axes="zyx", compressed=True),
    "lif": make_lif,
    "lif colours": partial(make_lif, dtype="u1", shape=(12, 5, 7, 3), axes="tyxs"),
    "lif object": partial(make_lif, suffix=".lof", dtype="f4", shape=(12, 5, 7), axes="zyx"),
    "czi": make_czi,
    "czi colours": partial(make_czi, dtype="u1", samples=(3,)),
    "czi zstd": partial(make_czi, compression=6, mosaic=False),
    "raw_csr": make_raw_csr,
    "tpx3": make_tpx3,
    "pts": make_pts,
    "pts frames": partial(make_pts, frames=slice(None)),
    "jeol": partial(make_jeol, dtype="u1"),
    "jeol floats": partial(make_jeol, dtype="f4"),
    "jeol spectrum": partial(
        make,
        write=write_jeol_spectrum,
        suffix=".EDS",
        shape=(600,),
        dtype="i4",
        bits=20,
        sig_dims=1,
    ),
    "jeol list": make_jeol_list,
    "bcf": partial(make_bcf, chunk=600),
    "bcf packed": partial(make_bcf, packing=3, packed=True, block=1000),
    "frms6": partial(make_frms6, binning=1),
    "frms6 binned": partial(make_frms6, binning=2),
    "k2is": make_k2is,
    "blo": partial(make_blo, dtype="u1", order="<"),
    "blo 16 bit big-endian": partial(make_blo, dtype="u2", order=">"),
    "empad scan": make_empad,
    "empad scan while searching": partial(make_empad, mode="search"),
    "empad series": partial(make_empad, nav=(4,)),
    "empad raw file alone": partial(make_empad, by=".raw"),
    "seq 4": partial(make_seq, dtype="u1", version=4),
    "nifti": make_nifti,
    "nifti gzip": partial(make_nifti, suffix=".nii.gz", dtype="f4"),
    "nifti pair": partial(make_nifti, suffix=".img", order=">"),
    "nifti scaled": partial(make_nifti, scaled=True, order=">"),
    "edf": make_edf,
    "edf one header": make_edf_of_ge,
    "edf gzip": partial(make_edf_of_ge, pack=gzip.compress),
    "edf general block": partial(make_edf, order=">", general={"Title": "scan"}, gap=5),
    "fits tiles": partial(make_fits_tiles, dtype="u2", compression_type="RICE_1"),
    "fits dithered tiles": partial(
        make_fits_tiles,
        dtype="f4",
        compression_type="GZIP_2",
        quantize_method=2,
        dither_seed=1,  # by default astropy's is that of the clock
    ),
    "fits": partial(make_fits, dtype="f4"),
    "fits unsigned": partial(make_fits, dtype="u2", shape=(12, 5, 7), before=[None]),
    "mgh": make_mgh,
    "mgh gzip": partial(make_mgh, suffix=".mgz", dtype="f4"),
    "gis": partial(make_gis, suffix=".dim", minf={"format": "GIS", "sizes": [1, 2]}),
    "gis big-endian": partial(make_gis, suffix=".ima", dtype="f4", order=">", cut=slice(0, 1)),
    "gis text": partial(make_gis, suffix=".dim", ascii=True, cut=slice(1, 2)),
    "gis colours": partial(make_gis, suffix=".dim", dtype="u1", shape=(3, 4, 5, 3), kind="RGB"),
    "ripple": partial(make_ripple, offset=13),
    "ripple spectra": partial(
        make_ripple, suffix=".raw", dtype=">f4", shape=(3, 4, 9), record_by="vector"
    ),
    "nrrd": partial(make_nrrd, dtype=">i4"),
    "nrrd hex": make_nrrd_hex,
    "nrrd gzip": partial(make_nrrd, encoding="gzip", lines=2, skip=3),
    "nrrd list": partial(make_nrrd, suffix=".nhdr", files=6, skip=5),
    "nrrd colours": partial(
        make_nrrd, dtype="u1", shape=(4, 5, 7, 3), fields={"kinds": ["RGB-color", *["space"] * 3]}
    ),
    "metaimage": partial(make_metaimage, dtype=">i2", compressed=True),
    "metaimage list": partial(make_metaimage, dtype="f4", suffix=".mhd", files=3),
    "zarr": partial(make_zarr, chunks=(2, 3, 5, 4), compressors=None),
    "zarr shards": partial(
        make_zarr, dtype=">i4", chunks=(1, 2, 5, 7), shards=(2, 4, 5, 7), compressors=BloscCodec()
    ),
    "zarr picture": partial(
        make_zarr, shape=(12, 9), dtype="f4", chunks=(4, 5), filters=[TransposeCodec(order=(1, 0))]
    ),
    "zarr 2": make_zarr_2,
    "zarr zip": partial(make_zarr_zip, method=zipfile.ZIP_STORED),
    "zarr deflated": partial(make_zarr_zip, method=zipfile.ZIP_DEFLATED),
    "seq 5": partial(make_seq, dtype="u2", version=5),
}

ONE_OF_EACH = [*{name.split()[0]: name for name in reversed(TABLE)}.values()]
"""The first sample of each format, for tests of code that depends on no format."""
