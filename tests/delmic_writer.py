"""Files like those of Delmic's Odemis: acquisitions of five axes, and a thumbnail in colour."""

import h5py
import numpy as np

STATES = h5py.enum_dtype({"Invalid": 111, "Default": 112, "Estimated": 113, "Reported": 114}, "i4")


def write_delmic(path, acquisitions):
    """Write acquisitions: mappings of ``data``, and optionally the rest of `add_acquisition`."""
    with h5py.File(path, "w") as file:
        thumbnail = np.full((512, 512, 3), 200, "u1")
        add_image(file.create_group("Preview"), "Image", thumbnail, "YXC", compression="gzip")
        for number, options in enumerate(acquisitions):
            add_acquisition(file, f"Acquisition{number}", **options)
    return path


def add_image(group, name, pixels, labels, **storage):
    image = group.create_dataset(name, data=pixels, **storage)
    colours = {"IMAGE_SUBCLASS": "IMAGE_TRUECOLOR", "INTERLACE_MODE": "INTERLACE_PIXEL"}
    grey = {"IMAGE_SUBCLASS": "IMAGE_GRAYSCALE", "DISPLAY_ORIGIN": "UL"}
    kind = colours if pixels.shape[-1] == 3 and pixels.ndim == 3 else grey
    for key, value in {"CLASS": "IMAGE", "IMAGE_VERSION": "1.2", **kind}.items():
        image.attrs[key] = np.bytes_(value)
    for dim, label in zip(image.dims, labels, strict=True):
        dim.label = label


def add_value(group, name, value, state=114):
    group[name] = value
    group[name].attrs.create("State", np.full(np.shape(value), state, "i4"), dtype=STATES)


def add_acquisition(
    file,
    name,
    data,
    *,
    title="Spectrum",
    labels="CTZYX",
    steps=(2e-7, 2e-7),
    centre=(1e-6, 3e-6),
    scales=None,
    date=1.7e9,
    facts=None,
    invalid=(),
    **storage,
):
    """Write an acquisition.

    ``steps`` and ``centre`` are (y, x) in m, ``scales`` the values of other axes by label.
    """
    group = file.create_group(name)
    inner = group.create_group("ImageData")
    add_image(inner, "Image", data, labels, **storage)
    for label, step, place in zip("YX", steps, centre, strict=True):
        add_value(inner, f"DimensionScale{label}", step)
        add_value(inner, f"{label}Offset", place)
    add_value(inner, "DimensionScaleZ", 0.0, 112)
    add_value(inner, "ZOffset", 0.0, 112)
    add_value(inner, "TOffset", float(date))
    for label, values in (scales or {}).items():
        inner[f"DimensionScale{label}"] = values
        inner[f"DimensionScale{label}"].attrs["State"] = np.uint(114)
    told = group.create_group("PhysicalData")
    told["Title"] = title
    told["Title"].attrs.create("State", np.int32(114), dtype=STATES)
    values = {"ChannelDescription": title, "IntegrationTime": 0.25, **(facts or {})}
    for key, value in values.items():
        kind = h5py.string_dtype() if isinstance(value, str) else None
        told.create_dataset(key, data=[value], dtype=kind)
        state = 111 if key in invalid else 114
        told[key].attrs.create("State", np.array([state], "i4"), dtype=STATES)
    told = group.create_group("SVIData")
    told["Company"], told["WriterVersion"] = "Delmic", "Odemis v3"
