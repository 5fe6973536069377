#ifndef NVTE_CPP_TRANSFORMER_ENGINE_H
#define NVTE_CPP_TRANSFORMER_ENGINE_H

// C++17 layer over nvte/transformer_engine.h: owning, movable wrappers of the handles.
// A wrapper whose call fails throws std::runtime_error with the message, from this header's inline
// code in the caller's frame, whatever the error mode is. Including the header changes no mode: an
// nvte_* function that the program calls itself reports as the mode says, so a program that wants
// exceptions from those too begins with nvtex_set_error_mode(NVTEX_ERROR_THROW).
// Destructors never throw: an error there stays in nvtex_last_status().

#include <cstddef>
#include <cstdint>
#include <memory>
#include <stdexcept>
#include <type_traits>
#include <utility>
#include <vector>

#if __has_include(<cuda_runtime_api.h>)
#include <cuda_runtime_api.h>
#endif

#include "nvte/nvtex.h"
#include "nvte/transformer_engine.h"

namespace transformer_engine {

namespace detail {

// Returns what `body` returns. If a C call in it fails, throws its message and clears its status;
// an error that the thread had before stays as it is.
template <typename Body>
auto checked(Body body) {
  struct Check {
    uint64_t before = nvtex_error_count();
    void operator()() const {
      const char *message = nvtex_take_error(before);
      if (message != nullptr) throw std::runtime_error(message);
    }
  };
  const Check check;
  if constexpr (std::is_void_v<decltype(body())>) {
    body();
    check();
  } else {
    auto result = body();
    check();
    return result;
  }
}

// What a query of a wrapper's handle returns; `absent` if a move has left the wrapper without one.
template <typename Body>
auto query(const void *handle, Body body, decltype(body()) absent) {
  return handle != nullptr ? checked(body) : absent;
}

template <void (*destroy)(void *)>
struct Destroy {
  void operator()(void *handle) const noexcept {
    try {
      destroy(handle);
    } catch (...) {
      // Error mode throw: the status is kept all the same.
    }
  }
};

// Owns a C handle; null after a move.
template <void (*destroy)(void *)>
using Handle = std::unique_ptr<void, Destroy<destroy>>;

inline NVTEShape to_shape(const NVTEShape &shape) { return shape; }
inline NVTEShape to_shape(const std::vector<size_t> &shape) {
  return checked([&] { return nvte_make_shape(shape.data(), shape.size()); });
}

template <typename ShapeType>
NVTEBasicTensor basic_tensor(void *ptr, NVTEDType type, const ShapeType &shape) {
  return {ptr, type, to_shape(shape)};
}

}  // namespace detail

/*! Element type of a buffer: NVTEDType without the prefix. */
enum class DType {
  kByte = kNVTEByte,
  kInt16 = kNVTEInt16,
  kInt32 = kNVTEInt32,
  kInt64 = kNVTEInt64,
  kFloat32 = kNVTEFloat32,
  kFloat16 = kNVTEFloat16,
  kBFloat16 = kNVTEBFloat16,
  kFloat8E4M3 = kNVTEFloat8E4M3,
  kFloat8E5M2 = kNVTEFloat8E5M2,
  kFloat8E8M0 = kNVTEFloat8E8M0,
  kFloat4E2M1 = kNVTEFloat4E2M1,
  kNumTypes = kNVTENumTypes
};

/*! True for E4M3 and E5M2; E8M0 only holds scales. */
constexpr bool is_fp8_dtype(DType t) { return t == DType::kFloat8E4M3 || t == DType::kFloat8E5M2; }
constexpr bool is_fp4_dtype(DType t) { return t == DType::kFloat4E2M1; }
constexpr bool is_high_precision_dtype(DType t) {
  return t == DType::kFloat32 || t == DType::kBFloat16 || t == DType::kFloat16;
}

/*! Kept for source compatibility; the library ignores it. */
enum class Float8BlockScaleTensorFormat { GEMM_READY = 0, COMPACT = 1, INVALID };

/*! Owns a tensor handle; the buffers belong to the caller. */
class TensorWrapper {
 public:
  static constexpr size_t defaultData = 1;
  static constexpr NVTEShape defaultShape = {{defaultData}, 1};
  static constexpr NVTEShape emptyShape = {{0}, 1};

