#include "metadata_directory.h"

#include <towline/directory.hpp>

#include <chrono>
#include <map>
#include <mutex>
#include <utility>
#include <vector>

#include "log.h"

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
    return directory_.get(name + "/" + label, {.wait = true, .timeout = wait}).get_value();
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
          if (event.what() == EventKind::kGone && (gone.empty() || gone.back() != name)) gone.push_back(name);
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

  const std::string name_;
  const std::chrono::nanoseconds timeout_;
  Directory directory_;
  std::mutex mutex_;
  std::map<std::string, Watch> watches_;  // by the agent they are of
};

}  // namespace

std::unique_ptr<MetadataDirectory> open_directory(const Agent& agent, const Settings& settings) {
  if (!settings.has_etcd) return nullptr;
  return std::make_unique<ServerDirectory>(agent, settings.metadata_timeout);
}

}  // namespace towline::nixl
