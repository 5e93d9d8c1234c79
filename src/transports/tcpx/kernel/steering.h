// Prepares a NIC for receive queues of our own, and sends connections to them: headers are split from payload, other
// packets are spread over the other queues, and a flow rule for each payload socket names one of ours.
//
// All of it is undone: rules with their sockets, the rest when the last process that uses the NIC ends. Changes that
// killed processes left are undone when the next one begins.
#pragma once

#include <cstdint>
#include <mutex>
#include <string>
#include <vector>

#include "transports/tcpx/kernel/ledger.h"
#include "transports/tcpx/kernel/nic.h"

namespace towline::tcpx {

class Steering {
 public:
  // `nic` outlives it. Throws Error: the NIC can't split headers, or its queues can't be kept for us.
  Steering(Nic& nic, std::vector<uint32_t> queues, const std::string& folder);
  ~Steering();
  Steering(const Steering&) = delete;
  Steering& operator=(const Steering&) = delete;

  // Sends what arrives on this connected TCP socket to one of the queues. Throws Error; then packets come by other
  // queues. Any thread.
  [[nodiscard]] FlowRule steer(int socket);
  void end(const FlowRule& rule) noexcept;

  [[nodiscard]] uint32_t rules_found() const noexcept { return rules_found_; }  // of dead processes

 private:
  void undo_the_dead();
  void prepare();
  void restore(const std::string& before);
  bool delete_rule(const FlowRule& rule);

  Nic& nic_;
  const std::vector<uint32_t> queues_;
  std::mutex mutex_;
  Ledger ledger_;
  uint32_t next_queue_ = 0;
  uint32_t rules_found_ = 0;
};

}  // namespace towline::tcpx