  /*! A tensor with row-wise data. A null amax, scale or scale_inv leaves that field absent, except
   *  that a scale_inv_shape other than (1) is kept even without a pointer. */
  TensorWrapper(void *dptr, const NVTEShape &shape, DType dtype, float *amax_dptr = nullptr,
                float *scale_dptr = nullptr, float *scale_inv_dptr = nullptr,
                NVTEShape scale_inv_shape = defaultShape,
                NVTEScalingMode scaling_mode = NVTE_DELAYED_TENSOR_SCALING)
      : TensorWrapper(scaling_mode) {
    const bool is_default = scale_inv_shape.ndim == 1 && scale_inv_shape.data[0] == defaultData;
    if (scale_inv_dptr == nullptr && is_default) scale_inv_shape = emptyShape;
    set_rowwise_data(dptr, dtype, shape);
    set_amax(amax_dptr, DType::kFloat32, amax_dptr != nullptr ? defaultShape : emptyShape);
    set_scale(scale_dptr, DType::kFloat32, scale_dptr != nullptr ? defaultShape : emptyShape);
    set_rowwise_scale_inv(scale_inv_dptr, DType::kFloat32, scale_inv_shape);
  }

  TensorWrapper(void *dptr, const std::vector<size_t> &shape, DType dtype,
                float *amax_dptr = nullptr, float *scale_dptr = nullptr,
                float *scale_inv_dptr = nullptr, const std::vector<size_t> &scale_inv_shape = {1},
                NVTEScalingMode scaling_mode = NVTE_DELAYED_TENSOR_SCALING)
      : TensorWrapper(dptr, detail::to_shape(shape), dtype, amax_dptr, scale_dptr, scale_inv_dptr,
                      detail::to_shape(scale_inv_shape), scaling_mode) {}

  /*! A tensor without buffers. */
  explicit TensorWrapper(NVTEScalingMode scaling_mode = NVTE_DELAYED_TENSOR_SCALING)
      : handle_(detail::checked([=] { return nvte_create_tensor(scaling_mode); })) {}

  template <typename ShapeType>
  TensorWrapper &set_parameter(NVTETensorParam param, void *dptr, DType type,
                               const ShapeType &shape) {
    const auto value = detail::basic_tensor(dptr, static_cast<NVTEDType>(type), shape);
    detail::checked([&] { nvte_set_tensor_param_v2(data(), param, &value, sizeof(value)); });
    return *this;
  }

  template <typename ShapeType>
  TensorWrapper &set_rowwise_data(void *dptr, DType type, const ShapeType &shape) {
    return set_parameter(kNVTERowwiseData, dptr, type, shape);
  }
  template <typename ShapeType>
  TensorWrapper &set_columnwise_data(void *dptr, DType type, const ShapeType &shape) {
    return set_parameter(kNVTEColumnwiseData, dptr, type, shape);
  }
  template <typename ShapeType>
  TensorWrapper &set_scale(void *dptr, DType type, const ShapeType &shape) {
    return set_parameter(kNVTEScale, dptr, type, shape);
  }
  template <typename ShapeType>
  TensorWrapper &set_amax(void *dptr, DType type, const ShapeType &shape) {
    return set_parameter(kNVTEAmax, dptr, type, shape);
  }
  template <typename ShapeType>
  TensorWrapper &set_rowwise_scale_inv(void *dptr, DType type, const ShapeType &shape) {
    return set_parameter(kNVTERowwiseScaleInv, dptr, type, shape);
  }
  template <typename ShapeType>
  TensorWrapper &set_columnwise_scale_inv(void *dptr, DType type, const ShapeType &shape) {
    return set_parameter(kNVTEColumnwiseScaleInv, dptr, type, shape);
  }
  template <typename ShapeType>
  TensorWrapper &set_columnwise_amax(void *dptr, DType type, const ShapeType &shape) {
    return set_parameter(kNVTEColumnwiseAmax, dptr, type, shape);
  }

