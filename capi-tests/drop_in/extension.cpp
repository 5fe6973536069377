// Stands in for an extension of Python: derives from the classes of the overlap, reads their
// members, and is bound to the library when it is loaded. Offsets, sizes and names are those of the
// ABI that compiled extensions rely on (x86-64, Itanium C++ ABI).
#include <dlfcn.h>
#include <nvte/nvtex.h>
#include <transformer_engine/comm_gemm_overlap.h>
#include <transformer_engine/transformer_engine.h>

#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <new>
#include <typeinfo>
#include <vector>

#include "expect.h"

// Members of classes with virtual functions have offsets in this ABI.
#pragma GCC diagnostic ignored "-Winvalid-offsetof"

namespace transformer_engine {

namespace cuda {
int sm_arch(int device = -1);
int sm_count(int device = -1);
int current_device();
bool supports_multicast(int device = -1);
void stream_priority_range(int *low, int *high, int device = -1);
size_t cublas_version();
}  // namespace cuda

namespace cuda_driver {
void *get_symbol(const char *symbol, int cuda_version = 12010);
void ensure_context_exists();
}  // namespace cuda_driver

size_t typeToSize(DType type);
void nvte_cublas_handle_init();
void nvte_cudnn_handle_init();

}  // namespace transformer_engine

bool nvte_built_with_cublasmp();
float *nvte_tensor_columnwise_scale_inv(NVTETensor tensor);

namespace te = transformer_engine;

