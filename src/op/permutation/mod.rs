//! Rows of tokens to the rows of their experts and back (spec: moe_layout, section 8).

pub(crate) mod cpu;
pub mod exports;
mod mangled;

use crate::backend::{self, args::*};
use crate::check::{self, Memory};
use crate::error::{Error, Result};
use crate::tensor::Buffer;
use crate::types::{NVTEDType::*, *};
use std::cell::Cell;
use std::ffi::c_void;
use std::ptr::{null, null_mut};

/// Sizes that a call gives as numbers.
#[derive(Clone, Copy)]
struct Sizes {
    tokens: usize,
    topk: usize,
    cols: usize,
}

impl Sizes {
    fn new(num_rows: i32, topk: i32, num_cols: i32) -> Result<Self> {
        let size = |name: &str, value: i32| {
            usize::try_from(value).map_err(|_| Error::argument(name, "0 or more", value))
        };
        let (tokens, topk) = (size("num_rows", num_rows)?, size("topK", topk)?);
        let sizes = Self { tokens, topk, cols: size("num_cols", num_cols)? };
        if sizes.slots() > i32::MAX as usize {
            let expected = format!("num_rows * topK of at most {}", i32::MAX);
            return Err(Error::argument("topK", expected, topk));
        }
        Ok(sizes)
    }

    fn slots(&self) -> usize {
        self.tokens * self.topk
    }

    fn elements(&self) -> usize {
        self.tokens * self.cols
    }

    fn is_empty(&self) -> bool {
        self.slots() * self.cols == 0
    }
}

/// Address of a tensor of `least` or more elements.
fn data(name: &str, buffer: &Buffer, dtype: NVTEDType, least: usize) -> Result<*mut c_void> {
    check::dtype(name, buffer.dtype, &[dtype])?;
    check::elements(name, buffer, least, dtype)
}

/// Probabilities, null for none.
fn optional_floats(name: &str, buffer: &Buffer, least: usize) -> Result<*mut f32> {
    match buffer.ptr().is_null() {
        true => Ok(null_mut()),
        false => Ok(data(name, buffer, kNVTEFloat32, least)?.cast()),
    }
}

/// The rows of `cols` elements that a tensor has.
fn rows(buffer: &Buffer, sizes: &Sizes) -> usize {
    buffer.shape.numel().checked_div(sizes.cols).unwrap_or(0).min(i32::MAX as usize)
}

/// Tensors of `nvte_permute`.
struct Permutation {
    input: Buffer,
    output: Buffer,
    sorted_row_id: Buffer,
    row_id_map: Buffer,
    prob: Buffer,
    prob_grad: Buffer,
    input_fwd: Buffer,
}

fn permute(
    tensors: &Permutation,
    sizes: &Sizes,
    num_out_tokens: i32,
    stream: cudaStream_t,
) -> Result<()> {
    let Permutation { input, output, input_fwd: forward, .. } = tensors;
    let dtype = input.dtype;
    check::high_precision("input", dtype)?;
    let map = data("row_id_map", &tensors.row_id_map, kNVTEInt32, sizes.slots())?;
    let mut args = PermuteArgs {
        input: data("input", input, dtype, sizes.elements())?,
        output: null_mut(),
        map: map.cast_const().cast(),
        probs: null(),
        prob_grads: null_mut(),
        forward: null(),
        tokens: sizes.tokens,
        topk: sizes.topk,
        cols: sizes.cols,
        rows: 0,
        dtype,
    };
    if !forward.ptr().is_null() {
        args.rows = rows(forward, sizes);
        args.output = data("output", output, dtype, args.rows * sizes.cols)?;
        args.probs = optional_floats("prob", &tensors.prob, sizes.slots())?;
        if !args.probs.is_null() {
            let grads = &tensors.prob_grad;
            args.prob_grads = data("prob_grad", grads, kNVTEFloat32, sizes.slots())?.cast();
            args.forward = data("input_fwd", forward, dtype, args.rows * sizes.cols)?;
        }
        permute_apart(&args, None)?;
        return if sizes.is_empty() { Ok(()) } else { backend::run(&args, stream) };
    }
    let Ok(out_tokens) = usize::try_from(num_out_tokens) else {
        return Err(Error::argument("num_out_tokens", "0 or more", num_out_tokens));
    };
    args.rows = out_tokens.min(sizes.slots());
    args.output = data("output", output, dtype, args.rows * sizes.cols)?;
    let sorted = &tensors.sorted_row_id;
    let row_map = RowMapArgs {
        sorted: data("sorted_row_id", sorted, kNVTEInt32, sizes.slots())?.cast_const().cast(),
        map: map.cast(),
        tokens: sizes.tokens,
        topk: sizes.topk,
        rows: args.rows,
    };
    permute_apart(&args, Some(&row_map))?;
    if sizes.slots() > 0 {
        backend::run(&row_map, stream)?;
    }
    if sizes.is_empty() { Ok(()) } else { backend::run(&args, stream) }
}

