// Attention by cuDNN, which is opened when the first attention asks for it and never needed. Its
// C API of graphs is declared here as far as it is used; the numbers are those of cudnn_graph_v9.h.
//
// A graph is made for a configuration, not for a call: addresses and the scale come with the call.
// A plan lives as long as the process does.
//
// All of cuDNN is in this file, but for its row in implementations.cuh, the variable
// NVTE_ATTENTION_CUDNN (src/env.rs, handed over by src/backend/cudnn.rs) and its test,
// capi-tests/fused_attn/fused_attn_cudnn.c.

#include <dlfcn.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <memory>
#include <mutex>
#include <shared_mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "attention.cuh"
#include "common/capture.cuh"

namespace nvte {

// CudnnChoice of src/env.rs: NVTE_ATTENTION_CUDNN is 0, 1 or auto.
enum class Use : int { kNever, kPreferred, kFaster };

namespace {

// ---- The library

using Handle = struct cudnnContext *;
using Descriptor = void *;

// The oldest that has been tried.
constexpr size_t kOldestVersion = 91400;

enum DescriptorType {
  kPointwiseType = 0,
  kEngineConfigType = 3,
  kHeuristicsType = 4,
  kPlanType = 5,
  kPointwiseOperationType = 13,
  kGraphType = 15,
  kPackType = 16,
  kTensorType = 17,
  kMatmulType = 18,
  kMatmulOperationType = 19,
  kReductionType = 21,
  kReductionOperationType = 22,
  kReshapeOperationType = 31,
};
enum Attribute {
  kPointwiseMode = 0,
  kPointwisePrecision = 1,
  kPointwiseAxis = 9,
  kHeuristicsMode = 200,
  kHeuristicsGraph = 201,
  kHeuristicsResults = 202,
  kPlanHandle = 400,
  kPlanEngineConfig = 401,
  kPlanWorkspaceSize = 402,
  kPointwiseDescriptor = 750,
  kPointwiseX = 751,
  kPointwiseB = 752,
  kPointwiseY = 753,
  kPointwiseT = 758,
  kGraphHandle = 800,
  kGraphOperations = 801,
  kTensorAlignment = 900,
  kTensorDataType = 901,
  kTensorDimensions = 902,
  kTensorStrides = 903,
  kTensorId = 906,
  kTensorIsVirtual = 907,
  kTensorIsByValue = 908,
  kPackIds = 1000,
  kPackPointers = 1001,
  kPackWorkspace = 1003,
  kMatmulPrecision = 1500,
  kMatmulA = 1520,
  kMatmulB = 1521,
  kMatmulC = 1522,
  kMatmulDescriptor = 1523,
  kReductionOperator = 1600,
  kReductionPrecision = 1601,
  kReductionX = 1610,
  kReductionY = 1611,
  kReductionDescriptor = 1612,
  kReshapeX = 2200,
  kReshapeY = 2201,
};
enum AttributeType {
  kHandleType = 0,
  kDataTypeType = 1,
  kBooleanType = 2,
  kInt64Type = 3,
  kPointerType = 6,
  kHeuristicsModeType = 8,
  kPointwiseModeType = 14,
  kDescriptorType = 15,
  kReductionOperatorType = 18,
};
enum DataType { kFloat = 0, kHalf = 2, kInt32 = 4, kBFloat16 = 9, kBoolean = 11 };
enum Mode {
  kAdd = 0,
  kMul = 1,
  kDiv = 6,
  kSub = 9,
  kExp = 13,
  kLog = 15,
  kIdentity = 21,
  kGreater = 302,
  kGreaterEqual = 303,
  kIndex = 501,
  kSelect = 601,
};
enum Reduction { kSum = 0, kMax = 3 };
// Modes of the heuristics in order of preference: A, B, fallback.
constexpr int kHeuristics[] = {3, 1, 2};

struct Library {
  size_t (*version)();
  const char *(*error_text)(int);
  void (*last_error)(char *, size_t);
  int (*create)(Handle *);
  int (*set_stream)(Handle, cudaStream_t);
  int (*create_descriptor)(int, Descriptor *);
  int (*destroy_descriptor)(Descriptor);
  int (*finalize)(Descriptor);
  int (*set)(Descriptor, int, int, int64_t, const void *);
  int (*get)(Descriptor, int, int, int64_t, int64_t *, void *);
  int (*execute)(Handle, Descriptor, Descriptor);
  // Why it cannot be used; empty if it can.
  std::string reason;
};

struct Settings {
  Use use = Use::kFaster;
  void *(*open)(const char *) = nullptr;
};
Settings g_settings;

Library open_library() {
  Library l = {};
  const auto open = [&](const std::string &name) {
    void *opened = g_settings.open != nullptr ? g_settings.open(name.c_str()) : nullptr;
    if (opened == nullptr) {
      l.reason = name + " is not to be found on the loader's path or in NVTE_CUDA_LIB_PATH";
    }
    return opened;
  };
  void *library = open("libcudnn.so.9");
  if (library == nullptr) return l;
  const auto find = [&](auto &function, const char *name) {
    void *symbol = dlsym(library, name);
    if (symbol == nullptr) l.reason = std::string("libcudnn.so.9 has no ") + name;
    std::memcpy(&function, &symbol, sizeof symbol);
  };
  size_t (*toolkit)();
  find(toolkit, "cudnnGetCudartVersion");
  find(l.version, "cudnnGetVersion");
  find(l.error_text, "cudnnGetErrorString");
  find(l.last_error, "cudnnGetLastErrorString");
  find(l.create, "cudnnCreate");
  find(l.set_stream, "cudnnSetStream");
  find(l.create_descriptor, "cudnnBackendCreateDescriptor");
  find(l.destroy_descriptor, "cudnnBackendDestroyDescriptor");
  find(l.finalize, "cudnnBackendFinalize");
  find(l.set, "cudnnBackendSetAttribute");
  find(l.get, "cudnnBackendGetAttribute");
  find(l.execute, "cudnnBackendExecute");
  if (l.reason.empty() && l.version() < kOldestVersion) {
    l.reason = "needs cuDNN 9.14 or later, found " + std::to_string(l.version());
  }
  // Of its toolkit. Without the first cuDNN ends the process, without the second it has no engine.
  for (const char *name : {"libcublasLt.so.", "libnvrtc.so."}) {
    if (l.reason.empty()) open(name + std::to_string(toolkit() / 1000));
  }
  return l;
}

// Never destroyed: calls may come until the process ends.
const Library &library() {
  static const Library *opened = new Library(open_library());
  return *opened;
}

struct Failure {
  std::string text;
};

void check(int status, const char *what) {
  if (status == 0) return;
  char detail[512] = "";
  library().last_error(detail, sizeof detail);
  std::string text = std::string(what) + ": " + library().error_text(status);
  if (detail[0] != '\0') text.append(" (").append(detail).append(")");
  // One line: a reason stands in a list.
  std::replace(text.begin(), text.end(), '\n', ' ');
  throw Failure{text};
}

// ---- Descriptors

class Owned {
 public:
  explicit Owned(DescriptorType type) {
    check(library().create_descriptor(type, &descriptor_), "cudnnBackendCreateDescriptor");
  }
  Owned(Owned &&other) noexcept : descriptor_(other.descriptor_) { other.descriptor_ = nullptr; }
  Owned &operator=(Owned &&) = delete;
  ~Owned() {
    if (descriptor_ != nullptr) library().destroy_descriptor(descriptor_);
  }
  Descriptor get() const { return descriptor_; }

