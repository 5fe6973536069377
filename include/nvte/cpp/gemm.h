#ifndef NVTE_CPP_GEMM_H
#define NVTE_CPP_GEMM_H

// C++17 layer over nvte/gemm.h: owning, movable wrappers of the matmul configs.

#include "nvte/cpp/transformer_engine.h"
#include "nvte/gemm.h"

namespace transformer_engine {

/*! Owns a matmul config; pass it wherever an NVTEMatmulConfig is expected. */
class MatmulConfigWrapper {
 public:
  MatmulConfigWrapper() : handle_(detail::checked(nvte_create_matmul_config)) {}

  operator NVTEMatmulConfig() const noexcept { return handle_.get(); }

  void set_bias_tensor(NVTETensor tensor) { set(kNVTEMatmulConfigBiasTensor, tensor); }
  void set_dbias_tensor(NVTETensor tensor) { set(kNVTEMatmulConfigDBiasTensor, tensor); }
  void set_with_gelu_epilogue(bool value) {
    set<uint8_t>(kNVTEMatmulConfigWithGELUEpilogue, value);
  }
  void set_with_dgelu_epilogue(bool value) {
    set<uint8_t>(kNVTEMatmulConfigWithDGELUEpilogue, value);
  }
  void set_epilogue_aux_tensor(NVTETensor tensor) {
    set(kNVTEMatmulConfigEpilogueAuxTensor, tensor);
  }
  void set_use_split_accumulator(bool value) {
    set<uint8_t>(kNVTEMatmulConfigUseSplitAccumulator, value);
  }
  void set_sm_count(int count) { set<int32_t>(kNVTEMatmulConfigSMCount, count); }

 private:
  template <typename T>
  void set(NVTEMatmulConfigAttribute attr, T value) {
    detail::checked(
        [&] { nvte_set_matmul_config_attribute(handle_.get(), attr, &value, sizeof(value)); });
  }

  detail::Handle<nvte_destroy_matmul_config> handle_;
};

/*! Owns a grouped matmul config; pass it wherever an NVTEGroupedMatmulConfig is expected. */
class GroupedMatmulConfigWrapper {
 public:
  GroupedMatmulConfigWrapper() : handle_(detail::checked(nvte_create_grouped_matmul_config)) {}

  operator NVTEGroupedMatmulConfig() const noexcept { return handle_.get(); }

  void set_avg_m(int64_t value) { set(kNVTEGroupedMatmulConfigAvgM, value); }
  void set_avg_n(int64_t value) { set(kNVTEGroupedMatmulConfigAvgN, value); }
  void set_avg_k(int64_t value) { set(kNVTEGroupedMatmulConfigAvgK, value); }
  void set_sm_count(int count) { set<int32_t>(kNVTEGroupedMatmulConfigSMCount, count); }
  void set_use_split_accumulator(bool value) {
    set<uint8_t>(kNVTEGroupedMatmulConfigUseSplitAccumulator, value);
  }

 private:
  template <typename T>
  void set(NVTEGroupedMatmulConfigAttribute attr, T value) {
    detail::checked([&] {
      nvte_set_grouped_matmul_config_attribute(handle_.get(), attr, &value, sizeof(value));
    });
  }

  detail::Handle<nvte_destroy_grouped_matmul_config> handle_;
};

}  // namespace transformer_engine

#endif  // NVTE_CPP_GEMM_H
