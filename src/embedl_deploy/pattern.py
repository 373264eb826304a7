"""The seam for pattern authors: what a pattern matches, when it refuses, what it puts in place.

A pattern is a class with a `phase`, a `tree` and `replace`; `check` may refuse with a reason.
The tree reads in the order of the data:

    Chain(Op(nn.Conv2d, name="conv"), Maybe(Op(nn.BatchNorm2d, name="bn")), Op(nn.ReLU, name="act"))

    Op(*kinds)      one node: a module of exactly these types, one of these functions, or a dotted name (".t", a method)
    Maybe(op)       the node may be absent
    Repeat(op)      the node any number of times, in a row; with no kinds, any elementwise one
    Fork(op, a, b)  a node where two branches meet, in either order; `Value(name)` is a branch that may be anything
    Chain(...)      one after the other

Matching is exact on types because a subclass may have another `forward`; one that changes no method of torch's layer
counts as that layer.
This module matches nothing and edits nothing; it is the vocabulary.
"""

import enum
import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, TypeGuard, TypeVar, overload

import torch
from torch import nn

from embedl_deploy.errors import PatternError, quoted_list

if TYPE_CHECKING:
    from torch import fx

__all__ = [
    "ELEMENTWISE",
    "Call",
    "Chain",
    "Expand",
    "Fork",
    "FusionPattern",
    "Kind",
    "Match",
    "Maybe",
    "Op",
    "Part",
    "PassThrough",
    "Pattern",
    "Phase",
    "Point",
    "Refusal",
    "Repeat",
    "Replacement",
    "Shape",
    "Value",
    "View",
    "When",
    "is_pattern",
]

Kind = type[nn.Module] | Callable[..., object] | str
Shape = tuple[int, ...]
_Module = TypeVar("_Module", bound=nn.Module)

ELEMENTWISE: tuple[type[nn.Module], ...] = (
    nn.Identity, nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout,
    nn.ReLU, nn.ReLU6, nn.LeakyReLU, nn.ELU, nn.GELU, nn.SiLU, nn.Mish, nn.Sigmoid, nn.Tanh,
    nn.Hardswish, nn.Hardsigmoid, nn.Hardtanh, nn.Softplus,
)  # fmt: skip
"""Modules that act on every element alone; what a `Repeat` without kinds accepts."""


class Phase(enum.Enum):
    """The stage of the pipeline a pattern belongs to."""

    CONVERSION = "conversion"
    FUSION = "fusion"
    SMOOTH = "smooth"
    QUANTIZED = "quantized"


class Point(enum.Enum):
    """A place where a quantized pattern carries a quantize/dequantize pair."""

    INPUT = "input"
    RESIDUAL_INPUT = "residual input"
    OUTPUT = "output"
    WEIGHT = "weight"
    PRODUCT = "matrix products"


class When(enum.Enum):
    """What must be quantized around a layer before it is quantized itself."""

    ALWAYS = "always"
    INPUTS = "every input is quantized"
    OUTPUT = "a reader quantizes the result"


@dataclass(frozen=True)
class Refusal:
    """Why a match is not used.

    A pattern author gives the reason; the plan adds which pattern and where.
    """

    reason: str
    pattern: str = ""
    place: str = ""
    # `False` keeps it out of reports: the nodes fit the tree but nobody would expect the rewrite there
    informative: bool = True

    def __str__(self) -> str:
        return f"{self.pattern} at '{self.place}': {self.reason}" if self.pattern else self.reason


@dataclass(frozen=True, init=False)
class Op:
    """One node of the graph.

    Args:
        kinds: Module types (exact), functions, or dotted names of either, for packages that need not be installed.
        name: How `Match` refers to the node; the first kind's name in lower case when absent.
    """

    kinds: tuple[Kind, ...]
    name: str
    accepts: frozenset[Kind] = field(repr=False, compare=False)

    def __init__(self, *kinds: Kind, name: str = "") -> None:
        first = kinds[0] if kinds else "elementwise"
        default = first.rpartition(".")[2] if isinstance(first, str) else getattr(first, "__name__", "op")
        object.__setattr__(self, "kinds", kinds or ELEMENTWISE)
        object.__setattr__(self, "accepts", frozenset(kinds or ELEMENTWISE))
        object.__setattr__(self, "name", name or default.lower())


