"""Q/DQ files of ONNX to INT8 models of TFLite, in the converter's own environment; imports nothing of ours.

`qdq` reads the file and takes Q/DQ out of it, `factors` keeps from the converter what it must not fold, and the
converter makes a float model of the rest; `channels` takes out of that what costs much, `matching` finds out which of
its tensors is which, `plan` decides what every operator becomes, `rewrite` writes it.
"""
