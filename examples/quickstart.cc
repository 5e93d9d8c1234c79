// Two agents in one process: one writes pages into the other's memory, which learns of it by a notice.

#include <chrono>
#include <cstdio>
#include <cstring>
#include <towline/towline.hpp>
#include <vector>

using namespace std::chrono_literals;

namespace {

constexpr uint64_t kPageBytes = 4096;
constexpr uint64_t kPages = 64;

int run() {
  // Memory from Towline can be mapped by every process of this host; any other memory can be registered as
  // well.
  towline::Memory source{kPages * kPageBytes};
  towline::Memory target{kPages * kPageBytes};

  towline::Agent prefill{"prefill-0"};
  towline::Agent decode{"decode-0"};
  const auto source_region = prefill.register_memory(towline::dram(source));
  const auto target_region =
      decode.register_memory(towline::dram(target), {.access = towline::Access::kWrite});

  // Connecting tells each agent which memory the other has, and where.
  const auto peer = prefill.connect(decode.address());

  // A list says where blocks lie; a copy picks some of them. Page 3 goes to page 10, page 1 to page 11.
  const auto mine = prefill.block_list(towline::blocks_of(source.data(), source.size(), kPageBytes));
  const auto theirs = peer.block_list(
      towline::Blocks::at(peer.regions().front().address, kPageBytes).repeat(kPages, kPageBytes));
  const std::vector<uint32_t> my_pages{3, 1};
  const std::vector<uint32_t> their_pages{10, 11};
  std::strcpy(reinterpret_cast<char*>(source.data() + 3 * kPageBytes), "page three");
  std::strcpy(reinterpret_cast<char*>(source.data() + 1 * kPageBytes), "page one");
  const auto move = prefill.copy(mine[my_pages], theirs[their_pages], {.notice = "two pages"});
  if (!move.accepted()) {
    const auto why = towline::last_error();
    std::fprintf(stderr, "not accepted: %.*s\n", static_cast<int>(why.size()), why.data());
    return 1;
  }
  if (move.wait(10s) != towline::Status::kOk) {
    std::fprintf(stderr, "failed: %s\n", move.error().c_str());
    return 1;
  }

  towline::Notice notice;
  while (decode.receive(notice) == towline::Status::kAgain) {
    if (is_error(decode.wait(10s))) return 1;
  }
  std::printf("'%.*s' sent '%.*s': %s, %s\n", static_cast<int>(notice.peer_name().size()),
              notice.peer_name().data(), static_cast<int>(notice.text().size()), notice.text().data(),
              reinterpret_cast<const char*>(target.data() + 10 * kPageBytes),
              reinterpret_cast<const char*>(target.data() + 11 * kPageBytes));
  std::printf("moved by %s\n", move.backend().c_str());
  return 0;
}

}  // namespace

int main() {
  try {
    return run();
  } catch (const towline::Error& error) {
    std::fprintf(stderr, "%s: %s\n", status_name(error.code()), error.what());
    return 1;
  }
}
