"""Write OME-TIFF files: pages by tifffile, XML by hand, so that every form can be written."""

import uuid
from xml.sax.saxutils import quoteattr

import numpy as np
import tifffile

NAMESPACE = "http://www.openmicroscopy.org/Schemas/OME/2016-06"
OME_TYPES = {"u1": "uint8", "i1": "int8", "u2": "uint16", "u4": "uint32", "f4": "float"}


def uuid_of(name):
    """Return a UUID derived from a name."""
    return f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_DNS, name)}"


def attributes(**values):
    return "".join(
        f" {key}={quoteattr(str(value), {chr(10): '&#10;'})}"
        for key, value in values.items()
        if value is not None
    )


def tiff_data(page=None, count=None, first=None, *, uuid=None, name=None, counted_as="PlaneCount"):
    """Return a TiffData element; ``first`` maps axis letters to positions."""
    told = {f"First{axis}": at for axis, at in (first or {}).items()}
    inner = "" if uuid is None else f"<UUID{attributes(FileName=name)}>{uuid}</UUID>"
    return f"<TiffData{attributes(IFD=page, **{counted_as: count}, **told)}>{inner}</TiffData>"


def image(sizes, inner, *, order="XYZCT", dtype="u2", samples=1, name="img", number=0, **told):
    """Return an Image element; ``sizes`` are in the order T, C, Z, Y, X, or by axis letter."""
    if not isinstance(sizes, dict):
        sizes = dict(zip("TCZYX", sizes, strict=True))
    channels = "".join(
        f"<Channel{attributes(ID=f'Channel:{c}', Name=f'ch{c}', SamplesPerPixel=samples)}/>"
        for c in range(min(8, max(1, int(sizes["C"]) // samples)))
    )
    pixels = attributes(
        ID=f"Pixels:{number}",
        DimensionOrder=order,
        Type=OME_TYPES.get(dtype, dtype),
        **{f"Size{axis}": n for axis, n in sizes.items()},
        **told,
    )
    start = f"<Image{attributes(ID=f'Image:{number}', Name=name)}>"
    return f"{start}<Pixels{pixels}>{channels}{inner}</Pixels></Image>"


def document(inner, uuid=None):
    """Return an OME-XML document."""
    head = '<?xml version="1.0" encoding="UTF-8"?>'
    return f"{head}<OME{attributes(xmlns=NAMESPACE, UUID=uuid)}>{inner}</OME>".encode()


def binary_only(master, uuid, own):
    """Return the document of a file whose metadata is in another file."""
    return document(f"<BinaryOnly{attributes(MetadataFile=master, UUID=uuid)}/>", own)


def write_pages(path, pages, xml, *, bigtiff=False, byteorder=None, each=None, **options):
    """Write the pages of a file; ``each`` holds further options by page."""
    with tifffile.TiffWriter(path, bigtiff=bigtiff, byteorder=byteorder) as writer:
        for k, page in enumerate(pages):
            told = {"metadata": None, "photometric": "minisblack", **options}
            description = xml if k == 0 else None
            writer.write(page, description=description, **{**told, **(each[k] if each else {})})
    return path


def write_set(folder, stem, planes, parts, *, order="XYZCT", **options):
    """Write planes of (T, C, Z, Y, X) to one file per part, each with the XML of all.

    A part lists the numbers of its planes, in C order of (T, C, Z).
    """
    names = [f"{stem}{k}.ome.tif" for k in range(len(parts))]
    inner = "".join(
        tiff_data(
            page,
            first=dict(zip("TCZ", np.unravel_index(place, planes.shape[:3]), strict=True)),
            uuid=uuid_of(name),
            name=name,
        )
        for name, part in zip(names, parts, strict=True)
        for page, place in enumerate(part)
    )
    flat = planes.reshape(-1, *planes.shape[3:])
    xml = image(planes.shape[:5], inner, order=order, dtype=planes.dtype.str[1:])
    return [
        write_pages(folder / name, flat[list(part)], document(xml, uuid_of(name)), **options)
        for name, part in zip(names, parts, strict=True)
    ]
