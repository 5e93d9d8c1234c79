#include "replay/prefill.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <map>
#include <memory>
#include <optional>

#include "failure.h"
#include "process.h"
#include "rank.h"
#include "replay/message.h"
#include "replay/setup.h"
#include "replay/spill.h"
#include "usage.h"

namespace tool::replay {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

// Requests prepared and not yet done, so that decode ranks never wait for the next one.
constexpr size_t kMostAhead = 16;
constexpr auto kRepeatAfter = std::chrono::seconds{5};

// A decode rank that takes some of this rank's heads.
struct Consumer {
  Consumer(uint32_t rank, HeadRange taken) : decode_rank(rank), heads(taken) {}
  uint32_t decode_rank;
  HeadRange heads;
  std::unique_ptr<towline::Peer> peer;  // null until it has described its pool
  std::unique_ptr<PoolPair> pools;
};

// The work that is left for one consumer of a request.
struct Handover {
  Assembly<Nothing> done_parts;
  bool done = false;
  Assembly<WantedBlock> wanted;
  bool moving = false;
};

struct ActiveRequest {
  std::vector<BlockPool::Held> held;
  std::vector<std::string> ready;
  std::vector<Handover> handovers;  // by consumer
  steady_clock::time_point told_at{};
};

class PrefillRank {
 public:
  PrefillRank(const nlohmann::json& configuration, Channel& parent)
      : setup_(configuration.at("setup").get<Setup>()),
        number_(configuration.at("rank").get<uint32_t>()),
        requests_(requests_of(setup_)),
        largest_tokens_(shape_of(requests_).largest_input_tokens),
        shape_(shape_of(setup_)),
        layout_(
            make_layout(shape_, setup_.prefill_tp, number_, setup_.memory_bytes, largest_tokens_, "prefill")),
        buffer_(parse_buffer_kind(setup_.memory_kind), layout_.bytes(), -1 - static_cast<int>(number_)),
        rank_(fmt::format("prefill-{}", number_),
              agent_options(setup_, configuration.at("listen").get<std::string>()), parent),
        region_(rank_.agent().register_memory(
            buffer_.view(),
            {.access = decode_pulls(setup_) ? towline::Access::kRead : towline::Access::kNone})),
        pool_(layout_.pages, shape_.page_tokens, mix(setup_.seed, number_)),
        mover_(rank_.agent(), move_options(setup_)),
        patience_(std::chrono::seconds{setup_.patience_s}) {
    layout_.place_in(buffer_);
    if (!setup_.spill.empty()) {
      spill_.emplace(rank_.agent(), setup_.spill, fmt::format("{}-{}", getpid(), number_), layout_,
                     std::chrono::seconds{setup_.patience_s});
      pool_.on_eviction([this](const Block& block) { spill_->put(block); });
    }
    for (uint32_t decode = 0; decode < setup_.decode_tp; ++decode) {
      for (const Slice& slice : slices_of_rank(shape_, setup_.prefill_tp, setup_.decode_tp, decode)) {
        if (slice.prefill_rank == number_) consumers_.emplace_back(decode, slice.heads);
      }
    }
  }

  void run() {
    rank_.report({{"address", rank_.agent().address()}, {"requests", requests_.size()}});
    addresses_ = rank_.wait_for_parent("start").at("start").get<std::vector<std::string>>();
    // A rank whose heads other ranks hold as well may have no consumers. The first rank still tells decode
    // ranks where to connect.
    while (!all_consumers_here()) {
      if (!receive()) rank_.wait(milliseconds{200});
    }
    rank_.report({{"consumers", consumers_.size()}});
    const double cpu_before = cpu_seconds();
    const auto started = steady_clock::now();
    if (!consumers_.empty()) play(started);
    const double wall_s = std::chrono::duration<double>(steady_clock::now() - started).count();
    say_goodbye();
    rank_.report({{"result",
                   {{"rank", number_},
                    {"requests", done_},
                    {"wall_s", wall_s},
                    {"cpu_s", cpu_seconds() - cpu_before},
                    {"stamped_bytes", stamped_bytes_},
                    {"pool_bytes", layout_.bytes()},
                    {"evictions", pool_.evictions()},
                    {"repeated_messages", repeats_},
                    {"moved_bytes", mover_.bytes()},
                    {"moved_blocks", mover_.blocks()},
                    {"transfers", mover_.transfers()},
                    {"retries", mover_.retries()},
                    {"active_s", mover_.active_s()},
                    {"latencies_s", mover_.latencies().values()},
                    {"route", mover_.route()},
                    {"spill", spill_report()},
                    {"counters", rank_.agent().metrics()}}}});
    while (true) {
      if (!receive()) rank_.wait(milliseconds{1000});
    }
  }

