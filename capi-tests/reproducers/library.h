// One attention by this library and, where its path is given, by another one with the same ABI, on
// the same memory.
#ifndef NVTE_CAPI_TESTS_LIBRARY_H
#define NVTE_CAPI_TESTS_LIBRARY_H

#include <dlfcn.h>

#include "../fused_attn/attention_common.h"

#define LIBRARY_FUNCTIONS(X)  \
  X(nvte_create_tensor)       \
  X(nvte_destroy_tensor)      \
  X(nvte_set_tensor_param_v2) \
  X(nvte_tensor_shape)        \
  X(nvte_tensor_type)         \
  X(nvte_tensor_pack_create)  \
  X(nvte_tensor_pack_destroy) \
  X(nvte_fused_attn_fwd)      \
  X(nvte_fused_attn_bwd)      \
  X(nvte_scaled_masked_softmax_forward)

// A library's functions. Handles belong to the library that has made them.
typedef struct Library {
  const char *name;
#define LIBRARY_FIELD(f) __typeof__(&f) f;
  LIBRARY_FUNCTIONS(LIBRARY_FIELD)
#undef LIBRARY_FIELD
} Library;

static inline Library this_library(void) {
#define LIBRARY_VALUE(f) , f
  return (Library){"this library" LIBRARY_FUNCTIONS(LIBRARY_VALUE)};
#undef LIBRARY_VALUE
}

