// Calls written down as a C program.
#ifndef NVTE_DIFFERENTIAL_RECORD_H
#define NVTE_DIFFERENTIAL_RECORD_H

#include <cinttypes>
#include <cstdarg>
#include <map>
#include <set>

#include "libraries.h"

namespace {

struct Region {
  std::string name;
  size_t bytes;
};

struct Record {
  bool on = false;
  FILE *file = nullptr;
  std::map<uintptr_t, Region> regions;    // device memory, by its first byte
  std::map<void *, std::string> handles;  // and packs
  std::map<void *, size_t> pack_sizes;
  int handle_count = 0, memory_count = 0;
  std::string result;
} g_record;

void emit(const char *format, ...) __attribute__((format(printf, 1, 2)));
void emit(const char *format, ...) {
  va_list args;
  va_start(args, format);
  vfprintf(g_record.file, format, args);
  va_end(args);
}

std::string text(const char *format, ...) __attribute__((format(printf, 1, 2)));
std::string text(const char *format, ...) {
  char buffer[256];
  va_list args;
  va_start(args, format);
  vsnprintf(buffer, sizeof buffer, format, args);
  va_end(args);
  return buffer;
}

bool is_recorded(size_t) { return g_record.on; }

// An address of device memory, a handle, or null. Empty for another one.
std::string name_of(const void *p) {
  if (!p) return "NULL";
  const auto handle = g_record.handles.find(const_cast<void *>(p));
  if (handle != g_record.handles.end()) return handle->second;
  auto region = g_record.regions.upper_bound((uintptr_t)p);
  if (region == g_record.regions.begin()) return "";
  --region;
  const size_t offset = (uintptr_t)p - region->first;
  if (offset > region->second.bytes) return "";
  return offset ? text("%s + %zu", region->second.name.c_str(), offset) : region->second.name;
}

// Memory of the host as words, among which addresses are known again.
std::string words(const void *memory, size_t bytes) {
  std::string all = "(uint64_t[]){";
  for (size_t at = 0; at < bytes; at += 8) {
    uint64_t word = 0;
    memcpy(&word, (const char *)memory + at, bytes - at < 8 ? bytes - at : 8);
    const std::string name = word > 4096 ? name_of((void *)word) : "";
    all += name.empty() ? text("0x%" PRIx64 ", ", word) : "(uint64_t)(uintptr_t)(" + name + "), ";
  }
  return all + "}";
}

std::string shape_text(const NVTEShape &shape) {
  std::string all = "(NVTEShape){{";
  for (size_t i = 0; i < shape.ndim && i < 15; i++) all += text("%zu, ", shape.data[i]);
  return all + (shape.ndim ? "" : "0") + text("}, %zu}", shape.ndim);
}

std::string handles_text(void *const *handles, size_t count) {
  std::string all = "(NVTETensor[]){";
  for (size_t i = 0; i < count; i++) all += name_of(handles[i]) + ", ";
  return all + "}";
}

template <class T>
T value_of(const Arg &arg) {
  T value = {};
  memcpy(&value, arg.value, arg.bytes < sizeof value ? arg.bytes : sizeof value);
  return value;
}

std::string argument_text(const char *function, const Arg *args, const Arg &arg) {
  const auto count_at = [&](int index) {
    return index < 0 ? (size_t)0 : (size_t)value_of<int64_t>(args[index]);
  };
  if (arg.kind == SHAPE) return shape_text(value_of<NVTEShape>(arg));
  if (arg.kind == FLOAT) {
    if (arg.bytes == 8) return text("%a", value_of<double>(arg));
    const float value = value_of<float>(arg);
    return value != value ? "(0.0f / 0.0f)" : text("%af", (double)value);
  }
  if (arg.kind == BOOL) return value_of<bool>(arg) ? "true" : "false";
  if (arg.kind == INTEGER || arg.kind == ENUM) {
    const int64_t value = arg.bytes == 4 ? (int64_t)value_of<int32_t>(arg) : value_of<int64_t>(arg);
    return text("%" PRId64, value);
  }
  const auto p = value_of<const void *>(arg);
  if (arg.bytes != sizeof p) return "{0} /* not known */";
  const size_t count = count_at(arg.count) + arg.more;
  if (!p) return "NULL";
  switch (arg.kind) {
    case STRING: {
      return "\"" + std::string((const char *)p) + "\"";
    }
    case TENSORS:
      return handles_text((void *const *)p, count);
    case TENSOR_LISTS: {
      std::string all = "(NVTETensor *[]){";
      for (size_t i = 0; i < count; i++) {
        all += handles_text(((void *const *const *)p)[i], count_at(arg.inner_count)) + ", ";
      }
      return all + "}";
    }
    case HOST_ARRAY:
      if (strstr(function, "_tensor_param") && count == sizeof(NVTEBasicTensor)) {
        const auto tensor = (const NVTEBasicTensor *)p;
        return "&(NVTEBasicTensor){" + name_of(tensor->data_ptr) +
               text(", %d, ", (int)tensor->dtype) + shape_text(tensor->shape) + "}";
      }
      return "(const void *)" + words(p, arg.element * count);
    case STRUCT:
      return "(const void *)" + words(p, arg.element);
    case OUT:
      return text("(void *)(uint64_t[1]){%" PRIu64 "}", *(const uint64_t *)p);
    default:
      break;
  }
  const std::string name = name_of(p);
  return name.empty() ? "NULL /* an address that is not known */" : name;
}

// What only asks, waits or copies does nothing in a program, and memory is named.
bool left_out(const char *result, const char *function) {
  if (of_memory(function)) return true;
  const bool handle = strncmp(result, "NVTE", 4) == 0 && strstr(function, "create");
  return strcmp(result, "void") != 0 && !handle;
}

void begin_record(const char *result, const char *function, const Arg *args, size_t n) {
  g_record.result.clear();
  if (strcmp(function, "nvtex_malloc") == 0) {
    g_record.result = text("w%d", g_record.memory_count++);
    emit("  unsigned char *%s = device(NULL, %zu, 0);\n", g_record.result.c_str(),
         value_of<size_t>(args[0]));
    return;
  }
  if (left_out(result, function)) return;
  for (size_t i = 0; i < n; i++) {
    if (args[i].kind != PACK || !value_of<void *>(args[i])) continue;
    const auto pack = value_of<NVTETensorPack *>(args[i]);
    auto &name = g_record.handles[pack];
    if (name.empty()) {
      name = text("&p%d", g_record.handle_count++);
      emit("  NVTETensorPack %s = {{0}, 0};\n", name.c_str() + 1);
    } else if (g_record.pack_sizes[pack] != pack->size) {
      emit("  %s.size = %zu;\n", name.c_str() + 1, pack->size);
    }
  }
  emit("  ");
  if (strcmp(result, "void") != 0) {
    g_record.result = text("h%d", g_record.handle_count++);
    emit("%s %s = ", result, g_record.result.c_str());
  }
  emit("%s(", function);
  for (size_t i = 0; i < n; i++) {
    emit("%s%s", i ? ", " : "", argument_text(function, args, args[i]).c_str());
  }
  emit(");\n");
  // A call may end the process.
  fflush(g_record.file);
}

void after_record(const Arg *args, size_t n) {
  for (size_t i = 0; i < n; i++) {
    if (args[i].kind != PACK || !value_of<void *>(args[i])) continue;
    const auto pack = value_of<NVTETensorPack *>(args[i]);
    const std::string name = g_record.handles[pack].substr(1);
    g_record.pack_sizes[pack] = pack->size;
    for (size_t j = 0; j < 10; j++) {
      if (!pack->tensors[j] || g_record.handles.count(pack->tensors[j])) continue;
      g_record.handles[pack->tensors[j]] = text("%s.tensors[%zu]", name.c_str(), j);
    }
  }
}

// The handle, or the memory, that a call has made gets its name.
template <class T>
void name_result(T result, const Arg *args, const std::string &name) {
  if constexpr (std::is_pointer_v<T>) {
    if (name.empty() || !result) return;
    if (name[0] == 'w')
      g_record.regions[(uintptr_t)result] = {name, value_of<size_t>(args[0])};
    else
      g_record.handles[(void *)result] = name;
  }
}

template <class F>
auto end_record(F call, const Arg *args, size_t n) {
  const std::string name = g_record.result;
  if constexpr (std::is_void_v<decltype(call())>) {
    call();
    after_record(args, n);
  } else {
    auto result = call();
    name_result(result, args, name);
    after_record(args, n);
    return result;
  }
}

}  // namespace

#endif  // NVTE_DIFFERENTIAL_RECORD_H
