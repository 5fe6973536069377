//! Products of operands that are narrower than float32. Panels of both are copied into the order in which a kernel
//! reads them, and become what it multiplies on the way: float32, or, where the machine multiplies pairs of BF16 and
//! BF16 holds every element of both, such pairs along k. So operands of 8 bits cost what those of 16 bits cost.
//!
//! A is packed once, some columns of D at a time; each task packs the rows of B that it needs. One task computes an
//! element of the product, along k in an order that depends on the kernel alone: the number of threads changes no bit.
#![allow(unsafe_code)]

use crate::backend::buf::Buf;
use crate::backend::cpu::{Vectors, vectorized, vectors};
use crate::backend::memory::{resize, room, zeros};
use crate::backend::pool::{parallel, threads};
use std::ops::Range;
#[cfg(target_arch = "x86_64")]
use std::sync::OnceLock;

/// Steps of a kernel along k for which both operands are packed at a time. A step takes one unit of each row: a
/// float32, or a pair of BF16.
const PANEL: usize = 1024;
/// Steps that are summed up in registers, twice as many of pairs: machines that multiply those fast have the larger
/// level 1 cache in which the packed rows of B then stay.
const DEPTH: usize = 256;
/// Columns and rows of D that a task computes, multiples of those of every kernel: the packed rows of A that they need stay in a level 2 cache.
const BLOCK: (usize, usize) = (128, 120);
/// Units from a packed row of B to the next one: not a power of two, so that rows do not fall on one another in a
/// cache.
const PITCH: usize = PANEL + 16;
/// Units of a row of A that are packed at a time.
const LINE: usize = 256;
/// Rows of B that are packed at a time if they do not lie along k.
const LINES: usize = 48;
/// Blocks of columns of D for which A is packed at a time, at least: so little memory that the allocator keeps it, and
/// its pages need not be cleared anew.
const SLAB: usize = 8;
/// Tasks for each of several threads, at least.
const PARTS: usize = 4;
/// Units that a task packs, and products that it sums, at least.
const TASK: (usize, usize) = (1 << 14, 1 << 19);

/// A line of a cache: vectors that start where one starts lie in one.
#[repr(align(64))]
#[derive(Clone, Default)]
pub(super) struct Line(#[allow(dead_code)] [u32; 16]);

/// The units in lines.
pub(super) fn units(lines: &mut [Line]) -> &mut [u32] {
    // SAFETY: a line is 16 units and nothing more.
    unsafe { std::slice::from_raw_parts_mut(lines.as_mut_ptr().cast(), 16 * lines.len()) }
}

/// Where the elements of an operand come from, in the order in which they lie in memory.
pub(super) trait Source: Sync {
    /// Elements from number `at` on as float32.
    fn floats(&self, at: usize, to: &mut [f32]);
    /// Elements from number `at` on as the bits of BF16, which holds them.
    fn halves(&self, at: usize, to: &mut [u16]);
    /// The address of `len` elements from number `at` on, if they are BF16 (`halves`) or float32.
    fn in_place(&self, halves: bool, at: usize, len: usize) -> Option<*const u32>;
    /// Asks for elements that are used soon; the range may pass the end.
    fn prefetch(&self, at: usize, len: usize);
}

/// An operand `[outer, k]`, or `[k, outer]` if `k_major`.
pub(super) struct Operand<'a> {
    pub source: &'a dyn Source,
    pub outer: usize,
    pub k: usize,
    pub k_major: bool,
}

/// Factors of the sums over blocks of k.
pub(super) struct Blocks<'a> {
    /// Elements along k of a block: a divisor of the depth of a panel.
    pub depth: usize,
    /// Of each block of k, those of the columns of D, and those of the rows. Each block has room for whole tasks.
    pub columns: &'a [f32],
    pub rows: &'a [f32],
    /// Whether the sums are first multiplied by the factors of the rows.
    pub rows_first: bool,
}

impl Blocks<'_> {
    /// Places of the factors of a block, for so many columns or rows of D.
    pub fn places(columns: usize, rows: usize) -> (usize, usize) {
        (columns.next_multiple_of(BLOCK.0), rows.next_multiple_of(BLOCK.1))
    }

    /// The factors of a tile of D `[n, m]` at that row and column, in the block of k that has the element `k`.
    fn of_tile(
        &self,
        kernel: &Kernel,
        (m, n): (usize, usize),
        k: usize,
        (row, column): (usize, usize),
    ) -> Factors {
        let (number, places) = (k / self.depth, Self::places(m, n));
        let columns = &self.columns[number * places.0 + column..][..kernel.width];
        let rows = &self.rows[number * places.1 + row..][..kernel.rows];
        let (columns, rows) = (columns.as_ptr(), rows.as_ptr());
        Factors { columns, rows, rows_first: self.rows_first }
    }
}

/// Factors of the sums of a tile.
#[derive(Clone, Copy)]
struct Factors {
    columns: *const f32,
    rows: *const f32,
    rows_first: bool,
}

