// Callbacks of a directory's plugin, on its own thread: ends of calls, events, removed keys.
#include <algorithm>
#include <new>

#include "base/error.h"
#include "base/log.h"
#include "directory/directory.h"

namespace towline {
namespace {

std::string text_of(const void* bytes, size_t count) { return {static_cast<const char*>(bytes), count}; }

DirectoryEntry entry_of(const towline_directory_item& item) {
  return {text_of(item.key, item.key_bytes), text_of(item.value, item.value_bytes), item.revision};
}

}  // namespace

void Directory::done(uint64_t number, Status status, const char* text, const towline_directory_item* items,
                     size_t count) {
  std::shared_ptr<DirectoryCall> call;
  std::string looked_up;
  {
    const std::lock_guard lock(mutex_);
    if (auto node = calls_.extract(number)) call = std::move(node.mapped());
    if (auto node = look_ups_.extract(number)) looked_up = std::move(node.mapped());
  }
  if (!looked_up.empty() && status == Status::kNotFound) forget_followed(looked_up, UINT64_MAX);
  if (call == nullptr) return;
  std::string error;
  std::vector<DirectoryEntry> entries;
  Peer* peer = nullptr;
  const bool gone = status == Status::kOk || status == Status::kNotFound;
  try {
    if (text != nullptr) error = text;
    if (!gone && !call->unpublished_.empty()) {
      const auto part = std::ranges::find(call->numbers_, number) - call->numbers_.begin();
      const std::lock_guard lock(mutex_);
      labels_.insert(call->unpublished_[static_cast<size_t>(part)]);
    }
    for (size_t i = 0; i < count; ++i) entries.push_back(entry_of(items[i]));
    const bool fetched = !call->fetch_.name.empty() && status == Status::kOk;
    if (fetched && entries.empty())
      fail(Status::kProtocol, "the directory found '{}' and gave nothing", call->fetch_.name);
    if (fetched) peer = take_fetched(*call, entries.front());
  } catch (const Error& failed) {
    status = failed.code();
    error = failed.message();
  } catch (const std::bad_alloc&) {
    status = Status::kOutOfMemory;
    error = "out of memory";  // needs none
  } catch (const std::exception& failed) {
    status = Status::kInternal;
    error = failed.what();
  }
  call->part_ended(status, std::move(error), std::move(entries), peer);
}

Peer* Directory::take_fetched(const DirectoryCall& call, const DirectoryEntry& entry) {
  const DirectoryCall::Fetch& fetch = call.fetch_;
  Peer* peer = nullptr;
  try {
    const std::span<const uint8_t> blob(reinterpret_cast<const uint8_t*>(entry.value.data()),
                                        entry.value.size());
    // A client that can write a key must not publish for another agent.
    const std::string name = metadata::summarize(blob).metadata.identity.name;
    if (name != fetch.name) fail(Status::kMismatch, "it is the metadata of agent '{}'", name);
    peer = &agent_->add_peer(blob, false);
  } catch (const Error& error) {
    fail(error.code(), "what is published as '{}' under '{}' can't be used: {}", fetch.name, fetch.label,
         error.message());
  }
  if (fetch.follow) follow(entry.key, {fetch.name, peer->incarnation(), entry.revision});
  return peer;
}

void Directory::event(uint64_t number, uint32_t kind, const towline_directory_item* item, Status status,
                      const char* text) {
  std::shared_ptr<DirectoryWatch> watch;
  {
    const std::lock_guard lock(mutex_);
    const auto found = watches_.find(number);
    if (found != watches_.end()) watch = found->second;
  }
  if (watch == nullptr) {
    if (number == follower_) follow_event(kind, item);
    return;
  }
  bool goes_on = false;
  try {
    goes_on = watch->on_event(kind, item, status, text);
  } catch (const std::bad_alloc&) {  // something would not be told
    watch->end(Status::kOutOfMemory, "out of memory");
  }
  if (!goes_on) unwatch(*watch);
}

// ---- peers that are forgotten with their keys

// One watch of the whole namespace for all of them, which reports only removed keys.
void Directory::follow(const std::string& key, Followed followed) {
  const Use use(*this);
  if (use.client() == nullptr) return;
  bool start_watch = false;
  {
    const std::lock_guard lock(mutex_);
    followed_.insert_or_assign(key, std::move(followed));
    start_watch = follower_ == 0;
    if (start_watch) follower_ = ++last_number_;
  }
  // The key may have been removed between the fetch and this registration.
  if (!start_watch) return look_after(key);
  if (table_.watch(use.client(), follower_, "", 0, TOWLINE_DIRECTORY_NO_CHANGES) != TOWLINE_OK) {
    const std::lock_guard lock(mutex_);
    follower_ = 0;
  }
}

void Directory::look_after(const std::string& key) {
  const Use use(*this);
  if (use.client() == nullptr) return;
  uint64_t number = 0;
  {
    const std::lock_guard lock(mutex_);
    number = ++last_number_;
    look_ups_[number] = key;
  }
  const towline_directory_call_args args = {
      sizeof args,
      number,
      TOWLINE_DIRECTORY_GET,
      TOWLINE_DIRECTORY_NO_VALUES,
      {key.data(), key.size(), nullptr, 0, 0},
      Deadline::after(monotonic_now_ns(), agent_->default_timeout_ns()).ns()};
  if (table_.submit(use.client(), &args) == TOWLINE_OK) return;
  const std::lock_guard lock(mutex_);
  look_ups_.erase(number);
}

void Directory::follow_event(uint32_t kind, const towline_directory_item* item) {
  std::vector<std::string> gone;
  {
    const std::lock_guard lock(mutex_);
    if (kind == TOWLINE_DIRECTORY_RESET) {
      for (auto& [key, followed] : followed_) followed.seen = false;
    } else if (kind == TOWLINE_DIRECTORY_PUT_SEEN) {
      const auto found = followed_.find(text_of(item->key, item->key_bytes));
      if (found != followed_.end()) found->second.seen = true;
    } else if (kind == TOWLINE_DIRECTORY_SYNCED) {
      for (const auto& [key, followed] : followed_) {
        if (!followed.seen) gone.push_back(key);
      }
    } else if (kind == TOWLINE_DIRECTORY_ENDED) {
      TOWLINE_LOG(kWarning, "directory {}: peers are not followed any more", scheme_);
      follower_ = 0;
    }
  }
  if (kind == TOWLINE_DIRECTORY_GONE_SEEN)
    forget_followed(text_of(item->key, item->key_bytes), item->revision);
  // A key that was put after the state was read exists, but is not in the state.
  for (const std::string& key : gone) look_after(key);
}

void Directory::forget_followed(const std::string& key, uint64_t gone_at) {
  Followed followed;
  {
    const std::lock_guard lock(mutex_);
    const auto found = followed_.find(key);
    if (found == followed_.end() || found->second.revision >= gone_at) return;
    followed = std::move(found->second);
    followed_.erase(found);
  }
  if (agent_->usable() != Status::kOk) return;
  const PeerHold peer = agent_->find_peer(followed.incarnation);
  if (!peer) return;
  TOWLINE_LOG(kInfo, "peer '{}' is gone from the directory", followed.name);
  agent_->remove_peer(*peer);
}

}  // namespace towline