 private:
  [[nodiscard]] bool all_consumers_here() const {
    return std::ranges::all_of(consumers_, [](const Consumer& consumer) { return consumer.peer != nullptr; });
  }

  // ---- messages

  bool receive() {
    bool any = false;
    towline::Notice notice;
    while (rank_.agent().receive(notice) == towline::Status::kOk) {
      any = true;
      handle(notice);
    }
    return any;
  }

  void handle(const towline::Notice& notice) {
    const std::string_view text = notice.text();
    switch (message_type(text)) {
      case MessageType::kHello:
        return answer_hello(notice);
      case MessageType::kPool:
        return meet(notice, decode_pool(text));
      case MessageType::kWant:
        return take_want(notice, decode_want(text));
      case MessageType::kDone:
        return take_done(notice, decode_part(text));
      default:
        throw Failure{
            fmt::format("'{}' sent a message that a prefill rank does not take", notice.peer_name())};
    }
  }

  towline::Peer find_sender(const towline::Notice& notice) {
    auto peer = rank_.agent().find_peer(std::string{notice.peer_incarnation()});
    if (!peer) throw Failure{fmt::format("'{}' sent a notice, but is not a known peer", notice.peer_name())};
    return std::move(*peer);
  }

  void answer_hello(const towline::Notice& notice) {
    const auto hello = nlohmann::json::parse(decode_text(notice.text()));
    nlohmann::json plan{{"setup", setup_}, {"addresses", addresses_}, {"largest_tokens", largest_tokens_}};
    plan["requests"] = requests_.size();
    plan["pages"] = layout_.pages;
    if (hello.at("decode_tp") != setup_.decode_tp) {
      plan["refused"] = fmt::format("the decode side has --decode-tp {}, the prefill side expects {}",
                                    hello.at("decode_tp").dump(), setup_.decode_tp);
    }
    auto& peer = greeted_[std::string{notice.peer_name()}];
    peer = std::make_unique<towline::Peer>(find_sender(notice));
    rank_.send(*peer, encode_text(MessageType::kPlan, plan.dump()));
  }

  void meet(const towline::Notice& notice, const PoolMessage& message) {
    for (Consumer& consumer : consumers_) {
      if (consumer.decode_rank != message.decode_rank || consumer.peer != nullptr) continue;
      consumer.peer = std::make_unique<towline::Peer>(find_sender(notice));
      if (decode_pulls(setup_)) continue;
      consumer.peer->refresh();
      const Place place = place_of(*consumer.peer, message.base);
      const PoolLayout theirs{.shape = shape_,
                              .heads = heads_of_rank(shape_, setup_.decode_tp, message.decode_rank),
                              .pages = message.pages,
                              .base = message.base,
                              .kind = place.kind,
                              .device = place.device};
      consumer.pools =
          std::make_unique<PoolPair>(rank_.agent(), *consumer.peer, layout_, theirs, consumer.heads);
    }
  }

  // The index of the consumer that sent this; consumers_.size() if the sender is not a consumer.
  size_t sender(const towline::Notice& notice) const {
    const auto found = std::ranges::find_if(consumers_, [&](const Consumer& consumer) {
      return consumer.peer != nullptr && consumer.peer->name() == notice.peer_name();
    });
    return static_cast<size_t>(found - consumers_.begin());
  }

  void take_done(const towline::Notice& notice, const PartOf& part) {
    const auto active = active_.find(part.request);
    const size_t index = sender(notice);
    if (active == active_.end() || index == consumers_.size()) return;  // sent twice
    Handover& handover = active->second.handovers[index];
    if (part.parts == 1 || handover.done_parts.add(part, {})) handover.done = true;
    patience_.renew();
    release_if_over(part.request);
  }

  // Pages may be reused once every consumer has them and no transfer of this rank still reads them.
  void release_if_over(uint32_t request) {
    const auto active = active_.find(request);
    const auto& all = active->second.handovers;
    if (!std::ranges::all_of(all, [](const Handover& one) { return one.done && !one.moving; })) return;
    for (const auto& held : active->second.held) pool_.release(*held.block);
    active_.erase(active);
    ++done_;
  }

