// A worker's connection of its agent to itself: it reaches the objects that this agent registered. Messages
// go round in here and arrive in the next pass.
#pragma once

#include <cstdint>
#include <deque>
#include <string>
#include <vector>

#include "storage/object/job_queue.h"
#include "towline/plugin/backend.hpp"

namespace towline::object {

class Backend;

class Connection {
 public:
  Connection(Backend& backend, uint32_t worker, void* peer)
      : backend_(backend), worker_(worker), peer_(peer) {}
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;

  [[nodiscard]] const plugin::Host& host() const noexcept;
  int32_t import(const towline_region_args& args, const void* token, size_t token_bytes,
                 towline_import** import, char how[64]);
  void unimport(towline_import*) noexcept {}
  void disconnect() noexcept;
  [[nodiscard]] std::string describe() const;

  int32_t prepare(const towline_prepare_args& args, towline_prepared** prepared);
  static void unprepare(towline_prepared* prepared) noexcept { delete static_cast<Prepared*>(prepared); }
  static int32_t submit(towline_prepared* prepared, const towline_submit_args& args) noexcept {
    auto& mine = *static_cast<Prepared*>(prepared);
    return mine.queue->submit(mine, args);
  }
  int32_t send(const void* message, size_t bytes) noexcept;
  void cancel(uint64_t cookie) noexcept;

  // From the backend.
  uint32_t deliver() noexcept;
  [[nodiscard]] bool has_messages() const noexcept { return !messages_.empty(); }
  [[nodiscard]] uint32_t worker() const noexcept { return worker_; }

 private:
  Backend& backend_;
  const uint32_t worker_;
  void* const peer_;
  std::deque<std::vector<uint8_t>> messages_;
};

}  // namespace towline::object
