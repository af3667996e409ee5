"""What the index refuses. The messages are what a client reads after `ERR `."""


class BadMemory(ValueError):
    """A request that this memory cannot take."""


class DimensionMismatch(BadMemory):
    """A vector of another width."""

    def __init__(self, want: int, got: int) -> None:
        super().__init__(f"wrong vector dimension, expected {want} got {got}")
