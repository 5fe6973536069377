//! Groups of tensors.

use super::cast_fused::*;
use super::*;

/// Members of a group at random.
struct Members {
    shapes: Vec<(usize, usize)>,
    /// Offsets, one more than shapes.
    offsets: Vec<usize>,
    varying: [bool; 2],
    logical: (usize, usize),
    /// Elements of a buffer of data.
    numel: usize,
}

impl Members {
    fn new(rng: &mut Rng, varying: [bool; 2], gaps: bool) -> Self {
        let count = rng.pick(&[1, 2, 3, 8, 40]);
        let top = if count > 8 { 200 } else { 700 };
        let side = |rng: &mut Rng| match rng.below(5) {
            0 => rng.within(1, 9),
            1 => 128 * rng.within(1, top / 128),
            2 => 16 * rng.within(1, top / 16),
            _ => rng.within(1, top),
        };
        let (rows, cols) = (side(rng), side(rng));
        let mut member = || {
            let mut dim = |varying, fixed| match varying {
                true if rng.chance(15) => 0,
                true => side(rng),
                false => fixed,
            };
            (dim(varying[0], rows), dim(varying[1], cols))
        };
        let shapes: Vec<_> = (0..count).map(|_| member()).collect();
        let gap = if gaps && varying != [false; 2] && rng.chance(20) { 16 } else { 0 };
        let mut offsets = vec![0];
        for (rows, cols) in &shapes {
            offsets.push(offsets[offsets.len() - 1] + rows * cols + gap);
        }
        let spare = if rng.chance(30) { rng.within(1, 200) } else { 0 };
        let sum = |dim: fn(&(usize, usize)) -> usize| shapes.iter().map(dim).sum::<usize>();
        let logical = match varying {
            [false, false] => (count * rows, cols),
            [true, false] => (sum(|s| s.0) + spare, cols),
            [false, true] => (rows, sum(|s| s.1) + spare),
            [true, true] => (1, sum(|s| s.0 * s.1) + spare),
        };
        let numel = offsets[count].max(logical.0 * logical.1);
        Self { shapes, offsets, varying, logical, numel }
    }

    /// Entries of all scales in one direction, and their type.
    fn scales(&self, mode: NVTEScalingMode, colwise: bool) -> (NVTEDType, usize) {
        let dtype = scale_matrix(mode, colwise, (1, 1)).0;
        let entries = self.shapes.iter().map(|&shape| {
            let (_, lines, needed) = scale_matrix(mode, colwise, shape);
            lines * needed.next_multiple_of(4)
        });
        (dtype, entries.sum())
    }
}

