"""Gauss-Newton steps in all weights of a network, and the evidence of its layers."""
