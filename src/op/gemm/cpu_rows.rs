//! Products of few rows, as decoding has them: reading A takes the time, so that each element of it is read once,
//! widened in the cache and multiplied by all rows of B.
#![allow(unsafe_code)]

use crate::backend::cpu::vectorized;
use crate::backend::memory::{resize, zeros};
use crate::backend::pool::chunks_mut;

/// Most rows of B.
pub(super) const ROWS: usize = 16;
/// Rows of A that a task multiplies.
const TASK: usize = 16;
/// Elements along k that are widened at a time.
const DEPTH: usize = 512;
/// Partial sums of a dot product: element `k` goes to sum `k % LANES`.
const LANES: usize = 8;
/// Rows of A and of B whose dot products are computed together.
const TILE: (usize, usize) = (2, 4);

/// Dot products of two rows with four others.
type Dots = [[f32; 4]; 2];

/// Where the elements of an operand `[rows, k]` come from.
pub(super) trait Source: Sync {
    /// Elements of a row from column `k` on, as float32.
    fn read(&self, row: usize, k: usize, to: &mut [f32]);
}

/// `sums[i, j] = a[i] . b[j]` for the m rows of A and the n rows of B, n at most [`ROWS`].
pub(super) fn dot_products(
    (m, n, k): (usize, usize, usize),
    a: &impl Source,
    b: &impl Source,
) -> Vec<f32> {
    let mut rows_of_b = zeros::<f32>(n * k);
    for (row, to) in rows_of_b.chunks_exact_mut(k).enumerate() {
        b.read(row, 0, to);
    }
    let mut sums = zeros::<f32>(m * n);
    let task = |copy: &mut Vec<f32>, (task, sums): (usize, &mut [f32])| {
        resize(copy, TILE.0 * DEPTH);
        let first = task * TASK;
        for (pair, sums) in sums.chunks_mut(TILE.0 * n).enumerate() {
            let rows = sums.len() / n;
            for at in (0..k).step_by(DEPTH) {
                let depth = DEPTH.min(k - at);
                for (row, to) in copy.chunks_exact_mut(DEPTH).take(rows).enumerate() {
                    a.read(first + pair * TILE.0 + row, at, &mut to[..depth]);
                }
                // A last row that stands alone is multiplied twice.
                let (one, other) = copy.split_at(DEPTH);
                let other = if rows == TILE.0 { other } else { one };
                for j in (0..n).step_by(TILE.1) {
                    let row = |i: usize| &rows_of_b[(j + i).min(n - 1) * k + at..][..depth];
                    let b = [row(0), row(1), row(2), row(3)];
                    let dots = tile(&one[..depth], &other[..depth], b);
                    let (rows, columns) = (sums.chunks_exact_mut(n), TILE.1.min(n - j));
                    for (sums, dots) in rows.zip(&dots) {
                        for (sum, dot) in sums[j..][..columns].iter_mut().zip(dots) {
                            *sum += dot;
                        }
                    }
                }
            }
        }
        0
    };
    chunks_mut(&mut sums, TASK * n).max_init(Vec::new, task);
    sums
}

vectorized! {
    /// Dot products of two rows with four.
    fn tile(one: &[f32], other: &[f32], b: [&[f32]; 4]) -> Dots {
        let mut sums = [[[0.0f32; LANES]; 4]; 2];
        let whole = one.len() / LANES * LANES;
        for at in (0..whole).step_by(LANES) {
            let (x, y) = (&one[at..][..LANES], &other[at..][..LANES]);
            for j in 0..4 {
                let z = &b[j][at..][..LANES];
                for l in 0..LANES {
                    sums[0][j][l] = x[l].mul_add(z[l], sums[0][j][l]);
                    sums[1][j][l] = y[l].mul_add(z[l], sums[1][j][l]);
                }
            }
        }
        for at in whole..one.len() {
            for j in 0..4 {
                let (z, l) = (b[j][at], at - whole);
                sums[0][j][l] = one[at].mul_add(z, sums[0][j][l]);
                sums[1][j][l] = other[at].mul_add(z, sums[1][j][l]);
            }
        }
        sums.map(|row| row.map(|lanes| {
            let pairs = [0, 1, 2, 3].map(|l| lanes[l] + lanes[l + 4]);
            (pairs[0] + pairs[2]) + (pairs[1] + pairs[3])
        }))
    }
}
