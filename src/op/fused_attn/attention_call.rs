//! The calls of attention: handles become a problem and then addresses; auxiliary tensors and the
//! workspace answer queries (spec attention 8, 11, 12).
#![allow(unsafe_code)]

use super::Layout;
use super::attention::*;
use super::objects::{BWD, FWD, Objects};
use crate::backend::{self, args::*};
use crate::check;
use crate::error::{Error, Result};
use crate::tensor::{Buffer, Shape, TENSORS, Tensor};
use crate::types::*;
use NVTE_Bias_Type::NVTE_POST_SCALE_BIAS;
use NVTE_QKV_Format::*;
use NVTE_QKV_Layout_Group::*;
use NVTE_Softmax_Type::NVTE_VANILLA_SOFTMAX;
use NVTEDType::*;
use std::ffi::c_void;
use std::mem::MaybeUninit;
use std::ptr::null_mut;

/// A tensor argument; an unset one for a null handle.
struct Named {
    name: &'static str,
    tensor: Tensor,
}

impl Named {
    fn new(name: &'static str, handle: NVTETensor) -> Result<Self> {
        Ok(Self { name, tensor: check::tensor_or_empty(name, handle)? })
    }

    fn buffer(&self) -> &Buffer {
        &self.tensor.rowwise
    }

    /// The buffer, which must be there.
    fn required(&self) -> Result<&Buffer> {
        if !self.buffer().is_set() {
            let name = format!("{}.data", self.name);
            return Err(Error::argument(name, "row-wise data", "no data"));
        }
        Ok(self.buffer())
    }

    /// Dimensions of a tensor in a format: heads and elements of a head, and sequences and tokens.
    fn sizes(&self, format: NVTE_QKV_Format) -> Result<Sizes> {
        let shape = self.required()?.shape;
        Ok(match (format, shape.dims()) {
            (NVTE_THD, &[tokens, heads, dim]) => Sizes { batch: 0, tokens, heads, dim },
            (NVTE_SBHD, &[tokens, batch, heads, dim])
            | (NVTE_BSHD, &[batch, tokens, heads, dim])
            | (NVTE_BHSD, &[batch, heads, tokens, dim]) => Sizes { batch, tokens, heads, dim },
            _ => {
                let expected = match format {
                    NVTE_THD => "[tokens, heads, dim]",
                    NVTE_SBHD => "[length, batch, heads, dim]",
                    NVTE_BHSD => "[batch, heads, length, dim]",
                    _ => "[batch, length, heads, dim]",
                };
                return Err(Error::argument(format!("{}.shape", self.name), expected, shape));
            }
        })
    }

    fn has_shape(&self, dims: &[usize]) -> Result<()> {
        check::shape(self.name, &self.required()?.shape, &Shape::new(dims))
    }

    /// Address of data whose rows are read or written by vectors if their bytes allow it.
    fn address(&self, row: usize) -> Result<*mut c_void> {
        data_address(format!("{}.data", self.name), self.required()?, row)
    }

    /// Places the data and scales of a tensor. Only of FP8 attention are scales looked at.
    fn place(&self, to: &mut AttentionTensor, row: usize, fp8: bool) -> Result<()> {
        to.data = self.address(row)?;
        if fp8 { self.scales(to, self.buffer().dtype.is_fp8()) } else { Ok(()) }
    }

    /// The fields of one float that are there.
    fn scales(&self, to: &mut AttentionTensor, scaled: bool) -> Result<()> {
        let (name, tensor) = (self.name, &self.tensor);
        to.amax = check::optional_scalar(format_args!("{name}.amax"), &tensor.amax)?;
        if scaled {
            to.scale = check::optional_scalar(format_args!("{name}.scale"), &tensor.scale)?;
            to.scale_inv = check::optional_scalar(
                format_args!("{name}.scale_inv"),
                &tensor.rowwise_scale_inv,
            )?;
        }
        Ok(())
    }

    /// Address of `length` plain numbers; there may be more, since callers keep arrays of their largest batch.
    fn numbers(&self, dtype: NVTEDType, length: usize) -> Result<*mut c_void> {
        let buffer = self.required()?;
        check::dtype(self.name, buffer.dtype, &[dtype])?;
        super::check_elements(self.name, buffer, length)?;
        check::pointer(format_args!("{}.data", self.name), buffer)
    }

