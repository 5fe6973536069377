#ifndef NVTE_CPP_COMM_GEMM_OVERLAP_H
#define NVTE_CPP_COMM_GEMM_OVERLAP_H

// Classes that overlap products with communication between GPUs. They are in
// libtransformer_engine.so, which stands beside libnvte.so. Programs derive from them and read
// their members, so the order and types of members and of virtual functions are a part of the ABI.
// This library does not have the overlap yet: constructors with arguments and all operations throw
// std::runtime_error.

#include <cstddef>
#include <functional>
#include <stdexcept>
#include <string>
#include <vector>

#include "nvte/cpp/transformer_engine.h"

struct ncclComm;
struct NVTECommGemmCtx;

/*! Largest number of streams that products of one object run on. */
#define NVTE_COMM_OVERLAP_MAX_STREAMS 3

namespace transformer_engine {

namespace detail {

[[noreturn]] inline void no_overlap(const char *name) {
  throw std::runtime_error(std::string(name) +
                           ": overlap of communication and products is not available in this "
                           "library; set ub_tp_comm_overlap=False");
}

[[noreturn]] inline void not_of_class(const char *name) {
  throw std::runtime_error(std::string(name) + ": this class does not have the operation");
}

}  // namespace detail

/*! Gathers the blocks of all ranks, from `local` of each to `global` of all; the last argument is
 * the group, "world" or "intra". */
using ExtAllgatherOp = std::function<void(void *global, size_t global_bytes, void *local,
                                          size_t local_bytes, const char *group)>;
/*! Returns when all ranks of the group have called it. */
using ExtBarrierOp = std::function<void(const char *group)>;

/*! What a collective on the buffer does: reduce-scatter or all-gather. */
enum class CommOverlapType { RS = 0, AG = 1 };

/*! Whether the buffers of the overlap are set up through MPI: never. */
bool ubuf_built_with_mpi();

/*! What both kinds of overlap have. */
class CommOverlapCore {
 public:
  CommOverlapCore() {}
  CommOverlapCore(ncclComm *comm, int tp_rank, int tp_size, int num_comm_sm, bool is_p2p,
                  bool atomic_gemm);
  virtual ~CommOverlapCore();

  void *get_ubuf_dptr() { return _ubuf.dptr(); }
  void set_ubuf_scale_inv(float *scale_inv) {
    _ubuf_scale_inv = scale_inv;
    _ubuf_scale_inv_initialized = true;
  }
  /*! A view of `shape` elements of `source` from element `offset` on, with all of its parameters.
   */
  TensorWrapper get_tensor_chunk(const TensorWrapper &source, size_t offset,
                                 const std::vector<size_t> &shape);
  /*! Like get_tensor_chunk, with the data of the buffer in place of those of `source`. */
  TensorWrapper get_buffer_chunk_like(const TensorWrapper &source, size_t offset,
                                      const std::vector<size_t> &shape);
  int get_tp_size() { return _tp_size; }
  bool is_atomic_gemm() { return _atomic_gemm; }
  bool is_p2p_overlap() { return _is_p2p; }
  bool is_fp8_ubuf() { return _ubuf.element_size() == 1; }
  bool with_cublasmp() { return _with_cublasmp; }

