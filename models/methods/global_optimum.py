"""One hidden layer to the proven global optimum, its width told by the data."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from liftednet import processes
from liftednet.activation import Activation
from liftednet.activations import Softmax
from liftednet.activations.piecewise_linear import Identity, PReLU
from liftednet.divergences import Tight
from liftednet.errors import DeclarationError
from liftednet.layers.dense import Dense
from liftednet.layers.expression import (
    SAMPLE_WEIGHTS,
    Applied,
    Expression,
    Input,
    Parameter,
    parts_of,
    value_of,
)
from liftednet.layers.join import Sum
from liftednet.losses import Huber
from liftednet.network import State, Term, ends_of
from liftednet.penalties import Penalty
from liftednet.samples import Weights
from liftednet.validation import require_count, require_positive

from ..block import Structure, doubled
from ..forward_pass import Values
from ..trace import Ending, Problem, Step, Steps
from .gauss_newton import ends_of_weights, is_square

if TYPE_CHECKING:
    from liftednet.sets.polyhedron import Limits
    from liftednet.solvers.one_layer.oracle import Kind, Kinked
    from liftednet.solvers.one_layer.problem import OneLayer, Scores, Units

_INSTEAD = 'another method trains it ("auto" takes one that does), without a bound on the optimum'
_FALLING = (
    " A layer whose activation falls somewhere is none of these: |u| = max(u, 0) + max(-u, 0) is "
    "two units of ReLU()."
)
_BESIDE = 16.0  # roundings of a pre-activation that a kink lies beside a row
_HELD = 10.0  # squares of limits on the way, in units of the largest weight of a sample
_POWERS = 40  # of 2, by which pre-activations are scaled to see whether phi scales as they do


@dataclass(frozen=True)
class Global:
    """Units one by one to the global optimum of a network with one hidden layer, with its proof.

    min over units of the loss + rho_1 |W|^2 + rho_2 |A|^2 equals a convex problem over measures of
    units (Bach, 2017), whose dual bounds what any network of any width can reach. Rounds add the
    units that residuals ask for most and fit all outputs by one convex problem, until no unit is
    missing. The units of the network are the most that there may be; those that are not needed have
    weights 0. `model.trace` has objective and gap of every round.

    That none is missing is proven exactly in one and two inputs, in three by some hundred rows and
    one output, too, and by branch and bound beyond: in five inputs within minutes to some percent,
    in ten not. The time may be over before, and the gap is what is proven then.

    Attributes:
        gap: relative to the objective, at which it ends.
        seconds: after which it ends.
        rounds: the most of them.

    Raises:
        DataError: a number is out of its range.

    Warns:
        FitWarning: it has ended before the gap was proven, and why.

    Example:
        >>> import torch
        >>> from liftednet.activations import ReLU
        >>> from liftednet.losses import SquaredError
        >>> from liftednet import global_gap
        >>> from liftednet.models import LiftedMLP
        >>> x = torch.linspace(-1, 1, 40, dtype=torch.float64).unsqueeze(1)
        >>> model = LiftedMLP((1, 50, 1), ReLU(), SquaredError(), rho=0.1, method="global")
        >>> found = global_gap(model.fit(x, x.abs()), x, x.abs())
        >>> found.relative < 1e-3, found.width
        (True, 2)
    """

    gap: float = 1e-4
    seconds: float = 60.0
    rounds: int = 1000

    def __post_init__(self) -> None:
        """Refuse numbers out of their range."""
        require_positive("gap", self.gap)
        require_positive("seconds", self.seconds)
        require_count("rounds", self.rounds, 1)

    def refuse(self, structure: Structure) -> None:
        """Raise `DeclarationError` where the optimum of a network cannot be proven like this."""
        HiddenLayer.of(structure)

    def take_steps(self, problem: Problem) -> Steps:
        """Add units in rounds, and yield the objective after each."""
        from liftednet.solvers.one_layer.amplitudes import fitted
        from liftednet.solvers.one_layer.problem import Units
        from liftednet.solvers.one_layer.rounds import rounds

        blocks, memory = problem.point, problem.memory
        layer = HiddenLayer.of(blocks.structure)
        convex = layer.problem(blocks.values, problem.limits)
        units = Units(*memory["units"]) if "units" in memory else fitted(convex, convex.none())
        blocks.values.update(layer.weights(units, blocks.values))
        number, before = memory.get("number", 0), memory.get("objective", math.inf)
        moves = rounds(
            convex, units, layer.state.units, self.gap, self.seconds, max(number - 1, 0),
            memory.get("bound", 0.0),
        )  # fmt: skip
        gap = memory.get("gap", math.inf)
        missed = f"its {self.rounds} rounds are used up"
        if 0 < number < self.rounds:
            next(moves)  # the last round that was kept, from whose search the next one goes on
        try:
            while number < self.rounds:
                now = next(moves)
                blocks.values.update(layer.weights(now.units, blocks.values))
                decrease = 0.0 if math.isinf(before) else max(before - now.objective, 0.0)
                before = now.objective
                told = f"{len(now.units)} units, gap {now.gap:.2g}"
                step = Step(number, told, before, decrease, now.gap, 1, "global")
                number += 1
                kept = [part for part in vars(now.units).values() if part is not None]
                gap = now.gap
                memory.update(number=number, objective=before, bound=now.bound, gap=gap, units=kept)
                yield step
        except StopIteration as stop:
            missed = stop.value
        finally:
            blocks.pass_forward()
        if not missed or gap <= self.gap:
            return Ending.CONVERGED
        processes.warn(
            f"the gap to the global optimum is proven to be at most {gap:.2g}, where "
            f"{self.gap:g} was asked for: {missed}."
        )
        return Ending.BUDGET


@dataclass(frozen=True, eq=False)
class HiddenLayer:
    """Where the parts of a network with one hidden layer stand.

    Attributes:
        structure: of the network.
        state: the hidden layer.
        term: the loss.
        below: the weights of the hidden layer.
        above: the weights of the output layer.
        phi: the activation.
        linear: the weights of a layer from inputs to outputs, None where there is none.
        columns: the number of every unit's kind, (units,).
        kinds: units by what they see, and the signs of their weights.
    """

    structure: Structure
    state: State
    term: Term
    below: Parameter
    above: Parameter
    phi: Kinked
    linear: Parameter | None
    columns: Tensor
    kinds: tuple[Kind, ...]

    @staticmethod
    def of(structure: Structure) -> HiddenLayer:
        """Read a network.

        Raises:
            DeclarationError: it is another network, or not convex in its units.
        """
        network = structure.network
        outputs = {term.state for term in network.terms}
        states = [state for state in structure.states if state not in outputs]
        if len(states) != 1 or len(network.inputs) != 1 or len(network.terms) != 1:
            raise DeclarationError(
                "the global optimum is of networks with one input, one hidden layer and one loss, "
                f"such as LiftedMLP((2, 200, 1)); this one has {len(network.inputs)}, "
                f"{len(states)} and {len(network.terms)}: {_INSTEAD}." + _FALLING * (not states)
            )
        (state,), (term,), (x,) = states, network.terms, network.inputs
        parts = parts_of(term.argument, Sum)
        linear = [w for part in parts if (w := _dense(part, x, bias=False)) is not None]
        heads = [w for part in parts if (w := _dense(part, state, bias=True)) is not None]
        below = _dense(state.argument, x, bias=True)
        one = below is not None and len(heads) == 1 and len(linear) <= 1
        if below is None or not one or len(linear) + 1 != len(parts) or x.sequence:
            raise DeclarationError(
                "the global optimum is of a dense layer with a bias, an activation, and a dense "
                "layer with a bias, as LiftedMLP makes them, with skip=True beside a linear layer "
                f"without one; this is another graph: {_INSTEAD}."
            )
        if x.missing or state.bounds is not None or ends_of(term.argument) is not None:
            raise DeclarationError(
                "the global optimum is of inputs that are whole, and of states and outputs without "
                f"bounds: {_INSTEAD}."
            )
        if not isinstance(structure.divergences[state], Tight):
            raise DeclarationError(
                "the global optimum is that of the feedforward network: divergence='tight'."
            )
        _refuse_loss(term)
        for parameter, penalty in structure.penalties.items():
            held = [x for x in penalty.parts if not is_square(x)]
            known = all(x.ends(parameter.shape) is not None for x in held)
            if len(held) == len(penalty.parts) or not known or (held and parameter in linear):
                raise DeclarationError(
                    "the global optimum needs a rho on every layer, which makes units sparse, and "
                    f"beside it signs and zeros at most; got {penalty!r} on weights of shape "
                    f"{parameter.shape}: set rho, or {_INSTEAD}."
                )
        phi = _kinked(structure.divergences[state].activation)
        ends, beside = (below, heads[0]), linear[0] if linear else None
        kinds = _kinds(structure, *ends, term)
        return HiddenLayer(structure, state, term, *ends, phi, beside, *kinds)

    def rho(self, parameter: Parameter) -> float:
        """Return rho of a layer's weights."""
        return float(self.structure.penalties[parameter].curvature) / 2

    @property
    def ratio(self) -> float:
        """By how much w is longer, and a shorter, than where both have the same rho."""
        return math.sqrt(math.sqrt(self.rho(self.above) / self.rho(self.below)))

    def problem(
        self, values: Values, limits: Limits | None = None, most: int | None = None
    ) -> OneLayer:
        """Return the problem over units, on data among the values; on the CPU, wherever these are.

        Args:
            values: of inputs, targets and weights.
            limits: on the scores of training.
            most: units that there may be of a kind, None for those of the network.
        """
        from liftednet.solvers.one_layer.problem import OneLayer, ScoreLimits

        x, scores = _exact(values[self.structure.network.inputs[0]]), self._scores(values)
        linear = None if self.linear is None else self.rho(self.linear)
        rho = math.sqrt(self.rho(self.below) * self.rho(self.above))
        kinds = self.kinds if most is None else tuple(replace(k, units=most) for k in self.kinds)
        held = None
        if limits is not None:
            held = ScoreLimits(limits, _HELD * float(scores.weights.max()))
        return OneLayer(x, scores, self.phi, rho, kinds, linear, held)

    def _scores(self, values: Values) -> Scores:
        from liftednet.solvers.one_layer.problem import HuberScores, Scores

        term, y = self.term, _exact(values[self.term.label])
        weights = values.get(SAMPLE_WEIGHTS)
        weights = y.new_ones(len(y)) if weights is None else _exact(weights)
        weights = term.weight * weights.view(-1, 1).clamp(min=torch.finfo(y.dtype).tiny)
        if term.state is None:
            return Scores(term.divergence, y, weights)
        loss = self.structure.loss(term)
        assert isinstance(loss, Huber)  # the one that is read
        return HuberScores(self.structure.divergences[term.state], y, weights, loss.delta)

    def weights(self, units: Units, values: Values) -> dict[Parameter, Weights]:
        """Return the weights of units, zeros for those that are not there."""
        root, ratio = units.t.sqrt()[:, None], self.ratio
        # Kinks of an optimum lie in rows; a little beside them no rounding chooses their side.
        rows = values[self.structure.network.inputs[0]].norm(dim=1).max()
        rounding = torch.finfo(values[self.below].matrix.dtype).eps
        b = units.b - _BESIDE * rounding * (units.b.abs() + rows.to(units.b))
        w = torch.cat([units.w, b[:, None]], 1) * root * ratio
        a = units.z * root / ratio
        numbers = [(self.columns == n).nonzero()[:, 0] for n in range(len(self.kinds))]
        order = units.kind.argsort(stable=True)
        places = torch.cat([x[: int((units.kind == n).sum())] for n, x in enumerate(numbers)])
        below, above = (
            w.new_zeros(self.state.units, w.shape[1]),
            a.new_zeros(len(self.columns), a.shape[1]),
        )
        below[places], above[places] = w[order], a[order]
        found = {self.below: below.T, self.above: torch.cat([above, units.c[None]])}
        if self.linear is not None and units.Q is not None:
            found[self.linear] = units.Q
        return {x: values[x].like(v.to(values[x].matrix)) for x, v in found.items()}

    def units(self, values: Values, prices: Tensor) -> Units:
        """Return the units of weights, without those of amplitude 0, and prices beside them."""
        from liftednet.solvers.one_layer.problem import Units

        below, above = values[self.below], values[self.above]
        w, b = _exact(below.matrix).T, _exact(below.bias)
        a, c = _exact(above.matrix), _exact(above.bias)
        length, height = w.norm(dim=1), a.norm(dim=1)
        kept, kind = (length > 0) & (height > 0), self.columns
        w, b, a, length, height, kind = (x[kept] for x in (w, b, a, length, height, kind))
        Q = None if self.linear is None else _exact(values[self.linear].matrix)
        z = a / height[:, None]
        for number, one in enumerate(self.kinds):
            if one.z is not None:
                z[kind == number] = one.z
        return Units(w / length[:, None], b / length, z, length * height, kind, c, prices, Q)

    def scores(self, values: Values) -> Tensor:
        """Return the scores of a forward pass, (samples, outputs), in float64."""
        exact = {x: doubled(v) for x, v in values.items()}
        return value_of(self.term.argument, self.structure.passed(exact))


