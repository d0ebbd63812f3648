"""What the tests of kernels share: memory that no kernel has written is NaN."""

from collections.abc import Iterator
from importlib.util import find_spec

import pytest
import torch

collect_ignore_glob = [] if find_spec("triton") else ["test_*.py"]  # it is there on Linux alone


@pytest.fixture(autouse=True)
def poisoned() -> Iterator[None]:
    """Fill uninitialized tensors with NaN, so that an entry left out is found."""
    torch.use_deterministic_algorithms(True, warn_only=True)
    assert bool(torch.empty(3).isnan().all())
    yield
    torch.use_deterministic_algorithms(False)