namespace {

#define AT(member, offset) static_assert(offsetof(Core, member) == (offset), #member)

struct Core : te::CommOverlapCore {
  static void offsets() {
    AT(_rank, 8);
    AT(_tp_id, 12);
    AT(_tp_size, 16);
    AT(_num_splits, 20);
    AT(_math_sms, 24);
    AT(_num_comm_sm, 28);
    AT(_cga_size, 32);
    AT(_use_ce, 36);
    AT(_ub_reg, 40);
    AT(_gemm_priority, 44);
    AT(_comm_priority, 48);
    AT(_atomic_gemm, 52);
    AT(_is_p2p, 53);
    AT(_with_cublasmp, 54);
    AT(_cublasmp_ctx, 56);
    AT(_algo_type, 64);
    AT(_ubuf, 72);
    AT(_counter, 80);
    AT(_ubuf_scale_inv, 88);
    AT(_ubuf_scale_inv_initialized, 96);
    AT(_stream_compute, 104);
    AT(_start_compute, 128);
    AT(_stop_compute, 136);
    AT(_start_comm, 144);
    AT(_stop_comm, 152);
    AT(_comm_launch_event, 160);
    static_assert(sizeof(_algo_type) == 4 && sizeof(_ubuf) == 8 && sizeof(_stream_compute) == 24,
                  "members");
  }
};
static_assert(sizeof(te::CommOverlapCore) == 168, "CommOverlapCore");

#undef AT
#define AT(member, offset) static_assert(offsetof(Base, member) == (offset), #member)

struct Base : te::CommOverlapBase {
  using CommOverlapBase::CommOverlapBase;
  static void offsets() {
    AT(_rs_kernel_type, 168);
    AT(_rs_overlap_first_gemm, 172);
    AT(_stream_comm, 176);
    AT(_start_d2dcopy, 184);
  }
  // What an extension reads by itself.
  te::TensorWrapper &buffer() { return _ubuf; }
};
static_assert(sizeof(te::CommOverlapBase) == 192, "CommOverlapBase");

#undef AT
#define AT(member, offset) static_assert(offsetof(P2P, member) == (offset), #member)

struct P2P : te::CommOverlapP2PBase {
  using CommOverlapP2PBase::CommOverlapP2PBase;
  static void offsets() {
    AT(_is_reduce_scatter, 168);
    AT(_use_multiatomic_ag, 169);
    AT(_aggregate, 170);
    AT(_next_rank, 172);
    AT(_prev_rank, 176);
    AT(_rank_round_tp, 180);
    AT(_num_ubuf_chunks, 184);
    AT(_self_chunk_id, 188);
    AT(_ubufs, 192);
    AT(_stream_send, 216);
    AT(_stream_recv, 240);
    AT(_stop_send, 248);
    AT(_stop_recv, 256);
  }
  size_t buffers() { return _ubufs.size(); }
};
static_assert(sizeof(te::CommOverlapP2PBase) == 264, "CommOverlapP2PBase");

#undef AT

void *symbol(void *library, const std::string &name) {
  void *const found = dlsym(library, name.c_str());
  if (found == nullptr) std::fprintf(stderr, "no symbol %s\n", name.c_str());
  EXPECT(found != nullptr);
  return found;
}

// The class's virtual functions in the order of its table: of itself, or of the class it takes them
// from.
struct Table {
  const char *name;
  const std::type_info &type;
  const char *copy_into_buffer;
};

void check_table(void *library, const Table &table) {
  const std::string prefix = "_ZN18transformer_engine";
  const std::string product = "ERKNS_13TensorWrapperEbS3_bRS1_S4_S4_S4_bbb";
  const std::string end = "S4_P11CUstream_st";
  const std::string expected[] = {
      std::string(table.name) + "D1Ev",
      std::string(table.name) + "D0Ev",
      std::string(table.copy_into_buffer) +
          "16copy_into_bufferEP11CUstream_stRKNS_13TensorWrapperEbb",
      std::string(table.name) + "12bulk_overlap" + product + "NS_15CommOverlapTypeE" + end,
      std::string(table.name) + "22atomic_gemm_overlap_rs" + product + end,
      std::string(table.name) + "16split_overlap_rs" + product + end,
      std::string(table.name) + "22atomic_gemm_overlap_ag" + product + end,
      std::string(table.name) + "16split_overlap_ag" + product + end,
      std::string(table.name) + "24bulk_overlap_external_agEP11CUstream_stS2_S2_",
  };
  const std::string mangled = std::string("N18transformer_engine") + table.name + "E";
  void *const *slots = static_cast<void *const *>(symbol(library, "_ZTV" + mangled));
  EXPECT(slots[0] == nullptr);
  EXPECT(slots[1] == symbol(library, "_ZTI" + mangled));
  for (const std::string &name : expected) {
    if (slots[2] != symbol(library, prefix + name)) {
      std::fprintf(stderr, "another function in the slot of %s\n", name.c_str());
      std::exit(1);
    }
    slots++;
  }
  EXPECT(std::strcmp(static_cast<const char *>(symbol(library, "_ZTS" + mangled)),
                     mangled.c_str()) == 0);
  EXPECT(mangled == table.type.name());
}

// A call through a slot, as compiled code makes it.
std::string call_last_slot(void *object) {
  constexpr int kLast = 8;
  using Function = void (*)(void *, cudaStream_t, cudaStream_t, cudaStream_t);
  void **const slots = *static_cast<void ***>(object);
  const auto function = reinterpret_cast<Function>(slots[kLast]);
  return error_of([=] { function(object, nullptr, nullptr, nullptr); });
}

// An object in memory full of ones: its events and streams stay so, and destroying it must not look
// at them.
template <typename Class, typename Use>
void with_unset_object(Use use) {
  alignas(16) unsigned char memory[512];
  static_assert(sizeof(Class) <= sizeof(memory), "memory");
  std::memset(memory, 0xff, sizeof(memory));
  Class *const object = new (memory) Class();
  use(object);
  object->~Class();
  // The deleting destructor, in the second slot.
  void *const heap = ::operator new(sizeof(Class));
  std::memset(heap, 0xff, sizeof(Class));
  delete static_cast<te::CommOverlapCore *>(new (heap) Class());
}

void check_objects() {
  with_unset_object<Core>([](Core *object) {
    EXPECT(contains(call_last_slot(object), "CommOverlapCore::bulk_overlap_external_ag"));
  });
  with_unset_object<Base>([](Base *object) {
    EXPECT(contains(call_last_slot(object), "CommOverlapBase::bulk_overlap_external_ag"));
    EXPECT(object->buffer().numel() == 0 && object->buffer().dptr() == nullptr);
    EXPECT(dynamic_cast<te::CommOverlapBase *>(static_cast<te::CommOverlapCore *>(object)));
    te::TensorWrapper a, b, d, rest;
    te::CommOverlapCore &core = *object;
    const auto split = [&] {
      core.split_overlap_rs(a, true, b, false, d, rest, rest, rest, false, false, false, rest,
                            nullptr);
    };
    EXPECT(contains(error_of(split), "CommOverlapBase::split_overlap_rs"));
    EXPECT(contains(error_of([&] { core.copy_into_buffer(nullptr, a, true, true); }),
                    "CommOverlapCore::copy_into_buffer"));
    EXPECT(contains(error_of([&] { core.get_tensor_chunk(a, 0, {1}); }), "get_tensor_chunk"));
  });
  with_unset_object<P2P>([](P2P *object) {
    EXPECT(contains(call_last_slot(object), "CommOverlapP2PBase::bulk_overlap_external_ag"));
    EXPECT(object->buffers() == 0);
    te::TensorWrapper a;
    te::CommOverlapCore &core = *object;
    EXPECT(contains(error_of([&] { core.copy_into_buffer(nullptr, a, true, true); }),
                    "CommOverlapP2PBase::copy_into_buffer"));
  });
}

void check_constructors() {
  const char *const text =
      "overlap of communication and products is not available in this library; "
      "set ub_tp_comm_overlap=False";
  const te::ExtAllgatherOp gather = [](void *, size_t, void *, size_t, const char *) {};
  const te::ExtBarrierOp barrier = [](const char *) {};
  const std::vector<size_t> shape = {8, 8};
  const auto bf16 = te::DType::kBFloat16;
  const auto base = [&] { Base(shape, bf16, 0, 1, 0, 1, 0, 1, 1, gather, barrier); };
  EXPECT(contains(error_of(base), text));
  const auto p2p = [&] {
    P2P(shape, bf16, 0, 1, 0, 1, 0, 1, 1, gather, barrier, te::CommOverlapType::AG);
  };
  EXPECT(contains(error_of(p2p), text));
  const auto complete = [&] {
    te::CommOverlapP2PBase(shape, bf16, 0, 1, 0, 1, 0, 1, 1, gather, barrier,
                           te::CommOverlapType::RS);
  };
  EXPECT(contains(error_of(complete), text));
  EXPECT(contains(error_of([] { te::CommOverlapCore(nullptr, 0, 1, 1, false, false); }), text));
}

bool has_device() {
  void *const driver = dlopen("libcuda.so.1", RTLD_NOW);
  if (driver == nullptr) return false;
  const auto start = reinterpret_cast<int (*)(unsigned)>(dlsym(driver, "cuInit"));
  const auto count = reinterpret_cast<int (*)(int *)>(dlsym(driver, "cuDeviceGetCount"));
  int devices = 0;
  return start != nullptr && count != nullptr && start(0) == 0 && count(&devices) == 0 &&
         devices > 0;
}

// The libraries of CUDA that the test brings along are visible to all of the process.
void check_known_libraries(void *library) {
  int version = 0;
  const auto runtime = reinterpret_cast<int (*)(int *)>(symbol(library, "cudaRuntimeGetVersion"));
  EXPECT(runtime(&version) == 0 && version == 13099);
  EXPECT(dlsym(RTLD_DEFAULT, "cublasLtGetVersion") != nullptr);
  EXPECT(te::cuda::cublas_version() == 139901);
}

// With the driver of driver.cpp, whose devices are known.
void check_known_devices() {
  EXPECT(te::cuda::current_device() == 0 && te::cuda::sm_arch() == 90);
  EXPECT(te::cuda::sm_arch(1) == 103 && te::cuda::sm_arch(1) == 103);
  EXPECT(te::cuda::sm_count(0) == 132 && te::cuda::sm_count(1) == 148);
  EXPECT(te::cuda::supports_multicast(0) && !te::cuda::supports_multicast(1));
  int low = 1, high = 1;
  te::cuda::stream_priority_range(&low, &high, 1);
  EXPECT(low == 0 && high == -6);
  // The context that answered is no longer current, so the current device is the first one again.
  EXPECT(te::cuda::current_device() == 0);

  void *const driver = dlopen("libcuda.so.1", RTLD_NOW);
  const auto retain = reinterpret_cast<int (*)(void **, int)>(
      driver != nullptr ? dlsym(driver, "cuDevicePrimaryCtxRetain") : nullptr);
  EXPECT(retain != nullptr);
  void *context = nullptr;
  EXPECT(retain(&context, 1) == 0);
  const auto push =
      reinterpret_cast<int (*)(void *)>(te::cuda_driver::get_symbol("cuCtxPushCurrent"));
  EXPECT(push(context) == 0);
  // A context that is there stays.
  te::cuda_driver::ensure_context_exists();
  EXPECT(te::cuda::current_device() == 1 && te::cuda::sm_arch() == 103);
  EXPECT(te::cuda::sm_count() == 148 && te::cuda::sm_count(0) == 132);
  const auto missing = [] { te::cuda_driver::get_symbol("cuOfTomorrow"); };
  EXPECT(contains(error_of(missing), "cuOfTomorrow"));
}

void check_device() {
  if (!has_device()) {
    EXPECT(error_of([] { te::cuda::sm_arch(); }) != "");
    EXPECT(error_of([] { te::cuda::sm_count(0); }) != "");
    return;
  }
  EXPECT(te::cuda::current_device() == 0);
  EXPECT(te::cuda::sm_arch() >= 70 && te::cuda::sm_arch(0) == te::cuda::sm_arch());
  EXPECT(te::cuda::sm_count() > 0 && te::cuda::sm_count(0) == te::cuda::sm_count());
  EXPECT(contains(error_of([] { te::cuda::sm_arch(1 << 20); }), "expected less than"));
  int low = -1, high = 1;
  te::cuda::stream_priority_range(&low, &high);
  EXPECT(low == 0 && high < 0);
  te::cuda::supports_multicast();
  std::printf("sm_%d, %d multiprocessors\n", te::cuda::sm_arch(), te::cuda::sm_count());
}

void check_small_functions() {
  EXPECT(te::typeToSize(te::DType::kByte) == 1 && te::typeToSize(te::DType::kFloat8E5M2) == 1);
  EXPECT(te::typeToSize(te::DType::kFloat16) == 2 && te::typeToSize(te::DType::kFloat32) == 4);
  EXPECT(te::typeToSize(te::DType::kInt64) == 8);
  EXPECT(error_of([] { te::typeToSize(te::DType::kFloat4E2M1); }) != "");
  EXPECT(error_of([] { te::typeToSize(te::DType::kNumTypes); }) != "");
  EXPECT(!te::ubuf_built_with_mpi() && !nvte_built_with_cublasmp());
  te::nvte_cublas_handle_init();
  te::nvte_cudnn_handle_init();

  float scale = 1;
  te::TensorWrapper tensor(NVTE_MXFP8_1D_SCALING);
  EXPECT(nvte_tensor_columnwise_scale_inv(tensor.data()) == nullptr);
  tensor.set_columnwise_scale_inv(&scale, te::DType::kFloat8E8M0, std::vector<size_t>{1, 4});
  EXPECT(nvte_tensor_columnwise_scale_inv(tensor.data()) == &scale);
}

// Calls fail by an exception because the library is loaded, unless NVTE_ON_ERROR says otherwise.
void check_error_mode(bool throws) {
  nvtex_clear_error();
  const auto fail = [] { nvte_create_tensor(static_cast<NVTEScalingMode>(77)); };
  EXPECT((error_of(fail) != "") == throws);
  EXPECT(nvtex_last_status() == NVTEX_INVALID_ARGUMENT);
  nvtex_clear_error();
}

}  // namespace

// Whatever the extensions import, one after another; null ends it.
extern const void *const addresses[];

extern "C" __attribute__((visibility("default"))) void check_library(void *library, bool throws) {
  size_t count = 0;
  while (addresses[count] != nullptr) count++;
  // 315 C functions and more than fifty names of C++.
  EXPECT(count > 360);
  Core::offsets();
  Base::offsets();
  P2P::offsets();
  const char *const core = "15CommOverlapCore";
  check_table(library, {core, typeid(te::CommOverlapCore), core});
  check_table(library, {"15CommOverlapBase", typeid(te::CommOverlapBase), core});
  const char *const p2p = "18CommOverlapP2PBase";
  check_table(library, {p2p, typeid(te::CommOverlapP2PBase), p2p});
  check_error_mode(throws);
  check_small_functions();
  check_constructors();
  check_objects();
  check_device();
  if (std::getenv("NVTE_TEST_CUDA") != nullptr) {
    check_known_libraries(library);
    check_known_devices();
  }
}