  Owned &set(Attribute name, AttributeType type, int64_t count, const void *values) {
    check(library().set(descriptor_, name, type, count, values), "cudnnBackendSetAttribute");
    return *this;
  }
  template <class T>
  Owned &set(Attribute name, AttributeType type, const T &value) {
    return set(name, type, 1, &value);
  }
  Owned &finalize() {
    check(library().finalize(descriptor_), "cudnnBackendFinalize");
    return *this;
  }

 private:
  Descriptor descriptor_ = nullptr;
};

using Dims = std::array<int64_t, 4>;

Dims packed(const Dims &d) { return {d[1] * d[2] * d[3], d[2] * d[3], d[3], 1}; }

struct Tensor {
  Descriptor descriptor;
  Dims dims, strides;
};

// Tensors that a call gives addresses of; those between two operations are numbered after them.
enum Id : int64_t {  // From 1 on.
  kQ = 1,
  kK,
  kV,
  kO,
  kStats,
  kDo,
  kDq,
  kDk,
  kDv,
  // In the workspace: float32 sums of dq, and those of do * o.
  kDqSum,
  kDelta,
  // On the host.
  kScale,
  kOne,
  kMinusInfinity,
  kQueries,
  kKeys,
  kRight,
  kLeft,
  kIds
};

class Graph {
 public:
  Tensor memory(Id id, DataType type, const Dims &dims, const Dims &strides) {
    used_.push_back(id);
    return tensor(id, type, dims, strides, kInMemory);
  }
  Tensor value(Id id, DataType type) {
    used_.push_back(id);
    return tensor(id, type, {1, 1, 1, 1}, {1, 1, 1, 1}, kValue);
  }
  Tensor between(DataType type, const Dims &dims) { return between(type, dims, packed(dims)); }
  Tensor between(DataType type, const Dims &dims, const Dims &strides) {
    return tensor(next_++, type, dims, strides, kVirtual);
  }

