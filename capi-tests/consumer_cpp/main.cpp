// An outside program in C++17, as one written for the C++ classes of this ABI:
// c++ -std=c++17 main.cpp $(pkg-config --cflags --libs nvte)
#include <nvte/nvtex.h>
#include <transformer_engine/cast.h>
#include <transformer_engine/transformer_engine.h>

#include <cstdio>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

using transformer_engine::DType;
using transformer_engine::TensorWrapper;

int main() {
  const std::vector<float> values = {0.5f, -1.5f, 70000.0f};
  const std::vector<unsigned char> expected = {0x38, 0xBE, 0x7B};  // the last: the largest, 57344
  std::vector<unsigned char> fp8(3);
  const std::unique_ptr<void, void (*)(void *)> in(nvtex_malloc(12), nvtex_free);
  const std::unique_ptr<void, void (*)(void *)> out(nvtex_malloc(3), nvtex_free);
  const std::unique_ptr<void, void (*)(void *)> scale_inv(nvtex_malloc(4), nvtex_free);
  nvtex_memcpy_to_device(in.get(), values.data(), 12, nullptr);

  const std::vector<std::size_t> shape = {3};
  TensorWrapper input(in.get(), shape, DType::kFloat32);
  TensorWrapper output(out.get(), shape, DType::kFloat8E5M2, nullptr, nullptr,
                       static_cast<float *>(scale_inv.get()));
  nvte_quantize(input.data(), output.data(), nullptr);
  nvtex_memcpy_to_host(fp8.data(), out.get(), 3, nullptr);
  nvtex_stream_synchronize(nullptr);
  std::printf("%s: %02x %02x %02x\n", nvtex_backend_name(), fp8[0], fp8[1], fp8[2]);
  if (fp8 != expected) return 1;

  TensorWrapper shorter(out.get(), std::vector<std::size_t>{2}, DType::kFloat8E5M2, nullptr,
                        nullptr, static_cast<float *>(scale_inv.get()));
  // A function of C fails as the error mode says, which the C++ headers leave alone.
  nvte_quantize(input.data(), shorter.data(), nullptr);
  if (nvtex_last_status() != NVTEX_INVALID_ARGUMENT) return 1;
  nvtex_clear_error();
  nvtex_set_error_mode(NVTEX_ERROR_THROW);
  try {
    nvte_quantize(input.data(), shorter.data(), nullptr);
  } catch (const std::runtime_error &error) {
    std::printf("%s\n", error.what());
    return std::string(error.what()).find("nvte_quantize") == std::string::npos;
  }
  return 1;
}
