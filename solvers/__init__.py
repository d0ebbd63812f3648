"""The solvers of one convex subproblem; they know no network."""

if __name__ == "solvers":
    raise ImportError(
        "the folder solvers is the package liftednet.solvers: run `make demo` or "
        "`pip install -c constraints.txt -e .`, then import liftednet.solvers"
    )
