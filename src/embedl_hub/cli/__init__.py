"""The command line ``embedl-hub``, also called ``ehub``: one file per command, loaded when it is used."""
