"""What every test shares: one thread, fixed seeds, and the way to the real data."""

import os
from pathlib import Path

# Read when numpy, torch and matplotlib are imported, so they are set before that.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("MKL_NUM_THREADS", "1")
os.environ.setdefault("MPLBACKEND", "Agg")
os.environ.setdefault("TRITON_INTERPRET", "1")  # kernels run on the CPU

from collections.abc import Iterator

import hypothesis
import numpy as np
import pytest
import torch

from liftednet.solvers.gauss_newton import kinks

torch.set_num_threads(1)

hypothesis.settings.register_profile("local", deadline=None, max_examples=25)
hypothesis.settings.register_profile("ci", deadline=None, max_examples=25, derandomize=True)
hypothesis.settings.load_profile("ci" if os.environ.get("CI") else "local")


@pytest.fixture(scope="session", autouse=True)
def few_tries() -> Iterator[None]:
    """Cross kinks with noise once where users have thirty tries, each as long as a fit."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kinks, "_TRIES", 1)
        yield


@pytest.fixture
def generator() -> torch.Generator:
    """Return a generator of random numbers that is the same in every test and every run."""
    return torch.Generator().manual_seed(0)


@pytest.fixture
def draw() -> np.random.Generator:
    """Return NumPy's generator, likewise."""
    return np.random.default_rng(0)


@pytest.fixture(scope="session")
def data_folder() -> Path:
    """Return the folder of the real data sets, or skip where there is none."""
    folder = os.environ.get("LIFTEDNET_DATA")
    if not folder:
        pytest.skip("the real data sets are not here: set LIFTEDNET_DATA to their folder")
    return Path(folder)
