// Keys that live as long as this client: put under a lease that is kept alive, and put again under a new one
// when the lease ran out or the servers lost it. By one thread.
//
// A key that another client put meanwhile stays: a key is put again only if it is gone or still has this
// agent's value.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

#include "metadata/etcd/caller.h"

namespace towline::etcd {

class Keeper {
 public:
  using Done = std::function<void(RpcAnswer&& answer)>;

  struct Put {
    std::string key;
    std::string value;
    bool create = false;
    uint64_t deadline_ns = 0;
    Done done;  // called once, unless revoke() comes first
  };

  Keeper(const Options& options, Timers& timers, Caller& caller, Caller::Log log);

  void put(Put put);
  // The key, or every key that begins so, is not kept any more; it stays where it is.
  void forget(const std::string& key, bool prefix);
  // Gives the lease back, and with it everything that is kept. Puts that are under way end without a word to
  // their callers. done is called once.
  void revoke(uint64_t deadline_ns, std::function<void()> done);

  // From time to time: takes the steps that found no memory when it was time for them.
  void look();

  void describe(nlohmann::json& json) const;

 private:
  struct Kept {
    std::string value;
    uint64_t lease = 0;     // it was put under
    uint64_t again_ns = 0;  // when it was last put again
  };
  struct Pending {
    Put put;
    Caller::Id call = 0;
  };

  void with_lease(uint64_t number);
  void try_put(uint64_t number);
  void put_ended(uint64_t number, uint64_t lease, RpcAnswer&& answer);
  void end_put(uint64_t number, RpcAnswer&& answer);
  void grant();
  void granted(RpcAnswer&& answer);
  void keep_alive();
  void kept_alive(RpcAnswer&& answer);
  void lost(uint64_t lease, const std::string& why);
  void put_again(const std::string& key);
  void put_again_ended(const std::string& key, uint64_t lease, RpcAnswer&& answer);
  void take_over(const std::string& key, uint64_t lease);

  const Options& options_;
  Timers& timers_;
  Caller& caller_;
  Caller::Log log_;

  uint64_t lease_ = 0;  // 0: none
  uint64_t ttl_s_ = 0;
  uint64_t times_lost_ = 0;
  Caller::Id granting_ = 0;
  Caller::Id renewing_ = 0;
  Timers::Id next_ = 0;  // renewal, or grant
  bool revoking_ = false;

  std::map<uint64_t, Pending> puts_;
  std::map<uint64_t, Timers::Id> unleased_;  // puts that wait for the lease, with their deadline
  uint64_t last_put_ = 0;
  std::string grant_failure_;  // the last one's
  std::map<std::string, Kept, std::less<>> kept_;
};

// The result of a create: kOk if this agent owns the key now, even through an earlier attempt.
Status settle_create(const RpcAnswer& answer, std::string_view value, CreateAnswer& decoded);

}  // namespace towline::etcd