  void set_with_gemm_swizzled_scales(bool value) {
    set_scalar<uint8_t>(kNVTEWithGEMMSwizzledScales, value);
  }
  void set_row_scaled_nvfp4(bool value) { set_scalar<uint8_t>(kNVTERowScaledNVFP4, value); }
  void set_nvfp4_e4m3_max(int value) { set_scalar<int>(kNVTENVFP4E4M3Max, value); }

  NVTEBasicTensor get_parameter(NVTETensorParam param) const {
    return get_value<NVTEBasicTensor>(param);
  }
  NVTEBasicTensor get_rowwise_data() const { return get_parameter(kNVTERowwiseData); }
  NVTEBasicTensor get_columnwise_data() const { return get_parameter(kNVTEColumnwiseData); }
  NVTEBasicTensor get_scale() const { return get_parameter(kNVTEScale); }
  NVTEBasicTensor get_amax() const { return get_parameter(kNVTEAmax); }
  NVTEBasicTensor get_rowwise_scale_inv() const { return get_parameter(kNVTERowwiseScaleInv); }
  NVTEBasicTensor get_columnwise_scale_inv() const {
    return get_parameter(kNVTEColumnwiseScaleInv);
  }
  NVTEBasicTensor get_columnwise_amax() const { return get_parameter(kNVTEColumnwiseAmax); }

  bool get_with_gemm_swizzled_scales() const {
    return get_value<uint8_t>(kNVTEWithGEMMSwizzledScales) != 0;
  }
  bool get_row_scaled_nvfp4() const { return get_value<uint8_t>(kNVTERowScaledNVFP4) != 0; }
  int get_nvfp4_e4m3_max() const { return get_value<int>(kNVTENVFP4E4M3Max); }

  /*! The handle, for C calls; null after a move. The data pointer is dptr(). */
  NVTETensor data() const noexcept { return handle_.get(); }

  const NVTEShape shape() const {
    return detail::query(data(), [&] { return nvte_tensor_shape(data()); }, emptyShape);
  }
  const NVTEShape columnwise_shape() const {
    return detail::query(data(), [&] { return nvte_tensor_columnwise_shape(data()); }, emptyShape);
  }
  const NVTEShape scale_inv_shape() const {
    return detail::query(data(), [&] { return nvte_tensor_scale_inv_shape(data()); }, emptyShape);
  }

  size_t size(size_t dim) const {
    return detail::query(data(), [&] { return nvte_tensor_size(data(), dim); }, 0);
  }
  size_t ndim() const {
    return detail::query(data(), [&] { return nvte_tensor_ndims(data()); }, 0);
  }
  size_t numel() const {
    return detail::query(data(), [&] { return nvte_tensor_numel(data()); }, 0);
  }
  size_t element_size() const {
    return detail::query(data(), [&] { return nvte_tensor_element_size(data()); }, 0);
  }
  size_t element_size_bits() const {
    return detail::query(data(), [&] { return nvte_tensor_element_size_bits(data()); }, 0);
  }
  /*! Bytes of the row-wise data; 0 without a data pointer. */
  size_t bytes() const {
    if (dptr() == nullptr) return 0;
    return detail::checked([&] { return nvte_tensor_size_bytes(data()); });
  }

  DType dtype() const {
    return static_cast<DType>(
        detail::query(data(), [&] { return nvte_tensor_type(data()); }, kNVTENumTypes));
  }
  NVTEScalingMode scaling_mode() const {
    return detail::query(
        data(), [&] { return nvte_tensor_scaling_mode(data()); }, NVTE_DELAYED_TENSOR_SCALING);
  }

