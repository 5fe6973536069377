//! Rotary embedding of queries and keys (spec: pointwise_norm, section 11).
#![allow(unsafe_code)]

pub(crate) mod cpu;
pub mod exports;

use crate::backend::{self, args::*};
use crate::check;
use crate::device_check;
use crate::error::{Error, Result};
use crate::tensor::{Buffer, Tensor, from_c_enum};
use crate::types::NVTE_QKV_Format::*;
use crate::types::*;
use std::ptr::{null, null_mut};

from_c_enum!(NVTE_QKV_Format, "an NVTE_QKV_Format from 0 to 8");

/// What the functions have in common.
pub(crate) struct Form {
    pub format: NVTE_QKV_Format,
    pub interleaved: bool,
    pub backward: bool,
    /// cp_size and cp_rank
    pub cp: [i32; 2],
    /// s, b, h, d and d2
    pub sizes: [i32; 5],
}

/// Sizes that have been checked.
struct Sizes {
    format: NVTE_QKV_Format,
    s: usize,
    b: usize,
    h: usize,
    d: usize,
    d2: usize,
    cp_size: usize,
    cp_rank: usize,
}

fn at_least(name: &str, value: i32, least: i32) -> Result<usize> {
    match usize::try_from(value) {
        Ok(size) if value >= least => Ok(size),
        _ => Err(Error::argument(name, format!("{least} or more"), value)),
    }
}

impl Form {
    fn sizes(&self, formats: &[NVTE_QKV_Format]) -> Result<Sizes> {
        let format = self.format;
        if !formats.contains(&format) {
            let names: Vec<String> = formats.iter().map(|format| format!("{format:?}")).collect();
            let error = Error::argument("qkv_format", names.join(" or "), format!("{format:?}"));
            return Err(Error::unsupported(error.message));
        }
        let [s, b, h, d, d2] = self.sizes;
        let [cp_size, cp_rank] = self.cp;
        let sizes = Sizes {
            format,
            s: at_least("s", s, 0)?,
            b: at_least("b", b, 0)?,
            h: at_least("h", h, 0)?,
            d: at_least("d", d, 1)?,
            d2: at_least("d2", d2, 0)?,
            cp_size: at_least("cp_size", cp_size, 1)?,
            cp_rank: at_least("cp_rank", cp_rank, 0)?,
        };
        if sizes.d2 > sizes.d || !sizes.d2.is_multiple_of(2) {
            return Err(Error::argument("d2", format!("even and at most {d} (d)"), d2));
        }
        if cp_rank >= cp_size {
            let expected = format!("less than {cp_size} (cp_size)");
            return Err(Error::argument("cp_rank", expected, cp_rank));
        }
        if format != NVTE_THD && cp_size > 1 && !sizes.s.is_multiple_of(2) {
            return Err(Error::argument("s", "an even number (cp_size is not 1)", s));
        }
        Ok(sizes)
    }

    /// The arguments but for the tensors.
    fn args(&self, sizes: &Sizes, dtype: NVTEDType) -> RopeArgs {
        RopeArgs {
            parts: [NO_PART; 3],
            cu_seqlens: null(),
            start_positions: null(),
            positions: sizes.s,
            sequences: sizes.b,
            dim: sizes.d,
            rotated: sizes.d2,
            cp_size: sizes.cp_size,
            cp_rank: sizes.cp_rank,
            freqs_rows: UNBOUNDED,
            interleaved: self.interleaved,
            backward: self.backward,
            dtype,
            amax: null_mut(),
        }
    }
}

/// A number of rows of angles for tensors that have none.
const UNBOUNDED: usize = 1 << 60;

const NO_STRIDES: RopeStrides =
    RopeStrides { position: 0, sequence: 0, group: 0, head: 0, element: 1 };
const NO_PART: RopePart = RopePart {
    input: null(),
    output: null_mut(),
    freqs: null(),
    heads: 0,
    heads_per_group: 1,
    input_strides: NO_STRIDES,
    output_strides: NO_STRIDES,
};

impl Sizes {
    /// Strides of contiguous tokens of `token` elements, in groups of `group` elements.
    fn strides(&self, token: usize, group: usize) -> RopeStrides {
        let (position, sequence) = match self.format {
            NVTE_SBHD => (self.b * token, token),
            NVTE_BSHD => (token, self.s * token),
            _ => (token, 0),
        };
        RopeStrides { position, sequence, group, head: self.d, element: 1 }
    }

    /// The product of some dimensions with s and b, if memory can hold as many elements.
    fn numel(&self, name: &str, dims: &[usize]) -> Result<usize> {
        // The size of packed tokens contains all sequences.
        let sequences = if self.format == NVTE_THD { 1 } else { self.b };
        let all = [self.s, sequences].into_iter().chain(dims.iter().copied());
        let product = all.clone().filter(|&n| n > 0).try_fold(1usize, usize::checked_mul);
        match product {
            Some(product) if product < 1 << 60 => {
                Ok(if all.min() == Some(0) { 0 } else { product })
            }
            _ => Err(Error::argument(
                name,
                "sizes whose product is less than 2^60",
                "a larger product",
            )),
        }
    }