/// Refuses outputs that overlap anything; the map is one if it is made in this call.
fn permute_apart(args: &PermuteArgs, row_map: Option<&RowMapArgs>) -> Result<()> {
    let (slots, row) = (args.tokens * args.topk, args.cols * args.dtype.bits() / 8);
    let map = Memory::new(&"row_id_map.data", args.map, slots * 4);
    let inputs = [
        Memory::new(&"input.data", args.input, args.tokens * row),
        Memory::new(&"prob.data", args.probs, slots * 4),
        Memory::new(&"input_fwd.data", args.forward, args.rows * row),
        match row_map {
            Some(row_map) => Memory::new(&"sorted_row_id.data", row_map.sorted, slots * 4),
            None => map,
        },
    ];
    let outputs = [
        Memory::new(&"output.data", args.output, args.rows * row),
        Memory::new(&"prob_grad.data", args.prob_grads, slots * 4),
        map,
    ];
    check::apart(&inputs, &outputs[..if row_map.is_some() { 3 } else { 2 }])
}

fn unpermute(
    [input, output, row_id_map, prob]: [&Buffer; 4],
    sizes: &Sizes,
    stream: cudaStream_t,
) -> Result<()> {
    check::high_precision("input", input.dtype)?;
    let dtype = input.dtype;
    let rows = rows(input, sizes);
    let args = UnpermuteArgs {
        input: data("input", input, dtype, rows * sizes.cols)?,
        output: data("output", output, dtype, sizes.elements())?,
        map: data("row_id_map", row_id_map, kNVTEInt32, sizes.slots())?.cast_const().cast(),
        probs: optional_floats("prob", prob, sizes.slots())?,
        tokens: sizes.tokens,
        topk: sizes.topk,
        cols: sizes.cols,
        rows,
        dtype,
    };
    let inputs = [
        Memory::new(&"input.data", args.input, rows * sizes.cols * dtype.bits() / 8),
        Memory::new(&"row_id_map.data", args.map, sizes.slots() * 4),
        Memory::new(&"prob.data", args.probs, sizes.slots() * 4),
    ];
    let output_bytes = sizes.elements() * dtype.bits() / 8;
    check::apart(&inputs, &[Memory::new(&"output.data", args.output, output_bytes)])?;
    if sizes.elements() == 0 { Ok(()) } else { backend::run(&args, stream) }
}

/// Arrays of `nvte_device_radix_sort_pairs`.
struct Pairs {
    temp_storage: *mut c_void,
    temp_storage_bytes: *mut usize,
    keys: [*mut i32; 2],
    values: [*mut i32; 2],
    num_items: usize,
}

