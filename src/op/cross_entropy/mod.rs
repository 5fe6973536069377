//! Cross entropy of logits against targets, and of a linear layer whose logits are never all in memory.

pub(crate) mod cpu;
pub mod exports;
mod linear;

pub(crate) use linear::{Linear, linear};

use crate::backend::{self, args::*};
use crate::check::{self, Memory};
use crate::error::{Error, Result};
use crate::tensor::{Buffer, Shape, Tensor, bytes};
use crate::types::{NVTEDType::*, *};
use CrossEntropyPass::*;
use std::ffi::c_void;
use std::ptr::{null, null_mut};

/// What becomes of the losses of the tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reduction {
    /// They stay as they are, and each has a gradient of its own.
    None,
    Sum,
    /// Over the tokens whose targets are not ignored; 0 if there are none.
    Mean,
}

/// The loss of a token.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rule {
    pub reduction: Reduction,
    /// The target of tokens that do not count.
    pub ignored: i64,
    pub label_smoothing: f32,
    pub z_loss: f32,
    /// The first column of the logits among those of the whole vocabulary.
    pub start: usize,
    /// Columns of the whole vocabulary; 0 for those of the logits.
    pub size: usize,
}

impl Default for Rule {
    fn default() -> Self {
        Self {
            reduction: Reduction::Mean,
            ignored: -100,
            label_smoothing: 0.0,
            z_loss: 0.0,
            start: 0,
            size: 0,
        }
    }
}

impl Rule {
    /// Checks the numbers, and gives the size of the whole vocabulary of which `columns` are here.
    fn total(&self, columns: usize) -> Result<usize> {
        if !(0.0..=1.0).contains(&self.label_smoothing) {
            let got = self.label_smoothing;
            return Err(Error::argument("options.label_smoothing", "0 to 1", got));
        }
        if !(self.z_loss >= 0.0 && self.z_loss.is_finite()) {
            let expected = "a finite number of at least 0";
            return Err(Error::argument("options.z_loss", expected, self.z_loss));
        }
        if self.size == 0 && self.start == 0 {
            return Ok(columns);
        }
        let end = self.start.checked_add(columns);
        match end.is_some_and(|end| end <= self.size) && i64::try_from(self.size).is_ok() {
            true => Ok(self.size),
            false => {
                let expected = format!(
                    "at least options.vocabulary_start + {columns} columns, which begin at {}",
                    self.start
                );
                Err(Error::argument("options.vocabulary_size", expected, self.size))
            }
        }
    }

    /// As `total`, for passes that need the whole vocabulary.
    fn whole(&self, columns: usize) -> Result<usize> {
        let total = self.total(columns)?;
        match total == columns {
            true => Ok(total),
            false => {
                let expected = format!("0 or {columns}, the columns of the logits");
                Err(Error::argument("options.vocabulary_size", expected, self.size))
            }
        }
    }
}

/// What the passes forward write.
#[derive(Clone, Copy)]
pub(crate) struct Losses {
    /// `[tokens]`
    pub loss: Buffer,
    /// `[tokens]`, or unset.
    pub logsumexp: Buffer,
    /// Sum or mean, unless the reduction is none.
    pub total: Buffer,
    /// The number of targets that are not ignored, as a float; as `total`.
    pub count: Buffer,
}

/// Rows and columns of logits.
fn matrix(name: &str, tensor: &Tensor) -> Result<(usize, usize)> {
    check::input(name, tensor)?;
    check::high_precision(name, tensor.rowwise.dtype)?;
    let shape = &tensor.rowwise.shape;
    match shape.dims() {
        [] | [_] => Err(Error::argument(
            format!("{name}.shape"),
            "[..., columns], 2 dimensions or more",
            shape,
        )),
        _ => match shape.flatten() {
            (1.., 0) => Err(Error::argument(format!("{name}.shape"), "1 column or more", shape)),
            sizes => Ok(sizes),
        },
    }
}

