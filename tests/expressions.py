"""Strategies for random array expressions, as lines of Python.

Each line is evaluated on NumPy arrays, on opened arrays, and on plain dask arrays.
"""

import math
from typing import NamedTuple

import dask.array as da
import numpy as np
from checks import coarsened
from hypothesis import note
from hypothesis import strategies as st
from strategies import chunked

from dask_tiled import Corrections, open_dataset
from dask_tiled.testing import write_mib, write_npy, write_raw


class Value(NamedTuple):
    """The results of a line: a NumPy array, one over opened arrays, one over plain dask arrays."""

    name: str
    expected: np.ndarray
    opened: da.Array
    plain: da.Array
    error: float = 0.0
    """Allowed difference from the NumPy result."""

    @property
    def shape(self):
        return self.expected.shape

    @property
    def kind(self):
        return self.expected.dtype.kind

    @property
    def largest(self):
        return largest(self.expected)

    def rounding(self, count):
        """Return the allowed error of a sum of `count` pixels."""
        of = self.expected.dtype if self.kind in "fc" else np.dtype("f8")
        return 4 * float(np.finfo(of).eps) * count * max(1, self.largest)


class Line(NamedTuple):
    """A line to evaluate, and the allowed error of its results."""

    text: str
    error: float = 0.0
    most: float = 0.0
    """Largest magnitude of sums that NumPy adds in a narrow dtype, and dask in a wider one."""


def largest(pixels):
    """Return the largest finite magnitude."""
    with np.errstate(all="ignore"):
        finite = pixels[np.isfinite(pixels)].astype("c16" if pixels.dtype.kind == "c" else "f8")
        return float(np.abs(finite).max(initial=0))


def beside(dtype, shape, seed):
    """Return an array of small numbers, which every dtype holds."""
    found = np.random.default_rng(seed).integers(0, 9, shape)
    return (found > 4 if dtype == "?" else found / 2 if dtype[0] in "fc" else found).astype(dtype)


IN_NUMPY = {"xp": np, "np": np, "beside": beside, "coarsen": coarsened}
IN_DASK = {"xp": da, "np": np, "beside": beside, "coarsen": da.coarsen}

MOST_STEPS = 6
MOST_PIXELS = 20_000
LARGEST = {"e": 200, "f": 1e9, "F": 1e6, "d": 1e60, "D": 1e60}
"""Largest results by dtype: above, intermediate results overflow, depending on their order."""
NUMBERS = "2", "3", "-1", "0", "2.5", "True", "np.float32(1.5)", "np.uint8(3)", "np.int16(-2)"
DTYPES = "?", "u1", "i1", "u2", "i4", "i8", "f2", "f4", "f8", "c8"
ALL = st.just(slice(None))


def one_of(*some):
    return st.sampled_from(some)


def axes_of(shape):
    return st.sets(st.sampled_from(range(len(shape))), min_size=1).map(sorted).map(tuple)


def operand(draw, x, values):
    """Draw a second operand: its text, its largest magnitude, and its error."""
    kind = draw(one_of("number", "array", "reduced", "value"))
    if kind == "number":
        return draw(st.sampled_from(NUMBERS)), 3, 0
    if kind == "array":
        shape = tuple(n if draw(st.booleans()) else 1 for n in x.shape)
        shape = shape[draw(st.integers(0, x.expected.ndim)) :]
        return f"beside({draw(one_of(*DTYPES))!r}, {shape}, {draw(st.integers(0, 3))})", 8, 0
    if kind == "reduced" and x.shape and not x.error:
        axes, name = draw(axes_of(x.shape)), draw(one_of("mean", "max", "sum"))
        count = math.prod(x.shape[k] for k in axes)
        exact = name == "max" or (name == "sum" and x.kind in "biu")
        text = f"{x.name}.{name}(axis={axes}, keepdims=True)"
        return text, x.largest * count, 0 if exact else x.rounding(count)
    other = draw(st.sampled_from([one for one in values if one.shape == x.shape]))
    return other.name, other.largest, other.error


