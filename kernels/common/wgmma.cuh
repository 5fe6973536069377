// Matrix products of warpgroups (compute capability 9.0, target sm_90a): D[64, N] += A B, float32
// accumulators.
//
// Thread t of a warpgroup holds D[16 (t / 32) + (t % 32) / 4 + 8 h][8 j + 2 (t % 4) + e] in
// d[4 j + 2 h + e]. An A operand in registers has 16-bit element [.. + 8 h][16 s + 8 g + 2 (t % 4)
// + e] of step s in half e of a[2 g + h]: a D of 16 columns, rounded in pairs, is one. 8-bit
// elements:
// [.. + 8 h][32 s + 16 g + 4 (t % 4) + e] in byte e of a[2 g + h].
#pragma once

#include "dtype.cuh"

namespace nvte {

// Registers and shared memory that were written before may be operands after this.
__device__ __forceinline__ void wgmma_fence() {
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
__device__ __forceinline__ void wgmma_commit_group() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
// Keeps the compiler from moving uses of these registers across this point.
template <int N>
__device__ __forceinline__ void pin(float (&d)[N]) {
#pragma unroll
  for (int i = 0; i < N; ++i) asm volatile("" : "+f"(d[i])::"memory");
}
template <int N>
__device__ __forceinline__ void pin(uint32_t (&a)[N]) {
#pragma unroll
  for (int i = 0; i < N; ++i) asm volatile("" : "+r"(a[i])::"memory");
}
// Waits until all but the last N groups are complete. Call pin() with their accumulators after it.
template <int N>
__device__ __forceinline__ void wgmma_wait_group() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" : : "n"(N) : "memory");
}

// Sets the number of registers of each thread; executed by every warp of a warpgroup.
template <int kCount>
__device__ __forceinline__ void setmaxnreg_inc() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" : : "n"(kCount));
}
template <int kCount>
__device__ __forceinline__ void setmaxnreg_dec() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" : : "n"(kCount));
}

// Hardware barriers 1 to 15 of the block; __syncthreads() is number 0. `threads`: how many wait at
// the barrier or arrive there.
__device__ __forceinline__ void bar_sync(int barrier, int threads) {
  asm volatile("bar.sync %0, %1;" : : "r"(barrier), "r"(threads) : "memory");
}
__device__ __forceinline__ void bar_arrive(int barrier, int threads) {
  asm volatile("bar.arrive %0, %1;" : : "r"(barrier), "r"(threads) : "memory");
}

// Operands in shared memory: panels of rows of 128 bytes with the 128-byte swizzle of tensor maps,
// `p` (a shared address) at a multiple of 1024 plus an offset inside the first row.
//
// K-major: a row is one m or n, its 128 bytes are 64 (8-bit: 128) of k. A step of k adds 32 bytes
// to `p`.
__device__ __forceinline__ uint64_t descriptor_k_major(uint32_t p) {
  return (uint64_t{1} << 62) | (uint64_t{64} << 32) | (uint64_t{1} << 16) | ((p & 0x3ffff) >> 4);
}
// MN-major (16-bit only): a row is one k, its 128 bytes are 64 of m or n; `panel`: bytes from one
// panel of 64 to the next. A step of k adds 16 rows, 2048 bytes.
__device__ __forceinline__ uint64_t descriptor_mn_major(uint32_t p, uint32_t panel) {
  return (uint64_t{1} << 62) | (uint64_t{64} << 32) | (uint64_t{panel >> 4} << 16) |
         ((p & 0x3ffff) >> 4);
}

// The operand `bytes` further, below the end of shared memory: an addition for each product instead
// of the whole.
__device__ __forceinline__ uint64_t advance_descriptor(uint64_t operand, uint32_t bytes) {
  return (operand & 0xffffffff00000000) |
         (static_cast<uint32_t>(operand) + static_cast<uint32_t>(bytes >> 4));
}

// One step of k: 32 bytes of 16-bit or 8-bit elements. `add`: whether D is added to or overwritten.
// Product<In, N>::shared<kMnA, kMnB>(d, a, b, add) has A in shared memory, registers<kMnB>() has it
// in registers; kMn*: that operand is MN-major.
template <class In, int N>
struct Product;
struct E4M3TimesE5M2;
struct E5M2TimesE4M3;

