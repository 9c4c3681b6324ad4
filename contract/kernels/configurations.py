"""Legal kernel configurations by architecture, each with the reason it is legal and good."""

from dataclasses import dataclass

from contract.errors import NotSupportedError

__all__ = [
    "ARCHITECTURES",
    "ELEMENTWISE",
    "REDUCE",
    "Architecture",
    "ElementwiseRow",
    "ReduceRow",
    "architecture_of",
]


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


@dataclass(frozen=True, slots=True)
class ReduceRow:
    """How reductions are shared out; reasons are beside the tables."""

    blocks: int  # of 256 threads, for each multiprocessor
    flight: int  # bytes that a thread loads before it uses the first
    split: int  # loads of that size that one block does by itself; more are shared out
    least: int  # of them for each block that shares


# 256 threads with 64 bytes in flight each take 50 to 60 registers, so that four blocks are
# resident: 64 KB in flight, above the 25 KB that 4.8 TB/s for 0.7 us ask of each of 132
# multiprocessors. Twice as many blocks even out their ends. A second launch costs as much as
# some eight loads of 16 KB by one block.
_RESIDENT = ReduceRow(blocks=8, flight=64, split=8, least=4)
REDUCE = {
    60: ReduceRow(blocks=8, flight=32, split=8, least=4),  # 0.7 TB/s: half of that is enough
    80: _RESIDENT,
    90: _RESIDENT,
    100: _RESIDENT,
}
