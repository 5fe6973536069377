//! C functions of comm_gemm.h.
#![allow(unsafe_code, non_snake_case, clippy::missing_safety_doc, clippy::too_many_arguments)]

use super::*;
use crate::check::truth;
use crate::error::{Handle, guard};
use crate::op::gemm::{Aux, Epilogue, Options};
use crate::op::ranks;
use crate::tensor::from_c;
use std::mem::MaybeUninit;

/// Creates a context for products whose operands are distributed over `nranks` ranks, of which there may be one.
/// Then `comm` is not looked at and may be null. Otherwise it is a communicator of NCCL or what
/// `nvtex_communicator_as_nccl` gives, and lives as long as the context; all ranks make the same calls in the same order.
/// Destroy it with `nvte_comm_gemm_ctx_destroy`.
///
/// Errors: a rank or a number of ranks that is not that of `comm`. Returns null.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn nvte_comm_gemm_ctx_create(
    comm: ncclComm_t,
    nranks: i32,
    rank: i32,
) -> *mut NVTECommGemmCtx {
    guard("nvte_comm_gemm_ctx_create", || {
        let ranks = ranks::several(("comm", comm), ("nranks", nranks), Some(rank))?;
        Ok(Handle(CONTEXTS.insert(Context::new(ranks))?.cast()))
    })
    .0
}

/// Destroys a context and its memory, which no work and no graph may use any more. Null is ignored.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn nvte_comm_gemm_ctx_destroy(ctx: *mut NVTECommGemmCtx) {
    guard("nvte_comm_gemm_ctx_destroy", || ranks::destroy(&CONTEXTS, ctx.cast()));
}

/// How much of a dimension of `global_size` the context's rank holds, where each of P ranks has ceil(global_size / P) of it
/// as long as there is something left. 0 for negative sizes.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn nvte_comm_gemm_numroc(
    ctx: *mut NVTECommGemmCtx,
    global_size: i64,
) -> i64 {
    guard("nvte_comm_gemm_numroc", || {
        CONTEXTS.read("ctx", ctx.cast(), |context| context.share(global_size))
    })
}

/// `D = Bop Aop` as `nvte_cublas_gemm`, where B is distributed over the rows of `Bop` and gathered from all ranks
/// first. Each rank computes its columns of D.
///
/// Shapes: as `nvte_cublas_gemm` with m, n and k, which count all ranks. Of P ranks each holds m / P of A and of the
/// columns of D, and n / P of B; m and n are multiples of P. One rank holds all of A, B and D.
/// Dtypes, scaling modes, epilogue (`pre_act_out` is `pre_gelu_out`), errors: as `nvte_cublas_gemm`, with
/// `use_split_accumulator`. The context keeps the workspace for each stream and allocates it when a call needs
/// more than those before; a captured graph uses it when it is replayed. `bias` and `pre_act_out` may be null.
/// With several ranks modes have one scale, which all ranks have alike.
/// `comm_sm_count` (0 or more) and `algo` are hints about communication, which are not used: B is gathered, then
/// multiplied.
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
    guard("nvte_all_gather_gemm", || {
        run(ctx, Exchange::Gather, [m, n, k], tensors, flags, hints, main_stream)
    });
}

/// As `nvte_all_gather_gemm`, but A and B are distributed along k, the products of all ranks are added, and each
/// rank gets its rows of D. Of P ranks each holds k / P of A and B and n / P rows of D; n and k are multiples of P. The
/// products are rounded to the dtype of D, which is Float32, Float16 or BFloat16, and added in Float32 in the order of the
/// ranks. With several ranks there is no other epilogue than a bias, of which that of rank 0 counts.
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
    guard("nvte_gemm_reduce_scatter", || {
        run(ctx, Exchange::Scatter, [m, n, k], tensors, flags, hints, main_stream)
    });
}

/// As `nvte_gemm_reduce_scatter`, but each rank gets all of D. Where it accumulates, D of rank 0 counts.
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
    guard("nvte_gemm_all_reduce", || {
        run(ctx, Exchange::Reduce, [m, n, k], tensors, flags, hints, main_stream)
    });
}

/// What the products have in common: with one rank they are the same.
fn run(
    ctx: *mut NVTECommGemmCtx,
    exchange: Exchange,
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
            aux: Aux::Input,
        },
    };
    RankProduct { product, sizes, exchange }.run(&context, stream)
}
