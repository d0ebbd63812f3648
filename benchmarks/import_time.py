"""How much `import liftednet` adds to `import torch`; the aim is at most 50 ms.

Run it with `python benchmarks/import_time.py [rounds]`. The two are measured in turn, each in a
fresh interpreter, after one round that fills the caches and is not counted.
"""

from __future__ import annotations

import subprocess
import sys
from statistics import median

CODE = "import time; start = time.perf_counter(); import {}; print(time.perf_counter() - start)"


def milliseconds(modules: str) -> float:
    """Return the time that importing takes in a fresh interpreter, in milliseconds."""
    command = [sys.executable, "-c", CODE.format(modules)]
    return 1000 * float(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


def main(rounds: int = 11) -> None:
    pairs = [(milliseconds("torch"), milliseconds("torch, liftednet")) for _ in range(rounds + 1)]
    alone, both = zip(*pairs[1:], strict=True)
    differences = sorted(second - first for first, second in pairs[1:])
    print(f"import torch             {median(alone):8.1f} ms (median of {rounds})")
    print(f"import torch, liftednet  {median(both):8.1f} ms")
    print(
        f"difference               {median(differences):8.1f} ms "
        f"(from {differences[0]:.1f} to {differences[-1]:.1f})"
    )


if __name__ == "__main__":
    main(*map(int, sys.argv[1:2]))
