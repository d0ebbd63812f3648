"""OMLT with HiGHS on a network of ReLU, run by a Python that has omlt, pyomo and highspy.

`python benchmarks/into_cvxpy_opponents.py FILE.npz SECONDS` reads W0, b0, W1, b1, ... of a network
whose largest output over [-2, 2]^p is sought, and prints what was found as one line of JSON. It
imports nothing of this repository: OMLT stands in an environment of its own.
"""

from __future__ import annotations

import json
import sys
import time

import numpy as np
import pyomo.environ as pyo
from omlt import OmltBlock
from omlt.neuralnet import NetworkDefinition, ReluBigMFormulation
from omlt.neuralnet.layer import DenseLayer, InputLayer

GAP = 1e-4


def main(path: str, seconds: float) -> dict[str, float]:
    stored = np.load(path)
    weights = [(stored[f"W{n}"], stored[f"b{n}"]) for n in range(len(stored.files) // 2)]
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
    return {"seconds": spent, "value": float(value), "bound": float(bound)}


if __name__ == "__main__":
    sys.stdout.write(json.dumps(main(sys.argv[1], float(sys.argv[2]))) + "\n")
