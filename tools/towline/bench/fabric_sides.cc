// The two processes of towline bench --fabric. The mover asks by messages of the engine, so that the owner may run on
// another host.
#include <fmt/format.h>

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <numeric>
#include <optional>
#include <random>
#include <thread>
#include <towline/fabric.hpp>

#include "bench/fabric.h"
#include "buffer.h"
#include "failure.h"
#include "samples.h"
#include "units.h"

namespace tool::bench {
namespace {

using namespace std::chrono_literals;
using nlohmann::json;

constexpr uint32_t kThere = 1;  // immediates of a round trip
constexpr uint32_t kBack = 2;
constexpr std::chrono::nanoseconds kEndsWithin = 60s;

// Results that the engine's thread hands to this one.
class Inbox {
 public:
  struct Message {
    towline::FabricPeer peer = 0;
    json content;
    std::string lost;
  };
  void push(Message message) {
    {
      const std::lock_guard lock{mutex_};
      messages_.push_back(std::move(message));
    }
    came_.notify_one();
  }
  std::optional<Message> pop(std::chrono::milliseconds timeout) {
    std::unique_lock lock{mutex_};
    if (!came_.wait_for(lock, timeout, [this] { return !messages_.empty(); })) return std::nullopt;
    Message message = std::move(messages_.front());
    messages_.pop_front();
    return message;
  }

 private:
  std::mutex mutex_;
  std::condition_variable came_;
  std::deque<Message> messages_;
};

towline::FabricOptions engine_options(const json& configuration, Inbox& inbox) {
  towline::FabricOptions options;
  options.listen = configuration.at("listen");
  options.events.message = [&inbox](towline::FabricPeer peer, std::span<const uint8_t> bytes) {
    inbox.push({peer, json::parse(bytes.begin(), bytes.end(), nullptr, false), {}});
  };
  options.events.lost = [&inbox](towline::FabricPeer peer, std::string_view why) {
    inbox.push({peer, nullptr, std::string{why}});
  };
  return options;
}

json rails_of(const towline::Fabric& engine) {
  std::vector<towline_fabric_rail_t> rails(16);
  size_t count = 0;
  towline::detail::check(
      towline_fabric_rails(engine.get(), rails.data(), sizeof rails[0], rails.size(), &count));
  json list = json::array();
  for (size_t i = 0; i < count; ++i)
    list.push_back({{"name", rails[i].name},
                    {"bandwidth_bytes_per_s", rails[i].bandwidth_bytes_per_s},
                    {"numa_node", rails[i].numa_node},
                    {"requests", rails[i].requests},
                    {"bytes", rails[i].bytes},
                    {"breaks", rails[i].breaks},
                    {"retried", rails[i].retried},
                    {"longest_pause_ns", rails[i].longest_pause_ns}});
  return list;
}

double sum_of(const json& rails, const char* key) {
  double sum = 0;
  for (const json& rail : rails) sum += rail.at(key).get<double>();
  return sum;
}

bool told_to_stop(Channel& parent) {
  const auto message = parent.try_receive();
  return parent.closed() || (message && message->value("command", "") == "stop");
}

// Memory of this process or of a GPU: `gpu` as in GpuMemory.
Buffer buffer_of(const json& configuration, const char* kind, int gpu) {
  const bool vram = parse_buffer_kind(configuration.at(kind)) == BufferKind::kVram;
  return {vram ? BufferKind::kVram : BufferKind::kPrivate, configuration.at("span").get<uint64_t>(), gpu};
}

// The rails read and write it themselves; throws if they can't.
towline::FabricMemory register_buffer(towline::Fabric& engine, const Buffer& buffer,
                                      towline::FabricAccess access = {}) {
  const towline::MemoryView view = buffer.view();
  if (view.kind != towline::Kind::kVram) return engine.register_memory(view.address, view.bytes, access);
  return engine.register_gpu_memory(view.address, view.bytes, static_cast<uint32_t>(view.device), access);
}

class Owner {
 public:
  Owner(const json& configuration, Channel& parent)
      : parent_(parent), memory_(buffer_of(configuration, "target_memory", -1)) {
    auto options = engine_options(configuration, inbox_);
    options.events.counted = [this](towline::FabricPeer peer, uint32_t immediate, uint32_t count) {
      if (immediate == kThere) (void)engine_->signal(peer, {.immediate = kBack, .count = count});
    };
    engine_.emplace(configuration.at("rails").get<std::vector<std::string>>(), std::move(options));
    region_.emplace(register_buffer(*engine_, memory_, {.readable = true, .writable = true}));
  }

