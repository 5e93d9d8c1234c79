#include "collectives/flight_recorder.h"

#include <algorithm>
#include <ctime>
#include <nlohmann/json.hpp>

#include "base/clock.h"
#include "base/sync/prefetch.h"
#include "collectives/calls/types.h"

namespace towline::collectives {
namespace {

// torch's names of types, which readers of the format expect.
const char* scalar_name(uint32_t datatype) {
  constexpr const char* kNames[] = {"Float",       "Double", "Half", "BFloat16", "Float8_e4m3fn",
                                    "Float8_e5m2", "Char",   "Byte", "Short",    "UInt16",
                                    "Int",         "UInt32", "Long", "UInt64",   "Bool"};
  return datatype < kDatatypes ? kNames[datatype] : "Undefined";
}

bool is_message(uint32_t op) {
  return op == TOWLINE_COLLECTIVE_SEND || op == TOWLINE_COLLECTIVE_RECV || op == TOWLINE_COLLECTIVE_BATCH;
}

}  // namespace

uint64_t FlightRecorder::issue_at(uint64_t when, const towline_collective_t* call, uint32_t op,
                                  uint64_t op_id, uint64_t timeout_ns, bool started) noexcept {
  if (entries_.empty()) return 0;
  const Guard guard(lock_);
  const uint64_t record = ++recorded_;
  Entry& entry = place_of(record);
  entry.record.store(record, std::memory_order_relaxed);
  entry.outcome.store(0, std::memory_order_relaxed);
  entry.ended.store(0, std::memory_order_relaxed);
  entry.created = when;
  entry.started = started ? when : 0;
  entry.op_id = op_id;
  entry.sequence = is_message(op) ? ++messages_ : ++collectives_;
  entry.count = call != nullptr ? call->count : 0;
  entry.timeout_ns = timeout_ns;
  entry.op = static_cast<uint8_t>(op);
  entry.datatype = call != nullptr ? static_cast<uint8_t>(call->datatype) : 0;
  entry.reduction = call != nullptr ? static_cast<uint8_t>(call->reduction) : 0;
  entry.root = call != nullptr ? call->root : 0;
  return record;
}

void FlightRecorder::start(uint64_t record) noexcept {
  const uint64_t when = now();
  const Guard guard(lock_);
  if (Entry* entry = find(record)) entry->started = when;
}

void FlightRecorder::end_at(uint64_t when, uint64_t record, Status status) noexcept {
  Entry* const entry = find(record);
  if (entry == nullptr) return;
  entry->ended.store(when, std::memory_order_relaxed);
  entry->outcome.store(outcome_of(record, status), std::memory_order_release);
  // The next record's lines come from further away than the first cache meanwhile.
  const auto* const next = reinterpret_cast<const uint8_t*>(&place_of(record + 1));
  prefetch_for_write(next);
  prefetch_for_write(next + sizeof(Entry) - 1);
}

void FlightRecorder::reset() noexcept {
  const Guard guard(lock_);
  for (Entry& entry : entries_) entry.record.store(0, std::memory_order_relaxed);
}

std::vector<FlightRecorder::Told> FlightRecorder::told() const {
  std::vector<Told> all;
  const Guard guard(lock_);
  for (const Entry& entry : entries_) {
    const uint64_t record = entry.record.load(std::memory_order_relaxed);
    if (record == 0 || record + capacity_ <= recorded_) continue;
    const uint64_t outcome = entry.outcome.load(std::memory_order_acquire);
    Told& one = all.emplace_back();
    one.record = record;
    one.op_id = entry.op_id;
    one.sequence = entry.sequence;
    one.count = entry.count;
    one.timeout_ns = entry.timeout_ns;
    one.op = entry.op;
    one.datatype = entry.datatype;
    one.reduction = entry.reduction;
    one.root = entry.root;
    one.created = entry.created;
    one.started = entry.started;
    const uint64_t ended = entry.ended.load(std::memory_order_relaxed);
    if (ended == 0 || outcome >> 32 != (record & UINT32_MAX)) continue;  // it runs yet
    one.status = Status{static_cast<int32_t>(outcome)};
    if (one.started == 0) one.started = one.created;
    one.ended = std::max(ended, one.started);  // they may be read in one moment and out of order
  }
  return all;
}

std::string FlightRecorder::dump(const std::string& name, int rank, int size) const {
  std::vector<Told> entries = told();
  std::ranges::sort(entries, {}, &Told::record);

  timespec wall = {};
  clock_gettime(CLOCK_REALTIME, &wall);
  const auto offset = static_cast<int64_t>(static_cast<uint64_t>(wall.tv_sec) * kSecondNs +
                                           static_cast<uint64_t>(wall.tv_nsec) - monotonic_now_ns());
  const TickClock::Scale scale = clock_.scale();
  const auto wall_ns = [&](uint64_t when) {
    return when == 0 ? nlohmann::json() : nlohmann::json(static_cast<int64_t>(scale.to_ns(when)) + offset);
  };

  nlohmann::json dump;
  dump["version"] = "2.10";
  std::vector<int> ranks(static_cast<size_t>(size));
  for (int i = 0; i < size; ++i) ranks[static_cast<size_t>(i)] = i;
  dump["pg_config"]["0"] = {{"name", name}, {"desc", "towline"}, {"ranks", nlohmann::json(ranks).dump()}};
  uint64_t issued = 0;
  uint64_t started = 0;
  uint64_t completed = 0;
  dump["entries"] = nlohmann::json::array();
  for (const Told& entry : entries) {
    const bool message = is_message(entry.op);
    const bool ended = entry.ended != 0;
    const char* state = ended                ? (entry.status == Status::kOk ? "completed" : "failed")
                        : entry.started != 0 ? "started"
                                             : "scheduled";
    if (!message) {
      issued = entry.sequence;
      if (entry.started != 0) started = entry.sequence;
      if (ended && entry.status == Status::kOk) completed = entry.sequence;
    }
    nlohmann::json one = {{"record_id", entry.record},
                          {"pg_id", 0},
                          {"process_group", {name, "towline"}},
                          {"collective_seq_id", message ? 0 : entry.sequence},
                          {"p2p_seq_id", message ? entry.sequence : 0},
                          {"op_id", entry.op_id},
                          {"profiling_name", std::string("towline:") + op_name(entry.op)},
                          {"time_created_ns", wall_ns(entry.created)},
                          {"time_discovered_started_ns", wall_ns(entry.started)},
                          {"time_discovered_completed_ns", wall_ns(entry.ended)},
                          {"state", state},
                          {"input_sizes", {{entry.count}}},
                          {"input_dtypes", {scalar_name(entry.datatype)}},
                          {"output_sizes", {{entry.count}}},
                          {"output_dtypes", {scalar_name(entry.datatype)}},
                          {"timeout_ms", entry.timeout_ns / kMillisecondNs},
                          {"is_p2p", message},
                          {"retired", ended},
                          {"frames", nlohmann::json::array()}};
    if (has_root(entry.op)) one["root"] = entry.root;
    if (reduces(entry.op)) one["reduction"] = reduction_name(entry.reduction);
    if (ended)
      one["duration_ms"] = static_cast<double>(scale.to_ns(entry.ended) - scale.to_ns(entry.started)) / 1e6;
    if (ended && entry.status != Status::kOk) one["status"] = status_name(entry.status);
    dump["entries"].push_back(std::move(one));
  }
  dump["pg_status"]["0"] = {{"last_enqueued_collective", issued},
                            {"last_started_collective", started},
                            {"last_completed_collective", completed}};
  dump["rank"] = rank;
  return dump.dump();
}

}  // namespace towline::collectives