  // y = mode(x, b), or t ? x : b.
  Tensor pointwise(Mode mode, const Tensor &x, const Tensor *b, const Tensor *t, const Tensor &y,
                   DataType precision = kFloat, int64_t axis = -1) {
    const Descriptor what = pointwise_descriptor(mode, precision, axis);
    Owned &o = operation(kPointwiseOperationType);
    o.set(kPointwiseDescriptor, kDescriptorType, what);
    o.set(kPointwiseX, kDescriptorType, x.descriptor);
    if (b != nullptr) o.set(kPointwiseB, kDescriptorType, b->descriptor);
    if (t != nullptr) o.set(kPointwiseT, kDescriptorType, t->descriptor);
    o.set(kPointwiseY, kDescriptorType, y.descriptor).finalize();
    return y;
  }
  // To float32, shaped as x.
  Tensor pointwise(Mode mode, const Tensor &x) {
    return pointwise(mode, x, nullptr, nullptr, between(kFloat, x.dims));
  }
  Tensor pointwise(Mode mode, const Tensor &x, const Tensor &b) {
    return pointwise(mode, x, &b, nullptr, between(kFloat, x.dims));
  }

  // The numbers of rows (axis 2) or columns (axis 3).
  Tensor index(const Tensor &x, int64_t axis) {
    return pointwise(kIndex, x, nullptr, nullptr, between(kInt32, x.dims), kFloat, axis);
  }

  Tensor matmul(const Tensor &a, const Tensor &b, const Tensor &c) {
    Owned &what = own(kMatmulType);
    what.set(kMatmulPrecision, kDataTypeType, kFloat).finalize();
    operation(kMatmulOperationType)
        .set(kMatmulA, kDescriptorType, a.descriptor)
        .set(kMatmulB, kDescriptorType, b.descriptor)
        .set(kMatmulC, kDescriptorType, c.descriptor)
        .set(kMatmulDescriptor, kDescriptorType, what.get())
        .finalize();
    return c;
  }

  // Along the axes where y has one element.
  Tensor reduce(Reduction mode, const Tensor &x, const Tensor &y) {
    Owned &what = own(kReductionType);
    what.set(kReductionOperator, kReductionOperatorType, mode)
        .set(kReductionPrecision, kDataTypeType, kFloat)
        .finalize();
    operation(kReductionOperationType)
        .set(kReductionX, kDescriptorType, x.descriptor)
        .set(kReductionY, kDescriptorType, y.descriptor)
        .set(kReductionDescriptor, kDescriptorType, what.get())
        .finalize();
    return y;
  }

  // Rows and columns exchanged.
  Tensor transpose(const Tensor &x, DataType type) {
    const Tensor y = between(type, {x.dims[0], x.dims[1], x.dims[3], x.dims[2]},
                             {x.strides[0], x.strides[1], x.strides[3], x.strides[2]});
    operation(kReshapeOperationType)
        .set(kReshapeX, kDescriptorType, x.descriptor)
        .set(kReshapeY, kDescriptorType, y.descriptor)
        .finalize();
    return y;
  }

  Owned finish(Handle handle) {
    Owned graph(kGraphType);
    graph.set(kGraphHandle, kHandleType, handle)
        .set(kGraphOperations, kDescriptorType, static_cast<int64_t>(operations_.size()),
             operations_.data())
        .finalize();
    return graph;
  }
  const std::vector<Id> &used() const { return used_; }

 private:
  enum Place { kInMemory, kVirtual, kValue };

  Owned &own(DescriptorType type) {
    // Not a vector of values: descriptors are referred to while others are made.
    owned_.push_back(std::make_unique<Owned>(type));
    return *owned_.back();
  }
  Owned &operation(DescriptorType type) {
    Owned &made = own(type);
    operations_.push_back(made.get());
    return made;
  }
  Descriptor pointwise_descriptor(Mode mode, DataType precision, int64_t axis) {
    Owned &what = own(kPointwiseType);
    what.set(kPointwiseMode, kPointwiseModeType, mode)
        .set(kPointwisePrecision, kDataTypeType, precision);
    if (axis >= 0) what.set(kPointwiseAxis, kInt64Type, axis);
    what.finalize();
    return what.get();
  }
  Tensor tensor(int64_t id, DataType type, const Dims &dims, const Dims &strides, Place place) {
    const int64_t alignment = 16;
    const bool is_virtual = place == kVirtual, is_value = place == kValue;
    Owned &made = own(kTensorType);
    made.set(kTensorDataType, kDataTypeType, type)
        .set(kTensorDimensions, kInt64Type, 4, dims.data())
        .set(kTensorStrides, kInt64Type, 4, strides.data())
        .set(kTensorId, kInt64Type, id)
        .set(kTensorAlignment, kInt64Type, alignment)
        .set(kTensorIsVirtual, kBooleanType, is_virtual)
        .set(kTensorIsByValue, kBooleanType, is_value)
        .finalize();
    return {made.get(), dims, strides};
  }

