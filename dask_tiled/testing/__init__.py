"""Synthetic files of known contents, for testing formats.

A test of a format writes a small file in which every pixel is known, opens it and compares. The
writers follow the published layouts and share no code with the package's readers, so that an error
in one does not hide the same error in the other. The common parameters are:

- `path` is the file to write; files that belong to it are written to the same folder. Existing
  files are replaced. The function returns the path to open, or a list of all written paths, files
  with pixels first.
- `frames` is an array of shape nav + sig, or an iterable of frames of one shape and dtype. Frames
  are read once, one at a time: files may be larger than memory.
- `volume` or `array` is an array in C order. Its dtype is kept, and so is its byte order if the
  format allows both and there is no parameter `order`.
- `sig_dims` is the number of trailing axes of an array that form a frame. `nav_shape` is the scan
  shape in the file, by default that of the array; most formats need it for iterables.
- `order` or `byte_order` applies to all numbers and pixels; `frames_per_file` is by default the
  number of all frames.

A ValueError is raised for frames of different shapes, for too few or too many frames, and for
options that do not match them; a TypeError is raised for dtypes that the format does not support.

- Frames: `counting_frames` returns an array whose pixels all differ, `iter_counting_frames` yields
  its frames lazily, and `iter_frames` yields the frames of any array or iterable.
- Raw and NumPy files: `write_raw`, `write_npy`.
- Merlin (Medipix3) MIB files: `write_mib`, `write_mib_series`.
- Data items of Nion Swift: `write_ndata`.
- Digital Micrograph (DM3, DM4) files: `write_dm`; tags without an image: `write_tags`, `Gap`.
- MRC files, and movies of Direct Electron cameras: `write_mrc`, `write_direct_electron`.
- Files of other cameras: `write_blo`, `write_edf`, `write_empad`, `write_frms6`, `write_k2is`,
  `write_ser`, `write_tvips`, `write_seq`, and `write_seq_corrections` for the correction files.
- Volumes: `write_fits`, `write_gis`, `write_metaimage`, `write_mgh`, `write_nrrd`, `write_ripple`.
- Light microscopes: `write_ims`, `write_nd2`, `write_lif`, and `write_czi` of a `Tile` each.
- Sparse frames: `write_raw_csr`; streams of events: `write_velox`, `write_tpx3`, `write_bcf` and
  `write_pts`; other files of JEOL: `write_jeol_image`, `write_jeol_spectrum`, `write_jeol_list`.
- Detectors: `play` sends a file as its detector does.
- Comparison of a file of known contents with the reader: `check_format`.

>>> import tempfile
>>> from pathlib import Path
>>> from dask_tiled.testing import counting_frames, write_mib
>>> frames = counting_frames((4, 5, 64, 64), "uint16", bits=12)
>>> with tempfile.TemporaryDirectory() as folder:
...     path = write_mib(Path(folder) / "scan.mib", frames, kind="R64", depth=12)
...     path.stat().st_size == 20 * (384 + 2 * 64 * 64)
True
"""

from dask_tiled.testing.bcf import write_bcf
from dask_tiled.testing.blo import write_blo
from dask_tiled.testing.conformance import check_format
from dask_tiled.testing.czi import Tile, write_czi
from dask_tiled.testing.dm import write_dm
from dask_tiled.testing.dm_tags import Gap, write_tags
from dask_tiled.testing.edf import write_edf
from dask_tiled.testing.empad import write_empad
from dask_tiled.testing.fits import write_fits
from dask_tiled.testing.frames import counting_frames, iter_counting_frames, iter_frames
from dask_tiled.testing.frms6 import write_frms6
from dask_tiled.testing.gis import write_gis
from dask_tiled.testing.ims import write_ims
from dask_tiled.testing.jeol import write_jeol_image, write_jeol_list, write_jeol_spectrum
from dask_tiled.testing.k2is import write_k2is
from dask_tiled.testing.lif import write_lif
from dask_tiled.testing.metaimage import write_metaimage
from dask_tiled.testing.mgh import write_mgh
from dask_tiled.testing.mib import write_mib, write_mib_series
from dask_tiled.testing.mrc import write_direct_electron, write_mrc
from dask_tiled.testing.nd2 import write_nd2
from dask_tiled.testing.nion import write_ndata
from dask_tiled.testing.nrrd import write_nrrd
from dask_tiled.testing.playing import play
from dask_tiled.testing.pts import write_pts
from dask_tiled.testing.raw import write_npy, write_raw
from dask_tiled.testing.raw_csr import write_raw_csr
from dask_tiled.testing.ripple import write_ripple
from dask_tiled.testing.seq import write_seq, write_seq_corrections
from dask_tiled.testing.ser import write_ser
from dask_tiled.testing.tpx3 import write_tpx3
from dask_tiled.testing.tvips import write_tvips
from dask_tiled.testing.velox import write_velox

__all__ = [
    "Gap", "Tile", "check_format", "counting_frames", "iter_counting_frames", "iter_frames", "play",
    "write_bcf", "write_blo", "write_czi", "write_direct_electron", "write_dm", "write_edf",
    "write_empad", "write_fits", "write_frms6", "write_gis", "write_ims", "write_jeol_image",
    "write_jeol_list", "write_jeol_spectrum", "write_k2is", "write_lif", "write_metaimage",
    "write_mgh", "write_mib", "write_mib_series", "write_mrc", "write_nd2",
    "write_ndata", "write_npy", "write_nrrd", "write_pts", "write_raw", "write_raw_csr",
    "write_ripple", "write_seq", "write_seq_corrections", "write_ser", "write_tags", "write_tpx3",
    "write_tvips", "write_velox",
]  # fmt: skip
