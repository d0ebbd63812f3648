"""Do steps point to where training ends (assumption A5 of the Frank-Wolfe paper, figure 2)?

The angle between each step of the weights and the way from its start to the last weights of the
training, on HAR-2 and its noisy form with K = 5 as in their tables, beside Adam with clipping. The
formula of A5 is not legible in the copy at hand; its text asks that these angles be small.
`python -m benchmarks.papers.frank_wolfe.angles`, a minute; it prints a table.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.utils import parameters_to_vector
from torch.optim import Optimizer

from benchmarks.data import Sequences, har2
from benchmarks.papers.frank_wolfe.activity import (
    BATCH,
    FIRST_SEED,
    HIDDEN,
    LAYERS,
    NOISE_VARIANCE,
    SEGMENT,
    logistic,
)
from benchmarks.papers.frank_wolfe.training import Budget, Noise, Training, table_methods

METHODS = {"Frank-Wolfe K = 5": (5e-4, 2e-3), "Adam + clipping": (5e-4, 2e-3)}  # rates as chosen
PASSES = 8


def angles(name: str, noisy: bool) -> Tensor:
    """Return the angles of one training in degrees, step by step."""
    windows = har2(noise_variance=NOISE_VARIANCE if noisy else 0.0)
    method = next(m for m in table_methods(HIDDEN, SEGMENT, LAYERS, noisy) if m.name == name)
    _, steps, features = windows.x_train.shape
    torch.manual_seed(FIRST_SEED)
    network, passed = method.network(features, steps, 1), list[Tensor]()

    def keep(*_: object) -> None:
        passed.append(parameters_to_vector(network.parameters()).detach().clone())

    class Watched(Training):
        def optimizer(self) -> Optimizer:
            found = super().optimizer()
            found.register_step_post_hook(keep)
            return found

    keep()
    budget = Budget(PASSES * len(windows.x_train) // BATCH, BATCH)
    augment = Noise(method.noise) if method.noise else None
    Watched(network, method, METHODS[name][noisy], logistic, budget, FIRST_SEED, augment).run(
        Sequences.from_padded(windows.x_train, windows.y_train)
    )
    weights = torch.stack(passed).double()
    moves, ways = weights.diff(dim=0)[:-1], (weights[-1] - weights)[:-2]
    return torch.rad2deg(torch.cosine_similarity(moves, ways, dim=1).clamp(-1, 1).acos())


def main() -> None:
    torch.set_num_threads(1)
    print("| data | method | steps | mean angle | deviation | least | most | below 90 |")
    print("| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: |")
    for noisy in (False, True):
        for name in METHODS:
            a = angles(name, noisy)
            cells = [a.mean(), a.std(), a.min(), a.max(), 100 * (a < 90).double().mean()]
            data = "Noisy-HAR-2" if noisy else "HAR-2"
            print(f"| {data} | {name} | {len(a)} | " + " | ".join(f"{c:.1f}" for c in cells) + " |")


if __name__ == "__main__":
    main()
