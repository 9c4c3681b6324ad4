// The instructions of Hopper (sm_90a): barriers that count bytes, copies of boxes by TMA, products of warpgroups.

namespace contract {

__device__ inline unsigned shared_address(const void *p) { return (unsigned)__cvta_generic_to_shared(p); }

struct Barrier {
  unsigned long long state;

  __device__ void init(int arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(this)), "r"(arrivals) : "memory");
  }
  __device__ void arrive() {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(this)) : "memory");
  }
  // Arrives, and lets the phase end only when so many bytes have come.
  __device__ void expect(int bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(this)), "r"(bytes)
                 : "memory");
  }
  // Waits until the phase of this parity is over.
  __device__ void wait(unsigned parity) {
    unsigned over;
    do {
      asm volatile(
          "{\n.reg .pred over;\n"
          "mbarrier.try_wait.parity.shared::cta.b64 over, [%1], %2;\n"
          "selp.u32 %0, 1, 0, over;\n}"
          : "=r"(over)
          : "r"(shared_address(this)), "r"(parity)
          : "memory");
    } while (!over);
  }
};

struct alignas(64) TensorMap {
  unsigned char opaque[128];  // a CUtensorMap
};

// Copies a box to shared memory; ``full`` counts its bytes.
__device__ inline void copy_box(void *to, const TensorMap *map, const int (&at)[5], Barrier &full) {
  asm volatile(
      "cp.async.bulk.tensor.5d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5, %6, %7}], [%2];"
      ::"r"(shared_address(to)), "l"(map), "r"(shared_address(&full)), "r"(at[0]), "r"(at[1]), "r"(at[2]), "r"(at[3]),
      "r"(at[4])
      : "memory");
}

template <int REGISTERS>
__device__ inline void take_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(REGISTERS));
}
template <int REGISTERS>
__device__ inline void leave_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(REGISTERS));
}

// Products read and write registers by themselves: the fence comes between other uses and the first of them, the
// wait until all but the youngest PENDING groups are done before the next use.
__device__ inline void fence_products() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ inline void commit_products() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int PENDING>
__device__ inline void wait_for_products() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(PENDING) : "memory");
}

// sum (64 x 2 COUNT) += A (64 x 32 bytes) B, both in shared memory; transposed: not along k.
template <class T, bool TRANSPOSED_A, bool TRANSPOSED_B, int COUNT>
__device__ inline void multiply_tiles(float (&sum)[COUNT], unsigned long long a, unsigned long long b) {
  static_assert(COUNT == 32 || COUNT == 64 || COUNT == 128);
#define CONTRACT_4(i) "+f"(sum[i]), "+f"(sum[i + 1]), "+f"(sum[i + 2]), "+f"(sum[i + 3])
#define CONTRACT_16(i) CONTRACT_4(i), CONTRACT_4(i + 4), CONTRACT_4(i + 8), CONTRACT_4(i + 12)
#define CONTRACT_32 "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31"
#define CONTRACT_64 CONTRACT_32 ",%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63"
#define CONTRACT_128 CONTRACT_64 ",%64,%65,%66,%67,%68,%69,%70,%71,%72,%73,%74,%75,%76,%77,%78,%79,%80,%81,%82,%83,%84,%85,%86,%87,%88,%89,%90,%91,%92,%93,%94,%95,%96,%97,%98,%99,%100,%101,%102,%103,%104,%105,%106,%107,%108,%109,%110,%111,%112,%113,%114,%115,%116,%117,%118,%119,%120,%121,%122,%123,%124,%125,%126,%127"
#define CONTRACT_SUMS_64 CONTRACT_16(0), CONTRACT_16(16)
#define CONTRACT_SUMS_128 CONTRACT_SUMS_64, CONTRACT_16(32), CONTRACT_16(48)
#define CONTRACT_SUMS_256 CONTRACT_SUMS_128, CONTRACT_16(64), CONTRACT_16(80), CONTRACT_16(96), CONTRACT_16(112)
#define CONTRACT_HALVES(N, TYPE, NAMES, A, B, TA, TB)                                                     \
  asm volatile("wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." TYPE "." TYPE " {" NAMES "}, " A ", " B   \
               ", 1, 1, 1, " TA ", " TB ";"                                                               \
               : CONTRACT_SUMS_##N                                                                        \
               : "l"(a), "l"(b), "n"((int)TRANSPOSED_A), "n"((int)TRANSPOSED_B))
#define CONTRACT_FLOATS(N, NAMES, A, B)                                                                   \
  asm volatile("wgmma.mma_async.sync.aligned.m64n" #N "k8.f32.tf32.tf32 {" NAMES "}, " A ", " B            \
               ", 1, 1, 1;"                                                                               \
               : CONTRACT_SUMS_##N                                                                        \
               : "l"(a), "l"(b))
  if constexpr (is_same<T, float>) {
    static_assert(!TRANSPOSED_A && !TRANSPOSED_B);
    if constexpr (COUNT == 32) CONTRACT_FLOATS(64, CONTRACT_32, "%32", "%33");
    else if constexpr (COUNT == 64) CONTRACT_FLOATS(128, CONTRACT_64, "%64", "%65");
    else CONTRACT_FLOATS(256, CONTRACT_128, "%128", "%129");
  } else if constexpr (is_same<T, Half>) {
    if constexpr (COUNT == 32) CONTRACT_HALVES(64, "f16", CONTRACT_32, "%32", "%33", "%34", "%35");
    else if constexpr (COUNT == 64) CONTRACT_HALVES(128, "f16", CONTRACT_64, "%64", "%65", "%66", "%67");
    else CONTRACT_HALVES(256, "f16", CONTRACT_128, "%128", "%129", "%130", "%131");
  } else {
    static_assert(is_same<T, BFloat16>);
    if constexpr (COUNT == 32) CONTRACT_HALVES(64, "bf16", CONTRACT_32, "%32", "%33", "%34", "%35");
    else if constexpr (COUNT == 64) CONTRACT_HALVES(128, "bf16", CONTRACT_64, "%64", "%65", "%66", "%67");
    else CONTRACT_HALVES(256, "bf16", CONTRACT_128, "%128", "%129", "%130", "%131");
  }
#undef CONTRACT_4
#undef CONTRACT_16
#undef CONTRACT_32
#undef CONTRACT_64
#undef CONTRACT_128
#undef CONTRACT_SUMS_64
#undef CONTRACT_SUMS_128
#undef CONTRACT_SUMS_256
#undef CONTRACT_HALVES
#undef CONTRACT_FLOATS
}

}  // namespace contract