    /// Angles `[S_max, 1, 1, d2]` and their rows, at least `least`.
    fn freqs(&self, name: &str, freqs: &Buffer, least: usize) -> Result<(*const f32, usize)> {
        check::dtype(name, freqs.dtype, &[NVTEDType::kNVTEFloat32])?;
        let (rows, d2) = freqs.shape.flatten();
        if d2 != self.d2 || rows < least {
            let expected = format!("[{least} or more, 1, 1, {}]", self.d2);
            return Err(Error::argument(format!("{name}.shape"), expected, freqs.shape));
        }
        Ok((check::pointer(format_args!("{name}.data"), freqs)?.cast_const().cast(), rows))
    }

    /// Rows of angles that are needed whatever the device holds: as many as there are positions, or one
    /// if only the device knows these.
    fn least_rows(&self, only_device_knows: bool) -> usize {
        if only_device_knows { 1 } else { self.s * self.cp_size }
    }

    /// Where packed sequences begin.
    fn sums(&self, cu_seqlens: Option<&Buffer>) -> Result<*const i32> {
        let unset = Buffer::UNSET;
        int32("cu_seqlens", cu_seqlens.unwrap_or(&unset), self.b + 1)
    }

    /// Start positions, if there are any.
    fn start_positions(&self, buffer: &Buffer) -> Result<*const i32> {
        if buffer.ptr().is_null() {
            return Ok(null());
        }
        int32("start_positions", buffer, self.b)
    }
}

/// At least `length` integers on the device.
fn int32(name: &str, buffer: &Buffer, length: usize) -> Result<*const i32> {
    check::dtype(name, buffer.dtype, &[NVTEDType::kNVTEInt32])?;
    if buffer.shape.numel() < length {
        let expected = format!("{length} elements or more");
        return Err(Error::argument(format_args!("{name}.shape"), expected, buffer.shape));
    }
    Ok(check::pointer(format_args!("{name}.data"), buffer)?.cast_const().cast())
}

/// Row-wise data of one dtype, that of `like` if there is one.
fn data<'a>(name: &str, tensor: &'a Tensor, like: Option<NVTEDType>) -> Result<&'a Buffer> {
    check::input(name, tensor)?;
    check::high_precision(name, tensor.dtype())?;
    if let Some(like) = like {
        check::dtype(name, tensor.dtype(), &[like])?;
    }
    Ok(&tensor.rowwise)
}

fn elements(name: &str, buffer: &Buffer, expected: usize, what: &str) -> Result<()> {
    if buffer.shape.numel() == expected {
        return Ok(());
    }
    let expected = format!("{expected} elements ({what})");
    Err(Error::argument(format!("{name}.shape"), expected, buffer.shape))
}

/// Runs the backend; with `NVTE_CHECK=device` refuses sums of lengths past the tokens, and start positions past
/// the angles, before.
fn run(args: &RopeArgs, stream: cudaStream_t) -> Result<()> {
    let packed = !args.cu_seqlens.is_null();
    // SAFETY: the arrays have been checked to have as many elements.
    unsafe {
        let name = "cu_seqlens";
        if let Some(sums) = device_check::read(name, args.cu_seqlens, args.sequences + 1, stream)? {
            device_check::ascending(name, &sums, (args.positions * args.cp_size) as i64)?;
        }
        let name = "start_positions";
        if let Some(starts) =
            device_check::read(name, args.start_positions, args.sequences, stream)?
        {
            // With packed sequences there is at least the row of the first position.
            let length = if packed { 1 } else { args.positions };
            let last = args.freqs_rows as i64 - length as i64;
            device_check::in_range(name, &starts, 0, last)?;
        }
    }
    backend::run(args, stream)
}

