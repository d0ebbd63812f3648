"""Convex sets, and functions with a prox: of weights, of one sample's scores, of all scores.

`penalty` is what a penalty on weights is, and how penalties add up; `functions` and `matrices` are
those there are. `polyhedron` is l <= A u <= h, with its nearest points; `constraint` is what a set
of scores is, and `scores` are those there are. `liftednet.penalties` and `liftednet.constraints`
name them for users. A new set is a class in `matrices` or in `scores`, named in its `__all__`.
"""
