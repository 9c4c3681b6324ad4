"""Legal kernel configurations by architecture, each with the reason it is legal and good."""

from dataclasses import dataclass

from contract.errors import NotSupportedError

__all__ = [
    "ARCHITECTURES",
    "ELEMENTWISE",
    "GETT",
    "GETT_TILES",
    "REDUCE",
    "Architecture",
    "ElementwiseRow",
    "GettRow",
    "GettTile",
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
    ragged: int  # elements, the same where rows begin or end inside a vector
    split: int  # loads of that size that one block does by itself; more are shared out
    least: int  # of them for each block that shares


# 256 threads with 64 bytes in flight each take 40 to 60 registers, so that four blocks or more are
# resident: 64 KB in flight, above the 25 KB that 4.8 TB/s for 0.7 us ask of each of 132
# multiprocessors. Twice as many blocks even out their ends. A second launch costs as much as
# some eight loads of 16 KB by one block. The ends of ragged rows are loaded one element at a time,
# each guarded: for more than 16 at once (8 on 6.0) registers are spilled.
_RESIDENT = ReduceRow(blocks=8, flight=64, ragged=16, split=8, least=4)
REDUCE = {
    60: ReduceRow(blocks=8, flight=32, ragged=8, split=8, least=4),  # 0.7 TB/s need half of that
    80: _RESIDENT,
    90: _RESIDENT,
    100: _RESIDENT,
}


@dataclass(frozen=True, slots=True)
class GettTile:
    """A tile of a product: what a block computes, and how its threads share it.

    ``l`` x ``m`` x ``n`` elements of D in steps of ``k``; a thread has ``thread_m`` x
    ``thread_n`` of them, ``lanes_m`` x ``lanes_n`` threads lie side by side, and ``groups`` of
    threads share the k of a step. ``resident`` blocks fit a multiprocessor beside each other,
    which then does ``efficiency`` of the multiply-adds it could.
    """

    l: int  # noqa: E741 - the loop's name
    m: int
    n: int
    k: int
    thread_m: int
    thread_n: int
    lanes_m: int
    lanes_n: int
    groups: int
    resident: int
    efficiency: float
    reason: str

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return self.l * self.m * self.n // (self.thread_m * self.thread_n) * self.groups


@dataclass(frozen=True, slots=True)
class GettRow:
    """Rates of one multiprocessor that decide between tiles, per clock."""

    bytes: float  # from memory
    multiply_adds: float  # of float32
    step: int  # clocks from a load to its use: what a step takes at least
    block: int  # clocks to begin and to end a block
    launch: int  # clocks of a further launch


# All tiles keep two steps of both factors, with four elements of padding a row, in 48 KB of shared
# memory. Blocks of a thread are as large as 64 to 128 accumulator registers allow. ``resident`` is
# what registers and shared memory allow from 8.0 on.
GETT_TILES = {
    4: (
        GettTile(1, 128, 128, 8, 8, 8, 8, 4, 1, 2, 0.85, "large"),
        GettTile(1, 64, 64, 16, 8, 4, 8, 4, 1, 5, 0.70, "medium"),
        GettTile(1, 32, 32, 32, 4, 4, 8, 4, 2, 6, 0.50, "small"),
        GettTile(1, 16, 16, 64, 4, 4, 4, 4, 8, 6, 0.45, "small, long k"),
        GettTile(1, 128, 16, 16, 4, 4, 8, 4, 1, 6, 0.45, "few columns"),
        GettTile(1, 16, 128, 16, 4, 4, 4, 8, 1, 6, 0.45, "few rows"),
        GettTile(1, 256, 4, 16, 4, 1, 8, 4, 1, 4, 0.20, "matrix times vector"),
        GettTile(1, 4, 256, 16, 1, 4, 4, 8, 1, 4, 0.20, "vector times matrix"),
        GettTile(1, 4, 4, 256, 4, 4, 1, 1, 128, 4, 0.30, "dot product"),
        GettTile(32, 4, 4, 8, 4, 1, 1, 4, 1, 6, 0.20, "many tiny products"),
        GettTile(16, 8, 8, 8, 4, 2, 2, 4, 1, 6, 0.30, "many tiny products"),
        GettTile(8, 16, 16, 16, 4, 4, 4, 4, 1, 4, 0.40, "many small products"),
    ),
    8: (
        GettTile(1, 128, 64, 8, 8, 8, 8, 4, 1, 2, 0.85, "large"),
        GettTile(1, 64, 64, 8, 8, 4, 8, 4, 1, 3, 0.70, "medium"),
        GettTile(1, 32, 32, 16, 4, 4, 8, 4, 2, 4, 0.50, "small"),
        GettTile(1, 16, 16, 32, 4, 4, 4, 4, 8, 4, 0.45, "small, long k"),
        GettTile(1, 128, 16, 8, 4, 4, 8, 4, 1, 4, 0.45, "few columns"),
        GettTile(1, 16, 128, 8, 4, 4, 4, 8, 1, 4, 0.45, "few rows"),
        GettTile(1, 256, 4, 8, 4, 1, 8, 4, 1, 3, 0.20, "matrix times vector"),
        GettTile(1, 4, 256, 8, 1, 4, 4, 8, 1, 3, 0.20, "vector times matrix"),
        GettTile(1, 4, 4, 128, 4, 4, 1, 1, 128, 4, 0.30, "dot product"),
        GettTile(32, 4, 4, 8, 4, 1, 1, 4, 1, 4, 0.20, "many tiny products"),
        GettTile(16, 8, 8, 8, 4, 2, 2, 4, 1, 4, 0.30, "many tiny products"),
        GettTile(8, 16, 16, 8, 4, 4, 4, 4, 1, 4, 0.40, "many small products"),
    ),
    16: (
        GettTile(1, 64, 64, 8, 4, 4, 8, 4, 1, 2, 0.70, "large"),
        GettTile(1, 32, 32, 8, 4, 4, 8, 4, 2, 3, 0.60, "small"),
        GettTile(1, 16, 16, 16, 4, 4, 4, 4, 8, 3, 0.45, "small, long k"),
        GettTile(1, 64, 16, 8, 4, 2, 8, 4, 1, 4, 0.45, "few columns"),
        GettTile(1, 16, 64, 8, 2, 4, 4, 8, 1, 4, 0.45, "few rows"),
        GettTile(1, 128, 4, 8, 4, 1, 8, 4, 1, 3, 0.20, "matrix times vector"),
        GettTile(1, 4, 128, 8, 1, 4, 4, 8, 1, 3, 0.20, "vector times matrix"),
        GettTile(1, 4, 4, 64, 4, 4, 1, 1, 64, 4, 0.30, "dot product"),
        GettTile(16, 4, 4, 8, 4, 1, 1, 4, 1, 4, 0.20, "many tiny products"),
        GettTile(8, 8, 8, 8, 4, 2, 2, 4, 1, 4, 0.30, "many tiny products"),
        GettTile(4, 16, 16, 8, 4, 4, 4, 4, 1, 4, 0.40, "many small products"),
    ),
}
# Bandwidth and clock of the products named above, by multiprocessor.
GETT = {
    60: GettRow(10, 64, 700, 2000, 4000),
    80: GettRow(13, 64, 700, 2000, 4000),
    90: GettRow(18, 128, 800, 2000, 4000),
    100: GettRow(28, 128, 800, 2000, 4000),
}
