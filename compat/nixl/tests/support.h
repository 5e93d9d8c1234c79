// Helpers of the tests: an agent with a backend and memory, lists over it, waiting.
#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <cstring>
#include <memory>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include <nixl.h>
#include <towline_nixl.h>

namespace compat {

using namespace std::chrono_literals;

// Calls `condition` until it holds; false after 20 s.
template <class Condition>
bool eventually(Condition condition, std::chrono::nanoseconds limit = 20s) {
  const auto until = std::chrono::steady_clock::now() + limit;
  while (!condition()) {
    if (std::chrono::steady_clock::now() > until) return false;
    std::this_thread::yield();
  }
  return true;
}

// An agent with a UCX backend and `bytes` of registered memory.
struct Side {
  explicit Side(const std::string& agent_name, size_t bytes = 1 << 20,
                const nixlAgentConfig& config = nixlAgentConfig{}, bool with_backend = true)
      : name(agent_name), memory(bytes), agent(std::make_unique<nixlAgent>(agent_name, config)) {
    if (!with_backend) return;
    EXPECT_EQ(agent->createBackend("UCX", {}, backend), NIXL_SUCCESS);
    EXPECT_EQ(agent->registerMem(registered()), NIXL_SUCCESS);
  }

  [[nodiscard]] uintptr_t address() const { return reinterpret_cast<uintptr_t>(memory.data()); }
  [[nodiscard]] nixl_reg_dlist_t registered() const {
    nixl_reg_dlist_t list(DRAM_SEG);
    list.addDesc(nixlBlobDesc(address(), memory.size(), 0, ""));
    return list;
  }
  // `count` blocks from the first on, `stride` bytes apart.
  [[nodiscard]] nixl_xfer_dlist_t blocks(size_t count, size_t bytes, size_t stride = 0) const {
    nixl_xfer_dlist_t list(DRAM_SEG);
    for (size_t i = 0; i < count; ++i)
      list.emplace(address() + i * (stride == 0 ? bytes : stride), bytes, uint64_t{0});
    return list;
  }
  void fill(char first) {
    for (size_t i = 0; i < memory.size(); ++i)
      memory[i] = static_cast<char>(first + static_cast<char>(i / 64));
  }
  [[nodiscard]] std::string metadata() const {
    std::string blob;
    EXPECT_EQ(agent->getLocalMD(blob), NIXL_SUCCESS);
    return blob;
  }
  void load(const Side& other) {
    std::string loaded;
    ASSERT_EQ(agent->loadRemoteMD(other.metadata(), loaded), NIXL_SUCCESS) << towline::nixl::last_error();
    ASSERT_EQ(loaded, other.name);
  }

  std::string name;
  std::vector<char> memory;
  std::unique_ptr<nixlAgent> agent;
  nixlBackendH* backend = nullptr;
};

inline nixl_opt_args_t with_notif(const std::string& text) {
  nixl_opt_args_t args;
  args.notif = text;
  return args;
}

// Posts and waits for the outcome.
inline nixl_status_t run(const nixlAgent& agent, nixlXferReqH* request,
                         const nixl_opt_args_t* args = nullptr) {
  nixl_status_t status = agent.postXferReq(request, args);
  eventually(
      [&] { return status != NIXL_IN_PROG || (status = agent.getXferStatus(request)) != NIXL_IN_PROG; });
  return status;
}

// A request of all blocks of both, made by `from`.
inline nixlXferReqH* request(Side& from, nixl_xfer_op_t op, const nixl_xfer_dlist_t& here,
                             const nixl_xfer_dlist_t& there, const std::string& remote,
                             const nixl_opt_args_t* args = nullptr) {
  nixlXferReqH* made = nullptr;
  EXPECT_EQ(from.agent->createXferReq(op, here, there, remote, made, args), NIXL_SUCCESS)
      << towline::nixl::last_error();
  return made;
}

// Whether `count` notifications from `sender` arrive; `texts` are they.
inline bool receives(nixlAgent& agent, const std::string& sender, size_t count,
                     std::vector<std::string>& texts) {
  nixl_notifs_t all;
  const bool came = eventually([&] {
    EXPECT_EQ(agent.getNotifs(all), NIXL_SUCCESS);
    return all[sender].size() >= count;
  });
  texts = all[sender];
  return came;
}

// ---- Another process: this program with --child, which obeys lines (child.cc).

class Child {
 public:
  explicit Child(const std::string& name, const std::vector<std::string>& environment = {});
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;
  ~Child();

  // Sends a command and gives the answer.
  std::string ask(const std::string& command);
  void signal(int number) const;
  // Waits for its end; its exit code, or -1 for a signal.
  int wait();

 private:
  std::string read_line();

  int pid_ = -1;
  int to_ = -1;
  int from_ = -1;
  std::string buffer_;
};

// The body of the child process. Returns its exit code.
int child_main(const std::string& name);

std::string to_hex(std::string_view bytes);
std::string from_hex(std::string_view text);

}  // namespace compat
