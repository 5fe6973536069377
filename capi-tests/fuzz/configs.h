// Copies of configs: objects with numbered attributes.
#ifndef NVTE_FUZZ_CONFIGS_H
#define NVTE_FUZZ_CONFIGS_H

#include "tensors.h"

namespace {

struct ConfigType {
  Kind kind;
  void *(*create)();
  void (*get)(void *, int, void *, size_t, size_t *);
  void (*set)(void *, int, const void *, size_t);
  void (*destroy)(void *);
  int attributes;
  uint64_t tensors;  // a bit for each attribute that is one
  int pack, stream;
};

#define CONFIG(kind, noun, Attribute, attributes, tensors, pack, stream) \
  {kind,                                                                 \
   [] { return (void *)nvte_create_##noun(); },                          \
   [](void *c, int a, void *buf, size_t n, size_t *w) {                  \
     nvte_get_##noun##_attribute(c, (Attribute)a, buf, n, w);            \
   },                                                                    \
   [](void *c, int a, const void *buf, size_t n) {                       \
     nvte_set_##noun##_attribute(c, (Attribute)a, buf, n);               \
   },                                                                    \
   [](void *c) { nvte_destroy_##noun(c); },                              \
   attributes,                                                           \
   tensors,                                                              \
   pack,                                                                 \
   stream}

const ConfigType kConfigs[] = {
    CONFIG(QUANT_CONFIG, quantization_config, NVTEQuantizationConfigAttribute,
           kNVTEQuantizationConfigNumAttributes,
           1 << kNVTEQuantizationConfigNoopTensor | 1 << kNVTEQuantizationConfigRNGState, -1, -1),
    CONFIG(MATMUL_CONFIG, matmul_config, NVTEMatmulConfigAttribute, kNVTEMatmulConfigNumAttributes,
           1 << kNVTEMatmulConfigBiasTensor | 1 << kNVTEMatmulConfigDBiasTensor |
               1 << kNVTEMatmulConfigEpilogueAuxTensor,
           -1, -1),
    CONFIG(GROUPED_MATMUL_CONFIG, grouped_matmul_config, NVTEGroupedMatmulConfigAttribute,
           kNVTEGroupedMatmulConfigNumAttributes, 0, -1, -1),
    CONFIG(ATTENTION_CONFIG, fused_attn_config, NVTEFusedAttnConfigAttribute,
           kNVTEFusedAttnConfigNumAttributes, 0, -1, -1),
    CONFIG(FORWARD_PARAMS, fused_attn_fwd_params, NVTEFusedAttnFwdParamsAttribute,
           kNVTEFusedAttnFwdParamsNumAttributes, 0x7F7F | 1ull << kNVTEFusedAttnFwdParamsWorkspace,
           kNVTEFusedAttnFwdParamsAuxCtxTensors, kNVTEFusedAttnFwdParamsStream),
    CONFIG(BACKWARD_PARAMS, fused_attn_bwd_params, NVTEFusedAttnBwdParamsAttribute,
           kNVTEFusedAttnBwdParamsNumAttributes, 0x1FF7F | 1ull << kNVTEFusedAttnBwdParamsWorkspace,
           kNVTEFusedAttnBwdParamsAuxCtxTensors, kNVTEFusedAttnBwdParamsStream),
};

const ConfigType &config_type(Kind kind) { return kConfigs[kind - QUANT_CONFIG]; }

void *copy_config(Kind kind, void *original, const std::string &name, bool change) {
  if (change && one_in(6)) return wrong_handle(original, name);
  if (!original) return nullptr;
  const ConfigType &type = config_type(kind);
  void *copy = type.create();
  if (!ok()) return original;
  g.copies.emplace_back(kind, copy);
  int target = change ? (int)below((size_t)type.attributes) : -1;
  for (int i = 0; i < type.attributes; i++) {
    unsigned char value[64] = {0};
    size_t size = 0;
    type.get(original, i, nullptr, 0, &size);
    if (!ok() || size == 0 || size > sizeof value) continue;
    type.get(original, i, value, size, nullptr);
    if (!ok()) return original;
    std::string attribute = name + ".attribute" + std::to_string(i);
    void *handle;
    memcpy(&handle, value, sizeof handle);
    if (type.tensors >> i & 1) {
      handle = copy_tensor(handle, attribute, i == target);
      memcpy(value, &handle, sizeof handle);
    } else if (i == type.pack) {
      handle = copy_pack((NVTETensorPack *)handle, attribute, i == target);
      memcpy(value, &handle, sizeof handle);
    } else if (i == type.stream) {
      memcpy(&g.stream, value, sizeof g.stream);
    } else if (i == target && size == 4 && one_in(4)) {
      float x = changed_float(1);
      memcpy(value, &x, 4);
      changed("%s: as float %g", attribute.c_str(), (double)x);
    } else if (i == target && size == 1) {
      value[0] = !value[0];
      changed("%s: -> %d", attribute.c_str(), value[0]);
    } else if (i == target && (size == 4 || size == 8)) {
      change_bytes(value, size, attribute);
    }
    type.set(copy, i, value, size);
    if (!ok() && i == target) changed("(the setter refused it)");
  }
  return copy;
}

}  // namespace

#endif  // NVTE_FUZZ_CONFIGS_H
