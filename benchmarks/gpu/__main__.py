"""Checks and times everything that runs on a GPU, in one command of under eight minutes.

    python -m benchmarks.gpu              on a GPU: correctness, then speed; writes JSON and tables
    python -m benchmarks.gpu --interpret  the same code on the CPU at toy sizes; times mean nothing
    python -m benchmarks.gpu --compile    compiles every kernel for an H100 or H200, without a GPU

It needs torch, triton and numpy besides liftednet. MNIST is taken from the folder that
LIFTEDNET_DATA names, or from the cache; where it is absent, data are generated.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from pathlib import Path

RESULTS = Path(__file__).parents[1] / "results"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    kind = parser.add_mutually_exclusive_group()
    kind.add_argument("--interpret", action="store_true", help="toy sizes on the CPU")
    kind.add_argument("--compile", action="store_true", help="compile only, without a GPU")
    parser.add_argument("--out", type=Path, help="folder of what is written")
    arguments = parser.parse_args()
    # Read when torch and triton are imported, so they are set before that.
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    os.environ.pop("TRITON_INTERPRET", None)
    if arguments.interpret:
        os.environ["TRITON_INTERPRET"] = "1"
    if arguments.compile:
        from benchmarks.gpu.compiled import compile_all

        return compile_all()
    import torch

    if not arguments.interpret and not torch.cuda.is_available():
        print(
            "There is no CUDA device here. On a machine with one, run this command again; "
            "--interpret runs the same code on the CPU at toy sizes, --compile compiles the "
            "kernels for an H200.",
            file=sys.stderr,
        )
        return 2
    from benchmarks.gpu.run import run

    if arguments.interpret:
        return run(torch.device("cpu"), arguments.out or Path(tempfile.mkdtemp()))
    return run(torch.device("cuda"), arguments.out or RESULTS)


if __name__ == "__main__":
    sys.exit(main())
