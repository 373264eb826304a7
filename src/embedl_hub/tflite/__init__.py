"""TFLite, here and on boards: convert, quantise, profile and invoke, whichever provider asks.

The converter's pins clash with everything else, so it lives in an environment of its own that this package makes and
remembers. Models run in LiteRT, driven by the device program ``embedl-litert`` through its command line on any runner.
"""
