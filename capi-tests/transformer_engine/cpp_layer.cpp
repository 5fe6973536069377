// The C++ layer: every member of every wrapper, moves, destruction, exceptions, use beside C
// handles. Expected values are worked out by hand from the specification (core 20, quantize 9 and
// 10, gemm 3).

#include <transformer_engine/cast.h>
#include <transformer_engine/cast_transpose_noop.h>
#include <transformer_engine/comm_window.h>
#include <transformer_engine/gemm.h>
#include <transformer_engine/multi_stream.h>
#include <transformer_engine/recipe.h>
#include <transformer_engine/transformer_engine.h>
#include <transformer_engine/transpose.h>
#include <transformer_engine/utils.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <initializer_list>
#include <iterator>
#include <stdexcept>
#include <string>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

namespace te = transformer_engine;

namespace {

int failures = 0;

bool check(bool ok, int line, const std::string &what) {
  if (!ok) {
    ++failures;
    std::fprintf(stderr, "%s:%d: failed: %s\n", __FILE__, line, what.c_str());
  }
  return ok;
}

template <typename A, typename B>
void check_equal(const A &a, const B &b, int line, const char *what) {
  check(a == b, line, what);
}

#define CHECK(condition) check((condition), __LINE__, #condition)
#define CHECK_EQ(a, b) check_equal((a), (b), __LINE__, #a " == " #b)
// Checks a call of a wrapper, which throws in every error mode.
#define CHECK_THROWS(body, ...) check_fails([&] { body; }, true, __LINE__, #body, {__VA_ARGS__})
// A call of a C function: throws in mode throw, else leaves a status.
#define CHECK_FAILS(body, ...) check_fails([&] { body; }, throwing, __LINE__, #body, {__VA_ARGS__})

// The error mode of the process is throw, not return.
bool throwing = false;

// `body` fails by std::runtime_error or by a status, and the message has all the parts.
void check_fails(const std::function<void()> &body, bool by_exception, int line, const char *what,
                 std::initializer_list<const char *> parts) {
  std::string text;
  bool thrown = false;
  try {
    body();
    text = nvtex_last_error();
  } catch (const std::runtime_error &error) {
    thrown = true;
    text = error.what();
  }
  for (const char *part : parts) {
    check(text.find(part) != std::string::npos, line,
          std::string(what) + ": no \"" + part + "\" in \"" + text + "\"");
  }
  check(thrown == by_exception, line, std::string(what) + (thrown ? ": thrown" : ": not thrown"));
  // An error that the wrapper itself has thrown is no longer the thread's error.
  const bool kept = throwing || !by_exception;
  check(nvtex_last_status() == (kept ? NVTEX_INVALID_ARGUMENT : NVTEX_OK), line,
        std::string(what) + ": status " + std::to_string(nvtex_last_status()));
  check(nvtex_last_error() == (kept ? text : ""), line,
        std::string(what) + ": kept \"" + nvtex_last_error() + "\"");
  nvtex_clear_error();
}

std::vector<size_t> dims(const NVTEShape &shape) { return {shape.data, shape.data + shape.ndim}; }
using Dims = std::vector<size_t>;

bool same(const NVTEBasicTensor &t, const void *ptr, te::DType dtype, const Dims &shape) {
  return t.data_ptr == ptr && static_cast<te::DType>(t.dtype) == dtype && dims(t.shape) == shape;
}
bool is_unset(const NVTEBasicTensor &t, te::DType dtype = te::DType::kFloat32) {
  return same(t, nullptr, dtype, {0});
}

// Device memory with the values of a vector.
template <typename T>
class Device {
 public:
  explicit Device(const std::vector<T> &values)
      : size_(values.size()), ptr_(static_cast<T *>(nvtex_malloc(size_ * sizeof(T)))) {
    nvtex_memcpy_to_device(ptr_, values.data(), size_ * sizeof(T), nullptr);
    nvtex_stream_synchronize(nullptr);
  }
  explicit Device(size_t size, T value = T()) : Device(std::vector<T>(size, value)) {}
  Device(const Device &) = delete;
  ~Device() { nvtex_free(ptr_); }

  T *get() const { return ptr_; }
  std::vector<T> values() const {
    std::vector<T> host(size_);
    nvtex_memcpy_to_host(host.data(), ptr_, size_ * sizeof(T), nullptr);
    nvtex_stream_synchronize(nullptr);
    return host;
  }

