"""What a GPU's models count beside multiply-adds and bytes at their nominal rates, in one place."""

from dataclasses import dataclass

__all__ = ["BUILT_IN", "GpuCosts"]


@dataclass(frozen=True, slots=True)
class GpuCosts:
    """Overheads, and shares of nominal rates that kernels reach; the same for every card.

    What is fitted was measured on one H100: candidates for 29 cases of TCCG in four types and for
    30 contractions drawn at random in three (python -m bench candidates --device gpu). What is
    chosen takes 4% longer than the best in the cases that were fitted, 2% in a third left out.
    Shares of the DRAM's bandwidth are of the nominal one of the largest product, an H200's. Other
    values are estimates. A calibration of one card replaces them.
    """

    # Seconds.
    launch: float = 3e-6  # from one launch to the next; estimated
    maps: float = 2e-6  # the host encodes two tensor maps where addresses are new; estimated
    blas: float = 5e-6  # in which cuBLAS begins and ends, beside its launch; estimated
    # Shares of the DRAM's bandwidth.
    streamed: float = 0.82  # by a kernel that reads and writes whole lines; estimated
    permuted: float = 0.80  # that reads lines in one order and writes in another; estimated
    tiled: float = 0.70  # by blocks that read and write tiles; fitted
    blas_streamed: float = 0.74  # by cuBLAS; fitted
    # Of what a store of a warp leaves of a sector, of a line: what it costs. Fitted.
    sectors_left: float = 2.0
    lines_left: float = 0.15
    # Shares of what is not the bottleneck; estimated.
    cached: float = 0.5  # of L2, which is left for what is read again
    hidden: float = 0.9  # of the other units' time goes on behind the slowest
    hidden_alone: float = 0.7  # the same where a multiprocessor has one block at a time; fitted
    # Clocks of a multiprocessor; estimated.
    block: float = 2000  # to begin and to end a block
    part: float = 100  # to add one part to a sum, several being read at once
    blas_tile: float = 1000  # to begin and to end a tile of cuBLAS; fitted
    wgmma_tile: float = 1000  # tables, barriers and the wait for the last products of a tile
    wgmma_store: float = 0.75  # a store by one thread with what leads to it
    # What parts of a sum must gain: they take memory, and the model is rough. Estimated.
    part_loss: float = 1.1
    # Shares of what cuBLAS's largest tile could reach, by the unit; fitted.
    blas_tf32: float = 0.80
    blas_half: float = 0.86
    blas_f64: float = 1.13
    blas_core: float = 0.85


BUILT_IN = GpuCosts()