/// Floats of a shape.
fn floats(name: &str, buffer: &Buffer, dims: &[usize]) -> Result<*mut f32> {
    check::dtype(name, buffer.dtype, &[kNVTEFloat32])?;
    let numel = dims.iter().product();
    if buffer.shape.numel() != numel {
        return Err(Error::argument(format!("{name}.shape"), Shape::new(dims), buffer.shape));
    }
    Ok(check::elements(name, buffer, numel, kNVTEFloat32)?.cast())
}

/// As `floats`, null if the buffer is unset.
fn optional_floats(name: &str, buffer: &Buffer, dims: &[usize]) -> Result<*mut f32> {
    if buffer.is_set() { floats(name, buffer, dims) } else { Ok(null_mut()) }
}

/// One target for each token.
fn targets(buffer: &Buffer, tokens: usize) -> Result<*const c_void> {
    check::dtype("targets", buffer.dtype, &[kNVTEInt32, kNVTEInt64])?;
    if buffer.shape.numel() != tokens {
        let expected = format!("{tokens} elements, one for each token");
        return Err(Error::argument("targets.shape", expected, buffer.shape));
    }
    Ok(check::pointer("targets.data", buffer)?.cast_const())
}

/// The gradient of the reduced loss, or of that of each token; null for 1.
fn grad_of(grad: &Buffer, tokens: usize, rule: &Rule) -> Result<(*const f32, bool)> {
    let per_token = rule.reduction == Reduction::None;
    let dims = [if per_token { tokens } else { 1 }];
    let grad = optional_floats("grad_loss", grad, &dims)?;
    Ok((grad.cast_const(), per_token && !grad.is_null()))
}

/// Where sum or mean and the number of targets go: null without a reduction.
fn reduced(losses: &Losses, rule: &Rule) -> Result<[*mut f32; 2]> {
    match rule.reduction {
        Reduction::None => {
            for (name, buffer) in [("total", &losses.total), ("count", &losses.count)] {
                if buffer.is_set() {
                    let expected = "nothing (options.reduction is none)";
                    return Err(Error::argument(name, expected, buffer.shape));
                }
            }
            Ok([null_mut(); 2])
        }
        _ => Ok([floats("total", &losses.total, &[1])?, floats("count", &losses.count, &[1])?]),
    }
}

/// Arguments of a pass over logits, without what it writes.
fn arguments(
    logits: &Tensor,
    wanted: &Buffer,
    rule: &Rule,
    pass: CrossEntropyPass,
) -> Result<CrossEntropyArgs> {
    let (tokens, vocabulary) = matrix("logits", logits)?;
    Ok(CrossEntropyArgs {
        logits: logits.rowwise.ptr(),
        targets: targets(wanted, tokens)?,
        loss: null_mut(),
        logsumexp: null_mut(),
        partials: null_mut(),
        grad_logits: null_mut(),
        grad: null(),
        count: null(),
        tokens,
        vocabulary,
        start: rule.start,
        total: rule.total(vocabulary)?,
        ignored: rule.ignored,
        label_smoothing: rule.label_smoothing,
        z_loss: rule.z_loss,
        pass,
        dtype: logits.rowwise.dtype,
        target_dtype: wanted.dtype,
        grad_per_token: false,
    })
}

impl CrossEntropyArgs {
    /// Refuses outputs that share memory; gradients may be the logits.
    fn check_apart(&self, total: [*mut f32; 2]) -> Result<()> {
        let numbers = bytes(self.tokens, kNVTEFloat32);
        let matrix = bytes(self.tokens * self.vocabulary, self.dtype);
        let logits = Memory::new(&"logits.data", self.logits, matrix);
        let gradients = Memory::new(&"grad_logits.data", self.grad_logits, matrix);
        let targets = bytes(self.tokens, self.target_dtype);
        let grad = if self.grad_per_token { numbers } else { 4 };
        let backward = self.pass == NVTEX_CROSS_ENTROPY_BACKWARD;
        let [count, sums] = match backward {
            true => [self.count, self.logsumexp.cast_const()],
            false => [null(); 2],
        };
        let written = if backward { null_mut() } else { self.logsumexp };
        let inputs = [
            Memory::new(&"targets.data", self.targets, targets),
            Memory::new(&"grad_loss.data", self.grad, grad),
            Memory::new(&"count.data", count, 4),
            Memory::new(&"logsumexp.data", sums, numbers),
            logits,
            gradients,
        ];
        let outputs = [
            Memory::new(&"loss.data", self.loss, numbers),
            Memory::new(&"logsumexp.data", written, numbers),
            Memory::new(&"partials.data", self.partials, 4 * numbers),
            Memory::new(&"total.data", total[0], 4),
            Memory::new(&"count.data", total[1], 4),
        ];
        check::apart_or_same(&[logits], &gradients)?;
        check::apart(&inputs[..4], &[gradients])?;
        check::apart(&inputs, &outputs)
    }
}

