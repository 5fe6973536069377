// Random words by counter.
#pragma once

#include <cstdint>

namespace nvte {

struct Words {
  uint32_t w[4];
};

// Halves of a product. In PTX: the compiler adds 0 to the high half of one that it shifts.
__device__ __forceinline__ void multiply_wide(uint32_t a, uint32_t b, uint32_t &low,
                                              uint32_t &high) {
  asm("{.reg .b64 wide;\nmul.wide.u32 wide, %2, %3;\nmov.b64 {%0, %1}, wide;}"
      : "=r"(low), "=r"(high)
      : "r"(a), "r"(b));
}

// Philox4x32 of some counters side by side: one alone would wait for each of its products, and the
// keys of the rounds serve all. `words` are the counters first.
template <int kRounds, int N>
__device__ __forceinline__ void philox_rounds(uint64_t key, Words (&words)[N]) {
  uint32_t k0 = static_cast<uint32_t>(key), k1 = static_cast<uint32_t>(key >> 32);
#pragma unroll
  for (int round = 0; round < kRounds; ++round) {
#pragma unroll
    for (int n = 0; n < N; ++n) {
      uint32_t (&w)[4] = words[n].w;
      uint32_t low[2], high[2];
      multiply_wide(w[0], 0xD2511F53, low[0], high[0]);
      multiply_wide(w[2], 0xCD9E8D57, low[1], high[1]);
      w[0] = high[1] ^ w[1] ^ k0;
      w[1] = low[1];
      w[2] = high[0] ^ w[3] ^ k1;
      w[3] = low[0];
    }
    k0 += 0x9E3779B9;
    k1 += 0xBB67AE85;
  }
}
__device__ __forceinline__ Words counter_words(uint64_t low, uint64_t high) {
  return {{static_cast<uint32_t>(low), static_cast<uint32_t>(low >> 32),
           static_cast<uint32_t>(high), static_cast<uint32_t>(high >> 32)}};
}
// Of counters whose low halves are the same.
template <int kRounds, int N>
__device__ __forceinline__ void philox(uint64_t key, uint64_t low, const uint64_t (&high)[N],
                                       Words (&words)[N]) {
#pragma unroll
  for (int n = 0; n < N; ++n) words[n] = counter_words(low, high[n]);
  philox_rounds<kRounds>(key, words);
}
// Philox4x32-10.
__device__ __forceinline__ Words philox(uint64_t key, uint64_t low, uint64_t high) {
  const uint64_t counters[1] = {high};
  Words words[1];
  philox<10>(key, low, counters, words);
  return words[0];
}

// Dropout of attention, by Philox4x32-7: seven rounds are what the generator's authors found to
// pass every test, and their time counts here. A call serves 16 scores of a tile of 16 rows and
// columns: score (r, c) of a head takes byte 2 (c / 8 % 2) + r / 8 % 2 of word 2 (r % 2) + c % 2 of
// the call of (r % 8 / 2, c % 8 / 2), so that the lanes of a warp that holds such tiles of a
// product, or of a transposed one, draw what they need in pairs.
//
// A byte alone would round the probability to 1/256. A constant of each of the 16 calls stands for
// four bits below it, and the probability of a tile is a multiple of 1/4096.
__host__ __device__ constexpr unsigned dropout_rank(unsigned row_pair, unsigned column_pair) {
  return (row_pair + column_pair) % 4 * 4 + row_pair;
}
// The level below which 16 byte + rank must be for an element to be dropped.
inline unsigned dropout_level(float probability) {
  const auto level = static_cast<unsigned>(probability * 4096.0f + 0.5f);
  return level < 4080 ? level : 4080;
}

// Of a head's scores: `head` of all sequences', `rows` and `columns` of the longest ones.
struct HeadDropout {
  uint64_t seed = 0, counter = 0;  // The seed, and the low half of the counter of Philox.
  uint64_t first = 0;              // The high half of the first tile's first call.
  uint64_t calls = 0;              // Calls of Philox for one head.
  uint32_t across = 0;             // Tiles side by side.
  unsigned level = 0;

  HeadDropout() = default;
  __device__ __forceinline__ HeadDropout(const int64_t *rng_state, unsigned level, uint64_t head,
                                         uint32_t rows, uint32_t columns) {
    if (rng_state == nullptr) return;
    seed = static_cast<uint64_t>(rng_state[0]);
    counter = static_cast<uint64_t>(rng_state[1]) / 4;
    across = (columns + 15) / 16;
    calls = uint64_t{(rows + 15) / 16} * across * 16;
    first = head * calls;
    this->level = level;
  }
  // The head that comes so many after this one.
  __device__ __forceinline__ HeadDropout after(uint64_t heads) const {
    HeadDropout other = *this;
    other.first += heads * calls;
    return other;
  }
};

// What a warp keeps of tiles side by side, kTransposed: one below the other, when lanes hold
// columns where they held rows.
template <bool kTransposed, int kTiles = 4>
struct KeptScores {
  uint64_t seed, counter;
  uint64_t first;  // Number of the lane's first call of Philox.
  uint32_t across;
  uint32_t below;  // Bytes below its bytes drop.

