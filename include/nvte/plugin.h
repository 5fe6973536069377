#ifndef NVTE_PLUGIN_H
#define NVTE_PLUGIN_H

/* Generated from the Rust sources by tests/abi.rs. */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "nvte/nvtex.h"
#include "nvte/backend/operators.h"

/**
 * The version of an operator's arguments that a plugin is built with, and their size: two initializers,
 * `.op_version = NVTEX_BUILT_WITH(SOFTMAX)` sets `op_version` and `args_size` of an NVTEXImpl.
 */
#define NVTEX_BUILT_WITH(OP) NVTEX_OP_##OP##_VERSION, NVTEX_OP_##OP##_SIZE


/**
 * Version of this interface. Another major has another entry symbol, `nvtex_plugin_v<major>`; of one major, a
 * later minor only adds. While the major is 0, minors promise nothing: build a plugin with the headers of the
 * library that loads it.
 */
#define NVTEX_PLUGIN_ABI_MAJOR 0

#define NVTEX_PLUGIN_ABI_MINOR 0

/**
 * Answer of a function: done, or queued on the stream.
 */
#define NVTEX_PLUGIN_OK 0

/**
 * Answer of a function: the implementation cannot do this call. Nothing was written and nothing queued; the next
 * candidate is asked.
 */
#define NVTEX_PLUGIN_DECLINED 1

/**
 * Answer of a function: anything else, which every number stands for that is not listed here. The operator fails,
 * and no other candidate is asked.
 */
#define NVTEX_PLUGIN_FAILED 2

/**
 * `NVTEXCall.flags`: sizes or support are asked for, and nothing will run. No address means anything, not even
 * by being null or aligned; what is present is told by `features`.
 */
#define NVTEX_CALL_QUERY 1

/**
 * `NVTEXCall.flags`: the same call must give the same bits again.
 */
#define NVTEX_CALL_DETERMINISTIC 2

/**
 * `NVTEXImpl.kind`: runs on any device of its domain.
 */
#define NVTEX_KIND_DEFAULT 1

/**
 * `NVTEXImpl.kind`: written by a vendor for its devices.
 */
#define NVTEX_KIND_VENDOR 2

/**
 * `NVTEXImpl.kind`: defines what is right, and need not be fast.
 */
#define NVTEX_KIND_REFERENCE 3

/**
 * `NVTEXImpl.priority`: 150, 100 or 50, by the kind. The greater priority of a kind is asked first.
 */
#define NVTEX_PRIORITY_OF_KIND -1

/**
 * `NVTEXImpl.flags`: `execute` may be called while the stream is captured. Required in domains that are ASYNC.
 */
#define NVTEX_IMPL_CAPTURABLE 1

/**
 * `NVTEXImpl.flags`: the same call gives the same bits again.
 */
#define NVTEX_IMPL_DETERMINISTIC 2

/**
 * `NVTEXImpl.flags`: also runs in a child of `fork` whose parent has used it.
 */
#define NVTEX_IMPL_FORK_SAFE 4

/**
 * `NVTEXImpl.flags`: the bits of a row do not depend on other rows.
 */
#define NVTEX_IMPL_BATCH_INVARIANT 8

/**
 * `NVTEXImpl.numerics`: outputs equal those of the reference, bit by bit. In the other classes, too, integers,
 * flags, untouched elements and places of NaN do.
 */
#define NVTEX_NUMERICS_BITS 0

/**
 * `NVTEXImpl.numerics`: outputs are at most 1 ulp of their dtype from the exact result; codes may differ by one where two are equally near
 * within the rounding of float32.
 */
#define NVTEX_NUMERICS_ROUNDED 1

/**
 * `NVTEXImpl.numerics`: sums in float32 in any order, with an error of at most `4 sqrt(n) 2^-24 sum |terms|` and 1 ulp; one code after two
 * casts.
 */
#define NVTEX_NUMERICS_ORDER 2

/**
 * `NVTEXImpl.numerics`: as near as `rtol` and `atol` say.
 */
#define NVTEX_NUMERICS_APPROX 3

