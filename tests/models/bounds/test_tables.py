"""Rows of the table of units by themselves: closed forms of every call, reached and not left."""

import math
from fractions import Fraction

import pytest
import torch

from liftednet.errors import DeclarationError
from liftednet.models.bounds import curves, intervals
from liftednet.models.bounds.intervals import Units, steepest
from liftednet.sets.polyhedron import nearest_in_polyhedron

INF, LITTLE = math.inf, Fraction(1, 10**12)


def made(*ends):
    """Return a table and its inputs between ends."""
    low, high = torch.tensor(ends, dtype=torch.float64).T
    table = Units(len(ends))
    return table, table.variables(low, high)


def tensor(*entries):
    return torch.tensor(entries, dtype=torch.float64)


def near(found, wanted):
    """Return whether a bound is no less than what it bounds, and hardly more."""
    return wanted <= found <= wanted * (1 + 1e-8)


def same(found, wanted):
    torch.testing.assert_close(found, wanted, rtol=1e-12, atol=1e-12)


def between(table, units, low, high):
    """Ask that derivatives of units lie between ends."""
    same(table.low[units, :-1], low)
    same(table.high[units, :-1], high)


def bends(table, units, convex, concave):
    """Ask which of some units are called convex, and which concave."""
    assert table.convex[units, -1].tolist() == convex
    assert table.concave[units, -1].tolist() == concave


def test_units_together_are_as_steep_as_their_largest_blocks():
    table, x = made(*3 * [(-INF, INF)])
    twice = table.affine(x[None], 2 * torch.eye(3).double())[0]
    assert near(table.joint(x), 1.0)
    assert near(table.joint(x[[0, 1, 0]]), math.sqrt(2))
    assert near(table.joint(x, tensor(2.0, 3.0, -1.0)), 3.0)
    assert near(table.joint(x[[0, 0, 1]], tensor(3.0, 4.0, 2.0)), 5.0)
    assert near(table.joint(torch.cat([x, twice])), math.hypot(1, 2))
    assert table.joint(table.constants(tensor(7.0, -2.0))) == 0
    lost = torch.tensor([table.unknown("a reason")])
    assert table.joint(lost) == INF and table.joint(lost, tensor(0.0)) == 0


def test_a_matrix_is_as_steep_as_the_least_of_three_bounds_says():
    table, x = made((-1.0, 1.0), (-1.0, 1.0), (-1.0, 1.0))
    steep = table.affine(x[None], 100 * torch.eye(3).double())[0]
    apart = table.affine(torch.stack([steep[:1], x[:1]], 1), tensor([0.01], [1.0]))
    assert near(table.joint(apart), 2.0)  # |A_1| 100 + |A_2|, not |A| hypot(100, 1)
    one = table.affine(torch.stack([steep[:1], x[:1]], 1), tensor([0.0], [1.0]))
    assert near(table.joint(one), 1.0)
    windows = table.affine(x[torch.tensor([[0, 1], [1, 2]])], tensor([1.0], [1.0]))
    assert near(table.joint(windows), math.sqrt(3))  # of the 3 x 2 matrix of both rows
    assert table.joint(table.affine(x[None], torch.zeros(3, 2).double())) == 0
    both = table.affine(x[None], tensor([1.0, 2.0], [0.0, -1.0], [3.0, 0.5]), tensor(4.0, -1.0))[0]
    between(table, both, *2 * [tensor([1.0, 0.0, 3.0], [2.0, -1.0, 0.5])])
    assert table.low[both[0], 1] == 0 == table.high[both[0], 1]  # to the last bit
    same(table.span(both), (tensor(0.0, -4.5), tensor(8.0, 2.5)))