  __device__ __forceinline__ explicit KeptScores(const HeadDropout &head)
      : seed(head.seed), counter(head.counter), across(head.across) {
    const unsigned pair = threadIdx.x % 32 / 8, other = threadIdx.x % 4;
    const unsigned row = kTransposed ? other : pair, column = kTransposed ? pair : other;
    first = head.first + 4 * row + column;
    below = (head.level + 15 - dropout_rank(row, column)) / 16 * 0x01010101u;
  }
  __device__ __forceinline__ KeptScores(const int64_t *rng_state, unsigned level, uint64_t head,
                                        uint32_t rows, uint32_t columns)
      : KeptScores(HeadDropout(rng_state, level, head, rows, columns)) {}

  // Draws count rows from here on, a multiple of 16.
  __device__ __forceinline__ void skip_rows(uint32_t rows) {
    first += uint64_t{rows / 16} * across * 16;
  }
  // A word's bytes as bits 7 of bytes; the others are anything.
  __device__ __forceinline__ uint32_t kept(uint32_t word) const {
    const uint32_t low = (word | 0x80808080u) - (below & 0x7f7f7f7fu);
    return (word & ~below) | (~(word ^ below) & low);
  }

  // Of 16 rows from r on and 16 kTiles columns from c on, or 16 columns and 16 kTiles rows,
  // multiples of 16: the lane's element d[8 u + 2 n + e] of a product is bit 7 - 2 u - e of byte n.
  // kWords: of as many such side by side. By a whole warp.
  template <int kWords>
  __device__ __forceinline__ void draw(uint32_t r, uint32_t c, uint32_t (&bits)[kWords]) const {
    static_assert(kTiles >= 1 && kTiles <= 4, "a word's worth");
    constexpr int kCalls = (kTiles + 1) / 2;
    const bool odd = threadIdx.x & 4;
    // Lanes in pairs: one draws tiles 0 and 2, the other 1 and 3.
    const uint64_t step = kTransposed ? uint64_t{across} * 16 : 16;
    const uint64_t at = first + (uint64_t{r / 16} * across + c / 16) * 16 + (odd ? step : 0);
    uint64_t counters[kCalls * kWords];
    Words words[kCalls * kWords];
#pragma unroll
    for (int i = 0; i < kCalls * kWords; ++i) {
      counters[i] = at + (i / kCalls * kTiles + i % kCalls * 2) * step;
    }
    philox<7>(seed, counter, counters, words);
#pragma unroll
    for (int word = 0; word < kWords; ++word) {
      uint32_t own = 0;
#pragma unroll
      for (int i = 4 * kCalls - 1; i >= 0; --i) {
        const uint32_t next =
            kept(words[word * kCalls + i / 4].w[kTransposed ? i % 2 * 2 + i / 2 % 2 : i % 4]);
        own = (next & 0x80808080u) | (own >> 1 & 0x7f7f7f7fu);
      }
      const uint32_t others = __shfl_xor_sync(0xffffffffu, own, 4);
      const uint32_t even = odd ? others << 2 : own, uneven = odd ? own : others >> 2;
      own = (even & 0xccccccccu) | (uneven & 0x33333333u);
      // Bytes 1 and 2 are elements of rows, or of columns, eight apart.
      bits[word] = kTransposed ? __byte_perm(own, 0, 0x3120) : own;
    }
  }
  __device__ __forceinline__ uint32_t operator()(uint32_t r, uint32_t c) const {
    uint32_t bits[1];
    draw(r, c, bits);
    return bits[0];
  }
};

// Whether element d[8 u + 4 m + e] is kept; all are constants but the bits.
__device__ __forceinline__ bool is_kept(uint32_t bits, int u, int m, int e) {
  return bits >> (16 * m + e / 2 * 8 + 7 - 2 * u - e % 2) & 1;
}
// Elements d[8 u + 2 n] and d[8 u + 2 n + 1]: halves of a word of ones if kept, else of zeros. u
// and n are constants.
__device__ __forceinline__ uint32_t kept_pair(uint32_t bits, int u, int n) {
  uint32_t mask;  // Selectors from 8 on take a byte's highest bit eight times.
  asm("prmt.b32 %0, %1, %2, %3;"
      : "=r"(mask)
      : "r"(bits << 2 * u), "r"(bits << (2 * u + 1)), "r"(0xcc88 + 0x1111 * n));
  return mask;
}

}  // namespace nvte
