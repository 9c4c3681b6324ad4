// The engine, compiled once: all that kernels call, and the launch.
#include "launch.h"
#include "rounding.h"

namespace emu {

#define EMU_SIZES(result, name)               \
  template result name<1>(uint64_t);          \
  template result name<2>(uint64_t);          \
  template result name<4>(uint64_t);          \
  template result name<8>(uint64_t);          \
  template result name<16>(uint64_t);
EMU_SIZES(const char *, global_read)
EMU_SIZES(const char *, shared_read)
EMU_SIZES(const char *, local_read)
EMU_SIZES(const char *, param_read)
EMU_SIZES(const char *, const_read)
EMU_SIZES(const char *, generic_read)
EMU_SIZES(char *, global_write)
EMU_SIZES(char *, shared_write)
EMU_SIZES(char *, local_write)
EMU_SIZES(char *, generic_write)
EMU_SIZES(char *, global_atomic)
EMU_SIZES(char *, shared_atomic)
EMU_SIZES(char *, generic_atomic)

template void copy_async<4>(uint64_t, uint64_t, int);
template void copy_async<8>(uint64_t, uint64_t, int);
template void copy_async<16>(uint64_t, uint64_t, int);

template uint32_t match(uint32_t, uint32_t, bool);
template uint32_t match(uint64_t, uint32_t, bool);
template int32_t reduce_warp(int32_t, uint32_t, int32_t (*)(int32_t, int32_t));
template uint32_t reduce_warp(uint32_t, uint32_t, uint32_t (*)(uint32_t, uint32_t));

#define EMU_MMA(A, B, C, ...) template void mma(Fragments<A, B, C, __VA_ARGS__> &);
EMU_MMA(Tf32, Tf32, float, 2, 1, 4)
EMU_MMA(Tf32, Tf32, float, 4, 2, 4)
EMU_MMA(F16, F16, float, 2, 1, 4)
EMU_MMA(F16, F16, float, 4, 2, 4)
EMU_MMA(Bf16, Bf16, float, 2, 1, 4)
EMU_MMA(Bf16, Bf16, float, 4, 2, 4)
EMU_MMA(S8, S8, int32_t, 2, 1, 4)
EMU_MMA(S8, S8, int32_t, 4, 2, 4)
EMU_MMA(S8, U8, int32_t, 2, 1, 4)
EMU_MMA(S8, U8, int32_t, 4, 2, 4)
EMU_MMA(U8, S8, int32_t, 2, 1, 4)
EMU_MMA(U8, S8, int32_t, 4, 2, 4)
EMU_MMA(U8, U8, int32_t, 2, 1, 4)
EMU_MMA(U8, U8, int32_t, 4, 2, 4)
EMU_MMA(F64, F64, double, 1, 1, 2)
EMU_MMA(F64, F64, double, 2, 1, 4)
EMU_MMA(F64, F64, double, 4, 2, 4)
EMU_MMA(F64, F64, double, 8, 4, 4)

#define EMU_WGMMA(T) template void wgmma<T>(float *, int, const uint32_t *, SharedTile, SharedTile, bool, float);
EMU_WGMMA(Tf32)
EMU_WGMMA(F16)
EMU_WGMMA(Bf16)

#define EMU_TO_INTEGER(bits)                     \
  template int##bits##_t to_integer(double, Round, bool); \
  template uint##bits##_t to_integer(double, Round, bool);
EMU_TO_INTEGER(8)
EMU_TO_INTEGER(16)
EMU_TO_INTEGER(32)
EMU_TO_INTEGER(64)

}  // namespace emu

extern "C" int emu_launch(const emu::Request *request, const emu::Module *module, emu::Fault *report) {
  return emu::launch(request, module, report);
}