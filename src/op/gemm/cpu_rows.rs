//! Products of few rows, as decoding has them: reading A takes the time, so that each element of it is read once,
//! made a unit of a [`Kernel`] in the nearest cache if it is none, and multiplied by all rows of B.
#![allow(unsafe_code)]

#[cfg(target_arch = "x86_64")]
use super::cpu_packed::x86::{Avx2, Avx512};
use super::cpu_packed::{Lanes, Line, Operand, Plain, kernel_for, units};
use crate::backend::cpu::{Vectors, vectors};
use crate::backend::memory::{resize, zeros};
use crate::backend::pool::chunks_mut;

/// Rows of A that a task multiplies.
const TASK: usize = 24;
/// Elements of A that a thread multiplies at least.
const SHARE: usize = 1 << 16;
/// Units along k that are made at a time.
const DEPTH: usize = 1024;
/// Partial sums of a dot product at most: unit `k` goes to sum `k % LANES` of a vector's lanes.
const LANES: usize = 16;
/// Units from a row to the next one in copies: not a power of two, so that rows do not fall on one another in a cache.
const PITCH: usize = DEPTH + LANES;
/// Rows of B that are few, however many elements there are along k.
const FEW: usize = 16;
/// Elements along k for each of more rows of B, at least.
const LEAST_DEPTH: usize = 24;
/// Rows of A that are multiplied together, at most.
const GROUP: usize = 6;

/// Partial sums of dot products of rows of A with a row of B.
type Sums = [[f32; LANES]; GROUP];

/// Scratch of a thread.
#[derive(Default)]
struct Scratch {
    copy: Vec<Line>,
    /// Of each row of B.
    sums: Vec<Sums>,
    totals: Vec<f32>,
}

/// `dots(a, b, pitch, steps, sums, first, fresh)` adds the products of `16 * steps` units of rows of A and of rows of
/// B from `first` on, which are `pitch` apart, to `sums`, or to zeros if those are `fresh`.
type Dots = unsafe fn([*const u32; GROUP], *const u32, usize, usize, &mut [Sums], usize, bool);

/// The innermost loops for a machine: with 4 rows of B, with 2 and with 1.
pub(super) struct Kernel {
    /// Most rows of B.
    most: usize,
    /// Whether a unit is a pair of BF16, not a float32.
    pairs: bool,
    /// Rows of A, at most [`GROUP`].
    group: usize,
    dots: [Dots; 3],
}

/// The loop with `A` rows of A, and `B` rows of B that are `pitch` apart, from number `first` on.
///
/// # Safety
/// The rows have those units, and the machine has the vectors.
#[inline(always)]
unsafe fn dots<L: Lanes, const A: usize, const B: usize>(
    a: [*const u32; GROUP],
    b: *const u32,
    pitch: usize,
    steps: usize,
    sums: &mut [Sums],
    first: usize,
    fresh: bool,
) {
    // SAFETY: the caller keeps to the `# Safety` section of this function.
    unsafe {
        let zeros = [0.0; LANES];
        let start = |i: usize, j: usize| {
            let sums = if fresh { &zeros } else { &sums[first + j][i] };
            L::start(sums.as_ptr())
        };
        let mut all: [[L::Sums; B]; A] =
            std::array::from_fn(|i| std::array::from_fn(|j| start(i, j)));
        for step in 0..steps * LANES / L::COUNT {
            let at = step * L::COUNT;
            let of_a: [L::Units; A] = std::array::from_fn(|i| L::load(a[i].add(at)));
            for j in 0..B {
                let of_b = L::load(b.add((first + j) * pitch + at));
                for (all, &of_a) in all.iter_mut().zip(&of_a) {
                    all[j] = L::add(all[j], of_a, of_b);
                }
            }
        }
        for (i, all) in all.iter().enumerate() {
            for (j, all) in all.iter().enumerate() {
                L::store(*all, sums[first + j][i].as_mut_ptr());
            }
        }
    }
}

const PLAIN: Kernel = Kernel {
    most: FEW,
    pairs: false,
    group: 2,
    dots: [dots::<Plain<false>, 2, 4>, dots::<Plain<false>, 2, 2>, dots::<Plain<false>, 2, 1>],
};

#[cfg(target_arch = "x86_64")]
mod x86 {
    use super::*;
    use std::arch::x86_64::*;
    use std::array::from_fn;

    macro_rules! kernel {
        ($name:ident: $features:literal, $lanes:ty, $group:literal, $most:expr, $pairs:literal) => {
            pub const $name: Kernel = {
                #[target_feature(enable = $features)]
                unsafe fn run<const B: usize>(
                    a: [*const u32; GROUP],
                    b: *const u32,
                    pitch: usize,
                    steps: usize,
                    sums: &mut [Sums],
                    first: usize,
                    fresh: bool,
                ) {
                    // SAFETY: whoever calls a kernel keeps to the promises of its type.
                    unsafe { dots::<$lanes, $group, B>(a, b, pitch, steps, sums, first, fresh) }
                }
                let dots: [Dots; 3] = [run::<4>, run::<2>, run::<1>];
                Kernel { most: $most, pairs: $pairs, group: $group, dots }
            };
        };
    }

