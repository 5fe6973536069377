// Copies of tensors, grouped tensors and packs, with memory of their own and one thing changed.
#ifndef NVTE_FUZZ_TENSORS_H
#define NVTE_FUZZ_TENSORS_H

#include "memory.h"

namespace {

const size_t kBits[] = {8, 16, 32, 64, 32, 16, 16, 8, 8, 8, 4};
const char *const kDtypes[] = {"Byte",       "Int16",      "Int32",     "Int64",
                               "Float32",    "Float16",    "BFloat16",  "Float8E4M3",
                               "Float8E5M2", "Float8E8M0", "Float4E2M1"};
const char *const kParams[] = {"data",      "columnwise_data",      "scale",          "amax",
                               "scale_inv", "columnwise_scale_inv", "columnwise_amax"};
const char *const kGroupedParams[] = {
    "data",      "columnwise_data",      "scale",           "amax",
    "scale_inv", "columnwise_scale_inv", "columnwise_amax", "first_dims",
    "last_dims", "tensor_offsets"};

size_t numel_of(const NVTEShape &shape) {
  size_t n = 1;
  for (size_t i = 0; i < shape.ndim && i < 15; i++) {
    if (__builtin_mul_overflow(n, shape.data[i], &n)) return SIZE_MAX / 8;
  }
  return n;
}

size_t bytes_of(const NVTEBasicTensor &t) {
  size_t n = numel_of(t.shape), bits = (unsigned)t.dtype < std::size(kBits) ? kBits[t.dtype] : 64;
  return n > (SIZE_MAX / 128) ? SIZE_MAX / 16 : (n * bits + 7) / 8;
}

std::string text_of(const NVTEBasicTensor &t) {
  std::string text =
      (unsigned)t.dtype < std::size(kDtypes) ? kDtypes[t.dtype] : std::to_string((int)t.dtype);
  text += "[";
  for (size_t i = 0; i < t.shape.ndim && i < 15; i++)
    text += (i ? "," : "") + std::to_string(t.shape.data[i]);
  return text + (t.data_ptr ? "]" : "]null");
}

bool is_integer(NVTEDType dtype) { return dtype == kNVTEInt32 || dtype == kNVTEInt64; }

enum Change {
  NOTHING,
  DIMENSION,
  SHORTER,  // one dimension less
  LONGER,   // one more
  DTYPE,
  NULL_POINTER,
  MISALIGNED,
  UNSET,
  CONTENTS,
  SAME_MEMORY,  // as another buffer of the call
};

// Gives the parameter memory of its own, changed or not.
void own_memory(NVTEBasicTensor &t, const std::string &name, Change change) {
  NVTEBasicTensor old = t;
  size_t old_bytes = bytes_of(t), shift = 0;
  void *from = t.data_ptr;
  switch (change) {
    case DIMENSION: {
      if (t.shape.ndim == 0 || t.shape.ndim > 15) break;
      size_t i = below(t.shape.ndim);
      t.shape.data[i] = (size_t)changed_integer(t.shape.data[i]);
      // Calls over large shapes would take long without being a defect.
      for (int tries = 0;
           bytes_of(t) > std::max(kGrown, old_bytes) && bytes_of(t) < ((size_t)1 << 36); tries++) {
        t.shape.data[i] =
            tries < 8 ? (size_t)changed_integer(old.shape.data[i]) : old.shape.data[i];
      }
      break;
    }
    case SHORTER:
      if (t.shape.ndim > 0 && t.shape.ndim <= 15) t.shape.ndim--;
      break;
    case LONGER:
      if (t.shape.ndim < 15) t.shape.data[t.shape.ndim++] = 1;
      break;
    case DTYPE:
      t.dtype = (NVTEDType)below(one_in(8) ? 16 : 11);
      break;
    case MISALIGNED:
      shift = 1 + below(3);
      break;
    case UNSET:
      memset(&t, 0, sizeof t);
      t.dtype = kNVTEFloat32;
      t.shape.ndim = 1;
      break;
    default:
      break;
  }
  size_t bytes = bytes_of(t);
  // The random state of a pack is two numbers, also without a shape.
  if (bytes == 0 && name.find(".tensors[1].data") != std::string::npos) bytes = 16;
  auto key = std::make_pair(from, bytes);
  if (change == UNSET) {
  } else if (change == NULL_POINTER) {
    t.data_ptr = nullptr;
  } else if (change == SAME_MEMORY && !g.buffers.empty()) {
    const Buffer &b = g.buffers[below(g.buffers.size())];
    if (b.bytes >= bytes && b.on_device == g.cuda)
      t.data_ptr = b.ptr;
    else
      t.data_ptr = new_buffer(name, from, old_bytes, bytes, true);
  } else if (from && change == NOTHING && g.copied_buffers.count(key)) {
    t.data_ptr = g.copied_buffers[key];
  } else if (from || change == DIMENSION) {
    t.data_ptr =
        from ? new_buffer(name, from, old_bytes, bytes, true, shift, change != NOTHING) : nullptr;
    if (from) g.copied_buffers[key] = t.data_ptr;
  }
  if (change == CONTENTS && t.data_ptr && !g.buffers.empty() &&
      g.buffers.back().ptr == t.data_ptr && bytes > 0 && !g.buffers.back().before.empty()) {
    Buffer &b = g.buffers.back();
    size_t offset = (size_t)(b.ptr - b.map) - b.low;
    unsigned char *image = b.before.data() + offset;
    if (is_integer(t.dtype)) {
      size_t size = kBits[t.dtype] / 8;
      for (size_t n = 1 + below(3); n > 0; n--) {
        size_t i = below(bytes / size);
        change_bytes(image + i * size, size, name + "[" + std::to_string(i) + "]");
      }
    } else {
      int fill = (int)below(4);
      for (size_t i = 0; i < bytes; i++) {
        if (fill == 0) image[i] = 0;
        if (fill == 1) image[i] = 0xFF;
        if (fill == 2) image[i] = (unsigned char)random_u64();
        if (fill == 3 && one_in(16)) image[i] = (unsigned char)(one_in(2) ? 0x7F : 0x80);
      }
      changed("%s: contents %d", name.c_str(), fill);
    }
    if (b.on_device)
      nvtex_memcpy_to_device(b.ptr, image, bytes, nullptr);
    else
      memcpy(b.ptr, image, bytes);
  } else if (change != NOTHING) {
    const char *words = change == MISALIGNED    ? " misaligned"
                        : change == SAME_MEMORY ? " in other memory"
                                                : "";
    changed("%s: %s -> %s%s", name.c_str(), text_of(old).c_str(), text_of(t).c_str(), words);
  }
}

Change any_change() {
  const Change all[] = {DIMENSION, DIMENSION, DIMENSION, DIMENSION,    SHORTER,    LONGER,
                        DTYPE,     DTYPE,     DTYPE,     NULL_POINTER, MISALIGNED, UNSET,
                        CONTENTS,  CONTENTS,  CONTENTS,  SAME_MEMORY};
  return all[below(std::size(all))];
}

bool ok() {
  bool fine = nvtex_last_status() == NVTEX_OK;
  nvtex_clear_error();
  return fine;
}

void *wrong_handle(void *original, const std::string &name) {
  void *handle = nullptr;
  const char *what = "null";
  switch (below(4)) {
    case 0:
      break;
    case 1:
      handle = g.stale;
      what = "a destroyed tensor";
      break;
    case 2:
      if (g.copies.empty()) break;
      handle = g.copies[below(g.copies.size())].second;
      what = "another handle of the call";
      break;
    case 3:
      handle = (void *)(one_in(2) ? random_u64() : (uint64_t)(uintptr_t)original + 1);
      what = "a number";
      break;
  }
  changed("%s: %s", name.c_str(), what);
  return handle;
}

// A copy of a tensor with memory of its own; `change`: one thing of it is changed.
NVTETensor copy_tensor(NVTETensor original, const std::string &name, bool change) {
  if (change && one_in(6)) return wrong_handle(original, name);
  if (!original) return nullptr;
  auto known = g.copied.find(original);
  if (known != g.copied.end() && !change) return known->second;
  NVTEScalingMode mode = nvte_tensor_scaling_mode(original);
  if (!ok()) return original;
  NVTEBasicTensor params[7];
  int used[7], n = 0;
  for (int i = 0; i < 7; i++) {
    nvte_get_tensor_param_v2(original, (NVTETensorParam)i, &params[i], sizeof params[i], nullptr);
    if (!ok()) return original;
    if (params[i].data_ptr || numel_of(params[i].shape) > 0) used[n++] = i;
  }
  int target = -1, flag = -1;
  if (change) {
    size_t choice = below(8);
    if (choice == 0) {
      const NVTEScalingMode modes[] = {NVTE_DELAYED_TENSOR_SCALING, NVTE_MXFP8_1D_SCALING,
                                       NVTE_BLOCK_SCALING_1D,       NVTE_BLOCK_SCALING_2D,
                                       NVTE_NVFP4_1D_SCALING,       NVTE_INVALID_SCALING};
      NVTEScalingMode other = modes[below(std::size(modes))];
      changed("%s: mode %d -> %d", name.c_str(), (int)mode, (int)other);
      mode = other;
    } else if (choice == 1) {
      flag = 7 + (int)below(3);
    } else if (choice == 2 && n > 0) {
      // A parameter that is not set, or another one, becomes like one that is.
      target = (int)below(7);
      NVTEBasicTensor like = params[used[below((size_t)n)]];
      changed("%s.%s: %s -> %s", name.c_str(), kParams[target], text_of(params[target]).c_str(),
              text_of(like).c_str());
      params[target] = like;
      target = -1;
    } else if (n > 0) {
      target = used[below((size_t)n)];
    }
  }
  NVTETensor copy = nvte_create_tensor(mode);
  if (!ok()) return original;
  g.copies.emplace_back(TENSOR, copy);
  g.tensors.push_back(copy);
  for (int i = 0; i < 7; i++) {
    own_memory(params[i], name + "." + kParams[i], i == target ? any_change() : NOTHING);
    nvte_set_tensor_param_v2(copy, (NVTETensorParam)i, &params[i], sizeof params[i]);
    if (!ok()) changed("(the setter refused it)");
  }
  for (int i = 7; i < 10; i++) {
    int value = 0;
    size_t size = i == 9 ? sizeof(int) : 1;
    nvte_get_tensor_param_v2(original, (NVTETensorParam)i, &value, size, nullptr);
    if (!ok()) continue;
    if (i == flag) {
      int other = i == 9 ? (one_in(2) ? 256 : 448) : !value;
      changed("%s: parameter %d: %d -> %d", name.c_str(), i, value, other);
      value = other;
    }
    nvte_set_tensor_param_v2(copy, (NVTETensorParam)i, &value, size);
    ok();
  }
  g.copied[original] = copy;
  return copy;
}

NVTEGroupedTensor copy_grouped(NVTEGroupedTensor original, const std::string &name, bool change) {
  if (change && one_in(6)) return wrong_handle(original, name);
  if (!original) return nullptr;
  auto known = g.copied.find(original);
  if (known != g.copied.end() && !change) return known->second;
  NVTEScalingMode mode = nvte_grouped_tensor_scaling_mode(original);
  if (!ok()) return original;
  size_t num = nvte_grouped_tensor_num_tensors(original);
  NVTEShape shape = nvte_get_grouped_tensor_logical_shape(original);
  NVTEBasicTensor params[10];
  int used[10], n = 0, target = -1;
  for (int i = 0; i < 10; i++) {
    nvte_get_grouped_tensor_param(original, (NVTEGroupedTensorParam)i, &params[i], sizeof params[i],
                                  nullptr);
    if (!ok()) return original;
    if (params[i].data_ptr) used[n++] = i;
  }
  uint8_t swizzled = 0;
  nvte_get_grouped_tensor_param(original, kNVTEGroupedWithGEMMSwizzledScales, &swizzled, 1,
                                nullptr);
  ok();
  if (change) {
    switch (below(8)) {
      case 0: {
        NVTEScalingMode other = (NVTEScalingMode)below(5);
        changed("%s: mode %d -> %d", name.c_str(), (int)mode, (int)other);
        mode = other;
        break;
      }
      case 1: {
        size_t other = (size_t)changed_integer(num);
        changed("%s: members %zu -> %zu", name.c_str(), num, other);
        num = other;
        break;
      }
      case 2: {
        size_t i = below(2), other = (size_t)changed_integer(shape.data[i]);
        changed("%s: logical shape[%zu] %zu -> %zu", name.c_str(), i, shape.data[i], other);
        shape.data[i] = other;
        break;
      }
      case 3:
        swizzled = !swizzled;
        changed("%s: swizzled -> %d", name.c_str(), swizzled);
        break;
      default:
        if (n > 0) target = used[below((size_t)n)];
    }
  }
  NVTEGroupedTensor copy = nvte_create_grouped_tensor(mode, num, shape);
  if (!ok()) return original;
  g.copies.emplace_back(GROUPED, copy);
  for (int i = 0; i < 10; i++) {
    own_memory(params[i], name + "." + kGroupedParams[i], i == target ? any_change() : NOTHING);
    nvte_set_grouped_tensor_param(copy, (NVTEGroupedTensorParam)i, &params[i], sizeof params[i]);
    if (!ok()) changed("(the setter refused it)");
  }
  nvte_set_grouped_tensor_param(copy, kNVTEGroupedWithGEMMSwizzledScales, &swizzled, 1);
  ok();
  g.copied[original] = copy;
  return copy;
}

// A pack of auxiliary tensors: what the call finds there, and whether it is the program's first
// call, in which the pack is an output.
NVTETensorPack *copy_pack(const NVTETensorPack *original, const std::string &name, bool change) {
  NVTETensorPack pack;
  if (!original || !read_host(&pack, original, sizeof pack))
    return const_cast<NVTETensorPack *>(original);
  if (change && one_in(4))
    change_bytes(&pack.size, sizeof pack.size, name + ".size"), change = false;
  size_t target = change ? below(std::max<size_t>(1, std::min<size_t>(pack.size, 10))) : 10;
  for (size_t i = 0; i < 10; i++) {
    pack.tensors[i] =
        copy_tensor(pack.tensors[i], name + ".tensors[" + std::to_string(i) + "]", i == target);
  }
  auto copy = (NVTETensorPack *)new_host(name, nullptr, 0, sizeof pack);
  if (copy) {
    memcpy((void *)copy, (void *)&pack, sizeof pack);
    Buffer &b = g.buffers.back();
    b.before.assign(b.map + b.low, b.map + b.high);
  }
  return copy;
}

}  // namespace

#endif  // NVTE_FUZZ_TENSORS_H
