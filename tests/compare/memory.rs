//! Offsets, memset, copies to the host.

use crate::*;

#[test]
fn offsets() {
    cases("offsets", 200, |rng, _| {
        const INTS: [NVTEDType; 2] = [kNVTEInt32, kNVTEInt64];
        let mut b = Buffers::default();
        let length = rng.pick(&[1, 2, 4, 31, 255, 256, 257, 1024, 1025, 5000]);
        let [first_dtype, last_dtype] = [rng.pick(&INTS), rng.pick(&INTS)];
        let top = rng.pick(&[10, 1000, 1_000_000, usize::from(u16::MAX) << 15]);
        let dims = |rng: &mut Rng, b: &mut Buffers, dtype| {
            let negative = rng.chance(10);
            let values = (0..length).map(|_| {
                let dim = if rng.chance(10) { 0 } else { rng.within(1, top) as i64 };
                (if negative { -dim } else { dim }).to_le_bytes()[..size(dtype)].to_vec()
            });
            let bytes = values.collect::<Vec<_>>().concat();
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
        both(&b, &names, |side| {
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
        .map_err(|e| format!("{length} of {first_dtype:?} and {last_dtype:?}: {e}"))
    });
}

#[test]
fn memset_and_host_copy() {
    cases("memset_and_host_copy", 200, |rng, index| {
        let bytes = match rng.below(4) {
            0 => rng.within(1, 20),
            1 => rng.pick(&[4, 16, 128, 2047, 2048, 2049, 4095, 4096, 4097, 8192]),
            2 => rng.within(1, 10_000),
            _ => rng.within(1, 3_000_000),
        };
        let mut b = Buffers::default();
        if index % 2 == 0 {
            let (ptr, value) = (b.add(vec![0xCD; bytes], rng.within(0, 33)), rng.next() as u8);
            both(&b, &[("memset", kNVTEByte, Some(ptr))], |side| {
                entry(side, side.table.memset, MemsetArgs { ptr: side.at(ptr), bytes, value })
            })
        } else {
            let bytes = bytes.min(100_000);
            let values = rng.bytes(bytes);
            let device = b.add(vec![0xCD; bytes], 4 * rng.within(0, 9));
            both(&b, &[("host_copy", kNVTEByte, Some(device))], |side| {
                // A copy that is gone before the stream has run.
                let host = values.clone();
                let host = host.as_ptr().cast();
                entry(
                    side,
                    side.table.host_copy,
                    HostCopyArgs { host, device: side.at(device), bytes },
                )
            })
        }
        .map_err(|e| format!("{bytes} bytes: {e}"))
    });
}