    /// The sums of the lanes of 16 elements by halves, as [`total`] adds them.
    #[target_feature(enable = "avx512f")]
    pub fn sum_up(sums: &[[f32; 16]; 16]) -> [f32; 16] {
        // SAFETY: there are 16 floats.
        let at = |i: usize| unsafe { _mm512_loadu_ps(sums[i].as_ptr()) };
        // Four sums of each of four elements.
        let fours: [__m512; 4] = from_fn(|i| {
            let eights = |a, b| {
                let near = _mm512_shuffle_f32x4::<0x44>(a, b);
                _mm512_add_ps(near, _mm512_shuffle_f32x4::<0xEE>(a, b))
            };
            let (a, b) = (eights(at(i), at(i + 4)), eights(at(i + 8), at(i + 12)));
            let near = _mm512_shuffle_f32x4::<0x88>(a, b);
            _mm512_add_ps(near, _mm512_shuffle_f32x4::<0xDD>(a, b))
        });
        let twos = |a, b| {
            let (a, b) = (_mm512_castps_pd(a), _mm512_castps_pd(b));
            let near = _mm512_castpd_ps(_mm512_unpacklo_pd(a, b));
            _mm512_add_ps(near, _mm512_castpd_ps(_mm512_unpackhi_pd(a, b)))
        };
        let (a, b) = (twos(fours[0], fours[1]), twos(fours[2], fours[3]));
        let near = _mm512_shuffle_ps::<0x88>(a, b);
        let all = _mm512_add_ps(near, _mm512_shuffle_ps::<0xDD>(a, b));
        let mut totals = [0.0; 16];
        // SAFETY: there is room for 16 floats.
        unsafe { _mm512_storeu_ps(totals.as_mut_ptr(), all) };
        totals
    }

    // 16 or 32 registers hold the sums, the vectors of A and one of B.
    kernel!(AVX2: "avx2,fma", Avx2, 2, FEW, false);
    kernel!(AVX512: "avx512f", Avx512<false>, 4, FEW, false);
    kernel!(AVX512_PAIRS: "avx512f,avx512bf16", Avx512<true>, 6, 64, true);
}

/// The kernel for this machine; `halves`: BF16 holds the elements of both operands.
pub(super) fn kernel(halves: bool) -> &'static Kernel {
    kernel_for!(halves)
}

impl Kernel {
    /// Elements along k in a unit.
    fn unit(&self) -> usize {
        if self.pairs { 2 } else { 1 }
    }

    /// Whether this is faster than packing both operands, for `n` rows of B. To add up the lanes of a sum costs as much
    /// for each of them, packing A costs more with more elements along k.
    pub(super) fn is_for(&self, n: usize, k: usize) -> bool {
        n <= FEW || n <= self.most && n * LEAST_DEPTH <= k
    }

    /// The dot products of all rows of A with those of B, as many as [`Self::is_for`] allows: `add(j, i, part)` is
    /// given those of row `j` of B with rows of A from `i` on.
    pub(super) fn dot_products(
        &self,
        [a, b]: [&Operand; 2],
        mut add: impl FnMut(usize, usize, &[f32]),
    ) {
        let (m, n, k) = (a.outer, b.outer, a.k);
        assert!(n <= self.most && !a.k_major && !b.k_major, "few rows");
        // Rows of whole vectors, whose last elements are zeros.
        let pitch = k.div_ceil(self.unit()).next_multiple_of(LANES) + LANES;
        let mut rows_of_b = zeros::<Line>(n * pitch / LANES);
        let rows_of_b = units(&mut rows_of_b);
        for (row, to) in rows_of_b.chunks_exact_mut(pitch).enumerate() {
            b.along(self.pairs, row, 0, k, to);
        }
        let rows_of_b = (&*rows_of_b, pitch, n);
        // Of each task, its rows of A for each row of B.
        let mut results = zeros::<f32>(m * n);
        let task = |scratch: &mut Scratch, (task, results): (usize, &mut [f32])| {
            let Scratch { copy, sums, totals } = scratch;
            resize(copy, self.group * PITCH / LANES);
            resize(sums, n);
            resize(totals, n * GROUP);
            let count = results.len() / n;
            for at in (0..count).step_by(self.group) {
                let rows = (task * TASK + at, self.group.min(count - at));
                self.multiply_group(rows, a, rows_of_b, units(copy), sums);
                sum_up(sums.as_flattened(), totals);
                let to = results.chunks_exact_mut(count);
                for (to, totals) in to.zip(totals.chunks_exact(GROUP)) {
                    to[at..at + rows.1].copy_from_slice(&totals[..rows.1]);
                }
            }
            0
        };
        let least = SHARE.div_ceil((TASK * k).max(1));
        chunks_mut(&mut results, TASK * n).with_min_len(least).max_init(Scratch::default, task);
        for (task, results) in results.chunks(TASK * n).enumerate() {
            // The last task may have fewer rows of A.
            for (j, part) in results.chunks_exact(results.len() / n).enumerate() {
                add(j, task * TASK, part);
            }
        }
    }