def test_shares_move_by_a_quarter_of_what_raises_and_lowers_them():
    table, x = made((-1.0, 1.0), (-1.0, 1.0))
    a = tensor([2.0, -1.0, 0.5], [0.0, 3.0, -4.0])
    scores = table.affine(x[None], a)
    share, logs = table.softmax(scores)[0], table.log_softmax(scores)[0]
    rise, fall = a.clamp(min=0), (-a).clamp(min=0)
    most = (rise + fall.sum(1, keepdim=True) - fall) / 4
    least = -(fall + rise.sum(1, keepdim=True) - rise) / 4
    between(table, share, least.T, most.T)
    assert table.span(share)[0].eq(0).all() and table.span(share)[1].eq(1).all()
    norm = float(torch.linalg.matrix_norm(a, 2))
    assert near(table.joint(share), norm / 2)
    # (log p_k)' is u_k' less a mean of all u_j'
    between(table, logs, (a - a.amax(1, keepdim=True)).T, (a - a.amin(1, keepdim=True)).T)
    assert table.span(logs)[0].eq(-INF).all() and table.span(logs)[1].eq(0).all()
    assert near(table.joint(logs), (1 + math.sqrt(3)) * norm)
    assert table.concave[logs, -1].all() and not table.convex[torch.cat([share, logs]), -1].any()
    assert not table.concave[share, -1].any()
    assert not table.concave[table.log_softmax(table.bent(x, curves.EXPONENTIAL)[None]), -1].any()
    lone = table.softmax(x[:1, None])[0]
    assert table.joint(lone) == 0 and table.low[lone].equal(tensor([0.0, 0.0, 1.0]))
    assert table.high[lone].equal(tensor([0.0, 0.0, 1.0]))


def test_a_projection_moves_within_its_limits_and_what_they_hold_together():
    """J of a bound is 0 or 1; of an order u_1 <= u_2 half of both, or of one itself."""
    table, x = made(*3 * [(-INF, INF)])
    steep = table.affine(x[None], torch.diag(tensor(2.0, -4.0, 1.0)))
    some, none, under = tensor(1.0), tensor(INF), tensor(-INF)
    bound = table.projected(steep, tensor([1.0, 0.0, 0.0]), some, none)[0]
    between(table, bound, *(torch.diag(tensor(end, -4.0, 1.0)) for end in (0.0, 2.0)))
    bends(table, bound, 3 * [True], [False, True, True])  # max(u, l)
    capped = table.projected(steep, tensor([1.0, 0.0, 0.0]), under, some)[0]
    bends(table, capped, [False, True, True], 3 * [True])
    below = table.projected(steep, tensor([-1.0, 0.0, 0.0]), some, none)[0]  # u <= -l
    bends(table, below, [False, True, True], 3 * [True])
    order = table.projected(steep, tensor([1.0, -1.0, 0.0]), under, some)[0]
    same(table.low[order, :-1], tensor([0.0, -2.0, 0.0], [0.0, -4.0, 0.0], [0.0, 0.0, 1.0]))
    same(table.high[order, :-1], tensor([2.0, 0.0, 0.0], [1.0, 0.0, 0.0], [0.0, 0.0, 1.0]))
    bends(table, order, *2 * [[False, False, True]])
    total = table.projected(steep, tensor([1.0, 1.0, 0.0]), some, some)[0]
    same(table.low[total, :-1], tensor([0.0, -2.0, 0.0], [-1.0, -4.0, 0.0], [0.0, 0.0, 1.0]))
    same(table.high[total, :-1], tensor([2.0, 2.0, 0.0], [1.0, 0.0, 0.0], [0.0, 0.0, 1.0]))
    assert table.joint(bound) <= 4 * (1 + 1e-8)  # nearest points are no farther apart
    rows = tensor([1.0, -1.0, 0.0], [0.0, 1.0, -1.0])
    chain = table.projected(steep, rows, under.expand(2), some.expand(2))[0]
    assert table.high[chain[0], 2] == pytest.approx(0.5)  # by the second unit, with the third


def test_a_projection_is_clipped_by_the_limits_of_one_unit(generator):
    table, x = made((-1.0, 4.0), (-1.0, 4.0), (-1.0, 4.0))
    steep = table.affine(x[None], torch.diag(tensor(2.0, -4.0, 1.0)))  # to [-2, 8], [-16, 4]
    rows = tensor([1.0, 0.0, 0.0], [-2.0, 0.0, 0.0], [0.0, 1.0, -1.0], [0.0, 0.0, 1.0])
    lower, upper = tensor(0.5, -INF, -INF, -INF), tensor(INF, 6.0, 0.0, 3.0)
    found = table.projected(steep, rows, lower, upper)[0]  # u_1 in [.5, inf), u_2 <= u_3 <= 3
    for end, wanted in zip(table.span(found), ((0.5, -INF, -INF), (8.0, INF, 3.0)), strict=True):
        torch.testing.assert_close(end, tensor(*wanted), rtol=0, atol=1e-7)
    draws = torch.empty(200, 3).uniform_(-1, 4, generator=generator) * tensor(2.0, -4.0, 1.0)
    nearest = nearest_in_polyhedron(rows, draws, *(x.expand(200, -1) for x in (lower, upper)))
    low, high = table.span(found)
    assert bool(((low <= nearest) & (nearest <= high)).all())


