#ifndef NVTE_PARALLEL_H
#define NVTE_PARALLEL_H

/* Generated from the Rust sources by tests/abi.rs. */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "nvte/types.h"

/**
 * Numbers of groups of a grid.
 */
#define NVTEX_GRID_GROUPS 8

/**
 * How sums over ranks are made.
 */
typedef enum NVTEXSumOrder {
  /**
   * x0 + x1 + ... in Float32 in the order of the ranks, rounded once: the same bits on every rank, in every run, by
   * every transport.
   */
  NVTEX_SUM_ORDERED = 0,
  /**
   * As NCCL or the program's functions sum.
   */
  NVTEX_SUM_FAST = 1,
} NVTEXSumOrder;

/**
 * Whether calls of all ranks are compared before they run, where that costs a meeting of its own: on NCCL and with
 * the program's functions. Threads and processes that share memory always compare.
 */
typedef enum NVTEXCallCheck {
  /**
   * As `NVTE_COMM_CHECK=0|1` says; its default is 0.
   */
  NVTEX_CALL_CHECK_DEFAULT = 0,
  NVTEX_CALL_CHECK_OFF = 1,
  NVTEX_CALL_CHECK_ON = 2,
} NVTEXCallCheck;

/**
 * What moves the data of ranks that a launcher has started.
 */
typedef enum NVTEXTransport {
  /**
   * NCCL on CUDA, shared memory otherwise.
   */
  NVTEX_TRANSPORT_AUTOMATIC = 0,
  /**
   * Shared memory of the host. Ranks may have the same GPU, whose data are staged.
   */
  NVTEX_TRANSPORT_SHARED = 1,
  NVTEX_TRANSPORT_NCCL = 2,
} NVTEXTransport;

/**
 * Groups of a grid. The ranks of each are ordered as those of `world`.
 */
typedef enum NVTEXGridGroup {
  /**
   * Ranks that share each weight.
   */
  NVTEX_GRID_TP = 0,
  /**
   * Ranks that share each sequence.
   */
  NVTEX_GRID_CP = 1,
  /**
   * Ranks that share the batch.
   */
  NVTEX_GRID_DP = 2,
  /**
   * Ranks that share the batch or its sequences: those over which gradients of weights are summed.
   */
  NVTEX_GRID_DP_CP = 3,
  /**
   * All ranks that have the same layers: those over which maxima of delayed scaling are taken.
   */
  NVTEX_GRID_ALL_BUT_PP = 4,
  /**
   * Ranks that share the experts: neighbours in NVTEX_GRID_DP_CP.
   */
  NVTEX_GRID_EP = 5,
  /**
   * Ranks that have the same experts: those over which gradients of experts are summed.
   */
  NVTEX_GRID_EXPERT_DP = 6,
  /**
   * Ranks that share the layers.
   */
  NVTEX_GRID_PP = 7,
} NVTEXGridGroup;

/**
 * How the values of all ranks become one.
 */
typedef enum NVTEXReduction {
  NVTEX_REDUCTION_SUM = 0,
  /**
   * NaN if one of the values is.
   */
  NVTEX_REDUCTION_MAX = 1,
} NVTEXReduction;

/**
 * What a handle of a communicator points to. Only the library knows what it is.
 */
typedef struct NVTEXCommunicator_st NVTEXCommunicator_st;

/**
 * What a handle of a grid points to. Only the library knows what it is.
 */
typedef struct NVTEXGrid_st NVTEXGrid_st;

/**
 * What a program says about a communicator. Set all of it to 0, then `struct_size`, then what is wanted: 0 is a
 * default. All ranks say the same.
 */
