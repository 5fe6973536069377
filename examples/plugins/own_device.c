// A plugin with a device of its own: the domain `heap`, whose memory is a private region of the
// process. It brings five operators, and because the host can address the memory
// (NVTEX_DOMAIN_HOST_ACCESSIBLE), the library's reference runs all others: a program trains on it
// from the first day.
//
//     cc -std=c11 -O2 -shared -fPIC own_device.c -o libown_device.so $(pkg-config --cflags nvte)
//     -lm NVTE_OP_PLUGINS=$PWD/libown_device.so NVTE_BACKEND=heap ./mlp digits.csv
//
// A device that works by itself also has the flag NVTEX_DOMAIN_ASYNC, streams, and a copy engine
// behind `memcpy`.
#define _DEFAULT_SOURCE

#include <pthread.h>
#include <sys/mman.h>

#include "elements.h"

// ---- The memory: blocks of 2^n bytes, a list of free ones for each n

enum { SMALLEST = 8, CLASSES = 40, HEAP_BITS = 36 };

static struct {
  pthread_mutex_t lock;
  unsigned char *begin, *next, *end;
  void *free[CLASSES];
} g_heap = {.lock = PTHREAD_MUTEX_INITIALIZER};

// A block begins with its class, 256 bytes before what its user gets, so that this is aligned.
enum { HEADER = 256 };

static int32_t heap_malloc(void *user, void **pointer, size_t bytes) {
  (void)user;
  int class = SMALLEST;
  while (class < CLASSES && ((size_t)1 << class) < bytes + HEADER) class++;
  const size_t size = (size_t)1 << class;
  unsigned char *block = NULL;
  pthread_mutex_lock(&g_heap.lock);
  if (!g_heap.begin) {
    // Address space only; the system gives memory to what is touched.
    void *region = mmap(NULL, (size_t)1 << HEAP_BITS, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANON | MAP_NORESERVE, -1, 0);
    if (region != MAP_FAILED) {
      g_heap.begin = g_heap.next = region;
      g_heap.end = g_heap.begin + ((size_t)1 << HEAP_BITS);
    }
  }
  if (class < CLASSES && g_heap.free[class]) {
    block = g_heap.free[class];
    memcpy(&g_heap.free[class], block + HEADER, sizeof(void *));
  } else if (class < CLASSES && size <= (size_t)(g_heap.end - g_heap.next)) {
    block = g_heap.next;
    g_heap.next += size;
  }
  pthread_mutex_unlock(&g_heap.lock);
  if (!block) return NVTEX_PLUGIN_FAILED;
  memcpy(block, &class, sizeof class);
  *pointer = block + HEADER;
  return NVTEX_PLUGIN_OK;
}

static int32_t heap_free(void *user, void *pointer) {
  (void)user;
  unsigned char *block = (unsigned char *)pointer - HEADER;
  int class;
  memcpy(&class, block, sizeof class);
  pthread_mutex_lock(&g_heap.lock);
  memcpy(pointer, &g_heap.free[class], sizeof(void *));
  g_heap.free[class] = block;
  pthread_mutex_unlock(&g_heap.lock);
  return NVTEX_PLUGIN_OK;
}

static int32_t heap_memcpy(void *user, void *to, const void *from, size_t bytes, int32_t kind,
                           cudaStream_t stream) {
  (void)user;
  (void)kind;
  (void)stream;
  memmove(to, from, bytes);
  return NVTEX_PLUGIN_OK;
}

static int32_t heap_owns(void *user, const void *pointer, int32_t *owned) {
  (void)user;
  *owned =
      (const unsigned char *)pointer >= g_heap.begin && (const unsigned char *)pointer < g_heap.end;
  return NVTEX_PLUGIN_OK;
}

// Work is done when a call returns, so that a stream is only a name.
static int32_t stream_create(void *user, cudaStream_t *stream) {
  static char streams[64];
  static _Atomic unsigned next;
  (void)user;
  *stream = (cudaStream_t)(void *)&streams[next++ % sizeof streams];
  return NVTEX_PLUGIN_OK;
}

static int32_t stream_destroy(void *user, cudaStream_t stream) {
  (void)user;
  (void)stream;
  return NVTEX_PLUGIN_OK;
}

static int32_t device_count(void *user, int32_t *count) {
  (void)user;
  *count = 1;
  return NVTEX_PLUGIN_OK;
}

static int32_t current_device(void *user, int32_t *device) {
  (void)user;
  *device = 0;
  return NVTEX_PLUGIN_OK;
}

static int32_t device_arch(void *user, int32_t device, uint32_t *arch) {
  (void)user;
  (void)device;
  *arch = 1;
  return NVTEX_PLUGIN_OK;
}

static const char *last_error(void *user) {
  (void)user;
  return "the heap is full";
}

// ---- The operators

static int32_t set_memory(void *user, const NVTEXCall *call) {
  (void)user;
  const NVTEXMemsetArgs *args = call->args;
  memset(args->ptr, args->value, args->bytes);
  return NVTEX_PLUGIN_OK;
}

static int32_t amax(void *user, const NVTEXCall *call) {
  (void)user;
  const NVTEXAmaxArgs *args = call->args;
  float largest = 0;
  for (size_t i = 0; i < args->numel; i++) {
    const float x = fabsf(load(args->dtype, args->input, i));
    if (x > largest) largest = x;
  }
  *args->amax = largest;
  return NVTEX_PLUGIN_OK;
}

