"""A model's weights outside its file: from inside its folder, from plain files, as many bytes as they take."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from support.cli import hub
from support.models import residual_net
from support.outside import HOSTILE, write_hostile

from embedl_hub.models.onnx_file import gather, inputs_of, read_graph, read_model
from embedl_hub.refusal import RefusedError


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_place_is_refused(name: str, tmp_path: Path) -> None:
    """Before anything of it is read or copied, in one line that names the tensor."""
    facts, words = HOSTILE[name]
    path = write_hostile(tmp_path / "model", facts)
    (tmp_path / "scratch").mkdir()
    for read in (read_model, lambda path: gather(path, tmp_path / "scratch")):
        with pytest.raises(RefusedError, match=words) as caught:
            read(path)
        assert "tensor 'w0'" in str(caught.value)
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "verb", [("compile", "onnxruntime"), ("profile", "onnxruntime"), ("invoke", "onnxruntime"), ("compile", "tflite")]
)
def test_every_verb_says_it_in_one_line(verb: tuple[str, str], tmp_path: Path) -> None:
    """And no traceback."""
    path = write_hostile(tmp_path / "model", {"offset": "abc"})
    np.savez(tmp_path / "x.npz", x=np.zeros((1, 3, 16, 16), np.float32))
    data = ["--input-data", tmp_path / "x.npz"] if verb[0] == "invoke" else []
    done = hub(*verb, path, *data, "--here", "--home", tmp_path / "home")
    assert done.returncode == 1
    assert "its offset is 'abc', which is no number of bytes" in done.stderr
    assert "Traceback" not in done.stderr


def test_names_and_types_are_checked(tmp_path: Path) -> None:
    """Protobuf takes any bytes for a text and any number for a type; the suffix does not choose another format."""
    content = residual_net().SerializeToString()
    (tmp_path / "name.onnx").write_bytes(content.replace(b"relu/0", b"relu\xff0"))
    with pytest.raises(RefusedError, match=r"name in it is no text|codec"):
        read_graph(tmp_path / "name.onnx")
    model = residual_net()
    model.graph.input[0].type.tensor_type.elem_type = 99
    onnx.save(model, tmp_path / "type.onnx")
    with pytest.raises(RefusedError, match="does not know the type 99"):
        read_graph(tmp_path / "type.onnx")
    (tmp_path / "net.json").write_bytes(content)
    assert inputs_of(read_graph(tmp_path / "net.json"))