  void take_want(const towline::Notice& notice, WantMessage message) {
    const auto active = active_.find(message.part.request);
    const size_t index = sender(notice);
    if (active == active_.end() || index == consumers_.size()) return;
    Handover& handover = active->second.handovers[index];
    if (handover.moving) return;
    if (handover.wanted.complete()) handover.wanted = {};  // sent again: the data did not reach it
    if (!handover.wanted.add(message.part, std::move(message.blocks))) return;
    std::vector<uint32_t> mine;
    std::vector<uint32_t> theirs;
    for (const WantedBlock& block : handover.wanted.take()) {
      if (block.index >= active->second.held.size())
        throw Failure{"a decode rank asked for a block that is not here"};
      const auto& pages = active->second.held[block.index].block->pages;
      if (pages.size() != block.pages.size())
        throw Failure{"a decode rank asked for a block with another size"};
      mine.insert(mine.end(), pages.begin(), pages.end());
      theirs.insert(theirs.end(), block.pages.begin(), block.pages.end());
    }
    if (mine.empty()) throw Failure{"a decode rank asked for no blocks"};
    handover.moving = true;
    mover_.start(*consumers_[index].pools, message.part.request, static_cast<uint32_t>(index),
                 MessageType::kLanded, mine, theirs);
  }

  // ---- requests

  void play(steady_clock::time_point started) {
    patience_.renew();
    auto reported = started;
    while (done_ < requests_.size()) {
      bool worked = receive();
      worked = finish_moves() || worked;
      worked = admit(started) || worked;
      repeat_what_got_no_answer();
      const auto now = steady_clock::now();
      if (now - reported > milliseconds{100}) {
        reported = now;
        rank_.report({{"progress", done_}, {"bytes", mover_.bytes()}});
      }
      if (active_.empty()) patience_.renew();
      if (patience_.exhausted()) give_up();
      check_consumers();
      if (!worked) rank_.wait(mover_.waiting() ? milliseconds{1} : time_to_next(started));
    }
  }

  void check_consumers() {
    const auto lost = std::ranges::find_if(consumers_, [](const Consumer& consumer) {
      return consumer.peer->health() == towline::Health::kLost;
    });
    absence_.note(lost == consumers_.end() ? nullptr : lost->peer.get());
  }

  bool finish_moves() {
    const auto ended = mover_.advance();
    for (const auto& [request, consumer] : ended) {
      active_.at(request).handovers[consumer].moving = false;
      release_if_over(request);
    }
    return !ended.empty();
  }

  [[nodiscard]] steady_clock::time_point arrival(size_t index, steady_clock::time_point started) const {
    if (setup_.speed <= 0) return started;
    // Traces need not be in order; arrivals years ahead are limited to this.
    constexpr double kFarMs = 1e12;
    const double after_first =
        static_cast<double>(requests_[index].timestamp_ms) - static_cast<double>(requests_[0].timestamp_ms);
    const double ms = std::clamp(after_first / setup_.speed, 0.0, kFarMs);
    return started +
           std::chrono::duration_cast<steady_clock::duration>(std::chrono::duration<double, std::milli>{ms});
  }

  [[nodiscard]] milliseconds time_to_next(steady_clock::time_point started) const {
    if (next_ >= requests_.size() || active_.size() >= kMostAhead) return milliseconds{100};
    const auto left = std::chrono::ceil<milliseconds>(arrival(next_, started) - steady_clock::now());
    return std::clamp(left, milliseconds{left.count() > 0 ? 1 : 100}, milliseconds{100});
  }

  // Starts the next request if it has arrived and there is room for it.
  bool admit(steady_clock::time_point started) {
    if (next_ >= requests_.size() || active_.size() >= kMostAhead) return false;
    if (arrival(next_, started) > steady_clock::now()) return false;
    const Request& request = requests_[next_];
    std::vector<BlockKey> keys;
    for (size_t block = 0; block < request.hashes.size(); ++block) {
      keys.push_back({request.hashes[block], request.block_tokens(block)});
    }
    auto held = pool_.hold(keys);
    if (!held) return false;
    const auto number = static_cast<uint32_t>(next_++);
    std::vector<ReadyBlock> blocks;
    for (const auto& one : *held) {
      if (one.fresh && !bring_back(*one.block)) stamp(*one.block);
      blocks.push_back({one.block->key, one.block->epochs[0], one.block->pages});
    }
    ActiveRequest& active = active_[number];
    active.held = std::move(*held);
    active.ready = encode_ready(number, blocks);
    active.handovers.resize(consumers_.size());
    tell(active, [](const Handover&) { return true; });
    return true;
  }

