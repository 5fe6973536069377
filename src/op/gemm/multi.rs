//! Several products side by side, and products whose chunks others wait for (spec: gemm_comm, sections
//! 4 and 5).
#![allow(unsafe_code)]

use super::*;
use crate::env::env;

/// Streams for products side by side.
const BRANCHES: usize = 4;

/// Host arrays of a tensor for each product; those that may be null stand for absent tensors.
pub(super) struct Lists {
    pub a: *const NVTETensor,
    pub b: *const NVTETensor,
    pub d: *const NVTETensor,
    pub bias: *const NVTETensor,
    pub aux: *const NVTETensor,
    /// One for each of the streams.
    pub workspace: *const NVTETensor,
    pub count: i32,
}

impl Lists {
    /// `product` with the tensors of each entry of the lists, checked, and its number; none where D
    /// is empty.
    ///
    /// # Safety
    /// The arrays are null or have so many entries.
    unsafe fn plan(&self, product: &Product) -> Result<Vec<(usize, GemmArgs)>> {
        let count = usize::try_from(self.count).unwrap_or(0);
        for (name, array) in [("A", self.a), ("B", self.b), ("D", self.d)] {
            check::array(name, array, ("num_gemms", count))?;
        }
        let entry = |array: *const NVTETensor, i: usize| match array.is_null() {
            true => std::ptr::null_mut(),
            // SAFETY: the caller's promise.
            false => unsafe { array.add(i).read() },
        };
        let plan = |i: usize| {
            let product = Product {
                a: entry(self.a, i),
                b: entry(self.b, i),
                d: entry(self.d, i),
                epilogue: Epilogue {
                    bias: (product.epilogue.bias.0, entry(self.bias, i)),
                    aux: (product.epilogue.aux.0, entry(self.aux, i)),
                    ..product.epilogue
                },
                workspace: entry(self.workspace, i % BRANCHES),
                ..*product
            };
            // The product knows its tensors as those of a single call.
            let args = product.checked().map_err(|error| Error {
                message: format!("in product {i}: {}", error.message),
                ..error
            })?;
            Ok(args.map(|args| (i, args)))
        };
        (0..count).filter_map(|i| plan(i).transpose()).collect()
    }

    /// Runs the products, of which `product` is what they share, on streams of their own.
    ///
    /// # Safety
    /// As [`Self::plan`].
    pub unsafe fn run(&self, product: &Product, stream: cudaStream_t) -> Result<()> {
        // SAFETY: the caller's promise.
        let plans = unsafe { self.plan(product)? };
        let count = match &plans[..] {
            [] => return Ok(()),
            [(_, args)] => return backend::run(args, stream),
            [.., (last, _)] => BRANCHES.min(last + 1),
        };
        let mut branches = [stream; BRANCHES];
        backend::call("fork", |table| {
            // SAFETY: writes `count` streams.
            let fork = |f: unsafe extern "C-unwind" fn(_, _, _) -> _| unsafe {
                f(stream, count as c_int, branches.as_mut_ptr())
            };
            table.fork.map(fork)
        })?;
        // As the workspaces: products on one stream share one.
        let result =
            plans.iter().try_for_each(|(i, args)| backend::run(args, branches[i % BRANCHES]));
        // Also after an error: what was enqueued must come before what follows.
        let joined = backend::call("join", |table| {
            // SAFETY: the stream is the caller's.
            table.join.map(|join| unsafe { join(stream, count as c_int) })
        });
        result.and(joined)
    }
}

/// The counters of a product in chunks.
pub(super) struct Chunks {
    pub m_split: i32,
    pub n_split: i32,
    /// Null, or without an address: an ordinary product.
    pub counter: NVTETensor,
    pub producer: bool,
}

impl Chunks {
    fn plan(&self) -> Result<Option<CountersArgs>> {
        let split = |name: &str, split: i32| match usize::try_from(split) {
            Ok(split) => Ok(split.max(1)),
            Err(_) => Err(Error::argument(name, "0 or more", split)),
        };
        let length = split("m_split", self.m_split)? * split("n_split", self.n_split)?;
        let counter = check::tensor_or_empty("counter", self.counter)?.rowwise;
        if counter.ptr().is_null() {
            return Ok(None);
        }
        check::dtype("counter", counter.dtype, &[NVTEDType::kNVTEInt32])?;
        let counters = check::elements("counter", &counter, length, counter.dtype)?.cast();
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
