"""What the tests of the models share: fits that begin nearer to their draws than users' do."""

from collections.abc import Iterator

import pytest

from liftednet.models.methods import minibatch


@pytest.fixture(scope="module", autouse=True)
def few_steps() -> Iterator[None]:
    """Take 100 steps on minibatches where users have 500, half a second before every fit."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(minibatch, "_STEPS", 100)
        yield
