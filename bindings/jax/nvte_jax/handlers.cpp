// XLA FFI handlers for operators of libnvte.so. Each operator is a function of a Call, which has
// tensors for the operands and results of XLA, its attributes, and scratch memory; a macro makes a
// handler of it for the CPU and one for CUDA.
#include <cstring>
#include <iterator>
#include <memory>
#include <string>
#include <vector>

#include "nvte/nvte.h"
#include "xla/ffi/api/ffi.h"

namespace {

namespace ffi = xla::ffi;

// What a failing operator has said, thrown inside of an operator only.
struct Failure {
  std::string message;
};

template <class Expected>
auto value(Expected &&expected) {
  if (!expected.has_value()) throw Failure{expected.error().message()};
  return *expected;
}

NVTEDType dtype_of(ffi::DataType type) {
  switch (type) {
    case ffi::DataType::U8:
      return kNVTEByte;
    case ffi::DataType::S32:
      return kNVTEInt32;
    case ffi::DataType::S64:
      return kNVTEInt64;
    case ffi::DataType::F32:
      return kNVTEFloat32;
    case ffi::DataType::F16:
      return kNVTEFloat16;
    case ffi::DataType::BF16:
      return kNVTEBFloat16;
    case ffi::DataType::F8E4M3FN:
      return kNVTEFloat8E4M3;
    case ffi::DataType::F8E5M2:
      return kNVTEFloat8E5M2;
    default:
      throw Failure{"an array has a dtype that the library does not know"};
  }
}

struct DestroyTensor {
  void operator()(void *tensor) const { nvte_destroy_tensor(tensor); }
};
using Tensor = std::unique_ptr<void, DestroyTensor>;

struct DestroyConfig {
  void operator()(void *config) const { nvte_destroy_quantization_config(config); }
};
using Config = std::unique_ptr<void, DestroyConfig>;

NVTEBasicTensor basic(const ffi::AnyBuffer &buffer) {
  const auto dims = buffer.dimensions();
  const std::vector<size_t> shape(dims.begin(), dims.end());
  return {buffer.untyped_data(), dtype_of(buffer.element_type()),
          nvte_make_shape(shape.data(), shape.size())};
}

void set(const Tensor &tensor, NVTETensorParam param, const NVTEBasicTensor &buffer) {
  nvte_set_tensor_param_v2(tensor.get(), param, &buffer, sizeof buffer);
}

Tensor empty() { return Tensor(nvte_create_tensor(NVTE_DELAYED_TENSOR_SCALING)); }

Tensor plain(const ffi::AnyBuffer &buffer) {
  Tensor tensor = empty();
  set(tensor, kNVTERowwiseData, basic(buffer));
  return tensor;
}

class Call {
 public:
  Call(cudaStream_t stream, ffi::RemainingArgs args, ffi::RemainingRets rets,
       ffi::Dictionary attributes, ffi::ScratchAllocator *allocator)
      : stream(stream), args_(args), rets_(rets), attributes_(attributes), allocator_(allocator) {}
  ~Call() {
    for (void *memory : host_) nvtex_free(memory);
  }

  ffi::AnyBuffer arg(size_t i) const { return value(args_.get<ffi::AnyBuffer>(i)); }
  ffi::AnyBuffer ret(size_t i) const { return *value(rets_.get<ffi::AnyBuffer>(i)); }
  Tensor in(size_t i) const { return plain(arg(i)); }
  Tensor out(size_t i) const { return plain(ret(i)); }
  size_t num_args() const { return args_.size(); }
  int64_t integer(const char *name) const { return value(attributes_.get<int64_t>(name)); }
  float real(const char *name) const { return value(attributes_.get<float>(name)); }

  // Gives a workspace the memory that an operator has asked for; false if it needs none.
  bool provide(const Tensor &workspace) {
    const size_t bytes =
        nvte_tensor_numel(workspace.get()) * nvte_tensor_element_size_bits(workspace.get()) / 8;
    if (bytes == 0) return false;
    void *memory = nullptr;
    if (allocator_ != nullptr) {
      const auto given = allocator_->Allocate(bytes);
      if (!given.has_value())
        throw Failure{"XLA has no memory for a workspace of " + std::to_string(bytes) + " bytes"};
      memory = *given;
    } else {
      memory = nvtex_malloc(bytes);
      host_.push_back(memory);
    }
    set(workspace, kNVTERowwiseData,
        {memory, nvte_tensor_type(workspace.get()), nvte_tensor_shape(workspace.get())});
    return true;
  }

