// FP8, heads of up to 128 elements.

#include "fp8_kernel.cuh"

namespace nvte {
namespace sm90_backward {
namespace fp8_heads {

template Instance instance<64, false, E4M3>();
template Instance instance<64, false, E5M2>();
template Instance instance<64, true, E4M3>();
template Instance instance<64, true, E5M2>();
template Instance instance<128, false, E4M3>();
template Instance instance<128, false, E5M2>();
template Instance instance<128, true, E4M3>();
template Instance instance<128, true, E5M2>();
template void (*keys_kernel_of<64>())(Problem);
template void (*keys_kernel_of<128>())(Problem);

}  // namespace fp8_heads
}  // namespace sm90_backward
}  // namespace nvte
