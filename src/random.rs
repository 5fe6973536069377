//! Random numbers that follow from a key and a counter.

use std::array::from_fn;

/// Philox4x32-10 (Salmon et al., Parallel Random Numbers: As Easy as 1, 2, 3; 2011).
pub(crate) fn philox(key: u64, low: u64, high: u64) -> [u32; 4] {
    philox_of::<10>(key, low, high)
}

/// The same of other rounds; from seven on it passes the tests of its authors.
pub(crate) fn philox_of<const ROUNDS: usize>(key: u64, low: u64, high: u64) -> [u32; 4] {
    draws::<ROUNDS, 1>(key, low, high).map(|[word]| word)
}

/// The words of counters whose upper half is `high` and what follows.
#[inline(always)]
pub(crate) fn draws<const ROUNDS: usize, const COUNT: usize>(
    key: u64,
    low: u64,
    high: u64,
) -> [[u32; COUNT]; 4] {
    let mut key = [key as u32, (key >> 32) as u32];
    let highs: [u64; COUNT] = from_fn(|i| high.wrapping_add(i as u64));
    let mut c = [
        [low as u32; COUNT],
        [(low >> 32) as u32; COUNT],
        highs.map(|high| high as u32),
        highs.map(|high| (high >> 32) as u32),
    ];
    for _ in 0..ROUNDS {
        let [w, x, y, z] = &mut c;
        for (((w, x), y), z) in w.iter_mut().zip(x).zip(y).zip(z) {
            let [a, b] = [(0xD251_1F53, *w), (0xCD9E_8D57, *y)]
                .map(|(factor, word): (u32, u32)| u64::from(factor) * u64::from(word));
            *w = (b >> 32) as u32 ^ *x ^ key[0];
            *x = b as u32;
            *y = (a >> 32) as u32 ^ *z ^ key[1];
            *z = a as u32;
        }
        key = [key[0].wrapping_add(0x9E37_79B9), key[1].wrapping_add(0xBB67_AE85)];
    }
    c
}

#[cfg(test)]
mod tests {
    /// The known answers that the authors publish with Random123.
    #[test]
    fn philox_gives_the_published_words() {
        let philox = |low, high, key| super::philox(key, low, high);
        assert_eq!(philox(0, 0, 0), [0x6627_E8D5, 0xE169_C58D, 0xBC57_AC4C, 0x9B00_DBD8]);
        assert_eq!(
            philox(u64::MAX, u64::MAX, u64::MAX),
            [0x408F_276D, 0x41C8_3B0E, 0xA20B_C7C6, 0x6D54_51FD]
        );
        assert_eq!(
            philox(0x85A3_08D3_243F_6A88, 0x0370_7344_1319_8A2E, 0x299F_31D0_A409_3822),
            [0xD16C_FE09, 0x94FD_CCEB, 0x5001_E420, 0x2412_6EA1]
        );
    }
}
