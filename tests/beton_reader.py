"""A reader of .beton files in plain NumPy, independent of the package."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

STORED = {0: "<f8", 1: "<i8", 3: ("<u8", "<u8"), 4: "<u8", 5: ("<u8", "<u8"), 6: "<u8"}


def read(path: Path) -> tuple[dict[str, int], list[tuple[Any, ...]], np.ndarray, np.ndarray]:
    """Return header, fields (type, name, arguments), records and allocation table."""
    data = path.read_bytes()
    version, count = np.frombuffer(data, "<u2", 2).tolist()
    page = int(np.frombuffer(data, "<u4", 1, 4)[0])
    samples, table = np.frombuffer(data, "<u8", 2, 8).tolist()
    header = {"version": version, "page_size": page, "num_samples": samples, "table": table}
    fields, kinds = [], []
    for k in range(count):
        at = 24 + 1041 * k
        name = data[at + 1 : at + 17].rstrip(b"\0").decode()
        fields.append((data[at], name, data[at + 17 : at + 1041]))
        kinds.append((f"f{k}", _record(data[at])))
    dtype = np.dtype(kinds, align=True)
    records = np.frombuffer(data, dtype, samples, 24 + 1041 * count)
    return header, fields, records, np.frombuffer(data, "<u8", -1, table).reshape(-1, 3)


def _record(type_id: int) -> Any:
    if type_id == 2:
        return np.dtype({"names": ["mode", "w", "h", "ptr"], "formats": ["u1", "<u2", "<u2", "<u8"],
                         "offsets": [0, 1, 3, 5], "itemsize": 13})  # fmt: skip
    if type_id in (3, 5):
        return np.dtype([("ptr", "<u8"), ("size", "<u8")])
    return np.dtype(STORED[type_id])


def samples(path: Path) -> list[list[Any]]:
    """Return every sample, field by field; JPEG images as bytes."""
    data = path.read_bytes()
    _, fields, records, table = read(path)
    sizes = {int(ptr): int(size) for _, ptr, size in table if size}
    return [
        [_value(data, field, record[f"f{k}"], sizes) for k, field in enumerate(fields)]
        for record in records
    ]


def _value(data: bytes, field: tuple[Any, ...], record: Any, sizes: dict[int, int]) -> Any:
    type_id, _, arguments = field
    if type_id in (0, 1):
        return record.item()
    if type_id == 2:
        at, shape = int(record["ptr"]), (int(record["h"]), int(record["w"]), 3)
        if record["mode"] == 0:
            return data[at : at + sizes[at]]
        return np.frombuffer(data, "u1", shape[0] * shape[1] * 3, at).reshape(shape)
    if type_id in (3, 5):
        at, size = int(record["ptr"]), int(record["size"])
        content = data[at : at + size] if size else b""
        return content if type_id == 3 else json.loads(content.rstrip(b"\0"))
    shape = [n for n in np.frombuffer(arguments, "<u8", 32).tolist() if n]
    length = int.from_bytes(arguments[256:264], "little")
    ((_, kind),) = json.loads(arguments[264 : 264 + length])
    return np.frombuffer(data, kind, int(np.prod(shape)), int(record)).reshape(shape)