  void stamp(Block& block) {
    block.epochs.assign(1, ++epoch_);
    const Stamper stamper{layout_.in(buffer_), granule_heads(shape_, setup_.prefill_tp, setup_.decode_tp),
                          verify_of(setup_)};
    for (uint32_t place = 0; place < block.pages.size(); ++place) {
      stamper.write({.hash = block.key.hash, .epoch = epoch_, .writer = number_}, place, block.pages[place]);
      for (uint32_t plane = 0; plane < shape_.layer_planes(); ++plane)
        buffer_.push(layout_.page_address(plane, block.pages[place]) - layout_.base, layout_.page_bytes());
    }
    stamped_bytes_ += block.pages.size() * layout_.bytes_per_page();
  }

  // Reads the block back if it was spilled, and checks that the contents are the same.
  bool bring_back(Block& block) {
    if (!spill_ || !spill_->get(block)) return false;
    const Stamper stamper{layout_.in(buffer_), granule_heads(shape_, setup_.prefill_tp, setup_.decode_tp),
                          verify_of(setup_)};
    const BlockStamp stamp{.hash = block.key.hash, .epoch = block.epochs[0], .writer = number_};
    for (uint32_t place = 0; place < block.pages.size(); ++place) {
      for (uint32_t plane = 0; plane < shape_.layer_planes(); ++plane)
        buffer_.pull(layout_.page_address(plane, block.pages[place]) - layout_.base, layout_.page_bytes());
      Mismatch mismatch;
      if (stamper.check(stamp, place, block.pages[place], layout_.heads, mismatch)) continue;
      throw Failure{
          fmt::format("page {} of block {:#x} came back wrong from {}: {:#018x} instead of {:#018x}", place,
                      block.key.hash, setup_.spill, mismatch.found, mismatch.expected)};
    }
    return true;
  }

  [[nodiscard]] nlohmann::json spill_report() const {
    if (!spill_) return nullptr;
    return {{"spilled_blocks", spill_->spilled().blocks},
            {"spilled_bytes", spill_->spilled().bytes},
            {"spill_s", spill_->spilled().seconds},
            {"restored_blocks", spill_->restored().blocks},
            {"restored_bytes", spill_->restored().bytes},
            {"restore_s", spill_->restored().seconds},
            {"latencies_s", spill_->restore_latencies().values()}};
  }

  template <class Whom>
  void tell(ActiveRequest& active, Whom whom) {
    active.told_at = steady_clock::now();
    for (size_t index = 0; index < consumers_.size(); ++index) {
      if (!whom(active.handovers[index])) continue;
      for (const std::string& message : active.ready) rank_.send(*consumers_[index].peer, message);
    }
  }

  void repeat_what_got_no_answer() {
    const auto now = steady_clock::now();
    for (auto& [number, active] : active_) {
      if (now - active.told_at < kRepeatAfter) continue;
      tell(active, [](const Handover& handover) { return !handover.done && !handover.moving; });
      ++repeats_;
    }
  }

  [[noreturn]] void give_up() const {
    std::string who;
    for (const auto& [number, active] : active_) {
      for (size_t index = 0; index < consumers_.size(); ++index) {
        if (active.handovers[index].done) continue;
        who += fmt::format("{}request {} by decode-{}", who.empty() ? "" : ", ", number,
                           consumers_[index].decode_rank);
      }
    }
    throw Failure{
        fmt::format("decode ranks took nothing for {} s; waiting for {}", patience_.limit().count(), who)};
  }

  void say_goodbye() {
    for (Consumer& consumer : consumers_) {
      rank_.send(*consumer.peer, encode_part(MessageType::kGoodbye, {}));
    }
  }

  Setup setup_;
  uint32_t number_;
  std::vector<Request> requests_;
  uint32_t largest_tokens_;
  CacheShape shape_;
  PoolLayout layout_;
  Buffer buffer_;
  Rank rank_;
  towline::Region region_;
  BlockPool pool_;
  std::optional<Spill> spill_;
  std::map<std::string, std::unique_ptr<towline::Peer>> greeted_;
  std::vector<Consumer> consumers_;
  Mover mover_;
  Patience patience_;
  Absence absence_;
  std::vector<std::string> addresses_;
  std::map<uint32_t, ActiveRequest> active_;
  size_t next_ = 0;
  uint64_t done_ = 0;
  uint64_t epoch_ = 0;
  uint64_t stamped_bytes_ = 0;
  uint64_t repeats_ = 0;
};

}  // namespace

void run_prefill(const nlohmann::json& configuration, Channel& parent) {
  try {
    run_rank(PrefillRank{configuration, parent}, parent);
  } catch (const Stopped&) {
  }
}

}  // namespace tool::replay
