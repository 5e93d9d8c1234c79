// Accounts resources by source address: the sockets that each source holds, and its refusals. So one stranger
// can't use up the descriptors of the process.
//
// Any thread; touched when a connection comes or goes, never by data.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <utility>

#include "base/os/socket_address.h"
#include "base/os/source_key.h"
#include "framing/refusal_budget.h"

namespace towline::tcp {

class Sources {
 public:
  struct Limits {
    uint32_t sockets = 0;             // of all sources together
    uint32_t sockets_per_source = 0;  // of one
  };
  // Half of the descriptors that this process may have, and a quarter for one source.
  static Limits default_limits() noexcept;

  explicit Sources(const Limits& limits) noexcept : limits_(limits) {}
  Sources(const Sources&) = delete;
  Sources& operator=(const Sources&) = delete;

 private:
  struct Source {
    uint32_t sockets = 0;
    framing::RefusalBudget hellos{kHelloBurst};
    std::shared_ptr<framing::RefusalBudget> accesses = std::make_shared<framing::RefusalBudget>();
  };

 public:
  // A socket that counts, as long as this lives. The Sources outlive it.
  class Slot {
   public:
    Slot() noexcept = default;
    Slot(Slot&& other) noexcept : of_(std::exchange(other.of_, nullptr)), source_(other.source_) {}
    Slot& operator=(Slot&& other) noexcept {
      std::swap(of_, other.of_);
      std::swap(source_, other.source_);
      return *this;
    }
    ~Slot() {
      if (of_ != nullptr) of_->give_back(*source_);
    }
    [[nodiscard]] bool taken() const noexcept { return of_ != nullptr; }
    // The budget for refused accesses of this source, for all its connections. Only for a slot that is taken.
    [[nodiscard]] const std::shared_ptr<framing::RefusalBudget>& accesses() const noexcept {
      return source_->accesses;
    }

   private:
    friend class Sources;
    Slot(Sources& of, Source& source) noexcept : of_(&of), source_(&source) {}
    Sources* of_ = nullptr;
    Source* source_ = nullptr;
  };

  // Not taken: a limit is reached.
  Slot take(const SocketAddress& from);
  // A hello of this source is refused. False: too many were lately, and it gets no answer.
  bool note_refusal(const SocketAddress& from, uint64_t now_ns);

 private:
  static constexpr uint64_t kHelloBurst = 256;
  static constexpr std::size_t kMostKept = 1024;

  Source& find(const SocketAddress& from);
  void give_back(Source& source) noexcept;

  const Limits limits_;
  std::mutex mutex_;
  uint32_t sockets_ = 0;
  std::map<SourceKey, Source> sources_;  // those without a socket go when there are too many
};

}  // namespace towline::tcp
