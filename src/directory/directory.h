// An agent's directories: the plugin, calls, watches, and peers fetched from them.
//
// Threads. A plugin calls done and event on a thread of its own. Each object has one lock, a leaf, held for
// moments only; the plugin is never called under one. `enter` and `leave` keep its client valid during a
// call.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "agent/agent.h"
#include "agent/event_queue.h"
#include "base/error.h"
#include "towline/directory.h"
#include "towline/plugin/v1.h"

namespace towline {

struct DirectoryEntry {
  std::string key;
  std::string value;
  uint64_t revision = 0;
};

// The parts of "etcd+tls://host:1,host:2/name/space"; %XX is decoded except in `authority`.
struct DirectoryAddress {
  std::string scheme;
  std::string variant;
  std::string authority;
  std::string path;   // "/name/space" or ""
  std::string agent;  // of_agent: the last part of the path

  static bool is_one(std::string_view text) noexcept { return text.find("://") != std::string_view::npos; }
  // Throws Error(kInvalidArgument).
  static DirectoryAddress parse(std::string_view text);
  static DirectoryAddress of_agent(std::string_view text);
  [[nodiscard]] std::string identity() const;  // equal for equal directories
};

class Directory;

// A request and its result. Shared by the handle and the directory.
class DirectoryCall {
 public:
  DirectoryCall(std::shared_ptr<Directory> directory, uint32_t op)
      : directory_(std::move(directory)), op_(op) {}

  [[nodiscard]] Status poll() const;
  // kNotYet if the time passes first.
  Status wait(uint64_t timeout_ns);
  void cancel();
  // Told once it has its outcome.
  void tell(TicketHold ticket);
  // They do not change after the outcome.
  [[nodiscard]] const std::string& error() const;
  [[nodiscard]] const std::vector<DirectoryEntry>& entries() const;
  [[nodiscard]] Peer* peer() const;

 private:
  friend class Directory;
  // The purpose of a fetch.
  struct Fetch {
    std::string name;
    std::string label;
    bool follow = false;
  };

  // One part ended. The last one sets the outcome; the first error is the outcome.
  void part_ended(Status status, std::string text, std::vector<DirectoryEntry> entries, Peer* peer);

  const std::shared_ptr<Directory> directory_;
  const uint32_t op_;
  Fetch fetch_;
  bool ignore_missing_ = false;
  std::vector<std::string> unpublished_;  // labels, one for each part; empty: none was known
  std::vector<uint64_t> numbers_;         // of the parts; set before any can end

  mutable std::mutex mutex_;
  std::condition_variable ended_;
  size_t parts_left_ = 1;
  Status status_ = Status::kInProgress;
  Status part_status_ = Status::kOk;
  std::string error_;
  std::vector<DirectoryEntry> entries_;
  Peer* peer_ = nullptr;
  std::vector<TicketHold> told_;
};

// Events that wait to be pulled, merged by key; and the keys known to exist, to find changes when the plugin
// sends the whole state again.
class DirectoryWatch {
 public:
  struct Event {
    uint32_t kind = 0;  // towline_directory_event_kind_t
    DirectoryEntry entry;
  };

  explicit DirectoryWatch(std::shared_ptr<Agent> agent) : agent_(std::move(agent)) {}

  // kOk, kNotYet, or why it ended (with `why`).
  Status next(uint64_t timeout_ns, Event& event, std::string& why);
  [[nodiscard]] Status status() const;
  // Told once next() has something to give.
  void tell(TicketHold ticket);
  // The application needs it no more: those who wait to be told are told that.
  void released() noexcept;

  // Called by the directory. False: it has ended; send no more events.
  bool on_event(uint32_t kind, const towline_directory_item* item, Status status, const char* text);
  void end(Status status, const std::string& text);

 private:
  struct Known {
    uint64_t revision = 0;
    uint64_t round = 0;
  };
  struct Waiting {
    uint32_t kind = 0;
    DirectoryEntry entry;
  };

  void put_seen(const towline_directory_item& item);
  void gone_seen(std::string_view key, uint64_t revision);
  void synced();
  void queue(uint32_t kind, DirectoryEntry entry);
  void end_locked(Status status, const std::string& text);
  void tell_locked();

  const std::shared_ptr<Agent> agent_;
  mutable std::mutex mutex_;
  std::condition_variable news_;
  std::list<Waiting> waiting_;
  std::map<std::string, std::list<Waiting>::iterator, std::less<>> waiting_by_key_;
  size_t waiting_bytes_ = 0;
  std::map<std::string, Known, std::less<>> known_;
  uint64_t round_ = 0;
  bool synced_told_ = false;
  std::vector<TicketHold> told_;
  Status status_ = Status::kInProgress;
  std::string why_;
};

class Directory : public std::enable_shared_from_this<Directory> {
 public:
  // Throws Error.
  static std::shared_ptr<Directory> open(std::shared_ptr<Agent> agent, const DirectoryAddress& address);
  ~Directory();
  Directory(const Directory&) = delete;
  Directory& operator=(const Directory&) = delete;

