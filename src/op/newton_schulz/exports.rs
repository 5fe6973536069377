//! C functions of newton_schulz.h.
#![allow(unsafe_code, clippy::missing_safety_doc, clippy::too_many_arguments)]

use super::*;
use crate::error::{Handle, guard};
use crate::op::ranks;

/// Creates a context for Newton-Schulz iterations on a matrix that is distributed over `nranks` ranks, of which
/// there may be one. Then `comm` is not looked at and may be null. Otherwise it is a communicator of NCCL or what
/// `nvtex_communicator_as_nccl` gives, and lives as long as the context; all ranks make the same calls in the same order.
/// Destroy it with `nvte_cusolvermp_ctx_destroy`.
///
/// Errors: a rank or a number of ranks that is not that of `comm`. Returns null.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn nvte_cusolvermp_ctx_create(
    comm: ncclComm_t,
    nranks: i32,
    rank: i32,
) -> *mut NVTECusolverMpCtx {
    guard("nvte_cusolvermp_ctx_create", || {
        let ranks = ranks::several(("comm", comm), ("nranks", nranks), Some(rank))?;
        Ok(Handle(CONTEXTS.insert(Context::new(ranks))?.cast()))
    })
    .0
}

/// Destroys a context and its memory, which no work and no graph may use any more. Null is ignored.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn nvte_cusolvermp_ctx_destroy(ctx: *mut NVTECusolverMpCtx) {
    guard("nvte_cusolvermp_ctx_destroy", || ranks::destroy(&CONTEXTS, ctx.cast()));
}

/// Iterates `x = a x + b (x x^T) x + c (x x^T)^2 x` in place, with a, b and c of each iteration from
/// `coefficients`: for coefficients that suit the singular values of x, these come near to 1. x is not
/// normalised before.
///
/// Shapes: x `[m, n]`, any sizes; of P ranks each has the next ceil(n / P) columns as long as there are some left, in a
/// matrix of their own; `coefficients` (on the host) `num_coefficients` numbers, which must be
/// `3 * num_iterations`: a, b, c, a, b, c, ...
/// Dtypes: Float32, Float16, BFloat16. The three products of an iteration are summed in float32, and rounded to
/// the dtype of x; products of Float32 are those of `nvte_cublas_gemm`.
/// On one rank, in 16 bits, only half of each symmetric matrix is computed (on CUDA with compute capability 9.0, a
/// smaller side in multiples of 16 from about 2064 on, and an x that is aligned to 16 bytes). Then in BFloat16, if one
/// side of x is at least twice the other, the matrices of two iterations are multiplied before x is. That rounds x
/// less often, but its matrices more often: the result of five iterations differs by 1 to 6 % of its norm from
/// the exact one, where it is 1 to 3 % of single iterations, and less than of those if x is nearly singular.
/// Several ranks add their Gram matrices, `[m, m]` in Float32, once in each iteration, in the order of the ranks.
/// Memory: the context keeps that of three matrices of the smaller side of x, and of one like x, for each stream;
/// it is allocated when a call needs more than those before. A captured graph uses it when it is replayed.
/// Empty x, no iterations: nothing is written.
/// Errors: other shapes, dtypes or numbers of coefficients; negative sizes; a null or misaligned x.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn nvte_newton_schulz(
    ctx: *mut NVTECusolverMpCtx,
    m: i64,
    n: i64,
    x: NVTETensor,
    num_iterations: i64,
    coefficients: *const f32,
    num_coefficients: i64,
    caller_stream: cudaStream_t,
) {
    guard("nvte_newton_schulz", || {
        let context = CONTEXTS.get("ctx", ctx.cast())?;
        let x = check::tensor("x", x)?;
        if num_iterations < 0 {
            return Err(Error::argument("num_iterations", "0 or more", num_iterations));
        }
        let expected = num_iterations.saturating_mul(3);
        let count = usize::try_from(num_coefficients).ok().filter(|_| num_coefficients == expected);
        let Some(count) = count else {
            let expected = format!("{expected} (3 for each of {num_iterations} iterations)");
            return Err(Error::argument("num_coefficients", expected, num_coefficients));
        };
        let count = ("num_coefficients", count);
        // SAFETY: the caller vouches for the array.
        let coefficients = unsafe { check::slice("coefficients", coefficients, count)? };
        let (coefficients, _) = coefficients.as_chunks::<3>();
        Iterations::plan(&context, &x, [m, n], coefficients)?.run(&context, caller_stream)
    });
}
