"""What compiled loops share: their options, blocks of samples in lanes, and products with them.

A loop over lanes becomes vector instructions where the compiler can tell its arrays apart, which
it tries for a few pairs of them: sums of a block therefore stand in one array, one behind another,
at offsets that are multiples of LANES. What it does not manage is written by hand below: products
of matrices with blocks, one vector register after another. In plain Numba state fits below
quadratic links take 2.7 to 10 times as long (November 2026). Those arrays hold blocks, (rows,
WIDE) one behind another in C order, places are counted in rows, nothing is checked, and what is
written must not overlap with what is read. Matrices are copied entry by entry: where shapes may
differ, Numba compiles the sentence that would say so, for five seconds.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import cache, partial
from typing import Any

import numpy as np
from llvmlite import ir
from numba import extending, njit, types
from numba.core import caching, cgutils

LANES = 32  # samples of a block: several registers, so that one waits for another
WIDE = 16  # lanes of a product: one register of float32
TILE = 64  # entries of samples that are turned at a time, so that a cache holds what is written
TOGETHER = 8  # rows of a product, so that no sum waits for itself
SINGLE = types.float32
_njit: Any = partial(njit, nogil=True, error_model="numpy", fastmath={"contract", "nsz", "reassoc"})


class Kept(caching.FunctionCache):
    """What is kept of a loop beside its source; what cannot be read is compiled anew.

    Numba asks whether a file is of this source only after it was unpickled. A file that names a
    module of an earlier version would fail there, and so would one that was cut off.
    """

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """Return what is kept for a signature, or None."""
        try:
            return super().load_overload(sig, target_context)
        except Exception:  # unpickling raises anything
            with suppress(OSError):
                self.flush()
            return None

    def save_overload(self, sig: Any, data: Any) -> None:
        """Keep it, where there is room."""
        with suppress(OSError):
            super().save_overload(sig, data)

    def held(self, target_context: Any) -> list[Any]:
        """Return the signatures for which something is kept, without reading it."""
        target_context.refresh()
        own = self._index_key((), target_context.codegen())[1:]
        return [key[0] for key in self._cache_file._load_index() if key[1:] == own]


def at_hand(loop: Any, kind: str) -> bool:
    """Say whether a loop takes numbers of a kind without a compiler."""
    return any(str(s[0].dtype) == kind for s in (*loop.overloads, *kept(loop)))


@cache
def kept(loop: Any) -> tuple[Any, ...]:
    """Return what a loop takes that earlier processes have compiled."""
    with suppress(Exception):  # what cannot be read, or what Numba does otherwise elsewhere
        return tuple(loop._cache.held(loop.targetctx))
    return ()


def compiled(loop: Callable[..., Any]) -> Any:
    """Return a loop that Numba compiles when it is first called, and keeps.

    Divisions by zero are infinite, as they are to torch; sums may be taken in any order.
    """
    found: Any = _njit()(loop)
    with suppress(RuntimeError):  # Numba's word for no place to keep it
        found._cache = Kept(loop)  # as cache=True does, with Numba's own
    return found


def inner(loop: Callable[..., Any]) -> Any:
    """Return a loop that compiled ones alone call: ways in from elsewhere take a compiler long."""
    return _njit(no_cpython_wrapper=True, no_cfunc_wrapper=True)(loop)


intrinsic: Any = extending.intrinsic


@inner
def load(rows, first, block):
    """Turn samples of rows (samples, entries) from `first` on into block (entries, lanes).

    Lanes beyond the last sample repeat it; rows of the block beyond the last entry stay.
    """
    last = len(rows) - 1
    for begin in range(0, rows.shape[1], TILE):
        part = block[begin : begin + TILE]
        for lane in range(block.shape[1]):
            row = rows[min(first + lane, last)][begin : begin + TILE]
            for i in range(len(row)):
                part[i, lane] = row[i]


@inner
def fill(block, value):
    """Put one value into all of a block."""
    flat = block.ravel()
    for n in range(len(flat)):
        flat[n] = value


@inner
def copy(values, block):
    """Put the values of one block into another, in its precision."""
    one, other = values.ravel(), block.ravel()
    for n in range(len(other)):
        other[n] = one[n]


@inner
def largest(block, found):
    """Return the largest absolute value of a block, and of what was found before."""
    flat = block.ravel()
    high, low = found, -found
    for n in range(len(flat)):
        high = max(high, flat[n])
        low = min(low, flat[n])
    return max(high, -low)


@inner
def filled(rows):
    """Return a number of rows, rounded up to what products take."""
    return -(-rows // TOGETHER) * TOGETHER


@inner
def padded(*parts):
    """Return matrices one below another, with columns of 0 up to what products take."""
    first, rows, columns = 0, 0, parts[0].shape[1]
    for part in parts:
        rows += len(part)
    found = np.zeros((rows, filled(columns)))
    for part in parts:
        for i in range(len(part)):
            for k in range(columns):
                found[first + i, k] = part[i, k]
        first += len(part)
    return found


class Writer:
    """Writes vector instructions for arrays of one floating type, by default that of the first."""

    def __init__(
        self, context: Any, builder: Any, signature: Any, arguments: Any, number: Any = None
    ) -> None:
        """Begin to write what an intrinsic with this signature does to its arguments."""
        arrays = [kind for kind in signature.args if isinstance(kind, types.Array)]
        self.build, number = builder, number or arrays[0].dtype
        self.arguments = [
            context.make_array(kind)(context, builder, value).data
            if isinstance(kind, types.Array)
            else value
            for kind, value in zip(signature.args, arguments, strict=True)
        ]
        self.vector = ir.VectorType(context.get_data_type(number), WIDE)
        self.bytes = number.bitwidth // 8

    def place(self, array: Any, row: Any) -> Any:
        """Return where a row of lanes stands."""
        entry = self.build.gep(array, [self.build.mul(row, row.type(WIDE))])
        return self.build.bitcast(entry, self.vector.as_pointer())

    def load(self, array: Any, row: Any) -> Any:
        """Return a row of lanes."""
        return self.build.load(self.place(array, row), align=self.bytes)

    def store(self, value: Any, array: Any, row: Any) -> None:
        """Put lanes into a row."""
        self.build.store(value, self.place(array, row), align=self.bytes)

    def spread(self, array: Any, entry: Any) -> Any:
        """Return a vector of one number."""
        number, index = self.build.load(self.build.gep(array, [entry])), ir.IntType(32)
        empty = ir.Constant(self.vector, ir.Undefined)
        first = self.build.insert_element(empty, number, index(0))
        return self.build.shuffle_vector(
            first, empty, ir.Constant(ir.VectorType(index, WIDE), [0] * WIDE)
        )

    def rows_at_once(self, context: Any) -> int:
        """Return how many rows of sums half of a processor's registers hold, TOGETHER at most."""
        *_, features = context.codegen().magic_tuple()
        known = features.split(",")
        # bytes of 32 registers with AVX-512, of 16 without
        held = 16 * 64 if "+avx512f" in known else 8 * 32 if "+avx" in known else 8 * 16
        return min(TOGETHER, held // (WIDE * self.bytes))

    def sum(self, a: Any, b: Any, c: Any) -> Any:
        """Return a b + c."""
        return self.build.fadd(self.build.fmul(a, b, flags=("contract",)), c, flags=("contract",))


def without_result(*arguments: Any) -> Any:
    """Return the signature of what returns nothing; whole numbers are of one kind."""
    return types.void(*(types.intp if isinstance(x, types.Integer) else x for x in arguments))


@intrinsic
def add_rows(typing, out, first, matrix, columns, chosen, count, x):
    """Add to TOGETHER rows of out from `first` on: out[r] += sum_n matrix[n, r] x[n], n chosen.

    The matrix, (rows, columns) in C order, has as many columns as out has rows; n runs through the
    first `count` numbers of `chosen`.
    """

    def write(context, builder, signature, arguments):
        w = Writer(context, builder, signature, arguments)
        out, first, matrix, columns, chosen, count, x = w.arguments
        step = w.rows_at_once(context)
        for begin in range(0, TOGETHER, step):
            rows = [builder.add(first, first.type(r)) for r in range(begin, begin + step)]
            sums = [cgutils.alloca_once(builder, w.vector) for _ in rows]
            for total, row in zip(sums, rows, strict=True):
                builder.store(w.load(out, row), total)
            with cgutils.for_range(builder, count) as loop:
                which = builder.load(builder.gep(chosen, [loop.index]))
                place, values = builder.mul(which, columns), w.load(x, which)
                for total, row in zip(sums, rows, strict=True):
                    number = w.spread(matrix, builder.add(place, row))
                    builder.store(w.sum(number, values, builder.load(total)), total)
            for total, row in zip(sums, rows, strict=True):
                w.store(builder.load(total), out, row)
        return context.get_dummy_value()

    return without_result(out, first, matrix, columns, chosen, count, x), write


@inner
def multiply(out, matrix, chosen, count, x):
    """Add to all rows of out: out[r] += sum_n matrix[n, r] x[n], n chosen."""
    for first in range(0, matrix.shape[1], TOGETHER):
        add_rows(out, first, matrix, matrix.shape[1], chosen, count, x)


@inner
def factor(system, count, singular):
    """Replace a system by its Cholesky factor, and say if it is positive definite.

    On and below the diagonal of its first `count` rows, with 1 over the factor's on the diagonal.
    Four rows at a time: each of those before them is read once.

    Args:
        system: (count or more, count or more).
        count: of rows.
        singular: the share of an entry of the diagonal, of which more must be left.
    """
    for first in range(0, count, 4):
        last = min(first + 4, count)
        begin = first if last == first + 4 else 0
        for m in range(begin):
            other = system[m]
            a, b, c, d = system[first], system[first + 1], system[first + 2], system[first + 3]
            of_a, of_b, of_c, of_d = a[m], b[m], c[m], d[m]
            for k in range(m):
                of_a -= a[k] * other[k]
                of_b -= b[k] * other[k]
                of_c -= c[k] * other[k]
                of_d -= d[k] * other[k]
            a[m], b[m], c[m], d[m] = (
                of_a * other[m], of_b * other[m], of_c * other[m], of_d * other[m],
            )  # fmt: skip
        for n in range(first, last):
            row = system[n]
            for m in range(begin, n):
                total, other = row[m], system[m]
                for k in range(m):
                    total -= row[k] * other[k]
                row[m] = total * other[m]
            pivot = row[n]
            least = pivot * singular
            for k in range(n):
                pivot -= row[k] * row[k]
            if not pivot > least:
                return False
            row[n] = 1.0 / np.sqrt(pivot)
    return True


@intrinsic
def subtract_multiple(typing, out, first, count, a, a_first, b, b_row):
    """Subtract in lanes: out[first + n] -= a[a_first + n] b[b_row] for n < count."""

    def write(context, builder, signature, arguments):
        w = Writer(context, builder, signature, arguments)
        out, first, count, a, a_first, b, b_row = w.arguments
        factor = builder.fneg(w.load(b, b_row))
        with cgutils.for_range(builder, count) as loop:
            row = builder.add(first, loop.index)
            values = w.load(a, builder.add(a_first, loop.index))
            w.store(w.sum(values, factor, w.load(out, row)), out, row)
        return context.get_dummy_value()

    return without_result(out, first, count, a, a_first, b, b_row), write


@intrinsic
def subtract_inner(typing, out, row, count, a, a_first, b, b_first):
    """Subtract in lanes: out[row] -= sum over n < count of a[a_first + n] b[b_first + n]."""

    def write(context, builder, signature, arguments):
        w = Writer(context, builder, signature, arguments)
        out, row, count, a, a_first, b, b_first = w.arguments
        total = cgutils.alloca_once_value(builder, w.load(out, row))
        with cgutils.for_range(builder, count) as loop:
            left = builder.fneg(w.load(a, builder.add(a_first, loop.index)))
            right = w.load(b, builder.add(b_first, loop.index))
            builder.store(w.sum(left, right, builder.load(total)), total)
        w.store(builder.load(total), out, row)
        return context.get_dummy_value()

    return without_result(out, row, count, a, a_first, b, b_first), write


@intrinsic
def differs(typing, x, row):
    """Say whether any lane of a row is not 0."""

    def write(context, builder, signature, arguments):
        w = Writer(context, builder, signature, arguments)
        values = w.load(*w.arguments)
        lanes = builder.fcmp_unordered("!=", values, ir.Constant(w.vector, [0.0] * WIDE))
        found = builder.bitcast(lanes, ir.IntType(WIDE))
        return builder.icmp_unsigned("!=", found, found.type(0))

    return types.boolean(x, types.intp), write


@intrinsic
def scale(typing, out, first, count, b, b_row):
    """Multiply in lanes: out[first + n] *= b[b_row] for n < count."""

    def write(context, builder, signature, arguments):
        w = Writer(context, builder, signature, arguments)
        out, first, count, b, b_row = w.arguments
        factor = w.load(b, b_row)
        with cgutils.for_range(builder, count) as loop:
            row = builder.add(first, loop.index)
            w.store(builder.fmul(w.load(out, row), factor), out, row)
        return context.get_dummy_value()

    return without_result(out, first, count, b, b_row), write
