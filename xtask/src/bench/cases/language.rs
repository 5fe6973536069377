//! The two ends of a language model: embeddings, and losses over a vocabulary. Only this library has these.

use super::super::abi::functions;
use super::*;
use std::ffi::c_void;
use std::ptr::null;

functions!(LanguageFunctions of Language:
    nvtex_cross_entropy_forward(logits: Handle, targets: Handle, loss: Handle, logsumexp: Handle, total: Handle, count: Handle, options: *const c_void, stream: Handle);
    nvtex_cross_entropy_backward(logits: Handle, targets: Handle, logsumexp: Handle, grad: Handle, count: Handle, grad_logits: Handle, options: *const c_void, stream: Handle);
    nvtex_cross_entropy_forward_backward(logits: Handle, targets: Handle, grad: Handle, loss: Handle, logsumexp: Handle, total: Handle, count: Handle, options: *const c_void, stream: Handle);
    nvtex_linear_cross_entropy(hidden: Handle, weight: Handle, targets: Handle, grad: Handle, loss: Handle, logsumexp: Handle, total: Handle, count: Handle, grad_hidden: Handle, grad_weight: Handle, accumulate: bool, options: *const c_void, limit: usize, workspace: Handle, stream: Handle);
    nvtex_embedding_forward(tokens: Handle, weight: Handle, positions: Handle, position_weight: Handle, output: Handle, wrong: Handle, scale: f32, sequence: usize, start: usize, size: usize, stream: Handle);
    nvtex_embedding_backward(tokens: Handle, positions: Handle, grad: Handle, grad_weight: Handle, grad_positions: Handle, accumulate: bool, scale: f32, sequence: usize, start: usize, workspace: Handle, stream: Handle);
);

struct Language {
    functions: LanguageFunctions,
}

impl Language {
    fn new(api: &Api) -> Result<Self> {
        Ok(Self { functions: LanguageFunctions::load(&api.library)? })
    }
}

const NONE: Handle = Handle::NULL;

pub fn cases(kind: Kind) -> Vec<Case> {
    let (tokens, hidden, vocabulary) = match kind {
        Kind::Gpu => (8192, 4096, 128_256),
        Kind::Cpu => (128, 256, 32_000),
    };
    let mut cases = vec![
        cross_entropy(Pass::Forward, tokens, vocabulary),
        cross_entropy(Pass::Backward, tokens, vocabulary),
        cross_entropy(Pass::Fused, tokens, vocabulary),
        cross_entropy(Pass::Fused, tokens, vocabulary + 1),
        cross_entropy(Pass::Fused, 4 * tokens, 32_000),
        embedding(false, 2 * tokens, hidden, vocabulary),
        embedding(true, 2 * tokens, hidden, vocabulary),
        products(tokens, hidden, vocabulary, DType::F32),
        products(tokens, hidden, vocabulary, DType::Bf16),
    ];
    for grad in [Some(DType::F32), Some(DType::Bf16), None] {
        cases.push(linear(tokens, hidden, vocabulary, grad));
    }
    cases.into_iter().map(Case::alone).collect()
}

/// Numbers below a vocabulary.
fn tokens_of<'a>(b: &Build<'a>, count: usize, vocabulary: usize) -> Result<Tensor<'a>> {
    let memory = b.alloc(DType::I64, &[count])?;
    let seed = b.next_seed() << 32;
    let values = (0..count as u64).map(|i| mix(seed + i) % vocabulary as u64);
    b.machine.upload(memory.ptr, &values.flat_map(u64::to_le_bytes).collect::<Vec<_>>())?;
    Ok(b.tensor(&memory))
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Pass {
    Forward,
    Backward,
    Fused,
}

/// What the losses of tokens are written to.
struct Numbers<'a> {
    loss: Tensor<'a>,
    logsumexp: Tensor<'a>,
    total: Tensor<'a>,
    count: Tensor<'a>,
}

