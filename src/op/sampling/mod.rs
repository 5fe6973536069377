//! Tokens drawn from logits.

pub(crate) mod cpu;
pub mod exports;

use crate::backend::{self, args::*};
use crate::check::{self, Memory};
use crate::error::{Error, Result};
use crate::tensor::{Buffer, Shape, Tensor, bytes};
use crate::types::{NVTEDType::*, *};

/// Which tokens may be drawn, and how.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rule {
    /// 0 takes the greatest logit.
    pub temperature: f32,
    /// 0 for all.
    pub top_k: usize,
    /// 1 for all.
    pub top_p: f32,
}

pub(crate) fn sample(
    logits: &Tensor,
    tokens: &Buffer,
    rng_state: &Buffer,
    rule: &Rule,
    stream: cudaStream_t,
) -> Result<()> {
    check::input("logits", logits)?;
    let x = &logits.rowwise;
    check::high_precision("logits", x.dtype)?;
    let (rows, cols) = x.shape.flatten();
    if rows > 0 && (cols == 0 || cols > i32::MAX as usize) {
        return Err(Error::argument("logits.shape", "1 to 2^31 - 1 columns", x.shape));
    }
    check::dtype("tokens", tokens.dtype, &[kNVTEInt32])?;
    if tokens.shape.numel() != rows {
        let expected = format!("{rows} elements, one for each row of logits");
        return Err(Error::argument("tokens.shape", expected, tokens.shape));
    }
    check::dtype("rng_state", rng_state.dtype, &[kNVTEInt64])?;
    check::shape("rng_state", &rng_state.shape, &Shape::new(&[2]))?;
    let &Rule { temperature, top_k, top_p } = rule;
    if !(temperature >= 0.0 && temperature.is_finite()) {
        let expected = "a finite number of at least 0";
        return Err(Error::argument("temperature", expected, temperature));
    }
    if !(top_p > 0.0 && top_p <= 1.0) {
        return Err(Error::argument("top_p", "above 0 and at most 1", top_p));
    }
    let greedy = temperature == 0.0;
    let args = SampleTokensArgs {
        logits: x.ptr(),
        tokens: check::pointer("tokens.data", tokens)?.cast(),
        rng_state: check::pointer("rng_state.data", rng_state)?.cast_const().cast(),
        rows,
        cols,
        top_k: match top_k {
            _ if greedy => 1,
            0 => cols,
            _ => top_k.min(cols),
        },
        temperature: if greedy { 1.0 } else { temperature },
        top_p,
        dtype: x.dtype,
    };
    let inputs = [Memory::of(&"logits.data", x), Memory::of(&"rng_state.data", rng_state)];
    let output = Memory::new(&"tokens.data", args.tokens, bytes(rows, kNVTEInt32));
    check::apart(&inputs, &[output])?;
    if rows > 0 { backend::run(&args, stream) } else { Ok(()) }
}
