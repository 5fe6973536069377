//! Cross entropy of a linear layer, by parts of the tokens: the logits of a part are made, turned into their
//! gradients in place, and used in both products of the backward pass before those of the next part are made.

use super::*;
use crate::op::gemm::Product;
use crate::workspace::Workspace;

/// Bytes of workspace if the caller gives no limit.
const LIMIT: usize = 500_000_000;

/// Tokens of a part are a multiple of this where the limit allows it, for the tiles of the products.
const TILE: usize = 128;

/// Fewest tokens of a part, whatever the limit is.
const LEAST: usize = 16;

pub(crate) struct Linear<'a> {
    /// `[..., hidden]`
    pub hidden: &'a Tensor,
    /// `[vocabulary, hidden]`
    pub weight: &'a Tensor,
    pub targets: &'a Buffer,
    /// Gradient of the loss; unset for 1.
    pub grad: &'a Buffer,
    /// As `hidden`, or none.
    pub grad_hidden: Option<&'a Tensor>,
    /// As `weight`, of any dtype of high precision, or none.
    pub grad_weight: Option<&'a Tensor>,
    /// Whether the gradient of the weight is added to what is there.
    pub accumulate: bool,
    /// Bytes of workspace that should do; 0 for a choice of this library.
    pub limit: usize,
}

/// A tensor of row-wise data.
fn plain(buffer: Buffer) -> Tensor {
    let mut tensor = Tensor::new(NVTEScalingMode::NVTE_DELAYED_TENSOR_SCALING);
    tensor.rowwise = buffer;
    tensor
}

/// Rows of a matrix from `first` on.
fn rows(matrix: &Buffer, (first, count, cols): (usize, usize, usize)) -> Tensor {
    let ptr = matrix.ptr().wrapping_byte_add(bytes(first * cols, matrix.dtype));
    plain(Buffer::new(ptr, matrix.dtype, &[count, cols]))
}

impl Linear<'_> {
    /// `d = left right + beta d`; a flag says that an operand is transposed.
    fn product(
        &self,
        d: &Tensor,
        left: (&Tensor, bool),
        right: (&Tensor, bool),
        beta: f32,
        workspace: Buffer,
        stream: cudaStream_t,
    ) -> Result<()> {
        let mut product = Product::of(d, left, right, workspace);
        product.options.beta = ("accumulate_grad_weight", beta);
        product.run(stream)
    }

    /// Checks hidden states and weight; gives tokens, hidden and vocabulary.
    fn sizes(&self) -> Result<[usize; 3]> {
        let (tokens, hidden) = matrix("hidden", self.hidden)?;
        let dtype = self.hidden.rowwise.dtype;
        let (vocabulary, inner) = matrix("weight", self.weight)?;
        check::dtype("weight", self.weight.rowwise.dtype, &[dtype])?;
        if inner != hidden || vocabulary == 0 {
            let expected = format!("[vocabulary, {hidden}], as many columns as hidden");
            return Err(Error::argument("weight.shape", expected, self.weight.rowwise.shape));
        }
        if let Some(grad) = self.grad_hidden {
            check::input("grad_hidden", grad)?;
            check::dtype("grad_hidden", grad.rowwise.dtype, &[dtype])?;
            check::shape("grad_hidden", &grad.rowwise.shape, &self.hidden.rowwise.shape)?;
        }
        if let Some(grad) = self.grad_weight {
            check::input("grad_weight", grad)?;
            check::high_precision("grad_weight", grad.rowwise.dtype)?;
            check::shape("grad_weight", &grad.rowwise.shape, &self.weight.rowwise.shape)?;
        }
        Ok([tokens, hidden, vocabulary])
    }

    /// Tokens of a part: as many as the limit has room for, in parts of about equal size.
    fn part(&self, tokens: usize, row: usize, for_products: usize) -> usize {
        let limit = if self.limit == 0 { LIMIT } else { self.limit };
        let most = (limit.saturating_sub(for_products + 512) / row).max(LEAST);
        let even = tokens.div_ceil(tokens.div_ceil(most).max(1));
        let tiles = even.next_multiple_of(TILE);
        if tiles <= most { tiles.min(tokens) } else { even }
    }
}

