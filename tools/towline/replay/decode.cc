#include "replay/decode.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <memory>
#include <optional>

#include "failure.h"
#include "process.h"
#include "rank.h"
#include "replay/copy_limit.h"
#include "replay/message.h"
#include "replay/setup.h"
#include "units.h"
#include "usage.h"

namespace tool::replay {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

constexpr auto kConnectWithin = std::chrono::seconds{30};
// A message is lost if its connection breaks: a message without an answer is sent again.
constexpr auto kAgainAfter = std::chrono::seconds{1};

// A prefill rank from which this rank takes heads.
struct Source {
  Slice slice;
  std::unique_ptr<towline::Peer> peer;
  std::unique_ptr<PoolPair> pools;
  bool heard = false;
  bool goodbye = false;
};

// A request on its way here.
struct Job {
  std::vector<Assembly<ReadyBlock>> ready;      // by source
  std::vector<std::vector<ReadyBlock>> blocks;  // by source, once all of them are here
  bool started = false;
  std::vector<BlockPool::Held> held;
  std::vector<std::string> wants;         // by prefill: the message for each source
  std::vector<Assembly<Nothing>> landed;  // by prefill; by source
  uint32_t sources_left = 0;
  bool moved = false;  // something had to be moved
  steady_clock::time_point ready_at{};
};

class DecodeRank {
 public:
  DecodeRank(const nlohmann::json& configuration, Channel& parent)
      : setup_(configuration.at("setup").get<Setup>()),
        number_(configuration.at("rank").get<uint32_t>()),
        rank_(fmt::format("decode-{}", number_),
              agent_options(setup_, configuration.at("listen").get<std::string>()), parent),
        patience_(std::chrono::seconds{setup_.patience_s}) {}

  void run() {
    join(rank_.wait_for_parent("start").at("start").get<std::string>());
    rank_.report({{"plan", {{"setup", setup_}, {"requests", total_}, {"pool_bytes", layout_.bytes()}}}});
    play();
    rank_.report({{"finished", true}});
    (void)rank_.wait_for_parent("measure");
    const double copy_rate = measure_copy_limit(layout_.in(*buffer_), sources_.front().slice.heads);
    rank_.report({{"result", result(copy_rate)}});
    while (true) rank_.wait(milliseconds{1000});
  }

 private:
  // ---- joining

  void join(const std::string& leader_address) {
    leader_ = std::make_unique<towline::Peer>(connect(leader_address));
    const nlohmann::json plan = ask_for_plan();
    if (plan.contains("refused")) throw Failure{plan.at("refused").get<std::string>()};
    adopt(plan);
    for (const Slice& slice : slices_of_rank(shape_, setup_.prefill_tp, setup_.decode_tp, number_)) {
      meet(slice, plan.at("addresses").at(slice.prefill_rank), plan.at("pages"));
    }
  }

  towline::Peer connect(const std::string& address) {
    const auto deadline = steady_clock::now() + kConnectWithin;
    while (true) {
      try {
        return rank_.agent().connect(address, deadline);
      } catch (const towline::Error& error) {
        const bool may_come = error.code() == towline::Status::kUnreachable;
        if (!may_come || steady_clock::now() > deadline) {
          throw Failure{fmt::format("cannot reach the prefill side at {}: {}", address, error.what())};
        }
      }
      rank_.wait(milliseconds{200});
    }
  }

  nlohmann::json ask_for_plan() {
    const nlohmann::json hello{{"decode_rank", number_}, {"decode_tp", setup_.decode_tp}};
    const auto deadline = steady_clock::now() + kConnectWithin;
    auto next = steady_clock::now();
    while (steady_clock::now() < deadline) {
      if (steady_clock::now() >= next && rank_.sent_all()) {
        next = steady_clock::now() + kAgainAfter;
        rank_.send(*leader_, encode_text(MessageType::kHello, hello.dump()));
      }
      towline::Notice notice;
      while (rank_.agent().receive(notice) == towline::Status::kOk) {
        if (message_type(notice.text()) == MessageType::kPlan)
          return nlohmann::json::parse(decode_text(notice.text()));
      }
      rank_.wait(milliseconds{100});
    }
    throw Failure{"the prefill side did not answer: is something else listening there?"};
  }

