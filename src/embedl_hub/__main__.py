"""``python -m embedl_hub`` is the command line."""

from embedl_hub.cli.main import main

main()
