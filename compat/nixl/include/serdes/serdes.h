// Source-compatible with NIXL's header of this name: tagged, length-prefixed strings and buffers, one after
// another.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <string>

#include <nixl_types.h>

// Values are read in the order they were added, each by its tag. Reading never goes beyond the given bytes.
class TOWLINE_NIXL_API nixlSerDes {
 public:
  nixlSerDes();

  nixl_status_t addStr(const std::string& tag, const std::string& str);
  // Empty when the next value is not of this tag or not whole.
  std::string getStr(const std::string& tag);

  nixl_status_t addBuf(const std::string& tag, const void* buf, ssize_t len);
  // The next value's size without taking it; -1 when it is not of this tag.
  ssize_t getBufLen(const std::string& tag) const;
  // NIXL_ERR_MISMATCH when the next value is not of this tag and size.
  nixl_status_t getBuf(const std::string& tag, void* buf, ssize_t len);

  std::string exportStr() const;
  // NIXL_ERR_MISMATCH when it is not of exportStr().
  nixl_status_t importStr(const std::string& sdbuf);

  static std::string _bytesToString(const void* buf, ssize_t size);
  static void _stringToBytes(void* fill_buf, const std::string& s, ssize_t size);

 private:
  // The next value's place, or npos.
  size_t find(const std::string& tag, size_t& size) const;

  std::string bytes_;
  size_t offset_;
};
