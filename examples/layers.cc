// A prefill agent pushes each layer of a paged cache as soon as it is computed; a decode agent is told once, when all
// layers are there. Both are in this process, as they would be on two hosts.
#include <chrono>
#include <cstdio>
#include <cstring>
#include <towline/towline.hpp>
#include <vector>

using namespace std::chrono_literals;

namespace {

constexpr uint64_t kLayers = 4;
constexpr uint64_t kPageBytes = 16384;

// Stands for the kernels of a model.
void compute(const towline::Memory& cache, uint64_t pages, uint64_t layer) {
  std::memset(cache.data() + layer * pages * kPageBytes, static_cast<int>(layer + 1), pages * kPageBytes);
}

}  // namespace

int main() try {
  const uint64_t my_pages = 8;
  const uint64_t their_pages = 32;
  const towline::Agent prefill{"prefill-0"};
  const towline::Agent decode{"decode-0"};
  const towline::Memory produced{kLayers * my_pages * kPageBytes};
  const towline::Memory cache{kLayers * their_pages * kPageBytes};
  const towline::Region kv = prefill.register_memory(
      towline::dram(produced), {.name = "kv", .layout = towline::paged(kLayers, my_pages, kPageBytes)});
  const towline::Region its_kv = decode.register_memory(
      towline::dram(cache), {.access = towline::Access::kWrite,
                             .name = "kv",
                             .layout = towline::paged(kLayers, their_pages, kPageBytes)});

  const towline::Peer peer = prefill.connect(decode.address());
  const towline::View there = peer.region("kv");
  const std::vector<uint32_t> from = {0, 3, 5};  // pages of the request here ..
  const std::vector<uint32_t> to = {17, 4, 30};  // .. and where the decode agent wants them

  const towline::Group push =
      prefill.group({.notice = "req-17", .deadline = 10s, .priority = towline::Priority::latency});
  for (uint64_t layer = 0; layer < kLayers; ++layer) {
    compute(produced, my_pages, layer);
    if (const towline::Status status = push.copy(kv[layer][from], there[layer][to]); is_error(status))
      throw towline::Error{status, std::string{towline::last_error()}};
  }
  push.close();  // no more members
  push.get();    // throws unless all of them are there

  towline::Notice notice;
  while (decode.receive(notice) != towline::Status::kOk) (void)decode.wait(1s);
  const std::byte last = cache.data()[((kLayers - 1) * their_pages + 30) * kPageBytes];
  std::printf("%.*s: %zu pages of %d layers are there, the last begins with %d\n",
              static_cast<int>(notice.text().size()), notice.text().data(), from.size(),
              static_cast<int>(kLayers), static_cast<int>(last));
  return last == std::byte{kLayers} ? 0 : 1;
} catch (const std::exception& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}
