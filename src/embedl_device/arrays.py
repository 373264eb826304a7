"""Data in and out of files, checked against a model's tensors, run in batches. Nothing is ever unpickled."""

from __future__ import annotations

import re
import zipfile
from pathlib import Path
from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Protocol, Sequence, Tuple, Union

import numpy as np

from embedl_device.errors import BoardError
from embedl_device.readers import UnreadableError, read_npy, read_npz

Arrays = Dict[str, np.ndarray]
Dimension = Union[int, str, None]
_ELEMENT = re.compile(r"(.+)\[(\d{1,6})\]")
_LOOSE = ("seq(", "optional(")


def load_samples(folder: Path) -> List[Tuple[str, Arrays]]:
    """Return the samples in a folder: each .npz is one, by its stem; else all .npy together are one."""
    if not folder.is_dir():
        raise BoardError("There is no input folder {}.".format(folder))
    archives = sorted(folder.glob("*.npz"))
    if archives:
        return [(path.stem, load_npz(path)) for path in archives]
    files = sorted(folder.glob("*.npy"))
    if not files:
        raise BoardError("The input folder {} holds no .npz or .npy file.".format(folder))
    return [("output", {path.stem: _load(path) for path in files})]


def load_npz(path: Path) -> Arrays:
    """Return the arrays of an .npz file."""
    try:
        return read_npz(path)
    except (OSError, UnreadableError) as error:
        raise BoardError("{} cannot be read as .npz: {}.".format(path, error)) from error


def save_npz(path: Path, arrays: Arrays) -> None:
    """Write arrays as .npz; unlike numpy's own function it takes any name, also ``file``."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(str(path), "w", zipfile.ZIP_STORED, allowZip64=True) as archive:
        for name, array in arrays.items():
            plain = _plain(name, array)
            with archive.open(name + ".npy", "w", force_zip64=True) as entry:
                np.lib.format.write_array(entry, plain, allow_pickle=False)


def _plain(name: str, array: object) -> np.ndarray:
    """Return an output as a file can hold it: text as text of a fixed length, not as objects."""
    if array is None or isinstance(array, (list, tuple, dict)):
        kind = "nothing" if array is None else "a sequence or a map"
        raise BoardError("Output {!r} is {}, no tensor; only tensors can be written.".format(name, kind))
    plain = np.asanyarray(array)
    if plain.dtype == object:
        plain = plain.astype(np.str_)
    # Readers refuse an item of no bytes, which is what numpy makes of nothing but empty texts.
    return plain.astype("<U1") if plain.dtype.kind == "U" and not plain.dtype.itemsize else plain


def base_of(name: str) -> Tuple[str, Optional[int]]:
    """Return the sequence that ``name[3]`` is an element of, and its place; the name itself and None for any other."""
    found = _ELEMENT.fullmatch(name)
    return (found.group(1), int(found.group(2))) if found else (name, None)


def spread(values: Mapping[str, Any]) -> Dict[str, Any]:
    """Return values as files hold them: a sequence is one entry an element, ``name[0]`` and on; nothing is no entry."""
    entries: Dict[str, Any] = {}
    for name, value in values.items():
        if isinstance(value, (list, tuple)):
            entries.update(("{}[{}]".format(name, at), element) for at, element in enumerate(value))
        elif value is not None:
            entries[name] = value
    return entries


def gather(inputs: Sequence[Tensor], feed: Arrays) -> Dict[str, Any]:
    """Return a feed as a runtime takes it: elements as lists; an optional input that was not given is None."""
    values: Dict[str, Any] = {}
    for tensor in inputs:
        if not tensor.is_loose:
            values[tensor.name] = feed[tensor.name]
            continue
        places = sorted(place for base, place in map(base_of, feed) if base == tensor.name and place is not None)
        if places != list(range(len(places))):
            raise BoardError("The elements of {!r} are not counted from 0 without gaps.".format(tensor.name))
        given: Any = [feed["{}[{}]".format(tensor.name, place)] for place in places]
        if not places and tensor.dtype.startswith("optional("):
            given = feed.get(tensor.name)
        values[tensor.name] = given
    return values


def save_npy(folder: Path, arrays: Arrays) -> None:
    """Write one .npy per array, named after it; nothing where one of the names cannot be a file's."""
    for name in arrays:
        if "/" in name or name in ("", ".", ".."):
            raise BoardError("Output {!r} cannot be a file name; use --use-npz.".format(name))
    folder.mkdir(parents=True, exist_ok=True)
    for name, array in arrays.items():
        np.save(str(folder / (name + ".npy")), _plain(name, array), allow_pickle=False)


def _load(path: Path) -> np.ndarray:
    try:
        return read_npy(path)
    except (OSError, UnreadableError) as error:
        raise BoardError("{} cannot be read as .npy: {}.".format(path, error)) from error


