"""``python -m onceflow.cli``."""

from onceflow.cli.main import app

app()
