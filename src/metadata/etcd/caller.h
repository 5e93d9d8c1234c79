// Calls of an etcd, made to the first of its servers that answers. A call is tried at one server after
// another, with pauses after all have failed, until its deadline; if a user is set, it authenticates first.
// Used by one thread.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <set>
#include <string>
#include <vector>

#include "base/sync/timers.h"
#include "metadata/etcd/codec.h"
#include "metadata/etcd/options.h"
#include "metadata/etcd/posts.h"

namespace towline::etcd {

struct RpcAnswer {
  Status status = Status::kOk;
  std::string text;                               // why not: what was tried, where, what to do
  std::string body;                               // when kOk
  std::string server;                             // who answered
  Refusal::Kind refusal = Refusal::Kind::kAgain;  // when a server refused
  bool repeated = false;                          // an earlier attempt may have been carried out too
};

struct Rpc {
  std::string path;  // "/v3/kv/put"
  std::string body;
  std::string what;  // "putting 'a/metadata'"
  uint64_t deadline_ns = 0;
  std::function<void(RpcAnswer&& answer)> done;
  uint64_t attempt_timeout_ns = 0;  // 0: the options'
  bool proves = false;              // is itself how we prove who we are
};

// 50 ms for the first, twice as much for each further, to 2 s; shaken by a quarter so that many clients
// spread out.
uint64_t pause_ns(unsigned number);

class Caller {
 public:
  using Id = uint64_t;  // 0: none
  using Log = std::function<void(int level, const std::string& text)>;

  Caller(const Options& options, Timers& timers, Posts& posts, Log log);

  // done is called once, from http::Client::poll or Timers::run, unless stop() comes first.
  Id start(Rpc rpc);
  void stop(Id& id);
  // Of a call that has not ended: why its last attempt failed, or what it waits for.
  [[nodiscard]] std::string last_failure(Id id) const;

  // For streams, which stay with one server.
  [[nodiscard]] std::size_t current() const { return current_; }
  [[nodiscard]] const std::string& server(std::size_t index) const { return servers_[index].address; }
  [[nodiscard]] const std::string& token() const { return token_; }
  // A server did not answer: calls go to the next one, and streams that are with it should too.
  void failed(std::size_t index, const std::string& why);
  void set_failure_listener(std::function<void(std::size_t server, const std::string& why)> listener) {
    failure_listener_ = std::move(listener);
  }

  // A server that did not answer, and why; else which one is asked.
  [[nodiscard]] std::string last_trouble() const;
  void describe(nlohmann::json& json) const;

 private:
  struct Server {
    std::string address;
    bool answers = false;
    std::string failure{};  // "" when it answers, or was not asked
    uint64_t failures = 0;
  };
  struct Call {
    Rpc rpc;
    uint64_t started_ns = 0;
    Posts::Id post = 0;
    Timers::Id deadline = 0;
    Timers::Id retry = 0;
    std::size_t server = 0;
    unsigned attempts = 0;
    unsigned untrusted = 0;
    unsigned proofs = 0;
    bool repeated = false;
    std::string token;
    Status failure = Status::kTimedOut;
    std::string failure_text;
  };

  [[nodiscard]] bool must_prove(const Call& call) const;
  void attempt(Id id);
  void answered(Id id, PostAnswer&& answer);
  void refused(Id id, Call& call, const PostAnswer& answer);
  void unreached(Id id, Call& call, const PostAnswer& answer);
  void again(Id id, Call& call);
  void finish(Id id, RpcAnswer&& answer);
  void fail_call(Id id, Status status, const std::string& text, Refusal::Kind kind = Refusal::Kind::kFinal);
  void deadline_passed(Id id);
  void prove();
  void proved(RpcAnswer&& answer);
  void start_waiting() noexcept;

  const Options& options_;
  Timers& timers_;
  Posts& posts_;
  Log log_;
  std::vector<Server> servers_;
  std::size_t current_ = 0;
  std::function<void(std::size_t, const std::string&)> failure_listener_;

  std::map<Id, Call> calls_;
  Id last_ = 0;
  std::set<Id> active_;     // with a server now
  std::deque<Id> waiting_;  // for their turn

  std::string token_;
  bool open_to_all_ = false;  // the servers want no proof, though a user is set
  Id proving_ = 0;
  std::set<Id> unproved_;  // calls that wait for the token
};

}  // namespace towline::etcd
