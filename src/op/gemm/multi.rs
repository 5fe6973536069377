//! Several products side by side, and products whose chunks others wait for (spec: gemm_comm, sections
//! 4 and 5).
#![allow(unsafe_code)]

use super::*;
use crate::env::env;
use std::ffi::c_int;

/// Streams for products side by side.
pub(super) const BRANCHES: usize = 4;

/// A tensor for each product; of the buffers there may be none.
pub(super) struct Lists {
    pub a: Vec<Tensor>,
    pub b: Vec<Tensor>,
    pub d: Vec<Tensor>,
    pub bias: Vec<Buffer>,
    pub aux: Vec<Buffer>,
    pub grad: bool,
    /// One workspace for each of the streams.
    pub workspace: Vec<Buffer>,
}

impl Lists {
    /// The products, checked, with their numbers; those with an empty D are left out.
    fn plan(&self, options: &Options) -> Result<Vec<(usize, GemmArgs)>> {
        let entry = |list: &[Buffer], i: usize| list.get(i).copied().unwrap_or(Buffer::UNSET);
        let plan = |i: usize| {
            let (name, split) = options.split_accumulator;
            // FP8 blocks need no flag here, other than in a single call of a drop-in.
            let in_blocks = matches!(self.a[i].mode, NVTE_BLOCK_SCALING_1D | NVTE_BLOCK_SCALING_2D);
            let product = Product {
                a: &self.a[i],
                b: &self.b[i],
                c: None,
                d: &self.d[i],
                epilogue: Epilogue {
                    bias: ("bias", entry(&self.bias, i)),
                    aux: ("pre_gelu_out", entry(&self.aux, i)),
                    grad: self.grad,
                },
                workspace: entry(&self.workspace, i % BRANCHES),
                options: Options { split_accumulator: (name, split || in_blocks), ..*options },
            };
            // The product knows its tensors as those of a single call.
            let args = product.checked().map_err(|error| Error {
                message: format!("in product {i}: {}", error.message),
                ..error
            })?;
            Ok(args.map(|args| (i, args)))
        };
        (0..self.d.len()).filter_map(|i| plan(i).transpose()).collect()
    }

    /// Runs the products on streams of their own.
    pub fn run(&self, options: &Options, stream: cudaStream_t) -> Result<()> {
        let plans = self.plan(options)?;
        let count = match &plans[..] {
            [] => return Ok(()),
            [(_, args)] => return backend::run(args, stream),
            [.., (last, _)] => BRANCHES.min(last + 1),
        };
        let mut branches = [stream; BRANCHES];
        let domain = backend::domain()?;
        domain.fork(stream, &mut branches[..count])?;
        // Product i runs on stream i % BRANCHES, as its workspace does: products on one stream share a
        // workspace.
        let result =
            plans.iter().try_for_each(|(i, args)| backend::run(args, branches[i % BRANCHES]));
        // The streams are joined after an error, too: what was enqueued must come before what follows.
        let joined = domain.join(stream, count as c_int);
        result.and(joined)
    }
}

/// The counters of a product in chunks.
pub(super) struct Chunks {
    pub m_split: i32,
    pub n_split: i32,
    /// The counters. Without an address this is an ordinary product.
    pub counter: Buffer,
    pub producer: bool,
}

impl Chunks {
    fn plan(&self) -> Result<Option<CountersArgs>> {
        let split = |name: &str, split: i32| match usize::try_from(split) {
            Ok(split) => Ok(split.max(1)),
            Err(_) => Err(Error::argument(name, "0 or more", split)),
        };
        let length = split("m_split", self.m_split)? * split("n_split", self.n_split)?;
        let counter = &self.counter;
        if counter.ptr().is_null() {
            return Ok(None);
        }
        check::dtype("counter", counter.dtype, &[NVTEDType::kNVTEInt32])?;
        let counters = check::elements("counter", counter, length, counter.dtype)?.cast();
        // The environment's value fits: it is at most a year.
        let limit = env().wait.as_nanos() as u64;
        Ok(Some(CountersArgs { counters, length, limit, wait: !self.producer }))
    }

    /// Runs a product after or before its counters are 0.
    pub fn run(&self, product: &Product, stream: cudaStream_t) -> Result<()> {
        let counters = self.plan()?;
        let args = product.checked()?;
        if let Some(counters) = counters.filter(|counters| counters.wait) {
            backend::run(&counters, stream)?;
        }
        if let Some(args) = args {
            backend::run(&args, stream)?;
        }
        match counters.filter(|counters| !counters.wait) {
            Some(counters) => backend::run(&counters, stream),
            None => Ok(()),
        }
    }
}