/// The innermost loop of a product.
pub(super) struct Kernel {
    /// Columns of D, which are rows of A.
    width: usize,
    /// Rows of D, which are rows of B.
    rows: usize,
    /// Whether a unit is a pair of BF16.
    pairs: bool,
    tile: Tile,
}

/// `tile(steps, a, b, sums, factors)` adds to `sums[rows][width]`, whose rows are those of a block, the products of
/// `a[steps][width]` and rows of B that are [`PITCH`] apart, by factors if there are any.
type Tile = unsafe fn(usize, *const u32, *const u32, *mut f32, Option<Factors>);

/// Lanes of vectors that a kernel is made of.
pub(super) trait Lanes {
    const COUNT: usize;
    type Sums: Copy;
    type Units: Copy;

    /// # Safety
    /// There are `COUNT` floats, and the machine has these vectors; so for each function.
    unsafe fn start(from: *const f32) -> Self::Sums;
    /// # Safety
    /// There are `COUNT` units.
    unsafe fn load(from: *const u32) -> Self::Units;
    /// # Safety
    /// There is a unit.
    unsafe fn splat(from: *const u32) -> Self::Units;
    /// # Safety
    /// As [`Self::start`].
    unsafe fn add(sums: Self::Sums, a: Self::Units, b: Self::Units) -> Self::Sums;
    /// # Safety
    /// There is room for `COUNT` floats.
    unsafe fn store(sums: Self::Sums, to: *mut f32);
    /// One number in all lanes.
    ///
    /// # Safety
    /// As [`Self::start`].
    unsafe fn all(x: f32) -> Self::Sums;
    /// `to + part * first * second`, rounded after the first factor and after the sum.
    ///
    /// # Safety
    /// As [`Self::start`].
    unsafe fn scaled(
        to: Self::Sums,
        part: Self::Sums,
        first: Self::Sums,
        second: Self::Sums,
    ) -> Self::Sums;
}

/// The kernel of two vectors of columns and `R` rows.
///
/// # Safety
/// As [`Tile`]; the machine has the vectors.
#[inline(always)]
unsafe fn tile<L: Lanes, const R: usize>(
    steps: usize,
    mut a: *const u32,
    mut b: *const u32,
    to: *mut f32,
    factors: Option<Factors>,
) {
    // SAFETY: the caller keeps to the `# Safety` section of this function.
    unsafe {
        let at = |r: usize, i: usize| to.add(r * BLOCK.0 + i * L::COUNT);
        let mut sums: [[L::Sums; 2]; R] = match factors {
            None => std::array::from_fn(|r| [L::start(at(r, 0)), L::start(at(r, 1))]),
            Some(_) => [[L::all(0.0); 2]; R],
        };
        for _ in 0..steps {
            let columns = [L::load(a), L::load(a.add(L::COUNT))];
            for (r, sums) in sums.iter_mut().enumerate() {
                let row = L::splat(b.add(r * PITCH));
                sums[0] = L::add(sums[0], columns[0], row);
                sums[1] = L::add(sums[1], columns[1], row);
            }
            (a, b) = (a.add(2 * L::COUNT), b.add(1));
        }
        if let Some(Factors { columns, rows, rows_first }) = factors {
            let columns = [L::start(columns), L::start(columns.add(L::COUNT))];
            for (r, sums) in sums.iter_mut().enumerate() {
                let row = L::all(*rows.add(r));
                for (i, (sums, &column)) in sums.iter_mut().zip(&columns).enumerate() {
                    let (first, second) = if rows_first { (row, column) } else { (column, row) };
                    *sums = L::scaled(L::start(at(r, i)), *sums, first, second);
                }
            }
        }
        for (r, sums) in sums.iter().enumerate() {
            L::store(sums[0], at(r, 0));
            L::store(sums[1], at(r, 1));
        }
    }
}

/// Vectors of any machine.
pub(super) struct Plain<const PAIRS: bool>;

impl<const PAIRS: bool> Lanes for Plain<PAIRS> {
    const COUNT: usize = 8;
    type Sums = [f32; 8];
    type Units = [u32; 8];