typedef struct NVTEXCommunicatorConfig {
  /**
   * Bytes of this struct.
   */
  size_t struct_size;
  /**
   * For messages; null: "world".
   */
  const char *name;
  /**
   * Seconds that a rank waits for another one. 0: `NVTE_COMM_TIMEOUT`, whose default is 300.
   */
  double timeout;
  /**
   * Bytes of shared memory for data of each rank on their way; 0: 2 MiB.
   */
  size_t staging_bytes;
  enum NVTEXSumOrder sum_order;
  enum NVTEXCallCheck check;
  /**
   * For `nvtex_communicator_from_environment`.
   */
  enum NVTEXTransport transport;
  /**
   * Not 0: a failure aborts a communicator of NCCL that the program has lent, too.
   */
  int32_t abort_borrowed;
  /**
   * Called once with the message of the first failure, on a thread of the library, whatever the program is doing.
   * It calls nothing of this library. Null: none.
   *
   * With collectives of the program, and on rank 0, this is also what connects all ranks by TCP, so that they hear of each other's
   * end.
   */
  void (*on_failure)(void *user, const char *message);
  /**
   * The first argument of `on_failure`.
   */
  void *user;
} NVTEXCommunicatorConfig;

/**
 * Handle of one rank of a communicator.
 */
typedef struct NVTEXCommunicator_st *NVTEXCommunicator;

/**
 * A message between two ranks, for functions of the program.
 */
typedef struct NVTEXMessage {
  void *data;
  size_t bytes;
  int peer;
  /**
   * 1: received; 0: sent.
   */
  int receive;
} NVTEXMessage;

/**
 * Collectives of the program. Memory is that of the host; `bytes` are those of one rank. Functions return 0, or a
 * number that the error names. They are called by the thread that makes the call, one at a time for a communicator.
 * All may be null but `all_gather`, of which the others are then made; messages need `exchange`, splits `split`.
 */
typedef struct NVTEXCollectives {
  /**
   * Bytes of this struct.
   */
  size_t struct_size;
  /**
   * The first argument of all functions.
   */
  void *user;
  int (*all_gather)(void *user, const void *send, void *recv, size_t bytes);
  int (*all_to_all)(void *user, const void *send, void *recv, size_t bytes);
  int (*broadcast)(void *user, void *data, size_t bytes, int root);
  int (*barrier)(void *user);
  /**
   * Sends and receives all messages; those of a pair in one direction keep their order.
   */
  int (*exchange)(void *user, const struct NVTEXMessage *messages, size_t num_messages);
  /**
   * Used with NVTEX_SUM_FAST only; `count` is that of `recv`, and `reduction` an NVTEXReduction.
   */
  int (*reduce_scatter)(void *user,
                        const void *send,
                        void *recv,
                        size_t count,
                        NVTEDType dtype,
                        int reduction);
  /**
   * Used with NVTEX_SUM_FAST only.
   */
  int (*all_reduce)(void *user,
                    const void *send,
                    void *recv,
                    size_t count,
                    NVTEDType dtype,
                    int reduction);
  /**
   * Gives `*child`, which takes the place of `user` for ranks of this color, ordered by key and then by rank.
   */
  int (*split)(void *user, int color, int key, void **child);
  /**
   * Called when the program aborts the communicator, or another rank has ended or has failed: calls that wait for it return. Any
   * thread may call it.
   */
  void (*abort)(void *user);
  /**
   * Called with a child when its communicator is destroyed.
   */
  void (*release)(void *user);
} NVTEXCollectives;

/**
 * Handle of the place of one rank in a grid.
 */
typedef struct NVTEXGrid_st *NVTEXGrid;

/**
 * How ranks are divided. Set all of it to 0, then `struct_size`, then what is wanted. All ranks say the same.
 *
 * The rank in `world` is `((p * dp + d) * cp + c) * tp + t`, where t, c, d and p are the places in the groups of the same
 * names: neighbours share weights.
 */
typedef struct NVTEXGridConfig {
  /**
   * Bytes of this struct.
   */
  size_t struct_size;
  /**
   * Ranks that share each weight; 0: 1.
   */
  size_t tp;
  /**
   * Ranks that share each sequence; 0: 1.
   */
  size_t cp;
  /**
   * Ranks that share the batch; 0: as many as the others leave over.
   */
  size_t dp;
  /**
   * Ranks that share the layers; 0: 1.
   */
  size_t pp;
  /**
   * Ranks that share the experts: a divisor of dp x cp; 0: 1.
   */
  size_t ep;
} NVTEXGridConfig;