def arithmetic(draw, x, values):
    y, size, error = operand(draw, x, values)
    sign = draw(one_of("+", "-", "*", "/"))
    text = draw(one_of(f"{x.name} {sign} {y}", f"{y} {sign} {x.name}"))
    if sign in "+-":
        return Line(text, x.error + error)
    if sign == "/" and (x.error or error):
        return None
    fresh = x.rounding(1) * size if "c" in (x.kind, y[8:9]) else 0
    return Line(text, x.error * size + error * x.largest + fresh)


def discrete(draw, x, values):
    """Draw a discontinuous operation, on exact operands only."""
    y, _, error = operand(draw, x, values)
    if x.error or error:
        return None
    sign = draw(one_of("//", "%", "<", "<=", "==", "!=", ">", ">=", "&", "|", "^"))
    return Line(draw(one_of(f"{x.name} {sign} {y}", f"{y} {sign} {x.name}")))


def shifted(draw, x, _):
    if x.error:
        return None
    return Line(f"{x.name} {draw(one_of('<<', '>>', '**'))} {draw(one_of('1', '2', '3'))}")


def ufunc(draw, x, _):
    some = "negative abs square sign rint floor ceil trunc isnan isfinite logical_not positive conj"
    name = draw(one_of(*some.split(), "invert", "signbit", "isinf", "real", "imag", "around"))
    if x.error and name not in ("negative", "abs", "positive"):
        return None
    return Line(f"xp.{name}({x.name})", x.error or (x.kind == "c") * x.rounding(1) * x.largest)


def rounded_ufunc(draw, x, _):
    name = draw(one_of("log1p", "sqrt", "sin", "arctan", "cbrt", "tanh"))
    if x.error or x.kind == "c":
        return None
    # 1e-3: bool, int8 and uint8 give float16 results
    eps = np.finfo(np.result_type(x.expected, "f2")).eps if x.kind == "f" else 1e-3
    return Line(f"xp.{name}(abs({x.name}))", 4 * float(eps) * max(1, x.largest))


def pair(draw, x, values):
    y, _, error = operand(draw, x, values)
    smooth = one_of("maximum", "minimum", "fmax", "fmin")
    jumps = one_of("equal", "less", "logical_and", "logical_or", "copysign", "fmod", "not_equal")
    if x.error or error:
        return Line(f"xp.{draw(smooth)}({x.name}, {y})", x.error + error) if x.kind != "c" else None
    return Line(f"xp.{draw(smooth | jumps)}({x.name}, {y})")


def where(draw, x, values):
    y, _, error = operand(draw, x, values)
    known = [one for one in values if one.shape == x.shape and not one.error]
    conditions = [f"{one.name} > 3" for one in known if one.kind != "c"]
    conditions += [one.name for one in known] + [f"beside('?', {x.shape[-2:]}, 1)"]
    texts = x.name, y
    if draw(st.booleans()):
        texts = y, x.name
    return Line(f"xp.where({draw(one_of(*conditions))}, {', '.join(texts)})", x.error + error)


def clip(draw, x, _):
    low, high = draw(one_of("None", "2", "0", "2.5")), draw(one_of("20", "7.5", "30"))
    return Line(f"xp.clip({x.name}, {low}, {high})", x.error) if x.kind != "c" else None


def astype(draw, x, _):
    dtype = np.dtype(draw(one_of(*DTYPES)))
    if x.kind in "fc" and dtype.kind in "iu":  # out-of-range casts depend on the processor
        info = np.iinfo(dtype)
        real = x.expected.real
        if x.error or not np.isfinite(x.expected).all() or real.size == 0:
            return None
        if not info.min <= real.min() <= real.max() <= min(info.max, 2**53):
            return None
    if x.error and dtype.kind not in "fc":
        return None
    eps = float(np.finfo(dtype).eps) * x.largest if x.error and dtype.kind in "fc" else 0
    return Line(f"{x.name}.astype({dtype.str!r})", x.error + eps)


