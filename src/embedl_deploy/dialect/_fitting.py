"""Weights that no input can saturate, for one layer given as arrays: what a model in torch asks before it is judged."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from embedl_kernels import (
    Layer,
    Window,
    choose,
    conv_to_matrix,
    matrix_to_conv,
    product_to_matrix,
    remedies,
    sample_patches,
    sample_rows,
)

# Numbers that are kept of a layer's inputs; second moments of long rows need no more of them.
_NUMBERS = 1_000_000
_LEAST, _MOST = 256, 1024
# They need another operator or none at all; a model in torch changes its weights alone.
_IN_TORCH = frozenset({"reduced-inputs", "float"})


@dataclass(frozen=True)
class FittedWeights:
    """The weights of one layer by the remedy that costs least."""

    remedy: str
    codes: np.ndarray | None  # in the layout that was given; None where the numbers stay
    scale: np.ndarray  # by output channel
    cost_db: float
    sqnr_db: float
    measured: bool
    tried: Mapping[str, float]


def rows_wanted(length: int, samples: int) -> int:
    """Return how many rows of a length one of so many samples gives."""
    return max(1, -(-min(max(_NUMBERS // max(1, length), _LEAST), _MOST) // max(1, samples)))


def fill_up(rows: np.ndarray, channels: int) -> np.ndarray:
    """Fill up rows of an odd number of channels with a zero at every position, as `conv_to_matrix` does weights."""
    split = rows.reshape(*rows.shape[:2], -1, channels)
    return np.concatenate([split, np.zeros_like(split[..., :1])], -1).reshape(*rows.shape[:2], -1)


def layer_rows(
    value: np.ndarray, weight: Sequence[int], window: tuple[tuple[int, ...], ...] | None, samples: int
) -> np.ndarray:
    """Return some rows of what a layer reads, (groups, rows, K).

    Args:
        value: What it read.
        weight: The shape of its weight, output channels first.
        window: Of a convolution, its kernel, strides, padding before and after, dilations and groups.
        samples: Of how many samples this is one.
    """
    random = np.random.default_rng(0)
    count = rows_wanted(int(np.prod(weight[1:])), samples)
    if window is None:
        return sample_rows(value, count, random)
    batched = value if value.ndim == len(weight) else value[None]
    return sample_patches(batched, Window(*window), count, random)  # type: ignore[arg-type]


def fit_layer(
    real: np.ndarray,
    codes: np.ndarray,
    scale: np.ndarray,
    rows: Sequence[np.ndarray],
    step: float,
    *,
    groups: int,
    whole: bool,
) -> FittedWeights:
    """Choose the weights of one layer whose kernel adds products in pairs.

    Args:
        real: The weights before rounding, output channels first.
        codes: What they were rounded to.
        scale: Of the codes, by output channel.
        rows: What it reads, from `layer_rows`; none for no data.
        step: The step of its input.
        groups: Of a convolution; 0 for a product of matrices.
        whole: Whether kernels begin a new pair at every position of a convolution.
    """
    rounded = codes * scale.reshape(-1, *[1] * (codes.ndim - 1))
    span = scale.reshape(-1, *[1] * (codes.ndim - 1))
    # Where rounding was learned or the weight was clipped on purpose, the code is what was meant.
    meant = np.where(np.abs(real - rounded) <= 0.501 * span, real, rounded)

    def matrix(values: np.ndarray) -> np.ndarray:
        if not groups:
            return product_to_matrix(values, transposed=True)
        return conv_to_matrix(values, groups, whole=whole)

    shape, whole_codes = codes.shape, matrix(codes.astype(np.int8))
    inputs = np.concatenate(rows, axis=1) if rows else None
    if inputs is not None and groups and whole and shape[1] % 2:
        inputs = fill_up(inputs, shape[1])
    problem = Layer(matrix(meant), whole_codes, scale.reshape(whole_codes.shape[:2]).astype(np.float64), inputs, step)
    choice = choose(problem, [remedy for remedy in remedies() if remedy.name not in _IN_TORCH])
    fitted = choice.fitted
    made = None
    if choice.remedy != "none" and fitted.kind == "int8" and fitted.codes is not None:
        narrow = np.maximum(fitted.codes, -127)
        made = matrix_to_conv(narrow, shape) if groups else narrow.reshape(shape)
        scale = fitted.scale.reshape(-1)
    return FittedWeights(
        choice.remedy, None if made is None else made.astype(np.int8), scale.astype(np.float32),
        round(choice.cost_db, 3), round(choice.sqnr_db, 2), choice.measured,
        {name: round(cost, 2) for name, cost in choice.tried.items()},
    )  # fmt: skip
