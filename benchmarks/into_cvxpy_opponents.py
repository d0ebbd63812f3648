"""OMLT with HiGHS, or PySCIPOpt-ML with SCIP, on a network of ReLU.

`python benchmarks/into_cvxpy_opponents.py OMLT|SCIP FILE.npz SECONDS` reads W0, b0, W1, b1, ... of
a network whose largest output over [-2, 2]^p is sought, and prints what was found as one line of
JSON. It imports nothing of this repository: each stands in an environment of its own.
"""

from __future__ import annotations

import json
import sys
import time

import numpy as np

GAP = 1e-4
Weights = list[tuple[np.ndarray, np.ndarray]]


def by_omlt(weights: Weights, seconds: float) -> dict[str, float]:
    import pyomo.environ as pyo
    from omlt import OmltBlock
    from omlt.neuralnet import NetworkDefinition, ReluBigMFormulation
    from omlt.neuralnet.layer import DenseLayer, InputLayer

    inputs = len(weights[0][0])
    started = time.process_time()
    network = NetworkDefinition(scaled_input_bounds=dict.fromkeys(range(inputs), (-2.0, 2.0)))
    below = InputLayer([inputs])
    network.add_layer(below)
    for number, (matrix, bias) in enumerate(weights):
        last = number == len(weights) - 1
        kind = "linear" if last else "relu"
        above = DenseLayer([len(matrix)], [len(bias)], matrix, bias, activation=kind)
        network.add_layer(above)
        network.add_edge(below, above)
        below = above
    model = pyo.ConcreteModel()
    model.block = OmltBlock()
    model.block.build_formulation(ReluBigMFormulation(network))
    model.objective = pyo.Objective(expr=model.block.outputs[0], sense=pyo.maximize)
    solver = pyo.SolverFactory("appsi_highs")
    solver.config.load_solution = False
    solver.highs_options = {"mip_rel_gap": GAP, "time_limit": seconds}
    found = solver.solve(model, load_solutions=False)
    spent = time.process_time() - started
    value, bound = found.problem.lower_bound, found.problem.upper_bound
    value = -1e20 if value is None else value  # as SCIP tells that it has found none
    return {"seconds": spent, "value": float(value), "bound": float(bound)}


def by_scip(weights: Weights, seconds: float) -> dict[str, float]:
    import pyscipopt
    import torch
    from pyscipopt_ml.add_predictor import add_predictor_constr

    parts = []
    for matrix, bias in weights:
        layer = torch.nn.Linear(*matrix.shape).double()
        layer.weight.data, layer.bias.data = torch.from_numpy(matrix.T), torch.from_numpy(bias)
        parts += [layer, torch.nn.ReLU()]
    started, model = time.process_time(), pyscipopt.Model()
    model.hideOutput()
    x = [[model.addVar(lb=-2.0, ub=2.0) for _ in range(len(weights[0][0]))]]
    y = [[model.addVar(lb=None, ub=None)]]
    network = torch.nn.Sequential(*parts[:-1])
    add_predictor_constr(model, network, np.array(x), np.array(y), unique_naming_prefix="p_")
    model.setObjective(y[0][0], "maximize")
    model.setParam("limits/gap", GAP)
    model.setParam("limits/time", seconds)
    model.optimize()
    spent = time.process_time() - started
    return {"seconds": spent, "value": model.getPrimalbound(), "bound": model.getDualbound()}


def main(method: str, path: str, seconds: float) -> dict[str, float]:
    stored = np.load(path)
    weights = [(stored[f"W{n}"], stored[f"b{n}"]) for n in range(len(stored.files) // 2)]
    return (by_omlt if method == "OMLT" else by_scip)(weights, seconds)


if __name__ == "__main__":
    sys.stdout.write(json.dumps(main(sys.argv[1], sys.argv[2], float(sys.argv[3]))) + "\n")