    #[inline(always)]
    unsafe fn start(from: *const f32) -> [f32; 8] {
        // SAFETY: the caller keeps to the `# Safety` section of the trait.
        unsafe { from.cast::<[f32; 8]>().read_unaligned() }
    }
    #[inline(always)]
    unsafe fn load(from: *const u32) -> [u32; 8] {
        // SAFETY: the caller keeps to the `# Safety` section of the trait.
        unsafe { from.cast::<[u32; 8]>().read_unaligned() }
    }
    #[inline(always)]
    unsafe fn splat(from: *const u32) -> [u32; 8] {
        // SAFETY: the caller keeps to the `# Safety` section of the trait.
        [unsafe { *from }; 8]
    }
    #[inline(always)]
    unsafe fn add(mut sums: [f32; 8], a: [u32; 8], b: [u32; 8]) -> [f32; 8] {
        let (low, high) =
            (|x: u32| f32::from_bits(x << 16), |x: u32| f32::from_bits(x & 0xFFFF_0000));
        for ((sum, a), b) in sums.iter_mut().zip(a).zip(b) {
            *sum = match PAIRS {
                true => (*sum + high(a) * high(b)) + low(a) * low(b),
                false => *sum + f32::from_bits(a) * f32::from_bits(b),
            };
        }
        sums
    }
    #[inline(always)]
    unsafe fn store(sums: [f32; 8], to: *mut f32) {
        // SAFETY: the caller keeps to the `# Safety` section of the trait.
        unsafe { to.cast::<[f32; 8]>().write_unaligned(sums) }
    }
    #[inline(always)]
    unsafe fn all(x: f32) -> [f32; 8] {
        [x; 8]
    }
    #[inline(always)]
    unsafe fn scaled(to: [f32; 8], part: [f32; 8], a: [f32; 8], b: [f32; 8]) -> [f32; 8] {
        std::array::from_fn(|i| (part[i] * a[i]).mul_add(b[i], to[i]))
    }
}

const PLAIN: Kernel = Kernel { width: 16, rows: 4, pairs: false, tile: tile::<Plain<false>, 4> };

#[cfg(target_arch = "x86_64")]
pub(super) mod x86 {
    use super::{Factors, Kernel, Lanes, tile};
    use std::arch::x86_64::*;
    use std::mem::transmute;

    pub struct Avx2;
    pub struct Avx512<const PAIRS: bool>;

    impl Lanes for Avx2 {
        const COUNT: usize = 8;
        type Sums = __m256;
        type Units = __m256;

        #[inline(always)]
        unsafe fn start(from: *const f32) -> __m256 {
            // SAFETY: the caller keeps to the `# Safety` section of the trait.
            unsafe { _mm256_loadu_ps(from) }
        }
        #[inline(always)]
        unsafe fn load(from: *const u32) -> __m256 {
            // SAFETY: the caller keeps to the `# Safety` section of the trait.
            unsafe { _mm256_loadu_ps(from.cast()) }
        }
        #[inline(always)]
        unsafe fn splat(from: *const u32) -> __m256 {
            // SAFETY: the caller keeps to the `# Safety` section of the trait.
            unsafe { _mm256_set1_ps(*from.cast()) }
        }
        #[inline(always)]
        unsafe fn add(sums: __m256, a: __m256, b: __m256) -> __m256 {
            // SAFETY: the caller keeps to the `# Safety` section of the trait.
            unsafe { _mm256_fmadd_ps(a, b, sums) }
        }
        #[inline(always)]
        unsafe fn store(sums: __m256, to: *mut f32) {
            // SAFETY: the caller keeps to the `# Safety` section of the trait.
            unsafe { _mm256_storeu_ps(to, sums) }
        }
        #[inline(always)]
        unsafe fn all(x: f32) -> __m256 {
            // SAFETY: the caller keeps to the `# Safety` section of the trait.
            unsafe { _mm256_set1_ps(x) }
        }
        #[inline(always)]
        unsafe fn scaled(to: __m256, part: __m256, first: __m256, second: __m256) -> __m256 {
            // SAFETY: the caller keeps to the `# Safety` section of the trait.
            unsafe { _mm256_fmadd_ps(_mm256_mul_ps(part, first), second, to) }
        }
    }

    impl<const PAIRS: bool> Lanes for Avx512<PAIRS> {
        const COUNT: usize = 16;
        type Sums = __m512;
        type Units = __m512;

        #[inline(always)]
        unsafe fn start(from: *const f32) -> __m512 {
            // SAFETY: the caller keeps to the `# Safety` section of the trait.
            unsafe { _mm512_loadu_ps(from) }
        }
        #[inline(always)]
        unsafe fn load(from: *const u32) -> __m512 {
            // SAFETY: the caller keeps to the `# Safety` section of the trait.
            unsafe { _mm512_loadu_ps(from.cast()) }
        }
        #[inline(always)]
        unsafe fn splat(from: *const u32) -> __m512 {
            // SAFETY: the caller keeps to the `# Safety` section of the trait.
            unsafe { _mm512_set1_ps(*from.cast()) }
        }
        #[inline(always)]
        unsafe fn add(sums: __m512, a: __m512, b: __m512) -> __m512 {
            // SAFETY: the caller keeps to the `# Safety` section of the trait. Both types of units are 64 bytes.
            unsafe {
                let pairs = |x| transmute::<__m512, __m512bh>(x);
                match PAIRS {
                    true => _mm512_dpbf16_ps(sums, pairs(a), pairs(b)),
                    false => _mm512_fmadd_ps(a, b, sums),
                }
            }
        }
        #[inline(always)]
        unsafe fn store(sums: __m512, to: *mut f32) {
            // SAFETY: the caller keeps to the `# Safety` section of the trait.
            unsafe { _mm512_storeu_ps(to, sums) }
        }
        #[inline(always)]
        unsafe fn all(x: f32) -> __m512 {
            // SAFETY: the caller keeps to the `# Safety` section of the trait.
            unsafe { _mm512_set1_ps(x) }
        }
        #[inline(always)]
        unsafe fn scaled(to: __m512, part: __m512, first: __m512, second: __m512) -> __m512 {
            // SAFETY: the caller keeps to the `# Safety` section of the trait.
            unsafe { _mm512_fmadd_ps(_mm512_mul_ps(part, first), second, to) }
        }
    }

