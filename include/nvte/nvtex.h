#ifndef NVTE_NVTEX_H
#define NVTE_NVTEX_H

/* Generated from the Rust sources by tests/abi.rs. */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "nvte/types.h"

/**
 * Result of a call.
 */
typedef enum NVTEXStatus {
  /**
   * No call of this thread has failed since the status was cleared.
   */
  NVTEX_OK = 0,
  /**
   * An argument is wrong; the message names it.
   */
  NVTEX_INVALID_ARGUMENT = 1,
  /**
   * Valid, but not available in this build or on this device.
   */
  NVTEX_UNSUPPORTED = 2,
  /**
   * The device, its driver or one of its libraries failed.
   */
  NVTEX_DEVICE_ERROR = 3,
  /**
   * A defect of this library.
   */
  NVTEX_INTERNAL_ERROR = 4,
} NVTEXStatus;

/**
 * What a failing call does after it has stored status and message.
 */
typedef enum NVTEXErrorMode {
  /**
   * Print the message (not with `NVTE_VERBOSE=none`) and return 0 or null.
   */
  NVTEX_ERROR_RETURN = 0,
  /**
   * Print the message and abort the process.
   */
  NVTEX_ERROR_ABORT = 1,
  /**
   * Throw `std::runtime_error`.
   */
  NVTEX_ERROR_THROW = 2,
} NVTEXErrorMode;

/**
 * Which lines the library writes; each level adds to the one before.
 */
typedef enum NVTEXLogLevel {
  NVTEX_LOG_NONE = 0,
  /**
   * Messages of failing calls, and warnings.
   */
  NVTEX_LOG_ERROR = 1,
  /**
   * Arguments that are legal but probably not meant.
   */
  NVTEX_LOG_CHECK = 2,
  /**
   * The backends and implementations chosen, and why others declined.
   */
  NVTEX_LOG_DISPATCH = 3,
  /**
   * A line for each operator run.
   */
  NVTEX_LOG_EXEC = 4,
} NVTEXLogLevel;

/**
 * What a handle of a graph points to. Only the library knows what it is.
 */
typedef struct NVTEXGraph_st NVTEXGraph_st;

/**
 * Handle of a graph.
 */
typedef struct NVTEXGraph_st *NVTEXGraph;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

/**
 * Returns the status of the first call of this thread that has failed since `nvtex_clear_error`, or
 * NVTEX_OK.
 *
 * It is the first one, so that calls that fail as a consequence do not hide the cause. (The name says
 * "last" for the sake of programs that were built before.) Calls that succeed leave it.
 *
 * No function of this library may be called from a signal handler: it may allocate memory or want a
 * lock that the interrupted thread holds. Messages alone take no lock.
 */
enum NVTEXStatus nvtex_last_status(void);

/**
 * Returns the message of the call that `nvtex_last_status` is about: function, argument, what was
 * expected, what was got. It is empty if no call has failed.
 *
 * It is valid until `nvtex_clear_error`. In destructors of a thread that is ending, a fixed text may
 * stand for it.
 */
const char *nvtex_last_error(void);

/**
 * Forgets the status and the message of this thread.
 */
void nvtex_clear_error(void);

/**
 * Returns the number of calls of this thread that have ever failed; `nvtex_clear_error` does not
 * change it. With `nvtex_take_error` it tells whether one's own calls failed, whatever failed before.
 */
uint64_t nvtex_error_count(void);

/**
 * Returns the message of this thread's newest failing call if more than `count` have failed, otherwise
 * null.
 *
 * If the call that `nvtex_last_status` is about came after the first `count` failures, its status is
 * cleared. So `n = nvtex_error_count()`, calls, and `nvtex_take_error(n)` report failures of these
 * calls, and leave an earlier error in its place. The message is valid until the thread's next failing
 * call.
 */
const char *nvtex_take_error(uint64_t count);

/**
 * Sets what failing calls do, for the whole process, and returns the previous mode. Until the first
 * call `NVTE_ON_ERROR=return|abort|throw` decides; its default is `return`.
 */
enum NVTEXErrorMode nvtex_set_error_mode(enum NVTEXErrorMode mode);

/**
 * Sends the lines that the library writes to `callback` instead of stderr, for the whole process; null sends them
 * to stderr again.
 *
 * The callback gets lines up to `level`, which takes the place of `NVTE_VERBOSE` meanwhile: the level of the line,
 * an NVTEXLogLevel; the line without its end, valid until the callback returns; and `user`. It is called from any
 * thread, several at once, in the middle of operators, and does not throw. It may call this library; lines that
 * this causes go to stderr. After a change another thread may still call the former callback once.
 */
void nvtex_set_log(void (*callback)(int32_t level, const char *text, void *user),
                   enum NVTEXLogLevel level,
                   void *user);

/**
 * Says that the process uses this library in place of the one whose ABI it speaks, and returns what
 * was set before. `libtransformer_engine.so` sets it when it is loaded.
 *
 * With it:
 * - Failing calls throw unless `NVTE_ON_ERROR` or `nvtex_set_error_mode` says otherwise.
 * - The CPU backend runs only with `NVTE_BACKEND=cpu`.
 * - Calls that this library could run, but whose refusal programs written for the other one rely on,
 *   are refused (`nvte_cublas_gemm`).
 * - Backward passes of attention under a causal mask or in FP8, of up to 1024 keys and without a bias,
 *   add in a fixed order, as with `deterministic`.
 *
 * Set it before the first operator runs, because the backend is chosen there.
 */