/// Rotates one tensor, whose strides are given. Packed tokens have cumulative lengths.
pub(crate) fn rope(
    [(input_name, input), (output_name, output)]: [(&str, &Tensor); 2],
    cu_seqlens: Option<&Buffer>,
    [angles, start_positions]: [&Buffer; 2],
    form: &Form,
    [stride_s, stride_b, stride_h, stride_d]: [i32; 4],
    stream: cudaStream_t,
) -> Result<()> {
    let sizes = form.sizes(&[NVTE_SBHD, NVTE_BSHD, NVTE_THD])?;
    let packed = sizes.format == NVTE_THD;
    let x = data(input_name, input, None)?;
    let y = data(output_name, output, Some(x.dtype))?;
    let mut args = form.args(&sizes, x.dtype);
    args.start_positions = sizes.start_positions(start_positions)?;
    if packed {
        args.cu_seqlens = sizes.sums(cu_seqlens)?;
        args.positions = *x.shape.dims().first().unwrap_or(&1);
    }
    let (h, d) = (sizes.h, sizes.d);
    let (expected, what) = match packed {
        true => (args.positions.saturating_mul(h * d), "t * h * d"),
        false => (sizes.numel("s, b, h, d", &[h, d])?, "s * b * h * d"),
    };
    elements(input_name, x, expected, what)?;
    elements(output_name, y, expected, what)?;
    let only_device_knows = packed || !args.start_positions.is_null();
    let least = if expected > 0 { sizes.least_rows(only_device_knows) } else { 0 };
    let freqs;
    (freqs, args.freqs_rows) = sizes.freqs("freqs", angles, least)?;
    args.parts[0] = RopePart {
        input: x.ptr(),
        output: y.ptr(),
        freqs,
        heads: h,
        heads_per_group: h.max(1),
        input_strides: RopeStrides {
            position: at_least("stride_s_or_t", stride_s, 0)?,
            sequence: if packed { 0 } else { at_least("stride_b", stride_b, 0)? },
            group: 0,
            head: at_least("stride_h", stride_h, 0)?,
            element: at_least("stride_d", stride_d, 0)?,
        },
        output_strides: sizes.strides(h * d, 0),
    };
    if expected > 0 { run(&args, stream) } else { Ok(()) }
}

/// Queries, keys and values of the groups of heads of one tensor, which is the forward's input and
/// the backward's output.
pub(crate) struct QkvRope<'a> {
    pub whole: (&'a str, &'a Tensor),
    pub names: [&'a str; 3],
    pub parts: [&'a Tensor; 3],
    /// Angles of queries and of keys; without an address these are copied.
    pub freqs: [&'a Buffer; 2],
    pub start_positions: &'a Buffer,
    /// Cumulative lengths of packed tokens. The sizes of the form then begin with the tokens and the
    /// sequences.
    pub cu_seqlens: Option<&'a Buffer>,
    pub form: Form,
    /// Elements of a group in each of the parts.
    pub split: [i32; 3],
    /// Raised to the largest magnitude of what is written.
    pub amax: Option<&'a Buffer>,
}

impl QkvRope<'_> {
    pub fn run(&self, stream: cudaStream_t) -> Result<()> {
        let packed_tokens = self.cu_seqlens.is_some();
        let formats = if packed_tokens { &[NVTE_THD][..] } else { &[NVTE_SBHD, NVTE_BSHD] };
        let (form, sizes) = (&self.form, self.form.sizes(formats)?);
        let cu_seqlens = if packed_tokens { sizes.sums(self.cu_seqlens)? } else { null() };
        let (h, d) = (sizes.h, sizes.d);
        let mut widths = [0; 3];
        for (i, width) in widths.iter_mut().enumerate() {
            let name = ["qkv_split_arg_list_0", "qkv_split_arg_list_1", "qkv_split_arg_list_2"][i];
            *width = at_least(name, self.split[i], 0)?;
            if !width.is_multiple_of(d) {
                let expected = format!("a multiple of {d} (d)");
                return Err(Error::argument(name, expected, self.split[i]));
            }
        }
        let group: usize = widths.iter().sum();
        let (whole_name, whole) = self.whole;
        let packed = data(whole_name, whole, None)?;
        elements(whole_name, packed, sizes.numel("s, b, h", &[h, group])?, "s * b * h * splits")?;
        let empty = packed.shape.numel() == 0;
        let mut args = form.args(&sizes, packed.dtype);
        args.cu_seqlens = cu_seqlens;
        args.start_positions = sizes.start_positions(self.start_positions)?;
        args.amax = self.amax.map_or(null_mut(), |amax| amax.ptr().cast());
        let mut first = 0;
        for (i, name) in self.names.into_iter().enumerate() {
            let tensor = data(name, self.parts[i], Some(packed.dtype))?;
            let width = widths[i];
            elements(name, tensor, sizes.numel("s, b, h", &[h, width])?, "s * b * h * split")?;
            let (angles, rows) = match self.freqs.get(i) {
                Some(freqs) if !freqs.ptr().is_null() => {
                    let only_device_knows = !args.start_positions.is_null() || packed_tokens;
                    let least = if empty { 0 } else { sizes.least_rows(only_device_knows) };
                    sizes.freqs(["q_freqs", "k_freqs"][i], freqs, least)?
                }
                _ => (null(), UNBOUNDED),
            };
            let here = packed.ptr().wrapping_byte_add(first * packed.dtype.bits() / 8);
            let mut part = RopePart {
                input: here,
                output: tensor.ptr(),
                freqs: angles,
                heads: h * (width / d),
                heads_per_group: (width / d).max(1),
                input_strides: sizes.strides(h * group, group),
                output_strides: sizes.strides(h * width, width),
            };
            if form.backward {
                (part.input, part.output) = (part.output, here);
                std::mem::swap(&mut part.input_strides, &mut part.output_strides);
            }
            args.parts[i] = part;
            args.freqs_rows = args.freqs_rows.min(rows);
            first += width;
        }
        if empty { Ok(()) } else { run(&args, stream) }
    }
}