LINE, CUP, CAP = (True, True), (True, False), (False, True)
BENDS = {
    "a rising cup of a line": (curves.EXPONENTIAL, LINE, CUP),
    "a rising cap of a line": (curves.LOGSIGMOID, LINE, CAP),
    "a rising cup of a cup": (curves.EXPONENTIAL, CUP, CUP),
    "a rising cup of a cap": (curves.EXPONENTIAL, CAP, (False, False)),
    "a rising cap of a cap": (curves.LOGSIGMOID, CAP, CAP),
    "a rising cap of a cup": (curves.LOGSIGMOID, CUP, (False, False)),
    "a falling cup of a cap": (curves.SQUARE, CAP, CUP),  # which is negative
    "a rising cup of what is positive": (curves.SQUARE, CUP, CUP),
    "neither of a line": (curves.TANH, LINE, (False, False)),
    "a line of a cup": (curves.clipped(0.0, None), CUP, CUP),  # inside of its range
    "another line of a cap": (curves.leaky(0.5), CAP, CAP),
}


@pytest.mark.parametrize(("curve", "below", "wanted"), BENDS.values(), ids=BENDS)
def test_maps_of_units_bend_as_their_composition(curve, below, wanted):
    """exp(x) is between e^-1 and e^2, and its negative below 0."""
    table, x = made((-1.0, 2.0))
    cup = table.bent(x, curves.EXPONENTIAL)
    given = {LINE: x, CUP: cup, CAP: table.affine(cup[None], tensor([-1.0]))[0]}[below]
    found = table.bent(given, curve)
    assert (bool(table.convex[found, -1]), bool(table.concave[found, -1])) == wanted
    grid = torch.linspace(-1, 2, 301, dtype=torch.float64)
    values = curve.forward({LINE: grid, CUP: grid.exp(), CAP: -grid.exp()}[below])
    bend = values[2:] - 2 * values[1:-1] + values[:-2]
    assert not wanted[0] or bool((bend >= -1e-12).all())
    assert not wanted[1] or bool((bend <= 1e-12).all())
    assert near(table.joint(found), float(table.high[found, :-1].abs().max())) or below != LINE


def test_what_is_unknown_stays_so_with_its_reason():
    table, x = made((-1.0, 1.0))
    lost = torch.tensor([table.unknown("a reason")])
    both = torch.stack([x, lost], 1)
    kept = [
        table.affine(both, tensor([1.0], [2.0])), table.sums(both, tensor([1.0, -2.0]),
        tensor(0.0), tensor(0.0)), table.product(x, lost), table.largest(both), table.softmax(both),
        table.log_softmax(both), table.bent(lost, curves.TANH),
        table.projected(both, tensor([1.0, 1.0]), tensor(1.0), tensor(1.0)),
    ]  # fmt: skip
    for found in kept:
        assert {table.reasons[n] for n in table.reason[found.flatten()]} == {"a reason"}
    for found in (
        table.affine(both, tensor([1.0], [0.0])), table.bent(lost, curves.leaky(0.0), curves.LINE,
        which=torch.tensor([0])), table.sums(both, tensor([1.0, 0.0]), tensor(0.0), tensor(0.0)),
    ):  # fmt: skip
        assert not table.low[found].isnan().any()
    assert not table.reason[table.affine(both, tensor([1.0], [0.0]))].any()
    assert table.unknown("a reason") == int(lost) and len(table.reasons) == 2
    assert "not finite" in table.reasons[int(table.reason[table.affine(x[None], tensor([INF]))])]
    bad = table.sums(x[None], tensor([math.nan]), tensor(0.0), tensor(0.0))
    assert "not finite" in table.reasons[int(table.reason[bad])]


def test_the_table_grows_until_it_is_too_large(monkeypatch):
    table, x = made(*3 * [(-1.0, 1.0)])
    found = table.affine(x[None], torch.arange(300.0).double().reshape(3, 100))[0]
    assert table.size == 1 + 3 + 100 and len(found.unique()) == 100
    same(table.low[found, :-1], torch.arange(300.0).double().reshape(3, 100).T)
    assert table.low[x, :-1].equal(torch.eye(3).double())
    monkeypatch.setattr(intervals, "_ENTRIES", 4 * 300)
    table.affine(x[None], torch.ones(3, 190).double())
    with pytest.raises(DeclarationError, match="more than 294 units of 3 inputs"):
        table.affine(x[None], torch.ones(3, 190).double())