impl<'a> Numbers<'a> {
    fn new(b: &Build<'a>, tokens: usize) -> Result<Self> {
        Ok(Self {
            loss: b.tensor(&b.output("loss", DType::F32, &[tokens], Rule::Close)?),
            logsumexp: b.tensor(&b.random(DType::F32, &[tokens])?),
            total: b.tensor(&b.output("total", DType::F32, &[1], Rule::Close)?),
            count: b.tensor(&b.floats(&[tokens as f32])?),
        })
    }
}

fn cross_entropy(pass: Pass, tokens: usize, vocabulary: usize) -> Case {
    let (word, moved) = match pass {
        Pass::Forward => ("fwd", 2),
        Pass::Backward => ("bwd", 4),
        Pass::Fused => ("fwd + bwd in place", 4),
    };
    let name = format!("cross entropy {word} bf16 {tokens}x{vocabulary}");
    let case = Case::new(name, bytes(tokens, vocabulary, moved, 2), move |b| {
        let (language, stream) = (Language::new(b.api)?, b.stream());
        let logits = b.tensor(&b.random(DType::Bf16, &[tokens, vocabulary])?);
        let targets = tokens_of(b, tokens, vocabulary)?;
        let n = Numbers::new(b, tokens)?;
        let gradients = match pass {
            Pass::Backward => b.tensor(&b.alloc(DType::Bf16, &[tokens, vocabulary])?),
            _ => Tensor::new(b.api),
        };
        Ok(Box::new(move || {
            let [x, t, loss, sums, total, count] =
                [&logits, &targets, &n.loss, &n.logsumexp, &n.total, &n.count].map(Tensor::h);
            match pass {
                Pass::Forward => language.nvtex_cross_entropy_forward(
                    x,
                    t,
                    loss,
                    sums,
                    total,
                    count,
                    null(),
                    stream,
                ),
                Pass::Backward => {
                    let dx = gradients.h();
                    language.nvtex_cross_entropy_backward(
                        x,
                        t,
                        sums,
                        NONE,
                        count,
                        dx,
                        null(),
                        stream,
                    );
                }
                Pass::Fused => language.nvtex_cross_entropy_forward_backward(
                    x,
                    t,
                    NONE,
                    loss,
                    sums,
                    total,
                    count,
                    null(),
                    stream,
                ),
            }
        }))
    });
    Case { most_sets: 2, ..case }
}

fn embedding(backward: bool, tokens: usize, hidden: usize, vocabulary: usize) -> Case {
    let word = if backward { "bwd to f32, accumulated" } else { "fwd" };
    let name = format!("embedding {word} bf16 {tokens} of {vocabulary}x{hidden}");
    // Most tokens are different ones: each reads and writes a row of the gradient.
    let case = Case::new(name, bytes(tokens, hidden, if backward { 10 } else { 4 }, 2), move |b| {
        let (language, stream) = (Language::new(b.api)?, b.stream());
        let list = tokens_of(b, tokens, vocabulary)?;
        let dtype = if backward { DType::F32 } else { DType::Bf16 };
        let table = b.tensor(&b.random(dtype, &[vocabulary, hidden])?);
        let rows = b.tensor(&b.random(DType::Bf16, &[tokens, hidden])?);
        if !backward {
            return Ok(Box::new(move || {
                let (list, table, rows) = (list.h(), table.h(), rows.h());
                language.nvtex_embedding_forward(
                    list, table, NONE, NONE, rows, NONE, 1.0, 0, 0, 0, stream,
                );
            }) as Call);
        }
        let call = move |workspace| {
            let (list, table, rows) = (list.h(), table.h(), rows.h());
            language.nvtex_embedding_backward(
                list, NONE, rows, table, NONE, true, 1.0, 0, 0, workspace, stream,
            );
        };
        let workspace = with_workspace(b, &call)?;
        Ok(Box::new(move || call(workspace.h())))
    });
    Case { most_sets: 4, ..case }
}