  // Each starts a call, or throws Error. flags: TOWLINE_PUT_LEASED and so on; timeout_ns 0: the agent's
  // default.
  std::shared_ptr<DirectoryCall> put(std::string_view key, std::string_view value, uint32_t flags,
                                     uint64_t timeout_ns);
  std::shared_ptr<DirectoryCall> get(std::string_view key, uint32_t flags, uint64_t timeout_ns);
  std::shared_ptr<DirectoryCall> remove(std::string_view key, uint32_t flags, uint64_t timeout_ns);
  std::shared_ptr<DirectoryCall> publish(std::string_view label, const std::vector<uint64_t>* regions,
                                         uint64_t timeout_ns);
  std::shared_ptr<DirectoryCall> unpublish(const char* label, uint64_t timeout_ns);
  std::shared_ptr<DirectoryCall> fetch(std::string_view name, std::string_view label, uint32_t flags,
                                       uint64_t timeout_ns);
  std::shared_ptr<DirectoryWatch> watch(std::string_view prefix);
  void unwatch(const DirectoryWatch& watch) noexcept;
  [[nodiscard]] std::string info();

  // Ends calls and watches with kClosed, removes leased keys. Idempotent.
  void close(uint64_t timeout_ns) noexcept;
  [[nodiscard]] Agent& agent() const noexcept { return *agent_; }

 private:
  friend class DirectoryCall;
  friend class DirectoryHost;
  struct Part {
    uint32_t op = 0;
    uint32_t flags = 0;  // TOWLINE_DIRECTORY_*
    std::string key;
    std::string_view value;
  };
  struct Followed {
    std::string name;
    Id incarnation;
    uint64_t revision = 0;
    bool seen = true;  // since the plugin began to send the state
  };
  class Use;  // holds the client during a call

  Directory(std::shared_ptr<Agent> agent, const DirectoryAddress& address);
  static towline_directory_host_v1 host_table(Directory& directory) noexcept;
  std::shared_ptr<DirectoryCall> start(std::shared_ptr<DirectoryCall> call, const std::vector<Part>& parts,
                                       uint64_t timeout_ns);
  void cancel(const std::vector<uint64_t>& numbers);
  [[nodiscard]] std::string key_of(std::string_view name, std::string_view label) const;

  // The plugin's thread.
  void done(uint64_t number, Status status, const char* text, const towline_directory_item* items,
            size_t count);
  Peer* take_fetched(const DirectoryCall& call, const DirectoryEntry& entry);
  void event(uint64_t number, uint32_t kind, const towline_directory_item* item, Status status,
             const char* text);
  void follow(const std::string& key, Followed followed);
  void follow_event(uint32_t kind, const towline_directory_item* item);
  void look_after(const std::string& key);
  void forget_followed(const std::string& key, uint64_t gone_at);

  const std::shared_ptr<Agent> agent_;
  const std::string scheme_;
  towline_directory_table_v1 table_ = {};
  std::atomic<towline_directory_client*> client_{nullptr};
  std::atomic<uint32_t> users_{0};
  std::atomic<bool> closed_{false};
  uint32_t openers_ = 0;  // DirectoryHost's

  std::mutex mutex_;
  uint64_t last_number_ = 0;
  std::map<uint64_t, std::shared_ptr<DirectoryCall>> calls_;
  std::map<uint64_t, std::string> look_ups_;  // internal: does a followed key still exist?
  std::map<uint64_t, std::shared_ptr<DirectoryWatch>> watches_;
  std::map<std::string, Followed, std::less<>> followed_;
  uint64_t follower_ = 0;                      // the watch's number; 0: none
  std::set<std::string, std::less<>> labels_;  // published
};

// Entered, the client is not closed until it is left; close() waits for all.
class Directory::Use {
 public:
  explicit Use(Directory& directory) noexcept : directory_(directory) {
    directory_.users_.fetch_add(1, std::memory_order_seq_cst);
    if (!directory_.closed_.load(std::memory_order_seq_cst)) client_ = directory_.client_.load();
  }
  ~Use() { directory_.users_.fetch_sub(1, std::memory_order_seq_cst); }
  Use(const Use&) = delete;
  Use& operator=(const Use&) = delete;
  [[nodiscard]] towline_directory_client* client() const noexcept { return client_; }
  [[nodiscard]] towline_directory_client* need() const {
    directory_.agent_->check_usable();
    if (client_ == nullptr) fail(Status::kClosed, "the directory has been closed");
    return client_;
  }

 private:
  Directory& directory_;
  towline_directory_client* client_ = nullptr;
};

// The directories of one agent.
class DirectoryHost {
 public:
  explicit DirectoryHost(std::shared_ptr<Agent> agent) : agent_(std::move(agent)) {}

  // The directory of that address, opened if needed; pass it to let_go or detach once.
  std::shared_ptr<Directory> open(const DirectoryAddress& address);
  void let_go(const std::shared_ptr<Directory>& directory, uint64_t timeout_ns) noexcept;
  // True: it was the last, and the caller is to close the directory.
  [[nodiscard]] bool detach(const std::shared_ptr<Directory>& directory) noexcept;
  // The peer at "etcd://../name", once it is published; the directory stays open. Throws Error.
  Peer& connect(std::string_view address, uint64_t timeout_ns);
  // Closes all of them; none can be opened any more.
  void close() noexcept;

 private:
  const std::shared_ptr<Agent> agent_;
  std::mutex mutex_;
  bool closed_ = false;
  std::map<std::string, std::shared_ptr<Directory>> open_;  // by identity
  std::set<std::string> kept_;                              // connect's
};

}  // namespace towline