  virtual void copy_into_buffer(cudaStream_t /*stream*/, const TensorWrapper & /*source*/,
                                bool /*local_chunk*/, bool /*rowwise*/) {
    detail::not_of_class("CommOverlapCore::copy_into_buffer");
  }
  virtual void bulk_overlap(const TensorWrapper & /*A*/, bool /*transa*/,
                            const TensorWrapper & /*B*/, bool /*transb*/, TensorWrapper & /*D*/,
                            TensorWrapper & /*bias*/, TensorWrapper & /*pre_gelu_out*/,
                            TensorWrapper & /*workspace*/, bool /*grad*/, bool /*accumulate*/,
                            bool /*use_split_accumulator*/, CommOverlapType /*comm_type*/,
                            TensorWrapper & /*rs_output*/, cudaStream_t /*stream*/) {
    detail::not_of_class("CommOverlapCore::bulk_overlap");
  }
  virtual void atomic_gemm_overlap_rs(const TensorWrapper & /*A*/, bool /*transa*/,
                                      const TensorWrapper & /*B*/, bool /*transb*/,
                                      TensorWrapper & /*D*/, TensorWrapper & /*bias*/,
                                      TensorWrapper & /*pre_gelu_out*/,
                                      TensorWrapper & /*workspace*/, bool /*grad*/,
                                      bool /*accumulate*/, bool /*use_split_accumulator*/,
                                      TensorWrapper & /*rs_output*/, cudaStream_t /*stream*/) {
    detail::not_of_class("CommOverlapCore::atomic_gemm_overlap_rs");
  }
  virtual void split_overlap_rs(const TensorWrapper & /*A*/, bool /*transa*/,
                                const TensorWrapper & /*B*/, bool /*transb*/, TensorWrapper & /*D*/,
                                TensorWrapper & /*bias*/, TensorWrapper & /*pre_gelu_out*/,
                                TensorWrapper & /*workspace*/, bool /*grad*/, bool /*accumulate*/,
                                bool /*use_split_accumulator*/, TensorWrapper & /*rs_output*/,
                                cudaStream_t /*stream*/) {
    detail::not_of_class("CommOverlapCore::split_overlap_rs");
  }
  virtual void atomic_gemm_overlap_ag(const TensorWrapper & /*A*/, bool /*transa*/,
                                      const TensorWrapper & /*B*/, bool /*transb*/,
                                      TensorWrapper & /*D*/, TensorWrapper & /*bias*/,
                                      TensorWrapper & /*pre_gelu_out*/,
                                      TensorWrapper & /*workspace*/, bool /*grad*/,
                                      bool /*accumulate*/, bool /*use_split_accumulator*/,
                                      TensorWrapper & /*B_copy*/, cudaStream_t /*stream*/) {
    detail::not_of_class("CommOverlapCore::atomic_gemm_overlap_ag");
  }
  virtual void split_overlap_ag(const TensorWrapper & /*A*/, bool /*transa*/,
                                const TensorWrapper & /*B*/, bool /*transb*/, TensorWrapper & /*D*/,
                                TensorWrapper & /*bias*/, TensorWrapper & /*pre_gelu_out*/,
                                TensorWrapper & /*workspace*/, bool /*grad*/, bool /*accumulate*/,
                                bool /*use_split_accumulator*/, TensorWrapper & /*B_copy*/,
                                cudaStream_t /*stream*/) {
    detail::not_of_class("CommOverlapCore::split_overlap_ag");
  }
  virtual void bulk_overlap_external_ag(cudaStream_t /*send_stream*/, cudaStream_t /*recv_stream*/,
                                        cudaStream_t /*stream*/) {
    detail::not_of_class("CommOverlapCore::bulk_overlap_external_ag");
  }

