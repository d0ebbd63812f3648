"""Inputs and targets of regressions on scales that training takes well, and back from them.

Training sees (x - center) / scale. What it found is folded into the weights next to the data, so
that the network takes raw data: W / scale and b - (center / scale) W where inputs come in, W scale
and b scale + center where predictions go out. Where folding would not be exact (weights without a
bias, a convolution with a border of zeros, a constraint that the folded weights break) the two maps
stay layers of their own before and behind the network.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from liftednet import processes
from liftednet.activations import Identity
from liftednet.errors import DataError
from liftednet.layers.dense import Dense
from liftednet.layers.expression import TIME, Applied, Expression, Input, Parameter
from liftednet.layers.join import Concatenation
from liftednet.layers.projection import Ends
from liftednet.layers.time import Reverse
from liftednet.losses import Loss
from liftednet.network import Label, Network, State, Term, ends_of
from liftednet.penalties import Penalty
from liftednet.power import Power
from liftednet.samples import Spread, Weights, quantile, spread

from .block import rows_that_count
from .data import Data
from .forward_pass import Values

# Features in one unit (pixels, counts of words, standard scores) say something by their ranges:
# those that differ by less than _ALIKE from the median's keep their proportions. Ranges further
# apart than a pixel's can be, whose values are those of a byte, are of several units.
_ALIKE, _ONE_UNIT = 3.0, 256.0
_MOST_QUARTILES = 3.0  # distances of the quartiles, beyond which targets are outliers
_DIGITS = 1e-3  # that the sum b - (center / scale) W may cost a folded network


Spreads = dict[Input | Label, Spread]


@dataclass(frozen=True, eq=False)
class Moments:
    """What is taken off, and what it is divided by.

    Attributes:
        center: (units,) in units of the data, or of their powers.
        scale: (units,) positive, in the same units.
        power: what skewed targets are brought to first; None for nothing.
    """

    center: Tensor
    scale: Tensor
    power: Power | None = None

    def of(self, values: Tensor) -> Tensor:
        """Return (values - center) / scale, (..., units)."""
        raised = values if self.power is None else self.power.of(values)
        return (raised - self.center).div_(self.scale)

    def raised(self, values: Tensor) -> Tensor:
        """Return values scale + center, (..., units)."""
        return torch.addcmul(self.center, values, self.scale)

    def undone(self, values: Tensor) -> Tensor:
        """Return the same; of powers the values that have these."""
        raised = self.raised(values)
        return raised if self.power is None else self.power.quantile(raised)

    def answer(self, outputs: Tensor) -> Tensor:
        """Return the same of a network's outputs: of powers the mean of values around these."""
        return self.undone(outputs) if self.power is None else self.power.mean(self.raised(outputs))

    @property
    def in_proportion(self) -> Moments:
        """The moments with one scale for all units."""
        one = self.scale.square().mean().sqrt()
        return replace(self, scale=torch.full_like(self.scale, float(one)))

    def to(self, like: Tensor) -> Moments:
        """Return the moments in the type and on the device of a tensor."""
        power = None if self.power is None else self.power.to(like)
        return Moments(self.center.to(like), self.scale.to(like), power)