/**
 * `NVTEXDomain.flags`: the host can read and write the memory of the domain. The reference then runs what no
 * other implementation takes.
 */
#define NVTEX_DOMAIN_HOST_ACCESSIBLE 1

/**
 * `NVTEXDomain.flags`: work is queued on streams, and a call may return before it is done.
 */
#define NVTEX_DOMAIN_ASYNC 2

/**
 * One call of an operator. Made by the library and valid until the function returns; a plugin writes only to
 * `reason`.
 */
typedef struct NVTEXCall {
  size_t struct_size;
  /**
   * The argument struct of the operator (`NVTEXSoftmaxArgs` of softmax), checked.
   */
  const void *args;
  /**
   * At least the size that the implementation was registered with.
   */
  size_t args_size;
  /**
   * Number of the operator in this process, see `NVTEXHost.op_info`.
   */
  uint32_t op;
  /**
   * Index in `NVTEXOpInfo.variants`.
   */
  uint32_t variant;
  /**
   * NVTEX_CALL_QUERY, NVTEX_CALL_DETERMINISTIC.
   */
  uint32_t flags;
  /**
   * Ordinal of the device in the domain.
   */
  int32_t device;
  /**
   * Features that the arguments use, bits `NVTEX_<OPERATOR>_<FEATURE>`.
   */
  uint64_t features;
  /**
   * A stream of the domain, whatever that is there.
   */
  cudaStream_t stream;
  /**
   * Memory of the domain, as much as `needs` asked for; its contents are arbitrary.
   */
  void *scratch;
  size_t scratch_bytes;
  /**
   * Room for a text that says why the answer is not NVTEX_PLUGIN_OK.
   */
  char *reason;
  size_t reason_bytes;
} NVTEXCall;

/**
 * What an implementation needs for a call, whatever the alignment of the operands.
 */
typedef struct NVTEXNeeds {
  size_t struct_size;
  /**
   * Bytes of the arguments' own workspace, of operators that have one; 0: no more than is documented there.
   */
  size_t workspace_bytes;
  /**
   * Bytes of `NVTEXCall.scratch`.
   */
  size_t scratch_bytes;
} NVTEXNeeds;

/**
 * An implementation of an operator, or of one of its variants. Texts are copied.
 */
typedef struct NVTEXImpl {
  size_t struct_size;
  /**
   * `softmax`, or a variant of it, `softmax.causal_forward`.
   */
  const char *op;
  /**
   * The version of the operator's arguments that the plugin was built with: this and the next are
   * NVTEX_BUILT_WITH(SOFTMAX).
   */
  uint32_t op_version;
  size_t args_size;
  /**
   * `[a-z0-9][a-z0-9._-]{0,62}`, one implementation of an operator has it.
   */
  const char *id;
  const char *vendor;
  /**
   * `cpu`, `cuda` or a plugin's.
   */
  const char *domain;
  /**
   * NVTEX_KIND_DEFAULT, NVTEX_KIND_VENDOR or NVTEX_KIND_REFERENCE.
   */
  uint32_t kind;
  /**
   * NVTEX_PRIORITY_OF_KIND, or 0 to 1000.
   */
  int32_t priority;
  /**
   * Architectures of the domain's devices; 0: any.
   */
  uint32_t min_arch;
  uint32_t max_arch;
  /**
   * A bit `1 << dtype` for each NVTEDType that operands may have; 0: any.
   */
  uint64_t dtypes;
  /**
   * A bit `1 << mode` for each NVTEScalingMode that operands may have; 0: any.
   */
  uint32_t modes;
  /**
   * NVTEX_IMPL_CAPTURABLE, NVTEX_IMPL_DETERMINISTIC, NVTEX_IMPL_FORK_SAFE, NVTEX_IMPL_BATCH_INVARIANT.
   */
  uint32_t flags;
  /**
   * The features that the implementation understands, bits `NVTEX_<OPERATOR>_<FEATURE>`. It never gets a call
   * that uses another one.
   */
  uint64_t features;
  /**
   * NVTEX_NUMERICS_BITS, NVTEX_NUMERICS_ROUNDED, NVTEX_NUMERICS_ORDER or NVTEX_NUMERICS_APPROX.
   */
  uint32_t numerics;
  /**
   * Of NVTEX_NUMERICS_APPROX.
   */
  float rtol;
  float atol;
  /**
   * Whether the implementation takes a call; null: the limits above say all. It does no work on a device, does
   * not wait, reads no operand, and answers the same for the same call.
   */
  int32_t (*supports)(void *user, const struct NVTEXCall *call);
  /**
   * What it needs for a call; null: nothing beyond the formulas of the arguments. The rules are those of
   * `supports`.
   */
  int32_t (*needs)(void *user, const struct NVTEXCall *call, struct NVTEXNeeds *needs);
  /**
   * Runs a call, asynchronously on its stream: no synchronisation of the device, no allocation from it, and the
   * current device is the same on return. Never null.
   */
  int32_t (*execute)(void *user, const struct NVTEXCall *call);
  void *user;
} NVTEXImpl;

