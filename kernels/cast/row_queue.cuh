// The inputs of a tile of a function, row by row: on their way to shared memory ahead of time, and
// from there through the function.
#pragma once

#include "tile_cast.cuh"
#include "common/limits.cuh"
#include "common/ptx.cuh"

namespace nvte {

template <class T, int N>
__device__ __forceinline__ void append(Vec<T, N> (&rows)[kPack], const Vec<T, N> &row) {
#pragma unroll
  for (int p = 0; p + 1 < kPack; ++p) rows[p] = rows[p + 1];
  rows[kPack - 1] = row;
}

// Calls visit(input, element, k) with where column `col` of row `row` of each input k is.
template <NVTEXForm kForm, class Scale, class Visit>
__device__ __forceinline__ void visit_inputs(const TileCastArgs<Scale> &args, const Matrix &m,
                                             size_t row, size_t col, const Visit &visit) {
  const NVTEXCast &q = args.q;
  if constexpr (kForm == NVTEX_FORM_GATED_DERIVATIVE) {
    const size_t half = m.cols / 2, c = !args.split && col >= half ? col - half : col;
    visit(q.input, row * half + c, 0);
    visit(q.fusion.act_input, row * m.cols + c, 1);
    visit(q.fusion.act_input, row * m.cols + half + c, 2);
  } else if constexpr (kForm == NVTEX_FORM_GATED) {
    const size_t at = 2 * m.at + row * (2 * m.cols) + col;
    visit(q.input, at, 0);
    visit(q.input, at + m.cols, 1);
  } else {
    const size_t at = m.at + row * m.cols + col;
    visit(q.input, at, 0);
    if constexpr (kForm == NVTEX_FORM_DERIVATIVE) visit(q.fusion.act_input, at, 1);
  }
}

// Loads the thread's row p element by element, for matrices that are not aligned.
template <class In, NVTEXForm kForm, class Scale>
__device__ __forceinline__ void load_row(const TileCastArgs<Scale> &args, const Matrix &m,
                                         const ThreadTile &my, int p,
                                         Vec<In, kVec> (&x)[kInputsOf<kForm>]) {
  const size_t row = my.row0 + my.row + p, col = my.col0 + my.col;
  const int count = p < my.rows ? my.cols : 0;
  if (kForm == NVTEX_FORM_GATED_DERIVATIVE && !args.split) {
    // A vector may have columns of both halves.
    constexpr int kPer = Vec<In, kVec>::kPerWord;
#pragma unroll
    for (int k = 0; k < kInputsOf<kForm>; ++k) x[k] = {};
#pragma unroll
    for (int i = 0; i < kVec; ++i) {
      if (i >= count) continue;
      visit_inputs<kForm>(args, m, row, col + i, [&](const void *in, size_t at, int k) {
        const uint32_t bits = load_as<In, 1>(args.q.input_dtype, in, at, true).w[0];
        x[k].w[i / kPer] |= bits << (i % kPer * 8 * In::kBytes);
      });
    }
  } else {
    visit_inputs<kForm>(args, m, row, col, [&](const void *in, size_t at, int k) {
      x[k] = load_some_as<In, kVec>(args.q.input_dtype, in, at, count);
    });
  }
}

// The rows that a thread is about to work on, on their way to shared memory: while one tile is
// worked on, the next one comes. They concern this thread alone, so that nothing waits for others.
// kAhead: rows, of 64 KB or 48.
template <class In, NVTEXForm kForm,
          int kAhead_ = (kInputsOf<kForm> * In::kBytes <= 4   ? 4
                         : kInputsOf<kForm> * In::kBytes <= 8 ? 2
                                                              : 1)>
struct RowQueue {
  static constexpr int kInputs = kInputsOf<kForm>, kParts = kVec * In::kBytes / 16;
  static constexpr int kAhead = kAhead_;
  static_assert(kPack % kAhead == 0, "a row always has the same slot");
  uint4 slots[kAhead][kInputs][kParts][kThreads];
  static_assert(sizeof slots <= kSharedAnywhere, "shared memory of a block");

