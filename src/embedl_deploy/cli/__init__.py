"""The command line ``embedl-deploy``: one file per command, imported when it is called."""