/**
 * A memory space with its streams. Pointers of one domain mean nothing to another, so that a call never leaves the
 * domain it is made in. Functions answer NVTEX_PLUGIN_OK or NVTEX_PLUGIN_FAILED; those that are optional may be
 * null.
 */
typedef struct NVTEXDomain {
  size_t struct_size;
  /**
   * As the id of an implementation.
   */
  const char *name;
  /**
   * NVTEX_DOMAIN_HOST_ACCESSIBLE, NVTEX_DOMAIN_ASYNC.
   */
  uint32_t flags;
  void *user;
  int32_t (*device_count)(void *user, int32_t *count);
  /**
   * The device that the calling thread uses.
   */
  int32_t (*current_device)(void *user, int32_t *device);
  /**
   * A number that grows with the abilities of devices, at least 1.
   */
  int32_t (*device_arch)(void *user, int32_t device, uint32_t *arch);
  /**
   * Optional: how many parts an operator may be divided into so that all run at once. Without it 1.
   */
  int32_t (*multiprocessors)(void *user, int32_t device, int32_t *count);
  /**
   * Memory of the current device, aligned to 256 bytes; `bytes` is not 0.
   */
  int32_t (*malloc)(void *user, void **pointer, size_t bytes);
  int32_t (*free)(void *user, void *pointer);
  /**
   * Copies bytes; `kind` is an NVTEXCopyKind. On the stream, except that copies from and to the host may
   * block.
   */
  int32_t (*memcpy)(void *user,
                    void *to,
                    const void *from,
                    size_t bytes,
                    int32_t kind,
                    cudaStream_t stream);
  /**
   * Optional, as all that follow. Without it there is one stream, null.
   */
  int32_t (*stream_create)(void *user, cudaStream_t *stream);
  int32_t (*stream_destroy)(void *user, cudaStream_t stream);
  /**
   * Required in a domain that is ASYNC.
   */
  int32_t (*stream_synchronize)(void *user, cudaStream_t stream);
  /**
   * Whether the stream is being captured into a graph, 0 or 1. Without it streams cannot be captured.
   */
  int32_t (*stream_capturing)(void *user, cudaStream_t stream, int32_t *capturing);
  /**
   * Stream `index` of a pool of the current device, made at its first use.
   */
  int32_t (*compute_stream)(void *user, int32_t index, cudaStream_t *stream);
  /**
   * Event `index` of a pool of the current device, made at its first use.
   */
  int32_t (*compute_event)(void *user, int32_t index, cudaEvent_t *event);
  /**
   * `count` streams of the calling thread, at most 4, that wait for what is on `stream` by now.
   */
  int32_t (*fork)(void *user, cudaStream_t stream, int32_t count, cudaStream_t *branches);
  /**
   * `stream` waits for what is on the first `count` of them by now.
   */
  int32_t (*join)(void *user, cudaStream_t stream, int32_t count);
  /**
   * Whether an address lies in memory of the domain, 0 or 1. It only serves checks of arguments.
   */
  int32_t (*owns)(void *user, const void *pointer, int32_t *owned);
  /**
   * Why the last function that failed on the calling thread did; valid until its next call.
   */
  const char *(*last_error)(void *user);
} NVTEXDomain;

