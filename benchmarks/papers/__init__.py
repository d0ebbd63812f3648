"""The published tables and figures, run again: `python -m benchmarks.papers.table1` and its kin."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path


def main(name: str, run: Callable[..., Path]) -> None:
    """Run one paper's report from the command line and say where it lies.

    Args:
        name: of its folder in results/.
        run: called with that folder, and with quick and seeds.
    """
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true", help="minutes instead of hours")
    parser.add_argument("--seeds", type=int, help="of every row; as in its table if not given")
    parser.add_argument("--folder", type=Path, default=Path("results"), help="of the reports")
    asked = parser.parse_args()
    counted = {} if asked.seeds is None else {"seeds": asked.seeds}
    print(f"written to {run(asked.folder / name, quick=asked.quick, **counted)}")
