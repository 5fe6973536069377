//! Orders of scales.

use super::*;

pub fn swizzle(rng: &mut Rng, _: usize) -> Case {
    struct Matrix {
        source: Id,
        destination: Id,
        m: usize,
        k: usize,
        valid: (usize, usize),
        transposed: bool,
    }
    let mut b = Buffers::default();
    let n = rng.pick(&[1, 1, 2, 59, 60, 61, 130, 520]);
    let (unswizzle, most) = (rng.chance(40), if n > 10 { 3 } else { 20 });
    let matrices: Vec<_> = (0..n)
        .map(|_| {
            let (m, k) = (128 * rng.within(1, most), 4 * rng.within(1, 2 * most));
            let bytes = rng.bytes(m * k);
            let source = b.add(bytes, rng.shift());
            let destination = b.output(rng, kNVTEByte, m * k);
            let valid = (rng.within(0, m), rng.within(0, k));
            Matrix { source, destination, m, k, valid, transposed: rng.chance(50) }
        })
        .collect();
    let outputs: Vec<_> =
        matrices.iter().map(|a| ("destination", kNVTEByte, Some(a.destination))).collect();
    Case::bits(format!("{n} matrices, unswizzle {unswizzle}"), b, &outputs, move |side| {
        let entries: Vec<_> = matrices
            .iter()
            .map(|a| SwizzleEntry {
                source: side.at(a.source),
                destination: side.at(a.destination),
                m: a.m,
                k: a.k,
                valid_m: a.valid.0,
                valid_k: a.valid.1,
                transposed: a.transposed,
            })
            .collect();
        let args = SwizzleArgs {
            entries: entries.as_ptr(),
            num_entries: n,
            unswizzle,
            rows: 0,
            cols: 0,
            group: Group::NONE,
        };
        entry(side, side.table.swizzle, args)
    })
}

pub fn scale_codes(rng: &mut Rng, _: usize) -> Case {
    let (rows, cols, square) = (rng.within(1, 1000), rng.within(1, 1000), rng.chance(50));
    let (down, across) = (rows.div_ceil(128), cols.div_ceil(128));
    let (lines, least) = if square { (down, across) } else { (across, rows) };
    let stride = least + rng.within(0, 5);
    let mut b = Buffers::default();
    let scales = b.input(rng, kNVTEFloat32, lines * stride);
    let codes = b.output(rng, kNVTEByte, down * across * 512);
    Case::bits(
        format!("{rows}x{cols}, square {square}"),
        b,
        &[("codes", kNVTEByte, Some(codes))],
        move |side| {
            let (scales, codes) = (side.at(scales), side.at(codes));
            let args = ScaleCodesArgs { scales, codes, rows, cols, stride, square };
            entry(side, side.table.scale_codes, args)
        },
    )
}
