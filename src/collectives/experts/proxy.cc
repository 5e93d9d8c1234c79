#include "collectives/experts/proxy.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"
#include "collectives/experts/batch_relay.h"

namespace towline::collectives::experts {
namespace {

constexpr auto kIdle = std::chrono::microseconds(50);
constexpr uint32_t kBusyPasses = 64;   // without work, before the thread sleeps
constexpr uint32_t kMostNotices = 64;  // in a pass
constexpr uint64_t kFirstRepeatNs = 5'000'000;
constexpr uint64_t kLastRepeatNs = 500'000'000;
constexpr uint64_t kAskAgainNs = 100'000'000;
constexpr uint64_t kMostReachingNs = 2'000'000'000;
constexpr uint64_t kLogNs = 1'000'000'000;

uint64_t up(uint64_t bytes) { return (bytes + 4095) / 4096 * 4096; }

}  // namespace

// ---- The application's thread

Proxy::Proxy(cuda::KernelDevice& device, const towline_experts_functions_v1& functions,
             const Options& options, KeptShapes<Slots> recorded)
    : device_(device),
      functions_(functions),
      options_(options),
      in_(device.make_words(options.gpu, options.layout.slots_at())),
      slots_(std::move(recorded)) {
  TOWLINE_INIT(towline_agent_options_t, agent);
  agent.listen = options_.listen;
  agent.default_timeout_ns = std::min(options_.timeout_ns, kMostReachingNs);
  require(functions_.agent_create(fmt::format("experts-{}", options_.rank).c_str(), &agent, &agent_),
          "make an agent", options_.rank);
  TOWLINE_INIT(towline_region_options_t, region);
  region.access = TOWLINE_ACCESS_WRITE;
  region.kind = options_.kind();
  region.device = options_.device();
  int32_t status = functions_.region_register(
      agent_, reinterpret_cast<void*>(options_.segment + options_.layout.slots_at()),
      options_.layout.results_at() - options_.layout.slots_at(), &region, &region_);
  if (status >= 0) status = functions_.queue_create(agent_, nullptr, &queue_);
  if (status < 0) {
    const std::string why = functions_.last_error();
    functions_.agent_destroy(agent_);
    fail(static_cast<Status>(status), "experts: cannot register the memory of rank {}: {}", options_.rank,
         why);
  }
  thread_ = std::thread([this] { run(); });
}

Proxy::~Proxy() {
  settle(~uint64_t{0});
  stops_ = true;
  thread_.join();
  for (towline_post_t* const post : reads_) functions_.post_release(post);
  for (std::unique_ptr<Remote>& remote : remotes_)
    for (const Half& half : remote == nullptr ? std::array<Half, 2>{} : remote->halves)
      if (half.post != nullptr) functions_.post_release(half.post);
  functions_.queue_release(queue_);
  functions_.agent_destroy(agent_);  // nothing reads the images any more
}

void Proxy::require(int32_t status, const char* what, uint32_t rank) const {
  if (status < 0)
    fail(static_cast<Status>(status), "experts: cannot {} for rank {}: {}", what, rank,
         functions_.last_error());
}

uint64_t Proxy::staging_at() const noexcept {
  return up(options_.layout.used_at(0, 0) + 2 * options_.layout.used_entries() * sizeof(uint32_t));
}

RemoteSide Proxy::side() const {
  RemoteSide made;
  size_t needed = 0;
  (void)functions_.agent_metadata(agent_, &region_, 1, nullptr, 0, &needed);
  made.metadata.resize(needed);
  require(functions_.agent_metadata(agent_, &region_, 1, made.metadata.data(), needed, &needed),
          "describe the agent", options_.rank);
  made.metadata.resize(needed);
  made.slots = options_.segment + options_.layout.slots_at();
  made.kind = options_.kind();
  made.device = options_.device();
  return made;
}

Control& Proxy::image(const Remote& remote) const noexcept {
  return *static_cast<Control*>(remote.memory->host());
}

towline_plan_t* Proxy::make_plan(const Remote& remote, const Slots& shape, uint64_t timeout_ns,
                                 int32_t& status) const {
  const uint64_t slots = options_.layout.local * shape.max_tokens;
  // The beginnings of all slots and, where there are such, their rests.
  const auto blocks_at = [&](uint64_t address, uint32_t kind, uint64_t device) {
    std::array<towline_blocks_t, 2> blocks = {};
    for (size_t i = 0; i < blocks.size(); ++i) {
      blocks[i].address = address + (i == 0 ? 0 : shape.used_bytes);
      blocks[i].length = i == 0 ? shape.used_bytes : shape.rest_bytes;
      blocks[i].kind = kind;
      blocks[i].device = device;
      blocks[i].dimensions = 2;
      blocks[i].count[0] = 2;
      blocks[i].count[1] = slots;
      blocks[i].stride[0] = options_.layout.area_bytes;
      blocks[i].stride[1] = shape.slot_bytes;
    }
    return blocks;
  };
  const size_t lists = shape.rest_bytes == 0 ? 1 : 2;
  const auto here =
      blocks_at(reinterpret_cast<uint64_t>(remote.memory->host()) + staging_at(), TOWLINE_MEMORY_DRAM, 0);
  const auto there = blocks_at(remote.side.slots + uint64_t{2} * options_.rank * options_.layout.area_bytes,
                               remote.side.kind, remote.side.device);
  return plan_between(remote, std::span(here).first(lists), std::span(there).first(lists), timeout_ns,
                      status);
}

towline_plan_t* Proxy::plan_between(const Remote& remote, std::span<const towline_blocks_t> here,
                                    std::span<const towline_blocks_t> there, uint64_t timeout_ns,
                                    int32_t& status) const {
  towline_block_list_t* from = nullptr;
  towline_block_list_t* to = nullptr;
  towline_plan_t* plan = nullptr;
  status = functions_.block_list_create(agent_, nullptr, here.data(), sizeof here[0], here.size(), &from);
  if (status >= 0)
    status =
        functions_.block_list_create(agent_, remote.peer, there.data(), sizeof there[0], there.size(), &to);
  if (status >= 0) {
    TOWLINE_INIT(towline_plan_options_t, how);
    how.timeout_ns = timeout_ns;
    status = functions_.plan_create(agent_, from, to, &how, &plan);
  }
  if (from != nullptr) functions_.block_list_destroy(from);
  if (to != nullptr) functions_.block_list_destroy(to);
  return plan;
}

RemoteBases Proxy::connect(uint32_t rank, const RemoteSide& side, uint64_t timeout_ns) {
  const Deadline end = Deadline::after(monotonic_now_ns(), timeout_ns);
  auto made = std::make_unique<Remote>();
  made->rank = rank;
  made->side = side;
  made->words.rank = options_.rank;
  made->memory = device_.make_words(options_.gpu, memory_bytes());
  try {
    TOWLINE_INIT(towline_region_options_t, region);
    require(functions_.region_register(agent_, static_cast<uint8_t*>(made->memory->host()) + staging_at(),
                                       2 * options_.layout.area_bytes, &region, &made->region),
            "register memory", rank);
    require(functions_.peer_add(agent_, side.metadata.data(), side.metadata.size(), &made->peer),
            "take the description", rank);
    made->incarnation = functions_.peer_incarnation(made->peer);
    // A plan of whole areas, to connect and to see that there is a way.
    int32_t status = 0;
    const Slots whole{options_.layout.area_bytes / options_.layout.local, 1, kHeaderBytes, 0};
    towline_plan_t* const plan = make_plan(*made, whole, timeout_ns, status);
    require(status, "find a way", rank);
    functions_.plan_release(plan);
    find_recorded_ways(*made, made->ways, slots_, end);
    find_recorded_ways(*made, made->batch_ways, batches_, end);
  } catch (...) {
    drop(std::move(made));
    throw;
  }
  const uint64_t words = made->memory->gpu();
  const RemoteBases bases{words,
                          words + staging_at() - options_.layout.slots_at() -
                              uint64_t{2} * options_.rank * options_.layout.area_bytes,
                          in_->gpu()};
  const std::lock_guard lock(mutex_);
  remotes_[rank] = std::move(made);
  return bases;
}

// What is in flight is cancelled. The agent keeps the image until nothing reads it.
void Proxy::drop(std::unique_ptr<Remote> remote) noexcept {
  for (const Half& half : remote->halves)
    if (half.post != nullptr) functions_.post_release(half.post);
  for (const Way<Slots>& way : remote->ways) functions_.plan_release(way.plan);
  for (const Way<BatchRows>& way : remote->batch_ways) functions_.plan_release(way.plan);
  if (remote->peer != nullptr) (void)functions_.peer_remove(remote->peer);
  if (remote->region == nullptr) return;
  (void)functions_.region_release(
      remote->region, [](void* owner) { delete static_cast<cuda::Words*>(owner); }, remote->memory.release());
}

// What the rank was sent has come there, and ranks that read in its memory know. The proxy's lock is held.
bool Proxy::quiet(const Remote& remote) const {
  if (functions_.peer_health(remote.peer) == TOWLINE_HEALTH_LOST) return true;
  for (uint32_t half = 0; half < 2; ++half)
    if (remote.halves[half].post != nullptr ||
        remote.halves[half].seen != device::load_acquire(&image(remote).ready[half][options_.rank]))
      return false;
  return told_readers_of(remote.rank) &&
         remote.words.taken == device::load_acquire(&image(remote).taken[options_.rank]) &&
         remote.words.met == device::load_acquire(&image(remote).met[options_.rank]) &&
         remote.heard >= remote.words.number;
}

// Waits for that, of these ranks (a bit each) together. A bounded time: they may be gone.
void Proxy::settle(uint64_t ranks) {
  const auto all_quiet = [&] {
    const std::lock_guard lock(mutex_);
    for (uint32_t rank = 0; rank < kMostRanks; ++rank)
      if ((ranks >> rank & 1) != 0 && has(rank) && !quiet(*remotes_[rank])) return false;
    return true;
  };
  const uint64_t end = monotonic_now_ns() + std::min(options_.timeout_ns, kMostSettlingNs);
  while (!all_quiet() && monotonic_now_ns() < end) std::this_thread::sleep_for(kIdle);
}

void Proxy::disconnect(uint32_t rank) {
  settle(uint64_t{1} << rank);
  std::unique_ptr<Remote> gone;
  {
    const std::lock_guard lock(mutex_);
    gone = std::move(remotes_[rank]);
  }
  if (gone == nullptr) return;
  await_end_of_reads(*gone);
  drop(std::move(gone));
}

// ---- The proxy's thread

void Proxy::run() noexcept {
  uint32_t idle = 0;
  while (!stops_) {
    idle = pass() ? 0 : idle + 1;
    if (idle < kBusyPasses)
      std::this_thread::yield();
    else
      std::this_thread::sleep_for(kIdle);
  }
}

bool Proxy::pass() noexcept {
  try {
    const std::lock_guard lock(mutex_);
    bool did = receive();
    take_events();
    const uint64_t now = monotonic_now_ns();
    for (const std::unique_ptr<Remote>& remote : remotes_) {
      if (remote == nullptr) continue;
      did = look_after_posts(*remote) || did;
      did = pass_on_taken(*remote) || did;
      did = send_words(*remote, now) || did;
      for (uint32_t half = 0; half < 2; ++half) did = send_exchange(*remote, half) || did;
    }
    return did;
  } catch (const std::exception& error) {  // out of memory: what was not done shows as a rank that is late
    TOWLINE_LOG_EVERY(kWarning, kLogNs, "experts: rank {}: {}", options_.rank, error.what());
    return false;
  }
}

// Telling a rank without a connection would wait for one.
bool Proxy::reachable(Remote& remote, uint64_t now_ns) {
  const uint32_t health = functions_.peer_health(remote.peer);
  if (health == TOWLINE_HEALTH_ALIVE || health == TOWLINE_HEALTH_SUSPECT) return true;
  if (remote.asked || now_ns < remote.ask_at_ns) return false;
  remote.asked = functions_.peer_credit_async(remote.peer, queue_, &remote) >= 0;
  remote.ask_at_ns = now_ns + kAskAgainNs;
  return false;
}

void Proxy::take_events() {
  towline_event_t event = {};
  while (functions_.queue_next(queue_, &event, 1, sizeof event) == 1) {
    for (const std::unique_ptr<Remote>& remote : remotes_)
      if (remote != nullptr && remote.get() == event.user_data) remote->asked = false;
    functions_.event_release(&event);
  }
}

bool Proxy::receive() {
  for (uint32_t i = 0; i < kMostNotices; ++i) {
    towline_notice_t notice = {};
    if (functions_.notice_receive(agent_, &notice, sizeof notice) != TOWLINE_OK) return i != 0;
    try {
      take(notice);
    } catch (...) {
      functions_.notice_release(agent_, &notice);
      throw;
    }
    functions_.notice_release(agent_, &notice);
  }
  return true;
}

// A rank's words are taken from the agent that was connected as that rank, and from nobody else.
void Proxy::take(const towline_notice_t& notice) {
  const auto* const data = static_cast<const uint8_t*>(notice.data);
  const std::vector<uint8_t> bytes{data, data + notice.bytes};
  const auto of = [&](uint32_t rank) -> Remote* {
    if (rank >= options_.layout.capacity || remotes_[rank] == nullptr) return nullptr;
    return remotes_[rank]->incarnation == notice.peer_incarnation ? remotes_[rank].get() : nullptr;
  };
  if (const auto words = decode_words(bytes)) {
    if (Remote* const remote = of(words->rank)) take(*remote, *words);
  } else if (const auto exchange = decode_exchange(bytes, options_.layout.local)) {
    if (Remote* const remote = of(exchange->rank)) take(*remote, *exchange);
  }
}

void Proxy::take(Remote& remote, const WordsMessage& message) {
  remote.heard = std::max(remote.heard, message.heard);
  remote.answers = remote.answers || message.asks != 0;
  if (message.number <= remote.words.heard) return;
  remote.words.heard = message.number;
  auto& in = *static_cast<Control*>(in_->host());
  device::store_release(&in.opened[remote.rank], message.opened);
  device::store_release(&in.met[remote.rank], message.met);
  remote.taken = message.taken;
  remote.has_taken = true;
}

void Proxy::take(Remote& remote, const ExchangeMessage& message) {
  const uint64_t head = message.flag >> kCountBits;
  const auto half = static_cast<uint32_t>(head & 1);
  if (message.number <= remote.halves[half].received) return;
  uint64_t sum = 0;
  for (const uint32_t count : message.counts) sum += count;
  if (sum >> kCountBits != 0) return;  // no exchange has so many
  remote.halves[half].received = message.number;
  auto& in = *static_cast<Control*>(in_->host());
  device::store_relaxed(&in.shape[half][remote.rank], message.shape);
  if (shape_is_batch(message.shape) || shape_combines(message.shape)) {
    device::store_release(&in.returned[half][remote.rank], head << kCountBits | sum);
    return;
  }
  auto* const base = static_cast<uint8_t*>(in_->host());
  for (uint32_t expert = 0; expert < options_.layout.local; ++expert)
    device::store_release(
        reinterpret_cast<uint64_t*>(base + options_.layout.count_at(half, remote.rank, expert)),
        head << kCountBits | message.counts[expert]);
}

// A post that failed is kept until nothing of it can land any more.
bool Proxy::look_after_posts(Remote& remote) {
  bool did = false;
  for (Half& half : remote.halves) {
    if (half.post == nullptr) continue;
    if (!half.ended) {
      const int32_t status = functions_.post_poll(half.post);
      if (status == TOWLINE_IN_PROGRESS) continue;
      half.ended = true;
      half.came = status >= 0;
      if (status < 0)
        TOWLINE_LOG_EVERY(kWarning, kLogNs, "experts: rank {} could not send to rank {}: {}", options_.rank,
                          remote.rank, status_text(static_cast<Status>(status)));
    }
    if (functions_.post_wait_fenced(half.post, TOWLINE_FENCE_LOCAL | TOWLINE_FENCE_REMOTE, 0) != TOWLINE_OK)
      continue;
    functions_.post_release(half.post);
    half.post = nullptr;
    did = true;
  }
  return did;
}

// True: nothing in flight could land on top of it.
bool Proxy::may_post(Remote& remote, uint32_t half, uint64_t flag) {
  for (Half& other : remote.halves) {
    if (other.post == nullptr || flag_nonce(other.flag) == flag_nonce(flag)) continue;
    if (!other.cancelled) (void)functions_.post_cancel(other.post);
    other.cancelled = true;
  }
  const Half& beside = remote.halves[1 - half];
  return remote.halves[half].post == nullptr &&
         (beside.post == nullptr || flag_nonce(beside.flag) == flag_nonce(flag));
}

bool Proxy::send_exchange(Remote& remote, uint32_t half) {
  Half& mine = remote.halves[half];
  const uint64_t flag = device::load_acquire(&image(remote).ready[half][options_.rank]);
  if (flag == mine.seen) return false;
  ExchangeMessage message;
  message.rank = options_.rank;
  message.number = number_ + 1;
  message.flag = flag;
  message.shape = device::load_relaxed(&image(remote).shape[half][options_.rank]);
  const uint64_t via =
      shape_is_batch(message.shape) ? device::load_relaxed(&image(remote).via[half][options_.rank]) : 0;
  if (reads_elsewhere(remote.rank, via) && is_over(remote, flag)) {
    mine.seen = flag;
    return true;
  }
  if (!may_post(remote, half, flag)) return false;
  mine.came = false;
  mine.via = via;
  if (reads_elsewhere(remote.rank, mine.via)) {
    const Rows rows = rows_at_relay(mine.via);
    if (rows == Rows::kAreOnTheirWay) return false;
    if (rows == Rows::kAreLost) message.shape = kRowsAreLost | stage_half(message.shape);
  }
  towline_plan_t* const plan =
      shape_is_batch(message.shape) ? pick_batch(remote, half, message) : pick(remote, half, message);
  if (plan != nullptr) {
    const int32_t status = post(remote, half, message, plan);
    if (status == TOWLINE_AGAIN) return false;
    if (status < 0)
      TOWLINE_LOG_EVERY(kWarning, kLogNs, "experts: rank {} cannot send to rank {}: {}", options_.rank,
                        remote.rank, functions_.last_error());
  }
  mine.seen = flag;
  return true;
}

// The plan of an exchange, and its blocks that are used, at least one: picks_. Null: there is no plan for its shape.
towline_plan_t* Proxy::pick(const Remote& remote, uint32_t half, ExchangeMessage& message) {
  const uint64_t shape = message.shape;
  const Slots slots = Slots::of(shape_hidden(shape), shape_max_tokens(shape), shape_format(shape));
  const auto way = std::find_if(remote.ways.begin(), remote.ways.end(),
                                [&](const Way<Slots>& each) { return each.shape == slots; });
  if (way == remote.ways.end()) return nullptr;
  pick_slots(remote, half, slots, shape_combines(shape), message.counts);
  return way->plan;
}

// Also how many tokens there are of each expert.
void Proxy::pick_slots(const Remote& remote, uint32_t half, const Slots& shape, bool combines,
                       std::vector<uint32_t>& counts) {
  const Layout& layout = options_.layout;
  const auto* const base = static_cast<const uint8_t*>(remote.memory->host());
  const auto slots = static_cast<uint32_t>(layout.local * shape.max_tokens);
  const uint32_t first = half * slots;
  picks_.clear();
  for (uint32_t expert = 0; expert < layout.local; ++expert) {
    const uint32_t count = flag_count(device::load_relaxed(
        reinterpret_cast<const uint64_t*>(base + layout.count_at(half, options_.rank, expert))));
    counts.push_back(count);
    const auto at = static_cast<uint32_t>(expert * shape.max_tokens);
    for (uint32_t i = 0; i < std::min<uint64_t>(count, shape.max_tokens); ++i) {
      const uint32_t used =
          combines ? *reinterpret_cast<const uint32_t*>(base + layout.used_at(half, at + i)) : i;
      const uint32_t slot = used & ~kWholeSlot;
      if (slot >= shape.max_tokens) continue;
      picks_.push_back(first + at + slot);
      if (shape.rest_bytes != 0 && used != slot) picks_.push_back(2 * slots + first + at + slot);
    }
  }
  if (picks_.empty()) picks_.push_back(first);
}

int32_t Proxy::post(Remote& remote, uint32_t half, ExchangeMessage& message, towline_plan_t* plan) {
  Half& mine = remote.halves[half];
  const std::vector<uint8_t> notice = encode(message);
  TOWLINE_INIT(towline_post_options_t, how);
  how.from = {picks_.data(), sizeof(uint32_t), 0, 0, 0, picks_.size()};
  how.to = how.from;
  how.notice = notice.data();
  how.notice_bytes = notice.size();
  // Others wait for the rows, and are to hear within their own timeout if these don't get there.
  const bool relays = mine.via != 0 && !reads_elsewhere(remote.rank, mine.via);
  const uint64_t timeout_ns = relays ? options_.timeout_ns / 2 : options_.timeout_ns;
  how.deadline_ns = Deadline::after(monotonic_now_ns(), timeout_ns).ns();
  how.priority = TOWLINE_PRIORITY_LATENCY;
  how.stream_kind = TOWLINE_STREAM_UNORDERED;  // of the GPU's memory: the kernel has raised its flag
  const int32_t status = functions_.plan_post(plan, &how, &mine.post);
  if (status < 0) {
    mine.post = nullptr;
    return status;
  }
  mine.flag = message.flag;
  mine.ended = mine.cancelled = false;
  ++number_;
  return status;
}

bool Proxy::pass_on_taken(Remote& remote) {
  if (!remote.has_taken) return false;
  for (const Half& half : remote.halves) {
    if (half.post == nullptr) continue;
    const uint64_t ahead = number_in_flag(flag_number(half.flag) - remote.taken);
    if (ahead != 1 && ahead != 2)
      return false;  // that post's exchange was taken, and its outcome is still to come
  }
  device::store_release(&static_cast<Control*>(in_->host())->taken[remote.rank], remote.taken);
  remote.has_taken = false;
  return true;
}

bool Proxy::send_words(Remote& remote, uint64_t now_ns) {
  const Control& from = image(remote);
  WordsMessage now = remote.words;
  now.opened = device::load_acquire(&from.opened[options_.rank]);
  now.taken = device::load_acquire(&from.taken[options_.rank]);
  now.met = device::load_acquire(&from.met[options_.rank]);
  const bool changed =
      now.opened != remote.words.opened || now.taken != remote.words.taken || now.met != remote.words.met;
  const bool asks = changed || remote.heard < now.number;
  if (!changed && !remote.answers && !(asks && now_ns >= remote.repeat_at_ns)) return false;
  if (!reachable(remote, now_ns)) return false;
  if (changed) now.number = ++number_;
  now.asks = asks ? 1 : 0;
  const std::vector<uint8_t> bytes = encode(now);
  const int32_t status = functions_.notice_send(remote.peer, bytes.data(), bytes.size());
  remote.repeat_ns = changed ? kFirstRepeatNs : std::min(2 * remote.repeat_ns, kLastRepeatNs);
  if (status == TOWLINE_AGAIN) return false;
  remote.repeat_at_ns = now_ns + remote.repeat_ns;
  if (status < 0) {  // repeated like one that is lost
    TOWLINE_LOG_EVERY(kWarning, kLogNs, "experts: rank {} cannot tell rank {} anything: {}", options_.rank,
                      remote.rank, functions_.last_error());
  }
  remote.answers = false;
  remote.words = now;
  return changed;
}

}  // namespace towline::collectives::experts