static int32_t cast(void *user, const NVTEXCall *call) {
  (void)user;
  const NVTEXCast *cast = &((const NVTEXQuantizeArgs *)call->args)->cast;
  float largest = cast->amax ? *cast->amax : 0;
  for (size_t i = 0; i < cast->rows * cast->cols; i++) {
    const float x = load(cast->input_dtype, cast->input, i);
    if (fabsf(x) > largest) largest = fabsf(x);
    store(cast->output_dtype, cast->rowwise, i, x);
  }
  if (cast->amax) *cast->amax = largest;
  return NVTEX_PLUGIN_OK;
}

static int32_t transpose(void *user, const NVTEXCall *call) {
  (void)user;
  const NVTEXTransposeArgs *args = call->args;
  const size_t size = args->element_size;
  for (size_t r = 0; r < args->rows; r++) {
    for (size_t c = 0; c < args->cols; c++) {
      memcpy((char *)args->output + (c * args->rows + r) * size,
             (const char *)args->input + (r * args->cols + c) * size, size);
    }
  }
  return NVTEX_PLUGIN_OK;
}

// D[j][i] = alpha sum over l of A[i][l] B[j][l] + beta C[j][i], where A and B may be stored the
// other way.
static int32_t gemm(void *user, const NVTEXCall *call) {
  (void)user;
  const NVTEXGemmArgs *args = call->args;
  const size_t m = args->m, n = args->n, k = args->k;
  const size_t a_step = args->transa ? 1 : m, b_step = args->transb ? n : 1;
  for (size_t j = 0; j < n; j++) {
    for (size_t i = 0; i < m; i++) {
      const size_t a = args->transa ? i * k : i, b = args->transb ? j : j * k;
      float sum = 0;
      for (size_t l = 0; l < k; l++) {
        sum += load(args->a_dtype, args->a, a + l * a_step) *
               load(args->b_dtype, args->b, b + l * b_step);
      }
      sum *= args->alpha;
      if (args->beta != 0) sum += args->beta * load(args->d_dtype, args->c, j * m + i);
      store(args->d_dtype, args->d, j * m + i, sum);
    }
  }
  return NVTEX_PLUGIN_OK;
}

// ---- The entry

int32_t nvtex_plugin_v0(const NVTEXHost *host, NVTEXPlugin *plugin) {
  plugin->name = "own-device";
  plugin->version = "1.0";
  plugin->vendor = "example";
  const NVTEXDomain domain = {
      .struct_size = sizeof domain,
      .name = "heap",
      .flags = NVTEX_DOMAIN_HOST_ACCESSIBLE,
      .device_count = device_count,
      .current_device = current_device,
      .device_arch = device_arch,
      .malloc = heap_malloc,
      .free = heap_free,
      .memcpy = heap_memcpy,
      .stream_create = stream_create,
      .stream_destroy = stream_destroy,
      .owns = heap_owns,
      .last_error = last_error,
  };
  if (host->add_domain(host->context, &domain) != NVTEX_PLUGIN_OK) return NVTEX_PLUGIN_FAILED;

  const NVTEXImpl common = {
      .struct_size = sizeof common,
      .id = "example.heap",
      .vendor = "example",
      .domain = "heap",
      .kind = NVTEX_KIND_VENDOR,
      .priority = NVTEX_PRIORITY_OF_KIND,
      .flags = NVTEX_IMPL_DETERMINISTIC | NVTEX_IMPL_FORK_SAFE,
  };
  NVTEXImpl impls[5] = {common, common, common, common, common};

  impls[0].op = "memset";
  impls[0].op_version = NVTEX_OP_MEMSET_VERSION;
  impls[0].args_size = NVTEX_OP_MEMSET_SIZE;
  impls[0].execute = set_memory;

  impls[1].op = "amax";
  impls[1].op_version = NVTEX_OP_AMAX_VERSION;
  impls[1].args_size = NVTEX_OP_AMAX_SIZE;
  impls[1].dtypes = EXAMPLE_DTYPES;
  impls[1].execute = amax;

  impls[2].op = "quantize.cast";
  impls[2].op_version = NVTEX_OP_QUANTIZE_VERSION;
  impls[2].args_size = NVTEX_OP_QUANTIZE_SIZE;
  impls[2].dtypes = EXAMPLE_DTYPES;
  impls[2].modes = 1u << NVTE_DELAYED_TENSOR_SCALING;
  impls[2].features = NVTEX_QUANTIZE_AMAX;
  impls[2].execute = cast;

  impls[3].op = "transpose";
  impls[3].op_version = NVTEX_OP_TRANSPOSE_VERSION;
  impls[3].args_size = NVTEX_OP_TRANSPOSE_SIZE;
  impls[3].execute = transpose;

  impls[4].op = "gemm.high_precision";
  impls[4].op_version = NVTEX_OP_GEMM_VERSION;
  impls[4].args_size = NVTEX_OP_GEMM_SIZE;
  impls[4].dtypes = EXAMPLE_DTYPES;
  impls[4].features = NVTEX_GEMM_BETA;
  impls[4].numerics = NVTEX_NUMERICS_ORDER;
  impls[4].execute = gemm;

  for (size_t i = 0; i < 5; i++) {
    if (host->add_impl(host->context, &impls[i]) == NVTEX_PLUGIN_FAILED) return NVTEX_PLUGIN_FAILED;
  }
  return NVTEX_PLUGIN_OK;
}
