"""Members of a container, and which of them nobody has read: a file holds nothing beside what it claims."""

from __future__ import annotations

from collections.abc import ItemsView, Iterator, Mapping, ValuesView

from .archive import MANIFEST, Member
from .canonical import ContainerError


class Members(Mapping[str, Member]):
    """Members by name; one that is asked for by name is read, walking through all of them reads none.

    >>> found = Members({"a": b"1", "b": b"2"})
    >>> found["a"], len(found.values()), found.unread
    (b'1', 2, ('b',))
    """

    def __init__(self, members: Mapping[str, Member]) -> None:
        self._members = members
        self._read = {MANIFEST}

    def __getitem__(self, name: str) -> Member:
        found = self._members[name]
        self._read.add(name)
        return found

    def __contains__(self, name: object) -> bool:
        return name in self._members

    def __iter__(self) -> Iterator[str]:
        return iter(self._members)

    def __len__(self) -> int:
        return len(self._members)

    def items(self) -> ItemsView[str, Member]:
        """All of them, unread."""
        return self._members.items()

    def values(self) -> ValuesView[Member]:
        """All of them, unread."""
        return self._members.values()

    @property
    def unread(self) -> tuple[str, ...]:
        """Names that nobody has asked for, in order."""
        return tuple(sorted(set(self._members) - self._read))

    def require_read(self) -> None:
        """`ContainerError` that names the first one that nobody has read."""
        if self.unread:
            raise ContainerError(f"member {self.unread[0]!r}", "belongs to nothing that the file claims")
