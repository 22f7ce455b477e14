"""Axes of every real file, as independent readers read them or as its bytes have them.

The readers were RosettaSciIO, ncempy, mrcfile, nibabel, pynrrd, tifffile and ome-types. Where they
are wrong, the bytes count: offsets in TIA files count from one of their positions, and the last row
is the first in the file; Digital Micrograph stores the scan of a spectrum image last; texts beside
the movies of Direct Electron have the scales; a picture of a camera of TVIPS is in nm.
"""

from fnmatch import fnmatchcase

import pytest
from checks import axes_text
from conftest import DATA
from manifest import manifest

from dask_tiled import describe

BESIDE = ("*_info.txt", "*_00[12].tvips", "*.mha", "*BallBinary30x30x30.raw", "*-objarr.npy")
"""Files beside others, with tests of their own, or that cannot be opened."""
MADE = [*DATA.glob("ometiff/[!e]_*/*.ome*"), *DATA.glob("ometiff/e_*/e_t0[01]*.ome*")]
FILES = [row["file"] for row in manifest()] + [row["file"] for row in manifest(folder="more/")]
FILES += sorted(str(path.relative_to(DATA)) for path in MADE)  # eleven of 59 similar ones
FILES = [file for file in FILES if not any(fnmatchcase(file, pattern) for pattern in BESIDE)]

