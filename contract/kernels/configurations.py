"""Legal kernel configurations by architecture, each with the reason it is legal and good."""

from dataclasses import dataclass

from contract.errors import NotSupportedError

__all__ = ["ARCHITECTURES", "ELEMENTWISE", "Architecture", "ElementwiseRow", "architecture_of"]


@dataclass(frozen=True, slots=True)
class Architecture:
    """A compute capability and the table of configurations that serves it.

    ``multiprocessors`` is that of the largest product: it fixes how work is split, so that a
    result has the same bits on every card of an architecture.
    """

    capability: int
    table: int
    multiprocessors: int


ARCHITECTURES = (
    Architecture(60, 60, 56),  # Tesla P100; everything from 6.0 to below 8.0
    Architecture(80, 80, 108),  # A100
    Architecture(90, 90, 132),  # H100, H200
    Architecture(100, 100, 148),  # B200
)


def architecture_of(capability: int) -> Architecture:
    """The newest known architecture that is not newer than the card (10 major + minor).

    Below 6.0 there is none: NotSupportedError.
    """
    older = [each for each in ARCHITECTURES if each.capability <= capability]
    if not older:
        raise NotSupportedError(
            f"A GPU of compute capability 6.0 or more is needed: this one has "
            f"{capability // 10}.{capability % 10}."
        )
    return older[-1]


@dataclass(frozen=True, slots=True)
class ElementwiseRow:
    """Tiles of permutations and elementwise operations; reasons are beside the tables."""

    small_side: int  # cells along each side of a tile, cells of up to 4 bytes
    large_side: int  # the same for larger cells
    stream_vectors: int  # vectors a thread moves where nothing is turned
    stream_elements: int  # from so many elements on; below, one vector each fills the card better


# 64 x 64 cells of 4 bytes are 16.6 KB with padding, 32 x 32 of 16 bytes the same: six blocks of
# 256 threads fit the 100 KB that every card leaves, and 16 loads of 16 bytes are in flight in each
# group of four threads. Rows of a tile are 128 bytes or more. From 8.0 on a card has more memory
# in flight to fill, so that a thread that only streams moves four vectors, before it two.
_WIDE = ElementwiseRow(64, 32, 4, 1 << 20)
ELEMENTWISE = {
    60: ElementwiseRow(64, 32, 2, 1 << 20),
    80: _WIDE,
    90: _WIDE,
    100: _WIDE,
}