  std::vector<std::unique_ptr<Owned>> owned_;
  std::vector<Descriptor> operations_;
  std::vector<Id> used_;
  int64_t next_ = kIds;
};

// ---- Configurations

// Everything that a plan depends on. Integers of one size: compared and hashed as bytes.
struct Key {
  int64_t device, backward, deterministic, bfloat16;
  int64_t batch, heads, kv_heads, queries, keys, dim_qk, dim_v;
  // Bounds of the columns relative to row + shift; -1: none.
  int64_t left, right, bottom_right;
  // Of q, k, v, o, do, dq, dk, dv: batch, head, row.
  int64_t strides[8][3];

  bool operator==(const Key &other) const { return std::memcmp(this, &other, sizeof *this) == 0; }
};
struct KeyHash {
  size_t operator()(const Key &key) const {
    const auto *words = reinterpret_cast<const uint64_t *>(&key);
    uint64_t hash = 0;
    for (size_t i = 0; i < sizeof key / sizeof *words; ++i) {
      hash = (hash ^ words[i]) * 0x9e3779b97f4a7c15u;
      hash ^= hash >> 29;
    }
    return hash;
  }
};

Key key_of(const NVTEXAttentionArgs &a, int device) {
  Key key = {};
  key.device = device;
  key.backward = a.backward;
  key.deterministic = a.backward && a.deterministic;
  key.bfloat16 = a.q.dtype == kNVTEBFloat16;
  key.batch = static_cast<int64_t>(a.batch);
  key.heads = static_cast<int64_t>(a.q_side.heads);
  key.kv_heads = static_cast<int64_t>(a.kv_side.heads);
  key.queries = static_cast<int64_t>(a.q_side.max_seqlen);
  key.keys = static_cast<int64_t>(a.kv_side.max_seqlen);
  key.dim_qk = static_cast<int64_t>(a.dim_qk);
  key.dim_v = static_cast<int64_t>(a.dim_v);
  key.left = a.window_left;
  key.right = a.window_right;
  key.bottom_right = a.bottom_right && key.queries != key.keys;
  const int64_t shift = key.bottom_right ? key.keys - key.queries : 0;
  // Bounds that no row reaches.
  if (key.left >= key.queries - 1 + shift) key.left = -1;
  if (key.right >= key.keys - 1 - shift) key.right = -1;
  const NVTEXAttentionTensor *tensors[] = {&a.q, &a.k, &a.v, &a.o, &a.d_o, &a.dq, &a.dk, &a.dv};
  for (int i = 0; i < (a.backward ? 8 : 4); ++i) {
    const NVTEXAttentionTensor &t = *tensors[i];
    key.strides[i][0] = t.batch, key.strides[i][1] = t.head, key.strides[i][2] = t.row;
  }
  return key;
}

// What a version computes wrong.
const char *wrong_in(size_t version, const Key &key) {
  if (version < 91600 && key.backward != 0 && key.keys % 128 != 0) {
    return "before cuDNN 9.16 the backward takes keys in multiples of 128";
  }
  if (version < 91401 && key.left >= 0 && key.right != 0 && key.keys > 1024) {
    return "before cuDNN 9.14.1 a window on both sides takes at most 1024 keys";
  }
  return nullptr;
}

// Whether each row admits a column.
bool rows_admit(const Key &key) {
  const int64_t shift = key.bottom_right ? key.keys - key.queries : 0;
  return (key.right < 0 || shift + key.right >= 0) &&
         (key.left < 0 || key.queries - 1 + shift - key.left < key.keys);
}

// ---- Graphs

class Attention {
 public:
  explicit Attention(const Key &key)
      : key_(key),
        type_(key.bfloat16 != 0 ? kBFloat16 : kHalf),
        b_(key.batch),
        h_(key.heads),
        sq_(key.queries),
        skv_(key.keys) {}