    /// Refuses tensors that do not lie `elements` behind another one, as those of a layout that interleaves
    /// do: their shapes say nothing about what lies between their rows.
    fn interleaved_with(&self, first: &Self, elements: usize) -> Result<()> {
        let (at, from) = (self.required()?.ptr(), first.required()?.ptr());
        let bytes = crate::tensor::bytes(elements, self.buffer().dtype);
        if at == from.wrapping_byte_add(bytes) {
            return Ok(());
        }
        let expected = format!("{} + {elements} elements (a layout that interleaves)", first.name);
        let offset = (at as usize).wrapping_sub(from as usize) as isize;
        let got = format!("{} + {offset} bytes", first.name);
        Err(Error::argument(format!("{}.data", self.name), expected, got))
    }

    /// As [`Self::numbers`] of float32; null if there is no data.
    fn optional_floats(&self, length: usize) -> Result<*mut f32> {
        match self.buffer().ptr().is_null() {
            true => Ok(null_mut()),
            false => Ok(self.numbers(kNVTEFloat32, length)?.cast()),
        }
    }

    /// Four dimensions of a bias; of more, the last.
    fn bias_dims(&self) -> Option<[usize; 4]> {
        self.buffer().shape.dims().last_chunk().copied()
    }
}

/// Refuses queries, keys and values, or their gradients, that do not lie in one buffer as the layout says.
fn check_interleaved(layout: &Layout, problem: &Problem, parts: [&Named; 3]) -> Result<()> {
    let [q, k, v] = parts;
    let (heads, dim) = (problem.heads, problem.dim_qk);
    match layout.group {
        NVTE_3HD => {
            k.interleaved_with(q, heads[0] * dim)?;
            v.interleaved_with(q, 2 * heads[0] * dim)
        }
        NVTE_H3D => {
            k.interleaved_with(q, dim)?;
            v.interleaved_with(q, 2 * dim)
        }
        NVTE_HD_2HD => v.interleaved_with(k, heads[1] * dim),
        NVTE_HD_H2D => v.interleaved_with(k, dim),
        _ => Ok(()),
    }
}

/// Address of an auxiliary tensor, of `least` elements or more. A pack that is left from a call with other
/// options has others at its place.
fn auxiliary(name: &str, buffer: &Buffer, dtype: NVTEDType, least: usize) -> Result<*mut c_void> {
    let data = check::raw_pointer(format!("{name}.data"), buffer.ptr(), least, dtype)?;
    check::dtype(name, buffer.dtype, &[dtype])?;
    super::check_elements(name, buffer, least)?;
    Ok(data)
}

/// An address aligned to 16 bytes if rows are multiples of them, else to an element.
fn data_address(name: String, buffer: &Buffer, row: usize) -> Result<*mut c_void> {
    let data = check::pointer(&name, buffer)?;
    let vectors = (row * buffer.dtype.bits()).is_multiple_of(128);
    if vectors && !(data as usize).is_multiple_of(16) {
        let expected = format!("a pointer aligned to 16 bytes (rows of {row} {})", buffer.dtype);
        return Err(Error::argument(name, expected, format!("{data:p}")));
    }
    Ok(data)
}

struct Sizes {
    batch: usize,
    tokens: usize,
    heads: usize,
    dim: usize,
}

/// Lengths and starts of the sequences of both sides.
struct Sequences {
    /// Of queries, and of keys and values.
    cu_seqlens: [Named; 2],
    padded: [Named; 2],
}

impl Sequences {
    fn new(words: Words, first: usize) -> Result<Self> {
        let named = |name, index| Named::new(name, words.pointer(first + index));
        Ok(Self {
            cu_seqlens: [named("cu_seqlens_q", 0)?, named("cu_seqlens_kv", 1)?],
            padded: [named("cu_seqlens_q_padded", 2)?, named("cu_seqlens_kv_padded", 3)?],
        })
    }

    /// Number of sequences of packed queries.
    fn count(&self) -> Result<usize> {
        match *self.cu_seqlens[0].required()?.shape.dims() {
            [length] if length > 0 => Ok(length - 1),
            _ => Err(Error::argument(
                "cu_seqlens_q.shape",
                "one dimension of 1 or more",
                self.cu_seqlens[0].buffer().shape,
            )),
        }
    }

