// An open file, for libraries that move its bytes by its descriptor.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>

#include "base/os/unique_fd.h"
#include "towline/plugin/v1.h"

namespace towline::calls {

class PlainFile {
 public:
  // "scheme:/path" or "scheme:path", taken literally. Throws plugin::Failure naming the path and what is wrong with it.
  PlainFile(const char* scheme, const towline_storage_args& args);
  PlainFile(const PlainFile&) = delete;
  PlainFile& operator=(const PlainFile&) = delete;
  ~PlainFile();

  static towline_storage_attributes query(const char* scheme, const char* uri);

  // Everything written is durable; a replacement takes its place. Throws plugin::Failure.
  void commit();
  // For a WRITE with a sync policy: an errno or 0. Any thread.
  [[nodiscard]] int sync() const noexcept;

  [[nodiscard]] int fd() const noexcept { return fd_.get(); }
  [[nodiscard]] bool syncs() const noexcept { return sync_ != 0; }
  [[nodiscard]] bool committed() const noexcept { return committed_.load(std::memory_order_acquire); }
  [[nodiscard]] bool direct() const noexcept { return direct_; }
  [[nodiscard]] uint64_t id() const noexcept { return id_; }
  [[nodiscard]] const std::string& path() const noexcept { return path_; }
  [[nodiscard]] const towline_storage_attributes& attributes() const noexcept { return attributes_; }

 private:
  const uint64_t id_;
  std::string path_;
  std::string hidden_;  // the name of a replacement until it is committed; empty: none
  UniqueFd fd_;
  uint32_t sync_ = 0;
  bool direct_ = false;
  std::atomic<bool> committed_{false};
  towline_storage_attributes attributes_ = {};
};

}  // namespace towline::calls
