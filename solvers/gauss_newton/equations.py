"""Gauss-Newton's model with a matrix, of the weights or of the outputs, solved directly."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from itertools import accumulate, combinations_with_replacement

import torch
from torch import Tensor
from torch.func import vmap

from liftednet import processes
from liftednet.activation import Activation
from liftednet.layers.time import delayed
from liftednet.maps import pulled_back
from liftednet.products import add_square, mirrored, square_of_rows, threads

from .covariance import Covariance, Narrow, Triangular
from .local_model import Damped, Linear, LocalModel
from .objective import Forward, Product, Tensors, joined, recurrence

_JACOBIAN_BYTES = 2**24  # of Jacobians at a time, about what a cache holds
_WHOLE_BYTES = 2**22  # of a Jacobian as a whole, whose products take less time than passes
_MOST_PRODUCTS = 3e7  # of a matrix from J as a whole, which takes less time than by layers
_MOST_ENTRIES = 2**26  # of a matrix of outputs and weights, 512 MB
_PAIR_BYTES = 2**24  # of pairs at a time
_CACHE_BYTES, _LEAST_ROWS = 2**20, 256  # of rows at a time
_SEEN = 1e-3  # a rounding of the trace over what is added, from which Cholesky factors lose it


class Rows:
    """J as a matrix for every loss, of networks whose layers are known; see `Linearized`.

    Attributes:
        outputs: at the weights, each (samples, rows, outputs).
        jacobians: their J, (samples, rows, outputs, parameters).
        size: how many entries these have.
    """

    def __init__(self, forward: Forward, point: Tensor) -> None:
        """Pass forward at a point, (parameters,) in float64, and form J."""
        self.outputs, self.jacobians = output_jacobians(forward, point)
        self.size = sum(jacobian.numel() for jacobian in self.jacobians)
        self._split, self._targets = forward.split, forward.targets

    @staticmethod
    def serves(forward: Forward) -> bool:
        """Say whether J is so small that its products take less time than passes through layers."""
        entries = sum(target.values.numel() for target in forward.targets) * len(forward.pulls)
        return forward.layers is not None and 8 * entries <= _WHOLE_BYTES

    def ahead(self, directions: Tensors) -> Tensors:
        """Return J v for v shaped as the weights, shaped as the outputs."""
        direction = joined(directions)
        return tuple(jacobian @ direction for jacobian in self.jacobians)

    def back(self, rows: Iterable[Tensor]) -> Tensors:
        """Return J'u for u shaped as the outputs, shaped as the weights."""
        pairs = zip(self.jacobians, rows, strict=True)
        found = [jacobian.flatten(0, 2).T @ u.flatten() for jacobian, u in pairs]
        return self._split(torch.stack(found).sum(0))

    def curvature(self) -> Tensor:
        """Return J' Hess R J, (parameters, parameters)."""
        found = []
        for target, outputs, rows in zip(self._targets, self.outputs, self.jacobians, strict=True):
            bent = hessians(target.curved(outputs), outputs) @ rows
            found.append(rows.flatten(0, 2).T @ bent.flatten(0, 2))
        return torch.stack(found).sum(0)


