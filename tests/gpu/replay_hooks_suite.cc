// Hooks that are told of replays: of those that a graph recorded while they were there, each time, and of nothing else.
#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "gpu/collectives_suite.h"

namespace towline::gpu_test {
namespace {

constexpr uint64_t kOfEach = 3000;
constexpr int kReplays = 3;
constexpr auto kPatience = std::chrono::seconds(20);

// What one rank's hooks were told.
class Told {
 public:
  Told() = default;
  Told(const Told&) = delete;
  Told& operator=(const Told&) = delete;
  ~Told() { remove_all(); }
  void hook(towline_communicator_t* world, uint32_t kind) {
    ASSERT_EQ(towline_communicator_hook(world, kind, kind == TOWLINE_HOOK_PRE ? issued : replayed, this,
                                        &hooks_.emplace_back()),
              TOWLINE_OK)
        << towline_last_error();
  }
  void remove_all() {
    for (towline_hook_t* const hook : hooks_) towline_hook_remove(hook);
    hooks_.clear();
  }
  [[nodiscard]] uint64_t last_issued() const { return last_issued_; }
  // Of each operation, in the order in which they came.
  [[nodiscard]] std::map<uint64_t, std::vector<int32_t>> statuses() const {
    const std::lock_guard lock(mutex_);
    return statuses_;
  }
  [[nodiscard]] std::vector<uint32_t> operations() const {
    const std::lock_guard lock(mutex_);
    return operations_;
  }
  [[nodiscard]] bool come(size_t count) const {
    const auto until = std::chrono::steady_clock::now() + kPatience;
    while (std::chrono::steady_clock::now() < until) {
      if (operations().size() >= count) return true;
      std::this_thread::yield();
    }
    return false;
  }

 private:
  static void issued(void* context, const towline_hook_args_t* args) {
    static_cast<Told*>(context)->last_issued_ = args->op_id;
  }
  static void replayed(void* context, const towline_hook_args_t* args) {
    auto& self = *static_cast<Told*>(context);
    EXPECT_EQ(args->call, nullptr);
    const std::lock_guard lock(self.mutex_);
    self.statuses_[args->op_id].push_back(args->status);
    self.operations_.push_back(args->op);
  }

