#include "storage/object/checksum.h"

#include <openssl/evp.h>

#include "storage/object/signer.h"

namespace towline::object {

namespace {

constexpr uint32_t kPolynomial = 0x82f63b78;  // reflected: the bit of x^31 is the lowest

// The product of two polynomials, modulo the checksum's polynomial.
uint32_t multiply(uint32_t a, uint32_t b) noexcept {
  uint32_t product = 0;
  for (uint32_t bit = uint32_t{1} << 31; bit != 0; bit >>= 1) {
    if ((a & bit) != 0) product ^= b;
    b = (b & 1) != 0 ? (b >> 1) ^ kPolynomial : b >> 1;
  }
  return product;
}

// x to the power of 8 * bytes.
uint32_t shift(uint64_t bytes) noexcept {
  uint32_t result = uint32_t{1} << 31;  // 1
  uint32_t power = uint32_t{1} << 23;   // x^8
  for (; bytes != 0; bytes >>= 1) {
    if ((bytes & 1) != 0) result = multiply(result, power);
    power = multiply(power, power);
  }
  return result;
}

}  // namespace

uint32_t crc32c_join(uint32_t a, uint32_t b, uint64_t b_bytes) noexcept {
  return multiply(a, shift(b_bytes)) ^ b;
}

std::string crc32c_text(uint32_t crc) {
  const char bytes[] = {static_cast<char>(crc >> 24), static_cast<char>(crc >> 16),
                        static_cast<char>(crc >> 8), static_cast<char>(crc)};
  return to_base64({bytes, sizeof bytes});
}

std::optional<uint32_t> crc32c_value(std::string_view text) {
  unsigned char bytes[8];
  if (text.size() != 8 || !text.ends_with("==")) return std::nullopt;
  if (EVP_DecodeBlock(bytes, reinterpret_cast<const unsigned char*>(text.data()), 8) != 6)
    return std::nullopt;
  return uint32_t{bytes[0]} << 24 | uint32_t{bytes[1]} << 16 | uint32_t{bytes[2]} << 8 | bytes[3];
}

std::string crc64_text(uint64_t crc) {
  std::string bytes;
  for (int shift = 0; shift < 64; shift += 8) bytes += static_cast<char>(crc >> shift);
  return to_base64(bytes);
}

}  // namespace towline::object
