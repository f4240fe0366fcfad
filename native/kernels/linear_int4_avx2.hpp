// int4 for AVX2: a group's codes are multiplied as they are and added up in 16 bits; then its multipliers and offsets are.
//
//   sum of (multiplier * code + offset - 128) * input = multiplier * (sum of code * input) + (offset - 128) * (sum of inputs)
// The second part takes the groups two by two, as vpmaddwd does: the sums of inputs come in pairs of 16 bits from phase 0.
#pragma once
#include "linear_codes_avx2.hpp"

namespace headrace {
namespace {

constexpr int kInt4Direct = 4;  // rows: up to here codes are taken out of their planes in registers, beyond once into L1
constexpr int64_t kInt4Chunk = 16;  // groups

// What the heads of two groups are multiplied with.
struct Int4Heads {
  __m256i multiplier[2][kPanelVectors];  // both 16-bit halves of each output's lane
  __m256i offset[kPanelVectors];         // less 128: of the first group in the lower half, of the second in the upper
};

struct Int4Tile {
  const uint8_t* codes;  // of the first group: as bytes, or in their planes
  int64_t stride;        // from group to group
  const uint8_t* groups;  // whole, for a tile that reads heads by itself
  const Int4Heads* heads;
  const uint32_t* x;      // [groups * 8 steps][rows]
  const uint32_t* pairs;  // of sums of inputs, [groups / 2][rows]
  int64_t count;          // of groups
  int32_t* acc;
  const uint8_t* ahead;  // to be fetched: `ahead_bytes` bytes with each group of a pass
  int64_t ahead_bytes;
};
using Int4Kernel = void (*)(const Int4Tile& tile);

// Over the columns of a panel, that so many rows take.
constexpr int int4_passes(int64_t rows) { return rows <= 2 ? 1 : 2; }

inline __m256i widen_bytes(const uint8_t* bytes) {
  return _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(bytes)));
}
inline __m256i twice(__m256i words) { return _mm256_or_si256(words, _mm256_slli_epi32(words, 16)); }

// Of the group at `group` and the one after it; without one, the group itself takes its place.
inline void spread_heads(const uint8_t* group, bool two, Int4Heads& heads) {
  const uint8_t* second = two ? group + kGroupBytes : group;
#pragma GCC unroll 4
  for (int v = 0; v < kPanelVectors; ++v) {
    heads.multiplier[0][v] = twice(widen_bytes(group + v * kLanes));
    heads.multiplier[1][v] = twice(widen_bytes(second + v * kLanes));
    const __m256i low = widen_bytes(group + kPanel + v * kLanes), high = widen_bytes(second + kPanel + v * kLanes);
    heads.offset[v] = _mm256_sub_epi16(_mm256_or_si256(low, _mm256_slli_epi32(high, 16)), _mm256_set1_epi16(128));
  }
}

// One group, for kVectors vectors from `v0` on; with its second one, a pair's offsets too.
template <class Reader, int kRows, int kVectors>
HEADRACE_INLINE void add_group(const Int4Tile& t, int64_t group, int v0, const Int4Heads& heads, bool last) {
  __m256i sums[kRows][kVectors];
  sum_steps<Reader, 8>(t.codes + group * t.stride, 0, v0, t.x + group * 8 * kRows, _mm256_setzero_si256(), sums);
  const uint32_t* pairs = t.pairs + group / 2 * kRows;
#pragma GCC unroll 4
  for (int v = 0; v < kVectors; ++v) {
    const __m256i multiplier = heads.multiplier[group % 2][v0 + v], offset = heads.offset[v0 + v];
#pragma GCC unroll 6
    for (int r = 0; r < kRows; ++r) {
      __m256i* acc = reinterpret_cast<__m256i*>(t.acc + r * kPanel + (v0 + v) * kLanes);
      __m256i sum = _mm256_add_epi32(_mm256_loadu_si256(acc), _mm256_madd_epi16(sums[r][v], multiplier));
      if (last) sum = _mm256_add_epi32(sum, _mm256_madd_epi16(offset, broadcast(pairs[r])));
      _mm256_storeu_si256(acc, sum);
    }
  }
}

