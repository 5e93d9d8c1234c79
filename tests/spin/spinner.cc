#include "spin/spinner.h"

#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <numeric>

namespace towline::spin {
namespace {

constexpr uint64_t kShortNs = 5'000'000;

void count_end(const towline_completion_t* completion) {
  static_cast<Tally*>(completion->user_data)->called.fetch_add(1);
}

}  // namespace

Spinner::Spinner(World& world, uint32_t index)
    : world_(world),
      random_(world.options().seed * 1000 + index),
      moves_(kMovesOfThread),
      planner_(world, index * kAreasOfThread + kMovesOfThread, random_()),
      storer_(world, index * kAreasOfThread + kMovesOfThread + 1, random_()),
      listener_(world, random_()) {
  for (uint32_t i = 0; i < kMovesOfThread; ++i) moves_[i].area = index * kAreasOfThread + i;
}

Spinner::~Spinner() {
  for (Move& move : moves_) destroy(move);
  while (!known_.empty()) forget(known_.size() - 1);
  for (const Scratch& scratch : scratch_) {
    world_.deregister(scratch.region);
    if (towline_memory_free(scratch.memory) != TOWLINE_OK) give_up(towline_last_error());
  }
  for (towline_counter_t* counter : counters_) towline_counter_destroy(counter);
}

void Spinner::step() {
  const uint64_t drawn = random_.below(1000);
  if (drawn < 220) return move_call();
  if (drawn < 440) return plan_call();
  if (drawn < 600) return store_call();
  if (drawn < 680) return listen_call();
  if (drawn < 760) return agent_call();
  if (drawn < 860) return peer_call();
  if (drawn < 920) return region_call();
  if (drawn < 970) return counter_call();
  if (drawn < 992) return bad_call();
  if (drawn < 994) return world_.options().forks ? fork_call() : move_call();
  if (drawn < 996) return world_.register_anew(any_place());
  world_.remake(any_place(), random_);
}

// ---- Agents, peers, regions, counters

void Spinner::agent_call() {
  Place& place = world_.place(any_place());
  if (place.closing) return;
  const std::shared_lock lock(place.mutex, std::try_to_lock);
  if (!lock.owns_lock()) return;
  std::vector<char> text(random_.below(60'000));
  std::size_t needed = 0;
  int fd = -1;
  switch (random_.below(8)) {
    case 0:
      call(towline_agent_info(place.agent, text.data(), text.size(), &needed));
      break;
    case 1:
      call(towline_agent_metrics(place.agent, text.data(), text.size(), &needed));
      break;
    case 2:
      call(towline_agent_event_fd(place.agent, &fd));
      call(towline_agent_wait(place.agent, random_.below(1'000'000)));
      break;
    case 3: {
      towline_completion_t ends[8];
      const int32_t count = call(towline_completions_pull(place.agent, ends, random_.below(9), sizeof *ends));
      for (int32_t i = 0; i < count; ++i) ++static_cast<Tally*>(ends[i].user_data)->pulled;
      break;
    }
    case 4:
    case 5: {
      towline_notice_t notice{};
      while (call(towline_notice_receive(place.agent, &notice, sizeof notice)) == TOWLINE_OK) {
        world_.notice_came(notice.data, notice.bytes);
        towline_notice_release(place.agent, &notice);
      }
      break;
    }
    default:
      call(towline_agent_progress(place.agent));
  }
}

void Spinner::forget(std::size_t index) {
  towline_peer_release(known_[index].peer);
  known_[index] = known_.back();
  known_.pop_back();
}

// Both places are held. Null when it did not come to be.
towline_peer_t* Spinner::meet(Place& from, Place& to) {
  towline_peer_t* peer = nullptr;
  if (below(0.1)) {
    call(towline_peer_find(from.agent, towline_agent_name(to.agent), &peer));
    return peer;
  }
  if (below(0.5)) {
    call(towline_peer_connect(from.agent, to.address.c_str(), below(0.1) ? 100'000 : 500'000'000, &peer));
    return peer;
  }
  std::size_t needed = 0;
  std::vector<uint8_t> blob(4096);
  if (call(towline_agent_metadata(to.agent, nullptr, 0, blob.data(), blob.size(), &needed)) != TOWLINE_OK)
    return nullptr;
  blob.resize(std::min(blob.size(), needed));
  if (below(0.05)) blob[random_.below(blob.size())] ^= static_cast<uint8_t>(1 + random_.below(255));
  call(towline_peer_add(from.agent, blob.data(), blob.size(), &peer));
  return peer;
}

Spinner::Known* Spinner::know(uint32_t here, uint32_t there) {
  Place& from = world_.place(here);
  Place& to = world_.place(there);
  for (std::size_t i = 0; i < known_.size();) {
    Known& known = known_[i];
    if (known.here == here && known.there == there) {
      const bool present =
          known.generation_here == from.generation && known.generation_there == to.generation;
      if (present && below(0.95)) return &known;
      forget(i);
    } else {
      ++i;
    }
  }
  towline_peer_t* const peer = meet(from, to);
  if (peer == nullptr) return nullptr;
  known_.push_back({peer, here, there, from.generation, to.generation});
  return &known_.back();
}

// Peers are called without a place held: their agents may be closing.
void Spinner::peer_call() {
  if (known_.empty()) return;
  const std::size_t index = random_.below(known_.size());
  towline_peer_t* const peer = known_[index].peer;
  std::array<towline_region_info_t, 4> regions;
  std::size_t count = regions.size();
  switch (random_.below(10)) {
    case 0:
      // Removing drops the reference as well.
      if (below(0.1) && call(towline_peer_remove(peer)) == TOWLINE_OK) known_[index].peer = nullptr;
      if (known_[index].peer == nullptr || below(0.5)) forget(index);
      break;
    case 1:
      if (below(0.3)) call(towline_peer_refresh(peer, random_.below(100'000'000)));
      break;
    case 2:
      call(towline_peer_regions(peer, regions.data(), sizeof regions.front(), &count));
      (void)towline_peer_health(peer);
      (void)std::strlen(towline_peer_name(peer));
      (void)std::strlen(towline_peer_incarnation(peer));
      break;
    case 3:
      if (!counters_.empty())
        call(towline_counter_add(
            peer, below(0.7) ? towline_counter_key(counters_[random_.below(counters_.size())]) : random_(),
            1));
      break;
    case 4:
    case 5:
      listener_.talk_to(peer);
      break;
    default: {
      std::vector<uint64_t> notice(1 + random_.below(below(0.1) ? 8192 : 8));
      notice.front() = world_.number();
      call(towline_notice_send(peer, notice.data(), notice.size() * sizeof notice.front()));
    }
  }
}

void Spinner::region_call() {
  if (scratch_.size() > 6 || (!scratch_.empty() && below(0.4))) {
    const std::size_t index = random_.below(scratch_.size());
    if (call(towline_region_deregister(scratch_[index].region, random_.below(2'000'000))) != TOWLINE_OK)
      return;
    if (towline_memory_free(scratch_[index].memory) != TOWLINE_OK) give_up(towline_last_error());
    scratch_[index] = scratch_.back();
    scratch_.pop_back();
    return;
  }
  Place& place = world_.place(any_place());
  if (place.closing) return;
  const std::shared_lock lock(place.mutex, std::try_to_lock);
  if (!lock.owns_lock()) return;
  Scratch scratch{};
  if (call(towline_memory_allocate(4096 * (1 + random_.below(16)), 0, &scratch.memory)) != TOWLINE_OK)
    give_up(towline_last_error());
  towline_region_options_t options{};
  options.struct_size = sizeof options;
  options.access = static_cast<uint32_t>(random_.below(4));
  options.flags = below(0.3) ? TOWLINE_REGION_GUARDED : 0;
  if (call(towline_region_register(place.agent, towline_memory_address(scratch.memory),
                                   towline_memory_bytes(scratch.memory), &options, &scratch.region)) !=
      TOWLINE_OK)
    give_up(towline_last_error());
  scratch_.push_back(scratch);
}

void Spinner::counter_call() {
  if (counters_.size() > 4) {
    towline_counter_destroy(counters_.back());
    counters_.pop_back();
    return;
  }
  if (!counters_.empty() && below(0.7)) {
    towline_counter_t* const counter = counters_[random_.below(counters_.size())];
    call(towline_counter_wait(counter, towline_counter_value(counter) + random_.below(3),
                              random_.below(500'000)));
    return;
  }
  Place& place = world_.place(any_place());
  if (place.closing) return;
  const std::shared_lock lock(place.mutex, std::try_to_lock);
  if (!lock.owns_lock()) return;
  towline_counter_t* counter = nullptr;
  if (call(towline_counter_create(place.agent, random_.below(10), &counter)) == TOWLINE_OK)
    counters_.push_back(counter);
}

// Arguments of any kind; what must not happen is anything but an error.
void Spinner::bad_call() {
  Place& place = world_.place(any_place());
  if (place.closing) return;
  const std::shared_lock lock(place.mutex, std::try_to_lock);
  if (!lock.owns_lock()) return;
  const auto odd = [this]() -> uint64_t {
    constexpr std::array<uint64_t, 5> kOdd = {0, 1, UINT64_MAX, uint64_t{1} << 63, 4096};
    return below(0.5) ? kOdd[random_.below(kOdd.size())] : random_.below(1 << 20);
  };
  towline_blocks_t blocks{};
  blocks.address = reinterpret_cast<uint64_t>(place.memory->data()) + odd();
  blocks.length = odd();
  blocks.kind = static_cast<uint32_t>(random_.below(7));
  blocks.dimensions = static_cast<uint32_t>(random_.below(9));
  for (int i = 0; i < TOWLINE_MAX_DIMENSIONS; ++i) {
    blocks.count[i] = odd();
    blocks.stride[i] = odd();
  }
  towline_block_list_t* list = nullptr;
  if (call(towline_block_list_create(place.agent, nullptr, &blocks, sizeof blocks, 1, &list)) == TOWLINE_OK)
    towline_block_list_destroy(list);
  std::array<uint8_t, 64> noise;
  for (uint8_t& byte : noise) byte = static_cast<uint8_t>(random_());
  towline_peer_t* peer = nullptr;
  if (call(towline_peer_add(place.agent, noise.data(), random_.below(noise.size()), &peer)) == TOWLINE_OK)
    give_up("noise was taken for a blob");
}

// The child looks at handles of its parent's and is gone.
void Spinner::fork_call() {
  const Move& move = any_move();
  if (move.transfer == nullptr) return;
  const pid_t child = ::fork();
  if (child < 0) return;
  if (child == 0) {
    const int32_t status = towline_transfer_post(move.transfer);
    ::_exit(status == TOWLINE_FORKED ? 0 : 1);
  }
  int status = 0;
  if (::waitpid(child, &status, 0) != child || !WIFEXITED(status) || WEXITSTATUS(status) != 0)
    give_up("a forked child was not told that it is one");
}

// ---- Moves

void Spinner::move_call() {
  Move& move = any_move();
  if (move.transfer == nullptr) return create(move);
  if (!move.in_flight) return below(0.1) ? destroy(move) : post(move);
  switch (random_.below(8)) {
    case 0:
      call(towline_transfer_cancel(move.transfer));
      break;
    case 1:
      return destroy(move);
    case 2: {
      std::array<char, 2000> text;
      std::size_t needed = 0;
      call(towline_transfer_route(move.transfer, text.data(), random_.below(text.size()), &needed));
      if (call(towline_transfer_set_notice(move.transfer, text.data(), 0)) == TOWLINE_OK)
        move.has_notice = true;
      break;
    }
    default:
      break;
  }
  look(move, below(0.5) ? kShortNs : 0);
}

void Spinner::plan_call() {
  if (planner_.begun()) return planner_.step();
  const uint32_t here = any_place();
  const uint32_t there = any_place();
  if (here == there) return;
  Place& from = world_.place(here);
  Place& to = world_.place(there);
  if (from.closing || to.closing) return;
  const std::shared_lock from_lock(from.mutex, std::try_to_lock);
  const std::shared_lock to_lock(to.mutex, std::try_to_lock);
  if (!from_lock.owns_lock() || !to_lock.owns_lock()) return;
  if (Known* const known = know(here, there); known != nullptr) planner_.begin(from, to, known->peer);
}

void Spinner::store_call() {
  if (storer_.begun()) return storer_.step();
  const uint32_t here = any_place();
  const uint32_t there = below(0.6) ? here : any_place();
  Place& place = world_.place(here);
  Place& memory = world_.place(there);
  if (place.closing || memory.closing) return;
  const std::shared_lock place_lock(place.mutex, std::try_to_lock);
  if (!place_lock.owns_lock()) return;
  if (here == there) return storer_.begin(place, place, nullptr);
  const std::shared_lock memory_lock(memory.mutex, std::try_to_lock);
  if (!memory_lock.owns_lock()) return;
  if (Known* const known = know(here, there); known != nullptr) storer_.begin(place, memory, known->peer);
}

void Spinner::listen_call() {
  if (listener_.begun()) return listener_.step();
  Place& place = world_.place(any_place());
  if (place.closing) return;
  const std::shared_lock lock(place.mutex, std::try_to_lock);
  if (lock.owns_lock()) listener_.begin(place);
}

void Spinner::draw_picks(Move& move) {
  constexpr std::array<uint64_t, 4> kSizes = {512, 4096, 8192, 32768};
  move.block_bytes = kSizes[random_.below(kSizes.size())];
  const uint64_t blocks = kAreaBytes / move.block_bytes;
  const uint64_t count = below(0.7) ? 1 + random_.below(std::min<uint64_t>(blocks, 8)) : blocks;
  for (std::vector<uint32_t>* picks : {&move.local_picks, &move.remote_picks}) {
    picks->resize(blocks);
    std::iota(picks->begin(), picks->end(), 0u);
    if (below(0.7)) std::shuffle(picks->begin(), picks->end(), random_);
    picks->resize(count);
  }
}

void Spinner::create(Move& move) {
  const uint32_t here = any_place();
  const uint32_t there = any_place();
  if (here == there) return;
  Place& from = world_.place(here);
  Place& to = world_.place(there);
  if (from.closing || to.closing) return;
  const std::shared_lock from_lock(from.mutex, std::try_to_lock);
  const std::shared_lock to_lock(to.mutex, std::try_to_lock);
  if (!from_lock.owns_lock() || !to_lock.owns_lock()) return;
  if (from.memory->spoilt(move.area) || to.memory->spoilt(move.area)) return;
  Known* const known = know(here, there);
  if (known == nullptr) return;
  draw_picks(move);
  move.local = from.memory;
  move.remote = to.memory;
  move.op = below(0.5) ? TOWLINE_READ : TOWLINE_WRITE;
  if (!make(move, from, to, known->peer)) move.transfer = nullptr;
}

bool Spinner::make(Move& move, Place& from, Place& to, towline_peer_t* peer) {
  towline_blocks_t blocks{};
  blocks.length = move.block_bytes;
  blocks.dimensions = 1;
  blocks.count[0] = kAreaBytes / move.block_bytes;
  blocks.stride[0] = move.block_bytes;
  towline_block_list_t* mine = nullptr;
  towline_block_list_t* theirs = nullptr;
  blocks.address = reinterpret_cast<uint64_t>(from.memory->area(move.area));
  call(towline_block_list_create(from.agent, nullptr, &blocks, sizeof blocks, 1, &mine));
  blocks.address = reinterpret_cast<uint64_t>(to.memory->area(move.area));
  call(towline_block_list_create(from.agent, peer, &blocks, sizeof blocks, 1, &theirs));
  bool made = mine != nullptr && theirs != nullptr;
  if (made) {
    const towline_picks_t local = {move.local_picks.data(), 4, 0, 0, 0, move.local_picks.size()};
    const towline_picks_t remote = {move.remote_picks.data(), 4, 0, 0, 0, move.remote_picks.size()};
    towline_transfer_options_t options{};
    options.struct_size = sizeof options;
    move.has_notice = below(0.4);
    const bool called_back = below(0.4);
    const uint64_t number = 0;
    options.notice = move.has_notice ? &number : nullptr;
    options.notice_bytes = move.has_notice ? sizeof number : 0;
    options.workers = static_cast<uint32_t>(random_.below(4));
    options.queue_completion = below(0.3) ? 1 : 0;
    options.callback = called_back ? count_end : nullptr;
    options.timeout_ns = below(0.2) ? 1 + random_.below(2'000'000) : 0;
    move.tally = world_.new_tally(called_back);
    options.user_data = move.tally;
    const bool reads = move.op == TOWLINE_READ;
    options.from = reads ? remote : local;
    options.to = reads ? local : remote;
    made = call(towline_transfer_create(from.agent, reads ? theirs : mine, reads ? mine : theirs, &options,
                                        &move.transfer)) == TOWLINE_OK;
  }
  if (mine != nullptr) towline_block_list_destroy(mine);
  if (theirs != nullptr) towline_block_list_destroy(theirs);
  return made;
}

void Spinner::stamp_all(Memory& memory, const Move& move, const std::vector<uint32_t>& picks, uint64_t seed) {
  for (std::size_t i = 0; i < picks.size(); ++i)
    stamp(memory.area(move.area) + picks[i] * move.block_bytes, move.block_bytes, seed, i * move.block_bytes);
}

void Spinner::check(const Move& move) {
  const bool read = move.op == TOWLINE_READ;
  const Memory& memory = read ? *move.local : *move.remote;
  const std::vector<uint32_t>& picks = read ? move.local_picks : move.remote_picks;
  for (std::size_t i = 0; i < picks.size(); ++i) {
    const std::byte* const block = memory.area(move.area) + picks[i] * move.block_bytes;
    if (!stamped(block, move.block_bytes, move.stamp, i * move.block_bytes))
      give_up("block " + std::to_string(i) + " of a " + (read ? "READ" : "WRITE") +
              " that was ok is not there");
  }
  towline_result_t result{};
  result.struct_size = sizeof result;
  call(towline_transfer_result(move.transfer, &result));
  const uint64_t bytes = picks.size() * move.block_bytes;
  if (result.status != TOWLINE_OK || result.bytes != bytes || result.total_bytes != bytes)
    give_up("the result of a move that was ok says status " + std::to_string(result.status) + ", " +
            std::to_string(result.bytes) + " bytes");
  world_.moved += bytes;
}

void Spinner::post(Move& move) {
  const bool read = move.op == TOWLINE_READ;
  move.stamp = world_.number();
  stamp_all(read ? *move.remote : *move.local, move, read ? move.remote_picks : move.local_picks, move.stamp);
  stamp_all(read ? *move.local : *move.remote, move, read ? move.local_picks : move.remote_picks,
            ~move.stamp);
  if (move.has_notice &&
      call(towline_transfer_set_notice(move.transfer, &move.stamp, sizeof move.stamp)) != TOWLINE_OK)
    return destroy(move);
  ++move.tally->accepted;  // its end may come before post returns
  const int32_t status = call(towline_transfer_post(move.transfer));
  if (status == TOWLINE_IN_PROGRESS) {
    move.in_flight = true;
    if (below(0.5)) look(move, below(0.5) ? kShortNs : 0);
    return;
  }
  if (status == TOWLINE_OK) return check(move);
  --move.tally->accepted;
  if (status != TOWLINE_AGAIN) destroy(move);
}

void Spinner::look(Move& move, uint64_t timeout_ns) {
  const int32_t status = call(timeout_ns == 0 ? towline_transfer_poll(move.transfer)
                                              : towline_transfer_wait(move.transfer, timeout_ns));
  if (status != TOWLINE_IN_PROGRESS) ended(move, status);
}

void Spinner::ended(Move& move, int32_t status) {
  move.in_flight = false;
  if (status == TOWLINE_OK) return check(move);
  settle_fences(move);
}

// An outcome that is not ok: the areas are not to be touched before they are fenced.
void Spinner::settle_fences(Move& move) {
  int32_t status = TOWLINE_NOT_YET;
  for (uint64_t waited = 0; status == TOWLINE_NOT_YET && waited < kPatienceNs; waited += kShortNs) {
    status = call(towline_transfer_wait_fenced(move.transfer, TOWLINE_FENCE_LOCAL, kShortNs));
    world_.drive();
  }
  if (status == TOWLINE_NOT_YET) give_up("a transfer's local fence does not come");
  status = call(towline_transfer_wait_fenced(move.transfer, TOWLINE_FENCE_REMOTE, kShortNs));
  if (status == TOWLINE_OK) return;
  if (move.op == TOWLINE_WRITE) move.remote->spoil(move.area);
  destroy(move);
}

void Spinner::destroy(Move& move) {
  if (move.transfer == nullptr) return;
  if (move.in_flight) {
    call(towline_transfer_cancel(move.transfer));
    move.in_flight = false;
    settle_fences(move);
    if (move.transfer == nullptr) return;
  }
  int32_t status = TOWLINE_NOT_YET;
  for (uint64_t waited = 0; status == TOWLINE_NOT_YET && waited < kPatienceNs; waited += kShortNs) {
    status = call(towline_transfer_destroy(move.transfer, kShortNs));
    if (status == TOWLINE_NOT_YET) world_.drive();
  }
  if (status != TOWLINE_OK) give_up(std::string("a transfer stays: ") + towline_last_error());
  move.transfer = nullptr;
}

}  // namespace towline::spin
