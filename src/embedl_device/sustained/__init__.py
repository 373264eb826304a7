"""Minutes to hours under load: latency, clocks, temperature, throttling and power over time, on the board alone.

A run writes a journal as it goes, so that whoever asked may go away and come back; what is concluded from a journal is
the same wherever it is read.
"""

from embedl_device.sustained._command import JOURNAL, LOG, PROGRESS, sustained
from embedl_device.sustained._document import document_of
from embedl_device.sustained._energy import Series, energy_from, integrated
from embedl_device.sustained._journal import Recording, parse_journal
from embedl_device.sustained._onset import Onset, find_onset

__all__ = [
    "JOURNAL", "LOG", "PROGRESS", "Onset", "Recording", "Series", "document_of", "energy_from", "find_onset",
    "integrated", "parse_journal", "sustained",
]  # fmt: skip