@dataclass(frozen=True, eq=False)
class Standardization:
    """The moments of inputs, and of the targets of regressions; none where they stay raw.

    Attributes:
        moments: by input or label.
        still: (units,) by standardized input that has constant columns: how far their rounding
            moves them from 0, which is no signal that fits should follow; -1 of all other columns.
            They are zero in all of training, of which this is, not of a fit; none where only a
            part of the data has been seen.
    """

    moments: Mapping[Input | Label, Moments] = field(default_factory=dict)
    still: Mapping[Input, Tensor] = field(default_factory=dict)

    @cached_property
    def _moved(self) -> dict[Input | Label, Tensor]:
        """What is `still` but for rounding."""
        return {x: reach for x, reach in self.still.items() if bool((reach > 0).any())}

    def of(self, data: Data) -> Data:
        """Return data whose values are standardized, zero where sequences have ended."""
        if not self.moments:
            return data
        values = dict(data.values)
        for variable, moments in self.moments.items():
            if variable in values:
                found = moments.to(values[variable]).of(values[variable])
                if variable in self._moved:
                    found.masked_fill_(found.abs() <= self._moved[variable].to(found), 0.0)
                values[variable] = found
        for ends in [x for x in values if isinstance(x, Ends)]:
            label: Any = ends.label
            if (known := self.moments.get(label)) is not None:
                values[ends] = ends.on(values[ends], known.center, known.scale[:1])
        timeline = values.get(TIME)
        if timeline is not None and not timeline.full:
            ended = ~timeline.valid.unsqueeze(-1)
            for variable in self.moments:
                if variable in values and values[variable].ndim == 3:
                    values[variable] = values[variable].masked_fill(ended, 0.0)
        return replace(data, values=values)

    def later(self, data: Data) -> Data:
        """Return the same without a copy: samples are standardized as they are taken."""
        return _Later(data, self) if self.moments else data

    def losses(self, network: Network) -> dict[Label, Loss]:
        """Return the losses of standardized targets."""
        known = [term for term in network.terms if term.label in self.moments]
        units = [float(self.moments[term.label].scale[0]) for term in known]
        return {x.label: x.loss.scaled(unit) for x, unit in zip(known, units, strict=True)}

    def answer(self, term: Term, output: Tensor) -> Tensor:
        """Return an output of the network in units of the targets."""
        moments = self.moments.get(term.label)
        return output if moments is None else moments.to(output).answer(output)

    def packed(self, network: Network) -> dict[str, Tensor]:
        """Return the moments by the numbers of inputs and labels, from 1."""
        found: dict[str, Tensor] = {}
        for name, variable in data_variables(network):
            if (moments := self.moments.get(variable)) is not None:
                found[f"{name}.center"], found[f"{name}.scale"] = moments.center, moments.scale
                if moments.power is not None:
                    parts = [getattr(moments.power, x.name) for x in fields(Power)]
                    found[f"{name}.power"] = torch.stack(parts)
        return found

    def folded(
        self, network: Network, weights: Sequence[Weights], penalties: Mapping[Parameter, Penalty]
    ) -> list[Weights] | None:
        """Return the weights of the same network on raw data, or None where there are none."""
        if not self.moments:
            return list(weights)
        given = dict(zip(network.parameters, weights, strict=True))
        places = self._places(network)
        if places is None:
            return None
        for parameter, (below, above) in places.items():
            layer = given[parameter]
            if layer.bias is None or not _precise(below, layer.matrix):
                return None
            found = _raw(layer, below.to(layer.matrix), above.to(layer.matrix))
            if not torch.allclose(penalties[parameter].project(found.matrix), found.matrix):
                return None
            given[parameter] = found
        return list(given.values())

    def unfolded(self, network: Network, weights: Sequence[Weights]) -> list[Weights] | None:
        """Return the weights on standardized data that are `weights` on raw data, or None."""
        if not self.moments:
            return list(weights)
        given = dict(zip(network.parameters, weights, strict=True))
        places = self._places(network)
        if places is None or any(given[parameter].bias is None for parameter in places):
            return None
        for parameter, (below, above) in places.items():
            layer = given[parameter]
            given[parameter] = _inside(layer, below.to(layer.matrix), above.to(layer.matrix))
        return list(given.values())

    def _places(self, network: Network) -> dict[Parameter, tuple[Moments, Moments]] | None:
        """Return the moments below and above each of the weights next to data.

        None where data meet something else than a dense layer with weights of its own.
        """
        if any(moments.power is not None for moments in self.moments.values()):
            return None
        layers = list(network.layers())
        uses = Counter(layer.weights for layer in layers)
        own = [x for x in layers if type(x.layer) is Dense and uses[x.weights] == 1]
        found: dict[Parameter, tuple[Moments, Moments]] = {}
        for layer in layers:
            below = [self._passed(x) for x in layer.arguments if isinstance(x, Expression)]
            if layer.weights is None or all(map(_is_raw, below)):
                continue
            if layer not in own or below[0] is None:
                return None
            found[layer.weights] = (below[0], _unit(layer.units))
        if any(not _is_raw(self._passed(argument)) for argument in network.arguments):
            return None
        for term in network.terms:
            last, above = term.argument, self.moments.get(term.label)
            if above is None:
                continue
            if last not in own or last.weights is None:
                return None
            below_it, _ = found.get(last.weights, (_unit(last.weights.shape[0]), above))
            found[last.weights] = (below_it, above)
        return found

    def _passed(self, expression: Expression) -> Moments | None:
        """Return the moments of an expression in which data stand, None where it has none."""
        if isinstance(expression, Input):
            return self.moments.get(expression, _unit(expression.units))
        if isinstance(expression, State) or expression.weights is not None:
            return _unit(expression.units)
        assert isinstance(expression, Applied)  # of inputs, states and layers there is no other
        inside = [self._passed(x) for x in expression.arguments if isinstance(x, Expression)]
        if all(map(_is_raw, inside)):
            return _unit(expression.units)
        known = [moments for moments in inside if moments is not None]
        if len(known) < len(inside):
            return None
        if isinstance(expression.layer, Concatenation):
            like = next(iter(self.moments.values())).center
            known = [moments.to(like) for moments in known]
            return Moments(
                torch.cat([moments.center for moments in known]),
                torch.cat([moments.scale for moments in known]),
            )
        return known[0] if isinstance(expression.layer, Reverse) else None