/**
 * A message of `nvtex_exchange`.
 */
typedef struct NVTEXTransfer {
  void *data;
  /**
   * Elements; both ranks say the same.
   */
  size_t count;
  NVTEDType dtype;
  /**
   * The other rank, which may be the own one.
   */
  int peer;
  /**
   * 1: received into `data`; 0: sent from there.
   */
  int receive;
} NVTEXTransfer;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

/**
 * Creates `size` ranks for threads of this process: thread r uses `communicators[r]`, and destroys it.
 *
 * Memory of calls is that of the creating thread's domain (`nvtex_backend_name`). On a device it is staged through
 * the host, so that several ranks may have one GPU; such a call waits for its stream.
 *
 * Errors: a size that is not 1 to 128.
 */
void nvtex_communicator_create_local(int32_t size,
                                     const struct NVTEXCommunicatorConfig *config,
                                     NVTEXCommunicator *communicators);

/**
 * Creates rank `rank` of `size` processes (or threads) of this host and this user, which meet by `key`: letters,
 * digits, points, hyphens and underscores that no other run uses at the time. Collective: waits for all of them.
 *
 * The name of the shared memory exists only until all have come; what a run leaves that has been killed before is
 * taken over by the next one with the key. Memory of calls is as in `nvtex_communicator_create_local`.
 *
 * Errors: ranks that do not come in time or have another `size` or config; a rank or a key that is taken; too little
 * shared memory (`/dev/shm`). Returns null.
 */
NVTEXCommunicator nvtex_communicator_create_shared(const char *key,
                                                   int32_t rank,
                                                   int32_t size,
                                                   const struct NVTEXCommunicatorConfig *config);

/**
 * Creates rank `rank` of `size` of the program's own ranks, such as those of MPI. Collective: the ranks compare their
 * configs. The functions and `user` stay valid until the communicator and what is split from it are destroyed.
 *
 * Time limits and ended ranks are the matter of the program's functions: the library only reports what they return.
 *
 * Errors: no `all_gather`. Returns null.
 */
NVTEXCommunicator nvtex_communicator_create_callbacks(const struct NVTEXCollectives *collectives,
                                                      int32_t rank,
                                                      int32_t size,
                                                      const struct NVTEXCommunicatorConfig *config);

/**
 * Writes the 128 bytes by which ranks on several hosts meet under NCCL: one rank makes them, and the program brings
 * them to the others.
 *
 * Errors: NCCL (`libnccl.so.2`, 2.19 or later) that cannot be loaded; `NVTE_NCCL_LIBRARY` names its file.
 */
void nvtex_communicator_nccl_unique_id(uint8_t *id);

/**
 * Creates rank `rank` of `size` under NCCL, each with a GPU of its own: the current device of the thread.
 * Collective. `id` are the 128 bytes of `nvtex_communicator_nccl_unique_id`, the same on all ranks.
 *
 * Ranks hear of each other's end over TCP connections to rank 0, on a port that the system chooses: all survivors of a rank that is
 * killed have an error that names it, within a second, and within 4 seconds if its host is gone. Where rank 0 cannot be reached it
 * is noticed by the time limit or by NCCL.
 *
 * Calls are queued on their stream. Returns null after an error.
 */
NVTEXCommunicator nvtex_communicator_create_nccl(const uint8_t *id,
                                                 int32_t rank,
                                                 int32_t size,
                                                 const struct NVTEXCommunicatorConfig *config);

/**
 * The same for processes of one host, which meet by `key` as in `nvtex_communicator_create_shared`: no other library
 * is needed to start them. A watchdog sees ranks that are killed, and ends the work of NCCL that waits for them.
 */
NVTEXCommunicator nvtex_communicator_create_nccl_shared(const char *key,
                                                        int32_t rank,
                                                        int32_t size,
                                                        const struct NVTEXCommunicatorConfig *config);

/**
 * Uses a communicator of NCCL that the program has, such as that of a framework. It is not destroyed, and must live as
 * long as the one returned. The program orders its own collectives on it against those of this library, alike on all
 * ranks.
 */