  // Input k of row p, zeros unless it is `inside`. Rows are asked for, and taken, one after the
  // other, and cp_async_commit_group() comes after each.
  __device__ __forceinline__ void request(int p, int k, const void *from, bool inside,
                                          NVTEDType dtype) {
#pragma unroll
    for (int i = 0; i < kParts; ++i) {
      if (kIsWidened<In> && i * 16 >= kVec * bytes_of<In>(dtype)) break;
      cp_async_16(shared_address(&slots[p % kAhead][k][i][threadIdx.x]),
                  static_cast<const uint4 *>(from) + i, inside);
    }
  }
  template <class Scale>
  __device__ __forceinline__ void request(const TileCastArgs<Scale> &args, const Matrix &m,
                                          const ThreadTile &my, int p) {
    if (m.in_vec) {
      const bool inside = p < my.rows && 0 < my.cols;
      const size_t row = my.row0 + my.row + p, col = my.col0 + my.col;
      visit_inputs<kForm>(args, m, row, col, [&](const void *in, size_t at, int k) {
        const NVTEDType dtype = args.q.input_dtype;
        request(p, k, address_of<In>(dtype, in, at), inside, dtype);
      });
    }
    cp_async_commit_group();
  }
  // kVectorised: whether the alignment is known at compile time; otherwise the matrix says.
  template <bool kVectorised, class Scale>
  __device__ __forceinline__ void acquire(const TileCastArgs<Scale> &args, const Matrix &m,
                                          const ThreadTile &my, int p,
                                          Vec<In, kVec> (&x)[kInputs]) const {
    if (!kVectorised && !m.in_vec) return load_row<In, kForm>(args, m, my, p, x);
    acquire(p, x, args.q.input_dtype);
  }
  __device__ __forceinline__ void acquire(int p, Vec<In, kVec> (&x)[kInputs],
                                          NVTEDType dtype) const {
    cp_async_wait_group<kAhead - 1>();
#pragma unroll
    for (int k = 0; k < kInputs; ++k) {
#pragma unroll
      for (int i = 0; i < kParts; ++i) {
        if (kIsWidened<In> && i * 16 >= kVec * bytes_of<In>(dtype)) break;
        uint32_t w[4];
        load_shared(reinterpret_cast<const uint32_t *>(&slots[p % kAhead][k][i][threadIdx.x]), w);
#pragma unroll
        for (int j = 0; j < 4; ++j) x[k].w[4 * i + j] = w[j];
      }
      if constexpr (kIsWidened<In>) x[k] = widened<kVec>(dtype, x[k].w);
    }
  }
};

// The elements v of the thread's row p by apply(x, v), 0 outside the matrix.
template <class In, NVTEXForm kForm, class Scale, class Apply>
__device__ __forceinline__ void row_of(const TileCastArgs<Scale> &args, const Matrix &m,
                                       const ThreadTile &my, int p,
                                       Vec<In, kVec> (&x)[kInputsOf<kForm>],
                                       float (&v)[kHalvesOf<kForm>][kVec], const Apply &apply) {
  apply(x, v);
  if constexpr (kForm == NVTEX_FORM_GATED) {
    if (args.q.fusion.row_scales != nullptr && p < my.rows) {
      const size_t row = m.at / m.cols + my.row0 + my.row + p;
      float scale[1];
      to_float(load_as<In, 1>(args.q.input_dtype, args.q.fusion.row_scales, row, true), scale);
#pragma unroll
      for (int i = 0; i < kVec; ++i) v[0][i] = __fmul_rn(v[0][i], scale[0]);
    }
  }
  if constexpr (kForm == NVTEX_FORM_GATED_DERIVATIVE) {
    if (!args.split) {
#pragma unroll
      for (int i = 0; i < kVec; ++i) {
        if (my.col0 + my.col + i >= m.cols / 2) v[0][i] = v[1][i];
      }
    }
  }
  if (my.height != kTile || my.width != kTile) {
#pragma unroll
    for (int i = 0; i < kVec; ++i) {
      if (p < my.rows && i < my.cols) continue;
#pragma unroll
      for (int h = 0; h < kHalvesOf<kForm>; ++h) v[h][i] = 0.0f;
    }
  }
}

// Calls consume(v, row) with the elements v of each of the thread's rows, and request(row) for rows
// that come kAhead later.
template <class In, NVTEXForm kForm, class Scale, class Request, class Consume>
__device__ __forceinline__ void produce(const TileCastArgs<Scale> &args, const Matrix &m,
                                        const ThreadTile &my, const RowQueue<In, kForm> &queue,
                                        const Request &request, const Consume &consume) {
  const auto row = [&](auto vectorised, int p, const auto &apply) {
    Vec<In, kVec> x[kInputsOf<kForm>];
    queue.template acquire<decltype(vectorised)::value>(args, m, my, p, x);
    request(p + RowQueue<In, kForm>::kAhead);
    float v[kHalvesOf<kForm>][kVec];
    row_of<In, kForm>(args, m, my, p, x, v, apply);
    consume(v, p);
  };
  const auto linear = [&](auto &x, auto &v) { apply_each<kForm>(args.function.linear, x, v); };
  if (!args.function.is_linear() || !m.in_vec) {
#pragma unroll 1
    for (int p = 0; p < kPack; ++p) {
      row(std::false_type{}, p, [&](auto &x, auto &v) { apply<kForm>(args.function, x, v); });
    }
  } else if constexpr (kIsWidened<In>) {
    // A loop that is not unrolled compiles fast and needs few registers.
#pragma unroll 1
    for (int p = 0; p < kPack; ++p) row(std::true_type{}, p, linear);
  } else {
#pragma unroll
    for (int p = 0; p < kPack; ++p) row(std::true_type{}, p, linear);
  }
}

// The same of a tile whose rows nobody has asked for, and after which nobody asks.
template <class In, NVTEXForm kForm, class Scale, class Work>
__device__ __forceinline__ void with_rows(const TileCastArgs<Scale> &args, const Matrix &m,
                                          const ThreadTile &my, RowQueue<In, kForm> &queue,
                                          const Work &work) {
#pragma unroll
  for (int p = 0; p < RowQueue<In, kForm>::kAhead; ++p) queue.request(args, m, my, p);
  work([&](int p) {
    if (p < kPack) {
      queue.request(args, m, my, p);
    } else {
      cp_async_commit_group();
    }
  });
}

}  // namespace nvte
