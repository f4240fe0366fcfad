// What a row of a page of codes stands for, in double, by the definition in formats/kv_page.hpp.
#pragma once
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

#include "../formats/kv_page.hpp"

namespace headrace::test {

// Of the best 16 and 8 levels of a normal distribution, those above 0.
inline constexpr double kUpperLevels[8] = {0.1284, 0.3881, 0.6568, 0.9424, 1.2562, 1.6181, 2.0691, 2.7326};
inline constexpr double kFewUpperLevels[4] = {0.2451, 0.7560, 1.3439, 2.1520};

inline double scale_of(KvType type, Part part, const uint8_t* page, int32_t dim, int64_t token) {
  float scale = 0;
  std::memcpy(reinterpret_cast<uint8_t*>(&scale) + 2, page + number_bytes(type, part, dim) + token * 2, 2);
  return scale;
}

// Dimension d's bits in a plane that has `width` of each.
inline int bits_of(Part part, const uint8_t* plane, int32_t dim, int64_t token, int32_t d, int width) {
  const int32_t bytes = dim * width / 8;
  const int64_t at = part == Part::keys ? key_place(KvType::bf16, bytes, token, d % bytes)
                                        : value_place(KvType::bf16, bytes, token, d % bytes);
  return plane[at] >> (d / bytes * width) & ((1 << width) - 1);
}

inline double level_of(int bits, int code) {
  if (bits == 8) return static_cast<int8_t>(code);
  const int half = 1 << (bits - 1);
  const double* upper = bits == 4 ? kUpperLevels : kFewUpperLevels;
  return code < half ? -upper[half - 1 - code] : upper[code - half];
}

inline std::vector<double> coded_row(KvType type, Part part, const uint8_t* page, int32_t dim, int64_t token) {
  const int bits = number_bits(type, part);
  const double scale = scale_of(type, part, page, dim, token);
  std::vector<double> mixed, row;
  for (int32_t d = 0; d < dim; ++d) {
    const int code = bits == 3 ? bits_of(part, page, dim, token, d, 2) |
                                     bits_of(part, page + kPageTokens * dim / 4, dim, token, d, 1) << 2
                               : bits_of(part, page, dim, token, d, bits);
    mixed.push_back(scale * level_of(bits, code));
  }
  const int block = std::min(dim & -dim, 128);
  for (int32_t d = 0; d < dim; ++d) {
    double sum = 0;
    for (int32_t i = 0; i < block; ++i) {
      const int odd = std::popcount(static_cast<unsigned>(i & (d % block))) % 2;
      sum += (odd != 0 ? -1 : 1) * mixed[static_cast<size_t>(d / block * block + i)];
    }
    row.push_back(sum / std::sqrt(block));
  }
  return row;
}

}  // namespace headrace::test
