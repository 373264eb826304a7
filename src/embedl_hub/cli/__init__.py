"""The command line ``embedl-hub``, also called ``ehub``: one file per command, loaded when it is used.

A file here is a command: ``list_devices.py`` is ``list-devices``. It defines ``command``, and the first line of its
docstring is its line in the help. Files that start with an underscore are shared; ``main.py`` is the entry point. A
package of somebody else adds a command with an entry point in the group ``embedl_hub.commands``.
"""
