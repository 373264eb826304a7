"""What a user of the board can act on: one message, one exit code."""


class BoardError(Exception):
    """Something about the model, the data or the runtime that the message explains."""