    /// Sums up the products of some rows of A with all rows of B.
    fn multiply_group(
        &self,
        (first, there): (usize, usize),
        a: &Operand,
        (b, pitch, n): (&[u32], usize, usize),
        copy: &mut [u32],
        sums: &mut [Sums],
    ) {
        let (k, at_once) = (a.k, DEPTH * self.unit());
        for at in (0..k).step_by(at_once) {
            let depth = at_once.min(k - at);
            let steps = depth.div_ceil(LANES * self.unit());
            let whole = depth == steps * LANES * self.unit();
            let mut rows = [copy.as_ptr(); GROUP];
            // Rows that are not there are the last one again.
            for (i, to) in copy.chunks_exact_mut(PITCH).take(there).enumerate() {
                let in_place = a.source.in_place(self.pairs, (first + i) * k + at, depth);
                rows[i..].fill(in_place.filter(|_| whole).unwrap_or_else(|| {
                    a.along(self.pairs, first + i, at, depth, &mut to[..steps * LANES]);
                    to.as_ptr()
                }));
            }
            let mut j = 0;
            while j < n {
                let which = [4, 2, 1].iter().position(|&rows| rows <= n - j).unwrap_or(2);
                // SAFETY: rows of A and B have that many vectors, rows of B being so far apart, and the
                // kernel is for this machine.
                unsafe {
                    let b = b.as_ptr().add(at / self.unit());
                    (self.dots[which])(rows, b, pitch, steps, sums, j, at == 0);
                }
                j += 4 >> which;
            }
        }
    }
}

/// The sums of the lanes of each element by halves.
fn sum_up(sums: &[[f32; LANES]], to: &mut [f32]) {
    #[cfg(target_arch = "x86_64")]
    if vectors() == Vectors::Avx512 {
        let whole = sums.as_chunks::<16>().0;
        for (sums, to) in whole.iter().zip(to.as_chunks_mut::<16>().0) {
            // SAFETY: the machine has the vectors.
            *to = unsafe { x86::sum_up(sums) };
        }
        let done = 16 * whole.len();
        for (sums, to) in sums[done..].iter().zip(&mut to[done..]) {
            *to = total(sums);
        }
        return;
    }
    for (sums, to) in sums.iter().zip(to) {
        *to = total(sums);
    }
}

/// The sum of the lanes by halves.
#[inline(always)]
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
    use crate::op::gemm::cpu_packed::Source;

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
                if is_x86_feature_detected!("avx512bf16") {
                    all.push(&x86::AVX512_PAIRS);
                }
            }
        }
        all
    }

    /// Small multiples of 1/8, whose products and sums are exact in float32 in any order, read where they are or
    /// copied.
    struct Eighths {
        floats: Vec<f32>,
        halves: Vec<u16>,
        copied: bool,
    }

    impl Eighths {
        fn new(rows: usize, k: usize, copied: bool) -> Self {
            let eighths = |i: usize| ((i * 37 + i / 19 + rows * 11) % 23) as f32 / 8.0 - 1.375;
            let floats: Vec<f32> = (0..rows * k).map(eighths).collect();
            let halves = floats.iter().map(|x| (x.to_bits() >> 16) as u16).collect();
            Self { floats, halves, copied }
        }
    }

    impl Source for Eighths {
        fn floats(&self, at: usize, to: &mut [f32]) {
            to.copy_from_slice(&self.floats[at..][..to.len()]);
        }
        fn halves(&self, at: usize, to: &mut [u16]) {
            to.copy_from_slice(&self.halves[at..][..to.len()]);
        }
        fn in_place(&self, halves: bool, at: usize, len: usize) -> Option<*const u32> {
            let address = match halves {
                true => self.halves[at..][..len].as_ptr().cast(),
                false => self.floats[at..][..len].as_ptr().cast(),
            };
            (!self.copied).then_some(address)
        }
        fn prefetch(&self, _: usize, _: usize) {}
    }

    #[test]
    fn every_kernel_multiplies_any_shape() {
        for kernel in kernels() {
            for (m, k) in [(1, 1), (3, 16), (21, 100), (16, 1024), (19, 2075), (70, 1040)] {
                for n in (1..=kernel.most).filter(|n| *n < 20 || n % 7 == 1) {
                    for copied in [false, true] {
                        let (a, b) = (Eighths::new(m, k, copied), Eighths::new(n, k, copied));
                        let operand = |source, outer| Operand { source, outer, k, k_major: false };
                        let mut got = zeros::<f32>(m * n);
                        kernel.dot_products([&operand(&a, m), &operand(&b, n)], |j, i, part| {
                            let to = &mut got[j * m + i..][..part.len()];
                            to.iter_mut().zip(part).for_each(|(to, part)| *to += part);
                        });
                        for (at, got) in got.into_iter().enumerate() {
                            let (j, i) = (at / m, at % m);
                            let terms = a.floats[i * k..][..k].iter().zip(&b.floats[j * k..]);
                            let want = terms.fold(0.0, |sum, (x, y)| sum + x * y);
                            assert_eq!(got, want, "{m}x{n}x{k}: element {j}, {i}");
                        }
                    }
                }
            }
        }
    }
}
