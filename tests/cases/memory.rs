//! Offsets, memset, copies to the host.

use super::*;
use std::hint::black_box;

pub fn offsets(rng: &mut Rng, _: usize) -> Case {
    const INTS: [NVTEDType; 2] = [kNVTEInt32, kNVTEInt64];
    let mut b = Buffers::default();
    let length = rng.pick(&[1, 2, 4, 31, 255, 256, 257, 1024, 1025, 5000]);
    let [first_dtype, last_dtype] = [rng.pick(&INTS), rng.pick(&INTS)];
    let top = rng.pick(&[10, 1000, 1_000_000, usize::from(u16::MAX) << 15]);
    let dims = |rng: &mut Rng, b: &mut Buffers, dtype| {
        let negative = rng.chance(10);
        let bytes = rng.values(|rng| {
            let values = (0..length).map(|_| {
                let dim = if rng.chance(10) { 0 } else { rng.within(1, top) as i64 };
                (if negative { -dim } else { dim }).to_le_bytes()[..size(dtype)].to_vec()
            });
            values.collect::<Vec<_>>().concat()
        });
        b.add(bytes, 0)
    };
    let first = dims(rng, &mut b, first_dtype);
    let last = rng.chance(50).then(|| dims(rng, &mut b, last_dtype));
    let outputs: Vec<_> = (0..rng.pick(&[1, 2, 3, 8, 9, 20]))
        .map(|_| {
            let dtype = rng.pick(&INTS);
            let stride = rng.pick(&[1, 7, 128, 0, -3, 1 << 33]);
            let leading_zero = rng.chance(50);
            let ptr = b.add(vec![0xCD; (length + usize::from(leading_zero)) * size(dtype)], 0);
            (ptr, stride, dtype, leading_zero)
        })
        .collect();
    let names: Vec<_> = outputs.iter().map(|o| ("output", o.2, Some(o.0))).collect();
    Case::bits(format!("{length} of {first_dtype:?} and {last_dtype:?}"), b, &names, move |side| {
        let outputs: Vec<_> = outputs
            .iter()
            .map(|&(ptr, stride, dtype, leading_zero)| OffsetsOutput {
                ptr: side.at(ptr),
                stride,
                dtype,
                leading_zero,
            })
            .collect();
        let args = OffsetsArgs {
            first: side.at(first),
            last: side.maybe(last),
            outputs: outputs.as_ptr(),
            num_outputs: outputs.len(),
            length,
            first_dtype,
            last_dtype,
        };
        entry(side, side.table.offsets, args)
    })
}

pub fn memset_and_host_copy(rng: &mut Rng, index: usize) -> Case {
    let bytes = match rng.below(4) {
        0 => rng.within(1, 20),
        1 => rng.pick(&[4, 16, 128, 2047, 2048, 2049, 4095, 4096, 4097, 8192]),
        2 => rng.within(1, 10_000),
        _ => rng.within(1, 3_000_000),
    };
    let mut b = Buffers::default();
    let what = format!("{bytes} bytes");
    let fixed = |name, id| Output::new(name, kNVTEByte, id, Expect::Fixed);
    if index.is_multiple_of(2) {
        let (ptr, value) = (b.add(vec![0xCD; bytes], rng.within(0, 33)), rng.next() as u8);
        return Case::new(what, b, [fixed("memset", ptr)], move |side| {
            entry(side, side.table.memset, MemsetArgs { ptr: side.at(ptr), bytes, value })
        });
    }
    let bytes = bytes.min(100_000);
    // Part of the call itself, not of what a captured call may find changed.
    let values = rng.fixed_bytes(bytes);
    let device = b.add(vec![0xCD; bytes], 4 * rng.within(0, 9));
    Case::new(what, b, [fixed("host_copy", device)], move |side| {
        // A copy that is overwritten and gone before the stream has run; `black_box` keeps the writes.
        let mut host = values.clone();
        let args = HostCopyArgs { host: host.as_ptr().cast(), device: side.at(device), bytes };
        let outcome = entry(side, side.table.host_copy, args);
        host.fill(0xEE);
        black_box(&host);
        outcome
    })
}