NVTEXCommunicator nvtex_communicator_create_from_nccl(ncclComm_t comm,
                                                      const struct NVTEXCommunicatorConfig *config);

/**
 * Creates the communicator of all ranks that a launcher has started on this host: `nvtex-run`, `torchrun` (RANK,
 * WORLD_SIZE, MASTER_ADDR, MASTER_PORT) or `mpirun` of Open MPI (OMPI_COMM_WORLD_RANK, OMPI_COMM_WORLD_SIZE,
 * PMIX_NAMESPACE). Without their variables the process is the only rank. `NVTEX_RENDEZVOUS` takes the place of the
 * names by which they meet.
 *
 * On CUDA each rank has chosen its device before.
 *
 * Errors: ranks on several hosts; those of `nvtex_communicator_create_shared` and
 * `nvtex_communicator_create_nccl_shared`. Returns null.
 */
NVTEXCommunicator nvtex_communicator_from_environment(const struct NVTEXCommunicatorConfig *config);

/**
 * Makes communicators of the ranks that have the same `color`, ordered by `key`, and by rank where keys are equal.
 * Collective. A rank with a negative color belongs to none, and gets null.
 *
 * `name` is for messages; null: the name of this one with the color. A failure of this communicator is one of those
 * split from it, not the other way round. They may be destroyed in any order.
 */
NVTEXCommunicator nvtex_communicator_split(NVTEXCommunicator communicator,
                                           int32_t color,
                                           int32_t key,
                                           const char *name);

/**
 * Returns the rank of a communicator's handle; 0 after an error.
 */
int32_t nvtex_communicator_rank(NVTEXCommunicator communicator);

/**
 * Returns the number of ranks; 0 after an error.
 */
int32_t nvtex_communicator_size(NVTEXCommunicator communicator);

/**
 * Returns the name of a communicator, valid until the handle is destroyed; null after an error.
 */
const char *nvtex_communicator_name(NVTEXCommunicator communicator);

/**
 * Returns null while a communicator is sound, otherwise the message of its first failure: a rank has ended, has not
 * come in time, has asked for something else than the others, or has aborted. Never waits, and is no error itself.
 *
 * The text is valid until the thread's next call of this function.
 */
const char *nvtex_communicator_status(NVTEXCommunicator communicator);

/**
 * Ends a communicator for all ranks: calls that wait, and all later ones, fail with `reason`. Any thread may call it.
 */
void nvtex_communicator_abort(NVTEXCommunicator communicator,
                              const char *reason);

/**
 * Destroys a handle. Null is ignored. Ranks that still call get an error which says so. Under NCCL the caller has
 * waited for its streams before.
 */
void nvtex_communicator_destroy(NVTEXCommunicator communicator);

/**
 * Divides the ranks of a communicator into groups. Collective: each group is a split of `world`, which may be destroyed
 * afterwards.
 *
 * Errors: sizes whose product is not the size of `world`, an `ep` that does not divide dp x cp, sizes that are not those
 * of other ranks. Returns null.
 */
NVTEXGrid nvtex_grid_create(NVTEXCommunicator world,
                            const struct NVTEXGridConfig *config);

/**
 * Makes a grid of communicators that a program or its framework has.
 *
 * `communicators[g]` is that of the NVTEXGridGroup g; there are NVTEX_GRID_GROUPS. Null: the rank is alone in the group, or
 * the group is that of another entry, because the ranks that would be added are none (NVTEX_GRID_DP_CP is NVTEX_GRID_DP
 * where sequences are not shared). They must not be destroyed before the grid and the contexts that have it.
 *
 * Errors: groups whose sizes do not go together. Returns null.
 */
NVTEXGrid nvtex_grid_create_from_communicators(const NVTEXCommunicator *communicators);

/**
 * Returns the communicator of a group, also of a group of one rank. The handle is the grid's: do not destroy it. It is
 * valid until the grid is destroyed. Null after an error.
 */
