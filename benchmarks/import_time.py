"""How much `import liftednet` adds to `import torch`; the aim is at most 50 ms.

Run it with `python benchmarks/import_time.py [rounds]`. Each round is a fresh interpreter that
has imported torch; a first one, which fills the caches, is not counted.
"""

from __future__ import annotations

import subprocess
import sys
from statistics import median

CODE = """
import time
import torch
start = time.perf_counter()
import liftednet
print(1000 * (time.perf_counter() - start))
"""


def milliseconds() -> float:
    """Return what `import liftednet` takes after `import torch`."""
    command = [sys.executable, "-c", CODE]
    return float(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


def main(rounds: int = 11) -> None:
    milliseconds()
    times = sorted(milliseconds() for _ in range(rounds))
    print(
        f"import liftednet adds {median(times):.1f} ms to import torch "
        f"(median of {rounds}, from {times[0]:.1f} to {times[-1]:.1f})"
    )


if __name__ == "__main__":
    main(*map(int, sys.argv[1:2]))
