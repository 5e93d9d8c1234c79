// The two paths of a connection whose ends may reach one another's memory: copies from here, for regions that
// allow it, and the framed engine, for messages and for regions that only their owner may touch. The transport
// around it connects the ends and knows when they part.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "framing/connection.h"
#include "towline/plugin/backend.hpp"
#include "transports/direct/job_queue.h"

namespace towline::direct {

// By the worker, under its lock.
class Paths {
 public:
  // Passes of progress in which what a peer that went has left behind may still be delivered.
  static constexpr uint32_t kMostDrainPasses = 4096;

  explicit Paths(JobQueue& jobs) noexcept : jobs_(jobs) {}
  Paths(const Paths&) = delete;
  Paths& operator=(const Paths&) = delete;

  // The connection is up; the engine has its lanes.
  void open(std::unique_ptr<framing::Connection> framed) noexcept {
    framed_ = std::move(framed);
    jobs_.open(*framed_);
  }

  // ---- turning
  uint32_t run_framed(uint64_t now_ns) noexcept;
  // The engine stands on the stack: the connection must not end now.
  [[nodiscard]] bool in_framed() const noexcept { return in_framed_; }
  // Once open.
  [[nodiscard]] framing::Connection& framed() noexcept { return *framed_; }
  [[nodiscard]] const framing::Connection& framed() const noexcept { return *framed_; }
  // It has ended the connection, and told the core so.
  [[nodiscard]] bool framed_down() const noexcept { return framed_->down(); }
  uint32_t run_jobs() noexcept { return jobs_.progress(); }
  [[nodiscard]] bool arm() noexcept { return jobs_.has_work() || framed_->arm(); }
  void disarm() noexcept {
    if (framed_ != nullptr) framed_->disarm();
  }

  // ---- plans and messages
  // For a plan with a region that only its owner may touch. All of it goes that way: one path, one order.
  int32_t prepare_framed(const towline_prepare_args& args, Prepared& prepared);
  static void unprepare(Prepared& prepared) noexcept {
    if (prepared.framed != nullptr) framing::Connection::unprepare(prepared.framed);
  }
  int32_t send(bool up, const void* message, size_t bytes) noexcept;
  void cancel(uint64_t cookie) noexcept {
    if (!jobs_.cancel(cookie) && framed_ != nullptr) framed_->cancel(cookie);
  }

  // ---- the end
  // The connection is lost. False: it was not up yet, and the core does not know.
  [[nodiscard]] bool fail(Status status, const char* text) noexcept;
  // The core wants no more of it.
  void close() noexcept;
  void close_framed() noexcept {
    if (framed_ != nullptr) framed_->close();
  }
  void close_jobs(Status status) noexcept { jobs_.close(status); }

  // "queued_copies": .., "ring": {..}
  [[nodiscard]] std::string describe() const;

 private:
  JobQueue& jobs_;
  std::unique_ptr<framing::Connection> framed_;
  bool in_framed_ = false;
};

}  // namespace towline::direct