  void forward() {
    Tensor x = masked(scaled_products());
    const Dims rows = {b_, h_, sq_, 1};
    const Tensor most = graph_.reduce(kMax, x, graph_.between(kFloat, rows));
    x = graph_.pointwise(kExp, graph_.pointwise(kSub, x, most));
    const Tensor sum = graph_.reduce(kSum, x, graph_.between(kFloat, rows));
    const Tensor log = graph_.pointwise(kLog, sum);
    graph_.pointwise(kAdd, most, &log, nullptr, stats());
    const Tensor p = graph_.pointwise(kDiv, x, &sum, nullptr, graph_.between(type_, x.dims));
    graph_.matmul(p, key_side(kV, key_.dim_v), query_side(kO, key_.dim_v));
  }

  void backward() {
    const Dims rows = {b_, h_, sq_, 1};
    // Sums of do * o. Multiplied by one: the engines look for the factor of dropout.
    const Tensor d_o = query_side(kDo, key_.dim_v);
    Tensor delta = graph_.pointwise(kMul, d_o, query_side(kO, key_.dim_v));
    delta = graph_.reduce(kSum, delta, graph_.between(kFloat, rows));
    const Tensor one = graph_.value(kOne, kFloat);
    delta = graph_.pointwise(kMul, delta, &one, nullptr,
                             graph_.memory(kDelta, kFloat, rows, packed(rows)));
    // Probabilities, and dv.
    Tensor p = graph_.pointwise(kSub, scaled_products(), stats());
    p = graph_.pointwise(kExp, masked(p));
    key_gradient(graph_.transpose(p, type_), d_o, kDv, key_.dim_v);
    // Gradient of the scores, and dk.
    const Tensor vt = transposed(kV, key_.dim_v);
    Tensor ds = graph_.matmul(d_o, vt, graph_.between(kFloat, scores()));
    ds = graph_.pointwise(kSub, ds, delta);
    ds = graph_.pointwise(kMul, ds, p);
    ds = graph_.pointwise(kMul, ds, *scale_);
    key_gradient(graph_.transpose(ds, type_), *q_, kDk, key_.dim_qk);
    // dq: added in any order in float32, or from the scores' gradient in the plan's workspace.
    const Tensor k = graph_.transpose(*kt_, type_);
    const Tensor dq = query_side(kDq, key_.dim_qk);
    if (key_.deterministic != 0) {
      graph_.matmul(ds, k, dq);
    } else {
      const Dims dims = {b_, h_, sq_, key_.dim_qk};
      const Tensor sum = graph_.memory(kDqSum, kFloat, dims, packed(dims));
      graph_.matmul(ds, k, sum);
      graph_.pointwise(kIdentity, sum, nullptr, nullptr, dq);
    }
  }

  Graph &graph() { return graph_; }

 private:
  Dims scores() const { return {b_, h_, sq_, skv_}; }
  const int64_t (&strides(Id id) const)[3] {
    return key_.strides[id < kStats ? id - kQ : id - kQ - 1];
  }
  Tensor query_side(Id id, int64_t dim) {
    const auto &s = strides(id);
    return graph_.memory(id, type_, {b_, h_, sq_, dim}, {s[0], s[1], s[2], 1});
  }
  Tensor key_side(Id id, int64_t dim) {
    const auto &s = strides(id);
    return graph_.memory(id, type_, {b_, key_.kv_heads, skv_, dim}, {s[0], s[1], s[2], 1});
  }
  Tensor transposed(Id id, int64_t dim) {
    const auto &s = strides(id);
    return graph_.memory(id, type_, {b_, key_.kv_heads, dim, skv_}, {s[0], s[1], 1, s[2]});
  }
  Tensor stats() {
    const Dims rows = {b_, h_, sq_, 1};
    return graph_.memory(kStats, kFloat, rows, packed(rows));
  }

  Tensor scaled_products() {
    q_ = std::make_unique<Tensor>(query_side(kQ, key_.dim_qk));
    kt_ = std::make_unique<Tensor>(transposed(kK, key_.dim_qk));
    scale_ = std::make_unique<Tensor>(graph_.value(kScale, kFloat));
    const Tensor x = graph_.matmul(*q_, *kt_, graph_.between(kFloat, scores()));
    return graph_.pointwise(kMul, x, *scale_);
  }