pub fn quantize_groups(rng: &mut Rng, index: usize) -> Case {
    let mode = MODES[index % 4];
    let varying = [[true, false], [false, false], [false, true], [true, true]][index / 4 % 4];
    // The forms of the functions of groups; gated ones have one width.
    let form = FORMS[if varying[1] { rng.below(3) } else { rng.below(4) }];
    let function = rng.pick(&FUNCTIONS);
    let per_tensor = mode == MODES[0];
    let input_dtype = rng.pick(&HIGH);
    let output_dtype = if per_tensor { rng.pick(&ALL) } else { rng.pick(&FP8) };
    let members = loop {
        let members = Members::new(rng, varying, form != Form::NVTEX_FORM_GATED);
        if members.logical.0 * members.logical.1 > 0 {
            break members;
        }
    };
    let (count, (rows, cols)) = (members.shapes.len(), members.logical);
    let mut b = Buffers::default();
    let int64 = |b: &mut Buffers, values: &mut dyn Iterator<Item = usize>| {
        b.add(values.flat_map(|value| (value as i64).to_le_bytes()).collect(), 0)
    };
    let first = varying[0].then(|| int64(&mut b, &mut members.shapes.iter().map(|s| s.0)));
    let last = varying[1].then(|| int64(&mut b, &mut members.shapes.iter().map(|s| s.1)));
    let with_offsets = varying != [false; 2] || rng.chance(50);
    let offsets = with_offsets.then(|| int64(&mut b, &mut members.offsets.iter().copied()));
    let elements = (members.numel, (!varying[1]).then_some(cols), count);
    let fused = Fused::new(rng, &mut b, (form, function), (mode, input_dtype), elements);
    let workspace = fused.workspace;
    let o = Options::new(rng, mode);
    let data = o.wanted.map(|wanted| wanted.then(|| b.output(rng, output_dtype, members.numel)));
    let [row_scales, col_scales] = [0, 1].map(|i| {
        let (dtype, entries) = members.scales(mode, i == 1);
        (o.wanted[i] && !per_tensor).then(|| b.output(rng, dtype, entries))
    });
    let scale = (per_tensor && rng.chance(80)).then(|| b.floats((0..count).map(|_| rng.scale())));
    let plain = fused.dbias.is_none() && form == Form::NVTEX_FORM_PLAIN;
    let noop = if plain { rng.noop().map(|flag| b.float(flag)) } else { None };
    let outputs = [
        ("rowwise", output_dtype, data[0]),
        ("colwise", output_dtype, data[1]),
        ("rowwise scale_inv", kNVTEByte, row_scales),
        ("colwise scale_inv", kNVTEByte, col_scales),
        ("dbias", input_dtype, fused.dbias),
    ];
    Case::bits(
        format!(
            "{mode:?}, {form:?} of {function:?}, {input_dtype:?} to {output_dtype:?}, members \
                 {:?} at {:?}, varying {:?}, directions {:?}, dbias {}, square {}, swizzled {}",
            members.shapes,
            members.offsets,
            members.varying,
            o.wanted,
            fused.dbias.is_some(),
            o.square_blocks,
            o.swizzled
        ),
        b,
        &outputs,
        move |side| {
            let args = Cast {
                input: side.at(fused.input),
                rowwise: side.maybe(data[0]),
                colwise: side.maybe(data[1]),
                scale: side.maybe(scale),
                amax: null_mut(),
                rowwise_scale_inv: side.maybe(row_scales),
                colwise_scale_inv: side.maybe(col_scales),
                noop: side.maybe(noop),
                rows,
                cols,
                rowwise_scale_stride: 0,
                colwise_scale_stride: 0,
                epsilon: o.epsilon,
                mode,
                input_dtype,
                output_dtype,
                pow2: o.pow2,
                square_blocks: o.square_blocks,
                swizzled: o.swizzled,
                fusion: fused.on(side),
                group: Group {
                    num_tensors: count,
                    first_dims: side.maybe(first),
                    last_dims: side.maybe(last),
                    offsets: side.maybe(offsets),
                    ..LARGE_GROUP
                },
            };
            entry(side, side.table.quantize, QuantizeArgs { cast: args })
        },
    )
    .scratch(workspace)
}