// clang-format off
#define NVTE_D0 "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7])
#define NVTE_D1 "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15])
#define NVTE_D2 "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23])
#define NVTE_D3 "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31])
#define NVTE_D4 "+f"(d[32]), "+f"(d[33]), "+f"(d[34]), "+f"(d[35]), "+f"(d[36]), "+f"(d[37]), "+f"(d[38]), "+f"(d[39])
#define NVTE_D5 "+f"(d[40]), "+f"(d[41]), "+f"(d[42]), "+f"(d[43]), "+f"(d[44]), "+f"(d[45]), "+f"(d[46]), "+f"(d[47])
#define NVTE_D6 "+f"(d[48]), "+f"(d[49]), "+f"(d[50]), "+f"(d[51]), "+f"(d[52]), "+f"(d[53]), "+f"(d[54]), "+f"(d[55])
#define NVTE_D7 "+f"(d[56]), "+f"(d[57]), "+f"(d[58]), "+f"(d[59]), "+f"(d[60]), "+f"(d[61]), "+f"(d[62]), "+f"(d[63])
#define NVTE_D8 "+f"(d[64]), "+f"(d[65]), "+f"(d[66]), "+f"(d[67]), "+f"(d[68]), "+f"(d[69]), "+f"(d[70]), "+f"(d[71])
#define NVTE_D9 "+f"(d[72]), "+f"(d[73]), "+f"(d[74]), "+f"(d[75]), "+f"(d[76]), "+f"(d[77]), "+f"(d[78]), "+f"(d[79])
#define NVTE_D10 "+f"(d[80]), "+f"(d[81]), "+f"(d[82]), "+f"(d[83]), "+f"(d[84]), "+f"(d[85]), "+f"(d[86]), "+f"(d[87])
#define NVTE_D11 "+f"(d[88]), "+f"(d[89]), "+f"(d[90]), "+f"(d[91]), "+f"(d[92]), "+f"(d[93]), "+f"(d[94]), "+f"(d[95])
#define NVTE_D12 "+f"(d[96]), "+f"(d[97]), "+f"(d[98]), "+f"(d[99]), "+f"(d[100]), "+f"(d[101]), "+f"(d[102]), "+f"(d[103])
#define NVTE_D13 "+f"(d[104]), "+f"(d[105]), "+f"(d[106]), "+f"(d[107]), "+f"(d[108]), "+f"(d[109]), "+f"(d[110]), "+f"(d[111])
#define NVTE_D14 "+f"(d[112]), "+f"(d[113]), "+f"(d[114]), "+f"(d[115]), "+f"(d[116]), "+f"(d[117]), "+f"(d[118]), "+f"(d[119])
#define NVTE_D15 "+f"(d[120]), "+f"(d[121]), "+f"(d[122]), "+f"(d[123]), "+f"(d[124]), "+f"(d[125]), "+f"(d[126]), "+f"(d[127])
#define NVTE_N0 "%0, %1, %2, %3, %4, %5, %6, %7"
#define NVTE_N1 ", %8, %9, %10, %11, %12, %13, %14, %15"
#define NVTE_N2 ", %16, %17, %18, %19, %20, %21, %22, %23"
#define NVTE_N3 ", %24, %25, %26, %27, %28, %29, %30, %31"
#define NVTE_N4 ", %32, %33, %34, %35, %36, %37, %38, %39"
#define NVTE_N5 ", %40, %41, %42, %43, %44, %45, %46, %47"
#define NVTE_N6 ", %48, %49, %50, %51, %52, %53, %54, %55"
#define NVTE_N7 ", %56, %57, %58, %59, %60, %61, %62, %63"
#define NVTE_N8 ", %64, %65, %66, %67, %68, %69, %70, %71"
#define NVTE_N9 ", %72, %73, %74, %75, %76, %77, %78, %79"
#define NVTE_N10 ", %80, %81, %82, %83, %84, %85, %86, %87"
#define NVTE_N11 ", %88, %89, %90, %91, %92, %93, %94, %95"
#define NVTE_N12 ", %96, %97, %98, %99, %100, %101, %102, %103"
#define NVTE_N13 ", %104, %105, %106, %107, %108, %109, %110, %111"
#define NVTE_N14 ", %112, %113, %114, %115, %116, %117, %118, %119"
#define NVTE_N15 ", %120, %121, %122, %123, %124, %125, %126, %127"
#define NVTE_D_32 NVTE_D0, NVTE_D1
#define NVTE_N_32 NVTE_N0 NVTE_N1
#define NVTE_D_48 NVTE_D0, NVTE_D1, NVTE_D2
#define NVTE_N_48 NVTE_N0 NVTE_N1 NVTE_N2
#define NVTE_D_56 NVTE_D0, NVTE_D1, NVTE_D2, "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27])
#define NVTE_N_56 NVTE_N0 NVTE_N1 NVTE_N2 ", %24, %25, %26, %27"
#define NVTE_D_64 NVTE_D0, NVTE_D1, NVTE_D2, NVTE_D3
#define NVTE_N_64 NVTE_N0 NVTE_N1 NVTE_N2 NVTE_N3
#define NVTE_D_80 NVTE_D0, NVTE_D1, NVTE_D2, NVTE_D3, NVTE_D4
#define NVTE_N_80 NVTE_N0 NVTE_N1 NVTE_N2 NVTE_N3 NVTE_N4
#define NVTE_D_96 NVTE_D0, NVTE_D1, NVTE_D2, NVTE_D3, NVTE_D4, NVTE_D5
#define NVTE_N_96 NVTE_N0 NVTE_N1 NVTE_N2 NVTE_N3 NVTE_N4 NVTE_N5
#define NVTE_D_112 NVTE_D0, NVTE_D1, NVTE_D2, NVTE_D3, NVTE_D4, NVTE_D5, NVTE_D6
#define NVTE_N_112 NVTE_N0 NVTE_N1 NVTE_N2 NVTE_N3 NVTE_N4 NVTE_N5 NVTE_N6
#define NVTE_D_128 NVTE_D0, NVTE_D1, NVTE_D2, NVTE_D3, NVTE_D4, NVTE_D5, NVTE_D6, NVTE_D7
#define NVTE_N_128 NVTE_N0 NVTE_N1 NVTE_N2 NVTE_N3 NVTE_N4 NVTE_N5 NVTE_N6 NVTE_N7
#define NVTE_D_160 NVTE_D0, NVTE_D1, NVTE_D2, NVTE_D3, NVTE_D4, NVTE_D5, NVTE_D6, NVTE_D7, NVTE_D8, NVTE_D9
#define NVTE_N_160 NVTE_N0 NVTE_N1 NVTE_N2 NVTE_N3 NVTE_N4 NVTE_N5 NVTE_N6 NVTE_N7 NVTE_N8 NVTE_N9
#define NVTE_D_192 NVTE_D0, NVTE_D1, NVTE_D2, NVTE_D3, NVTE_D4, NVTE_D5, NVTE_D6, NVTE_D7, NVTE_D8, NVTE_D9, NVTE_D10, NVTE_D11
#define NVTE_N_192 NVTE_N0 NVTE_N1 NVTE_N2 NVTE_N3 NVTE_N4 NVTE_N5 NVTE_N6 NVTE_N7 NVTE_N8 NVTE_N9 NVTE_N10 NVTE_N11
#define NVTE_D_256 NVTE_D0, NVTE_D1, NVTE_D2, NVTE_D3, NVTE_D4, NVTE_D5, NVTE_D6, NVTE_D7, NVTE_D8, NVTE_D9, NVTE_D10, NVTE_D11, NVTE_D12, NVTE_D13, NVTE_D14, NVTE_D15
#define NVTE_N_256 NVTE_N0 NVTE_N1 NVTE_N2 NVTE_N3 NVTE_N4 NVTE_N5 NVTE_N6 NVTE_N7 NVTE_N8 NVTE_N9 NVTE_N10 NVTE_N11 NVTE_N12 NVTE_N13 NVTE_N14 NVTE_N15


