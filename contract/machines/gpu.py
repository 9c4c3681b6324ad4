"""The GPUs that are known: what a multiprocessor does in a clock, what memory moves in a second.

Rates, clocks and bandwidths are those of NVIDIA's data sheets and architecture white papers for
the product named beside each row. No figure was measured for this table; where no source is named
it is an estimate, and says so.
"""

from dataclasses import dataclass, replace

from contract.descriptors.compute_types import is_complex
from contract.errors import NotSupportedError
from contract.machines.gpu_costs import BUILT_IN, GpuCosts

__all__ = ["ARCHITECTURES", "Architecture", "GpuRates", "architecture_of"]


@dataclass(frozen=True, slots=True)
class GpuRates:
    """Multiply-adds of real numbers per clock of one multiprocessor; 0: it has no such unit.

    ``single`` and ``double`` are the CUDA cores', the others the tensor cores' at their peak:
    ``half`` float16 and bfloat16 summed in float32. ``mma`` is the part of the peak of tf32, half
    and int8 that mma.sync reaches; that of f64 is all of it.
    """

    single: float
    double: float
    tf32: float = 0
    half: float = 0
    int8: float = 0
    f64: float = 0
    mma: float = 1

    def core(self, dtype: str) -> float:
        """Multiply-adds of ``dtype`` by the CUDA cores."""
        real = 4 if is_complex(dtype) else 1
        if dtype in ("int64", "uint64"):
            return self.single / 10  # in several instructions of 32 bits; estimated
        return (self.double if dtype in ("float64", "complex128") else self.single) / real

    def tensor(self, unit: str) -> float:
        """Multiply-adds of the column ``unit`` by mma.sync."""
        peak = float(getattr(self, unit))
        return peak if unit == "f64" else self.mma * peak


@dataclass(frozen=True, slots=True)
class Architecture:
    """A compute capability, the table of configurations that serves it, and how fast it is.

    Numbers are those of the largest product: they fix how work is split, so that a result has the
    same bits on every card of an architecture. ``shared`` is the shared memory of one
    multiprocessor, ``l2_bytes`` the cache of all (bytes); ``clock`` is in Hz, ``dram`` bytes per
    second, ``l2`` bytes from L2 per clock of one multiprocessor. ``latency`` are clocks from a load
    to its use. ``costs`` are what its kernels take beside all that. ``wgmma``: it has TMA and
    wgmma, and products may use them.
    """

    capability: int
    table: int
    multiprocessors: int
    shared: int
    clock: float
    dram: float
    l2_bytes: int
    l2: float
    latency: int
    rates: GpuRates
    costs: GpuCosts = BUILT_IN
    allows_tf32: bool = True
    wgmma: bool = False

    @property
    def tf32(self) -> bool:
        """Whether products may be formed in tf32."""
        return self.allows_tf32 and self.rates.tf32 > 0

    @property
    def blas_workspace(self) -> int:
        """The bytes that cuBLAS has for itself, by NVIDIA's documentation."""
        return (32 if self.capability >= 90 else 4) << 20

    def without_tf32(self) -> "Architecture":
        """The same, every product of float32 formed without tf32."""
        return replace(self, allows_tf32=False)

    def without_wgmma(self) -> "Architecture":
        """The same, no product formed by TMA and wgmma."""
        return replace(self, wgmma=False)

    def pass_seconds(self, moved: int) -> float:
        """One launch that reads and writes ``moved`` bytes once, in any order."""
        return self.costs.launch + moved / (self.costs.permuted * self.dram)

    @property
    def streamed(self) -> float:
        """Bytes a second to and from DRAM by a kernel that reads and writes whole lines."""
        return self.costs.streamed * self.dram

    @property
    def delivered(self) -> float:
        """Bytes a second from L2 to all multiprocessors."""
        return self.multiprocessors * self.l2 * self.clock


# 8.0 reads 5120 bytes a clock from L2 (A100 white paper), 47 for each multiprocessor. The other
# rates of L2 are estimates: the same on cards with HBM from then on, less on the others. Latencies,
# of a DRAM that is busy, are estimates too. On 9.0 mma.sync reaches some 5/8 of the peak of wgmma
# (Luo et al., Benchmarking and Dissecting the Nvidia Hopper GPU Architecture, 2024); for 10.0 its
# rate is taken as 8.0's.
ARCHITECTURES = (
    # Tesla P100; everything from 6.0 to below 8.0
    Architecture(
        *(60, 60, 56, 64 << 10, 1.48e9, 0.732e12, 4 << 20, 24, 700),
        GpuRates(64, 32),
    ),
    # A100 SXM 80 GB
    Architecture(
        *(80, 80, 108, 164 << 10, 1.41e9, 2.039e12, 40 << 20, 47, 700),
        GpuRates(64, 32, 512, 1024, 2048, 64),
    ),
    # RTX A6000
    Architecture(
        *(86, 80, 84, 100 << 10, 1.80e9, 0.768e12, 6 << 20, 32, 700),
        GpuRates(128, 2, 256, 512, 1024),
    ),
    # RTX 6000 Ada
    Architecture(
        *(89, 80, 142, 100 << 10, 2.50e9, 0.960e12, 96 << 20, 32, 700),
        GpuRates(128, 2, 256, 512, 1024),
    ),
    # H200 SXM
    Architecture(
        *(90, 90, 132, 228 << 10, 1.98e9, 4.8e12, 50 << 20, 47, 800),
        GpuRates(128, 64, 1024, 2048, 4096, 128, mma=5 / 8),
        wgmma=True,
    ),
    # B200
    Architecture(
        *(100, 100, 148, 228 << 10, 1.965e9, 8.0e12, 126 << 20, 47, 800),
        GpuRates(128, 64, 2048, 4096, 8192, 64, mma=1 / 4),
    ),
    # RTX PRO 6000 Blackwell
    Architecture(
        *(120, 100, 188, 100 << 10, 2.60e9, 1.792e12, 128 << 20, 32, 800),
        GpuRates(128, 2, 256, 512, 1024),
    ),
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
