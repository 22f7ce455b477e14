"""XML bombs, and files of every format that reads XML with a bomb in its place."""

import numpy as np
import tifffile

from dask_tiled.testing import write_empad, write_seq, write_seq_corrections, write_ser

SIZE = 3_900_000
FRAMES = np.zeros((2, 4, 5), "u2")


def many(text, size=SIZE):
    return b"".join(text % k for k in range(10**6, 10**6 + size // (len(text) + 6)))


BOMBS = {
    "entities": lambda: (
        b'<!DOCTYPE r [<!ENTITY a "lol">%s]><r>&a;</r>'
        % many(b'<!ENTITY a%d "&a;&a;&a;&a;">', 40_000)
    ),
    "an entity many times": lambda: (
        b'<!DOCTYPE r [<!ENTITY a "%s">]><r>%s</r>' % (b"x" * 50_000, b"&a;" * 50_000)
    ),
    "an entity from elsewhere": lambda: (
        b'<!DOCTYPE r [<!ENTITY a SYSTEM "file:///etc/passwd">]><r>&a;</r>'
    ),
    "depth": lambda: b"<r>" * (SIZE // 3),
    "elements": lambda: b"<r>%s</r>" % many(b"<a%d/>"),
    "attributes": lambda: b"<r %s/>" % many(b"a%d='1' "),
    "namespaces": lambda: b"<r>%s</r>" % many(b"<a xmlns='u%d'/>"),
    "a comment": lambda: b"<r><!--%s--></r>" % (b"x" * SIZE),
}
"""Documents that must be refused."""


def in_ome_tiff(folder, bomb):
    path = folder / "a.ome.tif"
    text = b"<?xml version='1.0'?>" + bomb.replace(b"<r", b"<OME", 1) + b"<OME></OME>"
    tifffile.imwrite(path, FRAMES[0], description=text, metadata=None)
    return path, {}


def in_empad(folder, bomb):
    path = write_empad(folder / "a.xml", np.zeros((1, 2, 128, 128), "f4"))
    path.write_bytes(b"<?xml version='1.0'?>" + bomb)
    return path, {"format": "empad"}


def in_emi(folder, bomb):
    path = write_ser(folder / "a_1.ser", FRAMES)
    text = b"<ObjectInfo>%s</ObjectInfo>" % bomb
    (folder / "a.emi").write_bytes(b"JK\0\2" + text * min(200, 16_000_000 // len(text)))
    return path, {}


def in_seq(folder, bomb):
    path = write_seq(folder / "a.seq", FRAMES)
    maps = [{"Rows": 4, "Columns": 5, "defects": []}]
    for file in write_seq_corrections(path, maps=maps, shape=(4, 5)):
        if file.suffix == ".xml":
            file.write_bytes(bomb)
    return path, {"corrections": "dataset"}


def in_jeol_tiff(folder, bomb):
    path = folder / "a.tif"
    make = (271, "s", 0, "JEOL Ltd.", True)
    tifffile.imwrite(path, FRAMES[0], description=bomb, metadata=None, extratags=[make])
    return path, {}


PLACES = {
    "OME-TIFF": in_ome_tiff, "EMPAD": in_empad, "TIA": in_emi, "SEQ": in_seq, "JEOL": in_jeol_tiff,
}  # fmt: skip
"""Writers of a file with a bomb, by format."""
BESIDE = {"TIA", "JEOL"}
"""Formats whose pixels are readable without the XML."""
