// 3FS by its client's usrbio: each thread has memory that the client shares, and a ring for each direction. Bytes are
// copied between that memory and the application's, which the client therefore never touches.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "storage/hf3fs/usrbio_api.h"
#include "storing/calls/library.h"
#include "storing/own_connection.h"

namespace towline::hf3fs {

struct CallerSettings {
  std::string mount_point;
  uint32_t entries = 0;  // of a ring
  uint64_t bytes = 0;    // of the shared memory
};

class Hf3fs final : public calls::Library {
 public:
  static constexpr storing::Names kNames = {"hf3fs", "files"};
  static constexpr const char* kScheme = "hf3fs";

  // Throws plugin::Failure naming what is missing.
  explicit Hf3fs(const plugin::Host& host);

  [[nodiscard]] const calls::PoolSettings& pool() const noexcept { return pool_; }
  [[nodiscard]] const char* name() const noexcept override { return kNames.backend; }
  [[nodiscard]] uint32_t kinds() const noexcept override;
  [[nodiscard]] std::unique_ptr<calls::Caller> make_caller() override;
  void* attach(const calls::PlainFile& file) override;
  void detach(const calls::PlainFile& file, void* handle) noexcept override;

 private:
  const calls::PoolSettings pool_;
  const std::string mount_point_;
  const Api api_;
};

class Hf3fsCaller final : public calls::Caller {
 public:
  Hf3fsCaller(const Api& api, CallerSettings settings);
  ~Hf3fsCaller() override;
  Hf3fsCaller(const Hf3fsCaller&) = delete;
  Hf3fsCaller& operator=(const Hf3fsCaller&) = delete;

  void move(bool write, std::span<calls::Piece> pieces) noexcept override;

 private:
  // Errno, or 0.
  [[nodiscard]] int open() noexcept;
  void close() noexcept;
  // As many pieces as the shared memory and a ring take.
  [[nodiscard]] size_t fits(std::span<const calls::Piece> pieces) const noexcept;
  void move_some(bool write, std::span<calls::Piece> pieces) noexcept;
  // False: the ring is in an unknown state.
  [[nodiscard]] bool await(const Ior& ring, std::span<calls::Piece> pieces) noexcept;

  const Api& api_;
  const CallerSettings settings_;
  std::optional<Iov> shared_;
  std::optional<Ior> reads_;
  std::optional<Ior> writes_;
  std::vector<Completion> completions_;
};

}  // namespace towline::hf3fs
