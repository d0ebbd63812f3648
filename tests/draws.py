"""Normal numbers that are the same in every run."""

import torch
from torch import Tensor


def normal(
    *shape: int, seed: int | torch.Generator = 0, dtype: torch.dtype = torch.float64
) -> Tensor:
    """Return normal numbers of a seed, or the next ones of a generator."""
    source = torch.Generator().manual_seed(seed) if isinstance(seed, int) else seed
    return torch.randn(*shape, generator=source, dtype=dtype)
