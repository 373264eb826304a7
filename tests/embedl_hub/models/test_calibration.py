"""Calibration data: every form it comes in, one batch in memory at a time."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from support.models import images

from embedl_hub.models.calibration import open_calibration, write_npz
from embedl_hub.models.onnx_file import Tensor
from embedl_hub.refusal import RefusedError

PICTURE = Tensor("x", "float32", (1, 3, 16, 16))
FREE = Tensor("x", "float32", ("n", 3, 16, 16))


def batches(path: Path, *inputs: Tensor) -> list[np.ndarray]:
    return [batch["x"] for batch in open_calibration(path, inputs).batches()]


def test_every_form_gives_the_same_samples(tmp_path: Path) -> None:
    """One .npz, a folder of .npz, a folder of .npy with and without a batch axis, a file per input."""
    data = images(4)
    write_npz(tmp_path / "all.npz", {"x": data})
    forms = [tmp_path / "all.npz"]
    for name in ("npz", "npy", "single", "input"):
        (tmp_path / name).mkdir()
        forms.append(tmp_path / name)
    for index in range(4):
        np.savez_compressed(tmp_path / "npz" / f"{index}.npz", x=data[index : index + 1])
        np.save(tmp_path / "npy" / f"{index}.npy", data[index : index + 1])
        np.save(tmp_path / "single" / f"{index}.npy", data[index])
    np.save(tmp_path / "input" / "x.npy", np.asfortranarray(data))
    for form in forms:
        for tensor in (PICTURE, FREE):
            np.testing.assert_array_equal(np.concatenate(batches(form, tensor)), data, err_msg=str(form))


def test_a_rest_that_fills_no_batch_is_left_out(tmp_path: Path) -> None:
    """A model of two takes four of five."""
    write_npz(tmp_path / "all.npz", {"x": images(5)})
    pairs = batches(tmp_path / "all.npz", Tensor("x", "float32", (2, 3, 16, 16)))
    assert [pair.shape[0] for pair in pairs] == [2, 2]
    with pytest.raises(RefusedError, match="holds 5 samples; at least 8 are needed"):
        open_calibration(tmp_path / "all.npz", [Tensor("x", "float32", (8, 3, 16, 16))])


def test_several_inputs_go_together(tmp_path: Path) -> None:
    """By name, in step; different numbers are refused."""
    inputs = [Tensor("a", "float32", ("n", 2)), Tensor("b", "int64", ("n",))]
    np.save(tmp_path / "a.npy", np.arange(6, dtype=np.float32).reshape(3, 2))
    np.save(tmp_path / "b.npy", np.arange(3))
    found = list(open_calibration(tmp_path, inputs).batches())
    assert [(sample["a"].tolist(), sample["b"].tolist()) for sample in found][2] == ([[4.0, 5.0]], [2])
    np.save(tmp_path / "b.npy", np.arange(2))
    with pytest.raises(RefusedError, match="different numbers of samples"):
        open_calibration(tmp_path, inputs)
    (tmp_path / "b.npy").unlink()
    with pytest.raises(RefusedError, match=r"needs one .npy per input \('a', 'b'\)"):
        open_calibration(tmp_path, inputs)


def test_an_input_without_axes_has_one_number_per_sample(tmp_path: Path) -> None:
    """As a sampling rate or a threshold."""
    inputs = [Tensor("a", "float32", (1, 2)), Tensor("rate", "int64", ())]
    write_npz(tmp_path / "all.npz", {"a": np.ones((3, 2), np.float32), "rate": np.array([8, 16, 24])})
    found = list(open_calibration(tmp_path / "all.npz", inputs).batches())
    assert [(batch["a"].shape, batch["rate"].shape, int(batch["rate"])) for batch in found] == [
        ((1, 2), (), 8), ((1, 2), (), 16), ((1, 2), (), 24),
    ]  # fmt: skip
    write_npz(tmp_path / "all.npz", {"a": np.ones((3, 2), np.float32), "rate": np.array(8)})
    with pytest.raises(RefusedError, match="but the input is rate int64"):
        open_calibration(tmp_path / "all.npz", inputs)


def test_broken_files_are_refused(tmp_path: Path) -> None:
    """Objects, other formats, files cut short, folders of two minds."""
    np.savez(tmp_path / "objects.npz", x=np.array([{"a": 1}], dtype=object))
    with pytest.raises(RefusedError, match="Python objects, which are never unpickled"):
        open_calibration(tmp_path / "objects.npz", [PICTURE])
    (tmp_path / "broken.npz").write_bytes(b"PK broken")
    with pytest.raises(RefusedError, match="is not an"):
        open_calibration(tmp_path / "broken.npz", [PICTURE])
    for name, content in (("text", b"hello"), ("short", b"")):
        folder = tmp_path / name
        folder.mkdir()
        np.save(folder / "x.npy", images(2))
        whole = (folder / "x.npy").read_bytes()
        (folder / "x.npy").write_bytes(content or whole[:-100])
    with pytest.raises(RefusedError, match="does not begin as a NumPy array"):
        open_calibration(tmp_path / "text", [PICTURE])
    with pytest.raises(RefusedError, match="are 6144 bytes and it holds 6044"):
        batches(tmp_path / "short", PICTURE)
    (tmp_path / "empty").mkdir()
    with pytest.raises(RefusedError, match="holds 0 samples"):
        open_calibration(tmp_path / "empty", [PICTURE])
    np.savez(tmp_path / "short" / "y.npz", x=images(1))
    with pytest.raises(RefusedError, match="holds both"):
        open_calibration(tmp_path / "short", [PICTURE])


def test_memory_stays_flat(tmp_path: Path) -> None:
    """A set of 400 MB passes through a process that may grow by a tenth of it."""
    array = np.lib.format.open_memmap(tmp_path / "x.npy", mode="w+", dtype=np.float32, shape=(100, 1000, 1000))
    array[::10, 0, 0] = 1.0
    array.flush()
    del array
    code = (
        "import resource, sys\nfrom pathlib import Path\n"
        "from embedl_hub.models.calibration import open_calibration\n"
        "from embedl_hub.models.onnx_file import Tensor\n"
        "found = open_calibration(Path(sys.argv[1]), [Tensor('x', 'float32', (1, 1000, 1000))])\n"
        "before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "count = sum(1 for _ in found.batches())\n"
        "print(count, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)\n"
    )
    done = subprocess.run([sys.executable, "-c", code, tmp_path], capture_output=True, text=True, check=True)
    count, grown_kib = map(int, done.stdout.split())
    assert count == 100
    assert grown_kib < 40_000