  void run() {
    parent_.send({{"invitation", FabricInvitation{engine_->address(), region_->descriptor()}.text()}});
    while (true) {
      if (told_to_stop(parent_)) return;
      const auto message = inbox_.pop(200ms);
      if (!message || !message->content.is_object()) continue;
      (void)engine_->signal(message->peer, {.message = answer(message->content).dump()});
    }
  }

 private:
  json answer(const json& asked) {
    const uint64_t bytes = asked.value("bytes", uint64_t{0});
    if (bytes > memory_.size()) return {{"failed", "the owner has not so much memory"}};
    const std::string ask = asked.value("ask", "");
    const std::span<std::byte> area = memory_.bytes().first(bytes);
    const uint64_t seed = asked.value("seed", uint64_t{0});
    if (ask == "fill") fill_pattern(area, 0, seed);
    if (ask == "clear") std::ranges::fill(area, std::byte{0xee});
    if (ask == "check") {
      memory_.pull(0, bytes);
    } else {
      memory_.push(0, bytes);
    }
    return {{"done", ask}, {"wrong", ask == "check" ? wrong_bytes(area, 0, seed) : 0}};
  }

  Channel& parent_;
  Inbox inbox_;
  Buffer memory_;
  std::optional<towline::Fabric> engine_;  // goes before the memory
  std::optional<towline::FabricMemory> region_;
};

class Mover {
 public:
  Mover(const json& configuration, Channel& parent)
      : configuration_(configuration),
        parent_(parent),
        memory_(buffer_of(configuration, "memory", 0)),
        engine_(configuration.at("rails").get<std::vector<std::string>>(),
                engine_options(configuration, inbox_)),
        region_(register_buffer(engine_, memory_)),
        invitation_(FabricInvitation::parse(configuration.at("invitation"))),
        peer_(engine_.connect(invitation_.address)),
        remote_(invitation_.descriptor) {}

  void run() {
    json rows = json::array();
    for (const FabricRow& row : configuration_.at("rows").get<std::vector<FabricRow>>()) {
      rows.push_back(measure(row));
      if (told_to_stop(parent_)) return;
    }
    parent_.send({{"rows", rows}, {"rails", rails_of(engine_)}});
    while (!told_to_stop(parent_)) std::this_thread::sleep_for(20ms);
  }

 private:
  json ask(const char* what, uint64_t bytes, uint64_t seed) {
    const towline::FabricTransfer asked =
        engine_.signal(peer_, {.message = json{{"ask", what}, {"bytes", bytes}, {"seed", seed}}.dump()});
    const auto end = std::chrono::steady_clock::now() + kEndsWithin;
    auto answer = inbox_.pop(0ms);
    for (; !answer && std::chrono::steady_clock::now() < end; answer = inbox_.pop(100ms)) {
      const towline::Status status = asked.poll();
      if (towline::is_error(status) && status != towline::Status::kPeerLost)
        throw Failure{fmt::format("the owner can't be asked over these rails: {}; the log's warnings say why",
                                  towline::status_text(status))};
    }
    if (!answer) throw Failure{fmt::format("the owner did not answer '{}' within 60 s", what)};
    if (!answer->lost.empty()) throw Failure{"the owner was lost: " + answer->lost};
    if (!answer->content.is_object() || answer->content.contains("failed"))
      throw Failure{fmt::format("the owner answered '{}' with {}", what, answer->content.dump())};
    return answer->content;
  }

  void ended(const towline::FabricTransfer& transfer) {
    const towline::Status status = transfer.wait(kEndsWithin);
    if (status != towline::Status::kOk)
      throw Failure{fmt::format("a transfer ended with: {}", towline::status_text(status))};
  }

  void prepare(const FabricRow& row, uint64_t seed) {
    local_.resize(row.batch);
    remote_pages_.resize(row.batch);
    std::iota(local_.begin(), local_.end(), 0u);
    std::iota(remote_pages_.begin(), remote_pages_.end(), 0u);
    std::ranges::shuffle(local_, std::mt19937_64{seed});
    std::ranges::shuffle(remote_pages_, std::mt19937_64{seed + 1});
    const uint64_t bytes = row.size * row.batch;
    if (row.from == "target") {
      std::ranges::fill(memory_.bytes().first(bytes), std::byte{0xee});
      memory_.push(0, bytes);
      ask("fill", bytes, seed);
      return;
    }
    each_page(row, [&](std::span<std::byte> page, uint64_t offset) { fill_pattern(page, offset, seed); });
    memory_.push(0, bytes);
    ask("clear", bytes, seed);
  }

