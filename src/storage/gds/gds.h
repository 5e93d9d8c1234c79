// GPUDirect Storage: files to and from GPU and host memory by NVIDIA's cuFile.
//
// Each thread has a batch of cuFile's. Where the library refuses batches (compatibility mode of some versions, file
// systems), and for a piece alone, its plain calls are used.
#pragma once

#include <map>
#include <memory>
#include <vector>

#include "gpu/driver_api.h"
#include "storage/gds/cufile_api.h"
#include "storing/calls/library.h"
#include "storing/own_connection.h"

namespace towline::gds {

enum class Mode { kAuto, kBatch, kCalls };

class Gds final : public calls::Library {
 public:
  static constexpr storing::Names kNames = {"gds", "files"};
  static constexpr const char* kScheme = "gds";

  // Throws plugin::Failure naming what is missing.
  explicit Gds(const plugin::Host& host);

  [[nodiscard]] const calls::PoolSettings& pool() const noexcept { return pool_; }
  [[nodiscard]] const char* name() const noexcept override { return kNames.backend; }
  [[nodiscard]] uint32_t kinds() const noexcept override;
  [[nodiscard]] std::unique_ptr<calls::Caller> make_caller() override;
  void* attach(const calls::PlainFile& file) override;
  void detach(const calls::PlainFile& file, void* handle) noexcept override;
  [[nodiscard]] bool add_memory(const towline_region_ref& region) noexcept override;
  void remove_memory(const towline_region_ref& region) noexcept override;

 private:
  const plugin::Host& host_;
  const calls::PoolSettings pool_;
  const Mode mode_;
  Api api_;
};

class GdsCaller final : public calls::Caller {
 public:
  GdsCaller(const Api& api, Mode mode, uint32_t entries);
  ~GdsCaller() override;
  GdsCaller(const GdsCaller&) = delete;
  GdsCaller& operator=(const GdsCaller&) = delete;

  void move(bool write, std::span<calls::Piece> pieces) noexcept override;

 private:
  // All of one kind of memory and one GPU.
  void move_alike(bool write, std::span<calls::Piece> pieces) noexcept;
  void move_alone(bool write, calls::Piece& piece) const noexcept;
  // False: the batch was refused, and nothing was begun.
  [[nodiscard]] bool move_batch(bool write, std::span<calls::Piece> pieces) noexcept;
  void collect(std::span<calls::Piece> pieces) noexcept;
  [[nodiscard]] bool have_batch() noexcept;
  void drop_batch() noexcept;

  const Api& api_;
  const Mode mode_;
  const uint32_t entries_;
  Batch batch_ = nullptr;
  bool refuses_batches_ = false;
  std::vector<Request> requests_;
  std::vector<Event> events_;
  std::map<uint32_t, cuda::driver::Context> contexts_;  // by GPU
};

}  // namespace towline::gds