pub fn dequantize_groups(rng: &mut Rng, index: usize) -> Case {
    let mode = MODES[index % 4];
    let (input_dtype, output_dtype) = (FP8[index / 4 % 2], HIGH[index / 8 % 3]);
    let (colwise, swizzled) = (rng.chance(50), mode == NVTE_MXFP8_1D_SCALING && rng.chance(50));
    let (vary_rows, vary_cols) = (rng.chance(60), rng.chance(40));
    let count = rng.pick(&[1, 2, 5, 8, 33, 70]);
    let most = if count > 8 { 150 } else { 700 };
    let aligned = rng.chance(50);
    let side = |rng: &mut Rng| match rng.below(6) {
        0 => 0,
        _ if aligned => 16 * rng.within(1, most / 16),
        _ => rng.within(1, most),
    };
    let even = (side(rng).max(1), side(rng).max(1));
    let shapes: Vec<_> = (0..count)
        .map(|_| {
            let rows = if vary_rows { side(rng) } else { even.0 };
            (rows, if vary_cols { side(rng) } else { even.1 })
        })
        .collect();
    let gap = if vary_rows && !vary_cols { rng.pick(&[0, 0, 16, 3]) } else { 0 };
    let (mut at, mut entries) = (vec![0], 0);
    for &(rows, cols) in &shapes {
        at.push(at.last().unwrap() + rows * cols + gap);
        let (_, lines, needed) = scale_matrix(mode, colwise, (rows, cols));
        entries += if index.is_multiple_of(4) { 1 } else { lines * needed.next_multiple_of(4) };
    }
    let total = *at.last().unwrap();
    let (mut rows, mut cols) = match (vary_rows, vary_cols) {
        (false, false) => (count * even.0, even.1),
        (true, false) => (shapes.iter().map(|s| s.0).sum(), even.1),
        (false, true) => (even.0, shapes.iter().map(|s| s.1).sum()),
        (true, true) => (1, total),
    };
    if vary_cols {
        cols += rng.pick(&[1, 100]);
    } else if vary_rows {
        rows += rng.pick(&[1, 100]);
    }
    let capacity = total.max(rows * cols);
    let scale_dtype = if mode == NVTE_MXFP8_1D_SCALING { kNVTEFloat8E8M0 } else { kNVTEFloat32 };
    let mut b = Buffers::default();
    let input = b.input(rng, input_dtype, capacity);
    let scale_inv = b.input(rng, scale_dtype, entries);
    let output = b.output(rng, output_dtype, capacity);
    let first_dims = vary_rows.then(|| b.ints(shapes.iter().map(|s| s.0)));
    let last_dims = vary_cols.then(|| b.ints(shapes.iter().map(|s| s.1)));
    let offsets = (vary_rows || vary_cols || rng.chance(50)).then(|| b.ints(at.iter().copied()));
    Case::bits(
        format!(
            "{mode:?}, {input_dtype:?} to {output_dtype:?}, {shapes:?}, colwise {colwise}, \
                 swizzled {swizzled}"
        ),
        b,
        &[("output", output_dtype, Some(output))],
        move |side| {
            let args = DequantizeArgs {
                input: side.at(input),
                output: side.at(output),
                scale_inv: side.at(scale_inv),
                rows,
                cols,
                scale_stride: 0,
                mode,
                input_dtype,
                output_dtype,
                colwise,
                swizzled,
                group: Group {
                    num_tensors: count,
                    first_dims: side.maybe(first_dims),
                    last_dims: side.maybe(last_dims),
                    offsets: side.maybe(offsets),
                    ..LARGE_GROUP
                },
            };
            entry(side, side.table.dequantize, args)
        },
    )
}

/// Shapes of the members of a group, and what of them is on the device.
struct Batch {
    dims: Vec<(usize, usize)>,
    rows: usize,
    cols: usize,
    first: Option<Id>,
    last: Option<Id>,
    offsets: Option<Id>,
    numel: usize,
}

impl Batch {
    fn random(rng: &mut Rng, b: &mut Buffers) -> Self {
        let n = rng.pick(&[1, 2, 5, 31, 32, 33, 128, 300, 1100]);
        let most = rng.pick(&[3, 40, 300]).min(3000 / n + 2);
        let (varying_rows, varying_cols) = (rng.chance(60), rng.chance(40));
        let gaps = rng.chance(30);
        let (rows, cols) = (rng.within(1, most), rng.within(1, most));
        let mut dims = Vec::new();
        let mut offsets = vec![0];
        for _ in 0..n {
            let mut size = |varying, fixed| match varying {
                true if rng.chance(10) => 0,
                true if rng.chance(5) => rng.within(1, 10 * most),
                true => rng.within(1, most),
                false => fixed,
            };
            dims.push((size(varying_rows, rows), size(varying_cols, cols)));
            let (rows, cols) = dims[dims.len() - 1];
            let gap = if gaps { rng.within(0, 20) } else { 0 };
            offsets.push(offsets[offsets.len() - 1] + rows * cols + gap);
        }
        let total = |of: fn(&(usize, usize)) -> usize| dims.iter().map(of).sum::<usize>();
        let numel = offsets[n] + rng.pick(&[0, 0, 1000]);
        let (rows, cols) = match (varying_rows, varying_cols) {
            (true, true) => (1, numel),
            (_, false) => (total(|d| d.0), cols),
            (false, true) => (rows, total(|d| d.1)),
        };
        let mut array = |wanted, values: &mut dyn Iterator<Item = usize>| {
            let bytes: Vec<u8> = values.flat_map(|v| (v as i64).to_le_bytes()).collect();
            let id = b.add(bytes, 0);
            if wanted { Some(id) } else { None }
        };
        let first = array(varying_rows, &mut dims.iter().map(|d| d.0));
        let last = array(varying_cols, &mut dims.iter().map(|d| d.1));
        let varying = varying_rows || varying_cols || gaps;
        let offsets = array(varying || rng.chance(50), &mut offsets.into_iter());
        Self { dims, rows, cols, first, last, offsets, numel }
    }