  // Takes all settings that are not this side's own from the prefill side.
  void adopt(const nlohmann::json& plan) {
    const Setup own = setup_;
    setup_ = plan.at("setup").get<Setup>();
    setup_.memory_bytes = own.memory_bytes;
    setup_.memory_kind = own.memory_kind;
    setup_.backend = own.backend;
    setup_.threads = own.threads;
    setup_.in_flight = own.in_flight;
    setup_.patience_s = own.patience_s;
    total_ = plan.at("requests").get<uint32_t>();
    shape_ = shape_of(setup_);
    mover_.emplace(rank_.agent(), move_options(setup_));
    layout_ = make_layout(shape_, setup_.decode_tp, number_, setup_.memory_bytes,
                          plan.at("largest_tokens").get<uint32_t>(), "decode");
    buffer_.emplace(parse_buffer_kind(setup_.memory_kind), layout_.bytes(), static_cast<int>(number_));
    layout_.place_in(*buffer_);
    region_.emplace(rank_.agent().register_memory(
        buffer_->view(),
        {.access = decode_pulls(setup_) ? towline::Access::kNone : towline::Access::kWrite}));
    pool_.emplace(layout_.pages, shape_.page_tokens, mix(setup_.seed, 1000 + number_));
    stamper_.emplace(layout_.in(*buffer_), granule_heads(shape_, setup_.prefill_tp, setup_.decode_tp),
                     verify_of(setup_));
  }

  void meet(const Slice& slice, const std::string& address, uint32_t pages) {
    Source& source = sources_.emplace_back();
    source.slice = slice;
    source.peer = std::make_unique<towline::Peer>(connect(address));
    if (decode_pulls(setup_)) {
      source.peer->refresh();
      const auto regions = source.peer->regions();
      if (regions.empty()) throw Failure{fmt::format("'{}' has no memory registered", source.peer->name())};
      const PoolLayout theirs{.shape = shape_,
                              .heads = heads_of_rank(shape_, setup_.prefill_tp, slice.prefill_rank),
                              .pages = pages,
                              .base = regions.front().address,
                              .kind = static_cast<towline::Kind>(regions.front().kind),
                              .device = regions.front().device};
      source.pools = std::make_unique<PoolPair>(rank_.agent(), *source.peer, layout_, theirs, slice.heads);
    }
  }

  // Sends the pool to sources that have not begun yet.
  void offer_pool() {
    const auto now = steady_clock::now();
    if (now < next_offer_ || !rank_.sent_all()) return;
    next_offer_ = now + kAgainAfter;
    for (const Source& source : sources_)
      if (!source.heard) rank_.send(*source.peer, encode(PoolMessage{number_, layout_.pages, layout_.base}));
  }

  // ---- messages

  bool receive() {
    bool any = false;
    towline::Notice notice;
    while (rank_.agent().receive(notice) == towline::Status::kOk) {
      any = true;
      const std::string_view text = notice.text();
      const auto found = std::ranges::find_if(
          sources_, [&](const Source& source) { return source.peer->name() == notice.peer_name(); });
      if (found == sources_.end()) continue;
      const auto index = static_cast<size_t>(found - sources_.begin());
      if (message_type(text) == MessageType::kPlan) continue;  // asked twice
      found->heard = true;
      switch (message_type(text)) {
        case MessageType::kReady:
          take_ready(index, decode_ready(text));
          break;
        case MessageType::kLanded:
          take_landed(index, decode_part(text));
          break;
        case MessageType::kGoodbye:
          sources_[index].goodbye = true;
          break;
        default:
          throw Failure{
              fmt::format("'{}' sent a message that a decode rank does not take", notice.peer_name())};
      }
    }
    return any;
  }

