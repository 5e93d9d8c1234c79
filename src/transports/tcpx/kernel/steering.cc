#include "transports/tcpx/kernel/steering.h"

#include <algorithm>
#include <charconv>
#include <chrono>
#include <set>
#include <string_view>
#include <thread>

#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"

namespace towline::tcpx {
namespace {

// "split=1 threshold=0 spread=0,1,2,3", as a NIC was before; no threshold: it has none.
std::string say(const Rings& rings, std::span<const uint32_t> spread) {
  std::string text = fmt::format("split={}", static_cast<int>(rings.split));
  if (rings.threshold) text += fmt::format(" threshold={}", *rings.threshold);
  text += " spread=";
  for (std::size_t i = 0; i < spread.size(); ++i) text += fmt::format("{}{}", i == 0 ? "" : ",", spread[i]);
  return text;
}

std::vector<uint32_t> numbers_after(std::string_view text, std::string_view key) {
  const std::size_t found = text.find(key);
  std::vector<uint32_t> numbers;
  if (found == std::string_view::npos) return numbers;
  const char* at = text.data() + found + key.size();
  const char* const end = text.data() + text.size();
  while (at < end && numbers.size() < kMostSpread) {
    uint32_t number = 0;
    const auto [next, error] = std::from_chars(at, end, number);
    if (error != std::errc{}) break;
    numbers.push_back(number);
    if (next == end || *next != ',') break;
    at = next + 1;
  }
  return numbers;
}

// A ring of io_uring lets go of its queue a moment after it was closed, and until then the split stays.
void give_back(Nic& nic, const Rings& rings) {
  const uint64_t until_ns = monotonic_now_ns() + 2 * kSecondNs;
  for (;;) {
    try {
      return nic.set_rings(rings);
    } catch (const core::Error&) {
      if (monotonic_now_ns() >= until_ns) throw;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
}

}  // namespace

Steering::Steering(Nic& nic, std::vector<uint32_t> queues, const std::string& folder)
    : nic_(nic), queues_(std::move(queues)), ledger_(folder, nic.interface()) {
  if (queues_.empty()) fail(Status::kInvalidArgument, "no receive queue of {} is named", nic_.interface());
  undo_the_dead();
  try {
    prepare();
  } catch (const core::Error&) {
    ledger_.last_one([&](const std::string& before) { restore(before); });
    throw;
  }
  ledger_.begun();
}

Steering::~Steering() {
  try {
    ledger_.last_one([&](const std::string& before) { restore(before); });
  } catch (const core::Error& error) {
    TOWLINE_LOG(kWarning, "tcpx: {} is left as it is: {}", nic_.interface(), error.message());
  }
}

void Steering::undo_the_dead() {
  std::set<std::string> left(ledger_.left_by_the_dead().begin(), ledger_.left_by_the_dead().end());
  if (!left.empty()) {
    for (const auto& [place, rule] : nic_.rules()) {
      if (left.count(rule.text()) == 0) continue;
      nic_.delete_rule(place);
      ++rules_found_;
    }
    TOWLINE_LOG(kInfo, "tcpx: {} flow rules of ended processes were deleted from {}", rules_found_,
                nic_.interface());
  }
  ledger_.forget_the_dead();
}

void Steering::prepare() {
  const Rings rings = nic_.rings();
  const std::vector<uint32_t> spread = nic_.spread();
  // That process was killed while it was alone, so the settings it found are the ones to restore.
  if (!ledger_.before()) ledger_.set_before(say(rings, spread));
  Rings wanted = {Split::kOn, rings.threshold ? std::optional<uint32_t>(0) : std::nullopt};
  if (rings.split != Split::kOn || rings.threshold.value_or(0) != 0) nic_.set_rings(wanted);

  const std::set<uint32_t> ours(queues_.begin(), queues_.end());
  std::vector<uint32_t> others;
  for (const uint32_t queue : std::set<uint32_t>(spread.begin(), spread.end()))
    if (ours.count(queue) == 0) others.push_back(queue);
  if (others.empty()) {
    for (uint32_t queue = 0; queue < 64 && others.empty(); ++queue)
      if (ours.count(queue) == 0) others.push_back(queue);
  }
  std::vector<uint32_t> without = spread;
  std::size_t next = 0;
  for (uint32_t& queue : without)
    if (ours.count(queue) != 0) queue = others[next++ % others.size()];
  if (without != spread) nic_.set_spread(without);
}

void Steering::restore(const std::string& before) {
  const auto spread = numbers_after(before, "spread=");
  if (!spread.empty() && spread != nic_.spread()) nic_.set_spread(spread);
  const auto split = numbers_after(before, "split=");
  const auto threshold = numbers_after(before, "threshold=");
  Rings rings;
  if (!split.empty() && split[0] <= 2) rings.split = static_cast<Split>(split[0]);
  if (!threshold.empty()) rings.threshold = threshold[0];
  const Rings now = nic_.rings();
  if (rings.split != now.split || rings.threshold != now.threshold) give_back(nic_, rings);
}

FlowRule Steering::steer(int socket) {
  const std::lock_guard lock(mutex_);
  FlowRule rule = {SocketAddress::peer_of(socket), SocketAddress::local_of(socket),
                   queues_[next_queue_++ % queues_.size()]};
  if (auto plain = parse_rule(rule.text())) rule = *plain;  // as the NIC will say it
  ledger_.add(rule.text());
  try {
    nic_.insert_rule(rule);
  } catch (const core::Error&) {
    ledger_.remove(rule.text());
    throw;
  }
  return rule;
}

bool Steering::delete_rule(const FlowRule& rule) {
  for (const auto& [place, found] : nic_.rules()) {
    if (!(found == rule)) continue;
    nic_.delete_rule(place);
    return true;
  }
  return false;
}

void Steering::end(const FlowRule& rule) noexcept {
  try {
    const std::lock_guard lock(mutex_);
    (void)delete_rule(rule);  // it may be gone with the NIC
    ledger_.remove(rule.text());
  } catch (const std::exception& error) {
    TOWLINE_LOG(kWarning, "tcpx: the flow rule \"{}\" stays at {}: {}", rule.text(), nic_.interface(),
                error.what());
  }
}

}  // namespace towline::tcpx
