// The classes of nvte/cpp/comm_gemm_overlap.h. Destructors leave streams, events and buffers alone:
// no constructor of this library makes any, and the default constructors leave these members unset.

#include "nvte/cpp/comm_gemm_overlap.h"

namespace transformer_engine {

using detail::no_overlap;

bool ubuf_built_with_mpi() { return false; }

CommOverlapCore::CommOverlapCore(ncclComm *, int, int, int, bool, bool) {
  no_overlap("CommOverlapCore");
}

CommOverlapCore::~CommOverlapCore() = default;

TensorWrapper CommOverlapCore::get_tensor_chunk(const TensorWrapper &, size_t,
                                                const std::vector<size_t> &) {
  no_overlap("CommOverlapCore::get_tensor_chunk");
}

TensorWrapper CommOverlapCore::get_buffer_chunk_like(const TensorWrapper &, size_t,
                                                     const std::vector<size_t> &) {
  no_overlap("CommOverlapCore::get_buffer_chunk_like");
}

CommOverlapBase::CommOverlapBase(const std::vector<size_t> &, DType, int, int, int, int, int, int,
                                 int, ExtAllgatherOp, ExtBarrierOp, int, int, int, int, int, int,
                                 bool, bool, bool) {
  no_overlap("CommOverlapBase");
}

CommOverlapBase::~CommOverlapBase() = default;

void CommOverlapBase::bulk_overlap(const TensorWrapper &, bool, const TensorWrapper &, bool,
                                   TensorWrapper &, TensorWrapper &, TensorWrapper &,
                                   TensorWrapper &, bool, bool, bool, CommOverlapType,
                                   TensorWrapper &, cudaStream_t) {
  no_overlap("CommOverlapBase::bulk_overlap");
}

void CommOverlapBase::atomic_gemm_overlap_rs(const TensorWrapper &, bool, const TensorWrapper &,
                                             bool, TensorWrapper &, TensorWrapper &,
                                             TensorWrapper &, TensorWrapper &, bool, bool, bool,
                                             TensorWrapper &, cudaStream_t) {
  no_overlap("CommOverlapBase::atomic_gemm_overlap_rs");
}

void CommOverlapBase::split_overlap_rs(const TensorWrapper &, bool, const TensorWrapper &, bool,
                                       TensorWrapper &, TensorWrapper &, TensorWrapper &,
                                       TensorWrapper &, bool, bool, bool, TensorWrapper &,
                                       cudaStream_t) {
  no_overlap("CommOverlapBase::split_overlap_rs");
}

void CommOverlapBase::bulk_overlap_external_ag(cudaStream_t, cudaStream_t, cudaStream_t) {
  no_overlap("CommOverlapBase::bulk_overlap_external_ag");
}

CommOverlapP2PBase::CommOverlapP2PBase(const std::vector<size_t> &, DType, int, int, int, int, int,
                                       int, int, ExtAllgatherOp, ExtBarrierOp, CommOverlapType, int,
                                       int, int, int, int, bool, bool, bool, bool) {
  no_overlap("CommOverlapP2PBase");
}

CommOverlapP2PBase::~CommOverlapP2PBase() = default;

void CommOverlapP2PBase::copy_into_buffer(cudaStream_t, const TensorWrapper &, bool, bool) {
  no_overlap("CommOverlapP2PBase::copy_into_buffer");
}

void CommOverlapP2PBase::atomic_gemm_overlap_rs(const TensorWrapper &, bool, const TensorWrapper &,
                                                bool, TensorWrapper &, TensorWrapper &,
                                                TensorWrapper &, TensorWrapper &, bool, bool, bool,
                                                TensorWrapper &, cudaStream_t) {
  no_overlap("CommOverlapP2PBase::atomic_gemm_overlap_rs");
}

void CommOverlapP2PBase::split_overlap_rs(const TensorWrapper &, bool, const TensorWrapper &, bool,
                                          TensorWrapper &, TensorWrapper &, TensorWrapper &,
                                          TensorWrapper &, bool, bool, bool, TensorWrapper &,
                                          cudaStream_t) {
  no_overlap("CommOverlapP2PBase::split_overlap_rs");
}

void CommOverlapP2PBase::atomic_gemm_overlap_ag(const TensorWrapper &, bool, const TensorWrapper &,
                                                bool, TensorWrapper &, TensorWrapper &,
                                                TensorWrapper &, TensorWrapper &, bool, bool, bool,
                                                TensorWrapper &, cudaStream_t) {
  no_overlap("CommOverlapP2PBase::atomic_gemm_overlap_ag");
}

void CommOverlapP2PBase::split_overlap_ag(const TensorWrapper &, bool, const TensorWrapper &, bool,
                                          TensorWrapper &, TensorWrapper &, TensorWrapper &,
                                          TensorWrapper &, bool, bool, bool, TensorWrapper &,
                                          cudaStream_t) {
  no_overlap("CommOverlapP2PBase::split_overlap_ag");
}

}  // namespace transformer_engine
