"""``python -m onceflow.cli``."""

from onceflow.cli.entry import main

main()
