#include "metadata/etcd/keeper.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/error.h"

namespace towline::etcd {
namespace {

constexpr uint64_t kGrantTimeoutNs = 10 * kSecondNs;
constexpr uint64_t kPutAgainTimeoutNs = 10 * kSecondNs;
constexpr uint64_t kTryAgainNs = 500 * kMillisecondNs;

}  // namespace

Status settle_create(const RpcAnswer& answer, std::string_view value, CreateAnswer& decoded) {
  decoded = decode_create(answer.body);
  if (decoded.created) return Status::kOk;
  const bool ours = answer.repeated && !decoded.present.empty() && decoded.present[0].value == value;
  return ours ? Status::kOk : Status::kAlreadyExists;
}

Keeper::Keeper(const Options& options, Timers& timers, Caller& caller, Caller::Log log)
    : options_(options), timers_(timers), caller_(caller), log_(std::move(log)) {}

// ---- puts

void Keeper::put(Put put) {
  const uint64_t number = ++last_put_;
  puts_.emplace(number, Pending{std::move(put)});
  try {
    with_lease(number);
  } catch (...) {
    if (const auto waiting = unleased_.find(number); waiting != unleased_.end()) {
      timers_.cancel(waiting->second);
      unleased_.erase(waiting);
    }
    puts_.erase(number);
    throw;
  }
}

void Keeper::with_lease(uint64_t number) {
  if (lease_ != 0) return try_put(number);
  unleased_[number] = timers_.at(puts_.at(number).put.deadline_ns, [this, number] {
    const std::string what = fmt::format("putting '{}': no server has granted a lease in time; last: {}",
                                         shown(puts_.at(number).put.key),
                                         granting_ != 0 ? caller_.last_failure(granting_) : grant_failure_);
    end_put(number, {Status::kUnreachable, what, "", "", Refusal::Kind::kAgain, false});
  });
  grant();
}

void Keeper::try_put(uint64_t number) {
  Pending& pending = puts_.at(number);
  const Put& put = pending.put;
  Rpc rpc;
  rpc.path = put.create ? "/v3/kv/txn" : "/v3/kv/put";
  rpc.body =
      put.create ? create_request(put.key, put.value, lease_) : put_request(put.key, put.value, lease_);
  rpc.what = fmt::format("putting '{}'", shown(put.key));
  rpc.deadline_ns = put.deadline_ns;
  rpc.done = [this, number, lease = lease_](RpcAnswer&& answer) {
    if (answer.status != Status::kOk && answer.refusal == Refusal::Kind::kNoLease) {
      lost(lease, "a server no longer knows it");
      return with_lease(number);
    }
    put_ended(number, lease, std::move(answer));
  };
  pending.call = caller_.start(std::move(rpc));
}

void Keeper::put_ended(uint64_t number, uint64_t lease, RpcAnswer&& answer) {
  const Put& put = puts_.at(number).put;
  if (answer.status == Status::kOk) {
    try {
      CreateAnswer created;
      if (!put.create) {
        (void)decode_header(answer.body);
      } else if (settle_create(answer, put.value, created) != Status::kOk) {
        answer.status = Status::kAlreadyExists;
        answer.text = fmt::format("putting '{}': the key is there", shown(put.key));
      }
    } catch (const Error& error) {
      answer.status = Status::kProtocol;
      answer.text = fmt::format("putting '{}' at {}: {}", shown(put.key), answer.server, error.message());
    }
  }
  if (answer.status == Status::kOk) {
    kept_[put.key] = {put.value, lease, 0};
    // The lease may have gone, and what was kept been put again, while this was under way.
    if (lease_ != 0 && lease != lease_) put_again(put.key);
  }
  end_put(number, std::move(answer));
}

void Keeper::end_put(uint64_t number, RpcAnswer&& answer) {
  if (const auto waiting = unleased_.find(number); waiting != unleased_.end()) {
    timers_.cancel(waiting->second);
    unleased_.erase(waiting);
  }
  auto node = puts_.extract(number);
  node.mapped().put.done(std::move(answer));
}

void Keeper::forget(const std::string& key, bool prefix) {
  if (!prefix) {
    kept_.erase(key);
    return;
  }
  auto at = kept_.lower_bound(key);
  while (at != kept_.end() && at->first.starts_with(key)) at = kept_.erase(at);
}

// ---- the lease

void Keeper::grant() {
  if (granting_ != 0 || revoking_) return;
  timers_.cancel(next_);
  Rpc rpc;
  rpc.path = "/v3/lease/grant";
  rpc.body = grant_request(options_.lease_s);
  rpc.what = fmt::format("asking for a lease of {} s", options_.lease_s);
  rpc.deadline_ns = monotonic_now_ns() + kGrantTimeoutNs;
  rpc.done = [this](RpcAnswer&& answer) { granted(std::move(answer)); };
  granting_ = caller_.start(std::move(rpc));
}

void Keeper::granted(RpcAnswer&& answer) {
  granting_ = 0;
  if (revoking_) return;
  if (answer.status == Status::kOk) {
    try {
      const LeaseAnswer lease = decode_grant(answer.body);
      lease_ = lease.id;
      ttl_s_ = lease.ttl_s;
    } catch (const Error& error) {
      answer.status = Status::kProtocol;
      answer.refusal = Refusal::Kind::kFinal;
      answer.text = fmt::format("asking {} for a lease: {}", answer.server, error.message());
    }
  }
  if (answer.status != Status::kOk) grant_failure_ = answer.text;
  const bool for_good = answer.status != Status::kOk && answer.refusal == Refusal::Kind::kFinal;
  std::map<uint64_t, Timers::Id> waiting;
  if (answer.status == Status::kOk || for_good) waiting.swap(unleased_);
  if (answer.status == Status::kOk) {
    next_ = timers_.after(ttl_s_ * kSecondNs / 3, [this] { keep_alive(); });
    for (const auto& [key, kept] : kept_) {
      if (kept.lease != lease_) put_again(key);
    }
  } else if (!kept_.empty() || !unleased_.empty()) {
    if (!kept_.empty()) log_(1, fmt::format("what this agent published is not kept up: {}", answer.text));
    next_ = timers_.after(kTryAgainNs, [this] { grant(); });
  }
  for (auto& [number, deadline] : waiting) {
    timers_.cancel(deadline);
    if (for_good) {
      RpcAnswer copy = answer;
      copy.text = fmt::format("putting '{}': {}", shown(puts_.at(number).put.key), answer.text);
      end_put(number, std::move(copy));
    } else {
      try_put(number);
    }
  }
}

void Keeper::keep_alive() {
  timers_.cancel(next_);
  Rpc rpc;
  rpc.path = "/v3/lease/keepalive";
  rpc.body = lease_request(lease_);
  rpc.what = fmt::format("keeping lease {:x} alive", lease_);
  const uint64_t third_ns = ttl_s_ * kSecondNs / 3;
  rpc.deadline_ns = monotonic_now_ns() + ttl_s_ * kSecondNs;
  rpc.attempt_timeout_ns = std::min(options_.attempt_timeout_ns, std::max(third_ns, 500 * kMillisecondNs));
  rpc.done = [this](RpcAnswer&& answer) { kept_alive(std::move(answer)); };
  renewing_ = caller_.start(std::move(rpc));
}

void Keeper::kept_alive(RpcAnswer&& answer) {
  renewing_ = 0;
  uint64_t ttl_s = 0;
  if (answer.status == Status::kOk) {
    try {
      ttl_s = decode_keepalive(answer.body).ttl_s;
    } catch (const Error& error) {
      answer.status = Status::kProtocol;
      answer.text = fmt::format("keeping a lease alive at {}: {}", answer.server, error.message());
    }
  }
  if (answer.status == Status::kOk && ttl_s == 0) return lost(lease_, "it has run out");
  if (answer.status != Status::kOk && answer.refusal == Refusal::Kind::kNoLease) {
    return lost(lease_, "it has run out");
  }
  if (answer.status == Status::kOk) {
    next_ = timers_.after(ttl_s * kSecondNs / 3, [this] { keep_alive(); });
    return;
  }
  log_(1, fmt::format("what this agent published may go: {}", answer.text));
  next_ = timers_.after(kTryAgainNs, [this] { keep_alive(); });
}

void Keeper::lost(uint64_t lease, const std::string& why) {
  if (lease != lease_ || lease_ == 0) return;  // known already
  log_(kept_.empty() ? 2 : 1, fmt::format("lease {:x}: {}; asking for another", lease_, why));
  lease_ = 0;
  ++times_lost_;
  timers_.cancel(next_);
  caller_.stop(renewing_);
  if (!kept_.empty()) grant();
}

// ---- what was lost with a lease

void Keeper::put_again(const std::string& key) {
  const auto kept = kept_.find(key);
  if (kept == kept_.end() || lease_ == 0) return;
  kept->second.again_ns = monotonic_now_ns();
  Rpc rpc;
  rpc.path = "/v3/kv/txn";
  rpc.body = create_request(key, kept->second.value, lease_);
  rpc.what = fmt::format("putting '{}' again", shown(key));
  rpc.deadline_ns = monotonic_now_ns() + kPutAgainTimeoutNs;
  rpc.done = [this, key, lease = lease_](RpcAnswer&& answer) {
    put_again_ended(key, lease, std::move(answer));
  };
  (void)caller_.start(std::move(rpc));
}

void Keeper::put_again_ended(const std::string& key, uint64_t lease, RpcAnswer&& answer) {
  const auto kept = kept_.find(key);
  if (kept == kept_.end() || lease != lease_) return;  // forgotten, or under way under the next lease
  CreateAnswer created;
  try {
    if (answer.status == Status::kOk) created = decode_create(answer.body);
  } catch (const Error& error) {
    answer.status = Status::kProtocol;
    answer.text = fmt::format("putting '{}' again at {}: {}", shown(key), answer.server, error.message());
  }
  if (answer.status == Status::kOk) {
    if (created.created || (!created.present.empty() && created.present[0].lease == lease_)) {
      kept->second.lease = lease_;
      log_(2, fmt::format("'{}' is published again", shown(key)));
    } else if (!created.present.empty() && created.present[0].value == kept->second.value) {
      take_over(key, lease);
    } else {
      log_(1, fmt::format("'{}' was published by another meanwhile; it is left as it is", shown(key)));
      kept_.erase(kept);
    }
    return;
  }
  if (answer.refusal == Refusal::Kind::kNoLease) return lost(lease, "it has run out");
  log_(1, answer.text);
  (void)timers_.after(kTryAgainNs, [this, key, lease] {
    if (lease == lease_) put_again(key);
  });
}

// The key is there with our value under another lease, which would take it away with itself.
void Keeper::take_over(const std::string& key, uint64_t lease) {
  Rpc rpc;
  rpc.path = "/v3/kv/put";
  rpc.body = put_request(key, kept_.find(key)->second.value, lease);
  rpc.what = fmt::format("putting '{}' again", shown(key));
  rpc.deadline_ns = monotonic_now_ns() + kPutAgainTimeoutNs;
  rpc.done = [this, key, lease](RpcAnswer&& answer) {
    const auto kept = kept_.find(key);
    if (kept == kept_.end() || lease != lease_) return;
    if (answer.status == Status::kOk) {
      kept->second.lease = lease;
      return;
    }
    log_(1, answer.text);
    (void)timers_.after(kTryAgainNs, [this, key, lease] {
      if (lease == lease_) put_again(key);
    });
  };
  (void)caller_.start(std::move(rpc));
}

// Takes the steps that found no memory when it was time for them.
void Keeper::look() {
  if (revoking_) return;
  const bool wanted = !kept_.empty() || !unleased_.empty();
  if (next_ == 0 && lease_ == 0 && wanted) grant();
  if (next_ == 0 && lease_ != 0 && renewing_ == 0) keep_alive();
  const uint64_t now_ns = monotonic_now_ns();
  for (const auto& [key, kept] : kept_) {
    const bool asked = now_ns - kept.again_ns < kPutAgainTimeoutNs + 2 * kTryAgainNs;
    if (lease_ != 0 && kept.lease != lease_ && !asked) put_again(key);
  }
}

// ---- the end

void Keeper::revoke(uint64_t deadline_ns, std::function<void()> done) {
  revoking_ = true;
  timers_.cancel(next_);
  caller_.stop(renewing_);
  caller_.stop(granting_);
  kept_.clear();
  for (auto& [number, deadline] : unleased_) timers_.cancel(deadline);
  unleased_.clear();
  for (auto& [number, pending] : puts_) caller_.stop(pending.call);
  puts_.clear();
  if (lease_ == 0) return done();
  Rpc rpc;
  rpc.path = "/v3/lease/revoke";
  rpc.body = lease_request(lease_);
  rpc.what = fmt::format("giving lease {:x} back", lease_);
  rpc.deadline_ns = deadline_ns;
  rpc.done = [this, done = std::move(done)](RpcAnswer&& answer) {
    if (answer.status != Status::kOk && answer.refusal != Refusal::Kind::kNoLease) {
      log_(2, fmt::format("what this agent published goes when its lease of {} s runs out: {}", ttl_s_,
                          answer.text));
    }
    done();
  };
  lease_ = 0;
  (void)caller_.start(std::move(rpc));
}

void Keeper::describe(nlohmann::json& json) const {
  nlohmann::json keys = nlohmann::json::array();
  for (const auto& [key, kept] : kept_) {
    keys.push_back(
        {{"key", shown(key)}, {"bytes", kept.value.size()}, {"held", kept.lease == lease_ && lease_ != 0}});
  }
  json["lease"] = {{"id", fmt::format("{:x}", lease_)},
                   {"seconds", lease_ != 0 ? ttl_s_ : options_.lease_s},
                   {"held", lease_ != 0},
                   {"times_lost", times_lost_},
                   {"keys", std::move(keys)}};
}

}  // namespace towline::etcd