  void take_ready(size_t source, ReadyMessage message) {
    const uint32_t request = message.part.request;
    if (request >= total_) throw Failure{fmt::format("request {} of {} arrived", request, total_)};
    if (request < next_to_finish_) return say_done(source, request);  // the message before was lost
    Job& job = jobs_[request];
    job.ready.resize(sources_.size());
    job.ready[source].add(message.part, std::move(message.blocks));
    if (job.started && !job.wants.empty()) return send_want(source, request, job);
    const auto complete = [](const Assembly<ReadyBlock>& one) { return one.complete(); };
    if (!job.blocks.empty() || !std::ranges::all_of(job.ready, complete)) return;
    for (auto& assembly : job.ready) job.blocks.push_back(assembly.take());
    job.ready_at = steady_clock::now();
    check_same_blocks(request, job);
  }

  void check_same_blocks(uint32_t request, const Job& job) const {
    for (const auto& blocks : job.blocks) {
      const bool same =
          std::ranges::equal(blocks, job.blocks.front(), {}, &ReadyBlock::key, &ReadyBlock::key);
      if (!same)
        throw Failure{fmt::format("prefill ranks play different traces: request {} differs", request)};
    }
  }

  void take_landed(size_t source, const PartOf& part) {
    const auto job = jobs_.find(part.request);
    if (job == jobs_.end() || job->second.landed.empty()) return;
    if (job->second.landed[source].add(part, {})) --job->second.sources_left;
  }

  void say_done(size_t source, uint32_t request) {
    rank_.send(*sources_[source].peer, encode_part(MessageType::kDone, {request, 0, 1}));
  }

  void send_want(size_t source, uint32_t request, const Job& job) {
    if (job.landed[source].complete()) return;
    std::vector<WantedBlock> wanted;
    for (uint32_t index = 0; index < job.held.size(); ++index) {
      if (job.held[index].fresh) wanted.push_back({index, job.held[index].block->pages});
    }
    for (std::string& message : encode_want(request, wanted))
      rank_.send(*sources_[source].peer, std::move(message));
  }

  // ---- requests

  void play() {
    patience_.renew();
    const double cpu_before = cpu_seconds();
    auto reported = steady_clock::now();
    while (next_to_finish_ < total_ || !all_said_goodbye()) {
      offer_pool();
      bool worked = receive();
      worked = take_moves() || worked;
      worked = start_next() || worked;
      worked = finish_next() || worked;
      const auto now = steady_clock::now();
      if (now - reported > milliseconds{100} || next_to_finish_ == total_) {
        reported = now;
        rank_.report({{"progress", next_to_finish_}, {"bytes", bytes_arrived()}, {"total", total_}});
      }
      if (worked || jobs_.empty()) patience_.renew();
      if (patience_.exhausted()) give_up();
      if (!worked) rank_.wait(milliseconds{mover_->waiting() ? 1 : 100});
      check_sources();
    }
    cpu_s_ = cpu_seconds() - cpu_before;
  }

  [[nodiscard]] bool all_said_goodbye() const {
    return std::ranges::all_of(sources_, [](const Source& source) { return source.goodbye; });
  }

  bool take_moves() {
    const auto ended = mover_->advance();
    for (const auto& [request, consumer] : ended) --jobs_.at(request).sources_left;
    return !ended.empty();
  }