class Tensor(NamedTuple):
    """An input or output of a model, as its runtime declares it."""

    name: str
    dtype: str
    shape: Tuple[Dimension, ...]

    @property
    def is_loose(self) -> bool:
        """Whether it is a sequence, or may be nothing: no single array stands for it."""
        return self.dtype.startswith(_LOOSE)

    def text(self) -> str:
        """Return it as a user would write it."""
        if self.is_loose:
            return "{} {}".format(self.name, self.dtype)
        return "{} {}[{}]".format(self.name, self.dtype, ", ".join(str(size) for size in self.shape))


def check_feed(inputs: Sequence[Tensor], feed: Arrays) -> None:
    """Refuse names, types and shapes that do not fit, all at once and before anything runs."""
    known = {tensor.name: tensor for tensor in inputs}
    loose = {tensor.name for tensor in inputs if tensor.is_loose}
    faults = [
        "{!r} is not an input".format(name) for name in feed if name not in known and base_of(name)[0] not in loose
    ]
    faults += ["{!r} is missing".format(name) for name in known if name not in feed and name not in loose]
    for name, array in feed.items():
        if name not in known or name in loose:
            continue
        tensor = known[name]
        is_text = tensor.dtype == "string" and array.dtype.kind in "UO"
        if tensor.dtype != array.dtype.name and not is_text:
            faults.append("{!r} is {}, the model takes {}".format(name, array.dtype.name, tensor.dtype))
        fits = len(array.shape) == len(tensor.shape) and all(
            not isinstance(size, int) or size == given for size, given in zip(tensor.shape, array.shape)
        )
        if not fits:
            faults.append("{!r} has shape {}, the model takes {}".format(name, list(array.shape), list(tensor.shape)))
    if faults:
        raise BoardError(
            "The data does not fit the model: {}. Its inputs: {}.".format(
                "; ".join(faults), "; ".join(tensor.text() for tensor in inputs)
            )
        )


def made_up_feed(inputs: Sequence[Tensor], shapes: Dict[str, Tuple[int, ...]]) -> Arrays:
    """Return data of the right types and shapes: normal numbers for floats, ones for the rest."""
    unknown = set(shapes) - {tensor.name for tensor in inputs}
    if unknown:
        raise BoardError(
            "A shape is given for {}, but the inputs are: {}.".format(
                ", ".join(sorted(unknown)), "; ".join(tensor.text() for tensor in inputs)
            )
        )
    generator = np.random.RandomState(0)
    feed = {}
    for tensor in inputs:
        if tensor.is_loose:
            raise BoardError("Input {} cannot be made up; give data.".format(tensor.text()))
        shape = shapes.get(tensor.name, tensor.shape)
        if not all(isinstance(size, int) and size >= 0 for size in shape):
            raise BoardError(
                "Input {} has no fixed shape. Give one: --shape '{}={}'.".format(
                    tensor.text(), tensor.name, ",".join(str(size) if isinstance(size, int) else "1" for size in shape)
                )
            )
        sizes = tuple(int(size) for size in shape if size is not None)
        if tensor.dtype.startswith("float"):
            feed[tensor.name] = generator.standard_normal(sizes).astype(tensor.dtype)
        elif tensor.dtype == "string":
            feed[tensor.name] = np.full(sizes, "", dtype=object)
        else:
            feed[tensor.name] = np.ones(sizes, dtype=tensor.dtype)
    return feed


class Model(Protocol):
    """A loaded model, whatever runs it."""

    @property
    def inputs(self) -> List[Tensor]:
        """Its inputs."""
        ...

    def run(self, feed: Arrays) -> Arrays:
        """Run it once."""
        ...


def infer(model: Model, feed: Arrays) -> Arrays:
    """Run a model; a batch larger than its fixed one goes through in pieces and comes back whole."""
    pieces = _pieces(model, feed)
    if pieces is None:
        check_feed(model.inputs, feed)
        return spread(model.run(gather(model.inputs, feed)))
    parts = []
    for at in range(pieces):
        part = {}
        for tensor in model.inputs:
            array = feed[tensor.name]
            size = array.shape[0] // pieces
            part[tensor.name] = array[at * size : (at + 1) * size]
        check_feed(model.inputs, part)
        parts.append(model.run(part))
    return {name: _joined(name, [part[name] for part in parts]) for name in parts[0]}


def _pieces(model: Model, feed: Arrays) -> Optional[int]:
    """Return into how many pieces the data must go, or None when it fits or cannot be made to."""
    counts = set()
    for tensor in model.inputs:
        array = feed.get(tensor.name)
        if array is None or array.ndim != len(tensor.shape) or not array.ndim or not isinstance(tensor.shape[0], int):
            return None
        if tensor.shape[0] < 1 or array.shape[0] % tensor.shape[0]:
            return None
        counts.add(array.shape[0] // tensor.shape[0])
    return counts.pop() if len(counts) == 1 and max(counts) > 1 else None


def _joined(name: str, parts: "list[np.ndarray]") -> np.ndarray:
    if any(part.ndim == 0 for part in parts):
        raise BoardError("Output {!r} has no batch axis; give the model one batch at a time.".format(name))
    return np.concatenate(parts, axis=0)
