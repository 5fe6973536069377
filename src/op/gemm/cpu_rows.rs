//! Products of few rows, as decoding has them: reading A takes the time, so that each element of it is read once,
//! widened in the nearest cache if it is not a float32, and multiplied by all rows of B.
#![allow(unsafe_code)]

#[cfg(target_arch = "x86_64")]
use super::cpu_packed::x86::{Avx2, Avx512};
use super::cpu_packed::{Lanes, Plain};
use crate::backend::cpu::{Vectors, vectors};
use crate::backend::memory::{resize, zeros};
use crate::backend::pool::chunks_mut;

/// Most rows of B.
pub(super) const ROWS: usize = 16;
/// Rows of A that a task multiplies.
const TASK: usize = 16;
/// Elements of A that a thread multiplies at least.
const SHARE: usize = 1 << 16;
/// Elements along k that are widened at a time.
const DEPTH: usize = 1024;
/// Partial sums of a dot product at most: element `k` goes to sum `k % COUNT` of a vector's lanes.
const LANES: usize = 16;
/// Rows of A that are multiplied together, at most.
const GROUP: usize = 4;

/// Where the elements of an operand `[rows, k]` come from.
pub(super) trait Source: Sync {
    /// Elements of a row from column `k` on, as float32.
    fn read(&self, row: usize, k: usize, to: &mut [f32]);
    /// The same elements where they are, if they are float32.
    fn floats(&self, row: usize, k: usize, len: usize) -> Option<&[f32]>;
}

/// Partial sums of dot products of rows of A with each row of B.
type Sums = [[[f32; LANES]; ROWS]; GROUP];

/// `dots(a, b, pitch, steps, sums, first)` adds the products of `16 * steps` elements of rows of A and of rows of B from
/// `first` on, which are `pitch` apart, to `sums`.
type Dots = unsafe fn([*const f32; GROUP], *const f32, usize, usize, &mut Sums, usize);

/// The innermost loops for a machine: with 4 rows of B, with 2 and with 1.
struct Kernel {
    /// Rows of A, at most [`GROUP`].
    group: usize,
    dots: [Dots; 3],
}

/// The loop with `A` rows of A, and `B` rows of B that are `pitch` apart, from number `first` on.
///
/// # Safety
/// The rows have those elements, and the machine has the vectors.
#[inline(always)]
unsafe fn dots<L: Lanes, const A: usize, const B: usize>(
    a: [*const f32; GROUP],
    b: *const f32,
    pitch: usize,
    steps: usize,
    sums: &mut Sums,
    first: usize,
) {
    // SAFETY: the caller keeps to the `# Safety` section of this function.
    unsafe {
        let mut all: [[L::Sums; B]; A] =
            std::array::from_fn(|i| std::array::from_fn(|j| L::start(sums[i][first + j].as_ptr())));
        for step in 0..steps * LANES / L::COUNT {
            let at = step * L::COUNT;
            let of_a: [L::Units; A] = std::array::from_fn(|i| L::load(a[i].add(at).cast()));
            for j in 0..B {
                let of_b = L::load(b.add((first + j) * pitch + at).cast());
                for (all, &of_a) in all.iter_mut().zip(&of_a) {
                    all[j] = L::add(all[j], of_a, of_b);
                }
            }
        }
        for (all, sums) in all.iter().zip(sums) {
            for (j, all) in all.iter().enumerate() {
                L::store(*all, sums[first + j].as_mut_ptr());
            }
        }
    }
}

const PLAIN: Kernel = Kernel {
    group: 2,
    dots: [dots::<Plain<false>, 2, 4>, dots::<Plain<false>, 2, 2>, dots::<Plain<false>, 2, 1>],
};

#[cfg(target_arch = "x86_64")]
mod x86 {
    use super::*;

    macro_rules! kernel {
        ($name:ident: $features:literal, $lanes:ty, $group:literal) => {
            pub const $name: Kernel = {
                #[target_feature(enable = $features)]
                unsafe fn run<const B: usize>(
                    a: [*const f32; GROUP],
                    b: *const f32,
                    pitch: usize,
                    steps: usize,
                    sums: &mut Sums,
                    first: usize,
                ) {
                    // SAFETY: whoever calls a kernel keeps to the promises of its type.
                    unsafe { dots::<$lanes, $group, B>(a, b, pitch, steps, sums, first) }
                }
                Kernel { group: $group, dots: [run::<4>, run::<2>, run::<1>] }
            };
        };
    }

    // 16 or 32 registers hold the sums, the vectors of A and one of B.
    kernel!(AVX2: "avx2,fma", Avx2, 2);
    kernel!(AVX512: "avx512f", Avx512, 4);
}

impl Kernel {
    fn of_this_machine() -> &'static Self {
        match vectors() {
            #[cfg(target_arch = "x86_64")]
            Vectors::Avx512 => &x86::AVX512,
            #[cfg(target_arch = "x86_64")]
            Vectors::Avx2 => &x86::AVX2,
            Vectors::Baseline => &PLAIN,
        }
    }
}

/// `sums[i, j] = a[i] . b[j]` for the m rows of A and the n rows of B, n at most [`ROWS`].
pub(super) fn dot_products(
    sizes: (usize, usize, usize),
    a: &impl Source,
    b: &impl Source,
) -> Vec<f32> {
    dot_products_by(Kernel::of_this_machine(), sizes, a, b)
}

