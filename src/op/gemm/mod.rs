//! Matrix products with epilogues (spec: gemm_comm, sections 1 to 3).

pub(crate) mod config;
pub(crate) mod cpu;
pub(crate) mod cpu_grouped;
mod cpu_packed;
mod cpu_rows;
mod drop_in;
pub mod exports;
pub(crate) mod group;
pub(crate) mod grouped;
mod grouped_casts;
mod mangled;
mod multi;
mod nvfp4;

use super::transformer_engine::non_tn_fp8_gemm_supported;
use crate::backend::{self, args::*};
use crate::check;
use crate::error::{Error, Result};
use crate::tensor::*;
use crate::types::NVTEScalingMode::*;
use crate::types::*;
use crate::verbose::{self, Level};
use std::ffi::c_void;
use std::fmt::Display;

impl GemmArgs {
    /// The casts of MXFP8 operands to matrices of `dtype` at `a` and `b`, and the product of those.
    pub(crate) fn dequantized(
        &self,
        dtype: NVTEDType,
        a: *mut c_void,
        b: *mut c_void,
    ) -> ([DequantizeArgs; 2], Self) {
        let cast = |input, output, scales: &GemmScales, input_dtype, outer, colwise| {
            let (rows, cols) = if colwise { (self.k, outer) } else { (outer, self.k) };
            DequantizeArgs {
                input,
                output,
                scale_inv: scales.inv,
                rows,
                cols,
                scale_stride: scales.stride,
                mode: scales.mode,
                input_dtype,
                output_dtype: dtype,
                colwise,
                swizzled: scales.swizzled,
                group: Group::NONE,
            }
        };
        let casts = [
            cast(self.a, a, &self.scales_a, self.a_dtype, self.m, !self.transa),
            cast(self.b, b, &self.scales_b, self.b_dtype, self.n, self.transb),
        ];
        let none = GemmScales::per_tensor(std::ptr::null());
        let product =
            Self { a, b, scales_a: none, scales_b: none, a_dtype: dtype, b_dtype: dtype, ..*self };
        (casts, product)
    }
}

/// Whether a product of `n` rows with a weight `[k, m]` in FP8 reads the weight as it lies: a kernel for few
/// rows does, on devices whose tensor cores take FP8 only along the contracted dimension. The CPU backend
/// does as that kernel.
pub(crate) fn reads_weight_as_it_lies((m, n, k): (usize, usize, usize)) -> Result<bool> {
    const FEW_ROWS: usize = 32;
    const LEAST: usize = 512;
    let whole = |size: usize| size >= LEAST && size.is_multiple_of(16) && size <= 1 << 30;
    if n > FEW_ROWS || !whole(m) || !whole(k) {
        return Ok(false);
    }
    match backend::domain()?.arch()? {
        90 => Ok(true),
        // The CPU backend needs no workspace for products.
        0 => Ok(backend::device_properties()?.product_workspace == 0),
        _ => Ok(false),
    }
}

/// Whether a product of BFloat16 with an epilogue of GELU, and one with an epilogue of its derivative and sums of
/// D's columns, cost less than passes of their own: a kernel for whole tiles does, which rounds what GELU is
/// applied to as such passes do.
pub(crate) fn fuses_gelu((m, n, k): (usize, usize, usize)) -> Result<bool> {
    let tiles = m.is_multiple_of(64) && n.is_multiple_of(256) && k.is_multiple_of(64);
    if !tiles || k <= 256 || m.max(n).max(k) >= 1 << 30 || backend::domain()?.arch()? != 90 {
        return Ok(false);
    }
    has_room_for_sums(m, n)
}

/// Whether the product's workspace has room for a sum of each column of each 128 rows.
fn has_room_for_sums(m: usize, n: usize) -> Result<bool> {
    Ok(n / 128 * m * size_of::<f32>() <= backend::device_properties()?.product_workspace)
}