AXES = {
    "blo/test2.blo": "scan_y 64 nm, scan_x 64 nm, y 0.0160617 cm, x 0.0160617 cm",
    "dm/2D/multi_signal.dm3": "y 0.0177516 nm, x 0.0177516 nm",
    "dm/2D/test-MonarcCL*": (
        "scan_y 0.0150586 µm, scan_x 0.0150586 µm, wavelength 0.146675+315.863 nm"
    ),
    "dm/2D/test-*": "y 1, x 1",
    "dm/2D/test_STEM_image.dm3": "y 0.248538+42.5 nm, x 0.248538+51.4474 nm",
    "dm/2D/test_diffraction_pattern.dm3": "y 0.174433+131.871 1/nm, x 0.174433+137.104 1/nm",
    "dm/2D/test_fft_packed_complex8.dm4": "y 0.2-0.5, x 0.2-0.5",
    "dm/ncempy/*": "frame 4 µm, y 3 nm, x 2 pm",
    "empad/*": "scan_y 1141.59 nm, scan_x 1141.59 nm, y 0.182654 1/nm, x 0.182654 1/nm",
    "hdf5/emd/example_signal.emd": "frame 1, y 1, x 1",
    "hdf5/emd/py4DSTEM*": "Rx 0.126797 nm, Ry 0.126797 nm, Qx 0.0442516 A^-1, Qy 0.0442516 A^-1",
    "hdf5/nexpy/example.nxs": "y 0.0628319, x 0.0628319",
    "hdf5/nexus/simple_signal.nxs": "yaxis 2+20, xaxis 1+20, y 1, x 1",
    "hspy/example2_v3.1.hspy": "y 0.174433+131.871 1/nm, x 0.174433+137.104 1/nm",
    "mib/*": "frame 1, y 1, x 1",
    "more/hdf5/Camera_Ceta_Imaging_Micro.emd": "y 3.13884-803.542 nm, x 3.13884-803.542 nm",
    "more/hdf5/Focus_2021-03-16_051.hdf5": "zone_plate 6-4658.48 µm, line_position 0.2",
    "more/hdf5/Sample_Image_*": "sample_y 1+5377.61 µm, sample_x 1+5971.54 µm",
    "more/hdf5/Test_SI_16x16_215_kx.emd": (
        "scan_y 3.59925-32.3932 nm, scan_x 3.59925-39.5917 nm, Energy 0.01-0.25 keV"
    ),
    "more/hdf5/example_spectrum.emd": "channel 1",
    "more/hdf5/fei_example_dpc_titles.emd": "y 99.6199 pm, x 99.6199 pm",
    "more/hspy/example1_v1.0.hdf5": "Energy 3.1+520.13 eV",
    "more/nrrd/BallBinary*": "z 1, y 1, x 1",
    "more/nrrd/test_simple4d_raw.nrrd": "component 1, z 1, y 1.5, x 1.5",
    "more/ripple/test_ripple_sdim-1_ndim-1*": "1 100+0.5 m, 2 200+1 eV",
    "more/ripple/test_ripple_sdim-1_ndim-2*": "1 100+0.5 m, 2 200+1 m, 3 300+1.5 eV",
    "more/ripple/test_ripple_sdim-2_ndim-0*": "1 100+0.5 eV, 2 200+1 eV",
    "more/ripple/test_ripple_sdim-2_ndim-1*": "1 100+0.5 m, 2 200+1 eV, 3 300+1.5 eV",
    "more/tiff/FEI-Helios-Ebeam-8bits.tif": "y 3.3724e-06 m, x 3.3724e-06 m",
    "more/tiff/JEOL-SightX-TEM-mag-dummy.tif": "y 1.82079 nm, x 1.82079 nm",
    "more/tiff/test_hamamatsu_streak_SCAN.tif": "y 1, x 0.0171411+231.091 nm",
    "more/tiff/test_tiff_Zeiss_SEM_512pix.tif": "y 1.165e-08 m, x 1.165e-08 m",
    "mrc/mrcfile/EMD-3001.map": "y 0.3925-4.71 Å, x 0.44825-9.41325 Å, z 0.45875 Å",
    "mrc/mrcfile/???-3197.map*": "z 11.4 Å, y 11.4 Å, x 11.4-22.8 Å",
    "mrc/mrcfile/emd_3197.map.gz": "z 11.4 Å, y 11.4 Å, x 11.4-22.8 Å",
    "mrc/rsciio/*_movie.mrc": "scan_y 0.2 nm, scan_x 0.1 nm, y 0.1 1/nm, x 0.1 1/nm",
    "mrc/rsciio/*_final.mrc": "frame 1, y 0.1 1/nm, x 0.1 1/nm",
    "mrc/rsciio/*": "frame 1, scan_y 0.2 nm, scan_x 0.1 nm",
    "nifti/anatomical.nii": "z 2 mm, y 2 mm, x 2 mm",
    "nifti/functional.nii": "t 2 s, z 8 mm, y 4 mm, x 4 mm",
    "nifti/standard.nii.gz": "z 2, y 3, x 1",
    "npy/lfw_subset.npy": "frame 1, y 1, x 1",
    "npy/numpy/*": "channel 1",
    "ometiff/g_pyramid/*": "c 1, y 1, x 1",
    "ometiff/multi_companion/*": "z 1, y 1, x 1",
    "ometiff/singles/multi-channel-z-series.ome.tif": "c 1, z 1, y 1, x 1",
    "ometiff/singles/single-channel.ome.tif": "y 1, x 1",
    "ometiff/singles/z-series.ome.tif": "z 1, y 1, x 1",
    "ometiff/*": "t 1, c 1, z 1, y 1, x 1",
    "ser/old/*.npy": "y 1, x 1",
    "ser/old/16x16-line*": "position 1.66318e-10 m, energy 0.2-20 eV",
    "ser/old/16x16-spectrum_image-*": (
        "scan_y -1.2054e-10+5.16907e-10 m, scan_x 1.2054e-10-3.65509e-10 m, energy 0.2-20 eV"
    ),
    "ser/old/16x16_STEM_*": "y -2.151e-08+1.5057e-07 m, x 2.151e-08-1.7208e-07 m",
    "ser/old/16x16x5_STEM_*": "frame 1, y -2.151e-08+1.5057e-07 m, x 2.151e-08-1.7208e-07 m",
    "ser/old/64x64_TEM_*": "y -6.28183e-09+1.94737e-07 m, x 6.28183e-09-2.01019e-07 m",
    "ser/old/64x64_diffraction_*": ("y -1.01572e+08+3.14873e+09 1/m, x 1.01572e+08-3.2503e+09 1/m"),
    "ser/old/64x64x5_TEM_*": "frame 1, y -6.28183e-09+1.94737e-07 m, x 6.28183e-09-2.01019e-07 m",
    "ser/old/no_AcquireDate*": "energy 9.97528+11.9812 eV",
    "tiff/exampletiffs/mri.tif": "frame 1, y 1, x 1",
    "tiff/exampletiffs/shapes_tiled_multi.tif": "frame 1, y 1, x 1, s 1",
    "tiff/exampletiffs/shapes_uncompressed_tiled_planar.tif": "s 1, y 1, x 1",
    "tiff/exampletiffs/shapes_*": "y 1, x 1, s 1",
    "tiff/series_181003/*": "y 0.00052304 cm, x 0.00052304 cm",
    "tvips/test_tvips_2345_split_000.tvips": "frame 1, y 1 nm, x 1 nm",
}
"""Name, scale, offset if not 0, and units of each axis: the first row that matches."""
DATASETS = {
    ("dm/2D/multi_signal.dm3", 1): "channel 1",
    ("more/hdf5/Test_SI_16x16_215_kx.emd", "HAADF"): "frame 1, y 3.59925 nm, x 3.59925 nm",
    ("more/hdf5/Test_SI_16x16_215_kx.emd", "Ca"): "y 3.59925-32.3932 nm, x 3.59925-39.5917 nm",
    ("more/hdf5/Test_SI_16x16_215_kx.emd", "SuperXG24"): "Energy 0.01-0.25 keV",
    ("more/hdf5/fei_example_dpc_titles.emd", "Filtered iDPC"): "y 99.6199 pm, x 99.6199 pm",
    ("ser/old/16x16x5_STEM_BF_DF_preview.emi", 1): AXES["ser/old/16x16x5_STEM_*"],
}
"""Axes of datasets that do not open by default."""


@pytest.mark.parametrize("file", FILES or [pytest.param(None, id="no data")])
def test_axes(data, file):
    expected = next(axes for pattern, axes in AXES.items() if fnmatchcase(file, pattern))
    assert axes_text(describe(data / file)) == expected


@pytest.mark.parametrize(("file", "dataset"), DATASETS)
def test_axes_of_other_datasets(data, file, dataset):
    assert axes_text(describe(data / file, dataset=dataset)) == DATASETS[file, dataset]


@pytest.mark.usefixtures("data")
def test_every_row_matches_a_file():
    for pattern in AXES:
        assert any(fnmatchcase(file, pattern) for file in FILES), pattern
