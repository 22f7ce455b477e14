"""Read many small parts of a file, one after the other, outside Python."""

from __future__ import annotations

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from dask_tiled.kernels.words import place_in

SIGNATURE = types.int64(types.int64, types.int64[::1], types.int64, types.uint8[::1])


@intrinsic
def pread(typingctx, fd, out, at, count, offset):
    """Call the system's pread: read ``count`` bytes at an offset of a file into an array."""

    def codegen(context, builder, signature, values):
        fd, *_, count, offset = values
        number, byte = ir.IntType(64), ir.IntType(8).as_pointer()
        kind = ir.FunctionType(number, [ir.IntType(32), byte, number, number])
        function = cgutils.get_or_insert_function(builder.module, kind, "pread")
        place = place_in(context, builder, signature, values, 1, ir.IntType(8))
        return builder.call(function, [builder.trunc(fd, ir.IntType(32)), place, count, offset])

    return types.int64(types.int64, out, types.int64, types.int64, types.int64), codegen


def gather(fd, offsets, width, out):
    """Read ``width`` bytes at each offset; return the number of parts read in full."""
    for i in range(offsets.size):
        done = 0
        while done < width:
            count = pread(fd, out, i * width + done, width - done, offsets[i] + done)
            if count <= 0:
                return i
            done += count
    return offsets.size