    fn place(&self, problem: &Problem, args: &mut AttentionArgs) -> Result<()> {
        let (o, length) = (&problem.options, problem.batch + 1);
        let together = o.interleaves_all();
        for (side, place) in [&mut args.q_side, &mut args.kv_side].into_iter().enumerate() {
            if o.padding() {
                place.cu_seqlens = self.cu_seqlens[side].numbers(kNVTEInt32, length)?.cast();
            }
            if o.ragged()[side] {
                // Keys and values between the queries begin where they do.
                let from = if together { 0 } else { side };
                let padded = &self.padded[from];
                place.starts = match padded.buffer().ptr().is_null() {
                    true => self.cu_seqlens[from].numbers(kNVTEInt32, length)?.cast(),
                    false => padded.numbers(kNVTEInt32, length)?.cast(),
                };
            }
        }
        Ok(())
    }
}

/// The problem of Q, K and V; dtypes of the others are set by the pass.
fn problem(options: Options, [q, k, v]: [&Named; 3], sequences: &Sequences) -> Result<Problem> {
    let layout = &options.layout;
    let queries = q.sizes(layout.q)?;
    let dtype = q.buffer().dtype;
    for other in [k, v] {
        check::dtype(other.name, other.required()?.dtype, &[dtype])?;
    }
    let (keys, values) = (k.sizes(layout.kv)?, v.sizes(layout.kv)?);
    let batch = match layout.q {
        // An array of the caller's largest batch has empty sequences at its end, without keys of their own.
        NVTE_THD if layout.kv != NVTE_THD && !options.paged() => sequences.count()?.min(keys.batch),
        NVTE_THD => sequences.count()?,
        _ => queries.batch,
    };
    let mut problem = Problem {
        options,
        scaling: q.tensor.mode,
        qkv_dtype: dtype,
        o_dtype: dtype,
        do_dtype: dtype,
        dqkv_dtype: dtype,
        bias_dtype: dtype,
        batch,
        heads: [queries.heads, keys.heads],
        dim_qk: queries.dim,
        dim_v: values.dim,
        tokens: [queries.tokens, keys.tokens],
        pages: Default::default(),
        bias: [0; 4],
    };
    q.has_shape(&problem.dims(0, layout.q, problem.dim_qk))?;
    if options.paged() {
        for (pages, sizes) in problem.pages.iter_mut().zip([&keys, &values]) {
            (pages.count, pages.size) = (sizes.batch, sizes.tokens);
        }
        k.has_shape(&problem.page_dims(0, problem.dim_qk))?;
        v.has_shape(&problem.page_dims(1, problem.dim_v))?;
    } else {
        k.has_shape(&problem.dims(1, layout.kv, problem.dim_qk))?;
        v.has_shape(&problem.dims(1, layout.kv, problem.dim_v))?;
    }
    Ok(problem)
}

/// Q, K and V.
fn inputs(words: Words) -> Result<[Named; 3]> {
    let named = |name, index| Named::new(name, words.pointer(index));
    Ok([named("Q", 0)?, named("K", 1)?, named("V", 2)?])
}

/// What a slot of the auxiliary tensors holds.
enum Slot {
    /// An output of the forward: its address is the caller's.
    Output,
    /// An input that the slot passes on to the backward.
    Input(*mut c_void),
}

fn buffer(data_ptr: *mut c_void, dtype: NVTEDType, dims: &[usize]) -> Result<Buffer> {
    let shape = Shape::new(dims).to_c();
    let basic = NVTEBasicTensor { data_ptr, dtype: MaybeUninit::new(dtype), shape };
    Buffer::from_c("Aux_CTX_Tensors", &basic)
}

/// The auxiliary tensors of a forward.
struct Auxiliary {
    pack: *mut NVTETensorPack,
    slots: Vec<(Slot, NVTEDType, Vec<usize>)>,
}

impl Auxiliary {
    fn new(
        pack: *mut NVTETensorPack,
        problem: &Problem,
        rng_state: *mut c_void,
        bias: *mut c_void,
        offset: *mut c_void,
    ) -> Result<Self> {
        check::address("Aux_CTX_Tensors", pack)?;
        let (o, heads) = (&problem.options, problem.heads[0]);
        let rows = match o.ragged()[0] {
            true => vec![problem.tokens[0], heads, 1],
            false => vec![problem.batch, heads, o.max_seqlen[0], 1],
        };
        let mut slots = vec![(Slot::Output, kNVTEFloat32, rows.clone())];
        if o.max_logit {
            slots.push((Slot::Output, kNVTEFloat32, rows));
        }
        slots.push((Slot::Input(rng_state), kNVTEInt64, vec![2]));
        if o.bias == NVTE_POST_SCALE_BIAS {
            slots.push((Slot::Input(bias), problem.bias_dtype, problem.bias.to_vec()));
        }
        if o.softmax != NVTE_VANILLA_SOFTMAX {
            slots.push((Slot::Input(offset), kNVTEFloat32, vec![1, heads, 1, 1]));
        }
        Ok(Self { pack, slots })
    }

