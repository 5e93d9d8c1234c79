// Little-endian encoding for everything that crosses a wire or lies in a blob. Both ends are bounded and
// neither throws: the first thing that does not fit sets a sticky failure, after which writes do nothing and
// reads give zeros and empty spans. So a decoder reads all its fields and asks ok() once, before it uses any
// of them.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string_view>
#include <type_traits>
#include <vector>

namespace towline {

static_assert(std::endian::native == std::endian::little, "wire.h copies integers as they lie in memory");

// Appends to a vector (which may allocate: control path) or fills a fixed span.
class WireWriter {
 public:
  explicit WireWriter(std::vector<uint8_t>& out, std::size_t max_bytes = SIZE_MAX) noexcept
      : vector_(&out), start_(out.size()), limit_(max_bytes) {}
  explicit WireWriter(std::span<uint8_t> out) noexcept : fixed_(out.data()), limit_(out.size()) {}

  void u8(uint8_t value) { integer(value); }
  void u16(uint16_t value) { integer(value); }
  void u32(uint32_t value) { integer(value); }
  void u64(uint64_t value) { integer(value); }
  void i32(int32_t value) { integer(value); }
  void i64(int64_t value) { integer(value); }
  void f64(double value) { integer(std::bit_cast<uint64_t>(value)); }

  void raw(std::span<const uint8_t> data) {
    if (uint8_t* to = extend(data.size()); to != nullptr && !data.empty())
      std::memcpy(to, data.data(), data.size());
  }
  void zeros(std::size_t bytes) {
    if (uint8_t* to = extend(bytes); to != nullptr && bytes != 0) std::memset(to, 0, bytes);
  }

  // A length of 16 or 32 bits, then the bytes. Longer than the length can say is a failure.
  void bytes16(std::span<const uint8_t> data) { counted<uint16_t>(data); }
  void bytes32(std::span<const uint8_t> data) { counted<uint32_t>(data); }
  void string16(std::string_view text) { counted<uint16_t>(as_bytes(text)); }
  void string32(std::string_view text) { counted<uint32_t>(as_bytes(text)); }

  // Overwrites bytes written earlier, such as a length known only now. offset counts from the start.
  void patch_u16(std::size_t offset, uint16_t value) noexcept { patch(offset, value); }
  void patch_u32(std::size_t offset, uint32_t value) noexcept { patch(offset, value); }

  bool ok() const noexcept { return !failed_; }
  std::size_t size() const noexcept { return size_; }  // bytes this writer wrote
  std::span<const uint8_t> written() const noexcept { return {begin(), size_}; }

 private:
  template <class Value>
  void patch(std::size_t offset, Value value) noexcept {
    if (failed_) return;
    if (offset > size_ || size_ - offset < sizeof value) {
      failed_ = true;
      return;
    }
    std::memcpy(begin() + offset, &value, sizeof value);
  }
  static std::span<const uint8_t> as_bytes(std::string_view text) noexcept {
    return {reinterpret_cast<const uint8_t*>(text.data()), text.size()};
  }

  uint8_t* begin() const noexcept { return vector_ != nullptr ? vector_->data() + start_ : fixed_; }

  uint8_t* extend(std::size_t bytes) {
    if (failed_ || bytes > limit_ - size_) {
      failed_ = true;
      return nullptr;
    }
    if (vector_ != nullptr) vector_->resize(start_ + size_ + bytes);
    uint8_t* to = begin() + size_;
    size_ += bytes;
    return to;
  }

  template <class Integer>
  void integer(Integer value) {
    if (uint8_t* to = extend(sizeof value); to != nullptr) std::memcpy(to, &value, sizeof value);
  }

  template <class Length>
  void counted(std::span<const uint8_t> data) {
    if (data.size() > static_cast<Length>(-1) || failed_ || limit_ - size_ < sizeof(Length) ||
        limit_ - size_ - sizeof(Length) < data.size()) {
      failed_ = true;
      return;
    }
    integer(static_cast<Length>(data.size()));
    raw(data);
  }

  std::vector<uint8_t>* vector_ = nullptr;
  uint8_t* fixed_ = nullptr;
  std::size_t start_ = 0;
  std::size_t size_ = 0;
  std::size_t limit_;
  bool failed_ = false;
};

// Reads bytes that must not change meanwhile: copy out of shared memory first. Spans and texts point into
// them.
class WireReader {
 public:
  explicit WireReader(std::span<const uint8_t> data) noexcept : data_(data) {}

  uint8_t u8() noexcept { return integer<uint8_t>(); }
  uint16_t u16() noexcept { return integer<uint16_t>(); }
  uint32_t u32() noexcept { return integer<uint32_t>(); }
  uint64_t u64() noexcept { return integer<uint64_t>(); }
  int32_t i32() noexcept { return integer<int32_t>(); }
  int64_t i64() noexcept { return integer<int64_t>(); }
  double f64() noexcept { return std::bit_cast<double>(integer<uint64_t>()); }

  std::span<const uint8_t> raw(std::size_t bytes) noexcept {
    if (failed_ || bytes > remaining()) {
      failed_ = true;
      return {};
    }
    const std::span<const uint8_t> result = data_.subspan(position_, bytes);
    position_ += bytes;
    return result;
  }
  void skip(std::size_t bytes) noexcept { raw(bytes); }

  // A length of 16 or 32 bits, then the bytes. Longer than max_bytes is a failure.
  std::span<const uint8_t> bytes16(std::size_t max_bytes = UINT16_MAX) noexcept {
    return counted(u16(), max_bytes);
  }
  std::span<const uint8_t> bytes32(std::size_t max_bytes) noexcept { return counted(u32(), max_bytes); }
  std::string_view string16(std::size_t max_bytes = UINT16_MAX) noexcept {
    return text(counted(u16(), max_bytes));
  }
  std::string_view string32(std::size_t max_bytes) noexcept { return text(counted(u32(), max_bytes)); }

  // A 32-bit count of items, each at least item_bytes on the wire: fails, giving 0, when above max_items or
  // when that many can't be in what remains. So it is safe to reserve by it.
  uint32_t count32(uint32_t max_items, std::size_t item_bytes) noexcept {
    const uint32_t count = u32();
    if (count > max_items || (item_bytes != 0 && count > remaining() / item_bytes)) failed_ = true;
    return failed_ ? 0 : count;
  }

  void fail() noexcept { failed_ = true; }  // a field's value was not acceptable
  bool ok() const noexcept { return !failed_; }
  bool finished() const noexcept {
    return !failed_ && position_ == data_.size();
  }  // and nothing is left over
  std::size_t remaining() const noexcept { return failed_ ? 0 : data_.size() - position_; }
  std::size_t position() const noexcept { return position_; }

 private:
  template <class Integer>
  Integer integer() noexcept {
    Integer value = 0;
    if (const auto from = raw(sizeof value); !from.empty()) std::memcpy(&value, from.data(), sizeof value);
    return value;
  }

  std::span<const uint8_t> counted(std::size_t bytes, std::size_t max_bytes) noexcept {
    if (bytes > max_bytes) failed_ = true;
    return raw(bytes);
  }

  static std::string_view text(std::span<const uint8_t> bytes) noexcept {
    return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
  }

  std::span<const uint8_t> data_;
  std::size_t position_ = 0;
  bool failed_ = false;
};

}  // namespace towline
