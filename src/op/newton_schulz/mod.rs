//! Newton-Schulz iterations, which bring a matrix towards the nearest orthogonal one (spec: optim_nvfp4,
//! section 7). They are products of matrices. Of several ranks each has columns of x; their Gram matrices are added.

pub mod exports;

use super::gemm::{Epilogue, Options, Product};
use super::ranks::{Context, Contexts};
use super::transformer_engine::{self, QuantizationConfig};
use super::{cast, nvtex};
use crate::backend::{self, args::AddArgs, args::CopyKind};
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
        let (square, whole) = (part(self.side() * self.side()), part(self.rows * self.cols));
        let ranks = context.ranks.as_deref();
        let most_joined = if ranks.is_some() { 1 } else { self.most_joined() };
        let squares = if most_joined == 1 { 2 } else { SQUARES };
        // What ranks add is in Float32.
        let exact = NVTEDType::kNVTEFloat32;
        let sums =
            ranks.map_or(0, |_| bytes(self.side() * self.side(), exact).next_multiple_of(256));
        let for_products = backend::device_properties()?.product_workspace;
        let needed = sums + squares * square + whole + for_products;
        context.with_memory(needed, stream, |memory| {
            let matrix_of = |at: usize, dtype, rows, cols| {
                let mut tensor = Tensor::new(NVTEScalingMode::NVTE_DELAYED_TENSOR_SCALING);
                let ptr = memory.wrapping_byte_add(at);
                tensor.rowwise = Buffer::new(ptr, dtype, &[rows, cols]);
                tensor
            };
            let matrix = |at: usize, rows, cols| matrix_of(sums + at, dtype, rows, cols);
            let sum = matrix_of(0, exact, self.side(), self.side());
            let mut memories = [0, 1, 2, 3, 4]
                .map(|i| matrix(i.min(squares - 1) * square, self.side(), self.side()));
            let mut x = matrix(0, self.rows, self.cols);
            x.rowwise = self.x;
            let mut y = matrix(squares * square, self.rows, self.cols);
            let workspace = memory.wrapping_byte_add(sums + squares * square + whole);
            let workspace = Buffer::new(workspace, NVTEDType::kNVTEByte, &[for_products]);
            let products = Products {
                wide: self.wide,
                ranks: ranks.map(|ranks| (ranks, &sum)),
                halves: self.wide
                    && ranks.is_none()
                    && self.side() >= LEAST_HALVED
                    && self.side().is_multiple_of(512),
                workspace,
                stream,
            };
            let mut left = self.coefficients;
            while !left.is_empty() {
                let most = if left.len() == self.coefficients.len() { 3 } else { 2 };
                let (joined, rest) = left.split_at(most.min(most_joined).min(left.len()));
                match joined {
                    [one] => products.step(*one, [&x, &memories[0], &memories[1], &y])?,
                    several => products.joined(several, &x, &mut memories, &y)?,
                }
                std::mem::swap(&mut x, &mut y);
                left = rest;
            }
            match x.rowwise.ptr() == self.x.ptr() {
                true => Ok(()),
                false => copy(&self.x, &x.rowwise, stream),
            }
        })
    }

    /// Most iterations that are computed with one product with x. A joined iteration takes four products of
    /// squares instead of two with x and one of squares, where tensor cores bound all of them.
    fn most_joined(&self) -> usize {
        let long = self.rows.max(self.cols);
        let joins = self.coefficients.len() > 1
            && long >= 2 * self.side()
            && self.coefficients.iter().all(|[a, ..]| a.abs() >= LEAST_FACTOR);
        if joins { 3 } else { 1 }
    }
}

/// Square matrices of joined iterations.
const SQUARES: usize = 5;

/// Side from which symmetric matrices are computed in halves, three quarters of the products: those of halves
/// then still keep all multiprocessors of an H200 busy, with one tile of 128 x 256 each.
const LEAST_HALVED: usize = 3072;