    /// Number of slots in use as the caller has set it; 0: it asks.
    ///
    /// # Safety
    /// The pack is valid.
    unsafe fn size(&self) -> usize {
        // SAFETY: the caller's promise.
        unsafe { (*self.pack).size }
    }

    /// Handles of the slots, all of which must be tensors.
    ///
    /// # Safety
    /// The pack is valid.
    unsafe fn handles(&self) -> Result<Vec<NVTETensor>> {
        // SAFETY: the caller's promise.
        let (tensors, size) = unsafe { ((*self.pack).tensors, (*self.pack).size) };
        let outputs = self.slots.iter().take_while(|slot| matches!(slot.0, Slot::Output)).count();
        // The state of the generator follows.
        let least = outputs + 1;
        if size != 0 && size < least {
            let expected = format!("0 or at least {least}");
            return Err(Error::argument("Aux_CTX_Tensors.size", expected, size));
        }
        let used = if size == 0 { self.slots.len() } else { size.min(self.slots.len()) };
        for &handle in &tensors[..used] {
            check::tensor("Aux_CTX_Tensors", handle)?;
        }
        Ok(tensors[..used].to_vec())
    }

    /// Address of the stats (0) or the largest logits (1).
    ///
    /// # Safety
    /// The pack is valid.
    unsafe fn output(&self, index: usize) -> Result<*mut f32> {
        // SAFETY: as above.
        if unsafe { self.size() } == 0 {
            let expected = "the size that the query has set";
            return Err(Error::argument("Aux_CTX_Tensors.size", expected, 0));
        }
        // SAFETY: as above.
        let handle = unsafe { (&(*self.pack).tensors)[index] };
        let buffer = check::tensor("Aux_CTX_Tensors", handle)?.rowwise;
        let (_, dtype, dims) = &self.slots[index];
        let name =
            ["Aux_CTX_Tensors.tensors[0] (Stats)", "Aux_CTX_Tensors.tensors[1] (Max)"][index];
        Ok(auxiliary(name, &buffer, *dtype, dims.iter().product())?.cast())
    }

    /// Describes the slots to a caller that asks, or hands the inputs on.
    ///
    /// # Safety
    /// The pack is valid.
    unsafe fn fill(&self) -> Result<()> {
        // SAFETY: the caller's promise.
        let (asks, handles) = unsafe { (self.size() == 0, self.handles()?) };
        for (handle, (slot, dtype, dims)) in handles.into_iter().zip(&self.slots) {
            let data = match slot {
                Slot::Output if !asks => continue,
                Slot::Input(data) if !asks => *data,
                _ => null_mut(),
            };
            let buffer = buffer(data, *dtype, dims)?;
            TENSORS.write("Aux_CTX_Tensors", handle, |tensor| tensor.rowwise = buffer)?;
        }
        if asks {
            // SAFETY: the caller's promise.
            unsafe { (*self.pack).size = self.slots.len() };
        }
        Ok(())
    }
}

/// The workspace of a call; none if the caller only asked for its size.
fn workspace(handle: NVTETensor, bytes: usize) -> Result<Option<*mut c_void>> {
    check::workspace(handle, kNVTEByte, Shape::new(&[bytes.max(1)]))
}

/// Gives the backend its part of the workspace, and a softmax off by one its zeros, and runs it.
fn run(
    mut args: AttentionArgs,
    problem: &Problem,
    (data, bytes): (*mut c_void, usize),
    stream: cudaStream_t,
) -> Result<()> {
    if !(data as usize).is_multiple_of(16) {
        let expected = "an address that is a multiple of 16";
        return Err(Error::argument("workspace.data", expected, format!("{data:p}")));
    }
    check_device(&args, stream)?;
    args.workspace = data;
    args.workspace_bytes = bytes - problem.sink_bytes();
    if problem.sink_bytes() > 0 && args.sink.is_null() {
        let zeros = data.wrapping_byte_add(args.workspace_bytes);
        let memset = MemsetArgs { ptr: zeros, value: 0, bytes: problem.sink_bytes() };
        backend::run(&memset, stream)?;
        args.sink = zeros.cast();
    }
    backend::run(&args, stream)
}