 private:
  size_t size_;
  T *ptr_;
};

// Addresses for descriptors that nothing dereferences.
alignas(256) char memory[16];
void *address(int i) { return memory + i; }
float *float_address(int i) { return reinterpret_cast<float *>(memory) + i; }

const te::DType all_types[] = {
    te::DType::kByte,       te::DType::kInt16,      te::DType::kInt32,      te::DType::kInt64,
    te::DType::kFloat32,    te::DType::kFloat16,    te::DType::kBFloat16,   te::DType::kFloat8E4M3,
    te::DType::kFloat8E5M2, te::DType::kFloat8E8M0, te::DType::kFloat4E2M1, te::DType::kNumTypes};

template <typename Wrapper>
constexpr bool is_move_only =
    !std::is_copy_constructible_v<Wrapper> && !std::is_copy_assignable_v<Wrapper> &&
    std::is_nothrow_move_constructible_v<Wrapper> && std::is_nothrow_move_assignable_v<Wrapper>;
static_assert(is_move_only<te::TensorWrapper> && is_move_only<te::MultiTensorWrapper> &&
              is_move_only<te::GroupedTensorWrapper> && is_move_only<te::MatmulConfigWrapper> &&
              is_move_only<te::QuantizationConfigWrapper> &&
              is_move_only<te::GroupedMatmulConfigWrapper>);
// Converting a scaling mode to a tensor must be said aloud.
static_assert(!std::is_convertible_v<NVTEScalingMode, te::TensorWrapper>);
static_assert(!std::is_convertible_v<size_t, te::MultiTensorWrapper>);
static_assert(sizeof(NVTECommWindow) == 32 && offsetof(NVTECommWindow, offset) == 8 &&
              offsetof(NVTECommWindow, scale_window) == 16 &&
              offsetof(NVTECommWindow, scale_offset) == 24);
static_assert(NVTETensorPack::MAX_SIZE == 10);
static_assert(te::TensorWrapper::defaultData == 1 && te::GroupedTensorWrapper::defaultData == 1);

void types() {
  for (int i = 0; i <= kNVTENumTypes; ++i) {
    const te::DType t = all_types[i];
    CHECK_EQ(static_cast<int>(t), i);
    CHECK_EQ(te::is_fp8_dtype(t), i == kNVTEFloat8E4M3 || i == kNVTEFloat8E5M2);
    CHECK_EQ(te::is_fp4_dtype(t), i == kNVTEFloat4E2M1);
    CHECK_EQ(te::is_high_precision_dtype(t),
             i == kNVTEFloat32 || i == kNVTEFloat16 || i == kNVTEBFloat16);
  }
  CHECK_EQ(static_cast<int>(te::Float8BlockScaleTensorFormat::GEMM_READY), 0);
  CHECK_EQ(static_cast<int>(te::Float8BlockScaleTensorFormat::COMPACT), 1);
  CHECK_EQ(static_cast<int>(te::Float8BlockScaleTensorFormat::INVALID), 2);
  CHECK_EQ(dims(te::TensorWrapper::defaultShape), Dims{1});
  CHECK_EQ(dims(te::TensorWrapper::emptyShape), Dims{0});
  CHECK_EQ(dims(te::GroupedTensorWrapper::defaultShape), Dims{1});
  CHECK_EQ(dims(te::GroupedTensorWrapper::emptyShape), Dims{0});
}

// What an empty tensor and a moved-from wrapper have in common.
void check_no_pointers(const te::TensorWrapper &t) {
  CHECK(t.dptr() == nullptr && t.columnwise_dptr() == nullptr);
  CHECK(t.amax() == nullptr && t.scale() == nullptr && t.scale_inv() == nullptr);
  CHECK_EQ(t.bytes(), 0u);
  CHECK_EQ(t.numel(), 0u);
  CHECK_EQ(dims(t.shape()), Dims{0});
  CHECK_EQ(dims(t.columnwise_shape()), Dims{0});
  CHECK_EQ(dims(t.scale_inv_shape()), Dims{0});
  CHECK_EQ(t.scaling_mode(), NVTE_DELAYED_TENSOR_SCALING);
}

void tensor_empty() {
  const te::TensorWrapper t;
  CHECK(t.data() != nullptr);
  check_no_pointers(t);
  CHECK_EQ(t.ndim(), 1u);
  CHECK_EQ(t.size(0), 0u);
  CHECK(t.dtype() == te::DType::kFloat32);
  CHECK_EQ(t.element_size(), 4u);
  CHECK_EQ(t.element_size_bits(), 32u);
  for (int param = kNVTERowwiseData; param <= kNVTEColumnwiseAmax; ++param) {
    CHECK(is_unset(t.get_parameter(static_cast<NVTETensorParam>(param))));
  }
  CHECK(!t.get_with_gemm_swizzled_scales() && !t.get_row_scaled_nvfp4());
  CHECK_EQ(t.get_nvfp4_e4m3_max(), 448);
  CHECK_EQ(te::TensorWrapper(NVTE_NVFP4_1D_SCALING).scaling_mode(), NVTE_NVFP4_1D_SCALING);
}

void tensor_constructors() {
  const size_t sizes[] = {2, 3, 5};
  const NVTEShape shape = nvte_make_shape(sizes, 3);

  const te::TensorWrapper plain(address(0), shape, te::DType::kBFloat16);
  CHECK(same(plain.get_rowwise_data(), address(0), te::DType::kBFloat16, {2, 3, 5}));
  CHECK(is_unset(plain.get_amax()) && is_unset(plain.get_scale()));
  CHECK(is_unset(plain.get_rowwise_scale_inv()) && is_unset(plain.get_columnwise_data()));
  CHECK_EQ(plain.scaling_mode(), NVTE_DELAYED_TENSOR_SCALING);

  const te::TensorWrapper fp8(address(0), Dims{4, 8}, te::DType::kFloat8E4M3, float_address(1),
                              float_address(2), float_address(3));
  CHECK(same(fp8.get_amax(), float_address(1), te::DType::kFloat32, {1}));
  CHECK(same(fp8.get_scale(), float_address(2), te::DType::kFloat32, {1}));
  CHECK(same(fp8.get_rowwise_scale_inv(), float_address(3), te::DType::kFloat32, {1}));
  CHECK(fp8.amax() == float_address(1) && fp8.scale() == float_address(2));
  CHECK(fp8.scale_inv() == float_address(3));

  // A shape other than (1) counts even without the pointer.
  const te::TensorWrapper block(address(0), Dims{128, 256}, te::DType::kFloat8E5M2, nullptr,
                                nullptr, nullptr, Dims{2, 128}, NVTE_BLOCK_SCALING_1D);
  CHECK(same(block.get_rowwise_scale_inv(), nullptr, te::DType::kFloat32, {2, 128}));
  CHECK_EQ(block.scaling_mode(), NVTE_BLOCK_SCALING_1D);
  const te::TensorWrapper c_shape(address(0), shape, te::DType::kFloat8E5M2, nullptr, nullptr,
                                  float_address(3), shape, NVTE_BLOCK_SCALING_2D);
  CHECK(same(c_shape.get_rowwise_scale_inv(), float_address(3), te::DType::kFloat32, {2, 3, 5}));
  CHECK_EQ(c_shape.scaling_mode(), NVTE_BLOCK_SCALING_2D);

  const te::TensorWrapper scalar(address(0), Dims{}, te::DType::kFloat32);
  CHECK_EQ(scalar.ndim(), 0u);
  CHECK_EQ(scalar.numel(), 1u);
}

void tensor_parameters() {
  te::TensorWrapper t(NVTE_MXFP8_1D_SCALING);
  const size_t size = 9;
  const NVTEShape c_shape = nvte_make_shape(&size, 1);
  te::TensorWrapper &self = t.set_rowwise_data(address(0), te::DType::kFloat8E4M3, Dims{32, 64})
                                .set_columnwise_data(address(1), te::DType::kFloat8E5M2, Dims{3, 7})
                                .set_scale(address(4), te::DType::kFloat32, c_shape)
                                .set_amax(address(8), te::DType::kFloat32, Dims{2})
                                .set_rowwise_scale_inv(address(2), te::DType::kFloat8E8M0, Dims{5})
                                .set_columnwise_scale_inv(address(3), te::DType::kByte, Dims{6})
                                .set_columnwise_amax(address(12), te::DType::kFloat32, Dims{4});
  CHECK(&self == &t);
  CHECK(same(t.get_rowwise_data(), address(0), te::DType::kFloat8E4M3, {32, 64}));
  CHECK(same(t.get_columnwise_data(), address(1), te::DType::kFloat8E5M2, {3, 7}));
  CHECK(same(t.get_scale(), address(4), te::DType::kFloat32, {9}));
  CHECK(same(t.get_amax(), address(8), te::DType::kFloat32, {2}));
  CHECK(same(t.get_rowwise_scale_inv(), address(2), te::DType::kFloat8E8M0, {5}));
  CHECK(same(t.get_columnwise_scale_inv(), address(3), te::DType::kByte, {6}));
  CHECK(same(t.get_columnwise_amax(), address(12), te::DType::kFloat32, {4}));
  CHECK_EQ(dims(t.scale_inv_shape()), Dims{5});
  CHECK_EQ(dims(t.columnwise_shape()), (Dims{3, 7}));

  t.set_parameter(kNVTEAmax, nullptr, te::DType::kFloat32, te::TensorWrapper::emptyShape);
  CHECK(is_unset(t.get_parameter(kNVTEAmax)));

  t.set_with_gemm_swizzled_scales(true);
  t.set_row_scaled_nvfp4(true);
  t.set_nvfp4_e4m3_max(256);
  CHECK(t.get_with_gemm_swizzled_scales() && t.get_row_scaled_nvfp4());
  CHECK_EQ(t.get_nvfp4_e4m3_max(), 256);
  t.set_with_gemm_swizzled_scales(false);
  t.set_row_scaled_nvfp4(false);
  t.set_nvfp4_e4m3_max(448);
  CHECK(!t.get_with_gemm_swizzled_scales() && !t.get_row_scaled_nvfp4());
  CHECK_EQ(t.get_nvfp4_e4m3_max(), 448);
}

void tensor_queries() {
  const te::TensorWrapper t(address(0), Dims{2, 3, 16}, te::DType::kBFloat16);
  CHECK(t.dptr() == address(0));
  CHECK_EQ(dims(t.shape()), (Dims{2, 3, 16}));
  CHECK_EQ(t.ndim(), 3u);
  CHECK_EQ(t.size(0), 2u);
  CHECK_EQ(t.size(2), 16u);
  CHECK_EQ(t.numel(), 96u);
  CHECK_EQ(t.bytes(), 192u);
  CHECK_EQ(t.element_size(), 2u);
  CHECK_EQ(t.element_size_bits(), 16u);
  CHECK(t.dtype() == te::DType::kBFloat16);
  CHECK_EQ(te::TensorWrapper(nullptr, Dims{2, 3}, te::DType::kInt64).bytes(), 0u);

  const te::TensorWrapper fp4(address(0), Dims{2, 16}, te::DType::kFloat4E2M1);
  CHECK_EQ(fp4.element_size_bits(), 4u);
  CHECK_EQ(fp4.bytes(), 16u);
  CHECK_THROWS(fp4.element_size(), "nvte_tensor_element_size", "tensor");

  // Column-wise data alone are a transposed copy, but not in MXFP8.
  te::TensorWrapper transposed;
  transposed.set_columnwise_data(address(0), te::DType::kFloat8E5M2, Dims{16, 2, 3});
  CHECK_EQ(dims(transposed.shape()), (Dims{2, 3, 16}));
  CHECK_EQ(dims(transposed.columnwise_shape()), (Dims{16, 2, 3}));
  CHECK(transposed.dtype() == te::DType::kFloat8E5M2);
  CHECK(transposed.columnwise_dptr() == address(0) && transposed.dptr() == nullptr);
  te::TensorWrapper mxfp8(NVTE_MXFP8_1D_SCALING);
  mxfp8.set_columnwise_data(address(0), te::DType::kFloat8E5M2, Dims{16, 2, 3});
  CHECK_EQ(dims(mxfp8.shape()), (Dims{16, 2, 3}));
}

void tensor_moves() {
  te::TensorWrapper first(address(0), Dims{8}, te::DType::kInt32);
  const NVTETensor handle = first.data();
  te::TensorWrapper second(std::move(first));
  CHECK(second.data() == handle && first.data() == nullptr);
  check_no_pointers(first);
  CHECK_EQ(first.ndim(), 0u);
  CHECK_EQ(first.size(0), 0u);
  CHECK_EQ(first.element_size(), 0u);
  CHECK_EQ(first.element_size_bits(), 0u);
  CHECK(first.dtype() == te::DType::kNumTypes);
  CHECK_THROWS(first.set_amax(nullptr, te::DType::kFloat32, Dims{1}), "nvte_set_tensor_param_v2",
               "tensor", "null");

  te::TensorWrapper third(address(1), Dims{4}, te::DType::kByte);
  const NVTETensor replaced = third.data();
  third = std::move(second);
  CHECK(third.data() == handle && second.data() == nullptr);
  CHECK_FAILS(nvte_tensor_numel(replaced), "nvte_tensor_numel", "tensor", "destroyed");
  te::TensorWrapper &alias = third;
  third = std::move(alias);
  CHECK(third.data() == handle);
  CHECK_EQ(third.numel(), 8u);

  std::vector<te::TensorWrapper> list;
  for (size_t i = 0; i < 100; ++i) list.emplace_back(address(0), Dims{i}, te::DType::kByte);
  for (size_t i = 0; i < 100; ++i) CHECK_EQ(list[i].numel(), i);
}

void tensor_destruction() {
  NVTETensor handle;
  {
    const te::TensorWrapper t;
    handle = t.data();
    CHECK_EQ(nvte_tensor_ndims(handle), 1u);
  }
  CHECK_FAILS(nvte_tensor_ndims(handle), "nvte_tensor_ndims", "tensor", "destroyed");
}

void tensor_zero() {
  const Device<float> data(6, 3.0f), amax(1, 2.0f), scale(1, 5.0f);
  const Device<float> columnwise(6, 4.0f);
  te::TensorWrapper t(data.get(), Dims{2, 3}, te::DType::kFloat32, amax.get(), scale.get());
  t.set_columnwise_data(columnwise.get(), te::DType::kFloat32, Dims{3, 2});
  t.zero_(nullptr);
  nvtex_stream_synchronize(nullptr);
  CHECK_EQ(data.values(), std::vector<float>(6, 0.0f));
  CHECK_EQ(amax.values(), std::vector<float>{0.0f});
  CHECK_EQ(scale.values(), std::vector<float>{5.0f});
  CHECK_EQ(columnwise.values(), std::vector<float>(6, 4.0f));
}

void multi_tensor() {
  te::MultiTensorWrapper none, zero(0);
  CHECK(none.empty() && none.size() == 0 && none.begin() == none.end());
  CHECK(zero.empty());

  te::MultiTensorWrapper list(3, NVTE_MXFP8_1D_SCALING);
  const te::MultiTensorWrapper &view = list;
  CHECK(!view.empty() && view.size() == 3);
  CHECK_EQ(std::distance(list.begin(), list.end()), 3);
  CHECK_EQ(std::distance(view.begin(), view.end()), 3);
  NVTETensor *const array = list;
  CHECK(array == list.data() && view.data() == array);
  for (size_t i = 0; i < list.size(); ++i) {
    CHECK(list[i] == array[i] && view[i] == array[i]);
    CHECK_EQ(nvte_tensor_scaling_mode(list[i]), NVTE_MXFP8_1D_SCALING);
  }
  CHECK(list[0] != list[1] && list[1] != list[2]);
  for (NVTETensor tensor : view) CHECK_EQ(nvte_tensor_numel(tensor), 0u);

  const NVTETensor kept = list[2];
  te::MultiTensorWrapper moved(std::move(list));
  CHECK(list.empty() && moved.size() == 3 && moved[2] == kept);
  te::MultiTensorWrapper assigned(2);
  const NVTETensor replaced = assigned[1];
  assigned = std::move(moved);
  CHECK(moved.empty() && assigned.size() == 3 && assigned[2] == kept);
  CHECK_FAILS(nvte_tensor_numel(replaced), "nvte_tensor_numel", "tensor", "destroyed");
  te::MultiTensorWrapper &alias = assigned;
  assigned = std::move(alias);
  CHECK(assigned.size() == 3 && assigned[2] == kept);
  assigned = te::MultiTensorWrapper();
  CHECK_FAILS(nvte_tensor_numel(kept), "nvte_tensor_numel", "tensor", "destroyed");
}

void grouped_tensor() {
  te::GroupedTensorWrapper t(3, Dims{24, 16}, NVTE_BLOCK_SCALING_1D);
  CHECK(t.data() != nullptr);
  CHECK_EQ(t.num_tensors(), 3u);
  CHECK_EQ(t.scaling_mode(), NVTE_BLOCK_SCALING_1D);
  CHECK_EQ(dims(t.logical_shape()), (Dims{24, 16}));
  CHECK(t.dtype() == te::DType::kFloat32);
  for (int param = kNVTEGroupedRowwiseData; param <= kNVTEGroupedTensorOffsets; ++param) {
    const bool is_dims = param >= kNVTEGroupedFirstDims;
    CHECK(is_unset(t.get_parameter(static_cast<NVTEGroupedTensorParam>(param)),
                   is_dims ? te::DType::kInt64 : te::DType::kFloat32));
  }
  CHECK(!t.get_with_gemm_swizzled_scales());

  const size_t size = 9;
  const NVTEShape c_shape = nvte_make_shape(&size, 1);
  te::GroupedTensorWrapper &self =
      t.set_rowwise_data(address(0), te::DType::kFloat8E4M3, Dims{384})
          .set_columnwise_data(address(1), te::DType::kFloat8E5M2, Dims{385})
          .set_scale(address(4), te::DType::kFloat32, c_shape)
          .set_amax(address(8), te::DType::kFloat32, Dims{2})
          .set_rowwise_scale_inv(address(2), te::DType::kFloat8E8M0, Dims{5})
          .set_columnwise_scale_inv(address(3), te::DType::kByte, Dims{6})
          .set_columnwise_amax(address(12), te::DType::kFloat32, Dims{4})
          .set_first_dims(address(0), te::DType::kInt64, Dims{3})
          .set_last_dims(address(8), te::DType::kInt64, Dims{3})
          .set_tensor_offsets(address(0), te::DType::kInt64, Dims{4});
  CHECK(&self == &t);
  CHECK(same(t.get_rowwise_data(), address(0), te::DType::kFloat8E4M3, {384}));
  CHECK(same(t.get_columnwise_data(), address(1), te::DType::kFloat8E5M2, {385}));
  CHECK(same(t.get_scale(), address(4), te::DType::kFloat32, {9}));
  CHECK(same(t.get_amax(), address(8), te::DType::kFloat32, {2}));
  CHECK(same(t.get_rowwise_scale_inv(), address(2), te::DType::kFloat8E8M0, {5}));
  CHECK(same(t.get_columnwise_scale_inv(), address(3), te::DType::kByte, {6}));
  CHECK(same(t.get_columnwise_amax(), address(12), te::DType::kFloat32, {4}));
  CHECK(same(t.get_first_dims(), address(0), te::DType::kInt64, {3}));
  CHECK(same(t.get_last_dims(), address(8), te::DType::kInt64, {3}));
  CHECK(same(t.get_tensor_offsets(), address(0), te::DType::kInt64, {4}));
  CHECK(t.dtype() == te::DType::kFloat8E4M3);
  t.set_parameter(kNVTEGroupedAmax, nullptr, te::DType::kFloat32, Dims{0});
  CHECK(is_unset(t.get_amax()));
  t.set_with_gemm_swizzled_scales(true);
  CHECK(t.get_with_gemm_swizzled_scales());
  t.set_with_gemm_swizzled_scales(false);
  CHECK(!t.get_with_gemm_swizzled_scales());

  CHECK_THROWS(t.set_first_dims(address(0), te::DType::kInt32, Dims{3}),
               "nvte_set_grouped_tensor_param", "buf.dtype", "Int64", "Int32");
  CHECK_THROWS(te::GroupedTensorWrapper(0, Dims{1, 1}), "nvte_create_grouped_tensor",
               "num_tensors");
  CHECK_THROWS(te::GroupedTensorWrapper(1, Dims{1, 1, 1}), "nvte_create_grouped_tensor",
               "logical_shape");

  const size_t sizes[] = {4, 2};
  const NVTEGroupedTensor handle = t.data();
  te::GroupedTensorWrapper moved(std::move(t));
  CHECK(moved.data() == handle && t.data() == nullptr);
  CHECK_EQ(t.num_tensors(), 0u);
  CHECK(t.dtype() == te::DType::kNumTypes);
  CHECK_EQ(t.scaling_mode(), NVTE_DELAYED_TENSOR_SCALING);
  CHECK_EQ(dims(t.logical_shape()), Dims{0});
  te::GroupedTensorWrapper assigned(2, nvte_make_shape(sizes, 2));
  CHECK_EQ(dims(assigned.logical_shape()), (Dims{4, 2}));
  const NVTEGroupedTensor replaced = assigned.data();
  assigned = std::move(moved);
  CHECK(assigned.data() == handle && moved.data() == nullptr);
  CHECK_FAILS(nvte_grouped_tensor_num_tensors(replaced), "nvte_grouped_tensor_num_tensors",
              "tensor", "destroyed");
}

template <typename T>
T attribute(const te::QuantizationConfigWrapper &config, NVTEQuantizationConfigAttribute attr) {
  T value{};
  size_t size = 0;
  nvte_get_quantization_config_attribute(config, attr, &value, sizeof(value), &size);
  CHECK_EQ(size, sizeof(value));
  return value;
}

template <typename T>
T attribute(const te::MatmulConfigWrapper &config, NVTEMatmulConfigAttribute attr) {
  T value{};
  size_t size = 0;
  nvte_get_matmul_config_attribute(config, attr, &value, sizeof(value), &size);
  CHECK_EQ(size, sizeof(value));
  return value;
}

template <typename T>
T attribute(const te::GroupedMatmulConfigWrapper &config, NVTEGroupedMatmulConfigAttribute attr) {
  T value{};
  size_t size = 0;
  nvte_get_grouped_matmul_config_attribute(config, attr, &value, sizeof(value), &size);
  CHECK_EQ(size, sizeof(value));
  return value;
}

// Sets a flag to true and to false, and looks after each that it alone among its like has changed.
template <typename Config, typename Setter, typename Attr>
void check_flag(Setter set, Attr attr, std::initializer_list<Attr> flags) {
  Config config;
  for (const bool value : {true, false}) {
    (config.*set)(value);
    for (const Attr other : flags) {
      CHECK_EQ(attribute<uint8_t>(config, other), other == attr && value);
    }
  }
}

void quantization_config() {
  using Config = te::QuantizationConfigWrapper;
  const std::pair<void (Config::*)(bool), NVTEQuantizationConfigAttribute> flags[] = {
      {&Config::set_force_pow_2_scales, kNVTEQuantizationConfigForcePow2Scales},
      {&Config::set_nvfp4_2d_quantization, kNVTEQuantizationConfigNVFP42DQuantization},
      {&Config::set_mxfp8_2d_quantization, kNVTEQuantizationConfigMXFP82DQuantization},
      {&Config::set_stochastic_rounding, kNVTEQuantizationConfigStochasticRounding},
      {&Config::set_use_fast_math, kNVTEQuantizationConfigUseFastMath},
      {&Config::set_nvfp4_4over6_err_use_fast_math,
       kNVTEQuantizationConfigNVFP44Over6ErrUseFastMath}};
  for (const auto &[set, attr] : flags) {
    check_flag<Config>(
        set, attr,
        {kNVTEQuantizationConfigForcePow2Scales, kNVTEQuantizationConfigNVFP42DQuantization,
         kNVTEQuantizationConfigMXFP82DQuantization, kNVTEQuantizationConfigStochasticRounding,
         kNVTEQuantizationConfigUseFastMath, kNVTEQuantizationConfigNVFP44Over6ErrUseFastMath});
  }

  Config config;
  const te::TensorWrapper noop, rng;
  CHECK_EQ(attribute<float>(config, kNVTEQuantizationConfigAmaxEpsilon), 0.0f);
  CHECK(attribute<NVTETensor>(config, kNVTEQuantizationConfigNoopTensor) == nullptr);
  config.set_amax_epsilon(0.25f);
  config.set_noop_tensor(noop.data());
  config.set_rng_state(rng.data());
  config.set_nvfp4_4over6_mode(kNVTENVFP44Over6MinMSE);
  config.set_float8_block_scale_tensor_format(te::Float8BlockScaleTensorFormat::COMPACT);
  CHECK_EQ(attribute<float>(config, kNVTEQuantizationConfigAmaxEpsilon), 0.25f);
  CHECK(attribute<NVTETensor>(config, kNVTEQuantizationConfigNoopTensor) == noop.data());
  CHECK(attribute<NVTETensor>(config, kNVTEQuantizationConfigRNGState) == rng.data());
  CHECK_EQ(attribute<uint8_t>(config, kNVTEQuantizationConfigNVFP44Over6Mode), 2);
  CHECK_EQ(attribute<int>(config, kNVTEQuantizationConfigFloat8BlockScaleTensorFormat), 2);

  const NVTEQuantizationConfig handle = config;
  Config moved(std::move(config));
  CHECK(static_cast<NVTEQuantizationConfig>(config) == nullptr);
  CHECK(static_cast<NVTEQuantizationConfig>(moved) == handle);
  CHECK_THROWS(config.set_amax_epsilon(1), "nvte_set_quantization_config_attribute", "config",
               "null");
  moved = Config();
  uint8_t value;
  CHECK_FAILS(nvte_get_quantization_config_attribute(handle, kNVTEQuantizationConfigForcePow2Scales,
                                                     &value, 1, nullptr),
              "nvte_get_quantization_config_attribute", "config", "destroyed");
}

// scale = 448 / max(amax, epsilon), rounded down to a power of two on request.
void quantization_config_in_use() {
  const Device<float> amax(1, 3.0f), scale(1, -1.0f), scale_inv(1), flag(1, 1.0f);
  te::TensorWrapper output(nullptr, Dims{0}, te::DType::kFloat8E4M3, amax.get(), scale.get(),
                           scale_inv.get());
  te::TensorWrapper noop(flag.get(), Dims{1}, te::DType::kFloat32);
  te::QuantizationConfigWrapper config;
  const auto scale_now = [&] {
    nvte_compute_scale_from_amax(output.data(), config, nullptr);
    return scale.values()[0];
  };
  config.set_noop_tensor(noop.data());
  CHECK_EQ(scale_now(), -1.0f);
  config.set_noop_tensor(nullptr);
  CHECK_EQ(scale_now(), 448.0f / 3.0f);
  config.set_force_pow_2_scales(true);
  CHECK_EQ(scale_now(), 128.0f);
  config.set_force_pow_2_scales(false);
  config.set_amax_epsilon(7);
  CHECK_EQ(scale_now(), 64.0f);
}

void matmul_config() {
  using Config = te::MatmulConfigWrapper;
  const std::pair<void (Config::*)(bool), NVTEMatmulConfigAttribute> flags[] = {
      {&Config::set_with_gelu_epilogue, kNVTEMatmulConfigWithGELUEpilogue},
      {&Config::set_with_dgelu_epilogue, kNVTEMatmulConfigWithDGELUEpilogue},
      {&Config::set_use_split_accumulator, kNVTEMatmulConfigUseSplitAccumulator}};
  for (const auto &[set, attr] : flags) {
    check_flag<Config>(set, attr,
                       {kNVTEMatmulConfigWithGELUEpilogue, kNVTEMatmulConfigWithDGELUEpilogue,
                        kNVTEMatmulConfigUseSplitAccumulator});
  }

  Config config;
  const te::MultiTensorWrapper tensors(3);
  CHECK(attribute<NVTETensor>(config, kNVTEMatmulConfigBiasTensor) == nullptr);
  CHECK_EQ(attribute<int32_t>(config, kNVTEMatmulConfigSMCount), 0);
  config.set_bias_tensor(tensors[0]);
  config.set_dbias_tensor(tensors[1]);
  config.set_epilogue_aux_tensor(tensors[2]);
  config.set_sm_count(114);
  CHECK(attribute<NVTETensor>(config, kNVTEMatmulConfigBiasTensor) == tensors[0]);
  CHECK(attribute<NVTETensor>(config, kNVTEMatmulConfigDBiasTensor) == tensors[1]);
  CHECK(attribute<NVTETensor>(config, kNVTEMatmulConfigEpilogueAuxTensor) == tensors[2]);
  CHECK_EQ(attribute<int32_t>(config, kNVTEMatmulConfigSMCount), 114);

  const NVTEMatmulConfig handle = config;
  Config moved(std::move(config));
  CHECK(static_cast<NVTEMatmulConfig>(config) == nullptr);
  CHECK(static_cast<NVTEMatmulConfig>(moved) == handle);
  CHECK_THROWS(config.set_sm_count(1), "nvte_set_matmul_config_attribute", "config", "null");
  moved = Config();
  size_t size;
  int32_t value;
  CHECK_FAILS(nvte_get_matmul_config_attribute(handle, kNVTEMatmulConfigSMCount, &value, 4, &size),
              "nvte_get_matmul_config_attribute", "config", "destroyed");
}

void grouped_matmul_config() {
  te::GroupedMatmulConfigWrapper config;
  CHECK_EQ(attribute<int64_t>(config, kNVTEGroupedMatmulConfigAvgM), 0);
  CHECK_EQ(attribute<uint8_t>(config, kNVTEGroupedMatmulConfigUseSplitAccumulator), 0);
  config.set_avg_m(int64_t{1} << 40);
  config.set_avg_n(2);
  config.set_avg_k(3);
  config.set_sm_count(4);
  config.set_use_split_accumulator(true);
  CHECK_EQ(attribute<int64_t>(config, kNVTEGroupedMatmulConfigAvgM), int64_t{1} << 40);
  CHECK_EQ(attribute<int64_t>(config, kNVTEGroupedMatmulConfigAvgN), 2);
  CHECK_EQ(attribute<int64_t>(config, kNVTEGroupedMatmulConfigAvgK), 3);
  CHECK_EQ(attribute<int32_t>(config, kNVTEGroupedMatmulConfigSMCount), 4);
  CHECK_EQ(attribute<uint8_t>(config, kNVTEGroupedMatmulConfigUseSplitAccumulator), 1);
  config.set_use_split_accumulator(false);
  CHECK_EQ(attribute<uint8_t>(config, kNVTEGroupedMatmulConfigUseSplitAccumulator), 0);

  const NVTEGroupedMatmulConfig handle = config;
  te::GroupedMatmulConfigWrapper moved(std::move(config));
  CHECK(static_cast<NVTEGroupedMatmulConfig>(config) == nullptr);
  CHECK(static_cast<NVTEGroupedMatmulConfig>(moved) == handle);
  CHECK_THROWS(config.set_avg_m(1), "nvte_set_grouped_matmul_config_attribute", "config", "null");
}

// D = B A + bias with a diagonal A, B full of small integers: exact in every compute mode.
void gemm_with_config() {
  constexpr size_t size = 16;
  std::vector<float> a(size * size), b(size * size), expected(size * size), bias(size);
  for (size_t i = 0; i < size; ++i) {
    a[i * size + i] = static_cast<float>(i % 4 + 1);
    bias[i] = static_cast<float>(i) - 8;
  }
  for (size_t r = 0; r < size; ++r) {
    for (size_t c = 0; c < size; ++c) {
      b[r * size + c] = static_cast<float>((3 * r + 5 * c) % 7);
      expected[r * size + c] = b[r * size + c] * static_cast<float>(c % 4 + 1) + bias[c];
    }
  }
  const Device<float> device_a(a), device_b(b), device_bias(bias), d(size * size, NAN);
  const Device<float> aux(size * size, NAN);
  const te::TensorWrapper ta(device_a.get(), Dims{size, size}, te::DType::kFloat32);
  const te::TensorWrapper tb(device_b.get(), Dims{size, size}, te::DType::kFloat32);
  const te::TensorWrapper td(d.get(), Dims{size, size}, te::DType::kFloat32);
  const te::TensorWrapper tbias(device_bias.get(), Dims{size}, te::DType::kFloat32);
  const te::TensorWrapper taux(aux.get(), Dims{size, size}, te::DType::kFloat32);
  te::MatmulConfigWrapper config;
  config.set_bias_tensor(tbias.data());
  const float one = 1, zero = 0;
  const auto run = [&](NVTETensor left, NVTETensor out) {
    nvte_cublas_gemm_v2(false, false, &one, left, tb.data(), &zero, out, out, nullptr, config,
                        nullptr);
  };
  run(ta.data(), td.data());
  CHECK_EQ(d.values(), expected);

  config.set_with_gelu_epilogue(true);
  config.set_epilogue_aux_tensor(taux.data());
  run(ta.data(), td.data());
  CHECK_EQ(aux.values(), expected);
  const std::vector<float> result = d.values();
  for (size_t i = 0; i < result.size(); ++i) {
    const double x = expected[i], t = std::tanh(0.7978845608028654 * (x + 0.044715 * x * x * x));
    CHECK(std::fabs(result[i] - 0.5 * x * (1 + t)) <= 1e-4);
  }
  CHECK_FAILS(run(nullptr, td.data()), "nvte_cublas_gemm_v2", "A", "null");
}

// x takes the values 0, 0.5 ... 2.5; with scale 2 the codes are those of 0 ... 5 in E4M3.
void fp8_output() {
  constexpr size_t rows = 5, cols = 7;
  const uint8_t codes[] = {0x00, 0x38, 0x40, 0x44, 0x48, 0x4A};
  std::vector<float> x(rows * cols);
  std::vector<uint8_t> expected(rows * cols), transposed(rows * cols);
  for (size_t r = 0; r < rows; ++r) {
    for (size_t c = 0; c < cols; ++c) {
      const size_t twice = (r + 3 * c) % 6;
      x[r * cols + c] = static_cast<float>(twice) / 2;
      expected[r * cols + c] = transposed[c * rows + r] = codes[twice];
    }
  }
  const Device<float> data(x), amax(1), scale(1, 2.0f), scale_inv(1);
  const Device<uint8_t> rowwise(rows * cols, 0xFF), columnwise(rows * cols, 0xFF);
  const te::TensorWrapper input(data.get(), Dims{rows, cols}, te::DType::kFloat32);
  te::TensorWrapper output(rowwise.get(), Dims{rows, cols}, te::DType::kFloat8E4M3, amax.get(),
                           scale.get(), scale_inv.get());
  output.set_columnwise_data(columnwise.get(), te::DType::kFloat8E4M3, Dims{cols, rows})
      .set_columnwise_scale_inv(scale_inv.get(), te::DType::kFloat32, Dims{1});
  nvte_cast_transpose(input.data(), output.data(), nullptr);
  CHECK_EQ(rowwise.values(), expected);
  CHECK_EQ(columnwise.values(), transposed);
  CHECK_EQ(amax.values()[0], 2.5f);
  CHECK_EQ(scale_inv.values()[0], 0.5f);
}

// Phase 1: an operator writes what it needs into the handle of an empty workspace, as here a C call
// does. Phase 2: the caller reads that through the wrapper and puts memory of this size in its
// place.
void two_phases() {
  te::TensorWrapper workspace;
  const NVTETensor query = workspace.data();
  const size_t needed[] = {3, 256};
  const NVTEBasicTensor answer = {nullptr, kNVTEInt16, nvte_make_shape(needed, 2)};
  nvte_set_tensor_param_v2(query, kNVTERowwiseData, &answer, sizeof(answer));
  CHECK(workspace.dptr() == nullptr && workspace.dtype() == te::DType::kInt16);
  CHECK_EQ(dims(workspace.shape()), (Dims{3, 256}));
  CHECK_EQ(workspace.bytes(), 0u);
  const Device<char> scratch(workspace.numel() * workspace.element_size());
  workspace = te::TensorWrapper(scratch.get(), workspace.shape(), workspace.dtype());
  CHECK_EQ(workspace.bytes(), 1536u);
  CHECK(workspace.dptr() == scratch.get());

  const float one = 1, zero = 0;
  const Device<float> a(16 * 16, 2.0f), d(16 * 16, NAN);
  const te::TensorWrapper ta(a.get(), Dims{16, 16}, te::DType::kFloat32);
  const te::TensorWrapper td(d.get(), Dims{16, 16}, te::DType::kFloat32);
  nvte_cublas_gemm_v2(true, false, &one, ta.data(), ta.data(), &zero, td.data(), td.data(),
                      workspace.data(), te::MatmulConfigWrapper(), nullptr);
  CHECK_EQ(d.values(), std::vector<float>(16 * 16, 64.0f));
}

// Two tensors with 2 and 1 scales; row 0 of a history is the newest maximum.
struct History {
  Device<float> first{{1, 2, 4, 8, 16, 0.5f}}, second{{0, 7, 9}};
  Device<float> first_scale{{10, 20}}, second_scale{std::vector<float>{5}};
  te::TensorWrapper tensors[4] = {
      te::TensorWrapper(first.get(), Dims{3, 2}, te::DType::kFloat32),
      te::TensorWrapper(second.get(), Dims{3, 1}, te::DType::kFloat32),
      te::TensorWrapper(first_scale.get(), Dims{2}, te::DType::kFloat32),
      te::TensorWrapper(second_scale.get(), Dims{1}, te::DType::kFloat32)};
  std::vector<NVTETensor> histories() const { return {tensors[0].data(), tensors[1].data()}; }
  std::vector<NVTETensor> scales() const { return {tensors[2].data(), tensors[3].data()}; }
};

void recipe_vectors() {
  using Floats = std::vector<float>;
  const auto update = nvte_delayed_scaling_recipe_amax_and_scale_update_after_reduction;
  const Device<float> reduced(Floats{3, 0, 0});
  const te::TensorWrapper buffer(reduced.get(), Dims{3}, te::DType::kFloat32), no_buffer;

  {
    // 3 from the buffer replaces 1, and 448 / 16 = 28; 448 / 8 = 56; an unused tensor keeps all.
    const History h;
    update(buffer.data(), h.histories(), h.scales(), "max", kNVTEFloat8E4M3, 0, nullptr);
    CHECK_EQ(h.first.values(), (Floats{0, 0, 16, 0.5f, 3, 2}));
    CHECK_EQ(h.first_scale.values(), (Floats{28, 56}));
    CHECK_EQ(h.second.values(), (Floats{0, 7, 9}));
    CHECK_EQ(h.second_scale.values(), Floats{5});
  }
  {
    // No buffer, margin 1: 57344 / 2 over the newest maxima 1 and 2.
    const History h;
    update(no_buffer.data(), h.histories(), h.scales(), "most_recent", kNVTEFloat8E5M2, 1, nullptr);
    CHECK_EQ(h.first.values(), (Floats{0, 0, 16, 0.5f, 1, 2}));
    CHECK_EQ(h.first_scale.values(), (Floats{28672, 14336}));
    CHECK_EQ(h.second.values(), (Floats{0, 7, 9}));
    CHECK_EQ(h.second_scale.values(), Floats{5});
  }
  {
    const History by_vectors, by_arrays;
    update(buffer.data(), by_vectors.histories(), by_vectors.scales(), "most_recent",
           kNVTEFloat8E4M3, 2, nullptr);
    const auto histories = by_arrays.histories(), scales = by_arrays.scales();
    nvtex_delayed_scaling_recipe_amax_and_scale_update_after_reduction(
        buffer.data(), histories.data(), scales.data(), 2, "most_recent", kNVTEFloat8E4M3, 2,
        nullptr);
    CHECK_EQ(by_vectors.first.values(), by_arrays.first.values());
    CHECK_EQ(by_vectors.first_scale.values(), by_arrays.first_scale.values());
    CHECK_EQ(by_vectors.first_scale.values(), (Floats{112.0f / 3.0f, 56}));
  }
  {
    const History h;
    const char *const name = "nvte_delayed_scaling_recipe_amax_and_scale_update_after_reduction";
    CHECK_FAILS(update(no_buffer.data(), h.histories(), {h.scales()[0]}, "max", kNVTEFloat8E4M3, 0,
                       nullptr),
                name, "scales");
    CHECK_FAILS(
        update(no_buffer.data(), h.histories(), h.scales(), "mean", kNVTEFloat8E4M3, 0, nullptr),
        name, "amax_compute_algo", "mean");
    CHECK_FAILS(
        update(no_buffer.data(), h.histories(), h.scales(), "max", kNVTEFloat16, 0, nullptr), name,
        "fp8_dtype", "Float16");
    CHECK_EQ(h.first.values(), (Floats{1, 2, 4, 8, 16, 0.5f}));
    CHECK_EQ(h.first_scale.values(), (Floats{10, 20}));
  }
  update(no_buffer.data(), {}, {}, "max", kNVTEFloat8E4M3, 0, nullptr);
}

void exceptions() {
  const te::TensorWrapper t(address(0), Dims{2, 3}, te::DType::kFloat32);
  CHECK_THROWS(t.size(2), "nvte_tensor_size", "dim", "2");
  CHECK_THROWS(te::TensorWrapper(address(0), Dims(16, 1), te::DType::kByte), "nvte_make_shape",
               "ndim", "15", "16");
  NVTEShape wild{};
  wild.ndim = 1000;
  CHECK_THROWS(te::TensorWrapper(address(0), wild, te::DType::kByte), "nvte_set_tensor_param_v2",
               "buf.shape", "1000");
  CHECK_THROWS(te::TensorWrapper(address(0), Dims{1}, te::DType::kNumTypes),
               "nvte_set_tensor_param_v2", "buf.dtype", "11");
  CHECK_THROWS(te::TensorWrapper(static_cast<NVTEScalingMode>(7)), "nvte_create_tensor",
               "scaling_mode", "7");
  CHECK_THROWS(te::MultiTensorWrapper(2, static_cast<NVTEScalingMode>(7)), "nvte_create_tensors",
               "scaling_mode", "7");

  // A refused change leaves the tensor as it was, and a chain ends at the fault.
  te::TensorWrapper kept(address(0), Dims{4}, te::DType::kByte);
  CHECK_THROWS(kept.set_nvfp4_e4m3_max(300), "nvte_set_tensor_param_v2", "300");
  CHECK_EQ(kept.get_nvfp4_e4m3_max(), 448);
  CHECK_THROWS(kept.set_rowwise_data(address(1), te::DType::kByte, Dims{SIZE_MAX, 3})
                   .set_amax(float_address(1), te::DType::kFloat32, Dims{1}),
               "nvte_set_tensor_param_v2", "buf.shape");
  CHECK(same(kept.get_rowwise_data(), address(0), te::DType::kByte, {4}) && !kept.amax());

  te::TensorWrapper bad_amax;
  bad_amax.set_amax(address(0), te::DType::kBFloat16, Dims{1});
  CHECK_THROWS(bad_amax.amax(), "nvte_tensor_amax", "tensor.amax", "Float32", "BFloat16");

  // Operators report as the mode says.
  const te::TensorWrapper empty;
  CHECK_FAILS(nvte_quantize(empty.data(), t.data(), nullptr), "nvte_quantize", "input");
}

// An error that was there before a wrapper's call belongs to somebody else.
void errors_before() {
  const te::TensorWrapper t(address(0), Dims{2, 3}, te::DType::kFloat32);
  const NVTEXErrorMode mode = nvtex_set_error_mode(NVTEX_ERROR_RETURN);
  nvtex_stream_synchronize(nullptr);
  nvte_tensor_numel(nullptr);
  const std::string cause = nvtex_last_error();
  CHECK(cause.find("nvte_tensor_numel") == 0);
  CHECK_EQ(t.numel(), 6u);
  bool thrown = false;
  try {
    t.size(7);
  } catch (const std::runtime_error &error) {
    thrown = std::string(error.what()).find("nvte_tensor_size: dim") == 0;
  }
  CHECK(thrown);
  CHECK_EQ(nvtex_last_status(), NVTEX_INVALID_ARGUMENT);
  CHECK(cause == nvtex_last_error());
  nvtex_clear_error();

  // A destructor keeps its error for the thread.
  {
    const te::TensorWrapper twice;
    nvte_destroy_tensor(twice.data());
    CHECK_EQ(nvtex_last_status(), NVTEX_OK);
  }
  CHECK(std::strstr(nvtex_last_error(), "nvte_destroy_tensor: tensor") != nullptr);
  nvtex_clear_error();
  nvtex_set_error_mode(mode);
  {
    const te::TensorWrapper twice;
    nvte_destroy_tensor(twice.data());
  }
  CHECK_EQ(nvtex_last_status(), NVTEX_INVALID_ARGUMENT);
  nvtex_clear_error();
}

// Destroyed after the library's own variables of the thread, since it exists before its first call.
struct Last {
  std::vector<te::TensorWrapper> tensors;
  bool *ok = nullptr;
  ~Last() {
    const uint64_t before = nvtex_error_count();
    bool usable = false;
    try {
      usable = tensors.at(0).numel() == 4;
      tensors.clear();
      te::TensorWrapper(static_cast<NVTEScalingMode>(7));
    } catch (const std::runtime_error &error) {
      *ok = usable && error.what()[0] != 0 && nvtex_error_count() == before + 1;
    }
  }
};
thread_local Last last;

void ending_thread() {
  bool ok = false;
  std::thread([&ok] {
    last.ok = &ok;
    last.tensors.emplace_back(address(0), Dims{4}, te::DType::kByte);
  }).join();
  CHECK(ok);
}

void c_handles() {
  // A wrapper's handle in C calls: the same object.
  te::TensorWrapper wrapper(address(0), Dims{2, 4}, te::DType::kFloat16);
  NVTEBasicTensor buffer{};
  size_t size = 0;
  nvte_get_tensor_param_v2(wrapper.data(), kNVTERowwiseData, &buffer, sizeof(buffer), &size);
  CHECK_EQ(size, sizeof(buffer));
  CHECK(same(buffer, address(0), te::DType::kFloat16, {2, 4}));
  buffer.data_ptr = address(2);
  nvte_set_tensor_param_v2(wrapper.data(), kNVTERowwiseData, &buffer, sizeof(buffer));
  CHECK(wrapper.dptr() == address(2));
  CHECK(same(nvte_get_tensor_param(wrapper.data(), kNVTERowwiseData), address(2),
             te::DType::kFloat16, {2, 4}));

  NVTETensorPack pack;
  CHECK_EQ(pack.size, 0u);
  nvte_tensor_pack_create(&pack);
  for (int i = 0; i < NVTETensorPack::MAX_SIZE; ++i)
    CHECK_EQ(nvte_tensor_ndims(pack.tensors[i]), 1u);
  nvte_tensor_pack_destroy(&pack);

  // A C handle and a wrapper in one operator: float32 to bfloat16.
  const Device<float> x(std::vector<float>{1, -2, 0.5f, 3});
  const Device<uint16_t> y(4);
  const te::TensorWrapper input(x.get(), Dims{4}, te::DType::kFloat32);
  const NVTETensor output = nvte_create_tensor(NVTE_DELAYED_TENSOR_SCALING);
  const NVTEBasicTensor target = {y.get(), kNVTEBFloat16, input.shape()};
  nvte_set_tensor_param_v2(output, kNVTERowwiseData, &target, sizeof(target));
  nvte_quantize_v2(input.data(), output, te::QuantizationConfigWrapper(), nullptr);
  nvte_destroy_tensor(output);
  CHECK_EQ(y.values(), (std::vector<uint16_t>{0x3F80, 0xC000, 0x3F00, 0x4040}));
}

const std::pair<const char *, void (*)()> cases[] = {
    {"types", types},
    {"tensor_empty", tensor_empty},
    {"tensor_constructors", tensor_constructors},
    {"tensor_parameters", tensor_parameters},
    {"tensor_queries", tensor_queries},
    {"tensor_moves", tensor_moves},
    {"tensor_destruction", tensor_destruction},
    {"tensor_zero", tensor_zero},
    {"multi_tensor", multi_tensor},
    {"grouped_tensor", grouped_tensor},
    {"quantization_config", quantization_config},
    {"quantization_config_in_use", quantization_config_in_use},
    {"matmul_config", matmul_config},
    {"grouped_matmul_config", grouped_matmul_config},
    {"gemm_with_config", gemm_with_config},
    {"fp8_output", fp8_output},
    {"two_phases", two_phases},
    {"recipe_vectors", recipe_vectors},
    {"exceptions", exceptions},
    {"errors_before", errors_before},
    {"ending_thread", ending_thread},
    {"c_handles", c_handles},
};

// The headers leave the error mode to the environment. Each mode needs its own process.
void check_initial_modes(const std::string &program) {
  const std::pair<const char *, NVTEXErrorMode> modes[] = {{"", NVTEX_ERROR_RETURN},
                                                           {"return", NVTEX_ERROR_RETURN},
                                                           {"abort", NVTEX_ERROR_ABORT},
                                                           {"throw", NVTEX_ERROR_THROW}};
  for (const auto &[word, mode] : modes) {
    const std::string command = std::string("NVTE_ON_ERROR=") + word + " '" + program +
                                "' --expect-mode " + std::to_string(mode);
    check(std::system(command.c_str()) == 0, __LINE__, command);
  }
}

}  // namespace

