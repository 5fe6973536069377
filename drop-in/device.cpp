// Questions about devices, through the CUDA driver, and the other functions of C++ linkage.

#include <dlfcn.h>
#include <atomic>
#include <cstddef>
#include <stdexcept>
#include <string>

#include "libraries.h"
#include "nvte/cpp/transformer_engine.h"

namespace {

using Context = void *;
using Device = int;

// Values of the driver's interface, which no release changes.
constexpr int kMultiprocessors = 16, kMajor = 75, kMinor = 76, kMulticast = 132;
constexpr int kSuccess = 0;

[[noreturn]] void fail(const std::string &message) { throw std::runtime_error(message); }

// Functions of libcuda.so.1 by name, each looked up once.
class Driver {
 public:
  // Throws if there is no driver; the next call tries again.
  static const Driver &get() {
    static const Driver driver;
    return driver;
  }

  int (*context_current)(Context *);
  int (*context_device)(Device *);
  int (*context_push)(Context);
  int (*context_pop)(Context *);
  int (*context_priorities)(int *, int *);
  int (*primary_context)(Context *, Device);
  int (*device_count)(int *);
  int (*device_attribute)(int *, int, Device);
  int (*error_name)(int, const char **);
  // Two generations of one function; a driver has at least one of them.
  int (*address)(const char *, void **, int, unsigned long long, int *);
  int (*address_before_12)(const char *, void **, int, unsigned long long);

  void check(int result, const char *function) const {
    if (result == kSuccess) return;
    const char *name = nullptr;
    if (error_name(result, &name) != kSuccess || name == nullptr) name = "an unknown error";
    fail(std::string(function) + ": " + name);
  }

 private:
  Driver() {
    void *const library = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_LOCAL);
    if (library == nullptr) fail(std::string("the CUDA driver is missing: ") + dlerror());
    const auto find = [=](auto &function, const char *name, bool required = true) {
      void *const address = dlsym(library, name);
      if (address == nullptr && required) fail(std::string("the CUDA driver lacks ") + name);
      function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(address);
    };
    int (*initialise)(unsigned);
    find(initialise, "cuInit");
    find(context_current, "cuCtxGetCurrent");
    find(context_device, "cuCtxGetDevice");
    find(context_push, "cuCtxPushCurrent_v2");
    find(context_pop, "cuCtxPopCurrent_v2");
    find(context_priorities, "cuCtxGetStreamPriorityRange");
    find(primary_context, "cuDevicePrimaryCtxRetain");
    find(device_count, "cuDeviceGetCount");
    find(device_attribute, "cuDeviceGetAttribute");
    find(error_name, "cuGetErrorName");
    find(address, "cuGetProcAddress_v2", false);
    find(address_before_12, "cuGetProcAddress", false);
    check(initialise(0), "cuInit");
  }
};

// The device of the thread's current context; device 0 without one.
Device current(const Driver &driver) {
  Context context = nullptr;
  Device device = 0;
  driver.check(driver.context_current(&context), "cuCtxGetCurrent");
  if (context != nullptr) driver.check(driver.context_device(&device), "cuCtxGetDevice");
  return device;
}

// The device that an argument names; a negative number means the current one.
Device device_of(const Driver &driver, int device, const char *function) {
  if (device < 0) return current(driver);
  int count = 0;
  driver.check(driver.device_count(&count), "cuDeviceGetCount");
  if (device < count) return device;
  fail(std::string(function) + ": device: expected less than " + std::to_string(count) + ", got " +
       std::to_string(device));
}

// One property of each device. The driver is asked once for each; front ends ask at every product.
class Property {
 public:
  template <typename Ask>
  int get(int device, const char *function, Ask ask) {
    const Driver &driver = Driver::get();
    if (device < 0) device = current(driver);
    std::atomic<int> *const known =
        static_cast<size_t>(device) < kDevices ? &known_[device] : nullptr;
    if (known != nullptr) {
      const int value = known->load(std::memory_order_relaxed);
      if (value != 0) return value;
    }
    const int value = ask(driver, device_of(driver, device, function));
    if (known != nullptr) known->store(value, std::memory_order_relaxed);
    return value;
  }

 private:
  static constexpr size_t kDevices = 64;
  // 0: not asked yet.
  std::atomic<int> known_[kDevices] = {};
};

