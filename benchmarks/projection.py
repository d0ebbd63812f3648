"""A projection layer: ours beside cvxpylayers, forward and backward, 100 samples at a time.

Two polyhedra: flows that are not negative and have a known sum, which differs by sample, and
outputs that rise. cvxpylayers (1.2.0, with SCS and diffcp) at its own tolerance and at 1e-9.
Run it with cvxpylayers on the path, `OMP_NUM_THREADS=1 python -m benchmarks.projection`, seconds.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import cvxpy as cp
import torch
from torch import Tensor

from benchmarks.harness.report import write
from liftednet.sets.polyhedron import nearest_in_polyhedron

SAMPLES, ROUNDS = 100, 5
Function = Callable[[Tensor], Tensor]


def flows(units: int) -> tuple[Tensor, Tensor, Tensor, Function]:
    """Return rows, ends, and by cvxpylayers, of v >= 0 with a known sum."""
    rows = torch.cat([torch.ones(1, units), torch.eye(units)]).double()
    total = torch.linspace(0.5, 3.5, SAMPLES, dtype=torch.float64)
    lower = torch.zeros(SAMPLES, units + 1, dtype=torch.float64)
    upper = torch.full_like(lower, torch.inf)
    lower[:, 0] = upper[:, 0] = total
    v, u, t = cp.Variable(units), cp.Parameter(units), cp.Parameter(1)
    layer = layered([v >= 0, cp.sum(v) == t[0]], v, u, [t])
    return rows, lower, upper, lambda x, **more: layer(x, total[:, None], **more)[0]


def rising(units: int) -> tuple[Tensor, Tensor, Tensor, Function]:
    """Return rows, ends, and by cvxpylayers, of v_1 <= v_2 <= ..."""
    rows = torch.diff(torch.eye(units, dtype=torch.float64), dim=0)
    lower = torch.zeros(SAMPLES, units - 1, dtype=torch.float64)
    v, u = cp.Variable(units), cp.Parameter(units)
    layer = layered([v[1:] - v[:-1] >= 0], v, u, [])
    return rows, lower, torch.full_like(lower, torch.inf), lambda x, **more: layer(x, **more)[0]


def layered(limits: list[Any], v: Any, u: Any, others: list[Any]) -> Any:
    from cvxpylayers.torch import CvxpyLayer

    return CvxpyLayer(cp.Problem(cp.Minimize(cp.sum_squares(v - u)), limits), [u, *others], [v])


def rows_of(name: str, given: tuple[Tensor, Tensor, Tensor, Function], units: int) -> list[str]:
    """Return a line of the table for each method."""
    rows, lower, upper, other = given
    generator = torch.Generator().manual_seed(0)
    u, push = torch.randn(2, SAMPLES, units, generator=generator, dtype=torch.float64)
    tight = {"eps": 1e-9, "max_iters": 100_000}
    methods: dict[str, Function] = {
        "ours": lambda x: nearest_in_polyhedron(rows, x, lower, upper),
        "cvxpylayers": other,
        "cvxpylayers, 1e-9": lambda x: other(x, solver_args=tight),
    }
    found, exact, lines = {}, None, []
    for method, function in methods.items():
        spent = []
        for _ in range(ROUNDS):
            x = u.clone().requires_grad_()
            began = time.process_time()
            v = function(x)
            (v * push).sum().backward()
            spent.append(time.process_time() - began)
        values = v.detach() @ rows.T
        off = float(torch.maximum(lower - values, values - upper).max().clamp(min=0))
        exact = x.grad if exact is None else exact
        found[method] = min(spent) / SAMPLES * 1e6
        lines.append(
            f"| {name} | {method} | {found[method]:.0f} | {off:.0e} "
            f"| {float((x.grad - exact).abs().max()):.0e} |"
        )
    return lines


def main() -> None:
    torch.set_num_threads(1)
    lines = [
        *rows_of("3 flows, a known sum", flows(3), 3), *rows_of("10 flows", flows(10), 10),
        *rows_of("10 outputs that rise", rising(10), 10),
    ]  # fmt: skip
    head = ["| polyhedron | method | us a sample | violation | gradient, from ours |"]
    head += ["| --- | --- | --- | --- | --- |"]
    about = (__doc__ or "").split("Run it")[0].strip()
    write("projection", "A projection layer", about, [*head, *lines])


if __name__ == "__main__":
    main()