#define NVTE_PRODUCT_16(Tag, types, kN, n0, n1, n2, n3, n4, n5, n6)                               \
  template <>                                                                                     \
  struct Product<Tag, kN> {                                                                       \
    template <bool kMnA = false, bool kMnB = false>                                               \
    static __device__ __forceinline__ void shared(float (&d)[kN / 2], uint64_t a, uint64_t b,     \
                                                  bool add) {                                     \
      asm volatile(                                                                               \
          "{.reg .pred add;\nsetp.ne.b32 add, %" #n2 ", 0;\n"                                     \
          "wgmma.mma_async.sync.aligned.m64n" #kN "k16.f32." types " {" NVTE_N_##kN               \
          "}, %" #n0 ", %" #n1 ", add, 1, 1, %" #n3 ", %" #n4 ";}"                                \
          : NVTE_D_##kN                                                                           \
          : "l"(a), "l"(b), "r"(int{add}), "n"(int{kMnA}), "n"(int{kMnB}));                       \
    }                                                                                             \
    template <bool kMnB = false>                                                                  \
    static __device__ __forceinline__ void registers(float (&d)[kN / 2], const uint32_t (&a)[4],  \
                                                     uint64_t b, bool add) {                      \
      asm volatile(                                                                               \
          "{.reg .pred add;\nsetp.ne.b32 add, %" #n5 ", 0;\n"                                     \
          "wgmma.mma_async.sync.aligned.m64n" #kN "k16.f32." types " {" NVTE_N_##kN               \
          "}, {%" #n0 ", %" #n1 ", %" #n2 ", %" #n3 "}, %" #n4 ", add, 1, 1, %" #n6 ";}"          \
          : NVTE_D_##kN                                                                           \
          : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(int{add}), "n"(int{kMnB}));   \
    }                                                                                             \
  };