/// Operations of the three products of a linear layer and its gradients.
fn three(tokens: usize, hidden: usize, vocabulary: usize) -> Work {
    let count = 6.0 * tokens as f64 * hidden as f64 * vocabulary as f64;
    Work::Flops { count, dtype: DType::Bf16 }
}

/// `grad`: the dtype of the weight's gradient, none for the loss alone.
fn linear(tokens: usize, hidden: usize, vocabulary: usize, grad: Option<DType>) -> Case {
    let word = match grad {
        Some(dtype) => format!("fwd + bwd, d_weight {}", dtype.name()),
        None => "fwd".to_owned(),
    };
    let name = format!("linear cross entropy {word}, bf16 {tokens}x{hidden}x{vocabulary}");
    let work = match three(tokens, hidden, vocabulary) {
        Work::Flops { count, dtype } if grad.is_none() => Work::Flops { count: count / 3.0, dtype },
        work => work,
    };
    let case = Case::new(name, work, move |b| {
        let (language, stream) = (Language::new(b.api)?, b.stream());
        let states = b.tensor(&b.random(DType::Bf16, &[tokens, hidden])?);
        let weight = b.tensor(&b.random(DType::Bf16, &[vocabulary, hidden])?);
        let targets = tokens_of(b, tokens, vocabulary)?;
        let n = Numbers::new(b, tokens)?;
        let gradients = match grad {
            Some(dtype) => [
                b.tensor(&b.alloc(DType::Bf16, &[tokens, hidden])?),
                b.tensor(&b.alloc(dtype, &[vocabulary, hidden])?),
            ],
            None => [Tensor::new(b.api), Tensor::new(b.api)],
        };
        let call = move |workspace| {
            let [x, w, t, loss, total, count] =
                [&states, &weight, &targets, &n.loss, &n.total, &n.count].map(Tensor::h);
            let [dx, dw] = gradients.each_ref().map(Tensor::h);
            language.nvtex_linear_cross_entropy(
                x,
                w,
                t,
                NONE,
                loss,
                NONE,
                total,
                count,
                dx,
                dw,
                false,
                null(),
                0,
                workspace,
                stream,
            );
        };
        let workspace = with_workspace(b, &call)?;
        Ok(Box::new(move || call(workspace.h())))
    });
    Case { most_sets: 1, ..case }
}

/// The three products alone, with all logits in memory: what a loss behind a linear layer is measured against.
fn products(tokens: usize, hidden: usize, vocabulary: usize, grad: DType) -> Case {
    let name =
        format!("three products, d_weight {}, bf16 {tokens}x{hidden}x{vocabulary}", grad.name());
    let case = Case::new(name, three(tokens, hidden, vocabulary), move |b| {
        let (api, stream) = (b.api, b.stream());
        let states = b.tensor(&b.random(DType::Bf16, &[tokens, hidden])?);
        let weight = b.tensor(&b.random(DType::Bf16, &[vocabulary, hidden])?);
        let logits = b.tensor(&b.random(DType::Bf16, &[tokens, vocabulary])?);
        let dx = b.tensor(&b.alloc(DType::Bf16, &[tokens, hidden])?);
        let dw = b.tensor(&b.alloc(grad, &[vocabulary, hidden])?);
        let workspace = b.tensor(&b.alloc(DType::Byte, &[32 << 20])?);
        Ok(Box::new(move || {
            let [x, w, y, dx, dw, workspace] =
                [&states, &weight, &logits, &dx, &dw, &workspace].map(Tensor::h);
            // A product takes its right operand first.
            let product = |(transa, a), (transb, b), d| {
                api.nvte_cublas_gemm_v2(
                    transa, transb, &1.0, a, b, &0.0, d, d, workspace, NONE, stream,
                );
            };
            product((1, w), (0, x), y);
            product((0, w), (0, y), dx);
            product((0, x), (1, y), dw);
        }))
    });
    Case { most_sets: 1, ..case }
}