 protected:
  int _rank;
  int _tp_id;
  int _tp_size;
  int _num_splits;
  int _math_sms;
  int _num_comm_sm;
  int _cga_size;
  int _use_ce;
  int _ub_reg;
  int _gemm_priority;
  int _comm_priority;
  bool _atomic_gemm{false};
  bool _is_p2p{false};
  bool _with_cublasmp{false};
  NVTECommGemmCtx *_cublasmp_ctx{nullptr};
  int _algo_type{0};
  TensorWrapper _ubuf;
  TensorWrapper _counter;
  float *_ubuf_scale_inv;
  bool _ubuf_scale_inv_initialized{false};
  std::vector<cudaStream_t> _stream_compute;
  cudaEvent_t _start_compute;
  cudaEvent_t _stop_compute;
  cudaEvent_t _start_comm;
  cudaEvent_t _stop_comm;
  cudaEvent_t _comm_launch_event;
};

/*! Overlap with collectives on one buffer. */
class CommOverlapBase : public CommOverlapCore {
 public:
  CommOverlapBase() {}
  CommOverlapBase(const std::vector<size_t> &buffer_shape, DType buffer_dtype, int rank,
                  int num_ranks, int local_rank, int num_local_ranks, int node, int num_nodes,
                  int tp_size, ExtAllgatherOp allgather, ExtBarrierOp barrier, int num_splits = 3,
                  int num_max_streams = NVTE_COMM_OVERLAP_MAX_STREAMS, int comm_cga_size = 2,
                  int gemm_priority = 0, int comm_priority = 0, int num_comm_sm = 16,
                  bool set_sm_margin = true, bool atomic_gemm = false,
                  bool rs_overlap_first_gemm = false);
  ~CommOverlapBase() override;

  void bulk_overlap(const TensorWrapper &A, bool transa, const TensorWrapper &B, bool transb,
                    TensorWrapper &D, TensorWrapper &bias, TensorWrapper &pre_gelu_out,
                    TensorWrapper &workspace, bool grad, bool accumulate,
                    bool use_split_accumulator, CommOverlapType comm_type, TensorWrapper &rs_output,
                    cudaStream_t stream) override;
  void atomic_gemm_overlap_rs(const TensorWrapper &A, bool transa, const TensorWrapper &B,
                              bool transb, TensorWrapper &D, TensorWrapper &bias,
                              TensorWrapper &pre_gelu_out, TensorWrapper &workspace, bool grad,
                              bool accumulate, bool use_split_accumulator, TensorWrapper &rs_output,
                              cudaStream_t stream) override;
  void split_overlap_rs(const TensorWrapper &A, bool transa, const TensorWrapper &B, bool transb,
                        TensorWrapper &D, TensorWrapper &bias, TensorWrapper &pre_gelu_out,
                        TensorWrapper &workspace, bool grad, bool accumulate,
                        bool use_split_accumulator, TensorWrapper &rs_output,
                        cudaStream_t stream) override;
  void atomic_gemm_overlap_ag(const TensorWrapper & /*A*/, bool /*transa*/,
                              const TensorWrapper & /*B*/, bool /*transb*/, TensorWrapper & /*D*/,
                              TensorWrapper & /*bias*/, TensorWrapper & /*pre_gelu_out*/,
                              TensorWrapper & /*workspace*/, bool /*grad*/, bool /*accumulate*/,
                              bool /*use_split_accumulator*/, TensorWrapper & /*B_copy*/,
                              cudaStream_t /*stream*/) override {
    detail::not_of_class("CommOverlapBase::atomic_gemm_overlap_ag");
  }
  void split_overlap_ag(const TensorWrapper & /*A*/, bool /*transa*/, const TensorWrapper & /*B*/,
                        bool /*transb*/, TensorWrapper & /*D*/, TensorWrapper & /*bias*/,
                        TensorWrapper & /*pre_gelu_out*/, TensorWrapper & /*workspace*/,
                        bool /*grad*/, bool /*accumulate*/, bool /*use_split_accumulator*/,
                        TensorWrapper & /*B_copy*/, cudaStream_t /*stream*/) override {
    detail::not_of_class("CommOverlapBase::split_overlap_ag");
  }
  void bulk_overlap_external_ag(cudaStream_t send_stream, cudaStream_t recv_stream,
                                cudaStream_t stream) override;

