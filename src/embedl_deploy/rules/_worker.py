"""Runs under the interpreter of one version of ONNX Runtime, which may have nothing else: loads files, writes graphs.

Reads one path a line from the standard input; what ONNX Runtime makes of PATH goes to PATH.optimized, and one JSON
object to the standard output. A crash ends the process: whoever asked knows by the missing answer which file it was.
"""

import json
import sys

import onnxruntime


def main() -> None:
    """Answer until there is nothing more to read."""
    onnxruntime.set_default_logger_severity(4)
    print(json.dumps({"version": onnxruntime.__version__}), flush=True)  # noqa: T201 - the answer
    for line in sys.stdin:
        path = line.rstrip("\n")
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        options.log_severity_level = 4
        options.optimized_model_filepath = path + ".optimized"
        answer = {"refused": ""}
        try:
            onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
        except Exception as error:  # noqa: BLE001 - classes of its own, made in C++
            answer["refused"] = " ".join(str(error).split())[:300] or type(error).__name__
        print(json.dumps(answer), flush=True)  # noqa: T201 - the answer


if __name__ == "__main__":
    main()