/// Counts targets, and adds losses up.
#[derive(Clone, Copy)]
struct Totals {
    targets: *const c_void,
    target_dtype: NVTEDType,
    tokens: usize,
    ignored: i64,
    total: *mut f32,
    count: *mut f32,
    mean: bool,
}

impl Totals {
    fn new(
        targets: *const c_void,
        (target_dtype, tokens): (NVTEDType, usize),
        [total, count]: [*mut f32; 2],
        rule: &Rule,
    ) -> Self {
        let mean = rule.reduction == Reduction::Mean;
        Self { targets, target_dtype, tokens, ignored: rule.ignored, total, count, mean }
    }

    /// Counts the targets if `counts`, and adds up the losses unless they are null.
    fn run(&self, counts: bool, losses: *const f32, stream: cudaStream_t) -> Result<()> {
        if self.total.is_null() {
            return Ok(());
        }
        let args = TotalLossArgs {
            targets: if counts { self.targets } else { null() },
            losses,
            total: if losses.is_null() { null_mut() } else { self.total },
            count: self.count,
            tokens: self.tokens,
            ignored: self.ignored,
            target_dtype: self.target_dtype,
            mean: self.mean,
        };
        // Without tokens there are no addresses, and sum and number are 0.
        match self.tokens {
            0 => [self.total, self.count].into_iter().try_for_each(|ptr| {
                let (ptr, bytes) = (ptr.cast(), size_of::<f32>());
                backend::run(&MemsetArgs { ptr, bytes, value: 0 }, stream)
            }),
            _ => backend::run(&args, stream),
        }
    }
}

/// Losses and logsumexp.
pub(crate) fn forward(
    logits: &Tensor,
    wanted: &Buffer,
    losses: &Losses,
    rule: &Rule,
    stream: cudaStream_t,
) -> Result<()> {
    let plain = arguments(logits, wanted, rule, NVTEX_CROSS_ENTROPY_FORWARD)?;
    rule.whole(plain.vocabulary)?;
    let total = reduced(losses, rule)?;
    let args = CrossEntropyArgs {
        loss: floats("loss", &losses.loss, &[plain.tokens])?,
        logsumexp: optional_floats("logsumexp", &losses.logsumexp, &[plain.tokens])?,
        ..plain
    };
    args.check_apart(total)?;
    run(&args, stream)?;
    totals(&args, total, rule).run(true, args.loss, stream)
}

/// Gradients of the logits.
pub(crate) fn backward(
    logits: &Tensor,
    wanted: &Buffer,
    logsumexp: &Buffer,
    [grad, count]: [&Buffer; 2],
    grad_logits: &Tensor,
    rule: &Rule,
    stream: cudaStream_t,
) -> Result<()> {
    let plain = arguments(logits, wanted, rule, NVTEX_CROSS_ENTROPY_BACKWARD)?;
    check::input("grad_logits", grad_logits)?;
    check::dtype("grad_logits", grad_logits.rowwise.dtype, &[plain.dtype])?;
    check::shape("grad_logits", &grad_logits.rowwise.shape, &logits.rowwise.shape)?;
    let (grad, grad_per_token) = grad_of(grad, plain.tokens, rule)?;
    let args = CrossEntropyArgs {
        logsumexp: floats("logsumexp", logsumexp, &[plain.tokens])?,
        grad_logits: grad_logits.rowwise.ptr(),
        grad,
        grad_per_token,
        count: match rule.reduction {
            Reduction::Mean => floats("count", count, &[1])?,
            _ => null(),
        },
        ..plain
    };
    args.check_apart([null_mut(); 2])?;
    run(&args, stream)
}

