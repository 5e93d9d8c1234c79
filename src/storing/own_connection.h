// A worker's connection of its agent to itself, over which a storage backend reaches the storage that the
// agent registered. Messages loop back inside it and arrive in the next pass.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <span>
#include <vector>

#include "towline/plugin/backend.hpp"

namespace towline::storing {

// The names that errors use for a backend and its storage ("files").
struct Names {
  const char* backend;
  const char* stored;
};

class OwnConnection {
 public:
  OwnConnection(const plugin::Host& host, const Names& names, uint32_t worker, void* peer)
      : host_(host), names_(names), worker_(worker), peer_(peer) {}
  OwnConnection(const OwnConnection&) = delete;
  OwnConnection& operator=(const OwnConnection&) = delete;

  [[nodiscard]] const plugin::Host& host() const noexcept { return host_; }
  [[nodiscard]] uint32_t worker() const noexcept { return worker_; }
  void unimport(towline_import*) noexcept {}
  int32_t send(const void* message, size_t bytes) noexcept;
  // A part has ended so: its message follows its bytes. A message that can't be sent becomes the part's
  // outcome: its bytes are there, and nobody learns of them.
  void send_after(std::span<const uint8_t> message, towline_part_result& result) noexcept;

  // From the backend.
  uint32_t deliver() noexcept;
  [[nodiscard]] bool has_messages() const noexcept { return !messages_.empty(); }

 protected:
  ~OwnConnection() = default;

  // Reads the token that OwnBackend::add wrote.
  [[nodiscard]] int32_t read_token(const void* token, size_t bytes, uint64_t& id) const;
  // Refuses a plan whose local list is not memory of the processor's.
  [[nodiscard]] int32_t check_local_list(const towline_plan& plan) const;

 private:
  const plugin::Host& host_;
  const Names& names_;
  const uint32_t worker_;
  void* const peer_;
  std::deque<std::vector<uint8_t>> messages_;
};

}  // namespace towline::storing
