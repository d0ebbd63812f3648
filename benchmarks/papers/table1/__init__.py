"""Lifted Neural Networks (2018), Table 1, and what it leaves out."""
