// Files by the engine of a plugin of NIXL's interface: libplugin_<NAME>.so, built from source or inside NVIDIA's wheel.
//
// A batch of pieces becomes one request of the engine, which is prepared, posted, asked until it has ended, and released.
// An engine has no fence: after a request that missed its deadline only the plugin knows whether bytes still land, and
// such a part is completed without fences.
#pragma once

#include <array>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "base/os/unique_fd.h"
#include "nixl_plugins/engine.h"
#include "storing/calls/library.h"
#include "storing/own_connection.h"
#include "towline/plugin/backend.hpp"

namespace towline::nixl_files {

using nixl_plugins::ask;
using nixl_plugins::Engine;

// Memory or a file that the engine knows.
struct Known {
  UniqueFd fd{};  // of a file, the engine's own: it may go on using it when the application's is closed
  nixlBackendMD* metadata = nullptr;
  nixlBackendMD* own = nullptr;  // as the other side of a request; may be `metadata` itself
  uint64_t bytes = 0;            // of memory
};

class Nixl final : public calls::Library {
 public:
  static constexpr storing::Names kNames = {"nixl", "files"};
  static constexpr const char* kScheme = "nixl";

  // Throws plugin::Failure.
  explicit Nixl(const plugin::Host& host);
  ~Nixl() override;
  Nixl(const Nixl&) = delete;
  Nixl& operator=(const Nixl&) = delete;

  [[nodiscard]] const calls::PoolSettings& pool() const noexcept { return pool_; }
  [[nodiscard]] const char* name() const noexcept override { return kNames.backend; }
  [[nodiscard]] uint32_t kinds() const noexcept override;
  [[nodiscard]] std::unique_ptr<calls::Caller> make_caller() override;
  void* attach(const calls::PlainFile& file) override;
  void detach(const calls::PlainFile& file, void* handle) noexcept override;
  [[nodiscard]] bool registers_host_memory() const noexcept override { return true; }
  [[nodiscard]] bool add_memory(const towline_region_ref& region) override;
  void remove_memory(const towline_region_ref& region) noexcept override;

  // ---- for callers
  [[nodiscard]] Engine& engine() noexcept { return *engine_; }
  [[nodiscard]] uint64_t timeout_ns() const noexcept { return timeout_ns_; }
  // The engine's metadata of the registered memory that holds all of this, null where the engine keeps none; nothing: no
  // such memory is registered.
  [[nodiscard]] std::optional<nixlBackendMD*> metadata_of(uint64_t address, uint64_t bytes);

 private:
  [[nodiscard]] Known add(nixl_mem_t kind, const nixlBlobDesc& desc, bool as_other_side);
  // False: a request that was not ended may use it, so it stays.
  [[nodiscard]] bool remove(const Known& known) noexcept;

  const calls::PoolSettings pool_;
  const uint64_t timeout_ns_;
  std::optional<Engine> engine_;
  std::mutex mutex_;
  std::multimap<uint64_t, Known> memory_;  // by address; under the mutex
};

// A thread's requests, one at a time.
class NixlCaller final : public calls::Caller {
 public:
  explicit NixlCaller(Nixl& of) : nixl_(of) {}
  void move(bool write, std::span<calls::Piece> pieces) noexcept override;

 private:
  struct Request;
  [[nodiscard]] static uint64_t bytes_there(const calls::Piece& piece) noexcept;
  void run(bool write, std::span<calls::Piece> pieces);
  // NIXL_IN_PROG: it did not end by its deadline.
  [[nodiscard]] nixl_status_t finish(Request& request);

  Nixl& nixl_;
};

}  // namespace towline::nixl_files