    macro_rules! kernels {
        ($($name:ident = $run:ident, $features:literal, $lanes:ty, $rows:literal, $pairs:literal;)+) => {$(
            #[target_feature(enable = $features)]
            unsafe fn $run(
                steps: usize,
                a: *const u32,
                b: *const u32,
                to: *mut f32,
                factors: Option<Factors>,
            ) {
                // SAFETY: whoever calls a kernel keeps to the promises of its type.
                unsafe { tile::<$lanes, $rows>(steps, a, b, to, factors) }
            }
            pub const $name: Kernel =
                Kernel { width: 2 * <$lanes>::COUNT, rows: $rows, pairs: $pairs, tile: $run };
        )+};
    }

    // 16 or 32 registers hold the sums, two vectors of A and an element of B.
    kernels! {
        AVX2 = avx2, "avx2,fma", Avx2, 6, false;
        AVX512 = avx512, "avx512f", Avx512<false>, 12, false;
        AVX512_PAIRS = avx512_pairs, "avx512f,avx512bf16", Avx512<true>, 12, true;
    }

    /// `to[c][r] = from[r][c]` of 8 rows and columns.
    ///
    /// # Safety
    /// The elements are there, rows of `from` and of `to` being so far apart; the machine has AVX2.
    #[target_feature(enable = "avx2")]
    pub unsafe fn transpose8(from: *const u32, from_pitch: usize, to: *mut u32, to_pitch: usize) {
        // SAFETY: the caller keeps to the `# Safety` section of this function.
        let rows: [__m256; 8] =
            std::array::from_fn(|r| unsafe { _mm256_loadu_ps(from.add(r * from_pitch).cast()) });
        let pairs: [__m256; 8] = std::array::from_fn(|i| {
            let (a, b) = (rows[i / 2 * 2], rows[i / 2 * 2 + 1]);
            if i % 2 == 0 { _mm256_unpacklo_ps(a, b) } else { _mm256_unpackhi_ps(a, b) }
        });
        let fours: [__m256; 8] = std::array::from_fn(|i| {
            let (a, b) = (pairs[i / 4 * 4 + i % 4 / 2], pairs[i / 4 * 4 + i % 4 / 2 + 2]);
            if i % 2 == 0 {
                _mm256_shuffle_ps::<0x44>(a, b)
            } else {
                _mm256_shuffle_ps::<0xEE>(a, b)
            }
        });
        for c in 0..4 {
            let (a, b) = (fours[c], fours[c + 4]);
            // SAFETY: the caller keeps to the `# Safety` section of this function.
            unsafe {
                let (near, far) = (to.add(c * to_pitch), to.add((c + 4) * to_pitch));
                _mm256_storeu_ps(near.cast(), _mm256_permute2f128_ps::<0x20>(a, b));
                _mm256_storeu_ps(far.cast(), _mm256_permute2f128_ps::<0x31>(a, b));
            }
        }
    }
}

/// Whether pairs of BF16 are multiplied at twice the speed of float32. Intel's processors take two cycles for what AMD's
/// do in one, so that float32 is faster there.
#[cfg(target_arch = "x86_64")]
pub(super) fn pairs_are_fast() -> bool {
    static FAST: OnceLock<bool> = OnceLock::new();
    *FAST.get_or_init(|| {
        let vendor = std::arch::x86_64::__cpuid(0);
        let intel = [vendor.ebx, vendor.edx, vendor.ecx].map(u32::to_le_bytes).as_flattened()
            == b"GenuineIntel";
        is_x86_feature_detected!("avx512bf16") && !intel
    })
}

/// The kernel of a module for this machine; `halves`: BF16 holds the elements of both operands.
macro_rules! kernel_for {
    ($halves:ident) => {
        match vectors() {
            #[cfg(target_arch = "x86_64")]
            Vectors::Avx512 if $halves && super::cpu_packed::pairs_are_fast() => &x86::AVX512_PAIRS,
            #[cfg(target_arch = "x86_64")]
            Vectors::Avx512 => &x86::AVX512,
            #[cfg(target_arch = "x86_64")]
            Vectors::Avx2 => &x86::AVX2,
            Vectors::Baseline => {
                let _ = $halves;
                &PLAIN
            }
        }
    };
}
pub(super) use kernel_for;

/// The kernel for this machine; `halves`: BF16 holds the elements of both operands.
pub(super) fn kernel(halves: bool) -> &'static Kernel {
    kernel_for!(halves)
}

