"""Modules of kernels are imported when they are needed."""

import errno
import importlib

from dask_tiled.model.decoders import function_at


def test_imports_wait_for_a_file_descriptor(monkeypatch):
    failures, real = [OSError(errno.EMFILE, "Too many open files")] * 2, importlib.import_module

    def short(name):
        if failures:
            raise failures.pop()
        return real(name)

    monkeypatch.setattr(importlib, "import_module", short)
    assert function_at("operator:add")(2, 3) == 5
    assert not failures