class _Later(Data):
    """Data that are standardized as they are taken, and as a whole where all values are asked."""

    _raw: Data
    _standardization: Standardization

    def __init__(self, raw: Data, standardization: Standardization) -> None:
        self.__dict__.update(  # of a frozen dataclass, whose values are not yet known
            _raw=raw, _standardization=standardization, last_only=raw.last_only, among=raw.among
        )

    def __len__(self) -> int:
        return len(self._raw)

    @cached_property
    def values(self) -> Values:
        return self._standardization.of(self._raw).values

    @property
    def raw(self) -> Data:
        return self._raw

    @property
    def mass(self) -> float:
        return self._raw.mass

    @property
    def like(self) -> Tensor:
        return self._raw.like

    def take(self, rows: Tensor) -> Data:
        return self._standardization.of(self._raw.take(rows))


RAW = Standardization()


def unpacked_standardization(tensors: Mapping[str, Tensor], network: Network) -> Standardization:
    """Return what `Standardization.packed` has packed, among other tensors."""
    return Standardization({
        variable: Moments(
            tensors[f"{name}.center"], tensors[f"{name}.scale"],
            Power(*tensors[f"{name}.power"]) if f"{name}.power" in tensors else None,
        )
        for name, variable in data_variables(network)
        if f"{name}.center" in tensors
    })  # fmt: skip


def data_variables(network: Network) -> Iterator[tuple[str, Input | Label]]:
    """Yield inputs and labels by their numbers, from 1."""
    for number, variable in enumerate(network.inputs, start=1):
        yield f"input.{number}", variable
    for number, term in enumerate(network.terms, start=1):
        yield f"target.{number}", term.label


def standardization_of(
    network: Network,
    data: Data,
    power: Power | None = None,
    *,
    always: bool = True,
    before: Mapping[Input | Label, Moments] | None = None,
) -> Standardization:
    """Return the moments of the inputs, and of the targets of losses that scale with them.

    The inputs' mean square becomes 1. Features whose ranges are within a factor of 3 of the
    median's are divided by one number; wider and narrower ones come as near as that factor, or to
    the same range, where the widest is more than 256 times the narrowest: these have several units.

    Args:
        network: whose data they are.
        data: raw, with labels.
        power: of the targets of a network with one loss.
        always: whether inputs whose features are all in one unit have moments, too.
        before: moments that stay as they are.
    """
    if before is not None:
        return Standardization(before, _still(before, spreads_of(network, data), data))
    if power is not None:
        (term,) = network.terms
        raised = power.to(data.like).of(data.values[term.label])
        data = replace(data, values={**data.values, term.label: raised})
    spreads = spreads_of(network, data)
    several = (_several_units(spreads[x], data.rounding(x)) for x in network.inputs)
    if not (always or any(several)):
        return RAW
    moments = _moments(network, spreads, data)
    if power is not None:
        moments[term.label] = replace(moments[term.label], power=power)
    return Standardization(moments, _still(moments, spreads, data))


def spreads_of(network: Network, data: Data) -> Spreads:
    """Return where the values lie: of channels of inputs, or features, and of targets."""
    found: Spreads = {}
    for variable in network.inputs:
        rows, weights = rows_that_count(
            data.values, data.last_only, variable, variable, data.values[variable]
        )
        channels = variable.shape[0]
        each = rows.shape[-1] // channels
        if each > 1:
            rows = rows.reshape(len(rows), channels, each).transpose(1, 2).reshape(-1, channels)
            weights = None if weights is None else weights.repeat_interleave(each)
        found[variable] = spread(rows, weights)
        _require_squares(found[variable], network.inputs.index(variable) + 1)
    for term in network.terms:
        if term.loss.equivariant and isinstance(term.activation, Identity):
            y = data.values[term.label]
            rows, weights = rows_that_count(
                data.values, data.last_only, term.label, term.argument, y
            )
            near = _near(rows, weights) if term.loss.robust else rows
            found[term.label] = spread(near, weights)
    return found


def _require_squares(found: Spread, number: int) -> None:
    """Refuse inputs whose squares overflow, which no scale would be found for."""
    largest = torch.maximum(found.low.abs(), found.high.abs())
    lost = (~found.squares.isfinite() & largest.isfinite()).nonzero().flatten().tolist()
    if lost:
        raise DataError(
            f"feature {lost[0]} of input {number} reaches {float(largest[lost[0]]):.3g}, and sums "
            "of its squares overflow float64: divide it by its scale."
        )


