//! C functions of comm_gemm.h.
#![allow(unsafe_code, non_snake_case, clippy::missing_safety_doc, clippy::too_many_arguments)]

use super::*;
use crate::check::truth;
use crate::error::{Handle, guard};
use crate::op::gemm::{Epilogue, Options};
use crate::op::ranks;
use crate::tensor::from_c;
use std::mem::MaybeUninit;

/// Creates a context for products whose operands are distributed over `nranks` ranks, of which there may be one.
/// Then `comm` is not looked at and may be null. Destroy it with `nvte_comm_gemm_ctx_destroy`.
///
/// Errors: a rank that is not one of them; more ranks than one (`NVTEX_UNSUPPORTED`). Returns null.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn nvte_comm_gemm_ctx_create(
    comm: ncclComm_t,
    nranks: i32,
    rank: i32,
) -> *mut NVTECommGemmCtx {
    let _ = comm;
    guard("nvte_comm_gemm_ctx_create", || {
        let instead = "use nvte_cublas_gemm_v2, and the communicator's own all-gather before it, or its \
                       reduce-scatter or all-reduce after it";
        ranks::one_rank(("nranks", nranks), Some(rank), "the exchange of operands and sums", instead)?;
        Ok(Handle(CONTEXTS.insert(Default::default())?.cast()))
    })
    .0
}

/// Destroys a context and its memory, which no work and no graph may use any more. Null is ignored.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn nvte_comm_gemm_ctx_destroy(ctx: *mut NVTECommGemmCtx) {
    guard("nvte_comm_gemm_ctx_destroy", || ranks::destroy(&CONTEXTS, ctx.cast()));
}

/// How much of a dimension of `global_size` the context's rank holds: all of it, since it is the only one. 0 for
/// negative sizes.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn nvte_comm_gemm_numroc(
    ctx: *mut NVTECommGemmCtx,
    global_size: i64,
) -> i64 {
    guard("nvte_comm_gemm_numroc", || CONTEXTS.read("ctx", ctx.cast(), |_| global_size.max(0)))
}

/// `D = Bop Aop` as `nvte_cublas_gemm`, where B is distributed over the rows of `Bop` and gathered from all ranks
/// first. Each rank computes its columns of D.
///
/// Shapes: as `nvte_cublas_gemm` with m, n and k, which count all ranks; one rank holds all of A, B and D.
/// Dtypes, scaling modes, epilogue (`pre_act_out` is `pre_gelu_out`), errors: as `nvte_cublas_gemm`, with
/// `use_split_accumulator`. The context keeps the workspace for each stream and allocates it when a call needs
/// more than those before; a captured graph uses it when it is replayed. `bias` and `pre_act_out` may be null.
/// `comm_sm_count` (0 or more) and `algo` are hints about communication, of which there is none.
/// Errors, too: operands that do not have the sizes m, n and k; an unknown `algo`.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn nvte_all_gather_gemm(
    ctx: *mut NVTECommGemmCtx,
    m: i64,
    n: i64,
    k: i64,
    A: NVTETensor,
    B: NVTETensor,
    D: NVTETensor,
    bias: NVTETensor,
    pre_act_out: NVTETensor,
    transa: MaybeUninit<bool>,
    transb: MaybeUninit<bool>,
    grad: MaybeUninit<bool>,
    accumulate: MaybeUninit<bool>,
    comm_sm_count: i32,
    main_stream: cudaStream_t,
    algo: MaybeUninit<NVTECommGemmAlgoType>,
) {
    let tensors = [A, B, D, bias, pre_act_out];
    let flags = [transa, transb, grad, accumulate].map(truth);
    let hints = (comm_sm_count, algo);
    guard("nvte_all_gather_gemm", || run(ctx, [m, n, k], tensors, flags, hints, main_stream));
}

/// As `nvte_all_gather_gemm`, but A and B are distributed along k, the products of all ranks are added, and each
/// rank gets its rows of D. One rank holds all of A, B and D.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn nvte_gemm_reduce_scatter(
    ctx: *mut NVTECommGemmCtx,
    m: i64,
    n: i64,
    k: i64,
    A: NVTETensor,
    B: NVTETensor,
    D: NVTETensor,
    bias: NVTETensor,
    pre_act_out: NVTETensor,
    transa: MaybeUninit<bool>,
    transb: MaybeUninit<bool>,
    grad: MaybeUninit<bool>,
    accumulate: MaybeUninit<bool>,
    comm_sm_count: i32,
    main_stream: cudaStream_t,
    algo: MaybeUninit<NVTECommGemmAlgoType>,
) {
    let tensors = [A, B, D, bias, pre_act_out];
    let flags = [transa, transb, grad, accumulate].map(truth);
    let hints = (comm_sm_count, algo);
    guard("nvte_gemm_reduce_scatter", || run(ctx, [m, n, k], tensors, flags, hints, main_stream));
}

/// As `nvte_gemm_reduce_scatter`, but each rank gets all of D.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn nvte_gemm_all_reduce(
    ctx: *mut NVTECommGemmCtx,
    m: i64,
    n: i64,
    k: i64,
    A: NVTETensor,
    B: NVTETensor,
    D: NVTETensor,
    bias: NVTETensor,
    pre_act_out: NVTETensor,
    transa: MaybeUninit<bool>,
    transb: MaybeUninit<bool>,
    grad: MaybeUninit<bool>,
    accumulate: MaybeUninit<bool>,
    comm_sm_count: i32,
    main_stream: cudaStream_t,
    algo: MaybeUninit<NVTECommGemmAlgoType>,
) {
    let tensors = [A, B, D, bias, pre_act_out];
    let flags = [transa, transb, grad, accumulate].map(truth);
    let hints = (comm_sm_count, algo);
    guard("nvte_gemm_all_reduce", || run(ctx, [m, n, k], tensors, flags, hints, main_stream));
}

/// What the products have in common: with one rank they are the same.
fn run(
    ctx: *mut NVTECommGemmCtx,
    sizes: [i64; 3],
    [a, b, d, bias, pre_act_out]: [NVTETensor; 5],
    [transa, transb, grad, accumulate]: [bool; 4],
    (comm_sm_count, algo): (i32, MaybeUninit<NVTECommGemmAlgoType>),
    stream: cudaStream_t,
) -> Result<()> {
    let context = CONTEXTS.get("ctx", ctx.cast())?;
    let [a, b, d] =
        [("A", a), ("B", b), ("D", d)].map(|(name, handle)| check::tensor(name, handle));
    let (a, b, d) = (a?, b?, d?);
    let side = |name, handle| Ok((name, check::rowwise_or_unset(name, handle)?));
    if comm_sm_count < 0 {
        return Err(Error::argument("comm_sm_count", "0 or more", comm_sm_count));
    }
    from_c("algo", algo)?;
    let product = Product {
        a: &a,
        b: &b,
        c: None,
        d: &d,
        epilogue: Epilogue {
            bias: side("bias", bias)?,
            aux: side("pre_act_out", pre_act_out)?,
            grad,
        },
        workspace: Buffer::UNSET,
        options: Options {
            transa,
            transb,
            alpha: 1.0,
            beta: ("accumulate", f32::from(accumulate)),
            split_accumulator: ("use_split_accumulator", true),
            sm_count: ("math_sm_count", 0),
        },
    };
    RankProduct { product, sizes }.run(&context, stream)
}