  bool start_next() {
    const auto found = jobs_.find(next_to_start_);
    if (found == jobs_.end() || found->second.blocks.empty()) return false;
    if (next_to_start_ - next_to_finish_ >= setup_.in_flight) return false;
    Job& job = found->second;
    std::vector<BlockKey> keys;
    for (const ReadyBlock& block : job.blocks.front()) keys.push_back(block.key);
    auto held = pool_->hold(keys);
    if (!held) return false;
    if (next_to_start_ == 0) first_started_at_ = steady_clock::now();
    job.held = std::move(*held);
    job.started = true;
    const uint32_t request = next_to_start_++;
    for (size_t index = 0; index < job.held.size(); ++index) {
      ++blocks_wanted_;
      if (!job.held[index].fresh) {
        ++blocks_reused_;
        continue;
      }
      job.moved = true;
      Block& block = *job.held[index].block;
      block.epochs.clear();
      for (const auto& blocks : job.blocks) block.epochs.push_back(blocks[index].epoch);
      moved_bytes_ += block.pages.size() * layout_.bytes_per_page();
    }
    if (!job.moved) return true;
    job.sources_left = static_cast<uint32_t>(sources_.size());
    job.landed.resize(sources_.size());
    for (size_t source = 0; source < sources_.size(); ++source) {
      if (!decode_pulls(setup_)) {
        job.wants.emplace_back();
        send_want(source, request, job);
      } else {
        read_from(source, request, job);
      }
    }
    return true;
  }

  void read_from(size_t source, uint32_t request, const Job& job) {
    std::vector<uint32_t> mine;
    std::vector<uint32_t> theirs;
    for (size_t index = 0; index < job.held.size(); ++index) {
      if (!job.held[index].fresh) continue;
      const auto& to = job.held[index].block->pages;
      const auto& from = job.blocks[source][index].pages;
      if (from.size() != to.size())
        throw Failure{fmt::format("request {}: a block has the wrong number of pages", request)};
      mine.insert(mine.end(), to.begin(), to.end());
      theirs.insert(theirs.end(), from.begin(), from.end());
    }
    mover_->start(*sources_[source].pools, request, static_cast<uint32_t>(source), MessageType::kDone, mine,
                  theirs);
  }

  // Requests end in order, so that a block which it shares with a later request is known to be here.
  bool finish_next() {
    const auto found = jobs_.find(next_to_finish_);
    if (found == jobs_.end() || !found->second.started || found->second.sources_left > 0) return false;
    Job& job = found->second;
    const auto checking = steady_clock::now();
    for (const auto& held : job.held) check_block(next_to_finish_, *held.block);
    const auto now = steady_clock::now();
    check_s_ += seconds_between(checking, now);
    for (const auto& held : job.held) pool_->release(*held.block);
    handover_latencies_.add(seconds_between(job.ready_at, now));
    last_finished_at_ = now;
    // With READ the notices of the transfers have already reported this.
    if (!job.moved || !decode_pulls(setup_)) {
      for (size_t source = 0; source < sources_.size(); ++source) say_done(source, next_to_finish_);
    }
    jobs_.erase(found);
    ++next_to_finish_;
    return true;
  }

  void check_block(uint32_t request, const Block& block) {
    for (const uint32_t page : block.pages)
      for (uint32_t plane = 0; plane < shape_.layer_planes(); ++plane)
        buffer_->pull(layout_.page_address(plane, page) - layout_.base, layout_.page_bytes());
    for (size_t index = 0; index < sources_.size(); ++index) {
      const Slice& slice = sources_[index].slice;
      const BlockStamp stamp{
          .hash = block.key.hash, .epoch = block.epochs[index], .writer = slice.prefill_rank};
      for (uint32_t place = 0; place < block.pages.size(); ++place) {
        Mismatch mismatch;
        if (stamper_->check(stamp, place, block.pages[place], slice.heads, mismatch)) continue;
        throw Failure{
            fmt::format("request {}: wrong bytes at page {} of block {} (epoch {}, from prefill-{}): "
                        "{:#018x} instead of {:#018x} at "
                        "offset {} of the pool",
                        request, place, block.key.hash, stamp.epoch, stamp.writer, mismatch.found,
                        mismatch.expected, mismatch.address - layout_.in(*buffer_).base)};
      }
    }
    pages_checked_ += block.pages.size() * shape_.layer_planes();
  }

