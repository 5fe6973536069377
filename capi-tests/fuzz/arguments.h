// The other arguments of a call: numbers, strings, arrays, structs; and its text.
#ifndef NVTE_FUZZ_ARGUMENTS_H
#define NVTE_FUZZ_ARGUMENTS_H

#include "configs.h"

namespace {

int64_t integer_of(const Arg &a) {
  int64_t x = 0;
  memcpy(&x, a.value, a.bytes);
  return a.bytes == 4 ? (int32_t)x : x;
}

void *pointer_of(const Arg &a) {
  void *p;
  memcpy(&p, a.value, sizeof p);
  return p;
}

void set_pointer(const Arg &a, const void *p) { memcpy(a.value, &p, sizeof p); }

// Elements of an array argument before (`old`) and after the changes. False if no memory can hold
// them.
bool counts_of(const Arg *args, const Arg &a, const int64_t *old, size_t &before, size_t &after) {
  before = after = a.more;
  if (a.count >= 0) {
    int64_t now = integer_of(args[a.count]);
    if (old[a.count] < 0 || (uint64_t)old[a.count] > kMaxBuffer) return false;
    before += (size_t)old[a.count];
    after += now < 0 && args[a.count].bytes == 4 ? 0 : (size_t)now;
  }
  return after <= kMaxBuffer / 8;
}

void build_tensors(const Arg *args, const Arg &a, const int64_t *old, bool change) {
  auto list = (NVTETensor *)pointer_of(a);
  if (!list) return;
  size_t before, after;
  if (!counts_of(args, a, old, before, after) || (change && one_in(8))) {
    set_pointer(a, nullptr);
    changed("%s: null", a.name);
    return;
  }
  std::vector<NVTETensor> tensors(after);
  if (!read_host(tensors.data(), list, std::min(before, after) * sizeof(NVTETensor))) {
    g.give_up = true;
    return;
  }
  size_t target = change && after > 0 ? below(after) : after;
  for (size_t i = 0; i < after && !g.give_up; i++) {
    if (i >= before && before > 0) tensors[i] = tensors[below(before)];
    // If there are more elements than the program has, its elements are repeated.
    if (i < before || before == 0)
      tensors[i] =
          copy_tensor(tensors[i], std::string(a.name) + "[" + std::to_string(i) + "]", i == target);
  }
  void *copy = new_host(a.name, nullptr, 0, after * sizeof(NVTETensor));
  if (!copy) return;
  memcpy(copy, tensors.data(), after * sizeof(NVTETensor));
  g.buffers.back().before.assign(g.buffers.back().map + g.buffers.back().low,
                                 g.buffers.back().map + g.buffers.back().high);
  set_pointer(a, copy);
}

void build_lists(const Arg *args, const Arg &a, const int64_t *old, bool change) {
  auto lists = (NVTETensor **)pointer_of(a);
  if (!lists || a.count < 0 || a.inner_count < 0) return;
  int64_t outer = integer_of(args[a.count]), inner = integer_of(args[a.inner_count]);
  bool fits = outer >= 0 && inner >= 0 && outer <= 64 && inner <= 4096;
  if (!fits || old[a.count] > 64 || old[a.inner_count] > 4096 || (change && one_in(8))) {
    set_pointer(a, nullptr);
    changed("%s: null", a.name);
    return;
  }
  std::vector<NVTETensor *> outers((size_t)outer);
  size_t known = (size_t)std::min(outer, old[a.count]),
         inner_known = (size_t)std::min(inner, old[a.inner_count]);
  if (!read_host(outers.data(), lists, known * sizeof *lists)) {
    g.give_up = true;
    return;
  }
  size_t total = (size_t)outer * (size_t)inner, target = change && total > 0 ? below(total) : total;
  for (size_t i = 0; i < (size_t)outer && !g.give_up; i++) {
    std::vector<NVTETensor> tensors((size_t)inner);
    if (i < known && !read_host(tensors.data(), outers[i], inner_known * sizeof(NVTETensor))) {
      g.give_up = true;
      return;
    }
    for (size_t j = 0; j < (size_t)inner; j++) {
      std::string name =
          std::string(a.name) + "[" + std::to_string(i) + "][" + std::to_string(j) + "]";
      if (i >= known || j >= inner_known) {
        tensors[j] = g.tensors.empty() ? nullptr : g.tensors[below(g.tensors.size())];
      } else {
        tensors[j] = copy_tensor(tensors[j], name, i * (size_t)inner + j == target);
      }
    }
    outers[i] = (NVTETensor *)new_host(a.name, nullptr, 0, tensors.size() * sizeof(NVTETensor));
    if (!outers[i]) return;
    memcpy(outers[i], tensors.data(), tensors.size() * sizeof(NVTETensor));
    Buffer &b = g.buffers.back();
    b.before.assign(b.map + b.low, b.map + b.high);
  }
  void *copy = new_host(a.name, nullptr, 0, outers.size() * sizeof(void *));
  if (!copy) return;
  memcpy(copy, outers.data(), outers.size() * sizeof(void *));
  Buffer &b = g.buffers.back();
  b.before.assign(b.map + b.low, b.map + b.high);
  set_pointer(a, copy);
}

void build_array(const Arg *args, const Arg &a, const int64_t *old, bool change) {
  void *array = pointer_of(a);
  if (!array) return;
  size_t before, after;
  if (!counts_of(args, a, old, before, after) || (change && one_in(8))) {
    set_pointer(a, nullptr);
    changed("%s: null", a.name);
    return;
  }
  // Alpha and beta of NVFP4 products lie on the device, others on the host.
  bool on_device = a.kind == DEVICE_ARRAY || of_device(array);
  size_t bytes = after * a.element;
  unsigned char *copy = new_buffer(a.name, array, before * a.element, bytes, on_device);
  if (!copy) return;
  set_pointer(a, copy);
  Buffer &b = g.buffers.back();
  if (!change || bytes == 0 || b.before.empty()) return;
  unsigned char *image = b.before.data() + (size_t)(b.ptr - b.map) - b.low;
  size_t i = below(after);
  change_bytes(image + i * a.element, a.element,
               std::string(a.name) + "[" + std::to_string(i) + "]");
  if (b.on_device)
    nvtex_memcpy_to_device(b.ptr, image, bytes, nullptr);
  else
    memcpy(b.ptr, image, bytes);
}

void build_struct(const Arg &a, bool change) {
  auto original = (const unsigned char *)pointer_of(a);
  if (!original) return;
  if (change && one_in(12)) {
    set_pointer(a, nullptr);
    changed("%s: null", a.name);
    return;
  }
  size_t bytes = a.element,
         offset_of_size = strcmp(a.fields[0].name, "struct_size") == 0 ? 0 : SIZE_MAX;
  if (offset_of_size == 0 && !read_host(&bytes, original, sizeof bytes)) bytes = SIZE_MAX;
  if (bytes > 4 * a.element || bytes < 8) {
    g.give_up = true;
    return;
  }
  std::vector<unsigned char> image(std::max(bytes, a.element));
  if (!read_host(image.data(), original, bytes)) {
    g.give_up = true;
    return;
  }
  size_t n = 0;
  while (a.fields[n].name) n++;
  size_t target = change ? below(n) : n;
  for (size_t i = 0; i < n; i++) {
    const Field &f = a.fields[i];
    if (f.offset + f.size > bytes) continue;
    unsigned char *at = image.data() + f.offset;
    std::string name = std::string(a.name) + "." + f.name;
    bool is_size = f.offset == offset_of_size;
    switch (f.kind) {
      case TENSOR: {
        void *handle;
        memcpy(&handle, at, sizeof handle);
        handle = copy_tensor(handle, name, i == target);
        memcpy(at, &handle, sizeof handle);
        break;
      }
      case OBJECT:
        if (i == target) {
          void *handle;
          memcpy(&handle, at, sizeof handle);
          handle = wrong_handle(handle, name);
          memcpy(at, &handle, sizeof handle);
        }
        break;
      case STRING:
      case HOST_ARRAY:
        if (i == target) {
          memset(at, 0, sizeof(void *));
          changed("%s: null", name.c_str());
        }
        break;
      case FLOAT:
        if (i == target) {
          float x;
          memcpy(&x, at, 4);
          float y = changed_float(x);
          memcpy(at, &y, 4);
          changed("%s: %g -> %g", name.c_str(), (double)x, (double)y);
        }
        break;
      case BOOL:
        if (i == target) {
          *at = !*at;
          changed("%s -> %d", name.c_str(), *at);
        }
        break;
      case INTEGER:
      case ENUM:
        if (i != target) break;
        if (strcmp(f.name, "num_splits") == 0) {
          // Nobody knows how long the array is, so the number only becomes smaller.
          uint64_t x;
          memcpy(&x, at, 8);
          x = x ? below((size_t)x) : 0;
          memcpy(at, &x, 8);
          changed("%s -> %llu", name.c_str(), (unsigned long long)x);
        } else if (is_size) {
          const size_t sizes[] = {0,         1,         8,         bytes - 8,   bytes - 4,
                                  bytes - 1, bytes + 1, bytes + 8, below(bytes)};
          size_t other = sizes[below(std::size(sizes))];
          // 0 stands for the first version of a struct, of which a test may give a part.
          if (other == 0 && bytes < a.element) other = 1;
          memcpy(at, &other, sizeof other);
          changed("%s: %zu -> %zu", name.c_str(), bytes, other);
        } else {
          change_bytes(at, f.size, name);
        }
        break;
      default:
        break;
    }
  }
  size_t declared = bytes;
  if (offset_of_size == 0) memcpy(&declared, image.data(), sizeof declared);
  // 0: the first version of a struct, which is not larger than the original.
  declared = declared == 0 ? bytes : std::max<size_t>(declared, 8);
  image.resize(std::max(image.size(), declared));
  void *copy = new_host(a.name, nullptr, 0, declared);
  if (!copy) return;
  memcpy(copy, image.data(), declared);
  Buffer &b = g.buffers.back();
  b.before.assign(b.map + b.low, b.map + b.high);
  set_pointer(a, copy);
}

void change_scalar(const Arg &a) {
  switch (a.kind) {
    case INTEGER:
      change_bytes(a.value, a.bytes, a.name);
      break;
    case ENUM: {
      int32_t x, y;
      memcpy(&x, a.value, 4);
      y = one_in(4) ? (int32_t)changed_integer((uint64_t)x) : (int32_t)below(30);
      memcpy(a.value, &y, 4);
      changed("%s: %d -> %d", a.name, x, y);
      break;
    }
    case FLOAT: {
      float x, y;
      memcpy(&x, a.value, 4);
      y = changed_float(x);
      memcpy(a.value, &y, 4);
      changed("%s: %g -> %g", a.name, (double)x, (double)y);
      break;
    }
    case BOOL: {
      unsigned char x;
      memcpy(&x, a.value, 1);
      x = !x;
      memcpy(a.value, &x, 1);
      changed("%s -> %d", a.name, x);
      break;
    }
    case STRING: {
      const char *const texts[] = {nullptr, "",     "max",  "most_recent",
                                   "add",   "copy", "none", "\xff\xfe"};
      const char *text = texts[below(std::size(texts))];
      set_pointer(a, text);
      changed("%s: \"%s\"", a.name, text ? text : "(null)");
      break;
    }
    case SHAPE: {
      auto shape = (NVTEShape *)a.value;
      size_t i = below(3);
      if (i == 2)
        change_bytes(&shape->ndim, 8, std::string(a.name) + ".ndim");
      else
        change_bytes(&shape->data[i], 8, a.name);
      break;
    }
    case OBJECT:
      set_pointer(a, wrong_handle(pointer_of(a), a.name));
      break;
    default:
      break;
  }
}

std::string text_of_call(const Arg *args, size_t n) {
  std::string text = std::string(name_of((size_t)g.function)) + "(";
  for (size_t i = 0; i < n; i++) {
    const Arg &a = args[i];
    text += (i ? ", " : "") + std::string(a.name) + "=";
    char number[64] = "";
    float x;
    switch (a.kind) {
      case INTEGER:
      case ENUM:
        text += std::to_string((long long)integer_of(a));
        break;
      case BOOL:
        text += *(unsigned char *)a.value ? "true" : "false";
        break;
      case FLOAT:
        memcpy(&x, a.value, 4);
        snprintf(number, sizeof number, "%g", (double)x);
        text += number;
        break;
      case TENSOR: {
        NVTETensor t = pointer_of(a);
        if (!t) {
          text += "null";
          break;
        }
        int mode = (int)nvte_tensor_scaling_mode(t);
        if (!ok()) {
          text += "?";
          break;
        }
        text += "{mode " + std::to_string(mode);
        for (int p = 0; p < 7; p++) {
          NVTEBasicTensor b;
          nvte_get_tensor_param_v2(t, (NVTETensorParam)p, &b, sizeof b, nullptr);
          if (ok() && (b.data_ptr || numel_of(b.shape)))
            text += std::string(" ") + kParams[p] + " " + text_of(b);
        }
        text += "}";
        break;
      }
      case GROUPED: {
        NVTEGroupedTensor t = pointer_of(a);
        int mode = (int)nvte_grouped_tensor_scaling_mode(t);
        if (!t || !ok()) {
          text += t ? "?" : "null";
          break;
        }
        NVTEShape shape = nvte_get_grouped_tensor_logical_shape(t);
        text += "{mode " + std::to_string(mode) + " members " +
                std::to_string(nvte_grouped_tensor_num_tensors(t)) + " of " +
                std::to_string(shape.data[0]) + "x" + std::to_string(shape.data[1]);
        for (int p = 0; p < 10; p++) {
          NVTEBasicTensor b;
          nvte_get_grouped_tensor_param(t, (NVTEGroupedTensorParam)p, &b, sizeof b, nullptr);
          if (ok() && b.data_ptr) text += std::string(" ") + kGroupedParams[p] + " " + text_of(b);
        }
        text += "}";
        break;
      }
      default:
        text += "..";
    }
  }
  return text + ")";
}

}  // namespace

#endif  // NVTE_FUZZ_ARGUMENTS_H
