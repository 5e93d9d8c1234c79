// Directories for C++20: RAII over directory.h, which documents each call.
//
//   towline::Directory directory{agent, "etcd://10.0.0.7:2379"};
//   directory.publish().get();
//   auto peer = directory.fetch("prefill-0", {.wait = true}).get_peer();
//
// Calls are handles: poll() and wait() give a Status, get() and similar functions wait and throw
// towline::Error. Destroying a call cancels it if it is in progress.
#pragma once

#include <towline/directory.h>
#include <towline/towline.hpp>

namespace towline {
inline namespace v0 {

using DirectoryEntry = towline_directory_entry_t;

// The value of a DirectoryEntry as text or bytes; valid as long as the entry.
[[nodiscard]] inline std::string_view value_of(const DirectoryEntry& entry) noexcept {
  return {static_cast<const char*>(entry.value), entry.bytes};
}

class DirectoryCall {
 public:
  // kInProgress or the outcome.
  [[nodiscard]] Status poll() const noexcept {
    return detail::status(towline_directory_call_poll(handle_.get()));
  }
  // Waits for the outcome; kNotYet if the deadline passes first.
  [[nodiscard]] Status wait(Deadline deadline = kForever) const noexcept {
    return detail::status(towline_directory_call_wait(handle_.get(), deadline.remaining_ns()));
  }
  Status cancel() const noexcept { return detail::status(towline_directory_call_cancel(handle_.get())); }
  // What failed, where, and what to do.
  [[nodiscard]] std::string_view error() const noexcept {
    return towline_directory_call_error(handle_.get());
  }

  // Each waits, and throws the call's Error.
  void get() const { detail::check(towline_directory_call_wait(handle_.get(), TOWLINE_FOREVER)); }
  // They are valid as long as the call.
  [[nodiscard]] std::vector<DirectoryEntry> get_entries() const {
    get();
    size_t count = 0;
    detail::check(towline_directory_call_entries(handle_.get(), nullptr, sizeof(DirectoryEntry), &count));
    std::vector<DirectoryEntry> entries(count);
    detail::check(
        towline_directory_call_entries(handle_.get(), entries.data(), sizeof(DirectoryEntry), &count));
    return entries;
  }
  // The value of a key.
  [[nodiscard]] std::string get_value() const {
    const auto entries = get_entries();
    if (entries.empty()) throw Error{Status::kNotFound, "DirectoryCall::get_value: the call found no entry"};
    return std::string{value_of(entries.front())};
  }
  [[nodiscard]] Peer get_peer() const {
    get();
    towline_peer_t* peer = nullptr;
    detail::check(towline_directory_call_peer(handle_.get(), &peer));
    return Peer{agent_, peer};
  }
  [[nodiscard]] towline_directory_call_t* native() const noexcept { return handle_.get(); }

 private:
  friend class Directory;
  DirectoryCall(detail::SharedAgent agent, towline_directory_call_t* call) noexcept
      : agent_(std::move(agent)), handle_(call) {}
  detail::SharedAgent agent_;
  detail::Handle<towline_directory_call_t, towline_directory_call_release> handle_;
};

enum class EventKind : uint32_t {
  kPut = TOWLINE_WATCH_PUT,
  kGone = TOWLINE_WATCH_GONE,
  kSynced = TOWLINE_WATCH_SYNCED,
};

struct DirectoryEvent : towline_directory_event_t {
  DirectoryEvent() noexcept : towline_directory_event_t{} {}
  [[nodiscard]] EventKind what() const noexcept { return EventKind{kind}; }
  [[nodiscard]] std::string_view key() const noexcept { return entry.key; }
  [[nodiscard]] std::string_view value() const noexcept { return value_of(entry); }
};

class Watch {
 public:
  // Takes the next event, whose contents are valid until the one after it; kNotYet, or why the watch ended.
  [[nodiscard]] Status next(DirectoryEvent& event, Deadline deadline = kForever) const noexcept {
    return detail::status(towline_watch_next(handle_.get(), deadline.remaining_ns(), &event));
  }
  // kOk: following. kInProgress: (re)connecting. Else why it ended.
  [[nodiscard]] Status status() const noexcept { return detail::status(towline_watch_status(handle_.get())); }
  [[nodiscard]] towline_watch_t* native() const noexcept { return handle_.get(); }

 private:
  friend class Directory;
  explicit Watch(towline_watch_t* watch) noexcept : handle_(watch) {}
  detail::Handle<towline_watch_t, towline_watch_release> handle_;
};

struct PutOptions {
  bool leased = false;                                // removed with this agent
  bool create = false;                                // only if there is no such key
  std::optional<std::chrono::nanoseconds> timeout{};  // none: the agent's default; also below
};

struct GetOptions {
  bool prefix = false;  // every key with this prefix
  bool wait = false;    // wait until there is one
  std::optional<std::chrono::nanoseconds> timeout{};
};

struct DeleteOptions {
  bool prefix = false;
  std::optional<std::chrono::nanoseconds> timeout{};
};

struct PublishOptions {
  std::string label{};                   // empty: TOWLINE_DEFAULT_LABEL
  std::vector<const Region*> regions{};  // empty: all
  std::optional<std::chrono::nanoseconds> timeout{};
};

struct FetchOptions {
  std::string label{};
  bool wait = false;    // wait until it is published
  bool follow = false;  // forget the peer once its key is gone
  std::optional<std::chrono::nanoseconds> timeout{};
};

// An open directory of an agent. Destroying it removes what was published through it, in the background,
// unless another Directory of the same agent and address is open. close() waits for that.
class Directory {
 public:
  Directory(const Agent& agent, const std::string& address) : agent_(agent.handle_.shared()) {
    towline_directory_t* directory = nullptr;
    detail::check(towline_directory_open(agent_.get(), address.c_str(), &directory));
    handle_.reset(directory);
  }

  [[nodiscard]] DirectoryCall put(const std::string& key, BytesView value,
                                  const PutOptions& options = {}) const {
    const uint32_t flags = (options.leased ? uint32_t{TOWLINE_PUT_LEASED} : 0) |
                           (options.create ? uint32_t{TOWLINE_PUT_CREATE} : 0);
    return start([&](towline_directory_call_t** call) {
      return towline_directory_put(handle_.get(), key.c_str(), value.data(), value.size(), flags,
                                   detail::timeout_argument(options.timeout), call);
    });
  }
  [[nodiscard]] DirectoryCall get(const std::string& key, const GetOptions& options = {}) const {
    const uint32_t flags =
        (options.prefix ? uint32_t{TOWLINE_GET_PREFIX} : 0) | (options.wait ? uint32_t{TOWLINE_GET_WAIT} : 0);
    return start([&](towline_directory_call_t** call) {
      return towline_directory_get(handle_.get(), key.c_str(), flags,
                                   detail::timeout_argument(options.timeout), call);
    });
  }
  [[nodiscard]] DirectoryCall remove(const std::string& key, const DeleteOptions& options = {}) const {
    const uint32_t flags = options.prefix ? uint32_t{TOWLINE_GET_PREFIX} : 0;
    return start([&](towline_directory_call_t** call) {
      return towline_directory_delete(handle_.get(), key.c_str(), flags,
                                      detail::timeout_argument(options.timeout), call);
    });
  }

  // Publishes the agent's current metadata.
  [[nodiscard]] DirectoryCall publish(const PublishOptions& options = {}) const {
    std::vector<towline_region_t*> regions;
    for (const Region* region : options.regions) regions.push_back(region->native());
    return start([&](towline_directory_call_t** call) {
      return towline_directory_publish(handle_.get(), detail::or_null(options.label), regions.data(),
                                       regions.size(), detail::timeout_argument(options.timeout), call);
    });
  }
  // Removes the metadata of one label, or of all.
  [[nodiscard]] DirectoryCall unpublish(const std::string& label = {},
                                        std::optional<std::chrono::nanoseconds> timeout = {}) const {
    return start([&](towline_directory_call_t** call) {
      return towline_directory_unpublish(handle_.get(), detail::or_null(label),
                                         detail::timeout_argument(timeout), call);
    });
  }
  [[nodiscard]] DirectoryCall fetch(const std::string& name, const FetchOptions& options = {}) const {
    const uint32_t flags = (options.wait ? uint32_t{TOWLINE_GET_WAIT} : 0) |
                           (options.follow ? uint32_t{TOWLINE_FETCH_FOLLOW} : 0);
    return start([&](towline_directory_call_t** call) {
      return towline_directory_fetch(handle_.get(), name.c_str(), detail::or_null(options.label), flags,
                                     detail::timeout_argument(options.timeout), call);
    });
  }

  [[nodiscard]] Watch watch(const std::string& prefix = {}) const {
    towline_watch_t* watch = nullptr;
    detail::check(towline_directory_watch(handle_.get(), prefix.c_str(), &watch));
    return Watch{watch};
  }
  // Servers, lease, watches: JSON.
  [[nodiscard]] std::string info() const {
    return detail::read_text([this](char* json, size_t capacity, size_t* needed) {
      return towline_directory_info(handle_.get(), json, capacity, needed);
    });
  }
  // Does the destructor's work now, and waits until leased keys are removed, or the deadline passes.
  void close(Deadline deadline = std::chrono::seconds{2}) noexcept {
    (void)towline_directory_close(handle_.release(), deadline.remaining_ns());
  }
  [[nodiscard]] towline_directory_t* native() const noexcept { return handle_.get(); }

 private:
  template <class Start>
  DirectoryCall start(Start start) const {
    towline_directory_call_t* call = nullptr;
    detail::check(start(&call));
    return DirectoryCall{agent_, call};
  }

  detail::SharedAgent agent_;
  detail::Handle<towline_directory_t, towline_directory_release> handle_;
};

}  // namespace v0
}  // namespace towline
