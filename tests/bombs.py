"""XML that grows, in the places where XML is read; run as a script, it prints the times.

``python tests/bombs.py`` exits with 1 where one of them takes more than 0.1 s of the processor.
"""

import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import tifffile

from dask_tiled import DatasetError, open_dataset
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
"""What is refused, of eight kinds."""


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
    for one in write_seq_corrections(path, maps=maps, shape=(4, 5)):
        if one.suffix == ".xml":
            one.write_bytes(bomb)
    return path, {"corrections": "dataset"}


def in_jeol_tiff(folder, bomb):
    path = folder / "a.tif"
    make = (271, "s", 0, "JEOL Ltd.", True)
    tifffile.imwrite(path, FRAMES[0], description=bomb, metadata=None, extratags=[make])
    return path, {}


PLACES = {
    "OME-TIFF": in_ome_tiff, "EMPAD": in_empad, "TIA": in_emi, "SEQ": in_seq, "JEOL": in_jeol_tiff,
}  # fmt: skip
"""Where XML is read, and whether its pixels can be read all the same."""
BESIDE = {"TIA", "JEOL"}


def seconds_to_open(place, bomb, folder):
    """Open a file with a bomb; give the seconds of the processor, and the error."""
    path, options = PLACES[place](folder, BOMBS[bomb]())
    begun = time.process_time()
    try:
        open_dataset(path, **options)
    except DatasetError as error:
        return time.process_time() - begun, error
    return time.process_time() - begun, None


def say(line):
    sys.stdout.write(f"{line}\n")


def main():
    slow = 0
    with tempfile.TemporaryDirectory() as folder:
        for place in PLACES:
            for k, bomb in enumerate(["depth", *BOMBS]):
                inside = Path(folder) / f"{place}-{k}"
                inside.mkdir()
                took, error = seconds_to_open(place, bomb, inside)
                if k == 0:  # what is imported for the first time takes a while
                    continue
                slow += took > 0.1
                say(f"{took:8.3f} s  {place:10}{bomb:26}{str(error)[-90:] if error else 'opened'}")
    say(f"{slow} of {len(PLACES) * len(BOMBS)} took more than 0.1 s")
    return 1 if slow else 0


if __name__ == "__main__":
    sys.exit(main())
