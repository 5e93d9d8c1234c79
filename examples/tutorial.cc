// The C++ of docs/tutorial.md: scripts/tutorial copies the parts between "[name]" and "[end]" to the page.
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <string>
#include <thread>
#include <towline/collectives.hpp>
#include <towline/queue.hpp>
#include <towline/storage.hpp>
#include <towline/towline.hpp>
#include <vector>

using namespace std::chrono_literals;

namespace {

void need(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "tutorial: %s\n", what);
  std::exit(1);
}

constexpr uint64_t kPage = 4096;
constexpr uint64_t kPages = 64;

void owner(int pipe) {
  // [own]
  const towline::Memory cache{kPages * kPage};  // memory that peers can map
  std::memset(cache.data(), 7, kPages * kPage);
  const towline::Agent agent{"owner"};
  const towline::Region region =
      agent.register_memory(towline::dram(cache), {.access = towline::Access::kRead});
  const std::string address = agent.address();  // "127.0.0.1:43121": send it to the peer by any means
  // [end]
  need(write(pipe, address.data(), address.size()) > 0, "no pipe");
  close(pipe);
  // [notice]
  towline::Notice notice;
  while (agent.receive(notice) != towline::Status::kOk) (void)agent.wait(10s);
  // notice.text() is "thanks": every byte was read, so the pages may be reused
  // [end]
  need(notice.text() == "thanks", "another notice");
}

void reader(const std::string& address) {
  // [move]
  const towline::Agent agent{"reader"};
  const towline::Memory memory{kPages * kPage};
  const towline::Region mine = agent.register_memory(towline::dram(memory));
  const towline::Peer peer = agent.connect(address);
  const auto here = agent.block_list(towline::Blocks::at(memory.data(), kPage).repeat(kPages, kPage));
  const auto there =
      peer.block_list(towline::Blocks::at(peer.regions().front().address, kPage).repeat(kPages, kPage));
  // [end]
  // [plan]
  const towline::Plan plan = agent.plan(there, here);  // once for each peer and pair of lists
  const std::vector<uint32_t> from = {40, 7};
  const std::vector<uint32_t> to = {0, 1};
  const towline::Post post = plan.post({.from = from, .to = to});  // for each request
  post.get(10s);                                                   // what moved; throws unless it is done
  // [end]
  need(memory.data()[kPage] == std::byte{7} && memory.data()[2 * kPage] == std::byte{0}, "wrong bytes");
  // [wait]
  const towline::Queue queue{agent};
  int requests = 0;
  for (int request = 0; request < 3; ++request) {
    const towline::Post next = plan.post({.user_data = &requests, .queue = queue.native()});
    if (!next.accepted()) throw towline::Error{next.poll(), "not accepted"};
  }
  while (requests < 3) {
    (void)queue.wait(10s);  // or: give queue.fd() to your event loop
    for (const towline::Event& event : queue.ready())
      if (event.status == TOWLINE_OK) ++*static_cast<int*>(event.user_data);
  }
  // [end]
  need(!is_error(peer.send("thanks")), "no credit");
  // [store]
  const std::string folder = std::filesystem::temp_directory_path();
  const std::string uri = "file:" + folder + "/towline-tutorial-" + std::to_string(getpid());
  const towline::Region file = agent.register_storage(uri, {.create = true, .bytes = kPages * kPage});
  const auto stored = agent.block_list(file.blocks(0, kPage).repeat(kPages, kPage));
  const towline::Post saved = agent.plan(here, stored).post();
  saved.get(10s);
  file.commit();  // durable
  // [end]
  need(std::filesystem::file_size(uri.substr(5)) == kPages * kPage, "the file is short");
  std::filesystem::remove(uri.substr(5));
}

void rank_of(int rank, const std::string& folder) {
  // [collect]
  auto options = towline_communicator_options_t{};
  options.struct_size = sizeof options;
  options.rank = rank;  // without rank and size: from torchrun, MPI or Slurm
  options.size = 2;
  const std::string meeting = "file:" + folder;  // a folder that every rank can reach
  options.bootstrap = meeting.c_str();
  const towline::Communicator world{options};
  std::vector<float> values(4, static_cast<float>(rank + 1));
  world.all_reduce(values, values);  // {3, 3, 3, 3} on both ranks
  // [end]
  need(values == std::vector<float>(4, 3.0F), "wrong sum");
}

void collect() {
  std::string folder = std::filesystem::temp_directory_path() / "towline-tutorial-XXXXXX";
  need(mkdtemp(folder.data()) != nullptr, "no folder");
  std::thread other([&] { rank_of(1, folder); });
  rank_of(0, folder);
  other.join();
  std::filesystem::remove_all(folder);
}

}  // namespace

int main() try {
  int pipe_ends[2];
  need(pipe(pipe_ends) == 0, "no pipe");
  const pid_t child = fork();  // before any agent exists: agents do not cross a fork
  if (child == 0) {
    owner(pipe_ends[1]);
    return 0;
  }
  close(pipe_ends[1]);
  std::string address(256, '\0');
  const ssize_t size = read(pipe_ends[0], address.data(), address.size());
  address.resize(size > 0 ? static_cast<size_t>(size) : 0);
  reader(address);
  int status = 0;
  waitpid(child, &status, 0);
  need(status == 0, "the owner failed");
  collect();
  return 0;
} catch (const std::exception& error) {
  std::fprintf(stderr, "tutorial: %s\n", error.what());
  return 1;
}
