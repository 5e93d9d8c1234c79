#include "metadata/etcd/client.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <future>
#include <new>
#include <nlohmann/json.hpp>

#include "base/error.h"

namespace towline::etcd {
namespace {

constexpr uint64_t kMostCalls = 4096;
constexpr uint64_t kMostBytes = uint64_t{256} << 20;
constexpr uint64_t kShortestPulseNs = kSecondNs;

// Short enough for a string that needs no memory.
constexpr const char* kNoMemory = "out of memory";
constexpr const char* kLate = "timed out";
constexpr const char* kClosed = "closed";

uint64_t pulse_ns(const Options& options) {
  return std::max(options.lease_s * kSecondNs / 3, kShortestPulseNs);
}

}  // namespace

Client::Client(Options options, Listener& listener)
    : options_(std::move(options)),
      listener_(listener),
      thread_(http_options(options_)),
      timers_(thread_.timers()),
      posts_(thread_.client()),
      caller_(options_, timers_, posts_,
              [this](int level, const std::string& text) { listener_.log(level, text); }),
      keeper_(options_, timers_, caller_,
              [this](int level, const std::string& text) { listener_.log(level, text); }) {
  caller_.set_failure_listener(
      [this](std::size_t server, const std::string& why) { server_failed(server, why); });
  timers_.every(pulse_ns(options_), [this] { pulse(); });
  http::Thread::Hooks hooks;
  hooks.turn = [this] { buried_.clear(); };
  // A call whose answer could not be dealt with ends by its deadline. The pulse finds what else stands still.
  hooks.failed = [this](const char* why) {
    try {
      listener_.log(0, fmt::format("etcd: an answer was dropped: {}", why));
    } catch (const std::exception&) {  // memory is short
    }
  };
  hooks.last = [this] {  // calls that come too late are told so, and those that shut() had no memory for
    shutting_ = true;
    while (!calls_.empty()) finish(calls_.begin()->first, Status::kClosed, kClosed);
  };
  thread_.start(std::move(hooks));
}

Client::~Client() {
  thread_.run([this] { thread_.end(); });
  thread_.join();
}

void Client::close(uint64_t deadline_ns) {
  try {
    thread_.run([this, deadline_ns] { shut(deadline_ns); });
  } catch (const std::bad_alloc&) {
    thread_.end();
  }
  thread_.join();
}

// ---- calls

Status Client::submit(CallArgs args) {
  const uint64_t bytes = args.value.size();
  if (under_way_.fetch_add(1) >= kMostCalls || bytes_under_way_.load() + bytes > kMostBytes) {
    under_way_.fetch_sub(1);
    return Status::kAgain;
  }
  bytes_under_way_.fetch_add(bytes);
  try {
    if (thread_.run([this, args = std::move(args)]() mutable { take(std::move(args)); })) return Status::kOk;
  } catch (const std::bad_alloc&) {
    count_end(bytes);
    throw;
  }
  count_end(bytes);
  return Status::kClosed;
}

void Client::count_end(uint64_t bytes) noexcept {
  under_way_.fetch_sub(1);
  bytes_under_way_.fetch_sub(bytes);
}

void Client::cancel(uint64_t call) {
  thread_.run([this, call] {
    if (calls_.contains(call)) finish(call, Status::kCancelled, "cancelled");
  });
}

std::string Client::full_key(std::string_view key) const {
  return fmt::format("{}/{}", options_.name_space, key);
}

KeyValue Client::relative(KeyValue item) const {
  item.key.erase(0, std::min(item.key.size(), options_.name_space.size() + 1));
  return item;
}

Span Client::span_of(const CallArgs& args) const {
  std::string key = full_key(args.key);
  std::string end = (args.flags & TOWLINE_DIRECTORY_PREFIX) != 0 ? end_of_prefix(key) : "";
  return {std::move(key), std::move(end)};
}

void Client::take(CallArgs args) {
  const uint64_t number = args.number;
  const uint64_t bytes = args.value.size();
  try {
    calls_[number].args = std::move(args);
  } catch (const std::bad_alloc&) {
    count_end(bytes);
    return listener_.done(number, Status::kOutOfMemory, kNoMemory, {});
  }
  try {
    start(calls_.at(number));
  } catch (const std::exception&) {
    finish(number, Status::kOutOfMemory, kNoMemory);
  }
}

void Client::start(Call& call) {
  const uint64_t number = call.args.number;
  if (shutting_) return finish(number, Status::kClosed, "the directory is being closed");
  // For a call of which nothing else knows any more. Others end by their deadline with more to say.
  call.last = timers_.at(Deadline::after(call.args.deadline_ns, kMillisecondNs).ns(),
                         [this, number] { finish(number, Status::kTimedOut, kLate); });
  // Writes to one key keep their order.
  const bool writes =
      call.args.op != TOWLINE_DIRECTORY_GET && (call.args.flags & TOWLINE_DIRECTORY_PREFIX) == 0;
  if (writes) {
    auto& queue = writes_[call.args.key];
    queue.push_back(number);
    if (queue.size() > 1) {
      call.deadline = timers_.at(call.args.deadline_ns, [this, number] {
        finish(number, Status::kTimedOut,
               fmt::format("writing '{}': what was asked of the key before is still under way",
                           shown(calls_.at(number).args.key)));
      });
      return;
    }
  }
  begin(call);
}

void Client::begin(Call& call) {
  timers_.cancel(call.deadline);
  switch (call.args.op) {
    case TOWLINE_DIRECTORY_GET:
      return (call.args.flags & TOWLINE_DIRECTORY_WAIT) != 0 ? wait_for(call) : get(call);
    case TOWLINE_DIRECTORY_PUT:
      return put(call);
    case TOWLINE_DIRECTORY_REMOVE:
      return remove(call);
    default:
      return finish(call.args.number, Status::kUnsupported,
                    fmt::format("there is no operation {}", call.args.op));
  }
}

void Client::get(Call& call) {
  const uint64_t number = call.args.number;
  const std::string what = fmt::format("getting '{}'", shown(full_key(call.args.key)));
  const auto take = [this, number, what](Lister::Page&& page) {
    Call& its = calls_.at(number);
    try {
      its.found.reserve(std::bit_ceil(its.found.size() + page.items.size()));
    } catch (const std::bad_alloc&) {  // the next page, which has been asked for, would end it well
      return finish(number, Status::kOutOfMemory, kNoMemory);
    }
    for (KeyValue& item : page.items) {
      its.found_bytes += item.key.size() + item.value.size() + sizeof item;
      its.found.push_back(std::move(item));
    }
    if (its.found_bytes > options_.max_answer_bytes) {
      return finish(number, Status::kLimitExceeded,
                    fmt::format("{}: there are more than {} bytes (tuning.etcd.max_answer)", what,
                                options_.max_answer_bytes));
    }
    if (!page.last) return;
    const bool one = (its.args.flags & TOWLINE_DIRECTORY_PREFIX) == 0;
    if (one && its.found.empty()) return finish(number, Status::kNotFound, what + ": there is no such key");
    finish(number, Status::kOk);
  };
  const auto fail_get = [this, number](RpcAnswer&& answer) {
    if (answer.refusal != Refusal::Kind::kCompacted) return finish(number, answer.status, answer.text);
    Call& its = calls_.at(number);  // while it was read, page by page
    its.found.clear();
    its.found_bytes = 0;
    get(its);
  };
  call.lister = std::make_unique<Lister>(
      caller_,
      Lister::Args{span_of(call.args), (call.args.flags & TOWLINE_DIRECTORY_NO_VALUES) != 0,
                   call.args.deadline_ns, what},
      take, fail_get);
}

void Client::wait_for(Call& call) {
  const uint64_t number = call.args.number;
  make_room();
  call.watch = std::make_unique<Watch>(
      options_, timers_, posts_, caller_, span_of(call.args), 0, [this, number](const Watch::Event& event) {
        if (event.kind == TOWLINE_DIRECTORY_ENDED) return finish(number, event.status, event.text);
        Call& its = calls_.at(number);
        if (event.kind == TOWLINE_DIRECTORY_PUT_SEEN) its.found.push_back(*event.item);
        // A state is delivered completely; of changes, only the first.
        const bool whole = event.kind == TOWLINE_DIRECTORY_SYNCED || its.watch->streaming();
        if (event.kind == TOWLINE_DIRECTORY_RESET) its.found.clear();
        if (whole && !its.found.empty()) finish(number, Status::kOk);
      });
  call.deadline = timers_.at(call.args.deadline_ns, [this, number] {
    const Call& its = calls_.at(number);
    const std::string& trouble = its.watch->trouble();
    const bool reached = its.watch->next_revision() != 0 && trouble.empty();
    finish(number, reached ? Status::kNotFound : Status::kUnreachable,
           fmt::format("getting '{}': {}", shown(full_key(its.args.key)),
                       reached           ? "there is no such key, and none came in time"
                       : trouble.empty() ? "no server has answered in time; " + caller_.last_trouble()
                                         : trouble));
  });
}

void Client::put(Call& call) {
  const uint64_t number = call.args.number;
  const std::string key = full_key(call.args.key);
  const bool create = (call.args.flags & TOWLINE_DIRECTORY_CREATE) != 0;
  if ((call.args.flags & TOWLINE_DIRECTORY_LEASED) != 0) {
    keeper_.put({key, call.args.value, create, call.args.deadline_ns,
                 [this, number](RpcAnswer&& answer) { finish(number, answer.status, answer.text); }});
    return;
  }
  keeper_.forget(key, false);  // it is to stay from now on
  Rpc rpc;
  rpc.path = create ? "/v3/kv/txn" : "/v3/kv/put";
  rpc.body = create ? create_request(key, call.args.value, 0) : put_request(key, call.args.value, 0);
  rpc.what = fmt::format("putting '{}'", shown(key));
  rpc.deadline_ns = call.args.deadline_ns;
  rpc.done = [this, number, create, what = rpc.what](RpcAnswer&& answer) {
    const auto found = calls_.find(number);
    if (found == calls_.end()) return;
    if (answer.status != Status::kOk) return finish(number, answer.status, answer.text);
    try {
      CreateAnswer decoded;
      if (!create) (void)decode_header(answer.body);
      const Status status = create ? settle_create(answer, found->second.args.value, decoded) : Status::kOk;
      finish(number, status, status == Status::kOk ? "" : what + ": the key is there");
    } catch (const Error& error) {
      finish(number, Status::kProtocol, fmt::format("{} at {}: {}", what, answer.server, error.message()));
    }
  };
  (void)caller_.start(std::move(rpc));
}

void Client::remove(Call& call) {
  const uint64_t number = call.args.number;
  const Span span = span_of(call.args);
  const bool prefix = !span.end.empty();
  keeper_.forget(span.key, prefix);
  Rpc rpc;
  rpc.path = "/v3/kv/deleterange";
  rpc.body = remove_request(span);
  rpc.what = fmt::format("deleting '{}'", shown(span.key));
  rpc.deadline_ns = call.args.deadline_ns;
  rpc.done = [this, number, prefix, what = rpc.what](RpcAnswer&& answer) {
    if (answer.status != Status::kOk) return finish(number, answer.status, answer.text);
    try {
      const bool removed = decode_remove(answer.body).removed != 0 || prefix || answer.repeated;
      finish(number, removed ? Status::kOk : Status::kNotFound,
             removed ? "" : what + ": there is no such key");
    } catch (const Error& error) {
      finish(number, Status::kProtocol, fmt::format("{} at {}: {}", what, answer.server, error.message()));
    }
  };
  (void)caller_.start(std::move(rpc));
}

// Calls that were cancelled may end a second time: that is nothing.
void Client::finish(uint64_t number, Status status, const std::string& text) {
  auto node = calls_.extract(number);
  if (node.empty()) return;
  Call& call = node.mapped();
  timers_.cancel(call.deadline);
  timers_.cancel(call.last);
  bury(std::move(call.watch));
  call.lister.reset();
  count_end(call.args.value.size());
  try {
    next_write(call.args.key, number);
  } catch (const std::bad_alloc&) {  // the next one ends by its deadline
  }
  if (status != Status::kOk) return listener_.done(number, status, text, {});
  for (KeyValue& item : call.found) item = relative(std::move(item));
  listener_.done(number, status, text, call.found);
}

void Client::next_write(const std::string& key, uint64_t ended) {
  const auto found = writes_.find(key);
  if (found == writes_.end()) return;
  auto& queue = found->second;
  const bool was_first = !queue.empty() && queue.front() == ended;
  std::erase(queue, ended);
  if (queue.empty()) {
    writes_.erase(found);
  } else if (was_first) {
    timers_.after(0, [this, next = queue.front()] {
      if (const auto call = calls_.find(next); call != calls_.end()) begin(call->second);
    });
  }
}

// ---- watches

void Client::watch(uint64_t number, std::string prefix, uint32_t flags) {
  thread_.run([this, number, prefix = std::move(prefix), flags]() mutable {
    start_watch(number, std::move(prefix), flags);
  });
}

void Client::unwatch(uint64_t number) {
  thread_.run([this, number] { stop_watch(number); });
}

void Client::start_watch(uint64_t number, std::string prefix, uint32_t flags) try {
  if (shutting_) return;
  make_room();
  std::string key = full_key(prefix);
  std::string end = end_of_prefix(key);
  watches_[number] =
      std::make_unique<Watch>(options_, timers_, posts_, caller_, Span{std::move(key), std::move(end)}, flags,
                              [this, number](const Watch::Event& event) {
                                Watch::Event told = event;
                                KeyValue item;
                                if (event.item != nullptr) {
                                  item = relative(*event.item);
                                  told.item = &item;
                                }
                                listener_.event(number, told);
                              });
} catch (const std::bad_alloc&) {
  listener_.event(number, {TOWLINE_DIRECTORY_ENDED, nullptr, Status::kOutOfMemory, kNoMemory});
}

void Client::stop_watch(uint64_t number) {
  const auto found = watches_.find(number);
  if (found == watches_.end()) return;
  bury(std::move(found->second));
  watches_.erase(found);
}

// bury() has no way to fail.
void Client::make_room() {
  buried_.reserve(std::bit_ceil(buried_.size() + calls_.size() + watches_.size() + 1));
}

void Client::bury(std::unique_ptr<Watch> watch) noexcept {
  if (watch == nullptr) return;
  watch->stop();
  buried_.push_back(std::move(watch));
}

void Client::server_failed(std::size_t server, const std::string& why) {
  // Callbacks of watches may end some watches. bury() keeps the objects alive, but the maps may change.
  std::vector<Watch*> all;
  for (const auto& [number, watch] : watches_) all.push_back(watch.get());
  for (const auto& [number, call] : calls_) {
    if (call.watch) all.push_back(call.watch.get());
  }
  for (Watch* watch : all) watch->server_failed(server, why);
}

// A server that is stopped, or cut off without a word, leaves a stream silent: it is asked something from
// time to time. And what found no memory for its next step takes it now.
void Client::pulse() {
  if (!shutting_) {
    keeper_.look();
    for (const auto& [number, watch] : watches_) watch->look();
    for (const auto& [number, call] : calls_) {
      if (call.watch) call.watch->look();
    }
  }
  const auto streams = [](const auto& entry) { return entry.second->streaming(); };
  const auto waits = [](const auto& entry) { return entry.second.watch && entry.second.watch->streaming(); };
  const bool needed = std::any_of(watches_.begin(), watches_.end(), streams) ||
                      std::any_of(calls_.begin(), calls_.end(), waits);
  if (!needed || pulse_ != 0 || shutting_) return;
  Rpc rpc;
  rpc.path = "/v3/kv/range";
  rpc.body = range_request({{full_key(""), ""}, 1, 0, true});
  rpc.what = "looking whether the server answers";
  rpc.deadline_ns = monotonic_now_ns() + pulse_ns(options_) + options_.attempt_timeout_ns;
  rpc.done = [this](RpcAnswer&&) { pulse_ = 0; };
  pulse_ = caller_.start(std::move(rpc));
}

// ---- the end

void Client::shut(uint64_t deadline_ns) try {
  if (shutting_) return;
  shutting_ = true;
  std::vector<uint64_t> numbers;
  for (const auto& [number, call] : calls_) numbers.push_back(number);
  for (const uint64_t number : numbers) finish(number, Status::kClosed, "the directory was closed");
  for (auto& [number, watch] : watches_) bury(std::move(watch));
  watches_.clear();
  timers_.at(deadline_ns, [this] { thread_.end(); });
  keeper_.revoke(deadline_ns, [this] { thread_.end(); });
} catch (const std::exception&) {
  thread_.end();
}

std::string Client::describe() {
  if (thread_.is_this()) return describe_here();
  std::promise<std::string> answer;
  if (!thread_.run([this, &answer] { answer.set_value(describe_here()); })) return "{}";
  return answer.get_future().get();
}

std::string Client::describe_here() const {
  nlohmann::json json = {{"directory", "etcd"}, {"namespace", shown(options_.name_space)}};
  if (!options_.user.empty()) json["user"] = shown(options_.user);
  caller_.describe(json);
  keeper_.describe(json);
  json["watches"] = nlohmann::json::array();
  for (const auto& [number, watch] : watches_) {
    nlohmann::json entry = {{"prefix", shown(watch->prefix())},
                            {"following", watch->online()},
                            {"revision", watch->next_revision() - 1}};
    if (!watch->trouble().empty()) entry["trouble"] = shown(watch->trouble());
    json["watches"].push_back(std::move(entry));
  }
  return json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

}  // namespace towline::etcd