/// `to[c][r] = from[r][c]`; rows of `from` and of `to` are so far apart. Asks for the rows of `from` that follow.
///
/// # Safety
/// The elements are there, and nobody else uses those of `to`.
unsafe fn transpose(
    from: *const u32,
    from_pitch: usize,
    (rows, cols): (usize, usize),
    to: *mut u32,
    to_pitch: usize,
) {
    let one_by_one = |rows: std::ops::Range<usize>, cols: std::ops::Range<usize>| {
        for r in rows {
            for c in cols.clone() {
                // SAFETY: the caller keeps to the `# Safety` section of this function.
                unsafe { *to.add(c * to_pitch + r) = *from.add(r * from_pitch + c) };
            }
        }
    };
    #[cfg(target_arch = "x86_64")]
    if vectors() != Vectors::Baseline {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        let (whole_rows, whole_cols) = (rows / 8 * 8, cols / 8 * 8);
        for r in (0..whole_rows).step_by(8) {
            for c in (0..whole_cols).step_by(8) {
                // SAFETY: the caller keeps to the `# Safety` section of this function; the machine has AVX2.
                unsafe {
                    let (from, to) = (from.add(r * from_pitch + c), to.add(c * to_pitch + r));
                    if c % 16 == 0 {
                        for next in 8..16 {
                            let address = from.wrapping_add(next * from_pitch);
                            _mm_prefetch::<_MM_HINT_T0>(address.cast());
                        }
                    }
                    x86::transpose8(from, from_pitch, to, to_pitch);
                }
            }
        }
        one_by_one(0..whole_rows, whole_cols..cols);
        return one_by_one(whole_rows..rows, 0..cols);
    }
    one_by_one(0..rows, 0..cols);
}

vectorized! {
    /// Pairs of elements of two rows; no elements for zeros.
    fn paired(low: &[u16], high: &[u16], to: &mut [u32]) {
        for ((&low, &high), to) in low.iter().zip(high).zip(to) {
            *to = u32::from(low) | u32::from(high) << 16;
        }
    }
}

impl Operand<'_> {
    /// Units of `depth` elements of a row from depth `start` on; zeros for what is missing in the last ones.
    pub(super) fn along(
        &self,
        pairs: bool,
        row: usize,
        start: usize,
        depth: usize,
        to: &mut [u32],
    ) {
        let at = row * self.k + start;
        let (len, memory) = (to.len(), to.as_mut_ptr());
        if pairs {
            // SAFETY: a unit is two halves, and any bits are a value of either.
            let halves = unsafe { std::slice::from_raw_parts_mut(memory.cast::<u16>(), 2 * len) };
            let (there, missing) = halves.split_at_mut(depth);
            self.source.halves(at, there);
            missing.fill(0);
        } else {
            // SAFETY: a unit is a float, and any bits are a value of either.
            let floats = unsafe { std::slice::from_raw_parts_mut(memory.cast::<f32>(), len) };
            let (there, missing) = floats.split_at_mut(depth);
            self.source.floats(at, there);
            missing.fill(0.0);
        }
    }

    /// Units of rows from `row` on at the depth `k` of a matrix `[k, outer]`.
    fn across(&self, pairs: bool, row: usize, k: usize, to: &mut [u32], halves: &mut Vec<u16>) {
        let at = k * self.outer + row;
        if !pairs {
            // SAFETY: a unit is a float, and any bits are a value of either.
            let floats =
                unsafe { std::slice::from_raw_parts_mut(to.as_mut_ptr().cast::<f32>(), to.len()) };
            return self.source.floats(at, floats);
        }
        resize(halves, 2 * to.len());
        let (low, high) = halves[..2 * to.len()].split_at_mut(to.len());
        self.source.halves(at, low);
        match k + 1 < self.k {
            true => self.source.halves(at + self.outer, high),
            false => high.fill(0),
        }
        paired(low, high, to);
    }
}

/// Scratch of a thread that packs.
#[derive(Default)]
struct Packing {
    lines: Vec<u32>,
    halves: Vec<u16>,
}

/// Scratch of a thread that sums.
#[derive(Default)]
struct Summing {
    /// Packed rows of B.
    rows: Vec<Line>,
    packing: Packing,
    /// Sums of the block of D.
    block: Vec<f32>,
    more: Vec<f32>,
}

impl Kernel {
    /// Elements along k in a unit.
    fn unit(&self) -> usize {
        if self.pairs { 2 } else { 1 }
    }

    /// The address of the units of as many rows as a tile has, from `row` and `start` on, if they lie in memory in the
    /// form that the kernel multiplies.
    fn in_place(&self, a: &Operand, row: usize, start: usize, depth: usize) -> Option<*const u32> {
        if !a.k.is_multiple_of(self.unit()) || !depth.is_multiple_of(self.unit()) {
            return None;
        }
        let len = (self.width - 1) * a.k + depth;
        let from = a.source.in_place(self.pairs, row * a.k + start, len)?;
        from.is_aligned().then_some(from)
    }