int attribute(const Driver &driver, int which, Device device) {
  int value = 0;
  driver.check(driver.device_attribute(&value, which, device), "cuDeviceGetAttribute");
  return value;
}

}  // namespace

namespace transformer_engine {

namespace cuda {

int current_device() { return current(Driver::get()); }

// 10 times the major number of the compute capability, plus the minor one.
int sm_arch(int device) {
  static Property property;
  return property.get(device, "sm_arch", [](const Driver &driver, Device id) {
    return 10 * attribute(driver, kMajor, id) + attribute(driver, kMinor, id);
  });
}

int sm_count(int device) {
  static Property property;
  return property.get(device, "sm_count", [](const Driver &driver, Device id) {
    return attribute(driver, kMultiprocessors, id);
  });
}

bool supports_multicast(int device) {
  const Driver &driver = Driver::get();
  int value = 0;
  // Drivers before CUDA 12.1 do not know the attribute.
  const Device id = device_of(driver, device, "supports_multicast");
  return driver.device_attribute(&value, kMulticast, id) == kSuccess && value != 0;
}

void stream_priority_range(int *low, int *high, int device) {
  const Driver &driver = Driver::get();
  const Device id = device_of(driver, device, "stream_priority_range");
  Context context = nullptr;
  // Kept for the life of the process, as CUDA's runtime keeps it.
  driver.check(driver.primary_context(&context, id), "cuDevicePrimaryCtxRetain");
  driver.check(driver.context_push(context), "cuCtxPushCurrent");
  const int result = driver.context_priorities(low, high);
  driver.check(driver.context_pop(&context), "cuCtxPopCurrent");
  driver.check(result, "cuCtxGetStreamPriorityRange");
}

size_t cublas_version() {
  void *const version = drop_in::cublaslt_function("cublasLtGetVersion");
  if (version == nullptr) fail("cublas_version: this process has not loaded libcublasLt");
  return reinterpret_cast<size_t (*)()>(version)();
}

}  // namespace cuda

namespace cuda_driver {

// A function of the driver as of a CUDA version, such as 12010.
void *get_symbol(const char *symbol, int cuda_version) {
  const Driver &driver = Driver::get();
  void *found = nullptr;
  int result = kSuccess, status = 0;
  if (driver.address != nullptr) {
    result = driver.address(symbol, &found, cuda_version, 0, &status);
  } else if (driver.address_before_12 != nullptr) {
    result = driver.address_before_12(symbol, &found, cuda_version, 0);
  } else {
    fail("get_symbol: the CUDA driver is older than 11.3");
  }
  driver.check(result, symbol);
  if (found == nullptr) fail(std::string("get_symbol: the CUDA driver lacks ") + symbol);
  return found;
}

// A thread without a context gets the primary one of device 0.
void ensure_context_exists() {
  const Driver &driver = Driver::get();
  Context context = nullptr;
  driver.check(driver.context_current(&context), "cuCtxGetCurrent");
  if (context != nullptr) return;
  driver.check(driver.primary_context(&context, 0), "cuDevicePrimaryCtxRetain");
  driver.check(driver.context_push(context), "cuCtxPushCurrent");
}

}  // namespace cuda_driver

size_t typeToSize(DType type) {
  switch (type) {
    case DType::kByte:
    case DType::kFloat8E4M3:
    case DType::kFloat8E5M2:
    case DType::kFloat8E8M0:
      return 1;
    case DType::kInt16:
    case DType::kFloat16:
    case DType::kBFloat16:
      return 2;
    case DType::kInt32:
    case DType::kFloat32:
      return 4;
    case DType::kInt64:
      return 8;
    default:
      fail("typeToSize: type: expected one of whole bytes, got " +
           std::to_string(static_cast<int>(type)));
  }
}

// Libraries' handles that a front end wants before it captures a graph. Operators of libnvte can be
// captured from their first call on, and use cuDNN only where NVTE_ATTENTION_CUDNN asks for it.
void nvte_cublas_handle_init() {}
void nvte_cudnn_handle_init() {}

}  // namespace transformer_engine

// True would make front ends call constructors of the overlap that this library does not have.
bool nvte_built_with_cublasmp() { return false; }

float *nvte_tensor_columnwise_scale_inv(NVTETensor tensor) {
  return static_cast<float *>(nvte_get_tensor_param(tensor, kNVTEColumnwiseScaleInv).data_ptr);
}
