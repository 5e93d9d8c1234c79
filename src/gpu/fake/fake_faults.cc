// Faults that tests set on the fake GPUs; see fake_device.h.
#include <algorithm>
#include <utility>

#include "gpu/fake/fake_device.h"

namespace towline::cuda::fake {

void Stop::hold(bool held) {
  const std::lock_guard lock(mutex_);
  held_ = held;
  others_pass_ = false;
  let_go_.notify_all();
}

void Stop::let_others_pass() {
  const std::lock_guard lock(mutex_);
  others_pass_ = true;
}

void Stop::pass() {
  std::unique_lock lock(mutex_);
  if (others_pass_) return;
  ++waiting_;
  let_go_.wait(lock, [this] { return !held_; });
  --waiting_;
}

bool Stop::waited_for() {
  const std::lock_guard lock(mutex_);
  return waiting_ != 0;
}

void Faults::refuse_launches(uint32_t count, Code code) {
  const std::lock_guard lock(mutex_);
  refusals_ = count;
  refusal_ = code;
}

Code Faults::take_refusal() {
  const std::lock_guard lock(mutex_);
  if (refusals_ == 0) return 0;
  --refusals_;
  return refusal_;
}

void Faults::refuse_behind_valves(uint32_t count, Code code) {
  const std::lock_guard lock(mutex_);
  refusals_behind_valves_ = count;
  refusal_behind_valves_ = code;
}

Code Faults::take_refusal_behind_valve() {
  const std::lock_guard lock(mutex_);
  if (refusals_behind_valves_ == 0) return 0;
  --refusals_behind_valves_;
  return refusal_behind_valves_;
}

void Faults::break_next(Code code) {
  const std::lock_guard lock(mutex_);
  break_ = code;
}

Code Faults::take_break() {
  const std::lock_guard lock(mutex_);
  return std::exchange(break_, 0);
}

bool Faults::in_one_of(const std::vector<Range>& ranges, uint64_t address) {
  return std::any_of(ranges.begin(), ranges.end(),
                     [&](const Range& range) { return address >= range.begin && address < range.end; });
}

void Faults::forget(uint64_t address, uint64_t bytes) {
  const std::lock_guard lock(mutex_);
  forgotten_.push_back({address, address + bytes, 0});
}

void Faults::place(uint64_t address, uint64_t bytes, uint32_t gpu) {
  const std::lock_guard lock(mutex_);
  placed_.push_back({address, address + bytes, gpu});
}

bool Faults::forgotten(uint64_t address) {
  const std::lock_guard lock(mutex_);
  return in_one_of(forgotten_, address);
}

uint32_t Faults::gpu_at(uint64_t address) const {
  for (const Range& range : placed_)
    if (address >= range.begin && address < range.end) return range.gpu;
  return 0;
}

uint32_t Faults::gpu_of(uint64_t address) {
  const std::lock_guard lock(mutex_);
  return gpu_at(address);
}

Faults::MadeRange* Faults::find_made(uint64_t address) {
  for (MadeRange& range : made_)
    if (address >= range.begin && address < range.end) return &range;
  return nullptr;
}

void Faults::make(uint64_t address, uint64_t bytes, Made made, std::optional<Use> everyones) {
  const std::lock_guard lock(mutex_);
  made_.push_back({address, address + bytes, made, everyones, {}});
}

Made Faults::made(uint64_t address) {
  const std::lock_guard lock(mutex_);
  const MadeRange* const range = find_made(address);
  return range == nullptr ? Made::kPlain : range->made;
}

std::optional<Use> Faults::access(uint32_t gpu, uint64_t address) {
  const std::lock_guard lock(mutex_);
  const MadeRange* const range = find_made(address);
  if (range == nullptr || gpu == gpu_at(address) || range->allowed.contains(gpu)) return Use::kWrite;
  return range->everyones;
}

void Faults::allow(uint32_t gpu, uint64_t address) {
  const std::lock_guard lock(mutex_);
  if (MadeRange* const range = find_made(address); range != nullptr) range->allowed.insert(gpu);
}

void Faults::enable_peer(uint32_t gpu, uint32_t other) {
  const std::lock_guard lock(mutex_);
  peers_.insert({gpu, other});
}

bool Faults::may_touch(uint32_t gpu, uint64_t address) {
  const std::lock_guard lock(mutex_);
  const MadeRange* const range = find_made(address);
  if (range == nullptr || gpu == gpu_at(address)) return true;
  return range->made == Made::kPlain ? peers_.contains({gpu, gpu_at(address)}) : range->allowed.contains(gpu);
}

void Faults::enlarge(bool large) {
  const std::lock_guard lock(mutex_);
  large_ = large;
}

bool Faults::large() {
  const std::lock_guard lock(mutex_);
  return large_;
}

void Faults::separate(bool separated) {
  const std::lock_guard lock(mutex_);
  separated_ = separated;
}

bool Faults::separated() {
  const std::lock_guard lock(mutex_);
  return separated_;
}

void Faults::note_load(uint32_t gpu) {
  const std::lock_guard lock(mutex_);
  loaded_.insert(gpu);
}

bool Faults::loaded(uint32_t gpu) {
  const std::lock_guard lock(mutex_);
  return loaded_.contains(gpu);
}

void Faults::note_launch() {
  const std::lock_guard lock(mutex_);
  ++launched_;
}

uint64_t Faults::launched() {
  const std::lock_guard lock(mutex_);
  return launched_;
}

void Faults::note_gathered(uint64_t bytes) {
  const std::lock_guard lock(mutex_);
  gathered_ += bytes;
}

uint64_t Faults::gathered() {
  const std::lock_guard lock(mutex_);
  return gathered_;
}

void Faults::fill(bool full) {
  const std::lock_guard lock(mutex_);
  full_ = full;
}

bool Faults::full() {
  const std::lock_guard lock(mutex_);
  return full_;
}

void Faults::fill_gpu(uint32_t gpu) {
  const std::lock_guard lock(mutex_);
  full_gpus_.insert(gpu);
}

bool Faults::full(uint32_t gpu) {
  const std::lock_guard lock(mutex_);
  return full_ || full_gpus_.contains(gpu);
}

void Faults::refuse_streams(uint32_t gpu) {
  const std::lock_guard lock(mutex_);
  streamless_gpus_.insert(gpu);
}

bool Faults::streams_refused(uint32_t gpu) {
  const std::lock_guard lock(mutex_);
  return streamless_gpus_.contains(gpu);
}

void Faults::refuse_pins(bool refused) {
  const std::lock_guard lock(mutex_);
  pins_refused_ = refused;
}

bool Faults::pins_refused() {
  const std::lock_guard lock(mutex_);
  return pins_refused_;
}

void Faults::refuse_pools(bool refused) {
  const std::lock_guard lock(mutex_);
  pools_refused_ = refused;
}

bool Faults::pools_refused() {
  const std::lock_guard lock(mutex_);
  return pools_refused_;
}

void Faults::let_unpinning_wait(bool waits) {
  const std::lock_guard lock(mutex_);
  unpinning_waits_ = waits;
}

bool Faults::unpinning_waits() {
  const std::lock_guard lock(mutex_);
  return unpinning_waits_;
}

void Faults::note_unpin() {
  const std::lock_guard lock(mutex_);
  ++unpinned_;
}

uint64_t Faults::unpinned() {
  const std::lock_guard lock(mutex_);
  return unpinned_;
}

void Faults::refuse_dma(bool refused) {
  const std::lock_guard lock(mutex_);
  dma_refused_ = refused;
}

bool Faults::dma_refused() {
  const std::lock_guard lock(mutex_);
  return dma_refused_;
}

void Faults::note_export() {
  const std::lock_guard lock(mutex_);
  ++exports_;
}

uint64_t Faults::exports() {
  const std::lock_guard lock(mutex_);
  return exports_;
}

void Faults::pin_for_reading(uint64_t address, uint64_t bytes) {
  const std::lock_guard lock(mutex_);
  for_reading_.push_back({address, address + bytes, 0});
}

bool Faults::pinned_for_reading(uint64_t address) {
  const std::lock_guard lock(mutex_);
  return in_one_of(for_reading_, address);
}

void Faults::by_hand(bool by_hand) {
  const std::lock_guard lock(mutex_);
  by_hand_ = by_hand;
}

bool Faults::is_by_hand() {
  const std::lock_guard lock(mutex_);
  return by_hand_;
}

void Faults::reset() {
  for (Stop* stop : {&launches, &lists, &pins}) stop->hold(false);
  const std::lock_guard lock(mutex_);
  large_ = separated_ = full_ = pins_refused_ = pools_refused_ = dma_refused_ = by_hand_ = false;
  refusals_ = refusals_behind_valves_ = 0;
  refusal_ = refusal_behind_valves_ = break_ = 0;
  full_gpus_.clear();
  streamless_gpus_.clear();
  made_.clear();
  peers_.clear();
  launched_ = gathered_ = exports_ = unpinned_ = 0;
  unpinning_waits_ = false;
  loaded_.clear();
  forgotten_.clear();
  placed_.clear();
  for_reading_.clear();
}

Faults& faults() {
  static Faults instance;
  return instance;
}

}  // namespace towline::cuda::fake
