// Stands in for the CUDA driver, on machines without one: two devices of different properties. The
// functions have the names and types of the driver's interface.
#include <cstring>

namespace {

constexpr int kSuccess = 0, kInvalidValue = 1, kNotFound = 500;
constexpr int kDevices = 2, kDepth = 8;
// By attribute: multiprocessors, major and minor number of the capability, multicast.
constexpr int kAttributes[] = {16, 75, 76, 132};
constexpr int kValues[kDevices][4] = {{132, 9, 0, 1}, {148, 10, 3, 0}};

int g_contexts[kDevices];
thread_local void *t_stack[kDepth];
thread_local int t_depth = 0;

}  // namespace

extern "C" {

int cuInit(unsigned) { return kSuccess; }

int cuGetErrorName(int, const char **name) {
  *name = "CUDA_ERROR_OF_THE_TEST";
  return kSuccess;
}

int cuDeviceGetCount(int *count) {
  *count = kDevices;
  return kSuccess;
}

int cuDeviceGetAttribute(int *value, int attribute, int device) {
  for (int i = 0; i < 4; i++) {
    if (kAttributes[i] != attribute || device < 0 || device >= kDevices) continue;
    *value = kValues[device][i];
    return kSuccess;
  }
  return kInvalidValue;
}

int cuDevicePrimaryCtxRetain(void **context, int device) {
  *context = &g_contexts[device];
  return kSuccess;
}

int cuCtxPushCurrent_v2(void *context) {
  t_stack[t_depth++] = context;
  return kSuccess;
}

int cuCtxPopCurrent_v2(void **context) {
  *context = t_stack[--t_depth];
  return kSuccess;
}

int cuCtxGetCurrent(void **context) {
  *context = t_depth > 0 ? t_stack[t_depth - 1] : nullptr;
  return kSuccess;
}

int cuCtxGetDevice(int *device) {
  if (t_depth == 0) return kInvalidValue;
  *device = static_cast<int>(static_cast<int *>(t_stack[t_depth - 1]) - g_contexts);
  return kSuccess;
}

// The device's number tells whose context was current.
int cuCtxGetStreamPriorityRange(int *low, int *high) {
  int device = 0;
  if (cuCtxGetDevice(&device) != kSuccess) return kInvalidValue;
  *low = 0;
  *high = -5 - device;
  return kSuccess;
}

int cuGetProcAddress_v2(const char *name, void **found, int version, unsigned long long, int *) {
  if (std::strcmp(name, "cuCtxPushCurrent") != 0 || version != 12010) return kNotFound;
  *found = reinterpret_cast<void *>(cuCtxPushCurrent_v2);
  return kSuccess;
}
}
