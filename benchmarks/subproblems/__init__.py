"""Each subproblem by our solver and by what a user would pick instead."""