/// As [`fuses_gelu`], of FP8 with one scale for each operand, and of SwiGLU too: results are FP8 in both directions, or
/// BFloat16 with their amax.
pub(crate) fn fuses_activation_in_fp8((m, n, k): (usize, usize, usize)) -> Result<bool> {
    let tiles = m.is_multiple_of(64) && n.is_multiple_of(256) && k.is_multiple_of(128);
    if !tiles || k <= 512 || m.max(n).max(k) >= 1 << 29 || backend::domain()?.arch()? != 90 {
        return Ok(false);
    }
    has_room_for_sums(m, n)
}

/// Whether a product reads the row-wise data of an operand, else the column-wise ones. `k_contiguous`
/// says how the row-wise data lie, `any_layout` that either will do.
fn reads_rowwise(
    name: impl Display,
    [rowwise, colwise]: [bool; 2],
    per_tensor: bool,
    k_contiguous: bool,
    any_layout: bool,
) -> Result<bool> {
    if rowwise && (k_contiguous || any_layout) {
        return Ok(true);
    }
    if colwise && (!k_contiguous || any_layout) {
        return Ok(false);
    }
    let wanted = if k_contiguous { "data" } else { "columnwise_data" };
    let expected = match per_tensor {
        true => {
            "data contiguous along the contracted dimension, the only layout that FP8 tensor \
             cores take here"
        }
        false => "data in blocks along the contracted dimension",
    };
    let got = match (rowwise, colwise) {
        (true, _) => "row-wise data only",
        (_, true) => "column-wise data only",
        _ => "no data",
    };
    Err(Error::argument(format!("{name}.{wanted}"), expected, got))
}

/// Refuses operands whose modes do not go together.
fn check_pair(a: NVTEScalingMode, b: NVTEScalingMode) -> Result<()> {
    let allowed: &[NVTEScalingMode] = match a {
        NVTE_BLOCK_SCALING_1D => &[NVTE_BLOCK_SCALING_1D, NVTE_BLOCK_SCALING_2D],
        NVTE_BLOCK_SCALING_2D => &[NVTE_BLOCK_SCALING_1D],
        _ => &[a],
    };
    if allowed.contains(&b) {
        return Ok(());
    }
    let allowed: Vec<String> = allowed.iter().map(|mode| mode.to_string()).collect();
    let expected = format!("{} (A is {a})", allowed.join(" or "));
    let error = Error::argument("B.scaling_mode", expected, b);
    Err(match (a, b) {
        (NVTE_BLOCK_SCALING_2D, NVTE_BLOCK_SCALING_2D) => {
            drop_in::with_words(error, drop_in::BOTH_SQUARE)
        }
        _ => error,
    })
}

/// One operand as the product reads it: a matrix of `outer` rows or columns against `k`.
struct Operand {
    data: *const c_void,
    dtype: NVTEDType,
    scales: GemmScales,
    /// Whether the elements along k are adjacent in memory.
    k_contiguous: bool,
    outer: usize,
    k: usize,
}

