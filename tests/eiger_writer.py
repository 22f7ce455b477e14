"""Write series of files as Eiger detectors do."""

import h5py


def write_eiger(folder, parts, *, stem="scan", links=None, **storage):
    """Write files of frames and a master with links to them, or to more; return the master."""
    for number, part in enumerate(parts, 1):
        with h5py.File(folder / f"{stem}_data_{number:06d}.h5", "w") as file:
            file.create_dataset("entry/data/data", data=part, **storage)
    with h5py.File(path := folder / f"{stem}_master.h5", "w") as file:
        for number in range(1, (links or len(parts)) + 1):
            name = f"data_{number:06d}"
            link = h5py.ExternalLink(f"{stem}_{name}.h5", "/entry/data/data")
            file[f"entry/data/{name}"] = link
    return path
