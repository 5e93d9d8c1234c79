// towline_bench_nixl_prepped [ROUNDS]: what NIXL's prepped calls cost in C++: prepXferDlist, makeXferReq with fresh picks,
// postXferReq and getXferStatus. Two agents of one process with a backend "UCX"; uses nixl.h alone, so that it also
// builds with another implementation, or an older one. prepped_turns.py runs two such programs in turns.
//
// Prints a line per figure: its name, a tab, the median of the rounds in nanoseconds.
#include <nixl.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <numeric>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

namespace {

using std::chrono::steady_clock;

constexpr size_t kBlock = 256;
constexpr size_t kBlocks = 8192;
constexpr size_t kPicked = 4096;

void must(nixl_status_t status, const char* call) {
  if (status < 0)
    throw std::runtime_error(std::string(call) + " returned " + std::to_string(static_cast<int>(status)));
}

struct Side {
  explicit Side(const std::string& its_name)
      : name(its_name), memory(kBlock * kBlocks), agent(name, nixlAgentConfig{}) {
    nixlBackendH* backend = nullptr;
    must(agent.createBackend("UCX", {}, backend), "createBackend");
    nixl_reg_dlist_t all(DRAM_SEG);
    all.addDesc(nixlBlobDesc(reinterpret_cast<uintptr_t>(memory.data()), memory.size(), 0, ""));
    must(agent.registerMem(all), "registerMem");
  }
  [[nodiscard]] nixl_xfer_dlist_t blocks(size_t count) const {
    nixl_xfer_dlist_t list(DRAM_SEG);
    for (size_t i = 0; i < count; ++i)
      list.addDesc(nixlBasicDesc(reinterpret_cast<uintptr_t>(memory.data()) + i * kBlock, kBlock, 0));
    return list;
  }
  void load(Side& other) {
    nixl_blob_t blob;
    must(other.agent.getLocalMD(blob), "getLocalMD");
    std::string loaded;
    must(agent.loadRemoteMD(blob, loaded), "loadRemoteMD");
  }

  std::string name;
  std::vector<char> memory;
  nixlAgent agent;
};

void finish(const nixlAgent& agent, nixlXferReqH* request) {
  nixl_status_t status = agent.postXferReq(request);
  while (status == NIXL_IN_PROG) status = agent.getXferStatus(request);
  must(status, "postXferReq");
  must(agent.getXferStatus(request), "getXferStatus");
}

std::vector<std::vector<int>> shuffled(size_t picks, size_t lists) {
  std::vector<int> all(kBlocks);
  std::iota(all.begin(), all.end(), 0);
  std::mt19937 random(7);
  std::vector<std::vector<int>> made;
  for (size_t i = 0; i < lists; ++i) {
    std::shuffle(all.begin(), all.end(), random);
    made.emplace_back(all.begin(), all.begin() + static_cast<std::ptrdiff_t>(picks));
  }
  return made;
}

class Bench {
 public:
  explicit Bench(int rounds) : rounds_(rounds) {
    near_.load(far_);
    must(near_.agent.prepXferDlist(near_.blocks(kBlocks), mine_), "prepXferDlist");
    must(near_.agent.prepXferDlist(far_.name, far_.blocks(kBlocks), theirs_), "prepXferDlist");
  }
  Bench(const Bench&) = delete;
  Bench& operator=(const Bench&) = delete;
  ~Bench() {
    (void)near_.agent.releasedDlistH(mine_);
    (void)near_.agent.releasedDlistH(theirs_);
  }

  void run() {
    for (const size_t count : {size_t{1}, kBlocks}) {
      const nixl_xfer_dlist_t list = far_.blocks(count);
      measure("prepXferDlist and release, " + std::to_string(count) + " blocks", count == 1 ? 2000 : 20,
              [&](size_t) {
                nixlDlistH* made = nullptr;
                must(near_.agent.prepXferDlist(far_.name, list, made), "prepXferDlist");
                must(near_.agent.releasedDlistH(made), "releasedDlistH");
              });
    }
    for (const size_t count : {size_t{1}, size_t{64}, kPicked}) picked(count);
  }

 private:
  nixlXferReqH* make(const std::vector<int>& picks, const std::vector<int>& their_picks) const {
    nixlXferReqH* request = nullptr;
    must(near_.agent.makeXferReq(NIXL_WRITE, mine_, picks, theirs_, their_picks, request), "makeXferReq");
    return request;
  }

  void picked(size_t count) {
    const auto lists = shuffled(count, 16);
    const auto picks = [&](size_t i) -> const std::vector<int>& { return lists[i % lists.size()]; };
    const std::string of = ", " + std::to_string(count) + " picks";
    const size_t times = count == kPicked ? 50 : 5000;
    measure("makeXferReq and release" + of, times, [&](size_t i) {
      must(near_.agent.releaseXferReq(make(picks(i), picks(i + 1))), "releaseXferReq");
    });
    nixlXferReqH* const request = make(picks(0), picks(1));
    measure("postXferReq until done" + of, times, [&](size_t) { finish(near_.agent, request); });
    must(near_.agent.releaseXferReq(request), "releaseXferReq");
    measure("made, posted, done and released" + of, times, [&](size_t i) {
      nixlXferReqH* const fresh = make(picks(i), picks(i + 1));
      finish(near_.agent, fresh);
      must(near_.agent.releaseXferReq(fresh), "releaseXferReq");
    });
  }

  void measure(const std::string& what, size_t times, const std::function<void(size_t)>& call) const {
    std::vector<double> took;
    for (int round = -1; round < rounds_; ++round) {
      const auto start = steady_clock::now();
      for (size_t i = 0; i < times; ++i) call(i);
      const std::chrono::duration<double, std::nano> all = steady_clock::now() - start;
      if (round >= 0) took.push_back(all.count() / static_cast<double>(times));
    }
    std::ranges::nth_element(took, took.begin() + static_cast<std::ptrdiff_t>(took.size() / 2));
    std::printf("%s\t%.1f\n", what.c_str(), took[took.size() / 2]);
  }

  const int rounds_;
  Side near_{"near"};
  Side far_{"far"};
  nixlDlistH* mine_ = nullptr;
  nixlDlistH* theirs_ = nullptr;
};

}  // namespace

int main(int argc, char** argv) try {
  const int rounds = argc > 1 ? std::atoi(argv[1]) : 5;
  if (rounds < 1) throw std::runtime_error("ROUNDS is at least 1");
  Bench(rounds).run();
  return 0;
} catch (const std::exception& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}
