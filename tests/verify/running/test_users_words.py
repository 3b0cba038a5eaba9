from __future__ import annotations

from pathlib import Path

import pytest

from onceflow.verify.running.users_words import in_the_users_words


@pytest.mark.parametrize(
    ("said", "told"),
    [
        (
            "1 mistake in pipeline.toml:\n  - pipeline.toml:25: sink[0].key: x",
            "1 mistake in my/p.toml:\n  - my/p.toml: sink[0].key: x",
        ),
        ("/tmp/v/onceflow/pipeline.toml cannot be read", "my/p.toml cannot be read"),
        ("another-pipeline.tomlx", "another-pipeline.tomlx"),
    ],
)
def test_the_private_copy_is_called_by_the_users_name(said: str, told: str) -> None:
    assert in_the_users_words(said, Path("/tmp/v/onceflow/pipeline.toml"), "my/p.toml") == told
