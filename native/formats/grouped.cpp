// Packing the blocks of checkpoints into grouped panels, and reading rows back.
#include "grouped.hpp"

namespace headrace {
namespace {

// Code i of `bits` bits: of every `width` bytes first all lowest fields, then the next.
template <unsigned kWidth, unsigned kBits>
unsigned field(const uint8_t* from, unsigned i) {
  constexpr unsigned kPer = 8 / kBits;
  const unsigned within = i % (kWidth * kPer);
  const unsigned byte = from[i / (kWidth * kPer) * kWidth + within % kWidth];
  return (byte >> (within / kWidth * kBits)) & ((1u << kBits) - 1);
}

template <class F>
void fill(uint8_t* codes, unsigned first, F&& code_at) {
  for (unsigned j = 0; j < kGroup; ++j) codes[j] = static_cast<uint8_t>(code_at(first + j));
}

// Codes of the group that starts at input `first` of a block; of a block of 16 inputs the first 16.
void read_codes(Format format, const uint8_t* block, unsigned first, uint8_t* codes) {
  switch (format) {
    case Format::q4_0:
    case Format::iq4_nl:
      return fill(codes, first, [=](unsigned i) { return field<16, 4>(block + 2, i); });
    case Format::q4_1:
      return fill(codes, first, [=](unsigned i) { return field<16, 4>(block + 4, i); });
    case Format::q5_0:
      return fill(codes, first, [=](unsigned i) { return field<16, 4>(block + 6, i) | field<1, 1>(block + 2, i) << 4; });
    case Format::q5_1:
      return fill(codes, first, [=](unsigned i) { return field<16, 4>(block + 8, i) | field<1, 1>(block + 4, i) << 4; });
    case Format::q2_k:
      return fill(codes, first, [=](unsigned i) { return field<32, 2>(block + 16, i); });
    case Format::q3_k:
      return fill(codes, first, [=](unsigned i) { return field<32, 2>(block + 32, i) | field<32, 1>(block, i) << 2; });
    case Format::q4_k:
      return fill(codes, first, [=](unsigned i) { return field<32, 4>(block + 16, i); });
    case Format::q5_k:
      return fill(codes, first,
                  [=](unsigned i) { return field<32, 4>(block + 48, i) | field<32, 1>(block + 16, i) << 4; });
    case Format::q6_k:
      return fill(codes, first, [=](unsigned i) { return field<64, 4>(block, i) | field<32, 2>(block + 128, i) << 4; });
    case Format::iq4_xs:
      return fill(codes, first, [=](unsigned i) { return field<16, 4>(block + 8, i); });
    case Format::mxfp4:
      return fill(codes, first, [=](unsigned i) { return field<16, 4>(block + 1, i); });
    case Format::u4_g32:
      return fill(codes, first, [=](unsigned i) { return field<16, 4>(block + 5, i); });
    case Format::e2m1_g16:
      return fill(codes, 0, [=](unsigned i) { return i < 16 ? field<8, 4>(block + 4, i) : 0; });
    case Format::e4m3_g32:
      return fill(codes, 0, [=](unsigned i) { return block[4 + i]; });
    case Format::s8_g32:
      return fill(codes, 0, [=](unsigned i) { return block[4 + i] ^ 0x80; });
    default:  // q8_0
      return fill(codes, 0, [=](unsigned i) { return block[2 + i] ^ 0x80; });
  }
}

// Scale and minimum of group j out of the 12 bytes of Q4_K and Q5_K: the first four of each are the low six bits of
// bytes 0-3 and 4-7, whose upper two bits complete the last four, nibbles of bytes 8-11.
void six_bits(const uint8_t* packed, unsigned j, uint8_t* scale, uint8_t* minimum) {
  if (j < 4) {
    *scale = packed[j] & 63;
    *minimum = packed[4 + j] & 63;
  } else {
    *scale = static_cast<uint8_t>((packed[4 + j] & 15) | ((packed[j - 4] >> 2) & 0x30));
    *minimum = static_cast<uint8_t>((packed[4 + j] >> 4) | ((packed[j] >> 2) & 0x30));
  }
}

// Output c's share of a head, of group j of its block, and of the multipliers before it.
void copy_scales(Format format, const uint8_t* block, unsigned j, int64_t c, uint8_t* fine, uint8_t* head) {
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
      head[kPanel + c] = block[2 * j + 1];
      return;
    case Format::q3_k:
      std::memcpy(fine + c * 2, block + 108, 2);
      for (unsigned half = 0; half < 2; ++half) {
        const unsigned i = 2 * j + half;
        head[half * kPanel + c] =
            static_cast<uint8_t>((field<8, 4>(block + 96, i) | (field<4, 2>(block + 104, i) << 4)) - 32);
      }
      return;
    case Format::q4_k:
    case Format::q5_k:
      std::memcpy(fine + c * 2, block, 2);
      std::memcpy(fine + 64 + c * 2, block + 2, 2);
      six_bits(block + 4, j, head + c, head + kPanel + c);
      return;
    case Format::q6_k:
      std::memcpy(fine + c * 2, block + 208, 2);
      head[c] = block[192 + 2 * j];
      head[kPanel + c] = block[192 + 2 * j + 1];
      return;
    default: {  // iq4_xs
      uint16_t high;
      std::memcpy(&high, block + 2, 2);
      std::memcpy(fine + c * 2, block, 2);
      head[c] = static_cast<uint8_t>((field<1, 4>(block + 4, j) | (((high >> (2 * j)) & 3u) << 4)) - 32);
    }
  }
}

// A step's four codes of an output are the bytes of a word; a plane is such words [steps * bits / 8][32].
void write_codes(const Grouped& g, const uint8_t* codes, int64_t c, uint8_t* planes) {
  const auto put = [c](uint8_t* plane, int bits, int64_t step, uint32_t word) {
    uint8_t* at = plane + ((step * bits / 8) * kPanel + c) * 4;
    uint32_t there;
    std::memcpy(&there, at, 4);
    there |= word << (step * bits % 8);
    std::memcpy(at, &there, 4);
  };
  const uint32_t low_mask = 0x01010101u * ((1u << g.low_bits) - 1), high_mask = 0x01010101u * ((1u << g.high_bits) - 1);
  for (int64_t step = 0; step < kGroup / 4; ++step) {
    uint32_t word;
    std::memcpy(&word, codes + step * 4, 4);
    put(planes, g.low_bits, step, word & low_mask);
    if (g.high_bits > 0) put(planes + kGroup * kPanel / 8 * g.low_bits, g.high_bits, step, (word >> g.low_bits) & high_mask);
  }
}

// The codes of output c out of the planes.
void find_codes(const Grouped& g, const uint8_t* planes, int64_t c, uint8_t* codes) {
  const auto get = [c](const uint8_t* plane, int bits, int64_t step) {
    uint32_t word;
    std::memcpy(&word, plane + ((step * bits / 8) * kPanel + c) * 4, 4);
    return (word >> (step * bits % 8)) & (0x01010101u * ((1u << bits) - 1));
  };
  for (int64_t step = 0; step < kGroup / 4; ++step) {
    uint32_t word = get(planes, g.low_bits, step);
    if (g.high_bits > 0) word |= get(planes + kGroup * kPanel / 8 * g.low_bits, g.high_bits, step) << g.low_bits;
    std::memcpy(codes + step * 4, &word, 4);
  }
}

float value_of(Format format, const Grouped& g, uint8_t code) {
  if (g.codes == Codes::table) return table_of(format)[code];
  if (g.codes == Codes::e4m3) return (code & 0x7f) == 0x7f ? float_of(0x7fc00000u) : from_e4m3(code);
  return static_cast<float>(code - g.zero);
}

// The weights of output c in a group whose scales have been read, as the definitions round them.
void group_weights(Format format, const Grouped& g, const GroupScales& s, const uint8_t* head, int64_t c, float* out) {
  uint8_t codes[kGroup];
  find_codes(g, head + head_bytes(g.scales), c, codes);
  if (g.scales == Scales::single_zero) {
    const int zero = head[128 + c];
    for (int64_t i = 0; i < kGroup; ++i) out[i] = s.scale[0][c] * static_cast<float>(codes[i] - zero);
    return;
  }
  const int64_t second = has_halves(g.scales) ? kGroup / 2 : kGroup;  // where the second half starts
  for (int64_t i = 0; i < kGroup; ++i) {
    const int half = i < second ? 0 : 1;
    const float product = s.scale[half][c] * value_of(format, g, codes[i]);
    out[i] = has_minima(g.scales) ? product - s.minimum[half][c] : product;
  }
}

}  // namespace

