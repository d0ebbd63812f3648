"""RNN training along locally optimal trajectories via Frank-Wolfe algorithm (2020)."""
