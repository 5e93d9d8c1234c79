#include "base/id.h"

#include <sys/random.h>

#include <cerrno>

#include "base/error.h"

namespace towline {
namespace {

void fill_random(void* to, std::size_t bytes) {
  auto* next = static_cast<unsigned char*>(to);
  while (bytes > 0) {
    const ssize_t got = getrandom(next, bytes, 0);
    if (got < 0) {
      if (errno == EINTR) continue;
      fail_errno(errno, "getrandom of {} bytes", bytes);
    }
    next += got;
    bytes -= static_cast<std::size_t>(got);
  }
}

int hex_digit(char c) noexcept {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

}  // namespace

uint64_t random_u64() {
  uint64_t value = 0;
  fill_random(&value, sizeof value);
  return value;
}

Id Id::random() {
  Id id;
  while (id.is_none()) id = Id{random_u64(), random_u64()};
  return id;
}

std::optional<Id> Id::from_hex(std::string_view text) noexcept {
  if (text.size() != 32) return std::nullopt;
  uint64_t words[2] = {0, 0};
  for (std::size_t i = 0; i < 32; ++i) {
    const int digit = hex_digit(text[i]);
    if (digit < 0) return std::nullopt;
    words[i / 16] = words[i / 16] << 4 | static_cast<uint64_t>(digit);
  }
  return Id{words[0], words[1]};
}

std::string Id::to_hex() const { return fmt::format("{:016x}{:016x}", hi, lo); }

}  // namespace towline
