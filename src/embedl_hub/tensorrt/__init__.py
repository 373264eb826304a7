"""TensorRT, here and on boards: engines built, measured and run by NVIDIA's ``trtexec``, or built by TensorRT-RTX.

The work is done by those programs in processes of their own; what is here writes their options and reads their files.
Needs the extra ``trtexec`` or ``tensorrt-rtx``; imported by providers on use.
"""
