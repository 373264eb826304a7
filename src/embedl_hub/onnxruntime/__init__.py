"""ONNX Runtime, here and on boards: one way to compile, profile and invoke, whichever provider asks.

The work is done by the device program (``embedl-onnxruntime``), driven through its command line on any runner, so
that numbers taken here and on a board mean the same. Needs the extra ``onnxruntime``; imported by providers on use.
"""