 protected:
  int _rs_kernel_type;
  bool _rs_overlap_first_gemm;
  cudaStream_t _stream_comm;
  cudaEvent_t _start_d2dcopy;
};

/*! Overlap with copies around a ring of ranks. */
class CommOverlapP2PBase : public CommOverlapCore {
 public:
  CommOverlapP2PBase() {}
  CommOverlapP2PBase(const std::vector<size_t> &buffer_shape, DType buffer_dtype, int rank,
                     int num_ranks, int local_rank, int num_local_ranks, int node, int num_nodes,
                     int tp_size, ExtAllgatherOp allgather, ExtBarrierOp barrier,
                     CommOverlapType comm_type, int num_max_streams = NVTE_COMM_OVERLAP_MAX_STREAMS,
                     int comm_cga_size = 1, int gemm_priority = 0, int comm_priority = 0,
                     int num_comm_sm = 1, bool set_sm_margin = false, bool use_ce = true,
                     bool atomic_gemm = false, bool aggregate = false);
  ~CommOverlapP2PBase() override;

  void copy_into_buffer(cudaStream_t stream, const TensorWrapper &source, bool local_chunk,
                        bool rowwise) override;
  void bulk_overlap(const TensorWrapper & /*A*/, bool /*transa*/, const TensorWrapper & /*B*/,
                    bool /*transb*/, TensorWrapper & /*D*/, TensorWrapper & /*bias*/,
                    TensorWrapper & /*pre_gelu_out*/, TensorWrapper & /*workspace*/, bool /*grad*/,
                    bool /*accumulate*/, bool /*use_split_accumulator*/,
                    CommOverlapType /*comm_type*/, TensorWrapper & /*rs_output*/,
                    cudaStream_t /*stream*/) override {
    detail::not_of_class("CommOverlapP2PBase::bulk_overlap");
  }
  void atomic_gemm_overlap_rs(const TensorWrapper &A, bool transa, const TensorWrapper &B,
                              bool transb, TensorWrapper &D, TensorWrapper &bias,
                              TensorWrapper &pre_gelu_out, TensorWrapper &workspace, bool grad,
                              bool accumulate, bool use_split_accumulator, TensorWrapper &rs_output,
                              cudaStream_t stream) override;
  void split_overlap_rs(const TensorWrapper &A, bool transa, const TensorWrapper &B, bool transb,
                        TensorWrapper &D, TensorWrapper &bias, TensorWrapper &pre_gelu_out,
                        TensorWrapper &workspace, bool grad, bool accumulate,
                        bool use_split_accumulator, TensorWrapper &rs_output,
                        cudaStream_t stream) override;
  void atomic_gemm_overlap_ag(const TensorWrapper &A, bool transa, const TensorWrapper &B,
                              bool transb, TensorWrapper &D, TensorWrapper &bias,
                              TensorWrapper &pre_gelu_out, TensorWrapper &workspace, bool grad,
                              bool accumulate, bool use_split_accumulator, TensorWrapper &B_copy,
                              cudaStream_t stream) override;
  void split_overlap_ag(const TensorWrapper &A, bool transa, const TensorWrapper &B, bool transb,
                        TensorWrapper &D, TensorWrapper &bias, TensorWrapper &pre_gelu_out,
                        TensorWrapper &workspace, bool grad, bool accumulate,
                        bool use_split_accumulator, TensorWrapper &B_copy,
                        cudaStream_t stream) override;
  void bulk_overlap_external_ag(cudaStream_t /*send_stream*/, cudaStream_t /*recv_stream*/,
                                cudaStream_t /*stream*/) override {
    detail::not_of_class("CommOverlapP2PBase::bulk_overlap_external_ag");
  }

 protected:
  bool _is_reduce_scatter{false};
  bool _use_multiatomic_ag{false};
  bool _aggregate;
  int _next_rank;
  int _prev_rank;
  int _rank_round_tp;
  int _num_ubuf_chunks;
  int _self_chunk_id;
  std::vector<TensorWrapper> _ubufs;
  std::vector<cudaStream_t> _stream_send;
  cudaStream_t _stream_recv;
  cudaEvent_t _stop_send;
  cudaEvent_t _stop_recv;
};

}  // namespace transformer_engine

#endif
