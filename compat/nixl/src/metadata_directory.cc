#include "metadata_directory.h"

#include <towline/directory.hpp>

#include <chrono>
#include <map>
#include <mutex>
#include <set>
#include <thread>
#include <utility>
#include <vector>

#include "log.h"
#include "tcp_store.h"

namespace towline::nixl {

namespace {

class ServerDirectory final : public MetadataDirectory {
 public:
  ServerDirectory(const Agent& agent, std::chrono::nanoseconds timeout)
      : name_(agent.name()), timeout_(timeout), directory_(agent, "etcd://") {}

  void publish(const std::string& label, const std::string& frame) override {
    directory_.put(name_ + "/" + label, frame, {.leased = true, .timeout = timeout_}).get();
  }

  std::string fetch(const std::string& name, const std::string& label,
                    std::chrono::nanoseconds wait) override {
    // Watched first, so that no later removal is missed.
    follow(name);
    const std::string key = name + "/" + label;
    const DirectoryCall call = directory_.get(key, {.wait = true, .timeout = wait});
    const std::vector<DirectoryEntry> entries = call.get_entries();
    if (entries.empty()) throw Error{Status::kNotFound, "the directory gave nothing for '" + key + "'"};
    std::lock_guard lock(mutex_);
    fetched_[key] = entries.front().revision;
    return std::string{value_of(entries.front())};
  }

  void withdraw() override {
    try {
      directory_.remove(name_ + "/", {.prefix = true, .timeout = timeout_}).get();
    } catch (const Error& error) {
      if (error.code() != Status::kNotFound) throw;  // already removed: this is success
    }
  }

  void poll(DirectoryListener& listener) noexcept override {
    std::vector<std::string> gone;
    {
      std::lock_guard lock(mutex_);
      for (auto& [name, watch] : watches_) {
        DirectoryEvent event;
        while (watch.next(event, std::chrono::nanoseconds{0}) == Status::kOk) {
          if (is_news(event) && (gone.empty() || gone.back() != name)) gone.push_back(name);
        }
      }
    }
    for (const std::string& name : gone) listener.gone(name);
  }

 private:
  void follow(const std::string& name) {
    std::lock_guard lock(mutex_);
    if (!watches_.contains(name)) watches_.emplace(name, directory_.watch(name + "/"));
  }

  // Under the lock. A watch may be behind what calls answer: a removal from before what was fetched is none.
  [[nodiscard]] bool is_news(const DirectoryEvent& event) const {
    if (event.what() != EventKind::kGone) return false;
    const auto fetched = fetched_.find(event.key());
    return fetched == fetched_.end() || event.entry.revision == 0 || event.entry.revision > fetched->second;
  }

  const std::string name_;
  const std::chrono::nanoseconds timeout_;
  Directory directory_;
  std::mutex mutex_;
  std::map<std::string, Watch> watches_;                  // by the agent they are of
  std::map<std::string, uint64_t, std::less<>> fetched_;  // by key: the directory's revision when it was put
};

// Keys are nixl/agents/{label}/{agent}. A store can't be watched: that something is gone is found when it is asked for.
class StoreDirectory final : public MetadataDirectory {
 public:
  StoreDirectory(const Agent& agent, const Settings& settings)
      : name_(agent.name()),
        store_(settings.tcp_store, settings.tcp_store_connect_timeout, settings.tcp_store_timeout) {}
  // Takes back everything that the agent published.
  ~StoreDirectory() override {
    try {
      withdraw();
    } catch (const Error& error) {
      log(LogLevel::kInfo, error.what());
    }
  }

  void publish(const std::string& label, const std::string& frame) override {
    store_.set(key_of(name_, label), frame);
    const std::lock_guard lock(mutex_);
    labels_.insert(label);
  }

  std::string fetch(const std::string& name, const std::string& label,
                    std::chrono::nanoseconds wait) override {
    const auto until = std::chrono::steady_clock::now() + wait;
    for (;;) {
      if (auto frame = store_.get(key_of(name, label))) return std::move(*frame);
      if (std::chrono::steady_clock::now() >= until)
        throw Error{Status::kNotFound, "the TCPStore has no metadata of agent '" + name + "' under " + label};
      std::this_thread::sleep_for(kPause);
    }
  }

  void withdraw() override {
    std::set<std::string> labels;
    {
      const std::lock_guard lock(mutex_);
      labels = labels_;
    }
    for (const std::string& label : labels) {
      store_.remove(key_of(name_, label));
      const std::lock_guard lock(mutex_);
      labels_.erase(label);
    }
  }

  void poll(DirectoryListener&) noexcept override {}

 private:
  static constexpr std::chrono::milliseconds kPause{10};
  static std::string key_of(const std::string& name, const std::string& label) {
    return "nixl/agents/" + label + "/" + name;
  }

  const std::string name_;
  TcpStore store_;
  std::mutex mutex_;
  std::set<std::string> labels_;  // published and not withdrawn
};

}  // namespace

std::unique_ptr<MetadataDirectory> open_directory(const Agent& agent, const Settings& settings) {
  if (!settings.tcp_store.empty()) return std::make_unique<StoreDirectory>(agent, settings);
  if (!settings.has_etcd) return nullptr;
  return std::make_unique<ServerDirectory>(agent, settings.metadata_timeout);
}

}  // namespace towline::nixl
