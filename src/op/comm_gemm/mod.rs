//! Products whose operands lie distributed over ranks (spec: gemm_comm, section 9). With one rank each local
//! matrix is the whole one; with several the operand or the product goes through the communicator, one after the
//! other.

pub mod exports;
mod mangled;

use super::gemm::Product;
use super::ranks::{Context, Contexts};
use super::transpose::swap_first_dims;
use super::{nvtex, transformer_engine};
use crate::backend::{self, args::CopyKind};
use crate::check;
use crate::error::{Error, Result};
use crate::handle::{Kind, Slab};
use crate::parallel::Communicator;
use crate::tensor::{Buffer, Tensor, from_c_enum};
use crate::types::*;

static CONTEXTS: Contexts = Slab::new(Kind::CommGemmContext);

from_c_enum!(NVTECommGemmAlgoType, "an NVTECommGemmAlgoType from 0 to 4");

/// What ranks do around their products.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Exchange {
    /// B is gathered before.
    Gather,
    /// The products are added, and each rank gets some of the rows.
    Scatter,
    /// The products are added, and each rank gets all of them.
    Reduce,
}

/// A product and the sizes that the caller says it has.
struct RankProduct<'a> {
    product: Product<'a>,
    sizes: [i64; 3],
    exchange: Exchange,
}

/// A tensor with other row-wise data, and none along the columns.
fn with_data(like: &Tensor, data: Buffer) -> Tensor {
    Tensor { rowwise: data, colwise: Buffer::UNSET, ..like.clone() }
}