  void *dptr() const {
    return detail::query(data(), [&] { return nvte_tensor_data(data()); }, nullptr);
  }
  void *columnwise_dptr() const {
    return detail::query(data(), [&] { return nvte_tensor_columnwise_data(data()); }, nullptr);
  }
  float *amax() const {
    return detail::query(data(), [&] { return nvte_tensor_amax(data()); }, nullptr);
  }
  float *scale() const {
    return detail::query(data(), [&] { return nvte_tensor_scale(data()); }, nullptr);
  }
  float *scale_inv() const {
    return detail::query(data(), [&] { return nvte_tensor_scale_inv(data()); }, nullptr);
  }

  /*! Zeroes row-wise data and amax on the stream. */
  void zero_(cudaStream_t stream) {
    detail::checked([&] { nvte_zero_tensor(data(), stream); });
  }

 private:
  template <typename T>
  void set_scalar(NVTETensorParam param, T value) {
    detail::checked([&] { nvte_set_tensor_param_v2(data(), param, &value, sizeof(value)); });
  }

  template <typename T>
  T get_value(NVTETensorParam param) const {
    T value{};
    detail::checked(
        [&] { nvte_get_tensor_param_v2(data(), param, &value, sizeof(value), nullptr); });
    return value;
  }

  detail::Handle<nvte_destroy_tensor> handle_;
};

/*! Owns an array of tensor handles, created and destroyed in one call each. */
class MultiTensorWrapper {
 public:
  MultiTensorWrapper() = default;
  explicit MultiTensorWrapper(size_t num_tensors,
                              NVTEScalingMode scaling_mode = NVTE_DELAYED_TENSOR_SCALING)
      : handles_(num_tensors) {
    if (empty()) return;
    detail::checked([&] { nvte_create_tensors(scaling_mode, data(), size()); });
  }
  ~MultiTensorWrapper() {
    try {
      if (!empty()) nvte_destroy_tensors(data(), size());
    } catch (...) {
      // Error mode throw: the status is kept all the same.
    }
  }

  MultiTensorWrapper(MultiTensorWrapper &&other) noexcept
      : handles_(std::exchange(other.handles_, {})) {}
  MultiTensorWrapper &operator=(MultiTensorWrapper &&other) noexcept {
    MultiTensorWrapper taken(std::move(other));
    handles_.swap(taken.handles_);
    return *this;
  }

  size_t size() const noexcept { return handles_.size(); }
  bool empty() const noexcept { return handles_.empty(); }

  NVTETensor operator[](size_t i) const { return handles_[i]; }
  NVTETensor *data() noexcept { return handles_.data(); }
  const NVTETensor *data() const noexcept { return handles_.data(); }
  operator NVTETensor *() noexcept { return data(); }

  auto begin() noexcept { return handles_.begin(); }
  auto begin() const noexcept { return handles_.begin(); }
  auto end() noexcept { return handles_.end(); }
  auto end() const noexcept { return handles_.end(); }

 private:
  std::vector<NVTETensor> handles_;
};

/*! Owns a grouped tensor handle; the buffers belong to the caller. */
class GroupedTensorWrapper {
 public:
  static constexpr size_t defaultData = TensorWrapper::defaultData;
  static constexpr NVTEShape defaultShape = TensorWrapper::defaultShape;
  static constexpr NVTEShape emptyShape = TensorWrapper::emptyShape;

  GroupedTensorWrapper(size_t num_tensors, const NVTEShape &logical_shape,
                       NVTEScalingMode scaling_mode = NVTE_DELAYED_TENSOR_SCALING)
      : handle_(detail::checked([&] {
          return nvte_create_grouped_tensor(scaling_mode, num_tensors, logical_shape);
        })) {}
  GroupedTensorWrapper(size_t num_tensors, const std::vector<size_t> &logical_shape,
                       NVTEScalingMode scaling_mode = NVTE_DELAYED_TENSOR_SCALING)
      : GroupedTensorWrapper(num_tensors, detail::to_shape(logical_shape), scaling_mode) {}

