// A worker's connection of its agent with itself: it reaches the objects that this agent registered.
#pragma once

#include <cstdint>
#include <string>

#include "storage/object/job_queue.h"
#include "storing/own_connection.h"

namespace towline::object {

class Backend;

class Connection : public storing::OwnConnection {
 public:
  Connection(Backend& backend, uint32_t worker, void* peer);

  int32_t import(const towline_region_args& args, const void* token, size_t token_bytes,
                 towline_import** import, char how[64]);
  void disconnect() noexcept;
  [[nodiscard]] std::string describe() const;

  int32_t prepare(const towline_prepare_args& args, towline_prepared** prepared);
  static void unprepare(towline_prepared* prepared) noexcept { delete static_cast<Prepared*>(prepared); }
  static int32_t submit(towline_prepared* prepared, const towline_submit_args& args) noexcept {
    auto& mine = *static_cast<Prepared*>(prepared);
    return mine.queue->submit(mine, args);
  }
  void cancel(uint64_t cookie) noexcept;

 private:
  Backend& backend_;
};

}  // namespace towline::object