def _exact(values: Tensor) -> Tensor:
    """Return values in float64 on the CPU: the problems over units are small and many."""
    return values.double().cpu()


def _dense(expression: Expression, below: State | Input, *, bias: bool) -> Parameter | None:
    """Return the weights of a dense layer on an input or states, None where it is another."""
    if not isinstance(expression, Applied) or type(expression.layer) is not Dense:
        return None
    own = expression.layer.bias is bias and expression.arguments[0] is below
    return expression.weights if own else None


def _refuse_loss(term: Term) -> None:
    if term.state is None:
        divergence = term.divergence
        tight = isinstance(divergence, Tight) or isinstance(divergence.activation, Identity)
        if tight and divergence.smoothness is not None:
            return
    elif isinstance(term.loss, Huber) and isinstance(term.activation, Identity):
        return
    raise DeclarationError(
        "the global optimum is of losses that are smooth and convex in the scores, such as "
        f"SquaredError(), CrossEntropy(), BinaryCrossEntropy() and Huber(); got {term.loss!r}: "
        f"{_INSTEAD}."
    )


def _kinked(activation: Activation) -> Kinked:
    """Return an activation that scales as its pre-activations do.

    Raises:
        DeclarationError: it does not.
    """
    from liftednet.solvers.one_layer.oracle import Kinked

    u = 2.0 ** torch.arange(-_POWERS, _POWERS + 1, dtype=torch.float64)[:, None]
    several = isinstance(activation, PReLU) and len(activation.slopes) > 1
    if activation.per_unit and not several:
        above, below = activation.forward(u), activation.forward(-u)
        phi = Kinked(float(above[_POWERS]), float(below[_POWERS]))
        found = torch.cat([above - phi.above * u, below - phi.below * u])
        if not bool(found.any()) and phi.bend != 0:
            return phi
    raise DeclarationError(
        "the global optimum is of activations with phi(c u) = c phi(u) for c > 0 and one slope on "
        f"either side of 0, as ReLU() and LeakyReLU(); {activation!r} is none: "
        f"{_INSTEAD}."
    )