  template <typename ShapeType>
  GroupedTensorWrapper &set_parameter(NVTEGroupedTensorParam param, void *dptr, DType type,
                                      const ShapeType &shape) {
    const auto value = detail::basic_tensor(dptr, static_cast<NVTEDType>(type), shape);
    detail::checked([&] { nvte_set_grouped_tensor_param(data(), param, &value, sizeof(value)); });
    return *this;
  }

  template <typename ShapeType>
  GroupedTensorWrapper &set_rowwise_data(void *dptr, DType type, const ShapeType &shape) {
    return set_parameter(kNVTEGroupedRowwiseData, dptr, type, shape);
  }
  template <typename ShapeType>
  GroupedTensorWrapper &set_columnwise_data(void *dptr, DType type, const ShapeType &shape) {
    return set_parameter(kNVTEGroupedColumnwiseData, dptr, type, shape);
  }
  template <typename ShapeType>
  GroupedTensorWrapper &set_scale(void *dptr, DType type, const ShapeType &shape) {
    return set_parameter(kNVTEGroupedScale, dptr, type, shape);
  }
  template <typename ShapeType>
  GroupedTensorWrapper &set_amax(void *dptr, DType type, const ShapeType &shape) {
    return set_parameter(kNVTEGroupedAmax, dptr, type, shape);
  }
  template <typename ShapeType>
  GroupedTensorWrapper &set_rowwise_scale_inv(void *dptr, DType type, const ShapeType &shape) {
    return set_parameter(kNVTEGroupedRowwiseScaleInv, dptr, type, shape);
  }
  template <typename ShapeType>
  GroupedTensorWrapper &set_columnwise_scale_inv(void *dptr, DType type, const ShapeType &shape) {
    return set_parameter(kNVTEGroupedColumnwiseScaleInv, dptr, type, shape);
  }
  template <typename ShapeType>
  GroupedTensorWrapper &set_columnwise_amax(void *dptr, DType type, const ShapeType &shape) {
    return set_parameter(kNVTEGroupedColumnwiseAmax, dptr, type, shape);
  }
  template <typename ShapeType>
  GroupedTensorWrapper &set_first_dims(void *dptr, DType type, const ShapeType &shape) {
    return set_parameter(kNVTEGroupedFirstDims, dptr, type, shape);
  }
  template <typename ShapeType>
  GroupedTensorWrapper &set_last_dims(void *dptr, DType type, const ShapeType &shape) {
    return set_parameter(kNVTEGroupedLastDims, dptr, type, shape);
  }
  template <typename ShapeType>
  GroupedTensorWrapper &set_tensor_offsets(void *dptr, DType type, const ShapeType &shape) {
    return set_parameter(kNVTEGroupedTensorOffsets, dptr, type, shape);
  }

  void set_with_gemm_swizzled_scales(bool value) {
    const uint8_t byte = value;
    const auto param = kNVTEGroupedWithGEMMSwizzledScales;
    detail::checked([&] { nvte_set_grouped_tensor_param(data(), param, &byte, sizeof(byte)); });
  }

  NVTEBasicTensor get_parameter(NVTEGroupedTensorParam param) const {
    return get_value<NVTEBasicTensor>(param);
  }
  NVTEBasicTensor get_rowwise_data() const { return get_parameter(kNVTEGroupedRowwiseData); }
  NVTEBasicTensor get_columnwise_data() const { return get_parameter(kNVTEGroupedColumnwiseData); }
  NVTEBasicTensor get_scale() const { return get_parameter(kNVTEGroupedScale); }
  NVTEBasicTensor get_amax() const { return get_parameter(kNVTEGroupedAmax); }
  NVTEBasicTensor get_rowwise_scale_inv() const {
    return get_parameter(kNVTEGroupedRowwiseScaleInv);
  }
  NVTEBasicTensor get_columnwise_scale_inv() const {
    return get_parameter(kNVTEGroupedColumnwiseScaleInv);
  }
  NVTEBasicTensor get_columnwise_amax() const { return get_parameter(kNVTEGroupedColumnwiseAmax); }
  NVTEBasicTensor get_first_dims() const { return get_parameter(kNVTEGroupedFirstDims); }
  NVTEBasicTensor get_last_dims() const { return get_parameter(kNVTEGroupedLastDims); }
  NVTEBasicTensor get_tensor_offsets() const { return get_parameter(kNVTEGroupedTensorOffsets); }
  bool get_with_gemm_swizzled_scales() const {
    return get_value<uint8_t>(kNVTEGroupedWithGEMMSwizzledScales) != 0;
  }