  // The forms in which the engines know a band: row + keys - queries + right >= column, and
  // column + left + 1 - (keys - queries) > row.
  Tensor masked(const Tensor &x) {
    Tensor result = x;
    if (key_.right >= 0) {
      Tensor row = graph_.index(x, 2);
      const Tensor column = graph_.index(x, 3);
      const auto step = [&](Mode mode, Id id) {
        const Tensor by = graph_.value(id, kInt32);
        row = graph_.pointwise(mode, row, &by, nullptr, graph_.between(kInt32, x.dims), kInt32);
      };
      if (key_.bottom_right != 0) step(kAdd, kKeys), step(kSub, kQueries);
      if (key_.right > 0) step(kAdd, kRight);
      result = select(result, kGreaterEqual, row, column);
    }
    if (key_.left >= 0) {
      const Tensor row = graph_.index(result, 2);
      const Tensor left = graph_.value(kLeft, kFloat);
      const Tensor column = graph_.pointwise(kAdd, graph_.index(result, 3), left);
      result = select(result, kGreater, column, row);
    }
    return result;
  }
  Tensor select(const Tensor &x, Mode comparison, const Tensor &a, const Tensor &b) {
    const Tensor admitted =
        graph_.pointwise(comparison, a, &b, nullptr, graph_.between(kBoolean, x.dims), kBoolean);
    if (!minus_infinity_) {
      minus_infinity_ = std::make_unique<Tensor>(graph_.value(kMinusInfinity, kFloat));
    }
    return graph_.pointwise(kSelect, x, minus_infinity_.get(), &admitted,
                            graph_.between(kFloat, x.dims));
  }

  // Of k or v, summed over the queries' heads that share one.
  // The engines write each head's part in 16 bits, whatever dtype is asked for.
  void key_gradient(const Tensor &weights, const Tensor &rows, Id id, int64_t dim) {
    const Tensor result = key_side(id, dim);
    if (key_.kv_heads == h_) {
      graph_.matmul(weights, rows, result);
    } else {
      graph_.reduce(kSum, graph_.matmul(weights, rows, graph_.between(type_, {b_, h_, skv_, dim})),
                    result);
    }
  }