def index(draw, x, _):
    items = []
    for n in x.shape[: draw(st.integers(0, len(x.shape)))]:
        ends = st.none() | st.integers(-n, n)
        cut = st.builds(slice, ends, ends, st.none() | one_of(1, 2, 3, -1, -2))
        items.append(draw(cut | ALL | cut | (st.integers(-n, n - 1) if n else ALL)))
    if draw(st.booleans()):
        items.insert(draw(st.integers(0, len(items))), None)
    return Line(f"{x.name}[{tuple(items)}]", x.error)


def choice(draw, x, _):
    """Draw an index by a list or a mask along one axis."""
    if not x.shape:
        return None
    axis = draw(st.integers(0, min(1, len(x.shape) - 1)))
    n = x.shape[axis]
    if not n:
        return None
    numbers = draw(st.lists(st.integers(-n, n - 1), min_size=1, max_size=5))
    mask = f"np.isin(np.arange({n}), {numbers})"
    before = ":, " * axis
    return Line(f"{x.name}[{before}{draw(one_of(str(numbers), mask))}]", x.error)


def moved(draw, x, _):
    ndim, name = len(x.shape), x.name
    if not ndim:
        return None
    axis, other = draw(st.integers(0, ndim - 1)), draw(st.integers(0, ndim - 1))
    texts = [
        f"xp.moveaxis({name}, {axis}, {other})",
        f"xp.transpose({name}, {tuple(draw(st.permutations(range(ndim))))})",
        f"xp.flip({name}, {axis})",
        f"xp.swapaxes({name}, {axis}, {other})",
        f"xp.expand_dims({name}, {axis})",
        f"xp.squeeze({name})",
        f"xp.ravel({name})",
        f"xp.roll({name}, 1, axis={axis})",
        f"xp.repeat({name}, 2, axis={axis})",
        f"xp.broadcast_to({name}, {(2, *x.shape)})",
        f"{name}.reshape({(-1, *x.shape[2:])})" if x.expected.size else f"xp.ravel({name})",
        f"{name}.reshape({(*x.shape[:-2], -1)})" if x.expected.size else f"xp.ravel({name})",
    ]
    return Line(draw(one_of(*texts)), x.error)


def joined(draw, x, values):
    alike = [one for one in values if one.shape == x.shape]
    other = draw(st.sampled_from(alike))
    axis = draw(st.integers(0, max(0, len(x.shape) - 1)))
    name = draw(one_of("concatenate", "stack"))
    return Line(f"xp.{name}([{x.name}, {other.name}], axis={axis})", x.error + other.error)


def reduction_error(x, name, count, *, narrow, wide):
    """Return the allowed error of a reduction; None if intermediate results may overflow."""
    if name not in ("sum", "mean", "var", "std", "prod"):
        return x.error
    if name in ("sum", "prod") and x.kind in "biu" and not wide:
        return 0.0
    error = x.rounding(count) * (2**29 if narrow else 1) + x.error * count
    if name == "prod":
        with np.errstate(all="ignore"):
            logs = np.log(np.maximum(1, np.abs(x.expected[np.isfinite(x.expected)]))).sum()
        return (
            error * math.exp(logs) if logs < (5 if x.expected.dtype.char == "e" else 20) else None
        )
    error *= max(1, x.largest) if name in ("var", "std") else 1
    return math.sqrt(error) if name == "std" else error


