//! Newton-Schulz iterations, which bring a matrix towards the nearest orthogonal one (spec: optim_nvfp4,
//! section 7). They are products of matrices. Of several ranks each has columns of x; their Gram matrices are added.

pub mod exports;

use super::gemm::{Aux, Epilogue, Options, Product};
use super::ranks::{Context, Contexts};
use super::transformer_engine::{self, QuantizationConfig};
use super::{cast, nvtex};
use crate::backend::{self, args::CopyKind};
use crate::check;
use crate::error::{Error, Result};
use crate::handle::{Kind, Slab};
use crate::parallel::Communicator;
use crate::tensor::{Buffer, Shape, Tensor, bytes};
use crate::types::*;
use std::ffi::c_void;

static CONTEXTS: Contexts = Slab::new(Kind::NewtonSchulzContext);

/// Iterates on a matrix, which is not normalised before, with memory of the context.
pub(crate) fn iterate(
    context: &Context,
    x: &Tensor,
    coefficients: &[[f32; 3]],
    stream: cudaStream_t,
) -> Result<()> {
    let (rows, cols) = x.rowwise.shape.flatten();
    Iterations::plan(context, x, [rows as i64, cols as i64], coefficients)?.run(context, stream)
}

/// The iterations of a call, after all checks.
struct Iterations<'a> {
    x: Buffer,
    rows: usize,
    /// Of this rank.
    cols: usize,
    /// Gram matrices are those of the rows: always where ranks have columns.
    wide: bool,
    coefficients: &'a [[f32; 3]],
}

impl<'a> Iterations<'a> {
    fn plan(
        context: &Context,
        x: &Tensor,
        [m, n]: [i64; 2],
        coefficients: &'a [[f32; 3]],
    ) -> Result<Self> {
        let size = |name: &str, value: i64| {
            usize::try_from(value).map_err(|_| Error::argument(name, "0 or more", value))
        };
        let (rows, all) = (size("m", m)?, size("n", n)?);
        let cols = context.share(n) as usize;
        let wide = context.ranks.is_some() || rows <= all;
        check::per_tensor("x", x)?;
        check::high_precision("x", x.rowwise.dtype)?;
        if x.rowwise.shape != Shape::new(&[rows, cols]) {
            let what = if context.ranks.is_some() { "the own part of n" } else { "n" };
            let expected = format!("[{rows}, {cols}] (m and {what})");
            return Err(Error::argument("x.shape", expected, x.rowwise.shape));
        }
        check::pointer("x.data", &x.rowwise)?;
        Ok(Self { x: x.rowwise, rows, cols, wide, coefficients })
    }

    /// Rows of the Gram matrix: on one rank the smaller side of x.
    fn side(&self) -> usize {
        if self.wide { self.rows } else { self.cols }
    }

    fn run(&self, context: &Context, stream: cudaStream_t) -> Result<()> {
        if self.side() == 0 || self.coefficients.is_empty() {
            return Ok(());
        }
        let dtype = self.x.dtype;
        let part = |numel: usize| bytes(numel, dtype).next_multiple_of(256);
        let (gram, whole) = (part(self.side() * self.side()), part(self.rows * self.cols));
        // What ranks add is in Float32.
        let exact = NVTEDType::kNVTEFloat32;
        let sums = match &context.ranks {
            Some(_) => bytes(self.side() * self.side(), exact).next_multiple_of(256),
            None => 0,
        };
        let for_products = backend::device_properties()?.product_workspace;
        let needed = sums + 2 * gram + whole + for_products;
        context.with_memory(needed, stream, |memory| {
            let matrix_of = |at: usize, dtype, rows, cols| {
                let mut tensor = Tensor::new(NVTEScalingMode::NVTE_DELAYED_TENSOR_SCALING);
                let ptr = memory.wrapping_byte_add(at);
                tensor.rowwise = Buffer::new(ptr, dtype, &[rows, cols]);
                tensor
            };
            let matrix = |at: usize, rows, cols| matrix_of(sums + at, dtype, rows, cols);
            let [g, p] = [0, gram].map(|at| matrix(at, self.side(), self.side()));
            let sum = matrix_of(0, exact, self.side(), self.side());
            let mut x = matrix(0, self.rows, self.cols);
            x.rowwise = self.x;
            let mut y = matrix(2 * gram, self.rows, self.cols);
            let workspace = memory.wrapping_byte_add(sums + 2 * gram + whole);
            let workspace = Buffer::new(workspace, NVTEDType::kNVTEByte, &[for_products]);
            for &factors in self.coefficients {
                let ranks = context.ranks.as_deref().map(|ranks| (ranks, &sum));
                self.step(factors, [&x, &g, &p, &y], ranks, workspace, stream)?;
                std::mem::swap(&mut x, &mut y);
            }
            match x.rowwise.ptr() == self.x.ptr() {
                true => Ok(()),
                false => copy(&self.x, &x.rowwise, stream),
            }
        })
    }

    /// `y = a x + (b g + c g^2) x` with `g = x x^T`. If x has more rows than columns, the same from the other
    /// side: `y = a x + x (b g + c g^2)` with `g = x^T x`.
    fn step(
        &self,
        [a, b, c]: [f32; 3],
        [x, g, p, y]: [&Tensor; 4],
        ranks: Option<(&Communicator, &Tensor)>,
        workspace: Buffer,
        stream: cudaStream_t,
    ) -> Result<()> {
        let wide = self.wide;
        // `d = alpha left right + beta added`: a product takes its right operand first.
        let product = |d, (left, transb), (right, transa), alpha, added: Option<&Tensor>, beta| {
            let none = ("", Buffer::UNSET);
            let product = Product {
                a: right,
                b: left,
                c: added.map(|added| added.rowwise),
                d,
                epilogue: Epilogue { bias: none, aux: none, grad: false },
                workspace,
                options: Options {
                    transa,
                    transb,
                    alpha,
                    beta: ("coefficients", beta),
                    split_accumulator: ("use_split_accumulator", true),
                    aux: Aux::Input,
                    sm_count: ("sm_count", 0),
                },
            };
            product.run(stream)
        };
        match ranks {
            None => product(g, (x, !wide), (x, wide), 1.0, None, 0.0)?,
            Some((ranks, sum)) => {
                let all = &sum.rowwise;
                match self.cols {
                    0 => transformer_engine::memset(all.ptr(), 0, all.bytes(), stream)?,
                    _ => product(sum, (x, false), (x, true), 1.0, None, 0.0)?,
                }
                ranks.sum(all, "nvte_newton_schulz", stream)?;
                cast::quantize(sum, g, &QuantizationConfig::DEFAULT, stream)?;
            }
        }
        if self.cols == 0 {
            return Ok(());
        }
        product(p, (g, false), (g, false), c, Some(g), b)?;
        let (left, right) = if wide { (p, x) } else { (x, p) };
        product(y, (left, false), (right, false), 1.0, Some(x), a)
    }
}

/// Copies a matrix on the device.
fn copy(to: &Buffer, from: &Buffer, stream: cudaStream_t) -> Result<()> {
    let (to, from, bytes): (_, *const c_void, _) = (to.ptr(), from.ptr().cast_const(), to.bytes());
    // SAFETY: both matrices have the same size; x was checked, and the other one lies in the context's memory.
    #[allow(unsafe_code)]
    unsafe {
        nvtex::memcpy(to, from, bytes, CopyKind::NVTEX_COPY_ON_DEVICE, stream)
    }
}