template <class Reader, int kRows>
HEADRACE_LEAF void tile_int4(const Int4Tile& tile) {
  const Int4Tile t = tile;  // the compiler must assume that stores to the sums change the tile, but not this copy
  constexpr int kVectors = kPanelVectors / int4_passes(kRows);
  const uint8_t* ahead = t.ahead;
  Int4Heads own;
  for (int64_t g = 0; g < t.count; g += 2) {
    const int64_t end = g + 2 < t.count ? g + 2 : t.count;
    if constexpr (Reader::kUnrolled) spread_heads(t.groups + g * kGroupBytes, end - g == 2, own);
    const Int4Heads& heads = Reader::kUnrolled ? own : t.heads[g / 2];
    for (int v0 = 0; v0 < kPanelVectors; v0 += kVectors) {
      for (int64_t group = g; group < end; ++group, ahead += t.ahead_bytes) {
        fetch(ahead, t.ahead_bytes);
        add_group<Reader, kRows, kVectors>(t, group, v0, heads, group + 1 == end);
      }
    }
  }
}

template <class Reader, int kRows>
Int4Kernel int4_kernel(int64_t rows) {
  if constexpr (kRows == 0) {
    (void)rows;
    return nullptr;
  } else {
    return rows == kRows ? tile_int4<Reader, kRows> : int4_kernel<Reader, kRows - 1>(rows);
  }
}

// `count` groups' codes as bytes [count][8 steps][32][4].
inline void unpack_nibbles(const uint8_t* group, int64_t count, uint8_t* out) {
  const __m256i low = _mm256_set1_epi8(15);
  for (int64_t g = 0; g < count; ++g, group += kGroupBytes, out += kGroup * kPanel) {
    for (int pair = 0; pair < 4; ++pair) {
#pragma GCC unroll 4
      for (int v = 0; v < kPanelVectors; ++v) {
        const __m256i both = load_vector(group + 64 + pair * 128 + v * 32);
        __m256i* to = reinterpret_cast<__m256i*>(out + pair * 256 + v * 32);
        _mm256_storeu_si256(to, _mm256_and_si256(both, low));
        _mm256_storeu_si256(to + kPanelVectors, _mm256_and_si256(_mm256_srli_epi16(both, 4), low));
      }
    }
  }
}

// Adds the products of one panel, whose first group is at `weights`, with the row tiles [first, last) to acc[rows][32].
inline void run_int4(const uint8_t* weights, int64_t groups, const Scratch& scratch, const Tiles& tiles, int64_t first,
                     int64_t last, int32_t* acc) {
  alignas(64) uint8_t codes[kInt4Chunk * kGroup * kPanel];
  Int4Heads heads[kInt4Chunk / 2];
  const uint32_t* words = scratch.words[static_cast<int>(Form::int8)];
  const bool direct = last - first == 1 && tiles.size(first) <= kInt4Direct;
  const int64_t pairs = pair_count(groups * kGroup), row0 = tiles.begin(first);
  for (int64_t at = 0; at < groups; at += kInt4Chunk) {
    const int64_t count = groups - at < kInt4Chunk ? groups - at : kInt4Chunk;
    const uint8_t* raw = weights + at * kGroupBytes;
    if (!direct) {
      unpack_nibbles(raw, count, codes);
      for (int64_t g = 0; g < count; g += 2) spread_heads(raw + g * kGroupBytes, g + 1 < count, heads[g / 2]);
    }
    for (int64_t tile = first; tile < last; ++tile) {
      const int64_t rows = tiles.size(tile), begin = tiles.begin(tile);
      Int4Tile t;
      t.codes = direct ? raw + 64 : codes;
      t.stride = direct ? kGroupBytes : kGroup * kPanel;
      t.groups = raw;
      t.heads = heads;
      t.x = words + begin * groups * 8 + at * 8 * rows;
      t.pairs = scratch.pair_sums + begin * pairs + at / 2 * rows;
      t.count = count;
      t.acc = acc + (begin - row0) * kPanel;
      // A tile that reads the weights themselves fetches them ahead; else the first one fetches the next chunk.
      t.ahead = direct ? raw + kAheadBytes : raw + count * kGroupBytes;
      t.ahead_bytes = direct || tile == first ? kGroupBytes / int4_passes(rows) : 0;
      const Int4Kernel kernel = direct ? int4_kernel<Planes<4, 0>, kInt4Direct>(rows) : int4_kernel<ByteCodes<4>, kMaxRows>(rows);
      kernel(t);
    }
  }
}

}  // namespace
}  // namespace headrace