def _moments(network: Network, spreads: Spreads, data: Data) -> dict[Input | Label, Moments]:
    """Return the moments of values that lie so, in the type of the data."""
    moments: dict[Input | Label, Moments] = {}
    for name, found in spreads.items():
        if isinstance(name, Input):
            known = _of_inputs(found, name.units // name.shape[0], data.rounding(name))
        else:
            varies = _varies(found, data.rounding(name))
            known = Moments(found.mean, found.deviation.where(varies, 1.0))
        moments[name] = known.to(data.like)
    for term in network.terms:  # a nearest point is one in any unit, but not in several, as delta
        own = ends_of(term.argument) is not None or term.loss.robust
        if own and term.label in moments:
            moments[term.label] = moments[term.label].in_proportion
    return moments


def _still(
    moments: Mapping[Input | Label, Moments], spreads: Spreads, data: Data
) -> dict[Input, Tensor]:
    """Return which columns of inputs are at their centers but for rounding, and how near."""
    still: dict[Input, Tensor] = {}
    for name, known in moments.items():
        if not isinstance(name, Input):
            continue
        found, each, rounding = spreads[name], name.units // name.shape[0], data.rounding(name)
        about = replace(found, mean=known.center[::each].to(found.mean))
        columns, moved = ~_varies(about, rounding), found.high > found.low
        if bool(columns.any()):
            reach = rounding * known.center.abs() / known.scale
            reach = reach.where(moved.repeat_interleave(each), 0.0)
            still[name] = reach.where(columns.repeat_interleave(each), -1.0)
    return still


def _near(y: Tensor, weights: Tensor | None) -> Tensor:
    """Return targets without what is far from the middle half of those of all processes."""
    counts = y.new_ones(len(y)) if weights is None else weights
    every, counts = processes.joined(y), processes.joined(counts).double()
    low, high = (quantile(every, counts, level) for level in (0.25, 0.75))
    reach = torch.where(high > low, _MOST_QUARTILES * (high - low), math.inf)
    return torch.maximum(torch.minimum(y, high + reach), low - reach)


def _of_inputs(found: Spread, each: int, rounding: float) -> Moments:
    """Return the moments of features, or of channels of so many entries each."""
    varies = _varies(found, rounding)
    largest = found.largest
    typical = largest[varies].median() if bool(varies.any()) else largest.new_ones(())
    ratio = (largest / typical).where(varies, 1.0)
    kept = 1.0 if _several_units(found, rounding) else _ALIKE
    unit = typical * ratio / ratio.clamp(1 / kept, kept)
    level = (found.deviation / unit)[varies].square().mean().sqrt() if bool(varies.any()) else 1.0
    center = found.low.where(found.low == found.high, found.mean)  # constants become 0 exactly
    return Moments(center.repeat_interleave(each), (unit * level).repeat_interleave(each))


def _several_units(found: Spread, rounding: float) -> bool:
    ranges = found.largest[_varies(found, rounding)]
    return bool(len(ranges)) and float(ranges.max()) > _ONE_UNIT * float(ranges.min())


def _varies(found: Spread, rounding: float) -> Tensor:
    """Return which columns are not constant but for rounding."""
    return found.largest > rounding * found.mean.abs()


def _raw(layer: Weights, below: Moments, above: Moments) -> Weights:
    """Return W and b for raw data: y = above(below(x) W + b)."""
    assert layer.bias is not None  # weights without one are not folded
    matrix = layer.matrix / below.scale.unsqueeze(-1)
    bias = layer.bias - below.center @ matrix
    return Weights(matrix * above.scale, above.undone(bias))


def _inside(layer: Weights, below: Moments, above: Moments) -> Weights:
    """Return the inverse of `_raw`."""
    assert layer.bias is not None  # weights without one are not folded
    matrix, bias = layer.matrix / above.scale, above.of(layer.bias)
    return Weights(matrix * below.scale.unsqueeze(-1), bias + below.center @ matrix)


def _precise(below: Moments, like: Tensor) -> bool:
    return float((below.center / below.scale).abs().max()) * torch.finfo(like.dtype).eps < _DIGITS


def _unit(units: int) -> Moments:
    return Moments(torch.zeros(units), torch.ones(units))


def _is_raw(moments: Moments | None) -> bool:
    """Say whether nothing is standardized here."""
    return moments is not None and not bool(moments.center.any() | (moments.scale != 1).any())