@dataclass(frozen=True)
class Value:
    """Any value; becomes a named input of the match."""

    name: str


@dataclass(frozen=True)
class Maybe:
    """A node that may be absent."""

    op: Op


@dataclass(frozen=True)
class Repeat:
    """A node that may come any number of times in a row, up to `most`; repeats are named ``name``, ``name_1``, ..."""

    op: Op = field(default_factory=Op)
    most: int = 4


@dataclass(frozen=True)
class Fork:
    """A node with two operands, each the end of a branch.

    The branch that took more steps from the inputs is tried first for `first`, so that a residual block's long way
    is the main one; unless `ordered`, the other order is tried too.
    """

    op: Op
    first: "Chain | Op | Value"
    second: "Chain | Op | Value"
    ordered: bool = False


@dataclass(frozen=True, init=False)
class Chain:
    """Parts one after the other, in the order of the data; a `Fork` can only be the first."""

    parts: tuple["Op | Maybe | Repeat | Fork", ...]

    def __init__(self, *parts: "Op | Maybe | Repeat | Fork") -> None:
        if not parts:
            raise PatternError("Chain() is empty; give it at least one Op.")
        if any(isinstance(part, Fork) for part in parts[1:]):
            raise PatternError(
                "a Fork can only be the first part of a Chain: its branches are where the data comes from."
            )
        if all(isinstance(part, Maybe | Repeat) for part in parts):
            raise PatternError("a Chain needs one part that must be there; all of these are optional.")
        object.__setattr__(self, "parts", parts)


Part = Chain | Op | Maybe | Repeat | Fork | Value


class View(ABC):
    """What a match can ask about the graph around it."""

    @abstractmethod
    def module_of(self, node: "fx.Node") -> nn.Module | None:
        """Return the module a node calls, `None` for a node that calls a function."""

    @abstractmethod
    def tensor_of(self, node: "fx.Node") -> torch.Tensor | None:
        """Return the parameter, buffer or constant a node reads, `None` for a computed value."""

    @abstractmethod
    def shape_of(self, node: "fx.Node") -> Shape | None:
        """Return the shape a node has for the example inputs, `None` when there are none or it is no tensor."""

    @abstractmethod
    def dtype_of(self, node: "fx.Node") -> torch.dtype | None:
        """Return the element type a node has for the example inputs, `None` when there are none."""

    @abstractmethod
    def sharers_of(self, node: "fx.Node") -> tuple[str, ...]:
        """Return the places that read a parameter of this node's module as well."""

    @abstractmethod
    def place_of(self, node: "fx.Node") -> str:
        """Return the qualified name of the node in the user's model."""


@dataclass(frozen=True)
class Match:
    """Nodes that a pattern's tree fits."""

    ops: Mapping[str, "fx.Node"]  # members by the names of their `Op` in the tree, in the order of the data
    # Values that enter the match, in the order of the tree; `replace`'s module is called with these
    inputs: tuple["fx.Node", ...]
    names: Mapping[str, int]  # the names among `inputs` that the tree gives (`Value`), as positions
    output: "fx.Node"  # the member whose value leaves the match
    view: View = field(repr=False, compare=False)

    def __contains__(self, name: object) -> bool:
        return name in self.ops

    def node(self, name: str) -> "fx.Node":
        """Return the member with this name in the tree.

        Raises:
            PatternError: The tree names no such member, or a `Maybe` left it out here.
        """
        if name not in self.ops:
            raise PatternError(
                f"this match at '{self.place}' has no member '{name}'; it has: {quoted_list(self.ops)}. "
                f"A member that a Maybe may leave out is asked for with module_or_none('{name}')."
            )
        return self.ops[name]

    @overload
    def module(self, name: str) -> nn.Module: ...

    @overload
    def module(self, name: str, kind: type[_Module]) -> _Module: ...

    def module(self, name: str, kind: type[nn.Module] = nn.Module) -> nn.Module:
        """Return the module of a member; `kind` is what the tree says it is, for type checkers.

        Raises:
            PatternError: There is no such member, or it calls a function, so there is no module.
        """
        found = self.view.module_of(self.node(name))
        if found is None:
            raise PatternError(
                f"'{name}' is a call of a function at '{self.place}', not of a module; use node('{name}')."
            )
        assert isinstance(found, kind)
        return found

    def module_or_none(self, name: str) -> nn.Module | None:
        """Return the module of a member, or `None` when a `Maybe` left it out."""
        return self.module(name) if name in self.ops else None

    def input(self, name: str) -> "fx.Node":
        """Return the input that the tree names with `Value`."""
        if name not in self.names:
            raise PatternError(f"the tree names no input '{name}'; it names: {quoted_list(self.names)}.")
        return self.inputs[self.names[name]]

    def shape(self, value: "str | fx.Node") -> Shape | None:
        """Return a shape for the example inputs: of a member's output by name, or of any node."""
        return self.view.shape_of(self.node(value) if isinstance(value, str) else value)

    def dtype(self, value: "str | fx.Node") -> torch.dtype | None:
        """Return an element type for the example inputs, of a member's output by name, or of any node."""
        return self.view.dtype_of(self.node(value) if isinstance(value, str) else value)

    def sharers(self, name: str) -> tuple[str, ...]:
        """Return the places outside this match that read a parameter of this member."""
        own = {self.view.place_of(node) for node in self.ops.values()}
        return tuple(place for place in self.view.sharers_of(self.ops[name]) if place not in own)

    @property
    def leader(self) -> "fx.Node":
        """The member the match is named after: the first with weights, else the first."""
        for node in self.ops.values():
            module = self.view.module_of(node)
            if module is not None and next(module.parameters(), None) is not None:
                return node
        return next(iter(self.ops.values()))

    @property
    def place(self) -> str:
        """Where the match is in the user's model: the name of its leader."""
        return self.view.place_of(self.leader)