  mutable std::mutex mutex_;
  std::map<uint64_t, std::vector<int32_t>> statuses_;
  std::vector<uint32_t> operations_;
  std::vector<towline_hook_t*> hooks_;
  std::atomic<uint64_t> last_issued_{0};
};

std::vector<int32_t> begun_and_ended(int times) {
  std::vector<int32_t> all;
  for (int i = 0; i < times; ++i) all.insert(all.end(), {TOWLINE_IN_PROGRESS, TOWLINE_OK});
  return all;
}

void issue(const Rank& rank, const towline_collective_t& call, void* stream) {
  ASSERT_EQ(towline_collective_issue(rank.on_gpu, &call, nullptr, stream), TOWLINE_OK)
      << towline_last_error();
}

TEST(CollectivesReplayHooks, AreToldOfEachReplayOfWhatWasRecordedSince) {
  run_on_gpus({}, false, [](Rank& rank) {
    Told told;
    void* const stream = rank.gpu.make_stream();
    Buffer buffer(rank.gpu, kOfEach * 4);
    buffer.put(std::vector<uint8_t>(kOfEach * 4));
    const towline_collective_t call = reduce_call(buffer, buffer, kOfEach);
    rank.gpu.record(stream);
    issue(rank, call, stream);
    void* const before = rank.gpu.end_record(stream);
    told.hook(rank.on_gpu, TOWLINE_HOOK_PRE);
    told.hook(rank.on_gpu, TOWLINE_HOOK_REPLAY);
    rank.gpu.record(stream);
    issue(rank, call, stream);
    const uint64_t in_stream = told.last_issued();
    towline_work_t* work = nullptr;
    ASSERT_EQ(towline_collective_issue_beside(rank.on_gpu, &call, nullptr, stream, &work), TOWLINE_OK);
    const uint64_t beside = told.last_issued();
    ASSERT_EQ(towline_work_wait_on(work, stream), TOWLINE_OK) << towline_last_error();
    towline_collective_norm_t norm = {};
    norm.struct_size = sizeof norm;
    norm.rows = 3;
    norm.width = kOfEach / 3;
    norm.epsilon = 1e-5F;
    norm.input = norm.output = buffer.at();
    ASSERT_EQ(towline_collective_issue_norm(rank.on_gpu, &norm, nullptr, stream), TOWLINE_OK)
        << towline_last_error();
    const uint64_t with_norm = told.last_issued();
    void* const graph = rank.gpu.end_record(stream);
    towline_work_release(work);
    meet(rank);
    for (int i = 0; i < kReplays; ++i) {
      rank.gpu.replay(before, stream);
      issue(rank, call, stream);
      rank.gpu.replay(graph, stream);
    }
    rank.gpu.drain(stream);
    EXPECT_EQ(communicator_error(rank.on_gpu), "");
    ASSERT_TRUE(told.come(3 * 2 * kReplays)) << told.operations().size();
    const std::vector<int32_t> all = begun_and_ended(kReplays);
    const std::map<uint64_t, std::vector<int32_t>> expected = {
        {in_stream, all}, {beside, all}, {with_norm, all}};
    EXPECT_EQ(told.statuses(), expected);
    EXPECT_EQ(std::ranges::count(told.operations(), TOWLINE_COLLECTIVE_ALL_REDUCE), 3 * 2 * kReplays);
    told.remove_all();
    rank.gpu.replay(graph, stream);  // counts, and tells nobody
    rank.gpu.drain(stream);
    meet(rank);
    rank.gpu.free_graph(before);
    rank.gpu.free_graph(graph);
    rank.gpu.free_stream(stream);
  });
}

// What the hook has not been told when the communicator is closed, it is told then.
TEST(CollectivesReplayHooks, AreToldOfAllWhenTheCommunicatorCloses) {
  std::vector<Told> told(2);
  std::array<bool, 2> here = {};  // ranks may be processes
  constexpr int kMany = 50;
  run_on_gpus({}, false, [&](Rank& rank) {
    void* const stream = rank.gpu.make_stream();
    Buffer buffer(rank.gpu, kOfEach * 4);
    buffer.put(std::vector<uint8_t>(kOfEach * 4));
    auto& mine = told[static_cast<size_t>(rank.rank)];
    mine.hook(rank.on_gpu, TOWLINE_HOOK_REPLAY);
    rank.gpu.record(stream);
    issue(rank, reduce_call(buffer, buffer, kOfEach), stream);
    void* const graph = rank.gpu.end_record(stream);
    meet(rank);
    here[static_cast<size_t>(rank.rank)] = true;
    for (int i = 0; i < kMany; ++i) rank.gpu.replay(graph, stream);
    rank.gpu.drain(stream);
    rank.gpu.free_graph(graph);
    rank.gpu.free_stream(stream);
  });
  for (size_t rank = 0; rank < told.size(); ++rank) {
    const auto statuses = told[rank].statuses();
    EXPECT_EQ(statuses.size(), here[rank] ? 1U : 0U);
    for (const auto& [op_id, come] : statuses) EXPECT_EQ(come, begun_and_ended(kMany));
  }
}

TEST(CollectivesReplayHooks, AreRefusedWhereReplaysAreNotWatched) {
  run_on_gpus({}, true, [](Rank& rank) {
    towline_hook_t* hook = nullptr;
    const auto nothing = [](void*, const towline_hook_args_t*) {};
    EXPECT_EQ(towline_communicator_hook(rank.on_cpu, TOWLINE_HOOK_REPLAY, nothing, nullptr, &hook),
              TOWLINE_UNSUPPORTED);
    EXPECT_NE(std::string(towline_last_error()).find("does not tell of replays"), std::string::npos)
        << towline_last_error();
  });
}

}  // namespace
}  // namespace towline::gpu_test
