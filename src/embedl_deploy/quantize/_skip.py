"""Which layers the user wants left alone: by instance, by type, by qualified name."""

from collections.abc import Collection, Iterable
from difflib import get_close_matches

from torch import fx

from embedl_deploy._graph import Network
from embedl_deploy.errors import QuantizationError, known
from embedl_deploy.quantize._config import Member, ModulesToSkip


class Skip:
    """The user's wishes, resolved against one network."""

    def __init__(self, network: Network, wishes: ModulesToSkip) -> None:
        self._network = network
        self._stub = self._resolve(wishes.stub, "stub")
        self._weight = self._resolve(wishes.weight, "weight")
        self._smooth = self._resolve(wishes.smooth, "smooth")

    def covers_stub(self, node: fx.Node) -> bool:
        """Say whether the values of a layer stay float."""
        return node in self._stub

    def covers_weight(self, node: fx.Node) -> bool:
        """Say whether the weights of a layer stay float."""
        return node in self._weight

    def covers_smooth(self, node: fx.Node) -> bool:
        """Say whether a layer is not smoothed."""
        return node in self._smooth

    def _resolve(self, members: Collection[Member], where: str) -> set[fx.Node]:
        """Return the nodes that any member means; a member that means none is an error."""
        if isinstance(members, str) or not isinstance(members, Collection):
            raise QuantizationError(f"skip.{where} is {members!r}; give a list of modules, module types or names.")
        found: set[fx.Node] = set()
        for member in members:
            means = {node for node in self._layers() if self._means(member, node)}
            if not means:
                raise QuantizationError(self._nothing(member, where))
            found |= means
        return found

    def _layers(self) -> Iterable[fx.Node]:
        return (node for node in self._network.graph.nodes if node.op == "call_module")

    def _means(self, member: Member, node: fx.Node) -> bool:
        """Say whether a member means this layer."""
        module = self._network.module_of(node)
        assert module is not None
        if isinstance(member, str):
            names = (str(node.target), *self._network.origins_of(node))
            kinds = {type(part).__name__ for part in module.modules()}
            return member in kinds or any(name == member or name.startswith(f"{member}.") for name in names)
        if isinstance(member, type):
            return any(isinstance(part, member) for part in module.modules())
        if any(part is member for part in module.modules()):
            return True
        # The transformed network has its own module objects around the user's parameters.
        theirs = {id(parameter) for parameter in member.parameters()}
        return any(id(parameter) in theirs for parameter in module.parameters())

    def _nothing(self, member: object, where: str) -> str:
        """Say that a member means nothing, and what would."""
        names = sorted({name for node in self._layers() for name in self._network.origins_of(node)})
        if isinstance(member, str):
            close = get_close_matches(member, names, n=3)
            hint = f"did you mean {known(close)}?" if close else f"layers are called, for example, {known(names[:5])}."
            return f"'{member}' was to be skipped, and no layer or type of layer is called so; {hint}"
        what = f"the type {member.__name__}" if isinstance(member, type) else f"a {type(member).__name__}"
        return (
            f"skip.{where} has {what}, which is no part of this model; give modules of the model that was transformed, "
            "module types in it, or qualified names."
        )
