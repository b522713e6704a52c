"""Objects that belong to the process that made them."""

from __future__ import annotations

from typing import NoReturn

from ropewalk.errors import NotCopiedError


class ProcessBound:
    """Cannot be pickled or copied: it is one of the library's own, which a copy would share."""

    def __reduce__(self) -> NoReturn:
        """Refuses, for pickle and copy."""
        raise NotCopiedError(
            f"a {type(self).__name__} belongs to the process that made it, and cannot be pickled "
            "or copied; another process joins by itself (ropewalk.init)"
        )