#define NVTE_PRODUCT_8(Tag, types, kN, n0, n1, n2, n3, n4, n5, n6)                                \
  template <>                                                                                     \
  struct Product<Tag, kN> {                                                                       \
    static __device__ __forceinline__ void shared(float (&d)[kN / 2], uint64_t a, uint64_t b,     \
                                                  bool add) {                                     \
      asm volatile(                                                                               \
          "{.reg .pred add;\nsetp.ne.b32 add, %" #n2 ", 0;\n"                                     \
          "wgmma.mma_async.sync.aligned.m64n" #kN "k32.f32." types " {" NVTE_N_##kN               \
          "}, %" #n0 ", %" #n1 ", add, 1, 1;}"                                                    \
          : NVTE_D_##kN                                                                           \
          : "l"(a), "l"(b), "r"(int{add}));                                                       \
    }                                                                                             \
    static __device__ __forceinline__ void registers(float (&d)[kN / 2], const uint32_t (&a)[4],  \
                                                     uint64_t b, bool add) {                      \
      asm volatile(                                                                               \
          "{.reg .pred add;\nsetp.ne.b32 add, %" #n5 ", 0;\n"                                     \
          "wgmma.mma_async.sync.aligned.m64n" #kN "k32.f32." types " {" NVTE_N_##kN               \
          "}, {%" #n0 ", %" #n1 ", %" #n2 ", %" #n3 "}, %" #n4 ", add, 1, 1;}"                    \
          : NVTE_D_##kN                                                                           \
          : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(int{add}));                   \
    }                                                                                             \
  };

#define NVTE_PRODUCTS(of, Tag, types)                                                             \
  of(Tag, types, 32, 16, 17, 18, 19, 20, 21, 22)                                                  \
  of(Tag, types, 48, 24, 25, 26, 27, 28, 29, 30)                                                  \
  of(Tag, types, 56, 28, 29, 30, 31, 32, 33, 34)                                                  \
  of(Tag, types, 64, 32, 33, 34, 35, 36, 37, 38)                                                  \
  of(Tag, types, 80, 40, 41, 42, 43, 44, 45, 46)                                                  \
  of(Tag, types, 96, 48, 49, 50, 51, 52, 53, 54)                                                  \
  of(Tag, types, 112, 56, 57, 58, 59, 60, 61, 62)                                                 \
  of(Tag, types, 128, 64, 65, 66, 67, 68, 69, 70)                                                 \
  of(Tag, types, 160, 80, 81, 82, 83, 84, 85, 86)                                                 \
  of(Tag, types, 192, 96, 97, 98, 99, 100, 101, 102)                                              \
  of(Tag, types, 256, 128, 129, 130, 131, 132, 133, 134)

NVTE_PRODUCTS(NVTE_PRODUCT_16, BF16, "bf16.bf16")
NVTE_PRODUCTS(NVTE_PRODUCT_16, F16, "f16.f16")
NVTE_PRODUCTS(NVTE_PRODUCT_8, E4M3, "e4m3.e4m3")
NVTE_PRODUCTS(NVTE_PRODUCT_8, E4M3TimesE5M2, "e4m3.e5m2")
NVTE_PRODUCTS(NVTE_PRODUCT_8, E5M2TimesE4M3, "e5m2.e4m3")
NVTE_PRODUCTS(NVTE_PRODUCT_8, E5M2, "e5m2.e5m2")
// clang-format on

#undef NVTE_PRODUCTS
#undef NVTE_PRODUCT_16
#undef NVTE_PRODUCT_8

}  // namespace nvte