  const Key &key_;
  const DataType type_;
  const int64_t b_, h_, sq_, skv_;
  Graph graph_;
  std::unique_ptr<Tensor> q_, kt_, scale_, minus_infinity_;
};

// ---- Plans

// A device's handle. One call at a time sets its stream and launches.
struct Context {
  std::mutex mutex;
  Handle handle = nullptr;
};

struct Plan {
  // Why there is none; empty if there is one.
  std::string reason;
  std::unique_ptr<Owned> plan;
  Context *context = nullptr;
  std::vector<Id> ids;
  // Bytes of the workspace: cuDNN's own, then the sums of dq, then those of do * o.
  size_t dq_sum = 0, delta = 0, bytes = 0;
};

// The first engine that the heuristics name: they try what they propose.
Owned planned(const Owned &graph, Handle handle) {
  std::string reason = "cuDNN has no engine for it";
  for (const int mode : kHeuristics) {
    try {
      Owned heuristics(kHeuristicsType), config(kEngineConfigType), plan(kPlanType);
      heuristics.set(kHeuristicsGraph, kDescriptorType, graph.get())
          .set(kHeuristicsMode, kHeuristicsModeType, mode)
          .finalize();
      Descriptor result = config.get();
      int64_t count = 0;
      check(
          library().get(heuristics.get(), kHeuristicsResults, kDescriptorType, 1, &count, &result),
          "heuristics");
      if (count == 0) continue;
      plan.set(kPlanHandle, kHandleType, handle)
          .set(kPlanEngineConfig, kDescriptorType, result)
          .finalize();
      return plan;
    } catch (const Failure &failure) {
      reason = failure.text;
    }
  }
  throw Failure{reason};
}

// Of the current device.
Context *context_of(int device) {
  // Never destroyed, like the library.
  static auto &contexts = *new std::unordered_map<int, std::unique_ptr<Context>>;
  std::unique_ptr<Context> &context = contexts[device];
  if (!context) {
    auto made = std::make_unique<Context>();
    check(library().create(&made->handle), "cudnnCreate");
    context = std::move(made);
  }
  return context.get();
}

constexpr size_t kAlignment = 256;
size_t aligned(size_t bytes) { return ceil_div(bytes, kAlignment) * kAlignment; }

void build(const Key &key, Plan *plan) {
  const RelaxedCapture relaxed;
  plan->context = context_of(static_cast<int>(key.device));
  const std::lock_guard<std::mutex> alone(plan->context->mutex);
  Attention attention(key);
  if (key.backward != 0) {
    attention.backward();
  } else {
    attention.forward();
  }
  Handle handle = plan->context->handle;
  const Owned graph = attention.graph().finish(handle);
  plan->plan = std::make_unique<Owned>(planned(graph, handle));
  int64_t own = 0, count = 0;
  check(library().get(plan->plan->get(), kPlanWorkspaceSize, kInt64Type, 1, &count, &own),
        "workspace size");
  plan->ids = attention.graph().used();
  std::sort(plan->ids.begin(), plan->ids.end());
  plan->ids.erase(std::unique(plan->ids.begin(), plan->ids.end()), plan->ids.end());
  plan->bytes = aligned(static_cast<size_t>(own));
  if (key.backward != 0) {
    const auto rows = static_cast<size_t>(key.batch * key.heads * key.queries);
    plan->dq_sum = plan->bytes;
    if (key.deterministic == 0) plan->bytes += aligned(rows * key.dim_qk * sizeof(float));
    plan->delta = plan->bytes;
    plan->bytes += aligned(rows * sizeof(float));
  }
}

// No more are made, since lengths that change from call to call would make ever new ones, and none
// is forgotten: a captured graph may replay it.
constexpr size_t kMaxPlans = 512;

std::shared_ptr<const Plan> plan_of(const Key &key) {
  struct Cache {
    std::shared_mutex mutex;
    std::mutex building;
    std::unordered_map<Key, std::shared_ptr<const Plan>, KeyHash> plans;
  };
  static Cache &cache = *new Cache;
  const auto find = [&]() -> std::shared_ptr<const Plan> {
    const std::shared_lock<std::shared_mutex> lock(cache.mutex);
    const auto found = cache.plans.find(key);
    return found != cache.plans.end() ? found->second : nullptr;
  };
  if (auto found = find()) return found;
  const std::lock_guard<std::mutex> lock(cache.building);
  if (auto found = find()) return found;
  auto plan = std::make_shared<Plan>();
  // Only this thread adds to them now.
  if (cache.plans.size() >= kMaxPlans) {
    plan->reason = "as many plans as are kept have been made";
    return plan;
  }
  try {
    build(key, plan.get());
  } catch (const Failure &failure) {
    plan->reason = failure.text;
    // What it may have left in the runtime: the caller's own checks must not find it.
    (void)cudaGetLastError();
  }
  const std::unique_lock<std::shared_mutex> unique(cache.mutex);
  cache.plans[key] = plan;
  return plan;
}

// ---- Choice

// The backward with a fixed order of additions keeps the scores' gradient: not beyond this.
constexpr size_t kMaxDeterministicBytes = size_t{1} << 30;

// H200, cuDNN 9.19, BF16, 16384 rows of 2048 elements, causal and not, in sequences of 2048, 8192
// or 16384; cuDNN's time over that of the kernels here, forward and backward:
//   64   0.92-1.11  0.99-1.06     192, 128   0.99-1.12  0.86 causal, 1.37 not
//   96   0.94-1.04  0.98-1.08     256        0.97-1.14  1.05-1.29
//   128  0.93-1.10  1.03-1.13
// A few percent are not worth a plan: 0.5 to 1.5 s for a kernel that is new to the process, 50 ms
// for other sizes. Heads of a group it rounds to 16 bits before it adds them.
bool faster(const NVTEXAttentionArgs &a, int arch) {
  const bool long_causal = a.window_right == 0 && a.kv_side.max_seqlen >= 4096;
  const bool of_192_128 = a.dim_qk > 128 && a.dim_qk <= 192 && a.dim_v <= 128;
  return arch == 90 && a.backward && !a.deterministic && long_causal && of_192_128 &&
         a.q_side.heads == a.kv_side.heads;
}

const char *unsupported(const NVTEXAttentionArgs &a) {
  if (!is_16bit(a.q.dtype)) return "q is neither F16 nor BF16";
  if (a.page_table_k != nullptr) return "paged keys";
  if (a.q_side.starts != nullptr || a.kv_side.starts != nullptr) return "packed sequences";
  // Between its end and the tensor's a sequence may have NaN, which cuDNN multiplies by 0.
  if (a.q_side.cu_seqlens != nullptr || a.kv_side.cu_seqlens != nullptr) {
    return "sequences of their own lengths";
  }
  if (a.dropout != 0.0f) return "dropout";
  if (a.alibi || a.bias.data != nullptr || a.dbias.data != nullptr) return "bias";
  if (a.sink != nullptr || a.dsink != nullptr) return "a sink";
  if (a.max != nullptr) return "the largest score of each row";
  if (a.q_side.max_seqlen == 0 || a.kv_side.max_seqlen == 0) return "no rows or no columns";
  // Columns and a left bound are added in float32.
  constexpr size_t kLongest = size_t{1} << 23;
  if (std::max(a.q_side.max_seqlen, a.kv_side.max_seqlen) > kLongest) return "sequences over 2^23";
  return nullptr;
}

// The plan of arguments that are supported, or why there is none.
const char *find_plan(const NVTEXAttentionArgs &a, std::shared_ptr<const Plan> *plan) {
  // Until the thread's next call.
  thread_local std::string kept;
  int device = 0;
  if (cudaGetDevice(&device) != cudaSuccess) return "no current device";
  const Key key = key_of(a, device);
  if (!rows_admit(key)) return "rows that admit no column";
  if (!library().reason.empty()) return library().reason.c_str();
  if (const char *reason = wrong_in(library().version(), key)) return reason;
  *plan = plan_of(key);
  kept = (*plan)->reason;
  if (!kept.empty()) return kept.c_str();
  if (key.deterministic != 0 && (*plan)->bytes > kMaxDeterministicBytes) {
    return "a fixed order of additions needs too large a workspace";
  }
  return nullptr;
}

}  // namespace
}  // namespace nvte