int64_t pack_grouped_panel(Format format, const uint8_t* source, int64_t rows, int64_t k, uint8_t* panel) {
  const Grouped g = grouped(format);
  const int64_t row_bytes = k / g.block * g.block_bytes;
  std::memset(panel, 0, static_cast<size_t>(grouped_panel_bytes(g, k)));
  int64_t bad = -1;
  for (int64_t group = 0; group < group_count(k); ++group) {
    uint8_t* head = panel + group_start(g, group);
    uint8_t* fine = panel + group_start(g, group / kFineGroups * kFineGroups) - fine_bytes(g.scales);
    const unsigned first = static_cast<unsigned>(group * kGroup % g.block);
    for (int64_t c = 0; c < rows; ++c) {
      const uint8_t* block = source + c * row_bytes + group * kGroup / g.block * g.block_bytes;
      uint8_t codes[kGroup];
      read_codes(format, block, first, codes);
      copy_scales(format, block, first / kGroup, c, fine, head);
      if (g.block == 16 && group * kGroup + 16 < k) {
        uint8_t upper[kGroup];
        read_codes(format, block + g.block_bytes, 0, upper);
        std::memcpy(codes + 16, upper, 16);
        copy_scales(format, block + g.block_bytes, 0, kPanel + c, fine, head);
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
  const uint8_t* panel = w.data + row / kPanel * grouped_panel_bytes(g, w.k);
  for (int64_t group = 0; group < group_count(w.k); ++group) {
    const uint8_t* head = panel + group_start(g, group);
    const uint8_t* fine = panel + group_start(g, group / kFineGroups * kFineGroups) - fine_bytes(g.scales);
    GroupScales scales;
    read_scales(g.scales, fine, head, scales);
    float weights[kGroup];
    group_weights(w.format, g, scales, head, row % kPanel, weights);
    const int64_t left = w.k - group * kGroup;
    std::memcpy(out + group * kGroup, weights, static_cast<size_t>(left < kGroup ? left : kGroup) * 4);
  }
}

}  // namespace headrace
