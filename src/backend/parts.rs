//! How a product is divided whose operands have no room in the workspace as matrices of 16 bits: sums of a
//! part of D in float32 stay there, while parts of the operands come and go along k.

/// Sides of D's parts. Those of 2048 are 128 tiles of 128 x 256, one for nearly each multiprocessor of an
/// H100, and need 16 MiB; then 32 MiB, the usual workspace, have room for operands of 2048 along k.
const SIDES: [usize; 6] = [2048, 1024, 512, 256, 128, 64];
/// Parts of m and n are multiples of this, and parts of k of twice as much: whole blocks and vectors.
const UNIT: usize = 64;
/// Less of k than this for each part, and the sums in float32 would take as long as the products.
const DEPTH: usize = 512;
/// Parts begin at multiples of this many bytes.
const ALIGNMENT: usize = 256;

/// Most rows, columns and elements along k of the parts of a product.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PartSizes {
    pub m: usize,
    pub n: usize,
    pub k: usize,
}

impl PartSizes {
    /// The sizes for `bytes` of workspace, for a product none of whose sizes is 0; none if it is too small.
    pub fn new((m, n, k): (usize, usize, usize), bytes: usize) -> Option<Self> {
        SIDES.iter().find_map(|&side| {
            let last = side == UNIT;
            let (longest, least) = if last { (side, 2 * UNIT) } else { (8 * side, DEPTH) };
            // A product of few rows or columns has more of the others.
            let most = |other: usize| (side * side / other.min(side)).min(longest) / UNIT * UNIT;
            let (m, n) = (even(m, most(n), UNIT), even(n, most(m), UNIT));
            // Each of the three matrices may be padded.
            let rest = bytes.checked_sub(4 * m * n + 3 * ALIGNMENT)?;
            let depth = rest / (2 * (m + n));
            let depth = if depth < k { depth / (2 * UNIT) * (2 * UNIT) } else { k };
            (depth >= k.min(least)).then(|| Self { m, n, k: even(k, depth, 2 * UNIT) })
        })
    }

    /// Bytes of the sums, and of the parts of A and of B.
    pub fn bytes(&self) -> [usize; 3] {
        [4 * self.m * self.n, 2 * self.m * self.k, 2 * self.n * self.k]
            .map(|bytes| bytes.next_multiple_of(ALIGNMENT))
    }
}

/// Length of the parts of at most `most` that `size` is divided into: about the same, in multiples of `unit`,
/// which `most` is if it is less than `size`.
fn even(size: usize, most: usize, unit: usize) -> usize {
    let count = size.div_ceil(most);
    size.div_ceil(count).next_multiple_of(unit).min(size)
}

/// Where the parts of `size` begin, and their lengths.
pub fn parts(size: usize, length: usize) -> impl Iterator<Item = (usize, usize)> {
    (0..size).step_by(length).map(move |start| (start, length.min(size - start)))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Parts fit, begin at whole blocks and cover the product.
    #[test]
    fn parts_fit() {
        let sizes = [1, 7, 64, 130, 2047, 2048, 2176, 8192, 28672, 300_000];
        for bytes in [60 << 10, 1 << 20, 4 << 20, 32 << 20, (32 << 20) + 1024, 1 << 30] {
            for m in sizes {
                for n in sizes {
                    for k in [1, 16, 130, 2048, 14336, 300_000] {
                        let text = format!("{m} x {n} x {k} in {bytes}");
                        let size =
                            PartSizes::new((m, n, k), bytes).unwrap_or_else(|| panic!("{text}"));
                        assert!(size.bytes().iter().sum::<usize>() <= bytes, "{text}: {size:?}");
                        for (whole, part, unit) in
                            [(m, size.m, 64), (n, size.n, 64), (k, size.k, 128)]
                        {
                            assert!(part > 0 && part <= whole, "{text}: {size:?}");
                            assert!(part == whole || part % unit == 0, "{text}: {size:?}");
                            let lengths: Vec<_> = parts(whole, part).collect();
                            assert_eq!(lengths.iter().map(|part| part.1).sum::<usize>(), whole);
                            assert!(lengths.windows(2).all(|two| two[0].0 + two[0].1 == two[1].0));
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn usual_sizes() {
        let workspace = (32 << 20) + 1024;
        let large = PartSizes::new((8192, 8192, 8192), workspace);
        assert_eq!(large, Some(PartSizes { m: 2048, n: 2048, k: 2048 }));
        // Few rows: more columns.
        let narrow = PartSizes::new((28672, 16, 8192), workspace);
        assert_eq!(narrow, Some(PartSizes { m: 14336, n: 16, k: 1024 }));
        assert_eq!(PartSizes::new((64, 64, 128), 40 << 10), None);
    }
}