/// Chooses the direction of a tensor that the product reads. `k_contiguous` says how the row-wise
/// data would lie; column-wise data lie the other way round, except those of MXFP8.
fn operand(name: &str, tensor: &Tensor, k_contiguous: bool, any_layout: bool) -> Result<Operand> {
    let mode = tensor.mode;
    let per_tensor = mode == NVTE_DELAYED_TENSOR_SCALING;
    check::fp8_scaling(name, mode)?;
    let dtype = tensor.dtype();
    if per_tensor && !dtype.is_fp8() {
        check::high_precision(name, dtype)
            .map_err(|_| Error::argument(format!("{name}.dtype"), FLOATS, dtype))?;
    }
    let (rows, cols) = tensor.shape(name)?.flatten();
    let (outer, k) = if k_contiguous { (rows, cols) } else { (cols, rows) };
    let any_layout = per_tensor && (any_layout || !dtype.is_fp8());
    let directions = [tensor.rowwise.is_set(), tensor.colwise.is_set()];
    let rowwise = reads_rowwise(name, directions, per_tensor, k_contiguous, any_layout)?;
    let (field, data, scale_inv) = match rowwise {
        true => ("", &tensor.rowwise, &tensor.rowwise_scale_inv),
        false => ("columnwise_", &tensor.colwise, &tensor.colwise_scale_inv),
    };
    // A stale buffer of the other direction must not decide the shape that is read.
    if data.shape.numel() != outer * k {
        let expected = format!("{} elements, as the other direction", outer * k);
        return Err(Error::argument(format!("{name}.{field}data.shape"), expected, data.shape));
    }
    check::pointer(format_args!("{name}.{field}data"), data)?;
    if !per_tensor {
        check::fp8(name, data.dtype)?;
    }
    let name = format_args!("{name}.{field}scale_inv");
    let scales = if !per_tensor {
        let (inv, stride) = check::block_scales(name, scale_inv, (mode, !rowwise), (rows, cols))?;
        GemmScales { inv, stride, mode, swizzled: tensor.tiled() }
    } else if dtype.is_fp8() {
        GemmScales::per_tensor(check::scalar(name, scale_inv)?)
    } else {
        GemmScales::per_tensor(std::ptr::null())
    };
    let k_contiguous = match mode {
        NVTE_MXFP8_1D_SCALING => rowwise,
        _ => k_contiguous == rowwise,
    };
    Ok(Operand { data: data.ptr(), dtype: data.dtype, scales, k_contiguous, outer, k })
}

const FLOATS: &str = "Float32 or Float16 or BFloat16 or Float8E4M3 or Float8E5M2";

/// Buffers of an epilogue, with the names of their arguments; those without an address are absent.
#[derive(Clone, Copy)]
pub(crate) struct Epilogue<'a> {
    pub bias: (&'a str, Buffer),
    /// The input of GELU.
    pub aux: (&'a str, Buffer),
    /// The product is one of gradients: `bias` becomes the bias gradient, `aux` is read.
    pub grad: bool,
}

impl Epilogue<'_> {
    /// The kind of the epilogue, whose buffers are checked against the sizes of the product.
    fn plan(&self, m: usize, n: usize, gated: bool) -> Result<GemmEpilogue> {
        use GemmEpilogue::*;
        if gated {
            let aux = &self.aux.1;
            side_buffer(self.aux.0, aux, format_args!("[{n}, {}]", 2 * m), 2 * n * m)?;
            return Ok(if self.grad { NVTEX_EPILOGUE_DSWIGLU } else { NVTEX_EPILOGUE_SWIGLU });
        }
        let (bias, aux) = (&self.bias.1, &self.aux.1);
        let (with_bias, with_aux) = (!bias.ptr().is_null(), !aux.ptr().is_null());
        let epilogue = match (with_bias, with_aux, self.grad) {
            (false, false, _) => NVTEX_EPILOGUE_NONE,
            (true, false, false) => NVTEX_EPILOGUE_BIAS,
            (false, true, false) => NVTEX_EPILOGUE_GELU,
            (true, true, false) => NVTEX_EPILOGUE_GELU_BIAS,
            (true, false, true) => NVTEX_EPILOGUE_BGRAD,
            (false, true, true) => NVTEX_EPILOGUE_DGELU,
            (true, true, true) => NVTEX_EPILOGUE_DGELU_BGRAD,
        };
        let length = if epilogue == NVTEX_EPILOGUE_BGRAD { n } else { m };
        if with_bias {
            side_buffer(self.bias.0, bias, format_args!("[{length}]"), length)?;
        }
        if with_aux {
            side_buffer(self.aux.0, aux, format_args!("[{n}, {m}]"), n * m)?;
        }
        Ok(epilogue)
    }
}

/// A bias or aux buffer: high precision, of the right number of elements.
fn side_buffer(name: &str, buffer: &Buffer, expected: impl Display, numel: usize) -> Result<()> {
    check::high_precision(name, buffer.dtype)?;
    if buffer.shape.numel() != numel {
        return Err(Error::argument(format!("{name}.shape"), expected, buffer.shape));
    }
    check::pointer(format_args!("{name}.data"), buffer).map(drop)
}