bool nvtex_set_drop_in(bool drop_in);

/**
 * Returns the version of this library, such as "0.1.0".
 */
const char *nvtex_version(void);

/**
 * Returns the version of this library as the number that `NVTE_MAKE_VERSION` makes of it. A program compares it
 * with `NVTE_VERSION`, the version of the headers that it was compiled with.
 */
int32_t nvtex_version_number(void);

/**
 * Returns the domain of the calling thread's operators and memory: "cuda", "cpu", or that of a plugin. It is that
 * of the process, which is chosen at the first call, unless the thread's policy names another
 * (`nvtex_policy_push`). It returns null, with an error, if `NVTE_BACKEND` asks for one that cannot run.
 */
const char *nvtex_backend_name(void);

/**
 * Sets the number of threads on which operators of the CPU backend run, for all calls that begin
 * afterwards; 0 leaves it to `NVTE_NUM_THREADS`, whose default is the number of processors that the
 * process may use. With 1, operators run on the thread that calls. Results do not depend on it.
 *
 * Errors: more than 1024.
 */
void nvtex_set_num_threads(size_t num_threads);

/**
 * Returns the number of threads on which operators of the CPU backend run: what was asked for, or less
 * if the system refuses to create so many. It creates them if they do not exist yet.
 */
size_t nvtex_num_threads(void);

/**
 * Allocates memory of the backend's current device, aligned to 256 bytes. It returns null for 0 bytes,
 * and null with an error if there is not enough memory.
 */
void *nvtex_malloc(size_t bytes);

/**
 * Frees memory of `nvtex_malloc`, which has come from the domain that `nvtex_backend_name` names now. Null is
 * ignored.
 */
void nvtex_free(void *ptr);

/**
 * Copies bytes from the host to the device, on the stream. The host bytes may be reused on return.
 */
void nvtex_memcpy_to_device(void *dst, const void *src, size_t bytes, cudaStream_t stream);

/**
 * Copies bytes from the device to the host, on the stream. Synchronize the stream before you read
 * them.
 */
void nvtex_memcpy_to_host(void *dst, const void *src, size_t bytes, cudaStream_t stream);

/**
 * Copies bytes on the device, on the stream.
 */
void nvtex_memcpy_on_device(void *dst, const void *src, size_t bytes, cudaStream_t stream);

/**
 * Creates a tensor with memory of its own on the device, which is not initialized: a tensor as `nvte_create_tensor`
 * makes it, with one scale for all elements, whose data is memory of `nvtex_malloc`. Destroy it with
 * `nvtex_array_destroy`. It returns null only with an error.
 */
NVTETensor nvtex_array_create(NVTEDType dtype,
                              const size_t *shape,
                              size_t ndim);

/**
 * Destroys a tensor of `nvtex_array_create` and its memory, whose data has not been changed since. Null is ignored.
 */
void nvtex_array_destroy(NVTETensor array);

/**
 * Copies bytes of the host to all elements of a tensor, on the stream. The host bytes may be reused on return.
 *
 * Errors: a number of bytes that is not the tensor's.
 */
void nvtex_array_set(NVTETensor array,
                     const void *host,
                     size_t bytes,
                     cudaStream_t stream);

/**
 * Copies all elements of a tensor to the host, behind the work on the stream, and waits for them.
 *
 * Errors: a number of bytes that is not the tensor's.
 */
void nvtex_array_get(NVTETensor array, void *host, size_t bytes, cudaStream_t stream);

/**
 * Creates a stream on the current device. On the CPU backend it stands for nothing, because calls
 * return when their work is done. Null is returned only with an error.
 */
cudaStream_t nvtex_stream_create(void);

/**
 * Destroys a stream of `nvtex_stream_create`. Null is ignored.
 */
void nvtex_stream_destroy(cudaStream_t stream);

/**
 * Waits until the work on the stream is done. Errors: some of the work failed.
 */
void nvtex_stream_synchronize(cudaStream_t stream);

/**
 * Begins to record a graph: the work that calls put on the stream, which does not run yet. `nvtex_graph_end` ends it.
 *
 * Run the same calls once before, because first calls allocate memory and choose implementations. What a recorded
 * call reads and writes must exist at each replay, and numbers that the host passes stay as they were. This is the
 * capture of CUDA in its relaxed mode; libraries that capture the stream by themselves see no difference.
 *
 * Errors: the default stream; a stream that is being recorded; a backend without graphs, which the CPU backend is.
 */
void nvtex_graph_begin(cudaStream_t stream);

/**
 * Ends the recording of a stream and returns the graph, or null if a call in between was not legal in it.
 */
NVTEXGraph nvtex_graph_end(cudaStream_t stream);

/**
 * Runs the recorded work on a stream, behind what is there. Replays of one graph do not overlap.
 */
void nvtex_graph_replay(NVTEXGraph graph, cudaStream_t stream);

/**
 * Destroys a graph. Null is ignored.
 */
void nvtex_graph_destroy(NVTEXGraph graph);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* NVTE_NVTEX_H */