    /// Packs A from depth `start` on: for `width` rows each, `[steps][width]`.
    ///
    /// # Safety
    /// `to` has room for that, and nobody else uses it.
    unsafe fn pack_columns(
        &self,
        a: &Operand,
        columns: Range<usize>,
        (start, depth): (usize, usize),
        to: Buf<u32>,
    ) {
        let (width, steps) = (self.width, depth.div_ceil(self.unit()));
        let pack = |scratch: &mut Packing, part: usize| {
            let first = columns.start + part * width;
            let rows = width.min(columns.end - first);
            // SAFETY: each task has its own part.
            let to = unsafe { to.slice_mut(part * steps * width, steps * width) };
            let Packing { lines, halves } = scratch;
            if a.k_major {
                for (step, to) in to.chunks_exact_mut(width).enumerate() {
                    let (there, missing) = to.split_at_mut(rows);
                    a.across(self.pairs, first, start + step * self.unit(), there, halves);
                    missing.fill(0);
                }
                return 0;
            }
            resize(lines, width * LINE);
            // Rows that are not there keep zeros, or what is not used.
            for (i, to) in to.chunks_mut(LINE * width).enumerate() {
                let (at, steps) = (i * LINE * self.unit(), to.len() / width);
                let depth = (steps * self.unit()).min(depth - at);
                let in_place = match rows == width {
                    true => self.in_place(a, first, start + at, depth),
                    false => None,
                };
                let (from, pitch) = match in_place {
                    Some(from) => (from, a.k / self.unit()),
                    None => {
                        for (row, line) in lines.chunks_exact_mut(LINE).take(rows).enumerate() {
                            a.along(self.pairs, first + row, start + at, depth, &mut line[..steps]);
                        }
                        (lines.as_ptr(), LINE)
                    }
                };
                // SAFETY: the operand, or the lines, and the part have these elements.
                unsafe { transpose(from, pitch, (width, steps), to.as_mut_ptr(), width) };
            }
            0
        };
        let least = TASK.0.div_ceil((width * steps).max(1));
        parallel(columns.len().div_ceil(width))
            .with_min_len(least)
            .max_init(Packing::default, pack);
    }

    /// Packs rows of B from depth `start` on, which are [`PITCH`] apart then, as many as make whole tiles.
    fn pack_rows(
        &self,
        b: &Operand,
        (row, count): (usize, usize),
        (start, depth): (usize, usize),
        to: &mut [u32],
        scratch: &mut Packing,
    ) {
        let steps = depth.div_ceil(self.unit());
        let missing = count..count.next_multiple_of(self.rows);
        missing.for_each(|r| to[r * PITCH..][..steps].fill(0));
        if !b.k_major {
            for r in 0..count {
                if r + 1 < count {
                    b.source.prefetch((row + r + 1) * b.k + start, depth);
                }
                b.along(self.pairs, row + r, start, depth, &mut to[r * PITCH..][..steps]);
            }
            return;
        }
        let Packing { lines, halves } = scratch;
        resize(lines, LINES * LINE);
        for first in (0..count).step_by(LINES) {
            let count = LINES.min(count - first);
            for at in (0..steps).step_by(LINE) {
                let steps = LINE.min(steps - at);
                for (step, units) in lines.chunks_exact_mut(LINES).take(steps).enumerate() {
                    let k = start + (at + step) * self.unit();
                    b.across(self.pairs, row + first, k, &mut units[..count], halves);
                }
                let to = &mut to[first * PITCH + at..][..(count - 1) * PITCH + steps];
                // SAFETY: the lines and the rows have these units.
                unsafe {
                    transpose(lines.as_ptr(), LINES, (steps, count), to.as_mut_ptr(), PITCH);
                }
            }
        }
    }

