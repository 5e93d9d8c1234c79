// nixlSerDes. A value is its tag, its size in 8 bytes, its bytes and a '|'; sizes are as the machine has
// them.
#include <serdes/serdes.h>

#include <cstring>

#include "log.h"

namespace {

constexpr std::string_view kHead = "nixlSerDes|";
constexpr size_t kSizeBytes = sizeof(uint64_t);

nixl_status_t unreadable(const std::string& tag, const char* why) {
  return towline::nixl::fail(NIXL_ERR_MISMATCH, "nixlSerDes: the value '{}' {}", tag, why);
}

}  // namespace

nixlSerDes::nixlSerDes() : bytes_(kHead), offset_(kHead.size()) {}

nixl_status_t nixlSerDes::addStr(const std::string& tag, const std::string& str) {
  return addBuf(tag, str.data(), static_cast<ssize_t>(str.size()));
}

nixl_status_t nixlSerDes::addBuf(const std::string& tag, const void* buf, ssize_t len) {
  if (len < 0 || (buf == nullptr && len != 0)) {
    return towline::nixl::fail(NIXL_ERR_INVALID_PARAM, "nixlSerDes: {} bytes for '{}'", len, tag);
  }
  const uint64_t size = static_cast<uint64_t>(len);
  bytes_.append(tag);
  bytes_.append(reinterpret_cast<const char*>(&size), kSizeBytes);
  bytes_.append(static_cast<const char*>(buf), size);
  bytes_.push_back('|');
  return NIXL_SUCCESS;
}

size_t nixlSerDes::find(const std::string& tag, size_t& size) const {
  const size_t left = bytes_.size() - offset_;
  if (left < tag.size() + kSizeBytes || bytes_.compare(offset_, tag.size(), tag) != 0)
    return std::string::npos;
  uint64_t stored = 0;
  std::memcpy(&stored, bytes_.data() + offset_ + tag.size(), kSizeBytes);
  // The value and the '|' after it must be there too.
  if (stored >= left - tag.size() - kSizeBytes) return std::string::npos;
  size = stored;
  return offset_ + tag.size() + kSizeBytes;
}

std::string nixlSerDes::getStr(const std::string& tag) {
  size_t size = 0;
  const size_t at = find(tag, size);
  if (at == std::string::npos) {
    unreadable(tag, "is not the next one, or not whole");
    return {};
  }
  offset_ = at + size + 1;
  return bytes_.substr(at, size);
}

ssize_t nixlSerDes::getBufLen(const std::string& tag) const {
  size_t size = 0;
  if (find(tag, size) != std::string::npos) return static_cast<ssize_t>(size);
  unreadable(tag, "is not the next one, or not whole");
  return -1;
}

nixl_status_t nixlSerDes::getBuf(const std::string& tag, void* buf, ssize_t len) {
  size_t size = 0;
  const size_t at = find(tag, size);
  if (at == std::string::npos) return unreadable(tag, "is not the next one, or not whole");
  if (len < 0 || static_cast<size_t>(len) != size) return unreadable(tag, "has another size");
  if (size != 0) std::memcpy(buf, bytes_.data() + at, size);
  offset_ = at + size + 1;
  return NIXL_SUCCESS;
}

std::string nixlSerDes::exportStr() const { return bytes_; }

nixl_status_t nixlSerDes::importStr(const std::string& sdbuf) {
  if (!sdbuf.starts_with(kHead)) {
    return towline::nixl::fail(NIXL_ERR_MISMATCH, "nixlSerDes: these {} bytes start otherwise", sdbuf.size());
  }
  bytes_ = sdbuf;
  offset_ = kHead.size();
  return NIXL_SUCCESS;
}

std::string nixlSerDes::_bytesToString(const void* buf, ssize_t size) {
  return {static_cast<const char*>(buf), static_cast<size_t>(size)};
}

void nixlSerDes::_stringToBytes(void* fill_buf, const std::string& s, ssize_t size) {
  s.copy(static_cast<char*>(fill_buf), static_cast<size_t>(size));
}
