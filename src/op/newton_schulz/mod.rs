//! Newton-Schulz iterations, which bring a matrix towards the nearest orthogonal one (spec: optim_nvfp4,
//! section 7). They are products of matrices.

pub mod exports;

use super::gemm::{Epilogue, Options, Product};
use super::nvtex;
use super::ranks::{Context, Contexts};
use crate::backend::{self, args::CopyKind};
use crate::check;
use crate::error::{Error, Result};
use crate::handle::{Kind, Slab};
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
    Iterations::plan(x, [rows as i64, cols as i64], coefficients)?.run(context, stream)
}

/// The iterations of a call, after all checks.
struct Iterations<'a> {
    x: Buffer,
    rows: usize,
    cols: usize,
    coefficients: &'a [[f32; 3]],
}

impl<'a> Iterations<'a> {
    fn plan(x: &Tensor, [m, n]: [i64; 2], coefficients: &'a [[f32; 3]]) -> Result<Self> {
        let size = |name: &str, value: i64| {
            usize::try_from(value).map_err(|_| Error::argument(name, "0 or more", value))
        };
        let (rows, cols) = (size("m", m)?, size("n", n)?);
        check::per_tensor("x", x)?;
        check::high_precision("x", x.rowwise.dtype)?;
        if x.rowwise.shape != Shape::new(&[rows, cols]) {
            let expected = format!("[{rows}, {cols}] (m and n)");
            return Err(Error::argument("x.shape", expected, x.rowwise.shape));
        }
        check::pointer("x.data", &x.rowwise)?;
        Ok(Self { x: x.rowwise, rows, cols, coefficients })
    }

    /// Rows of the Gram matrix, on the smaller side of x.
    fn side(&self) -> usize {
        self.rows.min(self.cols)
    }

    fn run(&self, context: &Context, stream: cudaStream_t) -> Result<()> {
        if self.side() == 0 || self.coefficients.is_empty() {
            return Ok(());
        }
        let dtype = self.x.dtype;
        let part = |numel: usize| bytes(numel, dtype).next_multiple_of(256);
        let (gram, whole) = (part(self.side() * self.side()), part(self.rows * self.cols));
        let for_products = backend::device_properties()?.product_workspace;
        let needed = 2 * gram + whole + for_products;
        context.with_memory(needed, stream, |memory| {
            let matrix = |at: usize, rows, cols| {
                let mut tensor = Tensor::new(NVTEScalingMode::NVTE_DELAYED_TENSOR_SCALING);
                let ptr = memory.wrapping_byte_add(at);
                tensor.rowwise = Buffer::new(ptr, dtype, &[rows, cols]);
                tensor
            };
            let [g, p] = [0, gram].map(|at| matrix(at, self.side(), self.side()));
            let mut x = matrix(0, self.rows, self.cols);
            x.rowwise = self.x;
            let mut y = matrix(2 * gram, self.rows, self.cols);
            let workspace = memory.wrapping_byte_add(2 * gram + whole);
            let workspace = Buffer::new(workspace, NVTEDType::kNVTEByte, &[for_products]);
            for &factors in self.coefficients {
                self.step(factors, [&x, &g, &p, &y], workspace, stream)?;
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
        workspace: Buffer,
        stream: cudaStream_t,
    ) -> Result<()> {
        let wide = self.rows <= self.cols;
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
                    sm_count: ("sm_count", 0),
                },
            };
            product.run(stream)
        };
        product(g, (x, !wide), (x, wide), 1.0, None, 0.0)?;
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
