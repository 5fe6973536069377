//! Newton-Schulz iterations, which bring a matrix towards the nearest orthogonal one (spec: optim_nvfp4,
//! section 7). They are products of matrices. Of several ranks each has columns of x; their Gram matrices are added.

pub mod exports;

use super::gemm::Product;
use super::ranks::{Context, Contexts};
use super::transformer_engine::{self, QuantizationConfig};
use super::{cast, nvtex};
use crate::backend::{self, args::CopyKind, args::SymmetricGemmArgs};
use crate::check;
use crate::error::{Error, Kind, Result};
use crate::handle::{self, Slab};
use crate::parallel::Communicator;
use crate::tensor::{Buffer, Shape, Tensor, bytes};
use crate::types::*;
use std::ffi::c_void;

static CONTEXTS: Contexts = Slab::new(handle::Kind::NewtonSchulzContext);

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
        let (small, whole) = (part(self.side() * self.side()), part(self.rows * self.cols));
        // What ranks add is in Float32.
        let exact = NVTEDType::kNVTEFloat32;
        let sums = match &context.ranks {
            Some(_) => bytes(self.side() * self.side(), exact).next_multiple_of(256),
            None => 0,
        };
        let for_products = backend::device_properties()?.product_workspace;
        let needed = sums + 3 * small + whole + for_products;
        context.with_memory(needed, stream, |memory| {
            let matrix_of = |at: usize, dtype, rows, cols| {
                let mut tensor = Tensor::new(NVTEScalingMode::NVTE_DELAYED_TENSOR_SCALING);
                let ptr = memory.wrapping_byte_add(at);
                tensor.rowwise = Buffer::new(ptr, dtype, &[rows, cols]);
                tensor
            };
            let matrix = |at: usize, rows, cols| matrix_of(sums + at, dtype, rows, cols);
            let mut squares = [0, 1, 2].map(|i| matrix(i * small, self.side(), self.side()));
            let sum = matrix_of(0, exact, self.side(), self.side());
            let mut x = matrix(0, self.rows, self.cols);
            x.rowwise = self.x;
            let mut y = matrix(3 * small, self.rows, self.cols);
            let workspace = memory.wrapping_byte_add(sums + 3 * small + whole);
            let workspace = Buffer::new(workspace, NVTEDType::kNVTEByte, &[for_products]);
            let ranks = context.ranks.as_deref().map(|ranks| (ranks, &sum));
            let symmetric = ranks.is_none()
                && bytes(1, dtype) == 2
                && self.gram(&x, &squares[0], workspace, stream)?;
            let at_once = if symmetric && self.may_pair() { 2 } else { 1 };
            for (i, factors) in self.coefficients.chunks(at_once).enumerate() {
                if symmetric {
                    if i > 0 {
                        self.gram(&x, &squares[0], workspace, stream)?;
                    }
                    self.factor(factors, &mut squares, workspace, stream)?;
                    let q = &squares[1];
                    let (left, right) = if self.wide { (q, &x) } else { (&x, q) };
                    let options = (1.0, None, 0.0);
                    product(&y, (left, false), (right, false), options, workspace, stream)?;
                } else {
                    let [g, p, _] = &squares;
                    self.step(factors[0], [&x, g, p, &y], ranks, workspace, stream)?;
                }
                std::mem::swap(&mut x, &mut y);
            }
            match x.rowwise.ptr() == self.x.ptr() {
                true => Ok(()),
                false => copy(&self.x, &x.rowwise, stream),
            }
        })
    }

    /// Whether two iterations are made at once: where products with x cost so much more than those of Gram matrices
    /// that it pays, because they take three more of the latter and two less with x; and in bfloat16 alone, because
    /// it is up to three times less accurate.
    fn may_pair(&self) -> bool {
        let long = self.rows.max(self.cols) >= 2 * self.side();
        long && self.x.dtype == NVTEDType::kNVTEBFloat16
    }

    /// `g = x x^T`, or of more rows than columns `x^T x`, by products that are symmetric. False if there are none.
    fn gram(
        &self,
        x: &Tensor,
        g: &Tensor,
        workspace: Buffer,
        stream: cudaStream_t,
    ) -> Result<bool> {
        match Symmetric::of(x, x, g).run(self.rows.max(self.cols), !self.wide, workspace, stream) {
            Ok(()) => Ok(true),
            Err(error) if error.kind == Kind::Unsupported => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// The matrix q of one or two iterations, `y = q x`, from the Gram matrix g of x: with `q_1 = a I + b g + c g^2`
    /// the Gram matrix of `q_1 x` is `q_1^2 g`, and all of these commute. g is the first of the three matrices, and q
    /// becomes the second.
    ///
    /// Each is rounded. More than two iterations at once, without the Gram matrix of what x has become, may blow up.
    fn factor(
        &self,
        factors: &[[f32; 3]],
        [g, q, w]: &mut [Tensor; 3],
        workspace: Buffer,
        stream: cudaStream_t,
    ) -> Result<()> {
        let side = self.side();
        let run = |product: Symmetric| product.run(side, false, workspace, stream);
        let quadratic = |g: &Tensor, to: &Tensor, [a, b, c]: [f32; 3]| {
            run(Symmetric { alpha: c, beta: b, diagonal: a, ..Symmetric::of(g, g, to) })
        };
        quadratic(g, q, factors[0])?;
        for &next in &factors[1..] {
            run(Symmetric::of(q, g, w))?;
            run(Symmetric::of(q, w, g))?;
            quadratic(g, w, next)?;
            run(Symmetric::of(w, q, g))?;
            std::mem::swap(g, q);
        }
        Ok(())
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
        let product = |d, left, right, alpha, added: Option<&Tensor>, beta| {
            product(d, left, right, (alpha, added, beta), workspace, stream)
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

/// `d = alpha left right + beta added`, with operands transposed or not.
fn product(
    d: &Tensor,
    left: (&Tensor, bool),
    right: (&Tensor, bool),
    (alpha, added, beta): (f32, Option<&Tensor>, f32),
    workspace: Buffer,
    stream: cudaStream_t,
) -> Result<()> {
    let mut product = Product::of(d, left, right, workspace);
    product.c = added.map(|added| added.rowwise);
    product.options.alpha = alpha;
    product.options.beta = ("coefficients", beta);
    product.run(stream)
}

/// `d = alpha left right + beta right + diagonal I`, which is symmetric.
struct Symmetric<'a> {
    left: &'a Tensor,
    right: &'a Tensor,
    d: &'a Tensor,
    alpha: f32,
    beta: f32,
    diagonal: f32,
}

impl<'a> Symmetric<'a> {
    fn of(left: &'a Tensor, right: &'a Tensor, d: &'a Tensor) -> Self {
        Self { left, right, d, alpha: 1.0, beta: 0.0, diagonal: 0.0 }
    }

    /// Runs it with `k` elements in each sum, and operands `[n, k]` or, transposed, `[k, n]`.
    fn run(
        &self,
        k: usize,
        transposed: bool,
        workspace: Buffer,
        stream: cudaStream_t,
    ) -> Result<()> {
        let args = SymmetricGemmArgs {
            a: self.left.rowwise.ptr(),
            b: self.right.rowwise.ptr(),
            c: self.right.rowwise.ptr(),
            d: self.d.rowwise.ptr(),
            workspace: workspace.ptr(),
            workspace_bytes: workspace.bytes(),
            n: self.d.rowwise.shape.flatten().0,
            k,
            alpha: self.alpha,
            beta: self.beta,
            diagonal: self.diagonal,
            dtype: self.d.rowwise.dtype,
            transposed,
        };
        backend::run(&args, stream)
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