/// What the aux tensor of an epilogue has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Aux {
    /// The input of GELU.
    Input,
    /// The derivative of GELU.
    Slope,
    /// The derivatives of SwiGLU by the gate and by what that opens for, side by side, as A's columns or D's are.
    GatedSlopes,
}

/// What a product has besides its tensors. Three come with the argument that gives them, for messages.
#[derive(Clone, Copy)]
pub(crate) struct Options<'a> {
    pub transa: bool,
    pub transb: bool,
    pub alpha: f32,
    pub beta: (&'a str, f32),
    pub split_accumulator: (&'a str, bool),
    pub sm_count: (&'a str, i32),
    /// With slopes and operands in FP8, D is written as operators that casts follow write theirs, and its amax is raised;
    /// FP8 in both directions. The column-wise data may be those of a matrix of more rows, whose shape they have.
    pub aux: Aux,
}

/// `D = alpha * op(B) op(A) + beta * C`, with an epilogue.
#[derive(Clone, Copy)]
pub(crate) struct Product<'a> {
    pub a: &'a Tensor,
    pub b: &'a Tensor,
    /// The matrix to add; without one D.
    pub c: Option<Buffer>,
    pub d: &'a Tensor,
    pub epilogue: Epilogue<'a>,
    /// Device memory of any size; without an address there is none.
    pub workspace: Buffer,
    pub options: Options<'a>,
}

impl<'a> Product<'a> {
    /// `d = left right`, with operands transposed or not, to which the caller may add.
    pub(crate) fn of(
        d: &'a Tensor,
        (left, transb): (&'a Tensor, bool),
        (right, transa): (&'a Tensor, bool),
        workspace: Buffer,
    ) -> Self {
        let none = ("", Buffer::UNSET);
        Self {
            // A product takes its right operand first.
            a: right,
            b: left,
            c: None,
            d,
            epilogue: Epilogue { bias: none, aux: none, grad: false },
            workspace,
            options: Options {
                transa,
                transb,
                alpha: 1.0,
                beta: ("beta", 0.0),
                split_accumulator: ("use_split_accumulator", true),
                aux: Aux::Input,
                sm_count: ("sm_count", 0),
            },
        }
    }
}

impl Product<'_> {
    /// Checks everything and gives the arguments; none if D is empty.
    fn plan(&self) -> Result<Option<GemmArgs>> {
        let (a, b) = (self.a, self.b);
        if nvfp4::takes(a, b) {
            return self.plan_nvfp4(None);
        }
        let any_layout = (a.dtype().is_fp8() || b.dtype().is_fp8()) && non_tn_fp8_gemm_supported()?;
        let a = operand("A", a, self.options.transa, any_layout || self.reads_a_as_it_lies()?)?;
        let b = operand("B", b, !self.options.transb, any_layout)?;
        if a.k != b.k {
            let expected = format!("{} along the contracted dimension, as in A", a.k);
            return Err(Error::argument("B.shape", expected, b.k));
        }
        let (n, k) = (b.outer, a.k);
        let gated = self.options.aux == Aux::GatedSlopes;
        let m = if gated && !self.epilogue.grad { a.outer / 2 } else { a.outer };
        let args = self.plan_output(m, n)?;
        self.check_modes(&a, &b, &args)?;
        let (workspace, workspace_bytes) = aligned_workspace(&self.workspace);
        if m == 0 || n == 0 {
            return Ok(None);
        }
        if workspace_bytes == 0 {
            verbose::line(Level::Check, "check", || "gemm,workspace: none: k cannot be split");
        }
        Ok(Some(GemmArgs {
            a: a.data,
            b: b.data,
            scales_a: a.scales,
            scales_b: b.scales,
            workspace,
            workspace_bytes,
            k,
            a_dtype: a.dtype,
            b_dtype: b.dtype,
            transa: a.k_contiguous,
            transb: !b.k_contiguous,
            ..args
        }))
    }

    /// Whether the row-wise data of A, which lie along m, are read although the device's tensor cores would
    /// not take them. If A also has data along k those are read: a product of cuBLASLt is faster (16 x 4096 x 4096:
    /// 7.2 us on an H200, this one 12.5).
    fn reads_a_as_it_lies(&self) -> Result<bool> {
        let (a, b, options) = (&self.a.rowwise, &self.b.rowwise, &self.options);
        let fits = !options.transa
            && !options.transb
            && options.sm_count.1 == 0
            && !self.a.colwise.is_set()
            && a.dtype == NVTEDType::kNVTEFloat8E4M3
            && b.dtype.is_fp8()
            && !self.d.dtype().is_fp8()
            && (!self.epilogue.grad || self.epilogue.bias.1.ptr().is_null())
            && [a, b].iter().all(|data| data.is_set() && (data.ptr() as usize).is_multiple_of(16));
        if !fits {
            return Ok(false);
        }
        let ((k, m), (n, _)) = (a.shape.flatten(), b.shape.flatten());
        reads_weight_as_it_lies((m, n, k))
    }

    /// The rules about both operands: of one dtype or FP8, and of modes that go together, of which FP8
    /// blocks have options of their own.
    fn check_modes(&self, a: &Operand, b: &Operand, args: &GemmArgs) -> Result<()> {
        use GemmEpilogue::*;
        check_pair(a.scales.mode, b.scales.mode)?;
        if a.dtype != b.dtype && !(a.dtype.is_fp8() && b.dtype.is_fp8()) {
            let expected = match a.dtype.is_fp8() {
                true => "Float8E4M3 or Float8E5M2 (A is FP8)".to_owned(),
                false => format!("{}, as A", a.dtype),
            };
            return Err(Error::argument("B.dtype", expected, b.dtype));
        }
        if !a.scales.in_blocks() {
            return Ok(());
        }
        drop_in::split_accumulator(self.options.split_accumulator)?;
        let (name, expected) = match args.epilogue {
            NVTEX_EPILOGUE_NONE | NVTEX_EPILOGUE_BIAS | NVTEX_EPILOGUE_DGELU => {
                return drop_in::blocks(a, b, args);
            }
            NVTEX_EPILOGUE_GELU | NVTEX_EPILOGUE_GELU_BIAS => {
                (self.epilogue.aux.0, "nothing (products of FP8 blocks have no GELU)")
            }
            NVTEX_EPILOGUE_BGRAD | NVTEX_EPILOGUE_DGELU_BGRAD => {
                (self.epilogue.bias.0, "nothing (products of FP8 blocks have no bias gradient)")
            }
            NVTEX_EPILOGUE_SWIGLU | NVTEX_EPILOGUE_DSWIGLU => {
                (self.epilogue.aux.0, "nothing (products of FP8 blocks have no SwiGLU)")
            }
        };
        let error = Error::argument(name, expected, "a tensor");
        Err(drop_in::with_words(error, drop_in::NO_EPILOGUE))
    }

    /// The arguments that concern C, D and the epilogue; the operands are left empty.
    fn plan_output(&self, m: usize, n: usize) -> Result<GemmArgs> {
        let d = self.d;
        check::per_tensor("D", d)?;
        let dtype = d.rowwise.dtype;
        if !d.rowwise.is_set() {
            return Err(Error::argument("D.data", "row-wise data", "no data"));
        }
        if !dtype.is_fp8() {
            check::high_precision("D", dtype)
                .map_err(|_| Error::argument("D.dtype", FLOATS, dtype))?;
        }
        let gated = self.options.aux == Aux::GatedSlopes;
        let width = if gated && self.epilogue.grad { 2 * m } else { m };
        let shape = &d.rowwise.shape;
        // Callers split and join dimensions of D at will, but a matrix the other way round is a mistake.
        if shape.numel() != n * width || width != n && *shape.dims() == [width, n] {
            return Err(Error::argument("D.shape", format!("[{n}, {width}]"), shape));
        }
        check::pointer("D.data", &d.rowwise)?;
        let mut scale_d = std::ptr::null_mut();
        let mut amax_d = std::ptr::null_mut();
        let mut scale_inv_d = std::ptr::null_mut();
        if dtype.is_fp8() {
            let (name, beta) = self.options.beta;
            if beta != 0.0 {
                let expected = "0 (FP8 outputs cannot accumulate)";
                return Err(Error::argument(name, expected, beta));
            }
            scale_d = check::scalar("D.scale", &d.scale)?;
            amax_d = check::optional_scalar("D.amax", &d.amax)?;
            scale_inv_d = check::optional_scalar("D.scale_inv", &d.rowwise_scale_inv)?;
        }
        let slopes = self.options.aux != Aux::Input;
        if slopes && !dtype.is_fp8() {
            amax_d = check::optional_scalar("D.amax", &d.amax)?;
        }
        let columns = if slopes && dtype.is_fp8() { d.colwise } else { Buffer::UNSET };
        let epilogue = self.epilogue.plan(m, n, gated)?;
        let (bias, aux) = (&self.epilogue.bias.1, &self.epilogue.aux.1);
        let no_scales = GemmScales::per_tensor(std::ptr::null());
        Ok(GemmArgs {
            a: std::ptr::null(),
            b: std::ptr::null(),
            c: self.plan_c()?,
            d: d.rowwise.ptr(),
            scales_a: no_scales,
            scales_b: no_scales,
            scale_d,
            amax_d,
            scale_inv_d,
            bias: bias.ptr(),
            aux: aux.ptr(),
            workspace: std::ptr::null_mut(),
            workspace_bytes: 0,
            m,
            n,
            k: 0,
            alpha: self.options.alpha,
            beta: self.options.beta.1,
            a_dtype: dtype,
            b_dtype: dtype,
            d_dtype: dtype,
            bias_dtype: bias.dtype,
            aux_dtype: aux.dtype,
            epilogue,
            nvfp4: Nvfp4Factors::NONE,
            transa: false,
            transb: false,
            split_accumulator: self.options.split_accumulator.1,
            aux_slope: slopes,
            d_columns: columns.ptr(),
            d_columns_pitch: if columns.is_set() { columns.shape.flatten().1 } else { 0 },
            sm_count: self.options.sm_count.1,
        })
    }

    /// Address of C, which is D or a matrix like it.
    fn plan_c(&self) -> Result<*const c_void> {
        let (d, Some(c)) = (&self.d.rowwise, &self.c) else { return Ok(self.d.rowwise.ptr()) };
        check::dtype("C", c.dtype, &[d.dtype])?;
        if c.shape.numel() != d.shape.numel() {
            return Err(Error::argument("C.shape", format!("{} (as D)", d.shape), c.shape));
        }
        Ok(check::pointer("C.data", c)?.cast_const())
    }

    /// As `plan`, with the checks that do not depend on the tensors.
    fn checked(&self) -> Result<Option<GemmArgs>> {
        check_sm_count(self.options.sm_count)?;
        self.plan()
    }

    pub(crate) fn run(&self, stream: cudaStream_t) -> Result<()> {
        match self.checked()? {
            Some(args) => backend::run(&args, stream),
            None => Ok(()),
        }
    }
}

/// Refuses a negative number of multiprocessors, given with its name.
fn check_sm_count((name, sm_count): (&str, i32)) -> Result<()> {
    match sm_count {
        0.. => Ok(()),
        _ => Err(Error::argument(name, "0 (all) or more", sm_count)),
    }
}

/// A workspace from its first 256-byte boundary on; nothing if it ends before.
fn aligned_workspace(buffer: &Buffer) -> (*mut c_void, usize) {
    let address = buffer.ptr() as usize;
    let skip = address.next_multiple_of(256) - address;
    match buffer.bytes().checked_sub(skip) {
        Some(bytes) if address != 0 && bytes > 0 => ((address + skip) as *mut c_void, bytes),
        _ => (std::ptr::null_mut(), 0),
    }
}