  // Each page of this side, and where it lies on the other one.
  template <class Use>
  void each_page(const FabricRow& row, Use&& use) {
    for (uint64_t i = 0; i < row.batch; ++i)
      use(memory_.bytes().subspan(local_[i] * row.size, row.size), remote_pages_[i] * row.size);
  }

  uint64_t check(const FabricRow& row, uint64_t seed) {
    if (row.from != "target") return ask("check", row.size * row.batch, seed).at("wrong");
    uint64_t wrong = 0;
    memory_.pull(0, row.size * row.batch);
    each_page(row,
              [&](std::span<std::byte> page, uint64_t offset) { wrong += wrong_bytes(page, offset, seed); });
    return wrong;
  }

  void move(const FabricRow& row) {
    if (row.kind == "immediate") {
      (void)engine_.signal(peer_, {.immediate = kThere, .count = 1});
      if (engine_.wait_counter(kBack, ++round_trips_, kEndsWithin) != towline::Status::kOk)
        throw Failure{"an immediate did not come back within 60 s"};
    } else if (row.kind == "single") {
      ended(row.from == "target" ? engine_.read(peer_, region_, 0, remote_, 0, row.size)
                                 : engine_.write(peer_, region_, 0, remote_, 0, row.size));
    } else {
      const towline::FabricPages pages{
          .local_pages = local_, .remote_pages = remote_pages_, .page_bytes = row.size};
      ended(row.from == "target" ? engine_.read(peer_, region_, remote_, pages)
                                 : engine_.write(peer_, region_, remote_, pages));
    }
  }

  json measure(const FabricRow& row) {
    const uint64_t seed = ++rows_ * 7919;
    const bool moves = row.kind != "immediate";
    if (moves) prepare(row, seed);
    for (uint64_t i = 0; i <= configuration_.at("warmup").get<uint64_t>(); ++i) move(row);
    const uint64_t wanted = configuration_.at("iterations");
    const double seconds = configuration_.at("seconds");
    const json before = rails_of(engine_);
    Samples samples;
    samples.reserve(kMostSamples);
    const auto begin = std::chrono::steady_clock::now();
    for (uint64_t i = 0; wanted != 0 ? i < wanted : i == 0 || seconds_since(begin) < seconds; ++i) {
      const auto start = std::chrono::steady_clock::now();
      move(row);
      if (samples.size() < kMostSamples) samples.add(seconds_since(start));
    }
    const double wall_s = seconds_since(begin);
    const json after = rails_of(engine_);
    const double bytes = static_cast<double>(row.size * row.batch) * static_cast<double>(samples.size());
    const double link = sum_of(after, "bandwidth_bytes_per_s");
    json result = row;
    result["iterations"] = samples.size();
    result["p50_s"] = samples.median();
    result["p99_s"] = samples.quantile(0.99);
    result["max_s"] = samples.max();
    result["bytes_per_s"] = bytes / wall_s;
    result["link_share"] = link > 0 ? bytes / wall_s / link : 0.0;
    result["requests_per_s_of_rail"] = (sum_of(after, "requests") - sum_of(before, "requests")) / wall_s /
                                       static_cast<double>(std::max<size_t>(after.size(), 1));
    result["retried"] = static_cast<uint64_t>(sum_of(after, "retried") - sum_of(before, "retried"));
    const bool checks = moves && configuration_.at("check").get<bool>();
    result["checked_bytes"] = checks ? row.size * row.batch : 0;
    result["wrong_bytes"] = checks ? check(row, seed) : 0;
    return result;
  }

  const json configuration_;
  Channel& parent_;
  Inbox inbox_;
  Buffer memory_;
  towline::Fabric engine_;
  towline::FabricMemory region_;
  FabricInvitation invitation_;
  towline::FabricPeer peer_;
  towline::FabricRemote remote_;
  std::vector<uint32_t> local_;
  std::vector<uint32_t> remote_pages_;
  uint64_t rows_ = 0;
  uint64_t round_trips_ = 0;
};

}  // namespace

void run_fabric_owner(const json& configuration, Channel& parent) { Owner{configuration, parent}.run(); }
void run_fabric_mover(const json& configuration, Channel& parent) { Mover{configuration, parent}.run(); }

}  // namespace tool::bench
