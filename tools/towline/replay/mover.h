// Moves pages of requests between two ranks: cuts a request into transfers that respect the library's limits,
// posts them, posts them again after a broken connection, and keeps the times.
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <string>
#include <towline/towline.hpp>
#include <unordered_map>
#include <vector>

#include "replay/message.h"
#include "replay/model.h"
#include "samples.h"

namespace tool::replay {

struct MoveOptions {
  bool pulls = true;  // from the remote list to the local one
  std::string backend;
  uint32_t workers = 1;
  std::chrono::nanoseconds timeout{};
};

// The part of two pools that one prefill and one decode rank share, as seen from one of them.
struct PoolPair {
  PoolPair(const towline::Agent& agent, const towline::Peer& peer, const PoolLayout& mine,
           const PoolLayout& theirs, HeadRange shared)
      : local(mine),
        remote(theirs),
        heads(shared),
        local_list(agent.block_list(mine.blocks(shared))),
        remote_list(peer.block_list(theirs.blocks(shared))) {}

  PoolLayout local;
  PoolLayout remote;
  HeadRange heads;
  towline::BlockList local_list;
  towline::BlockList remote_list;
};

// For the user. `route` is the result of Transfer::route().
[[nodiscard]] std::string describe_failure(uint32_t request, uint64_t blocks, int attempts,
                                           towline::Status outcome, const std::string& route);

class Mover {
 public:
  Mover(towline::Agent& agent, MoveOptions options) : agent_(agent), options_(std::move(options)) {}

  // Moves whole pages, local_pages[i] against remote_pages[i], in every layer. Each transfer carries a notice
  // of type `message` for `request`. `consumer` is returned with the request when everything is moved.
  void start(const PoolPair& pools, uint32_t request, uint32_t consumer, MessageType message,
             const std::vector<uint32_t>& local_pages, const std::vector<uint32_t>& remote_pages);

  struct Ended {
    uint32_t request = 0;
    uint32_t consumer = 0;
  };
  // Posts waiting transfers and collects outcomes. Returns the calls of start() that are complete. Throws
  // Failure when a transfer fails for good.
  [[nodiscard]] std::vector<Ended> advance();
  [[nodiscard]] bool idle() const { return parts_.empty(); }
  // True when posts wait for credit: advance() again soon.
  [[nodiscard]] bool waiting() const { return !unposted_.empty(); }

  [[nodiscard]] uint64_t bytes() const { return bytes_; }
  [[nodiscard]] uint64_t blocks() const { return blocks_; }
  [[nodiscard]] uint64_t transfers() const { return transfers_; }
  [[nodiscard]] uint64_t retries() const { return retries_; }
  // Seconds from post to outcome of each transfer, and during which at least one was in flight.
  [[nodiscard]] const Samples& latencies() const { return latencies_; }
  [[nodiscard]] double active_s() const { return active_s_; }
  [[nodiscard]] const std::string& route() const { return route_; }

 private:
  using Clock = std::chrono::steady_clock;
  struct Group {
    Ended what;
    uint32_t parts_left = 0;
  };
  struct Part {
    towline::Transfer transfer;
    uint64_t group = 0;
    uint64_t bytes = 0;
    uint64_t blocks = 0;
    int attempts = 0;
    Clock::time_point posted_at{};
    bool in_flight = false;
  };

  [[nodiscard]] bool fenced(const Part& part) const;
  void post(uint64_t id, std::vector<Ended>& ended);
  void end(uint64_t id, towline::Status outcome, std::vector<Ended>& ended);

  towline::Agent& agent_;
  MoveOptions options_;
  uint64_t next_id_ = 1;
  std::unordered_map<uint64_t, Part> parts_;
  std::unordered_map<uint64_t, Group> groups_;
  std::deque<uint64_t> unposted_;
  size_t in_flight_ = 0;
  Clock::time_point active_since_{};
  double active_s_ = 0;
  uint64_t bytes_ = 0;
  uint64_t blocks_ = 0;
  uint64_t transfers_ = 0;
  uint64_t retries_ = 0;
  Samples latencies_;
  std::string route_;
};

}  // namespace tool::replay
