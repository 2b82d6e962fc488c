"""The soak of `make soak`, for a minute."""

import pytest

from soak import run


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_every_count_is_right_after_a_minute_of_disturbances():
    assert run(60.0, seed=4) == []