fn dot_products_by(
    kernel: &Kernel,
    (m, n, k): (usize, usize, usize),
    a: &impl Source,
    b: &impl Source,
) -> Vec<f32> {
    assert!(n <= ROWS, "few rows");
    // Rows of whole vectors, whose last elements are zeros.
    let pitch = k.next_multiple_of(LANES);
    let mut rows_of_b = zeros::<f32>(n * pitch);
    for (row, to) in rows_of_b.chunks_exact_mut(pitch.max(1)).enumerate() {
        b.read(row, 0, &mut to[..k]);
    }
    let mut results = zeros::<f32>(m * n);
    let task = |copy: &mut Vec<f32>, (task, results): (usize, &mut [f32])| {
        resize(copy, kernel.group * DEPTH);
        for (group, results) in results.chunks_mut(kernel.group * n).enumerate() {
            let first = task * TASK + group * kernel.group;
            let mut sums: Sums = [[[0.0; LANES]; ROWS]; GROUP];
            for at in (0..k).step_by(DEPTH) {
                let depth = DEPTH.min(k - at);
                let mut rows = [copy.as_ptr(); GROUP];
                // Rows that are not there are the last one again.
                let there = results.len() / n;
                for (i, to) in copy.chunks_exact_mut(DEPTH).take(there).enumerate() {
                    rows[i..].fill(match a.floats(first + i, at, depth) {
                        Some(floats) if depth.is_multiple_of(LANES) => floats.as_ptr(),
                        _ => {
                            let (to, rest) = to.split_at_mut(depth);
                            a.read(first + i, at, to);
                            let padding = rest.len() % LANES;
                            rest[..padding].fill(0.0);
                            to.as_ptr()
                        }
                    });
                }
                let steps = depth.div_ceil(LANES);
                let mut j = 0;
                while j < n {
                    let which = [4, 2, 1].iter().position(|&rows| rows <= n - j).unwrap_or(2);
                    // SAFETY: rows of A and B have that many vectors, rows of B being so far apart, and the
                    // kernel is for this machine.
                    unsafe {
                        let b = rows_of_b.as_ptr().add(at);
                        (kernel.dots[which])(rows, b, pitch, steps, &mut sums, j);
                    }
                    j += 4 >> which;
                }
            }
            for (results, sums) in results.chunks_exact_mut(n).zip(&sums) {
                for (to, lanes) in results.iter_mut().zip(sums) {
                    *to = total(lanes);
                }
            }
        }
        0
    };
    let least = SHARE.div_ceil((TASK * k).max(1));
    chunks_mut(&mut results, TASK * n).with_min_len(least).max_init(Vec::new, task);
    results
}

/// The sum of the lanes by halves.
fn total(lanes: &[f32; LANES]) -> f32 {
    let mut sums = *lanes;
    let mut len = LANES;
    while len > 1 {
        len /= 2;
        for i in 0..len {
            sums[i] += sums[i + len];
        }
    }
    sums[0]
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The kernels that this machine can run.
    fn kernels() -> Vec<&'static Kernel> {
        let mut all = vec![&PLAIN];
        #[cfg(target_arch = "x86_64")]
        {
            if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") {
                all.push(&x86::AVX2);
            }
            if is_x86_feature_detected!("avx512f") {
                all.push(&x86::AVX512);
            }
        }
        all
    }

    /// Small multiples of 1/8, whose products and sums are exact in float32 in any order, read where they are or
    /// copied.
    struct Eighths {
        elements: Vec<f32>,
        k: usize,
        copied: bool,
    }

    impl Eighths {
        fn new(rows: usize, k: usize, copied: bool) -> Self {
            let eighths = |i: usize| ((i * 37 + i / 19 + rows * 11) % 23) as f32 / 8.0 - 1.375;
            Self { elements: (0..rows * k).map(eighths).collect(), k, copied }
        }

        fn row(&self, row: usize) -> &[f32] {
            &self.elements[row * self.k..][..self.k]
        }
    }

    impl Source for Eighths {
        fn read(&self, row: usize, k: usize, to: &mut [f32]) {
            to.copy_from_slice(&self.row(row)[k..][..to.len()]);
        }
        fn floats(&self, row: usize, k: usize, len: usize) -> Option<&[f32]> {
            (!self.copied).then(|| &self.row(row)[k..][..len])
        }
    }

    #[test]
    fn every_kernel_multiplies_any_shape() {
        for kernel in kernels() {
            for (m, k) in [(1, 1), (3, 16), (21, 100), (16, 1024), (19, 2075), (70, 1040)] {
                for n in 1..=ROWS {
                    for copied in [false, true] {
                        let (a, b) = (Eighths::new(m, k, copied), Eighths::new(n, k, copied));
                        let got = dot_products_by(kernel, (m, n, k), &a, &b);
                        for (i, got) in got.into_iter().enumerate() {
                            let terms = a.row(i / n).iter().zip(b.row(i % n));
                            let want = terms.fold(0.0, |sum, (x, y)| sum + x * y);
                            assert_eq!(got, want, "{m}x{n}x{k}: element {i}");
                        }
                    }
                }
            }
        }
    }
}