  /*! The handle, for C calls; null after a move. */
  NVTEGroupedTensor data() const noexcept { return handle_.get(); }

  size_t num_tensors() const {
    return detail::query(data(), [&] { return nvte_grouped_tensor_num_tensors(data()); }, 0);
  }
  DType dtype() const {
    return static_cast<DType>(
        detail::query(data(), [&] { return nvte_grouped_tensor_type(data()); }, kNVTENumTypes));
  }
  NVTEScalingMode scaling_mode() const {
    return detail::query(
        data(), [&] { return nvte_grouped_tensor_scaling_mode(data()); },
        NVTE_DELAYED_TENSOR_SCALING);
  }
  const NVTEShape logical_shape() const {
    return detail::query(
        data(), [&] { return nvte_get_grouped_tensor_logical_shape(data()); }, emptyShape);
  }

 private:
  template <typename T>
  T get_value(NVTEGroupedTensorParam param) const {
    T value{};
    detail::checked(
        [&] { nvte_get_grouped_tensor_param(data(), param, &value, sizeof(value), nullptr); });
    return value;
  }

  detail::Handle<nvte_destroy_grouped_tensor> handle_;
};

/*! Owns a quantization config; pass it wherever an NVTEQuantizationConfig is expected. */
class QuantizationConfigWrapper {
 public:
  QuantizationConfigWrapper() : handle_(detail::checked(nvte_create_quantization_config)) {}

  operator NVTEQuantizationConfig() const noexcept { return handle_.get(); }

  void set_force_pow_2_scales(bool value) {
    set<uint8_t>(kNVTEQuantizationConfigForcePow2Scales, value);
  }
  void set_amax_epsilon(float value) { set(kNVTEQuantizationConfigAmaxEpsilon, value); }
  void set_noop_tensor(NVTETensor tensor) { set(kNVTEQuantizationConfigNoopTensor, tensor); }
  /*! Does nothing: the format is no longer a choice. */
  void set_float8_block_scale_tensor_format(Float8BlockScaleTensorFormat) {}
  void set_rng_state(NVTETensor tensor) { set(kNVTEQuantizationConfigRNGState, tensor); }
  void set_nvfp4_2d_quantization(bool value) {
    set<uint8_t>(kNVTEQuantizationConfigNVFP42DQuantization, value);
  }
  void set_mxfp8_2d_quantization(bool value) {
    set<uint8_t>(kNVTEQuantizationConfigMXFP82DQuantization, value);
  }
  void set_stochastic_rounding(bool value) {
    set<uint8_t>(kNVTEQuantizationConfigStochasticRounding, value);
  }
  void set_use_fast_math(bool value) { set<uint8_t>(kNVTEQuantizationConfigUseFastMath, value); }
  void set_nvfp4_4over6_mode(NVTENVFP44Over6Mode mode) {
    set(kNVTEQuantizationConfigNVFP44Over6Mode, static_cast<uint8_t>(mode));
  }
  void set_nvfp4_4over6_err_use_fast_math(bool value) {
    set<uint8_t>(kNVTEQuantizationConfigNVFP44Over6ErrUseFastMath, value);
  }

 private:
  template <typename T>
  void set(NVTEQuantizationConfigAttribute attr, T value) {
    detail::checked([&] {
      nvte_set_quantization_config_attribute(handle_.get(), attr, &value, sizeof(value));
    });
  }

  detail::Handle<nvte_destroy_quantization_config> handle_;
};

}  // namespace transformer_engine

#endif  // NVTE_CPP_TRANSFORMER_ENGINE_H
