"""Loops that Numba compiles for the CPU; without it torch does the same."""