class DirectModel(LocalModel):
    """A model whose damped minimizer is exact where weights are free.

    Between ends it is a step of projected Newton (Bertsekas, Projected Newton Methods for
    Optimization Problems with Simple Constraints, 1982): what rests on an end and is pushed against
    it is held, the system is solved in the rest, and the step ends at the ends that it meets.
    """

    corrections = 10  # second-order ones at most, all by the Cholesky factor of the step

    def linearized(self, forward: Forward, point: Tensor) -> Linear:
        """Return J at the point, as a matrix where that is small."""
        return Rows(forward, point) if Rows.serves(forward) else super().linearized(forward, point)

    @abstractmethod
    def curved(self, direction: Tensor) -> Tensor:
        """Return C v for a direction v, (parameters,)."""

    @abstractmethod
    def solver(self, damping: float) -> Product:
        """Return b -> (C + damping)^-1 b among the weights that are free, 0 for others."""

    @abstractmethod
    def determined(self, prior: Tensor) -> tuple[Tensor, float] | None:
        """Return what the data determine of each weight that is free, and log det H among these.

        It is 1 - prior_i (H^-1)_ii, (parameters,), with H = J' Hess R J + prior; 0 for others.
        None where rounding hides it.

        Args:
            prior: (parameters,), in place of 2 rho.
        """

    @abstractmethod
    def covariance(self, prior: Tensor) -> Covariance | None:
        """Return H^-1 among the weights that are free, None where rounding hides it.

        Args:
            prior: (parameters,), in place of 2 rho.
        """

    def chosen(self, weights: Tensor) -> Tensor:
        """Return the columns of weights that are free, (..., those)."""
        return weights if self.among is None else weights.index_select(-1, self.among)

    def padded(self, weights: Tensor) -> Tensor:
        """Return numbers of weights that are free beside 0 for others, (parameters,)."""
        if self.among is None:
            return weights
        return torch.zeros_like(self.point).index_copy(0, self.among, weights)

    @cached_property
    def among(self) -> Tensor | None:
        """The numbers of the weights that are free, None where all are."""
        return None if self.free is None else self.free.nonzero()[:, 0]

    def value(self, step: Tensor) -> float:
        """Return <g, s> + <s, C s> / 2."""
        return float(self.gradient @ step + step @ self.curved(step) / 2)

    def _weighed_jacobian(self) -> Tensor:
        """Return A with A'A = J' Hess R J, (`answers`, parameters)."""
        forward, linear = self.operator.forward, self.operator.linear
        rows = linear if isinstance(linear, Rows) else Rows(forward, self.point)
        found = zip(
            forward.targets, self.operator.curved, rows.outputs, rows.jacobians, strict=True
        )
        return torch.cat([
            (_root(hessians(curved, outputs), target.divergence.balanced) @ jacobian).flatten(0, 2)
            for target, curved, outputs, jacobian in found
        ])  # fmt: skip

    def minimizer(self, damping: float) -> Damped:
        """Return -(C + damping I)^-1 g, or the step between the ends that stands for it."""
        solve = self.solver(damping)
        step = self.inside(solve(-self.gradient))
        return Damped(step, -self.value(step), solve)


class NormalEquations(DirectModel):
    """A model with C as a matrix, whose damped minimizer is exact.

    Attributes:
        curvature: C, (parameters, parameters), float64 and positive semidefinite.
    """

    def __init__(self, forward: Forward, point: Tensor) -> None:
        """Pass forward at a point, (parameters,) in float64, and form C."""
        super().__init__(forward, point)
        linear = self.operator.linear
        if isinstance(linear, Rows) and linear.size * len(point) <= _MOST_PRODUCTS:
            formed = linear.curvature()
        elif forward.layers is None:
            formed = by_samples(forward, point)
        else:
            one = sum(target.values.shape[1] * target.outputs for target in forward.targets) == 1
            formed = (by_one_output if one else by_layers)(forward, point)
        (self.curvature,) = processes.total(formed)
        self.curvature.diagonal().add_(forward.pulls)

    @property
    def mean_curvature(self) -> float:
        """The mean of the diagonal of C."""
        return float(self.curvature.diagonal().mean())

    def curved(self, direction: Tensor) -> Tensor:
        """Return C v for a direction v, (parameters,)."""
        return self.curvature @ direction

    def solver(self, damping: float) -> Product:
        """Return b -> (C + damping)^-1 b among the weights that are free, 0 for others."""
        damped = self._curvature.clone()
        damped.diagonal().add_(damping)
        factor, failed = torch.linalg.cholesky_ex(damped)
        if failed and not bool(damped.isfinite().all()):
            return lambda b: torch.full_like(b, torch.nan)

        def solve(right: Tensor) -> Tensor:
            among = self.chosen(right)[:, None]
            if failed:  # rounding of a curvature far larger than the damping
                return self.padded(torch.linalg.lstsq(damped, among).solution[:, 0])
            return self.padded(torch.cholesky_solve(among, factor)[:, 0])

        return solve

    def determined(self, prior: Tensor) -> tuple[Tensor, float] | None:
        """Return 1 - prior_i (H^-1)_ii of each weight that is free, and log det H among these."""
        factor = self._factor(prior)
        if factor is None:
            return None
        known = 1 - self.chosen(prior) * torch.cholesky_inverse(factor).diagonal()
        return self.padded(known), 2 * float(factor.diagonal().log().sum())

    def covariance(self, prior: Tensor) -> Covariance | None:
        """Return H^-1 among the weights that are free."""
        factor = self._factor(prior)
        return None if factor is None else Triangular(self.among, factor)

    def _factor(self, prior: Tensor) -> Tensor | None:
        """Return the Cholesky factor of H with another prior, None where there is none."""
        system, among = self._curvature.clone(), self.chosen(prior)
        system.diagonal().add_(among - self.chosen(self.operator.forward.pulls))
        lost = torch.finfo(torch.float64).eps / _SEEN * float(system.trace())
        if processes.size() == 1 and 0 < float(among.min()) < lost:
            rows = self.chosen(self._weighed_jacobian())
            return _triangle(torch.cat([rows, among.sqrt().diag()]))
        factor, failed = torch.linalg.cholesky_ex(system)
        return None if failed else factor

    @cached_property
    def _curvature(self) -> Tensor:
        """C among the weights that are free."""
        return self.chosen(self.chosen(self.curvature).T)


