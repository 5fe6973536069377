//! Softmax of scaled scores, unmasked, masked and causal (spec: pointwise_norm, section 9).

pub(crate) mod cpu;
pub mod exports;

use crate::backend::{self, args::*};
use crate::check::{self, Memory};
use crate::error::{Error, Result};
use crate::tensor::{Buffer, Shape, Tensor};
use crate::types::*;
use SoftmaxMask::*;
use std::ptr::null;

/// Data of one of the tensors, all of which have the shape and dtype of the first.
fn data<'a>(name: &str, tensor: &'a Tensor, like: Option<&Buffer>) -> Result<&'a Buffer> {
    check::input(name, tensor)?;
    check::high_precision(name, tensor.dtype())?;
    if let Some(like) = like {
        check::dtype(name, tensor.dtype(), &[like.dtype])?;
        check::shape(name, &tensor.rowwise.shape, &like.shape)?;
    }
    Ok(&tensor.rowwise)
}

/// `[matrices, queries, keys]` of a shape.
fn dims(name: &str, shape: &Shape, visible: SoftmaxMask) -> Result<[usize; 3]> {
    match (visible, shape.dims()) {
        (NVTEX_SOFTMAX_CAUSAL, &[batch, queries, keys]) if queries == keys => {
            Ok([batch, queries, keys])
        }
        (NVTEX_SOFTMAX_CAUSAL, _) => {
            Err(Error::argument(format!("{name}.shape"), "3 dimensions, [b*h, s, s]", shape))
        }
        (_, &[batch, heads, queries, keys]) => Ok([batch * heads, queries, keys]),
        _ => Err(Error::argument(format!("{name}.shape"), "4 dimensions, [b, h, s_q, s_k]", shape)),
    }
}

/// The forward pass; only the masked form has a `mask`.
fn forward(
    input: &Tensor,
    mask: Option<&Buffer>,
    results: &Tensor,
    (scale, visible): (f32, SoftmaxMask),
    stream: cudaStream_t,
) -> Result<()> {
    let x = data("input", input, None)?;
    let y = data("softmax_results", results, Some(x))?;
    let [matrices, queries, keys] = dims("input", &x.shape, visible)?;
    let (mask, matrices_per_mask) = match mask {
        Some(mask) => mask_bytes(mask, &x.shape)?,
        None => (null(), matrices),
    };
    let args = SoftmaxArgs {
        input: x.ptr(),
        results: null(),
        output: y.ptr(),
        mask,
        matrices_per_mask,
        matrices,
        queries,
        keys,
        scale,
        visible,
        dtype: x.dtype,
    };
    run(&args, stream)
}

/// The bytes of a mask `[b or more, 1, s_q, s_k]` or `[1, 1, s_q, s_k]`, and for how many matrices each of its
/// matrices is. (The extension for JAX declares as many matrices as one of them has elements.)
fn mask_bytes(mask: &Buffer, scores: &Shape) -> Result<(*const u8, usize)> {
    let &[batch, heads, queries, keys] = scores.dims() else { unreachable!("checked by dims()") };
    if !mask.is_set() {
        return Err(Error::argument("mask.data", "row-wise data", "no data"));
    }
    check::dtype("mask", mask.dtype, &[NVTEDType::kNVTEByte])?;
    let per_mask = match *mask.shape.dims() {
        [1, 1, q, k] if (q, k) == (queries, keys) => batch * heads,
        [b, 1, q, k] if b >= batch && (q, k) == (queries, keys) => heads,
        _ => {
            let expected = format!("[{batch} or more, or 1, 1, {queries}, {keys}]");
            return Err(Error::argument("mask.shape", expected, mask.shape));
        }
    };
    Ok((check::pointer("mask.data", mask)?.cast_const().cast(), per_mask))
}

/// Backward; masked scores have results of 0, so that it is the unmasked one.
fn backward(
    grads: &Tensor,
    results: &Tensor,
    output: &Tensor,
    (scale, visible): (f32, SoftmaxMask),
    stream: cudaStream_t,
) -> Result<()> {
    let dy = data("incoming_grads", grads, None)?;
    let y = data("softmax_results", results, Some(dy))?;
    let dx = data("output_grads", output, Some(dy))?;
    let [matrices, queries, keys] = dims("incoming_grads", &dy.shape, visible)?;
    let args = SoftmaxArgs {
        input: dy.ptr(),
        results: y.ptr().cast_const(),
        output: dx.ptr(),
        mask: null(),
        matrices_per_mask: matrices,
        matrices,
        queries,
        keys,
        scale,
        visible,
        dtype: dy.dtype,
    };
    run(&args, stream)
}

fn run(args: &SoftmaxArgs, stream: cudaStream_t) -> Result<()> {
    let matrix = args.queries * args.keys;
    let bytes = args.matrices * matrix * args.dtype.bits() / 8;
    let (input, output) = match args.results.is_null() {
        true => ("input.data", "softmax_results.data"),
        false => ("incoming_grads.data", "output_grads.data"),
    };
    let inputs = [
        Memory::new(&input, args.input, bytes),
        Memory::new(&"softmax_results.data", args.results, bytes),
    ];
    let output = Memory::new(&output, args.output, bytes);
    check::apart_or_same(&inputs, &output)?;
    let masks = args.matrices.div_ceil(args.matrices_per_mask.max(1));
    check::apart(&[Memory::new(&"mask.data", args.mask, masks * matrix)], &[output])?;
    let empty = args.matrices == 0 || args.queries == 0 || args.keys == 0;
    if empty { Ok(()) } else { backend::run(args, stream) }
}