fn sort_pairs(pairs: &Pairs) -> Result<()> {
    check::address("temp_storage_bytes", pairs.temp_storage_bytes.cast_const())?;
    let n = pairs.num_items;
    if n > i32::MAX as usize {
        return Err(Error::argument("num_items", format!("at most {}", i32::MAX), n));
    }
    let [keys_in, keys_out] = pairs.keys;
    let [values_in, values_out] = pairs.values;
    if !pairs.temp_storage.is_null() {
        let arrays = [
            ("keys_in", keys_in),
            ("keys_out", keys_out),
            ("values_in", values_in),
            ("values_out", values_out),
        ];
        for (name, array) in arrays {
            check::raw_pointer(name, array.cast(), n, kNVTEInt32)?;
        }
        let [keys_in, keys_out, values_in, values_out] =
            arrays.each_ref().map(|(name, array)| Memory::new(name, *array, n * 4));
        check::apart(&[keys_in, values_in], &[keys_out, values_out])?;
    }
    let needed = Cell::new(0);
    let query = SortPairsArgs {
        workspace: null_mut(),
        workspace_bytes: needed.as_ptr(),
        keys: keys_in.cast_const().cast(),
        sorted_keys: keys_out.cast(),
        values: values_in,
        sorted_values: values_out,
        pairs: n,
        key_bits: 0,
    };
    let needed = backend::workspace(&query, &|| needed.get())?;
    // SAFETY: the caller's address of one number, which was checked.
    #[allow(unsafe_code)]
    let given = unsafe { &mut *pairs.temp_storage_bytes };
    if pairs.temp_storage.is_null() {
        *given = needed;
        return Ok(());
    }
    if *given < needed {
        return Err(Error::argument("temp_storage_bytes", format!("{needed} or more"), *given));
    }
    // The function has no stream, so the default one is used.
    backend::run(&SortPairsArgs { workspace: pairs.temp_storage, ..query }, null_mut())
}

/// Weights of the choices of tokens, `[tokens, topk]` in Float32, and for a gradient of them where it goes and the rows
/// that they were multiplied with.
pub(crate) struct Weights<'a> {
    pub probs: &'a Buffer,
    pub gradient: Option<(&'a Buffer, &'a Buffer)>,
}

/// Copies each row of a matrix to the rows that a map `[topk, tokens]` says, times its weights; other rows are left alone.
pub(crate) fn to_rows(
    [input, output, map]: [&Buffer; 3],
    weights: Option<&Weights>,
    stream: cudaStream_t,
) -> Result<()> {
    let ((topk, tokens), (rows, cols)) = (map.shape.flatten(), output.shape.flatten());
    let sizes = Sizes { tokens, topk, cols };
    let dtype = input.dtype;
    check::high_precision("input", dtype)?;
    let mut args = PermuteArgs {
        input: data("input", input, dtype, sizes.elements())?,
        output: data("output", output, dtype, rows * cols)?,
        map: data("map", map, kNVTEInt32, sizes.slots())?.cast_const().cast(),
        probs: null(),
        prob_grads: null_mut(),
        forward: null(),
        tokens,
        topk,
        cols,
        rows,
        dtype,
    };
    if let Some(Weights { probs, gradient }) = weights {
        args.probs = data("weights", probs, kNVTEFloat32, sizes.slots())?.cast();
        if let Some((grads, forward)) = gradient {
            args.prob_grads = data("grad_weights", grads, kNVTEFloat32, sizes.slots())?.cast();
            args.forward = data("forward", forward, dtype, rows * cols)?;
        }
    }
    if sizes.is_empty() { Ok(()) } else { backend::run(&args, stream) }
}

/// Sums the rows that a map `[topk, tokens]` says for each row of the output, times their weights.
pub(crate) fn from_rows(
    [input, output, map]: [&Buffer; 3],
    weights: Option<&Buffer>,
    stream: cudaStream_t,
) -> Result<()> {
    let ((topk, tokens), (rows, cols)) = (map.shape.flatten(), input.shape.flatten());
    let sizes = Sizes { tokens, topk, cols };
    let dtype = input.dtype;
    check::high_precision("input", dtype)?;
    let mut args = UnpermuteArgs {
        input: data("input", input, dtype, rows * cols)?,
        output: data("output", output, dtype, sizes.elements())?,
        map: data("map", map, kNVTEInt32, sizes.slots())?.cast_const().cast(),
        probs: null(),
        tokens,
        topk,
        cols,
        rows,
        dtype,
    };
    if let Some(weights) = weights {
        args.probs = data("weights", weights, kNVTEFloat32, sizes.slots())?.cast();
    }
    if sizes.elements() == 0 { Ok(()) } else { backend::run(&args, stream) }
}
