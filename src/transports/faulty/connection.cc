#include "transports/faulty/connection.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>

#include "base/clock.h"
#include "transports/faulty/backend.h"

namespace towline::faulty {
namespace {

// An event that waits to be overtaken waits at most this long.
constexpr uint64_t kMaxOvertakingNs = kMillisecondNs;

}  // namespace

Connection::~Connection() { backend_.forget(*this); }

// ---- called by the core

int32_t Connection::import(const towline_region_args* args, const void* token, size_t token_bytes,
                           towline_import** import, char how[64]) {
  if (lost()) return TOWLINE_PEER_LOST;
  if (backend_.chance(worker_, backend_.options().shorten)) return TOWLINE_AGAIN;
  if (backend_.chance(worker_, backend_.options().cut)) {
    backend_.fail("the fault injector refused the import");
    return TOWLINE_UNREACHABLE;
  }
  // AGAIN leaves the inner import in *import, for the next call: so does ours.
  auto* mine = reinterpret_cast<Import*>(*import);
  if (mine == nullptr) mine = imports_.emplace_back(std::make_unique<Import>()).get();
  const int32_t status = backend_.memory().import(inner_, args, token, token_bytes, &mine->inner, how);
  *import = reinterpret_cast<towline_import*>(mine);
  if (status != TOWLINE_OK && status != TOWLINE_AGAIN) {
    std::erase_if(imports_, [mine](const auto& entry) { return entry.get() == mine; });
    *import = nullptr;
  }
  return status;
}

void Connection::unimport(towline_import* import) noexcept {
  const auto* mine = reinterpret_cast<const Import*>(import);
  if (!cut_ && mine->inner != nullptr) backend_.memory().unimport(inner_, mine->inner);
  std::erase_if(imports_, [mine](const auto& entry) { return entry.get() == mine; });
}

void Connection::disconnect() noexcept {
  ending_ = true;
  report_all_held();
  if (!cut_) backend_.connections().disconnect(inner_);
  delete this;
}

int32_t Connection::describe(char* json, size_t capacity) {
  std::string inner = "{}";
  if (!cut_) {
    std::vector<char> text(capacity + 1);
    if (backend_.connections().describe(inner_, text.data(), capacity) == TOWLINE_OK) inner = text.data();
  }
  const std::string whole =
      fmt::format(R"({{"faults": "{}", "inner": {}}})", framing::to_text(backend_.options()), inner);
  std::snprintf(json, capacity, "%s", whole.size() < capacity ? whole.c_str() : inner.c_str());
  return TOWLINE_OK;
}

uint64_t Connection::connection_id() const noexcept {
  const auto id = backend_.connections().id;
  return cut_ || id == nullptr ? 0 : id(inner_);
}

int32_t Connection::prepare(const towline_prepare_args* args, towline_prepared** prepared) {
  if (lost()) return TOWLINE_PEER_LOST;
  std::vector<towline_import*> imports;
  for (uint64_t i = 0; args->remote != nullptr && i < args->plan->remote->region_count; ++i) {
    imports.push_back(args->remote[i] == nullptr ? nullptr
                                                 : reinterpret_cast<Import*>(args->remote[i])->inner);
  }
  towline_prepare_args inner_args = *args;
  if (args->remote != nullptr) inner_args.remote = imports.data();
  auto made = std::make_unique<Prepared>();
  const int32_t status = backend_.data().prepare(inner_, &inner_args, &made->inner);
  if (status != TOWLINE_OK) return status;
  // Neither concurrent nor immediate: every submit passes here, and may be held.
  made->base = {sizeof made->base, 0, 0, handle(), args->plan};
  made->table = &backend_.data();
  *prepared = &made.release()->base;
  return TOWLINE_OK;
}

void Connection::unprepare(towline_prepared* prepared) noexcept {
  const std::unique_ptr<Prepared> mine(reinterpret_cast<Prepared*>(prepared));
  mine->table->unprepare(mine->inner);
}

void Connection::note_moved(uint64_t bytes) noexcept {
  const uint64_t limit = backend_.options().cut_after_bytes;
  const bool passed = limit != 0 && moved_ < limit && moved_ + bytes >= limit;
  moved_ += bytes;
  if (passed || backend_.chance(worker_, backend_.options().cut)) cut_due_ = true;
}

int32_t Connection::submit(towline_prepared* prepared, const towline_submit_args* args) {
  if (lost()) return TOWLINE_PEER_LOST;
  if (backend_.chance(worker_, backend_.options().shorten)) return TOWLINE_AGAIN;
  Part* part = live_.emplace_back(std::make_unique<Part>()).get();
  *part = {this, args->cookie, args->end - args->begin};
  towline_submit_args inner_args = *args;
  inner_args.cookie = reinterpret_cast<uint64_t>(part);
  const uint64_t bytes = part->bytes;
  const int32_t status = backend_.data().submit(reinterpret_cast<Prepared*>(prepared)->inner, &inner_args);
  if (status < 0) {
    take_live(*part);
    return status;
  }
  note_moved(bytes);
  if (status != TOWLINE_OK) return TOWLINE_IN_PROGRESS;
  // Done at once. Held back, it looks like any other part that takes a while.
  std::unique_ptr<Part> done = take_live(*part);
  const framing::FaultOptions& options = backend_.options();
  if (!backend_.chance(worker_, options.delay)) return TOWLINE_OK;
  auto result = plugin::sized<towline_part_result>();
  result.fences = TOWLINE_PART_FENCED_LOCAL | TOWLINE_PART_FENCED_REMOTE;
  result.bytes = bytes;
  held_.push_back(
      {std::move(done), result, backend_.now_ns() + backend_.below(worker_, options.delay_ns), false});
  return TOWLINE_IN_PROGRESS;
}

int32_t Connection::send(const void* message, size_t bytes) {
  if (lost()) return TOWLINE_PEER_LOST;
  if (backend_.chance(worker_, backend_.options().shorten)) return TOWLINE_AGAIN;
  const int32_t status = backend_.data().send(inner_, message, bytes);
  if (status >= 0) note_moved(bytes);
  return status;
}

void Connection::cancel(uint64_t cookie) noexcept {
  for (std::size_t i = 0; i < held_.size(); ++i) {
    if (held_[i].part->cookie == cookie)
      held_[i].due_ns = 0;  // its outcome is known: the next progress() tells it
  }
  const auto found =
      std::find_if(live_.begin(), live_.end(), [&](const auto& part) { return part->cookie == cookie; });
  if (!cut_ && found != live_.end()) backend_.data().cancel(inner_, reinterpret_cast<uint64_t>(found->get()));
}

// ---- called by the inner transport

std::unique_ptr<Part> Connection::take_live(const Part& part) noexcept {
  const auto found =
      std::find_if(live_.begin(), live_.end(), [&](const auto& entry) { return entry.get() == &part; });
  std::unique_ptr<Part> taken = std::move(*found);
  live_.erase(found);
  return taken;
}

void Connection::on_complete(Part& part, const towline_part_result& result) {
  settle(take_live(part), result);
}

void Connection::settle(std::unique_ptr<Part> part, const towline_part_result& result) {
  const framing::FaultOptions& options = backend_.options();
  if (ending_) return report(std::move(part), result);
  if (backend_.chance(worker_, options.reorder)) {
    held_.push_back({std::move(part), result, backend_.now_ns() + kMaxOvertakingNs, true});
  } else if (backend_.chance(worker_, options.delay)) {
    held_.push_back(
        {std::move(part), result, backend_.now_ns() + backend_.below(worker_, options.delay_ns), false});
  } else {
    for (Held& held : held_) {
      if (held.until_passed) held.due_ns = 0;
    }
    report(std::move(part), result);  // nothing of this is touched afterwards
  }
}

void Connection::report(std::unique_ptr<Part> part, const towline_part_result& result) {
  towline_part_result told = result;
  if (cut_ && told.status == TOWLINE_CLOSED) told.status = TOWLINE_PEER_LOST;
  const uint64_t cookie = part->cookie;
  part.reset();
  backend_.host().complete(backend_.host().context, cookie, &told);
}

void Connection::report_all_held() {
  std::vector<Held> held;
  held.swap(held_);
  for (Held& one : held) report(std::move(one.part), one.result);
}

void Connection::on_served(uint32_t direction, uint64_t bytes) const {
  backend_.host().served(backend_.host().context, peer_, direction, bytes);
}

void Connection::on_heard() const {
  if (backend_.host().heard != nullptr) backend_.host().heard(backend_.host().context, peer_);
}

void Connection::on_granted(uint64_t key) const {
  if (backend_.host().granted != nullptr) backend_.host().granted(backend_.host().context, peer_, key);
}

// Messages keep their order: one that waits holds up those behind it.
void Connection::on_message(const void* data, size_t bytes) {
  const framing::FaultOptions& options = backend_.options();
  const bool waits = backend_.chance(worker_, options.delay);
  if (!waits && messages_.empty())
    return backend_.host().message(backend_.host().context, peer_, data, bytes);
  const auto* begin = static_cast<const uint8_t*>(data);
  const uint64_t due_ns = waits ? backend_.now_ns() + backend_.below(worker_, options.delay_ns) : 0;
  messages_.push_back({{begin, begin + bytes}, due_ns});
}

void Connection::on_event(uint32_t event, int32_t status, const char* text) {
  if (event == TOWLINE_CONNECTION_DOWN) {
    ending_ = true;
    report_all_held();
  }
  backend_.host().connection_event(backend_.host().context, peer_, event, status, text);
}

// True when something was told; the connection may then be gone.
bool Connection::deliver_due(uint64_t now_ns) {
  for (std::size_t i = 0; i < held_.size(); ++i) {
    if (held_[i].due_ns > now_ns) continue;
    Held due = std::move(held_[i]);
    held_.erase(held_.begin() + static_cast<std::ptrdiff_t>(i));
    report(std::move(due.part), due.result);
    return true;
  }
  if (cut_ || messages_.empty() || messages_.front().due_ns > now_ns) return false;
  const HeldMessage due = std::move(messages_.front());
  messages_.pop_front();
  backend_.host().message(backend_.host().context, peer_, due.bytes.data(), due.bytes.size());
  return true;
}

// The inner connection is disconnected, as if the network had failed. Imports go first, as the inner
// transport expects.
bool Connection::cut_if_due() {
  if (!cut_due_ || cut_) return false;
  if (!ending_) {
    ending_ = true;
    report_all_held();
  }
  for (const auto& import : imports_) {
    if (import->inner != nullptr) backend_.memory().unimport(inner_, import->inner);
    import->inner = nullptr;
  }
  cut_ = true;
  cut_due_ = false;
  messages_.clear();
  backend_.connections().disconnect(inner_);
  inner_ = nullptr;
  backend_.host().connection_event(backend_.host().context, peer_, TOWLINE_CONNECTION_DOWN, TOWLINE_PEER_LOST,
                                   "cut by the fault injector");
  return true;
}

}  // namespace towline::faulty
