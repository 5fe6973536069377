//! Products whose operands lie distributed over ranks (spec: gemm_comm, section 9). With one rank each local
//! matrix is the whole one.

pub mod exports;
mod mangled;

use super::gemm::Product;
use super::ranks::{Context, Contexts};
use crate::backend;
use crate::check;
use crate::error::{Error, Result};
use crate::handle::{Kind, Slab};
use crate::tensor::{Buffer, Tensor, from_c_enum};
use crate::types::*;

static CONTEXTS: Contexts = Slab::new(Kind::CommGemmContext);

from_c_enum!(NVTECommGemmAlgoType, "an NVTECommGemmAlgoType from 0 to 4");

/// A product and the sizes that the caller says it has.
struct RankProduct<'a> {
    product: Product<'a>,
    sizes: [i64; 3],
}

impl RankProduct<'_> {
    /// Refuses operands that do not have the sizes of the call.
    fn check_sizes(&self) -> Result<()> {
        let mut sizes = [0; 3];
        for (i, name) in ["m", "n", "k"].into_iter().enumerate() {
            let wrong = |_| Error::argument(name, "0 or more", self.sizes[i]);
            sizes[i] = usize::try_from(self.sizes[i]).map_err(wrong)?;
        }
        let [m, n, k] = sizes;
        let Product { a, b, d, options, .. } = self.product;
        let matrices = [
            ("A", a, if options.transa { (m, k) } else { (k, m) }),
            ("B", b, if options.transb { (k, n) } else { (n, k) }),
            ("D", d, (n, m)),
        ];
        for (name, tensor, (rows, cols)) in matrices {
            let shape = tensor.shape(name)?;
            if shape.flatten() != (rows, cols) {
                let expected = format!("[{rows}, {cols}] (m {m}, n {n}, k {k})");
                return Err(Error::argument(format!("{name}.shape"), expected, shape));
            }
        }
        Ok(())
    }

    /// Bytes that any product of these operands may use: for operands cast to 16 bits, and for sums in float32.
    fn workspace_bytes(&self) -> Result<usize> {
        let least = backend::device_properties()?.product_workspace;
        let Product { a, b, d, epilogue, .. } = &self.product;
        let numel = |name: &str, tensor: &Tensor| Ok(tensor.shape(name)?.numel());
        let plain = !a.dtype().is_fp8() && a.mode == NVTEScalingMode::NVTE_DELAYED_TENSOR_SCALING;
        let (bias, aux) = (epilogue.bias.1.ptr(), epilogue.aux.1.ptr());
        if least == 0 || plain && a.dtype() == d.dtype() && bias.is_null() && aux.is_null() {
            return Ok(least);
        }
        let (operands, sums) = (numel("A", a)?.saturating_add(numel("B", b)?), numel("D", d)?);
        let more = operands.saturating_mul(2).saturating_add(sums.saturating_mul(4));
        Ok(least.saturating_add(more).saturating_add(4096))
    }

    fn run(self, context: &Context, stream: cudaStream_t) -> Result<()> {
        self.check_sizes()?;
        let bytes = self.workspace_bytes()?;
        context.with_memory(bytes, stream, |memory| {
            let workspace = Buffer::new(memory, NVTEDType::kNVTEByte, &[bytes]);
            Product { workspace, ..self.product }.run(stream)
        })
    }
}
