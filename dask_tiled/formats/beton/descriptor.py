"""FFCV sample files, ``.beton``, version 2: each field is an array of samples.

Layout as written by FFCV 1.0, checked with real files.
"""

from __future__ import annotations

from collections.abc import Sequence

from dask_tiled.errors import choose_dataset
from dask_tiled.formats import tools
from dask_tiled.formats.beton import structure
from dask_tiled.formats.beton.fields import Samples, lay_out
from dask_tiled.formats.beton.sample_file import SampleFile, listed, read_file
from dask_tiled.formats.beton.structure import FIELD_BYTES, HEADER, HEADER_BYTES
from dask_tiled.formats.tools.choosing import Chosen
from dask_tiled.model.axes import sig_axes
from dask_tiled.model.doubts import by_size_only
from dask_tiled.model.indexing import Cut


def sniff(path: str, head: bytes) -> str | None:
    """Check for a plausible header and field name: there is no magic number."""
    if len(head) < HEADER_BYTES + FIELD_BYTES:
        return "shorter than the header of a sample file"
    header = tools.parse_fields(head, HEADER)
    least = HEADER_BYTES + FIELD_BYTES * header["num_fields"]
    if header["version"] != structure.VERSION or not header["num_fields"]:
        return "does not begin with version 2 and a number of fields"
    if not structure.is_page_size(header["page_size"]) or header["alloc_table_ptr"] < least:
        return "no valid page size and table position at the start"
    return None


def describe(paths: Sequence[str], *, field: int | str | None = None) -> tools.Description:
    """Describe one field of a sample file, or of several files, concatenated.

    Parameters
    ----------
    paths : sequence of str
    field : int or str, optional
        Number or name of the field; by default the first field of images, or else the first.
    """
    files = [read_file(tools.File.at(path)) for path in paths]
    first = files[0]
    number, doubts = _choose(first, field)
    for other in files[1:]:
        if other.fields != first.fields:
            raise tools.DatasetError(
                "the files of a set have different fields",
                path=other.file.path,
                expected=listed(first),
                found=listed(other),
            )
    samples = Samples(files, number)
    count = sum(samples.counts)
    found = lay_out(samples)
    shape = found.sig_shape or (1,)
    layout = tools.Layout([f.file for f in files], (count,), shape, found.pieces, found.decoders)
    header = {key: first.header[key] for key in ("version", "page_size")}
    facts = {"header": header, "field": samples.field.name, "fields": listed(first)}
    axes = (tools.Axis("sample"), *(found.axes or sig_axes(len(shape))))
    desc = tools.Description.of("beton", layout, {"beton": facts}, axes).with_doubts(*doubts)
    # Numbers and objects have no signal axes; their layout has frames of one pixel.
    return desc if found.sig_shape else desc.cut([Cut(0, 1, count), Cut(0, 1, 1, kept=False)])


def _choose(file: SampleFile, field: int | str | None) -> Chosen:
    """Select a field: the one that the user asks for, or the first of images, or else the first.

    By default, it is in doubt if there are other fields of images.
    """
    names = [one.name for one in file.fields]
    if field is not None:
        return Chosen(choose_dataset(file.file.path, names, field), ())
    images = [k for k, one in enumerate(file.fields) if one.type_id == structure.IMAGE]
    first, *others = images or [0]
    rivals = [names[k] for k in others]
    told_by = "the first field of images"
    return Chosen(first, by_size_only(names[first], rivals, told_by, option="field"))


FORMAT = tools.Format(
    name="beton",
    extensions=(".beton",),
    summary="FFCV sample files, version 2: one field of all samples, or of a set of files",
    nav_shape_from="the header, which gives one axis of samples",
    sniff=sniff,
    describe=describe,
    peers=("FFCV",),
    aliases=("ffcv",),
)