/// Joined iterations divide by `a`.
const LEAST_FACTOR: f32 = 0.25;

/// How matrices are multiplied. If x has more rows than columns, its Gram matrix is `x^T x`, and other matrices
/// are multiplied by x from the left.
struct Products<'a> {
    wide: bool,
    /// The other ranks, and room for what they add.
    ranks: Option<(&'a Communicator, &'a Tensor)>,
    /// Squares, which are symmetric, are kept as three blocks of half the side, one after the other: the upper
    /// left one, the one on its right, and the lower right one.
    halves: bool,
    workspace: Buffer,
    stream: cudaStream_t,
}

impl Products<'_> {
    /// `d = alpha left right + beta added`: a product takes its right operand first.
    fn product(
        &self,
        d: &Tensor,
        [(left, transb), (right, transa)]: [(&Tensor, bool); 2],
        alpha: f32,
        added: Option<(&Tensor, f32)>,
    ) -> Result<()> {
        let none = ("", Buffer::UNSET);
        let product = Product {
            a: right,
            b: left,
            c: added.map(|(added, _)| added.rowwise),
            d,
            epilogue: Epilogue { bias: none, aux: none, grad: false },
            workspace: self.workspace,
            options: Options {
                transa,
                transb,
                alpha,
                beta: ("coefficients", added.map_or(0.0, |(_, beta)| beta)),
                split_accumulator: ("use_split_accumulator", true),
                sm_count: ("sm_count", 0),
            },
        };
        product.run(self.stream)
    }

    /// `g = x x^T`
    fn gram(&self, g: &Tensor, x: &Tensor) -> Result<()> {
        if let Some((ranks, sum)) = self.ranks {
            let all = &sum.rowwise;
            match x.rowwise.shape.numel() {
                0 => transformer_engine::memset(all.ptr(), 0, all.bytes(), self.stream)?,
                _ => self.product(sum, [(x, false), (x, true)], 1.0, None)?,
            }
            ranks.sum(all, "nvte_newton_schulz", self.stream)?;
            return cast::quantize(sum, g, &QuantizationConfig::DEFAULT, self.stream);
        }
        if !self.halves {
            return self.product(g, [(x, !self.wide), (x, self.wide)], 1.0, None);
        }
        let x = [half(x, 0), half(x, 1)];
        for (i, (up, down)) in [(0, 0), (0, 1), (1, 1)].into_iter().enumerate() {
            self.product(&block(g, i), [(&x[up], false), (&x[down], true)], 1.0, None)?;
        }
        Ok(())
    }

    /// `d = alpha left right + beta added` of squares that commute.
    fn squares(
        &self,
        d: &Tensor,
        [left, right]: [&Tensor; 2],
        alpha: f32,
        (added, beta): (&Tensor, f32),
    ) -> Result<()> {
        if !self.halves {
            let factors = [(left, false), (right, false)];
            return self.product(d, factors, alpha, Some((added, beta)));
        }
        for (i, sum) in BLOCK_PRODUCTS.into_iter().enumerate() {
            let d = block(d, i);
            for (term, [(l, transl), (r, transr)]) in sum.into_iter().enumerate() {
                let factors = [(&block(left, l), transl), (&block(right, r), transr)];
                let own = if term == 0 { (&block(added, i), beta) } else { (&d, 1.0) };
                self.product(&d, factors, alpha, Some(own))?;
            }
        }
        Ok(())
    }

    /// `y = alpha p x + beta x`
    fn apply(&self, y: &Tensor, p: &Tensor, x: &Tensor, alpha: f32, beta: f32) -> Result<()> {
        if !self.halves {
            let (left, right) = if self.wide { (p, x) } else { (x, p) };
            return self.product(y, [(left, false), (right, false)], alpha, Some((x, beta)));
        }
        for (row, blocks) in [[(0, false), (1, false)], [(1, true), (2, false)]].iter().enumerate()
        {
            let y = half(y, row);
            for (col, &(i, transposed)) in blocks.iter().enumerate() {
                let part = half(x, col);
                let added = if col == 0 { (&half(x, row), beta) } else { (&y, 1.0) };
                let factors = [(&block(p, i), transposed), (&part, false)];
                self.product(&y, factors, alpha, Some(added))?;
            }
        }
        Ok(())
    }

    /// `y = a x + (b g + c g^2) x` with `g = x x^T`.
    fn step(&self, [a, b, c]: [f32; 3], [x, g, p, y]: [&Tensor; 4]) -> Result<()> {
        self.gram(g, x)?;
        if x.rowwise.shape.numel() == 0 {
            return Ok(());
        }
        self.squares(p, [g, g], c, (g, b))?;
        self.apply(y, p, x, 1.0, a)
    }

    /// Several iterations: with `p = (b g + c g^2) / a` of each, `a (1 + p)` are multiplied to one matrix
    /// `factor (1 + q)`, and the next Gram matrix is `a (1 + p) g a (1 + p)`; all of these commute. A value of g
    /// that rounding makes negative grows as a^2 does in each iteration, so that only few are joined.
    fn joined(
        &self,
        coefficients: &[[f32; 3]],
        x: &Tensor,
        memories: &mut [Tensor; SQUARES],
        y: &Tensor,
    ) -> Result<()> {
        let [g, q, p, r, s] = memories;
        let mut factor = 1.0;
        self.gram(g, x)?;
        for (i, &[a, b, c]) in coefficients.iter().enumerate() {
            let own = if i == 0 { &*q } else { &*p };
            self.squares(own, [g, g], c / a, (g, b / a))?;
            if i + 1 < coefficients.len() {
                self.squares(r, [own, g], 1.0, (g, 1.0))?;
                self.squares(s, [own, r], a * a, (r, a * a))?;
                std::mem::swap(g, s);
            }
            if i > 0 {
                self.squares(r, [p, q], 1.0, (q, 1.0))?;
                let numel = p.rowwise.shape.numel();
                let numel = if self.halves { numel / 4 * 3 } else { numel };
                add(&p.rowwise, &r.rowwise, numel, self.stream)?;
                std::mem::swap(q, r);
            }
            factor *= a;
        }
        self.apply(y, q, x, factor, factor)
    }
}