// Ends the program if there is no such library. What it calls of itself by name is its own, though
// the program is linked to a library with functions of the same names.
static inline Library library_at(const char *path) {
  Library l = {.name = path};
#ifdef RTLD_DEEPBIND
  void *file = dlopen(path, RTLD_NOW | RTLD_LOCAL | RTLD_DEEPBIND);
#else
  void *file = dlopen(path, RTLD_NOW | RTLD_LOCAL);
#endif
  if (!file) {
    fprintf(stderr, "%s\n", dlerror());
    exit(TEST_FAIL);
  }
#define LIBRARY_LOAD(f)                       \
  *(void **)&l.f = dlsym(file, #f);           \
  if (!l.f) {                                 \
    fprintf(stderr, "%s: no %s\n", path, #f); \
    exit(TEST_FAIL);                          \
  }
  LIBRARY_FUNCTIONS(LIBRARY_LOAD)
#undef LIBRARY_LOAD
  return l;
}

static inline NVTETensor tensor_in(const Library *l, void *ptr, NVTEDType dtype, NVTEShape shape) {
  const NVTEBasicTensor data = basic(ptr, dtype, shape);
  const NVTETensor t = l->nvte_create_tensor(NVTE_DELAYED_TENSOR_SCALING);
  if (ptr) l->nvte_set_tensor_param_v2(t, kNVTERowwiseData, &data, sizeof data);
  return t;
}

// A library's handle of the data that a handle of this library has.
static inline NVTETensor same_in(const Library *l, NVTETensor t) {
  if (!t || !nvte_tensor_data(t)) return tensor_in(l, NULL, kNVTEFloat32, SHAPE(0));
  return tensor_in(l, nvte_tensor_data(t), nvte_tensor_type(t), nvte_tensor_shape(t));
}

// Gives a library's tensor as much memory as it asks for.
static inline void give_memory(const Library *l, NVTETensor t) {
  const NVTEShape shape = l->nvte_tensor_shape(t);
  const NVTEDType dtype = l->nvte_tensor_type(t);
  const size_t bytes = numel(shape) * dtype_bits(dtype) / 8;
  const NVTEBasicTensor data = basic(buffer(bytes ? bytes : 1)->ptr, dtype, shape);
  l->nvte_set_tensor_param_v2(t, kNVTERowwiseData, &data, sizeof data);
}

static inline void *values_of(Buffer *b) {
  nvtex_stream_synchronize(NULL);
  return buffer_read(b);
}

// Forward and backward of an attention whose tensors `build_forward` and `build_backward` have
// made. The backward pass takes what the same library's forward pass gave. Outputs are those of
// `x`.
static inline void attention_by(const Library *l, Run *x, bool backward) {
  const Problem *p = &x->p;
  const Config *c = &x->c;
  const float scale = (float)p->scale;
  NVTETensorPack pack;
  l->nvte_tensor_pack_create(&pack);
  pack.size = 0;
  const NVTETensor q = same_in(l, x->q.handle), k = same_in(l, x->k.handle),
                   v = same_in(l, x->v.handle), o = same_in(l, x->o.handle),
                   sink = same_in(l, x->sink), none = same_in(l, NULL),
                   cu[] = {same_in(l, x->cu[0]), same_in(l, x->cu[1])},
                   padded[] = {same_in(l, x->padded[0]), same_in(l, x->padded[1])},
                   rng = same_in(l, x->rng);
  NVTETensor s = same_in(l, NULL), dp = same_in(l, NULL);
  for (int pass = 0; pass < 2; pass++) {
    static NVTETensor work;
    if (pass == 0) work = same_in(l, NULL);
    l->nvte_fused_attn_fwd(
        q, k, v, none, sink, s, o, &pack, cu[0], cu[1], padded[0], padded[1], none, none, rng,
        p->sq, p->skv, true, false, false, scale, 0, (NVTE_QKV_Layout)c->layout,
        kFormats[c->o_order], NVTE_QKV_Format_NOT_SET, NVTE_NO_BIAS, (NVTE_Mask_Type)c->mask,
        (NVTE_Softmax_Type)c->softmax, c->left, c->right, c->bottom_right, work, NULL);
    if (pass == 1) break;
    give_memory(l, work);
    // The offset of the softmax is handed on, and the random state is; statistics are made.
    for (size_t i = 0; i < pack.size; i++) {
      const NVTEDType dtype = l->nvte_tensor_type(pack.tensors[i]);
      const bool is_rng = dtype == kNVTEInt64,
                 is_sink = c->softmax != 0 && i == pack.size - 1 && i > 0 && !is_rng;
      const NVTETensor from = is_rng ? x->rng : x->sink;
      if (is_rng || is_sink) {
        const NVTEBasicTensor data =
            basic(nvte_tensor_data(from), nvte_tensor_type(from), nvte_tensor_shape(from));
        l->nvte_set_tensor_param_v2(pack.tensors[i], kNVTERowwiseData, &data, sizeof data);
      } else {
        give_memory(l, pack.tensors[i]);
      }
    }
  }
  if (backward) {
    const NVTETensor d_o = same_in(l, x->d_o.handle), dq = same_in(l, x->dq.handle),
                     dk = same_in(l, x->dk.handle), dv = same_in(l, x->dv.handle),
                     dsink = same_in(l, x->dsink);
    NVTETensor work = same_in(l, NULL);
    for (int pass = 0; pass < 2; pass++) {
      l->nvte_fused_attn_bwd(q, k, v, o, d_o, s, dp, &pack, dq, dk, dv, none, dsink, cu[0], cu[1],
                             padded[0], padded[1], p->sq, p->skv, scale, 0,
                             (NVTE_QKV_Layout)c->layout, kFormats[c->o_order],
                             kFormats[c->do_order], (NVTE_QKV_Layout)c->dqkv_layout,
                             NVTE_QKV_Format_NOT_SET, NVTE_QKV_Format_NOT_SET, NVTE_NO_BIAS,
                             (NVTE_Mask_Type)c->mask, (NVTE_Softmax_Type)c->softmax, c->left,
                             c->right, c->bottom_right, false, false, work, NULL);
      if (pass == 0) give_memory(l, work);
    }
  }
  nvtex_stream_synchronize(NULL);
}

// The libraries to compare: this one and, if the program's first argument is its path, another one.
static inline size_t libraries(int argc, char **argv, Library list[2]) {
  g_test.program = argv[0];
  list[0] = this_library();
  if (argc < 2) return 1;
  list[1] = library_at(argv[1]);
  return 2;
}

static inline void begin(char **argv) {
  test_begin(1, argv);
  case_begin("%s", argv[0]);
}

#endif  // NVTE_CAPI_TESTS_LIBRARY_H