impl RankProduct<'_> {
    /// Refuses operands that do not have the sizes of the call, of which `ranks` ranks have a part each.
    fn check_sizes(&self, ranks: usize) -> Result<()> {
        let parts = match (ranks, self.exchange) {
            (1, _) => [1; 3],
            (_, Exchange::Gather) => [ranks, ranks, 1],
            (_, Exchange::Scatter) => [1, ranks, ranks],
            (_, Exchange::Reduce) => [1, 1, ranks],
        };
        let mut sizes = [0; 3];
        for (i, name) in ["m", "n", "k"].into_iter().enumerate() {
            let wrong = |_| Error::argument(name, "0 or more", self.sizes[i]);
            sizes[i] = usize::try_from(self.sizes[i]).map_err(wrong)?;
            if !sizes[i].is_multiple_of(parts[i]) {
                let expected = format!("a multiple of {}, the ranks", parts[i]);
                return Err(Error::unsupported(Error::argument(name, expected, sizes[i]).message));
            }
        }
        let [m, n, k] = sizes;
        let [of_m, of_n, of_k] = [m / parts[0], n / parts[1], k / parts[2]];
        // Rows of B and of D: what is gathered or scattered is whole on the other side.
        let (of_n, rows_of_d) = match (ranks, self.exchange) {
            (1, _) => (n, n),
            (_, Exchange::Scatter) => (n, of_n),
            _ => (of_n, n),
        };
        let Product { a, b, d, options, .. } = self.product;
        let matrices = [
            ("A", a, if options.transa { (of_m, of_k) } else { (of_k, of_m) }),
            ("B", b, if options.transb { (of_k, of_n) } else { (of_n, of_k) }),
            ("D", d, (rows_of_d, of_m)),
        ];
        for (name, tensor, (rows, cols)) in matrices {
            let shape = tensor.shape(name)?;
            if shape.flatten() != (rows, cols) {
                let of = if ranks > 1 {
                    format!(", the part of one of {ranks} ranks")
                } else {
                    String::new()
                };
                let expected = format!("[{rows}, {cols}] (m {m}, n {n}, k {k}{of})");
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
        let Some(ranks) = context.ranks.as_deref() else {
            self.check_sizes(1)?;
            return self.local(context, stream);
        };
        self.check_sizes(ranks.size())?;
        let Product { a, b, d, epilogue, .. } = &self.product;
        for (name, tensor) in [("A", a), ("B", b), ("D", d)] {
            check::per_tensor(name, tensor)?;
            if !tensor.rowwise.is_set() {
                return Err(Error::argument(format!("{name}.data"), "row-wise data", "no data"));
            }
        }
        if self.exchange == Exchange::Gather {
            return self.gathered(context, ranks, stream);
        }
        if epilogue.grad || epilogue.aux.1.is_set() {
            let error = Error::argument(
                if epilogue.grad { "grad" } else { "pre_act_out" },
                "none: a sum over ranks has no other epilogue than a bias",
                "one",
            );
            return Err(Error::unsupported(error.message));
        }
        if let Err(error) = check::high_precision("D", d.rowwise.dtype) {
            return Err(Error::unsupported(error.message));
        }
        match self.exchange {
            Exchange::Scatter => self.scattered(context, ranks, stream),
            _ => self.reduced(context, ranks, stream),
        }
    }

    /// The product of what this rank has.
    fn local(self, context: &Context, stream: cudaStream_t) -> Result<()> {
        let bytes = self.workspace_bytes()?;
        context.with_memory(bytes, stream, |memory| {
            let workspace = Buffer::new(memory, NVTEDType::kNVTEByte, &[bytes]);
            Product { workspace, ..self.product }.run(stream)
        })
    }

    fn gathered(self, context: &Context, ranks: &Communicator, stream: cudaStream_t) -> Result<()> {
        let (part, size) = (self.product.b.rowwise, ranks.size());
        let (rows, cols) = part.shape.flatten();
        let room = (part.bytes() * size).next_multiple_of(256);
        // Parts along the contiguous dimension arrive as slabs, which are woven together.
        let slabs = if self.product.options.transb { room } else { 0 };
        let shape = if slabs > 0 { [rows, size * cols] } else { [size * rows, cols] };
        let unplaced = with_data(self.product.b, Buffer::new(part.ptr(), part.dtype, &shape));
        let product = Product { b: &unplaced, ..self.product };
        let Self { sizes, exchange, .. } = self;
        let bytes = RankProduct { product, sizes, exchange }.workspace_bytes()?;
        context.with_memory(room + slabs + bytes, stream, |memory| {
            let at = |offset: usize, dims: &[usize]| {
                Buffer::new(memory.wrapping_byte_add(offset), part.dtype, dims)
            };
            let whole = with_data(self.product.b, at(slabs, &shape));
            if part.bytes() > 0 {
                ranks.gather(
                    &part,
                    &at(0, &[size * rows, cols]),
                    "nvte_all_gather_gemm",
                    stream,
                )?;
            }
            if slabs > 0 && part.bytes() > 0 {
                let from = with_data(self.product.b, at(0, &[size, rows, cols]));
                let to = with_data(self.product.b, at(slabs, &[rows, size, cols]));
                swap_first_dims(&from, &to, stream)?;
            }
            let memory = memory.wrapping_byte_add(room + slabs);
            let workspace = Buffer::new(memory, NVTEDType::kNVTEByte, &[bytes]);
            Product { b: &whole, workspace, ..self.product }.run(stream)
        })
    }

    /// The product of this rank's part of k. Only the first rank adds a bias, so that the sum has it once.
    fn part<'b>(&'b self, ranks: &Communicator, d: &'b Tensor, accumulate: bool) -> Product<'b> {
        let mut epilogue = self.product.epilogue;
        if ranks.rank() > 0 {
            epilogue.bias.1 = Buffer::UNSET;
        }
        let mut options = self.product.options;
        options.beta.1 = f32::from(accumulate);
        Product { d, epilogue, options, ..self.product }
    }

    fn scattered(
        self,
        context: &Context,
        ranks: &Communicator,
        stream: cudaStream_t,
    ) -> Result<()> {
        let own = self.product.d.rowwise;
        let (rows, cols) = own.shape.flatten();
        let (bytes, room) =
            (self.workspace_bytes()?, (own.bytes() * ranks.size()).next_multiple_of(256));
        context.with_memory(room + bytes, stream, |memory| {
            let all = with_data(
                self.product.d,
                Buffer::new(memory, own.dtype, &[ranks.size() * rows, cols]),
            );
            let accumulate = self.product.options.beta.1 != 0.0;
            if accumulate && own.bytes() > 0 {
                transformer_engine::memset(memory, 0, all.rowwise.bytes(), stream)?;
                let to = memory.wrapping_byte_add(ranks.rank() * own.bytes());
                let kind = CopyKind::NVTEX_COPY_ON_DEVICE;
                // SAFETY: the memory has the rows of all ranks, of which these are one's.
                #[allow(unsafe_code)]
                unsafe {
                    nvtex::memcpy(to, own.ptr().cast_const(), own.bytes(), kind, stream)?;
                }
            }
            let workspace = memory.wrapping_byte_add(room);
            let workspace = Buffer::new(workspace, NVTEDType::kNVTEByte, &[bytes]);
            Product { workspace, ..self.part(ranks, &all, accumulate) }.run(stream)?;
            match own.bytes() {
                0 => Ok(()),
                _ => ranks.scatter_sum(&all.rowwise, &own, "nvte_gemm_reduce_scatter", stream),
            }
        })
    }

    fn reduced(self, context: &Context, ranks: &Communicator, stream: cudaStream_t) -> Result<()> {
        let (d, bytes) = (self.product.d, self.workspace_bytes()?);
        context.with_memory(bytes, stream, |memory| {
            let workspace = Buffer::new(memory, NVTEDType::kNVTEByte, &[bytes]);
            let accumulate = self.product.options.beta.1 != 0.0 && ranks.rank() == 0;
            Product { workspace, ..self.part(ranks, d, accumulate) }.run(stream)?;
            match d.rowwise.bytes() {
                0 => Ok(()),
                _ => ranks.sum(&d.rowwise, "nvte_gemm_all_reduce", stream),
            }
        })
    }
}