/// Loss, and gradients of hidden states and weight if there is a place for them. The mean's gradients need the
/// number of targets, which is counted on the device first, so that nothing waits for the host.
pub(crate) fn linear(
    given: &Linear,
    losses: &Losses,
    rule: &Rule,
    workspace: &mut Workspace,
    stream: cudaStream_t,
) -> Result<()> {
    let [tokens, hidden, vocabulary] = given.sizes()?;
    let dtype = given.hidden.rowwise.dtype;
    let for_products = backend::device_properties()?.product_workspace;
    let row = bytes(vocabulary, dtype);
    let part = given.part(tokens, row, for_products);
    let for_logits = part
        .checked_mul(row)
        .filter(|bytes| *bytes < isize::MAX as usize / 2)
        .ok_or_else(|| Error::argument("weight.shape", "a vocabulary that fits", vocabulary))?
        .next_multiple_of(256);
    let needed = for_logits + for_products + 255;
    let Some(memory) = workspace.take(kNVTEByte, Shape::new(&[needed]))? else { return Ok(()) };
    let logits = memory.wrapping_byte_add(memory.align_offset(256));
    let room = Buffer::new(logits.wrapping_byte_add(for_logits), kNVTEByte, &[for_products]);

    let with_gradients = given.grad_hidden.is_some() || given.grad_weight.is_some();
    let pass = if with_gradients { NVTEX_CROSS_ENTROPY_FUSED } else { NVTEX_CROSS_ENTROPY_FORWARD };
    let total = reduced(losses, rule)?;
    let (grad, grad_per_token) = grad_of(given.grad, tokens, rule)?;
    let args = CrossEntropyArgs {
        logits,
        targets: targets(given.targets, tokens)?,
        loss: floats("loss", &losses.loss, &[tokens])?,
        logsumexp: optional_floats("logsumexp", &losses.logsumexp, &[tokens])?,
        partials: null_mut(),
        grad_logits: if with_gradients { logits } else { null_mut() },
        grad,
        count: if rule.reduction == Reduction::Mean { total[1] } else { null() },
        tokens,
        vocabulary,
        start: 0,
        total: rule.whole(vocabulary)?,
        ignored: rule.ignored,
        label_smoothing: rule.label_smoothing,
        z_loss: rule.z_loss,
        pass,
        dtype,
        target_dtype: given.targets.dtype,
        grad_per_token,
    };
    let unset = Buffer::UNSET;
    let grad_hidden = given.grad_hidden.map_or(&unset, |grad| &grad.rowwise);
    let grad_weight = given.grad_weight.map_or(&unset, |grad| &grad.rowwise);
    let inputs = [
        Memory::of(&"hidden.data", &given.hidden.rowwise),
        Memory::of(&"weight.data", &given.weight.rowwise),
        Memory::of(&"targets.data", given.targets),
        Memory::of(&"grad_loss.data", given.grad),
    ];
    let outputs = [
        Memory::of(&"loss.data", &losses.loss),
        Memory::of(&"logsumexp.data", &losses.logsumexp),
        Memory::of(&"total.data", &losses.total),
        Memory::of(&"count.data", &losses.count),
        Memory::of(&"grad_hidden.data", grad_hidden),
        Memory::of(&"grad_weight.data", grad_weight),
        Memory::new(&"workspace.data", memory, needed),
    ];
    check::apart(&inputs, &outputs)?;

    let totals = super::totals(&args, total, rule);
    totals.run(true, null(), stream)?;
    let weight = plain(Buffer::new(given.weight.rowwise.ptr(), dtype, &[vocabulary, hidden]));
    let mut beta = if given.accumulate { 1.0 } else { 0.0 };
    for first in (0..tokens).step_by(part.max(1)) {
        let count = part.min(tokens - first);
        let states = rows(&given.hidden.rowwise, (first, count, hidden));
        let scores = plain(Buffer::new(logits, dtype, &[count, vocabulary]));
        given.product(&scores, (&states, false), (&weight, true), 0.0, room, stream)?;
        let numbers = |ptr: *mut f32| if ptr.is_null() { ptr } else { ptr.wrapping_add(first) };
        let of_part = CrossEntropyArgs {
            targets: args.targets.wrapping_byte_add(bytes(first, args.target_dtype)),
            loss: numbers(args.loss),
            logsumexp: numbers(args.logsumexp),
            grad: if grad_per_token { numbers(grad.cast_mut()) } else { grad },
            tokens: count,
            ..args
        };
        backend::run(&of_part, stream)?;
        if given.grad_hidden.is_some() {
            let grad = rows(grad_hidden, (first, count, hidden));
            given.product(&grad, (&scores, false), (&weight, false), 0.0, room, stream)?;
        }
        if given.grad_weight.is_some() {
            let grad = rows(grad_weight, (0, vocabulary, hidden));
            given.product(&grad, (&scores, true), (&states, false), beta, room, stream)?;
            beta = 1.0;
        }
    }
    if tokens == 0 && !given.accumulate && grad_weight.bytes() > 0 {
        let (ptr, bytes) = (grad_weight.ptr(), grad_weight.bytes());
        backend::run(&MemsetArgs { ptr, bytes, value: 0 }, stream)?;
    }
    totals.run(false, args.loss, stream)
}
