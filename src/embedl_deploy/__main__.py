"""``python -m embedl_deploy`` is the command line."""

from embedl_deploy.cli.main import main

main()