/// The bias as the backend gets it. The dtype of its memory is that of Q unless that is FP8, even where the
/// handle says Float32, as some callers label every bias.
fn bias_address(name: &str, named: &Named, problem: &Problem) -> Result<*mut c_void> {
    let declared = named.required()?;
    if declared.dtype != kNVTEFloat32 {
        check::dtype(name, declared.dtype, &[problem.bias_dtype])?;
    }
    super::check_elements(name, declared, problem.bias.iter().product())?;
    let buffer = buffer(declared.ptr(), problem.bias_dtype, &problem.bias)?;
    data_address(format!("{name}.data"), &buffer, problem.bias[3])
}

/// `NVTE_CHECK=device`: refuses sequences and page numbers that lead out of the tensors.
fn check_device(args: &AttentionArgs, stream: cudaStream_t) -> Result<()> {
    use crate::device_check::{ascending, in_range, read};
    let count = args.batch + 1;
    let mut lengths = Vec::new();
    for (name, side) in [("q", &args.q_side), ("kv", &args.kv_side)] {
        let dense = side.starts.is_null();
        let rows = if dense { args.batch * side.max_seqlen } else { side.tokens } as i64;
        let (sums, starts) = (format!("cu_seqlens_{name}"), format!("cu_seqlens_{name}_padded"));
        // SAFETY: the arrays have been checked to have an element more than there are sequences.
        unsafe {
            if let Some(values) = read(&sums, side.cu_seqlens, count, stream)? {
                // Where they do not say where tokens lie, only their differences count.
                let first = if side.starts == side.cu_seqlens { 0 } else { values[0].max(0) };
                ascending(&sums, &values, rows + i64::from(first))?;
                lengths = values.windows(2).map(|pair| (pair[1] - pair[0]) as usize).collect();
            }
            if side.starts != side.cu_seqlens
                && let Some(values) = read(&starts, side.starts, count, stream)?
            {
                // Sequences that are not there may begin at -1.
                in_range(&starts, &values, -1, rows)?;
            }
        }
    }
    let tables = [
        ("page_table_k", args.page_table_k, args.max_pages_k, args.page_size_k, args.num_pages_k),
        ("page_table_v", args.page_table_v, args.max_pages_v, args.page_size_v, args.num_pages_v),
    ];
    for (name, table, per_sequence, page_size, pages) in tables {
        // SAFETY: the table has been checked to have as many entries.
        let values = unsafe { read(name, table, args.batch * per_sequence, stream) }?;
        let Some(mut values) = values else { continue };
        // What lies behind a sequence is not read and may be anything.
        for (row, &length) in values.chunks_mut(per_sequence).zip(&lengths) {
            row.iter_mut().skip(length.div_ceil(page_size)).for_each(|page| *page = 0);
        }
        in_range(name, &values, 0, pages as i64 - 1)?;
    }
    Ok(())
}

/// A pass: what runs it, and where its parameters hold what both passes have. Q, K and V are the first;
/// workspace and stream follow the longest sequences.
pub(crate) struct Pass {
    /// # Safety
    /// The pack is null or valid.
    pub(crate) run: unsafe fn(Words) -> Result<()>,
    pub(crate) objects: &'static Objects,
    pub(crate) auxiliary: usize,
    /// The first of four: of queries, of keys and values, both again with padding.
    pub(crate) cu_seqlens: usize,
    pub(crate) options: Places,
}

impl Pass {
    pub(crate) fn workspace(&self) -> usize {
        self.options.max_seqlen + 2
    }

    pub(crate) fn stream(&self) -> usize {
        self.options.max_seqlen + 3
    }
}

pub(crate) static FORWARD: Pass = {
    use NVTEFusedAttnFwdParamsAttribute::*;
    Pass {
        run: forward,
        objects: &FWD,
        auxiliary: kNVTEFusedAttnFwdParamsAuxCtxTensors as usize,
        cu_seqlens: kNVTEFusedAttnFwdParamsCuSeqlensQ as usize,
        options: Places {
            training: Some(kNVTEFusedAttnFwdParamsIsTraining as usize),
            deterministic: None,
            max_logit: Some(kNVTEFusedAttnFwdParamsReturnMaxLogit as usize),
            mask: kNVTEFusedAttnFwdParamsAttnMaskType as usize,
            dropout: kNVTEFusedAttnFwdParamsDropout as usize,
            layout: kNVTEFusedAttnFwdParamsQKVLayout as usize,
            gradients: false,
            max_seqlen: kNVTEFusedAttnFwdParamsMaxSeqlenQ as usize,
        },
    }
};