def _kinds(
    structure: Structure, below: Parameter, above: Parameter, term: Term
) -> tuple[Tensor, tuple[Kind, ...]]:
    """Return the number of every unit's kind, and the kinds, by the ends of its weights.

    Raises:
        DeclarationError: several outputs have signs, or weights of outputs are zeros.
    """
    from liftednet.solvers.one_layer.oracle import Kind

    signs, zeros = (_signs(structure.penalties[x], x.shape) for x in (below, above))
    heads, outputs = zeros[0], above.shape[1]
    two = outputs == 2 and isinstance(term.activation, Softmax)  # whose difference alone counts
    if bool(zeros[1].any()) or not (outputs == 1 or two or not bool(heads.any())):
        raise DeclarationError(
            "the global optimum is of signs on the weights of one output or two classes, and of no "
            f"zeros there; this network has {outputs} outputs: {_INSTEAD}."
        )
    told = torch.cat([signs[0], signs[1].double(), heads.T])
    different, columns = told.unique(dim=1, return_inverse=True)
    kinds = list[Kind]()
    for number, (own, unseen, head) in enumerate(
        x.split([below.shape[0], below.shape[0], outputs]) for x in different.T
    ):
        seen = (unseen == 0).nonzero()[:, 0]
        z = head / head.norm() if bool(head.any()) else None
        kinds.append(Kind(seen, own[seen], z, int((columns == number).sum())))
    return columns, tuple(kinds)


def _signs(penalty: Penalty, shape: tuple[int, int]) -> tuple[Tensor, Tensor]:
    """Return 1 and -1 for entries of one sign, 0 else; and which entries are 0."""
    positive, negative = (end == 0 for end in ends_of_weights(penalty, shape))
    return positive.double() - negative.double(), positive & negative