  // Runs an operator that asks for its workspace in a first call and computes in a second one.
  template <class Operator>
  void with_workspace(Operator &&op) {
    const Tensor workspace = empty();
    op(workspace.get());
    if (provide(workspace)) op(workspace.get());
  }

  const cudaStream_t stream;

 private:
  ffi::RemainingArgs args_;
  ffi::RemainingRets rets_;
  ffi::Dictionary attributes_;
  ffi::ScratchAllocator *allocator_;
  std::vector<void *> host_;
};

// Runs an operator and returns the first error of its calls.
template <void (*kOperator)(Call &)>
ffi::Error run(Call &&call, const char *backend) {
  if (std::strcmp(nvtex_backend_name(), backend) != 0) {
    return ffi::Error(ffi::ErrorCode::kFailedPrecondition,
                      std::string("nvte runs on ") + nvtex_backend_name() +
                          ", and the arrays are on " + backend +
                          ": NVTE_BACKEND chooses for the whole process");
  }
  const uint64_t before = nvtex_error_count();
  try {
    kOperator(call);
  } catch (const Failure &failure) {
    nvtex_take_error(before);
    return ffi::Error::InvalidArgument(failure.message);
  }
  if (nvtex_error_count() == before) return ffi::Error::Success();
  const char *message = nvtex_take_error(before);
  return ffi::Error::InvalidArgument(message != nullptr ? message : "nvte gave no message");
}

template <void (*kOperator)(Call &)>
ffi::Error on_cpu(ffi::RemainingArgs args, ffi::RemainingRets rets, ffi::Dictionary attributes) {
  return run<kOperator>(Call(nullptr, args, rets, attributes, nullptr), "cpu");
}

template <void (*kOperator)(Call &)>
ffi::Error on_cuda(cudaStream_t stream, ffi::ScratchAllocator allocator, ffi::RemainingArgs args,
                   ffi::RemainingRets rets, ffi::Dictionary attributes) {
  return run<kOperator>(Call(stream, args, rets, attributes, &allocator), "cuda");
}

// What is defined once for both platforms under `nvte_jax_NAME_cpu` and `nvte_jax_NAME_cuda`.
#define NVTE_HANDLERS(NAME)                                                                \
  XLA_FFI_DEFINE_HANDLER_SYMBOL(nvte_jax_##NAME##_cpu, on_cpu<NAME>,                       \
                                ffi::Ffi::Bind().RemainingArgs().RemainingRets().Attrs()); \
  XLA_FFI_DEFINE_HANDLER_SYMBOL(nvte_jax_##NAME##_cuda, on_cuda<NAME>,                     \
                                ffi::Ffi::Bind()                                           \
                                    .Ctx<ffi::PlatformStream<cudaStream_t>>()              \
                                    .Ctx<ffi::ScratchAllocator>()                          \
                                    .RemainingArgs()                                       \
                                    .RemainingRets()                                       \
                                    .Attrs())

// Current scaling: x [rows, columns] -> codes, codes of the transpose, scale_inv; scale and amax
// are scratch.
void quantize(Call &call) {
  const Tensor x = call.in(0), codes = call.out(0);
  set(codes, kNVTEColumnwiseData, basic(call.ret(1)));
  set(codes, kNVTERowwiseScaleInv, basic(call.ret(2)));
  set(codes, kNVTEColumnwiseScaleInv, basic(call.ret(2)));
  set(codes, kNVTEScale, basic(call.ret(3)));
  set(codes, kNVTEAmax, basic(call.ret(4)));
  nvte_compute_amax(x.get(), codes.get(), call.stream);
  const Config config(nvte_create_quantization_config());
  nvte_compute_scale_from_amax(codes.get(), config.get(), call.stream);
  nvte_quantize(x.get(), codes.get(), call.stream);
}

// codes, scale_inv -> x
void dequantize(Call &call) {
  const Tensor codes = call.in(0), x = call.out(0);
  set(codes, kNVTERowwiseScaleInv, basic(call.arg(1)));
  nvte_dequantize(codes.get(), x.get(), call.stream);
}

// a [m, k], b [n, k] (, their scale_inv) -> a b^T [m, n]
void matmul(Call &call) {
  const Tensor a = call.in(0), b = call.in(1), d = call.out(0), none = empty();
  if (call.num_args() == 4) {
    set(a, kNVTERowwiseScaleInv, basic(call.arg(2)));
    set(b, kNVTERowwiseScaleInv, basic(call.arg(3)));
  }
  // Memory with which the products that the device's library does not take are made.
  const Tensor workspace = empty();
  const size_t bytes = call.num_args() == 4 ? 4u << 20 : 0;
  if (bytes != 0) {
    set(workspace, kNVTERowwiseData, {nullptr, kNVTEByte, nvte_make_shape(&bytes, 1)});
    call.provide(workspace);
  }
  nvte_cublas_gemm(b.get(), a.get(), d.get(), none.get(), none.get(), true, false, false,
                   workspace.get(), false, true, 0, call.stream);
}

// x, gamma, beta -> z, mu, rsigma
void layernorm(Call &call) {
  const Tensor x = call.in(0), gamma = call.in(1), beta = call.in(2);
  const Tensor z = call.out(0), mu = call.out(1), rsigma = call.out(2);
  call.with_workspace([&](NVTETensor workspace) {
    nvte_layernorm_fwd(x.get(), gamma.get(), beta.get(), call.real("epsilon"), z.get(), mu.get(),
                       rsigma.get(), workspace, static_cast<int>(call.integer("processors")), false,
                       call.stream);
  });
}

// dz, x, mu, rsigma, gamma -> dx, dgamma, dbeta
void layernorm_grad(Call &call) {
  const Tensor dz = call.in(0), x = call.in(1), mu = call.in(2), rsigma = call.in(3),
               gamma = call.in(4);
  const Tensor dx = call.out(0), dgamma = call.out(1), dbeta = call.out(2);
  call.with_workspace([&](NVTETensor workspace) {
    nvte_layernorm_bwd(dz.get(), x.get(), mu.get(), rsigma.get(), gamma.get(), dx.get(),
                       dgamma.get(), dbeta.get(), workspace,
                       static_cast<int>(call.integer("processors")), false, call.stream);
  });
}

// x, gamma -> z, rsigma
void rmsnorm(Call &call) {
  const Tensor x = call.in(0), gamma = call.in(1), z = call.out(0), rsigma = call.out(1);
  call.with_workspace([&](NVTETensor workspace) {
    nvte_rmsnorm_fwd(x.get(), gamma.get(), call.real("epsilon"), z.get(), rsigma.get(), workspace,
                     static_cast<int>(call.integer("processors")), false, call.stream);
  });
}

// dz, x, rsigma, gamma -> dx, dgamma
void rmsnorm_grad(Call &call) {
  const Tensor dz = call.in(0), x = call.in(1), rsigma = call.in(2), gamma = call.in(3);
  const Tensor dx = call.out(0), dgamma = call.out(1);
  call.with_workspace([&](NVTETensor workspace) {
    nvte_rmsnorm_bwd(dz.get(), x.get(), rsigma.get(), gamma.get(), dx.get(), dgamma.get(),
                     workspace, static_cast<int>(call.integer("processors")), false, call.stream);
  });
}

struct Activation {
  void (*forward)(NVTETensor, NVTETensor, cudaStream_t);
  void (*backward)(NVTETensor, NVTETensor, NVTETensor, cudaStream_t);
};
// In the order of ACTIVATIONS in __init__.py.
constexpr Activation kActivations[] = {
    {nvte_gelu, nvte_dgelu},     {nvte_silu, nvte_dsilu},     {nvte_qgelu, nvte_dqgelu},
    {nvte_relu, nvte_drelu},     {nvte_srelu, nvte_dsrelu},   {nvte_geglu, nvte_dgeglu},
    {nvte_swiglu, nvte_dswiglu}, {nvte_qgeglu, nvte_dqgeglu}, {nvte_reglu, nvte_dreglu},
    {nvte_sreglu, nvte_dsreglu},
};

const Activation &chosen(const Call &call) {
  const int64_t kind = call.integer("kind");
  if (kind < 0 || kind >= static_cast<int64_t>(std::size(kActivations)))
    throw Failure{"kind: no such activation"};
  return kActivations[kind];
}

void activation(Call &call) {
  chosen(call).forward(call.in(0).get(), call.out(0).get(), call.stream);
}

// grad, x -> dx
void activation_grad(Call &call) {
  chosen(call).backward(call.in(0).get(), call.in(1).get(), call.out(0).get(), call.stream);
}

struct Pack {
  Pack() { nvte_tensor_pack_create(&pack); }
  ~Pack() { nvte_tensor_pack_destroy(&pack); }
  NVTETensorPack pack = {};
};

// q [b, s, h, d], k, v -> o, stats [b, h, s, 1]
void attention(Call &call) {
  const Tensor q = call.in(0), k = call.in(1), v = call.in(2), o = call.out(0), none = empty();
  Pack aux;
  const Tensor workspace = empty();
  const auto run_pass = [&] {
    nvte_fused_attn_fwd(q.get(), k.get(), v.get(), none.get(), none.get(), none.get(), o.get(),
                        &aux.pack, none.get(), none.get(), none.get(), none.get(), none.get(),
                        none.get(), none.get(), static_cast<size_t>(call.arg(0).dimensions()[1]),
                        static_cast<size_t>(call.arg(1).dimensions()[1]), true, false, false,
                        call.real("scale"), 0, NVTE_BSHD_BSHD_BSHD, NVTE_BSHD, NVTE_BSHD,
                        NVTE_NO_BIAS, static_cast<NVTE_Mask_Type>(call.integer("mask")),
                        NVTE_VANILLA_SOFTMAX, call.integer("window"),
                        call.integer("mask") == NVTE_NO_MASK ? -1 : 0, false, workspace.get(),
                        call.stream);
  };
  const uint64_t before = nvtex_error_count();
  run_pass();
  if (nvtex_error_count() != before) return;
  const NVTEBasicTensor stats = basic(call.ret(1));
  nvte_set_tensor_param_v2(aux.pack.tensors[0], kNVTERowwiseData, &stats, sizeof stats);
  call.provide(workspace);
  run_pass();
}

// q, k, v, o, stats, do -> dq, dk, dv
void attention_grad(Call &call) {
  const Tensor q = call.in(0), k = call.in(1), v = call.in(2), o = call.in(3), grad = call.in(5);
  const Tensor dq = call.out(0), dk = call.out(1), dv = call.out(2), none = empty();
  Pack aux;
  const NVTEBasicTensor stats = basic(call.arg(4));
  nvte_set_tensor_param_v2(aux.pack.tensors[0], kNVTERowwiseData, &stats, sizeof stats);
  aux.pack.size = 1;
  call.with_workspace([&](NVTETensor workspace) {
    nvte_fused_attn_bwd(
        q.get(), k.get(), v.get(), o.get(), grad.get(), none.get(), none.get(), &aux.pack, dq.get(),
        dk.get(), dv.get(), none.get(), none.get(), none.get(), none.get(), none.get(), none.get(),
        static_cast<size_t>(call.arg(0).dimensions()[1]),
        static_cast<size_t>(call.arg(1).dimensions()[1]), call.real("scale"), 0,
        NVTE_BSHD_BSHD_BSHD, NVTE_BSHD, NVTE_BSHD, NVTE_BSHD_BSHD_BSHD, NVTE_BSHD, NVTE_BSHD,
        NVTE_NO_BIAS, static_cast<NVTE_Mask_Type>(call.integer("mask")), NVTE_VANILLA_SOFTMAX,
        call.integer("window"), call.integer("mask") == NVTE_NO_MASK ? -1 : 0, false, true, false,
        workspace, call.stream);
  });
}

NVTE_HANDLERS(quantize);
NVTE_HANDLERS(dequantize);
NVTE_HANDLERS(matmul);
NVTE_HANDLERS(layernorm);
NVTE_HANDLERS(layernorm_grad);
NVTE_HANDLERS(rmsnorm);
NVTE_HANDLERS(rmsnorm_grad);
NVTE_HANDLERS(activation);
NVTE_HANDLERS(activation_grad);
NVTE_HANDLERS(attention);
NVTE_HANDLERS(attention_grad);

}  // namespace