/**
 * An operator as this process knows it.
 */
typedef struct NVTEXOpInfo {
  size_t struct_size;
  const char *name;
  /**
   * Number of the operator in this process.
   */
  uint32_t op;
  /**
   * Version of the argument struct: NVTEX_OP_<OPERATOR>_VERSION of the library.
   */
  uint32_t version;
  size_t args_size;
  /**
   * Full names (`softmax.causal_forward`); an operator of one variant has its own name there.
   */
  const char *const *variants;
  size_t variant_count;
  /**
   * Name i belongs to bit i of the features.
   */
  const char *const *features;
  size_t feature_count;
} NVTEXOpInfo;

/**
 * What the library gives to a plugin. The struct, what it points to and `context` live as long as the process.
 */
typedef struct NVTEXHost {
  size_t struct_size;
  uint32_t abi_major;
  uint32_t abi_minor;
  const char *library_version;
  void *context;
  /**
   * Registers an implementation. NVTEX_PLUGIN_OK; NVTEX_PLUGIN_DECLINED if the library does not know the
   * operator or has another major version of it, and leaves the implementation out; NVTEX_PLUGIN_FAILED if
   * the plugin as a whole is refused. Only during the entry function, as the next two.
   */
  int32_t (*add_impl)(void *context, const struct NVTEXImpl *implementation);
  /**
   * Registers a domain; answers as `add_impl`.
   */
  int32_t (*add_domain)(void *context, const struct NVTEXDomain *domain);
  /**
   * The value of an option, of the variable NVTE_OP_PLUGIN_<NAME>_<KEY> or else of the manifest; null if it is not
   * set. The text lives as long as the process.
   */
  const char *(*option)(void *context, const char *key);
  /**
   * Writes a line where the library writes its own, if `level`, an NVTEXLogLevel, is on. At any time from any thread.
   */
  void (*log)(int32_t level, const char *text);
  /**
   * An operator by its number, null past the last one. At any time from any thread.
   */
  const struct NVTEXOpInfo *(*op_info)(uint32_t op);
} NVTEXHost;

/**
 * What a plugin says of itself. The library sets it to 0 but for the size, the plugin fills it. Texts are copied.
 */
typedef struct NVTEXPlugin {
  size_t struct_size;
  /**
   * The smallest minor version of the interface that the plugin can live with.
   */
  uint32_t abi_minor;
  /**
   * As the id of an implementation, one plugin of a process has it.
   */
  const char *name;
  const char *version;
  const char *vendor;
  void *user;
  /**
   * Called in each child of `fork`; or null.
   */
  void (*after_fork_child)(void *user);
} NVTEXPlugin;

#endif  /* NVTE_PLUGIN_H */

NVTEX_ASSERT_SIZE(NVTEXCall, 88);
NVTEX_ASSERT_SIZE(NVTEXNeeds, 24);
NVTEX_ASSERT_SIZE(NVTEXImpl, 144);
NVTEX_ASSERT_SIZE(NVTEXDomain, 168);
NVTEX_ASSERT_SIZE(NVTEXOpInfo, 64);
NVTEX_ASSERT_SIZE(NVTEXHost, 72);
NVTEX_ASSERT_SIZE(NVTEXPlugin, 56);

/** Makes a symbol visible whatever the compiler's default is. */
#ifdef __GNUC__
#define NVTEX_PLUGIN_EXPORT __attribute__((visibility("default")))
#else
#define NVTEX_PLUGIN_EXPORT
#endif

#ifdef __cplusplus
extern "C" {
#endif

/**
 * The entry function, which a plugin defines and exports. It fills `plugin` and registers what the plugin has
 * through `host`, without work on a device. If it does not return 0, nothing of it is registered.
 */
NVTEX_PLUGIN_EXPORT int32_t nvtex_plugin_v0(const NVTEXHost *host, NVTEXPlugin *plugin);

#ifdef __cplusplus
}
#endif
