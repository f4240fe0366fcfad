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

// Of the best 16 levels of a normal distribution, those above 0.
inline constexpr double kUpperLevels[8] = {0.1284, 0.3881, 0.6568, 0.9424, 1.2562, 1.6181, 2.0691, 2.7326};

inline double scale_of(KvType type, Part part, const uint8_t* page, int32_t dim, int64_t token) {
  float scale = 0;
  std::memcpy(reinterpret_cast<uint8_t*>(&scale) + 2, page + number_bytes(type, part, dim) + token * 2, 2);
  return scale;
}

inline std::vector<double> coded_row(KvType type, Part part, const uint8_t* page, int32_t dim, int64_t token) {
  const bool whole = number_bits(type, part) == 8;
  const int32_t bytes = whole ? dim : dim / 2;
  const double scale = scale_of(type, part, page, dim, token);
  std::vector<double> mixed, row;
  for (int32_t d = 0; d < dim; ++d) {
    const int64_t at = part == Part::keys ? key_place(KvType::bf16, bytes, token, d % bytes)
                                                    : value_place(KvType::bf16, bytes, token, d % bytes);
    const int code = d < bytes ? page[at] & 15 : page[at] >> 4;
    const double level = code < 8 ? -kUpperLevels[7 - code] : kUpperLevels[code - 8];
    mixed.push_back(scale * (whole ? static_cast<int8_t>(page[at]) : level));
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
