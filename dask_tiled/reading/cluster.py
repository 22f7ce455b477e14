"""Whether results and memory are a worker's of a cluster, which counts and sends them."""

from __future__ import annotations

import sys


def on_a_cluster() -> bool:
    """Tell whether this is a task of a distributed worker."""
    worker = sys.modules.get("distributed.worker")
    if worker is None:
        return False
    try:
        worker.get_worker()
    except ValueError:
        return False
    return True