def test_values_alone_are_those_with_derivatives():
    ends, known = (tensor(-1.0, 0.5), tensor(2.0, 3.0)), tensor([-INF, -0.5], [INF, 1.0])
    alone, whole = Units(2, known, derivatives=False), Units(2, known)
    spans = []
    for table in (alone, whole):
        x = table.variables(*ends)
        found = table.bent(table.affine(x[None], tensor([1.0, -2.0], [0.3, 4.0]))[0], curves.TANH)
        spans.append(torch.stack(table.span(torch.cat([x, found]))))
    assert alone.columns == 0 and spans[0].equal(spans[1])
    same(spans[1][:, 0], tensor(-0.5, 1.0))  # of x_1, which is the second unit
    assert alone.joint(x) == INF and near(whole.joint(x), 1.0)
    assert alone.steepest(x, 5.0) == 5.0 and near(whole.steepest(x, 5.0), 1.0)


def test_ends_of_derivatives_bound_a_norm():
    one = tensor([0.0, 3.0], [4.0, 0.0])
    assert near(steepest(-one, one, INF), 4.0) and steepest(-one, one, 2.5) == 2.5
    low, high = tensor([2.9, -0.1], [-0.1, 3.9]), tensor([3.1, 0.1], [0.1, 4.1])
    about = 4.0 + 0.2  # |middle| + |half widths|; |largest| is more
    largest = float(torch.linalg.matrix_norm(torch.maximum(low.abs(), high.abs()), 2))
    assert near(steepest(low, high, INF), min(about, largest))
    far = tensor([100.0, -1.0], [1.0, 100.0])  # |[[100, 1], [1, 100]]| is 101
    assert near(steepest(far, far, INF), math.hypot(100, 1))
    assert steepest(low, torch.full_like(high, INF), 7.0) == 7.0


def exact(x):
    return Fraction(float(x))


def test_no_rounding_moves_an_end_inwards(generator):
    """Sums that cancel, of numbers from 1e-9 to 1e9, against rational arithmetic."""

    def draw(*shape):
        size = 10 ** (18 * torch.rand(*shape, generator=generator).double() - 9)
        return size * torch.randn(*shape, generator=generator, dtype=torch.float64)

    for _ in range(20):
        a, x = draw(6, 2), draw(2, 6, 1).sort(0).values
        low, high = intervals._products(x[0], x[1], a)
        for column in range(2):
            pairs = [tuple(map(exact, row)) for row in zip(a[:, column], *x, strict=True)]
            least = sum(min(c * one, c * two) for c, one, two in pairs)
            most = sum(max(c * one, c * two) for c, one, two in pairs)
            room = sum(abs(c) * max(abs(one), abs(two)) for c, one, two in pairs) * LITTLE
            assert least - room <= exact(low[column, 0]) <= least
            assert most <= exact(high[column, 0]) <= most + room
        ends, slopes, shift = draw(2).sort().values, draw(2).sort().values, draw(1)
        corners = [exact(e) * exact(s) for e in ends for s in slopes]
        low, high = intervals._times(*ends[:, None], *slopes[:, None])
        room = max(map(abs, corners)) * LITTLE
        assert min(corners) - room <= exact(low) <= min(corners)
        assert max(corners) <= exact(high) <= max(corners) + room
        low, high = intervals._shifted(ends[:1], ends[1:], shift)
        for found, end, sign in ((low, ends[0], -1), (high, ends[1], 1)):
            off = sign * (exact(found) - exact(end) - exact(shift))
            assert 0 <= off <= (abs(exact(end)) + abs(exact(shift))) * LITTLE
        table, y = made(*ends.repeat(3, 1).tolist())
        c, off = draw(1, 3), draw(1).abs()
        found = table.sums(y[None], c, shift, off)
        terms = [[exact(k) * exact(e) for e in ends] for k in c[0]]
        size = sum(max(map(abs, t)) for t in terms) + abs(exact(shift)) + exact(off)
        for place, pick, sign in ((0, min, -1), (1, max, 1)):
            wanted = sum(map(pick, terms)) + exact(shift) + sign * exact(off)
            assert 0 <= sign * (exact(table.span(found)[place]) - wanted) <= size * LITTLE
