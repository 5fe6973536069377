//! Embeddings of tokens and positions, and the gradients of their tables.

pub(crate) mod cpu;
pub mod exports;

use crate::backend::{self, args::*};
use crate::check::{self, Memory};
use crate::error::{Error, Result};
use crate::tensor::{Buffer, Shape, Tensor, bytes};
use crate::types::{NVTEDType::*, *};
use crate::workspace::Workspace;
use std::cell::Cell;
use std::ffi::c_void;
use std::ptr::{null, null_mut};

/// Numbers of an embedding.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rule {
    /// Factor of the rows of the weight.
    pub scale: f32,
    /// Rows of a sequence, whose positions are counted from 0; 0 for all rows.
    pub sequence: usize,
    /// The token of the weight's first row.
    pub start: usize,
    /// Rows of the whole vocabulary; 0 for those of the weight.
    pub size: usize,
}

impl Rule {
    /// Rows of the whole vocabulary, of which `rows` are here.
    fn total(&self, rows: usize) -> Result<usize> {
        if self.size == 0 && self.start == 0 {
            return Ok(rows);
        }
        match self.start.checked_add(rows).is_some_and(|end| end <= self.size) {
            true => Ok(self.size),
            false => {
                let expected = format!(
                    "at least vocabulary_start + {rows} rows, which begin at {}",
                    self.start
                );
                Err(Error::argument("vocabulary_size", expected, self.size))
            }
        }
    }

    fn period(&self, count: usize) -> usize {
        if self.sequence == 0 { count.max(1) } else { self.sequence }
    }
}

/// A table of rows, or its gradient: `[rows, cols]`.
fn table(name: &str, buffer: &Buffer, cols: Option<usize>) -> Result<(usize, usize)> {
    check::high_precision(name, buffer.dtype)?;
    let &[rows, own] = buffer.shape.dims() else {
        return Err(Error::argument(format!("{name}.shape"), "[rows, columns]", buffer.shape));
    };
    if let Some(cols) = cols.filter(|cols| *cols != own) {
        return Err(Error::argument(
            format!("{name}.shape"),
            format!("[rows, {cols}]"),
            buffer.shape,
        ));
    }
    // Keys of rows are 32 bits wide, and one more stands for rows that are not here.
    if rows >= u32::MAX as usize {
        return Err(Error::argument(
            format!("{name}.shape"),
            "less than 2^32 - 1 rows",
            buffer.shape,
        ));
    }
    check::pointer(format_args!("{name}.data"), buffer)?;
    Ok((rows, own))
}

/// Numbers of rows: Int32 or Int64.
fn indices(name: &str, buffer: &Buffer, count: usize) -> Result<*const c_void> {
    check::dtype(name, buffer.dtype, &[kNVTEInt32, kNVTEInt64])?;
    if buffer.shape.numel() != count {
        let expected = format!("{count} elements, one for each row of the other tensors");
        return Err(Error::argument(format!("{name}.shape"), expected, buffer.shape));
    }
    Ok(check::pointer(format_args!("{name}.data"), buffer)?.cast_const())
}

/// Rows of embeddings, or of their gradients, of `cols` columns.
fn rows_of(name: &str, tensor: &Tensor, cols: Option<usize>) -> Result<(usize, usize)> {
    check::input(name, tensor)?;
    check::high_precision(name, tensor.rowwise.dtype)?;
    let shape = &tensor.rowwise.shape;
    let (count, own) = shape.flatten();
    if cols.is_some_and(|cols| cols != own) || count > i32::MAX as usize {
        let cols = cols.unwrap_or(own);
        let expected = format!("[..., {cols}] of less than 2^31 rows");
        return Err(Error::argument(format!("{name}.shape"), expected, shape));
    }
    Ok((count, own))
}

/// Tables and tokens of a pass forward; `positions` and `position_weight` may be unset.
pub(crate) struct Lookup<'a> {
    pub tokens: &'a Buffer,
    pub weight: &'a Tensor,
    pub positions: &'a Buffer,
    pub position_weight: &'a Buffer,
    /// A number to which wrong tokens and positions are added, or unset.
    pub wrong: &'a Buffer,
}

/// Rows of the tables for tokens and their positions.
pub(crate) fn forward(
    lookup: &Lookup,
    output: &Tensor,
    rule: &Rule,
    stream: cudaStream_t,
) -> Result<()> {
    let &Lookup { tokens, positions, position_weight, wrong, .. } = lookup;
    check::input("weight", lookup.weight)?;
    let weight = &lookup.weight.rowwise;
    let (rows, cols) = table("weight", weight, None)?;
    let (count, _) = rows_of("output", output, Some(cols))?;
    let y = &output.rowwise;
    let with_positions = position_weight.is_set();
    let mut position_rows = 0;
    if with_positions {
        check::dtype("position_weight", position_weight.dtype, &[weight.dtype])?;
        (position_rows, _) = table("position_weight", position_weight, Some(cols))?;
    }
    let args = EmbeddingArgs {
        tokens: indices("tokens", tokens, count)?,
        weight: weight.ptr(),
        positions: match with_positions && positions.is_set() {
            true => {
                check::dtype("positions", positions.dtype, &[tokens.dtype])?;
                indices("positions", positions, count)?
            }
            false => null(),
        },
        position_weight: if with_positions { position_weight.ptr() } else { null_mut() },
        output: y.ptr(),
        wrong: match wrong.is_set() {
            true => {
                check::dtype("wrong", wrong.dtype, &[kNVTEInt32])?;
                check::elements("wrong", wrong, 1, kNVTEInt32)?.cast()
            }
            false => null_mut(),
        },
        count,
        rows,
        cols,
        position_rows,
        start: rule.start,
        total: rule.total(rows)?,
        period: rule.period(count),
        scale: rule.scale,
        weight_dtype: weight.dtype,
        output_dtype: y.dtype,
        token_dtype: tokens.dtype,
    };
    let indices = bytes(count, tokens.dtype);
    let inputs = [
        Memory::new(&"tokens.data", args.tokens, indices),
        Memory::new(&"positions.data", args.positions, indices),
        Memory::of(&"weight.data", weight),
        Memory::of(&"position_weight.data", position_weight),
    ];
    let outputs = [Memory::of(&"output.data", y), Memory::new(&"wrong.data", args.wrong, 4)];
    check::apart(&inputs, &outputs)?;
    if count * cols > 0 { backend::run(&args, stream) } else { Ok(()) }
}