pub(crate) static BACKWARD: Pass = {
    use NVTEFusedAttnBwdParamsAttribute::*;
    Pass {
        run: backward,
        objects: &BWD,
        auxiliary: kNVTEFusedAttnBwdParamsAuxCtxTensors as usize,
        cu_seqlens: kNVTEFusedAttnBwdParamsCuSeqlensQ as usize,
        options: Places {
            training: None,
            deterministic: Some(kNVTEFusedAttnBwdParamsDeterministic as usize),
            max_logit: None,
            mask: kNVTEFusedAttnBwdParamsAttnMaskType as usize,
            dropout: kNVTEFusedAttnBwdParamsDropout as usize,
            layout: kNVTEFusedAttnBwdParamsQKVLayout as usize,
            gradients: true,
            max_seqlen: kNVTEFusedAttnBwdParamsMaxSeqlenQ as usize,
        },
    }
};

/// `nvte_fused_attn_fwd_v2` with the values of its parameters.
///
/// # Safety
/// The pack is null or valid.
pub(super) unsafe fn forward(words: Words) -> Result<()> {
    use NVTEFusedAttnFwdParamsAttribute::*;
    let named = |name, attribute: NVTEFusedAttnFwdParamsAttribute| {
        Named::new(name, words.pointer(attribute as usize))
    };
    let options = Options::new(words, &FORWARD.options)?;
    let [q, k, v] = inputs(words)?;
    let (o, bias, offset, s) = (
        named("O", kNVTEFusedAttnFwdParamsO)?,
        named("Bias", kNVTEFusedAttnFwdParamsBias)?,
        named("SoftmaxOffset", kNVTEFusedAttnFwdParamsSoftmaxOffset)?,
        named("S", kNVTEFusedAttnFwdParamsS)?,
    );
    let (tables, rng_state) = (
        [
            named("page_table_k", kNVTEFusedAttnFwdParamsPageTableK)?,
            named("page_table_v", kNVTEFusedAttnFwdParamsPageTableV)?,
        ],
        named("rng_state", kNVTEFusedAttnFwdParamsRngState)?,
    );
    let sequences = Sequences::new(words, FORWARD.cu_seqlens)?;
    let mut problem = problem(options, [&q, &k, &v], &sequences)?;
    problem.o_dtype = o.required()?.dtype;
    if problem.fp8() {
        problem.bias_dtype = bias.buffer().dtype;
    }
    problem.bias = bias.bias_dims().unwrap_or_default();
    if options.paged() {
        for (pages, table) in problem.pages.iter_mut().zip(&tables) {
            pages.per_sequence = match *table.required()?.shape.dims() {
                [b, per_sequence] if b >= problem.batch => per_sequence,
                _ => {
                    let expected = format!("[{} or more, max_pages_per_seq]", problem.batch);
                    let got = table.buffer().shape;
                    return Err(Error::argument(format!("{}.shape", table.name), expected, got));
                }
            };
        }
    }
    o.has_shape(&problem.dims(0, options.o_format, problem.dim_v))?;
    let workspace_handle = words.pointer(FORWARD.workspace());
    let asks = check::tensor("workspace", workspace_handle)?.rowwise.ptr().is_null();
    let pack = words.pointer(FORWARD.auxiliary).cast();
    let state = rng_state.buffer().ptr();
    let auxiliary =
        Auxiliary::new(pack, &problem, state, bias.buffer().ptr(), offset.buffer().ptr())?;
    // SAFETY: the caller's promise, here and below.
    unsafe { auxiliary.handles() }?;
    if problem.batch == 0 || o.buffer().shape.numel() == 0 {
        // SAFETY: as above.
        unsafe { auxiliary.fill() }?;
        return workspace(workspace_handle, 0).map(drop);
    }
    // Planned without addresses, as the query is: both get the same workspace.
    let planned = problem.args(false)?;
    let mut args = planned;
    if !asks {
        let fp8 = problem.fp8();
        q.place(&mut args.q, problem.dim_qk, fp8)?;
        k.place(&mut args.k, problem.dim_qk, fp8)?;
        v.place(&mut args.v, problem.dim_v, fp8)?;
        check_interleaved(&options.layout, &problem, [&q, &k, &v])?;
        o.place(&mut args.o, problem.dim_v, fp8)?;
        if fp8 {
            s.scales(&mut args.s, true)?;
        }
        sequences.place(&problem, &mut args)?;
        if options.paged() {
            let entries = |which: usize| problem.batch * problem.pages[which].per_sequence;
            args.page_table_k = tables[0].numbers(kNVTEInt32, entries(0))?.cast();
            args.page_table_v = tables[1].numbers(kNVTEInt32, entries(1))?.cast();
        }
        if options.bias == NVTE_POST_SCALE_BIAS {
            args.bias.data = bias_address("Bias", &bias, &problem)?;
        }
        if options.softmax != NVTE_VANILLA_SOFTMAX {
            args.sink = offset_address(&offset, &problem)?;
        }
        if !args.rng_state.is_null() {
            args.rng_state = rng_state.numbers(kNVTEInt64, 2)?.cast();
        }
        // SAFETY: as above.
        unsafe {
            args.stats = auxiliary.output(0)?;
            if options.max_logit {
                args.max = auxiliary.output(1)?;
            }
        }
    }
    let bytes = workspace_bytes(&problem, &backend::attention_plan(&planned)?);
    let data = workspace(workspace_handle, bytes)?;
    // SAFETY: as above.
    unsafe { auxiliary.fill() }?;
    let Some(data) = data else { return Ok(()) };
    run(args, &problem, (data, bytes), words.pointer(FORWARD.stream()).cast())
}