int main(int argc, char **argv) {
  const NVTEXErrorMode initial = nvtex_set_error_mode(NVTEX_ERROR_RETURN);
  if (argc == 3 && std::string(argv[1]) == "--expect-mode") {
    return std::to_string(initial) == argv[2] ? 0 : 1;
  }
  const char *const backend = std::getenv("NVTE_BACKEND");
  if (nvtex_backend_name() == nullptr) {
    const bool skip = backend != nullptr && std::string(backend) == "cuda";
    std::printf("%s: %s\n", skip ? "SKIP" : "FAIL", nvtex_last_error());
    return skip ? 77 : 1;
  }
  check_initial_modes(argv[0]);
  std::fprintf(stderr, "Refused calls print their messages here:\n");
  for (const bool mode : {false, true}) {
    throwing = mode;
    nvtex_set_error_mode(mode ? NVTEX_ERROR_THROW : NVTEX_ERROR_RETURN);
    for (const auto &[name, run] : cases) {
      const int before = failures;
      try {
        run();
      } catch (const std::exception &error) {
        check(false, __LINE__, std::string(name) + ": " + error.what());
      }
      check(nvtex_last_status() == NVTEX_OK, __LINE__, std::string(name) + ": an error is left");
      nvtex_clear_error();
      if (failures != before) {
        std::fprintf(stderr, "FAIL %s, mode %s\n", name, mode ? "throw" : "return");
      }
    }
  }
  std::printf("%zu cases on %s, %d failures\n", std::size(cases), nvtex_backend_name(), failures);
  return failures == 0 ? 0 : 1;
}
