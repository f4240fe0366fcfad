// Packing the blocks of checkpoints into grouped strips, and reading rows back.
#include "grouped.hpp"

namespace headrace {
namespace {

// Code i of `bits` bits: of every `width` bytes first all lowest fields, then the next.
template <int kWidth, int kBits>
uint8_t field(const uint8_t* from, int i) {
  constexpr int kPer = 8 / kBits;
  const int within = i % (kWidth * kPer);
  const uint8_t byte = from[i / (kWidth * kPer) * kWidth + within % kWidth];
  return static_cast<uint8_t>((byte >> (within / kWidth * kBits)) & ((1 << kBits) - 1));
}

// Codes of the group that starts at input `first` of a block.
void read_codes(Format format, const uint8_t* block, int first, uint8_t* codes) {
  for (int j = 0; j < kGroup; ++j) {
    const int i = first + j;
    switch (format) {
      case Format::q4_0:
      case Format::iq4_nl:
        codes[j] = field<16, 4>(block + 2, i);
        break;
      case Format::q4_1:
        codes[j] = field<16, 4>(block + 4, i);
        break;
      case Format::q5_0:
        codes[j] = static_cast<uint8_t>(field<16, 4>(block + 6, i) | (field<1, 1>(block + 2, i) << 4));
        break;
      case Format::q5_1:
        codes[j] = static_cast<uint8_t>(field<16, 4>(block + 8, i) | (field<1, 1>(block + 4, i) << 4));
        break;
      case Format::q2_k:
        codes[j] = field<32, 2>(block + 16, i);
        break;
      case Format::q3_k:
        codes[j] = static_cast<uint8_t>(field<32, 2>(block + 32, i) | (field<32, 1>(block, i) << 2));
        break;
      case Format::q4_k:
        codes[j] = field<32, 4>(block + 16, i);
        break;
      case Format::q5_k:
        codes[j] = static_cast<uint8_t>(field<32, 4>(block + 48, i) | (field<32, 1>(block + 16, i) << 4));
        break;
      case Format::q6_k:
        codes[j] = static_cast<uint8_t>(field<64, 4>(block, i) | (field<32, 2>(block + 128, i) << 4));
        break;
      case Format::iq4_xs:
        codes[j] = field<16, 4>(block + 8, i);
        break;
      case Format::mxfp4:
        codes[j] = field<16, 4>(block + 1, i);
        break;
      case Format::u4_g32:
        codes[j] = field<16, 4>(block + 5, i);
        break;
      case Format::e4m3_g32:
        codes[j] = block[4 + i];
        break;
      case Format::e2m1_g16:
        codes[j] = j < 16 ? field<8, 4>(block + 4, j) : 0;
        break;
      case Format::s8_g32:
        codes[j] = block[4 + i] ^ 0x80;
        break;
      default:  // q8_0
        codes[j] = block[2 + i] ^ 0x80;
    }
  }
}

// Scale and minimum of group j out of the 12 bytes of Q4_K and Q5_K: the first four of each are the low six bits of
// bytes 0-3 and 4-7, whose upper two bits complete the last four, nibbles of bytes 8-11.
void six_bits(const uint8_t* packed, int j, uint8_t* scale, uint8_t* minimum) {
  if (j < 4) {
    *scale = packed[j] & 63;
    *minimum = packed[4 + j] & 63;
  } else {
    *scale = static_cast<uint8_t>((packed[4 + j] & 15) | ((packed[j - 4] >> 2) & 0x30));
    *minimum = static_cast<uint8_t>((packed[4 + j] >> 4) | ((packed[j] >> 2) & 0x30));
  }
}

// Output c's share of a head, of group j of its block, and of the multipliers before it.
void copy_scales(Format format, const uint8_t* block, int j, int64_t c, uint8_t* fine, uint8_t* head) {
  switch (format) {
    case Format::q4_1:
    case Format::q5_1:
      std::memcpy(head + 64 + c * 2, block + 2, 2);
      [[fallthrough]];
    case Format::q4_0:
    case Format::q5_0:
    case Format::q8_0:
    case Format::iq4_nl:
      std::memcpy(head + c * 2, block, 2);
      return;
    case Format::mxfp4:
      head[c] = block[0];
      return;
    case Format::u4_g32:
      head[128 + c] = block[4];
      [[fallthrough]];
    case Format::s8_g32:
    case Format::e4m3_g32:
    case Format::e2m1_g16:
      std::memcpy(head + c * 4, block, 4);
      return;
    case Format::q2_k:
      std::memcpy(fine + c * 2, block + 80, 2);
      std::memcpy(fine + 64 + c * 2, block + 82, 2);
      head[c] = block[2 * j];
      head[kStrip + c] = block[2 * j + 1];
      return;
    case Format::q3_k:
      std::memcpy(fine + c * 2, block + 108, 2);
      for (int half = 0; half < 2; ++half) {
        const int i = 2 * j + half;
        head[half * kStrip + c] =
            static_cast<uint8_t>((field<8, 4>(block + 96, i) | (field<4, 2>(block + 104, i) << 4)) - 32);
      }
      return;
    case Format::q4_k:
    case Format::q5_k:
      std::memcpy(fine + c * 2, block, 2);
      std::memcpy(fine + 64 + c * 2, block + 2, 2);
      six_bits(block + 4, j, head + c, head + kStrip + c);
      return;
    case Format::q6_k:
      std::memcpy(fine + c * 2, block + 208, 2);
      head[c] = block[192 + 2 * j];
      head[kStrip + c] = block[192 + 2 * j + 1];
      return;
    default: {  // iq4_xs
      uint16_t high;
      std::memcpy(&high, block + 2, 2);
      std::memcpy(fine + c * 2, block, 2);
      head[c] = static_cast<uint8_t>((field<1, 4>(block + 4, j) | (((high >> (2 * j)) & 3) << 4)) - 32);
    }
  }
}

// Where a plane of `bits` bits keeps input i of output c, and from which bit on.
int64_t plane_byte(int bits, int64_t i, int64_t c) {
  const int64_t step = i / 4, per = 8 / bits;
  const int64_t line = (step / per) * 2 + c / 16;
  return line * 64 + c % 16 * 4 + i % 4;
}
int plane_shift(int bits, int64_t i) { return static_cast<int>(i / 4 % (8 / bits)) * bits; }

// Planes of zeros get output c's codes.
void write_codes(const Grouped& g, const uint8_t* codes, int64_t c, uint8_t* planes) {
  uint8_t* high = planes + kGroup * kStrip / 8 * g.low_bits;
  const int mask = (1 << g.low_bits) - 1;
  for (int64_t i = 0; i < kGroup; ++i) {
    planes[plane_byte(g.low_bits, i, c)] |= static_cast<uint8_t>((codes[i] & mask) << plane_shift(g.low_bits, i));
    if (g.high_bits == 0) continue;
    high[plane_byte(g.high_bits, i, c)] |=
        static_cast<uint8_t>((codes[i] >> g.low_bits) << plane_shift(g.high_bits, i));
  }
}

uint8_t code_at(const Grouped& g, const uint8_t* planes, int64_t i, int64_t c) {
  const int low = (planes[plane_byte(g.low_bits, i, c)] >> plane_shift(g.low_bits, i)) & ((1 << g.low_bits) - 1);
  if (g.high_bits == 0) return static_cast<uint8_t>(low);
  const uint8_t* plane = planes + kGroup * kStrip / 8 * g.low_bits;
  const int high = (plane[plane_byte(g.high_bits, i, c)] >> plane_shift(g.high_bits, i)) & ((1 << g.high_bits) - 1);
  return static_cast<uint8_t>(low | (high << g.low_bits));
}

float value_of(Format format, const Grouped& g, uint8_t code) {
  if (g.codes == Codes::table) return table_of(format)[code];
  if (g.codes == Codes::e4m3) return (code & 0x7f) == 0x7f ? float_of(0x7fc00000u) : from_e4m3(code);
  return static_cast<float>(code - g.zero);
}

// The weights of output c in a group whose scales have been read, as the definitions round them.
void group_weights(Format format, const Grouped& g, const GroupScales& s, const uint8_t* head, int64_t c, float* out) {
  const uint8_t* planes = head + head_bytes(g.scales);
  const int zero = g.scales == Scales::single_zero ? head[128 + c] : 0;
  for (int64_t i = 0; i < kGroup; ++i) {
    const int half = has_halves(g.scales) ? static_cast<int>(i / 16) : 0;
    const uint8_t code = code_at(g, planes, i, c);
    if (g.scales == Scales::single_zero) {
      out[i] = s.scale[0][c] * static_cast<float>(code - zero);
    } else {
      const float product = s.scale[half][c] * value_of(format, g, code);
      out[i] = has_minima(g.scales) ? product - s.minimum[half][c] : product;
    }
  }
}

}  // namespace

int64_t pack_grouped_strip(Format format, const uint8_t* source, int64_t rows, int64_t k, uint8_t* strip) {
  const Grouped g = grouped(format);
  const int64_t row_bytes = k / g.block * g.block_bytes;
  std::memset(strip, 0, static_cast<size_t>(grouped_strip_bytes(g, k)));
  int64_t bad = -1;
  for (int64_t group = 0; group < group_count(k); ++group) {
    uint8_t* head = strip + group_start(g, group);
    uint8_t* fine = strip + group_start(g, group / kFineGroups * kFineGroups) - fine_bytes(g.scales);
    const int64_t first = group * kGroup % g.block;
    for (int64_t c = 0; c < rows; ++c) {
      const uint8_t* block = source + c * row_bytes + group * kGroup / g.block * g.block_bytes;
      uint8_t codes[kGroup];
      read_codes(format, block, static_cast<int>(first), codes);
      copy_scales(format, block, static_cast<int>(first / kGroup), c, fine, head);
      if (g.block == 16 && group * kGroup + 16 < k) {
        uint8_t upper[kGroup];
        read_codes(format, block + g.block_bytes, 0, upper);
        std::memcpy(codes + 16, upper, 16);
        copy_scales(format, block + g.block_bytes, 0, kStrip + c, fine, head);
      }
      write_codes(g, codes, c, head + head_bytes(g.scales));
    }
    GroupScales scales;
    read_scales(g.scales, fine, head, scales);
    for (int64_t c = 0; c < rows; ++c) {
      float weights[kGroup];
      group_weights(format, g, scales, head, c, weights);
      for (const float weight : weights) {
        if (!is_finite(weight) && (bad < 0 || c < bad)) bad = c;
      }
    }
  }
  return bad;
}

void unpack_grouped_row(const Weight& w, int64_t row, float* out) {
  const Grouped g = grouped(w.format);
  const uint8_t* strip = w.data + row / kStrip * grouped_strip_bytes(g, w.k);
  for (int64_t group = 0; group < group_count(w.k); ++group) {
    const uint8_t* head = strip + group_start(g, group);
    const uint8_t* fine = strip + group_start(g, group / kFineGroups * kFineGroups) - fine_bytes(g.scales);
    GroupScales scales;
    read_scales(g.scales, fine, head, scales);
    float weights[kGroup];
    group_weights(w.format, g, scales, head, row % kStrip, weights);
    const int64_t left = w.k - group * kGroup;
    std::memcpy(out + group * kGroup, weights, static_cast<size_t>(left < kGroup ? left : kGroup) * 4);
  }
}

}  // namespace headrace
