//! Products of NVFP4 operands (spec: gemm_comm, sections 3.4 and 3.6).

use super::*;
use NVTEDType::*;

/// Elements that share a scale.
const BLOCK: usize = 16;

/// One operand, `[outer, k]` in the direction whose blocks lie along k, and its largest magnitude.
struct Nvfp4Operand {
    data: *const c_void,
    scales: GemmScales,
    /// The amax, or null.
    amax: *const f32,
    e4m3_max: f32,
    outer: usize,
    k: usize,
}

/// Whether either tensor is NVFP4.
pub(super) fn takes(a: &Tensor, b: &Tensor) -> bool {
    [a, b].iter().any(|tensor| tensor.mode == NVTE_NVFP4_1D_SCALING)
}

/// The amax of the direction that a product reads.
fn used_amax(tensor: &Tensor, rowwise: bool) -> &Buffer {
    if rowwise { &tensor.amax } else { &tensor.colwise_amax }
}

/// The factor between scales and values is on the device with alpha if no operand has an amax.
pub(super) fn factors_on_device([a, b]: [&Tensor; 2], (transa, transb): (bool, bool)) -> bool {
    let absent = |tensor, rowwise| used_amax(tensor, rowwise).ptr().is_null();
    takes(a, b) && absent(a, transa) && absent(b, !transb)
}

fn operand(name: &str, tensor: &Tensor, rowwise: bool) -> Result<Nvfp4Operand> {
    if tensor.mode != NVTE_NVFP4_1D_SCALING {
        let expected = format!("{NVTE_NVFP4_1D_SCALING}, as the other operand");
        return Err(Error::argument(format!("{name}.scaling_mode"), expected, tensor.mode));
    }
    if tensor.row_scaled {
        let name = format!("{name}.row_scaled_nvfp4");
        return Err(Error::argument(name, "0 (one amax for the tensor)", 1));
    }
    let (rows, cols) = tensor.shape(name)?.flatten();
    let (outer, k) = if rowwise { (rows, cols) } else { (cols, rows) };
    let (field, data, scale_inv) = match rowwise {
        true => ("", &tensor.rowwise, &tensor.rowwise_scale_inv),
        false => ("columnwise_", &tensor.colwise, &tensor.colwise_scale_inv),
    };
    let data_name = format_args!("{name}.{field}data");
    if !data.is_set() {
        let expected = "data in blocks along the contracted dimension";
        return Err(Error::argument(data_name, expected, "nothing"));
    }
    check::dtype(data_name, data.dtype, &[kNVTEFloat4E2M1])?;
    if data.shape.numel() != outer * k {
        let expected = format!("{} elements, as the other direction", outer * k);
        return Err(Error::argument(format!("{data_name}.shape"), expected, data.shape));
    }
    if !k.is_multiple_of(BLOCK) {
        let expected = format!("a multiple of {BLOCK} as contracted dimension (NVFP4)");
        return Err(Error::argument(format!("{name}.shape"), expected, k));
    }
    check::pointer(data_name, data)?;
    let scale_name = format_args!("{name}.{field}scale_inv");
    let (first, stride) = (outer.next_multiple_of(128), (k / BLOCK).next_multiple_of(4));
    if !scale_inv.is_set() {
        let expected = format!("Float8E4M3 [{first}, {stride}]");
        return Err(Error::argument(scale_name, expected, "nothing"));
    }
    check::dtype(scale_name, scale_inv.dtype, &[kNVTEFloat8E4M3, kNVTEByte])?;
    check::shape(scale_name, &scale_inv.shape, &Shape::new(&[first, stride]))?;
    let inv = check::pointer(scale_name, scale_inv)?;
    let amax =
        check::optional_scalar(format_args!("{name}.{field}amax"), used_amax(tensor, rowwise))?;
    Ok(Nvfp4Operand {
        data: data.ptr(),
        scales: GemmScales { inv, stride, mode: NVTE_NVFP4_1D_SCALING, swizzled: tensor.swizzled },
        amax,
        e4m3_max: tensor.e4m3_max as f32,
        outer,
        k,
    })
}

impl Product<'_> {
    /// As [`Product::plan`], for NVFP4 operands; `factors` are alpha and beta on the device, if they are
    /// there.
    pub(super) fn plan_nvfp4(&self, factors: Option<[*const f32; 2]>) -> Result<Option<GemmArgs>> {
        let a = operand("A", self.a, self.options.transa)?;
        let b = operand("B", self.b, !self.options.transb)?;
        if a.k != b.k {
            let expected = format!("{} along the contracted dimension, as in A", a.k);
            return Err(Error::argument("B.shape", expected, b.k));
        }
        let args = self.plan_output(a.outer, b.outer)?;
        check::dtype("D", args.d_dtype, &[kNVTEFloat32, kNVTEBFloat16])?;
        if args.epilogue == GemmEpilogue::NVTEX_EPILOGUE_BGRAD {
            let expected = "nothing (products of NVFP4 have a bias gradient only with dGELU)";
            return Err(Error::argument(self.epilogue.bias.0, expected, "a tensor"));
        }
        let none = Nvfp4Factors::NONE;
        let nvfp4 = match factors {
            Some([alpha, beta]) => {
                for (name, pointer) in [("alpha", alpha), ("beta", beta)] {
                    check::raw_pointer(name, pointer.cast_mut().cast(), 1, kNVTEFloat32)?;
                }
                Nvfp4Factors { alpha, beta, ..none }
            }
            None => {
                for (name, operand, rowwise) in
                    [("A", &a, self.options.transa), ("B", &b, !self.options.transb)]
                {
                    if operand.amax.is_null() {
                        let field = if rowwise { "amax" } else { "columnwise_amax" };
                        let expected = "one Float32 (alpha is on the host)";
                        return Err(Error::argument(
                            format!("{name}.{field}"),
                            expected,
                            "nothing",
                        ));
                    }
                }
                let factor = 1.0 / (36.0 * a.e4m3_max * b.e4m3_max);
                Nvfp4Factors { amax_a: a.amax, amax_b: b.amax, factor, ..none }
            }
        };
        let (workspace, workspace_bytes) = aligned_workspace(&self.workspace);
        if args.m == 0 || args.n == 0 {
            return Ok(None);
        }
        Ok(Some(GemmArgs {
            a: a.data,
            b: b.data,
            scales_a: a.scales,
            scales_b: b.scales,
            workspace,
            workspace_bytes,
            k: a.k,
            a_dtype: kNVTEFloat4E2M1,
            b_dtype: kNVTEFloat4E2M1,
            transa: true,
            transb: false,
            nvfp4,
            ..args
        }))
    }

    /// A product whose alpha and beta are on the device.
    pub(super) fn run_with_factors(
        &self,
        factors: [*const f32; 2],
        stream: cudaStream_t,
    ) -> Result<()> {
        check_sm_count(self.options.sm_count)?;
        match self.plan_nvfp4(Some(factors))? {
            Some(args) => backend::run(&args, stream),
            None => Ok(()),
        }
    }
}
