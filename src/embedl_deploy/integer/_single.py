"""One operator alone: by ONNX Runtime, or by onnx's reference evaluator where that does not take it."""

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import onnx
from onnx import helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from embedl_deploy.dialect._observe import make_session
from embedl_deploy.errors import ModelFileError, first_line

Arrays = Mapping[str, np.ndarray]
Runner = Callable[[Arrays], list[np.ndarray]]


class SingleOperator:
    """An operator of a model, which is run again and again.

    Constants stay constants: ONNX Runtime asks for the values of some inputs (a Resize's sizes) when it opens a model.
    Sizes are left open at first, so that one session serves every sample, and fixed where the runtime wants them.
    """

    def __init__(self, model: onnx.ModelProto, node: onnx.NodeProto, constant: tuple[bool, ...]) -> None:
        self._model, self._node, self._constant = model, node, constant
        self._ways: list[Callable[[Sequence[np.ndarray | None], Arrays], Runner]] = [
            self._with_open_sizes, self._with_fixed_sizes, self._by_reference,
        ]  # fmt: skip
        self.refusals: list[str] = []  # why ways that were tried first do not work
        self._runners: dict[tuple[object, ...], Runner] = {}

    def run(self, arrays: Sequence[np.ndarray | None], captured: Arrays) -> list[np.ndarray]:
        """Run it.

        Args:
            arrays: Its inputs, None for one that is left out.
            captured: What graphs inside the operator read from outside.

        Raises:
            ModelFileError: Nobody here can.
        """
        feed = {
            f"input{index}": array
            for index, array in enumerate(arrays)
            if array is not None and not self._constant[index]
        } | dict(captured)
        while self._ways:
            try:
                return self._ways[0](arrays, captured)(feed)
            except Exception as exc:  # noqa: BLE001 - onnxruntime and onnx raise classes of their own
                self.refusals.append(first_line(exc))
                del self._ways[0]
        raise ModelFileError(
            f"The operator {self._node.op_type} of {self._node.name!r} can be run alone neither by ONNX Runtime nor by "
            f"onnx's reference evaluator: {self.refusals[0]}"
        )

    def _with_open_sizes(self, arrays: Sequence[np.ndarray | None], captured: Arrays) -> Runner:
        key = tuple(None if array is None else (array.dtype, array.ndim) for array in arrays)
        return self._session(key, arrays, captured, is_open=True)

    def _with_fixed_sizes(self, arrays: Sequence[np.ndarray | None], captured: Arrays) -> Runner:
        every = (*arrays, *captured.values())
        key = tuple(None if array is None else (array.dtype, array.shape) for array in every)
        return self._session(key, arrays, captured, is_open=False)

    def _session(
        self, key: tuple[object, ...], arrays: Sequence[np.ndarray | None], captured: Arrays, *, is_open: bool
    ) -> Runner:
        if key not in self._runners:
            session = make_session(self._alone(arrays, captured, is_open=is_open))
            self._runners[key] = lambda feed: list(session.run(None, dict(feed)))
        return self._runners[key]

    def _by_reference(self, arrays: Sequence[np.ndarray | None], captured: Arrays) -> Runner:
        reference = ReferenceEvaluator(self._alone(arrays, captured, is_open=False))
        return lambda feed: [np.asarray(value) for value in reference.run(None, dict(feed))]

    def _alone(self, arrays: Sequence[np.ndarray | None], captured: Arrays, *, is_open: bool) -> onnx.ModelProto:
        """Return a model of this one operator."""
        alone = onnx.NodeProto()
        alone.CopyFrom(self._node)
        names = [f"input{index}" if array is not None else "" for index, array in enumerate(arrays)]
        del alone.input[:]
        alone.input.extend(names)
        fixed, given = [], dict(captured)
        for name, array, is_constant in zip(names, arrays, self._constant, strict=True):
            if array is not None and is_constant:
                fixed.append(numpy_helper.from_array(np.array(array, order="C"), name))
            elif array is not None:
                given[name] = array
        values = [
            helper.make_tensor_value_info(
                name,
                helper.np_dtype_to_tensor_dtype(array.dtype),
                [f"{name}_{axis}" for axis in range(array.ndim)] if is_open else list(array.shape),
            )
            for name, array in given.items()
        ]
        results = [helper.make_empty_tensor_value_info(name) for name in self._node.output if name]
        graph = helper.make_graph([alone], "one", values, results, fixed)
        return helper.make_model(
            graph, opset_imports=self._model.opset_import, ir_version=self._model.ir_version,
            functions=self._model.functions,
        )  # fmt: skip