  [[nodiscard]] uint64_t bytes_arrived() const {
    return decode_pulls(setup_) ? mover_->bytes() : moved_bytes_;
  }

  void check_sources() {
    const towline::Peer* lost = nullptr;
    for (const Source& source : sources_) {
      if (source.goodbye || next_to_finish_ == total_) continue;
      if (source.peer->health() == towline::Health::kLost) lost = source.peer.get();
    }
    absence_.note(lost);
    if (next_to_finish_ == total_ && !goodbye_by_)
      goodbye_by_ = steady_clock::now() + std::chrono::seconds{5};
    if (goodbye_by_ && steady_clock::now() > *goodbye_by_) {
      for (Source& source : sources_)
        source.goodbye = true;  // the work is done; a lost goodbye is not a failure
    }
  }

  [[noreturn]] void give_up() const {
    const auto job = jobs_.find(next_to_finish_);
    const char* state = job == jobs_.end()              ? "has not come"
                        : !job->second.started          ? "is not ready at every prefill rank, or has no room"
                        : job->second.sources_left == 0 ? "is being checked"
                                                        : "is being moved";
    throw Failure{fmt::format("nothing happened for {} s: request {} {}", patience_.limit().count(),
                              next_to_finish_, state)};
  }

  [[nodiscard]] nlohmann::json result(double copy_rate) {
    return {{"rank", number_},
            {"requests", next_to_finish_},
            {"wall_s", seconds_between(first_started_at_, last_finished_at_)},
            {"cpu_s", cpu_s_},
            {"check_s", check_s_},
            {"arrived_bytes", moved_bytes_},
            {"pool_bytes", layout_.bytes()},
            {"evictions", pool_->evictions()},
            {"blocks_wanted", blocks_wanted_},
            {"blocks_reused", blocks_reused_},
            {"pages_checked", pages_checked_},
            {"words_checked", stamper_->words_checked()},
            {"moved_bytes", mover_->bytes()},
            {"moved_blocks", mover_->blocks()},
            {"transfers", mover_->transfers()},
            {"retries", mover_->retries()},
            {"active_s", mover_->active_s()},
            {"latencies_s", mover_->latencies().values()},
            {"handover_latencies_s", handover_latencies_.values()},
            {"copy_bytes_per_s", copy_rate},
            {"route", mover_->route()},
            {"counters", rank_.agent().metrics()}};
  }

  Setup setup_;
  uint32_t number_;
  std::optional<Buffer> buffer_;
  Rank rank_;
  Patience patience_;
  uint32_t total_ = 0;
  CacheShape shape_;
  PoolLayout layout_;
  std::optional<towline::Region> region_;
  std::optional<BlockPool> pool_;
  std::optional<Stamper> stamper_;
  std::unique_ptr<towline::Peer> leader_;
  std::vector<Source> sources_;
  std::optional<Mover> mover_;
  std::map<uint32_t, Job> jobs_;
  steady_clock::time_point next_offer_{};
  uint32_t next_to_start_ = 0;
  uint32_t next_to_finish_ = 0;
  Absence absence_;
  std::optional<steady_clock::time_point> goodbye_by_;

  steady_clock::time_point first_started_at_{};
  steady_clock::time_point last_finished_at_{};
  double cpu_s_ = 0;
  double check_s_ = 0;
  uint64_t moved_bytes_ = 0;
  uint64_t blocks_wanted_ = 0;
  uint64_t blocks_reused_ = 0;
  uint64_t pages_checked_ = 0;
  Samples handover_latencies_;
};

}  // namespace

void run_decode(const nlohmann::json& configuration, Channel& parent) {
  try {
    run_rank(DecodeRank{configuration, parent}, parent);
  } catch (const Stopped&) {
  }
}

}  // namespace tool::replay