    fn group(&self, side: &Side) -> Group {
        Group {
            num_tensors: self.dims.len(),
            first_dims: side.maybe(self.first),
            last_dims: side.maybe(self.last),
            offsets: side.maybe(self.offsets),
            ..LARGE_GROUP
        }
    }
}

impl std::fmt::Display for Batch {
    fn fmt(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        let (n, rows, cols) = (self.dims.len(), self.rows, self.cols);
        write!(f, "{n} members of {rows}x{cols}")?;
        write!(
            f,
            ", on the device {:?}",
            [self.first, self.last, self.offsets].map(|a| a.is_some())
        )
    }
}

pub fn swizzle_groups(rng: &mut Rng, _: usize) -> Case {
    let mut b = Buffers::default();
    let members = Batch::random(rng, &mut b);
    let unswizzle = rng.chance(40);
    let directions = rng.pick(&[&[false][..], &[true], &[false, true]]);
    let buffers: Vec<_> = directions
        .iter()
        .map(|&transposed| {
            let size = |&(rows, cols): &(usize, usize)| {
                let (m, k) = if transposed { (cols, rows) } else { (rows, cols) };
                m.next_multiple_of(128) * k.div_ceil(32).next_multiple_of(4)
            };
            let bytes = members.dims.iter().map(size).sum::<usize>() + 100;
            let values = rng.bytes(bytes);
            (b.add(values, rng.shift()), b.output(rng, kNVTEByte, bytes), transposed)
        })
        .collect();
    let outputs: Vec<_> = buffers.iter().map(|a| ("destination", kNVTEByte, Some(a.1))).collect();
    Case::bits(
        format!("{members}, directions {directions:?}, unswizzle {unswizzle}"),
        b,
        &outputs,
        move |side| {
            let entries: Vec<_> = buffers
                .iter()
                .map(|&(source, destination, transposed)| SwizzleEntry {
                    source: side.at(source),
                    destination: side.at(destination),
                    m: 0,
                    k: 0,
                    valid_m: 0,
                    valid_k: 0,
                    transposed,
                })
                .collect();
            let args = SwizzleArgs {
                entries: entries.as_ptr(),
                num_entries: entries.len(),
                unswizzle,
                rows: members.rows,
                cols: members.cols,
                group: members.group(side),
            };
            entry(side, side.table.swizzle, args)
        },
    )
}

pub fn group_amax(rng: &mut Rng, index: usize) -> Case {
    let dtype = HIGH[index % 3];
    let mut b = Buffers::default();
    let members = Batch::random(rng, &mut b);
    let input = b.input(rng, dtype, members.numel);
    let amax = b.output(rng, kNVTEFloat32, members.dims.len());
    let noop = rng.noop().map(|flag| b.float(flag));
    Case::bits(
        format!("{dtype:?}, {members}"),
        b,
        &[("amax", kNVTEFloat32, Some(amax))],
        move |side| {
            let args = GroupAmaxArgs {
                input: side.at(input),
                amax: side.at(amax),
                noop: side.maybe(noop),
                numel: members.numel,
                rows: members.rows,
                cols: members.cols,
                group: members.group(side),
                dtype,
            };
            entry(side, side.table.group_amax, args)
        },
    )
}