    /// Computes the product D `[n, m]` of A `[m, k]` and B `[n, k]`, and gives it to `finish(row, column, sums,
    /// scratch)`, a part of a row at a time, on several threads. Returns the largest of its results.
    pub(super) fn multiply(
        &self,
        [a, b]: [&Operand; 2],
        blocks: Option<&Blocks>,
        finish: impl Fn(usize, usize, &mut [f32], &mut Vec<f32>) -> u32 + Sync + Send,
    ) -> u32 {
        let (m, n, k) = (a.outer, b.outer, a.k);
        let panel = PANEL * self.unit();
        let steps_at_once = blocks.map_or(DEPTH * self.unit(), |blocks| blocks.depth / self.unit());
        let most = k.min(panel).div_ceil(self.unit());
        // Sums of the panels before.
        let mut partial = zeros::<f32>(if k > panel { m * n } else { 0 });
        // SAFETY: the vector lives longer than the buffer.
        let partial = unsafe { Buf::<f32>::new(partial.as_mut_ptr().cast(), partial.len()) };
        let (across, down) = (m.div_ceil(BLOCK.0), n.div_ceil(BLOCK.1));
        // Blocks of columns that are packed at a time, and the parts of them that tasks share.
        let threads = if m * n * k < 2 * TASK.1 { 1 } else { threads() };
        let parts = match threads {
            1 => 1,
            threads => (PARTS * threads).div_ceil(down.max(1)).min(across.max(1)),
        };
        let slab = SLAB.max(parts).min(across);
        let part = slab.div_ceil(parts).max(1);
        let parts = slab.div_ceil(part);
        // What is packed is written before it is read, so that nobody clears it.
        let length = (slab * BLOCK.0).min(m.next_multiple_of(self.width)) * most;
        let mut memory = room::<Line>(length.div_ceil(16));
        // SAFETY: the vector has that room, and lives longer than the buffer.
        let columns = unsafe { Buf::<u32>::new(memory.as_mut_ptr().cast(), length) };
        let mut largest = 0;
        let slabs = |start| (0..across).step_by(slab.max(1)).map(move |first| (start, first));
        for (start, first) in (0..k.max(1)).step_by(panel).flat_map(slabs) {
            let depth = panel.min(k - start);
            let steps = depth.div_ceil(self.unit());
            let blocks_here = first..across.min(first + slab);
            let end = m.min(blocks_here.end * BLOCK.0);
            // SAFETY: the memory has room for a panel of these columns.
            unsafe { self.pack_columns(a, first * BLOCK.0..end, (start, depth), columns) };
            let last = start + depth == k;
            let task = |scratch: &mut Summing, task: usize| {
                let row = task / parts * BLOCK.1;
                let height = BLOCK.1.min(n - row);
                let Summing { rows, packing, block, more } = scratch;
                let lines = height.next_multiple_of(self.rows) * PITCH / 16;
                if rows.capacity() < lines {
                    *rows = room(lines);
                }
                resize(block, BLOCK.0 * BLOCK.1);
                // SAFETY: the vector has that room. What is packed is written before it is read.
                let rows: &mut [u32] =
                    unsafe { std::slice::from_raw_parts_mut(rows.as_mut_ptr().cast(), 16 * lines) };
                self.pack_rows(b, (row, height), (start, depth), rows, packing);
                let mut most = 0;
                let blocks_of_task = blocks_here.clone().skip(task % parts * part).take(part);
                for column in blocks_of_task.map(|block| block * BLOCK.0) {
                    let width = BLOCK.0.min(m - column);
                    // SAFETY: each task has its own part of the sums.
                    let before =
                        |r: usize| unsafe { partial.slice_mut((row + r) * m + column, width) };
                    block.fill(0.0);
                    if start > 0 {
                        for (r, sums) in block.chunks_exact_mut(BLOCK.0).take(height).enumerate() {
                            sums[..width].copy_from_slice(before(r));
                        }
                    }
                    for at in (0..steps).step_by(steps_at_once) {
                        let count = steps_at_once.min(steps - at);
                        for r in (0..height).step_by(self.rows) {
                            for c in (0..width).step_by(self.width) {
                                let of_tile = |blocks: &Blocks| {
                                    let k = start + at * self.unit();
                                    blocks.of_tile(self, (m, n), k, (row + r, column + c))
                                };
                                let factors = blocks.map(of_tile);
                                let of_part = column - first * BLOCK.0 + c;
                                let of_a = of_part * steps + at * self.width;
                                // SAFETY: nobody writes to packed units now; the kernel is for this machine. A
                                // block has room for whole tiles, as have the factors.
                                unsafe {
                                    let a = columns.slice(of_a, count * self.width).as_ptr();
                                    let units = (self.rows - 1) * PITCH + count;
                                    let b = rows[r * PITCH + at..][..units].as_ptr();
                                    let sums = block[r * BLOCK.0 + c..].as_mut_ptr();
                                    (self.tile)(count, a, b, sums, factors);
                                }
                            }
                        }
                    }
                    for (r, sums) in block.chunks_exact_mut(BLOCK.0).take(height).enumerate() {
                        let sums = &mut sums[..width];
                        match last {
                            true => most = finish(row + r, column, sums, more).max(most),
                            false => before(r).copy_from_slice(sums),
                        }
                    }
                }
                most
            };
            let least = TASK.1.div_ceil((BLOCK.0 * BLOCK.1 * depth * part).max(1));
            let tasks = parallel(parts * down).with_min_len(least);
            largest = tasks.max_init(Summing::default, task).max(largest);
        }
        largest
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLAIN_PAIRS: Kernel =
        Kernel { width: 16, rows: 4, pairs: true, tile: tile::<Plain<true>, 4> };

    /// The kernels that this machine can run.
    fn kernels() -> Vec<&'static Kernel> {
        let mut all = vec![&PLAIN, &PLAIN_PAIRS];
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

    /// Small multiples of 1/8, whose products and sums are exact in float32 in any order.
    struct Eighths(Vec<i8>);

    impl Eighths {
        fn new(len: usize, seed: usize) -> Self {
            Self((0..len).map(|i| ((i * 37 + i / 19 + seed * 11) % 23) as i8 - 11).collect())
        }
    }

    impl Source for Eighths {
        fn floats(&self, at: usize, to: &mut [f32]) {
            to.iter_mut().zip(&self.0[at..]).for_each(|(to, &x)| *to = f32::from(x) / 8.0);
        }
        fn halves(&self, at: usize, to: &mut [u16]) {
            let bits = |x: i8| ((f32::from(x) / 8.0).to_bits() >> 16) as u16;
            to.iter_mut().zip(&self.0[at..]).for_each(|(to, &x)| *to = bits(x));
        }
        fn in_place(&self, _: bool, _: usize, _: usize) -> Option<*const u32> {
            None
        }
        fn prefetch(&self, _: usize, _: usize) {}
    }

    /// The same where they lie as they are multiplied.
    struct InPlace(Vec<u16>, Vec<f32>);

    impl InPlace {
        fn new(of: &Eighths) -> Self {
            let (mut halves, mut floats) = (zeros(of.0.len()), zeros(of.0.len()));
            of.halves(0, &mut halves);
            of.floats(0, &mut floats);
            Self(halves, floats)
        }
    }

    impl Source for InPlace {
        fn floats(&self, at: usize, to: &mut [f32]) {
            to.copy_from_slice(&self.1[at..][..to.len()]);
        }
        fn halves(&self, at: usize, to: &mut [u16]) {
            to.copy_from_slice(&self.0[at..][..to.len()]);
        }
        fn in_place(&self, halves: bool, at: usize, len: usize) -> Option<*const u32> {
            Some(match halves {
                true => self.0[at..][..len].as_ptr().cast(),
                false => self.1[at..][..len].as_ptr().cast(),
            })
        }
        fn prefetch(&self, _: usize, _: usize) {}
    }

    fn check(kernel: &Kernel, (m, n, k): (usize, usize, usize), majors: [bool; 2], depth: usize) {
        let (a, b) = (Eighths::new(m * k, 1), Eighths::new(n * k, 2));
        // A block counts as often as its number says, and without blocks each counts once.
        let places = Blocks::places(m, n);
        let factors = |places: usize, first: usize| -> Vec<f32> {
            let of_block = |block| std::iter::repeat_n((first + block) as f32, places);
            (0..k.div_ceil(depth.max(1))).flat_map(of_block).collect()
        };
        let (columns, rows) = (factors(places.0, 1), vec![1.0; places.1 * k]);
        let blocks = Blocks { depth, columns: &columns, rows: &rows, rows_first: n % 2 == 0 };
        let held = [&a, &b].map(InPlace::new);
        let sources: [[&dyn Source; 2]; 2] = [[&a, &b], [&held[0], &held[1]]];
        for [a_source, b_source] in sources {
            let operand = |source, outer, k_major| Operand { source, outer, k, k_major };
            let operands = [&operand(a_source, m, majors[0]), &operand(b_source, n, majors[1])];
            check_product(kernel, operands, &blocks, [&a, &b]);
        }
    }

    fn check_product(
        kernel: &Kernel,
        operands @ [a, b]: [&Operand; 2],
        blocks: &Blocks,
        values: [&Eighths; 2],
    ) {
        let (m, n, k, depth) = (a.outer, b.outer, a.k, blocks.depth);
        let majors = [a.k_major, b.k_major];
        let seen = zeros::<f32>(m * n);
        // SAFETY: the vector lives longer than the buffer.
        let sums = unsafe { Buf::<f32>::new(seen.as_ptr().cast(), seen.len()) };
        let most = kernel.multiply(operands, (depth > 0).then_some(blocks), |j, i, part, _| {
            // SAFETY: each part of the product is given once.
            let to = unsafe { sums.slice_mut(j * m + i, part.len()) };
            to.iter_mut().zip(part).for_each(|(to, part)| *to += 1.0 + *part);
            (j * m + i) as u32
        });
        assert!(most as usize >= (n - 1) * m, "a part of the last row has been given");
        let at = |x: &Eighths, major: bool, outer: usize, r: usize, c: usize| {
            i64::from(x.0[if major { c * outer + r } else { r * k + c }])
        };
        for j in 0..n {
            for i in 0..m {
                let term = |c: usize| {
                    let times = c.checked_div(depth).map_or(1, |block| block + 1);
                    times as i64
                        * at(values[0], majors[0], m, i, c)
                        * at(values[1], majors[1], n, j, c)
                };
                let want = (0..k).map(term).sum::<i64>() as f32 / 64.0 + 1.0;
                let (rows, pairs) = (kernel.rows, kernel.pairs);
                let what = (m, n, k, majors, depth, rows, pairs);
                assert_eq!(seen[j * m + i], want, "{what:?} at {j}, {i}");
            }
        }
    }

    #[test]
    fn every_kernel_multiplies_any_shape() {
        let shapes =
            [(1, 1, 1), (17, 5, 3), (33, 13, 0), (40, 26, 300), (131, 123, 67), (9, 50, 2061)];
        for kernel in kernels() {
            for shape in shapes {
                for majors in [[false, false], [true, false], [false, true], [true, true]] {
                    check(kernel, shape, majors, 0);
                }
            }
            check(kernel, (40, 30, 300), [false, false], 128);
            check(kernel, (9, 14, 2090), [false, false], 128);
        }
    }
}