/// The offsets of the softmax; null if they are zeros that nobody has written down.
fn offset_address(offset: &Named, problem: &Problem) -> Result<*const f32> {
    let needed = problem.options.softmax == NVTE_Softmax_Type::NVTE_LEARNABLE_SOFTMAX;
    if needed {
        offset.required()?;
    }
    let ptr = offset.optional_floats(problem.heads[0])?;
    if needed && ptr.is_null() {
        let expected = format!("a pointer to {} floats", problem.heads[0]);
        return Err(Error::argument(format!("{}.data", offset.name), expected, "null"));
    }
    Ok(ptr.cast_const())
}

/// `nvte_fused_attn_bwd_v2` with the values of its parameters.
///
/// # Safety
/// The pack is null or valid.
pub(super) unsafe fn backward(words: Words) -> Result<()> {
    use NVTEFusedAttnBwdParamsAttribute::*;
    let named = |name, attribute: NVTEFusedAttnBwdParamsAttribute| {
        Named::new(name, words.pointer(attribute as usize))
    };
    let options = Options::new(words, &BACKWARD.options)?;
    let [q, k, v] = inputs(words)?;
    let (o, d_o, s, dp) = (
        named("O", kNVTEFusedAttnBwdParamsO)?,
        named("dO", kNVTEFusedAttnBwdParamsDO)?,
        named("S", kNVTEFusedAttnBwdParamsS)?,
        named("dP", kNVTEFusedAttnBwdParamsDP)?,
    );
    let (dq, dk, dv) = (
        named("dQ", kNVTEFusedAttnBwdParamsDQ)?,
        named("dK", kNVTEFusedAttnBwdParamsDK)?,
        named("dV", kNVTEFusedAttnBwdParamsDV)?,
    );
    let (dbias, doffset) = (
        named("dBias", kNVTEFusedAttnBwdParamsDBias)?,
        named("dSoftmaxOffset", kNVTEFusedAttnBwdParamsDSoftmaxOffset)?,
    );
    let sequences = Sequences::new(words, BACKWARD.cu_seqlens)?;

    let pack: *const NVTETensorPack = words.pointer(BACKWARD.auxiliary).cast();
    check::address("Aux_CTX_Tensors", pack)?;
    // SAFETY: the caller's promise.
    let mut saved = unsafe { (*pack).tensors }.into_iter();
    let mut next = |name, there: bool| {
        Named::new(name, if there { saved.next().unwrap_or(null_mut()) } else { null_mut() })
    };
    let stats = next("Aux_CTX_Tensors.tensors[0] (Stats)", true)?;
    let rng_state = next("Aux_CTX_Tensors.tensors[1] (rng_state)", true)?;
    let bias = next("Aux_CTX_Tensors (Bias)", options.bias == NVTE_POST_SCALE_BIAS)?;
    let offset = next("Aux_CTX_Tensors (SoftmaxOffset)", options.softmax != NVTE_VANILLA_SOFTMAX)?;

    let mut problem = problem(options, [&q, &k, &v], &sequences)?;
    problem.o_dtype = o.required()?.dtype;
    problem.do_dtype = d_o.required()?.dtype;
    problem.dqkv_dtype = dq.required()?.dtype;
    if problem.fp8() {
        problem.bias_dtype = bias.buffer().dtype;
    }
    problem.bias = dbias.bias_dims().or_else(|| bias.bias_dims()).unwrap_or_default();
    for other in [&dk, &dv] {
        check::dtype(other.name, other.required()?.dtype, &[problem.dqkv_dtype])?;
    }
    let grads = options.dqkv_layout;
    o.has_shape(&problem.dims(0, options.o_format, problem.dim_v))?;
    d_o.has_shape(&problem.dims(0, options.do_format, problem.dim_v))?;
    let workspace_handle = words.pointer(BACKWARD.workspace());
    let asks = check::tensor("workspace", workspace_handle)?.rowwise.ptr().is_null();
    let elements: usize = [&dq, &dk, &dv].map(|grad| grad.buffer().shape.numel()).iter().sum();
    if elements == 0 || problem.batch == 0 {
        return workspace(workspace_handle, 0).map(drop);
    }
    let mut args = problem.args(true)?;
    dq.has_shape(&problem.dims(0, grads.q, problem.dim_qk))?;
    dk.has_shape(&problem.dims(1, grads.kv, problem.dim_qk))?;
    dv.has_shape(&problem.dims(1, grads.kv, problem.dim_v))?;
    if !dbias.buffer().is_set() {
        args.dbias = NO_TENSOR;
    }
    if !doffset.buffer().is_set() {
        args.dsink = null_mut();
    }
    // As in the forward.
    let planned = args;
    if !asks {
        let fp8 = problem.fp8();
        q.place(&mut args.q, problem.dim_qk, fp8)?;
        k.place(&mut args.k, problem.dim_qk, fp8)?;
        v.place(&mut args.v, problem.dim_v, fp8)?;
        check_interleaved(&options.layout, &problem, [&q, &k, &v])?;
        o.place(&mut args.o, problem.dim_v, fp8)?;
        d_o.place(&mut args.d_o, problem.dim_v, fp8)?;
        dq.place(&mut args.dq, problem.dim_qk, fp8)?;
        dk.place(&mut args.dk, problem.dim_qk, fp8)?;
        dv.place(&mut args.dv, problem.dim_v, fp8)?;
        check_interleaved(&grads, &problem, [&dq, &dk, &dv])?;
        if fp8 {
            s.scales(&mut args.s, true)?;
            dp.scales(&mut args.dp, true)?;
        }
        sequences.place(&problem, &mut args)?;
        if options.bias == NVTE_POST_SCALE_BIAS {
            args.bias.data = bias_address(bias.name, &bias, &problem)?;
            if !args.dbias.data.is_null() {
                args.dbias.data = bias_address("dBias", &dbias, &problem)?;
            }
        }
        if options.softmax != NVTE_VANILLA_SOFTMAX {
            args.sink = offset_address(&offset, &problem)?;
        }
        if !args.dsink.is_null() {
            args.dsink = doffset.numbers(kNVTEFloat32, problem.heads[0])?.cast();
        }
        if !args.rng_state.is_null() {
            let (name, saved) = (rng_state.name, rng_state.buffer());
            args.rng_state = match saved.shape.numel() {
                // Some callers keep its address alone.
                0 => check::raw_pointer(format!("{name}.data"), saved.ptr(), 2, kNVTEInt64)?,
                _ => auxiliary(name, saved, kNVTEInt64, 2)?,
            }
            .cast();
        }
        let rows = problem.rows(0) * problem.heads[0];
        args.stats = auxiliary(stats.name, stats.buffer(), kNVTEFloat32, rows)?.cast();
    }
    let bytes = workspace_bytes(&problem, &backend::attention_plan(&planned)?);
    let Some(data) = workspace(workspace_handle, bytes)? else { return Ok(()) };
    run(args, &problem, (data, bytes), words.pointer(BACKWARD.stream()).cast())
}