/// Each block of a product of symmetric matrices that commute, as a sum of two products of blocks, some of them
/// transposed.
const BLOCK_PRODUCTS: [[[(usize, bool); 2]; 2]; 3] = [
    [[(0, false), (0, false)], [(1, false), (1, true)]],
    [[(0, false), (1, false)], [(1, false), (2, false)]],
    [[(1, true), (1, false)], [(2, false), (2, false)]],
];

/// A contiguous part of a matrix, as one of `dims`.
fn part(of: &Tensor, at: usize, dims: [usize; 2]) -> Tensor {
    let whole = &of.rowwise;
    let mut tensor = Tensor::new(of.mode);
    let ptr = whole.ptr().wrapping_byte_add(bytes(at, whole.dtype));
    tensor.rowwise = Buffer::new(ptr, whole.dtype, &dims);
    tensor
}

/// A block of a square that is kept in halves.
fn block(square: &Tensor, i: usize) -> Tensor {
    let side = square.rowwise.shape.flatten().0 / 2;
    part(square, i * side * side, [side, side])
}

/// The upper or the lower half of a matrix.
fn half(x: &Tensor, i: usize) -> Tensor {
    let (rows, cols) = x.rowwise.shape.flatten();
    part(x, i * rows / 2 * cols, [rows / 2, cols])
}

/// The first `numel` elements of `to += from`.
fn add(from: &Buffer, to: &Buffer, numel: usize, stream: cudaStream_t) -> Result<()> {
    let args = AddArgs {
        src: from.ptr().cast_const(),
        dst: to.ptr(),
        numel,
        src_dtype: from.dtype,
        dst_dtype: to.dtype,
    };
    backend::run(&args, stream)
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