def reduction(draw, x, _):
    """Draw a reduction, or its NaN-ignoring form, over some axes or all."""
    names = ["sum", "mean", "min", "max", "any", "all", "var", "std", "prod"]
    name = draw(one_of(*names))
    if x.error and name not in ("sum", "mean", "min", "max"):
        return None
    axes = draw(axes_of(x.shape)) if x.shape and draw(st.booleans()) else None
    count = math.prod(x.shape if axes is None else [x.shape[k] for k in axes])
    options = [f"axis={axes}"]
    if draw(st.booleans()):
        options.append("keepdims=True")
    if name in ("var", "std") and draw(st.booleans()):
        options.append("ddof=1")
    if name in ("sum", "prod", "mean") and x.kind in "biu" and draw(st.booleans()):
        options.append(f"dtype={draw(one_of('u1', 'i8', 'f4', 'f8'))!r}")
    error = reduction_error(x, name, count, narrow="f4" in options[-1], wide="f" in options[-1])
    if error is None:
        return None
    inner = ", ".join(options)
    if name not in ("any", "all") and draw(st.booleans()):
        return Line(f"xp.nan{name}({x.name}, {inner})", error)
    return Line(draw(one_of(f"{x.name}.{name}({inner})", f"xp.{name}({x.name}, {inner})")), error)


def along(draw, x, _):
    """Draw an operation along one axis."""
    if not x.shape or x.error:
        return None
    axis = draw(st.integers(0, len(x.shape) - 1))
    place = draw(one_of("argmax", "argmin"))
    if x.expected.size and draw(st.booleans()):
        options = draw(one_of(f"axis={axis}, keepdims=True", "axis=None", ""))
        shape = *x.shape[:axis], -1
        return Line(
            draw(
                one_of(
                    f"xp.{place}({x.name}, {options})",
                    f"{x.name}.{place}({options})",
                    f"{x.name}.reshape({shape}).{place}(axis=-1)",
                )
            )
        )
    name = draw(one_of(place, place, "cumsum", "nanargmax", "median", "diff", "ptp"))
    rough = name == "cumsum" and x.kind in "fc"
    return Line(f"xp.{name}({x.name}, axis={axis})", x.rounding(x.shape[axis]) if rough else 0)


def contraction(draw, x, _):
    if not x.shape:
        return None
    axes = draw(axes_of(x.shape))
    dtype, seed = draw(one_of("?", "u1", "i4", "f4", "f8", "c8")), draw(st.integers(0, 3))
    shape = tuple(x.shape[k] for k in axes)
    count = math.prod(shape)
    letters = "abcdefgh"[: len(x.shape)]
    inner = "".join(letters[k] for k in axes)
    outer = "".join(draw(st.permutations(sorted({*letters} - {*inner}))))
    weights = f"beside({dtype!r}, {shape}, {seed})"
    texts = [
        f"xp.tensordot({x.name}, {weights}, axes=({axes}, {tuple(range(len(axes)))}))",
        f"xp.einsum('{letters},{inner}->{outer}', {x.name}, {weights})",
        f"{x.name} @ beside({dtype!r}, {(x.shape[-1], 2)}, {seed})",
    ]
    exact = x.kind in "biu" and dtype[0] in "?ui"
    eps = x.rounding(max(count, x.shape[-1])) * (2**29 if dtype in ("f4", "c8") else 1)
    fresh = 0 if exact else 8 * eps
    terms = max(count, x.shape[-1])
    most = 8 * terms * largest(x.expected)
    return Line(draw(one_of(*texts)), fresh + 8 * terms * x.error, most)


def gathered(draw, x, _):
    """Draw a coarsening or a histogram."""
    if x.error or not x.expected.size:
        return None
    if draw(st.booleans()):
        return Line(f"xp.histogram({x.name}, bins=7, range=(-5, 60))[0]") if x.kind != "c" else None
    sizes = {k: 2 for k, axis in enumerate(x.plain.chunks) if not any(n % 2 for n in axis)}
    name = draw(one_of("sum", "max", "mean"))
    exact = name == "max" or (name == "sum" and x.kind in "biu")
    return Line(f"coarsen(np.{name}, {x.name}, {sizes})", 0 if exact else x.rounding(16))


STEPS = [
    *[arithmetic, discrete, shifted, ufunc, rounded_ufunc, pair, where, clip, astype],
    *[index, choice, moved, joined, reduction, reduction, along, contraction, gathered],
]