@dataclass(frozen=True)
class Call:
    """Put one module in place, called with some of the match's inputs."""

    module: nn.Module  # what is called
    # Positions among the match's inputs, `None` for an argument left out; all of them, in order, when `None`
    inputs: tuple[int | None, ...] | None = None

    def select(self, values: Sequence[Any]) -> tuple[Any, ...]:
        """Pick what the module is called with."""
        if self.inputs is None:
            return tuple(values)
        return tuple(None if position is None else values[position] for position in self.inputs)


@dataclass(frozen=True)
class Expand(Call):
    """Put the module's own steps into the graph, so that other patterns can match them.

    Its forward must be traceable by torch.fx.
    """

    # Modules of one type with equal keys have the same steps and are traced once; `None` traces each
    key: Hashable = None


@dataclass(frozen=True)
class PassThrough:
    """Remove the members: the input at this position takes the output's place."""

    position: int = 0


Replacement = nn.Module | Call | PassThrough


def is_pattern(candidate: object) -> "TypeGuard[type[Pattern]]":
    """Say whether something is a pattern class (not an instance)."""
    return isinstance(candidate, type) and issubclass(candidate, Pattern)


class Pattern:
    """Base of every pattern; never instantiated by users, the pipeline does."""

    phase: ClassVar[Phase]  # the stage it belongs to
    tree: ClassVar[Part]  # what it matches
    # It can only decide with example inputs; without them every match is refused, saying so
    needs_shapes: ClassVar[bool] = False
    lossy: ClassVar[bool] = False  # it changes results; off unless ``allow_lossy=True``
    qdq_points: ClassVar[Sequence[Point]] = ()  # where quantize/dequantize pairs go; empty means: not quantized
    qdq_when: ClassVar[When] = When.ALWAYS  # what must be quantized around it first
    # Its inputs and its output have one scale, because the target only moves the numbers
    one_scale: ClassVar[bool] = False

    def check(self, match: Match) -> Refusal | None:  # noqa: ARG002 (subclasses use it)
        """Return why this match must not be used, `None` when it may."""
        return None

    def replace(self, match: Match) -> Replacement:
        """Return what takes the match's place."""
        raise PatternError(f"{type(self).__name__} matches at '{match.place}' and has no replace; write one.")


class FusionPattern(Pattern):
    """A fusion that holds members of the match in one module."""

    phase = Phase.FUSION
    fused: ClassVar[type[nn.Module]]  # the module
    # The names of its arguments in the tree, in order, where they differ from its parameters' names; `None` is given
    # for one that a `Maybe` left out
    members: ClassVar[Sequence[str]] = ()

    def replace(self, match: Match) -> Replacement:
        """Hold the members in one module."""
        names = self.members or inspect.signature(self.fused).parameters
        return self.fused(*(match.module_or_none(name) for name in names))
