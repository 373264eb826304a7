"""Sets that grow together: values that must have one scale, or one factor per channel."""

from collections.abc import Hashable, Iterable
from typing import Generic, TypeVar

_T = TypeVar("_T", bound=Hashable)


class Groups(Generic[_T]):
    """Disjoint sets; a set is known by the member that others were joined to first."""

    def __init__(self) -> None:
        self._parent: dict[_T, _T] = {}

    def find(self, member: _T) -> _T:
        """Return what the set of a member is known by."""
        while member in self._parent:
            member = self._parent[member]
        return member

    def join(self, first: _T, other: _T) -> None:
        """Make one set of two, known by what the first one's is."""
        head, tail = self.find(first), self.find(other)
        if head != tail:
            self._parent[tail] = head

    def sets(self, members: Iterable[_T]) -> list[list[_T]]:
        """Return the sets, their members in the order given."""
        found: dict[_T, list[_T]] = {}
        for member in members:
            found.setdefault(self.find(member), []).append(member)
        return list(found.values())
