#include "metadata/etcd/caller.h"

#include <fmt/format.h>

#include <algorithm>
#include <new>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/per_thread.h"
#include "base/random.h"

namespace towline::etcd {
namespace {

constexpr std::size_t kMostActive = 32;
constexpr unsigned kMostProofs = 3;
constexpr uint64_t kFirstPauseNs = 50 * kMillisecondNs;
constexpr uint64_t kLongestPauseNs = 2 * kSecondNs;
constexpr uint64_t kProofTimeoutNs = 10 * kSecondNs;
constexpr uint64_t kProofPauseNs = 500 * kMillisecondNs;

struct Jitter {
  Random random{monotonic_now_ns()};
};

}  // namespace

uint64_t pause_ns(unsigned number) {
  const uint64_t pause = std::min(kFirstPauseNs << std::min(number, 10u), kLongestPauseNs);
  return pause - pause / 8 + PerThread<Jitter>::get().random.below(pause / 4 + 1);
}

Caller::Caller(const Options& options, Timers& timers, Posts& posts, Log log)
    : options_(options), timers_(timers), posts_(posts), log_(std::move(log)) {
  for (const std::string& address : options.endpoints) servers_.push_back({address});
}

Caller::Id Caller::start(Rpc rpc) {
  const Id id = ++last_;
  Call& call = calls_[id];
  try {
    call.started_ns = monotonic_now_ns();
    call.deadline = timers_.at(rpc.deadline_ns, [this, id] { deadline_passed(id); });
    call.rpc = std::move(rpc);
    call.retry = timers_.after(0, [this, id] { attempt(id); });
  } catch (...) {
    timers_.cancel(call.deadline);
    calls_.erase(id);
    throw;
  }
  return id;
}

void Caller::stop(Id& id) {
  if (const auto found = calls_.find(id); found != calls_.end()) {
    posts_.stop(found->second.post);
    timers_.cancel(found->second.deadline);
    timers_.cancel(found->second.retry);
    active_.erase(id);
    unproved_.erase(id);
    calls_.erase(found);
    start_waiting();
  }
  id = 0;
}

bool Caller::must_prove(const Call& call) const {
  return !options_.user.empty() && token_.empty() && !open_to_all_ && !call.rpc.proves;
}

void Caller::attempt(Id id) {
  const auto found = calls_.find(id);
  if (found == calls_.end()) return;
  Call& call = found->second;
  timers_.cancel(call.retry);
  if (must_prove(call)) {
    unproved_.insert(id);
    return prove();
  }
  if (active_.size() >= kMostActive && !call.rpc.proves) {
    waiting_.push_back(id);
    return;
  }
  const uint64_t now_ns = monotonic_now_ns();
  const uint64_t left_ns = call.rpc.deadline_ns > now_ns ? call.rpc.deadline_ns - now_ns : 1;
  const uint64_t timeout_ns =
      call.rpc.attempt_timeout_ns != 0 ? call.rpc.attempt_timeout_ns : options_.attempt_timeout_ns;
  call.server = current_;
  call.token = call.rpc.proves ? "" : token_;
  active_.insert(id);
  try {
    call.post = posts_.start({servers_[current_].address + call.rpc.path, call.rpc.body, call.token,
                              std::min(left_ns, timeout_ns), options_.max_answer_bytes},
                             [this, id](PostAnswer&& answer) { answered(id, std::move(answer)); });
  } catch (const Error& error) {
    fail_call(id, error.code(), error.message());
  } catch (...) {
    active_.erase(id);
    throw;
  }
}

void Caller::answered(Id id, PostAnswer&& answer) {
  const auto found = calls_.find(id);
  if (found == calls_.end()) return;
  Call& call = found->second;
  call.post = 0;
  active_.erase(id);
  start_waiting();
  if (answer.end != http::End::kAnswered) return unreached(id, call, answer);
  Server& server = servers_[call.server];
  server.answers = true;
  server.failure.clear();
  if (answer.status / 100 != 2) return refused(id, call, answer);
  finish(id, {Status::kOk, "", std::move(answer.body), server.address, {}, call.repeated});
}

void Caller::refused(Id id, Call& call, const PostAnswer& answer) {
  const Refusal refusal = decode_refusal(answer.status, answer.body);
  const bool unknown = !options_.user.empty() && refusal.text.find("user name is empty") != std::string::npos;
  if ((refusal.kind == Refusal::Kind::kToken || unknown) && !options_.user.empty() && !call.rpc.proves &&
      ++call.proofs <= kMostProofs) {
    // Another call may have renewed it meanwhile.
    if (token_ == call.token) token_.clear();
    open_to_all_ = false;
    return attempt(id);
  }
  if (refusal.kind != Refusal::Kind::kAgain) return fail_call(id, refusal.status, refusal.text, refusal.kind);
  call.failure = refusal.status;
  call.failure_text = fmt::format("{}: {}", servers_[call.server].address, refusal.text);
  call.repeated = true;
  if (current_ == call.server) current_ = (current_ + 1) % servers_.size();
  again(id, call);
}

void Caller::unreached(Id id, Call& call, const PostAnswer& answer) {
  using End = http::End;
  if (answer.end == End::kRefused) return fail_call(id, Status::kLimitExceeded, answer.error);
  if (answer.end == End::kUntrusted && ++call.untrusted >= servers_.size()) {
    return fail_call(id, Status::kPermissionDenied,
                     answer.error + "; check etcd.ca_file, etcd.cert_file and etcd.key_file");
  }
  call.repeated = call.repeated || answer.end == End::kBroken || answer.end == End::kTimedOut;
  call.failure = answer.end == End::kTimedOut ? Status::kTimedOut : Status::kUnreachable;
  call.failure_text = fmt::format("{}: {}", servers_[call.server].address, answer.error);
  const std::size_t server = call.server;
  again(id, call);
  failed(server, answer.error);
}

void Caller::again(Id id, Call& call) {
  const auto round = static_cast<unsigned>(servers_.size());
  ++call.attempts;
  const uint64_t pause = call.attempts % round != 0 ? 0 : pause_ns(call.attempts / round - 1);
  call.retry = timers_.after(pause, [this, id] { attempt(id); });
}

void Caller::finish(Id id, RpcAnswer&& answer) {
  auto node = calls_.extract(id);
  Call& call = node.mapped();
  posts_.stop(call.post);
  timers_.cancel(call.deadline);
  timers_.cancel(call.retry);
  active_.erase(id);
  unproved_.erase(id);
  start_waiting();
  call.rpc.done(std::move(answer));
}

void Caller::fail_call(Id id, Status status, const std::string& text, Refusal::Kind kind) {
  const Call& call = calls_.at(id);
  const std::string& server = servers_[call.server].address;
  finish(id,
         {status, fmt::format("{} at {}: {}", call.rpc.what, server, text), "", server, kind, call.repeated});
}

std::string Caller::last_failure(Id id) const {
  const Call& call = calls_.at(id);
  if (!call.failure_text.empty()) return call.failure_text;
  if (unproved_.contains(id)) return "waiting for the token of the user";
  return fmt::format("{} has not answered", servers_[call.server].address);
}

void Caller::deadline_passed(Id id) {
  const Call& call = calls_.at(id);
  RpcAnswer answer;
  answer.status = call.failure;
  answer.repeated = call.repeated || call.post != 0;
  try {
    const double seconds = static_cast<double>(monotonic_now_ns() - call.started_ns) * 1e-9;
    answer.text = fmt::format("{}: no success within {:.1f} s at {} server{}; last: {}", call.rpc.what,
                              seconds, servers_.size(), servers_.size() == 1 ? "" : "s", last_failure(id));
    answer.server = servers_[call.server].address;
  } catch (const std::bad_alloc&) {  // it ends all the same
  }
  finish(id, std::move(answer));
}

// Destructors stop calls, too. Without memory: when the next call ends.
void Caller::start_waiting() noexcept try {
  while (!waiting_.empty() && active_.size() < kMostActive) {
    const Id id = waiting_.front();
    const auto found = calls_.find(id);
    if (found != calls_.end()) found->second.retry = timers_.after(0, [this, id] { attempt(id); });
    waiting_.pop_front();
    if (found != calls_.end()) return;  // the next when this one is under way, or has ended
  }
} catch (const std::bad_alloc&) {
}

void Caller::failed(std::size_t index, const std::string& why) {
  Server& server = servers_[index];
  if (server.answers || server.failures == 0)
    log_(2, fmt::format("{} does not answer: {}", server.address, why));
  server.answers = false;
  server.failure = why;
  ++server.failures;
  if (current_ == index) current_ = (current_ + 1) % servers_.size();
  if (failure_listener_) failure_listener_(index, why);
}

// ---- who we are

void Caller::prove() {
  if (proving_ != 0) return;
  Rpc rpc;
  rpc.path = "/v3/auth/authenticate";
  rpc.body = authenticate_request(options_.user, options_.password);
  rpc.what = fmt::format("proving to be user '{}'", shown(options_.user));
  rpc.deadline_ns = monotonic_now_ns() + kProofTimeoutNs;
  rpc.proves = true;
  rpc.done = [this](RpcAnswer&& answer) { proved(std::move(answer)); };
  proving_ = start(std::move(rpc));
}

void Caller::proved(RpcAnswer&& answer) {
  proving_ = 0;
  if (answer.status == Status::kOk) {
    try {
      token_ = decode_token(answer.body);
    } catch (const Error& error) {
      answer = {Status::kProtocol,
                fmt::format("{}: {}", answer.server, error.message()),
                "",
                answer.server,
                Refusal::Kind::kFinal,
                false};
    }
  } else if (answer.refusal == Refusal::Kind::kNoAuth) {
    log_(1, "a user is set, but etcd has authentication turned off: anyone may change what is there");
    open_to_all_ = true;
    answer.status = Status::kOk;
  }
  const std::set<Id> unproved = std::move(unproved_);
  unproved_.clear();
  const bool for_good = answer.status != Status::kOk && answer.refusal == Refusal::Kind::kFinal;
  for (const Id id : unproved) {
    const auto found = calls_.find(id);
    if (found == calls_.end()) continue;
    Call& call = found->second;
    if (for_good) {
      finish(id, {answer.status, fmt::format("{}: {}", call.rpc.what, answer.text), "", answer.server,
                  Refusal::Kind::kFinal, call.repeated});
      continue;
    }
    if (answer.status != Status::kOk) {
      call.failure = answer.status;
      call.failure_text = answer.text;
    }
    const uint64_t pause = answer.status == Status::kOk ? 0 : kProofPauseNs;
    call.retry = timers_.after(pause, [this, id] { attempt(id); });
  }
}

std::string Caller::last_trouble() const {
  for (const Server& server : servers_)
    if (!server.failure.empty()) return fmt::format("{}: {}", server.address, server.failure);
  return fmt::format("{} was asked", servers_[current_].address);
}

void Caller::describe(nlohmann::json& json) const {
  nlohmann::json servers = nlohmann::json::array();
  for (std::size_t i = 0; i < servers_.size(); ++i) {
    const Server& server = servers_[i];
    nlohmann::json entry = {
        {"address", server.address}, {"answers", server.answers}, {"failures", server.failures}};
    if (!server.failure.empty()) entry["failure"] = shown(server.failure);
    if (i == current_) entry["current"] = true;
    servers.push_back(std::move(entry));
  }
  json["servers"] = std::move(servers);
  json["calls"] = calls_.size();
}

}  // namespace towline::etcd
