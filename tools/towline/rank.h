// The common part of the processes of a bench or replay: an agent, an outbox, a way to sleep until something
// happens, and the channel to the process that started them.
#pragma once

#include <chrono>
#include <deque>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <towline/towline.hpp>

#include "channel.h"

namespace tool {

// The parent told this process to end, or is gone.
struct Stopped {};

class Rank {
 public:
  Rank(const std::string& name, const towline::AgentOptions& options, Channel& parent)
      : agent_(name, options), parent_(parent) {}

  [[nodiscard]] towline::Agent& agent() { return agent_; }
  void report(const nlohmann::json& message) { parent_.send(message); }

  // Sends a notice, or keeps it until there is credit for it. Peers are identified by name.
  void send(towline::Peer& peer, std::string message);
  // True when nothing waits to be sent.
  [[nodiscard]] bool sent_all() const;

  // Sends waiting messages, then sleeps until a notice, a completion or a message from the parent arrives, or
  // the time is over. Throws Stopped.
  void wait(std::chrono::milliseconds timeout);
  // Waits for the parent's next message that has `key`, as long as the parent lives. Throws Stopped.
  [[nodiscard]] nlohmann::json wait_for_parent(const std::string& key);

 private:
  struct Outgoing {
    towline::Peer* peer = nullptr;
    std::deque<std::string> messages;
  };

  // True when something could not be sent yet.
  bool flush();
  void listen_to_parent();

  towline::Agent agent_;
  Channel& parent_;
  std::deque<nlohmann::json> from_parent_;
  std::map<std::string, Outgoing> outbox_;
};

// Since when nothing has happened; a rank that waits for its peers gives up after a while.
class Patience {
 public:
  explicit Patience(std::chrono::seconds limit) : limit_(limit) {}
  void renew() { since_ = std::chrono::steady_clock::now(); }
  [[nodiscard]] bool exhausted() const { return std::chrono::steady_clock::now() - since_ > limit_; }
  [[nodiscard]] std::chrono::seconds limit() const { return limit_; }

 private:
  std::chrono::seconds limit_;
  std::chrono::steady_clock::time_point since_ = std::chrono::steady_clock::now();
};

// Watches peers on other hosts, whose end no parent here notices. It is an error once one of them has been
// lost for a while; a short interruption of the network is not.
class Absence {
 public:
  // Call regularly with a peer that is lost now, or null. Throws Failure.
  void note(const towline::Peer* lost);

 private:
  std::optional<std::chrono::steady_clock::time_point> since_;
};

}  // namespace tool
