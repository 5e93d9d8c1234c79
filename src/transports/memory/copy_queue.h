// The data path of one connection where bytes are copied from pointer to pointer: plans up to a limit inside
// submit, larger ones in slices, one in each progress(), in turns. Nothing of a part is copied after its
// completion.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "framing/connection.h"
#include "plan/direct_copy.h"
#include "towline/plugin/backend.hpp"
#include "transports/memory/link.h"

namespace towline::memory {

class CopyQueue;

// A plan prepared on a connection: either handed on to the framed engine, or copied from here.
struct Prepared : plugin::PreparedBase {
  towline_prepared* framed = nullptr;  // not null: everything goes through it
  CopyQueue* queue = nullptr;
  uint32_t op = 0;
  uint8_t* contiguous_to = nullptr;  // not null: the whole plan is one piece
  const uint8_t* contiguous_from = nullptr;
  std::vector<uint64_t> deltas;  // one for each remote region
};

class CopyQueue {
 public:
  CopyQueue(const plugin::Host& host, uint32_t worker, Link& link, uint32_t side,
            uint64_t inline_bytes) noexcept
      : host_(host), worker_(worker), link_(link), side_(side), inline_bytes_(inline_bytes) {}
  CopyQueue(const CopyQueue&) = delete;
  CopyQueue& operator=(const CopyQueue&) = delete;

  void open(framing::Connection& framed) noexcept { framed_ = &framed; }
  [[nodiscard]] uint64_t inline_bytes() const noexcept { return inline_bytes_; }

  // v1.h's submit. Any thread, as far as v1.h says so.
  [[nodiscard]] int32_t submit(Prepared& prepared, const towline_submit_args& args) noexcept;

  // The worker, under its lock.
  bool cancel(uint64_t cookie) noexcept;  // false: not a part of ours
  uint32_t progress() noexcept;
  [[nodiscard]] bool has_copies() const noexcept;
  [[nodiscard]] size_t queued() const noexcept { return queued_; }
  // Nothing is copied any more; parts in flight end with `status`.
  void close(Status status) noexcept;

 private:
  struct Job {
    Job* next = nullptr;
    uint64_t cookie = 0;
    uint64_t begin = 0;
    uint64_t end = 0;
    uint64_t position = 0;  // of the plan: everything from begin to it is copied
    Status status = Status::kOk;
    bool ended = false;  // copied (the message may still have to go), failed or cancelled
    std::optional<DirectCopy> copy;
    std::vector<uint8_t> message;
  };

  int32_t enqueue(Prepared& prepared, const towline_submit_args& args, bool copied) noexcept;
  bool send_message(Job& job) noexcept;
  void append(Job* job) noexcept;
  Job* take_first() noexcept;
  void complete(Job* job) noexcept;

  const plugin::Host host_;
  const uint32_t worker_;
  Link& link_;
  const uint32_t side_;
  const uint64_t inline_bytes_;
  framing::Connection* framed_ = nullptr;
  std::atomic<bool> down_{false};

  Job* head_ = nullptr;
  Job** tail_ = &head_;
  size_t queued_ = 0;
  std::vector<std::unique_ptr<Job>> jobs_;  // all that were ever needed at once
  Job* free_ = nullptr;
};

}  // namespace towline::memory
