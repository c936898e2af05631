"""An environment that refuses something is as it was before."""

from __future__ import annotations

from typing import Any, cast

import pytest

from cairn.api.environment import StreamExecutionEnvironment
from cairn.config import Settings
from cairn.errors import InvalidInputError


def test_a_frame_that_is_refused_does_not_keep_the_job_from_ending() -> None:
    env = StreamExecutionEnvironment(cast(Any, None), Settings())
    with pytest.raises(InvalidInputError, match="takes a Spark DataFrame"):
        env.from_df(cast(Any, "rows"))
    assert not env.definition.unbounded
