#include "directory/directory.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "agent/plugin_finder.h"
#include "base/error.h"
#include "base/log.h"
#include "base/per_thread.h"

namespace towline {
namespace {

constexpr uint64_t kDirectoryCloseNs = 2 * kSecondNs;

uint32_t plugin_flags(uint32_t flags) noexcept {
  uint32_t result = 0;
  if ((flags & TOWLINE_PUT_LEASED) != 0) result |= TOWLINE_DIRECTORY_LEASED;
  if ((flags & TOWLINE_PUT_CREATE) != 0) result |= TOWLINE_DIRECTORY_CREATE;
  if ((flags & TOWLINE_GET_PREFIX) != 0) result |= TOWLINE_DIRECTORY_PREFIX;
  if ((flags & TOWLINE_GET_WAIT) != 0) result |= TOWLINE_DIRECTORY_WAIT;
  return result;
}

void check_flags(uint32_t flags, uint32_t allowed) {
  if ((flags & ~allowed) != 0)
    fail(Status::kInvalidArgument, "flags are {:#x}; these may be set: {:#x}", flags, allowed);
}

void check_key(std::string_view key, bool may_be_empty) {
  if ((key.empty() && !may_be_empty) || key.size() > TOWLINE_MAX_DIRECTORY_KEY_BYTES ||
      key.find('\0') != std::string_view::npos) {
    fail(Status::kInvalidArgument, "a key has 1 to {} bytes and no NUL; '{}' has {}",
         TOWLINE_MAX_DIRECTORY_KEY_BYTES, key.substr(0, 64), key.size());
  }
}

std::string_view label_or_default(std::string_view label) {
  if (label.find('/') != std::string_view::npos) {
    fail(Status::kInvalidArgument, "a label has no slash; '{}' has", label);
  }
  return label.empty() ? TOWLINE_DEFAULT_LABEL : label;
}

// ---- services

Directory& directory_of(void* context) noexcept { return *static_cast<Directory*>(context); }

thread_local constinit ThreadText failure;

// What a thread was last told of a setting and of a variable: valid until it asks again.
struct Told {
  std::string setting;
  std::string variable;
};

void log_text(void*, int32_t level, const char* text) {
  if (level <= 0) {
    TOWLINE_LOG(kError, "directory: {}", text);
  } else if (level == 1) {
    TOWLINE_LOG(kWarning, "directory: {}", text);
  } else if (level == 2) {
    TOWLINE_LOG(kInfo, "directory: {}", text);
  } else {
    TOWLINE_LOG(kDebug, "directory: {}", text);
  }
}

void note_directory_failure(void*, const char* text) {
  failure.set(text == nullptr ? std::string_view() : text);
}

const char* directory_config(void* context, const char* key, const char* fallback) {
  const auto found = directory_of(context).agent().config().find(key);
  return found ? (PerThread<Told>::get().setting = *found).c_str() : fallback;
}

const char* environment(void* context, const char* name) {
  const auto found = directory_of(context).agent().config().environment(name);
  return found ? (PerThread<Told>::get().variable = *found).c_str() : nullptr;
}

void check(int32_t status) {
  if (status == TOWLINE_OK) return;
  std::string text = failure.take();
  fail(static_cast<Status>(status), "{}", text.empty() ? status_text(static_cast<Status>(status)) : text);
}

}  // namespace

towline_directory_host_v1 Directory::host_table(Directory& directory) noexcept {
  return {
      sizeof(towline_directory_host_v1),
      &directory,
      log_text,
      note_directory_failure,
      directory_config,
      environment,
      [](void* context, uint64_t call, int32_t status, const char* text, const towline_directory_item* items,
         size_t count) { directory_of(context).done(call, static_cast<Status>(status), text, items, count); },
      [](void* context, uint64_t watch, uint32_t kind, const towline_directory_item* item, int32_t status,
         const char* text) {
        directory_of(context).event(watch, kind, item, static_cast<Status>(status), text);
      }};
}

std::shared_ptr<Directory> Directory::open(std::shared_ptr<Agent> agent, const DirectoryAddress& address) {
  return std::shared_ptr<Directory>(new Directory(std::move(agent), address));
}

Directory::Directory(std::shared_ptr<Agent> agent, const DirectoryAddress& address)
    : agent_(std::move(agent)), scheme_(address.scheme) {
  table_ = load_table<towline_directory_table_v1>(agent_->config(), address.scheme, "directory");
  const towline_directory_host_v1 host = host_table(*this);
  failure.clear();
  towline_directory_client* client = nullptr;
  check(
      table_.open(&host, address.variant.c_str(), address.authority.c_str(), address.path.c_str(), &client));
  client_ = client;
}

Directory::~Directory() { close(TOWLINE_DEFAULT_TIMEOUT); }

void Directory::close(uint64_t timeout_ns) noexcept {
  // In a child of fork the plugin's thread does not exist, so nothing of it can be ended.
  if (agent_->usable() == Status::kForked || closed_.exchange(true)) return;
  while (users_.load(std::memory_order_seq_cst) != 0) sched_yield();
  towline_directory_client* const client = client_.exchange(nullptr);
  if (client == nullptr) return;
  const uint64_t limit_ns = timeout_ns == TOWLINE_DEFAULT_TIMEOUT ? kDirectoryCloseNs : timeout_ns;
  table_.close(client, Deadline::after(monotonic_now_ns(), limit_ns).ns());
  const std::lock_guard lock(mutex_);
  for (const auto& [number, watch] : watches_) watch->end(Status::kClosed, "the directory has been closed");
  watches_.clear();
}

// ---- calls

std::string Directory::key_of(std::string_view name, std::string_view label) const {
  std::string key = fmt::format("{}/{}", name, label);
  check_key(key, false);
  return key;
}

std::shared_ptr<DirectoryCall> Directory::start(std::shared_ptr<DirectoryCall> call,
                                                const std::vector<Part>& parts, uint64_t timeout_ns) {
  const Use use(*this);
  towline_directory_client* const client = use.need();
  const uint64_t limit_ns = timeout_ns != TOWLINE_DEFAULT_TIMEOUT ? timeout_ns : agent_->default_timeout_ns();
  const uint64_t deadline_ns = Deadline::after(monotonic_now_ns(), limit_ns).ns();
  call->parts_left_ = parts.size();
  {
    const std::lock_guard lock(mutex_);
    for (std::size_t i = 0; i < parts.size(); ++i) {
      call->numbers_.push_back(++last_number_);
      calls_[last_number_] = call;
    }
  }
  for (std::size_t i = 0; i < parts.size(); ++i) {
    const Part& part = parts[i];
    const uint64_t number = call->numbers_[i];
    const towline_directory_call_args args = {
        sizeof args,
        number,
        part.op,
        part.flags,
        {part.key.data(), part.key.size(), part.value.data(), part.value.size(), 0},
        deadline_ns};
    failure.clear();
    const int32_t status = table_.submit(client, &args);
    if (status == TOWLINE_OK) continue;
    const std::string text = failure.take();
    done(number, static_cast<Status>(status), text.c_str(), nullptr, 0);
    if (parts.size() == 1) fail(static_cast<Status>(status), "{}", text);
  }
  return call;
}

void Directory::cancel(const std::vector<uint64_t>& numbers) {
  const Use use(*this);
  if (use.client() == nullptr) return;
  for (const uint64_t number : numbers) table_.cancel(use.client(), number);
}

std::shared_ptr<DirectoryCall> Directory::put(std::string_view key, std::string_view value, uint32_t flags,
                                              uint64_t timeout_ns) {
  check_flags(flags, TOWLINE_PUT_LEASED | TOWLINE_PUT_CREATE);
  check_key(key, false);
  if (value.size() > TOWLINE_MAX_DIRECTORY_VALUE_BYTES) {
    fail(Status::kLimitExceeded, "a value has at most {} bytes; that of '{}' has {}",
         TOWLINE_MAX_DIRECTORY_VALUE_BYTES, key, value.size());
  }
  auto call = std::make_shared<DirectoryCall>(shared_from_this(), TOWLINE_DIRECTORY_PUT);
  return start(std::move(call), {{TOWLINE_DIRECTORY_PUT, plugin_flags(flags), std::string(key), value}},
               timeout_ns);
}

std::shared_ptr<DirectoryCall> Directory::get(std::string_view key, uint32_t flags, uint64_t timeout_ns) {
  check_flags(flags, TOWLINE_GET_PREFIX | TOWLINE_GET_WAIT);
  check_key(key, (flags & TOWLINE_GET_PREFIX) != 0);
  auto call = std::make_shared<DirectoryCall>(shared_from_this(), TOWLINE_DIRECTORY_GET);
  return start(std::move(call), {{TOWLINE_DIRECTORY_GET, plugin_flags(flags), std::string(key), {}}},
               timeout_ns);
}

std::shared_ptr<DirectoryCall> Directory::remove(std::string_view key, uint32_t flags, uint64_t timeout_ns) {
  check_flags(flags, TOWLINE_GET_PREFIX);
  check_key(key, (flags & TOWLINE_GET_PREFIX) != 0);
  auto call = std::make_shared<DirectoryCall>(shared_from_this(), TOWLINE_DIRECTORY_REMOVE);
  return start(std::move(call), {{TOWLINE_DIRECTORY_REMOVE, plugin_flags(flags), std::string(key), {}}},
               timeout_ns);
}

std::shared_ptr<DirectoryCall> Directory::publish(std::string_view label,
                                                  const std::vector<uint64_t>* regions, uint64_t timeout_ns) {
  label = label_or_default(label);
  const std::vector<uint8_t> blob = agent_->metadata(regions);
  const std::string_view value(reinterpret_cast<const char*>(blob.data()), blob.size());
  auto call = put(key_of(agent_->name(), label), value, TOWLINE_PUT_LEASED, timeout_ns);
  const std::lock_guard lock(mutex_);
  labels_.emplace(label);
  return call;
}

std::shared_ptr<DirectoryCall> Directory::unpublish(const char* label, uint64_t timeout_ns) {
  std::vector<Part> parts;
  const auto add = [&](std::string_view one) {
    parts.push_back({TOWLINE_DIRECTORY_REMOVE, 0, key_of(agent_->name(), one), {}});
  };
  auto call = std::make_shared<DirectoryCall>(shared_from_this(), TOWLINE_DIRECTORY_REMOVE);
  call->ignore_missing_ = label == nullptr;
  if (label != nullptr) add(label_or_default(label));
  {
    const std::lock_guard lock(mutex_);
    if (label == nullptr) {
      for (const std::string& one : labels_) add(one);
      call->unpublished_.assign(labels_.begin(), labels_.end());
      labels_.clear();
    } else if (auto known = labels_.extract(std::string(label_or_default(label)))) {
      call->unpublished_.push_back(std::move(known.value()));
    }
  }
  if (!parts.empty()) return start(std::move(call), parts, timeout_ns);
  call->part_ended(Status::kOk, "", {}, nullptr);
  return call;
}

std::shared_ptr<DirectoryCall> Directory::fetch(std::string_view name, std::string_view label, uint32_t flags,
                                                uint64_t timeout_ns) {
  check_flags(flags, TOWLINE_GET_WAIT | TOWLINE_FETCH_FOLLOW);
  label = label_or_default(label);
  auto call = std::make_shared<DirectoryCall>(shared_from_this(), TOWLINE_DIRECTORY_GET);
  call->fetch_ = {std::string(name), std::string(label), (flags & TOWLINE_FETCH_FOLLOW) != 0};
  return start(std::move(call), {{TOWLINE_DIRECTORY_GET, plugin_flags(flags), key_of(name, label), {}}},
               timeout_ns);
}

std::shared_ptr<DirectoryWatch> Directory::watch(std::string_view prefix) {
  check_key(prefix, true);
  const Use use(*this);
  towline_directory_client* const client = use.need();
  auto watch = std::make_shared<DirectoryWatch>(agent_);
  uint64_t number = 0;
  {
    const std::lock_guard lock(mutex_);
    number = ++last_number_;
    watches_[number] = watch;
  }
  failure.clear();
  const int32_t status = table_.watch(client, number, prefix.data(), prefix.size(), 0);
  if (status != TOWLINE_OK) {
    const std::lock_guard lock(mutex_);
    watches_.erase(number);
  }
  check(status);
  return watch;
}

void Directory::unwatch(const DirectoryWatch& watch) noexcept {
  const Use use(*this);
  uint64_t number = 0;
  {
    const std::lock_guard lock(mutex_);
    const auto found = std::find_if(watches_.begin(), watches_.end(),
                                    [&](const auto& entry) { return entry.second.get() == &watch; });
    if (found == watches_.end()) return;
    number = found->first;
    watches_.erase(found);
  }
  if (use.client() != nullptr) table_.unwatch(use.client(), number);
}

std::string Directory::info() {
  const Use use(*this);
  towline_directory_client* const client = use.need();
  std::string text(4096, '\0');
  for (size_t whole = 0; (whole = table_.describe(client, text.data(), text.size())) >= text.size();) {
    text.resize(whole + 1024);
  }
  nlohmann::json told = nlohmann::json::parse(text.c_str(), nullptr, false);
  if (!told.is_object()) told = {{"details", text.c_str()}};
  told["schema"] = TOWLINE_JSON_SCHEMA;
  return told.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

}  // namespace towline
