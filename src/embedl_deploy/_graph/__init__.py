"""The network while it is worked on: copied, run node by node, edited, and compared with what it was."""