/// Losses, and gradients in place of the logits.
pub(crate) fn fused(
    logits: &Tensor,
    wanted: &Buffer,
    grad: &Buffer,
    losses: &Losses,
    rule: &Rule,
    stream: cudaStream_t,
) -> Result<()> {
    let plain = arguments(logits, wanted, rule, NVTEX_CROSS_ENTROPY_FUSED)?;
    rule.whole(plain.vocabulary)?;
    let total = reduced(losses, rule)?;
    let (grad, grad_per_token) = grad_of(grad, plain.tokens, rule)?;
    let args = CrossEntropyArgs {
        loss: floats("loss", &losses.loss, &[plain.tokens])?,
        logsumexp: optional_floats("logsumexp", &losses.logsumexp, &[plain.tokens])?,
        grad_logits: logits.rowwise.ptr(),
        grad,
        grad_per_token,
        count: if rule.reduction == Reduction::Mean { total[1] } else { null() },
        ..plain
    };
    args.check_apart(total)?;
    let totals = totals(&args, total, rule);
    // The mean's gradients need the number of targets, which only the device knows.
    totals.run(true, null(), stream)?;
    run(&args, stream)?;
    totals.run(false, args.loss, stream)
}

/// What a rank that has some columns of the vocabulary knows of the losses.
pub(crate) fn partial(
    logits: &Tensor,
    wanted: &Buffer,
    partials: &Buffer,
    rule: &Rule,
    stream: cudaStream_t,
) -> Result<()> {
    let plain = arguments(logits, wanted, rule, NVTEX_CROSS_ENTROPY_PARTIAL)?;
    let args =
        CrossEntropyArgs { partials: floats("partials", partials, &[4, plain.tokens])?, ..plain };
    args.check_apart([null_mut(); 2])?;
    run(&args, stream)
}

/// Losses from the partials of all ranks.
pub(crate) fn combine(
    partials: &Buffer,
    wanted: &Buffer,
    losses: &Losses,
    rule: &Rule,
    stream: cudaStream_t,
) -> Result<()> {
    if rule.size == 0 {
        let expected = "the columns of the whole vocabulary, 1 or more";
        return Err(Error::argument("options.vocabulary_size", expected, 0));
    }
    let &[parts, 4, tokens] = partials.shape.dims() else {
        let expected = "[ranks, 4, tokens]";
        return Err(Error::argument("partials.shape", expected, partials.shape));
    };
    let total = reduced(losses, rule)?;
    let args = CombineCrossEntropyArgs {
        partials: floats("partials", partials, &[parts, 4, tokens])?,
        targets: targets(wanted, tokens)?,
        loss: floats("loss", &losses.loss, &[tokens])?,
        logsumexp: optional_floats("logsumexp", &losses.logsumexp, &[tokens])?,
        parts,
        tokens,
        total: Rule { start: 0, ..*rule }.total(0)?,
        ignored: rule.ignored,
        label_smoothing: rule.label_smoothing,
        z_loss: rule.z_loss,
        target_dtype: wanted.dtype,
    };
    let numbers = bytes(tokens, kNVTEFloat32);
    let inputs = [Memory::of(&"partials.data", partials), Memory::of(&"targets.data", wanted)];
    let outputs = [
        Memory::new(&"loss.data", args.loss, numbers),
        Memory::new(&"logsumexp.data", args.logsumexp, numbers),
        Memory::new(&"total.data", total[0], 4),
        Memory::new(&"count.data", total[1], 4),
    ];
    check::apart(&inputs, &outputs)?;
    if tokens > 0 {
        backend::run(&args, stream)?;
    }
    Totals::new(args.targets, (args.target_dtype, tokens), total, rule).run(true, args.loss, stream)
}

fn run(args: &CrossEntropyArgs, stream: cudaStream_t) -> Result<()> {
    if args.tokens > 0 { backend::run(args, stream) } else { Ok(()) }
}

fn totals(args: &CrossEntropyArgs, total: [*mut f32; 2], rule: &Rule) -> Totals {
    Totals::new(args.targets, (args.target_dtype, args.tokens), total, rule)
}