def _triangle(rows: Tensor) -> Tensor | None:
    """Return L with L L' = A'A of rows A without their squares, None where there is none."""
    _, upper = torch.linalg.qr(rows, mode="r")
    signs = upper.diagonal().sign()
    return upper.T * signs if bool(upper.isfinite().all() and signs.all()) else None


def by_samples(forward: Forward, point: Tensor) -> Tensor:
    """Return J' Hess R J from Jacobians sample by sample, (parameters, parameters)."""
    curvature = point.new_zeros(len(point), len(point))
    for part in parts_of(forward, len(point)):
        curvature += Rows(part, point).curvature()
    return curvature


def parts_of(forward: Forward, parameters: int) -> Iterator[Forward]:
    """Yield some samples after another, whose Jacobians are small."""
    entries = sum(target.values.shape[1:].numel() for target in forward.targets)
    size = max(1, _JACOBIAN_BYTES // (8 * max(1, entries) * parameters))
    for first in range(0, forward.samples, size):
        yield forward.take(slice(first, first + size))


def jacobians(forward: Forward, point: Tensor) -> Tensors:
    """Return the derivatives of every output, (samples, rows, outputs, parameters) each.

    Each sample has weights of its own, all equal, and every output is passed back by itself:
    torch's `jacrev` imports its compiler, which takes longer than most fits.
    """

    def of_sample(weights: Tensor, *sample: Tensor) -> Tensors:
        alone = tuple(part[None] for part in sample)
        return tuple(part[0] for part in forward.outputs(forward.split(weights), alone))

    weights, found = point.repeat(forward.samples, 1).requires_grad_(), []
    with torch.enable_grad():
        answered = vmap(of_sample)(weights, *forward.data)
    for outputs in answered:
        units = torch.eye(outputs[0].numel()).to(outputs).view(-1, *outputs.shape[1:])
        columns = [column for (column,) in _pulled(outputs, [weights], units)]
        found.append(torch.stack(columns, 1).view(*outputs.shape, len(point)))
    return tuple(found)


def _pulled(outputs: Tensor, inputs: Sequence[Tensor], units: Tensor) -> list[Tensors]:
    """Return J'u for every unit u of the outputs of a sample, shaped as the inputs."""
    return [
        pulled_back(
            [outputs], inputs, [unit.expand_as(outputs)], retain_graph=True, materialize_grads=True
        )
        for unit in units
    ]


class OutputEquations(DirectModel):
    """A model with C = A'A + P, one row of A an output, whose systems are of the outputs.

    (A'A + D)^-1 b = D^-1 (b - A' (I + A D^-1 A')^-1 A D^-1 b), D = P + damping (Woodbury).

    Attributes:
        rows: A, (outputs of all samples, parameters), float64.
    """

    def __init__(self, forward: Forward, point: Tensor) -> None:
        """Pass forward at a point, (parameters,) in float64, and form A."""
        super().__init__(forward, point)
        self.rows = self._weighed_jacobian()
        self._rows = self.chosen(self.rows)

    @staticmethod
    def serves(forward: Forward) -> bool:
        """Say whether outputs are so few that this is faster, and all in this process."""
        if processes.size() > 1:
            return False
        outputs, weights = answers(forward), len(forward.pulls)
        return 4 * outputs <= 3 * weights and outputs * weights <= _MOST_ENTRIES

    @property
    def mean_curvature(self) -> float:
        """The mean of the diagonal of C."""
        squares = float(self.rows.flatten().dot(self.rows.flatten()))
        return squares / self.rows.shape[1] + float(self.operator.forward.pulls.mean())

    def curved(self, direction: Tensor) -> Tensor:
        """Return C v for a direction v, (parameters,)."""
        pulled = self.operator.forward.pulls * direction
        return torch.addmv(pulled, self.rows.T, self.rows @ direction)

    def solver(self, damping: float) -> Product:
        """Return b -> (C + damping)^-1 b among the weights that are free, 0 for others."""
        rows, diagonal = self._rows, self.chosen(self.operator.forward.pulls) + damping
        factor = self._factor(diagonal)
        if factor is None:
            return lambda b: torch.full_like(b, torch.nan)

        def once(right: Tensor) -> Tensor:
            scaled = right / diagonal
            seen = torch.cholesky_solve((rows @ scaled)[:, None], factor)[:, 0]
            return scaled - (rows.T @ seen) / diagonal

        def solve(right: Tensor) -> Tensor:
            """Return the solution, refined once: 1 / D may be far larger than it."""
            among = self.chosen(right)
            found = once(among)
            left = among - rows.T @ (rows @ found) - diagonal * found
            return self.padded(found + once(left))

        return solve

    def determined(self, prior: Tensor) -> tuple[Tensor, float] | None:
        """Return 1 - prior_i (H^-1)_ii of each weight that is free, and log det H among these.

        With K = I + A prior^-1 A' they are a_i' K^-1 a_i / prior_i for the columns a_i of A, and
        log det K + sum log prior_i.
        """
        among = self.chosen(prior)
        factor = self._factor(among)
        if factor is None or float(factor.square().sum()) * torch.finfo(torch.float64).eps > _SEEN:
            scaled = self._rows / among.sqrt()
            factor = _triangle(torch.cat([scaled.T, torch.eye(len(scaled)).to(scaled)]))
        if factor is None:
            return None
        seen = torch.linalg.solve_triangular(factor, self._rows, upper=False).square().sum(0)
        logarithm = 2 * factor.diagonal().log().sum() + among.log().sum()
        return self.padded(seen / among), float(logarithm)

    def covariance(self, prior: Tensor) -> Covariance | None:
        """Return H^-1 among the weights that are free."""
        among = self.chosen(prior)
        scaled = self._rows / among.sqrt()
        values, vectors = torch.linalg.eigh(scaled @ scaled.T)
        if not bool(values.isfinite().all()):
            return None
        kept = values > torch.finfo(torch.float64).eps * values[-1]
        values, vectors = values[kept], vectors[:, kept]
        basis = scaled.T @ vectors / values.sqrt()
        return Narrow(self.among, among.rsqrt(), basis, 1 - (1 + values).rsqrt())

    def _factor(self, diagonal: Tensor) -> Tensor | None:
        """Return the Cholesky factor of I + A D^-1 A', None where there is none."""
        system = square_of_rows(self._rows / diagonal.sqrt())
        system.diagonal().add_(1.0)
        factor, failed = torch.linalg.cholesky_ex(system)
        return None if failed else factor


def answers(forward: Forward) -> int:
    """Return how many numbers the losses are held to, those of all processes."""
    return int(processes.total_of(sum(x.counted.numel() * x.outputs for x in forward.targets)))


def _of_weights(inputs: Sequence[Tensor], slopes: Sequence[Tensor]) -> Tensor:
    """Return the derivatives in all weights of layers, (samples, outputs, parameters)."""
    return torch.cat([
        (x.T[:, None, :, None] * slope.permute(2, 0, 1)[:, :, None]).flatten(2)
        for x, slope in zip(inputs, slopes, strict=True)
    ], 2)  # fmt: skip


def output_jacobians(forward: Forward, point: Tensor) -> tuple[Tensors, Tensors]:
    """Return outputs, (samples, rows, outputs), and their J, (samples, rows, outputs, parameters).

    Of networks whose layers are known all samples go together. Targets are not looked at.
    """
    if forward.recurrent is not None:
        return forward.at(forward.split(point)), (_over_time(forward, forward.recurrent, point),)
    if forward.layers is None:
        return forward.at(forward.split(point)), jacobians(forward, point)
    inputs, found = _slopes(forward, point)
    return (
        tuple(output for output, _ in found),
        tuple(_of_weights(inputs, slopes)[:, None] for _, slopes in found),
    )


def _over_time(forward: Forward, activation: Activation, point: Tensor) -> Tensor:
    """Return J of a recurrent network, back from every output at once.

    They are (samples, rows, outputs, parameters), of last steps alone where the rows are these.
    With a_t = [h_(t-1), x_t, 1] P and u_t = [h_t, 1] Q an output of step t has the derivative
    sum over s <= t of [h_(s-1), x_s, 1]' d_s in P, d_t = phi'(a_t) Q' and d_(s-1) = phi'(a_(s-1))
    W d_s, with W the rows of P that h_(s-1) goes through.
    """
    (cell, readout), x = forward.split(point), forward.data[0].transpose(0, 1)
    steps, samples, features = x.shape
    units, outputs = cell.shape[1], readout.shape[1]
    drive = x @ cell[units : units + features] + cell[-1]
    states = recurrence(drive, cell[:units], activation.forward)
    before = delayed(states)
    slopes = activation.slope(drive + before @ cell[:units])
    read = torch.arange(steps, device=x.device).expand(samples, -1)
    if forward.last:
        read = forward.data[1][:, None] - 1
    rows = read.shape[1]
    back = x.new_zeros(samples, steps, rows, outputs, units)  # d_s, s first, of every output
    push = x.new_zeros(samples, rows, outputs, units)
    for step in reversed(range(steps)):
        push = push @ cell[:units].T
        push[read == step] = readout[:units].T
        push = push * slopes[step, :, None, None]
        back[:, step] = push
    seen = torch.cat([before, x, torch.ones_like(x[..., :1])], 2).permute(1, 2, 0)
    of_cell = (seen @ back.flatten(2)).view(samples, -1, rows, outputs, units)
    of_cell = of_cell.permute(0, 2, 3, 1, 4).flatten(3)
    above = torch.cat([states, torch.ones_like(states[..., :1])], 2).transpose(0, 1)
    above = above.gather(1, read[..., None].expand(-1, -1, units + 1))
    each = torch.eye(outputs).to(above)
    of_readout = above[:, :, None, :, None] * each[:, None]
    return torch.cat([of_cell, of_readout.flatten(3)], 3)


def _root(curvature: Tensor, balanced: bool) -> Tensor:
    """Return S with S'S each matrix, (..., outputs, outputs), which is positive semidefinite.

    Where these are balanced, their smallest eigenvalue is 0, and S has a row less.
    """
    if curvature.shape[-1] == 1 + balanced:
        signs = curvature.new_tensor([1.0, -1.0][: 1 + balanced])
        return curvature[..., :1, :1].clamp(min=0).sqrt() * signs
    values, vectors = torch.linalg.eigh(curvature)
    roots: Tensor = values.clamp(min=0).sqrt().unsqueeze(-1) * vectors.mT
    return roots[..., 1 if balanced else 0 :, :]


def by_one_output(forward: Forward, point: Tensor) -> Tensor:
    """Return J' Hess R J, (parameters, parameters), below one number or two classes.

    Of known layers it is A'A with a row of A for each sample, some at a time formed in a cache.
    """
    inputs, ((outputs, slopes),), (target,) = *_slopes(forward, point), forward.targets
    root = _root(hessians(target.curved(outputs), outputs), target.divergence.balanced)[:, 0, 0]
    layers = [
        (x, (root.T[:, None] * slope).sum(0)) for x, slope in zip(inputs, slopes, strict=True)
    ]
    total, columns = point.new_zeros(len(point), len(point)), len(point)
    size = max(_LEAST_ROWS, _CACHE_BYTES // (8 * columns))
    with threads(forward.samples * columns * columns):
        for first in range(0, forward.samples, size):
            parts = [(x[:, first : first + size], s[:, first : first + size]) for x, s in layers]
            rows, end = point.new_empty(columns, parts[0][0].shape[1]), 0
            for x, slope in parts:
                begin, end = end, end + len(x) * len(slope)
                torch.mul(x[:, None], slope, out=rows[begin:end].view(len(x), len(slope), -1))
            add_square(total, rows.T)
    return mirrored(total)


def by_layers(forward: Forward, point: Tensor) -> Tensor:
    """Return J' Hess R J, (parameters, parameters), of a network whose layers are known.

    The entries are sums over pairs of inputs times pairs of slopes, whatever outputs there are.
    """
    rows, found = _slopes(forward, point)
    inputs = [part[None] for part in rows]
    curved = [
        hessians(target.curved(outputs), outputs)[:, 0]
        for target, (outputs, _) in zip(forward.targets, found, strict=True)
    ]
    layers = list(zip(*(slopes for _, slopes in found), strict=True))  # each with all losses
    slopes = [torch.cat(layer) for layer in layers]
    bent = [torch.cat([
        torch.einsum("nij,jqn->iqn", each, slope)
        for each, slope in zip(curved, layer, strict=True)
    ]) for layer in layers]  # fmt: skip
    ends = list(accumulate(part.numel() for part in forward.pull))
    parts = [slice(end - part.numel(), end) for end, part in zip(ends, forward.pull, strict=True)]
    total = point.new_empty(len(point), len(point))
    for one, other in combinations_with_replacement(range(len(parts)), 2):
        block = _block(inputs[one], inputs[other], slopes[one], bent[other], same=one == other)
        total[parts[one], parts[other]] = block
        total[parts[other], parts[one]] = block.T
    return total


def hessians(curved: Product, outputs: Tensor) -> Tensor:
    """Return the matrices of a product, (samples, rows, outputs, outputs)."""
    units = torch.eye(outputs.shape[-1], dtype=outputs.dtype, device=outputs.device)
    return torch.stack([curved(unit.expand_as(outputs)) for unit in units], -1)


def _slopes(
    forward: Forward, point: Tensor
) -> tuple[list[Tensor], list[tuple[Tensor, list[Tensor]]]]:
    """Return [x, 1] of every layer, and of every loss its outputs and their slopes in all u."""
    assert forward.layers is not None  # the caller has seen to it
    weights = tuple(part.clone().requires_grad_() for part in forward.split(point))
    with torch.enable_grad():
        outputs, layers = forward.layers(weights, forward.data)
    arguments, found = [u for _, u in layers], []
    for answer in outputs:
        columns = _pulled(answer, arguments, torch.eye(answer.shape[-1]).to(answer))
        slopes = [torch.stack([x.T for x in layer]) for layer in zip(*columns, strict=True)]
        found.append((answer.detach(), slopes))
    return [rows.detach().T for rows, _ in layers], found


def _block(x: Tensor, y: Tensor, slope: Tensor, bent: Tensor, *, same: bool) -> Tensor:
    """Return the curvature between two layers, (weights of one, weights of the other)."""
    (p, q), (r, s) = (x.shape[1], slope.shape[1]), (y.shape[1], bent.shape[1])
    samples, total = x.shape[-1], x.new_zeros(_count(p, r, same), _count(q, s, same))
    size = max(1, _PAIR_BYTES // (8 * sum(total.shape)))
    for first in range(0, samples, size):
        some = slice(first, first + size)
        inputs = _pairs(x[..., some], y[..., some], same)
        total.addmm_(inputs, _pairs(slope[..., some], bent[..., some], same).T)
    if same:
        total = total[:, _place(q, total)][_place(p, total)]
    return total.view(p, r, q, s).transpose(1, 2).reshape(p * q, r * s)


def _count(left: int, right: int, same: bool) -> int:
    return left * (left + 1) // 2 if same else left * right


def _pairs(left: Tensor, right: Tensor, same: bool) -> Tensor:
    """Return sum over k of left_ka right_kb, (pairs, samples), those with b < a left out if same.

    Args:
        left: (k, a, samples).
        right: (k, b, samples).
        same: whether the sums are symmetric in a and b.
    """
    rows, units, samples = left.shape[1], right.shape[1], left.shape[2]
    found, place = left.new_empty(_count(rows, units, same), samples), 0
    for row in range(rows):
        others = right[:, row:] if same else right
        part = found[place : place + others.shape[1]]
        torch.mul(left[0, row], others[0], out=part)
        for one, other in zip(left[1:, row], others[1:], strict=True):
            part.addcmul_(one, other)
        place += len(part)
    return found


def _place(units: int, like: Tensor) -> Tensor:
    """Return where the pair (a, b) stands among those with a <= b, (units^2,)."""
    one, other = torch.triu_indices(units, units, device=like.device)
    places: Tensor = one.new_empty(units, units)
    places[one, other] = places[other, one] = torch.arange(len(one), device=like.device)
    return places.flatten()