extern "C" void nvte_cuda_cudnn(nvte::Use use, void *(*open)(const char *)) noexcept {
  nvte::g_settings = {use, open};
}

const char *nvte_attention_cudnn_reject(const NVTEXAttentionArgs *args,
                                        size_t *workspace) noexcept {
  using namespace nvte;
  const NVTEXAttentionArgs &a = *args;
  if (g_settings.use == Use::kNever) return "NVTE_ATTENTION_CUDNN is 0";
  try {
    if (g_settings.use == Use::kFaster) {
      Device device;
      if (current_device(&device) != cudaSuccess) return "no current device";
      if (!faster(a, device.arch)) return "not known to be faster than the kernels here";
    }
    if (const char *reason = attention_unsupported(a)) return reason;
    if (const char *reason = unsupported(a)) return reason;
    std::shared_ptr<const Plan> plan;
    if (const char *reason = find_plan(a, &plan)) return reason;
    *workspace = plan->bytes;
    return nullptr;
  } catch (...) {
    return "out of host memory";
  }
}

NVTEXOutcome nvte_attention_cudnn(const NVTEXAttentionArgs *args, cudaStream_t stream) noexcept {
  using namespace nvte;
  const NVTEXAttentionArgs &a = *args;
  // Until the thread's next call.
  thread_local std::string kept;
  try {
    std::shared_ptr<const Plan> plan;
    if (const char *reason = find_plan(a, &plan)) return unimplemented(reason);
    const int64_t shift = a.bottom_right ? static_cast<int64_t>(a.kv_side.max_seqlen) -
                                               static_cast<int64_t>(a.q_side.max_seqlen)
                                         : 0;
    float scale = a.scale, one = 1.0f, minus_infinity = -INFINITY;
    auto queries = static_cast<int32_t>(a.q_side.max_seqlen);
    auto keys = static_cast<int32_t>(a.kv_side.max_seqlen);
    const auto bound = [](int64_t window) {
      return static_cast<int32_t>(std::min(window, static_cast<int64_t>(kMaxLength)));
    };
    auto right = bound(a.window_right);
    auto left = static_cast<float>(bound(a.window_left) + 1 - shift);
    auto *workspace = static_cast<char *>(a.workspace);
    void *const all[kIds] = {nullptr,
                             a.q.data,
                             a.k.data,
                             a.v.data,
                             a.o.data,
                             a.stats,
                             a.d_o.data,
                             a.dq.data,
                             a.dk.data,
                             a.dv.data,
                             workspace + plan->dq_sum,
                             workspace + plan->delta,
                             &scale,
                             &one,
                             &minus_infinity,
                             &queries,
                             &keys,
                             &right,
                             &left};
    void *pointers[kIds];
    const size_t count = plan->ids.size();
    for (size_t i = 0; i < count; ++i) pointers[i] = all[plan->ids[i]];
    Owned pack(kPackType);
    pack.set(kPackIds, kInt64Type, static_cast<int64_t>(count), plan->ids.data())
        .set(kPackPointers, kPointerType, static_cast<int64_t>(count), pointers)
        .set(kPackWorkspace, kPointerType, workspace)
        .finalize();
    const RelaxedCapture relaxed;
    const std::lock_guard<std::mutex> lock(plan->context->mutex);
    check(library().set_stream(plan->context->handle, stream), "cudnnSetStream");
    check(library().execute(plan->context->handle, plan->plan->get(), pack.get()),
          "cudnnBackendExecute");
    return ok();
  } catch (const Failure &failure) {
    (void)cudaGetLastError();
    try {
      kept = "cuDNN: " + failure.text;
    } catch (...) {
      return {NVTEX_BACKEND_DEVICE_ERROR, "cuDNN failed"};
    }
    return {NVTEX_BACKEND_DEVICE_ERROR, kept.c_str()};
  } catch (...) {
    return {NVTEX_BACKEND_DEVICE_ERROR, "out of host memory"};
  }
}
