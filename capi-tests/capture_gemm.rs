//! What goes with products of groups in the chain of captured operators.

use super::*;

const MEMBERS: [usize; 4] = [100, 0, 33, 67];
const ROWS: usize = 200;
const COLS: usize = 256;

pub fn steps(c: &mut Chain) {
    bias(c);
    widen(c);
    branches(c);
    counters(c);
}

fn dims(c: &mut Chain) -> Id {
    let dims = MEMBERS.iter().flat_map(|&rows| (rows as i64).to_le_bytes()).collect();
    c.buffers.add(dims, 0)
}

fn bias(c: &mut Chain) {
    let (dtype, dims) = (kNVTEBFloat16, dims(c));
    let bias = c.input(dtype, MEMBERS.len() * COLS);
    let scale = c.input(kNVTEFloat32, ROWS);
    let values = vec![1.0f32; ROWS * COLS].iter().flat_map(|v| v.to_le_bytes()).collect::<Vec<_>>();
    let output = c.in_place("output", dtype, cast(&values, kNVTEFloat32, dtype), Bits);
    c.step("grouped bias", move |side| {
        let args = GroupedBiasArgs {
            output: side.at(output),
            bias: side.at::<c_void>(bias).cast_const(),
            scale: side.at::<f32>(scale).cast_const(),
            first_dims: side.at::<i64>(dims).cast_const(),
            num_tensors: MEMBERS.len(),
            rows: ROWS,
            cols: COLS,
            dtype,
        };
        entry(side, side.table.grouped_bias, args)
    });
}

fn widen(c: &mut Chain) {
    let length = 1001;
    let input: Vec<u8> = (0..length).flat_map(|_| (c.rng.next() as i32).to_le_bytes()).collect();
    let input = c.buffers.add(input, 0);
    let output = c.output("integers", kNVTEInt64, length, Bits);
    c.step("widened integers", move |side| {
        let input = side.at::<i32>(input).cast_const();
        let args = WidenArgs { input, output: side.at(output), length, factor: 4096 };
        entry(side, side.table.widen, args)
    });
}

/// Casts on two streams beside each other.
fn branches(c: &mut Chain) {
    let length = 5000;
    let ids = [0; 2].map(|_| {
        let bytes = (0..length).flat_map(|_| (c.rng.next() as i32).to_le_bytes()).collect();
        (c.buffers.add(bytes, 0), c.output("integers", kNVTEInt64, length, Bits))
    });
    c.step("branches", move |side| {
        let mut branches = [null_mut(); 2];
        // SAFETY: writes two streams, of which the arguments are used like the side's own.
        unsafe {
            let forked = side.table.fork.expect("fork")(side.stream, 2, branches.as_mut_ptr());
            if ok(forked, "fork").is_err() {
                return forked;
            }
            for ((input, output), branch) in ids.into_iter().zip(branches) {
                let input = side.at::<i32>(input).cast_const();
                let args = WidenArgs { input, output: side.at(output), length, factor: -3 };
                let widened = side.table.widen.expect("widen")(&args, branch);
                if ok(widened, "widen").is_err() {
                    return widened;
                }
            }
            side.table.join.expect("join")(side.stream, 2)
        }
    });
}

fn counters(c: &mut Chain) {
    let words = c.in_place("counters", kNVTEInt32, [1, 0, 0, 0].repeat(5), Fixed);
    for (name, wait) in [("counters", false), ("counters that are waited for", true)] {
        c.step(name, move |side| {
            let args = CountersArgs { counters: side.at(words), length: 5, wait };
            entry(side, side.table.counters, args)
        });
    }
}