def evaluated(line, name, values, most_pixels):
    """Evaluate a line in all three ways; None if NumPy or dask cannot."""
    try:
        expected = np.asarray(eval(line.text, IN_NUMPY | {x.name: x.expected for x in values}))  # noqa: S307
        plain = eval(line.text, IN_DASK | {x.name: x.plain for x in values})  # noqa: S307
    except (
        ArithmeticError,
        AttributeError,
        LookupError,
        NotImplementedError,
        TypeError,
        ValueError,
    ):
        return None
    if not isinstance(plain, da.Array) or expected.size > most_pixels or plain.npartitions > 500:
        return None
    if largest(expected) > LARGEST.get(expected.dtype.char, math.inf):
        return None
    narrow = expected.dtype.kind in "iu" and expected.dtype != plain.dtype
    if narrow and line.most > np.iinfo(expected.dtype).max:
        return None  # a wider type holds what has wrapped around in a narrow one
    opened = eval(line.text, IN_DASK | {x.name: x.opened for x in values})  # noqa: S307
    return Value(name, expected, opened, plain, line.error)


def opened_sources(folder, stored, counts, splits, places, opened=open_dataset):
    """Return opened arrays and their pixels by name.

    ``stored`` holds pixels of npy files by name. ``counts`` is a uint16 scan, stored in raw files
    split before the frames ``splits``, and in 12 bits; ``places`` are frames for ``roi=``.
    """
    found = {}
    for k, (name, pixels) in enumerate(stored.items()):
        arr = opened(write_npy(folder / f"{k}.npy", pixels))
        found[name] = arr, pixels.astype(pixels.dtype.newbyteorder("="))
    scan, sig = {"nav_shape": counts.shape[:2]}, counts.shape[2:]
    frames = counts.reshape(-1, *sig)
    raw = {"format": "raw", "dtype": "u2", "sig_shape": sig, "file_header": 3, **scan}
    parts = [
        write_raw(folder / f"{k}.raw", part, file_header=3)
        for k, part in enumerate(np.split(frames, splits))
    ]
    arr = opened(parts, **raw)
    found["files"] = arr, counts
    found["cropped"] = arr[1:, ::2, :, 3:-2], counts[1:, ::2, :, 3:-2]
    found["roi"] = opened(parts, **raw, roi=places), frames[places]
    later = np.concatenate([np.full_like(frames[:2], 9), frames[:-2]]).reshape(counts.shape)
    late = {"sync_offset": -2, "fill_value": 9, "missing": "fill"}
    found["missing"] = opened(parts, **raw, **late), later
    dark, gain = np.zeros(sig) + np.arange(sig[-1]) % 16, np.full(sig, 1.5)
    corrected = opened(parts, **raw, corrections=Corrections(dark, gain))
    found["corrected"] = corrected, ((counts - dark) * gain).astype("f4")
    packed = write_mib(folder / "12.mib", counts * 60, kind="R64", depth=12)
    found["12 bit"] = opened(packed, **scan), counts * 60
    return found


@st.composite
def programs(draw, sources, most_pixels=MOST_PIXELS):
    """Draw a few lines, and return all their values."""
    values = []
    shape = None
    for k in range(draw(st.integers(1, 2))):
        fit = [key for key, (_, pixels) in sources.items() if shape in (None, pixels.shape)]
        key = draw(st.sampled_from(fit))
        arr, pixels = sources[key]
        shape = pixels.shape
        chunks = draw(chunked(shape))
        note(f"x{k} = {key!r} in {chunks}")
        arr = arr.with_chunks(chunks)
        values.append(Value(f"x{k}", pixels, arr, da.from_array(pixels, chunks=chunks)))
    for _ in range(draw(st.integers(1, MOST_STEPS))):
        x = draw(st.sampled_from(values) | st.just(values[-1]))
        line = draw(st.sampled_from(STEPS))(draw, x, values)
        value = line and evaluated(line, f"x{len(values)}", values, most_pixels)
        if value is not None:
            note(f"{value.name} = {line.text}  # {value.expected.dtype}{value.shape}")
            values.append(value)
    return values