/// Gradients of a pass backward; `positions`, and each of the tables' gradients, may be unset.
pub(crate) struct Gradients<'a> {
    pub tokens: &'a Buffer,
    pub positions: &'a Buffer,
    pub grad_output: &'a Tensor,
    pub grad_weight: &'a Buffer,
    pub grad_position_weight: &'a Buffer,
    /// Whether gradients are added to what is there.
    pub accumulate: bool,
}

/// Scratch memory of a pass backward.
struct Scratch {
    keys: [*mut u32; 2],
    values: [*mut i32; 2],
    sort: *mut c_void,
    sums: *mut f32,
}

/// Gradients of the tables: rows of the gradient are sorted by the rows of the table that they go to, which
/// keeps their order, and then added in that order.
pub(crate) fn backward(
    given: &Gradients,
    rule: &Rule,
    workspace: &mut Workspace,
    stream: cudaStream_t,
) -> Result<()> {
    let &Gradients { tokens, positions, grad_output, grad_weight, grad_position_weight, .. } =
        given;
    let (count, cols) = rows_of("grad_output", grad_output, None)?;
    let dy = &grad_output.rowwise;
    let token_indices = indices("tokens", tokens, count)?;
    let position_indices = match positions.is_set() && grad_position_weight.is_set() {
        true => indices("positions", positions, count)?,
        false => null(),
    };
    let tables = [
        ("grad_weight", grad_weight, token_indices, tokens.dtype, rule.start, rule.scale),
        ("grad_position_weight", grad_position_weight, position_indices, positions.dtype, 0, 1.0),
    ];
    let tables = tables.into_iter().filter(|(_, buffer, ..)| buffer.is_set());
    for (name, buffer, ..) in tables.clone() {
        table(name, buffer, Some(cols))?;
    }

    let needed = Cell::new(0);
    let sort = SortPairsArgs {
        workspace: null_mut(),
        workspace_bytes: needed.as_ptr(),
        keys: null(),
        sorted_keys: null_mut(),
        values: null(),
        sorted_values: null_mut(),
        pairs: count,
        key_bits: 0,
    };
    let for_sort = backend::workspace(&sort, &|| needed.get())?.next_multiple_of(256);
    let list = bytes(count, kNVTEInt32).next_multiple_of(256);
    let sums = bytes(2 * count.div_ceil(NVTEX_ROW_SUM_PART) * cols, kNVTEFloat32);
    let size = 4 * list + for_sort + sums + 255;
    let Some(memory) = workspace.take(kNVTEByte, Shape::new(&[size]))? else { return Ok(()) };
    let at = memory.wrapping_byte_add(memory.align_offset(256));
    let part = |offset: usize| at.wrapping_byte_add(offset);
    let scratch = Scratch {
        keys: [part(0).cast(), part(list).cast()],
        values: [part(2 * list).cast(), part(3 * list).cast()],
        sort: part(4 * list),
        sums: part(4 * list + for_sort).cast(),
    };
    let inputs = [
        Memory::of(&"tokens.data", tokens),
        Memory::of(&"positions.data", positions),
        Memory::of(&"grad_output.data", dy),
    ];
    let outputs = [
        Memory::of(&"grad_weight.data", grad_weight),
        Memory::of(&"grad_position_weight.data", grad_position_weight),
        Memory::new(&"workspace.data", memory, size),
    ];
    check::apart(&inputs, &outputs)?;

    for (_, buffer, indices, index_dtype, start, scale) in tables {
        if !given.accumulate && buffer.bytes() > 0 {
            let (ptr, bytes) = (buffer.ptr(), buffer.bytes());
            backend::run(&MemsetArgs { ptr, bytes, value: 0 }, stream)?;
        }
        let (rows, _) = buffer.shape.flatten();
        if count * cols * rows == 0 {
            continue;
        }
        let [keys, sorted_keys] = scratch.keys;
        let [values, sorted_values] = scratch.values;
        let period = rule.period(count);
        let index = RowKeysArgs { indices, keys, values, count, rows, start, period, index_dtype };
        backend::run(&index, stream)?;
        let workspace = scratch.sort;
        let (keys, values) = (keys.cast_const(), values.cast_const());
        // Rows that are not of the table have the key `rows`.
        let key_bits = usize::BITS - rows.leading_zeros();
        let sort =
            SortPairsArgs { workspace, keys, sorted_keys, values, sorted_values, key_bits, ..sort };
        backend::run(&sort, stream)?;
        let sum = SumRowsArgs {
            input: dy.ptr(),
            keys: sorted_keys,
            values: sorted_values,
            output: buffer.ptr(),
            workspace: scratch.sums,
            count,
            rows,
            cols,
            scale,
            input_dtype: dy.dtype,
            output_dtype: buffer.dtype,
        };
        backend::run(&sum, stream)?;
    }
    Ok(())
}