NVTEXCommunicator nvtex_grid_communicator(NVTEXGrid grid,
                                          enum NVTEXGridGroup group);

/**
 * Destroys a grid and the handles of its groups. Contexts that have it keep what they need. Null is ignored.
 */
void nvtex_grid_destroy(NVTEXGrid grid);

/**
 * Gathers `count` elements of each rank into `recv`, which has those of all ranks in their order.
 *
 * Dtypes: any of whole bytes. In place if `send` is the own part of `recv`; otherwise both lie apart.
 *
 * This is true of all collectives: every rank of the communicator makes the same calls in the same order, with equal
 * counts and dtypes. `name` says what is exchanged, such as the name of a layer: it is in messages, and the ranks
 * compare it; null: nothing. Wrong arguments of one rank are an error there, before others hear of the call. Other
 * errors end the communicator, on all ranks; outputs then mean nothing. On threads and shared memory a call waits
 * until it is done, and cannot be captured in a graph.
 */
void nvtex_all_gather(NVTEXCommunicator communicator,
                      const void *send,
                      void *recv,
                      size_t count,
                      NVTEDType dtype,
                      const char *name,
                      cudaStream_t stream);

/**
 * Reduces part r of every rank's `send` into `recv` of rank r: `count` elements of each of as many parts as there are
 * ranks.
 *
 * Dtypes: kNVTEFloat32, kNVTEFloat16, kNVTEBFloat16. In place if `recv` is the own part of `send`. Otherwise as
 * `nvtex_all_gather`.
 */
void nvtex_reduce_scatter(NVTEXCommunicator communicator,
                          const void *send,
                          void *recv,
                          size_t count,
                          NVTEDType dtype,
                          enum NVTEXReduction reduction,
                          const char *name,
                          cudaStream_t stream);

/**
 * Reduces `count` elements of all ranks; each gets the result. In place if `send` is `recv`. Otherwise as
 * `nvtex_reduce_scatter`.
 */
void nvtex_all_reduce(NVTEXCommunicator communicator,
                      const void *send,
                      void *recv,
                      size_t count,
                      NVTEDType dtype,
                      enum NVTEXReduction reduction,
                      const char *name,
                      cudaStream_t stream);

/**
 * Sends part r of `send` to rank r, which has it as the part of this rank in its `recv`: `count` elements a part. Not
 * in place. Otherwise as `nvtex_all_gather`.
 */
void nvtex_all_to_all(NVTEXCommunicator communicator,
                      const void *send,
                      void *recv,
                      size_t count,
                      NVTEDType dtype,
                      const char *name,
                      cudaStream_t stream);

/**
 * Sends `count` elements of rank `root` to all others. Otherwise as `nvtex_all_gather`.
 */
void nvtex_broadcast(NVTEXCommunicator communicator,
                     void *data,
                     size_t count,
                     NVTEDType dtype,
                     int32_t root,
                     const char *name,
                     cudaStream_t stream);

/**
 * Returns when all ranks have made this call. Under NCCL without `check` that is true of the streams, not of the
 * hosts.
 */
void nvtex_barrier(NVTEXCommunicator communicator,
                   const char *name,
                   cudaStream_t stream);

/**
 * Sends and receives messages between pairs of ranks, all of them at the same time: only the ranks of a message make
 * this call. Messages from one rank to another one arrive in the order of their calls and lists; the receiver says
 * the same count, dtype and name as the sender.
 *
 * Errors: a message that differs from what is received, which ends the communicator; ranks, dtypes and pointers.
 */
void nvtex_exchange(NVTEXCommunicator communicator,
                    const struct NVTEXTransfer *transfers,
                    size_t num_transfers,
                    const char *name,
                    cudaStream_t stream);

/**
 * Returns a pointer that functions of this library take where they ask for an `ncclComm_t`, so that they work with ranks
 * of any kind: threads, processes, or those of the program's functions. NCCL itself does not know it. Null after an
 * error.
 *
 * It is valid as long as the communicator.
 */
ncclComm_t nvtex_communicator_as_nccl(NVTEXCommunicator communicator);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* NVTE_PARALLEL_H */
